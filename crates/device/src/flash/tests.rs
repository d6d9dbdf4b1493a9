//! Tests of the translation layer against a naive twin, and of the whole device with time controlled by the test.

use super::backend::Backend;
use super::ftl::{Ftl, Place, Stream};
use super::geometry::Geometry;
use super::params::FlashParams;
use super::reclaim::{Reclaim, Step, Watermarks, Writer};
use super::requests::Command;
use crate::{MachineShape, registry};
use blkmq_core::{HwQueue, Instant, Nanos, Op, Rng, Tag};
use std::collections::BTreeSet;

const GEOMETRY: Geometry = Geometry {
    channels: 1,
    dies_per_channel: 2,
    planes: 2,
    page_size: 8192,
    pages_per_block: 5,
    blocks_per_die: 13,
};
/// Two dies of thirteen blocks of twenty units have 520 units.
const LOGICAL: u32 = 400;
const MARKS: Watermarks = Watermarks { start: 2, stop: 4 };

fn params(text: &str) -> FlashParams {
    let pair = |word: &str| word.split_once('=').map(|(key, value)| (key.into(), value.into()));
    let pairs: Vec<_> = text.split(',').filter_map(pair).collect();
    let host = MachineShape { cpus: 4, nodes: 1 };
    FlashParams::parse(&pairs, &host).expect("parameters").0
}

/// The contents of every unit of flash, and the newest contents of every logical unit, which the device itself does not
/// store. Contents are represented by a logical unit and the number of its earlier writes.
struct Twin {
    cells: Vec<Option<(u32, u64)>>,
    newest: Vec<Option<u64>>,
    writes: u64,
}

impl Twin {
    fn new() -> Self {
        let cells = vec![None; GEOMETRY.units() as usize];
        Self { cells, newest: vec![None; LOGICAL as usize], writes: 0 }
    }

    /// Every mapped unit has the newest contents, and no discarded unit is mapped.
    fn check(&self, ftl: &Ftl) {
        ftl.check();
        for logical in 0..LOGICAL {
            let found = match ftl.find(logical) {
                Place::Flash(unit) => self.cells[unit as usize],
                Place::Buffer(_) => panic!("nothing is buffered here"),
                Place::Nowhere => None,
            };
            let expected = self.newest[logical as usize].map(|version| (logical, version));
            assert_eq!(found, expected, "logical unit {logical}");
        }
    }

    fn host_row(&mut self, ftl: &mut Ftl, die: u32, row: &[u32]) {
        let first = ftl.begin_row(die, Stream::Host);
        for (unit, logical) in (first..).zip(row.iter().copied()) {
            ftl.supersede(logical, Place::Nowhere);
            ftl.commit(logical, Place::Nowhere, unit);
            self.writes += 1;
            self.newest[logical as usize] = Some(self.writes);
            self.cells[unit as usize] = Some((logical, self.writes));
        }
        ftl.finish_row(die, Stream::Host, row.len() as u32);
    }

    /// Performs one step; `between` runs after units were read and before they are programmed.
    fn step(&mut self, ftl: &mut Ftl, reclaim: &mut Reclaim, die: u32) -> bool {
        match reclaim.next(ftl, die, MARKS) {
            None => return false,
            Some(Step::Read(_)) => {}
            Some(Step::Erase(block)) => {
                let from = ftl.geometry.first_unit(block, 0) as usize;
                self.cells[from..][..ftl.geometry.block_units() as usize].fill(None);
                ftl.erase(block);
            }
            Some(Step::Program) => {
                let places = Vec::from_iter((0..LOGICAL).map(|logical| ftl.find(logical)));
                let first = ftl.begin_row(die, Stream::Reclaim);
                reclaim.programmed(ftl, die, first);
                for (logical, before) in (0..LOGICAL).zip(places) {
                    if let (Place::Flash(from), Place::Flash(to)) = (before, ftl.find(logical))
                        && from != to
                    {
                        self.cells[to as usize] = self.cells[from as usize];
                    }
                }
            }
        }
        true
    }
}

