//! Data integrity. Under load: threads write stamped blocks and read them back, with merging, faults at the device and
//! flushes, while the queue is reconfigured again and again. In lists: payloads in one range of memory and in many,
//! against one model. The contents and the completions do not depend on the cuts, on every device, with divided and
//! merged I/Os, faults and lost requests.
//!
//! `BLKMQ_SWITCHES` is the number of reconfigurations (default 100); `cargo test -p blkmq --test all -- integrity::
//! --nocapture` prints the results. `BLKMQ_LIST_SEEDS` is the number of seeds for each device (default 6); `cargo xtask
//! soak` runs more.

use crate::nbd_server::with_server;
use blkmq::core::{Buffer, Limits, Nanos, Rng};
use blkmq::engine::{Access, DeviceShape, Plan, PumpMode, Refusal};
use blkmq::prelude::*;
use blkmq::sched::registry;
use blkmq::{AlignedBuf, BlockDevice, BufList, Config, Device, IoBuf, IoResult, Payload};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const THREADS: u16 = 4;
const DEPTH: u32 = 16;
/// Blocks of each thread; the regions of threads do not overlap.
const BLOCKS: u64 = 512;
const BLOCK: usize = 4096;
const BLOCK_SECTORS: u32 = BLOCK as u32 / 512;
/// I/Os of all threads between two reconfigurations: a few milliseconds of work.
const BETWEEN: u64 = 200;

/// Fills `bytes` with the content of block `block` of `thread` after its `generation`th write: its name, and noise
/// derived from the name, so that a byte from any other block or write is detected.
fn stamp(thread: u16, block: u64, generation: u32, bytes: &mut [u8]) {
    let name = u64::from(thread) << 48 | block << 32 | u64::from(generation);
    let mut noise = Rng::new(name);
    bytes[..8].copy_from_slice(&name.to_le_bytes());
    for word in bytes[8..].chunks_exact_mut(8) {
        word.copy_from_slice(&noise.next_u64().to_le_bytes());
    }
}

/// A thread and its blocks: how often each block was written, and whether an I/O for it is in flight.
struct Worker<'a> {
    thread: u16,
    client: Client<Buffer>,
    rng: Rng,
    written: Vec<u32>,
    busy: Vec<bool>,
    done: &'a AtomicU64,
    expected: Vec<u8>,
    checked: u64,
    longest: Nanos,
}

impl Worker<'_> {
    fn run(mut self, over: &AtomicBool) -> (u64, Nanos) {
        let mut last = self.client.clock().now();
        while !over.load(Ordering::Acquire) {
            let now = self.client.clock().now();
            while self.client.in_flight() < DEPTH {
                self.submit(now);
            }
            self.client.flush_at(now);
            self.take(1);
            let now = self.client.clock().now();
            self.longest = self.longest.max(now - last);
            last = now;
        }
        self.take(DEPTH);
        // Read all blocks once more, with no other I/O in flight.
        for block in 0..BLOCKS {
            self.push(self.client.clock().now(), Op::Read, block);
            self.take(1);
        }
        (self.checked, self.longest)
    }

    fn submit(&mut self, now: blkmq::core::Instant) {
        let mut block = self.rng.below(BLOCKS);
        while self.busy[block as usize] {
            block = (block + 1) % BLOCKS;
        }
        let op = if self.rng.chance(1, 2) { Op::Read } else { Op::Write };
        self.push(now, op, block);
        // Often push an I/O for the next block as well, so that they merge.
        let next = (block + 1) % BLOCKS;
        if self.rng.chance(1, 2) && self.client.in_flight() < DEPTH && !self.busy[next as usize] {
            self.push(now, op, next);
        }
    }

    fn push(&mut self, now: blkmq::core::Instant, op: Op, block: u64) {
        let mut bytes = vec![0; BLOCK];
        if op == Op::Write {
            self.written[block as usize] += 1;
            stamp(self.thread, block, self.written[block as usize], &mut bytes);
        }
        self.busy[block as usize] = true;
        let sector = (u64::from(self.thread) * BLOCKS + block) * u64::from(BLOCK_SECTORS);
        let mut io = Io::new(
            op,
            sector,
            BLOCK_SECTORS,
            block << 1 | u64::from(op.is_write()),
            Buffer::new(bytes),
        );
        if op == Op::Write && self.rng.chance(1, 8) {
            io.flags = IoFlags::FUA;
        }
        self.client.push_at(now, io).expect("there is credit for it");
    }

    /// Waits for at least `least` completions and checks the data of reads.
    fn take(&mut self, least: u32) {
        let mut came = Vec::new();
        self.client.wait(least, DEPTH, |io| came.push(io));
        for io in came {
            let (block, write) = (io.cookie >> 1, io.cookie & 1 == 1);
            io.result.expect("faults that fail I/Os are not among these");
            self.busy[block as usize] = false;
            self.done.fetch_add(1, Ordering::Relaxed);
            if write {
                continue;
            }
            let (expected, generation) = (&mut self.expected, self.written[block as usize]);
            expected.fill(0);
            if generation > 0 {
                stamp(self.thread, block, generation, expected);
            }
            assert!(
                *expected == io.payload.into_inner(),
                "thread {}, block {block} is not what write {generation} left there",
                self.thread
            );
            self.checked += 1;
        }
    }
}

