//! `blkmq bench` and `blkmq sim` without arguments: the purpose of schedulers, and their cost.
//!
//! [`scene`] has the workloads, all in virtual time, and [`text`] shows their results, each with a sentence about the
//! visible effect, generated from the figures. The cost, in real time, is the default matrix of `blkmq bench`.

mod scene;
mod text;

use crate::args::{self, Request};
use crate::bench;
use crate::error::Failure;
use crate::plan::{Plan, Time};
use crate::report::model::{Partial, Report};
use crate::report::table;
use blkmq_terminal::interrupt::Stop;
use blkmq_terminal::output::print_results;
use blkmq_terminal::paper::{Paper, paragraph};
use blkmq_terminal::screen::{shown, width};
use scene::{SCENES, Scene};
use text::Detail;

/// Shows the scenes, which take a moment, and then the cost of `plan`, if it is in real time.
///
/// # Errors
/// If a run is impossible, standard output cannot be written, or a signal ended the runs.
pub fn run(plan: &Plan) -> Result<(), Failure> {
    let stop = Stop::on_signals();
    let detail = match plan.time {
        Time::Real => Detail::Brief,
        Time::Virtual { .. } => Detail::Full,
    };
    print_with(|out| paragraph(out, "", text::behaviour(detail)))?;
    for scene in &SCENES {
        let report = bench::report(&plan_of(scene)?, &stop)?;
        print_with(|out| text::scene(out, scene, &report, detail))?;
        ended(&report)?;
    }
    if plan.time == Time::Real {
        print_with(|out| paragraph(out, "", text::COST))?;
        let report = bench::report(plan, &stop)?;
        print_results(&shown(&format!("\n{}", table::render(&report, width()))))?;
        ended(&report)?;
    }
    print_with(|out| paragraph(out, "", text::further(detail)))
}

/// The plan of a scene.
fn plan_of(scene: &Scene) -> Result<Plan, Failure> {
    match args::parse(&scene.words(), Time::Virtual { seed: 0 })? {
        Request::Plan(plan) => Ok(*plan),
        Request::Help | Request::Command(_) => unreachable!("a scene is a plan"),
    }
}

/// An error if a signal ended the runs of the report.
fn ended(report: &Report) -> Result<(), Failure> {
    match report.partial {
        Some(Partial { done, planned, signal: Some(signal) }) => {
            Err(Failure::Interrupted(signal, format!("{done} of {planned} runs are whole")))
        }
        _ => Ok(()),
    }
}

fn print_with(write: impl FnOnce(&mut Paper)) -> Result<(), Failure> {
    let mut paper = Paper::new(width());
    paper.push('\n');
    write(&mut paper);
    Ok(print_results(&shown(&paper.finish()))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::findings;

    /// The text of a scene as the README has it.
    fn brief(scene: &Scene, report: &Report) -> String {
        let mut paper = Paper::new(80);
        text::scene(&mut paper, scene, report, Detail::Brief);
        paper.finish()
    }

    /// Every scene shows a difference between schedulers, or says that there is none; in virtual time this is
    /// reproducible.
    #[test]
    fn every_scene_runs_and_says_what_to_see() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
        let (readme, mut shown) = (std::fs::read_to_string(path).expect("it is there"), 0);
        for scene in &SCENES {
            let plan = plan_of(scene).expect("a scene is a command line");
            assert_eq!(plan.schedulers.len(), blkmq_sched::registry::ALL.len());
            let report = bench::report(&plan, &Stop::default()).expect("it can be run");
            let brief = brief(scene, &report);
            shown += usize::from(readme.contains(&brief));
            let is_stale = readme.contains(scene.title) && !readme.contains(&brief);
            assert!(!is_stale, "the README is to contain\n\n{brief}");
            assert!(report.partial.is_none() && findings::findings(&report).len() < 5);
            for (detail, width) in [(Detail::Brief, 60), (Detail::Full, 200)] {
                let mut paper = Paper::new(width);
                text::scene(&mut paper, scene, &report, detail);
                let text = paper.finish();
                assert!(text.lines().all(|line| line.len() <= width), "{text}");
                for choice in &plan.schedulers {
                    assert!(text.contains(&choice.text), "{text}");
                }
                assert!(text.contains("See: ") && !text.contains("NaN"), "{text}");
            }
        }
        assert!(shown > 1, "a reader of the README sees scenes");
    }

    #[test]
    fn after_ctrl_c_no_scene_goes_on() {
        let plan = plan_of(&SCENES[0]).expect("a scene is a command line");
        let report = bench::report(&plan, &Stop::after_ctrl_c()).expect("it ends");
        assert!(matches!(ended(&report), Err(Failure::Interrupted(2, _))), "{:?}", report.partial);
    }
}
