//! All test files in one program, so that the engine's generic code is compiled and linked only once; and their
//! helpers. `cargo test -p blkmq-device --test all conformance::` runs one file.
//!
//! The helpers: devices by description; a log of the calls to a scheduler and to a device, in order; [`Disk`]: a queue
//! around a memory device, for I/Os that carry bytes; and [`Job`]: a closed loop of I/Os on a device, alone or with
//! other jobs, and its measurements. Virtual time, driven by one thread.

mod conformance;
mod crash;
mod faults;
mod flash_behaviour;
mod framework;
mod null_blk;
mod published;
mod stress;

use blkmq_core::{Buffer, HwQueue, Instant, IoFlags, IoResult, Nanos, Op, Rng, SECTOR_SIZE, Tag};
use blkmq_device::contract::Rig;
use blkmq_device::{Device, MachineShape, registry};
use blkmq_engine::{
    Access, BioTable, Config, DeviceQueue, Enqueued, Expiry, Finished, Inflight, Io, NoMerges,
    Queue, Submitter,
};
use blkmq_sched::{Bypass, Cx, Factory, Facts, Observed, Observer, Pick, Scheduler, Scope, none};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The machine that determines the defaults of devices in all tests.
const HOST: MachineShape = MachineShape { cpus: 4, nodes: 2 };

/// The null device with these parameters.
fn null(text: &str) -> Device {
    device("null", text)
}

/// A device of the registry with these parameters.
fn device(name: &str, text: &str) -> Device {
    described([name, text].join(if text.is_empty() { "" } else { "," }).as_str())
}

/// The device of this description.
fn described(text: &str) -> Device {
    registry::parse(text, &HOST).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// A queue around `device` without merging, so that every I/O is a request.
fn unmerged(device: &Device, submitters: u16, depth: u32) -> Config<u64> {
    Config { nomerges: NoMerges::None, submitters, depth, ..device.config() }
}

/// A rig on such a queue, with one submitter that has ample credit.
fn rig(device: &Device) -> Rig {
    Rig::new(unmerged(device, 1, 4096))
}

/// A call to the scheduler or to the device, with its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    /// The scheduler picked the request at this sector.
    Picked(u64),
    /// The scheduler was asked and picked no request.
    AskedInVain,
    /// The device took the request at this sector.
    Taken(u64),
    /// The device refused the request at this sector.
    Refused(u64),
}

thread_local! {
    static EVENTS: RefCell<Vec<Event>> = const { RefCell::new(Vec::new()) };
}

fn note(event: Event) {
    EVENTS.with_borrow_mut(|events| events.push(event));
}

/// Returns, and clears, the events on this thread since the last call.
fn events() -> Vec<Event> {
    EVENTS.take()
}

/// A rig around `device` that records [`events`] of its scheduler, `none`, and of its hardware queues.
fn observed(device: &Device, access: Access) -> Rig {
    let tap = |inner| Box::new(Tap(inner)) as Box<dyn DeviceQueue<u64>>;
    let queues = device.queues().into_iter().map(tap).collect();
    let config = Config::new(device.shape, queues).scheduler(&OBSERVED);
    let nr_requests = Some(128);
    Rig::new(Config { access, nomerges: NoMerges::None, depth: 4096, nr_requests, ..config })
}

const OBSERVED: Factory = Factory {
    name: "observed",
    summary: "none, under observation",
    scope: Scope::HwQueue,
    attributes: &[],
    common: None,
    build: |shape, options| Box::new(Observed::new((none::FACTORY.build)(shape, options), Picks)),
};

struct Picks;

impl Observer for Picks {
    fn facts(&self, policy: &dyn Scheduler) -> Facts {
        Facts { bypass: Bypass::Never, ..policy.facts() }
    }

    fn pick(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, hw: HwQueue) -> Pick {
        let pick = policy.pick(cx, hw);
        note(match pick {
            Pick::Issue(id) => Event::Picked(cx.requests.get(id).sector),
            _ => Event::AskedInVain,
        });
        pick
    }
}

struct Tap(Box<dyn DeviceQueue<u64>>);

