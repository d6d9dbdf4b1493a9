//! The columns: iostat's, with its names and formulas (`iostat -x`), followed by columns of blkmq; and rows as lines
//! of text, with the columns that fit, in an order. Draws nothing.
//!
//! The times of iostat's columns and the percentiles are in milliseconds. Percentiles cover reads and writes: `q_` the
//! time in the queue, from arrival to the scheduler's pick; `d_` the time at the device, from then on; `t_` the total.

use super::rates::{Kind, Of, Row, part};
use serde_json::{Map, Value as Json, json};

/// A value of a column.
#[derive(Clone, PartialEq, Debug)]
enum Value {
    Number(f64),
    /// Milliseconds, shown with a fraction.
    Millis(f64),
    Count(u64),
    Word(String),
    /// The value does not apply to this kind of row, or nothing happened in the interval.
    None,
}

/// A column.
pub struct Column {
    pub name: &'static str,
    /// The priority when there is not enough room: columns with a lower rank are kept longer.
    rank: u8,
    value: fn(&Row) -> Value,
}

const READ: usize = 0;
const WRITE: usize = 1;
const DISCARD: usize = 2;
/// Indexes of the stages in [`Row::times`].
const QUEUE: usize = 0;
const DEVICE: usize = 1;
const TOTAL: usize = 2;

/// The maximum width of a number, in characters.
const NUMBER: usize = 7;
/// The maximum width of a scheduler's name, in characters, as in Linux.
const LONGEST_NAME: usize = 15;
/// The maximum width of a state, in characters.
const LONGEST_STATE: usize = 12;

/// All columns after the name, in order.
pub const COLUMNS: &[Column] = &[
    column("r/s", 0, |row| rate(row, READ)),
    column("rkB/s", 2, |row| kib(row, READ)),
    column("rrqm/s", 40, |row| merges(row, READ)),
    column("%rrqm", 22, |row| merged(row, READ)),
    column("r_await", 13, |row| wait(row, READ)),
    column("rareq-sz", 24, |row| size(row, READ)),
    column("w/s", 1, |row| rate(row, WRITE)),
    column("wkB/s", 3, |row| kib(row, WRITE)),
    column("wrqm/s", 41, |row| merges(row, WRITE)),
    column("%wrqm", 23, |row| merged(row, WRITE)),
    column("w_await", 14, |row| wait(row, WRITE)),
    column("wareq-sz", 25, |row| size(row, WRITE)),
    column("d/s", 42, |row| rate(row, DISCARD)),
    column("dkB/s", 43, |row| kib(row, DISCARD)),
    column("drqm/s", 46, |row| merges(row, DISCARD)),
    column("%drqm", 47, |row| merged(row, DISCARD)),
    column("d_await", 44, |row| wait(row, DISCARD)),
    column("dareq-sz", 45, |row| size(row, DISCARD)),
    column("f/s", 32, |row| flushes(row).0),
    column("f_await", 33, |row| flushes(row).1),
    column("aqu-sz", 9, depth),
    column("%util", 11, util),
    column("state", 5, state),
    column("err/s", 12, errors),
    column("share%", 6, |row| shares(row).0),
    column("due%", 7, |row| shares(row).1),
    column("bytes%", 34, bytes),
    column("short%", 30, short),
    column("weight", 31, weight),
    column("conn", 17, connections),
    column("flight", 15, |row| Value::Count(row.held.in_flight)),
    column("waiting", 16, |row| Value::Count(row.held.waiting)),
    column("oldest", 8, |row| Value::Millis(row.held.oldest as f64 / 1e6)),
    column("q_p50", 26, |row| quantile(row, QUEUE, 0.5)),
    column("q_p99", 4, |row| quantile(row, QUEUE, 0.99)),
    column("q_p99.9", 28, |row| quantile(row, QUEUE, 0.999)),
    column("d_p50", 27, |row| quantile(row, DEVICE, 0.5)),
    column("d_p99", 10, |row| quantile(row, DEVICE, 0.99)),
    column("d_p99.9", 29, |row| quantile(row, DEVICE, 0.999)),
    column("t_p50", 19, |row| quantile(row, TOTAL, 0.5)),
    column("t_p99", 18, |row| quantile(row, TOTAL, 0.99)),
    column("t_p99.9", 20, |row| quantile(row, TOTAL, 0.999)),
    column("scheduler", 21, scheduler),
];

