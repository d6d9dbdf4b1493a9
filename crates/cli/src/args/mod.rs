//! Parses the words of a command line, and job files, into a [`Plan`].
//!
//! [`options`] is the single table of accepted options; parsing, error messages and the [`definition`](mod@definition)
//! for clap's help are generated from it. [`command_line`] determines which options were given with which values,
//! [`job_file`] to which job each belongs, job files included. The settings are then applied section by section to
//! drafts, which collect the values until they can be checked as a whole.

mod command_line;
mod definition;
mod file_draft;
mod job_draft;
mod job_file;
pub mod options;
mod roster;
mod run_draft;
mod target;
mod tenants;
mod value;

pub use definition::definition;

use crate::plan::{Plan, Time, Written};
use crate::report::as_fio;
use blkmq_lab::workload::Job;
use blkmq_terminal::UsageError;
use blkmq_terminal::units::KbBase;
use command_line::{Section, Setting};
use job_draft::JobDraft;
use options::{Kind, Meaning, Opt};
use run_draft::RunDraft;
use value::Value;

/// A parsed command line of `blkmq bench` or `blkmq sim`.
#[derive(Debug)]
pub enum Request {
    /// Print the help.
    Help,
    /// Run this plan, or show it.
    Plan(Box<Plan>),
    /// Print this text: the job file as a command line, or the version.
    Command(String),
}

/// Parses the arguments of `blkmq bench` or, for virtual time, `blkmq sim`.
///
/// # Errors
/// For the first argument that cannot be accepted.
pub fn parse(args: &[String], time: Time) -> Result<Request, UsageError> {
    let words = command_line::read(args)?;
    if words.help {
        return Ok(Request::Help);
    }
    if words.version {
        return Ok(Request::Command(format!("{}\n", as_fio(env!("CARGO_PKG_VERSION")))));
    }
    let sections = job_file::collect(words)?;
    let plan = plan(&sections, args, time)?;
    Ok(match command_line::show_command(&sections, time)? {
        Some(text) => Request::Command(text),
        None => Request::Plan(Box::new(plan)),
    })
}

/// The name of a job with options but without a name.
const UNNAMED: &str = "blkmq";

/// Builds the plan that the sections of a command line describe, for runs in `time`; `args` are the original words of
/// the command line.
///
/// # Errors
/// Every word or value that cannot be accepted, followed by jobs that are impossible.
fn plan(sections: &[Section], args: &[String], time: Time) -> Result<Plan, UsageError> {
    let mut run = RunDraft::new(time);
    let mut faults = Vec::new();
    // The devices depend on it, wherever it is written.
    let settings = sections.iter().flat_map(|section| &section.settings);
    run.readonly =
        settings.filter(|it| it.name == "readonly").any(|it| it.value.as_deref() != Some("0"));
    let mut jobs = Vec::new();
    // Globals of the command line apply to every file, globals of a file only to its own jobs.
    let mut everywhere = JobDraft::default();
    let mut globals = JobDraft::default();
    let (mut file, mut last_job_file) = (0, None);
    for section in sections {
        if section.file != file {
            (file, globals) = (section.file, everywhere.clone());
        }
        let Some(name) = section.job() else {
            apply(section, &mut globals, &mut run, &mut faults);
            for pair in written(section) {
                Written::add(&mut run.written.globals, pair);
            }
            if file == 0 {
                everywhere = globals.clone();
            }
            continue;
        };
        let mut draft = globals.clone();
        apply(section, &mut draft, &mut run, &mut faults);
        run.written.jobs.push(written(section));
        // As in fio, the jobs of a second file wait for those of the first.
        draft.job.stonewall |= file > 1 && last_job_file.is_some_and(|last| last != file);
        last_job_file = Some(file);
        if faults.is_empty() {
            finish(draft, name, &mut jobs, &mut run).unwrap_or_else(|fault| faults.push(fault));
        }
    }
    if let Some(all) = UsageError::all(faults) {
        return Err(all);
    }
    if jobs.is_empty() && everywhere.touched {
        // No job has its own options.
        let name = [("name".to_owned(), UNNAMED.to_owned())].into_iter();
        let options = name.chain(std::mem::take(&mut run.written.globals)).collect();
        run.written.jobs.push(options);
        finish(everywhere, UNNAMED, &mut jobs, &mut run)?;
    }
    run.finish(jobs, args)
}

/// Makes a job of its draft.
fn finish(
    draft: JobDraft,
    name: &str,
    jobs: &mut Vec<Job>,
    run: &mut RunDraft,
) -> Result<(), UsageError> {
    if let Some(awaited) = &draft.job.wait_for
        && jobs.iter().all(|job| job.name != *awaited)
    {
        let text =
            format!("wait_for={awaited}: no earlier job has this name; accepted: one that has");
        return Err(UsageError::new(text).at(format!("job '{name}'")));
    }
    run.cpus.push(draft.cpus.finish());
    let (job, files) = draft.finish(name, jobs.len(), &mut run.notes)?;
    jobs.push(job);
    run.files.push(files);
    Ok(())
}

