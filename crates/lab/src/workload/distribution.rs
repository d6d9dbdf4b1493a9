//! The choice of the next block: fio's `random_distribution`.
//!
//! Blocks are numbers below a count; the generator turns them into sectors. The skewed distributions draw a *rank* (0
//! is the hottest) and scatter ranks over the region with a fixed [`Permutation`], as fio does with a hash, so that hot
//! blocks are not neighbours that merge. Unlike a hash, a permutation never puts two ranks on one block, so the share
//! of the hottest blocks is exactly the formula's. A *centre* shifts all blocks, wrapping at the end of the region, so
//! that the hottest block lies there. Zones, fio's `zoned` and `zoned_abs`, are shares of the I/Os that go to parts of
//! the region, in their order; they are not scattered.

use super::Permutation;
use blkmq_core::Rng;
use std::fmt;

/// The distribution of random offsets.
#[derive(Clone, PartialEq, Debug, Default)]
pub enum Distribution {
    /// All blocks are equally likely.
    #[default]
    Uniform,
    /// The block of rank r (from 1) is drawn in proportion to `1 / r^theta`.
    /// `theta`, and the centre.
    Zipf(f64, Option<f64>),
    /// Self-similar: a share of `1 - h` goes to a share of `h` of the blocks, and so on within these. The fields are
    /// `h` and the centre.
    Pareto(f64, Option<f64>),
    /// fio's bell: the mean of twelve uniform numbers, which has a standard deviation of a twelfth of the region, plus
    /// one uniform number as wide as the deviation, in percent of the region and up to 50. The fields are the
    /// deviation, and the centre; without a centre the hottest block is the middle one.
    Normal(f64, Option<f64>),
    /// Each zone has a share of the I/Os; all offsets within a zone are equally likely.
    Zoned(Zones),
}

/// A parameter out of range.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum DistributionError {
    /// The parameter of zipf.
    #[error("zipf:{0}; accepted is a theta above 0 and up to 100")]
    Theta(f64),
    /// The parameter of pareto.
    #[error("pareto:{0}; accepted is a power above 0 and below 1")]
    Power(f64),
    /// The parameter of normal.
    #[error("normal:{0}; accepted is a deviation above 0 and up to 100 percent")]
    Deviation(f64),
    /// The centre.
    #[error("a centre of {0}; accepted is 0 to 1")]
    Centre(f64),
    /// The zones.
    #[error("{0}")]
    Zones(ZonesError),
}

impl Distribution {
    /// Checks the parameter.
    ///
    /// # Errors
    /// If it is out of range or no number.
    pub fn validate(&self) -> Result<(), DistributionError> {
        let centre = match *self {
            Self::Uniform => None,
            Self::Zipf(theta, _) if !(theta > 0.0 && theta <= 100.0) => {
                return Err(DistributionError::Theta(theta));
            }
            Self::Pareto(h, _) if !(h > 0.0 && h < 1.0) => return Err(DistributionError::Power(h)),
            Self::Normal(dev, _) if !(dev > 0.0 && dev <= 100.0) => {
                return Err(DistributionError::Deviation(dev));
            }
            Self::Zipf(_, centre) | Self::Pareto(_, centre) | Self::Normal(_, centre) => centre,
            Self::Zoned(ref zones) => return zones.validate().map_err(DistributionError::Zones),
        };
        match centre {
            Some(centre) if !(0.0..=1.0).contains(&centre) => {
                Err(DistributionError::Centre(centre))
            }
            _ => Ok(()),
        }
    }
}

impl Distribution {
    /// The position of the hottest block, from 0 to 1 of the region; `None` leaves it to chance.
    pub(super) fn centre(&self) -> Option<f64> {
        match self {
            Self::Uniform | Self::Zoned(_) => None,
            Self::Zipf(_, centre) | Self::Pareto(_, centre) => *centre,
            Self::Normal(_, centre) => Some(centre.unwrap_or(0.5)),
        }
    }
}

impl fmt::Display for Distribution {
    /// In fio's spelling.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let centre = match self {
            Self::Uniform => return f.write_str("random"),
            Self::Zoned(zones) => return zones.fmt(f),
            Self::Zipf(theta, centre) => {
                write!(f, "zipf:{theta}")?;
                centre
            }
            Self::Pareto(h, centre) => {
                write!(f, "pareto:{h}")?;
                centre
            }
            Self::Normal(dev, centre) => {
                write!(f, "normal:{dev}")?;
                centre
            }
        };
        centre.map_or(Ok(()), |centre| write!(f, ":{centre}"))
    }
}

