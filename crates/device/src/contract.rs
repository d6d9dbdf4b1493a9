//! The contract of a device, checked: the tests that every device must pass with any parameters, provided that its
//! faults are finite; a real queue in virtual time; and a witness of every call. A violation panics with a message. For
//! tests and simulations only: nothing here is fast.
//!
//! Requests cannot be made outside the engine, so a device is tested where it will be used: behind a [`Queue`], driven
//! by a [`Rig`], with a [`Checked`] in between that checks the contract of [`DeviceQueue`].
//!
//! A [`Rig`] is a queue, its submitters and a virtual clock, driven by one thread. Time stands still until nothing is
//! due, then jumps to the next deadline. The rig immediately detects a queue that makes no progress, whether the queue
//! waits for an event that never comes or spins at one instant.
//!
//! A [`Checked`] passes every call on, and panics as soon as the device, or the engine that drives it, breaks the
//! contract: a token lost or returned twice, a tag used twice, DEV_RESOURCE answered without its conditions, an
//! announced time that is not kept, a completion before the announced time, a timeout that comes too early, too late or
//! twice, or a request that exceeds a limit.

use blkmq_core::{
    HwQueue, Instant, IoFlags, IoResult, Limits, Nanos, Op, Payload, Rng, SubmitterId, Tag,
};
use blkmq_engine::{
    BioRef, BioTable, Busy, Completion, Config, DeviceQueue, DeviceQueues, DeviceShape, Enqueued,
    Expiry, Finished, Inflight, Io, NoMerges, Queue, Refusal, Submitter, Verdict,
};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of rounds at one instant without a completion after which the queue counts as spinning. A round ends when
/// the engine hands over, which it does after a few hundred requests.
const PATIENCE: u32 = 1000;

/// The end of an I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// As returned by [`Rig::push`].
    pub cookie: u64,
    /// The result of the I/O.
    pub result: IoResult,
    /// When the I/O was reaped.
    pub at: Instant,
}

/// A queue in virtual time. The payload of an I/O is its cookie, which is checked at completion.
pub struct Rig {
    /// The queue, for its counters.
    pub queue: Queue<u64>,
    /// The virtual time.
    pub now: Instant,
    /// The I/Os that have ended, in order.
    pub ended: Vec<Ended>,
    submitters: Vec<Submitter<u64>>,
    outstanding: BTreeSet<u64>,
    pushed: u64,
}

impl Rig {
    /// Builds a queue with all the submitters that `config` allows for.
    ///
    /// # Panics
    /// If the engine refuses the configuration.
    #[must_use]
    pub fn new(config: Config<u64>) -> Self {
        let submitters = config.submitters;
        let queue = Queue::new(config).expect("the configuration describes a queue");
        let submitter = |_| queue.submitter().expect("the queue was built for as many");
        Self {
            submitters: (0..submitters).map(submitter).collect(),
            queue,
            now: Instant::ZERO,
            ended: Vec::new(),
            outstanding: BTreeSet::new(),
            pushed: 0,
        }
    }

    /// The number of submitters.
    #[must_use]
    pub fn submitters(&self) -> usize {
        self.submitters.len()
    }

