//! Which export waited behind which, computed from the times at the ends of an interval.

use super::text::table;
use blkmq_server::control::{ExportWait, Waits};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The waits of an interval.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Interval {
    /// The length of the interval in seconds.
    pub seconds: f64,
    /// Rows, grouped by export. The export that waited longest comes first, and so does its longest wait.
    pub rows: Vec<Row>,
}

/// The time for which an export waited behind another one, or behind itself.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// The number of the device, counted from 1.
    pub device: usize,
    /// The export that waited.
    pub export: String,
    /// The export that had requests at the device; `None` while the device was idle.
    pub behind: Option<String>,
    /// The duration in milliseconds.
    pub waited_ms: f64,
    /// The percentage of the interval. It may exceed 100 if a device has several elevators.
    pub waited: f64,
}

type Export<'a> = (usize, &'a str);

fn export(wait: &ExportWait) -> Export<'_> {
    (wait.device, &wait.export)
}

/// The waits between two moments, without those of zero duration.
pub fn between(before: &Waits, now: &Waits) -> Interval {
    let mut grown: BTreeMap<(Export<'_>, Option<&str>), u64> = BTreeMap::new();
    // Removed exports share a name, so a pair may occur more than once.
    for wait in &now.waits {
        *grown.entry((export(wait), wait.behind.as_deref())).or_default() += wait.time;
    }
    for wait in &before.waits {
        let time = grown.entry((export(wait), wait.behind.as_deref())).or_default();
        *time = time.saturating_sub(wait.time);
    }
    grown.retain(|_, time| *time > 0);
    let mut sums: BTreeMap<Export<'_>, u64> = BTreeMap::new();
    for ((export, _), time) in &grown {
        *sums.entry(*export).or_default() += time;
    }
    let mut grown = Vec::from_iter(grown);
    grown.sort_by_key(|((export, _), time)| (Reverse(sums[export]), *export, Reverse(*time)));
    let seconds = now.at.saturating_sub(before.at) as f64 / 1e9;
    let row = |((export, behind), time): ((Export<'_>, Option<&str>), u64)| Row {
        device: export.0,
        export: export.1.to_owned(),
        behind: behind.map(str::to_owned),
        waited_ms: time as f64 / 1e6,
        waited: if seconds > 0.0 { time as f64 / 1e7 / seconds } else { 0.0 },
    };
    Interval { seconds, rows: grown.into_iter().map(row).collect() }
}

/// Formats the waits as a table of at most `width` columns.
pub fn text(interval: &Interval, width: usize) -> String {
    let mut out = table(&[
        ("device", true),
        ("export", false),
        ("behind", false),
        ("waited (ms)", true),
        ("%", true),
    ]);
    for row in &interval.rows {
        let behind = match row.behind.as_deref() {
            None => "(nothing)",
            Some(other) if other == row.export => "(itself)",
            Some(other) => other,
        };
        out.row(&[
            row.device.to_string(),
            row.export.clone(),
            behind.to_owned(),
            format!("{:.1}", row.waited_ms),
            format!("{:.1}", row.waited),
        ]);
    }
    out.render_within(width) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(at: u64, of: &[(&str, Option<&str>, u64)]) -> Waits {
        let one = |(export, behind, ms): &(&str, Option<&str>, u64)| ExportWait {
            device: 1,
            export: (*export).to_owned(),
            behind: behind.map(str::to_owned),
            time: ms * 1_000_000,
        };
        Waits { at, waits: of.iter().map(one).collect() }
    }

    #[test]
    fn the_export_that_waited_most_is_first_with_its_longest_wait() {
        let before = waits(5, &[("a", Some("b"), 1000), ("b", Some("a"), 70)]);
        let now = [
            ("a", None, 100),
            ("a", Some("b"), 1000),
            ("b", Some("a"), 1070),
            ("b", Some("b"), 20),
            ("a", Some("a"), 300),
            ("a", Some("a"), 200),
        ];
        let interval = between(&before, &waits(2_000_000_005, &now));
        let rows = interval.rows.iter();
        let rows = rows.map(|row| (&*row.export, row.behind.as_deref(), row.waited_ms, row.waited));
        let expected = [
            ("b", Some("a"), 1000.0, 50.0),
            ("b", Some("b"), 20.0, 1.0),
            ("a", Some("a"), 500.0, 25.0),
            ("a", None, 100.0, 5.0),
        ];
        assert_eq!(rows.collect::<Vec<_>>(), expected);
        let text = text(&interval, 100);
        let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let lines: Vec<_> = text.lines().map(cells).collect();
        assert_eq!(lines[2], ["1", "b", "a", "1000.0", "50.0"]);
        assert_eq!(lines[3][2], "(itself)");
        assert_eq!(lines[5][1..3], ["a", "(nothing)"]);
    }

    #[test]
    fn no_wait_is_no_row() {
        let same = waits(7, &[("a", Some("b"), 1000)]);
        let interval = between(&same, &same);
        assert_eq!((interval.seconds, interval.rows.len()), (0.0, 0));
        assert!(text(&interval, 100).starts_with("device"));
    }
}
