//! [`Disk`]: a queue around a memory device in virtual time, driven by one thread, for I/Os that carry bytes.

use blkmq_core::{Buffer, Instant, IoFlags, IoResult, Nanos, Op, SECTOR_SIZE};
use blkmq_device::Device;
use blkmq_engine::{Config, Io, Queue, Submitter};
use std::collections::BTreeMap;

/// The result of an I/O, and its bytes.
pub struct Done {
    pub result: IoResult,
    pub bytes: Vec<u8>,
}

pub struct Disk {
    pub queue: Queue<Buffer>,
    pub now: Instant,
    pub done: BTreeMap<u64, Done>,
    submitters: Vec<Submitter<Buffer>>,
    pushed: u64,
    ended: u64,
}

impl Disk {
    pub fn new(config: Config<Buffer>) -> Self {
        let submitters = config.submitters;
        let queue = Queue::new(config).expect("a queue");
        let submitters = (0..submitters).map(|_| queue.submitter().expect("room")).collect();
        let done = BTreeMap::new();
        Self { queue, now: Instant::ZERO, done, submitters, pushed: 0, ended: 0 }
    }

    /// A queue with one submitter and without merging.
    pub fn plain(device: &Device) -> Self {
        let nomerges = blkmq_engine::NoMerges::None;
        Self::new(Config { nomerges, depth: 256, ..device.config() })
    }

    /// Pushes an I/O with `bytes`; their length is the length of the I/O. Returns its cookie; cookies count from zero.
    pub fn push(&mut self, who: usize, op: Op, sector: u64, bytes: Vec<u8>, flags: IoFlags) -> u64 {
        let sectors = bytes.len() as u32 / SECTOR_SIZE;
        let io = Io::new(op, sector, sectors, self.pushed, Buffer::new(bytes));
        let io = Io { flags: io.flags | flags, ..io };
        self.submitters[who].push(self.now, io).expect("it is taken");
        self.pushed += 1;
        self.pushed - 1
    }

    pub fn in_flight(&self) -> u64 {
        self.pushed - self.ended
    }

    /// Flushes the plugs and polls until no work is due now.
    pub fn settle(&mut self) {
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

    pub fn run_for(&mut self, span: Nanos) {
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
    pub fn finish(&mut self) {
        self.settle();
        while self.in_flight() > 0 {
            let at = self.deadline().expect("with I/Os in flight something will happen");
            self.now = self.now.max(at);
            self.settle();
        }
    }

    /// Does one I/O and runs until it has ended.
    pub fn one(&mut self, op: Op, sector: u64, bytes: Vec<u8>) -> Done {
        self.one_with(op, sector, bytes, IoFlags::NONE)
    }

    pub fn one_with(&mut self, op: Op, sector: u64, bytes: Vec<u8>, flags: IoFlags) -> Done {
        let cookie = self.push(0, op, sector, bytes, flags);
        self.finish();
        self.done.remove(&cookie).expect("it has ended")
    }

    /// Reads `sectors` sectors; panics if the read fails.
    pub fn read(&mut self, sector: u64, sectors: usize) -> Vec<u8> {
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
pub fn stamp(block: u64, version: u64, out: &mut [u8]) {
    for (at, word) in out.chunks_exact_mut(8).enumerate() {
        let value = mark(block) ^ version << 20 ^ at as u64;
        word.copy_from_slice(&if version == 0 { 0 } else { value }.to_le_bytes());
    }
}

/// The stamp found in a block.
pub enum Stamp {
    Zeroes,
    Version(u64),
    Torn,
}

/// Reads the stamp of `block` from all of its bytes.
pub fn read_stamp(block: u64, bytes: &[u8]) -> Stamp {
    if bytes.iter().all(|byte| *byte == 0) {
        return Stamp::Zeroes;
    }
    let first = bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    let version = (first ^ mark(block)) >> 20;
    let mut expected = vec![0; bytes.len()];
    stamp(block, version, &mut expected);
    if version > 0 && expected == bytes { Stamp::Version(version) } else { Stamp::Torn }
}
