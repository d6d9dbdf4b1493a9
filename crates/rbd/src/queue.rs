//! [`RbdQueue`]: one hardware queue of an image; [`ImageState`]: changes and stalls of the image since it was opened;
//! and [`Replies`]: distributes librbd's replies to the hardware queues of an image.
//!
//! For each image librbd has one queue of finished I/Os, and one descriptor that it signals. The hardware queue that
//! polls it takes all replies, and moves those of other hardware queues to their inboxes.

use crate::sys::{Flight, Image, Reply, wait};
use blkmq_buf::IoBuf;
use blkmq_core::{Instant, IoError, Op, Tag};
use blkmq_engine::{BioTable, Busy, DeviceQueue, Enqueued, Expiry, Finished, Inflight};
use rustix::event::{EventfdFlags, epoll, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

/// The answer of a read-only device to every operation that would change it.
const READ_ONLY: IoError = IoError(libc::EROFS as u16);
/// Seconds without a reply after which a queue that ends abandons its requests to librbd.
const PATIENCE: u32 = if cfg!(test) { 1 } else { 10 };

/// One hardware queue of an image.
pub struct RbdQueue {
    flight: Flight,
    mine: Mine,
    readonly: bool,
    watched: Arc<Watched>,
    /// Empty between calls; keeps its capacity.
    replies: Vec<Reply>,
}

impl std::fmt::Debug for RbdQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RbdQueue").field("inside", &self.flight.count()).finish_non_exhaustive()
    }
}

impl RbdQueue {
    pub(crate) fn new(flight: Flight, mine: Mine, readonly: bool, watched: Arc<Watched>) -> Self {
        Self { flight, mine, readonly, watched, replies: Vec::new() }
    }

    /// Passes the requests that librbd has answered to `take`.
    fn answered(&mut self, mut take: impl FnMut(Finished)) {
        self.mine.take(&mut self.replies);
        for reply in self.replies.drain(..) {
            take(self.flight.answer(reply));
        }
    }
}

impl<P: IoBuf> DeviceQueue<P> for RbdQueue {
    /// Hands librbd the request immediately: librbd has no doorbell.
    fn enqueue(&mut self, _: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        if self.readonly && rq.op() != Op::Read && rq.op() != Op::Flush {
            return Enqueued::Done(rq, Err(READ_ONLY));
        }
        if !self.flight.has_room() {
            // The queue is full, so a request will complete.
            return Enqueued::Busy(rq, Busy::DevResource);
        }
        match self.flight.issue(bios, rq) {
            Ok(()) => Enqueued::Accepted,
            Err((rq, error)) => Enqueued::Done(rq, Err(error)),
        }
    }

    fn reap(&mut self, _: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        self.answered(|finished| out.push(finished));
    }

    /// Restarts the timer: a cluster whose disk or monitor is down answers when it is up again, and librbd cannot
    /// cancel a request. The engine reports the stall.
    fn timed_out(&mut self, _: Instant, tag: Tag) -> Expiry {
        debug_assert!(self.flight.has(tag), "the engine asks about what is here");
        self.watched.with(|state| state.stalled += 1);
        Expiry::ResetTimer
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.mine.fd())
    }

    /// Waits for the cluster. If the cluster does not answer, the memory of the requests is left to librbd for ever.
    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        loop {
            self.answered(|finished| out.push(finished.rq));
            if self.flight.count() == 0 {
                return;
            }
            if !wait(self.mine.fd(), PATIENCE) {
                self.watched.with(|state| state.given_up += 1);
                return;
            }
        }
    }
}

/// Changes and stalls of an image since it was opened, summed over all queues of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ImageState {
    /// The last known size, in bytes.
    pub size: u64,
    /// The number of times that another client has changed the size. Queues keep their initial size: bytes added later
    /// are not served, and I/O beyond a reduced end fails.
    pub resized: u64,
    /// The number of times that a request had been at the cluster for another 30 s.
    pub stalled: u64,
    /// The number of queues that ended while the cluster had their requests. Their memory and the image stay allocated.
    pub given_up: u64,
}

/// The state, shared by its writers: the hardware queues, and callers that read it.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    state: Mutex<ImageState>,
    /// The open images, one for each call that made queues.
    images: Mutex<Vec<Weak<Image>>>,
}

/// The locks are never poisoned: no code panics while holding them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watched {
    pub(crate) fn new(size: u64) -> Self {
        let state = Mutex::new(ImageState { size, ..ImageState::default() });
        Self { state, images: Mutex::default() }
    }

    /// Registers an image that has been opened.
    pub(crate) fn add(&self, image: &Arc<Image>) {
        let mut images = lock(&self.images);
        images.retain(|image| image.strong_count() > 0);
        images.push(Arc::downgrade(image));
    }

    /// The state, after asking for the size of images that have changed. That may wait for the cluster, so it holds no
    /// lock that a hardware queue takes.
    pub(crate) fn read(&self) -> ImageState {
        let images = Vec::from_iter(lock(&self.images).iter().filter_map(Weak::upgrade));
        for image in images.iter().filter(|image| image.take_change()) {
            if let Some(size) = image.size() {
                self.with(|state| {
                    state.resized += u64::from(state.size != size);
                    state.size = size;
                });
            }
        }
        self.with(|state| *state)
    }

    /// Changes the state under a lock. Only for rare events.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut ImageState) -> R) -> R {
        change(&mut lock(&self.state))
    }
}

