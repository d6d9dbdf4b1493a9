//! The parts of the page about groups, and about the state shared by the instances of a scheduler. They are omitted if
//! there is none.

use super::super::group_figures::{columns, rows};
use super::super::label::Varying;
use super::super::markup::Markup;
use super::super::model::{Report, Run};
use super::super::svg::{self, look::Looks};
use super::super::waits;
use super::table;
use blkmq_terminal::text_table::Align;

/// Adds the shares that groups had, beside the shares due to their weights.
pub(super) fn shares(m: &mut Markup, report: &Report, looks: &Looks) {
    let mut plot = Markup::default();
    let Some((drawn, of)) = svg::shares(&mut plot, report, looks) else { return };
    m.leaf("h2", &[], "Shares of groups");
    let left_out =
        if drawn < of { format!("The first {drawn} of {of} groups. ") } else { String::new() };
    let says = format!(
        "{left_out}Bar: share of all bytes moved while measuring, with those of groups below. Stroke: what is due by \
         weight, if every group that did anything was busy all the time."
    );
    m.leaf("p", &[("class", &"soft")], &says);
    m.append(&plot);
}

/// A table of the groups of each run.
pub(super) fn figures(m: &mut Markup, report: &Report) {
    let varying = Varying::of(report);
    for run in report.runs.iter().filter(|run| !run.groups.all.is_empty()) {
        m.leaf("h2", &[], &format!("Groups with {}", varying.run_name(run)));
        let says = "A group has what those below it have. Bytes are of jobs while measuring; times are the \
                    scheduler's own, if it counted them, over the whole life of the queue.";
        m.leaf("p", &[("class", &"soft")], says);
        table(m, &columns(&run.groups), &rows(run));
        if let Some(waits::Table { columns, rows }) = waits::table(&run.groups) {
            let says = "How long groups waited before the device, ramp included, and behind whose requests there.";
            m.leaf("p", &[("class", &"soft")], says);
            let columns: Vec<_> =
                columns.iter().map(|(name, says, align)| (name.as_str(), *says, *align)).collect();
            table(m, &columns, &rows);
        }
    }
}

/// Adds how many requests schedulers let to the device, and why.
pub(super) fn governors(m: &mut Markup, report: &Report) {
    let varying = Varying::of(report);
    let governed: Vec<&Run> =
        report.runs.iter().filter(|run| !run.shared.tokens.is_empty()).collect();
    if governed.is_empty() {
        return;
    }
    m.leaf("h2", &[], "What the instances of a scheduler share");
    let says = "At the end of each run. The page of the scheduler (blkmq doc) says what it means.";
    m.leaf("p", &[("class", &"soft")], says);
    let heading = [
        ("run", "scheduler and what else differs", Align::Left),
        ("tokens", "of each pool: requests that may be at the device", Align::Left),
        ("governor", "what it shows of itself", Align::Left),
    ];
    let row = |run: &&Run| {
        let tokens = run.shared.tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let values = run.shared.governor.iter().map(|(name, value)| format!("{name}={value}"));
        vec![varying.run_name(run), tokens, values.collect::<Vec<_>>().join(", ")]
    };
    table(m, &heading, &governed.iter().map(row).collect::<Vec<_>>());
}