impl DeviceQueue<u64> for Tap {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<u64>, rq: Inflight) -> Enqueued {
        let sector = rq.sector();
        let answer = self.0.enqueue(now, bios, rq);
        let refused = matches!(answer, Enqueued::Busy(..));
        note(if refused { Event::Refused(sector) } else { Event::Taken(sector) });
        answer
    }

    fn commit(&mut self, now: Instant) {
        self.0.commit(now);
    }

    fn reap(&mut self, now: Instant, bios: &BioTable<u64>, out: &mut Vec<Finished>) {
        self.0.reap(now, bios, out);
    }

    fn timed_out(&mut self, now: Instant, tag: Tag) -> Expiry {
        self.0.timed_out(now, tag)
    }

    fn next_event(&self) -> Option<Instant> {
        self.0.next_event()
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.0.abandon(out);
    }
}

/// The result of an I/O, and its bytes.
struct Done {
    result: IoResult,
    bytes: Vec<u8>,
}

struct Disk {
    queue: Queue<Buffer>,
    now: Instant,
    done: BTreeMap<u64, Done>,
    submitters: Vec<Submitter<Buffer>>,
    pushed: u64,
    ended: u64,
}

impl Disk {
    fn new(config: Config<Buffer>) -> Self {
        let submitters = config.submitters;
        let queue = Queue::new(config).expect("a queue");
        let submitters = (0..submitters).map(|_| queue.submitter().expect("room")).collect();
        let done = BTreeMap::new();
        Self { queue, now: Instant::ZERO, done, submitters, pushed: 0, ended: 0 }
    }

    /// A queue with one submitter and without merging.
    fn plain(device: &Device) -> Self {
        let nomerges = NoMerges::None;
        Self::new(Config { nomerges, depth: 256, ..device.config() })
    }

    /// Pushes an I/O with `bytes`; their length is the length of the I/O. Returns its cookie; cookies count from zero.
    fn push(&mut self, who: usize, op: Op, sector: u64, bytes: Vec<u8>, flags: IoFlags) -> u64 {
        let sectors = bytes.len() as u32 / SECTOR_SIZE;
        let io = Io::new(op, sector, sectors, self.pushed, Buffer::new(bytes));
        let io = Io { flags: io.flags | flags, ..io };
        self.submitters[who].push(self.now, io).expect("it is taken");
        self.pushed += 1;
        self.pushed - 1
    }

    fn in_flight(&self) -> u64 {
        self.pushed - self.ended
    }

    /// Flushes the plugs and polls until no work is due now.
    fn settle(&mut self) {
        let Self { submitters, now, done, ended, .. } = self;
        let now = *now;
        // A pass may leave work for the next; there are never more than a few hundred consecutive passes.
        for _ in 0..1000 {
            for submitter in submitters.iter_mut() {
                submitter.flush(now);
                submitter.poll(now);
                *ended += u64::from(submitter.reap(u32::MAX, |io| {
                    let bytes = io.payload.into_inner();
                    done.insert(io.cookie, Done { result: io.result, bytes });
                }));
            }
            let rests = submitters.iter_mut().all(|submitter| {
                let may = submitter.prepare_park(now).is_some();
                submitter.unpark();
                may
            });
            if rests && submitters.iter().all(|s| s.next_deadline().is_none_or(|at| at > now)) {
                return;
            }
        }
        panic!("at {now:?} something is always due");
    }

    fn run_for(&mut self, span: Nanos) {
        let until = self.now + span;
        self.settle();
        while let Some(at) = self.deadline().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.settle();
        }
        self.now = until;
    }

    fn deadline(&self) -> Option<Instant> {
        self.submitters.iter().filter_map(Submitter::next_deadline).min()
    }

    /// Runs until no I/O is in flight.
    fn finish(&mut self) {
        self.settle();
        while self.in_flight() > 0 {
            let at = self.deadline().expect("with I/Os in flight something will happen");
            self.now = self.now.max(at);
            self.settle();
        }
    }

    /// Does one I/O and runs until it has ended.
    fn one(&mut self, op: Op, sector: u64, bytes: Vec<u8>) -> Done {
        self.one_with(op, sector, bytes, IoFlags::NONE)
    }

    fn one_with(&mut self, op: Op, sector: u64, bytes: Vec<u8>, flags: IoFlags) -> Done {
        let cookie = self.push(0, op, sector, bytes, flags);
        self.finish();
        self.done.remove(&cookie).expect("it has ended")
    }

    /// Reads `sectors` sectors; panics if the read fails.
    fn read(&mut self, sector: u64, sectors: usize) -> Vec<u8> {
        let done = self.one(Op::Read, sector, vec![0xaa; sectors * SECTOR_SIZE as usize]);
        done.result.expect("it can be read");
        done.bytes
    }
}

