//! The parts of an I/O besides its place: [`Filler`], the buffers of a thread that writes, and [`Prios`], the priority
//! of each I/O of a job, drawn where a part of them has another one than the job.

use super::{CmdPrio, Contents, DedupeMode, Direction, Job, PerDirection};
use blkmq_core::{IoPrio, Rng, SECTOR_SIZE};

/// Makes the bytes of the buffers of one thread.
#[derive(Clone, Debug)]
pub struct Filler {
    rng: Rng,
    contents: Contents,
    /// The thread writes at all.
    writes: bool,
    repeats: Repeats,
}

/// Chooses the bytes that a write repeats. A buffer is identified by the state of the generator that made it.
#[derive(Clone, Debug)]
struct Repeats {
    choice: Rng,
    /// The last unique buffer.
    last: Rng,
    /// The number of the first buffer of the working set.
    first: u64,
    /// The length of the working set.
    buffers: u64,
}

impl Filler {
    /// For thread `thread` of `job` on a device of `device_bytes`. Each thread has a seed of its own.
    #[must_use]
    pub fn new(job: &Job, thread: u32, device_bytes: u64) -> Self {
        let contents = job.contents.clone();
        let writes = job.rw.directions().contains(&Direction::Write);
        // Not the bytes of the offsets' stream: the two streams must not repeat each other.
        let seed = job.randseed ^ u64::from(job.index) << 32 ^ u64::from(thread) ^ 0x6275_6666;
        let rng = Rng::new(seed);
        let regions = job.regions(thread, device_bytes).unwrap_or_default();
        let bytes: u64 = regions.iter().map(|region| region.size).sum();
        let buffers = bytes / job.smallest_block() * u64::from(contents.working_set) / 100;
        let choice = Rng::new(seed.rotate_left(32));
        let first = if contents.is_global { job.randseed } else { choice.clone().next_u64() };
        let repeats = Repeats { choice, last: rng.clone(), first, buffers: buffers.max(1) };
        Self { rng, contents, writes, repeats }
    }

    /// Fills a new buffer.
    pub fn begin(&mut self, bytes: &mut [u8]) {
        if self.writes && !self.contents.is_zero {
            self.fill(bytes);
        }
    }

    /// Makes the bytes of the next write in a buffer that was used before.
    #[inline]
    pub fn next(&mut self, bytes: &mut [u8]) {
        let Contents { is_zero, refills, scrambles, .. } = self.contents;
        if is_zero {
            // A read may have left its bytes.
            bytes.fill(0);
        } else if refills || self.contents.pattern.is_some() {
            self.fill(bytes);
        } else if scrambles {
            for sector in bytes.chunks_mut(SECTOR_SIZE as usize) {
                let stamp = self.rng.next_u64().to_le_bytes();
                let len = sector.len().min(stamp.len());
                sector[..len].copy_from_slice(&stamp[..len]);
            }
        }
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        let Self { rng, contents, repeats, .. } = self;
        if repeats.choice.chance(contents.dedupe.into(), 100) {
            let mut rng = match contents.dedupe_mode {
                DedupeMode::Repeat => repeats.last.clone(),
                DedupeMode::WorkingSet => {
                    let at = repeats.choice.below(repeats.buffers);
                    Rng::new(repeats.first.wrapping_add(at))
                }
            };
            contents.fill(&mut rng, bytes);
        } else {
            repeats.last = rng.clone();
            contents.fill(rng, bytes);
        }
    }
}

/// Draws priorities. Its random numbers are its own, so that places and lengths do not depend on priorities.
#[derive(Clone, Debug)]
pub(super) struct Prios {
    prio: IoPrio,
    /// Whether there is any priority besides `prio`.
    varied: bool,
    special: PerDirection<CmdPrio>,
    rng: Rng,
}

impl Prios {
    pub(super) fn new(job: &Job, seed: u64) -> Self {
        let varied = job.cmdprio.iter().any(|(_, special)| *special != CmdPrio::None);
        // An arbitrary number that makes this another stream than that of places.
        let rng = Rng::new(seed ^ 0x7072_696f);
        Self { prio: job.prio, varied, special: job.cmdprio.clone(), rng }
    }