/// Applies the settings of a section; adds errors to `faults`.
fn apply(section: &Section, job: &mut JobDraft, run: &mut RunDraft, faults: &mut Vec<UsageError>) {
    match kb_base(section) {
        Ok(base) => job.base = base.unwrap_or(job.base),
        Err(fault) => faults.push(fault),
    }
    let named = |setting: &&Setting| {
        setting.name != "name" || setting.value.as_ref().is_none_or(String::is_empty)
    };
    // The name is already known from the section.
    for setting in section.settings.iter().filter(named) {
        one(setting, job, run).unwrap_or_else(|fault| faults.push(fault));
    }
}

fn one(setting: &Setting, job: &mut JobDraft, run: &mut RunDraft) -> Result<(), UsageError> {
    let Some(option) = setting.option() else {
        let bare = Setting { value: None, ..setting.clone() };
        return Err(bare.refuse(options::unknown(&setting.name)));
    };
    if let Meaning::Unsupported(why) = option.meaning {
        if setting.value.as_deref().is_some_and(|value| options::is_default(option.name, value)) {
            return Ok(());
        }
        let text = format!("fio's, but not built: {why}; accepted: jobs without it");
        return Err(setting.refuse(UsageError::new(text)));
    }
    let value = Value { text: text(setting, option)?, base: job.base };
    let applied = match option.meaning {
        Meaning::Structure if option.name == "name" => {
            Err(UsageError::new("no value; accepted: the name of a job"))
        }
        Meaning::Structure | Meaning::Unsupported(_) => {
            Err(UsageError::new("accepted on the command line only"))
        }
        Meaning::Job(apply) => {
            job.touched = true;
            apply(job, value)
        }
        Meaning::Run(_) if option.name == "status_interval" && setting.is_in_file() => {
            Err(UsageError::new("accepted on the command line only, as in fio"))
        }
        Meaning::Run(apply) => apply(run, value),
        Meaning::Described(apply) => {
            job.touched = true;
            push_new(&mut run.annotations, (option.name, value.text.to_owned()));
            apply(job, value)
        }
        Meaning::Annotate => {
            push_new(&mut run.annotations, (option.name, value.text.to_owned()));
            Ok(())
        }
        Meaning::NoOp(why) => {
            push_new(&mut run.ignored, (option.name, why));
            Ok(())
        }
    };
    applied.map_err(|e| setting.refuse(e))
}

/// The job options of a section as written, including an explicit name.
fn written(section: &Section) -> Vec<(String, String)> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    if let (Some(name), 0) = (&section.name, section.file) {
        pairs.push(("name".into(), name.clone()));
    }
    for setting in &section.settings {
        let Some(option) = setting.option() else { continue };
        let of_jobs = option.name == "name"
            || !matches!(option.meaning, Meaning::Run(_) | Meaning::Structure);
        let (true, Some(value)) = (of_jobs, &setting.value) else { continue };
        let name = match option.name {
            // The names used in fio's reports.
            "iodepth_batch_submit" => "iodepth_batch",
            "blockalign" => "ba",
            "mem_align" => "iomem_align",
            name => name,
        };
        Written::add(&mut pairs, (name.to_owned(), value.clone()));
    }
    pairs
}

/// The value, or the default value of an option without one.
fn text<'a>(setting: &'a Setting, option: &Opt) -> Result<&'a str, UsageError> {
    match (&setting.value, option.kind) {
        (Some(text), _) => Ok(text),
        (None, Kind::Flag) => Ok("1"),
        (None, Kind::Optional) => Ok(""),
        (None, Kind::Value) => {
            let accepts = if option.accepts.is_empty() { "a value" } else { option.accepts };
            Err(setting.refuse(UsageError::new(format!("needs a value; accepted: {accepts}"))))
        }
    }
}

/// `kb_base` is read first: the meaning of all sizes in its section depends on it.
fn kb_base(section: &Section) -> Result<Option<KbBase>, UsageError> {
    let Some(setting) = section
        .settings
        .iter()
        .rfind(|setting| matches!(setting.name.as_str(), "kb_base" | "kb-base"))
    else {
        return Ok(None);
    };
    match setting.value.as_deref() {
        Some("1024") => Ok(Some(KbBase::Binary)),
        Some("1000") => Ok(Some(KbBase::Decimal)),
        _ => Err(setting.refuse(UsageError::new("accepted: 1024, 1000"))),
    }
}

fn push_new<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

#[cfg(test)]
mod tests;