/// The number of tickets of a hardware queue.
pub(crate) const TICKETS: usize = crate::options::MAX_DEPTH as usize;
/// The number of polls without a reply after which the descriptor is emptied even though no signal is owed. Otherwise a
/// librbd that signals without a reply would keep threads awake.
const POLLS_IN_VAIN: u32 = 64;

/// The replies to all hardware queues of an image.
pub(crate) struct Replies {
    image: Arc<Image>,
    sorting: Mutex<Sorting>,
    /// The inboxes of the hardware queues; empty if there is only one queue.
    inboxes: Vec<Inbox>,
}

/// The state of the hardware queue that distributes.
#[derive(Default)]
struct Sorting {
    /// Replies taken whose signal has not been consumed: librbd adds a reply first and signals then.
    owed: u64,
    /// Consecutive polls without a reply.
    in_vain: u32,
}

/// The replies that another hardware queue has found.
struct Inbox {
    /// Signalled and emptied under this lock, so that the bell is readable exactly while there is a reply.
    replies: Mutex<Vec<Reply>>,
    bell: OwnedFd,
}

/// The access of one hardware queue to its replies.
pub(crate) struct Mine {
    all: Arc<Replies>,
    number: usize,
    /// Becomes readable with the descriptor of the image or that of the inbox; `None` if there is no inbox.
    either: Option<OwnedFd>,
}

/// The locks are never poisoned: no code panics while holding them.
impl Inbox {
    fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { replies: Mutex::default(), bell })
    }

    fn put(&self, reply: Reply) {
        let mut replies = lock(&self.replies);
        if replies.is_empty() {
            ring(&self.bell);
        }
        replies.push(reply);
    }

    fn take(&self, out: &mut Vec<Reply>) {
        let mut replies = lock(&self.replies);
        if !replies.is_empty() {
            read(self.bell.as_fd());
            out.append(&mut replies);
        }
    }
}

fn ring(bell: &OwnedFd) {
    // The counter cannot overflow: it is bounded by the number of replies.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

/// Empties an eventfd. Returns the number of signals.
fn read(bell: BorrowedFd<'_>) -> u64 {
    let mut rung = [0; 8];
    match rustix::io::retry_on_intr(|| rustix::io::read(bell, &mut rung[..])) {
        Ok(8) => u64::from_ne_bytes(rung),
        // No signal.
        _ => 0,
    }
}

impl Replies {
    /// # Errors
    /// If the system refuses descriptors.
    pub(crate) fn new(image: Arc<Image>, hw_queues: u16) -> io::Result<Arc<Self>> {
        let count = if hw_queues > 1 { hw_queues } else { 0 };
        let inboxes = (0..count).map(|_| Inbox::new()).collect::<io::Result<_>>()?;
        Ok(Arc::new(Self { image, sorting: Mutex::default(), inboxes }))
    }

    /// Takes all replies from librbd, and moves those of hardware queue `number` to `out`.
    fn sort(&self, number: usize, out: &mut Vec<Reply>) {
        let mut sorting = match self.sorting.try_lock() {
            Ok(sorting) => sorting,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another queue distributes, and signals our inbox. Librbd signals replies that come after its last poll.
            Err(TryLockError::WouldBlock) => return,
        };
        loop {
            let found = self.image.poll(|reply| {
                let of = reply.ticket / TICKETS;
                match self.inboxes.get(of).filter(|_| of != number) {
                    Some(inbox) => inbox.put(reply),
                    None => out.push(reply),
                }
            });
            sorting.owed += found as u64;
            if found > 0 {
                sorting.in_vain = 0;
                continue;
            }
            sorting.in_vain += 1;
            if sorting.owed == 0 && sorting.in_vain < POLLS_IN_VAIN {
                return;
            }
            let rung = read(self.image.bell());
            if rung == 0 {
                // Librbd's thread has added the reply and is about to signal; the next poll consumes the signal.
                sorting.in_vain = 0;
                return;
            }
            // The reply of this signal may not have been taken: poll again.
            sorting.owed = sorting.owed.saturating_sub(rung);
        }
    }
}

impl Mine {
    /// # Errors
    /// If the system refuses descriptors.
    pub(crate) fn new(all: &Arc<Replies>, number: usize) -> io::Result<Self> {
        let either = match all.inboxes.get(number) {
            None => None,
            Some(inbox) => {
                let either = epoll::create(epoll::CreateFlags::CLOEXEC)?;
                for bell in [all.image.bell(), inbox.bell.as_fd()] {
                    epoll::add(&either, bell, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
                }
                Some(either)
            }
        };
        Ok(Self { all: Arc::clone(all), number, either })
    }

    /// Takes the replies to this hardware queue.
    pub(crate) fn take(&self, out: &mut Vec<Reply>) {
        self.all.sort(self.number, out);
        if let Some(inbox) = self.all.inboxes.get(self.number) {
            inbox.take(out);
        }
    }

    /// Readable while there is a reply to take.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.either.as_ref().map_or_else(|| self.all.image.bell(), OwnedFd::as_fd)
    }
}
