//! The groups' shares of the bytes, and the shares due to them: a bar for each group of each run, and a stroke.

use super::super::label::Varying;
use super::super::markup::Markup;
use super::super::model::Report;
use super::super::number::percent;
use super::look::Looks;
use super::rows::{Axis, LEFT, RIGHT, Row, rows};
use super::scale::Linear;
use super::{bar, line};

/// The most bars of one plot; more of them cannot be read.
const MOST: usize = 60;

/// Draws the shares of all groups but the roots. Returns (bars drawn, bars in total), or `None` if there is nothing to
/// draw.
pub fn shares(m: &mut Markup, report: &Report, looks: &Looks) -> Option<(usize, usize)> {
    let varying = Varying::of(report);
    let runs = report.runs.iter().enumerate();
    let mut all: Vec<(usize, usize)> =
        runs.flat_map(|(run, it)| (1..it.groups.all.len()).map(move |at| (run, at))).collect();
    let bars = all.len();
    all.truncate(MOST);
    if all.is_empty() {
        return None;
    }
    let scale = Linear::covering(100.0, LEFT, RIGHT);
    let axis = Axis {
        ticks: scale.ticks().map(|v| (scale.at(v), format!("{v} %"))).collect(),
        figures: "share / due",
    };
    let row = |&(run, at): &(usize, usize)| {
        let groups = &report.runs[run].groups;
        let due = groups.due(at).map_or_else(|| "-".into(), percent);
        let name = &groups.all[at].name;
        let name = match report.runs.len() {
            1 => name.clone(),
            _ => format!("{}: {name}", varying.run_name(&report.runs[run])),
        };
        Row { name, figure: format!("{} / {due}", percent(groups.share(at))) }
    };
    let named: Vec<Row> = all.iter().map(row).collect();
    rows(m, "Share of bytes of each group", &axis, &named, |m, index, y| {
        let (run, at) = all[index];
        let groups = &report.runs[run].groups;
        let says = format!("{}: {}", named[index].name, named[index].figure);
        let end = scale.at(100.0 * groups.share(at));
        bar(
            m,
            &format!("fill {}", looks.colour(&report.runs[run])),
            (LEFT, y - 7.0),
            (end - LEFT, 14.0),
            &says,
        );
        if let Some(due) = groups.due(at) {
            let due = scale.at(100.0 * due);
            line(m, "error", (due, y - 11.0), (due, y + 11.0));
        }
    });
    Some((all.len(), bars))
}
