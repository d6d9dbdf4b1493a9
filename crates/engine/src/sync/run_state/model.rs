//! R1 to R3 under every schedule and every outcome that the memory model allows. The loads of a pass are deliberately
//! relaxed, so that only the word's own ordering can make them right.

use super::super::{Arc, AtomicBool, AtomicU32};
use super::*;
use loom::thread;

type Bool = fn(&RunState) -> bool;

/// Runs passes until none is owed; each counts the staged work.
fn serve(state: &RunState, staged: &[AtomicU32], drained: &AtomicU32, finish: Bool) {
    loop {
        for inbox in staged {
            let n = inbox.swap(0, Ordering::Relaxed);
            if n > 0 {
                drained.fetch_add(n, Ordering::Relaxed);
            }
        }
        if finish(state) {
            return;
        }
    }
}

/// Each of `threads` submitters leaves work `times` times, and continues when another thread runs; at the end no work
/// is left.
fn nothing_is_left_behind(threads: usize, times: u32, finish: Bool) {
    loom::model(move || {
        let staged: Box<[_]> = (0..threads).map(|_| AtomicU32::new(0)).collect();
        let shared = Arc::new((RunState::new(), staged, AtomicU32::new(0)));
        let submit = |who: usize| {
            let shared = Arc::clone(&shared);
            move || {
                let (state, staged, drained) = &*shared;
                for _ in 0..times {
                    staged[who].fetch_add(1, Ordering::Relaxed);
                    if state.begin_or_owe() {
                        serve(state, staged, drained, finish);
                    }
                }
            }
        };
        let others: Vec<_> = (1..threads).map(|who| thread::spawn(submit(who))).collect();
        submit(0)();
        others.into_iter().for_each(|other| other.join().expect("no submitter panics"));
        let drained = shared.2.load(Ordering::Relaxed);
        assert_eq!(drained, threads as u32 * times, "work was left behind");
        assert!(!shared.0.is_running());
    });
}

#[test]
fn loom_nothing_is_left_behind() {
    nothing_is_left_behind(2, 2, RunState::finish);
}

#[test]
fn loom_nothing_is_left_behind_by_three() {
    nothing_is_left_behind(3, 1, RunState::finish);
}

#[test]
#[should_panic(expected = "left behind")]
fn loom_planted_finish_that_stores() {
    nothing_is_left_behind(2, 1, |state| {
        let word = Word(state.0.load(Ordering::Acquire));
        let done = word.state() == State::Running;
        let next = if done { Word::IDLE } else { Word::RUNNING };
        state.0.store(next.0, Ordering::SeqCst);
        done
    });
}

/// A runner hands over after each pass, and the thread responsible for the next pass begins it. All calls of the table
/// together.
#[test]
fn loom_a_pump_and_two_kickers() {
    loom::model(|| {
        let shared = Arc::new((RunState::new(), [AtomicBool::new(false), AtomicBool::new(false)]));
        let kickers: Vec<_> = (0..2)
            .map(|who| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let (state, work) = &*shared;
                    work[who].store(true, Ordering::Relaxed);
                    match who {
                        0 => state.kick() == Kick::Queued,
                        _ => state.arm(Instant::from_nanos(5)),
                    }
                })
            })
            .collect();
        let (state, work) = &*shared;
        let mut seen = [false; 2];
        let mut look = || (0..2).for_each(|who| seen[who] |= work[who].load(Ordering::Relaxed));
        if state.try_begin() {
            look();
            state.hand_over();
        }
        for kicker in kickers {
            let _somebody_must_come = kicker.join().expect("no kicker panics");
        }
        if state.due(Instant::from_nanos(5)) {
            assert!(state.try_begin());
            look();
            assert!(state.finish());
        }
        assert_eq!(seen, [true; 2], "somebody's work was not looked at by the time it asked for");
    });
}

/// A word that another thread has queued, and one worker that begins. If a thread publishes and then kicks, that pass
/// sees the value, or a pass is due afterwards.
fn a_kick_is_never_dropped_too_late(
    kick: fn(&RunState) -> Kick,
    begin: Bool,
    finish: Bool,
    passes: u32,
) {
    loom::model(move || {
        let shared = Arc::new((RunState::new(), AtomicBool::new(false)));
        assert_eq!(shared.0.kick(), Kick::Queued);
        let worker = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (state, work) = &*shared;
                assert!(begin(state), "nobody else begins");
                for _ in 1..passes {
                    assert_eq!(state.kick(), Kick::Coalesced);
                    assert!(!finish(state));
                }
                let seen = work.load(Ordering::Relaxed);
                (seen, !finish(state))
            })
        };
        let (state, work) = &*shared;
        work.store(true, Ordering::Relaxed);
        let answer = kick(state);
        let (seen, owed) = worker.join().expect("the worker does not panic");
        let due = state.due(Instant::ZERO);
        assert_eq!(answer == Kick::Queued, due, "the one who queued it is the one who knows");
        assert!(seen || owed || due, "a kick was dropped after the pass had begun");
    });
}

