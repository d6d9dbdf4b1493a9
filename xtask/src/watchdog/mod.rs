//! `watchdog`: looks for I/Os that are stuck in the queue while the disk is idle and the threads of the program sleep;
//! and `lost-cpu`: how long requests stay in the engine while the device is idle and a thread of the queue has a CPU.
//!
//! The watchdog repeatedly runs `blkmq bench` on a file, each time with other threads, depths, schedulers and busy
//! loops, and samples the process and its disk every 20 ms. Models check that no wake-up is lost; this looks for lost
//! ones in the whole program, with real threads on too few CPUs. A [`Round`] has the load, the queue and the busy loops
//! determined by a seed: the same on every machine, so a seed in the output is enough to repeat it. `process.rs` runs
//! it and judges it.
//!
//! For `lost-cpu` the example of `blkmq-runtime` measures, with twice as many busy threads as CPUs; its figures are
//! printed in a table, for each scheduler and each kind of access. They are those of one machine at one time, and no
//! figure is an error.

mod process;

use crate::Result;
use crate::random::SplitMix64;
use crate::shell::{BLKMQ, Cmd, build_program, parse_json, target_dir, timed};
use process::{Disk, Load, Results, Side, Stall, Verdict};
use serde_json::Value;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, fs};

const HELP: &str = "usage: cargo xtask watchdog [OPTION]...

  --minutes N    begin rounds for so long (1)
  --seed S       the seed of the first round (1); the next one has the seed after it
  --file PATH    overwrite this file without holes, of 1 GiB at least, or this block device, instead of a file of its own
  --blkmq PATH   run this program instead of building one
  --help         this";

/// Shorter waits are normal.
const WORTH_TELLING: Duration = Duration::from_millis(200);
/// The size of the file, in MiB.
const SIZE: u64 = 1024;

/// The chosen work.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Options {
    time: Duration,
    seed: u64,
    file: Option<PathBuf>,
    blkmq: Option<PathBuf>,
}

impl Options {
    fn for_time(time: Duration) -> Self {
        Self { time, seed: 1, file: None, blkmq: None }
    }

    /// Returns `None` if the help is requested.
    fn parse(args: &[String]) -> Result<Option<Self>> {
        let mut options = Self::for_time(Duration::from_secs(60));
        let mut args = args.iter();
        while let Some(word) = args.next() {
            if word == "--help" {
                return Ok(None);
            }
            let mut value = || args.next().ok_or_else(|| format!("{word} needs a value\n{HELP}"));
            match word.as_str() {
                "--minutes" => options.time = Duration::from_secs(60 * number(value()?)?),
                "--seed" => options.seed = number(value()?)?,
                "--file" => options.file = Some(value()?.into()),
                "--blkmq" => options.blkmq = Some(value()?.into()),
                other => return Err(format!("watchdog does not know {other}\n{HELP}").into()),
            }
        }
        if options.time.is_zero() {
            Err("0 minutes show nothing".into())
        } else {
            Ok(Some(options))
        }
    }
}

fn number(word: &str) -> Result<u64> {
    let number = word.parse::<u32>().map(u64::from);
    number.map_err(|_| format!("{word} is no number\n{HELP}").into())
}

/// `cargo xtask watchdog`, see [`HELP`].
///
/// # Errors
/// If I/Os were stuck in the queue, a run failed, or the words are not understood.
pub(crate) fn main(args: &[String]) -> Result<()> {
    match Options::parse(args)? {
        Some(options) => rounds(&options),
        None => {
            println!("{HELP}");
            Ok(())
        }
    }
}