const fn column(name: &'static str, rank: u8, value: fn(&Row) -> Value) -> Column {
    Column { name, rank, value }
}

impl Column {
    fn value(&self, row: &Row) -> Value {
        (self.value)(row)
    }

    fn rank(&self) -> u8 {
        self.rank
    }

    /// The width in characters, including the gap before the column.
    fn width(&self) -> usize {
        let word = match self.name {
            "scheduler" => LONGEST_NAME,
            "state" => LONGEST_STATE,
            _ => NUMBER,
        };
        self.name.len().max(word) + 1
    }
}

impl Value {
    /// Formats the value; except for words, in at most seven characters.
    pub fn text(&self) -> String {
        match self {
            Self::Millis(number) if *number < 100.0 => format!("{number:.3}"),
            Self::Millis(number) | Self::Number(number) if *number < 1000.0 => {
                format!("{number:.2}")
            }
            Self::Millis(number) | Self::Number(number) if *number < 100_000.0 => {
                format!("{number:.1}")
            }
            Self::Millis(number) | Self::Number(number) if *number < 10_000_000.0 => {
                format!("{number:.0}")
            }
            Self::Millis(number) | Self::Number(number) => format!("{:.2}G", number / 1e9),
            Self::Count(count) => count.to_string(),
            Self::Word(word) => word.clone(),
            Self::None => "-".to_owned(),
        }
    }

    /// Returns the sort key: larger values come first.
    fn weight(&self) -> f64 {
        match self {
            Self::Millis(number) | Self::Number(number) => *number,
            Self::Count(count) => *count as f64,
            Self::Word(_) | Self::None => f64::NEG_INFINITY,
        }
    }
}

/// Formats a row as JSON with the names of the columns as keys.
pub fn json(row: &Row) -> Json {
    let mut all = Map::new();
    let kind = if row.kind == Kind::Device { "device" } else { "export" };
    all.insert("kind".to_owned(), kind.into());
    all.insert("name".to_owned(), row.name.as_str().into());
    all.insert("device".to_owned(), row.device.into());
    all.insert("why".to_owned(), row.condition.why.as_str().into());
    for column in COLUMNS {
        let value = match column.value(row) {
            Value::Millis(number) | Value::Number(number) => json!(number),
            Value::Count(count) => json!(count),
            Value::Word(word) => json!(word),
            Value::None => Json::Null,
        };
        all.insert(column.name.to_owned(), value);
    }
    Json::Object(all)
}

fn per_second(row: &Row, count: f64) -> Value {
    Value::Number(if row.seconds > 0.0 { count / row.seconds } else { 0.0 })
}

fn rate(row: &Row, at: usize) -> Value {
    per_second(row, row.figures.ios[at] as f64)
}

fn kib(row: &Row, at: usize) -> Value {
    per_second(row, row.figures.bytes[at] as f64 / 1024.0)
}

fn merges(row: &Row, at: usize) -> Value {
    per_second(row, row.figures.merged[at] as f64)
}

fn merged(row: &Row, at: usize) -> Value {
    let merged = row.figures.merged[at];
    Value::Number(100.0 * part(merged, merged + row.figures.ios[at]))
}

fn wait(row: &Row, at: usize) -> Value {
    let all = row.figures.wait[at] + row.figures.service[at];
    Value::Number(part(all, row.figures.ios[at]) / 1e6)
}

fn size(row: &Row, at: usize) -> Value {
    Value::Number(part(row.figures.bytes[at], row.figures.ios[at]) / 1024.0)
}

/// The device's flushes per second, and the milliseconds of each.
fn flushes(row: &Row) -> (Value, Value) {
    match row.of {
        Of::Device { flushes, flush_time, .. } => {
            (per_second(row, flushes as f64), Value::Number(part(flush_time, flushes) / 1e6))
        }
        Of::Export { .. } => (Value::None, Value::None),
    }
}

fn depth(row: &Row) -> Value {
    let of_flushes = if let Of::Device { flush_time, .. } = row.of { flush_time } else { 0 };
    let times = row.figures.wait.iter().chain(&row.figures.service).sum::<u64>() + of_flushes;
    per_second(row, times as f64 / 1e9)
}

