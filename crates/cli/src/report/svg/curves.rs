//! Plots with curves over two axes: courses of rates, latencies and depths over time; completion latencies as
//! cumulative distributions, the share of the I/Os that took at most a given time; and the activity of a modelled
//! device over time, which is the path of a disk's heads, or the activities of each part of a flash device.

use super::super::job::Latency;
use super::super::model::{Courses, Report, Run};
use super::super::svg::{Attributes, Markup, Px};
use super::super::wording::{Varying, nanos, scheduler, tick};
use super::rows::{decade, timed};
use super::{Linear, Log, Looks, SHAPES, Shape, WIDTH};
use super::{drawn, line, mark, sized, text, titled, titled_line};
use blkmq_device::{Activity, Span};
use blkmq_lab::workload::{Bin, Direction, Series};

const HEIGHT: f64 = 300.0;
/// Its area, in pixels.
const LEFT: f64 = 72.0;
/// The right edge leaves room for half of the last tick's text.
const RIGHT: f64 = WIDTH - 36.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 252.0;

struct Curve {
    /// The classes that determine its style.
    class: String,
    /// The name, shown as a tooltip.
    name: String,
    /// The points from left to right.
    points: Vec<(f64, f64)>,
    /// The marker of some of the points.
    shape: Shape,
    /// The values of the points, shown as tooltips; without them the curve has no markers.
    values: Vec<String>,
}

/// Draws a frame with a textual description, the name of the horizontal axis, and the ticks from left to right and from
/// bottom to top; and in it the drawing of `content`.
fn frame(
    m: &mut Markup,
    (says, across): (&str, &str),
    columns: &[(f64, String)],
    rows: &[(f64, String)],
    content: impl FnOnce(&mut Markup),
) {
    sized(m, "plot", (WIDTH, HEIGHT), says, |m| {
        for (y, name) in rows {
            line(m, "grid", (LEFT, *y), (RIGHT, *y));
            text(m, "tick", "end", (LEFT - 8.0, y + 4.0), name);
        }
        for (x, name) in columns {
            line(m, "grid", (*x, TOP), (*x, BOTTOM));
            text(m, "tick", "middle", (*x, BOTTOM + 18.0), name);
        }
        let middle = f64::midpoint(LEFT, RIGHT);
        text(m, "tick", "middle", (middle, BOTTOM + 38.0), across);
        content(m);
    });
}

const MARKERS: usize = 7;

/// Draws curves, with staggered markers so that coinciding curves can be distinguished.
fn curves(m: &mut Markup, all: &[Curve]) {
    for (number, Curve { class, name, points, shape, values }) in all.iter().enumerate() {
        let line: Vec<String> =
            points.iter().map(|(x, y)| format!("{},{}", Px(*x), Px(*y))).collect();
        let path = format!("path {class}");
        let place: Attributes = &[("class", &path), ("points", &line.join(" "))];
        titled(m, "polyline", place, name);
        let step = (points.len() / MARKERS).max(1);
        let marked = points.iter().zip(values).skip(step * number / all.len()).step_by(step);
        for (at, value) in marked {
            let says = format!("{name}: {value}");
            mark(m, shape, &format!("fill {class}"), *at, 3.5, &says);
        }
    }
}

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
    let values: Vec<(&Run, Vec<(f64, f64)>)> = drawn(report)
        .filter_map(|run| Some((run, values(quantity, quantity.series(run.courses.as_ref()?)?))))
        .collect();
    let all = || values.iter().flat_map(|(_, values)| values);
    let end = all().map(|(at, _)| *at).fold(0.0, f64::max);
    let high = all().map(|(_, value)| *value).fold(0.0, f64::max);
    if end == 0.0 {
        return false;
    }
    let (across, up) = (Linear::ending(end, LEFT, RIGHT), Linear::covering(high, BOTTOM, TOP));
    let (columns, rows) = (across.labels(nanos), up.labels(|value| quantity.label(value)));
    let curve = |(run, values): &(&Run, Vec<(f64, f64)>)| {
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
    let names = (quantity.heading(), "time since the run began");
    frame(m, names, &columns, &rows, |m| curves(m, &all));
    true
}

/// The approximate number of points of a curve. With short bins, effects in step with them would appear as a sawtooth.
const COURSE_POINTS: usize = 100;

