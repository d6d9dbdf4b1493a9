//! The seek curve: the seek time as a function of the number of cylinders.
//!
//! A short seek accelerates half the way and brakes the other half, so its time grows with the square root of the
//! distance; a long one spends the rest at full speed, so its time grows linearly. The curve has these two parts and
//! fits the three figures of data sheets: the track-to-track time, the average over all seeks, and the full stroke.

use blkmq_core::Nanos;

/// Below this distance the table has every value; beyond it, this many values for each power of two.
const DIRECT: u32 = 64;
/// Distances at which the average is taken.
const SAMPLES: i128 = 4096;
/// The unit of a fraction of the stroke; square roots have the unit `ROOT`.
const ONE: i128 = 1 << 32;
const ROOT: i128 = 1 << 16;

/// Published seek times, including settling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeekTimes {
    /// From one track to the next.
    pub track: Nanos,
    /// The average over all pairs of cylinders.
    pub average: Nanos,
    /// From the first cylinder to the last.
    pub full: Nanos,
}

/// A seek curve, as a table.
#[derive(Clone, Debug)]
pub(super) struct SeekCurve {
    /// Nanoseconds for a distance one above that of the [`Slot`].
    table: Box<[u32]>,
}

/// The position of a distance in the table: `rest / 2^shift` beyond entry `index`.
struct Slot {
    index: usize,
    rest: u32,
    shift: u32,
}

fn slot(beyond: u32) -> Slot {
    if beyond < DIRECT {
        return Slot { index: beyond as usize, rest: 0, shift: 0 };
    }
    let shift = beyond.ilog2() - DIRECT.ilog2();
    let index = DIRECT * shift + (beyond >> shift);
    Slot { index: index as usize, rest: beyond & ((1 << shift) - 1), shift }
}

/// The two parts: `track + sqrt * root(min(x, knee)) + linear * max(0, x - knee)`, x being a fraction of the
/// stroke. Coefficients in 2^-16 ns.
struct Parts {
    track: i128,
    root: i128,
    linear: i128,
    knee: i128,
}

fn root_of(x: i128) -> i128 {
    (x as u64).isqrt().into()
}

impl Parts {
    /// Solves for the coefficients: the average and the full stroke give two linear equations. Returns `None` if a
    /// coefficient would be negative.
    fn solve(times: &SeekTimes, knee: i128) -> Option<Self> {
        let [track, average, full] =
            [times.track, times.average, times.full].map(|time| i128::from(time.0));
        let (mut weights, mut roots, mut linears) = (0, 0, 0);
        for sample in 0..SAMPLES {
            let x = (2 * sample + 1) * ONE / (2 * SAMPLES);
            // The longer a seek, the fewer pairs of cylinders have its distance.
            let weight = (ONE - x) / ROOT;
            weights += weight;
            roots += weight * root_of(x.min(knee));
            linears += weight * (x - knee).max(0);
        }
        let (roots, linears) = (roots / weights, linears / weights);
        let (root_at_knee, rest) = (root_of(knee), ONE - knee);
        let determinant = roots * rest - linears * root_at_knee;
        let (above, across) = ((average - track) * ONE, (full - track) * ONE);
        if determinant == 0 {
            return None;
        }
        // In units of a root and of a fraction; both come out in 2^-16 ns.
        let root = (above * rest - across * linears) / determinant;
        let linear = (across * roots - above * root_at_knee) / determinant * ROOT;
        let possible = root >= 0 && linear >= 0;
        possible.then_some(Self { track, root, linear, knee })
    }

    fn at(&self, x: i128) -> u32 {
        let short = self.root * root_of(x.min(self.knee)) / ONE;
        let long = self.linear * (x - self.knee).max(0) / (ONE * ROOT);
        (self.track + short + long) as u32
    }
}

