//! `bench --instructions`: how many instructions an I/O takes, counted by valgrind.
//!
//! The count does not depend on the time of day or on the neighbours, so it can be a gate: a figure that exceeds the
//! committed one by more than [`MOST`] fails. A figure is the difference between two runs of different lengths, divided
//! by the I/Os between them, so it does not include the start of the program.
//!
//! Another compiler generates other code. If the compiler is not that of the committed figures, the figures are printed
//! and nothing is compared, which counts as a skip. The count says nothing about time: a cache line that moves between
//! cores costs no instruction.

use crate::Result;
use crate::measurement::pause;
use crate::shell::{BLKMQ, BLKMQD, Cmd, VHOST_READS, is_installed, root, target_dir};
use serde_json::{Map, Value, json};
use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Child;

/// By how much a figure may rise, in percent.
const MOST: f64 = 3.0;
/// I/Os of the two runs, for each submitter.
const IOS: [u64; 2] = [4_000, 16_000];
/// Like [`IOS`], but with a latency goal, whose controller knows the rate only after some tenths of a second.
const IOS_WITH_GOAL: [u64; 2] = [100_000, 200_000];
const SCHEDULERS: [&str; 4] = ["none", "mq-deadline", "kyber", "bfq"];
/// MiB of the file.
const FILE_SIZE: u64 = 64;
/// I/Os in a plug.
const PLUGS: [u32; 2] = [8, 1];

/// The load: 4 KiB random reads, where nothing else is said at depth 32 on the null device, which completes within the
/// call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Case {
    Ours {
        scheduler: &'static str,
        plug: u32,
        taken: Taken,
        submitters: u32,
        goal: Goal,
    },
    /// One read at a time from a file by io_uring: the thread sleeps in the kernel, whose instructions are not counted.
    File {
        scheduler: &'static str,
    },
    /// The server of a virtual disk; its front end is another process, and not counted.
    Vhost {
        depth: u32,
    },
    /// fio's null engine, which has no block layer.
    Fio {
        batch: u32,
    },
}

/// Measurements that are enabled while counting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Taken {
    Nothing,
    /// By the load generator.
    Latencies,
    /// By the queue: the time of each request in each stage.
    Iostats,
}

/// The group of the I/Os, and the latency goal in the queue: a goal that is always met, so that nothing is taken for
/// it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Goal {
    /// There are no groups.
    NoGroup,
    /// There is a group, and no goal.
    None,
    /// The I/Os are of a group with a goal.
    Own,
    /// The I/Os are of a group without one, and another has one.
    OfOthers,
}

impl Goal {
    /// The suffix of a case's name.
    fn name(self) -> &'static str {
        match self {
            Self::NoGroup => "",
            Self::None => ", a group",
            Self::Own => ", a goal",
            Self::OfOthers => ", a goal of others",
        }
    }

    fn options(self) -> &'static str {
        match self {
            Self::NoGroup => "",
            Self::None => "--group=a --group=b --cgroup=a",
            Self::Own => "--group=a:p99_read=1s --group=b --cgroup=a",
            Self::OfOthers => "--group=a --group=b:p99_read=1s --cgroup=a",
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ours { scheduler, plug, taken, submitters, goal } => {
                let times = match taken {
                    Taken::Nothing => "no latencies",
                    Taken::Latencies => "latencies",
                    Taken::Iostats => "iostats",
                };
                let goal = goal.name();
                write!(f, "{scheduler}, plugs of {plug}, {times}, submitters {submitters}{goal}")
            }
            Self::File { scheduler } => write!(f, "{scheduler}, a file, depth 1"),
            Self::Vhost { depth } => write!(f, "vhost-user-blk, none, depth {depth}"),
            Self::Fio { batch } => write!(f, "fio, batches of {batch}"),
        }
    }
}