/// Rounds until the time is over, but one at least.
fn rounds(options: &Options) -> Result<()> {
    let place = Place::prepare(options)?;
    let (mut spent, mut tally) = (Duration::ZERO, Tally::default());
    while tally.rounds == 0 || spent < options.time {
        let round = Round::draw(options.seed.wrapping_add(tally.rounds));
        let (verdict, took) = timed(|| place.run(&round));
        tally.add(&verdict?);
        spent += took;
    }
    let unseen =
        if place.disk.is_none() { "; SKIPPED the side of stalls: no disk is seen" } else { "" };
    println!("{}{unseen}", tally.line());
    if tally.failed > 0 { Err(format!("{} rounds failed", tally.failed).into()) } else { Ok(()) }
}

/// The program, the file that it works on, and the folder of its output.
struct Place {
    blkmq: String,
    file: PathBuf,
    disk: Option<Disk>,
    folder: PathBuf,
    /// The file was created here, and is removed at the end.
    is_own: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_own {
            fs::remove_file(&self.file).ok();
        }
    }
}

impl Place {
    /// Builds the program and creates the file, unless the options name them.
    fn prepare(options: &Options) -> Result<Self> {
        let folder = target_dir().join("watchdog");
        fs::create_dir_all(&folder)?;
        let blkmq = match &options.blkmq {
            Some(path) => found(path)?.display().to_string(),
            None => {
                build_program()?;
                BLKMQ.to_owned()
            }
        };
        let (file, is_own) = match &options.file {
            Some(path) => (found(path)?, false),
            None => (folder.join("file"), true),
        };
        let mut place = Self { blkmq, file, disk: None, folder, is_own };
        if is_own {
            place.make_file()?;
        }
        let file = fs::metadata(&place.file)?;
        if !file.file_type().is_block_device() {
            suits(file.len(), file.blocks()).map_err(|error| place.named(&error))?;
        }
        place.disk = Disk::of(&file);
        if place.disk.is_none() {
            println!(
                "{}",
                place.named("its disk cannot be seen, so that stalls of the disk look like ours")
            );
        }
        Ok(place)
    }

    /// Lets a short run write the file, since holes are read without the disk.
    fn make_file(&self) -> Result<()> {
        let make = Cmd::new("").arg(&self.blkmq).arg("bench");
        let make = make.arg(format!("--device=uring:{},size={SIZE}", self.file.display()));
        let words = ["--scheduler=none", "--rw=randread", "--runtime=50ms", "--time_based"];
        words.into_iter().fold(make, Cmd::arg).output().map(drop)
    }

    fn named(&self, what: &str) -> String {
        format!("{}: {what}", self.file.display())
    }

    /// Runs a round, judges it and prints its lines.
    fn run(&self, round: &Round) -> Result<Verdict> {
        let [log, report] = ["log", "report.json"].map(|name| self.folder.join(name));
        fs::remove_file(&report).ok();
        let cmd = round.command(&self.blkmq, &self.file, &report);
        let life = process::watch(&cmd, &log, self.disk.as_ref(), round.busy_loops)?;
        let end = match life.status {
            Some(status) if status.success() => results(&report),
            Some(status) => {
                let text = fs::read_to_string(&log).unwrap_or_default();
                Err(format!("{status}: {}", text.trim()))
            }
            None => Err("it did not end, and was killed".to_owned()),
        };
        let load = Load { scheduler: round.scheduler, threads: round.threads() };
        let verdict = process::verdict(&load, &life.samples, &end);
        println!("{round}: {}", in_short(&end, &verdict));
        verdict.stalls.iter().for_each(|stall| println!("  {}", in_full(stall)));
        if !verdict.faults.is_empty() {
            verdict.faults.iter().for_each(|fault| println!("  FAILED: {fault}"));
            println!("  $ {cmd}");
        }
        Ok(verdict)
    }
}

