//! What a node of the tree has lost of its share: the turns that passed while all that it asked for was in the device.

/// The account of a node, from its first loss after a judgement to the next judgement. All are nanoseconds of device time.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Account {
    /// The judgement that it is for; none is zero.
    judgement: u64,
    lost: u64,
    /// What the node, and its parent, had got before the first loss.
    before: [u64; 2],
}

impl Account {
    /// What was lost by the time of `judgement`.
    pub(super) fn lost(&self, judgement: u64) -> u64 {
        if self.judgement == judgement { self.lost } else { 0 }
    }

    /// Adds a loss. The node and its parent have `got` so much so far.
    pub(super) fn add(&mut self, judgement: u64, lost: u64, got: [u64; 2]) {
        if self.judgement != judgement {
            *self = Self { judgement, lost: 0, before: got };
        }
        self.lost += lost;
    }

    /// The part of its share that the node got, in thousandths.
    pub(super) fn part(&self, judgement: u64, got: [u64; 2]) -> u64 {
        let lost = self.lost(judgement);
        if lost == 0 {
            return 1_000;
        }
        let [got, all] = [0, 1].map(|at| got[at] - self.before[at]);
        let part = |got: u64, of: u64| u128::from(got) * 1_000_000 / u128::from(of.max(1));
        let (has, due) = (part(got, all), part(got + lost, all + lost));
        (has * 1_000 / due.max(1)).min(1_000) as u64
    }
}