/// Word 0 of a block's stamp, before the version is mixed in.
fn mark(block: u64) -> u64 {
    block.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Fills a block with its stamp: each word depends on the block's number and version, so that a misplaced or torn block
/// is detected. Version 0 is all zeroes.
fn stamp(block: u64, version: u64, out: &mut [u8]) {
    for (at, word) in out.chunks_exact_mut(8).enumerate() {
        let value = mark(block) ^ version << 20 ^ at as u64;
        word.copy_from_slice(&if version == 0 { 0 } else { value }.to_le_bytes());
    }
}

/// The stamp found in a block.
enum Stamp {
    Zeroes,
    Version(u64),
    Torn,
}

/// Reads the stamp of `block` from all of its bytes.
fn read_stamp(block: u64, bytes: &[u8]) -> Stamp {
    if bytes.iter().all(|byte| *byte == 0) {
        return Stamp::Zeroes;
    }
    let first = bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    let version = (first ^ mark(block)) >> 20;
    let mut expected = vec![0; bytes.len()];
    stamp(block, version, &mut expected);
    if version > 0 && expected == bytes { Stamp::Version(version) } else { Stamp::Torn }
}

/// The order of a job's offsets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pattern {
    Random,
    Sequential,
}

/// A number of I/Os, with a fixed number in flight.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Job {
    pattern: Pattern,
    bytes: u32,
    /// The percentage of reads.
    reads: u64,
    depth: u32,
    /// The number of I/Os; the first quarter is not measured.
    ios: u64,
    /// The average interval between I/Os, which limits the rate; zero for no limit.
    every: Nanos,
}

/// The measurements of a job.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    iops: u64,
    /// 10^6 bytes per second.
    mbps: u64,
    /// Mean latencies in nanoseconds; 0 without such I/Os.
    read_ns: u64,
    write_ns: u64,
    /// The 99th percentile of read latencies in ns.
    read_p99_ns: u64,
}

impl Job {
    /// A job of random I/Os of 4 KiB.
    fn random(reads: u64, depth: u32, ios: u64) -> Self {
        let every = Nanos::ZERO;
        Self { pattern: Pattern::Random, bytes: 4096, reads, depth, ios, every }
    }

    /// A job of sequential I/Os of 128 KiB.
    fn sequential(reads: u64, depth: u32, ios: u64) -> Self {
        Self { pattern: Pattern::Sequential, bytes: 128 << 10, ..Self::random(reads, depth, ios) }
    }

    fn run(&self, device: &Device) -> Measured {
        run_beside(&[*self], device)[0]
    }

    fn sectors(&self) -> u32 {
        self.bytes / SECTOR_SIZE
    }

    fn place(&self, device: &Device, nth: u64, rng: &mut Rng) -> u64 {
        let sectors = u64::from(self.sectors());
        let places = device.shape.limits.capacity / sectors;
        let place = match self.pattern {
            Pattern::Random => rng.below(places),
            Pattern::Sequential => nth % places,
        };
        place * sectors
    }
}