impl SeekCurve {
    /// Fits a curve to `times` for a disk of `cylinders`, where the first `knee` percent (1 to 99) of the stroke grow
    /// with the square root. Returns `None` if no such curve exists: the average is too close to one of the other
    /// figures.
    pub(super) fn fit(times: &SeekTimes, knee: u8, cylinders: u32) -> Option<Self> {
        let parts = Parts::solve(times, i128::from(knee) * ONE / 100)?;
        let longest = cylinders.saturating_sub(2);
        // One more entry, for interpolation.
        let entries = slot(longest).index + 2;
        let mut table = Vec::with_capacity(entries);
        let stroke = i128::from(longest.max(1));
        for index in 0..entries as u32 {
            let shift = (index / DIRECT).saturating_sub(1);
            let beyond = i128::from(index - DIRECT * shift) << shift;
            table.push(parts.at(beyond * ONE / stroke));
        }
        Some(Self { table: table.into() })
    }

    /// The nanoseconds for `distance` cylinders; zero for zero. O(1).
    #[inline]
    pub(super) fn time(&self, distance: u32) -> u64 {
        let Some(beyond) = distance.checked_sub(1) else { return 0 };
        let Slot { index, rest, shift } = slot(beyond);
        let [from, to] = [self.table[index], self.table[index + 1]].map(u64::from);
        from + (((to - from) * u64::from(rest)) >> shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::Rng;

    const CYLINDERS: u32 = 100_000;

    fn times(track: u64, average: u64, full: u64) -> SeekTimes {
        let [track, average, full] = [track, average, full].map(Nanos::from_micros);
        SeekTimes { track, average, full }
    }

    fn curve(times: &SeekTimes, knee: u8) -> SeekCurve {
        SeekCurve::fit(times, knee, CYLINDERS).expect("a possible curve")
    }

    #[test]
    fn it_goes_through_the_three_figures() {
        for (times, knee) in [
            (times(200, 3400, 6600), 40),
            (times(1400, 8500, 14_700), 6),
            (times(800, 8500, 16_000), 30),
        ] {
            let curve = curve(&times, knee);
            let near =
                |value: u64, published: Nanos| value.abs_diff(published.0) * 1000 <= published.0;
            assert_eq!((curve.time(0), curve.time(1)), (0, times.track.0));
            assert!(near(curve.time(CYLINDERS - 1), times.full), "{}", curve.time(CYLINDERS - 1));
            let (mut sum, mut weights) = (0, 0);
            for distance in 1..CYLINDERS {
                let weight = u64::from(CYLINDERS - distance);
                sum += u128::from(weight) * u128::from(curve.time(distance));
                weights += weight;
            }
            let average = (sum / u128::from(weights)) as u64;
            assert!(near(average, times.average), "{average} for {times:?}");
        }
    }

    #[test]
    fn the_average_over_random_pairs_is_the_published_one() {
        let (curve, mut rng) = (curve(&times(200, 3400, 6600), 40), Rng::new(1));
        let mut any = || rng.below(CYLINDERS.into()) as u32;
        let pairs = 200_000;
        let sum: u64 = (0..pairs).map(|_| curve.time(any().abs_diff(any()))).sum();
        assert!((sum / pairs).abs_diff(3_400_000) < 17_000, "{}", sum / pairs);
    }

    #[test]
    fn longer_seeks_take_longer_and_short_ones_grow_with_the_root() {
        let curve = curve(&times(200, 3400, 6600), 40);
        assert!((1..CYLINDERS - 1).all(|d| curve.time(d) <= curve.time(d + 1)));
        let beyond_track = |d: u32| curve.time(d + 1) - 200_000;
        for d in [100, 1000, 7000] {
            let ratio = beyond_track(4 * d) * 1000 / beyond_track(d);
            assert!((1990..=2010).contains(&ratio), "{d}: four times as far takes {ratio} / 1000");
        }
        let slope = |d: u32| curve.time(d + 10_000) - curve.time(d);
        assert!(slope(50_000).abs_diff(slope(85_000)) < 1000, "far out it is a straight line");
    }

    #[test]
    fn figures_that_no_curve_fits_are_refused() {
        for impossible in
            [times(1000, 900, 8000), times(1000, 7900, 8000), times(2000, 2100, 90_000)]
        {
            assert!(SeekCurve::fit(&impossible, 30, CYLINDERS).is_none(), "{impossible:?}");
        }
        for few in [1, 2, 3, 65, 66, 67] {
            let curve = SeekCurve::fit(&times(200, 3400, 6600), 40, few).expect("a possible curve");
            assert!(few < 3 || curve.time(few - 1) > 6_590_000, "{few}: {}", curve.time(few - 1));
        }
    }
}
