//! [`Place`]: the place where the owner of a ring sleeps, and the means by which other threads wake it.
//!
//! The owner sleeps in `io_uring_enter` on its ring, the call by which it also submits. So a completion wakes the
//! thread that waits for it, and no other. A *call* of another thread is a write to an eventfd that the ring polls. It
//! becomes a completion, which the pump takes like any other.
//!
//! The kernel handles a poll of a ring in the thread that added it. So the poll belongs to the thread that sleeps in
//! the ring, and is added again when another thread sleeps there. A thread that sleeps on the ring's
//! [descriptor](Berth::fd) is woken by the completion, whichever thread handles it, so the poll of any living thread is
//! enough. A task that moves between the threads of an executor does not move the poll.
//!
//! # No lost call
//!
//! The eventfd is never read, so a new poll finds it readable after the first write: a call may be seen twice, but is
//! always seen. A poll that has ended (with its thread, or for lack of room) leaves a completion, which ends every kind
//! of sleep. The turn that finds this completion adds the poll again. A sleeper in the ring whose thread has not added
//! the poll does not sleep, and its next turn adds it. The same holds for a sleeper on the descriptor before the first
//! poll.
//!
//! A call reaches a sleeper on the descriptor when the thread of the poll next runs: the kernel interrupts a running
//! thread, and wakes a sleeping one for as long as handling the poll takes.
//!
//! A turn of another thread takes completions from the ring, and a call may be among them. The sleeper may be about to
//! enter the kernel, and relies on the call: the caller has taken the sleeper's mark, so no other thread will call. So
//! a turn that takes a call for another thread makes the call again.
//!
//! # One system call for a submission and a sleep
//!
//! While the owner waits, its own turns leave entries in the submission queue, and its sleep submits them. A turn of
//! any thread that finds such entries submits them, so they stay there only while the owner is awake and waits. The end
//! of the wait submits them, too.
//!
//! All words are hints between turns and sleeps. They are written under the pump's run or by the owner, and a stale
//! value costs one more turn. The words `waits` and `left` are used by the owner's thread alone, which writes them.

use crate::ring::Ring;
use crate::sys;
use blkmq_core::Nanos;
use blkmq_engine::Berth;
use io_uring::cqueue;
use io_uring::types::Timespec;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// The number of the completion of a poll's removal. Those of requests are smaller, and those of polls larger.
const ENDED: u64 = 1 << 32;

/// The state that pump, sleepers and callers share.
struct Shared {
    /// A descriptor of the ring.
    ring: OwnedFd,
    event: EventFd,
    /// The thread that sleeps here, and needs the poll to be its own; [`NONE`] before the first sleep.
    sleeper: AtomicUsize,
    /// The thread that added the poll; [`NONE`] before the first sleep.
    polls: AtomicUsize,
    /// The thread that waits here, asleep or awake; [`NONE`] while the owner does not wait.
    waits: AtomicUsize,
    /// The number of entries that turns of the owner have left in the submission queue, for its sleep to submit.
    left: AtomicU32,
}

const NONE: usize = 0;

/// Added to the number of a sleeper on the descriptor, for which any living thread may poll.
const ON_DESCRIPTOR: usize = 1;

