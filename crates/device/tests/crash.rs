//! Tens of thousands of power cuts: every write promised to be durable survives, no write is durable that no flush has
//! covered, no block is torn, and a block read after a cut holds a version that was written to it.
//!
//! The first test cuts a memory device behind a simple queue; the others use whole queues with all their features.
//!
//! An [`Application`] records which of its writes must be durable, and checks the device after a power cut. It stamps
//! every block that it writes with a unique version. So a block found after a cut reveals its write, or that it is torn
//! or misplaced. The application knows nothing about caches and flush sequences, only the I/Os that it sent, their
//! acknowledgements, and the durability that these promise.

use crate::{Disk, Stamp, described, device, read_stamp, stamp};
use blkmq_core::{Buffer, Instant, IoError, IoFlags, Nanos, Op, Rng};
use blkmq_device::Device;
use blkmq_engine::{
    Access, BioTable, Config, DeviceQueue, Enqueued, Finished, Inflight, NoMerges, WriteCache,
};

/// Cuts the power of a device with a single submitter and without merging, 2000 times for each description.
#[test]
fn ten_thousand_crashes_take_only_what_was_not_promised() {
    let texts = [
        "cache_size=1,bs=512",
        "cache_size=1,bs=4096,fua=0",
        "cache_size=1,bs=1024,seed=7",
        "cache_size=0,bs=512",
        "cache_size=0,bs=2048",
    ];
    for (from, text) in (0..).step_by(2000).zip(texts) {
        let tally = crashes(text, from..from + 2000).unwrap_or_else(|e| panic!("{text}: {e}"));
        println!("{text}: {tally:?}");
        assert_eq!((tally.cuts, tally.failed), (2000, 0));
        assert!(tally.lost > 1000 && tally.kept > 1000, "{text} exercises too little");
        assert!(tally.in_flight > 500 && tally.promised > 1000 && tally.strict > 500, "{text}");
        let again = || crashes(text, from..from + 100);
        assert_eq!(again(), again(), "{text} does not repeat");
    }
}

fn crashes(text: &str, seeds: std::ops::Range<u64>) -> Result<Tally, String> {
    const DEPTH: usize = 8;
    let text = format!("size=1,hw_queue_depth={DEPTH},irqmode=2,discard=1,{text}");
    let device = device("memory", &text);
    let fua = device.shape.cache != WriteCache::Back { fua: false };
    let mut application = Application::new(device.clone(), Disk::plain(&device), DEPTH);
    for seed in seeds {
        let mut rng = Rng::new(seed);
        for _ in 0..rng.below(24) {
            let flags = if fua && rng.chance(1, 6) { IoFlags::FUA } else { IoFlags::NONE };
            application.send(&mut rng, 0, flags);
            some_time(&mut application, &mut rng);
        }
        application.disk.settle();
        application.cut(seed, Disk::plain).map_err(|e| format!("seed {seed}: {e}"))?;
    }
    Ok(application.tally)
}

fn some_time(application: &mut Application, rng: &mut Rng) {
    match rng.below(4) {
        0 => application.disk.run_for(Nanos(rng.below(15_000))),
        1 => application.disk.settle(),
        _ => {}
    }
    application.take();
}

/// A planted lie about durability, which the application must detect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Plant {
    Nothing,
    /// The queue believes that the device has no cache.
    CacheDenied,
    /// The queue believes that the device honours FUA.
    FuaClaimed,
    /// Flushes complete without reaching the device.
    FlushesSwallowed,
    /// The queue and the application believe in a cache that the device does not have.
    CacheInvented,
}

struct Swallows(Box<dyn DeviceQueue<Buffer>>);

impl DeviceQueue<Buffer> for Swallows {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<Buffer>, rq: Inflight) -> Enqueued {
        if rq.op() == Op::Flush {
            Enqueued::Done(rq, Ok(()))
        } else {
            self.0.enqueue(now, bios, rq)
        }
    }

    fn reap(&mut self, now: Instant, bios: &BioTable<Buffer>, out: &mut Vec<Finished>) {
        self.0.reap(now, bios, out);
    }

    fn next_event(&self) -> Option<Instant> {
        self.0.next_event()
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.0.abandon(out);
    }
}

/// A device and the settings of its queue, drawn from a seed.
struct Drawn {
    device: Device,
    scheduler: &'static blkmq_sched::Factory,
    access: Access,
    nomerges: NoMerges,
    submitters: u16,
    nr_requests: Option<u32>,
    depth: usize,
}

fn one<T: Copy>(rng: &mut Rng, all: &[T]) -> T {
    all[rng.below(all.len() as u64) as usize]
}

