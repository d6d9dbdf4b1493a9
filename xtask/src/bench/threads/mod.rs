//! `bench --threads`: many threads on one file, compared with fio's io_uring engine with as many threads; and
//! `bench --layers`: a stripe of two files, compared with the two files themselves with a program for each.
//!
//! A row is a number of threads and a depth. A round of a row is a run of fio and then one of `blkmq bench` with each
//! scheduler; the ratio of a scheduler is that to fio in the same round. Both sides get the same words for the load.
//! Ours gets no other setting: the defaults are compared. The table has the medians over the rounds and marks those
//! that miss their bounds. Nothing is recorded, and slow results do not fail: the figures are only meaningful on an
//! otherwise idle machine.
//!
//! Both sides of `--layers` have two threads, each with as many I/Os in flight, in its own half of the bytes. The two
//! programs run at the same time, and their rates add up. The scheduler is `none`, and every other setting has its
//! default.

mod table;

use crate::Result;
use crate::measurement::{Machine, number};
use crate::shell::{BLKMQ, Cmd, Guard, is_installed, parse_json, root, target_dir};
use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf, absolute};
use std::process::Child;
use table::{Bounds, Line, Round, Sample, Within, table};

/// The heads of the columns: that of the second one, and the names of both sides.
const HEADS: [&str; 3] = ["scheduler", "ours", "fio's"];

/// Measures all rows and prints a table for each direction.
///
/// # Errors
/// If the file or the loop device cannot be made, or a command does not run or reports no I/O.
pub(super) fn main(plan: &Plan) -> Result<()> {
    if !is_installed("fio") {
        println!("fio is not installed: SKIPPED many threads on one file");
        return Ok(());
    }
    let machine = Machine::describe();
    let beside = Beside::new(plan)?;
    let mut within = Within::default();
    let mut page = String::new();
    for direction in plan.directions {
        let mut lines = Vec::new();
        for row in &plan.rows {
            let measured = measure(plan, *row, *direction, &beside)?;
            // The whole takes long and may be interrupted, so each row is printed immediately.
            println!("{}", table(&measured, HEADS, &mut Within::default()));
            lines.extend(measured);
        }
        let table = table(&lines, HEADS, &mut within);
        page += &format!("\n{}\n\n{table}", plan.title(*direction));
    }
    println!("{page}\n{within}\n");
    println!("{}", about(&machine));
    machine.warnings().iter().for_each(|warning| println!("{warning}"));
    commands(plan, beside.path()).iter().for_each(|cmd| println!("$ {cmd}"));
    Ok(())
}

/// The rounds of a row: a line of the table for each scheduler.
fn measure(plan: &Plan, row: Row, direction: Direction, beside: &Beside) -> Result<Vec<Line>> {
    let line = |what: &&'static str| {
        let bounds = Bounds::of(what, plan.busy);
        Line { row, what, bounds, rounds: Vec::new() }
    };
    let mut lines = Vec::from_iter(plan.schedulers.iter().map(line));
    let run = |cmd: &Cmd| -> Result<Sample> {
        let sample = parse_json(&cmd.output()?).and_then(|it| Sample::read(&it));
        sample.map_err(|error| format!("{cmd}: {error}").into())
    };
    for round in 1..=plan.rounds {
        let fio = run(&plan.fio(row, direction, beside.path()))?;
        let mut shown = format!("{:.1} k IOPS of fio", fio.rate / 1e3);
        for line in &mut lines {
            let ours = run(&plan.ours(line.what, row, direction, beside.path()))?;
            shown += &format!(", {} {:.2}", line.what, ours.rate / fio.rate);
            line.rounds.push(Round { ours, beside: fio });
        }
        println!("{} {row}, round {round} of {}: {shown}", direction.name(), plan.rounds);
    }
    Ok(lines)
}

/// The machine in a line.
fn about(machine: &Machine) -> String {
    let Machine { cpu, cores, kernel, fio, load, commit, .. } = machine;
    format!("{cpu}, {cores} cores, Linux {kernel}, {fio}, commit {commit}, load before {load}")
}

/// The commands of the first row; those of the others differ in their numbers.
fn commands(plan: &Plan, path: &str) -> Vec<Cmd> {
    let Some(&row) = plan.rows.first() else { return Vec::new() };
    let of = |direction: &Direction| {
        let ours = plan.schedulers.iter().map(|it| plan.ours(it, row, *direction, path));
        [plan.fio(row, *direction, path)].into_iter().chain(ours).collect::<Vec<_>>()
    };
    plan.directions.iter().flat_map(of).collect()
}

