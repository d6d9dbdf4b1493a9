//! Kicks in quick succession, and the passes that serve them: how each [`KickMode`] meets R1 to R3 of
//! `spec/framework.md` section 9.1, step by step and without a clock.
//!
//! The kicks use the same words as a queue's. Only the worker is simulated: it sleeps until it is woken or a timer
//! expires, and arrives some time later.

use super::gate::{Gate, GateShape};
use crate::shared::modes::{Access, KickMode, Modes};
use crate::sync::Kick;
use blkmq_core::{Instant, Nanos};

/// A request for a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// The time of the request.
    pub at: Instant,
    /// How much later the pass may begin; zero means immediately.
    pub delay: Nanos,
}

/// The times at which the passes that serve `calls` begin, if a woken worker arrives `lag` later. `calls` is sorted by
/// time. O(calls).
#[must_use]
pub fn passes(kick: KickMode, calls: &[Call], lag: Nanos) -> Vec<Instant> {
    let modes = Modes { kick: Some(kick), ..Modes::default() }.settle(Access::Combining);
    let modes = modes.expect("kicks of every kind go with combining");
    let gate = Gate::new(&GateShape { modes, threads: 1, alarm: None }, ());
    let mut calls = calls.iter().peekable();
    let mut passes = Vec::new();
    let mut now = Instant::ZERO;
    // The arrival time of a woken worker.
    let mut comes: Option<Instant> = None;
    loop {
        // A timer wakes the worker as a kick does. A pass that is due immediately has woken it already.
        let timer = gate.deadline().filter(|at| *at > now).map(|at| at + lag);
        let worker = comes.into_iter().chain(timer).min();
        match (calls.peek(), worker) {
            (None, None) => return passes,
            (Some(call), worker) if worker.is_none_or(|at| call.at <= at) => {
                now = now.max(call.at);
                if call.delay > Nanos::ZERO {
                    gate.run_later(call.at + call.delay);
                } else if gate.kick() == Kick::Queued {
                    comes = comes.or(Some(now + lag));
                }
                calls.next();
            }
            (_, worker) => {
                now = worker.expect("there is a call or a worker");
                comes = None;
                if gate.due(now)
                    && let Some(pass) = gate.try_run()
                {
                    passes.push(now);
                    let _ = pass.finish();
                }
            }
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    const LAG: Nanos = Nanos(50_000);
    const LATER: Nanos = Nanos(3_000_000);

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    fn now(ns: u64) -> Call {
        Call { at: at(ns), delay: Nanos::ZERO }
    }

    fn later(ns: u64) -> Call {
        Call { at: at(ns), delay: LATER }
    }

    #[test]
    fn the_flag_swallows_the_call_for_now_behind_one_for_later_and_nothing_else_does() {
        let calls = [now(1_000), later(2_000), now(3_000)];
        let first = |kick| passes(kick, &calls, LAG)[0];
        assert_eq!(first(KickMode::Always), at(51_000));
        assert_eq!(first(KickMode::Coalesced), at(51_000));
        assert_eq!(first(KickMode::Flag), at(2_000) + LATER + LAG);
    }

    #[test]
    fn one_call_is_answered_by_one_pass_in_time() {
        for (_, kick) in KickMode::ALL {
            assert_eq!(passes(kick, &[now(7)], LAG), [at(7) + LAG], "{kick}");
            assert_eq!(passes(kick, &[later(7)], LAG), [at(7) + LATER + LAG], "{kick}");
            assert_eq!(passes(kick, &[], LAG), []);
        }
    }

    #[test]
    fn a_burst_is_answered_once_and_what_comes_after_the_pass_again() {
        let calls = [now(10), now(20), now(30), now(200_000)];
        for (_, kick) in KickMode::ALL {
            assert_eq!(passes(kick, &calls, LAG), [at(10) + LAG, at(200_000) + LAG], "{kick}");
        }
    }

    #[test]
    fn the_kernels_later_call_puts_off_what_was_due_now_and_ours_does_not() {
        let calls = [now(0), later(10)];
        assert_eq!(passes(KickMode::Coalesced, &calls, LAG)[0], at(0) + LAG);
        for kick in [KickMode::Always, KickMode::Flag] {
            assert_eq!(passes(kick, &calls, LAG), [at(10) + LATER + LAG], "{kick}");
        }
    }
}
