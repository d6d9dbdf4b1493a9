//! `beside-linux`: our schedulers compared with those of Linux, on the same device.
//!
//! A model of a device is served in real time as a block device. On one side, Linux' scheduler runs on it, with fio as
//! the client; on the other, Linux passes everything through (`none`, no merging), and our scheduler runs above the
//! same device, with `blkmq bench` as the client. Loads, offsets, priorities, groups, scheduler tags and driver tags
//! are the same, and both clients get the options of a load in the same words, as far as possible. Sides alternate, and
//! a run in which the machine stalled is dropped: a thread sleeps for a millisecond at a time and records how late it
//! wakes, with no special priority, like the workers of a loop device.
//!
//! No figure is an error, since machines differ. `.ci/run` runs it in test size.

mod report;
mod stack;

use crate::Result;
use crate::measurement::Machine;
use crate::shell::{BLKMQ, build, root, timed};
use report::{Cell, Figures, Report};
use stack::{Run, Stack};
use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub(crate) const HELP: &str = "usage: cargo xtask beside-linux [OPTION]...

  --only W1,W4a             these loads (all that suit the scheduler)
  --device hdd4,ssd         these devices (hdd4, hdd32 and ssd; also disk and flash)
  --scheduler bfq           these schedulers (none, mq-deadline, kyber, bfq); ours may have settings behind it:
                            --scheduler bfq:slice_idle=0,max_budget=64 is one of them; repeatable
  --rounds N                runs of each side, in turns (6)
  --seconds S               each run counts for so long (8), after a ramp
  --ramp S                  that long before anything is counted (2)
  --stall MS                a run is dropped in which a timer was later than that (50); it is repeated twice at most
  --bench OPTION            a further option of blkmq bench, as --bench --pump=threads; repeatable
  --program PATH            the blkmq to run, beside blkmqd and blkmqctl (target/dist/blkmq; all are built)
  --from FILE               no run: the page of runs that this command printed into FILE; repeatable, for a comparison in parts
  --out DIR                 where beside-linux-MACHINE-DATE.md, .json and .html go (bench/results); - is nowhere
  --list                    the loads and the devices in words

It needs root, loop devices, FUSE, fio and nbdfuse, and is skipped by name without. What it makes (a server, nbdfuse, a
loop device, groups) is gone when it ends, also by Ctrl-C or SIGKILL. Server and nbdfuse run with SCHED_RR, clients with
nice -20; so what else runs disturbs little, and what it does disturb is seen in the lateness of the timer.";

/// Tries of a run in which the machine stalls.
const TRIES: u32 = 3;

/// The options of the command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    devices: Vec<&'static str>,
    schedulers: Vec<String>,
    /// Empty: all.
    loads: Vec<&'static str>,
    rounds: u32,
    time: Time,
    /// Milliseconds.
    stall: u32,
    bench: String,
    /// Files with the output of earlier runs; with any, nothing is run.
    from: Vec<String>,
    program: Option<String>,
    /// `None`: nothing is written.
    out: Option<PathBuf>,
}

/// `cargo xtask beside-linux`, see [`HELP`].
///
/// # Errors
/// If an option is not understood or a run fails.
pub(crate) fn main(args: &[String]) -> Result<()> {
    if args.iter().any(|arg| arg == "--help") {
        println!("{HELP}");
        return Ok(());
    }
    if args.iter().any(|arg| arg == "--list") {
        println!("{}", list());
        return Ok(());
    }
    let plan = Plan::parse(args)?;
    if !plan.from.is_empty() {
        return told(&plan, &read(&plan)?);
    }
    if let Some(why) = stack::missing() {
        println!("beside-linux: SKIPPED, {why}");
        return Ok(());
    }
    if plan.program.is_none() {
        build()?;
    }
    run(&plan).map(drop)
}

/// One short run of each side, so that the command keeps working. Returns the reason if it cannot run here.
///
/// # Errors
/// As [`main`].
pub(crate) fn test_size() -> Result<Option<String>> {
    if let Some(why) = stack::missing() {
        return Ok(Some(why));
    }
    let line = "--only W2 --device ssd --scheduler bfq --rounds 1 --seconds 1 --ramp 0 --stall 60000 --out -";
    let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let figures = run(&Plan::parse(&args)?)?;
    if !figures.overtime.is_empty() || figures.kept != 2 {
        return Err("a client failed, or did not end in time".into());
    }
    Ok(None)
}

