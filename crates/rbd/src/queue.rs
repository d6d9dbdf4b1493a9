//! [`RbdQueue`]: one hardware queue of an image; and [`ImageState`]: changes and stalls of the image since it was
//! opened.

use crate::replies::Mine;
use crate::sys::{Flight, Image, Reply, wait};
use blkmq_buf::IoBuf;
use blkmq_core::{Instant, IoError, Op, Tag};
use blkmq_engine::{BioTable, Busy, DeviceQueue, Enqueued, Expiry, Finished, Inflight};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

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
