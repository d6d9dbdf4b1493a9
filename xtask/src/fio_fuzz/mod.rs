//! `fio-fuzz`: draws job files, runs them with the installed fio and with `blkmq bench`, and compares the outcomes.
//!
//! `draw.rs` draws a file from a seed, `run.rs` runs it, `compare.rs` and `arithmetic.rs` find differences, and
//! `reasons.rs` has the known ones. A file that shows a new one is shrunk: the options that the difference does not
//! need are removed.

mod arithmetic;
mod compare;
mod draw;
mod reasons;
mod run;

use crate::Result;
use crate::shell::{BLKMQ, Cmd, build_program, target_dir};
use compare::{Difference, compare};
use draw::{JobFile, NEEDED};
use reasons::{REASONS, reason};
use run::{Both, FAULTS, Fault, Programs, Running};
use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) const HELP: &str = "usage: cargo xtask fio-fuzz [OPTION]...

  --seed S       the seed of the first job file (1); the next one has the seed after it
  --jobs N       try so many job files (500)
  --whole        leave a job file that shows a difference as it was drawn
  --canary       plant faults in place of that, and see that each is found
  --keep DIR     leave each shrunk file there, with the differences and what both programs said
  --blkmq PATH   run this program instead of building one
  --help         this";

/// Job files that run at a time: a run of fio waits most of the time.
const AT_ONCE: usize = 4;
/// Job files between two lines of progress: half a minute.
const STEP: u64 = 250;
/// After this many job files with differences, more of them give no information.
const ENOUGH: usize = 60;

/// The chosen work.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Options {
    seed: u64,
    jobs: u64,
    is_whole: bool,
    is_canary: bool,
    keep: Option<PathBuf>,
    blkmq: Option<String>,
}

impl Options {
    fn of_help() -> Self {
        Self { seed: 1, jobs: 500, is_whole: false, is_canary: false, keep: None, blkmq: None }
    }

    /// Returns `None` if the help is requested.
    fn parse(args: &[String]) -> Result<Option<Self>> {
        let mut options = Self::of_help();
        let mut args = args.iter();
        while let Some(word) = args.next() {
            if word == "--help" {
                return Ok(None);
            }
            match word.as_str() {
                "--whole" => options.is_whole = true,
                "--canary" => options.is_canary = true,
                _ => {}
            }
            if ["--whole", "--canary"].contains(&word.as_str()) {
                continue;
            }
            let value = args.next().ok_or_else(|| format!("{word} needs a value\n{HELP}"))?;
            let number =
                || value.parse::<u64>().map_err(|_| format!("{value} is no number\n{HELP}"));
            match word.as_str() {
                "--seed" => options.seed = number()?,
                "--jobs" => options.jobs = number()?,
                "--keep" => options.keep = Some(value.into()),
                "--blkmq" => options.blkmq = Some(value.clone()),
                other => return Err(format!("fio-fuzz does not know {other}\n{HELP}").into()),
            }
        }
        if options.jobs == 0 { Err("0 job files show nothing".into()) } else { Ok(Some(options)) }
    }
}

/// `cargo xtask fio-fuzz`, see [`HELP`].
///
/// # Errors
/// If fio and blkmq differ without a reason, or the words are not understood.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let Some(options) = Options::parse(args)? else {
        println!("{HELP}");
        return Ok(());
    };
    run(&options)
}

/// The version of fio whose faults `reasons.rs` has.
const VERSION: &str = "fio-3.33";

/// The part for CI's soak: the planted faults, and 500 job files. Without the fio of [`VERSION`] both are skipped.
///
/// # Errors
/// As [`main`].
pub(crate) fn soak() -> Result<()> {
    let options = Options::of_help();
    let found = Cmd::new("fio --version").output().unwrap_or_default();
    if found.trim() != VERSION {
        let (jobs, faults) = (options.jobs, FAULTS.len());
        println!("fio-fuzz: SKIPPED {jobs} job files and {faults} planted faults: no {VERSION}");
        return Ok(());
    }
    run(&Options { is_canary: true, ..options.clone() })?;
    run(&options)
}

