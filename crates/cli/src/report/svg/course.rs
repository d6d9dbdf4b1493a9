//! Courses over time: rates, latencies and depths, a curve for each run.

use super::super::label::Varying;
use super::super::markup::Markup;
use super::super::model::{Courses, Report};
use super::super::number::{nanos, tick};
use super::drawn;
use super::graph::{BOTTOM, Curve, Frame, LEFT, RIGHT, TOP, curves, frame};
use super::look::Looks;
use super::scale::Linear;
use blkmq_lab::workload::{Bin, Series};

/// A quantity that is drawn over time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quantity {
    /// I/Os completed in a second.
    Rate,
    /// Their mean completion latency.
    Latency,
    /// Requests that schedulers hold, on average.
    Elevator,
    /// Requests at the device, on average.
    Device,
}

impl Quantity {
    /// All quantities, in the order of the page.
    pub const ALL: [Self; 4] = [Self::Rate, Self::Latency, Self::Elevator, Self::Device];

    /// A heading.
    pub fn heading(self) -> &'static str {
        match self {
            Self::Rate => "I/Os per second over time",
            Self::Latency => "Latency over time",
            Self::Elevator => "Requests in the elevator over time",
            Self::Device => "Requests at the device over time",
        }
    }

    fn series(self, courses: &Courses) -> Option<&Series> {
        match self {
            Self::Rate | Self::Latency => courses.completions.as_ref(),
            Self::Elevator => courses.elevator.as_ref(),
            Self::Device => courses.device.as_ref(),
        }
        .filter(|series| series.bins().len() > 1)
    }

    /// The value of one bin of `length` nanoseconds; `None` if it has none.
    fn value(self, bin: &Bin, length: f64) -> Option<f64> {
        match self {
            Self::Rate => Some(bin.count as f64 * 1e9 / length),
            _ if bin.count == 0 => None,
            Self::Latency | Self::Elevator | Self::Device => {
                Some(bin.sum as f64 / bin.count as f64)
            }
        }
    }

    fn label(self, value: f64) -> String {
        if self == Self::Latency { nanos(value) } else { tick(value) }
    }
}

/// Draws the courses of one quantity; returns whether there was one.
pub fn courses(m: &mut Markup, report: &Report, looks: &Looks, quantity: Quantity) -> bool {
    let varying = Varying::of(report);
    let values: Vec<(usize, Vec<(f64, f64)>)> = drawn(report)
        .filter_map(|(index, run)| {
            Some((index, values(quantity, quantity.series(run.courses.as_ref()?)?)))
        })
        .collect();
    let all = || values.iter().flat_map(|(_, values)| values);
    let end = all().map(|(at, _)| *at).fold(0.0, f64::max);
    let high = all().map(|(_, value)| *value).fold(0.0, f64::max);
    if end == 0.0 {
        return false;
    }
    let (across, up) = (Linear::ending(end, LEFT, RIGHT), Linear::covering(high, BOTTOM, TOP));
    let around = Frame {
        says: quantity.heading(),
        across: "time since the run began",
        columns: across.ticks().map(|v| (across.at(v), nanos(v))).collect(),
        rows: up.ticks().map(|v| (up.at(v), quantity.label(v))).collect(),
    };
    let curve = |(index, values): &(usize, Vec<(f64, f64)>)| {
        let run = &report.runs[*index];
        let says =
            |(at, value): &(f64, f64)| format!("{} at {}", quantity.label(*value), nanos(*at));
        Curve {
            class: looks.curve(run),
            name: varying.run_name(run),
            points: values.iter().map(|(at, value)| (across.at(*at), up.at(*value))).collect(),
            shape: looks.shape(run),
            values: values.iter().map(says).collect(),
        }
    };
    let all: Vec<Curve> = values.iter().map(curve).collect();
    frame(m, &around, |m| curves(m, &all));
    true
}

/// The approximate number of points of a curve. With short bins, effects in step with them would appear as a sawtooth.
const POINTS: usize = 100;

/// The middle and the value of each group of bins. An incomplete group at the end, after which the run ended, is
/// omitted.
fn values(quantity: Quantity, series: &Series) -> Vec<(f64, f64)> {
    let bins = series.bins();
    let together = bins.len().div_ceil(POINTS);
    let length = series.length().0 as f64 * together as f64;
    let sum = |bins: &[Bin]| {
        let (count, sum) = bins.iter().fold((0, 0), |(n, sum), bin| (n + bin.count, sum + bin.sum));
        Bin { count, sum, max: 0 }
    };
    let whole = (bins.len() - 1) / together;
    let full = bins.chunks(together).map(sum).enumerate().take(whole);
    let begun = full.skip_while(|(_, bin)| bin.count == 0);
    begun
        .filter_map(|(at, bin)| Some(((at as f64 + 0.5) * length, quantity.value(&bin, length)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::Instant;

    #[test]
    fn a_steady_rate_is_a_level_line() {
        let mut series = Series::new();
        (0..100_000).for_each(|n| series.record(Instant::from_nanos(n * 10_000), 500));
        let rates = values(Quantity::Rate, &series);
        assert!((60..=POINTS).contains(&rates.len()), "{}", rates.len());
        assert!(rates.iter().all(|(_, rate)| (99_000.0..101_000.0).contains(rate)), "{rates:?}");
        let last = rates[rates.len() - 1].0;
        assert!((9.5e8..1e9).contains(&last), "{last}");
        assert!(values(Quantity::Latency, &series).iter().all(|(_, ns)| (ns - 500.0).abs() < 1.0));
    }
}
