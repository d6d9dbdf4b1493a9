//! The tables of a claim, named and formatted once for the terminal and for the page.

use super::findings::is_base;
use super::model::Experiment;
use super::published::Source;
use crate::report::number::nanos;
use blkmq_terminal::text_table::Align;

/// A heading: its name, its meaning, and whether the column holds words or figures.
pub type Column = (&'static str, &'static str, Align);

/// Rows under headings.
pub struct Table {
    /// The headings.
    pub columns: Vec<Column>,
    /// The rows, with a cell for each heading.
    pub rows: Vec<Vec<String>>,
}

/// The publication of one source.
pub fn published(source: &Source) -> Table {
    let columns = vec![
        ("measured with", "as published", Align::Left),
        ("", "what is measured", Align::Left),
        ("before", "as the kernel was", Align::Right),
        ("as proposed", "with what was proposed", Align::Right),
        ("ratio", "the second relative to the first", Align::Right),
    ];
    let rows = source.rows.iter().map(|row| {
        vec![
            row.what.to_owned(),
            row.metric.heading().to_owned(),
            row.metric.show(row.before),
            row.metric.show(row.proposed),
            times(row.ratio()),
        ]
    });
    Table { columns, rows: rows.collect() }
}

/// The measurements here. Values that adjacent rows share are printed once.
pub fn measured(experiment: &Experiment) -> Table {
    let metrics = experiment.metrics();
    let what = experiment.points.first().map_or("", |point| point.setting.what);
    let mut columns = vec![
        ("scheduler", "the scheduler", Align::Left),
        (what, "what is varied", Align::Right),
        ("", "how it is done", Align::Left),
        ("with", "the options that make it so", Align::Left),
    ];
    columns.extend(metrics.iter().enumerate().flat_map(|(at, metric)| {
        let column = (metric.heading(), metric.help(), Align::Right);
        let ratio = ("ratio", "relative to the first row of its kind", Align::Right);
        [Some(column), (at == 0).then_some(ratio)].into_iter().flatten()
    }));
    let rows = experiment.points.iter().enumerate().map(|(at, point)| {
        let begins = is_base(experiment, at);
        let once = |text: String| if begins { text } else { String::new() };
        let mut cells = vec![
            once(point.scheduler.clone()),
            once(point.setting.value.to_string()),
            point.variant.word().to_owned(),
            point.how.clone(),
        ];
        for (column, metric) in metrics.iter().enumerate() {
            let value = point.get(*metric);
            cells.push(value.map_or_else(|| "-".into(), |value| metric.show(value)));
            if column == 0 {
                cells.push(times(experiment.ratio(at)));
            }
        }
        cells
    });
    let rows = rows.collect();
    Table { columns, rows }
}

/// The timelines of calls in quick succession; `None` if there are none.
pub fn timelines(experiment: &Experiment) -> Option<Table> {
    if experiment.timelines.is_empty() {
        return None;
    }
    let columns = vec![
        ("", "how it is done", Align::Left),
        ("with", "the options that make it so", Align::Left),
        ("calls", "when, and for when", Align::Left),
        ("passes", "when they were made", Align::Left),
        ("now is answered after", "from the last call for now to the next pass", Align::Right),
    ];
    let rows = experiment.timelines.iter().map(|timeline| {
        let calls = timeline.calls.iter().map(|call| {
            let what =
                if call.delay == 0 { "now".into() } else { format!("in {}", time(call.delay)) };
            format!("{}: {what}", time(call.at))
        });
        let passes = timeline.passes.iter().map(|pass| time(*pass));
        vec![
            timeline.variant.word().to_owned(),
            timeline.how.clone(),
            calls.collect::<Vec<_>>().join(", "),
            passes.collect::<Vec<_>>().join(", "),
            timeline.answered_after().map_or_else(|| "never".into(), time),
        ]
    });
    Some(Table { columns, rows: rows.collect() })
}

fn time(ns: u64) -> String {
    nanos(ns as f64)
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}x"))
}
