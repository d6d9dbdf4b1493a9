//! From values to pixels: a linear scale from zero and a logarithmic one, with round ticks.

/// A linear scale that starts at zero.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    step: f64,
    /// The value at pixel `to`.
    end: f64,
    from: f64,
    to: f64,
}

/// A logarithmic scale over whole decades.
#[derive(Clone, Copy, Debug)]
pub struct Log {
    low: i32,
    high: i32,
    from: f64,
    to: f64,
}

impl Linear {
    /// Zero at pixel `from`; the first round value that is not below `max` at pixel `to`.
    pub fn covering(max: f64, from: f64, to: f64) -> Self {
        let scale = Self::ending(max, from, to);
        Self { end: scale.step * (scale.end / scale.step).ceil().max(1.0), ..scale }
    }

    /// Maps zero to pixel `from` and `max` to pixel `to`: for an axis that ends with its quantity, such as time.
    pub fn ending(max: f64, from: f64, to: f64) -> Self {
        let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
        let decade = 10f64.powi((max / 5.0).log10().floor() as i32);
        let steps = [1.0, 2.0, 5.0, 10.0].map(|m| m * decade);
        let step = steps.into_iter().find(|step| step * 5.0 >= max).unwrap_or(10.0 * decade);
        Self { step, end: max, from, to }
    }

    /// The pixel of `value`.
    pub fn at(&self, value: f64) -> f64 {
        self.from + (self.to - self.from) * value / self.end
    }

    /// Round values, from zero to the last one on the scale.
    pub fn ticks(&self) -> impl Iterator<Item = f64> + use<> {
        let step = self.step;
        // A whole number of steps may be computed as slightly less.
        let steps = (self.end / step + 1e-6).floor() as u32;
        (0..=steps).map(move |n| step * f64::from(n))
    }
}

impl Log {
    /// The decades that hold `min` and `max`, from pixel `from` to pixel `to`.
    pub fn covering(min: f64, max: f64, from: f64, to: f64) -> Self {
        let low = min.max(1.0).log10().floor() as i32;
        let high = (max.max(1.0).log10().ceil() as i32).max(low + 1);
        Self { low, high, from, to }
    }

    /// The pixel of `value`; values below the scale are at its start.
    pub fn at(&self, value: f64) -> f64 {
        let place =
            (value.max(1.0).log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        self.from + (self.to - self.from) * place.max(0.0)
    }

    /// The powers of ten.
    pub fn ticks(&self) -> impl Iterator<Item = f64> + use<> {
        (self.low..=self.high).map(|exponent| 10f64.powi(exponent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_ticks_are_round_and_cover_the_maximum() {
        for max in [0.3, 1.0, 4.9, 5.1, 7.0, 99.0, 101.0, 15_500_000.0, 0.0, f64::NAN] {
            let scale = Linear::covering(max, 0.0, 100.0);
            let ticks: Vec<f64> = scale.ticks().collect();
            assert!((2..=7).contains(&ticks.len()), "{max}: {ticks:?}");
            assert!(ticks[ticks.len() - 1] >= max || max.is_nan(), "{max}: {ticks:?}");
            assert!((scale.at(ticks[ticks.len() - 1]) - 100.0).abs() < 1e-9);
            assert_eq!(scale.at(0.0), 0.0);
        }
        let ticks: Vec<f64> = Linear::covering(7.0, 0.0, 1.0).ticks().collect();
        assert_eq!(ticks, [0.0, 2.0, 4.0, 6.0, 8.0]);
    }

    #[test]
    fn a_scale_that_ends_with_its_values_has_ticks_within_them() {
        let scale = Linear::ending(2.1, 0.0, 210.0);
        assert_eq!(scale.ticks().collect::<Vec<_>>(), [0.0, 0.5, 1.0, 1.5, 2.0]);
        assert!((scale.at(2.0) - 200.0).abs() < 1e-9 && (scale.at(2.1) - 210.0).abs() < 1e-9);
    }

    #[test]
    fn log_ticks_are_decades() {
        let scale = Log::covering(150.0, 42_000.0, 10.0, 310.0);
        assert_eq!(scale.ticks().collect::<Vec<_>>(), [100.0, 1e3, 1e4, 1e5]);
        assert!((scale.at(100.0) - 10.0).abs() < 1e-9 && (scale.at(1e5) - 310.0).abs() < 1e-9);
        assert!((scale.at(1e4) - 210.0).abs() < 1e-9);
        assert_eq!(scale.at(0.0), 10.0);
        assert_eq!(Log::covering(0.0, 0.0, 0.0, 1.0).ticks().count(), 2);
    }
}
