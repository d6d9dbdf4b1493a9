//! The columns of the table of a run's groups, with names and formats shared by the terminal and the page.

use super::group::Groups;
use super::model::Run;
use super::number::{bandwidth, count, nanos, percent};
use super::ratio::ratio;
use blkmq_terminal::text_table::Align;

/// A name, its meaning, and whether the column contains words or figures.
pub type Heading = (&'static str, &'static str, Align);

/// The columns; times only if they were counted.
#[must_use]
pub fn columns(groups: &Groups) -> Vec<Heading> {
    let mut columns = vec![
        ("group", "a group has what those below it have", Align::Left),
        ("weight", "among its siblings", Align::Right),
        ("due", "share of bytes by weight, if all were always busy", Align::Right),
        ("share", "of all bytes moved while measuring", Align::Right),
        ("bandwidth", "bytes per second", Align::Right),
        ("I/Os", "completed while measuring", Align::Right),
    ];
    if is_timed(groups) {
        columns.extend([
            (
                "wait",
                "that a request, once it had a slot, waited in the scheduler, on average",
                Align::Right,
            ),
            ("service", "that a request was at the device, on average", Align::Right),
        ]);
    }
    columns
}

fn is_timed(groups: &Groups) -> bool {
    (0..groups.all.len()).any(|at| groups.mean(at, "io_wait_time").is_some())
}

/// A row for each group of `run`, with a cell for each of its [`columns`].
#[must_use]
pub fn rows(run: &Run) -> Vec<Vec<String>> {
    let groups = &run.groups;
    let timed = is_timed(groups);
    let unknown = || "-".to_owned();
    let row = |at: usize| {
        let group = &groups.all[at];
        let rate = ratio(groups.bytes(at) as f64 * 1e9, run.elapsed_ns as f64);
        let mut cells = vec![
            format!("{}{}", "  ".repeat(groups.depth(at)), group.name),
            group.weight.map_or_else(unknown, |weight| weight.to_string()),
            groups.due(at).map_or_else(unknown, percent),
            percent(groups.share(at)),
            bandwidth(rate),
            count(groups.ios(at) as f64),
        ];
        if timed {
            let mean = |name| groups.mean(at, name).map_or_else(unknown, nanos);
            cells.extend([mean("io_wait_time"), mean("io_service_time")]);
        }
        cells
    };
    (0..groups.all.len()).map(row).collect()
}
