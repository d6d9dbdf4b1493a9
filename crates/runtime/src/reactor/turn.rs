//! The turns of a reactor: take new I/Os, push and flush them, wait, deliver.
//!
//! [`Turns::run`] is the loop of a thread; `driver.rs` has the loop of a task. [`Client`] does the waiting, and
//! [`Inbox`](super::inbox::Inbox) knows the receiver of each answer. A task collects completions and prepares to sleep,
//! but never waits.

use super::inbox::{Delivery, cancelled};
use super::shared::Shared;
use crate::Client;
use crate::client::Summons;
use crate::submit_error::{Answer, SubmitError};
#[cfg(all(target_os = "linux", feature = "tokio"))]
use crate::{Sleep, waiting::AWAKE_FOR};
#[cfg(all(target_os = "linux", feature = "tokio"))]
use blkmq_core::Instant;
use blkmq_core::Payload;
use blkmq_engine::{Io, Refusal, Unsubmitted};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

/// The state of a reactor. Its lists have room for a whole depth of I/Os.
pub(super) struct Turns<P> {
    client: Client<P>,
    shared: Arc<Shared<P>>,
    panics: Arc<AtomicU64>,
    /// I/Os taken from the inbox and not pushed yet. Some stay here for lack of credit: an I/O that exceeds the
    /// device's limits needs credit for each of its parts.
    fresh: VecDeque<Io<P>>,
    /// Tickets taken from the inbox, of I/Os to be cancelled.
    cancels: Vec<u32>,
    /// Answers to deliver, by ticket.
    done: Vec<(u32, Answer<P>)>,
    deliveries: Vec<Delivery<P>>,
    /// The number of I/Os answered in this turn.
    answered: usize,
}

/// The inbox as a source of work for a client that waits.
struct Inboxes<'a, P> {
    shared: &'a Shared<P>,
    in_flight: u32,
    depth: u32,
}

impl<P> Summons for Inboxes<'_, P> {
    fn rang(&self) -> bool {
        self.shared.lock().calls(self.in_flight, self.depth)
    }

    fn listen(&self) -> bool {
        self.shared.lock().listen(self.in_flight, self.depth)
    }
}

impl<P: Payload> Turns<P> {
    pub(super) fn new(client: Client<P>, shared: Arc<Shared<P>>, panics: Arc<AtomicU64>) -> Self {
        let depth = client.depth() as usize;
        Self {
            client,
            shared,
            panics,
            fresh: VecDeque::with_capacity(depth),
            cancels: Vec::new(),
            done: Vec::with_capacity(depth),
            deliveries: Vec::with_capacity(depth),
            answered: 0,
        }
    }

    /// Takes turns until the inbox is closed and every answer delivered.
    pub(super) fn run(mut self) {
        // A policy or a device that this thread runs may panic. The queue is poisoned then, and the turns that follow
        // deliver the I/Os that the queue ends. After a second panic the reactor gives up.
        for _ in 0..2 {
            let turns = AssertUnwindSafe(|| {
                while self.exchange() {
                    self.push();
                    self.cancel();
                    self.gather();
                }
            });
            if catch_unwind(turns).is_ok() {
                return;
            }
            self.count_panic();
        }
        self.give_up();
    }

