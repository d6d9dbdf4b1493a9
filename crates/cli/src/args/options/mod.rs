//! The single table of the options of `blkmq bench` and `blkmq sim`, from which help, parsing and error messages are
//! generated.
//!
//! Each option of fio is of one of three kinds: implemented here (by a function), without effect here and accepted with
//! a note of the reason, or not supported and refused. blkmq's own options are in this file: the schedulers and devices
//! to compare, the repetitions, the output; and the options that separate jobs.

mod foreign;
mod load;
pub mod pattern;

pub use foreign::is_default;

use super::job_draft::{JobDraft, Value};
use super::run_draft::RunDraft;
use crate::devices;
use crate::plan::{AccessChoice, Choice, SchedulerChoice, StatsChoice, Time, choices};
use crate::report::{Format, TerseVersion};
use blkmq_core::Nanos;
use blkmq_terminal::UsageError;
use blkmq_terminal::table::nearest;
use blkmq_terminal::units::TimeUnit;
#[cfg(test)]
pub use foreign::defaults;
use std::path::PathBuf;

/// One option.
pub struct Opt {
    /// fio's name of the option, or blkmq's own if fio has no such option.
    pub name: &'static str,
    /// Other spellings.
    pub aliases: &'static [&'static str],
    /// The heading of the help that lists the option.
    pub group: Group,
    /// Whether the option needs a value.
    pub kind: Kind,
    /// The form of the value.
    pub accepts: &'static str,
    /// The effect, in a line.
    pub help: &'static str,
    /// The function that implements the option, or the reason why it has no effect or is refused.
    pub meaning: Meaning,
}

/// Headings of the help.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// The beginning and end of jobs.
    Jobs,
    /// The target of the I/O.
    Files,
    /// Which I/Os a job issues.
    Pattern,
    /// The amount, rate and duration of I/O.
    Load,
    /// Whether contents are right.
    Verify,
    /// Logs of single I/Os.
    Logs,
    /// The schedulers, devices and modes that are compared.
    Compare,
    /// Options of simulations only.
    Virtual,
    /// The format and destination of the output.
    Output,
    /// Accepted without effect, and refused.
    Foreign,
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

impl Group {
    /// The heading in the help.
    pub fn heading(self) -> &'static str {
        match self {
            Self::Jobs => "Jobs",
            Self::Files => "Engine and file",
            Self::Pattern => "Pattern",
            Self::Load => "Load and time",
            Self::Verify => "Verification",
            Self::Logs => "Logs",
            Self::Compare => "What is compared",
            Self::Virtual => "Virtual time",
            Self::Output => "Output",
            Self::Foreign => "Options of fio without effect",
        }
    }
}