fn util(row: &Row) -> Value {
    match row.of {
        Of::Device { busy, .. } if row.seconds > 0.0 => {
            Value::Number((100.0 * busy as f64 / 1e9 / row.seconds).min(100.0))
        }
        _ => Value::None,
    }
}

fn shares(row: &Row) -> (Value, Value) {
    match row.of {
        Of::Export { share, due, .. } => (Value::Number(100.0 * share), Value::Number(100.0 * due)),
        Of::Device { .. } => (Value::None, Value::None),
    }
}

fn state(row: &Row) -> Value {
    Value::Word(row.condition.state.name().to_owned())
}

/// The number of failed requests.
fn errors(row: &Row) -> Value {
    per_second(row, row.errors as f64)
}

/// The share of the device's bytes.
fn bytes(row: &Row) -> Value {
    match row.of {
        Of::Export { bytes, .. } => Value::Number(100.0 * bytes),
        Of::Device { .. } => Value::None,
    }
}

/// The part of its floor that an export did not get.
fn short(row: &Row) -> Value {
    match row.of {
        Of::Export { short, .. } if row.seconds > 0.0 => {
            Value::Number(short as f64 / 1e7 / row.seconds)
        }
        Of::Export { .. } | Of::Device { .. } => Value::None,
    }
}

fn weight(row: &Row) -> Value {
    match row.of {
        Of::Export { weight, .. } => Value::Count(weight.into()),
        Of::Device { .. } => Value::None,
    }
}

fn connections(row: &Row) -> Value {
    match row.of {
        Of::Export { connections, .. } => Value::Count(connections as u64),
        Of::Device { .. } => Value::None,
    }
}

fn scheduler(row: &Row) -> Value {
    match &row.of {
        Of::Device { scheduler, .. } => Value::Word(scheduler.clone()),
        Of::Export { .. } => Value::None,
    }
}

fn quantile(row: &Row, stage: usize, q: f64) -> Value {
    row.times[stage].quantile(q).map_or(Value::None, |ns| Value::Millis(ns as f64 / 1e6))
}

/// The width of the column of names, and the longest name shown in full.
const NAME: usize = 16;

/// The user's choices for the table.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The column by which exports are sorted, largest first; `None` for the order of the server.
    pub sorted: Option<usize>,
    /// Whether to sort smallest first.
    pub reversed: bool,
    /// The first column shown; `None` for the most important columns.
    pub first: Option<usize>,
}

/// Indexes of columns.
type Places = Vec<usize>;

impl View {
    /// The index of the column `name`.
    pub fn column(name: &str) -> Option<usize> {
        COLUMNS.iter().position(|column| column.name == name)
    }

    /// Sorts by the next visible column, to the right or left.
    pub fn sort(&mut self, width: usize, to_the_right: bool) {
        let shown = self.columns(width);
        let at = self.sorted.and_then(|sorted| shown.iter().position(|it| *it == sorted));
        self.sorted = match (at, to_the_right) {
            (None, true) => shown.first().copied(),
            (None, false) => shown.last().copied(),
            (Some(at), true) => shown.get(at + 1).copied(),
            (Some(at), false) => at.checked_sub(1).map(|at| shown[at]),
        };
    }

    /// Scrolls the columns. To the left of the first column is the choice of the most important columns.
    pub fn scroll(&mut self, to_the_right: bool) {
        self.first = match (self.first, to_the_right) {
            (None, true) => Some(0),
            (Some(first), true) => Some((first + 1).min(COLUMNS.len() - 1)),
            (None | Some(0), false) => None,
            (Some(first), false) => Some(first - 1),
        };
    }

    /// The columns that fit in `width` characters.
    fn columns(&self, width: usize) -> Places {
        let mut room = width.saturating_sub(NAME);
        let mut fits = |at: &usize| {
            let needed = COLUMNS[*at].width();
            let fits = needed <= room;
            if fits {
                room -= needed;
            }
            fits
        };
        if let Some(first) = self.first {
            return (first..COLUMNS.len()).take_while(&mut fits).collect();
        }
        let mut by_rank: Places = (0..COLUMNS.len()).collect();
        by_rank.sort_unstable_by_key(|at| COLUMNS[*at].rank());
        let mut chosen: Places = by_rank.into_iter().filter(&mut fits).collect();
        chosen.sort_unstable();
        chosen
    }

