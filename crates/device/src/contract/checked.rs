//! [`Checked`]: wraps a device with a witness that checks every call.
//!
//! Passes every call on, and panics as soon as the device, or the engine that drives it, breaks the contract of
//! [`DeviceQueue`]: a token lost or returned twice, a tag used twice, DEV_RESOURCE answered without its conditions, an
//! announced time that is not kept, a completion before the announced time, a timeout that comes too early, too late or
//! twice, or a request that exceeds a limit.

use blkmq_core::{HwQueue, Instant, Limits, Nanos, Op, Payload, SubmitterId, Tag};
use blkmq_engine::DeviceQueues;
use blkmq_engine::{
    BioRef, BioTable, Busy, DeviceQueue, DeviceShape, Enqueued, Expiry, Finished, Inflight, Verdict,
};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

/// The maximum number of timer resets per request, for a device in virtual time that announces no next event. A device
/// that resets it more often never answers.
const MOST_RESETS: u32 = 16;

/// An I/O that reached the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// The hardware queue that the I/O was issued to.
    pub hw: HwQueue,
    /// The submitter of the I/O.
    pub submitter: SubmitterId,
    /// The cookie of the I/O.
    pub cookie: u64,
    /// The operation of the I/O.
    pub op: Op,
}

/// The counters of the witnesses of all hardware queues of a device.
#[derive(Debug, Default)]
pub struct Watch {
    /// I/Os in the order in which the device first took them.
    pub taken: Vec<Taken>,
    /// Times that the device answered RESOURCE.
    pub resource: u64,
    /// Times that the device answered DEV_RESOURCE.
    pub dev_resource: u64,
    /// Requests that the device returned to be requeued.
    pub requeued: u64,
    /// Times that the device was asked about a request that had timed out.
    pub timeouts: u64,
    /// Most requests held by one hardware queue at a time.
    pub most_held: usize,
    /// Requests returned because the queue was dismantled.
    pub abandoned: usize,
    seen: BTreeSet<(SubmitterId, u64)>,
}

/// A request inside the device.
struct Held {
    sector: u64,
    /// When the request times out.
    deadline: Instant,
    resets: u32,
}

/// One hardware queue with its witness.
pub struct Checked<P> {
    inner: Box<dyn DeviceQueue<P>>,
    hw: HwQueue,
    depth: u32,
    limits: Limits,
    timeout: Nanos,
    watch: Arc<Mutex<Watch>>,
    /// Requests that the device holds, by tag.
    held: BTreeMap<Tag, Held>,
    now: Instant,
    /// Whether the last request offered was refused.
    refused: bool,
    /// Whether the last refusal was DEV_RESOURCE, and no request has finished since.
    owes_room: bool,
    /// Whether a request was offered since the last call of `next_event`.
    offered: Cell<bool>,
    /// Whether a request was taken or finished since the last call of `next_event`.
    progress: Cell<bool>,
    /// The last answer of `next_event`, unless a request was taken since.
    named: Cell<Option<Instant>>,
}

impl<P: Payload> Checked<P> {
    /// Wraps each of `queues` in a witness; all witnesses update the returned report.
    #[must_use]
    pub fn wrap(
        shape: &DeviceShape,
        queues: DeviceQueues<P>,
    ) -> (DeviceQueues<P>, Arc<Mutex<Watch>>) {
        let watch = Arc::new(Mutex::new(Watch::default()));
        let wrap = |(hw, inner)| {
            Box::new(Self {
                inner,
                hw: HwQueue(hw),
                depth: shape.hw_queue_depth,
                limits: shape.limits,
                timeout: shape.timeout,
                watch: Arc::clone(&watch),
                held: BTreeMap::new(),
                now: Instant::ZERO,
                refused: false,
                owes_room: false,
                offered: Cell::new(false),
                progress: Cell::new(false),
                named: Cell::new(None),
            }) as Box<dyn DeviceQueue<P>>
        };
        ((0..).zip(queues).map(wrap).collect(), watch)
    }
}