    /// I/Os pushed and not yet ended.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.outstanding.len()
    }

    /// Pushes an I/O of submitter `who`; `None` if it has no credit left. Cookies count from zero.
    ///
    /// # Panics
    /// If the queue refuses it for another reason.
    pub fn push(&mut self, who: usize, op: Op, sector: u64, sectors: u32) -> Option<u64> {
        self.push_with(who, op, sector, sectors, IoFlags::NONE)
    }

    /// Like [`push`](Self::push), with flags.
    ///
    /// # Panics
    /// If the queue refuses the I/O for another reason than missing credit.
    pub fn push_with(
        &mut self,
        who: usize,
        op: Op,
        sector: u64,
        sectors: u32,
        flags: IoFlags,
    ) -> Option<u64> {
        let cookie = self.pushed;
        let io = Io { flags, ..Io::new(op, sector, sectors, cookie, cookie) };
        match self.submitters[who].push(self.now, io) {
            Ok(()) => {
                self.pushed += 1;
                self.outstanding.insert(cookie);
                Some(cookie)
            }
            Err(refused) if matches!(refused.why, Refusal::NoCredit { .. }) => None,
            Err(refused) => panic!("{op:?} of {sectors} sectors at {sector}: {refused}"),
        }
    }

    /// Pushes one I/O of submitter 0 and flushes its plug.
    ///
    /// # Panics
    /// If the submitter has no credit left.
    pub fn submit(&mut self, op: Op, sector: u64, sectors: u32) -> u64 {
        let cookie = self.push(0, op, sector, sectors).expect("there is credit for it");
        self.flush(0);
        cookie
    }

    /// Flushes the plug of submitter `who`.
    pub fn flush(&mut self, who: usize) {
        self.submitters[who].flush(self.now);
    }

    /// Reaps the I/Os that previous calls have completed, without polling. Returns their number.
    ///
    /// # Panics
    /// If an I/O ends twice, or completes with the payload of another I/O.
    pub fn reap(&mut self) -> u32 {
        let Self { submitters, outstanding, ended, now, .. } = self;
        let mut take = |done: Completion<u64>| {
            assert_eq!(done.payload, done.cookie, "a completion with another's payload");
            assert!(outstanding.remove(&done.cookie), "I/O {} ended twice", done.cookie);
            ended.push(Ended { cookie: done.cookie, result: done.result, at: *now });
        };
        submitters.iter_mut().map(|submitter| submitter.reap(u32::MAX, &mut take)).sum()
    }

    /// Polls every submitter for work that is due, and reaps. Returns the number of I/Os that ended.
    pub fn poll(&mut self) -> u32 {
        for submitter in &mut self.submitters {
            submitter.poll(self.now);
        }
        self.reap()
    }

    /// The next time at which work is due without a call from a submitter, or `None`.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.submitters.iter().filter_map(Submitter::next_deadline).min()
    }

    /// Flushes every plug, as a thread does before it sleeps, and polls until nothing is due at this instant and every
    /// submitter may park.
    ///
    /// # Panics
    /// If work remains due although no I/O ends.
    pub fn settle(&mut self) {
        (0..self.submitters.len()).for_each(|who| self.flush(who));
        let mut patience = PATIENCE;
        loop {
            if self.poll() > 0 {
                patience = PATIENCE;
            }
            if self.may_sleep() {
                return;
            }
            patience -= 1;
            assert!(patience > 0, "at {:?} something is always due and nothing ends", self.now);
        }
    }

    /// Returns whether every submitter may park until the next deadline.
    fn may_sleep(&mut self) -> bool {
        let now = self.now;
        let all = self.submitters.iter_mut().all(|submitter| {
            let may = submitter.prepare_park(now).is_some();
            submitter.unpark();
            may
        });
        all && self.next_deadline().is_none_or(|at| at > now)
    }

    /// Does all work that is due up to `until`, and sets the clock to it.
    pub fn run_until(&mut self, until: Instant) {
        self.settle();
        while let Some(at) = self.next_deadline().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.settle();
        }
        self.now = self.now.max(until);
    }

    /// Like [`run_until`](Self::run_until), for a span from now.
    pub fn run_for(&mut self, span: Nanos) {
        self.run_until(self.now + span);
    }

    /// Runs until every I/O has ended.
    ///
    /// # Panics
    /// If an I/O never ends.
    pub fn finish(&mut self) {
        self.settle();
        while !self.outstanding.is_empty() {
            let next = self.next_deadline();
            let at = next.unwrap_or_else(|| {
                panic!("{} I/Os are in flight and nothing will ever happen", self.in_flight())
            });
            self.now = self.now.max(at);
            self.settle();
        }
    }

    /// The result of the I/O with this cookie.
    ///
    /// # Panics
    /// If the I/O has not ended.
    #[must_use]
    pub fn ended(&self, cookie: u64) -> Ended {
        let found = self.ended.iter().find(|ended| ended.cookie == cookie);
        *found.unwrap_or_else(|| panic!("I/O {cookie} has not ended"))
    }

    /// Checks that the queue is at rest: it holds nothing, and the counters agree.
    ///
    /// # Panics
    /// If the queue is not at rest.
    pub fn check_at_rest(&self, hw_queues: u16) {
        assert_eq!(self.in_flight(), 0, "I/Os in flight");
        for hw in (0..hw_queues).map(HwQueue) {
            assert_eq!(self.queue.tags_in_use(hw), 0, "driver tags of {hw:?} in use");
        }
        assert_eq!(self.queue.budgets_in_use(), 0, "budgets in use");
        let stats = self.queue.stats();
        assert_eq!(stats.submitted - stats.splits, self.pushed, "{stats:?}");
        assert_eq!(stats.submitted, stats.completed, "{stats:?}");
        let requests = stats.submitted - stats.merges.total();
        let requests = requests.checked_add_signed(stats.flushes.surplus());
        assert_eq!(Some(stats.completed_requests), requests, "{stats:?}");
        assert_eq!(stats.dispatched, stats.completed_requests + stats.requeues, "{stats:?}");
        assert_eq!(stats.issued, stats.dispatched + stats.tail_requeues, "{stats:?}");
    }
}

