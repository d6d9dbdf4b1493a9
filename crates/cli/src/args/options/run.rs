//! blkmq's own options: the schedulers and devices to compare, the repetitions, the output; and the options that
//! separate jobs.

use super::{Group, Kind, Meaning, Opt};
use crate::devices;
use crate::plan::{AccessChoice, Choice, SchedulerChoice, StatsChoice, Time, choices, groups};
use crate::report::Format;
use crate::report::terse::Version;
use blkmq_core::Nanos;
use blkmq_terminal::UsageError;
use blkmq_terminal::units::TimeUnit;
use std::path::PathBuf;

const fn compare(
    name: &'static str,
    accepts: &'static str,
    help: &'static str,
    apply: super::ApplyRun,
) -> Opt {
    Opt::run(Group::Compare, name, accepts, help, apply)
}

/// Defines an option that sets a mode for every access without an explicit one.
const fn mode(
    name: &'static str,
    accepts: &'static str,
    help: &'static str,
    apply: super::ApplyRun,
) -> Opt {
    compare(name, accepts, help, apply)
}

const fn output(
    name: &'static str,
    accepts: &'static str,
    help: &'static str,
    apply: super::ApplyRun,
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
pub const JOBS: &[Opt] = &[
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
pub const OPTIONS: &[Opt] = &[
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
            d.groups.push(groups::parse(v.text)?);
            Ok(())
        },
    ),
    compare(
        "tenants",
        "FILE[:DEVICE]",
        "groups: the exports of a configuration of blkmqd, or those of one of its devices",
        |d, v| {
            d.groups.extend(groups::tenants(v.text)?);
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
            let counts = parts.map(|text| {
                super::Value { text: text.trim(), ..v }.count(1..=super::load::MAX_THREADS)
            });
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
            let formats = v.text.split(',').map(|text| super::Value { text, ..v }.choice());
            let mut formats = formats.collect::<Result<Vec<_>, _>>()?;
            d.format = formats.remove(0);
            d.also = formats;
            Ok(())
        },
    ),
    output("minimal", "", "fio's terse lines: the same as --output-format=terse", |d, v| {
        if v.flag()? {
            d.format = Format::Terse(Version::default());
        }
        Ok(())
    })
    .flag(),
    output("append_terse", "", "print terse lines behind the results", |d, v| {
        if v.flag()? {
            d.also.push(Format::Terse(Version::default()));
        }
        Ok(())
    })
    .flag(),
    output("terse_version", "3|4|5", "the version of terse lines (default 3)", |d, v| {
        d.terse = match v.text {
            "3" => Version::V3,
            "4" => Version::V4,
            "5" => Version::V5,
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
