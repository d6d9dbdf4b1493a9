//! The choice of the next block: fio's `random_distribution`.
//!
//! Blocks are numbers below a count; the generator turns them into sectors. The skewed distributions draw a *rank* (0
//! is the hottest) and scatter ranks over the region with a fixed [`Permutation`], as fio does with a hash, so that
//! hot blocks are not neighbours that merge. Unlike a hash, a permutation never puts two ranks on one block, so the
//! share of the hottest blocks is exactly the formula's.

use super::Permutation;
use blkmq_core::Rng;
use std::fmt;

/// The distribution of random places.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Distribution {
    /// All blocks are equally likely.
    #[default]
    Uniform,
    /// The block of rank r (from 1) is drawn in proportion to `1 / r^theta`.
    Zipf(f64),
    /// Self-similar: a share of `1 - h` goes to a share of `h` of the blocks, and again so within these.
    Pareto(f64),
    /// A bell over the ranks; the standard deviation is this many percent of the region.
    Normal(f64),
}

/// A parameter out of range.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum DistributionError {
    /// The parameter of zipf.
    Theta(f64),
    /// The parameter of pareto.
    Power(f64),
    /// The parameter of normal.
    Deviation(f64),
}

impl fmt::Display for DistributionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Theta(x) => write!(f, "zipf:{x}; accepted is a theta above 0 and up to 100"),
            Self::Power(x) => write!(f, "pareto:{x}; accepted is a power above 0 and below 1"),
            Self::Deviation(x) => {
                write!(f, "normal:{x}; accepted is a deviation above 0 and up to 100 percent")
            }
        }
    }
}

impl std::error::Error for DistributionError {}