fn run(plan: &Plan) -> Result<Figures> {
    let mut figures = Figures::default();
    let devices = DEVICES.iter().filter(|device| plan.devices.contains(&device.name));
    for device in devices {
        measure(plan, device, &mut figures)?;
    }
    told(plan, &figures)?;
    Ok(figures)
}

/// The runs of earlier comparisons.
fn read(plan: &Plan) -> Result<Figures> {
    let mut figures = Figures::default();
    for path in &plan.from {
        let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        report::read(&text, plan.stall.into(), &mut figures);
    }
    if figures.cells.is_empty() {
        return Err(format!("no run in {}", plan.from.join(", ")).into());
    }
    Ok(figures)
}

/// Prints the page and writes it.
fn told(plan: &Plan, figures: &Figures) -> Result<()> {
    let machine = Machine::describe();
    let report = Report { machine: &machine, plan, figures };
    let markdown = report.markdown();
    println!("\n{markdown}");
    let Some(out) = &plan.out else { return Ok(()) };
    fs::create_dir_all(out)?;
    let stem = out.join(format!("beside-linux-{}-{}", machine.slug(), machine.date));
    fs::write(stem.with_extension("md"), markdown)?;
    let json = serde_json::to_string_pretty(&report.json())?;
    fs::write(stem.with_extension("json"), json + "\n")?;
    fs::write(stem.with_extension("html"), report::html(&report))?;
    println!("beside-linux: written to {}.md, .json and .html", stem.display());
    Ok(())
}

/// All rounds of one device.
fn measure(plan: &Plan, device: &Device, figures: &mut Figures) -> Result<()> {
    let program = plan.program.as_deref().unwrap_or(BLKMQ);
    let mut stack = Stack::new(device, program)?;
    for round in 0..plan.rounds {
        for load in LOADS {
            for scheduler in plan.schedulers.iter().filter(|it| plan.has(load, it)) {
                let run = Run { load, scheduler, time: plan.time, program, more: &plan.bench };
                let cell =
                    Cell { device: device.name, load: load.name, scheduler: scheduler.clone() };
                // The first side alternates, since a device's state from one run may affect the next one.
                let mut sides = Side::BOTH;
                sides.rotate_left(round as usize % 2);
                for side in sides {
                    kept(plan, &run, (&cell, side), &mut stack, figures)?;
                }
            }
        }
    }
    Ok(())
}

/// One run, repeated if the machine stalled.
fn kept(
    plan: &Plan,
    run: &Run<'_>,
    (cell, side): (&Cell, Side),
    stack: &mut Stack,
    figures: &mut Figures,
) -> Result<()> {
    for _ in 0..TRIES {
        let watch = Watch::begin();
        let sample = run.measure(side, stack);
        let lateness = watch.end();
        let Cell { device, load, scheduler } = cell;
        let Some(sample) = sample? else {
            println!("{device} {load} {scheduler} {}: {}", side.name(), report::OVERTIME);
            *figures.overtime.entry((cell.clone(), side)).or_default() += 1;
            return Ok(());
        };
        let shown: Vec<String> = (sample.0.iter())
            .map(|(name, value)| format!("{} {}", name.text, report::digits(*value)))
            .collect();
        let late = format!("{}{:.1} ms, {:.0} in all", report::LATE, lateness.worst, lateness.sum);
        println!("{device} {load} {scheduler} {}: {}{late}", side.name(), shown.join(", "));
        if lateness.worst <= f64::from(plan.stall) {
            figures.keep(cell, side, sample, lateness);
            return Ok(());
        }
        figures.dropped += 1;
    }
    Ok(())
}

fn list() -> String {
    let mut text = String::from("loads:\n");
    for load in LOADS {
        text += &format!("  {:<5} {}\n", load.name, load.about);
    }
    text += "devices:\n";
    for device in DEVICES {
        text += &format!("  {:<5} {}: {}\n", device.name, device.about, device.model);
    }
    text
}

