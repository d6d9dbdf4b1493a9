//! [`Place`]: where the submitter that owns a ring sleeps, and how other threads call it.
//!
//! The sleeper waits in the kernel for a completion in its ring, with the call by which it would submit. So a completion
//! wakes the thread that waits for it, and no other. A call is a write to an eventfd that the ring polls: it becomes a
//! completion as well, of which the pump takes notice like of any other.
//!
//! The kernel handles the polls of a ring in the thread that asked for them. So the poll belongs to the thread that
//! sleeps in the ring, and is asked for again when another thread sleeps there. A thread that sleeps on the ring's
//! [descriptor](Berth::fd) is woken by the completion, whichever thread handles it: the poll of any living thread will
//! do. So a task that moves between the threads of an executor does not move the poll.
//!
//! # No lost call
//!
//! The eventfd is never read, so from its first write on a new poll finds it readable: a call may be noticed
//! twice, and never not at all. A poll that has ended (with its thread, or for want of room) leaves a completion, which ends
//! every kind of sleep, and is asked for again in the turn that finds its end. A sleeper in the ring whose thread has not
//! asked for the poll does not sleep, and its next turn asks; so does a sleeper on the descriptor before the first
//! poll.
//!
//! A call reaches a sleeper on the descriptor when the thread of the poll runs next: the kernel interrupts a thread that
//! computes, and wakes one that sleeps, for long enough to handle the poll.
//!
//! A turn of another thread takes completions from the ring, a call among them. The sleeper may be on its way to the
//! kernel, and relies on the call: the thread that made it has learnt that the sleeper parks, and no other thread will.
//! So a turn that takes a call to another thread calls once more.
//!
//! # One system call for a submission and a sleep
//!
//! While the owner waits, its own turns leave entries in the submission queue, and its sleep submits them. A turn of
//! any thread that finds some left submits them, so they stay there no longer than the owner is awake and waits; the end
//! of the wait submits them, too.
//!
//! All words are hints by which turns and sleeps agree: they are written under the pump's run or by the owner, and a late
//! look costs a turn more. The words `waits` and `left` matter to the owner's thread alone, which writes them.

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

/// The number of the completion that says that a poll has been ended; those of requests are smaller, and those of polls
/// larger.
const ENDED: u64 = 1 << 32;

/// The ends that sleepers and callers have of a place.
struct Shared {
    /// A share in the ring.
    ring: OwnedFd,
    event: EventFd,
    /// The thread that wants the poll to be its own.
    sleeper: AtomicUsize,
    /// The thread that asked for the poll; none before the first sleep.
    polls: AtomicUsize,
    /// The thread that waits here, asleep or awake; none while the owner does something else.
    waits: AtomicUsize,
    /// Entries that this thread's turns have left in the submission queue, for its sleep to submit.
    left: AtomicU32,
}

const NONE: usize = 0;

/// Added to the number of a sleeper that sleeps on the descriptor: any living thread may poll for it.
const ON_DESCRIPTOR: usize = 1;

/// A number for the calling thread that no other living thread has; even.
fn this_thread() -> usize {
    thread_local!(static PLACE: u64 = const { 0 });
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

/// The pump's end of a place.
pub(crate) struct Place {
    shared: Arc<Shared>,
    /// The number of the poll; no earlier one had it.
    poll: u64,
    /// This turn has taken a call.
    called: bool,
}

/// The sleeper's and the callers' end.
struct Bed(Arc<Shared>);

impl Place {
    /// For the owner of `ring`.
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

    /// In a turn, after its last [`notice`](Self::notice): has `ring` poll for calls to the thread that sleeps here, if
    /// that is the calling one and needs it, and passes calls on if another thread does. Returns whether there is something
    /// to submit.
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

    /// Leaves entries in the submission queue to the sleep of the calling thread, if that waits here. False if they are to
    /// be submitted now.
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

    /// All entries have been submitted.
    #[inline]
    pub(crate) fn take_left(&self) {
        if self.has_left() {
            self.shared.left.store(0, Ordering::Relaxed);
        }
    }

    #[cold]
    fn poll(&mut self, ring: &mut Ring) {
        if self.poll > ENDED {
            // The poll may have ended already; then this finds none.
            ring.forget_poll(self.poll, ENDED);
        }
        self.poll += 1;
        ring.poll(self.shared.event.as_fd().as_raw_fd(), self.poll);
        self.shared.polls.store(this_thread(), Ordering::Relaxed);
    }

    /// Takes notice of a completion that is no request's: `None` if it is one, else whether there is something to
    /// submit.
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
        // Fails only at a count of 2^64 - 2, which no program reaches.
        let _ = self.event.write(1);
    }
}

impl Bed {
    /// Returns whether the poll is the calling thread's. If not, its next turn asks for it.
    fn owns_poll(&self) -> bool {
        let me = this_thread();
        self.0.sleeper.store(me, Ordering::Relaxed);
        self.0.polls.load(Ordering::Relaxed) == me
    }

    /// Submits the entries that the calling thread's turns have left, and waits for `least` completions.
    fn enter(&self, least: u32, left: Option<Nanos>) {
        let limit = left.map(|Nanos(ns)| Timespec::from(Duration::from_nanos(ns)));
        let entries = self.0.left.load(Ordering::Relaxed);
        let ring = self.0.ring.as_raw_fd();
        // SAFETY: the entries are those of requests in places, which keep the memory as for any submission, or point to
        // none.
        let entered = unsafe { sys::enter(ring, entries, least, limit.as_ref()) };
        // Otherwise the kernel lacks memory, or another thread has submitted them: the next turn looks. That the time is
        // over, or a signal came, is said only where nothing was submitted.
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
