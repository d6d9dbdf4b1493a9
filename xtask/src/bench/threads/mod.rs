//! `bench --threads`: many threads on one file, compared with fio's io_uring engine with as many threads.
//!
//! A row is a number of threads and a depth. A round of a row is a run of fio and then one of `blkmq bench` with each
//! scheduler; the ratio of a scheduler is that to fio in the same round. The table has the medians over the rounds and
//! marks those that miss their bounds. Nothing is recorded, and slow results do not fail: the figures are only
//! meaningful on an otherwise idle machine.

mod beside;
pub(super) mod layers;
mod plan;
mod sample;
mod table;

use crate::Result;
use crate::machine::Machine;
use crate::shell::{Cmd, is_installed, parse_json};
use beside::Beside;
pub(super) use plan::Plan;
use plan::{Direction, Row};
use sample::Sample;
use table::{Bounds, Line, Round, Within};

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
            println!("{}", table::table(&measured, HEADS, &mut Within::default()));
            lines.extend(measured);
        }
        let table = table::table(&lines, HEADS, &mut within);
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
