//! Elevator logs: every call of a policy and every answer, with times.
//!
//! An [`ElevatorLog`] is filled by observers beside policies, in real or in virtual time: a recorder writes down every
//! call. It locks a mutex for each call. Only the reader of the log shares the mutex, and it comes after the recorder
//! has gone, so that the lock is not contended. [`ElevatorLog::bytes`] encodes the log, and [`Log`] decodes it. The
//! format is in `wire.rs`.

mod wire;

pub use crate::watched::{Entry, Heard};
pub use wire::{Call, Instance, Log, LogError};

use crate::watched::{PolicyWatch, watched_for_a_while};
use blkmq_core::Instant;
use blkmq_engine::PolicyObserver;
use blkmq_sched::{Cx, Factory, Options, Scheduler, Shape};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::{put_begin, put_end, put_instance};

/// Bytes of calls that are allocated at a time: some three thousand calls.
const CHUNK: usize = 64 << 10;
/// An upper bound of the length of a call, which is bounded by the longest name of an attribute.
const LONGEST_CALL: usize = 512;

/// The calls of the policies of one queue; clones share the log. Its memory is bounded over all policies, including
/// those of later schedulers.
#[derive(Clone)]
pub struct ElevatorLog(Arc<Inner>);

struct Inner {
    /// Bytes that may still be allocated.
    left: AtomicUsize,
    /// Whether a call found no room.
    is_full: AtomicBool,
    instances: Mutex<Vec<Arc<Mutex<Part>>>>,
}

impl fmt::Debug for ElevatorLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ElevatorLog").finish_non_exhaustive()
    }
}

struct Part {
    policy: &'static str,
    shape: Shape,
    options: Vec<(&'static str, i64)>,
    /// The calls; none is split between chunks.
    chunks: Vec<Vec<u8>>,
    missed: u64,
    latest: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    /// Allocates a chunk for calls, or returns `None` if the capacity is used up.
    fn chunk(&self) -> Option<Vec<u8>> {
        // Relaxed: a count that orders nothing.
        let take = |left: usize| (left > 0).then(|| left - left.min(CHUNK));
        let before = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let Ok(before) = before else {
            self.is_full.store(true, Ordering::Relaxed);
            return None;
        };
        Some(Vec::with_capacity(before.min(CHUNK) + LONGEST_CALL))
    }
}

impl ElevatorLog {
    /// An empty log that keeps `capacity` bytes of calls. Allocates as it fills, 64 KiB at a time.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self(Arc::new(Inner {
            left: AtomicUsize::new(capacity),
            is_full: AtomicBool::new(false),
            instances: Mutex::default(),
        }))
    }

    /// The number of calls that are missing from the log.
    #[must_use]
    pub fn missed(&self) -> u64 {
        lock(&self.0.instances).iter().map(|part| lock(part).missed).sum()
    }

    /// Returns whether a call found no room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        // Relaxed: as in `chunk`.
        self.0.is_full.load(Ordering::Relaxed)
    }

    /// Encodes the present contents of the log. `command` is the command line that made the log. A recorder that is
    /// still beside its policy blocks for this call.
    #[must_use]
    pub fn bytes(&self, command: &str) -> Vec<u8> {
        let mut out = put_begin(command);
        for part in &*lock(&self.0.instances) {
            let Part { policy, shape, options, chunks, missed, .. } = &*lock(part);
            put_instance(&mut out, policy, shape, options, (*missed, chunks));
        }
        put_end(&mut out);
        out
    }

    /// An observer that records the calls of a policy created by `policy`.
    #[must_use]
    pub fn beside(
        &self,
        policy: &'static Factory,
        shape: &Shape,
        options: &Options,
    ) -> Box<dyn PolicyWatch> {
        let names = policy.attributes.iter().map(|attribute| attribute.name);
        let given = names.filter_map(|name| Some((name, options.given(name)?)));
        let part = Part {
            policy: policy.name,
            shape: *shape,
            options: given.collect(),
            chunks: Vec::new(),
            missed: 0,
            latest: Instant::ZERO,
        };
        let part = Arc::new(Mutex::new(part));
        lock(&self.0.instances).push(Arc::clone(&part));
        Box::new(Recorder { part, log: Arc::clone(&self.0) })
    }
}

impl PolicyObserver for ElevatorLog {
    fn around(
        &self,
        policy: Box<dyn Scheduler>,
        factory: &'static Factory,
        shape: &Shape,
        options: &Options,
    ) -> Box<dyn Scheduler> {
        watched_for_a_while(policy, self.beside(factory, shape, options))
    }
}

struct Recorder {
    part: Arc<Mutex<Part>>,
    log: Arc<Inner>,
}

impl Part {
    /// The chunk for the next call, or `None` if the log is full.
    fn room(&mut self, log: &Inner) -> Option<&mut Vec<u8>> {
        let is_full = |chunk: &Vec<u8>| chunk.capacity() - chunk.len() < LONGEST_CALL;
        if self.chunks.last().is_none_or(is_full) {
            self.chunks.push(log.chunk()?);
        }
        self.chunks.last_mut()
    }
}

impl Recorder {
    /// Records a call. A call without a time gets the time of the previous call.
    fn note(&self, now: Option<Instant>, entry: Entry<'_>) {
        let part = &mut *lock(&self.part);
        let now = now.unwrap_or(part.latest);
        let before = part.latest;
        // Calls after a missing one could refer to requests that the log does not know.
        let room = if part.missed > 0 { None } else { part.room(&self.log) };
        match room {
            Some(room) => {
                Call { now, entry }.put(before, room);
                part.latest = now;
            }
            None => part.missed += 1,
        }
    }
}

impl PolicyWatch for Recorder {
    fn called(&mut self, cx: &Cx<'_>, entry: &Entry<'_>) {
        self.note(Some(cx.now), *entry);
    }

    fn told(&mut self, entry: &Entry<'_>) {
        self.note(None, *entry);
    }
}