/// The entries of `known` that `value` lists.
fn chosen(known: &[&'static str], value: &str) -> Result<Vec<&'static str>> {
    let find = |name: &str| {
        let found = known.iter().find(|it| **it == name).copied();
        found.ok_or_else(|| format!("{name} is none of {}", known.join(", ")))
    };
    Ok(value.split(',').map(find).collect::<std::result::Result<_, _>>()?)
}

const SCHEDULERS: [&str; 4] = ["none", "mq-deadline", "kyber", "bfq"];

impl Plan {
    fn parse(args: &[String]) -> Result<Self> {
        let mut plan = Self {
            devices: vec!["hdd4", "hdd32", "ssd"],
            schedulers: Vec::new(),
            loads: Vec::new(),
            rounds: 6,
            time: Time { ramp: 2, counted: 8 },
            stall: 50,
            bench: String::new(),
            from: Vec::new(),
            program: None,
            out: Some(root().join("bench/results")),
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let value = args.next().ok_or_else(|| format!("'{arg}' needs a value\n{HELP}"))?;
            plan.set(arg, value)?;
        }
        if plan.schedulers.is_empty() {
            plan.schedulers = SCHEDULERS.map(str::to_owned).into();
        }
        if plan.rounds == 0 || plan.time.counted == 0 {
            return Err("there is at least one round of one second".into());
        }
        Ok(plan)
    }

    fn set(&mut self, arg: &str, value: &str) -> Result<()> {
        let number =
            || value.parse().map_err(|_| format!("{arg} {value}: a whole number is needed"));
        match arg {
            "--only" => {
                let known: Vec<_> = LOADS.iter().map(|load| load.name).collect();
                self.loads = chosen(&known, value)?;
            }
            "--device" => {
                let known: Vec<_> = DEVICES.iter().map(|device| device.name).collect();
                self.devices = chosen(&known, value)?;
            }
            "--scheduler" if value.contains(':') => {
                chosen(&SCHEDULERS, value.split(':').next().unwrap_or_default())?;
                self.schedulers.push(value.to_owned());
            }
            "--scheduler" => {
                let names = chosen(&SCHEDULERS, value)?;
                self.schedulers.extend(names.into_iter().map(str::to_owned));
            }
            "--rounds" => self.rounds = number()?,
            "--seconds" => self.time.counted = number()?,
            "--ramp" => self.time.ramp = number()?,
            "--stall" => self.stall = number()?,
            "--bench" => self.bench = format!("{} {value}", self.bench),
            "--from" => self.from.push(value.to_owned()),
            "--program" => self.program = Some(value.to_owned()),
            "--out" => self.out = (value != "-").then(|| value.into()),
            _ => return Err(format!("'{arg}' is not understood\n{HELP}").into()),
        }
        Ok(())
    }

    /// Returns whether `load` applies to this scheduler, and was asked for.
    fn has(&self, load: &Load, scheduler: &str) -> bool {
        let name = scheduler.split(':').next().unwrap_or_default();
        (self.loads.is_empty() || self.loads.contains(&load.name))
            && (load.schedulers.is_empty() || load.schedulers.contains(&name))
    }
}

const PERIOD: Duration = Duration::from_millis(1);

/// How late the thread was.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Lateness {
    /// Milliseconds: the worst time.
    worst: f64,
    /// The sum in milliseconds, without wake-ups that are less than a period late.
    sum: f64,
}

impl Lateness {
    fn note(&mut self, took: Duration) {
        let late = took.saturating_sub(PERIOD);
        let ms = late.as_secs_f64() * 1e3;
        self.worst = self.worst.max(ms);
        if late > PERIOD {
            self.sum += ms;
        }
    }
}

/// The thread, until [`Watch::end`].
struct Watch {
    end: Sender<()>,
    thread: JoinHandle<Lateness>,
}

impl Watch {
    fn begin() -> Self {
        let (end, ended) = channel();
        let thread = thread::spawn(move || {
            let mut lateness = Lateness::default();
            loop {
                let (woken, took) = timed(|| ended.recv_timeout(PERIOD));
                if woken != Err(RecvTimeoutError::Timeout) {
                    return lateness;
                }
                lateness.note(took);
            }
        });
        Self { end, thread }
    }

    fn end(self) -> Lateness {
        // Dropping the sender also ends the thread.
        drop(self.end);
        self.thread.join().unwrap_or(Lateness { worst: f64::INFINITY, sum: f64::INFINITY })
    }
}

/// Threads with the same work.
#[derive(Debug)]
struct Job {
    name: &'static str,
    rw: &'static str,
    bs: &'static str,
    depth: u32,
    threads: u32,
    /// GiB: the start of the first thread's region, the size of each thread's region, and the distance of their starts.
    place: (u32, u32, u32),
    /// Writes that no thread waits for: through the page cache of Linux; ours are async.
    is_async: bool,
    /// Class and level, as numbers.
    priority: (u32, u32),
    /// The weight of the group that the job is in.
    weight: Option<u32>,
    /// Its I/Os may wait for longer than the ramp, which makes its client's count wrong. Its rate is the device's rate
    /// without the other jobs of its direction; its latencies are mostly of I/Os after the end of the others.
    starves: bool,
}

/// A load: jobs beside each other.
#[derive(Debug)]
struct Load {
    name: &'static str,
    about: &'static str,
    jobs: &'static [Job],
    /// The schedulers to which the load applies; empty: all.
    schedulers: &'static [&'static str],
    /// The ratio of the rates of the last job and the first is compared, too.
    shares: bool,
}