impl Drawn {
    fn new(rng: &mut Rng, cache: &str) -> Self {
        let bs = one(rng, &["512", "512", "1024", "4096"]);
        let mut text = format!(
            "memory,size=1,discard=1,{cache},bs={bs},irqmode={},completion_nsec={},hw_queue_depth={},\
             submit_queues={}",
            rng.below(3),
            rng.below(20_000),
            1 + rng.below(8),
            1 + rng.below(3),
        );
        if rng.chance(1, 2) {
            let faults = "requeue=0.1,dev_resource=0.05,resource=0.01,late=0.2,late_nsec=30000,reorder=0.2,\
                          error=0.02,timeout=0.005,timeout_nsec=50000";
            text = format!("faults,{faults},seed={}:{text}", rng.next_u64());
        }
        Self {
            device: described(&text),
            scheduler: one(rng, blkmq_sched::registry::ALL),
            access: one(rng, &Access::ALL).1,
            nomerges: one(rng, &[NoMerges::All, NoMerges::All, NoMerges::Simple, NoMerges::None]),
            submitters: 1 + rng.below(4) as u16,
            nr_requests: one(rng, &[None, Some(4)]),
            depth: 4 + rng.below(28) as usize,
        }
    }

    fn disk(&self, device: &Device, plant: Plant) -> Disk {
        let mut config = device.config();
        match plant {
            Plant::CacheDenied => config.device.cache = WriteCache::Through,
            Plant::FuaClaimed => config.device.cache = WriteCache::Back { fua: true },
            Plant::FlushesSwallowed => {
                let swallow = |queue| Box::new(Swallows(queue)) as Box<dyn DeviceQueue<Buffer>>;
                config.queues = config.queues.into_iter().map(swallow).collect();
            }
            Plant::Nothing | Plant::CacheInvented => {}
        }
        config.access = self.access;
        config.nomerges = self.nomerges;
        config.nr_requests = self.nr_requests;
        Disk::new(with_room(config, self.submitters).scheduler(self.scheduler))
    }
}

/// Runs one seed: a queue, I/Os from several submitters and a power cut, and the same again with the surviving data.
fn cut_twice(seed: u64, cache: &str, plant: Plant) -> Result<Tally, String> {
    let mut rng = Rng::new(seed);
    let mut drawn = Drawn::new(&mut rng, cache);
    if plant == Plant::CacheInvented {
        drawn.device.shape.cache = WriteCache::Back { fua: false };
    }
    let disk = drawn.disk(&drawn.device, plant);
    let mut application = Application::new(drawn.device.clone(), disk, drawn.depth);
    for cut in 0..2 {
        for _ in 0..rng.below(40) {
            let flags = [IoFlags::FUA, IoFlags::PREFLUSH, IoFlags::FUA | IoFlags::PREFLUSH];
            let flags = if rng.chance(1, 5) { one(&mut rng, &flags) } else { IoFlags::NONE };
            let who = rng.below(drawn.submitters.into()) as usize;
            application.send(&mut rng, who, flags);
            some_time(&mut application, &mut rng);
        }
        let disk = |device: &Device| drawn.disk(device, plant);
        application.cut(2 * seed + cut, disk).map_err(|e| format!("seed {seed}: {e}"))?;
    }
    Ok(application.tally)
}

const FUA: &str = "cache_size=1";
const NO_FUA: &str = "cache_size=1,fua=0";
const NO_CACHE: &str = "cache_size=0";

#[test]
fn ten_thousand_power_cuts_of_whole_queues() {
    for (from, count, cache) in [(0, 5000, FUA), (5000, 4000, NO_FUA), (9000, 1000, NO_CACHE)] {
        let mut tally = Tally::default();
        for seed in from..from + count {
            tally +=
                cut_twice(seed, cache, Plant::Nothing).unwrap_or_else(|e| panic!("{cache}: {e}"));
        }
        println!("{cache}: {tally:?}");
        assert_eq!(tally.cuts, 2 * count);
        assert!(tally.lost > count && tally.kept > count && tally.promised > count, "{tally:?}");
        assert!(tally.merged > count && tally.requeued > count / 4, "{tally:?}");
        assert!(tally.in_flight > count && tally.failed > count / 10, "{tally:?}");
        assert!((tally.flushes > count) == (cache != NO_CACHE), "{tally:?}");
    }
}

#[test]
fn a_cut_repeats() {
    for seed in 0..20 {
        let run = || cut_twice(seed, NO_FUA, Plant::Nothing);
        assert_eq!(run(), run());
    }
}

