//! [`Prios`]: the priority of each I/O of a job, drawn where a part of them has another one than the job.

use super::{CmdPrio, Direction, Job, PerDirection};
use blkmq_core::{IoPrio, Rng, SECTOR_SIZE};

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
    use super::*;
    use blkmq_core::Class;

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