/// Best-effort, in the middle: the priority of programs that set none.
const MIDDLE: (u32, u32) = (2, 4);

const JOB: Job = Job {
    name: "",
    rw: "randread",
    bs: "4k",
    depth: 1,
    threads: 1,
    place: (0, 8, 0),
    is_async: false,
    priority: MIDDLE,
    weight: None,
    starves: false,
};

const STREAM: Job = Job { rw: "read", bs: "64k", ..JOB };

const LOADS: &[Load] = &[
    Load {
        name: "W1",
        about: "64 sequential writers of 4 KiB, each with 4 in flight",
        jobs: &[Job {
            name: "writers",
            rw: "write",
            depth: 4,
            threads: 64,
            place: (0, 1, 1),
            ..JOB
        }],
        schedulers: &[],
        shares: false,
    },
    Load {
        name: "W2",
        about: "a random reader beside 4 sequential writers of 64 KiB, each with 4 in flight",
        jobs: &[
            Job { name: "reader", ..JOB },
            Job { name: "writers", rw: "write", depth: 4, threads: 4, place: (8, 2, 2), ..STREAM },
        ],
        schedulers: &[],
        shares: false,
    },
    Load {
        name: "W3a",
        about: "two sequential readers in groups of weight 100 and 300",
        jobs: &[
            Job { name: "light", weight: Some(100), ..STREAM },
            Job { name: "heavy", weight: Some(300), place: (8, 8, 0), ..STREAM },
        ],
        schedulers: &["bfq"],
        shares: true,
    },
    Load {
        name: "W3b",
        about: "two random readers, each with 8 in flight, in groups of weight 100 and 300",
        jobs: &[
            Job { name: "light", depth: 8, weight: Some(100), ..JOB },
            Job { name: "heavy", depth: 8, weight: Some(300), place: (8, 8, 0), ..JOB },
        ],
        schedulers: &["bfq"],
        shares: true,
    },
    Load {
        name: "W3c",
        about: "two sequential readers, best-effort 7 and 5",
        jobs: &[
            Job { name: "be7", priority: (2, 7), ..STREAM },
            Job { name: "be5", priority: (2, 5), place: (8, 8, 0), ..STREAM },
        ],
        schedulers: &["bfq"],
        shares: true,
    },
    Load {
        name: "W3d",
        about: "a random reader of the idle class beside one with 8 in flight",
        jobs: &[
            Job { name: "idle", priority: (3, 0), starves: true, ..JOB },
            Job { name: "other", depth: 8, place: (8, 8, 0), ..JOB },
        ],
        schedulers: &["mq-deadline", "bfq"],
        shares: false,
    },
    Load {
        name: "W4a",
        about: "64 random readers beside 4 random writers",
        jobs: &[
            Job { name: "readers", threads: 64, ..JOB },
            Job { name: "writers", rw: "randwrite", threads: 4, place: (8, 8, 0), ..JOB },
        ],
        schedulers: &[],
        shares: false,
    },
    Load {
        name: "W4b",
        about: "4 random readers beside 64 random writers",
        jobs: &[
            Job { name: "readers", threads: 4, ..JOB },
            Job { name: "writers", rw: "randwrite", threads: 64, place: (8, 8, 0), ..JOB },
        ],
        schedulers: &[],
        shares: false,
    },
    Load {
        name: "W5",
        about: "64 random readers beside 64 random writers",
        jobs: &[
            Job { name: "readers", threads: 64, ..JOB },
            Job { name: "writers", rw: "randwrite", threads: 64, place: (8, 8, 0), ..JOB },
        ],
        schedulers: &[],
        shares: false,
    },
    Load {
        name: "W6",
        about: "a sequential reader of 64 KiB, as of a program that starts, beside 4 writers of 256 KiB with 8 in flight",
        jobs: &[
            Job { name: "reader", ..STREAM },
            Job {
                name: "writers",
                rw: "write",
                bs: "256k",
                depth: 8,
                threads: 4,
                place: (8, 2, 2),
                ..JOB
            },
        ],
        schedulers: &[],
        shares: false,
    },
    Load {
        name: "W7",
        about: "4 random readers of 16 KiB beside 2 sequential writers that wait for nothing",
        jobs: &[
            Job { name: "readers", bs: "16k", threads: 4, ..JOB },
            Job {
                name: "writers",
                rw: "write",
                bs: "128k",
                depth: 32,
                threads: 2,
                place: (8, 2, 2),
                is_async: true,
                ..JOB
            },
        ],
        schedulers: &[],
        shares: false,
    },
];