/// I/Os of a run.
const IOS: u64 = 1000;
/// Submitters; some share a hardware queue and some have their own.
const SUBMITTERS: u16 = 5;
/// Credit of each submitter.
const CREDIT: u32 = 128;

/// The result of a run, by which a caller can check that the run exercised the wanted cases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// I/Os, each of which ended once.
    pub ios: usize,
    /// I/Os that ended with an error.
    pub failed: usize,
    /// Requests that were merged away.
    pub merged: u64,
    /// Times that the device answered RESOURCE.
    pub resource: u64,
    /// Times that the device answered DEV_RESOURCE.
    pub dev_resource: u64,
    /// Requests that the device returned to be requeued.
    pub requeued: u64,
    /// When the last I/O ended.
    pub ended_at: Instant,
}

/// Drives a device with a thousand I/Os drawn from `seed`, under a [`Checked`]: every I/O ends once, tags and budgets
/// are released, announced times are kept, and, without merging, the device sees each submitter's I/Os in the order in
/// which they were submitted. The seed also decides about merging and, with the feature `compare` of the engine, about the
/// access to the elevator.
///
/// # Panics
/// At the first violation.
pub fn conformance(shape: DeviceShape, queues: DeviceQueues<u64>, seed: u64) -> Outcome {
    let mut rng = Rng::new(seed);
    let merging = rng.chance(1, 2);
    let (queues, watch) = Checked::wrap(&shape, queues);
    let config = Config {
        submitters: SUBMITTERS,
        depth: CREDIT,
        nomerges: if merging { NoMerges::All } else { NoMerges::None },
        ..Config::new(shape, queues)
    };
    let mut rig = Rig::new(config.some_access(|choices| rng.below(choices)));
    drive(&mut rig, &shape, &mut rng, IOS);
    rig.finish();
    rig.check_at_rest(shape.hw_queues);
    let watch = lock(&watch);
    if !merging {
        check_order(&watch);
    }
    let flushes = rig.queue.stats().flushes;
    let seen = watch.taken.len() as u64 + flushes.dataless + flushes.needless;
    assert_eq!(seen, IOS, "the device has seen every I/O that is not just a flush");
    Outcome {
        ios: rig.ended.len(),
        failed: rig.ended.iter().filter(|ended| ended.result.is_err()).count(),
        merged: rig.queue.stats().merges.total(),
        resource: watch.resource,
        dev_resource: watch.dev_resource,
        requeued: watch.requeued,
        ended_at: rig.now,
    }
}

