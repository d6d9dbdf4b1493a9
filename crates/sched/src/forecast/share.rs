//! Shares: the part of the work held by the scheduler that is served before a new I/O, as learnt.

use super::Share;

/// Requests that a share is learnt from: an odd number, so that one of them is in the middle.
const SEEN: usize = 31;
/// Waits count as no longer than this, so that their product with a share does not overflow.
const LONGEST: u64 = 1 << 48;

/// The shares of the latest requests of one group and direction, and the median of them.
///
/// The median and not the mean: an I/O is predicted to be late if that is likelier than not, and a policy that gives a tenant
/// turns makes waits of two kinds, of which a mean is neither.
#[derive(Clone, Copy)]
pub(super) struct Learnt {
    latest: [u16; SEEN],
    len: u8,
    next: u8,
    median: Share,
}

impl Default for Learnt {
    fn default() -> Self {
        Self { latest: [0; SEEN], len: 0, next: 0, median: Share::ALL }
    }
}

impl Learnt {
    /// A request waited `behind` nanoseconds behind `ahead` nanoseconds of held work.
    pub(super) fn learn(&mut self, behind: u64, ahead: u64) {
        if ahead == 0 {
            return;
        }
        self.latest[usize::from(self.next)] = Share::of(behind.min(LONGEST), ahead).parts();
        self.next = (self.next + 1) % SEEN as u8;
        self.len = (self.len + 1).min(SEEN as u8);
        let mut known = self.latest;
        let known = &mut known[..usize::from(self.len)];
        let middle = known.len() / 2;
        self.median = Share::of_parts(*known.select_nth_unstable(middle).1);
    }

    pub(super) fn share(&self) -> Share {
        self.median
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_that_of_most_of_the_latest_requests() {
        let mut learnt = Learnt::default();
        assert_eq!(learnt.share(), Share::ALL, "nothing is known");
        learnt.learn(500, 0);
        assert_eq!(learnt.share(), Share::ALL, "with nothing held, nothing is learnt");
        // A tenant whose turn it is waits for nothing, and otherwise for four times the held work.
        for n in 0..SEEN {
            learnt.learn(if n % 3 == 0 { 4_000 } else { 0 }, 1_000);
        }
        assert_eq!(learnt.share(), Share::NONE, "a mean would be 4/3");
        (0..SEEN / 2).for_each(|_| learnt.learn(4_000, 1_000));
        assert_eq!(learnt.share().parts(), 4 * 256, "most of the latest");
    }

    #[test]
    fn waits_of_any_length_are_learnt() {
        let mut learnt = Learnt::default();
        learnt.learn(u64::MAX, 1);
        assert_eq!(learnt.share().parts(), 16 * 256, "the most that a share is");
        learnt.learn(0, u64::MAX);
        learnt.learn(0, 1);
        assert_eq!(learnt.share(), Share::NONE);
    }
}