/// The seconds of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Time {
    /// Seconds before counting begins.
    ramp: u32,
    counted: u32,
}

impl Job {
    fn writes(&self) -> bool {
        self.rw.ends_with("write")
    }

    /// Bytes, rather than I/Os, are the rate of a stream of large I/Os.
    fn is_stream(&self) -> bool {
        !self.rw.starts_with("rand") && self.bs != "4k"
    }

    /// The unit of its rate.
    fn unit(&self) -> &'static str {
        if self.is_stream() { "MB/s" } else { "IOPS" }
    }

    /// Returns whether the time of the job's I/Os is compared.
    fn has_latency(&self) -> bool {
        !self.is_async && !self.starves
    }

    /// Bytes of an I/O.
    fn block(&self) -> f64 {
        let kib: u32 = self.bs.trim_end_matches('k').parse().expect("blocks are so many k");
        f64::from(kib * 1024)
    }

    /// The options that fio and bench spell alike.
    fn options(&self, time: Time) -> String {
        let Self { rw, bs, threads, place: (at, size, step), priority: (class, level), .. } = self;
        let Time { ramp, counted } = time;
        format!(
            "--rw={rw} --bs={bs} --numjobs={threads} --offset={at}g --size={size}g --offset_increment={step}g \
             --norandommap --prioclass={class} --prio={level} --time_based --ramp_time={ramp} --runtime={counted} \
             --group_reporting"
        )
    }

    /// The options of fio.
    fn of_fio(&self, time: Time) -> String {
        let way = if self.is_async {
            "--ioengine=psync --direct=0".to_owned()
        } else {
            format!("--ioengine=io_uring --direct=1 --iodepth={}", self.depth)
        };
        format!("--name={} {way} {}", self.name, self.options(time))
    }

    /// The options of `blkmq bench`; `first`: no other job precedes this one.
    fn of_bench(&self, time: Time, first: bool) -> String {
        let direct = u32::from(!self.is_async);
        let group = self.weight.map_or_else(String::new, |_| format!(" --cgroup={}", self.name));
        let report = if first { "" } else { " --new_group" };
        let depth = self.depth;
        format!(
            "--name={}{report} --direct={direct} --iodepth={depth}{group} {}",
            self.name,
            self.options(time)
        )
    }
}

/// A model, served as a block device.
#[derive(Debug)]
struct Device {
    name: &'static str,
    /// A description of the device for the page.
    about: &'static str,
    /// As `blkmqd --device` has it.
    model: &'static str,
    /// Driver tags, on both sides. A loop device takes no fewer than 4.
    depth: u32,
    /// Passed to Linux, which does not know the model.
    rotational: bool,
}

const DEVICES: &[Device] = &[
    Device {
        name: "hdd4",
        about: "a disk of 15,000 revolutions that serves 4 commands in the order of arrival",
        model: "disk,preset=sas15k,hw_queue_depth=4,reorder=0",
        depth: 4,
        rotational: true,
    },
    Device {
        name: "hdd32",
        about: "the same disk with a queue of 32 commands that it reorders by itself; 10 of them are in use at a time, \
                the threads of nbdfuse",
        model: "disk,preset=sas15k,hw_queue_depth=32",
        depth: 32,
        rotational: true,
    },
    Device {
        name: "ssd",
        about: "4 commands at a time, a read in 1 ms, a write in 4 ms",
        model: "null,irqmode=2,completion_nsec=1ms,write_nsec=4ms,hw_queue_depth=4,gb=64",
        depth: 4,
        rotational: false,
    },
    Device {
        name: "disk",
        about: "the model of a SATA disk of 7200 revolutions, with its cache and its queue",
        model: "disk",
        depth: 32,
        rotational: true,
    },
    Device {
        name: "flash",
        about: "the model of a SATA SSD; here processors are the limit",
        model: "flash,preset=sata,gb=64",
        depth: 32,
        rotational: false,
    },
];