/// Each planted lie about durability is found within 100 seeds, so that the check can fail.
#[test]
fn what_breaks_a_promise_is_found() {
    for (plant, cache) in [
        (Plant::CacheDenied, FUA),
        (Plant::CacheDenied, NO_FUA),
        (Plant::FuaClaimed, NO_FUA),
        (Plant::FlushesSwallowed, FUA),
        (Plant::FlushesSwallowed, NO_FUA),
        (Plant::CacheInvented, NO_CACHE),
    ] {
        let found = (0..100).find_map(|seed| cut_twice(seed, cache, plant).err());
        println!("{plant:?} with {cache}: {found:?}");
        assert!(found.is_some(), "{plant:?} with {cache} passes");
    }
}

/// Only the device loses power: I/Os in flight, including flushes, end with EIO, and later I/Os work.
#[test]
fn what_is_in_flight_at_a_crash_ends_with_an_error() {
    let device = device("memory", "irqmode=2,cache_size=1");
    let mut disk = Disk::plain(&device);
    disk.one(Op::Write, 0, vec![1; 512]);
    let ios = [(Op::Write, 1), (Op::Read, 1), (Op::Flush, 0)];
    let ios = ios.map(|(op, n)| disk.push(0, op, n as u64, vec![2; n * 512], IoFlags::NONE));
    disk.settle();
    device.memory().expect("it stores").crash(0);
    disk.finish();
    assert!(ios.iter().all(|io| disk.done[io].result == Err(IoError::IO)));
    assert_eq!(disk.one(Op::Write, 1, vec![3; 512]).result, Ok(()));
    assert_eq!(disk.read(1, 1), [3; 512]);
}

/// Regression test: it was possible to cut the power of a device but not of its machine. A write that waited in the
/// scheduler was performed after the cut: a manifest named tables that the cut had destroyed, and 1054 keys were lost.
#[test]
fn a_power_cut_of_the_machine_stops_what_waits_in_its_scheduler() {
    for machine in [false, true] {
        let device = device("memory", "irqmode=2,cache_size=1,hw_queue_depth=1");
        let store = device.memory().expect("it stores");
        let mut disk = Disk::plain(&device);
        let durable = IoFlags::PREFLUSH | IoFlags::FUA;
        let ios = [1, 2, 3, 4].map(|n| disk.push(0, Op::Write, n * 8, vec![7; 512], durable));
        disk.settle();
        if machine {
            store.cut_power(0)
        } else {
            store.crash(0)
        };
        disk.finish();
        let written = ios.map(|io| disk.done[&io].result == Ok(()));
        assert_eq!(written, [false, !machine, !machine, !machine]);
        assert_eq!(disk.one(Op::Flush, 0, Vec::new()).result.is_ok(), !machine);
        // The machine has restarted.
        let mut disk = Disk::plain(&device);
        for (n, written) in [1, 2, 3, 4].into_iter().zip(written) {
            assert_eq!(disk.read(n * 8, 1)[0] == 7, written, "write {n} of {machine}");
        }
        assert_eq!(disk.one(Op::Write, 1, vec![3; 512]).result, Ok(()));
    }
}

#[test]
fn a_crash_depends_on_its_seed_and_on_the_devices() {
    let left = |text: &str, crash: u64| {
        let device = device("memory", &format!("irqmode=0,cache_size=1,{text}"));
        let mut disk = Disk::plain(&device);
        disk.one(Op::Write, 0, vec![1; 64 * 512]);
        device.memory().expect("it stores").crash(crash);
        disk.read(0, 64)
    };
    assert_eq!(left("seed=0", 3), left("seed=0", 3));
    assert!((4..20).any(|crash| left("seed=0", crash) != left("seed=0", 3)));
    assert!((1..20).any(|seed| left(&format!("seed={seed}"), 3) != left("seed=0", 3)));
}

/// Without a cache, and with completion within the call, a crash loses no data.
#[test]
fn what_is_completed_without_a_cache_survives() {
    let device = device("memory", "irqmode=0");
    let mut disk = Disk::plain(&device);
    disk.one(Op::Write, 3, vec![8; 4096]);
    assert_eq!(device.memory().expect("it stores").crash(1), 0);
    assert_eq!(disk.read(3, 8), [8; 4096]);
}

pub const BLOCKS: usize = 48;

#[derive(Clone, Default)]
struct Block {
    /// The oldest version that may be found after a cut.
    floor: u64,
    /// The newest version that was sent.
    sent: u64,
    /// The newest version that was acknowledged.
    acked: u64,
    /// The newest version that may be durable: no flush has covered a newer one, nor was a newer one written durably.
    ceiling: u64,
    /// The versions that are all zeroes.
    zeroes: Vec<u64>,
    busy: bool,
}