/// Runs jobs concurrently until the first has ended. Returns the measurements of each.
fn run_beside(jobs: &[Job], device: &Device) -> Vec<Measured> {
    let depth = jobs.iter().map(|job| job.depth).sum::<u32>();
    let queue = Queue::new(unmerged(device, 1, 2 * depth)).expect("a queue");
    let mut submitter = queue.submitter().expect("there is room for one");
    let mut all = Vec::from_iter(jobs.iter().map(|job| Books::new(job, depth)));
    let mut now = Instant::ZERO;
    while all[0].ended < jobs[0].ios {
        for (nth, (job, books)) in (0..).zip(jobs.iter().zip(&mut all)) {
            books.push(job, nth << 32, now, device, &mut submitter);
        }
        submitter.flush(now);
        let ended = submitter.reap(u32::MAX, |done| {
            assert_eq!(done.result, Ok(()));
            let nth = (done.cookie >> 32) as usize;
            all[nth].end(&jobs[nth], done.cookie & u64::from(u32::MAX), now);
        });
        if ended == 0 {
            let next = submitter.next_deadline().expect("something will happen");
            let due = all.iter().zip(jobs).map(|(books, job)| books.due(job));
            now = now.max(due.fold(next, Instant::min));
            submitter.poll(now);
        }
    }
    all.iter_mut().zip(jobs).map(|(books, job)| books.measured(job, now)).collect()
}

/// The state of a running job.
struct Books {
    /// The seed differs between jobs: overwriting blocks in the order of an earlier job would amount to sequential
    /// writes.
    rng: Rng,
    /// For each cookie in use, the time of its push and its operation.
    inside: Vec<(Instant, Op)>,
    /// The unused cookies.
    free: Vec<u64>,
    pushed: u64,
    ended: u64,
    /// The start of the measurement.
    from: Instant,
    /// The number of I/Os that had ended by then.
    before: u64,
    /// Latencies of reads and writes.
    latency: [Vec<u64>; 2],
}

impl Books {
    fn new(job: &Job, depth: u32) -> Self {
        Self {
            rng: Rng::new(job.every.0 << 40 ^ job.reads << 32 | u64::from(depth)),
            inside: vec![(Instant::ZERO, Op::Read); job.depth as usize],
            free: (0..u64::from(job.depth)).collect(),
            pushed: 0,
            ended: 0,
            from: Instant::ZERO,
            before: 0,
            latency: [Vec::new(), Vec::new()],
        }
    }

    /// The time of the next push if only the rate limit delays it.
    fn due(&self, job: &Job) -> Instant {
        let waits = job.every > Nanos::ZERO && !self.free.is_empty();
        if waits { Instant::ZERO + Nanos(job.every.0 * self.pushed) } else { Instant::MAX }
    }

    /// Pushes I/Os as far as depth and rate allow.
    fn push(
        &mut self,
        job: &Job,
        tagged: u64,
        now: Instant,
        device: &Device,
        submitter: &mut Submitter<u64>,
    ) {
        while self.pushed < job.ios
            && Instant::ZERO + Nanos(job.every.0 * self.pushed) <= now
            && let Some(cookie) = self.free.pop()
        {
            let op = if self.rng.below(100) < job.reads { Op::Read } else { Op::Write };
            self.inside[cookie as usize] = (now, op);
            let sector = job.place(device, self.pushed, &mut self.rng);
            self.pushed += 1;
            let io = Io::new(op, sector, job.sectors(), tagged | cookie, tagged | cookie);
            submitter.push(now, io).expect("there is credit");
        }
    }

    fn end(&mut self, job: &Job, cookie: u64, now: Instant) {
        let (at, op) = self.inside[cookie as usize];
        self.free.push(cookie);
        self.ended += 1;
        if self.ended == job.ios / 4 {
            (self.from, self.before) = (now, self.ended);
            self.latency.iter_mut().for_each(Vec::clear);
        }
        self.latency[usize::from(op.is_write())].push((now - at).0);
    }

    fn measured(&mut self, job: &Job, now: Instant) -> Measured {
        let ns = (now - self.from).0.max(1);
        let counted = self.ended - self.before;
        let mean = |all: &[u64]| all.iter().sum::<u64>().checked_div(all.len() as u64).unwrap_or(0);
        let [reads, writes] = &mut self.latency;
        reads.sort_unstable();
        let p99 = reads.get(reads.len() * 99 / 100);
        Measured {
            iops: counted * 1_000_000_000 / ns,
            mbps: (u128::from(counted) * u128::from(job.bytes) * 1000 / u128::from(ns)) as u64,
            read_ns: mean(reads),
            write_ns: mean(writes),
            read_p99_ns: p99.copied().unwrap_or(0),
        }
    }
}