/// Draws block numbers below a count; values that do not change are computed in advance.
#[derive(Clone, Debug)]
pub(super) enum Places {
    /// Independent draws.
    Uniform { blocks: u64 },
    /// Draws each block once, then each again in another order.
    EachOnce { order: Permutation, drawn: u64 },
    /// Draws by rank. All blocks are shifted by `shift`, wrapping at the end.
    Ranked { ranks: Ranks, scatter: Permutation, shift: u64 },
    /// Each zone: the percentage below which its draws are, its first block, and the number of its blocks.
    Zoned(Vec<(u32, u64, u64)>),
}

impl Places {
    /// Independent draws; all blocks are equally likely.
    pub(super) fn uniform(blocks: u64) -> Self {
        Self::Uniform { blocks }
    }

    /// Draws every block before any is repeated.
    pub(super) fn each_once(blocks: u64, rng: &mut Rng) -> Self {
        Self::EachOnce { order: Permutation::new(blocks, rng), drawn: 0 }
    }

    /// Skewed draws; `scatter` decides which blocks are hot, and a centre where the hottest one is.
    pub(super) fn ranked(
        ranks: Ranks,
        blocks: u64,
        centre: Option<f64>,
        scatter: &mut Rng,
    ) -> Self {
        let scatter = Permutation::new(blocks, scatter);
        let shift = centre.map_or(0, |centre| {
            let hottest = ((blocks as f64 * centre) as u64).min(blocks - 1);
            (hottest + (blocks - scatter.at(0))) % blocks
        });
        Self::Ranked { ranks, scatter, shift }
    }

    #[inline]
    pub(super) fn next(&mut self, rng: &mut Rng) -> u64 {
        // Checked first and separately: a match over all variants takes three times as many instructions.
        if let Self::Uniform { blocks } = self { rng.below(*blocks) } else { self.next_uneven(rng) }
    }

    /// Every block may be drawn again.
    pub(super) fn restart(&mut self, rng: &mut Rng) {
        if let Self::EachOnce { order, drawn } = self
            && std::mem::take(drawn) > 0
        {
            order.rekey(rng);
        }
    }

    /// [`next`](Self::next), where draws depend on each other or not all blocks are equally likely.
    #[inline(never)]
    fn next_uneven(&mut self, rng: &mut Rng) -> u64 {
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
            Self::Ranked { .. } | Self::Zoned(_) => self.skewed(rng),
        }
    }

    /// [`next`](Self::next), where not all blocks are equally likely.
    #[inline(never)]
    fn skewed(&self, rng: &mut Rng) -> u64 {
        match self {
            Self::Uniform { .. } | Self::EachOnce { .. } => 0,
            Self::Ranked { ranks, scatter, shift } => {
                let (at, blocks) = (scatter.at(ranks.next(rng)), scatter.len());
                if at < blocks - *shift { at + *shift } else { at - (blocks - *shift) }
            }
            Self::Zoned(zones) => {
                let percent = rng.below(100) as u32;
                let zone = zones.iter().find(|(below, ..)| percent < *below);
                let (_, first, blocks) = *zone.expect("shares sum to 100");
                first + rng.below(blocks)
            }
        }
    }
}

/// Draws ranks, 0 being the hottest.
#[derive(Clone, Debug)]
pub(super) enum Ranks {
    Zipf(Zipf),
    Pareto { blocks: u64, exponent: f64 },
    Normal { blocks: u64, width: f64 },
}