/// The loads, in fio's spelling.
const LOADS: [&str; 3] = ["randread --bs=4k", "randwrite --bs=4k", "read --bs=128k"];

/// The heads of the columns that differ from those of [`main`].
const LAYERS_HEADS: [&str; 3] = ["load", "the stripe", "the files"];

/// Measures all loads and prints a table.
///
/// # Errors
/// If the files cannot be made, or a command does not run or reports no I/O.
pub(super) fn layers(plan: &Plan) -> Result<()> {
    let machine = Machine::describe();
    let beside = Beside::new(plan)?;
    let files = [beside.path().to_owned(), format!("{}.second", beside.path())];
    plan.fill(Path::new(&files[1])).output()?;
    let mut lines = Vec::new();
    for row in &plan.rows {
        for load in LOADS {
            lines.push(measure_layers(plan, *row, load, &files)?);
        }
    }
    let mut within = Within::default();
    println!("\n{}\n{within}\n", table(&lines, LAYERS_HEADS, &mut within));
    println!("{}", about(&machine));
    machine.warnings().iter().for_each(|warning| println!("{warning}"));
    let (row, load) = (plan.rows[0], LOADS[0]);
    let apart = files.iter().map(|file| apart(plan, row, load, file));
    apart.chain([stripe(plan, row, load, &files)]).for_each(|cmd| println!("$ {cmd}"));
    Ok(())
}

/// The size given by the words behind `--layers`.
///
/// # Errors
/// If an option is unknown, or its word is missing or wrong.
pub(super) fn parse_layers(args: &[String]) -> Result<Plan> {
    let mut plan = Plan::of_layers();
    let mut args = args.iter();
    while let Some(name) = args.next() {
        let mut word = || args.next().ok_or_else(|| format!("{name} needs a word"));
        match name.as_str() {
            "--rounds" => plan.rounds = number(word()?)?,
            "--seconds" => plan.milliseconds = u64::from(number(word()?)?) * 1_000,
            "--blkmq" => plan.program = absolute(word()?)?.display().to_string(),
            other => return Err(format!("bench --layers does not know {other}").into()),
        }
    }
    Ok(plan)
}

/// The rounds of a load: a line of the table.
fn measure_layers(plan: &Plan, row: Row, load: &'static str, files: &[String; 2]) -> Result<Line> {
    let bounds = Bounds::of_a_layer();
    let mut line = Line { row, what: load, bounds, rounds: Vec::new() };
    for round in 1..=plan.rounds {
        let [one, other] = files.each_ref().map(|file| apart(plan, row, load, file));
        let log = format!("{}.log", files[1]);
        let mut started =
            other.start_in(&root(), File::create(&log)?, File::create("/dev/null")?)?;
        let beside = run_sample(&one)?;
        started.wait()?;
        let beside = beside.and(read_sample(&other, &fs::read_to_string(&log)?)?);
        let ours = run_sample(&stripe(plan, row, load, files))?;
        let (sum, ratio) = (beside.rate / 1e3, ours.rate / beside.rate);
        println!(
            "{load} {row}, round {round} of {}: {sum:.1} k IOPS of two files, stripe {ratio:.2}",
            plan.rounds
        );
        line.rounds.push(Round { ours, beside });
    }
    Ok(line)
}

fn run_sample(cmd: &Cmd) -> Result<Sample> {
    read_sample(cmd, &cmd.output()?)
}

fn read_sample(cmd: &Cmd, report: &str) -> Result<Sample> {
    let sample = parse_json(report).and_then(|it| Sample::read(&it));
    sample.map_err(|error| format!("{cmd}: {error}").into())
}

/// A thread on a file.
fn apart(plan: &Plan, row: Row, load: &str, file: &str) -> Cmd {
    layers_command(plan, 1, row, load).arg(format!("--device=uring:{file}"))
}

/// A thread for each file, on the stripe.
fn stripe(plan: &Plan, row: Row, load: &str, [one, other]: &[String; 2]) -> Cmd {
    let device = format!("--device=stripe:[uring:{one}][uring:{other}]");
    layers_command(plan, row.threads, row, load).arg(device)
}

fn layers_command(plan: &Plan, threads: u32, Row { depth, .. }: Row, load: &str) -> Cmd {
    let Plan { size, milliseconds, .. } = plan;
    let line = format!(
        "--name=layers --rw={load} --iodepth={depth} --numjobs={threads} --size={size}m --offset_increment={size}m \
         --norandommap --time_based --runtime={milliseconds}ms --lat_percentiles=1 --group_reporting --output-format=json --repeat=1"
    );
    words(plan.bench("--scheduler=none"), &line)
}

