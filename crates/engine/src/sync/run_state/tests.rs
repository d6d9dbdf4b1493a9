use super::*;
use blkmq_core::Nanos;

const NOW: Instant = Instant::from_nanos(1_000);
const SOON: Instant = Instant::from_nanos(2_000);
const LATE: Instant = Instant::from_nanos(1_000_001_000);

/// A new word in every state of the table.
fn idle() -> RunState {
    RunState::new()
}

fn armed() -> RunState {
    let state = idle();
    assert!(state.arm(SOON));
    state
}

fn queued() -> RunState {
    let state = idle();
    assert_eq!(state.kick(), Kick::Queued);
    state
}

fn running() -> RunState {
    let state = idle();
    assert!(state.try_begin());
    state
}

fn rerun() -> RunState {
    let state = running();
    assert_eq!(state.kick(), Kick::Coalesced);
    state
}

fn word(state: &RunState) -> (State, Option<Instant>) {
    let word = Word(state.0.load(Ordering::Relaxed));
    (word.state(), word.deadline())
}

#[test]
fn every_cell_of_the_table() {
    use State::{Idle, Queued, Rerun, Running};
    type Row = (fn() -> RunState, bool, State, bool, State, Kick, State);
    let rows: [Row; 5] = [
        (idle, true, Running, true, Running, Kick::Queued, Queued),
        (armed, true, Running, true, Running, Kick::Queued, Queued),
        (queued, true, Running, true, Running, Kick::Coalesced, Queued),
        (running, false, Running, false, Rerun, Kick::Coalesced, Rerun),
        (rerun, false, Rerun, false, Rerun, Kick::Coalesced, Rerun),
    ];
    for (make, began, after_begin, owed, after_owe, kick, after_kick) in rows {
        let state = make();
        assert_eq!((state.try_begin(), word(&state)), (began, (after_begin, None)));
        let state = make();
        assert_eq!((state.begin_or_owe(), word(&state)), (owed, (after_owe, None)));
        let state = make();
        assert_eq!((state.kick(), word(&state)), (kick, (after_kick, None)));
    }
    for (make, changed, after) in [
        (idle as fn() -> RunState, true, (Idle, Some(LATE))),
        (armed, false, (Idle, Some(SOON))),
        (queued, false, (Queued, None)),
        (running, true, (Running, Some(LATE))),
        (rerun, false, (Rerun, None)),
    ] {
        let state = make();
        assert_eq!((state.arm(LATE), word(&state)), (changed, after));
    }
    for (make, done, after) in [(running as fn() -> RunState, true, Idle), (rerun, false, Running)]
    {
        let state = make();
        assert_eq!((state.finish(), word(&state)), (done, (after, None)));
        let state = make();
        state.hand_over();
        assert_eq!(word(&state), (Queued, None));
    }
}

#[test]
fn a_deadline_set_during_a_pass_survives_it() {
    let state = running();
    assert!(state.arm(LATE));
    assert!(state.arm(SOON), "an earlier one replaces it");
    assert!(!state.arm(LATE), "a later one does not");
    assert!(!state.arm(SOON), "nor does the same");
    assert!(state.finish());
    assert_eq!(state.deadline(), Some(SOON));
    assert!(!state.due(NOW));
    assert!(state.due(SOON));
    assert!(state.try_begin());
    assert_eq!(state.deadline(), None, "the pass satisfies it");
}

#[test]
fn a_pass_that_is_owed_swallows_the_deadline() {
    let state = running();
    assert!(state.arm(SOON));
    assert_eq!(state.kick(), Kick::Coalesced);
    assert!(!state.finish());
    assert_eq!(word(&state), (State::Running, None));
}

#[test]
fn deadlines_at_both_ends_of_time() {
    let state = idle();
    assert!(state.arm(Instant::MAX));
    assert!(state.deadline().is_some_and(|at| at.as_nanos() == u64::MAX - 7));
    assert!(state.arm(Instant::ZERO));
    assert!(state.due(Instant::from_nanos(1)));
}

/// Regression test: deadlines from 2^62 ns on became 2^62 - 1, which had passed. Each pass was due again immediately,
/// and asked the policy again, for ever.
#[test]
fn no_deadline_is_too_early_at_any_uptime() {
    for exponent in [10, 32, 54, 60, 61, 62, 63] {
        let around = 1_u64 << exponent;
        for at in [around - 9, around - 1, around, around + 1, around + 9].map(Instant::from_nanos)
        {
            let state = idle();
            assert!(state.arm(at));
            let kept = state.deadline().expect("it was set");
            let late = kept.since(at).0;
            assert!(kept >= at && late <= if exponent < 61 { 0 } else { 7 }, "{at:?}: {kept:?}");
            assert!(!state.due(Instant::from_nanos(at.as_nanos() - 1)) && state.due(kept));
            // The earlier of two counts is kept, across the change of units too.
            assert!(!state.arm(at + Nanos(16)) || state.deadline() == Some(kept));
        }
    }
}

#[derive(Clone, Copy)]
enum Call {
    Now,
    Delay,
}

/// All six orders of now, delay, now.
fn orders() -> [[Call; 3]; 6] {
    let calls = [Call::Now, Call::Delay, Call::Now];
    [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]
        .map(|order| order.map(|i| calls[i]))
}

fn make(state: &RunState, calls: &[Call]) -> usize {
    let mut queued = 0;
    for call in calls {
        match call {
            Call::Now => queued += usize::from(state.kick() == Kick::Queued),
            Call::Delay => {
                state.arm(LATE);
            }
        }
    }
    queued
}

#[test]
fn s16_09_three_calls_in_any_order_while_the_worker_is_stalled() {
    for order in orders() {
        // The worker has been notified, or has no work, and does not come.
        let state = idle();
        assert_eq!(make(&state, &order), 1, "exactly one caller wakes a thread");
        assert!(state.due(NOW), "a pass must begin at once");
        assert!(state.try_begin());
        assert!(state.finish());

        // The worker is in the middle of a pass.
        let state = running();
        assert_eq!(make(&state, &order), 0);
        assert!(!state.finish(), "another pass begins at once");
        assert!(state.finish());
    }
}

#[test]
fn s16_09_a_delay_alone_is_due_when_it_says() {
    let state = idle();
    assert_eq!(make(&state, &[Call::Delay]), 0);
    assert!(!state.due(Instant::from_nanos(LATE.as_nanos() - 1)));
    assert!(state.due(LATE));
    assert_eq!(state.deadline(), Some(LATE));
}

#[test]
fn s16_10_a_kick_during_a_pass_makes_another_pass() {
    let state = running();
    assert_eq!(state.kick(), Kick::Coalesced);
    assert!(!state.finish());
    assert!(state.is_running());
    assert!(state.finish());
    assert!(!state.is_running());
}

#[test]
#[should_panic(expected = "does not run")]
#[cfg(debug_assertions)]
fn finishing_without_running_is_a_bug() {
    let _ = idle().finish();
}