/// The whole path of a file that must be there: programs run in another folder.
fn found(path: &Path) -> Result<PathBuf> {
    fs::canonicalize(path).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// Checks a regular file of `len` bytes that occupies `blocks` blocks of 512 bytes.
fn suits(len: u64, blocks: u64) -> std::result::Result<(), String> {
    if len < SIZE << 20 {
        return Err(format!("it is smaller than {SIZE} MiB"));
    }
    if blocks * 512 < len {
        return Err("it has holes, and they are read without the disk".to_owned());
    }
    Ok(())
}

/// The figures in the report of a run.
fn results(report: &Path) -> std::result::Result<Results, String> {
    let text = fs::read_to_string(report).map_err(|error| format!("no report: {error}"))?;
    figures(&parse_json(&text).map_err(|error| format!("no report: {error}"))?)
}

fn figures(report: &Value) -> std::result::Result<Results, String> {
    let jobs = report["jobs"].as_array().ok_or("a report without jobs")?;
    let (mut reads, mut longest, mut median) = (0.0, 0, 0);
    for job in jobs {
        reads += job["read"]["iops"].as_f64().unwrap_or(0.0);
        for clat in ["read", "write"].map(|name| &job[name]["clat_ns"]) {
            longest = longest.max(clat["max"].as_u64().unwrap_or(0));
            median = median.max(clat["percentile"]["50.000000"].as_u64().unwrap_or(0));
        }
    }
    if longest == 0 {
        return Err("a run without I/O".to_owned());
    }
    let [longest, median] = [longest, median].map(Duration::from_nanos);
    Ok(Results { reads, longest, median })
}

fn in_short(end: &std::result::Result<Results, String>, verdict: &Verdict) -> String {
    let results = match end {
        Ok(Results { reads, longest, median }) => {
            let [longest, median] = [longest, median].map(Duration::as_secs_f64);
            format!("{reads:.0} reads/s, longest {longest:.3} s, median {median:.3} s")
        }
        Err(_) => "no results".to_owned(),
    };
    let looks = match verdict.idle {
        [_, 0] => "no look at the load".to_owned(),
        [idle, looks] => format!("disk idle at {idle} of {looks} looks"),
    };
    let mut line = format!(
        "{results}; {looks}; stalls: {} of the disk, {} of ours",
        verdict.count(Side::Disk),
        verdict.count(Side::Ours)
    );
    let excuses = [
        (verdict.disk, "longest wait for the disk"),
        (verdict.blackout, "longest time without a look"),
    ];
    for (time, what) in excuses.into_iter().filter(|(time, _)| *time >= WORTH_TELLING) {
        line += &format!("; {what} {:.2} s", time.as_secs_f64());
    }
    if verdict.count(Side::Unknown) > 0 {
        line += &format!(", {} unknown", verdict.count(Side::Unknown));
    }
    line
}

fn in_full(stall: &Stall) -> String {
    let Stall { begin, length, side, idle: [idle, looks], threads } = stall;
    let side = match side {
        Side::Disk => "disk",
        Side::Ours => "ours",
        Side::Unknown => "unknown",
    };
    let threads: Vec<String> =
        threads.iter().map(|(thread, count)| format!("{count} in {thread}")).collect();
    format!(
        "{side}: no I/O for {:.2} s from {:.2} s on; the disk idle at {idle} of {looks} looks; threads by state and system \
         call: {}",
        length.as_secs_f64(),
        begin.as_secs_f64(),
        threads.join(", ")
    )
}

/// The sums of all rounds.
#[derive(Default)]
struct Tally {
    rounds: u64,
    disk: usize,
    ours: usize,
    unknown: usize,
    failed: u64,
}

impl Tally {
    fn add(&mut self, verdict: &Verdict) {
        self.rounds += 1;
        self.disk += verdict.count(Side::Disk);
        self.ours += verdict.count(Side::Ours);
        self.unknown += verdict.count(Side::Unknown);
        self.failed += u64::from(!verdict.faults.is_empty());
    }

    fn line(&self) -> String {
        let Self { rounds, disk, ours, unknown, .. } = self;
        let mut line =
            format!("watchdog: {rounds} rounds, {disk} stalls of the disk, {ours} of ours");
        if *unknown > 0 {
            line += &format!(", {unknown} of a disk that cannot be seen");
        }
        line
    }
}

const LOST_CPU_HELP: &str = "usage: cargo xtask lost-cpu [SECONDS [OPTION=VALUE]...]

  SECONDS   each of the measurements, three for a scheduler, runs for so long (3)
  OPTION    of the example: end=wait lets threads sleep, compute and device are microseconds, threads and depth numbers";

const SCHEDULERS: [&str; 4] = ["none", "mq-deadline", "kyber", "bfq"];
const ACCESS: [&str; 3] = ["combining", "mutex", "spin"];
const HEAD: &str = "
Milliseconds for which an I/O lay in the engine while the device was idle and a thread of the queue ran, and the number of
those above 1: with a thread that had no CPU, or with none; with a thread whose CPU another process had (not among the
times, but for their longest); with one whose CPU the host had.

                          a second    median      p99    p99.9  longest   held   none  process longest   host";

/// `cargo xtask lost-cpu`, see [`LOST_CPU_HELP`].
///
/// # Errors
/// If the example does not build or run.
pub(crate) fn lost_cpu(args: &[String]) -> Result<()> {
    let (seconds, options) = match args {
        [] => (3, &[][..]),
        [seconds, options @ ..] if seconds != "--help" => (seconds.parse()?, options),
        _ => {
            println!("{LOST_CPU_HELP}");
            return Ok(());
        }
    };
    Cmd::new("cargo build --release -p blkmq-runtime --example lost_cpu").run()?;
    println!("{HEAD}");
    for scheduler in SCHEDULERS {
        for access in ACCESS {
            let mut example = Cmd::new(crate::shell::LOST_CPU);
            let given = [("scheduler", scheduler), ("access", access)];
            for (name, value) in given {
                example = example.arg(format!("{name}={value}"));
            }
            example = example.arg(format!("seconds={seconds}"));
            for option in options {
                example = example.arg(option);
            }
            print!("{}", example.output()?);
        }
    }
    Ok(())
}

/// Seconds of a round's load.
const RUNTIME: u32 = 3;

const DRAWN_SCHEDULERS: [&str; 5] = ["none", "mq-deadline", "kyber", "bfq", "mclock"];
const MOST_READERS: u32 = 96;
const MOST_WRITERS: u32 = 6;
const IODEPTHS: [u32; 4] = [1, 2, 8, 32];
const HW_QUEUE_DEPTHS: [u32; 5] = [1, 2, 4, 32, 128];
const HW_QUEUES: [Option<u32>; 3] = [None, Some(1), Some(2)];
const BUSY_LOOPS: [u32; 4] = [0, 1, 2, 4];
/// One round in this many has pump threads, which few programs use.
const PUMP_THREADS_IN: u32 = 8;

/// The drawn parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Round {
    seed: u64,
    scheduler: &'static str,
    /// Threads that read 4 KiB at random places.
    readers: Threads,
    /// Threads that write 256 KiB at random places; there may be none.
    writers: Threads,
    hw_queue_depth: u32,
    /// The device's own number if `None`.
    hw_queues: Option<u32>,
    /// In the spelling of `--pump`.
    pump: &'static str,
    busy_loops: u32,
}