/// Shell loops that use all the CPU time they can get.
const LOOPS: u32 = 2;
const LOOP: &str = "while :; do :; done";
/// A folder of memory.
const TMPFS: &str = "/dev/shm";

/// The environment; dropping it ends the loops and removes the file and the device.
struct Beside {
    path: String,
    loops: Vec<Child>,
    /// Only absent while this is dropped.
    guard: Option<Guard>,
}

impl Beside {
    /// Makes the file or the device, and then starts the loops.
    ///
    /// # Errors
    /// If there is no such file, or no loop device can be made.
    fn new(plan: &Plan) -> Result<Self> {
        let mut guard = Guard::new()?;
        let path = match &plan.place {
            Place::Given(path) => given(path, plan.size)?,
            Place::File => filled(&target_dir(), plan, &mut guard)?,
            Place::Loop => {
                can_loop()?;
                let file = filled(Path::new(TMPFS), plan, &mut guard)?;
                let line = format!("losetup --direct-io=on --find --show {}", file.display());
                let made = Cmd::new(&line).output();
                let made = made.map_err(|error| format!("no loop device can be made: {error}"))?;
                guard.note("loop", made.trim())?;
                made.trim().into()
            }
        };
        let path = plain(&path)?;
        let mut beside = Self { path, loops: Vec::new(), guard: Some(guard) };
        for _ in 0..if plan.busy { LOOPS } else { 0 } {
            beside.start_loop()?;
        }
        Ok(beside)
    }

    /// The path of the file or the device.
    fn path(&self) -> &str {
        &self.path
    }

    fn start_loop(&mut self) -> Result<()> {
        let child = Cmd::new("sh -c").arg(LOOP).start(File::create("/dev/null")?)?;
        let id = child.id().to_string();
        self.loops.push(child);
        self.guard.as_mut().map_or(Ok(()), |guard| guard.note("process", &id))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // The guard ends the loops; here they are only waited for, so that none becomes a zombie.
        drop(self.guard.take());
        for child in &mut self.loops {
            let _ = child.wait();
        }
    }
}

/// The file or device given by an option.
fn given(path: &Path, size: u64) -> Result<PathBuf> {
    let about = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    if about.is_file() && about.len() < size << 20 {
        return Err(format!("{} has less than {size} MiB", path.display()).into());
    }
    Ok(path.to_owned())
}

/// A new file of random bytes in its own folder.
fn filled(parent: &Path, plan: &Plan, guard: &mut Guard) -> Result<PathBuf> {
    let folder = parent.join(format!("blkmq-threads-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    guard.note("folder", &folder.display().to_string())?;
    let file = folder.join("file");
    plain(&file)?;
    println!("{} MiB of random bytes: {}", plan.size, file.display());
    plan.fill(&file).output()?;
    Ok(file)
}

/// A path as text that fio, blkmq and the guard's shell all read as one path: fio splits at colons, the parameters of a
/// device are split at commas, and the shell splits at blanks.
fn plain(path: &Path) -> Result<String> {
    let text = path.to_str().filter(|text| !text.contains([',', ':', ' ']));
    let text = text.ok_or_else(|| format!("a comma, colon or blank in {}", path.display()))?;
    Ok(text.to_owned())
}

fn can_loop() -> Result<()> {
    if !is_installed("losetup") {
        return Err("--loop needs losetup, of util-linux".into());
    }
    if Cmd::new("id -u").output()?.trim() != "0" {
        return Err("--loop needs root, for losetup".into());
    }
    Ok(())
}

/// The schedulers in the order of the table.
const SCHEDULERS: [&str; 5] = ["none", "mq-deadline", "kyber", "bfq", "mclock"];
const THREADS: [u32; 6] = [1, 2, 4, 8, 16, 64];
const DEPTHS: [u32; 3] = [1, 8, 32];

/// Threads, and the I/Os that each keeps in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Row {
    threads: u32,
    depth: u32,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.threads, self.depth)
    }
}

/// The direction of the I/Os, all of 4 KiB at random offsets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    Read,
    Write,
}

impl Direction {
    /// The name in fio's spelling.
    fn name(self) -> &'static str {
        match self {
            Self::Read => "randread",
            Self::Write => "randwrite",
        }
    }
}

