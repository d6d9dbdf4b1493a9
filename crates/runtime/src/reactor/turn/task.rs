//! The part of turns that a task needs: it collects completions and prepares to sleep, but never waits.

use super::{Turns, answer};
use crate::waiting::AWAKE_FOR;
use crate::{Client, Sleep};
use blkmq_core::{Instant, Payload};
use std::task::Waker;

/// How a task may rest after a turn.
pub(in crate::reactor) enum Rest {
    /// Not at all: there may be work.
    None,
    /// Not at all, but other tasks may run before the work that is due soon.
    Soon,
    /// Until a caller wakes it through the inbox.
    Idle,
    /// Until a caller wakes it, the client's descriptor is readable, or the client's clock reaches `at`.
    /// [`end_wait`](Turns::end_wait) must follow.
    Until { at: Option<Instant>, now: Instant },
}

impl<P: Payload> Turns<P> {
    pub(in crate::reactor) fn client(&mut self) -> &mut Client<P> {
        &mut self.client
    }

    /// Returns whether tasks that were answered in this turn may submit more than one I/O.
    pub(in crate::reactor) fn expects_more(&self) -> bool {
        self.answered > 1 && self.fresh.is_empty()
    }

    /// Collects completions without waiting. Returns whether there are answers to deliver.
    pub(in crate::reactor) fn look(&mut self) -> bool {
        let Self { client, done, .. } = self;
        client.work();
        client.reap(u32::MAX, |completion| done.push(answer(completion)));
        self.take_refused();
        !self.done.is_empty()
    }

    /// Prepares to sleep. Leaves `waker` in the inbox if that has none.
    pub(in crate::reactor) fn prepare(&mut self, waker: &mut Option<Waker>) -> Rest {
        if !self.done.is_empty() {
            // Refused and cancelled I/Os have their answers already.
            return Rest::None;
        }
        let Self { client, shared, fresh, .. } = self;
        let depth = client.depth();
        // I/Os that wait for credit use up all returned credit.
        let in_flight = if fresh.is_empty() { client.in_flight() } else { depth };
        if shared.lock().listen_as(in_flight, depth, waker) {
            return Rest::None;
        }
        if in_flight == 0 {
            return Rest::Idle;
        }
        let at = match client.prepare_wait() {
            Sleep::No => return Rest::None,
            Sleep::Until(at) => at,
        };
        let now = client.clock().now();
        if at.is_some_and(|at| at - now <= AWAKE_FOR) {
            client.end_wait_without_event();
            return Rest::Soon;
        }
        Rest::Until { at, now }
    }

    /// Ends a wait. `event`: whether the descriptor had an event.
    pub(in crate::reactor) fn end_wait(&mut self, event: bool) {
        if event {
            self.client.end_wait();
        } else {
            self.client.end_wait_without_event();
        }
    }
}
