//! The command `blkmq replay`: its page, its options, and their meaning.

use blkmq_engine::{AUTO, PolicyChoice};
use blkmq_sched::registry;
use blkmq_terminal::SchedulerChoice;
use blkmq_terminal::UsageError;
use blkmq_terminal::page::Page;
use clap::builder::ValueHint;
use clap::{Arg, ArgMatches, Command};

const PAGE: Page = Page {
    name: "replay",
    summary: "play an elevator log back, to the same scheduler or to another one",
    description: "\
Plays back what --elevator-log of blkmq bench or blkmq sim, or blkmqctl elevator-log, has written down. Without --scheduler, or with the one of the \
log, every call is made again, at the same times, and every answer is compared; the first one that differs is shown with \
what came before it, and the exit code is 1. With another scheduler, or other options, the I/Os of the log arrive when \
they did, at a device that is simulated, and both are compared: how requests were ordered and how long they waited. \
Answers are a simulation then; that I/Os would have come at other times, had they been served at other times, is not \
in it.",
    examples: &[
        "blkmq sim --scheduler=mq-deadline --rw=randrw --size=64m --elevator-log=run.log",
        "blkmq replay run.log",
        "blkmq replay run.log --scheduler=none",
        "blkmq replay run.log --scheduler=mq-deadline:fifo_batch=1 \\\n      \
         --device=null,irqmode=2,hw_queue_depth=4",
    ],
};

/// The log to play back, and to what.
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
            .help("an elevator log"),
        option("scheduler", "NAME[:KEY=VALUE,...]")
            .value_parser(scheduler)
            .help("the scheduler to play it to (default: that of the log)"),
        option("device", "DEVICE").help(
            "a virtual device for another scheduler (default: a null device with as many hardware queues and tags, \
             and the median service time of the log)",
        ),
    ])
}

impl Wanted {
    /// The arguments that clap has read.
    pub fn of(found: &ArgMatches) -> Self {
        let file = found.get_one::<String>("file");
        Self {
            file: file.cloned().expect("clap refuses a line without it"),
            scheduler: found.get_one("scheduler").cloned(),
            device: found.get_one("device").cloned(),
        }
    }
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