/// The threads of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Threads {
    numjobs: u32,
    iodepth: u32,
}

impl Round {
    fn draw(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let scheduler = random.pick(&DRAWN_SCHEDULERS);
        let readers =
            Threads { numjobs: 1 + random.below(MOST_READERS), iodepth: random.pick(&IODEPTHS) };
        let writers =
            Threads { numjobs: random.below(MOST_WRITERS + 1), iodepth: random.pick(&IODEPTHS) };
        Self {
            seed,
            scheduler,
            readers,
            writers,
            hw_queue_depth: random.pick(&HW_QUEUE_DEPTHS),
            hw_queues: random.pick(&HW_QUEUES),
            pump: if random.below(PUMP_THREADS_IN) == 0 { "threads" } else { "inline" },
            busy_loops: random.pick(&BUSY_LOOPS),
        }
    }

    /// Threads of its load.
    fn threads(&self) -> u32 {
        self.readers.numjobs + self.writers.numjobs
    }

    /// The command of its load, on the first GiB of `file`, with the results in `report`.
    fn command(&self, blkmq: &str, file: &Path, report: &Path) -> Cmd {
        let mut device = format!("uring:{},hw_queue_depth={}", file.display(), self.hw_queue_depth);
        if let Some(hw_queues) = self.hw_queues {
            device += &format!(",hw_queues={hw_queues}");
        }
        let cmd = Cmd::new("")
            .arg(blkmq)
            .arg("bench")
            .arg(format!("--scheduler={}", self.scheduler))
            .arg(format!("--device={device}"))
            .arg(format!("--pump={}", self.pump))
            .arg(format!("--output={}", report.display()));
        let mut line = format!(
            "--direct=1 --runtime={RUNTIME} --time_based --repeat=1 --size=1G --output-format=json "
        );
        line += &self.readers.job("r", "randread", "4k");
        if self.writers.numjobs > 0 {
            line += &self.writers.job("w", "randwrite", "256k");
        }
        line.split_whitespace().fold(cmd, Cmd::arg)
    }
}

