//! Runs many scenarios on all cores, or a given one: the program of `cargo xtask soak`.
//!
//! ```text
//! soak [--first SEED] [--seeds N]      seeds from SEED on; prints what they reached
//!      [--begin NS]                    with clocks that begin there, and not where each seed has it
//! soak --canary [--seeds N]            plants each bug, and looks for it in so many seeds
//! soak --replay 'seed=7 cpus=2 ...'    one run, as a failure was printed
//! ```
//!
//! A failure is shrunk and printed on standard error. Each run depends on its seed alone, so threads only divide the
//! runs, and the output does not depend on the division.

use blkmq_core::Instant;
use blkmq_lab::soak::{Failure, Replay, Shrunk, Tally, run, shrink, soak};
use blkmq_lab::{Bug, Scenario};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{panic, thread};

/// Failures that are shrunk and shown.
const SHOWN: usize = 3;
/// The most runs for shrinking one failure: some seconds.
const RUNS: u32 = 3000;

struct Args {
    first: u64,
    seeds: u64,
    canary: bool,
    replay: Option<String>,
    begin: Option<Instant>,
}

impl Args {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut args = Self { first: 1, seeds: 1000, canary: false, replay: None, begin: None };
        while let Some(word) = words.next() {
            if word == "--canary" {
                args.canary = true;
                continue;
            }
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            let number = || value.parse().map_err(|_| format!("{word} {value}: that is no number"));
            match word.as_str() {
                "--first" => args.first = number()?,
                "--seeds" => args.seeds = number()?,
                "--replay" => args.replay = Some(value),
                "--begin" => args.begin = Some(Instant::from_nanos(number()?)),
                _ => {
                    return Err(format!(
                        "no {word}; there are --first, --seeds, --begin, --canary, --replay"
                    ));
                }
            }
        }
        Ok(args)
    }
}

fn main() -> ExitCode {
    // A panic is a finding, and is reported with the events that led to it.
    panic::set_hook(Box::new(|_| {}));
    let done = Args::parse(std::env::args().skip(1)).and_then(|args| match &args.replay {
        Some(line) => replay(line),
        None if args.canary => canary(args.seeds),
        None => seeds(&args),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn replay(line: &str) -> Result<(), String> {
    let replay: Replay = line.parse().map_err(|why| format!("{why}"))?;
    let outcome = run(&replay).map_err(|failure| failure.to_string())?;
    println!("nothing is broken: {outcome:#?}");
    Ok(())
}

/// Runs seeds on all cores.
fn seeds(args: &Args) -> Result<(), String> {
    let (next, end) = (AtomicU64::new(args.first), args.first.saturating_add(args.seeds));
    let all = Mutex::new((Tally::default(), Vec::new()));
    let work = || {
        let (mut tally, mut failures) = (Tally::default(), Vec::new());
        while let Some(seed) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed < end)
        {
            let mut scenario = Scenario::draw(seed);
            scenario.begin = args.begin.unwrap_or(scenario.begin);
            match run(&Replay { scenario, bug: None }) {
                Ok(outcome) => tally.count(&outcome),
                Err(failure) => failures.push(failure),
            }
        }
        let mut all = all.lock().expect("nobody panics while adding up");
        all.0 += &tally;
        all.1.append(&mut failures);
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        (0..threads).for_each(|_| _ = scope.spawn(work));
    });
    let (tally, mut failures) = all.into_inner().expect("nobody panics while adding up");
    println!("{tally}");
    if failures.is_empty() {
        return Ok(());
    }
    failures.sort_by_key(|failure| failure.replay.scenario.seed);
    let count = failures.len();
    let shown: Vec<String> = failures.into_iter().take(SHOWN).map(show).collect();
    Err(format!("{count} of {} seeds fail:{}", args.seeds, shown.concat()))
}

/// A failure as it was found, and its shrunk form.
fn show(failure: Box<Failure>) -> String {
    let seed = failure.replay.scenario.seed;
    let found = format!("\n\nseed {seed}: {failure}");
    let Shrunk { failure, runs } = shrink(failure, RUNS);
    format!("{found}\nafter {runs} runs this is left: {failure}")
}

/// Looks for each planted bug.
fn canary(seeds: u64) -> Result<(), String> {
    for bug in Bug::ALL {
        let found = (1..=seeds).find_map(|seed| Some((seed, soak(seed, Some(bug)).err()?)));
        let (seed, failure) =
            found.ok_or_else(|| format!("{bug:?} is not found in {seeds} seeds"))?;
        let Shrunk { failure, runs } = shrink(failure, RUNS);
        println!("{bug:?} is found by seed {seed}; after {runs} runs this is left: {failure}");
    }
    Ok(())
}