/// An even number for the calling thread that no other living thread has.
fn this_thread() -> usize {
    thread_local!(static PLACE: u64 = const { 0 });
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

/// The pump's side of a place.
pub(crate) struct Place {
    shared: Arc<Shared>,
    /// The number of the poll, which no earlier one had.
    poll: u64,
    /// This turn has taken a call.
    called: bool,
}

/// The side of the sleeper and of callers.
struct Bed(Arc<Shared>);

impl Place {
    /// A place for the owner of `ring`.
    pub(crate) fn new(ring: &Ring) -> io::Result<Self> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let ring = ring.fd().try_clone_to_owned()?;
        let [sleeper, polls, waits] = [(); 3].map(|()| AtomicUsize::new(NONE));
        let left = AtomicU32::new(0);
        let shared = Shared { ring, event, sleeper, polls, waits, left };
        Ok(Self { shared: Arc::new(shared), poll: ENDED, called: false })
    }

    pub(crate) fn berth(&self) -> Box<dyn Berth> {
        Box::new(Bed(Arc::clone(&self.shared)))
    }

    /// Adds the poll if the calling thread sleeps here and needs it, or passes a call on to another sleeper. Called in
    /// a turn after the last [`notice`](Self::notice). Returns whether there is something to submit.
    #[inline]
    pub(crate) fn attend(&mut self, ring: &mut Ring) -> bool {
        let Shared { sleeper, polls, .. } = &*self.shared;
        let (sleeper, polls) = (sleeper.load(Ordering::Relaxed), polls.load(Ordering::Relaxed));
        let is_own = sleeper & !ON_DESCRIPTOR == this_thread();
        if std::mem::take(&mut self.called) && !is_own {
            self.shared.call();
        }
        let is_due = if sleeper & ON_DESCRIPTOR == 0 { polls != sleeper } else { polls == NONE };
        let wanted = is_own && is_due;
        if wanted {
            self.poll(ring);
        }
        wanted
    }

    /// Leaves entries in the submission queue for the sleep of the calling thread, if it waits here. Returns false if
    /// they are to be submitted immediately.
    #[inline]
    pub(crate) fn leave(&self, entries: u32) -> bool {
        let waits = self.shared.waits.load(Ordering::Relaxed) == this_thread();
        if waits {
            self.shared.left.store(entries, Ordering::Relaxed);
        }
        waits
    }

    /// Returns whether an earlier turn has left entries that no sleep has submitted.
    #[inline]
    pub(crate) fn has_left(&self) -> bool {
        self.shared.left.load(Ordering::Relaxed) > 0
    }

    /// Notes that all entries have been submitted.
    #[inline]
    pub(crate) fn take_left(&self) {
        if self.has_left() {
            self.shared.left.store(0, Ordering::Relaxed);
        }
    }

    #[cold]
    fn poll(&mut self, ring: &mut Ring) {
        if self.poll > ENDED {
            // If the poll has ended, this has no effect.
            ring.forget_poll(self.poll, ENDED);
        }
        self.poll += 1;
        ring.poll(self.shared.event.as_fd().as_raw_fd(), self.poll);
        self.shared.polls.store(this_thread(), Ordering::Relaxed);
    }

    /// Takes a completion of a poll. Returns whether there is something to submit; `None` for a request's completion.
    #[inline]
    pub(crate) fn notice(&mut self, completion: &cqueue::Entry, ring: &mut Ring) -> Option<bool> {
        let number = completion.user_data();
        if number < ENDED {
            return None;
        }
        self.called |= number > ENDED;
        let ended = number == self.poll && !cqueue::more(completion.flags());
        if ended {
            self.poll(ring);
        }
        Some(ended)
    }
}

impl Shared {
    fn call(&self) {
        // This fails only at a count of 2^64 - 2, which no program reaches.
        let _ = self.event.write(1);
    }
}

impl Bed {
    /// Returns whether the poll is the calling thread's. If not, its next turn adds it.
    fn owns_poll(&self) -> bool {
        let me = this_thread();
        self.0.sleeper.store(me, Ordering::Relaxed);
        self.0.polls.load(Ordering::Relaxed) == me
    }

    /// Submits the entries that turns of this thread have left, and waits for `least` completions, for `left` at most.
    fn enter(&self, least: u32, left: Option<Nanos>) {
        let limit = left.map(|Nanos(ns)| Timespec::from(Duration::from_nanos(ns)));
        let entries = self.0.left.load(Ordering::Relaxed);
        let ring = self.0.ring.as_raw_fd();
        // SAFETY: the entries are of requests in places, which keep the memory as for any submission, or point to none.
        let entered = unsafe { sys::enter(ring, entries, least, limit.as_ref()) };
        // Otherwise the kernel lacks memory, or another thread has submitted the entries, and the next turn looks. The
        // kernel reports a timeout or a signal only if it has submitted nothing.
        if entries > 0 && entered.is_ok_and(|taken| taken == entries) {
            self.0.left.store(0, Ordering::Relaxed);
        }
    }
}

impl Berth for Bed {
    fn attend(&self) -> bool {
        self.0.sleeper.store(this_thread() | ON_DESCRIPTOR, Ordering::Relaxed);
        self.0.polls.load(Ordering::Relaxed) != NONE
    }

    fn begin(&self) {
        self.0.waits.store(this_thread(), Ordering::Relaxed);
    }

    fn end(&self) {
        self.0.waits.store(NONE, Ordering::Relaxed);
        if self.0.left.load(Ordering::Relaxed) > 0 {
            self.enter(0, None);
        }
    }

    fn sleep(&self, left: Option<Nanos>) {
        if self.owns_poll() {
            self.enter(1, left);
        }
    }

    fn call(&self) {
        self.0.call();
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.ring.as_fd()
    }
}
