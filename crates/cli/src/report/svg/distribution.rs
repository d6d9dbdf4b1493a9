//! Completion latencies as cumulative distributions: the share of the I/Os that took at most a given time.

use super::super::label::Varying;
use super::super::markup::Markup;
use super::super::model::Report;
use super::super::number::nanos;
use super::drawn;
use super::graph::{BOTTOM, Curve, Frame, LEFT, RIGHT, TOP, curves, frame};
use super::latency::decade;
use super::look::Looks;
use super::scale::{Linear, Log};
use blkmq_core::Histogram;
use blkmq_lab::workload::Direction;

/// Points of one curve.
const POINTS: u64 = 200;

/// Draws the distributions, of one kind of I/O or of all; returns whether there was one.
pub fn distributions(
    m: &mut Markup,
    report: &Report,
    looks: &Looks,
    kind: Option<Direction>,
) -> bool {
    let varying = Varying::of(report);
    let timed: Vec<(usize, Histogram)> = drawn(report)
        .filter_map(|(index, run)| {
            Some((index, run.latency_of_kind(kind).filter(|l| l.0.count() > 0)?.0))
        })
        .collect();
    let low = timed.iter().map(|(_, l)| l.quantile(1, 1_000)).min();
    let high = timed.iter().map(|(_, l)| l.quantile(9_999, 10_000)).max();
    let (Some(low), Some(high)) = (low, high) else { return false };
    let across = Log::covering(low as f64, high as f64, LEFT, RIGHT);
    let up = Linear::covering(100.0, BOTTOM, TOP);
    let around = Frame {
        says: "Share of I/Os over completion latency, logarithmic",
        across: "completion latency",
        columns: across.ticks().map(|v| (across.at(v), decade(v))).collect(),
        rows: up.ticks().map(|v| (up.at(v), format!("{v:.0} %"))).collect(),
    };
    let curve = |(index, latency): &(usize, Histogram)| {
        // Up to the share that the axis covers; the slowest of all are in the table and in the plot above.
        let shares = (0..=POINTS).map(|n| (n * 9_999 / POINTS).max(1));
        let point = |share: u64| {
            let ns = latency.quantile(share, 10_000) as f64;
            (across.at(ns), up.at(share as f64 / 100.0))
        };
        let value = |share: u64| {
            let ns = latency.quantile(share, 10_000) as f64;
            format!("{} % within {}", share as f64 / 100.0, nanos(ns))
        };
        let run = &report.runs[*index];
        Curve {
            class: looks.curve(run),
            name: varying.run_name(run),
            points: shares.clone().map(point).collect(),
            shape: looks.shape(run),
            values: shares.map(value).collect(),
        }
    };
    let all: Vec<Curve> = timed.iter().map(curve).collect();
    frame(m, &around, |m| curves(m, &all));
    true
}