    pub(super) fn count_panic(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    /// Delivers answers and takes new I/Os. Returns false when no more work can come.
    pub(super) fn exchange(&mut self) -> bool {
        if self.client.lost().is_some() {
            // The queue is poisoned, and every I/O that is not lost has been returned.
            self.give_up();
            return false;
        }
        let in_flight = self.client.in_flight();
        let mut inbox = self.shared.lock();
        self.answered = self.done.len();
        let answers = self.done.drain(..);
        self.deliveries.extend(answers.map(|(ticket, answer)| inbox.deliver(ticket, answer)));
        let room = self.client.depth() - in_flight;
        let room = room.saturating_sub(self.fresh.len() as u32);
        inbox.take(room, &mut self.fresh, &mut self.deliveries);
        if self.client.has_kept() || inbox.has_full() {
            inbox.see_rows(&self.client, &mut self.fresh);
        }
        inbox.take_cancels(&mut self.cancels, &mut self.done);
        let is_idle = self.fresh.is_empty()
            && self.done.is_empty()
            && in_flight == 0
            && self.client.outstanding() == 0;
        let is_over = inbox.is_over() && is_idle;
        drop(inbox);
        self.deliver();
        !is_over
    }

    /// Pushes all new I/Os before it flushes, so that they merge. Of the I/Os that wait for a ceiling of their group,
    /// only the first in each direction takes credit.
    pub(super) fn push(&mut self) {
        if self.fresh.is_empty() && !self.client.has_kept() {
            return;
        }
        let now = self.client.clock().now();
        while let Some(io) = self.fresh.pop_front() {
            let ticket = io.cookie as u32;
            match self.client.line_up_at(now, io) {
                Ok(()) => {}
                Err(refused) if matches!(refused.why, Refusal::NoCredit { .. }) => {
                    // It is pushed first after the next completion. Some I/O must be in flight, or there would be
                    // credit.
                    self.fresh.push_front(refused.into_io());
                    break;
                }
                Err(refused) => self.done.push((ticket, Err(SubmitError::Refused(refused)))),
            }
        }
        self.client.flush_at(now);
        self.take_refused();
    }

    /// Cancels I/Os as requested. Called after the I/Os that were submitted earlier have been pushed.
    pub(super) fn cancel(&mut self) {
        while let Some(ticket) = self.cancels.pop() {
            match self.fresh.iter().position(|io| io.cookie == u64::from(ticket)) {
                Some(at) => {
                    let io = self.fresh.remove(at).expect("it was found there");
                    self.done.push((ticket, Ok(cancelled(io))));
                }
                None => match self.client.take_kept(ticket.into()) {
                    Some(io) => self.done.push((ticket, Ok(cancelled(io)))),
                    None => self.client.cancel(ticket.into()),
                },
            }
        }
    }

    /// Collects completions. When it returns, there is at least one answer, or the inbox has work.
    fn gather(&mut self) {
        let Self { client, shared, done, fresh, .. } = self;
        let depth = client.depth();
        // I/Os that wait for credit use up all returned credit.
        let in_flight = if fresh.is_empty() { client.in_flight() } else { depth };
        let bell = Inboxes { shared, in_flight, depth };
        if !done.is_empty() {
            // Refused and cancelled I/Os have their answers already, so do not wait.
            client.poll();
            client.reap(u32::MAX, |completion| done.push(answer(completion)));
        } else if bell.in_flight > 0 {
            client.wait_or(&bell, |completion| done.push(answer(completion)));
        } else {
            client.idle(&bell);
        }
        self.take_refused();
    }

    /// Answers the I/Os that the queue refused after they had waited for a ceiling.
    fn take_refused(&mut self) {
        while let Some(mut refused) = self.client.take_refused() {
            let ticket = refused.io_mut().cookie as u32;
            self.done.push((ticket, Err(SubmitError::Refused(refused))));
        }
    }

    /// Runs foreign code, each piece separately, so that a panic ends nothing else.
    fn deliver(&mut self) {
        for delivery in self.deliveries.drain(..) {
            let one = AssertUnwindSafe(move || match delivery {
                Delivery::Wake(waker) => waker.map_or((), Waker::wake),
                Delivery::Call(then, answer) => then(answer),
                Delivery::Drop { .. } => {}
            });
            if catch_unwind(one).is_err() {
                // `deliveries` is borrowed, so that this cannot be `count_panic`.
                self.panics.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn give_up(&mut self) {
        self.shared.close();
        self.take_refused();
        let unpushed = self.fresh.drain(..).chain(self.client.drain_kept());
        self.done.extend(
            unpushed.map(|io| (io.cookie as u32, Err(SubmitError::Closed(Unsubmitted::new(io))))),
        );
        let mut inbox = self.shared.lock();
        let answers = self.done.drain(..);
        self.deliveries.extend(answers.map(|(ticket, answer)| inbox.deliver(ticket, answer)));
        self.deliveries.extend(inbox.give_up());
        drop(inbox);
        self.deliver();
    }
}

/// The ticket of a completion, and its answer.
fn answer<P>(completion: blkmq_engine::Completion<P>) -> (u32, Answer<P>) {
    (completion.cookie as u32, Ok(completion))
}

/// How a task may rest after a turn.
#[cfg(all(target_os = "linux", feature = "tokio"))]
pub(super) enum Rest {
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

#[cfg(all(target_os = "linux", feature = "tokio"))]
impl<P: Payload> Turns<P> {
    pub(super) fn client(&mut self) -> &mut Client<P> {
        &mut self.client
    }

    /// Returns whether tasks that were answered in this turn may submit more than one I/O.
    pub(super) fn expects_more(&self) -> bool {
        self.answered > 1 && self.fresh.is_empty()
    }

    /// Collects completions without waiting. Returns whether there are answers to deliver.
    pub(super) fn look(&mut self) -> bool {
        let Self { client, done, .. } = self;
        client.work();
        client.reap(u32::MAX, |completion| done.push(answer(completion)));
        self.take_refused();
        !self.done.is_empty()
    }

    /// Prepares to sleep. Leaves `waker` in the inbox if that has none.
    pub(super) fn prepare(&mut self, waker: &mut Option<Waker>) -> Rest {
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
    pub(super) fn end_wait(&mut self, event: bool) {
        if event {
            self.client.end_wait();
        } else {
            self.client.end_wait_without_event();
        }
    }
}
