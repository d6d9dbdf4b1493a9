//! Parses the words of a command line, and job files, into a [`Plan`].
//!
//! [`options`] is the single table of accepted options; parsing, error messages and the [`definition`] for clap are
//! generated from it. [`sections`] determines which option was given with which value and where, and to which job it
//! belongs, job files included. The settings are then applied section by section to drafts, which collect the values
//! until they can be checked as a whole.
//!
//! Help pages, completions and the manual are generated from the definition. Clap does not parse the command lines:
//! jobs repeat options, and the order of options matters, which clap does not support.

mod file_draft;
mod job_draft;
pub mod options;
mod run_draft;
mod sections;

use crate::devices;
use crate::plan::{Plan, Time, Written};
use crate::report::as_fio;
use blkmq_lab::workload::Job;
use blkmq_terminal::UsageError;
use blkmq_terminal::page::Page;
use blkmq_terminal::paper::{Paper, paragraph};
use blkmq_terminal::units::KbBase;
use clap::builder::ValueHint;
use clap::{Arg, ArgAction, Command};
use job_draft::{JobDraft, Value, put};
use options::{Kind, Meaning, Opt, VIRTUAL};
use run_draft::RunDraft;
use sections::{Origin, Section, Setting};

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
    let words = sections::read_words(args);
    if words.help {
        return Ok(Request::Help);
    }
    if words.version {
        return Ok(Request::Command(format!("{}\n", as_fio(env!("CARGO_PKG_VERSION")))));
    }
    let sections = sections::collect(words)?;
    let plan = plan(&sections, args, time)?;
    Ok(match sections::show_command(&sections, time)? {
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
                Written::add(&mut run.plan.written.globals, pair);
            }
            if file == 0 {
                everywhere = globals.clone();
            }
            continue;
        };
        let mut draft = globals.clone();
        apply(section, &mut draft, &mut run, &mut faults);
        run.plan.written.jobs.push(written(section));
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
    if jobs.is_empty() && !everywhere.given.is_empty() {
        // No job has its own options.
        let name = [("name".to_owned(), UNNAMED.to_owned())].into_iter();
        let options = name.chain(std::mem::take(&mut run.plan.written.globals)).collect();
        run.plan.written.jobs.push(options);
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
    let mut notes = Vec::new();
    let finished = match &draft.job.wait_for {
        Some(awaited) if jobs.iter().all(|job| job.name != *awaited) => {
            let text =
                format!("wait_for={awaited}: no earlier job has this name; accepted: one that has");
            Err(UsageError::new(text))
        }
        _ => draft.finish(name, jobs.len(), &mut notes),
    };
    let (job, files, cpus) = finished.map_err(|e| e.at(format!("job '{name}'")))?;
    jobs.push(job);
    run.files.push(files);
    run.plan.cpus.push(cpus);
    run.plan.notes.extend(notes.into_iter().map(|note| format!("job '{name}': {note}")));
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

/// Options that describe the run in reports.
const DESCRIBING: [&str; 3] = ["description", "filename", "ioengine"];

fn one(setting: &Setting, job: &mut JobDraft, run: &mut RunDraft) -> Result<(), UsageError> {
    let Some(option) = setting.option() else {
        let bare = Setting { value: None, ..setting.clone() };
        return Err(options::unknown(&setting.name).at(bare));
    };
    if let Meaning::Unsupported(why, defaults) = option.meaning {
        if setting.value.as_deref().is_some_and(|value| defaults.contains(&value)) {
            return Ok(());
        }
        let text = format!("fio's, but not built: {why}; accepted: jobs without it");
        return Err(UsageError::new(text).at(setting));
    }
    let value = Value { text: text(setting, option)?, base: job.base };
    let applied = match option.meaning {
        Meaning::Structure if option.name == "name" => {
            Err(UsageError::new("no value; accepted: the name of a job"))
        }
        Meaning::Structure | Meaning::Unsupported(..) => {
            Err(UsageError::new("accepted on the command line only"))
        }
        Meaning::Job(apply) => apply(job, value),
        Meaning::Flag(place) => put(place(job), value.flag()),
        Meaning::Run(_)
            if option.name == "status_interval" && setting.origin != Origin::CommandLine =>
        {
            Err(UsageError::new("accepted on the command line only, as in fio"))
        }
        Meaning::Run(apply) => apply(run, value),
        Meaning::Annotate => Ok(()),
        Meaning::NoOp(why) => {
            push_new(&mut run.ignored, (option.name, why));
            Ok(())
        }
    };
    if matches!(option.meaning, Meaning::Job(_) | Meaning::Flag(_)) {
        job.given.push(option.name);
    }
    if DESCRIBING.contains(&option.name) {
        push_new(&mut run.plan.annotations, (option.name, value.text.to_owned()));
    }
    applied.map_err(|e| e.at(setting))
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
            Err(UsageError::new(format!("needs a value; accepted: {accepts}")).at(setting))
        }
    }
}

