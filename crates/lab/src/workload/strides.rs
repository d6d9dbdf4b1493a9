//! I/O in one zone after the other, with gaps between them: fio's `zonemode=strided`.

use blkmq_core::SECTOR_SIZE;

/// `zonesize` and its companions, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Strided {
    /// `zonesize`: the amount of I/O in a zone before the next one.
    pub size: u64,
    /// `zonerange`: the length of a zone.
    pub range: u64,
    /// `zoneskip`: the gap between two zones.
    pub skip: u64,
}

/// Impossible zones. Messages name fio's options.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StridedError {
    /// `zonesize` is 0.
    #[error("zonesize=0; accepted is 1 sector or more")]
    NoSize,
    /// Not a multiple of a sector, by option.
    #[error("{0}={1}; accepted are multiples of {SECTOR_SIZE} bytes")]
    NotSectors(&'static str, u64),
    /// A zone that no I/O fits into.
    #[error("zonerange={range} is smaller than one block; accepted is {bs} (bs) or more")]
    BelowBlock {
        /// `zonerange` in bytes.
        range: u64,
        /// The block size in bytes.
        bs: u32,
    },
}

impl Strided {
    /// Checks that there are zones, and that a random I/O of `block` bytes fits into one. Sequential I/Os may cross the
    /// end of a zone.
    ///
    /// # Errors
    /// If not.
    pub fn validate(&self, block: u32) -> Result<(), StridedError> {
        let Self { size, range, skip } = *self;
        for (option, bytes) in [("zonesize", size), ("zonerange", range), ("zoneskip", skip)] {
            if !bytes.is_multiple_of(SECTOR_SIZE.into()) {
                return Err(StridedError::NotSectors(option, bytes));
            }
        }
        match (size, range) {
            (0, _) => Err(StridedError::NoSize),
            (_, range) if range < block.into() => {
                Err(StridedError::BelowBlock { range, bs: block })
            }
            _ => Ok(()),
        }
    }
}

/// The zones of one thread, in sectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strides {
    first: u64,
    end: u64,
    size: u64,
    range: u64,
    skip: u64,
    /// Issued in the present zone.
    done: u64,
}

impl Strides {
    /// Zones from byte `start` to the end of the file, `room` bytes later. As in fio, the size of the job limits the
    /// amount of I/O, not its offsets.
    pub(super) fn new(strided: Strided, start: u64, room: u64) -> Self {
        let sectors = |bytes: u64| bytes / u64::from(SECTOR_SIZE);
        let Strided { size, range, skip } = strided;
        Self {
            first: sectors(start),
            end: sectors(start + room),
            size: sectors(size),
            range: sectors(range),
            skip: sectors(skip),
            done: 0,
        }
    }

    /// Begins a pass. Returns the start of the first zone.
    pub(super) fn restart(&mut self) -> u64 {
        self.done = 0;
        self.first
    }

    /// Counts an I/O of `sectors`.
    pub(super) fn count(&mut self, sectors: u32) {
        self.done += u64::from(sectors);
    }