impl Threads {
    fn job(self, name: &str, rw: &str, bs: &str) -> String {
        let Self { numjobs, iodepth } = self;
        format!(
            "--name={name} --rw={rw} --bs={bs} --iodepth={iodepth} --numjobs={numjobs} --group_reporting "
        )
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, scheduler, readers, writers, hw_queue_depth, pump, busy_loops, .. } = self;
        write!(f, "seed {seed}: {scheduler}, readers {}x{}", readers.numjobs, readers.iodepth)?;
        if writers.numjobs > 0 {
            write!(f, ", writers {}x{}", writers.numjobs, writers.iodepth)?;
        }
        write!(f, ", hw_queue_depth {hw_queue_depth}")?;
        if let Some(hw_queues) = self.hw_queues {
            write!(f, ", hw_queues {hw_queues}")?;
        }
        write!(f, ", pump {pump}, busy loops {busy_loops}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::BTreeSet;

    fn parse(line: &str) -> Result<Option<Options>> {
        Options::parse(&Vec::from_iter(line.split_whitespace().map(str::to_owned)))
    }

    #[test]
    fn options_are_understood() {
        let minutes = |count: u64| Options::for_time(Duration::from_secs(60 * count));
        assert_eq!(parse("").unwrap(), Some(minutes(1)));
        let given =
            Options { seed: 9, file: Some("f".into()), blkmq: Some("old".into()), ..minutes(60) };
        let line = "--minutes 60 --seed 9 --file f --blkmq old";
        assert_eq!(parse(line).unwrap(), Some(given));
        assert_eq!(parse("--seed 9 --help").unwrap(), None);
        assert!(parse("--minutes 0").is_err());
        for line in ["--minutes", "--minutes many", "--seed -1", "--file", "soon"] {
            assert!(parse(line).unwrap_err().to_string().contains("--minutes N"), "{line}");
        }
    }

    #[test]
    fn a_file_has_its_size_and_no_holes() {
        assert_eq!(suits(1 << 30, 1 << 21), Ok(()));
        assert!(suits((1 << 30) - 1, 1 << 21).unwrap_err().contains("smaller"));
        assert!(suits(1 << 30, (1 << 21) - 1).unwrap_err().contains("holes"));
    }

    #[test]
    fn the_longest_latency_is_that_of_all_directions_and_jobs() {
        let direction = |iops: f64, max: u64, median: u64| {
            let clat = json!({ "max": max, "percentile": { "50.000000": median } });
            json!({ "iops": iops, "clat_ns": clat })
        };
        let report = json!({ "jobs": [
            { "read": direction(10.0, 7_000_000, 2_000_000), "write": direction(1.0, 9_000_000, 1_000_000) },
            { "read": direction(0.0, 0, 0), "write": direction(3.0, 8_000_000, 3_000_000) },
        ]});
        let Results { reads, longest, median } = figures(&report).unwrap();
        assert_eq!(
            (reads, longest, median),
            (10.0, Duration::from_millis(9), Duration::from_millis(3))
        );
        assert!(figures(&json!({ "jobs": [{ "read": direction(0.0, 0, 0) }] })).is_err());
        assert!(figures(&json!({})).is_err());
    }

    #[test]
    fn a_seed_always_gives_the_same_round() {
        for seed in [0, 1, 2, u64::MAX] {
            assert_eq!(Round::draw(seed), Round::draw(seed));
        }
        assert_ne!(Round::draw(1), Round { seed: 1, ..Round::draw(2) });
        let shown = "seed 1: kyber, readers 72x32, writers 3x2, hw_queue_depth 32, hw_queues 2, pump inline, busy loops 1";
        assert_eq!(Round::draw(1).to_string(), shown);
    }

    #[test]
    fn every_value_is_drawn_and_none_beyond_the_bounds() {
        let rounds: Vec<Round> = (0..20_000).map(Round::draw).collect();
        let values = |of: fn(&Round) -> u32| rounds.iter().map(of).collect::<BTreeSet<u32>>();
        let are = |values: &[u32]| values.iter().copied().collect();
        assert_eq!(values(|it| it.readers.numjobs), (1..=96).collect());
        assert_eq!(values(|it| it.writers.numjobs), (0..=6).collect());
        assert_eq!(values(|it| it.readers.iodepth), are(&IODEPTHS));
        assert_eq!(values(|it| it.writers.iodepth), are(&IODEPTHS));
        assert_eq!(values(|it| it.hw_queue_depth), are(&HW_QUEUE_DEPTHS));
        assert_eq!(values(|it| it.hw_queues.unwrap_or(0)), are(&[0, 1, 2]));
        assert_eq!(values(|it| it.busy_loops), are(&BUSY_LOOPS));
        let names: BTreeSet<&str> = rounds.iter().map(|it| it.scheduler).collect();
        assert_eq!(names, DRAWN_SCHEDULERS.into());
        let threads = rounds.iter().filter(|it| it.pump == "threads").count();
        assert!((2_000..3_000).contains(&threads), "{threads} of 20000 rounds");
    }

    #[test]
    fn the_command_has_all_that_was_drawn() {
        let round = Round {
            seed: 7,
            scheduler: "kyber",
            readers: Threads { numjobs: 64, iodepth: 1 },
            writers: Threads { numjobs: 4, iodepth: 2 },
            hw_queue_depth: 4,
            hw_queues: Some(2),
            pump: "threads",
            busy_loops: 2,
        };
        let line = |round: &Round| {
            round.command("blkmq", Path::new("/d/file"), Path::new("/d/report")).to_string()
        };
        assert_eq!(round.threads(), 68);
        assert_eq!(
            line(&round),
            "blkmq bench --scheduler=kyber --device=uring:/d/file,hw_queue_depth=4,hw_queues=2 --pump=threads \
             --output=/d/report --direct=1 --runtime=3 --time_based --repeat=1 --size=1G --output-format=json --name=r \
             --rw=randread --bs=4k --iodepth=1 --numjobs=64 --group_reporting --name=w --rw=randwrite --bs=256k \
             --iodepth=2 --numjobs=4 --group_reporting"
        );
        let idle = Threads { numjobs: 0, iodepth: 2 };
        let alone = Round { writers: idle, hw_queues: None, ..round };
        assert!(!line(&alone).contains("--name=w"), "{}", line(&alone));
        assert!(!line(&alone).contains("hw_queues"), "{}", line(&alone));
    }
}