/// Returns the `nth` plan: schedulers, depths, scopes and access modes take turns.
fn next_plan(plan: Plan, nth: u64) -> Plan {
    let all = registry::ALL;
    let plan = plan.scheduler(all[nth as usize % all.len()]);
    let scopes = [None, Some(blkmq::sched::Scope::Queue), Some(blkmq::sched::Scope::HwQueue)];
    Plan {
        nr_requests: [None, Some(4), Some(64), Some(9)][nth as usize / 2 % 4],
        scope: scopes[nth as usize / 3 % 3],
        access: if nth % 16 < 12 { Access::Combining } else { Access::Mutex },
        ..plan
    }
}

fn hammer(device: &str, pump: PumpMode) {
    let switches = std::env::var("BLKMQ_SWITCHES")
        .map_or(100, |n| n.parse::<u64>().expect("BLKMQ_SWITCHES is a number"));
    let device = blkmq::device(device).expect("a device");
    let mut config = device.config::<Buffer>();
    (config.submitters, config.depth, config.pump) = (THREADS, DEPTH, pump);
    let service = Service::start(config).expect("a queue");
    let (done, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (mut longest_switch, mut checked, mut longest) = (Nanos::ZERO, 0, Nanos::ZERO);
    std::thread::scope(|scope| {
        let work = |thread| {
            let (service, done, over) = (&service, &done, &over);
            scope.spawn(move || {
                let worker = Worker {
                    thread,
                    client: service.client().expect("one for each thread"),
                    rng: Rng::new(thread.into()),
                    written: vec![0; BLOCKS as usize],
                    busy: vec![false; BLOCKS as usize],
                    done,
                    expected: vec![0; BLOCK],
                    checked: 0,
                    longest: Nanos::ZERO,
                };
                worker.run(over)
            })
        };
        let workers = Vec::from_iter((0..THREADS).map(work));
        for nth in 0..switches {
            let target = done.load(Ordering::Relaxed) + BETWEEN;
            while done.load(Ordering::Relaxed) < target {
                assert!(
                    !workers.iter().any(std::thread::ScopedJoinHandle::is_finished),
                    "a thread has failed"
                );
                std::thread::yield_now();
            }
            let took = service.edit(|plan| {
                *plan = next_plan(plan.clone(), nth);
                Ok::<(), std::convert::Infallible>(())
            });
            let took = took.expect("a plan that is possible");
            longest_switch = longest_switch.max(took);
        }
        over.store(true, Ordering::Release);
        for worker in workers {
            let (blocks, stall) = worker.join().expect("a thread that found nothing wrong");
            checked += blocks;
            longest = longest.max(stall);
        }
    });
    let stats = service.stats();
    assert_eq!(stats.submitted, stats.completed, "{stats:?}");
    assert!(
        stats.merges.total() > 0 && stats.requeues > 0,
        "nothing merged or came back: {stats:?}"
    );
    println!(
        "{switches} changes of the queue under {THREADS} threads: {} I/Os, 0 lost; {checked} blocks read, 0 wrong; \
         {} merged, {} requeued, {} busy; longest change {longest_switch}, longest time without a completion \
         {longest}",
        stats.completed,
        stats.merges.total(),
        stats.requeues,
        stats.busy
    );
}

const FAULTS: &str =
    "faults,requeue=0.02,resource=0.01,dev_resource=0.05,late=0.05,reorder=0.1,seed=5";

#[test]
fn s6_09_every_byte_is_right_while_the_queue_is_switched_under_faults() {
    let memory = "memory,size=64,submit_queues=2,irqmode=1,hw_queue_depth=8,cache_size=4,fua=0";
    hammer(&format!("{FAULTS}:{memory}"), PumpMode::Inline);
}

#[test]
fn s6_09_every_byte_is_right_with_pump_threads() {
    let memory = "memory,size=64,submit_queues=2,irqmode=2,completion_nsec=20000,hw_queue_depth=8";
    hammer(&format!("{FAULTS}:{memory}"), PumpMode::Thread);
}

const SEEDS: u64 = 6;
/// Rounds of a run. The I/Os of a round do not overlap, and end before the next round.
const ROUNDS: u64 = 12;
/// The number of sectors used, and the sectors of the longest I/O.
const SECTORS: u64 = 2048;
const LONGEST: u64 = 96;
/// The most ranges of a list.
const RANGES: u64 = 128;

/// The payloads to be compared.
pub trait Drawn: Payload + Debug {
    /// `len` bytes, in ranges whose lengths are multiples of `unit`.
    fn of(len: usize, unit: usize, rng: &mut Rng) -> Self;
    /// Its slices, in order.
    fn slices(&mut self) -> Vec<&mut [u8]>;
}

impl Drawn for AlignedBuf {
    fn of(len: usize, _: usize, _: &mut Rng) -> Self {
        Self::new(len)
    }

    fn slices(&mut self) -> Vec<&mut [u8]> {
        vec![self.as_mut_slice()]
    }
}

impl Drawn for BufList {
    fn of(len: usize, unit: usize, rng: &mut Rng) -> Self {
        let most = 1 + rng.below(RANGES.min((len / unit) as u64)) as usize;
        let mut cuts =
            Vec::from_iter((1..most).map(|_| unit * rng.below((len / unit) as u64) as usize));
        cuts.extend([0, len]);
        cuts.sort_unstable();
        // Some ranges are adjacent parts of one allocation, and some begin off its alignment.
        let mut rest = rng.chance(1, 2).then(|| AlignedBuf::new(len + unit));
        let buf = |pair: &[usize]| {
            let len = pair[1] - pair[0];
            match &mut rest {
                Some(rest) => {
                    let behind = rest.split_off(len).expect("it can be divided");
                    std::mem::replace(rest, behind)
                }
                None => AlignedBuf::new(len),
            }
        };
        Self::new(cuts.windows(2).map(buf).collect()).expect("no more than accepted")
    }

    fn slices(&mut self) -> Vec<&mut [u8]> {
        self.slices_mut().collect()
    }
}

/// The bytes of sector `sector` after the write `key`.
fn pattern(key: u64, sector: u64) -> impl Iterator<Item = u8> {
    let mut rng = Rng::new(key << 20 | sector);
    (0..512).map(move |_| rng.next_u64() as u8)
}

/// The contents of a sector: the key of its last write, 0 if there was none; `None` if that failed.
type Model = Vec<Option<u64>>;

struct Rig<P: Payload> {
    client: Client<P>,
    shape: DeviceShape,
    model: Model,
    rng: Rng,
    /// The number of I/Os so far.
    key: u64,
    divided: u64,
    failed: u64,
    refused: u64,
}

impl<P: Drawn> Rig<P> {
    /// A random I/O in the sectors from `from` to `to`, which no other I/O uses.
    fn draw(&mut self, from: u64, to: u64) -> Io<P> {
        let limits = &self.shape.limits;
        let block = u64::from(limits.logical_block_size / 512);
        let blocks = (to - from) / block;
        let first = self.rng.below(blocks);
        let count = 1 + self.rng.below((blocks - first).min(LONGEST / block));
        let (sector, sectors) = (from + first * block, (count * block) as u32);
        let units: &[usize] =
            if limits.range_alignment > 0 { &[block as usize * 512] } else { &[1, 4, 512] };
        let unit = units[self.rng.below(units.len() as u64) as usize];
        let mut payload = P::of(sectors as usize * 512, unit, &mut self.rng);
        self.key += 1;
        let op = if self.rng.chance(1, 2) { Op::Write } else { Op::Read };
        if op == Op::Write {
            let mut bytes = (sector..).flat_map(|sector| pattern(self.key, sector));
            payload
                .slices()
                .into_iter()
                .flatten()
                .for_each(|byte| *byte = bytes.next().unwrap_or(0));
        }
        Io::new(op, sector, sectors, self.key, payload)
    }

    /// Checks the completion of an I/O, and updates the model.
    fn done(&mut self, op: Op, sectors: std::ops::Range<u64>, mut done: Completion<P>) {
        let places = || sectors.clone().map(|sector| sector as usize);
        match (op, done.result) {
            (Op::Write, result) => {
                self.failed += u64::from(result.is_err());
                places().for_each(|at| self.model[at] = result.is_ok().then_some(done.cookie));
            }
            (_, Err(_)) => self.failed += 1,
            (_, Ok(())) => {
                let mut bytes = done.payload.slices().into_iter().flatten();
                for at in places() {
                    let found = Vec::from_iter(bytes.by_ref().take(512).map(|byte| *byte));
                    let expected = |key| match key {
                        0 => vec![0; 512],
                        key => pattern(key, at as u64).collect(),
                    };
                    let is_right = self.model[at].is_none_or(|key| found == expected(key));
                    assert!(is_right, "sector {at} read by {}: {:?}", done.cookie, self.model[at]);
                }
                assert!(bytes.next().is_none(), "as long as it was");
            }
        }
    }

    /// Pushes I/Os in adjacent stretches, so that many merge, and waits for all of them.
    fn round(&mut self) {
        let mut pushed = Vec::new();
        let stretch = 16 << self.rng.below(4);
        let mut at = stretch * self.rng.below(4);
        while at + stretch <= SECTORS && pushed.len() < 24 {
            let io = self.draw(at, at + stretch);
            let what = (io.cookie, io.op, io.sector..io.sector + u64::from(io.sectors));
            match self.client.push(io) {
                Ok(()) => pushed.push(what),
                Err(refused) => match refused.why {
                    Refusal::Scattered { .. } => self.refused += 1,
                    Refusal::NoCredit { .. } => break,
                    why => panic!("{why}"),
                },
            }
            at += stretch;
        }
        self.divided += u64::from(self.client.in_flight() - self.client.outstanding());
        let count = pushed.len() as u32;
        let mut all = Vec::new();
        while all.len() < pushed.len() {
            self.client.wait(1, count, |done| all.push(done));
        }
        for done in all {
            let place = pushed.iter().position(|(cookie, ..)| *cookie == done.cookie);
            let (_, op, sectors) = pushed.swap_remove(place.expect("each ends once"));
            self.done(op, sectors, done);
        }
        assert!(pushed.is_empty() && self.client.in_flight() == 0);
    }
}

/// Limits narrower than the device's, so that I/Os are divided, at places that depend on the seed.
fn narrowed(limits: Limits, rng: &mut Rng) -> Limits {
    let block = limits.logical_block_size;
    Limits {
        max_sectors: limits
            .max_sectors
            .min((8 + rng.below(120) as u32) / (block / 512) * (block / 512)),
        max_segments: limits.max_segments.min(8 + rng.below(140) as u16),
        max_segment_size: limits.max_segment_size.min(block * (1 + rng.below(64) as u32)),
        ..limits
    }
}

/// Runs one seed with payloads of one kind. Returns the number of parts beyond the first, of failed I/Os, and of
/// refused I/Os.
pub fn run<P: Drawn>(mut config: Config<P>, seed: u64) -> [u64; 3] {
    let mut rng = Rng::new(seed);
    config.device.limits = narrowed(config.device.limits, &mut rng);
    config.depth = 1024;
    let shape = config.device;
    let service = Service::start(config).expect("it starts");
    let client = service.client().expect("one is free");
    let model = vec![None; SECTORS as usize];
    let mut rig =
        Rig { client, shape, model, rng, key: seed << 32, divided: 0, failed: 0, refused: 0 };
    (0..ROUNDS).for_each(|_| rig.round());
    // The queue ends with reads in flight, whose memory it keeps as long as the device has it.
    for n in 0..8 {
        let io = Io { op: Op::Read, ..rig.draw(n * 256, (n + 1) * 256) };
        let _ = rig.client.push(io);
    }
    rig.client.flush();
    [rig.divided, rig.failed, rig.refused]
}

/// Every seed with both kinds of payloads.
fn both(name: &str, device: &Device, faults: Faults) {
    let (mut one, mut many) = ([0; 3], [0; 3]);
    for seed in 1..=seeds() {
        println!("{name}, seed {seed}");
        one.iter_mut().zip(run::<AlignedBuf>(config(device), seed)).for_each(|(sum, n)| *sum += n);
        many.iter_mut().zip(run::<BufList>(config(device), seed)).for_each(|(sum, n)| *sum += n);
    }
    println!("{name}: {one:?} and {many:?} divided, failed, refused");
    assert!(one[0] > 0 && many[0] > one[0], "lists are divided more often");
    assert_eq!(one[2], 0, "one range is never refused");
    let has_failed = [one[1] > 0, many[1] > 0];
    assert_eq!(has_failed, [faults == Faults::Some; 2], "I/Os fail where there are faults");
}

/// Whether I/Os may fail.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Faults {
    None,
    Some,
}

