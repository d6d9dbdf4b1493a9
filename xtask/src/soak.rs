//! `soak`: many seeds with the laboratory's oracles, in virtual time, then races against timeouts and real threads, and
//! the tests that `cargo test` skips because they take long. Finally the watchdog checks that no I/O waits while
//! threads sleep.
//!
//! Every parameter of a run is drawn from its seed. The example `soak` of the lab crate runs the seeds, on all cores,
//! some thousand at a time; in between, this program prints the progress and checks the time. A failure is printed
//! with the line that repeats it.

use crate::shell::{Cmd, build_program, target_dir, timed};
use crate::{Result, fio_fuzz, suite, watchdog};
use std::time::Duration;

/// The default number of seeds: less than a minute.
const SEEDS: u64 = 50_000;
/// Seeds between two checks of the time.
const AT_ONCE: u64 = 5_000;
/// The number of seeds in which each planted bug is searched for.
const CANARY: u64 = 1_000;

/// Simulations that `cargo test` skips because they take a minute: all ignored ones, so that none is forgotten.
const LONG: &str = "-p blkmq-lab -p blkmq-sched --test all --";
/// Scenarios that `cargo test` skips for the same reason, with the optimised program.
const SCENARIOS: &str = "-p blkmq-cli --test all -- schedulers::";
/// Documented commands that `cargo test` skips for the same reason; some measure.
const DOCUMENTED: &str = "-p blkmq-cli --test all -- documented::";
/// Minutes of CI's time that must be left for a test that takes long, so that CI ends within the hour.
const LONG_MINUTES: u64 = 30;
/// I/Os of each combination of modes and devices that real threads stress: three minutes.
const STRESS_IOS: &str = "20000";
/// Seeds of the grids of promises: ten minutes.
const PROMISE_SEEDS: &str = "3";
/// Seeds of lists against single ranges for each device, and of drawn stacks of layers: a quarter of an hour.
const LIST_SEEDS: &str = "10000";
/// Kills of a server with a virtual disk: half a minute.
const KILLS: &str = "200";
/// Minutes in which real threads on a file are watched.
const WATCHDOG_MINUTES: &str = "60";
/// Seeds of the interleavings of completions and timeouts: half a minute.
const RACES: u64 = 300_000;

pub(crate) const HELP: &str = "usage: cargo xtask soak [OPTION]... [SEEDS]

  --seeds N        run so many seeds (50000)
  --minutes M      run seeds for so long instead
  --first SEED     begin with this one (1)
  --begin NS       let all clocks begin there (each seed has its own: 0, or a second before 2^54 or 2^62)
  --canary         plant each bug that can be planted, and see that it is found and shrunk
  --replay LINE    run the scenario that a failure printed, 'seed=7 cpus=2 ...'
  --help           this";

