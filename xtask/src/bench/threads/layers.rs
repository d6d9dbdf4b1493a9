//! `bench --layers`: a stripe of two files, compared with the two files themselves with a program for each.
//!
//! Both sides have two threads, each with as many I/Os in flight, in its own half of the bytes. The two programs run at the same
//! time, and their rates add up. The scheduler is `none`, and every other setting has its default. A round is a run of each side,
//! and the table has the medians of the ratios. No figure is written down, and a slow run does not fail.

use super::beside::Beside;
use super::plan::{Plan, Row, words};
use super::sample::Sample;
use super::table::{Bounds, Line, Round, Within, table};
use crate::Result;
use crate::machine::Machine;
use crate::rounds::number;
use crate::shell::{Cmd, parse_json, root};
use std::fs::{self, File};
use std::path::{Path, absolute};

/// The loads, in fio's spelling.
const LOADS: [&str; 3] = ["randread --bs=4k", "randwrite --bs=4k", "read --bs=128k"];

/// The heads of the columns that differ from those of [`super::main`].
const HEADS: [&str; 3] = ["load", "the stripe", "the files"];

/// Measures all loads and prints a table.
///
/// # Errors
/// If the files cannot be made, or a command does not run or reports no I/O.
pub(in super::super) fn main(plan: &Plan) -> Result<()> {
    let machine = Machine::describe();
    let beside = Beside::new(plan)?;
    let files = [beside.path().to_owned(), format!("{}.second", beside.path())];
    plan.fill(Path::new(&files[1])).output()?;
    let mut lines = Vec::new();
    for row in &plan.rows {
        for load in LOADS {
            lines.push(measure(plan, *row, load, &files)?);
        }
    }
    let mut within = Within::default();
    println!("\n{}\n{within}\n", table(&lines, HEADS, &mut within));
    println!("{}", super::about(&machine));
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
pub(in super::super) fn parse(args: &[String]) -> Result<Plan> {
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
fn measure(plan: &Plan, row: Row, load: &'static str, files: &[String; 2]) -> Result<Line> {
    let bounds = Bounds::of_a_layer();
    let mut line = Line { row, what: load, bounds, rounds: Vec::new() };
    for round in 1..=plan.rounds {
        let [one, other] = files.each_ref().map(|file| apart(plan, row, load, file));
        let log = format!("{}.log", files[1]);
        let mut started =
            other.start_in(&root(), File::create(&log)?, File::create("/dev/null")?)?;
        let beside = run(&one)?;
        started.wait()?;
        let beside = beside.and(read(&other, &fs::read_to_string(&log)?)?);
        let ours = run(&stripe(plan, row, load, files))?;
        let (sum, ratio) = (beside.rate / 1e3, ours.rate / beside.rate);
        println!(
            "{load} {row}, round {round} of {}: {sum:.1} k IOPS of two files, stripe {ratio:.2}",
            plan.rounds
        );
        line.rounds.push(Round { ours, beside });
    }
    Ok(line)
}

fn run(cmd: &Cmd) -> Result<Sample> {
    read(cmd, &cmd.output()?)
}

fn read(cmd: &Cmd, report: &str) -> Result<Sample> {
    let sample = parse_json(report).and_then(|it| Sample::read(&it));
    sample.map_err(|error| format!("{cmd}: {error}").into())
}

/// A thread on a file.
fn apart(plan: &Plan, row: Row, load: &str, file: &str) -> Cmd {
    command(plan, 1, row, load).arg(format!("--device=uring:{file}"))
}

/// A thread for each file, on the stripe.
fn stripe(plan: &Plan, row: Row, load: &str, [one, other]: &[String; 2]) -> Cmd {
    let device = format!("--device=stripe:[uring:{one}][uring:{other}]");
    command(plan, row.threads, row, load).arg(device)
}

fn command(plan: &Plan, threads: u32, Row { depth, .. }: Row, load: &str) -> Cmd {
    let Plan { size, milliseconds, .. } = plan;
    let line = format!(
        "--name=layers --rw={load} --iodepth={depth} --numjobs={threads} --size={size}m --offset_increment={size}m \
         --norandommap --time_based --runtime={milliseconds}ms --lat_percentiles=1 --group_reporting --output-format=json --repeat=1"
    );
    words(plan.bench("--scheduler=none"), &line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(line: &str) -> Result<Plan> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_read_and_refused() {
        let given = plan("--rounds 3 --seconds 5 --blkmq /b").unwrap();
        assert_eq!((given.rounds, given.milliseconds, given.builds()), (3, 5_000, false));
        let all = plan("").unwrap();
        assert_eq!((all.rounds, all.builds()), (7, true));
        for bad in ["--rounds", "--rounds 0", "--rows 1x1", "--file f", "3"] {
            assert!(plan(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn both_sides_have_the_same_load_threads_and_bytes() {
        let plan = plan("").unwrap();
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
}