/// Dismantles a queue with requests inside: the device must return all of them. Returns their number.
///
/// # Panics
/// If the device keeps a request, or returns one that it did not hold.
pub fn abandonment(shape: DeviceShape, queues: DeviceQueues<u64>, seed: u64) -> usize {
    let mut rng = Rng::new(seed);
    let (queues, watch) = Checked::wrap(&shape, queues);
    let config = Config { submitters: SUBMITTERS, depth: CREDIT, ..Config::new(shape, queues) };
    let mut rig = Rig::new(config);
    for _ in 0..CREDIT {
        let who = rng.below(SUBMITTERS.into()) as usize;
        push(&mut rig, &shape, &mut rng, who);
        rig.flush(who);
    }
    drop(rig);
    lock(&watch).abandoned
}

fn lock(watch: &Mutex<Watch>) -> MutexGuard<'_, Watch> {
    watch.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Pushes bursts of I/Os with short pauses until `ios` have been pushed.
fn drive(rig: &mut Rig, shape: &DeviceShape, rng: &mut Rng, ios: u64) {
    let mut left = ios;
    while left > 0 {
        let who = rng.below(SUBMITTERS.into()) as usize;
        for _ in 0..rng.below(24).min(left) {
            if !push(rig, shape, rng, who) {
                rig.flush(who);
                wait(rig);
                break;
            }
            left -= 1;
        }
        rig.flush(who);
        match rng.below(4) {
            0 => rig.settle(),
            1 => rig.run_for(Nanos(rng.below(20_000))),
            2 => _ = rig.poll(),
            _ => {}
        }
    }
}

/// Advances time until an I/O ends.
fn wait(rig: &mut Rig) {
    let before = rig.ended.len();
    rig.settle();
    while rig.ended.len() == before {
        let at = rig.next_deadline().expect("with I/Os in flight something will happen");
        rig.now = rig.now.max(at);
        rig.settle();
    }
}

/// Pushes one I/O that the device takes whole or in a few parts. Returns false if there is no credit.
fn push(rig: &mut Rig, shape: &DeviceShape, rng: &mut Rng, who: usize) -> bool {
    let limits = &shape.limits;
    let block = limits.logical_block_size / blkmq_core::SECTOR_SIZE;
    let op = match rng.below(16) {
        0 => return rig.push(who, Op::Flush, 0, 0).is_some(),
        1 if limits.max_discard_sectors >= 8 * block => Op::Discard,
        2 if limits.max_write_zeroes_sectors >= 8 * block => Op::WriteZeroes,
        3..10 => Op::Read,
        _ => Op::Write,
    };
    let sectors = block * (1 + rng.below(8) as u32);
    let blocks = limits.capacity.min(1 << 10) / u64::from(block) - 8;
    rig.push(who, op, rng.below(blocks) * u64::from(block), sectors).is_some()
}

/// Checks that each submitter's I/Os reached its hardware queue in the order of their cookies; flushes may overtake.
fn check_order(watch: &Watch) {
    let mut last = BTreeMap::new();
    for taken in watch.taken.iter().filter(|taken| taken.op != Op::Flush) {
        let before = last.insert((taken.hw, taken.submitter), taken.cookie);
        assert!(
            before.is_none_or(|before| before < taken.cookie),
            "{taken:?} came behind {before:?}"
        );
    }
}

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
                assert_eq!(
                    (rq.tag(), rq.sector()),
                    (tag, sector),
                    "the device returned another request"
                );
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
            assert_eq!(rq.tag(), tag, "the device returned another request");
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
            assert!(
                held.deadline > self.now,
                "tag {} has timed out, and the device was not asked",
                tag.0
            );
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
