//! Payloads in one range of memory and in many, against one model: the contents and the completions do not depend on
//! the cuts, on every device, with divided and merged I/Os, faults and lost requests.
//!
//! `BLKMQ_LIST_SEEDS` is the number of seeds for each device (default 6); `cargo xtask soak` runs more.

use crate::nbd_server::with_server;
use blkmq::core::{Limits, Rng};
use blkmq::engine::{DeviceShape, Refusal};
use blkmq::prelude::*;
use blkmq::{AlignedBuf, BlockDevice, BufList, Config, Device, IoBuf, IoResult, Payload};
use std::fmt::Debug;

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