/// The target of the I/Os.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Place {
    /// A file in the build folder, created for the measurement.
    File,
    /// A loop device over a file on tmpfs, created for the measurement.
    Loop,
    /// A file or a device that is there, by its absolute path.
    Given(PathBuf),
}

/// The size of the measurement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    rows: Vec<Row>,
    schedulers: Vec<&'static str>,
    directions: &'static [Direction],
    /// Runs of each side in each row; the medians are reported.
    rounds: u32,
    /// The length of a run.
    milliseconds: u64,
    /// MiB of the file.
    size: u64,
    /// Shell loops keep CPUs busy during the runs.
    busy: bool,
    place: Place,
    /// The program that is measured.
    program: String,
}

impl Plan {
    /// The published size: half an hour for a direction.
    fn full() -> Self {
        let row = |threads| DEPTHS.map(|depth| Row { threads, depth });
        Self {
            rows: THREADS.into_iter().flat_map(row).collect(),
            schedulers: SCHEDULERS.into(),
            directions: &[Direction::Read],
            rounds: 7,
            milliseconds: 2_000,
            size: 1024,
            busy: false,
            place: Place::File,
            program: BLKMQ.into(),
        }
    }

    /// The size of `bench --layers`: five minutes.
    fn of_layers() -> Self {
        let rows = [1, 32].map(|depth| Row { threads: 2, depth });
        Self { rows: rows.into(), size: 512, ..Self::full() }
    }

    /// As [`of_layers`](Self::of_layers), to see that it works.
    pub(crate) fn layers_at_test_size() -> Self {
        let Self { rounds, milliseconds, size, .. } = Self::test_size();
        Self { rounds, milliseconds, size, ..Self::of_layers() }
    }

    /// A run of every kind, to check that it works. The figures mean nothing.
    pub(crate) fn test_size() -> Self {
        Self {
            rows: vec![Row { threads: 2, depth: 8 }],
            schedulers: vec!["none", "bfq"],
            directions: &[Direction::Read, Direction::Write],
            rounds: 1,
            // Beside the loops a thread may get no CPU for some time, and a run without I/O is an error.
            milliseconds: 300,
            size: 16,
            busy: true,
            ..Self::full()
        }
    }

    /// The size given by the words behind `--threads`.
    ///
    /// # Errors
    /// If an option is unknown, or its word is missing or wrong.
    pub(crate) fn parse(args: &[String]) -> Result<Self> {
        let mut plan = Self::full();
        let (mut write, mut both) = (false, false);
        let mut args = args.iter();
        while let Some(name) = args.next() {
            let mut word = || args.next().ok_or_else(|| format!("{name} needs a word"));
            match name.as_str() {
                "--rows" => plan.rows = rows(word()?)?,
                "--schedulers" => plan.schedulers = schedulers(word()?)?,
                "--rounds" => plan.rounds = number(word()?)?,
                "--seconds" => plan.milliseconds = u64::from(number(word()?)?) * 1_000,
                "--busy" => plan.busy = true,
                "--write" => write = true,
                "--both" => both = true,
                "--file" => plan.put(Place::Given(absolute(word()?)?))?,
                "--loop" => plan.put(Place::Loop)?,
                "--blkmq" => plan.program = absolute(word()?)?.display().to_string(),
                other => return Err(format!("bench --threads does not know {other}").into()),
            }
        }
        plan.directions = match (write, both) {
            (_, true) => &[Direction::Read, Direction::Write],
            (true, false) => &[Direction::Write],
            (false, false) => &[Direction::Read],
        };
        Ok(plan)
    }

    fn put(&mut self, place: Place) -> Result<()> {
        if self.place != Place::File {
            return Err("one --file or one --loop".into());
        }
        self.place = place;
        Ok(())
    }

    /// Returns whether the measured program is built here, not given by an option.
    pub(crate) fn builds(&self) -> bool {
        self.program == BLKMQ
    }

    /// The line above a table.
    fn title(&self, direction: Direction) -> String {
        let place = match &self.place {
            Place::File => "a file".to_owned(),
            Place::Loop => "a loop device over tmpfs".to_owned(),
            Place::Given(path) => path.display().to_string(),
        };
        let busy = if self.busy { ", with two busy loops" } else { "" };
        format!(
            "4 KiB {} on {place}{busy}, beside fio's io_uring engine: medians of {} rounds, runs of {} s",
            direction.name(),
            self.rounds,
            self.milliseconds as f64 / 1e3,
        )
    }