/// An I/O in flight.
struct Sent {
    cookie: u64,
    /// The blocks that it writes; none for a flush.
    range: std::ops::Range<usize>,
    version: u64,
    /// Whether the write is durable when it is acknowledged.
    durable: bool,
    /// For an I/O that flushes: the versions that had been acknowledged when it was sent.
    acked: Option<[u64; BLOCKS]>,
}

/// Counts of a run, by which a caller checks that the run exercised enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    pub cuts: u64,
    /// I/Os that were in flight at cuts.
    pub in_flight: u64,
    /// I/Os that failed before cuts.
    pub failed: u64,
    /// Blocks that lost their newest version, and blocks that kept a version that was not promised.
    pub lost: u64,
    pub kept: u64,
    /// Blocks that had a durable version at a cut.
    pub promised: u64,
    /// Cuts with no flush in flight, at which no version may be durable that no flush has covered.
    pub strict: u64,
    pub merged: u64,
    pub requeued: u64,
    pub flushes: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        for (sum, more) in [
            (&mut self.cuts, other.cuts),
            (&mut self.in_flight, other.in_flight),
            (&mut self.failed, other.failed),
            (&mut self.lost, other.lost),
            (&mut self.kept, other.kept),
            (&mut self.promised, other.promised),
            (&mut self.strict, other.strict),
            (&mut self.merged, other.merged),
            (&mut self.requeued, other.requeued),
            (&mut self.flushes, other.flushes),
        ] {
            *sum += more;
        }
    }
}

pub struct Application {
    pub disk: Disk,
    device: Device,
    block: usize,
    cache: WriteCache,
    /// The most I/Os in flight.
    depth: usize,
    version: u64,
    blocks: Vec<Block>,
    sent: Vec<Sent>,
    /// The block after the last write.
    end: usize,
    pub tally: Tally,
}

impl Application {
    /// Runs on `device` through the queue of `disk`, which must have the same cache as `device`.
    pub fn new(device: Device, disk: Disk, depth: usize) -> Self {
        Self {
            disk,
            block: device.shape.limits.logical_block_size as usize,
            cache: device.shape.cache,
            device,
            depth,
            version: 0,
            blocks: vec![Block { zeroes: vec![0], ..Block::default() }; BLOCKS],
            sent: Vec::new(),
            end: 0,
            tally: Tally::default(),
        }
    }

    /// Sends a random I/O, unless enough I/Os are in flight or it would overlap one of them.
    pub fn send(&mut self, rng: &mut Rng, who: usize, flags: IoFlags) {
        if self.sent.len() >= self.depth {
            return;
        }
        if rng.chance(1, 10) {
            return self.push(who, Op::Flush, 0..0, flags);
        }
        let blocks = 1 + rng.below(8) as usize;
        let anywhere = rng.below((BLOCKS - blocks) as u64) as usize;
        let goes_on = self.end + blocks <= BLOCKS && rng.chance(2, 3);
        let first = if goes_on { self.end } else { anywhere };
        if self.blocks[first..first + blocks].iter().any(|block| block.busy) {
            return;
        }
        let op = match rng.below(12) {
            0 => Op::Discard,
            1 => Op::WriteZeroes,
            _ => Op::Write,
        };
        self.push(who, op, first..first + blocks, flags);
        self.end = first + blocks;
    }

    fn push(&mut self, who: usize, op: Op, range: std::ops::Range<usize>, flags: IoFlags) {
        self.version += 1;
        let version = self.version;
        let zeroes = op != Op::Write;
        let mut bytes = vec![0; range.len() * self.block];
        for (at, out) in range.clone().zip(bytes.chunks_mut(self.block)) {
            stamp(at as u64, if zeroes { 0 } else { version }, out);
        }
        let fua = flags.contains(IoFlags::FUA);
        let (cached, by_itself) = match self.cache {
            WriteCache::Through => (false, true),
            WriteCache::Back { fua: honoured } => (true, fua && honoured),
        };
        let flushes = op == Op::Flush || flags.contains(IoFlags::PREFLUSH) || fua && !by_itself;
        for block in &mut self.blocks[range.clone()] {
            (block.sent, block.busy) = (version, true);
            if zeroes {
                block.zeroes.push(version);
            }
            if by_itself {
                block.ceiling = version;
            }
        }
        let acked = || std::array::from_fn(|at| self.blocks[at].acked);
        let acked = (cached && flushes).then(acked);
        let sector = (range.start * self.block / 512) as u64;
        let flags = if op == Op::Flush { IoFlags::NONE } else { flags };
        let cookie = self.disk.push(who, op, sector, bytes, flags);
        let durable = !cached || fua;
        self.sent.push(Sent { cookie, range, version, durable, acked });
    }

