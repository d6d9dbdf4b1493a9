//! How many bios needed no request of their own, and where they were merged: a stacked bar for each run.

use super::super::label::Varying;
use super::super::markup::Markup;
use super::super::model::{Report, Run};
use super::super::number::percent;
use super::super::ratio::ratio;
use super::bar;
use super::rows::{Axis, LEFT, RIGHT, Row, rows};
use super::scale::Linear;

/// The colours of plug, back, front, request and discard; the first schedulers have other colours.
pub const KINDS: [&str; 5] = ["c5", "c4", "c3", "c6", "c7"];

/// Draws the merges; returns whether there were any.
pub fn merges(m: &mut Markup, report: &Report) -> bool {
    let share = |run: &Run| 100.0 * run.counters.merged_share();
    let most = report.runs.iter().map(share).fold(0.0, f64::max);
    if most == 0.0 {
        return false;
    }
    let varying = Varying::of(report);
    let scale = Linear::covering(most, LEFT, RIGHT);
    let axis = Axis {
        ticks: scale.ticks().map(|v| (scale.at(v), format!("{} %", short(v)))).collect(),
        figures: "merged",
    };
    let named: Vec<Row> = report
        .runs
        .iter()
        .map(|run| Row {
            name: varying.run_name(run),
            figure: percent(run.counters.merged_share()),
        })
        .collect();
    rows(m, "Share of I/Os merged, by kind", &axis, &named, |m, index, y| {
        let counters = &report.runs[index].counters;
        let mut from = 0.0;
        for (kind, (name, n)) in counters.merges.each().into_iter().enumerate() {
            let share = ratio(n as f64, counters.submitted as f64);
            let (left, right) = (scale.at(100.0 * from), scale.at(100.0 * (from + share)));
            from += share;
            if n > 0 {
                let class = format!("fill {}", KINDS[kind]);
                let says = format!("{name}: {n} ({})", percent(share));
                bar(m, &class, (left, y - 8.0), (right - left, 16.0), &says);
            }
        }
    });
    true
}

/// The value of a tick: as many decimals as it needs, at most three.
fn short(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
