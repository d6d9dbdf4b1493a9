//! The share of bios that needed no separate request, and where they were merged: a stacked bar for each run.

use super::super::label::Varying;
use super::super::markup::Markup;
use super::super::model::{Report, Run};
use super::super::number::percent;
use super::super::ratio::ratio;
use super::bar;
use super::rows::{Axis, LEFT, RIGHT, Row, rows};
use super::scale::Linear;

/// The greys of plug, back, front, request and discard: colours belong to schedulers.
pub const KINDS: [&str; 5] = ["g0", "g1", "g2", "g3", "g4"];

/// Draws the merges. Returns whether there were any.
pub fn merges(m: &mut Markup, report: &Report) -> bool {
    let share = |run: &Run| 100.0 * run.counters.merged_share();
    let most = report.runs.iter().map(share).fold(0.0, f64::max);
    if most == 0.0 {
        return false;
    }
    let varying = Varying::of(report);
    let scale = Linear::covering(most, LEFT, RIGHT);
    let axis =
        Axis { ticks: scale.ticks().map(|v| (scale.at(v), fine(v))).collect(), figures: "merged" };
    let named: Vec<Row> = report
        .runs
        .iter()
        .map(|run| Row { name: varying.run_name(run), figure: fine(share(run)) })
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

/// Formats a percentage with enough decimals to distinguish small ones: `12.5 %`, `0.0015 %`.
fn fine(value: f64) -> String {
    let digits =
        if value > 0.0 { (1.0 - value.log10().floor()).clamp(1.0, 9.0) as usize } else { 0 };
    let text = format!("{value:.digits$}");
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_small_shares_differ() {
        for most in [0.000_2, 0.001_7, 0.03, 0.5, 7.0, 99.0] {
            let ticks = Vec::from_iter(Linear::covering(most, LEFT, RIGHT).ticks().map(fine));
            for (at, tick) in ticks.iter().enumerate() {
                assert!(!ticks[..at].contains(tick), "{most}: {ticks:?}");
            }
        }
        assert_eq!(
            [0.0, 0.001, 0.0015, 12.5, 100.0].map(fine),
            ["0 %", "0.001 %", "0.0015 %", "12.5 %", "100 %"]
        );
    }
}