    /// The heading and the rows, at most `width` wide; `None` shows all columns.
    pub fn table(&self, rows: &[Row], width: Option<usize>) -> (String, Vec<String>) {
        let columns = width.map_or_else(|| (0..COLUMNS.len()).collect(), |it| self.columns(it));
        let columns: Vec<&Column> = columns.iter().map(|at| &COLUMNS[*at]).collect();
        let mut head = format!("{:NAME$}", "Device");
        for column in &columns {
            head.push_str(&format!("{:>width$}", column.name, width = column.width()));
        }
        let line = |row: &&Row| {
            let mut line = name(row);
            for column in &columns {
                let text = column.value(row).text();
                line.push_str(&format!("{text:>width$}", width = column.width()));
            }
            line
        };
        (head, self.ordered(rows).iter().map(line).collect())
    }

    /// Sorts the exports of each device by the chosen column.
    fn ordered<'a>(&self, rows: &'a [Row]) -> Vec<&'a Row> {
        let mut all: Vec<&Row> = rows.iter().collect();
        let Some(column) = self.sorted.map(|at| &COLUMNS[at]) else { return all };
        let exports = |row: &&Row| row.kind == Kind::Export;
        for group in all.chunk_by_mut(|_, next| exports(next)) {
            let skip = usize::from(group.first().is_some_and(|row| !exports(row)));
            group[skip..].sort_by(|a, b| {
                let (a, b) = (column.value(a).weight(), column.value(b).weight());
                if self.reversed { a.total_cmp(&b) } else { b.total_cmp(&a) }
            });
        }
        all
    }
}

