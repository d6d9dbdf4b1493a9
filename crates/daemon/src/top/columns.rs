//! The columns: iostat's, with its names and formulas (`iostat -x`), followed by columns of blkmq.
//!
//! The times of iostat's columns and the percentiles are in milliseconds. Percentiles cover reads and writes: `q_` the
//! time in the queue, from arrival to the scheduler's pick; `d_` the time at the device, from then on; `t_` the total.

use super::rates::{Kind, Of, Row, part};
use serde_json::{Map, Value as Json, json};

/// A value of a column.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
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
    pub fn value(&self, row: &Row) -> Value {
        (self.value)(row)
    }

    pub fn rank(&self) -> u8 {
        self.rank
    }

    /// The width in characters, including the gap before the column.
    pub fn width(&self) -> usize {
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
    pub fn weight(&self) -> f64 {
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

#[cfg(test)]
mod tests {
    use super::super::rates::between;
    use super::super::rates::tests::two;
    use super::*;

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
}