/// A function that applies an option to a job.
pub type ApplyJob = fn(&mut JobDraft, Value<'_>) -> Result<(), UsageError>;
/// A function that applies an option to the whole command.
type ApplyRun = fn(&mut RunDraft, Value<'_>) -> Result<(), UsageError>;

/// The meaning of an option.
#[derive(Clone, Copy)]
pub enum Meaning {
    /// Begins a job; handled before meanings are applied.
    Structure,
    /// An option of a job.
    Job(ApplyJob),
    /// An option of the whole command, wherever it is written.
    Run(ApplyRun),
    /// Describes the run in reports.
    Annotate,
    /// An option of a job that also describes the run in reports.
    Described(ApplyJob),
    /// No effect here, for this reason.
    NoOp(&'static str),
    /// An effect that is not built, with the reason.
    Unsupported(&'static str),
}

impl Opt {
    const fn job(
        group: Group,
        name: &'static str,
        accepts: &'static str,
        help: &'static str,
        apply: ApplyJob,
    ) -> Self {
        let (aliases, kind, meaning): (&[&str], _, _) = (&[], Kind::Value, Meaning::Job(apply));
        Self { name, aliases, group, kind, accepts, help, meaning }
    }

    const fn run(
        group: Group,
        name: &'static str,
        accepts: &'static str,
        help: &'static str,
        apply: ApplyRun,
    ) -> Self {
        let (aliases, kind, meaning): (&[&str], _, _) = (&[], Kind::Value, Meaning::Run(apply));
        Self { name, aliases, group, kind, accepts, help, meaning }
    }

    const fn flag(self) -> Self {
        Self { kind: Kind::Flag, accepts: "0, 1, or nothing for 1", ..self }
    }

    const fn or(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }
}

/// Every option, in the order of the help.
pub fn all() -> impl Iterator<Item = &'static Opt> + Clone {
    let tables = [JOBS, pattern::FILES, pattern::OPTIONS, load::OPTIONS, load::STEERING];
    let others = [pattern::CONTENTS, pattern::VERIFY, pattern::LOGS, OPTIONS];
    let without = [foreign::OPTIONS, foreign::REFUSED];
    tables.into_iter().chain(others).chain(without).flatten()
}

/// The option called `name`. Dashes and underscores within names are equivalent.
pub fn find(name: &str) -> Option<&'static Opt> {
    let name = name.replace('-', "_");
    all().find(|option| option.name == name || option.aliases.contains(&name.as_str()))
}

/// The option whose name begins with `name`, if there is exactly one: as in fio, names on a command line may be
/// abbreviated.
pub fn find_beginning(name: &str) -> Option<&'static Opt> {
    let name = name.replace('-', "_");
    let begins = |option: &&Opt| {
        option.name.starts_with(&name) || option.aliases.iter().any(|it| it.starts_with(&name))
    };
    let mut found = all().filter(begins);
    found.next().filter(|_| !name.is_empty() && found.next().is_none())
}

/// The error for an unknown option.
pub fn unknown(name: &str) -> UsageError {
    let usable = all().filter(|option| !matches!(option.meaning, Meaning::Unsupported(_)));
    let names =
        usable.clone().flat_map(|option| std::iter::once(&option.name).chain(option.aliases));
    let name = name.replace('-', "_");
    if foreign::is_of_an_engine(&name) {
        let text = "an option of an engine of fio's that has no meaning here; accepted: see --help";
        return UsageError::new(text);
    }
    // A list of all names would hide the error.
    match nearest(&name, names.copied()).first() {
        Some(near) => UsageError::new(format!("unknown option; nearest: {near}; see --help")),
        None => UsageError::new("unknown option, and none has a similar name; see --help"),
    }
}

const fn compare(
    name: &'static str,
    accepts: &'static str,
    help: &'static str,
    apply: ApplyRun,
) -> Opt {
    Opt::run(Group::Compare, name, accepts, help, apply)
}

/// Defines an option that sets a mode for every access without an explicit one.
const fn mode(
    name: &'static str,
    accepts: &'static str,
    help: &'static str,
    apply: ApplyRun,
) -> Opt {
    compare(name, accepts, help, apply)
}

const fn output(
    name: &'static str,
    accepts: &'static str,
    help: &'static str,
    apply: ApplyRun,
) -> Opt {
    Opt::run(Group::Output, name, accepts, help, apply)
}

const fn about_jobs(
    name: &'static str,
    accepts: &'static str,
    help: &'static str,
    meaning: Meaning,
) -> Opt {
    Opt { name, aliases: &[], group: Group::Jobs, kind: Kind::Value, accepts, help, meaning }
}

/// Options about jobs in general.
const JOBS: &[Opt] = &[
    about_jobs(
        "name",
        "NAME",
        "begin a job; options before the first one hold for all",
        Meaning::Structure,
    ),
    about_jobs(
        "section",
        "NAME",
        "use only this job of the job files; repeatable",
        Meaning::Structure,
    ),
    about_jobs("description", "TEXT", "annotates the run", Meaning::Annotate),
];

/// The table.
const OPTIONS: &[Opt] = &[
    compare(
        "group_stats",
        "off|basic|full|inline",
        "what is counted about groups (default off); inline: full, under the lock",
        |d, v| {
            d.group_stats = StatsChoice::from_word(v.text)?;
            Ok(())
        },
    ),
    compare("iostats", "", "count requests, and where their time goes, and show it", |d, v| {
        d.iostats = v.flag()?;
        Ok(())
    })
    .flag(),
    compare(
        "group",
        "NAME[:KEY=VALUE,...]",
        "a group: weight, parent, limits (rbps, iops, burst...), floors (reserve_iops...), goals (p99_read...); repeatable",
        |d, v| {
            d.groups.push(choices::parse_group(v.text)?);
            Ok(())
        },
    ),
    compare(
        "tenants",
        "FILE[:DEVICE]",
        "groups: the exports of a configuration of blkmqd, or those of one of its devices",
        |d, v| {
            d.groups.extend(choices::tenants(v.text)?);
            Ok(())
        },
    ),
    compare(
        "scheduler",
        "NAME[:KEY=VALUE,...],...",
        "schedulers to compare, auto (as the groups ask for), or all (default)",
        |d, v| {
            // A repeated option only adds new names; within one list a name may be repeated, to show noise.
            let mut more = SchedulerChoice::parse(v.text)?;
            more.retain(|choice| d.schedulers.iter().all(|known| known.text != choice.text));
            d.schedulers.extend(more);
            Ok(())
        },
    ),
    compare("ioscheduler", "NAME", "fio's spelling for a single scheduler", |d, v| {
        let name = v.non_empty("the name of a scheduler")?;
        if let Some(other) = d.ioscheduler.as_ref().filter(|other| *other != name) {
            let text = format!(
                "an earlier job says {other}; accepted: the same for all jobs, or --scheduler"
            );
            return Err(UsageError::new(text));
        }
        SchedulerChoice::parse(name)?;
        d.ioscheduler = Some(name.into());
        Ok(())
    }),
    compare(
        "device",
        "DEVICE[,DEVICE]...",
        "devices to run on, each NAME[,KEY=VALUE]..., as blkmq doc lists them; repeatable",
        |d, v| {
            d.devices.extend(devices::choose_all(v.text, d.time, d.readonly)?);
            Ok(())
        },
    ),
    compare(
        "threads",
        "COUNT[,COUNT]...",
        "thread counts to compare; each replaces numjobs",
        |d, v| {
            let parts = v.text.split(',');
            let counts =
                parts.map(|text| Value { text: text.trim(), ..v }.count(1..=load::MAX_THREADS));
            d.threads = counts.collect::<Result<_, _>>()?;
            Ok(())
        },
    ),
    compare(
        "access",
        "NAME[:KEY=VALUE,...],...",
        "ways to share an elevator: combining (default), spin, mutex, serialised",
        |d, v| {
            d.access = AccessChoice::parse(v.text)?;
            Ok(())
        },
    ),
    mode("dispatch", "one, batch, total-order", "how requests leave an elevator", |d, v| {
        choices::set(&mut d.modes, "dispatch", v.text)
    }),
    mode("insert", "direct, percpu-lists, staged", "how plugs get into it", |d, v| {
        choices::set(&mut d.modes, "insert", v.text)
    }),
    mode(
        "merge",
        "always, skip-when-contended, at-drain",
        "when an I/O is offered to merging",
        |d, v| choices::set(&mut d.modes, "merge", v.text),
    ),
    mode("kick", "always, flag, coalesced", "what becomes of kicks", |d, v| {
        choices::set(&mut d.modes, "kick", v.text)
    }),
    compare(
        "scope",
        "queue or hwqueue",
        "one elevator, or one per hardware queue (default: the scheduler's)",
        |d, v| {
            d.scope = Some(v.choice()?);
            Ok(())
        },
    ),
    compare(
        "nomerges",
        "0, 1 or 2",
        "0 merges all, 1 what costs no search, 2 nothing (default 0)",
        |d, v| {
            d.nomerges = v.choice()?;
            Ok(())
        },
    ),
    compare("nr_requests", "1-65536", "scheduler tags", |d, v| {
        d.nr_requests = Some(v.count(1..=65_536)?);
        Ok(())
    }),
    compare(
        "device_depth",
        "N",
        "the most requests that the device may hold (default 0: as many as it takes)",
        |d, v| {
            let depth = v.text.parse();
            d.device_depth = depth.map_err(|e| UsageError::new(format!("{e}")))?;
            Ok(())
        },
    ),
    compare(
        "pump",
        "inline or threads",
        "the threads that move requests to the device (default inline)",
        |d, v| {
            d.pump = v.choice()?;
            Ok(())
        },
    ),
    compare(
        "repeat",
        "1-1000",
        "repetitions, interleaved; the median counts (default 1)",
        |d, v| {
            d.repeat = Some(v.count(1..=1_000)?);
            Ok(())
        },
    ),
    Opt::run(
        Group::Virtual,
        "seed",
        "NUMBER",
        "what all chance comes from, with each job's randseed (default 0)",
        |d, v| {
            let seed = v.count(0..=u64::MAX)?;
            match &mut d.time {
                Time::Virtual { seed: present } => *present = seed,
                Time::Real => {
                    let text = "chance in real time has no seed; accepted by blkmq sim, or randseed for places";
                    return Err(UsageError::new(text));
                }
            }
            Ok(())
        },
    ),
    compare("readonly", "", "refuse jobs that write, and change no file", |d, v| {
        d.readonly = v.flag()?;
        Ok(())
    })
    .flag(),
    compare(
        "eta",
        "always|never|auto",
        "show the progress on a terminal (never: do not)",
        |d, v| {
            d.eta = match v.text {
                "always" | "auto" => true,
                "never" => false,
                _ => return Err(UsageError::new("accepted: always, never, auto")),
            };
            Ok(())
        },
    ),
    output(
        "status_interval",
        "TIME",
        "print the results so far each time that so much has passed (of virtual time in blkmq sim)",
        |d, v| {
            let every = v.time(TimeUnit::Seconds)?;
            if every < Nanos::from_millis(1) {
                return Err(UsageError::new("accepted: 1ms or more, such as 1, 500ms, 1m"));
            }
            d.status_interval = Some(every);
            Ok(())
        },
    ),
    compare("disk_util", "", "show what the disks below files did (default: 1)", |d, v| {
        d.disk_util = v.flag()?;
        Ok(())
    })
    .flag(),
    compare("dry_run", "", "show what would be run, and run nothing", |d, v| {
        d.dry_run = v.flag()?;
        Ok(())
    })
    .flag()
    .or(&["parse_only"]),
    output(
        "output_format",
        "FORMAT[,FORMAT]...",
        "normal, json, json+, csv, html or terse (default normal)",
        |d, v| {
            let formats = v.text.split(',').map(|text| Value { text, ..v }.choice());
            let mut formats = formats.collect::<Result<Vec<_>, _>>()?;
            d.format = formats.remove(0);
            d.also = formats;
            Ok(())
        },
    ),
    output("minimal", "", "fio's terse lines: the same as --output-format=terse", |d, v| {
        if v.flag()? {
            d.format = Format::Terse(TerseVersion::default());
        }
        Ok(())
    })
    .flag(),
    output("append_terse", "", "print terse lines behind the results", |d, v| {
        if v.flag()? {
            d.also.push(Format::Terse(TerseVersion::default()));
        }
        Ok(())
    })
    .flag(),
    output("terse_version", "3|4|5", "the version of terse lines (default 3)", |d, v| {
        d.terse = match v.text {
            "3" => TerseVersion::V3,
            "4" => TerseVersion::V4,
            "5" => TerseVersion::V5,
            _ => return Err(UsageError::new("accepted: 3, 4, 5")),
        };
        Ok(())
    }),
    compare("showcmd", "", "print the job file as a command line, and run nothing", |_, v| {
        v.flag().map(drop) // The sections are printed as they were read.
    })
    .flag(),
    output(
        "output",
        "FILE",
        "write results there; beside text, a page with plots: FILE.html",
        |d, v| {
            d.output = Some(v.non_empty("the path of a file")?.into());
            Ok(())
        },
    ),
    output(
        "trace",
        "PREFIX",
        "write a trace that blkparse and btt read: PREFIX.blktrace.0 and so on",
        |d, v| {
            d.trace = Some(v.non_empty("what names of files begin with")?.into());
            Ok(())
        },
    ),
    output(
        "trace_events",
        "COUNT",
        "events to keep on each CPU (default 1048576); what is missed is counted",
        |d, v| {
            d.trace_events = Some(v.count(1..=1 << 30)?);
            Ok(())
        },
    ),
    output(
        "elevator_log",
        "FILE",
        "write down what each scheduler is told and answers, for blkmq replay",
        |d, v| {
            d.elevator_log = Some(v.non_empty("the path of a file")?.into());
            Ok(())
        },
    ),
    output(
        "report",
        "FILE",
        "also write a page with plots (.html), data (.json, .csv) or text (.txt)",
        |d, v| {
            let path = PathBuf::from(v.non_empty("the path of a file")?);
            if Format::of_path(&path).is_none() {
                let text =
                    format!("no format ends so; accepted: a name that ends in {}", Format::ENDINGS);
                return Err(UsageError::new(text));
            }
            d.report = Some(path);
            Ok(())
        },
    ),
];

#[cfg(test)]
mod tests {

    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_name_is_given_twice() {
        let mut seen = BTreeSet::new();
        for option in all() {
            for name in std::iter::once(&option.name).chain(option.aliases) {
                assert!(seen.insert(*name), "{name} stands twice in the table");
                assert!(!name.contains('-'), "{name} would never be found");
            }
        }
    }

    #[test]
    fn every_option_says_what_it_does_and_takes() {
        for option in all() {
            let foreign = option.group == Group::Foreign;
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
