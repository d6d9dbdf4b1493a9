//! [`Driver`]: the turns of a reactor as a task of a tokio runtime.
//!
//! The task sleeps until the runtime finds the client's descriptor readable, a timer is over, or a caller wakes it; so no
//! thread but the runtime's own waits for the device.
//!
//! # No lost wake-up
//!
//! Before it sleeps, the task leaves its waker in the inbox, then looks for work a last time
//! ([`Client::prepare_wait`](crate::Client::prepare_wait)), and then asks for the readiness of the descriptor, which leaves
//! its waker there as well. A caller, or an event, after each of these finds the waker, and a task that is woken before it
//! has returned is polled again.
//!
//! The runtime tells changes of the descriptor and not its state. So the task forgets a readiness first and looks for work
//! after that: an event before the look is found by the look, and one behind it makes the descriptor ready anew. The look
//! leaves nothing behind, because it takes all completions that there are.

use super::ends::{Ends, Entered};
use super::turn::{Rest, Turns};
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

/// Turns with work before other tasks have theirs.
const TURNS: u32 = 8;

/// The turns of one lane of a reactor. Ready when the reactor is closed and every answer delivered.
///
/// Dropped before that, with its runtime, it answers every I/O: those that were not pushed are given back, those in flight
/// are lost.
pub(super) struct Driver<P: Payload> {
    turns: Turns<P>,
    /// A duplicate of the client's descriptor.
    fd: AsyncFd<OwnedFd>,
    alarm: Alarm,
    /// For the inbox.
    waker: Option<Waker>,
    /// A wait is to be ended.
    waits: bool,
    panicked: bool,
    /// Behind the client, so that its submitter is free when the last task has ended.
    _entered: Entered,
}

impl<P: Payload> Driver<P> {
    /// To be called in the context of the runtime that will poll it.
    ///
    /// # Errors
    /// If the client's descriptor cannot be made or watched.
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

    /// Takes turns as long as there is work, but not so many that other tasks wait for long.
    fn drive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::take(&mut self.waits) {
            let event = self.rise(cx);
            if !event && self.turns.client().in_flight() > 1 {
                // A caller has woken this task, most likely one of several that are ready and will submit.
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
                // They come together if their tasks run before this one, and none of them has to wake it.
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

    /// Has the task polled again when the others that are ready have run.
    fn give_way(cx: &mut Context<'_>) -> Poll<()> {
        let yielded = pin!(tokio::task::yield_now()).poll(cx);
        debug_assert!(yielded.is_pending(), "a fresh one always yields");
        Poll::Pending
    }

    /// Ends the wait, and looks for completions if the descriptor has announced any. Returns whether it has.
    fn rise(&mut self, cx: &mut Context<'_>) -> bool {
        self.waits = false;
        let event = match self.fd.poll_read_ready(cx) {
            Poll::Ready(Ok(mut ready)) => {
                ready.clear_ready();
                true
            }
            // An error says that the runtime is shut down: it drops this task.
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
            // As in a thread: the turns after a panic deliver the I/Os that the poisoned queue ends, and after a second
            // one the reactor gives up.
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
            // I/Os that were returned in the meantime are not lost.
            self.turns.look();
        });
        if catch_unwind(last).is_err() {
            self.turns.count_panic();
        }
        self.turns.give_up();
    }
}

/// A timer that is set anew only for an earlier time. So it may go off too early, which costs a turn.
struct Alarm {
    sleep: Pin<Box<Sleep>>,
    /// When it wakes the task; `None` if it is not set.
    at: Option<Instant>,
}

impl Alarm {
    fn new() -> Self {
        Self { sleep: Box::pin(tokio::time::sleep(Duration::ZERO)), at: None }
    }

    /// Returns whether `at`, if there is such a time, has come. If not, the task is woken by then.
    fn is_over(&mut self, at: Option<Instant>, now: Instant, cx: &mut Context<'_>) -> bool {
        let Some(at) = at else { return false };
        if self.at.is_some_and(|set| now < set && set <= at) {
            // It has the waker of the task already, which is the only one.
            return false;
        }
        self.sleep.set(tokio::time::sleep(Duration::from_nanos((at - now).0)));
        // Without budget it would wake the task, to be polled again, and not be set.
        let can_set = has_budget_remaining();
        let is_over = self.sleep.as_mut().poll(cx).is_ready();
        self.at = (can_set && !is_over).then_some(at);
        is_over
    }
}
