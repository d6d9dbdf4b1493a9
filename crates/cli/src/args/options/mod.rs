//! The single table of the options of `blkmq bench` and `blkmq sim`, from which help, parsing and error messages are
//! generated.
//!
//! Each option of fio is of one of three kinds: implemented here (by a function), without effect here and accepted with
//! a note of the reason, or not supported and refused. blkmq's own options are in this file: the schedulers and devices
//! to compare, the repetitions, the output; and the options that separate jobs.

mod foreign;
mod load;
pub mod pattern;

use super::job_draft::{JobDraft, Parsed, Value, put};
use super::run_draft::RunDraft;
use crate::devices;
use crate::plan::{AccessChoice, Choice, SchedulerChoice, Time, choices};
use crate::report::{Format, TerseVersion};
use blkmq_core::Nanos;
use blkmq_engine::DeviceDepth;
use blkmq_terminal::UsageError;
use blkmq_terminal::table::nearest;

/// One option.
pub struct Opt {
    /// fio's name of the option, or blkmq's own if fio has no such option.
    pub name: &'static str,
    /// Other spellings.
    pub aliases: &'static [&'static str],
    /// The heading of the help that lists the option, if it is not that of its table.
    pub heading: Option<&'static str>,
    /// Whether the option needs a value.
    pub kind: Kind,
    /// The form of the value.
    pub accepts: &'static str,
    /// The effect, in a line.
    pub help: &'static str,
    /// The function that implements the option, or the reason why it has no effect or is refused.
    pub meaning: Meaning,
}

/// Whether an option needs a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A boolean: bare, `=1` or `=0`.
    Flag,
    /// Always.
    Value,
    /// The option takes an optional value.
    Optional,
}