impl<P: Payload> Checked<P> {
    fn watch(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().expect("a witness that saw a violation has ended the test")
    }

    fn at(&mut self, now: Instant) {
        assert!(now >= self.now, "{:?}: time ran backwards, {now:?} after {:?}", self.hw, self.now);
        self.now = now;
    }

    /// Checks a request on arrival: the right hardware queue, a free tag, and bios that add up to it.
    fn check_arrival(&self, bios: &BioTable<P>, rq: &Inflight) {
        assert_eq!(rq.hw(), self.hw, "issued to another hardware queue");
        assert!(rq.tag().0 < self.depth, "tag {} of {}", rq.tag().0, self.depth);
        assert!(!self.held.contains_key(&rq.tag()), "tag {} is in use", rq.tag().0);
        let (mut sectors, mut count) = (0, 0);
        for bio in rq.bios(bios) {
            sectors += bio.sectors;
            count += 1;
        }
        assert_eq!((sectors, count), (rq.sectors(), rq.bio_count()), "bios do not add up");
        if rq.op() != Op::Flush {
            self.check_limits(bios, rq);
        }
    }

    /// Checks that a request is within every limit, whether it was merged or divided.
    fn check_limits(&self, bios: &BioTable<P>, rq: &Inflight) {
        let (op, sector, sectors) = (rq.op(), rq.sector(), rq.sectors());
        let limits = &self.limits;
        let what = || format!("{op:?} of {sectors} sectors at {sector}, {limits:?}");
        assert!(sectors <= limits.max_sectors_of(op), "too long: {}", what());
        let chunk = u64::from(limits.chunk_sectors);
        if chunk > 0 && matches!(op, Op::Read | Op::Write) {
            let last = sector + u64::from(sectors) - 1;
            assert_eq!(sector / chunk, last / chunk, "across a chunk's end: {}", what());
        }
        let block = limits.logical_block_size / blkmq_core::SECTOR_SIZE;
        assert!(
            rq.bios(bios).all(|bio| (bio.sector | u64::from(bio.sectors)) % u64::from(block) == 0),
            "no whole blocks: {}",
            what()
        );
        if matches!(op, Op::Read | Op::Write) {
            let segments: u64 =
                rq.bios(bios).map(|bio| limits.segments_of(op, bio.sectors, bio.payload)).sum();
            assert_eq!(segments, rq.segments().into(), "segments are not counted: {}", what());
            assert!(rq.segments() <= limits.max_segments, "too many segments: {}", what());
        }
    }

    fn note_taken(&self, inside: Vec<Taken>) {
        let mut watch = self.watch();
        for taken in inside {
            // A requeued request arrives again, and must not be listed twice.
            if watch.seen.insert((taken.submitter, taken.cookie)) {
                watch.taken.push(taken);
            }
        }
        watch.most_held = watch.most_held.max(self.held.len());
    }

    fn note_busy(&mut self, why: Busy) {
        self.refused = true;
        self.owes_room = why == Busy::DevResource;
        let mut watch = self.watch();
        match why {
            Busy::Resource => watch.resource += 1,
            Busy::DevResource => watch.dev_resource += 1,
        }
    }

    fn give_back(&mut self, rq: &Inflight) {
        let sector = self.held.remove(&rq.tag()).map(|held| held.sector);
        assert_eq!(sector, Some(rq.sector()), "tag {} was given back, not being held", rq.tag().0);
    }
}

