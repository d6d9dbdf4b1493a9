//! The plot of a claim: a bar for each row, coloured by its variant, with the ratio to *before* beside it.

use super::metric::Metric;
use super::model::{Experiment, Variant};
use crate::report::markup::Markup;
use crate::report::svg::rows::{Axis, LEFT, RIGHT, Row, rows};
use crate::report::svg::scale::Linear;
use crate::report::svg::{bar, line};

/// The class that gives a variant its colour.
pub fn class(variant: Variant) -> &'static str {
    match variant {
        Variant::Before => "c7",
        Variant::Proposed => "c1",
        Variant::Ours => "c0",
    }
}

/// Draws the metric of the claim; returns whether it was measured at all.
pub fn bars(m: &mut Markup, experiment: &Experiment) -> bool {
    let metric = experiment.name.metric();
    let points = experiment.points.iter().enumerate();
    let measured: Vec<(usize, f64)> =
        points.filter_map(|(at, point)| Some((at, point.get(metric)?))).collect();
    if measured.is_empty() {
        return false;
    }
    let range = |at: usize| experiment.points[at].range.filter(|_| metric == Metric::Iops);
    let reach =
        |(at, value): &(usize, f64)| range(*at).map_or(*value, |(_, high)| high.max(*value));
    let scale = Linear::covering(measured.iter().map(reach).fold(0.0, f64::max), LEFT, RIGHT);
    let axis = Axis {
        ticks: scale.ticks().map(|value| (scale.at(value), metric.show(value))).collect(),
        figures: metric.heading(),
    };
    let row = |(at, value): &(usize, f64)| {
        let point = &experiment.points[*at];
        let ratio =
            experiment.ratio(*at).map_or_else(String::new, |ratio| format!(", {ratio:.2}x"));
        let setting = format!("{} {}", point.setting.value, point.setting.what);
        let name = format!("{}, {setting}: {}", point.scheduler, point.how);
        Row { name, figure: format!("{}{ratio}", metric.show(*value)) }
    };
    let named: Vec<Row> = measured.iter().map(row).collect();
    rows(m, metric.help(), &axis, &named, |m, index, y| {
        let (at, value) = measured[index];
        let point = &experiment.points[at];
        let class = format!("fill {}", class(point.variant));
        let says =
            format!("{}, {}: {}", point.variant.word(), named[index].name, named[index].figure);
        bar(m, &class, (LEFT, y - 8.0), (scale.at(value) - LEFT, 16.0), &says);
        if let Some((low, high)) = range(at) {
            line(m, "error", (scale.at(low), y), (scale.at(high), y));
        }
    });
    true
}