/// A function that applies an option to a job.
type ApplyJob = fn(&mut JobDraft, Value<'_>) -> Result<(), UsageError>;
/// A function that applies an option to the whole command.
type ApplyRun = fn(&mut RunDraft, Value<'_>) -> Result<(), UsageError>;

/// The place of a boolean of a job.
type Place = fn(&mut JobDraft) -> &mut bool;

/// The meaning of an option.
#[derive(Clone, Copy)]
pub enum Meaning {
    /// Begins a job; handled before meanings are applied.
    Structure,
    /// An option of a job.
    Job(ApplyJob),
    /// A boolean of a job.
    Flag(Place),
    /// An option of the whole command, wherever it is written.
    Run(ApplyRun),
    /// Describes the run in reports.
    Annotate,
    /// No effect here, for this reason.
    NoOp(&'static str),
    /// An effect that is not built, with the reason, and every spelling of fio's default, which is accepted.
    Unsupported(&'static str, &'static [&'static str]),
}

const fn option(name: &'static str, meaning: Meaning) -> Opt {
    let (aliases, heading, kind): (&[&str], _, _) = (&[], None, Kind::Value);
    Opt { name, aliases, heading, kind, accepts: "", help: "", meaning }
}

const fn job(name: &'static str, apply: ApplyJob) -> Opt {
    option(name, Meaning::Job(apply))
}

const fn flag(name: &'static str, place: Place) -> Opt {
    option(name, Meaning::Flag(place))
}

const fn run(name: &'static str, apply: ApplyRun) -> Opt {
    option(name, Meaning::Run(apply))
}

impl Opt {
    /// The name and its other spellings.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }

    const fn takes(self, accepts: &'static str, help: &'static str) -> Self {
        Self { accepts, help, ..self }
    }

    const fn switch(self, help: &'static str) -> Self {
        Self { kind: Kind::Flag, ..self.takes("0, 1, or nothing for 1", help) }
    }

    const fn optional(self) -> Self {
        Self { kind: Kind::Optional, ..self }
    }

    const fn or(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    const fn under(self, heading: &'static str) -> Self {
        Self { heading: Some(heading), ..self }
    }
}

const PATTERN: &str = "Pattern";
const COMPARED: &str = "What is compared";
/// The heading of options of simulations only.
pub const VIRTUAL: &str = "Virtual time";
const RESULTS: &str = "Output";
/// The heading of options that are accepted without effect, or refused.
pub const FOREIGN: &str = "Options of fio without effect";

/// The headings of the help in their order, each with its options.
const TABLES: [(&str, &[Opt]); 10] = [
    ("Jobs", JOBS),
    ("Engine and file", pattern::FILES),
    (PATTERN, pattern::OPTIONS),
    ("Load and time", load::OPTIONS),
    (PATTERN, pattern::CONTENTS),
    ("Verification", pattern::VERIFY),
    ("Logs", pattern::LOGS),
    (COMPARED, COMPARE),
    (RESULTS, OUTPUT),
    (FOREIGN, foreign::OPTIONS),
];

/// Every option, in the order of the help.
pub fn all() -> impl Iterator<Item = &'static Opt> {
    TABLES.iter().flat_map(|(_, options)| *options)
}

/// Every option with its heading, in the order of the help.
pub fn under_headings() -> impl Iterator<Item = (&'static str, &'static Opt)> {
    let table = |(heading, options): &(&'static str, &'static [Opt])| {
        let heading = *heading;
        options.iter().map(move |option| (option.heading.unwrap_or(heading), option))
    };
    TABLES.iter().flat_map(table)
}

/// The option called `name`. Dashes and underscores within names are equivalent.
pub fn find(name: &str) -> Option<&'static Opt> {
    let name = name.replace('-', "_");
    all().find(|option| option.names().any(|known| known == name))
}

/// The option whose name begins with `name`, if there is exactly one: as in fio, names on a command line may be
/// abbreviated.
pub fn find_beginning(name: &str) -> Option<&'static Opt> {
    let name = name.replace('-', "_");
    let mut found = all().filter(|option| option.names().any(|known| known.starts_with(&name)));
    found.next().filter(|_| !name.is_empty() && found.next().is_none())
}

/// The error for an unknown option.
pub fn unknown(name: &str) -> UsageError {
    let usable = all().filter(|option| !matches!(option.meaning, Meaning::Unsupported(..)));
    let name = name.replace('-', "_");
    if foreign::OF_ENGINES.split(' ').any(|known| known == name) {
        let text = "an option of an engine of fio's that has no meaning here; accepted: see --help";
        return UsageError::new(text);
    }
    // A list of all names would hide the error.
    match nearest(&name, usable.flat_map(Opt::names)).first() {
        Some(near) => UsageError::new(format!("unknown option; nearest: {near}; see --help")),
        None => UsageError::new("unknown option, and none has a similar name; see --help"),
    }
}

/// Options about jobs in general.
const JOBS: &[Opt] = &[
    option("name", Meaning::Structure)
        .takes("NAME", "begin a job; options before the first one hold for all"),
    option("section", Meaning::Structure)
        .takes("NAME", "use only this job of the job files; repeatable"),
    option("description", Meaning::Annotate).takes("TEXT", "annotates the run"),
];

/// The table, but for the output.
const COMPARE: &[Opt] = &[
    run("group_stats", |d, v| v.choice().map(|level| d.plan.group_stats = level)).takes(
        "off|basic|full|inline",
        "what is counted about groups (default off); inline: full, under the lock",
    ),
    run("iostats", |d, v| put(&mut d.plan.iostats, v.flag()))
        .switch("count requests, and where their time goes, and show it"),
    run("group", |d, v| {
        d.groups.push(choices::parse_group(v.text)?);
        Ok(())
    })
    .takes(
        "NAME[:KEY=VALUE,...]",
        "a group: weight, parent, limits (rbps, iops, burst...), floors \
         (reserve_iops...), goals (p99_read...); repeatable",
    ),
    run("tenants", |d, v| {
        d.groups.extend(choices::tenants(v.text)?);
        Ok(())
    })
    .takes(
        "FILE[:DEVICE]",
        "groups: the exports of a configuration of blkmqd, or those of one of its devices",
    ),
    run("scheduler", |d, v| {
        // A repeated option only adds new names; within one list a name may be repeated, to show noise.
        let mut more = SchedulerChoice::parse(v.text)?;
        more.retain(|choice| d.plan.schedulers.iter().all(|known| known.text != choice.text));
        d.plan.schedulers.extend(more);
        Ok(())
    })
    .takes(
        "NAME[:KEY=VALUE,...],...",
        "schedulers to compare, auto (as the groups ask for), or all (default)",
    ),
    run("ioscheduler", |d, v| {
        let name = v.non_empty("the name of a scheduler")?;
        if let Some(other) = d.ioscheduler.as_ref().filter(|other| **other != name) {
            let text = format!(
                "an earlier job says {other}; accepted: the same for all jobs, or --scheduler"
            );
            return Err(UsageError::new(text));
        }
        SchedulerChoice::parse(&name)?;
        d.ioscheduler = Some(name);
        Ok(())
    })
    .takes("NAME", "fio's spelling for a single scheduler"),
    run("device", |d, v| {
        d.plan.devices.extend(devices::choose_all(v.text, d.plan.time, d.readonly)?);
        Ok(())
    })
    .takes(
        "DEVICE[,DEVICE]...",
        "devices to run on, each NAME[,KEY=VALUE]..., as blkmq doc lists them; repeatable",
    ),
    run("threads", |d, v| {
        let count = |v: Value<'_>| v.count(1..=load::MAX_THREADS).map(Some);
        put(&mut d.plan.threads, v.list().map(count).collect::<Parsed<Vec<_>>>())
    })
    .takes("COUNT[,COUNT]...", "thread counts to compare; each replaces numjobs"),
    run("access", |d, v| put(&mut d.plan.access, AccessChoice::parse(v.text))).takes(
        "NAME[:KEY=VALUE,...],...",
        "ways to share an elevator: combining (default), spin, mutex, serialised",
    ),
    run("dispatch", |d, v| choices::set(&mut d.modes, "dispatch", v.text))
        .takes("one, batch, total-order", "how requests leave an elevator"),
    run("insert", |d, v| choices::set(&mut d.modes, "insert", v.text))
        .takes("direct, percpu-lists, staged", "how plugs get into it"),
    run("merge", |d, v| choices::set(&mut d.modes, "merge", v.text))
        .takes("always, skip-when-contended, at-drain", "when an I/O is offered to merging"),
    run("kick", |d, v| choices::set(&mut d.modes, "kick", v.text))
        .takes("always, flag, coalesced", "what becomes of kicks"),
    run("scope", |d, v| v.choice().map(|scope| d.plan.scope = Some(scope))).takes(
        "queue or hwqueue",
        "one elevator, or one per hardware queue (default: the scheduler's)",
    ),
    run("nomerges", |d, v| v.choice().map(|level| d.plan.nomerges = level))
        .takes("0, 1 or 2", "0 merges all, 1 what costs no search, 2 nothing (default 0)"),
    run("nr_requests", |d, v| put(&mut d.plan.nr_requests, v.count(1..=65_536u32)))
        .takes("1-65536", "scheduler tags"),
    run("device_depth", |d, v| {
        put(&mut d.plan.device_depth, v.text.parse::<DeviceDepth>().map_err(UsageError::new))
    })
    .takes("N", "the most requests that the device may hold (default 0: as many as it takes)"),
    run("pump", |d, v| v.choice().map(|pump| d.plan.pump = pump)).takes(
        "inline or threads",
        "the threads that move requests to the device (default inline)",
    ),
    run("repeat", |d, v| put(&mut d.plan.repeat, v.count(1..=1_000u32)))
        .takes("1-1000", "repetitions, interleaved; the median counts (default 1)"),
    run("seed", |d, v| {
        let seed = v.count(0..=u64::MAX)?;
        if d.plan.time == Time::Real {
            let text = "chance in real time has no seed; accepted by blkmq sim, or randseed for \
                        places";
            return Err(UsageError::new(text));
        }
        d.plan.time = Time::Virtual { seed };
        Ok(())
    })
    .under(VIRTUAL)
    .takes("NUMBER", "what all chance comes from, with each job's randseed (default 0)"),
    run("readonly", |d, v| put(&mut d.readonly, v.flag()))
        .switch("refuse jobs that write, and change no file"),
    run("eta", |d, v| {
        let words = [(true, "always"), (false, "never"), (true, "auto")];
        put(&mut d.plan.eta, v.word(&words, "always, never, auto"))
    })
    .takes("always|never|auto", "show the progress on a terminal (never: do not)"),
    run("status_interval", |d, v| {
        let every = v.seconds()?;
        if every < Nanos::from_millis(1) {
            return Err(UsageError::new("accepted: 1ms or more, such as 1, 500ms, 1m"));
        }
        d.plan.status_interval = Some(every);
        Ok(())
    })
    .under(RESULTS)
    .takes(
        "TIME",
        "print the results so far each time that so much has passed (of virtual time in \
         blkmq sim)",
    ),
    run("disk_util", |d, v| put(&mut d.plan.disk_util, v.flag()))
        .switch("show what the disks below files did (default: 1)"),
    run("dry_run", |d, v| put(&mut d.plan.dry_run, v.flag()))
        .or(&["parse_only"])
        .switch("show what would be run, and run nothing"),
];

/// The formats and files of results.
const OUTPUT: &[Opt] = &[
    run("output_format", |d, v| {
        let mut formats = v.text.split(',').map(Format::from_word).collect::<Parsed<Vec<_>>>()?;
        d.plan.format = formats.remove(0);
        d.plan.also = formats;
        Ok(())
    })
    .takes("FORMAT[,FORMAT]...", "normal, json, json+, csv, html or terse (default normal)"),
    run("minimal", |d, v| {
        if v.flag()? {
            d.plan.format = Format::Terse(TerseVersion::default());
        }
        Ok(())
    })
    .switch("fio's terse lines: the same as --output-format=terse"),
    run("append_terse", |d, v| {
        if v.flag()? {
            d.plan.also.push(Format::Terse(TerseVersion::default()));
        }
        Ok(())
    })
    .switch("print terse lines behind the results"),
    run("terse_version", |d, v| {
        let versions = [(TerseVersion::V3, "3"), (TerseVersion::V4, "4"), (TerseVersion::V5, "5")];
        put(&mut d.terse, v.word(&versions, "3, 4, 5"))
    })
    .takes("3|4|5", "the version of terse lines (default 3)"),
    // The sections are printed as they were read.
    run("showcmd", |_, v| v.flag().map(drop))
        .under(COMPARED)
        .switch("print the job file as a command line, and run nothing"),
    run("output", |d, v| put(&mut d.plan.output, v.path()))
        .takes("FILE", "write results there; beside text, a page with plots: FILE.html"),
    run("trace", |d, v| put(&mut d.trace, v.non_empty("what names of files begin with")))
        .takes("PREFIX", "write a trace that blkparse and btt read: PREFIX.blktrace.0 and so on"),
    run("trace_events", |d, v| put(&mut d.trace_events, v.count(1..=1usize << 30)))
        .takes("COUNT", "events to keep on each CPU (default 1048576); what is missed is counted"),
    run("elevator_log", |d, v| put(&mut d.plan.elevator_log, v.non_empty("the path of a file")))
        .takes("FILE", "write down what each scheduler is told and answers, for blkmq replay"),
    run("report", |d, v| {
        let path = v.path()?;
        if Format::of_path(&path).is_none() {
            let text =
                format!("no format ends so; accepted: a name that ends in {}", Format::ENDINGS);
            return Err(UsageError::new(text));
        }
        d.plan.report = Some(path);
        Ok(())
    })
    .takes("FILE", "also write a page with plots (.html), data (.json, .csv) or text (.txt)"),
];

#[cfg(test)]
mod tests {

    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_name_is_given_twice() {
        let mut seen = BTreeSet::new();
        for option in all() {
            for name in option.names() {
                assert!(seen.insert(name), "{name} stands twice in the table");
                assert!(!name.contains('-'), "{name} would never be found");
            }
        }
    }

    #[test]
    fn every_option_says_what_it_does_and_takes() {
        for (heading, option) in under_headings() {
            let foreign = heading == FOREIGN;
            assert!(
                foreign || !(option.help.is_empty() || option.accepts.is_empty()),
                "{}",
                option.name
            );
        }
    }

    #[test]
    fn dashes_and_underscores_are_alike() {
        assert_eq!(find("output-format").map(|option| option.name), Some("output_format"));
        assert_eq!(find("readwrite").map(|option| option.name), Some("rw"));
        assert!(find("").is_none());
    }

    #[test]
    fn the_beginning_of_one_name_is_enough() {
        assert_eq!(find_beginning("numjob").map(|option| option.name), Some("numjobs"));
        assert_eq!(find_beginning("rwmixr").map(|option| option.name), Some("rwmixread"));
        assert!(find_beginning("rwmix").is_none() && find_beginning("").is_none());
    }
}
