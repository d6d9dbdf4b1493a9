//! Completion latencies: for each run a line from the median to the maximum on a logarithmic axis, with
//! marks at the percentiles between.

use super::super::job::Latency;
use super::super::label::Varying;
use super::super::markup::Markup;
use super::super::model::Report;
use super::super::number::nanos;
use super::super::percentile::Percentile;
use super::look::{Looks, Shape, mark};
use super::rows::{Axis, LEFT, RIGHT, Row, rows};
use super::scale::Log;
use super::{bar, line};
use blkmq_lab::workload::Direction;

/// Draws the latencies, of one kind of I/O or of all, of the runs that have any. Returns whether there was one.
pub fn latencies(m: &mut Markup, report: &Report, looks: &Looks, kind: Option<Direction>) -> bool {
    let varying = Varying::of(report);
    let timed: Vec<(usize, Latency)> = report
        .runs
        .iter()
        .enumerate()
        .filter_map(|(index, run)| {
            Some((index, run.latency_of_kind(kind).filter(|l| l.0.count() > 0)?))
        })
        .collect();
    let at = |l: &Latency, p: Percentile| p.of(&l.0) as f64;
    let low = timed.iter().map(|(_, l)| at(l, Percentile::P50)).fold(f64::INFINITY, f64::min);
    let high = timed.iter().map(|(_, l)| l.0.max() as f64).fold(0.0, f64::max);
    if timed.is_empty() {
        return false;
    }
    let scale = Log::covering(low, high, LEFT, RIGHT);
    let axis = Axis {
        ticks: scale.ticks().map(|v| (scale.at(v), decade(v))).collect(),
        figures: "p50 / p99",
    };
    let named: Vec<Row> = timed
        .iter()
        .map(|(index, l)| Row {
            name: varying.run_name(&report.runs[*index]),
            figure: format!(
                "{} / {}",
                nanos(at(l, Percentile::P50)),
                nanos(at(l, Percentile::P99))
            ),
        })
        .collect();
    rows(m, "Completion latency of each run, logarithmic", &axis, &named, |m, row, y| {
        let (index, latency) = &timed[row];
        let run = &report.runs[*index];
        marks(m, latency, &scale, y, (&looks.colour(run), looks.shape(run)));
    });
    true
}

fn marks(m: &mut Markup, latency: &Latency, scale: &Log, y: f64, (class, shape): (&str, Shape)) {
    let at = |p: Percentile| p.of(&latency.0) as f64;
    let says = |name: &str, ns: f64| format!("{name}: {}", nanos(ns));
    let max = latency.0.max() as f64;
    let (p50, p99, end) =
        (scale.at(at(Percentile::P50)), scale.at(at(Percentile::P99)), scale.at(max));
    line(m, &format!("thin {class}"), (p50, y), (end, y));
    let body = says("p50 to p99", at(Percentile::P99) - at(Percentile::P50));
    bar(m, &format!("body {class}"), (p50, y - 4.0), (p99 - p50, 8.0), &body);
    bar(m, &format!("fill {class}"), (end - 1.0, y - 6.0), (2.0, 12.0), &says("max", max));
    let dots = [
        (Percentile::P99_9, "hollow", 3.0, "p99.9"),
        (Percentile::P99, "hollow", 4.5, "p99"),
        (Percentile::P50, "fill", 4.5, "p50"),
    ];
    for (percentile, style, radius, name) in dots {
        let ns = at(percentile);
        let class = format!("{style} {class}");
        mark(m, shape, &class, (scale.at(ns), y), radius, &says(name, ns));
    }
}

/// A power of ten: `100 ns`, `10 us`.
pub(super) fn decade(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "us"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    format!("{value:.0} {unit}")
}