fn config<P: IoBuf>(device: &Device) -> Config<P> {
    device.config().expect("it opens")
}

/// A list that is divided a byte too early if the cut is inside of a range.
#[derive(Debug)]
struct Slipping {
    list: BufList,
    /// The correct length.
    len: usize,
}

impl Payload for Slipping {
    fn data_len(&self) -> Option<usize> {
        Some(self.len)
    }

    fn ranges(&self) -> impl Iterator<Item = *mut [u8]> + Clone {
        self.list.ranges()
    }

    fn write_to(&self, at: usize, memory: &mut [u8]) -> IoResult {
        let here = memory.len().min(self.list.len() - at);
        self.list.write_to(at, &mut memory[..here])
    }

    fn read_from(&self, at: usize, memory: &[u8]) -> IoResult {
        self.list.read_from(at, &memory[..memory.len().min(self.list.len() - at)])
    }

    fn split_off(&mut self, at: usize) -> Option<Self> {
        let lens = self.list.ranges().map(<*mut [u8]>::len);
        let ends = lens.scan(0, |end, len| {
            *end += len;
            Some(*end)
        });
        let slip = usize::from(Vec::from_iter(ends).iter().all(|end| *end != at));
        let list = self.list.split_off(at - slip)?;
        let len = std::mem::replace(&mut self.len, at) - at;
        Some(Self { list, len })
    }

