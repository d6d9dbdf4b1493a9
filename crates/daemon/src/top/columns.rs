//! The columns: iostat's, with its names and formulas (`iostat -x`), followed by columns of blkmq; and rows as lines
//! of text, with the columns that fit, in an order. Draws nothing.
//!
//! The times of iostat's columns and the percentiles are in milliseconds. Percentiles cover reads and writes: `q_` the
//! time in the queue, from arrival to the scheduler's pick; `d_` the time at the device, from then on; `t_` the total.
//!
//! The tests include runs in virtual time, for all figures shown to operators: every value is derived from the load by
//! hand, or from the client's own list of latencies.

use super::rates::{Of, OfDevice, OfExport, Row, part};
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
    column("f/s", 32, |row| of_device(row, |it| per_second(row, it.flushes as f64))),
    column("f_await", 33, |row| of_device(row, flush_time)),
    column("aqu-sz", 9, depth),
    column("%util", 11, |row| of_device(row, |it| util(row, it))),
    column("state", 5, state),
    column("err/s", 12, |row| per_second(row, row.errors as f64)),
    column("share%", 6, |row| of_export(row, |it| Value::Number(100.0 * it.share))),
    column("due%", 7, |row| of_export(row, |it| Value::Number(100.0 * it.due))),
    column("bytes%", 34, |row| of_export(row, |it| Value::Number(100.0 * it.bytes))),
    column("short%", 30, |row| of_export(row, |it| short(row, it))),
    column("weight", 31, |row| of_export(row, |it| Value::Count(it.weight.into()))),
    column("conn", 17, |row| of_export(row, |it| Value::Count(it.connections as u64))),
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
    column("scheduler", 21, |row| of_device(row, |it| Value::Word(it.scheduler.clone()))),
];

const fn column(name: &'static str, rank: u8, value: fn(&Row) -> Value) -> Column {
    Column { name, rank, value }
}