/// Both sides, in the order of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Linux,
    Ours,
}

impl Side {
    const BOTH: [Self; 2] = [Self::Linux, Self::Ours];

    fn name(self) -> &'static str {
        match self {
            Self::Linux => "Linux",
            Self::Ours => "blkmq",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn plan(line: &str) -> Result<Plan> {
        Plan::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_read_and_refused() {
        let all = plan("").unwrap();
        assert_eq!((all.rounds, all.schedulers.len(), all.devices.len()), (6, 4, 3));
        let some = plan("--only W1,W4a --device hdd4 --scheduler bfq:queue_merge=2 --scheduler none,kyber --rounds 2")
            .unwrap();
        assert_eq!(some.loads, ["W1", "W4a"]);
        assert_eq!(some.schedulers, ["bfq:queue_merge=2", "none", "kyber"]);
        for line in [
            "--only W9",
            "--device sdd",
            "--scheduler cfq:a=1",
            "--rounds 0",
            "--rounds",
            "--fast 1",
        ] {
            assert!(plan(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_load_of_bfq_is_for_bfq() {
        let all = plan("").unwrap();
        let shares = LOADS.iter().find(|load| load.name == "W3a").unwrap();
        assert!(all.has(shares, "bfq:slice_idle=0") && !all.has(shares, "kyber"));
        assert!(all.has(&LOADS[0], "kyber"));
        assert!(!plan("--only W2").unwrap().has(&LOADS[0], "kyber"));
    }

    #[test]
    fn everything_is_in_the_help_or_the_list() {
        let list = list();
        for name in LOADS.iter().map(|it| it.name).chain(DEVICES.iter().map(|it| it.name)) {
            assert!(list.contains(name), "{name}");
        }
        for option in [
            "only",
            "device",
            "scheduler",
            "rounds",
            "seconds",
            "ramp",
            "stall",
            "bench",
            "from",
            "program",
            "out",
        ] {
            assert!(HELP.contains(&format!("--{option}")), "{option}");
        }
    }

    #[test]
    fn what_is_late_is_noted() {
        let mut lateness = Lateness::default();
        for us in [900, 1_000, 1_500, 31_000, 6_000] {
            lateness.note(Duration::from_micros(us));
        }
        assert!((lateness.worst - 30.0).abs() < 1e-6, "{lateness:?}");
        assert!((lateness.sum - 35.0).abs() < 1e-6, "{lateness:?}");
    }

    #[test]
    fn the_thread_ends_when_it_is_told() {
        let lateness = Watch::begin().end();
        assert!(lateness.worst.is_finite());
    }

    #[test]
    fn both_sides_are_told_the_same() {
        let time = Time { ramp: 1, counted: 5 };
        let load = LOADS.iter().find(|load| load.name == "W3a").unwrap();
        let (fio, ours) = (load.jobs[1].of_fio(time), load.jobs[1].of_bench(time, false));
        for word in ["--bs=64k", "--offset=8g", "--prioclass=2", "--ramp_time=1", "--runtime=5"] {
            assert!(fio.contains(word) && ours.contains(word), "{word}: {fio}, {ours}");
        }
        assert!(ours.contains("--cgroup=heavy") && ours.contains("--new_group"), "{ours}");
        assert!(!load.jobs[0].of_bench(time, true).contains("--new_group"));
    }

    #[test]
    fn names_are_different_and_places_are_on_every_device() {
        let names: BTreeSet<_> = LOADS.iter().map(|load| load.name).collect();
        assert_eq!(names.len(), LOADS.len());
        for job in LOADS.iter().flat_map(|load| load.jobs) {
            let (at, size, step) = job.place;
            assert!(at + (job.threads - 1) * step + size <= 64, "{job:?}");
        }
    }
}