    fn join(&mut self, rest: Self) {
        self.len += rest.len;
        self.list.join(rest.list);
    }
}

impl Drawn for Slipping {
    fn of(len: usize, unit: usize, rng: &mut Rng) -> Self {
        Self { list: BufList::of(len, unit, rng), len }
    }

    fn slices(&mut self) -> Vec<&mut [u8]> {
        self.list.slices()
    }
}

#[test]
#[should_panic(expected = "read by")]
fn a_list_that_is_divided_a_byte_too_early_is_found() {
    let device = blkmq::device("memory,size=1").expect("a memory device");
    for seed in 1..=SEEDS {
        run::<Slipping>(device.config(), seed);
    }
}

fn seeds() -> u64 {
    let text = std::env::var("BLKMQ_LIST_SEEDS");
    text.map_or(SEEDS, |n| n.parse().expect("BLKMQ_LIST_SEEDS is a number"))
}

fn open(text: &str) -> Device {
    blkmq::open(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn one_range_and_many_are_the_same_in_memory() {
    both("memory", &open("memory,size=1"), Faults::None);
    both("memory, late", &open("memory,size=1,irqmode=2,bs=4096"), Faults::None);
}

#[test]
fn one_range_and_many_are_the_same_behind_faults() {
    let faults = "faults,error=0.02,late=0.2,reorder=0.2,requeue=0.1,timeout=0.002,timeout_nsec=3ms,late_nsec=50us";
    both("faults", &open(&format!("{faults}:memory,size=1")), Faults::Some);
    both(
        "bad blocks",
        &open("memory,size=1,badblocks=+300-310,badblocks_partial_io=1"),
        Faults::Some,
    );
}

#[test]
#[cfg(target_os = "linux")]
fn one_range_and_many_are_the_same_in_a_file() {
    let test = "one_range_and_many_are_the_same_in_a_file";
    let folder = tempfile::tempdir().expect("a folder");
    for direct in [0, 1] {
        let path = folder.path().join(format!("{direct}.img"));
        let text = format!("uring:{},size=1,direct={direct}", path.display());
        match blkmq::open(&text) {
            Ok(device) => both(&text, &device, Faults::None),
            Err(why) => println!("skipped {test}: {why}"),
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn one_range_and_many_are_the_same_on_a_server() {
    with_server("memory,size=1", None, |socket| {
        both("nbd", &open(&format!("nbd:nbd+unix:///?socket={}", socket.display())), Faults::None);
    });
}