    /// Takes the completions, and updates the versions promised to be durable.
    pub fn take(&mut self) {
        let Self { sent, disk, blocks, tally, .. } = self;
        sent.retain(|sent| {
            let Some(done) = disk.done.remove(&sent.cookie) else { return true };
            let ok = done.result.is_ok();
            tally.failed += u64::from(!ok);
            for block in &mut blocks[sent.range.clone()] {
                block.busy = false;
                if ok {
                    block.acked = sent.version;
                }
                if ok && sent.durable {
                    block.floor = sent.version;
                }
            }
            if let Some(acked) = &sent.acked {
                for (block, acked) in blocks.iter_mut().zip(acked) {
                    block.floor = if ok { block.floor.max(*acked) } else { block.floor };
                    // Even a failed flush may have made every write durable that was sent before it ended.
                    block.ceiling = block.sent;
                }
            }
            false
        });
    }

    /// Returns the version of block `at` in `bytes` if it is in `from..=to`; for zeroes, the newest such version.
    fn version_of(&self, at: usize, bytes: &[u8], from: u64, to: u64) -> Option<u64> {
        let may_be = from..=to;
        match read_stamp(at as u64, &bytes[at * self.block..][..self.block]) {
            Stamp::Version(version) => Some(version).filter(|version| may_be.contains(version)),
            Stamp::Zeroes => {
                let zeroes = self.blocks[at].zeroes.iter().rev();
                zeroes.copied().find(|version| may_be.contains(version))
            }
            Stamp::Torn => None,
        }
    }

    /// Checks, if no flush is in flight, that the durable image holds every promised version and no version that no
    /// flush has covered: the cache has room for all blocks, so the device writes nothing back early.
    fn check_durable(&mut self) -> Result<(), String> {
        if self.sent.iter().any(|sent| sent.acked.is_some()) {
            return Ok(());
        }
        self.tally.strict += 1;
        let mut bytes = vec![0; BLOCKS * self.block];
        self.device.memory().expect("it stores").durable_image().read_at(0, &mut bytes);
        for (at, Block { floor, ceiling, .. }) in self.blocks.iter().enumerate() {
            if self.version_of(at, &bytes, *floor, *ceiling).is_none() {
                return Err(format!("block {at} is durable, and not of {floor} to {ceiling}"));
            }
        }
        Ok(())
    }

    /// Cuts the power of the device and of the application. `disk` builds a new queue, and the I/Os in flight never
    /// complete. Checks that every block is whole and has an allowed version, which then counts as written and durable.
    pub fn cut(&mut self, seed: u64, disk: impl FnOnce(&Device) -> Disk) -> Result<(), String> {
        self.take();
        self.check_durable()?;
        let store = self.device.memory().expect("it stores").clone();
        store.crash(seed);
        let stats = self.disk.queue.stats();
        self.tally.cuts += 1;
        self.tally.in_flight += self.sent.len() as u64;
        self.tally.merged += stats.merges.total();
        self.tally.requeued += stats.requeues;
        self.tally.flushes += stats.flushes.issued;
        self.sent.clear();
        self.disk = disk(&self.device);
        let mut bytes = vec![0; BLOCKS * self.block];
        store.durable_image().read_at(0, &mut bytes);
        let mut read = vec![0; bytes.len()];
        store.read_at(0, &mut read);
        if read != bytes || store.dirty_bytes() > 0 {
            return Err("something is left that is not durable".into());
        }
        for at in 0..BLOCKS {
            let Block { floor, sent, .. } = self.blocks[at];
            let version = self.version_of(at, &bytes, floor, sent);
            let Some(version) = version else {
                return Err(format!("block {at} is of no version from {floor} to {sent}"));
            };
            self.tally.lost += u64::from(version < sent);
            self.tally.kept += u64::from(version == sent && sent > floor);
            self.tally.promised += u64::from(floor > 0);
            let block = &mut self.blocks[at];
            (block.floor, block.sent, block.acked, block.ceiling) =
                (version, version, version, version);
            block.zeroes.retain(|zeroes| *zeroes == version);
            block.busy = false;
        }
        Ok(())
    }
}

/// Returns `config` with room for an application that uses `submitters` submitters.
pub fn with_room<P>(config: Config<P>, submitters: u16) -> Config<P> {
    Config { submitters, depth: 64, ..config }
}