/// The name, shortened if necessary; exports are indented below their device.
fn name(row: &Row) -> String {
    let indent = if row.kind == Kind::Export { "  " } else { "" };
    let plain = |c: char| if c.is_control() { '?' } else { c };
    let name: String = indent.chars().chain(row.name.chars().map(plain)).collect();
    let name = if name.trim().is_empty() { "  (unnamed)".to_owned() } else { name };
    let mut shown = String::new();
    for c in name.chars() {
        let taken = unicode_width::UnicodeWidthStr::width(shown.as_str());
        if taken + unicode_width::UnicodeWidthChar::width(c).unwrap_or(0) > NAME - 1 {
            shown.pop();
            shown.push('~');
            break;
        }
        shown.push(c);
    }
    let taken = unicode_width::UnicodeWidthStr::width(shown.as_str());
    shown.push_str(&" ".repeat(NAME - taken.min(NAME)));
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::rates::between;
    use crate::top::rates::tests::two;

    #[test]
    fn columns_of_iostat_have_its_formulas() {
        let [before, now] = two();
        let rows = between(&before, &now);
        let (disk, gold) = (json(&rows[0]), json(&rows[1]));
        let expected = [
            ("r/s", 50.0),
            ("rkB/s", 200.0),
            ("r_await", 4.0),
            ("rareq-sz", 4.0),
            ("w/s", 25.0),
            ("wrqm/s", 75.0),
            ("%wrqm", 75.0),
            ("w_await", 10.0),
            ("d/s", 0.0),
        ];
        for (name, value) in expected {
            assert_eq!((&disk[name], &gold[name]), (&json!(value), &json!(value)), "{name}");
        }
        assert_eq!((&gold["aqu-sz"], &disk["aqu-sz"]), (&json!(0.45), &json!(0.454)));
        assert_eq!((&disk["f/s"], &disk["f_await"]), (&json!(2.0), &json!(2.0)));
        assert_eq!((&disk["%util"], &gold["%util"]), (&json!(50.0), &Json::Null));
    }

    #[test]
    fn our_own_columns_follow() {
        let [before, now] = two();
        let rows = between(&before, &now);
        let (disk, gold, rest) = (json(&rows[0]), json(&rows[1]), json(&rows[2]));
        assert_eq!((&gold["q_p99"], &gold["d_p99"]), (&json!(1.0), &json!(3.0)));
        assert_eq!((&gold["t_p99"], &gold["t_p99.9"]), (&json!(4.0), &json!(90.0)));
        assert_eq!((&gold["share%"], &gold["weight"]), (&json!(100.0), &json!(300)));
        assert_eq!((&rest["share%"], &rest["t_p50"]), (&json!(0.0), &Json::Null));
        assert_eq!((&disk["flight"], &disk["waiting"]), (&json!(4), &json!(5)));
        assert_eq!(disk["scheduler"], "bfq");
    }

    #[test]
    fn every_column_has_its_own_name_and_rank_and_numbers_fit() {
        for (at, column) in COLUMNS.iter().enumerate() {
            let mut others = COLUMNS[..at].iter();
            assert!(others.all(|it| it.name != column.name && it.rank != column.rank));
        }
        for number in [0.0, 999.99, 99_999.9, 9_999_999.0, 8e10] {
            for value in [Value::Number(number), Value::Millis(number)] {
                assert!(value.text().len() <= NUMBER, "{number}");
            }
        }
        assert_eq!(Value::Millis(0.001407).text(), "0.001");
    }

    fn rows() -> Vec<Row> {
        let [before, now] = two();
        between(&before, &now)
    }

    #[test]
    fn every_width_shows_what_matters_most_and_no_more_than_fits() {
        for width in 60..=200 {
            let (head, lines) = View::default().table(&rows(), Some(width));
            assert!(head.len() <= width && lines.iter().all(|line| line.len() <= width), "{width}");
            for column in ["r/s", "w/s", "rkB/s", "wkB/s", "q_p99"] {
                assert!(head.split_whitespace().any(|it| it == column), "{width}: {head}");
            }
        }
        let (all, _) = View::default().table(&rows(), None);
        assert_eq!(all.split_whitespace().count(), COLUMNS.len() + 1);
    }

    #[test]
    fn columns_come_in_their_order_and_scroll() {
        let mut view = View::default();
        let (wide, _) = view.table(&rows(), Some(200));
        let places: Vec<usize> = wide.split_whitespace().skip(1).filter_map(View::column).collect();
        assert!(places.is_sorted() && places.len() > 15, "{wide}");
        view.scroll(true);
        let (first, _) = view.table(&rows(), Some(60));
        assert!(first.contains("r/s") && first.contains("rrqm/s"), "{first}");
        for _ in 0..100 {
            view.scroll(true);
        }
        assert!(view.table(&rows(), Some(60)).0.ends_with("scheduler"));
        for _ in 0..100 {
            view.scroll(false);
        }
        assert_eq!(view.first, None);
    }

    #[test]
    fn exports_are_sorted_below_their_device() {
        let names = |view: &View| {
            let (_, lines) = view.table(&rows(), Some(80));
            lines
                .iter()
                .map(|it| it.split_whitespace().next().unwrap_or("").to_owned())
                .collect::<Vec<_>>()
        };
        let mut view = View { sorted: View::column("r/s"), ..View::default() };
        assert_eq!(names(&view), ["disk", "gold", "rest"]);
        view.reversed = true;
        assert_eq!(names(&view), ["disk", "rest", "gold"]);
        view.sorted = None;
        view.sort(80, true);
        assert_eq!(view.sorted, View::column("r/s"));
        view.sort(80, false);
        assert_eq!(view.sorted, None);
    }

    #[test]
    fn long_and_strange_names_keep_the_table_straight() {
        let mut rows = rows();
        rows[0].name = "a name that is far too long".to_owned();
        rows[1].name = "\u{1b}[31m\u{4f60}\u{597d}\u{4f60}\u{597d}\u{4f60}\u{597d}".to_owned();
        rows[2].name = String::new();
        let (_, lines) = View::default().table(&rows, Some(60));
        assert!(lines[0].starts_with("a name that is~ "), "{}", lines[0]);
        assert!(!lines[1].contains('\u{1b}') && lines[2].starts_with("  (unnamed)"));
        let width = |line: &String| unicode_width::UnicodeWidthStr::width(line.as_str());
        assert!(lines.iter().all(|line| width(line) == width(&lines[0])), "{lines:#?}");
    }
}
