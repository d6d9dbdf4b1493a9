//! The command `blkmq replay`: its page, its options, and their meaning.

use super::recorded;
use blkmq_engine::{AUTO, PolicyChoice};
use blkmq_sched::registry;
use blkmq_terminal::SchedulerChoice;
use blkmq_terminal::UsageError;
use blkmq_terminal::page::Page;
use clap::builder::ValueHint;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::io::Read;

const PAGE: Page = Page {
    name: "replay",
    summary: "replay a trace under all schedulers, or an elevator log call by call",
    description: "\
Replays a trace of another program: each of its tenants is a job in a group of its own, on each device and under each \
scheduler, in virtual time or with --real in real time. Latencies count from the time at which an I/O was due.

An elevator log, which --elevator-log of blkmq bench or blkmq sim, or blkmqctl elevator-log, has written, is played call by \
call. Without --scheduler, or with the one of the \
log, every call is made again, at the same times, and every answer is compared; the first one that differs is shown with \
what came before it, and the exit code is 1. With another scheduler, or other options, the I/Os of the log arrive when \
they did, at a device that is simulated, and both are compared: how requests were ordered and how long they waited. \
Answers are a simulation then; that I/Os would have come at other times, had they been served at other times, is not \
in it.",
    examples: &[
        "blkmq sim --scheduler=mq-deadline --rw=randrw --size=64m --elevator-log=run.log",
        "blkmq replay trace.csv --device=disk --device=flash --page=trace.html",
        "blkmq replay trace.csv --scheduler=mclock --weight=a=300 --speed=10",
        "blkmq replay run.log",
        "blkmq replay run.log --scheduler=none",
        "blkmq replay run.log --scheduler=mq-deadline:fifo_batch=1 \\\n      \
         --device=null,irqmode=2,hw_queue_depth=4",
    ],
};

/// The log to play back, and its target.
pub struct Wanted {
    /// The path of the log.
    pub file: String,
    /// The scheduler; `None` is that of the log.
    pub scheduler: Option<SchedulerChoice>,
    /// The description of a virtual device for another scheduler; `None` is one like that of the log.
    pub device: Option<String>,
}

/// The command.
pub fn definition() -> Command {
    let option = |name, value| Arg::new(name).long(name).value_name(value);
    PAGE.command("").args([
        Arg::new("file")
            .value_name("FILE")
            .required(true)
            .value_hint(ValueHint::FilePath)
            .help("a trace, or an elevator log; - is a trace on standard input"),
        option("scheduler", "NAME[:KEY=VALUE,...]").value_parser(known).help(
            "the schedulers, in a list, or all (default: all five); for an elevator log one (default: that of the log)",
        ),
        option("device", "DEVICE").action(ArgAction::Append).help(
            "a device; may be repeated (default: disk). For an elevator log, a virtual device for another scheduler \
             (default: a null device with as many hardware queues and tags, and the median service time of the log)",
        ),
    ])
    .args(recorded::options())
}

impl Wanted {
    /// Converts the arguments that clap has parsed; `None` if the file is not an elevator log.
    ///
    /// # Errors
    /// If an option does not apply to an elevator log.
    pub fn of(found: &ArgMatches) -> Result<Option<Self>, UsageError> {
        let file = found.get_one::<String>("file").expect("clap refuses a line without it");
        if !is_elevator_log(file) {
            return Ok(None);
        }
        let is_given = |name: &str| found.value_source(name) == Some(ValueSource::CommandLine);
        let mut others = recorded::options().into_iter().map(|it| it.get_id().to_string());
        if let Some(name) = others.find(|name| is_given(name)) {
            let text = format!(
                "--{name}: for traces, and {file} is an elevator log; accepted: --scheduler, --device"
            );
            return Err(UsageError::new(text));
        }
        let devices: Vec<&String> = found.get_many("device").into_iter().flatten().collect();
        let scheduler = found.get_one::<String>("scheduler").map(|text| scheduler(text));
        Ok(Some(Self {
            file: file.clone(),
            scheduler: scheduler.transpose().map_err(|e| e.at("--scheduler"))?,
            device: devices.last().map(|text| (*text).clone()),
        }))
    }
}

/// Returns whether the file begins like an elevator log.
fn is_elevator_log(path: &str) -> bool {
    let mut head = Vec::new();
    let file = std::fs::File::open(path);
    file.is_ok_and(|file| file.take(MAGIC.len() as u64).read_to_end(&mut head).is_ok())
        && head == MAGIC
}

/// The first bytes of an elevator log.
const MAGIC: &[u8] = b"blkmqelv";

/// A list of schedulers, as it was written.
fn known(text: &str) -> Result<String, UsageError> {
    SchedulerChoice::parse(text).map(|_| text.to_owned())
}

fn scheduler(text: &str) -> Result<SchedulerChoice, UsageError> {
    let choices = SchedulerChoice::parse(text)?;
    let [one] = <[_; 1]>::try_from(choices)
        .map_err(|_| UsageError::new("one at a time; accepted: one NAME"))?;
    if one.choice == PolicyChoice::Auto {
        let names = Vec::from_iter(registry::ALL.iter().map(|factory| factory.name)).join(", ");
        let text =
            format!("{AUTO} is for queues, and a log is played to a policy; accepted: {names}");
        return Err(UsageError::new(text));
    }
    Ok(one)
}
