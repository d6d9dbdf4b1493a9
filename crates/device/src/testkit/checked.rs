//! [`Checked`]: a device with a witness beside it.
//!
//! Passes every call on and panics as soon as the device, or the engine that drives it, breaks the contract
//! of [`DeviceQueue`]: a token swallowed or given back twice, a tag used twice, a DEV_RESOURCE without a
//! promise, a time named and not kept, something finished before the time that was named, a timeout too early,
//! too late or twice; or a request that exceeds a limit.

use blkmq_core::{HwQueue, Instant, Limits, Nanos, Op, SubmitterId, Tag};
use blkmq_engine::DeviceQueues;
use blkmq_engine::{
    BioRef, BioTable, Busy, DeviceQueue, DeviceShape, Enqueued, Expiry, Finished, Inflight, Verdict,
};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

/// A virtual device that has the timer of a request reset more often than this, and names no time at which it will have
/// something, will never answer.
const MOST_RESETS: u32 = 16;

/// An I/O that reached the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// On which hardware queue.
    pub hw: HwQueue,
    /// Who submitted it.
    pub submitter: SubmitterId,
    /// Its cookie.
    pub cookie: u64,
    /// What it asked for.
    pub op: Op,
}

/// What the witnesses of all hardware queues of a device saw.
#[derive(Debug, Default)]
pub struct Watch {
    /// I/Os in the order in which the device first took them.
    pub taken: Vec<Taken>,
    /// Times that the device said RESOURCE.
    pub resource: u64,
    /// Times that the device said DEV_RESOURCE.
    pub dev_resource: u64,
    /// Requests that the device wanted back later.
    pub requeued: u64,
    /// Times that the device was asked about a request whose time was up.
    pub timeouts: u64,
    /// Most requests held by one hardware queue at once.
    pub most_held: usize,
    /// Requests given back because the queue went away.
    pub abandoned: usize,
    seen: BTreeSet<(SubmitterId, u64)>,
}

/// A request inside the device.
struct Held {
    sector: u64,
    /// When its time is up.
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
    /// What the device has not given back, by tag.
    held: BTreeMap<Tag, Held>,
    now: Instant,
    /// The last request offered was refused.
    refused: bool,
    /// With DEV_RESOURCE, and nothing has finished since.
    owes_room: bool,
    /// Something was offered since `next_event` was asked last.
    offered: Cell<bool>,
    /// Something was taken or finished since `next_event` was asked last.
    progress: Cell<bool>,
    /// What `next_event` said, unless something was taken since.
    named: Cell<Option<Instant>>,
}

impl<P: 'static> Checked<P> {
    /// Puts a witness beside each of `queues`; together they write the returned report.
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

impl<P> Checked<P> {
    fn watch(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().expect("a witness that saw a violation has ended the test")
    }

    fn at(&mut self, now: Instant) {
        assert!(now >= self.now, "{:?}: time ran backwards, {now:?} after {:?}", self.hw, self.now);
        self.now = now;
    }

    /// A request as it arrives: rightly addressed, and made of bios that add up to it.
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

    /// A request is within every limit, whether it was merged or divided.
    fn check_limits(&self, bios: &BioTable<P>, rq: &Inflight) {
        let (op, sector, sectors) = (rq.op(), rq.sector(), rq.sectors());
        let limits = &self.limits;
        let what = || format!("{op:?} of {sectors} sectors at {sector}, {limits:?}");
        assert!(sectors <= limits.max_sectors_of(op), "too long: {}", what());
        // What gathered ranges lies in no one chunk.
        let gathered = op == Op::Discard && limits.max_discard_segments > 1 && rq.bio_count() > 1;
        let chunk = u64::from(limits.chunk_sectors);
        if chunk > 0 && !gathered {
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
            let segments: u64 = rq.bios(bios).map(|bio| limits.segments(op, bio.sectors)).sum();
            assert_eq!(segments, rq.segments().into(), "segments are not counted: {}", what());
            assert!(rq.segments() <= limits.max_segments, "too many segments: {}", what());
        }
    }

    fn note_taken(&self, inside: Vec<Taken>) {
        let mut watch = self.watch();
        for taken in inside {
            // A requeued request comes again.
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

impl<P> DeviceQueue<P> for Checked<P> {
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

    fn reap(&mut self, now: Instant, out: &mut Vec<Finished>) {
        self.at(now);
        let before = out.len();
        self.inner.reap(now, out);
        let finished = &out[before..];
        if finished.is_empty() {
            return;
        }
        if let Some(named) = self.named.get() {
            assert!(named <= now, "finished something at {now:?}, having named {named:?}");
        }
        self.progress.set(true);
        // As it promised, whether or not anybody makes use of it.
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
        // One that names a time may be at something that takes as long, for this request or for others before it.
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
            // Room is of no use to a queue that has been told to offer nothing.
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
