//! Applies settings, section by section, and makes the plan.

use super::job_draft::JobDraft;
use super::options::{self, Kind, Meaning, Opt};
use super::run_draft::RunDraft;
use super::section::Section;
use super::setting::Setting;
use super::value::Value;
use crate::error::UsageError;
use crate::plan::{Plan, Time};
use crate::units::KbBase;
use blkmq_lab::workload::Job;

/// The name of a job that has options but no name.
const UNNAMED: &str = "blkmq";

/// Makes the plan that the sections of a command line describe, for runs in `time`; `args` are the original words of the command
/// line.
///
/// # Errors
/// For the first word or value that cannot be accepted.
pub fn plan(sections: &[Section], args: &[String], time: Time) -> Result<Plan, UsageError> {
    let mut run = RunDraft::new(time);
    let mut jobs = Vec::new();
    // Globals of the command line hold for every file, globals of a file only for its own jobs.
    let mut everywhere = JobDraft::default();
    let mut globals = JobDraft::default();
    let (mut file, mut last_job_file) = (0, None);
    for section in sections {
        if section.file != file {
            (file, globals) = (section.file, everywhere.clone());
        }
        let Some(name) = section.job() else {
            apply(section, &mut globals, &mut run)?;
            if file == 0 {
                everywhere = globals.clone();
            }
            continue;
        };
        let mut draft = globals.clone();
        apply(section, &mut draft, &mut run)?;
        // As in fio, the jobs of a second file wait for those of the first.
        draft.job.stonewall |= file > 1 && last_job_file.is_some_and(|last| last != file);
        last_job_file = Some(file);
        finish(draft, name, &mut jobs, &mut run)?;
    }
    if jobs.is_empty() && everywhere.touched {
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

fn apply(section: &Section, job: &mut JobDraft, run: &mut RunDraft) -> Result<(), UsageError> {
    job.base = kb_base(section)?.unwrap_or(job.base);
    for setting in &section.settings {
        if setting.name == "name" && setting.value.as_ref().is_some_and(|name| !name.is_empty()) {
            continue; // The section has it.
        }
        let option = options::find(&setting.name)
            .ok_or_else(|| setting.refuse(&options::unknown(&setting.name)))?;
        if let Meaning::Unsupported(why) = option.meaning {
            if setting.value.as_deref().is_some_and(|value| options::is_default(option.name, value))
            {
                continue;
            }
            let text = format!("fio's, but not built: {why}; accepted: see --help");
            return Err(setting.refuse(&UsageError::new(text)));
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
        applied.map_err(|e| setting.refuse(&e))?;
    }
    Ok(())
}

/// The value, or the value that a bare option stands for.
fn text<'a>(setting: &'a Setting, option: &Opt) -> Result<&'a str, UsageError> {
    match (&setting.value, option.kind) {
        (Some(text), _) => Ok(text),
        (None, Kind::Flag) => Ok("1"),
        (None, Kind::Optional) => Ok(""),
        (None, Kind::Value) => {
            let accepts = if option.accepts.is_empty() { "a value" } else { option.accepts };
            Err(setting.refuse(&UsageError::new(format!("needs a value; accepted: {accepts}"))))
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
        _ => Err(setting.refuse(&UsageError::new("accepted: 1024, 1000"))),
    }
}

fn push_new<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}