#[test]
fn nothing_is_lost_doubled_or_miscounted_whatever_comes_between() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let (mut ftl, mut twin) = (Ftl::new(GEOMETRY, LOGICAL), Twin::new());
        let mut reclaims = [Reclaim::new(4), Reclaim::new(4)];
        let mut rows = 0;
        for _ in 0..3000 {
            let die = rng.below(2) as u32;
            let reclaim = &mut reclaims[die as usize];
            if ftl.host_has_room(die) && !reclaim.is_due() && rng.chance(1, 2) {
                let row: Vec<u32> =
                    (0..1 + rng.below(4)).map(|_| rng.below(LOGICAL.into()) as u32).collect();
                twin.host_row(&mut ftl, die, &row);
                reclaim.wake(&mut ftl, die, MARKS);
                reclaim.owe(4);
                rows += 1;
            } else if rng.chance(1, 8) {
                let logical = rng.below(LOGICAL.into()) as u32;
                ftl.supersede(logical, Place::Nowhere);
                twin.newest[logical as usize] = None;
            } else {
                reclaim.wake(&mut ftl, die, MARKS);
                twin.step(&mut ftl, reclaim, die);
            }
            twin.check(&ftl);
        }
        assert!(
            rows > 300 && ftl.stats.moved_units > 0 && ftl.stats.erased_blocks > 20,
            "seed {seed}"
        );
    }
}

#[test]
fn garbage_collection_goes_on_until_its_end_and_keeps_what_is_mapped() {
    let (mut ftl, mut twin) = (Ftl::new(GEOMETRY, LOGICAL), Twin::new());
    let mut reclaim = Reclaim::new(4);
    let mut rng = Rng::new(1);
    // One die alone, with 180 of its 260 units mapped, until only the block for garbage collection is left.
    while ftl.host_has_room(0) {
        let row = [0; 4].map(|_| rng.below(180) as u32);
        twin.host_row(&mut ftl, 0, &row);
    }
    assert_eq!(ftl.blocks.free(0), 1);
    reclaim.wake(&mut ftl, 0, MARKS);
    while twin.step(&mut ftl, &mut reclaim, 0) {
        twin.check(&ftl);
    }
    assert_eq!((ftl.blocks.free(0), reclaim.is_active()), (MARKS.stop, false));
    reclaim.wake(&mut ftl, 0, MARKS);
    assert!(!reclaim.is_active(), "there is enough room");
}

/// Returns the units programmed for each unit written, in thousandths, after many random writes.
fn amplification(overprovisioning: u32) -> u64 {
    let logical = 1 << 15;
    let geometry = Geometry {
        channels: 1,
        dies_per_channel: 1,
        planes: 1,
        page_size: 4096,
        pages_per_block: 128,
        blocks_per_die: (logical * (100 + overprovisioning)).div_ceil(100 * 128),
    };
    let marks = Watermarks { start: 1, stop: 2 };
    let mut ftl = Ftl::new(geometry, logical);
    let mut writer = Writer::new(&ftl, marks);
    let mut rng = Rng::new(9);
    (0..logical).for_each(|unit| writer.write(&mut ftl, unit));
    let mut random = |n: u32| {
        (0..n).for_each(|_| writer.write(&mut ftl, rng.below(logical.into()) as u32));
        ftl.stats.programmed_units
    };
    let before = random(6 * logical);
    let written = 4 * logical;
    let programmed = random(written) - before;
    ftl.check();
    programmed * 1000 / u64::from(written)
}

/// The write amplification by theory. Under uniform writes to large blocks, greedy choice reclaims blocks in the order
/// in which they were filled (Desnoyers 2012; Xiang and Kurkoski 2012). If a fraction `x` of a victim is valid, then
/// `t (1 - x)` units are written for each `t` units of flash, so that `x = exp(-t / u (1 - x))` for `u` logical units,
/// and `1 / (1 - x)` units are programmed for each.
fn theory(used: f64) -> f64 {
    let x = (0..10_000).fold(0.5, |x: f64, _| (-used * (1.0 - x)).exp());
    1000.0 / (1.0 - x)
}

#[test]
fn write_amplification_of_random_overwrites_is_what_theory_says() {
    for overprovisioning in [7, 10, 15, 28, 50] {
        // On average, two blocks are being filled or are free.
        let blocks = f64::from((1_u32 << 15) * (100 + overprovisioning)) / 12_800.0;
        let expected = theory((blocks.ceil() - 2.0) * 128.0 / f64::from(1 << 15));
        let model = amplification(overprovisioning) as f64;
        let deviation = (model / expected - 1.0) * 100.0;
        let line = format!(
            "| {overprovisioning} % | {:.3} | {:.3} | {deviation:+.1} % |",
            expected / 1000.0,
            model / 1000.0
        );
        println!("{line}");
        assert!(deviation.abs() < 8.0);
        let page = registry::page("flash").expect("it is registered");
        assert!(page.contains(&line), "not on the page: {line}");
    }
}

/// A device and the commands of one hardware queue, with a separate clock.
struct Bench {
    backend: Backend,
    free: Vec<u32>,
    now: Instant,
}

impl Bench {
    fn new(text: &str) -> Self {
        let params = params(text);
        let free = (0..params.hw_queue_depth).collect();
        Self { backend: Backend::new(&params, None), free, now: Instant::ZERO }
    }