    /// The part of the command line that both sides share.
    fn load(&self, row: Row, direction: Direction) -> String {
        let Row { threads, depth } = row;
        format!(
            "--name=threads --rw={} --bs=4k --iodepth={depth} --numjobs={threads} --direct=1 --size={}m --norandommap \
             --time_based --runtime={}ms --lat_percentiles=1 --group_reporting --output-format=json",
            direction.name(),
            self.size,
            self.milliseconds,
        )
    }

    /// The run of fio.
    fn fio(&self, row: Row, direction: Direction, path: &str) -> Cmd {
        let engine = Cmd::new("fio --ioengine=io_uring --thread").arg(format!("--filename={path}"));
        words(engine, &self.load(row, direction))
    }

    /// The run of `blkmq bench` with a scheduler.
    fn ours(&self, scheduler: &str, row: Row, direction: Direction, path: &str) -> Cmd {
        // By default bfq favours threads that have just started, and lets the device idle for them.
        let setting = if scheduler == "bfq" { ":low_latency=0" } else { "" };
        let bench = self.bench(&format!("--scheduler={scheduler}{setting} --repeat=1"));
        words(bench.arg(format!("--device=uring:{path}")), &self.load(row, direction))
    }

    /// The run that creates a file with random bytes, since holes are read without accessing the disk.
    fn fill(&self, path: &Path) -> Cmd {
        let device = format!("--device=uring:{},size={}", path.display(), self.size);
        self.bench("--scheduler=none --rw=randread --bs=4k --number_ios=1 --output-format=json")
            .arg(device)
    }

    fn bench(&self, options: &str) -> Cmd {
        words(Cmd::new("").arg(self.program.clone()).arg("bench"), options)
    }
}

fn words(cmd: Cmd, line: &str) -> Cmd {
    line.split_whitespace().fold(cmd, Cmd::arg)
}

/// The rows of `1x1,4x32`.
fn rows(list: &str) -> Result<Vec<Row>> {
    let row = |word: &str| -> Result<Row> {
        let (threads, depth) = word.split_once('x').ok_or_else(|| {
            format!("'{word}' is no row: threads and depth, as in --rows 1x1,4x32")
        })?;
        Ok(Row { threads: number(threads)?, depth: number(depth)? })
    };
    list.split(',').map(row).collect()
}

