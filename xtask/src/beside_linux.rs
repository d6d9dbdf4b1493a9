//! `beside-linux`: our schedulers compared with those of Linux, on the same device.
//!
//! A model of a device is served in real time as a block device. On one side, Linux' scheduler runs on it, with fio as
//! the client; on the other, Linux passes everything through (`none`, no merging), and our scheduler runs above the
//! same device, with `blkmq bench` as the client. Loads, offsets, priorities, groups, scheduler tags and driver tags
//! are the same. Sides alternate, and a run in which the machine stalled is dropped: a thread sleeps for a millisecond
//! at a time and records how late it wakes, with no special priority, like the workers of a loop device.
//!
//! No figure is an error, since machines differ. `.ci/run` runs it in test size.

mod figures;
mod load;
mod report;
mod stack;

use crate::Result;
use crate::measurement::Machine;
use crate::shell::{BLKMQ, build, root, timed};
use figures::{Cell, Figures};
use load::{DEVICES, Device, LOADS, Load, Side, Time};
use report::Report;
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
        figures::read(&text, plan.stall.into(), &mut figures);
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
            println!("{device} {load} {scheduler} {}: {}", side.name(), figures::OVERTIME);
            *figures.overtime.entry((cell.clone(), side)).or_default() += 1;
            return Ok(());
        };
        let shown: Vec<String> = (sample.0.iter())
            .map(|(name, value)| format!("{} {}", name.text, report::digits(*value)))
            .collect();
        let late = format!("{}{:.1} ms, {:.0} in all", figures::LATE, lateness.worst, lateness.sum);
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