#[test]
fn loom_a_kick_is_never_dropped_too_late() {
    a_kick_is_never_dropped_too_late(RunState::kick, RunState::try_begin, RunState::finish, 1);
    a_kick_is_never_dropped_too_late(RunState::kick, RunState::begin_or_owe, RunState::finish, 1);
}

#[test]
fn loom_a_kick_is_never_dropped_too_late_for_a_second_pass() {
    a_kick_is_never_dropped_too_late(RunState::kick, RunState::try_begin, RunState::finish, 2);
}

#[test]
#[should_panic(expected = "dropped after the pass had begun")]
fn loom_planted_kick_without_a_fence() {
    let kick = |state: &RunState| {
        if Word(state.0.load(Ordering::Relaxed)).state() == State::Queued {
            return Kick::Coalesced;
        }
        state.kick()
    };
    a_kick_is_never_dropped_too_late(kick, RunState::try_begin, RunState::finish, 1);
}

#[test]
#[should_panic(expected = "dropped after the pass had begun")]
fn loom_planted_begin_without_a_fence() {
    let begin = |state: &RunState| {
        let next = |_| Some(Word::RUNNING.0);
        state.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next).is_ok()
    };
    a_kick_is_never_dropped_too_late(RunState::kick, begin, RunState::finish, 1);
}

#[test]
#[should_panic(expected = "dropped after the pass had begun")]
fn loom_planted_rerun_without_a_fence() {
    let finish = |state: &RunState| {
        let mut done = false;
        let next = |word| {
            let word = Word(word);
            done = word.state() == State::Running;
            Some(if done { word.in_state(Word::IDLE).0 } else { Word::RUNNING.0 })
        };
        state.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next).expect("it always goes on");
        done
    };
    a_kick_is_never_dropped_too_late(RunState::kick, RunState::try_begin, finish, 2);
}

/// R2: a value is published and a pass requested no later than 20, while another pass, armed for 10, takes place.
fn an_armed_pass_comes_no_later(arm: fn(&RunState, Instant) -> bool, finish: Bool) {
    const EARLY: Instant = Instant::from_nanos(10);
    const LATE: Instant = Instant::from_nanos(20);
    loom::model(move || {
        let shared = Arc::new((RunState::new(), AtomicBool::new(false)));
        assert!(shared.0.arm(EARLY));
        let worker = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (state, work) = &*shared;
                assert!(state.try_begin(), "nobody else begins");
                let seen = work.load(Ordering::Relaxed);
                assert!(finish(state), "nobody kicks");
                seen
            })
        };
        let (state, work) = &*shared;
        work.store(true, Ordering::Relaxed);
        arm(state, LATE);
        let seen = worker.join().expect("the worker does not panic");
        assert!(seen || state.due(LATE), "nobody will come by the deadline");
        assert_eq!(state.due(LATE), state.deadline().is_some_and(|at| at <= LATE));
    });
}

#[test]
fn loom_an_armed_pass_comes_no_later() {
    an_armed_pass_comes_no_later(RunState::arm, RunState::finish);
}

#[test]
#[should_panic(expected = "nobody will come")]
fn loom_planted_arm_without_a_fence() {
    let arm = |state: &RunState, at| {
        let word = Word(state.0.load(Ordering::Relaxed));
        let earlier = word.state() == State::Idle && word.deadline().is_some_and(|e| e <= at);
        !earlier && state.arm(at)
    };
    an_armed_pass_comes_no_later(arm, RunState::finish);
}

#[test]
#[should_panic(expected = "nobody will come")]
fn loom_planted_finish_that_forgets_the_deadline() {
    let finish = |state: &RunState| {
        state.0.swap(Word::IDLE.0, Ordering::AcqRel);
        true
    };
    an_armed_pass_comes_no_later(RunState::arm, finish);
}

/// A runner that hands over leaves the pass to another thread, which sees the runner's writes.
fn a_hand_over_is_taken_up(hand_over: fn(&RunState)) {
    loom::model(move || {
        let shared = Arc::new((RunState::new(), AtomicBool::new(false)));
        assert!(shared.0.try_begin());
        let kicker = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (state, work) = &*shared;
                work.store(true, Ordering::Relaxed);
                state.begin_or_owe()
            })
        };
        let (state, work) = &*shared;
        hand_over(state);
        let kicker_runs = kicker.join().expect("the kicker does not panic");
        if !kicker_runs {
            assert!(state.try_begin(), "a pass was owed and nobody is told");
            assert!(work.load(Ordering::Relaxed));
            assert!(state.finish());
        }
    });
}

#[test]
fn loom_a_hand_over_is_taken_up() {
    a_hand_over_is_taken_up(RunState::hand_over);
}

#[test]
#[should_panic(expected = "nobody is told")]
fn loom_planted_hand_over_that_forgets_who_came_meanwhile() {
    a_hand_over_is_taken_up(|state| {
        // Intends to write QUEUED only if no kick came in the meantime, but forgets that RERUN is also running.
        let _ = state.exchange(Word::RUNNING, Word::QUEUED);
    });
}