/// The schedulers of `none,bfq`.
fn schedulers(list: &str) -> Result<Vec<&'static str>> {
    let known = |word: &str| -> Result<&'static str> {
        let found = SCHEDULERS.into_iter().find(|name| *name == word);
        found.ok_or_else(|| format!("'{word}' is none of {}", SCHEDULERS.join(", ")).into())
    };
    list.split(',').map(known).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers_plan(line: &str) -> Result<Plan> {
        parse_layers(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_read_and_refused() {
        let given = layers_plan("--rounds 3 --seconds 5 --blkmq /b").unwrap();
        assert_eq!((given.rounds, given.milliseconds, given.builds()), (3, 5_000, false));
        let all = layers_plan("").unwrap();
        assert_eq!((all.rounds, all.builds()), (7, true));
        for bad in ["--rounds", "--rounds 0", "--rows 1x1", "--file f", "3"] {
            assert!(layers_plan(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn both_sides_have_the_same_load_threads_and_bytes() {
        let plan = layers_plan("").unwrap();
        let (row, load) = (plan.rows[0], LOADS[2]);
        let files = ["/a".to_owned(), "/b".to_owned()];
        let stripe = stripe(&plan, row, load, &files).to_string();
        let alone = apart(&plan, row, load, "/a").to_string();
        let at = |device: &str, jobs: &str, cmd: &str| {
            let rest = cmd.strip_suffix(&format!(" --device={device}")).expect(cmd).to_owned();
            rest.replace(&format!("--numjobs={jobs}"), "")
        };
        assert_eq!(at("uring:/a", "1", &alone), at("stripe:[uring:/a][uring:/b]", "2", &stripe));
        assert!(alone.contains("--rw=read --bs=128k --iodepth=1 "), "{alone}");
    }

    fn plan(line: &str) -> Plan {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Plan::parse(&args).unwrap()
    }

    #[test]
    fn busy_loops_end_with_their_owner() {
        let beside = Beside::new(&plan("--busy --file /dev/null")).unwrap();
        let ids: Vec<u32> = beside.loops.iter().map(Child::id).collect();
        assert_eq!(ids.len(), 2);
        let is_there = |id: &u32| Path::new("/proc").join(id.to_string()).exists();
        assert!(ids.iter().all(is_there));
        drop(beside);
        assert!(!ids.iter().any(is_there));
    }

    #[test]
    fn a_file_that_does_not_fit_is_refused() {
        let refused = |line: &str| Beside::new(&plan(line)).map(drop).unwrap_err().to_string();
        assert!(refused("--file /no/such/file").contains("/no/such/file"));
        let small = format!("--file {}/Cargo.toml", root().display());
        assert!(refused(&small).ends_with("has less than 1024 MiB"));
        assert!(plain(Path::new("/a,b")).is_err());
        assert!(plain(Path::new("/a:b")).is_err());
        assert_eq!(plain(Path::new("/dev/loop0")).unwrap(), "/dev/loop0");
    }

    fn parse(line: &str) -> Result<Plan> {
        Plan::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn all_rows_are_the_default_and_others_are_read() {
        let all = parse("").unwrap();
        assert_eq!(all, Plan::full());
        assert_eq!(all.rows.len(), 18);
        assert_eq!(
            (all.rows[4].to_string(), all.rows[17].to_string()),
            ("2x8".into(), "64x32".into())
        );
        let some = rows("1x1,4x32").unwrap();
        assert_eq!(some, [Row { threads: 1, depth: 1 }, Row { threads: 4, depth: 32 }]);
        for bad in ["", "4", "4x", "x4", "0x1", "1x0", "1x1,", "1x1x1", "-1x1", "1 x 1"] {
            assert!(rows(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn options_are_read() {
        let line = "--rows 2x1 --schedulers none,mclock --rounds 3 --seconds 5 --busy --file /f --blkmq /b --write";
        let plan = parse(line).unwrap();
        assert_eq!(plan.rows, [Row { threads: 2, depth: 1 }]);
        assert_eq!(plan.schedulers, ["none", "mclock"]);
        assert_eq!((plan.rounds, plan.milliseconds, plan.busy), (3, 5_000, true));
        assert_eq!(plan.place, Place::Given("/f".into()));
        assert_eq!(plan.directions, [Direction::Write]);
        assert!(!plan.builds() && Plan::full().builds());
        assert_eq!(parse("--loop").unwrap().place, Place::Loop);
        for both in ["--both", "--both --write", "--write --both"] {
            let directions = parse(both).unwrap().directions;
            assert_eq!(directions, [Direction::Read, Direction::Write], "{both}");
        }
        let relative = parse("--file some/file").unwrap().place;
        assert!(matches!(relative, Place::Given(path) if path.is_absolute()));
    }

    #[test]
    fn wrong_options_are_refused() {
        for bad in [
            "--rows",
            "--rows 4",
            "--schedulers cfq",
            "--schedulers none,",
            "--rounds 0",
            "--seconds x",
            "--loop --file f",
            "--file f --loop",
            "--fast",
            "4x1",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let error = parse("--schedulers cfq").unwrap_err().to_string();
        assert!(error.contains("none, mq-deadline, kyber, bfq, mclock"), "{error}");
    }

    #[test]
    fn both_sides_get_the_same_load_and_ours_no_other_setting() {
        let (plan, row) = (Plan::full(), Row { threads: 4, depth: 32 });
        let load = plan.load(row, Direction::Write);
        for word in ["randwrite", "--iodepth=32", "--numjobs=4", "--size=1024m", "--runtime=2000ms"]
        {
            assert!(load.contains(word), "{word}: {load}");
        }
        let fio = plan.fio(row, Direction::Write, "/f").to_string();
        assert_eq!(fio, format!("fio --ioengine=io_uring --thread --filename=/f {load}"));
        let ours = |scheduler| plan.ours(scheduler, row, Direction::Write, "/f").to_string();
        let with = |scheduler| {
            format!("{BLKMQ} bench --scheduler={scheduler} --repeat=1 --device=uring:/f {load}")
        };
        assert_eq!(ours("kyber"), with("kyber"));
        assert_eq!(ours("bfq"), with("bfq:low_latency=0"));
    }

    #[test]
    fn the_title_names_the_place_and_the_loops() {
        let title = |line| parse(line).unwrap().title(Direction::Read);
        assert!(title("").starts_with("4 KiB randread on a file, beside fio's io_uring engine"));
        assert!(
            title("--loop --busy").contains("on a loop device over tmpfs, with two busy loops")
        );
        assert!(title("--file /f --rounds 3").contains("on /f, beside fio"));
        assert!(title("").ends_with("medians of 7 rounds, runs of 2 s"));
    }
}