impl Distribution {
    /// Checks the parameter.
    ///
    /// # Errors
    /// If it is out of range or no number.
    pub fn validate(self) -> Result<(), DistributionError> {
        match self {
            Self::Zipf(theta) if !(theta > 0.0 && theta <= 100.0) => {
                Err(DistributionError::Theta(theta))
            }
            Self::Pareto(h) if !(h > 0.0 && h < 1.0) => Err(DistributionError::Power(h)),
            Self::Normal(dev) if !(dev > 0.0 && dev <= 100.0) => {
                Err(DistributionError::Deviation(dev))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Distribution {
    /// In fio's spelling.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("random"),
            Self::Zipf(theta) => write!(f, "zipf:{theta}"),
            Self::Pareto(h) => write!(f, "pareto:{h}"),
            Self::Normal(dev) => write!(f, "normal:{dev}"),
        }
    }
}

/// Draws block numbers below a count; values that do not change are computed in advance.
#[derive(Clone, Debug)]
pub(super) enum Places {
    /// Independent draws.
    Uniform { blocks: u64 },
    /// Draws each block once, then each again in another order.
    EachOnce { order: Permutation, drawn: u64 },
    /// Draws by rank.
    Ranked { ranks: Ranks, scatter: Permutation },
}

impl Places {
    /// Independent draws; all blocks are equally likely.
    pub(super) fn uniform(blocks: u64) -> Self {
        Self::Uniform { blocks }
    }

    /// Draws every block before any comes again.
    pub(super) fn each_once(blocks: u64, rng: &mut Rng) -> Self {
        Self::EachOnce { order: Permutation::new(blocks, rng), drawn: 0 }
    }

    /// Skewed draws; `scatter` decides which blocks are hot.
    pub(super) fn ranked(ranks: Ranks, blocks: u64, scatter: &mut Rng) -> Self {
        Self::Ranked { ranks, scatter: Permutation::new(blocks, scatter) }
    }

    #[inline]
    pub(super) fn next(&mut self, rng: &mut Rng) -> u64 {
        match self {
            Self::Uniform { blocks } => rng.below(*blocks),
            Self::EachOnce { order, drawn } => {
                if *drawn == order.len() {
                    order.rekey(rng);
                    *drawn = 0;
                }
                *drawn += 1;
                order.at(*drawn - 1)
            }
            Self::Ranked { ranks, scatter } => scatter.at(ranks.next(rng)),
        }
    }
}

/// Draws ranks, 0 being the hottest.
#[derive(Clone, Debug)]
pub(super) enum Ranks {
    Zipf(Zipf),
    Pareto { blocks: u64, exponent: f64 },
    Normal { blocks: u64, deviation: f64 },
}

impl Ranks {
    /// `None` for [`Distribution::Uniform`], which has no ranks.
    pub(super) fn new(distribution: Distribution, blocks: u64) -> Option<Self> {
        match distribution {
            Distribution::Uniform => None,
            Distribution::Zipf(theta) => Some(Self::Zipf(Zipf::new(blocks, theta))),
            // Drawing u^e with e = ln h / ln(1 - h) puts 1 - h of the draws below h.
            Distribution::Pareto(h) => {
                Some(Self::Pareto { blocks, exponent: h.ln() / (1.0 - h).ln() })
            }
            Distribution::Normal(percent) => {
                Some(Self::Normal { blocks, deviation: blocks as f64 * percent / 100.0 })
            }
        }
    }

    fn next(&self, rng: &mut Rng) -> u64 {
        match self {
            Self::Zipf(zipf) => zipf.next(rng),
            Self::Pareto { blocks, exponent } => {
                let rank = *blocks as f64 * rng.unit_f64().powf(*exponent);
                (rank as u64).min(blocks - 1)
            }
            Self::Normal { blocks, deviation } => loop {
                // Box and Muller's method; a draw outside the region is repeated. At the largest deviation 38 % fall
                // inside, so the loop is short.
                let radius = (-2.0 * (1.0 - rng.unit_f64()).ln()).sqrt();
                let z = radius * (std::f64::consts::TAU * rng.unit_f64()).cos();
                let at = *blocks as f64 / 2.0 + deviation * z;
                if at >= 0.0 && at < *blocks as f64 {
                    return (at as u64).min(blocks - 1);
                }
            },
        }
    }
}

/// Exact Zipf ranks in constant time and space, for any number of blocks: rejection-inversion after
/// Hoermann and Derflinger (1996). The usual closed form needs the sum of `1/r^theta` over all blocks first,
/// is only approximate behind the second rank, and has no answer for a theta of 1.
#[derive(Clone, Debug)]
pub(super) struct Zipf {
    blocks: u64,
    theta: f64,
    /// The integral of the density from below the first rank to above the last.
    area: (f64, f64),
    /// Ranks this close to the drawn abscissa need no rejection test.
    sure: f64,
}

impl Zipf {
    fn new(blocks: u64, theta: f64) -> Self {
        let mut this = Self { blocks, theta, area: (0.0, 0.0), sure: 0.0 };
        this.area = (this.integral(1.5) - 1.0, this.integral(blocks as f64 + 0.5));
        this.sure = 2.0 - this.inverse(this.integral(2.5) - this.density(2.0));
        this
    }

    fn next(&self, rng: &mut Rng) -> u64 {
        loop {
            let u = self.area.1 + rng.unit_f64() * (self.area.0 - self.area.1);
            let x = self.inverse(u);
            let rank = (x + 0.5).floor().clamp(1.0, self.blocks as f64);
            if rank - x <= self.sure || u >= self.integral(rank + 0.5) - self.density(rank) {
                return (rank as u64 - 1).min(self.blocks - 1);
            }
        }
    }

    fn density(&self, x: f64) -> f64 {
        (-self.theta * x.ln()).exp()
    }

    /// The integral of the density from 1 to `x`, also where theta is 1 or close to it.
    fn integral(&self, x: f64) -> f64 {
        let ln = x.ln();
        let t = (1.0 - self.theta) * ln;
        let ratio = if t.abs() > 1e-8 { t.exp_m1() / t } else { 1.0 + t / 2.0 };
        ln * ratio
    }

    fn inverse(&self, y: f64) -> f64 {
        // Rounding may leave the domain by a hair at the hot end of a steep distribution.
        let t = (y * (1.0 - self.theta)).max(-1.0);
        let ratio = if t.abs() > 1e-8 { t.ln_1p() / t } else { 1.0 - t / 2.0 };
        (y * ratio).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u32 = 400_000;

    fn share(ranks: &Ranks, hit: impl Fn(u64) -> bool) -> f64 {
        let mut rng = Rng::new(21);
        let hits = (0..DRAWS).filter(|_| hit(ranks.next(&mut rng))).count();
        hits as f64 / f64::from(DRAWS)
    }

    #[test]
    fn zipf_gives_the_hottest_percent_its_analytic_share() {
        for (blocks, theta) in [(10_000u64, 1.2), (10_000, 0.8), (5_000, 1.0), (100, 2.5)] {
            let sum = |n: u64| (1..=n).map(|r| (r as f64).powf(-theta)).sum::<f64>();
            let expected = sum(blocks / 100) / sum(blocks);
            let ranks = Ranks::new(Distribution::Zipf(theta), blocks).expect("has ranks");
            let seen = share(&ranks, |rank| rank < blocks / 100);
            assert!((seen - expected).abs() < 0.004, "theta {theta}: {seen} for {expected}");
        }
    }

    #[test]
    fn zipf_ranks_stay_in_range_even_for_huge_devices_and_steep_slopes() {
        let mut rng = Rng::new(2);
        for (blocks, theta) in [(1, 1.2), (2, 100.0), (1 << 50, 0.1), (1 << 50, 1.0)] {
            let zipf = Zipf::new(blocks, theta);
            assert!((0..1_000).all(|_| zipf.next(&mut rng) < blocks), "{blocks} {theta}");
        }
    }

    #[test]
    fn pareto_is_self_similar() {
        let ranks = Ranks::new(Distribution::Pareto(0.2), 100_000).expect("has ranks");
        assert!((share(&ranks, |rank| rank < 20_000) - 0.8).abs() < 0.004);
        assert!((share(&ranks, |rank| rank < 4_000) - 0.64).abs() < 0.004);
    }

    #[test]
    fn normal_keeps_two_thirds_within_a_deviation() {
        let ranks = Ranks::new(Distribution::Normal(10.0), 1_000).expect("has ranks");
        let seen = share(&ranks, |rank| (400..600).contains(&rank));
        assert!((seen - 0.6827).abs() < 0.004, "{seen}");
    }

    #[test]
    fn skew_survives_scattering_and_moves_with_its_seed() {
        let hottest = |seed| {
            let ranks = Ranks::new(Distribution::Zipf(1.5), 1_000).expect("has ranks");
            let mut places = Places::ranked(ranks, 1_000, &mut Rng::new(seed));
            let mut rng = Rng::new(1);
            let mut counts = vec![0u32; 1_000];
            (0..20_000).for_each(|_| counts[places.next(&mut rng) as usize] += 1);
            let top = counts.iter().max().copied().expect("not empty");
            assert!(top > 6_000, "the hottest block got {top}");
            counts.iter().position(|&count| count == top)
        };
        assert_ne!(hottest(1), hottest(2));
    }

    #[test]
    fn parameters_out_of_range_say_what_is_accepted() {
        for wrong in [
            Distribution::Zipf(0.0),
            Distribution::Zipf(f64::NAN),
            Distribution::Pareto(1.0),
            Distribution::Normal(101.0),
        ] {
            let message = wrong.validate().expect_err("out of range").to_string();
            assert!(message.contains("accepted"), "{message}");
        }
    }
}