impl<P: Payload> DeviceQueue<P> for Checked<P> {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        self.at(now);
        self.check_arrival(bios, &rq);
        let (tag, sector) = (rq.tag(), rq.sector());
        let (hw, op) = (self.hw, rq.op());
        let taken =
            |bio: BioRef<'_, P>| Taken { hw, submitter: bio.submitter, cookie: bio.cookie, op };
        let inside = rq.bios(bios).map(taken).collect();
        self.offered.set(true);
        let answer = self.inner.enqueue(now, bios, rq);
        match &answer {
            Enqueued::Accepted => {
                let deadline = now + self.timeout;
                self.held.insert(tag, Held { sector, deadline, resets: 0 });
                self.named.set(None);
            }
            Enqueued::Done(rq, _) | Enqueued::Busy(rq, _) => {
                assert_eq!((rq.tag(), rq.sector()), (tag, sector), "another request came back");
            }
        }
        if let Enqueued::Busy(_, why) = answer {
            self.note_busy(why);
        } else {
            (self.refused, self.owes_room) = (false, false);
            self.progress.set(true);
            self.note_taken(inside);
        }
        answer
    }

    fn commit(&mut self, now: Instant) {
        self.at(now);
        self.inner.commit(now);
    }

    fn reap(&mut self, now: Instant, bios: &BioTable<P>, out: &mut Vec<Finished>) {
        self.at(now);
        let before = out.len();
        self.inner.reap(now, bios, out);
        let finished = &out[before..];
        if finished.is_empty() {
            return;
        }
        if let Some(named) = self.named.get() {
            assert!(named <= now, "finished something at {now:?}, having named {named:?}");
        }
        self.progress.set(true);
        // The finished request fulfils the promise of DEV_RESOURCE, whether or not the engine uses the room.
        self.owes_room = false;
        for done in finished {
            self.give_back(&done.rq);
        }
        let back = |verdict| matches!(verdict, Verdict::Requeue | Verdict::RequeueTail);
        let requeued = finished.iter().filter(|done| back(done.verdict)).count();
        self.watch().requeued += requeued as u64;
    }

    fn timed_out(&mut self, now: Instant, tag: Tag) -> Expiry {
        self.at(now);
        self.watch().timeouts += 1;
        let all = self.held.len();
        let held = self.held.get_mut(&tag);
        let held = held.unwrap_or_else(|| panic!("tag {} timed out, not being held", tag.0));
        assert!(held.deadline <= now, "tag {} timed out too early, or twice", tag.0);
        held.deadline = now + self.timeout;
        // A device that announces a time may be busy until then with this request or with earlier ones.
        let is_idle = self.inner.next_event().is_none_or(|at| at == Instant::MAX);
        held.resets += u32::from(is_idle);
        assert!(held.resets <= MOST_RESETS, "holds {all} requests for ever");
        let answer = self.inner.timed_out(now, tag);
        if let Expiry::Done(rq, _) = &answer {
            assert_eq!(rq.tag(), tag, "another request came back");
            self.give_back(rq);
        }
        self.progress.set(true);
        answer
    }

    fn has_own_work(&self) -> bool {
        self.inner.has_own_work()
    }

    fn next_event(&self) -> Option<Instant> {
        let named = self.inner.next_event();
        self.named.set(named);
        let offered = self.offered.replace(false);
        for (tag, held) in &self.held {
            assert!(held.deadline > self.now, "tag {} has timed out, and nobody asked", tag.0);
        }
        let never = named == Some(Instant::MAX);
        let promised = !self.held.is_empty() || named.is_some() && !never;
        assert!(
            promised || !self.owes_room,
            "DEV_RESOURCE with nothing in service and no time named"
        );
        if let Some(at) = named {
            // A queue that is configured to offer nothing cannot use the room.
            let unused = self.refused && !offered;
            let kept = at > self.now || self.progress.get() || unused;
            assert!(kept, "named {at:?}, and at {:?} nothing had happened", self.now);
        }
        self.progress.set(false);
        named
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        let before = out.len();
        self.inner.abandon(out);
        if std::thread::panicking() {
            return;
        }
        self.watch().abandoned += out.len() - before;
        for rq in &out[before..] {
            self.give_back(rq);
        }
        assert!(self.held.is_empty(), "kept {} requests for good", self.held.len());
    }
}