impl Ranks {
    /// `None` for [`Distribution::Uniform`] and zones, which have no ranks.
    pub(super) fn new(distribution: &Distribution, blocks: u64) -> Option<Self> {
        match *distribution {
            Distribution::Uniform | Distribution::Zoned(_) => None,
            Distribution::Zipf(theta, _) => Some(Self::Zipf(Zipf::new(blocks, theta))),
            // Drawing u^e with e = ln h / ln(1 - h) puts 1 - h of the draws below h.
            Distribution::Pareto(h, _) => {
                Some(Self::Pareto { blocks, exponent: h.ln() / (1.0 - h).ln() })
            }
            // As observed with fio 3.33: beyond 50 percent nothing changes.
            Distribution::Normal(percent, _) => {
                Some(Self::Normal { blocks, width: percent.min(50.0) / 100.0 })
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
            // Rank 0 is the top of the bell; ranks below it are the last ones.
            Self::Normal { blocks, width } => {
                let mean = (0..12).map(|_| rng.unit_f64()).sum::<f64>() / 12.0;
                let at = mean - 0.5 + width * (rng.unit_f64() - 0.5);
                ((*blocks as f64 * at.rem_euclid(1.0)) as u64).min(blocks - 1)
            }
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

/// Contiguous zones from the start of the region on. Each has its share of the I/Os in percent, and its length.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Zones {
    /// `zoned`: lengths in percent of the region.
    Percent(Vec<(u8, u8)>),
    /// `zoned_abs`: lengths in bytes.
    Bytes(Vec<(u8, u64)>),
}

/// Zones that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ZonesError {
    /// Shares of the I/Os that sum to this, not to 100.
    #[error("zones with {0} percent of the I/Os; accepted is 100 percent in all")]
    Shares(u32),
    /// Zones that are this many percent of the region, which is more than 100.
    #[error("zones of {0} percent of the region; accepted is up to 100 in all")]
    Percent(u32),
}

impl Zones {
    /// The most zones, as in fio.
    pub const MAX: usize = 256;

    pub(super) fn validate(&self) -> Result<(), ZonesError> {
        let shares: u32 = match self {
            Self::Percent(zones) => zones.iter().map(|(share, _)| u32::from(*share)).sum(),
            Self::Bytes(zones) => zones.iter().map(|(share, _)| u32::from(*share)).sum(),
        };
        if shares != 100 {
            return Err(ZonesError::Shares(shares));
        }
        match self {
            Self::Percent(zones) => match zones.iter().map(|(_, len)| u32::from(*len)).sum() {
                0..=100 => Ok(()),
                sum => Err(ZonesError::Percent(sum)),
            },
            Self::Bytes(_) => Ok(()),
        }
    }

    /// The last byte of the zones, if their lengths are in bytes.
    pub(super) fn end(&self) -> u64 {
        match self {
            Self::Percent(_) => 0,
            Self::Bytes(zones) => zones.iter().fold(0, |sum, (_, len)| sum.saturating_add(*len)),
        }
    }

    /// The zones of a region of `blocks` blocks of `unit` bytes, each as (upper bound in percent of its draws, first
    /// block, number of blocks). A zone that is shorter than a block has the block in which it begins.
    pub(super) fn blocks(&self, blocks: u64, unit: u64) -> Vec<(u32, u64, u64)> {
        let at = |percent: u32| (u128::from(blocks) * u128::from(percent) / 100) as u64;
        let mut ends = Vec::new();
        match self {
            Self::Percent(zones) => {
                let mut percent = 0;
                for (share, len) in zones {
                    percent += u32::from(*len);
                    ends.push((*share, at(percent)));
                }
            }
            Self::Bytes(zones) => {
                let mut bytes = 0u64;
                for (share, len) in zones {
                    bytes = bytes.saturating_add(*len);
                    ends.push((*share, (bytes / unit).min(blocks)));
                }
            }
        }
        let (mut below, mut first) = (0, 0);
        let zone = |(share, end): (u8, u64)| {
            below += u32::from(share);
            let begin = first.min(blocks - 1);
            first = end;
            (below, begin, end.saturating_sub(begin).max(1))
        };
        ends.into_iter().map(zone).collect()
    }
}

impl fmt::Display for Zones {
    /// In fio's spelling.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(zones) => {
                let zones = zones.iter().map(|(share, len)| format!("{share}/{len}"));
                write!(f, "zoned:{}", Vec::from_iter(zones).join(":"))
            }
            Self::Bytes(zones) => {
                let zones = zones.iter().map(|(share, len)| format!("{share}/{len}"));
                write!(f, "zoned_abs:{}", Vec::from_iter(zones).join(":"))
            }
        }
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
            let ranks = Ranks::new(&Distribution::Zipf(theta, None), blocks).expect("has ranks");
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
        let ranks = Ranks::new(&Distribution::Pareto(0.2, None), 100_000).expect("has ranks");
        assert!((share(&ranks, |rank| rank < 20_000) - 0.8).abs() < 0.004);
        assert!((share(&ranks, |rank| rank < 4_000) - 0.64).abs() < 0.004);
    }

    /// Shares of ranks on either side of the top, in steps of a thirty-second of the region, as fio 3.33 has them:
    /// 4096 blocks, a million I/Os, its scattering undone.
    #[test]
    fn normal_has_the_shape_that_fio_shows() {
        let observed: [(f64, [f64; 8]); 4] = [
            (5.0, [14.19, 12.58, 9.71, 6.57, 3.85, 1.94, 0.86, 0.31]),
            (10.0, [13.65, 12.19, 9.64, 6.68, 4.12, 2.17, 1.03, 0.41]),
            (25.0, [10.77, 10.04, 8.75, 7.15, 5.38, 3.65, 2.23, 1.19]),
            (90.0, [6.26, 6.22, 6.13, 5.95, 5.64, 5.16, 4.43, 3.62]),
        ];
        for (deviation, shares) in observed {
            let normal = Distribution::Normal(deviation, None);
            let ranks = Ranks::new(&normal, 4096).expect("has ranks");
            for (step, expected) in (0u64..).zip(shares) {
                let above = share(&ranks, |rank| rank / 128 == step);
                let below = share(&ranks, |rank| (4095 - rank) / 128 == step);
                for seen in [100.0 * above, 100.0 * below] {
                    assert!((seen - expected).abs() < 0.25, "{deviation}: {seen} for {expected}");
                }
            }
        }
    }

    #[test]
    fn a_centre_is_the_place_of_the_hottest_block() {
        for (centre, expected) in [(0.0, 0), (0.3, 300), (1.0, 999)] {
            let ranks = Ranks::new(&Distribution::Zipf(1.5, None), 1_000).expect("has ranks");
            let mut places = Places::ranked(ranks, 1_000, Some(centre), &mut Rng::new(5));
            let (mut rng, mut counts) = (Rng::new(1), vec![0u32; 1_000]);
            (0..20_000).for_each(|_| counts[places.next(&mut rng) as usize] += 1);
            assert_eq!((0..1_000).max_by_key(|&at| counts[at]), Some(expected));
            assert!(counts.iter().filter(|count| **count > 0).count() > 500, "all are moved");
        }
    }

    #[test]
    fn skew_survives_scattering_and_moves_with_its_seed() {
        let hottest = |seed| {
            let ranks = Ranks::new(&Distribution::Zipf(1.5, None), 1_000).expect("has ranks");
            let mut places = Places::ranked(ranks, 1_000, None, &mut Rng::new(seed));
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
            Distribution::Zipf(0.0, None),
            Distribution::Zipf(f64::NAN, None),
            Distribution::Pareto(1.0, None),
            Distribution::Normal(101.0, None),
            Distribution::Zipf(1.0, Some(1.1)),
            Distribution::Normal(1.0, Some(f64::NAN)),
        ] {
            let message = wrong.validate().expect_err("out of range").to_string();
            assert!(message.contains("accepted"), "{message}");
        }
    }

    #[test]
    fn zones_follow_each_other_and_leave_the_rest_alone() {
        let zones = Zones::Percent(vec![(60, 10), (30, 20), (10, 30)]);
        assert_eq!(zones.blocks(1000, 4096), [(60, 0, 100), (90, 100, 200), (100, 300, 300)]);
        let zones = Zones::Bytes(vec![(60, 1 << 20), (40, 1 << 20)]);
        assert_eq!(zones.blocks(1024, 4096), [(60, 0, 256), (100, 256, 256)]);
        assert_eq!(zones.end(), 2 << 20);
    }

    #[test]
    fn a_zone_without_a_whole_block_has_one() {
        let zones = Zones::Percent(vec![(50, 1), (50, 99)]);
        assert_eq!(zones.blocks(10, 4096), [(50, 0, 1), (100, 0, 10)]);
        assert_eq!(zones.blocks(1, 4096), [(50, 0, 1), (100, 0, 1)]);
    }

    #[test]
    fn shares_and_lengths_are_checked() {
        let error = |zones: Zones| zones.validate().expect_err("impossible").to_string();
        assert!(error(Zones::Percent(vec![(50, 5)])).starts_with("zones with 50 percent"));
        assert!(error(Zones::Percent(vec![(50, 50), (50, 60)])).starts_with("zones of 110"));
        assert_eq!(Zones::Percent(vec![(100, 10)]).validate(), Ok(()));
    }
}