fn run(options: &Options) -> Result<()> {
    let blkmq = match &options.blkmq {
        Some(path) => fs::canonicalize(path)?.to_string_lossy().into_owned(),
        None => {
            build_program()?;
            BLKMQ.to_owned()
        }
    };
    let folder = target_dir().join(format!("fio-fuzz-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let programs = Programs { blkmq, folder: folder.clone() };
    let result =
        if options.is_canary { canary(options, &programs) } else { seeds(options, &programs) };
    // The leftover files belong to this run only.
    let _ = fs::remove_dir_all(&folder);
    result
}

/// Each planted fault must be found in one of the first job files, which show no difference without it.
fn canary(options: &Options, programs: &Programs) -> Result<()> {
    let help = Cmd::new("").arg(&programs.blkmq).arg("bench").arg("--help").output()?;
    let forgotten = draw::forgotten(&help);
    if !forgotten.is_empty() {
        let text = format!("options that are neither drawn nor left out: {}", forgotten.join(", "));
        return Err(text.into());
    }
    for fault in FAULTS {
        let mut seeds = (0..options.jobs).map(|at| options.seed.wrapping_add(at));
        let found = seeds.find_map(|seed| match finds(programs, seed, fault) {
            Ok(false) => None,
            found => Some(found.map(|_| seed)),
        });
        let seed = found.ok_or_else(|| format!("{fault:?} is not found"))??;
        println!("fio-fuzz: {fault:?} is found by seed {seed}");
    }
    Ok(())
}

fn finds(programs: &Programs, seed: u64, fault: Fault) -> Result<bool> {
    let file = JobFile::draw(seed);
    let mut tally = Tally { explained: vec![0; REASONS.len()], ..Tally::default() };
    let mut count = |ours: &JobFile, fault: Option<Fault>| -> Result<usize> {
        let mut both = programs.start("canary", &file, ours)?.finish()?;
        if let Some(fault) = fault {
            fault.in_outcome(&file, &mut both);
        }
        let found = judge(&file, &both, &mut tally);
        Ok(found.iter().filter(|it| it.kind != compare::Kind::Options).count())
    };
    Ok(count(&fault.in_file(&file), Some(fault))? > 0 && count(&file, None)? == 0)
}

/// Counts of job files.
#[derive(Default)]
struct Tally {
    accepted: u64,
    refused: u64,
    explained: Vec<u64>,
    differ: usize,
}

fn seeds(options: &Options, programs: &Programs) -> Result<()> {
    let mut tally = Tally { explained: vec![0; REASONS.len()], ..Tally::default() };
    let mut waiting = (0..options.jobs).map(|at| options.seed.wrapping_add(at));
    let mut running: VecDeque<(u64, JobFile, Running)> = VecDeque::new();
    let mut done: u64 = 0;
    loop {
        while running.len() < AT_ONCE && tally.differ < ENOUGH {
            let Some(seed) = waiting.next() else { break };
            let file = JobFile::draw(seed);
            let run = programs.start(&seed.to_string(), &file, &file)?;
            running.push_back((seed, file, run));
        }
        let Some((seed, file, run)) = running.pop_front() else { break };
        let both = run.finish()?;
        let found = judge(&file, &both, &mut tally);
        if !found.is_empty() {
            tally.differ += 1;
            tell(options, programs, seed, &file, &found)?;
        }
        done += 1;
        if done.is_multiple_of(STEP) {
            println!("fio-fuzz: {done} of {} job files, {} differ", options.jobs, tally.differ);
        }
    }
    println!(
        "fio-fuzz: {} job files accepted by both, {} refused by both",
        tally.accepted, tally.refused
    );
    for (reason, files) in REASONS.iter().zip(&tally.explained) {
        println!("  {files:>5} differ: {}", reason.text);
    }
    if tally.differ > 0 {
        Err(format!("{} job files differ without a reason", tally.differ).into())
    } else {
        Ok(())
    }
}

/// The differences without a reason.
fn judge(file: &JobFile, both: &Both, tally: &mut Tally) -> Vec<Difference> {
    match [both.fio.code, both.ours.code] {
        [Some(0), Some(0)] => tally.accepted += 1,
        [Some(0), _] | [_, Some(0)] => {}
        _ => tally.refused += 1,
    }
    let mut is_explained = vec![false; REASONS.len()];
    let mut found = compare(file, both);
    found.retain(|difference| match reason(file, both, difference) {
        Some(at) => {
            is_explained[at] = true;
            false
        }
        None => true,
    });
    tally.explained.iter_mut().zip(is_explained).for_each(|(files, is)| *files += u64::from(is));
    found
}

/// Shrinks `file`, and prints the smaller file with its differences.
fn tell(
    options: &Options,
    programs: &Programs,
    seed: u64,
    file: &JobFile,
    found: &[Difference],
) -> Result<()> {
    let run = |file: &JobFile| -> Result<(Both, Vec<Difference>)> {
        let both = programs.start("shrunk", file, file)?.finish()?;
        let mut tally = Tally { explained: vec![0; REASONS.len()], ..Tally::default() };
        let found = judge(file, &both, &mut tally);
        Ok((both, found))
    };
    let kind = found[0].kind;
    if options.is_whole {
        let lines = Vec::from_iter(found.iter().map(ToString::to_string));
        println!("\nseed {seed}\n{file}\n{}", lines.join("\n"));
        return Ok(());
    }
    let least = shrink(file, |smaller| Ok(run(smaller)?.1.iter().any(|it| it.kind == kind)))?;
    let (both, left) = run(&least)?;
    // A difference that cannot be reproduced is reported as it was found.
    let lines =
        Vec::from_iter(if left.is_empty() { found } else { &left }.iter().map(ToString::to_string));
    let mut text = format!("seed {seed}\n{least}\n{}\n", lines.join("\n"));
    println!("\n{text}");
    if let Some(folder) = &options.keep {
        for (name, outcome) in [("fio", &both.fio), ("blkmq", &both.ours)] {
            text += &format!(
                "\n== {name}: exit {:?}\n{}\n{:#}\n{:#?}\n",
                outcome.code, outcome.said, outcome.report, outcome.places
            );
        }
        keep(folder, seed, &text)?;
    }
    Ok(())
}

fn keep(folder: &Path, seed: u64, text: &str) -> Result<()> {
    fs::create_dir_all(folder)?;
    Ok(fs::write(folder.join(format!("{seed}.txt")), text)?)
}

/// The smallest file that still `fails`, found by removing jobs and options one at a time.
///
/// # Errors
/// Those of `fails`.
fn shrink(file: &JobFile, mut fails: impl FnMut(&JobFile) -> Result<bool>) -> Result<JobFile> {
    let mut least = file.clone();
    'again: loop {
        for smaller in smaller(&least) {
            if fails(&smaller)? {
                least = smaller;
                continue 'again;
            }
        }
        return Ok(least);
    }
}

/// The files with one job less, then those with one option less.
fn smaller(file: &JobFile) -> Vec<JobFile> {
    let mut all = Vec::new();
    let without = |change: &dyn Fn(&mut JobFile)| {
        let mut smaller = file.clone();
        change(&mut smaller);
        smaller
    };
    for at in 0..file.jobs.len() {
        if file.jobs.len() > 1 {
            all.push(without(&|file| drop(file.jobs.remove(at))));
        }
    }
    if file.laid.is_some() {
        all.push(without(&|file| file.laid = None));
    }
    for at in 0..file.global.len() {
        if !NEEDED.contains(&file.global[at].name) {
            all.push(without(&|file| drop(file.global.remove(at))));
        }
    }
    for job in 0..file.jobs.len() {
        for at in 0..file.jobs[job].settings.len() {
            all.push(without(&|file| drop(file.jobs[job].settings.remove(at))));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<Options>> {
        Options::parse(&Vec::from_iter(line.split_whitespace().map(str::to_owned)))
    }

    #[test]
    fn options_are_understood_or_explained() {
        assert_eq!(parse("").unwrap(), Some(Options::of_help()));
        let line = "--seed 7 --jobs 2000 --whole --keep /k --blkmq target/debug/blkmq";
        let all = Options {
            seed: 7,
            jobs: 2_000,
            is_whole: true,
            is_canary: false,
            keep: Some("/k".into()),
            blkmq: Some("target/debug/blkmq".to_owned()),
        };
        assert_eq!(parse(line).unwrap(), Some(all));
        assert!(parse("--canary").unwrap().is_some_and(|it| it.is_canary));
        assert_eq!(parse("--help").unwrap(), None);
        for line in ["--seed", "--seed many", "--jobs 0", "--faster 2"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn only_what_a_failure_needs_is_left() {
        let file = (1..).map(JobFile::draw).find(|file| {
            let has = |name| {
                file.jobs.last().is_some_and(|job| job.settings.iter().any(|it| it.name == name))
            };
            file.jobs.len() == 3 && has("rw") && has("bs") && file.len() > 15
        });
        let file = file.expect("some seed has three jobs");
        let fails = |file: &JobFile| {
            let job = file.jobs.iter().find(|job| job.name == "third");
            Ok(job.is_some_and(|job| job.settings.iter().any(|it| it.name == "bs")))
        };
        let least = shrink(&file, fails).unwrap();
        assert_eq!(least.jobs.len(), 1);
        assert!(least.jobs[0].settings.iter().all(|it| it.name == "bs"), "{least}");
        assert!(least.global.iter().all(|it| NEEDED.contains(&it.name)), "{least}");
        assert_eq!(least.laid, None);
    }

    #[test]
    fn a_failure_that_needs_everything_keeps_everything() {
        let file = JobFile::draw(7);
        let whole = file.to_string();
        assert_eq!(shrink(&file, |smaller| Ok(smaller.to_string() == whole)).unwrap(), file);
    }
}
