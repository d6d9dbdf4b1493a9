//! Samples of the requests that end while nothing is taken: at high rates, a share of them tells as much as all.
//!
//! A window with [`ENOUGH`] samples is judged by those. The next one takes so many again, as long as the rate stays, and
//! a goal of which a window has too few to be judged has every request counted from the next look on.

use super::window::Verdict;
use blkmq_core::Nanos;

/// Samples for a window: where one request in 200 is late, 4 % of such windows look as if more than one in 100 were; of
/// the windows of 100 requests that are judged as well, a tenth do.
const ENOUGH: u32 = 500;
/// The most requests that one stands for.
pub(super) const MOST: u32 = 16;

/// A goal that has had I/Os within this time has every one counted, if they are few.
const LATELY: Nanos = Nanos::from_secs(10);

/// How many requests one stands for.
pub(super) struct Sampling {
    stride: u32,
    /// Samples since the window began, of all groups.
    samples: u32,
    /// A sequence of numbers without pattern: plugs have one, and the last of a plug waits longest.
    noise: u32,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { stride: 1, samples: 0, noise: 1 }
    }
}

impl Sampling {
    pub(super) fn stride(&self) -> u32 {
        self.stride
    }

    /// The number of requests from a sample until the next one, with that: from 1 to twice the stride less one.
    pub(super) fn next(&mut self) -> u32 {
        self.samples = self.samples.saturating_add(1);
        if self.stride == 1 {
            return 1;
        }
        // A linear congruence, of which the upper bits are the better ones.
        self.noise = self.noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        1 + (self.noise >> 16) % (2 * self.stride - 1)
    }

    /// The stride with which the next window has [`ENOUGH`] samples, if this one had so many.
    fn enough(&self, samples: u32) -> u32 {
        let stride = u64::from(self.stride) * u64::from(samples) / u64::from(ENOUGH);
        stride.clamp(1, MOST.into()) as u32
    }

    /// The requests that one may stand for after a look at a goal's window, which has so many samples.
    pub(super) fn wanted(&self, verdict: Verdict, samples: u32, idle_for: Nanos) -> u32 {
        match verdict {
            Verdict::Idle if idle_for >= LATELY => self.enough(self.samples),
            Verdict::Met => self.enough(samples),
            Verdict::Idle | Verdict::Open | Verdict::Unknown | Verdict::Missed => 1,
        }
    }

    pub(super) fn set(&mut self, stride: u32) {
        self.stride = stride;
    }

    /// The next window begins.
    pub(super) fn restart(&mut self) {
        self.samples = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_as_many_as_a_window_needs() {
        let mut sampling = Sampling::default();
        let met =
            |sampling: &Sampling, samples| sampling.wanted(Verdict::Met, samples, Nanos::ZERO);
        assert_eq!((sampling.next(), met(&sampling, 999)), (1, 1));
        sampling.set(met(&sampling, 2_500));
        assert_eq!(sampling.stride(), 5);
        assert_eq!(met(&sampling, 500), 5, "the rate is as before");
        assert_eq!(met(&sampling, 1_000), 10, "it is twice that");
        assert_eq!(met(&sampling, 2_000), MOST);
        for scarce in [Verdict::Open, Verdict::Unknown, Verdict::Missed] {
            assert_eq!(sampling.wanted(scarce, 99, Nanos::ZERO), 1);
        }
    }

    #[test]
    fn beside_a_goal_without_ios_samples_are_of_the_others() {
        let mut sampling = Sampling::default();
        (0..2_500).for_each(|_| assert_eq!(sampling.next(), 1));
        assert_eq!(sampling.wanted(Verdict::Idle, 0, Nanos(LATELY.0 - 1)), 1, "it had some lately");
        assert_eq!(sampling.wanted(Verdict::Idle, 0, LATELY), 5);
        sampling.restart();
        assert_eq!(sampling.wanted(Verdict::Idle, 0, LATELY), 1, "others had none either");
    }

    #[test]
    fn samples_are_of_every_place_in_a_plug() {
        let mut sampling = Sampling::default();
        sampling.set(8);
        let mut of_places = [0; 8];
        let mut at = 0;
        for _ in 0..8_000 {
            at += sampling.next() as usize;
            of_places[at % 8] += 1;
        }
        assert!((63_000..65_000).contains(&at), "one in eight on average: 8000 of {at}");
        assert!(of_places.iter().all(|n| (900..1_100).contains(n)), "{of_places:?}");
    }
}