    /// Moves `start`, the start of the zone, and `cursor`, the end of the last I/O, to the offset of the next I/O.
    /// Returns whether a zone begins with it, so that each of its blocks may be used again. As in fio, the first zone
    /// follows the last one, which may be incomplete; random offsets are drawn in whole zones.
    pub(super) fn advance(&mut self, start: &mut u64, cursor: &mut u64, random: bool) -> bool {
        if self.done >= self.size {
            self.done = 0;
            let next = start.saturating_add(self.range).saturating_add(self.skip);
            let needed = if random { self.range } else { 1 };
            *start = if next.saturating_add(needed) > self.end { self.first } else { next };
            *cursor = *start;
        }
        if *cursor >= start.saturating_add(self.range) {
            *cursor = *start;
        }
        self.done.is_multiple_of(self.range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Amount, BlockSize, Generator, Job, PerDirection, Rw};
    use std::collections::BTreeSet;

    const K: u64 = 1024;

    fn job(rw: Rw, size: u64) -> Job {
        let strided = Some(Strided { size: 16 * K, range: 16 * K, skip: 48 * K });
        Job { rw, size: Some(Amount::Bytes(size * K)), strided, ..Job::default() }
    }

    /// The offsets of its I/Os, in KiB, in a file that ends with its region.
    fn places(job: &Job) -> Vec<u64> {
        let Some(Amount::Bytes(size)) = job.size else { panic!("the job has a size") };
        places_in(job, size / K)
    }

    /// The offsets in a file of this many KiB.
    fn places_in(job: &Job, kib: u64) -> Vec<u64> {
        let generator = Generator::new(job, 0, kib * K).expect("it fits");
        generator.map(|io| io.sector / 2).collect()
    }

    /// Regression test: the I/O wrapped within `size`, so that a cache answered. All of these are the offsets of fio
    /// 3.33 on a file of 64 MiB.
    #[test]
    fn zones_go_on_to_the_end_of_the_file() {
        let strided = |skip| Some(Strided { size: 128 * K, range: 128 * K, skip: skip * K });
        let bs = PerDirection::all(BlockSize::Fixed(64 * 1024));
        let job = |size: u64, offset: u64, skip| Job {
            size: Some(Amount::Bytes(size * K)),
            offset: Amount::Bytes(offset * K),
            strided: strided(skip),
            bs: bs.clone(),
            ..Job::default()
        };
        let places = |job: &Job| places_in(job, 64 << 10);
        assert_eq!(places(&job(512, 128, 192)), [128, 192, 448, 512, 768, 832, 1088, 1152]);
        let round = [64512, 64576, 64832, 64896, 65152, 65216, 65472];
        assert_eq!(places(&job(1024, 64512, 192)), round, "the file ends within a zone");
        let more = Job { io_size: Some(Amount::Bytes(960 * K)), ..job(512, 64512, 192) };
        assert_eq!(
            places(&more),
            [&round[..], &round, &round[..1]].concat(),
            "io_size continues at the start"
        );
        let gap = [64512, 64576, 64768, 64832, 65024, 65088, 65280, 65344];
        assert_eq!(places(&job(1024, 64512, 128)), gap.repeat(2), "it ends between two zones");
        let twice = Job { loops: 2, ..job(256, 0, 192) };
        assert_eq!(places(&twice), [0, 64, 320, 384, 640, 704, 960, 1024], "a pass goes on");
        let random = Job { rw: Rw::RandRead, ..job(512, 128, 192) };
        let zones = Vec::from_iter(places(&random).iter().map(|place| (place - 128) / 320));
        assert_eq!(zones, [0, 0, 1, 1, 2, 2, 3, 3]);
    }

    /// All of these are the offsets of fio 3.33.
    #[test]
    fn sequential_zones_are_those_of_fio() {
        let cycle = [0, 4, 8, 12, 64, 68, 72, 76, 128, 132, 136, 140, 192, 196, 200, 204];
        assert_eq!(places(&job(Rw::Read, 256)), cycle.repeat(4), "gaps do not count");
        let part = Job { io_size: Some(Amount::Bytes(24 * K)), loops: 2, ..job(Rw::Read, 256) };
        assert_eq!(places(&part), cycle[..12], "a pass goes on where the last one ended");
        let cut = Job { loops: 2, ..job(Rw::Read, 72) };
        assert_eq!(places(&cut), [0, 4, 8, 12, 64, 68].repeat(2), "the region ends in a zone");
        let bs = PerDirection::all(BlockSize::Fixed(12 * 1024));
        let over = places(&Job { bs, ..job(Rw::Read, 256) });
        let expected = [0, 12, 64, 76, 128, 140, 192, 204].repeat(3);
        assert_eq!(over, expected[..22], "the last I/O of a zone may reach over its end");
        let strided = |size, range, skip| Some(Strided { size: size * K, range: range * K, skip });
        let twice = Job { strided: strided(32, 16, 0), ..job(Rw::Read, 128) };
        assert_eq!(places(&twice)[..12], [0, 4, 8, 12, 0, 4, 8, 12, 16, 20, 24, 28]);
        let half = Job { strided: strided(16, 32, 48 * K), ..job(Rw::Read, 128) };
        assert_eq!(places(&half), [0, 4, 8, 12, 80, 84, 88, 92].repeat(4));
    }

    /// The offsets of fio 3.33 in a file of 4 MiB.
    #[test]
    fn ios_reach_over_the_end_of_a_zone_and_drawn_lengths_end_with_the_size() {
        let strided =
            |size, skip| Some(Strided { size: size * K, range: size * K, skip: skip * K });
        let bs = |kib: u32| PerDirection::all(BlockSize::Fixed(kib * 1024));
        let long = Job { bs: bs(64), strided: strided(20, 16), ..job(Rw::Read, 256) };
        assert_eq!(places_in(&long, 4096), [0, 36, 72, 108]);
        let gaps = Job { bs: bs(8), hole: 4096, strided: strided(32, 16), ..job(Rw::Read, 96) };
        assert_eq!(places_in(&gaps, 4096), [0, 12, 24, 0, 48, 60, 72, 48, 96, 108, 120, 96]);
        let split = PerDirection::all(BlockSize::Split(vec![(4096, 50), (8192, 50)]));
        for rw in [Rw::Read, Rw::RandRead] {
            let drawn = Job { bs: split.clone(), strided: strided(32, 64), ..job(rw, 256) };
            let zones = BTreeSet::from_iter(places_in(&drawn, 4096).iter().map(|at| at / 96));
            assert_eq!(Vec::from_iter(zones), [0, 1, 2], "{rw}");
        }
    }

    #[test]
    fn random_places_are_each_block_of_a_zone_once() {
        let all = places(&job(Rw::RandRead, 256));
        assert_eq!(all.len(), 64);
        for (at, zone) in all.chunks(4).enumerate() {
            let start = at as u64 % 4 * 64;
            let expected = BTreeSet::from([0, 4, 8, 12].map(|block| start + block));
            assert_eq!(BTreeSet::from_iter(zone.iter().copied()), expected);
        }
    }

    #[test]
    fn impossible_zones_are_refused_by_name() {
        let refusal = |size, range, skip| {
            let strided = Some(Strided { size, range, skip });
            Job { strided, rw: Rw::RandRead, ..Job::default() }
                .validate()
                .expect_err("refused")
                .to_string()
        };
        assert!(refusal(0, 4096, 0).starts_with("zonesize=0"));
        assert!(refusal(4096, 512, 0).starts_with("zonerange=512 is smaller"));
        assert!(refusal(4096, 4096, 100).starts_with("zoneskip=100"));
    }
}