/// `kb_base` is read first: the meaning of all sizes in its section depends on it.
fn kb_base(section: &Section) -> Result<Option<KbBase>, UsageError> {
    let is_base = |it: &&Setting| matches!(it.name.as_str(), "kb_base" | "kb-base");
    let Some(setting) = section.settings.iter().rfind(is_base) else { return Ok(None) };
    let text = setting.value.as_deref().unwrap_or_default();
    let words = [(KbBase::Binary, "1024"), (KbBase::Decimal, "1000")];
    let base = Value { text, base: KbBase::Binary }.word(&words, "1024, 1000");
    base.map(Some).map_err(|e| e.at(setting))
}

fn push_new<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

const USAGE: &str = "[OPTION]... [JOB FILE]...";

const BENCH: Page = Page {
    name: "bench",
    summary: "run fio's workloads against several schedulers and compare them",
    description: "\
Options are fio's: --opt=value, --opt value and -opt=value are alike, and job files may be given. Without any argument, \
in some 20 seconds: what every scheduler costs, on the null device with 1, 2 and twice as many threads as cores, and \
what schedulers are for, on a modelled disk and a modelled SSD. A job with neither runtime nor size gets a runtime, so \
that all runs together take some 20 seconds.",
    examples: &[
        "blkmq bench --scheduler=none,mq-deadline --access=combining,spin --threads=1,2 \\\n      \
         --rw=randread --bs=4k --iodepth=32 --runtime=2 --time_based",
        "blkmq bench --device=memory --rw=randwrite --size=64m --iodepth=32 --verify=crc32c",
        "blkmq bench --device=memory --rw=randrw --norandommap --numjobs=4 --size=64m \\\n      \
         --offset_increment=64m --loops=4 --verify=xxhash --verify_backlog=1024",
        "blkmq bench --device=memory --bs=64k --size=1g --verify=pattern \\\n      \
         --verify_pattern='0xfeed%o\"text\"' --name=fill --rw=write --do_verify=0 \\\n      \
         --name=check --stonewall --rw=read",
    ],
};

const SIM: Page = Page {
    name: "sim",
    summary: "the same in virtual time, repeatable bit for bit from a seed",
    description: "\
Runs fio's workloads against several schedulers in virtual time: the queue, the schedulers and the devices are the same \
code as in blkmq bench, the threads are virtual CPUs, and every thread has one of its own. The same seed gives the same \
run, bit for bit, on every machine. What the device takes is simulated; what the CPU takes is assumed, so compare \
schedulers by what they do to the device.

Options are those of blkmq bench. Files and disks of this machine are no devices here. Without any argument: what every \
scheduler does for a reader beside writers and for sequential readers, on a modelled disk and a modelled SSD. A job \
with neither runtime nor size runs for 10 seconds of virtual time.",
    examples: &[
        "blkmq sim --device=null,irqmode=2,hw_queue_depth=1 \\\n      \
         --rw=randrw --iodepth=32 --numjobs=4 --runtime=1 --report=page.html",
        "blkmq sim --scheduler=mq-deadline --rw=write --numjobs=64 --size=16m \\\n      \
         --offset_increment=1g --seed=7 --output-format=json",
    ],
};

/// The end before the end, and the exit codes.
const ENDING: &str = "\
Ctrl-C ends the runs. What was measured until then is printed and written, and marked as partial: in text and on the \
page at the top, in JSON as blkmq.partial, in CSV in the last column. A second Ctrl-C ends the command immediately. The exit \
code is then 128, as of fio; else 0, 1 for runs that did not go well or results that could not be written, and 2 for a \
command line that cannot be understood. Results that do not fit on a disk go to standard output.

";