/// The chosen work.
#[derive(Debug, PartialEq, Eq)]
enum Job {
    Help,
    Canary,
    Replay(String),
    Seeds { first: u64, until: Until, begin: Option<u64> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    Seeds(u64),
    Minutes(u64),
}

/// `cargo xtask soak`, see [`HELP`].
///
/// # Errors
/// If a seed fails, a planted bug is not found, or the words are not understood.
pub(crate) fn main(args: &[String]) -> Result<()> {
    match parse(args)? {
        Job::Help => {
            println!("{HELP}");
            Ok(())
        }
        Job::Canary => lab().arg("--canary").arg("--seeds").arg(CANARY.to_string()).run(),
        Job::Replay(line) => lab().arg("--replay").arg(line).run(),
        Job::Seeds { first, until, begin } => {
            seeds(first, until, begin)?;
            let races =
                Cmd::new("cargo test -p blkmq-engine --test all -- timeouts::s16_19_whatever");
            races.arg("--nocapture").env("BLKMQ_RACE_SEEDS", RACES.to_string()).run_tests()?;
            let stress = Cmd::new("cargo test -p blkmq-device --test all -- stress::");
            stress.env("BLKMQ_STRESS_IOS", STRESS_IOS).run_tests()?;
            let lists = Cmd::new("cargo test --release -p blkmq --test all -- one_range_and_many");
            lists.env("BLKMQ_LIST_SEEDS", LIST_SEEDS).run_tests()?;
            let stacks = Cmd::new("cargo test --release -p blkmq-layer --test contents");
            stacks.env("BLKMQ_STACKS", LIST_SEEDS).run_tests()?;
            let kills = Cmd::new("cargo test -p blkmq-daemon --test all -- serve::a_killed_server");
            kills.env("BLKMQ_KILLS", KILLS).run_tests()?;
            long(PROMISE_SEEDS)?;
            scenarios()?;
            documented()?;
            watchdog::main(&["--minutes".to_owned(), WATCHDOG_MINUTES.to_owned()])
        }
    }
}

/// The soak of CI: the canary, and seeds for a number of minutes. Races and real threads have their own tests.
///
/// # Errors
/// As [`main`].
pub(crate) fn for_minutes(minutes: u64) -> Result<()> {
    main(&["--canary".to_owned()])?;
    seeds(1, Until::Minutes(minutes), None)
}

/// Tests that take long: their name, and the function that runs them.
type Part = (&'static str, fn() -> Result<()>);

/// The tests that take long, as far as CI's time allows: job files compared with fio, scenarios, and simulations with
/// one seed of the grids of promises instead of three. Documented commands are a separate step.
///
/// # Errors
/// As [`main`].
pub(crate) fn in_ci() -> Result<()> {
    let parts: [Part; 3] =
        [("job files beside fio", fio_fuzz::soak), (SCENARIOS, scenarios), (LONG, || long("1"))];
    parts.into_iter().try_for_each(|(tests, run)| suite::within(LONG_MINUTES, tests, run))
}

/// The simulations that `cargo test` skips, with this many seeds of the grids of promises.
fn long(promise_seeds: &str) -> Result<()> {
    ignored(LONG).env("BLKMQ_PROMISE_SEEDS", promise_seeds).run_tests().map(drop)
}

fn scenarios() -> Result<()> {
    of_program(SCENARIOS)
}

/// Carries out the commands of the documents that `cargo test` leaves out.
///
/// # Errors
/// If one fails.
pub(crate) fn documented() -> Result<()> {
    of_program(DOCUMENTED)
}

/// Runs ignored tests with the program as it is measured.
fn of_program(tests: &str) -> Result<()> {
    build_program()?;
    let program = target_dir().join("dist/blkmq");
    ignored(tests).env("BLKMQ_PROGRAM", program.to_string_lossy()).run_tests().map(drop)
}

fn ignored(tests: &str) -> Cmd {
    Cmd::new(&format!("cargo test {tests} --ignored"))
}

fn parse(args: &[String]) -> Result<Job> {
    let (mut first, mut until, mut canary, mut replay) = (1, Until::Seeds(SEEDS), false, None);
    let mut begin = None;
    let mut args = args.iter();
    while let Some(word) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{word} needs a value\n{HELP}"));
        match word.as_str() {
            "--help" => return Ok(Job::Help),
            "--canary" => canary = true,
            "--replay" => replay = Some(value()?.clone()),
            "--first" => first = number(value()?)?,
            "--begin" => begin = Some(number(value()?)?),
            "--seeds" => until = Until::Seeds(number(value()?)?),
            "--minutes" => until = Until::Minutes(number(value()?)?),
            seeds => until = Until::Seeds(number(seeds)?),
        }
    }
    if matches!(until, Until::Seeds(0) | Until::Minutes(0)) {
        return Err("0 seeds show nothing".into());
    }
    Ok(match replay {
        Some(line) => Job::Replay(line),
        None if canary => Job::Canary,
        None => Job::Seeds { first, until, begin },
    })
}

fn number(word: &str) -> Result<u64> {
    word.parse().map_err(|_| format!("{word} is no number\n{HELP}").into())
}

/// The test profile: fast enough, and every assertion of the engine is on.
fn lab() -> Cmd {
    Cmd::new("cargo run --quiet --profile test -p blkmq-lab --example soak --")
}

fn seeds(first: u64, until: Until, begin: Option<u64>) -> Result<()> {
    lab().arg("--seeds").arg("1").output().map_err(|error| format!("nothing to run: {error}"))?;
    let (mut sums, mut time, mut done): (Sums, _, u64) = (Vec::new(), Duration::ZERO, 0);
    loop {
        let at_once = match until {
            Until::Seeds(seeds) => (seeds - done).min(AT_ONCE),
            Until::Minutes(minutes) if time.as_secs() >= minutes * 60 => 0,
            Until::Minutes(_) => AT_ONCE,
        };
        if at_once == 0 {
            break;
        }
        let mut cmd = lab().arg("--first").arg((first + done).to_string());
        if let Some(begin) = begin {
            cmd = cmd.arg("--begin").arg(begin.to_string());
        }
        let (tally, took) = timed(|| cmd.arg("--seeds").arg(at_once.to_string()).output());
        add(&mut sums, &tally?)?;
        time += took;
        done += at_once;
        println!("soak: {}", pace(done, time));
    }
    println!("soak passed: seeds {first} to {}, {}", first + done - 1, pace(done, time));
    let reached = sums.iter().map(|(name, sum)| format!(" {name}={sum}"));
    println!("runs that reached something, of all:{}", reached.collect::<String>());
    Ok(())
}

fn pace(seeds: u64, time: Duration) -> String {
    let seconds = time.as_secs_f64();
    format!("{seeds} seeds in {seconds:.1} s, {:.0} seeds per second", seeds as f64 / seconds)
}

/// Names with numbers, in the order of their first appearance.
type Sums = Vec<(String, u64)>;

/// Adds the pairs of `tally`.
fn add(sums: &mut Sums, tally: &str) -> Result<()> {
    for pair in tally.split_whitespace() {
        let (name, number) = pair.split_once('=').ok_or_else(|| format!("'{pair}' is no pair"))?;
        let number: u64 = number.parse()?;
        match sums.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += number,
            None => sums.push((name.to_owned(), number)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(line: &str) -> Result<Job> {
        parse(&Vec::from_iter(line.split_whitespace().map(str::to_owned)))
    }

    #[test]
    fn what_is_to_be_done_is_understood() {
        let seeds = |first, until| Job::Seeds { first, until, begin: None };
        assert_eq!(job("").unwrap(), seeds(1, Until::Seeds(SEEDS)));
        assert_eq!(job("700").unwrap(), seeds(1, Until::Seeds(700)));
        assert_eq!(job("--seeds 700 --first 9").unwrap(), seeds(9, Until::Seeds(700)));
        assert_eq!(job("--minutes 2").unwrap(), seeds(1, Until::Minutes(2)));
        let late = Job::Seeds { first: 1, until: Until::Seeds(5), begin: Some(1 << 54) };
        assert_eq!(job("5 --begin 18014398509481984").unwrap(), late);
        assert_eq!(job("--canary").unwrap(), Job::Canary);
        assert_eq!(job("--replay seed=7").unwrap(), Job::Replay("seed=7".to_owned()));
        assert_eq!(job("--help").unwrap(), Job::Help);
    }

    #[test]
    fn what_is_not_understood_is_an_error_that_helps() {
        for line in ["--seeds", "--seeds many", "--first -1", "soon", "--faster 2"] {
            assert!(job(line).unwrap_err().to_string().contains("--minutes M"), "{line}");
        }
        assert!(job("0").is_err() && job("--minutes 0").is_err());
    }

    #[test]
    fn tallies_add_up() {
        let mut sums = Sums::new();
        add(&mut sums, "seeds=3 merges=1\n").unwrap();
        add(&mut sums, "seeds=4 merges=2\n").unwrap();
        assert_eq!(sums, [("seeds".to_owned(), 7), ("merges".to_owned(), 3)]);
        assert!(add(&mut sums, "merges").is_err());
    }
}