    fn submit(&mut self, op: Op, sector: u64, sectors: u32, fua: bool) -> Tag {
        let tag = Tag(self.free.pop().expect("a free tag"));
        let command = Command { hw: HwQueue(0), tag, op, sector, sectors, fua };
        self.backend.submit(self.now, &command);
        tag
    }

    /// Advances to the next end of a request, if there is one.
    fn wait(&mut self) -> Option<Tag> {
        loop {
            self.backend.advance(self.now);
            if let Some(tag) = self.backend.reap(self.now, HwQueue(0)) {
                self.free.push(tag.0);
                return Some(tag);
            }
            let next = self.backend.next_event(HwQueue(0));
            if next == Instant::MAX {
                return None;
            }
            assert!(next > self.now, "it names a time that has passed");
            self.now = next;
        }
    }
}

const SMALL: &str = "size=4,channels=2,dies_per_channel=2,planes=2,page_size=4096,pages_per_block=8,\
                     overprovisioning=20,submit_queues=1,hw_queue_depth=64,buffer_kib=64,preconditioned=0";

#[test]
fn what_was_written_is_mapped_and_what_was_discarded_is_not() {
    for seed in 0..10 {
        let mut rng = Rng::new(seed);
        let mut bench = Bench::new(&format!("{SMALL},write_cache=1,fua=1,preset=sata"));
        let mut written = BTreeSet::new();
        for _ in 0..300 {
            // Requests that may overlap run one at a time, so that the test knows their order.
            let unit = rng.below(1024);
            let units = (1 + rng.below(40)).min(1024 - unit);
            let op = [
                Op::Write,
                Op::Write,
                Op::Write,
                Op::Read,
                Op::Discard,
                Op::WriteZeroes,
                Op::Flush,
            ][rng.below(7) as usize];
            let range = unit..unit + units;
            match op {
                Op::Write => written.extend(range),
                Op::Discard | Op::WriteZeroes => range.for_each(|unit| _ = written.remove(&unit)),
                Op::Read | Op::Flush => {}
            }
            let sectors = if op == Op::Flush { 0 } else { units as u32 * 8 };
            bench.submit(op, unit * 8, sectors, op == Op::Write && rng.chance(1, 5));
            assert!(bench.wait().is_some(), "{op:?} ends");
            for unit in 0..1024 {
                let mapped = bench.backend.ftl.find(unit as u32) != Place::Nowhere;
                assert_eq!(mapped, written.contains(&unit), "seed {seed}, unit {unit}");
            }
        }
        assert_eq!(bench.wait(), None);
        bench.backend.ftl.check();
        bench.backend.restart();
        bench.backend.ftl.check();
        assert_eq!(bench.backend.stats().valid_units, written.len() as u64, "all of it in flash");
        assert!(bench.backend.stats().moved_units > 0, "garbage was collected");
    }
}

#[test]
fn being_told_late_changes_nothing() {
    let text = format!("{SMALL},retry_ppm=100000,seed=3");
    let run = |late: Nanos| {
        let mut bench = Bench::new(&text);
        let mut rng = Rng::new(4);
        let mut ends = Vec::new();
        for _ in 0..200 {
            for _ in 0..20 {
                let op = if rng.chance(1, 2) { Op::Read } else { Op::Write };
                bench.submit(op, rng.below(1000) * 8, 8 * (1 + rng.below(8)) as u32, false);
            }
            // Both runs submit at the same times; in between, one advances the device often, the other only at the end.
            let until = bench.now + Nanos::from_millis(100);
            while bench.now < until {
                bench.now = (bench.now + late).min(until);
                bench.backend.advance(bench.now);
            }
            while let Some(tag) = bench.backend.reap(bench.now, HwQueue(0)) {
                ends.push(tag);
                bench.free.push(tag.0);
            }
            bench.free.sort_unstable();
        }
        (ends, bench.backend.stats())
    };
    assert_eq!(run(Nanos(7_000)), run(Nanos::from_millis(100)));
}

#[test]
fn a_named_time_is_never_late() {
    let mut bench = Bench::new(&format!("{SMALL},preset=nvme-mlc"));
    let mut rng = Rng::new(8);
    for _ in 0..300 {
        while bench.free.len() > 32 {
            let op = if rng.chance(2, 3) { Op::Read } else { Op::Write };
            bench.submit(op, rng.below(900) * 8, 8 * (1 + rng.below(100)) as u32, false);
        }
        let named = bench.backend.next_event(HwQueue(0));
        bench.backend.advance(named);
        let earlier = Instant::from_nanos(named.as_nanos() - 1);
        assert_eq!(bench.backend.reap(earlier, HwQueue(0)), None);
        bench.now = bench.now.max(named);
        assert!(bench.wait().is_some());
    }
}
