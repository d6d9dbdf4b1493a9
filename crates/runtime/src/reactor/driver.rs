//! [`Driver`]: the turns of a reactor as a task of a tokio runtime.
//!
//! The task sleeps until the runtime finds the client's descriptor readable, a timer expires, or a caller wakes it.
//! Only the threads of the runtime wait for the device.
//!
//! # No lost wake-up
//!
//! Before it sleeps, the task leaves its waker in the inbox, then checks for work a last time
//! ([`Client::prepare_wait`](crate::Client::prepare_wait)), and then polls the readiness of the descriptor, which
//! leaves its waker there as well. A caller or an event that comes after either of these steps finds the waker, and a
//! task that is woken before it has returned is polled again.
//!
//! The runtime reports changes of the descriptor, not its state. So the task clears the readiness first and checks for
//! work afterwards: the check finds an event that came before it, and a later event makes the descriptor ready again.
//! The check leaves nothing behind, because it takes all completions.

use super::turn::{Rest, Turns};
use crate::reactor::{Ends, Entered};
use blkmq_core::{Instant, Payload};
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::coop::has_budget_remaining;
use tokio::time::Sleep;

/// The most turns with work before other tasks run.
const TURNS: u32 = 8;

/// The turns of one lane of a reactor, as a future. Ready when the reactor is closed and every answer delivered.
///
/// If it is dropped before that, together with its runtime, it answers every I/O: those not pushed are returned, those
/// in flight are lost.
pub(super) struct Driver<P: Payload> {
    turns: Turns<P>,
    /// A duplicate of the client's descriptor.
    fd: AsyncFd<OwnedFd>,
    alarm: Alarm,
    /// The waker to leave in the inbox.
    waker: Option<Waker>,
    /// A wait was prepared and must be ended.
    waits: bool,
    panicked: bool,
    /// Declared, and so dropped, after the client: the submitter is free when the last task has ended.
    _entered: Entered,
}

impl<P: Payload> Driver<P> {
    /// Must be called in the context of the runtime that will poll the driver.
    ///
    /// # Errors
    /// If the client's descriptor cannot be created or watched.
    pub(super) fn new(mut turns: Turns<P>, ends: &Arc<Ends>) -> io::Result<Self> {
        let fd = turns.client().event_fd()?.try_clone_to_owned()?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for types whose descriptor changes; an `OwnedFd` is not one"
        )]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Self {
            turns,
            fd,
            alarm: Alarm::new(),
            waker: None,
            waits: false,
            panicked: false,
            _entered: ends.enter(),
        })
    }

    /// Takes turns while there is work, but few enough that other tasks do not wait for long.
    fn drive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::take(&mut self.waits) {
            let event = self.rise(cx);
            if !event && self.turns.client().in_flight() > 1 {
                // A caller has woken this task, probably one of several ready tasks that will submit.
                return Self::give_way(cx);
            }
        }
        for _ in 0..TURNS {
            if !self.turns.exchange() {
                return Poll::Ready(());
            }
            self.turns.push();
            self.turns.cancel();
            if self.turns.expects_more() {
                // If these tasks run before this one, their I/Os arrive together, and none of them has to wake it.
                break;
            }
            if !self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                self.waker = Some(cx.waker().clone());
            }
            match self.turns.prepare(&mut self.waker) {
                Rest::None => {
                    self.turns.look();
                }
                Rest::Soon => {
                    self.turns.look();
                    break;
                }
                Rest::Idle => return Poll::Pending,
                Rest::Until { at, now } => {
                    self.waits = true;
                    let is_ready = self.fd.poll_read_ready(cx).is_ready();
                    if !is_ready && !self.alarm.is_over(at, now, cx) {
                        return Poll::Pending;
                    }
                    self.rise(cx);
                }
            }
        }
        Self::give_way(cx)
    }

    /// Yields: the task is polled again after the other ready tasks.
    fn give_way(cx: &mut Context<'_>) -> Poll<()> {
        let yielded = pin!(tokio::task::yield_now()).poll(cx);
        debug_assert!(yielded.is_pending(), "a fresh one always yields");
        Poll::Pending
    }

    /// Ends the wait, and checks for completions if the descriptor has announced any. Returns whether it has.
    fn rise(&mut self, cx: &mut Context<'_>) -> bool {
        self.waits = false;
        let event = match self.fd.poll_read_ready(cx) {
            Poll::Ready(Ok(mut ready)) => {
                ready.clear_ready();
                true
            }
            // An error means that the runtime is shutting down, and will drop this task.
            Poll::Ready(Err(_)) | Poll::Pending => false,
        };
        self.turns.end_wait(event);
        if event {
            self.turns.look();
        }
        event
    }
}

/// Payloads are moved in and out, and never pinned.
impl<P: Payload> Unpin for Driver<P> {}

impl<P: Payload> Future for Driver<P> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let driver = self.get_mut();
        loop {
            // As in a thread, the turns after a panic deliver the I/Os that the poisoned queue ends; after a second
            // panic the reactor gives up.
            match catch_unwind(AssertUnwindSafe(|| driver.drive(cx))) {
                Ok(polled) => return polled,
                Err(_) => driver.turns.count_panic(),
            }
            if std::mem::replace(&mut driver.panicked, true) {
                driver.turns.give_up();
                return Poll::Ready(());
            }
        }
    }
}

impl<P: Payload> Drop for Driver<P> {
    fn drop(&mut self) {
        let last = AssertUnwindSafe(|| {
            if self.waits {
                self.turns.end_wait(false);
            }
            // Collects I/Os that have completed in the meantime, so that they are not lost.
            self.turns.look();
        });
        if catch_unwind(last).is_err() {
            self.turns.count_panic();
        }
        self.turns.give_up();
    }
}

/// A timer that is only set again for an earlier time. It may therefore expire too early, which costs a turn.
struct Alarm {
    sleep: Pin<Box<Sleep>>,
    /// When it wakes the task; `None` if it is not set.
    at: Option<Instant>,
}

impl Alarm {
    fn new() -> Self {
        Self { sleep: Box::pin(tokio::time::sleep(Duration::ZERO)), at: None }
    }

    /// Returns whether `at` has come; false for `None`. If not, the task will be woken by then.
    fn is_over(&mut self, at: Option<Instant>, now: Instant, cx: &mut Context<'_>) -> bool {
        let Some(at) = at else { return false };
        if self.at.is_some_and(|set| now < set && set <= at) {
            // The timer already has the waker of the task, which is always the same.
            return false;
        }
        self.sleep.set(tokio::time::sleep(Duration::from_nanos((at - now).0)));
        // Without budget the timer would wake the task for another poll, and would not be set.
        let can_set = has_budget_remaining();
        let is_over = self.sleep.as_mut().poll(cx).is_ready();
        self.at = (can_set && !is_over).then_some(at);
        is_over
    }
}