impl Case {
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for scheduler in SCHEDULERS {
            for plug in PLUGS {
                for (taken, submitters) in
                    [(Taken::Nothing, 1), (Taken::Latencies, 1), (Taken::Nothing, 2)]
                {
                    all.push(Self::Ours {
                        scheduler,
                        plug,
                        taken,
                        submitters,
                        goal: Goal::NoGroup,
                    });
                }
            }
        }
        // On the fast path and on the slow one.
        for scheduler in ["none", "mq-deadline"] {
            let (plug, taken, submitters) = (8, Taken::Iostats, 1);
            all.push(Self::Ours { scheduler, plug, taken, submitters, goal: Goal::NoGroup });
        }
        for scheduler in ["none", "mq-deadline"] {
            for plug in PLUGS {
                for goal in [Goal::None, Goal::Own, Goal::OfOthers] {
                    let (taken, submitters) = (Taken::Nothing, 1);
                    all.push(Self::Ours { scheduler, plug, taken, submitters, goal });
                }
            }
        }
        // The cost of the scheduler that keeps promises.
        for plug in PLUGS {
            for goal in [Goal::NoGroup, Goal::None] {
                let (scheduler, taken, submitters) = ("mclock", Taken::Nothing, 1);
                all.push(Self::Ours { scheduler, plug, taken, submitters, goal });
            }
        }
        let schedulers = SCHEDULERS.into_iter().chain(["mclock"]);
        all.extend(schedulers.map(|scheduler| Self::File { scheduler }));
        all.extend([32, 1].map(|depth| Self::Vhost { depth }));
        if is_installed("fio") {
            all.extend(PLUGS.map(|batch| Self::Fio { batch }));
        }
        all
    }

    /// Returns whether a rise of this figure is an error. Two threads under valgrind switch at moments that depend on
    /// each other, a server polls for a single request as often as the clock allows, and fio is another program.
    fn is_gated(self) -> bool {
        matches!(
            self,
            Self::Ours { submitters: 1, .. } | Self::File { .. } | Self::Vhost { depth: 32 }
        )
    }

    /// I/Os of the two runs, for each submitter.
    fn ios(self) -> [u64; 2] {
        if self.has_goal() { IOS_WITH_GOAL } else { IOS }
    }

    fn has_goal(self) -> bool {
        matches!(self, Self::Ours { goal: Goal::Own | Goal::OfOthers, .. })
    }

    fn submitters(self) -> u64 {
        match self {
            Self::Ours { submitters, .. } => submitters.into(),
            Self::File { .. } | Self::Vhost { .. } | Self::Fio { .. } => 1,
        }
    }

    fn cmd(self, ios: u64) -> Cmd {
        let work = "--rw=randread --bs=4k --iodepth=32 --size=1g --norandommap";
        match self {
            Self::Ours { scheduler, plug, taken, submitters, goal } => {
                let groups = goal.options();
                let times = match taken {
                    Taken::Nothing => "--gtod_reduce",
                    Taken::Latencies => "",
                    Taken::Iostats => "--gtod_reduce --iostats",
                };
                Cmd::new(&format!(
                    "{BLKMQ} bench --device null,submit_queues=1,irqmode=0 --scheduler {scheduler} {work} {times} {groups} \
                     --iodepth_batch_submit={plug} --iodepth_batch_complete_min={plug} --number_ios={ios} \
                     --numjobs={submitters} --threads {submitters} --repeat 1"
                ))
            }
            Self::File { scheduler } => Cmd::new(&format!(
                "{BLKMQ} bench --device uring:{},readonly=1 --scheduler {scheduler} --rw=randread --bs=4k \
                 --iodepth=1 --norandommap --gtod_reduce --number_ios={ios} --repeat 1",
                file().display()
            )),
            Self::Vhost { .. } => Cmd::new(&format!(
                "{BLKMQD} vhost-user-blk --socket-path={} --blk-file=null,submit_queues=1,irqmode=0 --scheduler=none \
                 --num-queues=1 --log=warn",
                socket(ios).display()
            )),
            Self::Fio { batch } => Cmd::new(&format!(
                "fio --name=null --ioengine=null --thread {work} --gtod_reduce=1 --iodepth_batch_submit={batch} \
                 --iodepth_batch_complete_min={batch} --number_ios={ios}"
            )),
        }
    }

    /// Instructions for an I/O, to a tenth. The two runs are concurrent, except where the count depends on the rate:
    /// with a goal, the fewer requests there are in a second, the more of them are examined.
    fn count(self) -> Result<f64> {
        let all = self.ios();
        let mut counts = [0; 2];
        if self.has_goal() {
            for (count, ios) in counts.iter_mut().zip(all) {
                *count = self.start(ios)?.count()?;
            }
        } else {
            let runs = [self.start(all[0])?, self.start(all[1])?];
            for (count, run) in counts.iter_mut().zip(runs) {
                *count = run.count()?;
            }
        }
        let ios = (all[1] - all[0]) * self.submitters();
        let between = counts[1].checked_sub(counts[0]).ok_or("a longer run took fewer")?;
        Ok((between as f64 / ios as f64 * 10.0).round() / 10.0)
    }

    /// Starts a run of so many I/Os under valgrind.
    fn start(self, ios: u64) -> Result<Run> {
        let log = target_dir().join(format!("instructions-{ios}.log"));
        let tool = format!(
            "valgrind --tool=callgrind --callgrind-out-file=/dev/null --log-file={}",
            log.display()
        );
        let output = target_dir().join(format!("instructions-{ios}.out"));
        let mut child = self.cmd(ios).under(&tool).start(File::create(&output)?)?;
        let client = match self {
            Self::Vhost { depth } => {
                await_server(&mut child, &socket(ios))?;
                let line = format!("{VHOST_READS} {} {depth} {ios}", socket(ios).display());
                Some(Cmd::new(&line).start(File::create(output.with_extension("client"))?)?)
            }
            Self::Ours { .. } | Self::File { .. } | Self::Fio { .. } => None,
        };
        Ok(Run { child, client, log, output })
    }
}

