//! An application that records which of its writes must be durable, and checks the device after a power cut.
//!
//! It stamps every block that it writes with a unique version. So a block found after a cut reveals its write, or that
//! it is torn or misplaced. The application knows nothing about caches and flush sequences, only the I/Os that it sent,
//! their acknowledgements, and the durability that these promise.

use super::bytes::{Disk, Stamp, read_stamp, stamp};
use blkmq_core::{IoFlags, Op, Rng};
use blkmq_device::Device;
use blkmq_engine::{Config, WriteCache};

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