    /// The priority of the job.
    pub(super) fn own(&self) -> IoPrio {
        self.prio
    }

    /// Returns whether an I/O may have a priority other than that of the job.
    pub(super) fn is_varied(&self) -> bool {
        self.varied
    }

    /// The priority of an I/O.
    #[inline]
    pub(super) fn next(&mut self, direction: Direction, sectors: u64) -> IoPrio {
        if self.varied { self.draw(direction, sectors) } else { self.prio }
    }

    #[inline(never)]
    fn draw(&mut self, direction: Direction, sectors: u64) -> IoPrio {
        let mut percent = self.rng.below(100) as u8;
        match &self.special[direction] {
            CmdPrio::None => self.prio,
            CmdPrio::Percentage(share, prio) if percent < *share => *prio,
            CmdPrio::Percentage(..) => self.prio,
            CmdPrio::Split(parts) => {
                let bytes = sectors * u64::from(SECTOR_SIZE);
                for (_, share, prio) in parts.iter().filter(|part| u64::from(part.0) == bytes) {
                    if percent < *share {
                        return *prio;
                    }
                    percent -= share;
                }
                self.prio
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::verify::Pattern;
    use super::super::{Amount, Rw};
    use super::*;
    use blkmq_core::Class;
    use std::collections::BTreeSet;

    fn filler(contents: &Contents) -> Filler {
        of_job(0, contents)
    }

    /// Of a job that writes 256 blocks.
    fn of_job(index: u32, contents: &Contents) -> Filler {
        let (size, contents) = (Some(Amount::Bytes(1 << 20)), contents.clone());
        let job = Job { rw: Rw::Write, index, size, contents, ..Job::default() };
        Filler::new(&job, 0, 1 << 30)
    }

    /// The first sectors of 1000 writes.
    fn writes(filler: &mut Filler) -> Vec<[u8; 512]> {
        let one = |_| {
            let mut bytes = [0; 512];
            filler.next(&mut bytes);
            bytes
        };
        Vec::from_iter((0..1000).map(one))
    }

    fn zeroes(bytes: &[u8]) -> usize {
        bytes.iter().filter(|byte| **byte == 0).count()
    }

    /// Regression test: every write carried zeroes, which compressing storage does not store.
    #[test]
    fn buffers_are_random_and_no_two_writes_are_alike() {
        let mut filler = filler(&Contents::default());
        let mut bytes = [0; 4096];
        filler.begin(&mut bytes);
        assert!(zeroes(&bytes) < 64);
        let first = bytes;
        filler.next(&mut bytes);
        for (before, after) in first.chunks(512).zip(bytes.chunks(512)) {
            assert!(before != after && before[8..] == after[8..]);
        }
    }

    #[test]
    fn refilled_buffers_are_new_in_every_byte() {
        let mut filler = filler(&Contents { refills: true, ..Contents::default() });
        let (mut one, mut other) = ([0; 4096], [0; 4096]);
        filler.next(&mut one);
        filler.next(&mut other);
        assert!(one.iter().zip(&other).filter(|(a, b)| a == b).count() < 64);
    }

    #[test]
    fn a_share_of_each_chunk_is_fixed() {
        let compress = |compress, chunk, pattern| {
            let pattern = Some(pattern).filter(|text: &&str| !text.is_empty());
            let pattern = pattern.map(|text| Pattern::parse(text).expect("a pattern"));
            let contents = Contents {
                compress: Some(compress),
                chunk,
                pattern,
                refills: true,
                ..Contents::default()
            };
            let mut bytes = [1; 4096];
            filler(&contents).next(&mut bytes);
            bytes
        };
        let half = compress(50, 512, "");
        assert!(
            half.chunks(512)
                .all(|chunk| zeroes(&chunk[256..]) == 256 && zeroes(&chunk[..256]) < 16)
        );
        let most = compress(75, 4096, "");
        assert_eq!(zeroes(&most[1024..]), 3072);
        let marked = compress(50, 512, "0xab");
        assert!(marked.chunks(512).all(|chunk| chunk[256..].iter().all(|byte| *byte == 0xab)));
    }

    #[test]
    fn a_share_of_writes_repeats_the_last_unique_one() {
        let contents = Contents { dedupe: 30, refills: true, ..Contents::default() };
        let writes = writes(&mut filler(&contents));
        let unique = BTreeSet::from_iter(&writes).len();
        assert!((670..730).contains(&unique), "{unique} of 1000");
        assert_eq!(writes.windows(2).filter(|pair| pair[0] == pair[1]).count(), 1000 - unique);
    }

    #[test]
    fn a_share_of_writes_is_of_a_working_set_which_jobs_may_share() {
        let (dedupe_mode, working_set) = (DedupeMode::WorkingSet, 10);
        let contents = Contents {
            dedupe: 100,
            dedupe_mode,
            working_set,
            refills: true,
            ..Contents::default()
        };
        let set = |index, is_global| {
            let contents = Contents { is_global, ..contents.clone() };
            BTreeSet::from_iter(writes(&mut of_job(index, &contents)))
        };
        assert_eq!(set(0, false).len(), 25, "a tenth of 256 blocks");
        assert!(set(0, false).is_disjoint(&set(1, false)));
        assert_eq!(set(0, true), set(1, true));
    }

    #[test]
    fn zeroes_and_patterns_are_so_behind_a_read_as_well() {
        let mut bytes = [7; 1024];
        filler(&Contents { is_zero: true, ..Contents::default() }).next(&mut bytes);
        assert_eq!(zeroes(&bytes), 1024);
        let pattern = Pattern::parse("0xabcd").ok();
        filler(&Contents { pattern, ..Contents::default() }).next(&mut bytes);
        assert!(bytes.chunks(2).all(|pair| pair == [0xab, 0xcd]));
    }

    fn prio(class: Class, level: u16) -> IoPrio {
        IoPrio::new(class, level).expect("a level")
    }

    fn count(job: &Job, direction: Direction, sectors: u64) -> Vec<(IoPrio, u32)> {
        let (mut prios, mut seen) = (Prios::new(job, 4), std::collections::BTreeMap::new());
        for _ in 0..10_000 {
            *seen.entry(prios.next(direction, sectors).to_bits()).or_insert(0u32) += 1;
        }
        seen.into_iter().map(|(bits, count)| (IoPrio::from_bits(bits), count)).collect()
    }

    #[test]
    fn a_percentage_of_a_direction_has_the_priority() {
        let high = prio(Class::Realtime, 0);
        let special = CmdPrio::Percentage(30, high);
        let cmdprio = PerDirection::new(special, CmdPrio::None, CmdPrio::None);
        let job = Job { cmdprio, ..Job::default() };
        let seen = count(&job, Direction::Read, 8);
        assert_eq!((seen[0].0, seen[1].0), (IoPrio::default(), high));
        assert!(seen[1].1.abs_diff(3_000) < 150, "{seen:?}");
        assert_eq!(count(&job, Direction::Write, 8), [(IoPrio::default(), 10_000)]);
    }

    #[test]
    fn a_split_looks_at_the_length() {
        let (rt, be) = (prio(Class::Realtime, 0), prio(Class::BestEffort, 3));
        let split = CmdPrio::Split(vec![(4096, 30, rt), (4096, 20, be), (65536, 100, be)]);
        assert_eq!(split.most(), 100);
        let job = Job { cmdprio: PerDirection::all(split), ..Job::default() };
        assert_eq!(job.prios(Direction::Read), [IoPrio::default(), rt, be]);
        let seen = count(&job, Direction::Write, 8);
        assert!(seen[1].1.abs_diff(3_000) < 150 && seen[2].1.abs_diff(2_000) < 150, "{seen:?}");
        assert_eq!(count(&job, Direction::Write, 128), [(be, 10_000)]);
        assert_eq!(count(&job, Direction::Write, 16), [(IoPrio::default(), 10_000)]);
    }
}
