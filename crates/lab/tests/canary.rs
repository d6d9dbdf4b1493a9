//! The soak can fail: each planted bug is found, and its shrunk failure is small and repeatable.

use blkmq_lab::soak::{Cause, Replay, Shrunk, run, shrink, soak};
use blkmq_lab::{Bug, Scenario, Violation};

/// The number of seeds within which each bug must be found.
const SEEDS: u64 = 1000;
/// The most runs for shrinking.
const RUNS: u32 = 2000;

fn found(bug: Bug) -> Shrunk {
    let failure = (1..=SEEDS).find_map(|seed| soak(seed, Some(bug)).err());
    let failure = failure.unwrap_or_else(|| panic!("{bug:?} is not noticed in {SEEDS} seeds"));
    println!("{bug:?} is noticed by seed {}: {}", failure.replay.scenario.seed, failure.cause);
    shrink(failure, RUNS)
}

#[test]
fn every_planted_bug_is_found_and_shrunk() {
    for bug in Bug::ALL {
        let Shrunk { failure, runs } = found(bug);
        println!("  in {runs} runs: {failure}");
        let Scenario { cpus, ios, .. } = failure.replay.scenario;
        assert!(cpus <= 4 && u32::from(cpus) * ios <= 50, "that is not small: {failure}");
        let line = failure.replay.to_string();
        assert!(line.split(' ').count() <= 16, "that is not simple: {line}");
        let again: Replay = line.parse().unwrap_or_else(|why| panic!("{line}: {why}"));
        let again = run(&again).expect_err("it fails again");
        assert_eq!(again.cause, failure.cause, "{line}");
        let without = Replay { bug: None, ..failure.replay.clone() };
        assert!(run(&without).is_ok(), "it is the bug that is found: {line}");
    }
}

/// If each pick takes a token, the engine would refuse one more pick within it, and the wrong order would never be
/// seen.
#[test]
fn swapped_picks_are_found_where_picks_take_tokens() {
    let line = "ios=200 scheduler=stingy nomerges=2 batch=7 bug=SwappedPicks";
    let replay: Replay = line.parse().expect("it is right");
    let failure = run(&replay).expect_err("a bug is planted");
    let is_order = matches!(failure.cause, Cause::Violation(Violation::OutOfOrder { .. }));
    assert!(is_order, "{failure}");
}

#[test]
fn shrinking_ends_when_it_is_told_to() {
    let failure = soak(1, None)
        .err()
        .or_else(|| (1..).find_map(|seed| soak(seed, Some(Bug::PickedTwice)).err()));
    let failure = failure.expect("some seed finds it");
    let Shrunk { failure: same, runs } = shrink(failure.clone(), 0);
    assert_eq!((runs, same.replay.to_string()), (0, failure.replay.to_string()));
    assert!(shrink(failure, 7).runs <= 7);
}