impl Column {
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
    let kind = if row.is_export() { "export" } else { "device" };
    all.insert("kind".to_owned(), kind.into());
    all.insert("name".to_owned(), row.name.as_str().into());
    all.insert("device".to_owned(), row.device.into());
    all.insert("why".to_owned(), row.condition.why.as_str().into());
    for column in COLUMNS {
        let value = match (column.value)(row) {
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

/// A figure that only devices have.
fn of_device(row: &Row, value: impl Fn(&OfDevice) -> Value) -> Value {
    if let Of::Device(of) = &row.of { value(of) } else { Value::None }
}

/// A figure that only exports have.
fn of_export(row: &Row, value: impl Fn(&OfExport) -> Value) -> Value {
    if let Of::Export(of) = &row.of { value(of) } else { Value::None }
}

/// The milliseconds of each flush.
fn flush_time(of: &OfDevice) -> Value {
    Value::Number(part(of.flush_time, of.flushes) / 1e6)
}

fn depth(row: &Row) -> Value {
    let of_flushes = if let Of::Device(of) = &row.of { of.flush_time } else { 0 };
    let times = row.figures.wait.iter().chain(&row.figures.service).sum::<u64>() + of_flushes;
    per_second(row, times as f64 / 1e9)
}

fn util(row: &Row, of: &OfDevice) -> Value {
    if row.seconds > 0.0 {
        Value::Number((100.0 * of.busy as f64 / 1e9 / row.seconds).min(100.0))
    } else {
        Value::None
    }
}

fn state(row: &Row) -> Value {
    Value::Word(row.condition.state.name().to_owned())
}

/// The part of its floor that an export did not get.
fn short(row: &Row, of: &OfExport) -> Value {
    if row.seconds > 0.0 { Value::Number(of.short as f64 / 1e7 / row.seconds) } else { Value::None }
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
        by_rank.sort_unstable_by_key(|at| COLUMNS[*at].rank);
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
                let text = (column.value)(row).text();
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
        for group in all.chunk_by_mut(|_, next| next.is_export()) {
            let skip = usize::from(group.first().is_some_and(|row| !row.is_export()));
            group[skip..].sort_by(|a, b| {
                let (a, b) = ((column.value)(a).weight(), (column.value)(b).weight());
                if self.reversed { a.total_cmp(&b) } else { b.total_cmp(&a) }
            });
        }
        all
    }
}

/// The name, shortened if necessary; exports are indented below their device.
fn name(row: &Row) -> String {
    let indent = if row.is_export() { "  " } else { "" };
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
    use crate::ctl::stat::{self, Choice};
    use crate::top::rates::between;
    use crate::top::rates::tests::two;
    use blkmq_core::{Instant, Nanos, Op, Rng};
    use blkmq_device::{MachineShape, registry as devices};
    use blkmq_engine::{Config, Io, Queue, StatsMode, Submitter};
    use blkmq_sched::registry;
    use blkmq_server::control::{DeviceStat, Stat};

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

    const MS: u64 = 1_000_000;

    /// A queue with statistics in virtual time, and its only client.
    struct World {
        scheduler: &'static str,
        queue: Queue<()>,
        client: Submitter<()>,
        now: Instant,
        /// The operation and the time of submission, by cookie.
        pushed: Vec<(Op, Instant)>,
        /// By operation (reads, writes): the nanoseconds from the submission of each I/O until the client has reaped
        /// it.
        latencies: [Vec<u64>; 2],
    }

    impl World {
        fn new(device: &str, scheduler: &'static str) -> Self {
            let device =
                devices::parse(device, &MachineShape { cpus: 1, nodes: 1 }).expect("it is");
            let stats = StatsMode { times: true, ..StatsMode::default() };
            let config: Config<()> = Config { stats, submitters: 1, depth: 64, ..device.config() };
            let policy = registry::find(scheduler).expect("it is registered");
            let queue = Queue::new(config.scheduler(policy)).expect("a possible queue");
            let client = queue.submitter().expect("one is free");
            let (now, pushed, latencies) = (Instant::ZERO, Vec::new(), [Vec::new(), Vec::new()]);
            Self { scheduler, queue, client, now, pushed, latencies }
        }

        /// Adds an I/O of `kib` KiB to the plug.
        fn push(&mut self, op: Op, sector: u64, kib: u32) {
            let cookie = self.pushed.len() as u64;
            self.client.push(self.now, Io::new(op, sector, kib * 2, cookie, ())).expect("credit");
            self.pushed.push((op, self.now));
        }

        fn reap(&mut self) {
            let Self { client, now, pushed, latencies, .. } = self;
            client.poll(*now);
            client.reap(u32::MAX, |done| {
                assert!(done.result.is_ok(), "{done:?}");
                let (op, since) = pushed[done.cookie as usize];
                let took = now.since(since).0;
                match op {
                    Op::Read => latencies[0].push(took),
                    Op::Write => latencies[1].push(took),
                    _ => {}
                }
            });
        }

        /// Advances from one event of the device to the next, up to `end`.
        fn until(&mut self, end: Instant) {
            self.reap();
            while let Some(next) = self.client.next_deadline().filter(|next| *next <= end) {
                self.now = next.max(self.now);
                self.reap();
            }
            self.now = end;
        }

        fn stat(&self) -> Stat {
            let device = DeviceStat::of("virtual", self.scheduler, &self.queue.times());
            Stat { at: self.now.as_nanos(), exports: Vec::new(), devices: vec![device] }
        }
    }

    /// Computes the columns of `iostat -x` by the formulas of sysstat from two lines of `/sys/block/X/stat`, `ms`
    /// milliseconds apart.
    fn iostat(before: &[u64; 17], now: &[u64; 17], ms: f64) -> Vec<(String, f64)> {
        // Fields are numbered from 1.
        let grown = |field: usize| (now[field - 1] - before[field - 1]) as f64;
        let over = |part: f64, all: f64| if all > 0.0 { part / all } else { 0.0 };
        let mut all = Vec::new();
        for (letter, ios) in [("r", 1), ("w", 5), ("d", 12)] {
            let [n, merged, sectors, ticks] = [ios, ios + 1, ios + 2, ios + 3].map(grown);
            all.extend([
                (format!("{letter}/s"), n / ms * 1000.0),
                (format!("{letter}kB/s"), sectors / 2.0 / ms * 1000.0),
                (format!("{letter}rqm/s"), merged / ms * 1000.0),
                (format!("%{letter}rqm"), 100.0 * over(merged, merged + n)),
                (format!("{letter}_await"), over(ticks, n)),
                (format!("{letter}areq-sz"), over(sectors / 2.0, n)),
            ]);
        }
        all.push(("aqu-sz".into(), grown(11) / ms));
        all.push(("%util".into(), grown(10) / ms * 100.0));
        all
    }

    /// Runs ten seconds of a load with a period of 10 ms, on a device that serves two requests at a time, 100 us each:
    ///
    /// - four neighbouring writes of 4 KiB in a plug, which become one request;
    /// - three reads of 8 KiB at the same time, one of which waits for 100 us;
    /// - a discard of 64 KiB.
    fn periodic(scheduler: &'static str) -> (Stat, Stat) {
        let device =
            "null,irqmode=2,completion_nsec=100000,hw_queue_depth=2,submit_queues=1,discard=1";
        let mut world = World::new(device, scheduler);
        // Counts from before the interval must not affect any rate.
        world.push(Op::Read, 4096, 4);
        world.client.flush(world.now);
        world.until(Instant::from_nanos(3 * MS));
        let (before, start) = (world.stat(), world.now);
        for period in 0..1000 {
            let at = |ms: u64| start + Nanos(period * 10 * MS + ms * MS);
            (0..4).for_each(|n| world.push(Op::Write, 8192 + n * 8, 4));
            world.client.flush(world.now);
            world.until(at(1));
            for n in 0..3 {
                world.push(Op::Read, n * 2048, 8);
                world.client.flush(world.now);
            }
            world.until(at(2));
            world.push(Op::Discard, 65_536, 64);
            world.client.flush(world.now);
            world.until(at(10));
        }
        (before, world.stat())
    }

    /// The expected values of that load, derived by hand.
    const PERIODIC: [(&str, f64); 20] = [
        ("r/s", 300.0),
        ("rkB/s", 2400.0),
        ("rrqm/s", 0.0),
        ("%rrqm", 0.0),
        ("r_await", 0.4 / 3.0),
        ("rareq-sz", 8.0),
        ("w/s", 100.0),
        ("wkB/s", 1600.0),
        ("wrqm/s", 300.0),
        ("%wrqm", 75.0),
        ("w_await", 0.1),
        ("wareq-sz", 16.0),
        ("d/s", 100.0),
        ("dkB/s", 6400.0),
        ("drqm/s", 0.0),
        ("%drqm", 0.0),
        ("d_await", 0.1),
        ("dareq-sz", 64.0),
        // 300 reads of 0.133 ms, 100 writes and 100 discards of 0.1 ms in a second.
        ("aqu-sz", 0.06),
        // 0.1, 0.2 and 0.1 ms of 10.
        ("%util", 4.0),
    ];

    fn is_near(value: f64, expected: f64) -> bool {
        (value - expected).abs() <= expected.abs() * 1e-9
    }

    #[test]
    fn iostats_formulas_on_the_lines_of_a_known_load_give_its_rates() {
        for scheduler in ["none", "mq-deadline", "bfq"] {
            let (before, now) = periodic(scheduler);
            let line = |stat: &Stat| {
                let text = stat::sysfs_stat(&stat.devices[0]);
                let fields: Vec<u64> =
                    text.split_whitespace().map(|it| it.parse().unwrap()).collect();
                <[u64; 17]>::try_from(fields).expect("17 fields")
            };
            // The first read took 0.1 ms, which the earlier line rounds down: 0.1 ms of 400 + 100 + 100.
            let found = iostat(&line(&before), &line(&now), 10_000.0);
            for ((name, value), (column, expected)) in found.iter().zip(PERIODIC) {
                assert_eq!(name, column);
                let is_time =
                    name.contains("await") || name.contains("aqu") || name.contains("util");
                let (near, rough) =
                    (is_near(*value, expected), (value / expected - 1.0).abs() < 0.003);
                assert!(near || is_time && rough, "{scheduler}: {name} is {value}, not {expected}");
            }
        }
    }

    #[test]
    fn the_columns_of_stat_and_top_are_exact() {
        for scheduler in ["none", "mq-deadline", "bfq"] {
            let (before, now) = periodic(scheduler);
            let expected = |name: &str| PERIODIC.iter().find(|it| it.0 == name).expect(name).1;
            let row = json(&between(&before, &now)[0]);
            for (name, expected) in PERIODIC {
                let value = row[name].as_f64().unwrap_or_else(|| panic!("{name} in {row}"));
                assert!(is_near(value, expected), "{scheduler}: {name} is {value}, not {expected}");
            }
            let row = serde_json::to_value(&stat::between(&before, &now).rows[0]).expect("JSON");
            let keys = ["ios", "kib", "merged", "await_ms"];
            for (key, column) in keys.iter().zip(["?/s", "?kB/s", "%?rqm", "?_await"]) {
                for (at, letter) in ["r", "w", "d"].iter().enumerate() {
                    let name = column.replace('?', letter);
                    let value = row[key][at].as_f64().expect("a number");
                    assert!(is_near(value, expected(&name)), "{scheduler}: {name} is {value}");
                }
            }
            assert!(is_near(row["queue"].as_f64().expect("a number"), expected("aqu-sz")));
            // A third of the reads waited for 100 us.
            assert_eq!(row["wait_ms"], Json::from(vec![0.1 / 3.0, 0.0, 0.0]), "{scheduler}");
        }
    }

    /// The longest time in the same bucket as `ns`: buckets keep six bits.
    fn end_of_bucket(ns: u64) -> u64 {
        let dropped = (u64::BITS - ns.leading_zeros()).saturating_sub(6);
        ns | ((1 << dropped) - 1)
    }

    #[test]
    fn histograms_are_those_of_the_clients_own_latencies() {
        for scheduler in ["none", "mq-deadline", "kyber", "bfq"] {
            let mut world = World::new("flash,size=64", scheduler);
            let mut rng = Rng::new(7);
            for _ in 0..3000 {
                let op = if rng.below(3) == 0 { Op::Write } else { Op::Read };
                // Sectors with gaps, so that nothing merges: each request has only the time of its oldest I/O.
                world.push(op, rng.below(4096) * 16, 4);
                // Bursts of up to eight I/Os, with pauses between them.
                if rng.below(4) == 0 || world.client.in_flight() > 40 {
                    world.client.flush(world.now);
                    world.until(world.now + Nanos(rng.below(400_000)));
                }
            }
            world.client.flush(world.now);
            world.until(world.now + Nanos::from_secs(1));
            let now = world.stat();
            let stages = &now.devices[0].stages;
            assert_eq!(world.client.in_flight(), 0);
            let mut slots = Vec::new();
            for (op, latencies) in world.latencies.iter().enumerate() {
                assert_eq!(stages.total[op].count, latencies.len() as u64);
                let mut expected = std::collections::BTreeMap::new();
                for ns in latencies {
                    *expected.entry(end_of_bucket(*ns)).or_insert(0) += 1;
                    let slot = (end_of_bucket(*ns) / 1000).max(1).ilog2() as usize;
                    slots.resize(slots.len().max(slot + 1), 0);
                    slots[slot] += 1;
                }
                let expected: Vec<(u64, u64)> = expected.into_iter().collect();
                assert_eq!(stages.total[op].buckets, expected, "{scheduler}: operation {op}");
            }
            assert!(slots.iter().filter(|count| **count > 0).count() > 3, "{scheduler}: {slots:?}");
            let choice = Choice { queued: true, by_op: false };
            let shown = stat::histograms("virtual", &Default::default(), stages, choice);
            assert_eq!(shown[0].slots, slots, "{scheduler}");
        }
    }
}
