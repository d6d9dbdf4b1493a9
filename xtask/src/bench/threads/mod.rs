//! `bench --threads`: many threads on one file, compared with fio's io_uring engine with as many threads; and
//! `bench --layers`: a stripe of two files, compared with the two files themselves with a program for each.
//!
//! A row is a number of threads and a depth. A round of a row is a run of fio and then one of `blkmq bench` with each
//! scheduler; the ratio of a scheduler is that to fio in the same round. The table has the medians over the rounds and
//! marks those that miss their bounds. Nothing is recorded, and slow results do not fail: the figures are only
//! meaningful on an otherwise idle machine.
//!
//! Both sides of `--layers` have two threads, each with as many I/Os in flight, in its own half of the bytes. The two
//! programs run at the same time, and their rates add up. The scheduler is `none`, and every other setting has its
//! default.

mod plan;
mod table;

use crate::Result;
use crate::measurement::{Machine, number};
use crate::shell::{Cmd, Guard, is_installed, parse_json, root, target_dir};
pub(super) use plan::Plan;
use plan::{Direction, Place, Row, words};
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
}