/// The middle and the value of each group of bins. An incomplete group at the end, after which the run ended, is
/// omitted.
fn values(quantity: Quantity, series: &Series) -> Vec<(f64, f64)> {
    let bins = series.bins();
    let together = bins.len().div_ceil(COURSE_POINTS);
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

/// Points of one curve.
const DISTRIBUTION_POINTS: u64 = 200;

/// Draws the distributions, of one kind of I/O or of all; returns whether there was one.
pub fn distributions(
    m: &mut Markup,
    report: &Report,
    looks: &Looks,
    kind: Option<Direction>,
) -> bool {
    let varying = Varying::of(report);
    let timed = timed(drawn(report), kind);
    let low = timed.iter().map(|(_, l)| l.0.quantile(1, 1_000)).min();
    let high = timed.iter().map(|(_, l)| l.0.quantile(9_999, 10_000)).max();
    let (Some(low), Some(high)) = (low, high) else { return false };
    let across = Log::covering(low as f64, high as f64, LEFT, RIGHT);
    let up = Linear::covering(100.0, BOTTOM, TOP);
    let (columns, rows) = (across.labels(decade), up.labels(|value| format!("{value:.0} %")));
    let curve = |(run, latency): &(&Run, Latency)| {
        // Up to the share that the axis covers; the slowest of all are in the table and in the plot above.
        let shares = (0..=DISTRIBUTION_POINTS).map(|n| (n * 9_999 / DISTRIBUTION_POINTS).max(1));
        let point = |share: u64| {
            let (ns, percent) = (latency.0.quantile(share, 10_000) as f64, share as f64 / 100.0);
            let says = format!("{percent} % within {}", nanos(ns));
            ((across.at(ns), up.at(percent)), says)
        };
        let (points, values) = shares.map(point).unzip();
        Curve {
            class: looks.curve(run),
            name: varying.run_name(run),
            points,
            shape: looks.shape(run),
            values,
        }
    };
    let all: Vec<Curve> = timed.iter().map(curve).collect();
    let names = ("Share of I/Os over completion latency, logarithmic", "completion latency");
    frame(m, names, &columns, &rows, |m| curves(m, &all));
    true
}

/// The most spans that are drawn of one run: more would be a blot.
const MOST_SPANS: usize = 2_000;

/// The activities of devices, with names and colours.
pub const ACTIVITIES: [(Activity, &str, &str); 6] = [
    (Activity::Read, "read", "c0"),
    (Activity::Write, "write", "c1"),
    (Activity::Transfer, "transfer", "c2"),
    (Activity::Erase, "erase", "c6"),
    (Activity::Housekeeping, "housekeeping", "c3"),
    (Activity::Position, "position", "c7"),
];

/// The contents of a plot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drawn {
    /// Spans in the plot.
    pub spans: usize,
    /// Spans in all.
    pub of: u64,
    /// Whether the plot shows the path of heads, rather than parallel parts.
    pub heads: bool,
}

/// Draws the activity of the device of `run`; `None` if the device did not record it.
pub fn occupancy(m: &mut Markup, run: &Run) -> Option<Drawn> {
    let courses = run.courses.as_ref().filter(|courses| !courses.spans.is_empty())?;
    let spans = &courses.spans[..courses.spans.len().min(MOST_SPANS)];
    let heads = spans.iter().any(|span| span.activity == Activity::Position);
    let start = spans.iter().map(|span| span.start).min()?;
    let ns = |at: blkmq_core::Instant| (at - start).0 as f64;
    let end = spans.iter().map(|span| ns(span.end)).fold(0.0, f64::max);
    let most = spans.iter().map(|span| span.place).max()?;
    let across = Linear::ending(end, LEFT, RIGHT);
    let up = Linear::covering(f64::from(most), BOTTOM, TOP);
    let says =
        if heads { "Cylinder of the heads over time" } else { "What each part did over time" };
    let (columns, rows) = (across.labels(nanos), up.labels(tick));
    let place = |span: &Span| up.at(f64::from(span.place));
    frame(m, (says, "time since the first request"), &columns, &rows, |m| {
        if heads {
            let mut points = vec![(LEFT, place(&spans[0]))];
            for span in spans {
                let before = points[points.len() - 1].1;
                points.push((across.at(ns(span.start)), before));
                points.push((across.at(ns(span.end)), place(span)));
            }
            let (class, name, shape) = ("c0".into(), scheduler(run), SHAPES[0]);
            return curves(m, &[Curve { class, name, points, shape, values: vec![] }]);
        }
        for span in spans {
            let (from, to) = (across.at(ns(span.start)), across.at(ns(span.end)));
            let activity = ACTIVITIES.iter().find(|(known, ..)| *known == span.activity);
            let (_, name, colour) = activity.expect("every activity has a name");
            let says =
                format!("{name} at {}: {}", span.place, nanos((span.end - span.start).0 as f64));
            let class = format!("busy {colour}");
            let (y, to) = (place(span), to.max(from + 0.5));
            titled_line(m, &class, (from, y), (to, y), &says);
        }
    });
    let of = courses.spans.len() as u64 + courses.spans_missed;
    Some(Drawn { spans: spans.len(), of, heads })
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
        assert!((60..=COURSE_POINTS).contains(&rates.len()), "{}", rates.len());
        assert!(rates.iter().all(|(_, rate)| (99_000.0..101_000.0).contains(rate)), "{rates:?}");
        let last = rates[rates.len() - 1].0;
        assert!((9.5e8..1e9).contains(&last), "{last}");
        assert!(values(Quantity::Latency, &series).iter().all(|(_, ns)| (ns - 500.0).abs() < 1.0));
    }
}