const VERIFYING: &str = "\
Verification needs a device that keeps what is written. Each block of verify_interval bytes begins with a header: which \
block it is, which write of it, and a checksum of the rest. Reading back follows the writes of all passes, whether or \
not the runtime is over. As in fio it counts as reads, in a time of their own; the rates in a comparison and the CPU \
time per I/O are those of the workload alone. Reads of a mix check what the job has written so far; a job \
that only reads checks what an earlier one has written with the same verify, verify_interval and randseed. What is \
trimmed is forgotten, and an I/O to blocks that another one is on its way to waits for it. No other thread may write there \
meanwhile: those that overlap are refused, where fio would find errors. A wrong block is error 84, and exit code 1.

Several names in --scheduler and --device: a word with '=' sets an option of the name before it, as in \
--scheduler=mq-deadline:fifo_batch=8,read_expire=100,none
";

const FILES: &str = "
Where several schedulers, accesses, thread counts or devices are compared, the jobs of the JSON and the files of traces \
and logs have them behind their name, as in fill.mq-deadline and PREFIX.mq-deadline_bw.1.log; with --repeat also the \
repetition, as in PREFIX.none.rep0.blktrace.0. Logs have fio's form; clat is from the push into the queue, so that it has \
the wait in the scheduler in it.
";

/// The longest line of a list.
const WIDTH: usize = 79;

/// The command for runs in `time`.
pub fn definition(time: Time) -> Command {
    let page = if time == Time::Real { BENCH } else { SIM };
    let files = Arg::new("job file").value_name("JOB FILE").num_args(0..);
    let files = files.value_hint(ValueHint::FilePath).help("fio's job files, in their order");
    page.command(&notes(time))
        .override_usage(format!("blkmq {} {USAGE}", page.name))
        .arg(files)
        .args(options::under_headings().filter(|offer| is_offered(offer, time)).map(arg))
}

/// Returns whether the option is accepted, with an effect or without.
fn is_offered((heading, option): &(&str, &Opt), time: Time) -> bool {
    let is_built = !matches!(option.meaning, Meaning::Unsupported(..));
    is_built && (*heading != VIRTUAL || time != Time::Real)
}

fn arg((heading, option): (&'static str, &'static Opt)) -> Arg {
    let arg = Arg::new(option.name).long(option.name).visible_aliases(option.aliases);
    let arg = match option.kind {
        Kind::Flag => arg.action(ArgAction::SetTrue),
        Kind::Value => valued(arg, option.accepts),
        Kind::Optional => valued(arg, option.accepts).num_args(0..=1),
    };
    let arg = arg.help(option.help).help_heading(heading);
    match option.meaning {
        // The notes list these by their reasons.
        Meaning::NoOp(why) => arg.help(why).hide(true),
        _ => arg,
    }
}

fn valued(arg: Arg, accepts: &'static str) -> Arg {
    let hint = match accepts {
        "FILE" | "PATH" | "PREFIX" => ValueHint::FilePath,
        _ => ValueHint::Unknown,
    };
    let name = if accepts.is_empty() { "VALUE" } else { accepts };
    arg.value_name(name).value_hint(hint).require_equals(true).action(ArgAction::Append)
}

/// Describes verification, devices, and the options that have no effect or are refused.
fn notes(time: Time) -> String {
    let devices = devices::list(|device| device.is_in(time));
    let idle = reasons(|meaning| match meaning {
        Meaning::NoOp(why) => Some(why),
        _ => None,
    });
    let refused = reasons(|meaning| match meaning {
        Meaning::Unsupported(why, _) => Some(why),
        _ => None,
    });
    format!(
        "{VERIFYING}{FILES}\n{ENDING}Devices, each with a page in blkmq doc:\n{devices}\n\
         Accepted without effect:\n{idle}\nRefused, because it is not built:\n{refused}"
    )
}

/// Lists the names of options, grouped by their common reason, in the order of the table.
fn reasons(reason: impl Fn(Meaning) -> Option<&'static str>) -> String {
    let mut groups: Vec<(&str, String)> = Vec::new();
    for option in options::all() {
        let Some(why) = reason(option.meaning) else { continue };
        match groups.iter_mut().find(|(known, _)| *known == why) {
            Some((_, names)) => names.extend([" ", option.name]),
            None => groups.push((why, option.name.into())),
        }
    }
    let mut list = Paper::new(WIDTH);
    for (why, names) in groups {
        list.push_str(&format!("  {why}:\n"));
        paragraph(&mut list, "    ", &names);
    }
    list.finish()
}

#[cfg(test)]
mod tests;