/// The file that is read.
fn file() -> PathBuf {
    target_dir().join("instructions.img")
}

/// The part of the note by which the program says that threads read a file, since there is no io_uring.
const BY_THREADS: &str = "(threads:PATH)";

/// Makes the file. Returns whether it can be read by io_uring; if not, prints why.
fn can_read_file() -> Result<bool> {
    File::create(file())?.set_len(FILE_SIZE << 20)?;
    let why = match (Case::File { scheduler: "none" }).cmd(1).output() {
        Ok(report) if report.contains(BY_THREADS) => "there is no io_uring".into(),
        Ok(_) => return Ok(true),
        Err(error) => error,
    };
    println!("instructions: SKIPPED reads from a file: {why}");
    Ok(false)
}

/// The socket of the server in a run of so many I/Os.
fn socket(ios: u64) -> PathBuf {
    target_dir().join(format!("instructions-{ios}.sock"))
}

/// Waits until the server listens, without connecting to its socket: the connection would count as its front end.
fn await_server(child: &mut Child, socket: &Path) -> Result<()> {
    while !crate::serve::listens(socket)? {
        if let Some(status) = child.try_wait()? {
            return Err(format!("the server of a virtual disk: {status}").into());
        }
        pause(0.02)?;
    }
    Ok(())
}

/// A run under valgrind.
struct Run {
    child: Child,
    /// The front end of a server, which ends after it.
    client: Option<Child>,
    /// The output of valgrind.
    log: PathBuf,
    /// The output of the program.
    output: PathBuf,
}

impl Run {
    /// Waits for the end, and returns the number of instructions.
    fn count(mut self) -> Result<u64> {
        if let Some(client) = &mut self.client {
            client.wait()?;
            // The socket stays for the next front end.
            Cmd::new("kill -TERM").arg(self.child.id().to_string()).output()?;
        }
        let status = self.child.wait()?;
        if !status.success() {
            return Err(format!("{status}: {}", fs::read_to_string(&self.output)?).into());
        }
        collected(&fs::read_to_string(&self.log)?)
    }
}

/// The count in callgrind's output: `==1== Collected : 123456`.
fn collected(log: &str) -> Result<u64> {
    let line = log.lines().find_map(|line| line.split_once("Collected : "));
    let (_, count) = line.ok_or_else(|| format!("callgrind says nothing of a count:\n{log}"))?;
    Ok(count.trim().parse()?)
}

/// The first line of `rustc -vV`, and the target.
fn compiler() -> Result<String> {
    let version = Cmd::new("rustc -vV").output()?;
    let first = version.lines().next().unwrap_or_default();
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(format!("{first}, {}", host.unwrap_or("unknown target")))
}

