//! Shares: the part of the work held by the scheduler that is served before a new I/O, as learnt.

use super::Share;

/// Sums over the latest requests of one group and direction; each request counts 15/16 of what the one behind it does.
#[derive(Clone, Copy, Default)]
pub(super) struct Learnt {
    /// The time for which they waited behind held work.
    behind: u64,
    /// The held work that they met.
    ahead: u64,
}

/// Sums stay below this, so that their product with a share does not overflow.
const MOST: u64 = 1 << 48;

impl Learnt {
    /// A request waited `behind` nanoseconds behind `ahead` nanoseconds of held work.
    pub(super) fn learn(&mut self, behind: u64, ahead: u64) {
        if ahead == 0 {
            return;
        }
        let next = |sum: u64, new: u64| (sum - sum / 16 + new.min(MOST)).min(MOST);
        (self.behind, self.ahead) = (next(self.behind, behind), next(self.ahead, ahead));
    }

    pub(super) fn share(&self) -> Share {
        Share::of(self.behind, self.ahead)
    }
}
