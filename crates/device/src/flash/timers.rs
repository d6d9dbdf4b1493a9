//! The next event: one timer for each die and each channel, and the earliest of them.
//!
//! A tournament tree of fixed size. Setting a timer is O(log n), finding the first is O(1), and nothing is allocated.
//! Of two timers that end together the one with the lower number is first, so that a run repeats.

use blkmq_core::Instant;

/// Timers, numbered from zero; each is set or not.
#[derive(Debug)]
pub(super) struct Timers {
    /// By number; [`Instant::MAX`] if not set. As many entries as leaves.
    at: Vec<Instant>,
    /// The winner below each inner node; the root is 1, and node n has the children 2n and 2n + 1.
    winners: Vec<u32>,
}

impl Timers {
    /// `n` timers, none of them set.
    pub(super) fn new(n: u32) -> Self {
        let leaves = n.max(2).next_power_of_two() as usize;
        let mut timers = Self { at: vec![Instant::MAX; leaves], winners: vec![0; leaves] };
        for node in (1..leaves).rev() {
            timers.decide(node);
        }
        timers
    }

    /// Sets timer `which` to end at `at`; [`Instant::MAX`] for never.
    pub(super) fn set(&mut self, which: u32, at: Instant) {
        self.at[which as usize] = at;
        let mut node = (self.at.len() + which as usize) / 2;
        while node > 0 {
            self.decide(node);
            node /= 2;
        }
    }

    /// When `which` ends.
    pub(super) fn get(&self, which: u32) -> Instant {
        self.at[which as usize]
    }

    /// The first timer that ends, and when: [`Instant::MAX`] if none is set.
    pub(super) fn first(&self) -> (Instant, u32) {
        let which = self.winners[1];
        (self.at[which as usize], which)
    }

    fn decide(&mut self, node: usize) {
        let (left, right) = (self.below(2 * node), self.below(2 * node + 1));
        let wins = self.at[right as usize] < self.at[left as usize];
        self.winners[node] = if wins { right } else { left };
    }

    /// The winner at `node`, which may be a leaf.
    fn below(&self, node: usize) -> u32 {
        let leaves = self.at.len();
        if node < leaves { self.winners[node] } else { (node - leaves) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::Rng;

    #[test]
    fn the_first_is_the_one_that_a_search_finds() {
        let mut rng = Rng::new(5);
        for n in [1, 2, 3, 8, 37] {
            let mut timers = Timers::new(n);
            assert_eq!(timers.first().0, Instant::MAX);
            let mut all = vec![Instant::MAX; n as usize];
            for _ in 0..1000 {
                let which = rng.below(n.into());
                let never = rng.chance(1, 3);
                let at = if never { Instant::MAX } else { Instant::from_nanos(rng.below(20)) };
                timers.set(which as u32, at);
                all[which as usize] = at;
                let (first, at) = all.iter().enumerate().min_by_key(|(_, at)| **at).unwrap();
                assert_eq!(timers.first().0, *at);
                assert!(*at == Instant::MAX || timers.first().1 == first as u32);
                assert_eq!(timers.get(which as u32), all[which as usize]);
            }
        }
    }
}