fn path() -> PathBuf {
    root().join("bench/instructions.json")
}

/// Counts all cases; with `bless` records them, otherwise compares them with the recorded counts.
///
/// # Errors
/// If something cannot be run or read, or a figure has risen too far.
pub(super) fn main(bless: bool) -> Result<()> {
    if !is_installed("valgrind") {
        println!("instructions: SKIPPED, valgrind is not installed");
        return Ok(());
    }
    crate::shell::build()?;
    Cmd::new("cargo build --profile test --workspace --example vhost_reads").run()?;
    let compiler = compiler()?;
    let reads_file = can_read_file()?;
    let mut figures = Vec::new();
    for case in Case::all() {
        if reads_file || !matches!(case, Case::File { .. }) {
            figures.push((case, case.count()?));
        }
    }
    fs::remove_file(file())?;
    if bless {
        let per_io: Map<String, Value> =
            figures.iter().map(|(case, figure)| (case.to_string(), json!(figure))).collect();
        let text =
            serde_json::to_string_pretty(&json!({ "compiler": compiler, "per_io": per_io }))?;
        fs::write(path(), text + "\n")?;
    }
    let written: Value = serde_json::from_str(&fs::read_to_string(path())?)?;
    let risen = report(&figures, &written["per_io"]);
    if written["compiler"] != compiler.as_str() {
        println!(
            "instructions: SKIPPED the comparison, the figures are of {}",
            written["compiler"]
        );
        return Ok(());
    }
    if risen.is_empty() {
        println!("instructions: {} figures, none of those gated above by {MOST} %", figures.len());
        return Ok(());
    }
    let list = risen.join("; ");
    Err(format!("more instructions than committed, by more than {MOST} %: {list} (cargo xtask bench --instructions --bless, with the reason in the commit)").into())
}

/// Prints each figure beside the recorded one; returns those that have risen too far.
fn report(figures: &[(Case, f64)], written: &Value) -> Vec<String> {
    let mut risen = Vec::new();
    println!("{:<55}{:>10}{:>10}{:>9}", "instructions for an I/O", "committed", "now", "");
    for (case, now) in figures {
        let name = case.to_string();
        let Some(before) = written[&name].as_f64() else {
            println!("{name:<55}{:>10}{now:>10.1}", "-");
            continue;
        };
        let percent = (now / before - 1.0) * 100.0;
        println!("{name:<55}{before:>10.1}{now:>10.1}{percent:>+8.2}%");
        if case.is_gated() && percent > MOST {
            risen.push(format!("{name}: {before} to {now}"));
        }
    }
    risen
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: Case = Case::Ours {
        scheduler: "none",
        plug: 8,
        taken: Taken::Nothing,
        submitters: 1,
        goal: Goal::NoGroup,
    };

    #[test]
    fn a_count_is_read_from_what_callgrind_says() {
        let log = "==7== Events    : Ir\n==7== Collected : 29384756\n==7==\n";
        assert_eq!(collected(log).unwrap(), 29_384_756);
        let error = collected("==7== nothing\n").unwrap_err().to_string();
        assert!(error.contains("nothing"), "{error}");
    }

    #[test]
    fn a_figure_that_has_risen_by_more_than_the_limit_is_told() {
        let written = json!({ CASE.to_string(): 1000.0 });
        assert!(report(&[(CASE, 1029.0)], &written).is_empty());
        assert!(report(&[(CASE, 500.0)], &written).is_empty());
        let risen = report(&[(CASE, 1031.0)], &written);
        assert_eq!(risen.len(), 1, "{risen:?}");
        assert!(risen[0].contains("1000 to 1031"), "{risen:?}");
        // Neither a new case, nor a case that is not gated.
        assert!(report(&[(CASE, 9000.0)], &json!({})).is_empty());
        let fio = Case::Fio { batch: 8 };
        assert!(report(&[(fio, 9000.0)], &json!({ fio.to_string(): 1.0 })).is_empty());
    }

    #[test]
    fn each_case_has_a_name_of_its_own() {
        let mut names: Vec<String> = Case::all().iter().map(Case::to_string).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert!(names.len() == all && all >= 38, "{all}");
    }
}
