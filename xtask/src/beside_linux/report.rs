//! The figures of runs, and the results that they give.
//!
//! Rates and percentiles by job, their medians with intervals, and the ratios of both sides come from the reports of
//! this comparison's runs, or from the output of an earlier comparison, with three digits: a whole comparison takes
//! hours, and may be split. The results are a table for people, JSON for programs, and a page with plots: for each
//! figure both sides, every run a dot and the median a line. The page is a single file that loads no other.

use super::{DEVICES, Job, LOADS, Lateness, Load, Plan, SCHEDULERS, Side};
use crate::Result;
use crate::measurement::Machine;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The least ratio of rates at which ours counts as good.
const RATE: f64 = 0.95;
/// The greatest ratio of latencies at which ours counts as good.
const LATENCY: f64 = 1.15;
/// The name of the cost of an I/O.
const COST: &str = "CPU of the client, us an I/O";
/// How sure an interval of a median should be, where there are enough runs.
const CONFIDENCE: f64 = 0.95;

/// The kind of a figure, which determines how it is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// More is better.
    Rate,
    /// Less is better.
    Latency,
    /// Neither: shares, costs and counts.
    Other,
}

/// The name of a figure: a job and a quantity with its unit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) text: String,
    pub(super) kind: Kind,
}

/// The figures of one run.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample(pub(super) Vec<(Name, f64)>);

impl Sample {
    /// Reads the reports of the jobs, which fio and bench write alike; `moved` is the bytes that the device read and
    /// wrote in a second.
    ///
    /// # Errors
    /// If an I/O failed.
    pub(super) fn of(load: &Load, reports: &[Value], moved: [f64; 2]) -> Result<Self> {
        let mut sample = Self::default();
        let mut cost = 0.0;
        let mut ios = 0.0;
        for (job, report) in load.jobs.iter().zip(reports) {
            if report["error"] != 0 {
                return Err(format!("{}: error {}", job.name, report["error"]).into());
            }
            let others = load
                .jobs
                .iter()
                .zip(reports)
                .filter(|(other, _)| other.writes() == job.writes() && other.name != job.name);
            let others: Vec<f64> = others.map(|(other, report)| own_count(other, report)).collect();
            let counted = job.starves || others.is_empty();
            let moved = moved[usize::from(job.writes())] - others.iter().sum::<f64>();
            sample.job(job, report, counted.then_some(moved.max(0.0)));
            let number = |value: &Value| value.as_f64().unwrap_or(0.0);
            let percent = number(&report["usr_cpu"]) + number(&report["sys_cpu"]);
            cost += percent / 100.0 * number(&report["job_runtime"]) * 1e3;
            ios += number(&report["read"]["total_ios"]) + number(&report["write"]["total_ios"]);
        }
        if load.shares
            && let [first, .., last] = &sample.rates()[..]
            && *first > 0.0
        {
            sample.add(format!("share, {}", load.name), Kind::Other, last / first);
        }
        if ios > 0.0 && !load.jobs.iter().any(|job| job.is_async) {
            sample.add(COST.into(), Kind::Other, cost / ios);
        }
        Ok(sample)
    }

    fn rates(&self) -> Vec<f64> {
        let rates = self.0.iter().filter(|(name, _)| name.kind == Kind::Rate);
        rates.map(|(_, rate)| *rate).collect()
    }

    /// `moved`: bytes a second, if the device counts them for this job alone.
    fn job(&mut self, job: &Job, report: &Value, moved: Option<f64>) {
        let direction = direction(job, report);
        let moved = moved.unwrap_or_else(|| own_count(job, report));
        let rate = if job.is_stream() { moved / 1e6 } else { moved / job.block() };
        self.add(format!("{} {}", job.name, job.unit()), Kind::Rate, rate);
        // `lat` of fio is the time from the system call on, which corresponds to our `clat`: it begins when the I/O is
        // pushed.
        let percentile = |kind: &str| direction[kind]["percentile"]["99.000000"].as_f64();
        let p99 = percentile("lat_ns").or_else(|| percentile("clat_ns"));
        if let Some(p99) = p99.filter(|_| job.has_latency()) {
            self.add(format!("{} p99 ms", job.name), Kind::Latency, p99 / 1e6);
        }
    }

    fn add(&mut self, text: String, kind: Kind, value: f64) {
        self.0.push((Name { text, kind }, value));
    }
}

/// The part of a job's report about the direction in which it moves data.
fn direction<'a>(job: &Job, report: &'a Value) -> &'a Value {
    &report[if job.writes() { "write" } else { "read" }]
}

/// Bytes a second, as the job's client counts them.
fn own_count(job: &Job, report: &Value) -> f64 {
    direction(job, report)["bw_bytes"].as_f64().unwrap_or(0.0)
}

/// A combination that is compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cell {
    pub(super) device: &'static str,
    pub(super) load: &'static str,
    pub(super) scheduler: String,
}

#[derive(Debug, Default)]
pub(super) struct Figures {
    /// In the order in which they were first measured.
    pub(super) cells: Vec<Cell>,
    values: BTreeMap<(Cell, String, Side), Vec<f64>>,
    names: BTreeMap<Cell, Vec<Name>>,
    /// Runs that were dropped because the machine stalled.
    pub(super) dropped: u32,
    /// The number of runs that failed or had to be ended, by combination and side.
    pub(super) overtime: BTreeMap<(Cell, Side), u32>,
    pub(super) kept: u32,
    /// The greatest timer lateness of the runs that were kept, in milliseconds.
    pub(super) worst: f64,
}

impl Figures {
    pub(super) fn keep(&mut self, cell: &Cell, side: Side, sample: Sample, lateness: Lateness) {
        if !self.cells.contains(cell) {
            self.cells.push(cell.clone());
        }
        self.kept += 1;
        self.worst = self.worst.max(lateness.worst);
        let names = self.names.entry(cell.clone()).or_default();
        for (name, value) in sample.0 {
            let key = (cell.clone(), name.text.clone(), side);
            self.values.entry(key).or_default().push(value);
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }

    /// Puts the combinations in the order of devices and loads.
    pub(super) fn sort(&mut self) {
        let device = |name: &str| DEVICES.iter().position(|it| it.name == name);
        let load = |name: &str| LOADS.iter().position(|it| it.name == name);
        let scheduler = |name: &str| SCHEDULERS.iter().position(|it| name.starts_with(it));
        self.cells.sort_by_key(|it| (device(it.device), load(it.load), scheduler(&it.scheduler)));
    }

    pub(super) fn names(&self, cell: &Cell) -> &[Name] {
        self.names.get(cell).map_or(&[], Vec::as_slice)
    }

    /// Every run's.
    pub(super) fn values(&self, cell: &Cell, name: &Name, side: Side) -> &[f64] {
        let key = (cell.clone(), name.text.clone(), side);
        self.values.get(&key).map_or(&[], Vec::as_slice)
    }

    /// Ours by Linux', of medians.
    pub(super) fn ratio(&self, cell: &Cell, name: &Name) -> Option<f64> {
        let of = |side| Middle::of(self.values(cell, name, side)).map(|middle| middle.median);
        let (linux, ours) = (of(Side::Linux)?, of(Side::Ours)?);
        (linux > 0.0).then(|| ours / linux)
    }

    /// Returns whether ours is as good, or `None` if the two are not compared, or were not measured.
    fn is_as_good(&self, cell: &Cell, name: &Name) -> Option<bool> {
        let ratio = self.ratio(cell, name)?;
        match name.kind {
            Kind::Rate => Some(ratio >= RATE),
            Kind::Latency => Some(ratio <= LATENCY),
            Kind::Other => None,
        }
    }
}

/// A median and an interval around it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Middle {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    /// The probability that the true median lies within the interval, assuming independent runs.
    confidence: f64,
}

impl Middle {
    /// Of the values; `None` if there are none. The ends of the interval are values, too: of six runs the smallest and
    /// the greatest, of nine the second and the eighth.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let half = count / 2;
        let median = match count {
            0 => return None,
            _ if count % 2 == 1 => sorted[half],
            _ => (sorted[half - 1] + sorted[half]) / 2.0,
        };
        let inner = (0..half).take_while(|cut| confidence(count, *cut) >= CONFIDENCE).last();
        let cut = inner.unwrap_or(0);
        let (low, high) = (sorted[cut], sorted[count - 1 - cut]);
        Some(Self { median, low, high, confidence: confidence(count, cut) })
    }
}

/// The probability that the true median is between the values number `cut` from both ends, of `count`.
fn confidence(count: usize, cut: usize) -> f64 {
    // The number of values below the median is distributed like the heads of as many coins.
    let mut term = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut outside = 0.0;
    for heads in 0..=cut {
        outside += 2.0 * term;
        term *= (count - heads) as f64 / (heads + 1) as f64;
    }
    (1.0 - outside).max(0.0)
}

/// The beginning of a line, before the figures.
struct Head {
    cell: Cell,
    side: Side,
    load: &'static Load,
}

/// Between the figures of a run and the lateness of its timer.
pub(super) const LATE: &str = "; timer late by ";
/// Printed instead of figures.
pub(super) const OVERTIME: &str = "a client failed, or did not end in time";

/// Adds the runs in `text` whose timer was at most `stall` milliseconds late. Other lines are ignored.
pub(super) fn read(text: &str, stall: f64, figures: &mut Figures) {
    for line in text.lines() {
        let Some((head, rest)) = line.split_once(": ").and_then(|(a, b)| Some((head(a)?, b)))
        else {
            continue;
        };
        if rest == OVERTIME {
            *figures.overtime.entry((head.cell, head.side)).or_default() += 1;
            continue;
        }
        let Some((values, late)) = rest.split_once(LATE) else { continue };
        let Some(worst) = number(late) else { continue };
        if worst > stall {
            figures.dropped += 1;
            continue;
        }
        let named = names(head.load).into_iter().filter_map(|name| {
            let value = number(values.split_once(&format!("{} ", name.text))?.1)?;
            Some((name, value))
        });
        let sample = Sample(named.collect());
        figures.keep(&head.cell, head.side, sample, Lateness { worst, sum: 0.0 });
    }
    figures.sort();
}

fn head(text: &str) -> Option<Head> {
    let mut words = text.split(' ');
    let (device, load, scheduler, side) =
        (words.next()?, words.next()?, words.next()?, words.next()?);
    let device = DEVICES.iter().find(|it| it.name == device)?.name;
    let load = LOADS.iter().find(|it| it.name == load)?;
    let side = Side::BOTH.into_iter().find(|it| it.name() == side)?;
    let cell = Cell { device, load: load.name, scheduler: scheduler.to_owned() };
    words.next().is_none().then_some(Head { cell, side, load })
}

/// The number at the beginning of `text`.
fn number(text: &str) -> Option<f64> {
    let end = text.find([',', ' ']).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// The names of the figures that a run of `load` may have, as in [`Sample::of`].
fn names(load: &Load) -> Vec<Name> {
    let mut names = Vec::new();
    let mut add = |text: String, kind| names.push(Name { text, kind });
    for job in load.jobs {
        add(format!("{} {}", job.name, job.unit()), Kind::Rate);
        if job.has_latency() {
            add(format!("{} p99 ms", job.name), Kind::Latency);
        }
    }
    add(format!("share, {}", load.name), Kind::Other);
    add(COST.into(), Kind::Other);
    names
}

pub(super) struct Report<'a> {
    pub(super) machine: &'a Machine,
    pub(super) plan: &'a Plan,
    pub(super) figures: &'a Figures,
}

/// A figure with three digits.
pub(super) fn digits(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

impl Report<'_> {
    /// The verdict of a row.
    pub(super) fn verdict(&self, cell: &Cell, name: &Name) -> &'static str {
        match self.figures.is_as_good(cell, name) {
            Some(true) => "as good",
            Some(false) => "worse",
            None if name.kind == Kind::Other => "",
            None => "not measured",
        }
    }

    /// One sentence for each fact that a reader has to know.
    pub(super) fn about(&self) -> Vec<String> {
        let Plan { time, rounds, stall, .. } = self.plan;
        let Figures { kept, dropped, worst, .. } = self.figures;
        let rounds = if self.plan.from.is_empty() {
            let (counted, ramp) = (time.counted, time.ramp);
            format!("Rounds in turns, {rounds} at most; {counted} s each, after {ramp} s.")
        } else {
            "Rounds in turns, in parts that were run at different times.".to_owned()
        };
        let mut about = vec![
            format!(
                "Both sides on the same loop device: fio under the scheduler of Linux, `blkmq bench` with ours above \
                 `none`. {rounds}"
            ),
            format!(
                "{kept} runs; {dropped} dropped, in which a timer was more than {stall} ms late; at most {worst:.1} ms \
                 in those that count."
            ),
            format!(
                "As good: a rate of at least {RATE} of Linux', a p99 of at most {LATENCY} of it, by medians. In \
                 brackets the interval in which the median lies with 95 %, or of all runs if they are fewer than six."
            ),
        ];
        about.extend(self.figures.overtime.iter().map(|((cell, side), runs)| {
            let Cell { device, load, scheduler } = cell;
            let side = side.name();
            format!("{device}, {load}, {scheduler}: {runs} of {side}'s runs failed or had to be ended, and do not count.")
        }));
        about.extend(self.machine.warnings());
        about
    }

    pub(super) fn markdown(&self) -> String {
        let mut page = String::from("# Beside Linux\n\n| machine | |\n|---|---|\n");
        for (name, value) in self.machine.rows() {
            page += &format!("| {name} | {value} |\n");
        }
        for sentence in self.about() {
            page += &format!("\n{sentence}\n");
        }
        let mut device = "";
        for cell in &self.figures.cells {
            if cell.device != device {
                device = cell.device;
                page += &format!("\n## {device}\n\n{}.\n", words(device));
                page += "\n| load | scheduler | figure | Linux | blkmq | ratio | |\n|---|---|---|---|---|---|---|\n";
            }
            for name in self.figures.names(cell) {
                page += &self.row(cell, name);
            }
        }
        page += "\n## Loads\n\n";
        for load in
            LOADS.iter().filter(|load| self.figures.cells.iter().any(|c| c.load == load.name))
        {
            page += &format!("- {}: {}\n", load.name, load.about);
        }
        page
    }

    fn row(&self, cell: &Cell, name: &Name) -> String {
        let shown = |side| {
            let middle = Middle::of(self.figures.values(cell, name, side));
            middle.map_or_else(|| "-".into(), shown)
        };
        let ratio =
            self.figures.ratio(cell, name).map_or_else(|| "-".into(), |r| format!("{r:.2}"));
        let Cell { load, scheduler, .. } = cell;
        let (linux, ours) = (shown(Side::Linux), shown(Side::Ours));
        let verdict = self.verdict(cell, name);
        format!(
            "| {load} | {scheduler} | {} | {linux} | {ours} | {ratio} | {verdict} |\n",
            name.text
        )
    }

    /// The report as data, with every run.
    pub(super) fn json(&self) -> Value {
        let machine: serde_json::Map<String, Value> = (self.machine.rows().into_iter())
            .map(|(name, value)| (name.to_owned(), Value::String(value)))
            .collect();
        let cells = self.figures.cells.iter().flat_map(|cell| {
            self.figures.names(cell).iter().map(move |name| {
                let side = |side| {
                    let values = self.figures.values(cell, name, side);
                    let middle = Middle::of(values);
                    json!({
                        "runs": values,
                        "median": middle.map(|it| it.median),
                        "interval": middle.map(|it| [it.low, it.high]),
                        "confidence": middle.map(|it| it.confidence),
                    })
                };
                json!({
                    "device": cell.device, "load": cell.load, "scheduler": cell.scheduler,
                    "figure": name.text, "linux": side(Side::Linux), "blkmq": side(Side::Ours),
                    "ratio": self.figures.ratio(cell, name),
                    "as_good": self.figures.is_as_good(cell, name),
                })
            })
        });
        let loads = LOADS.iter().map(|load| json!({ "name": load.name, "about": load.about }));
        let devices = DEVICES
            .iter()
            .map(|it| json!({ "name": it.name, "model": it.model, "depth": it.depth }));
        // Parts of a comparison may have been of other lengths.
        let time = self.plan.from.is_empty().then(|| {
            let Plan { rounds, time, .. } = self.plan;
            json!({ "rounds": rounds, "seconds": time.counted, "ramp": time.ramp })
        });
        json!({
            "machine": machine,
            "time": time,
            "kept": self.figures.kept, "dropped": self.figures.dropped,
            "loads": loads.collect::<Vec<_>>(), "devices": devices.collect::<Vec<_>>(),
            "results": cells.collect::<Vec<_>>(),
        })
    }
}

/// A median with its interval.
fn shown(middle: Middle) -> String {
    let Middle { median, low, high, .. } = middle;
    if low == high {
        return digits(median);
    }
    format!("{} ({} to {})", digits(median), digits(low), digits(high))
}

/// The words about a device.
fn words(device: &str) -> &'static str {
    DEVICES.iter().find(|known| known.name == device).map_or("", |known| known.about)
}

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#222;--dim:#666;--line:#ccc;--back:#fff;--linux:#0072b2;--blkmq:#d55e00}\
@media(prefers-color-scheme:dark){:root{--ink:#ddd;--dim:#999;--line:#444;--back:#181818;--linux:#56b4e9;--blkmq:#f0963c}}\
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:72rem;margin:2rem auto;padding:0 1rem}\
table{border-collapse:collapse}td,th{padding:.2rem .7rem;text-align:left;border-bottom:1px solid var(--line)}\
td.n{text-align:right;font-variant-numeric:tabular-nums}p{color:var(--dim);margin:.3rem 0}\
.worse{font-weight:bold}.linux{fill:var(--linux);stroke:var(--linux)}.blkmq{fill:var(--blkmq);stroke:var(--blkmq)}\
circle{fill-opacity:.45;stroke-opacity:.8}svg text{font-size:10px;fill:var(--dim);stroke:none}.axis{stroke:var(--line)}\
.scroll{overflow-x:auto}";

/// Pixels: the plot of a figure.
const WIDTH: f64 = 300.0;
const MARGIN: f64 = 40.0;

pub(super) fn html(report: &Report<'_>) -> String {
    let mut page =
        String::from("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    page +=
        "<meta name=\"viewport\" content=\"width=device-width\"><title>blkmq beside Linux</title>";
    page += &format!("<style>{STYLE}</style></head>\n<body><h1>Beside Linux</h1>\n");
    for (name, value) in report.machine.rows() {
        page += &format!("<p>{name}: {}</p>", escaped(&value));
    }
    page += "<h2>How</h2>";
    for sentence in report.about() {
        page += &format!("<p>{}</p>\n", escaped(&sentence));
    }
    let mut device = "";
    for cell in &report.figures.cells {
        if cell.device != device {
            if !device.is_empty() {
                page += "</table></div>\n";
            }
            device = cell.device;
            page += &format!(
                "<h2>{device}</h2><p>{}</p><div class=\"scroll\"><table>",
                escaped(words(device))
            );
            page += "<tr><th>load</th><th>scheduler</th><th>figure</th><th>runs</th><th>Linux</th><th>blkmq</th>\
                     <th>ratio</th><th></th></tr>\n";
        }
        for name in report.figures.names(cell) {
            page += &row(report, cell, name);
        }
    }
    if !device.is_empty() {
        page += "</table></div>\n";
    }
    page + "</body></html>\n"
}

fn row(report: &Report<'_>, cell: &Cell, name: &Name) -> String {
    let median = |side| {
        let middle = Middle::of(report.figures.values(cell, name, side));
        middle.map_or_else(|| "-".into(), |middle| digits(middle.median))
    };
    let ratio = report.figures.ratio(cell, name).map_or_else(|| "-".into(), |r| format!("{r:.2}"));
    let verdict = report.verdict(cell, name);
    format!(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
         <td class=\"n\">{ratio}</td><td class=\"{verdict}\">{verdict}</td></tr>\n",
        cell.load,
        escaped(&cell.scheduler),
        escaped(&name.text),
        plot(report, cell, name),
        median(Side::Linux),
        median(Side::Ours),
    )
}

/// Both sides over one scale from zero.
fn plot(report: &Report<'_>, cell: &Cell, name: &Name) -> String {
    let sides = Side::BOTH.map(|side| (side, report.figures.values(cell, name, side)));
    let all = sides.iter().flat_map(|(_, values)| *values);
    let most = all.copied().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let x = |value: f64| MARGIN + value / most * (WIDTH - MARGIN - 10.0);
    let mut svg = format!(
        "<svg width=\"{WIDTH}\" height=\"44\" role=\"img\" aria-label=\"{}\">",
        escaped(&name.text)
    );
    svg += &format!("<line class=\"axis\" x1=\"{MARGIN}\" y1=\"0\" x2=\"{MARGIN}\" y2=\"44\"/>");
    for ((side, values), y) in sides.into_iter().zip([13.0, 33.0]) {
        let class = side.name().to_lowercase();
        svg +=
            &format!("<g class=\"{class}\"><text x=\"0\" y=\"{}\">{}</text>", y + 3.0, side.name());
        for value in values {
            let title = digits(*value);
            svg += &format!(
                "<circle cx=\"{:.1}\" cy=\"{y}\" r=\"4\"><title>{title}</title></circle>",
                x(*value)
            );
        }
        if let Some(middle) = Middle::of(values) {
            let at = x(middle.median);
            svg += &format!(
                "<line x1=\"{at:.1}\" y1=\"{}\" x2=\"{at:.1}\" y2=\"{}\" stroke-width=\"2\"/>\
                 <line x1=\"{:.1}\" y1=\"{y}\" x2=\"{:.1}\" y2=\"{y}\"/>",
                y - 9.0,
                y + 9.0,
                x(middle.low),
                x(middle.high)
            );
        }
        svg += "</g>";
    }
    svg + "</svg>"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::beside_linux::Lateness;
    use serde_json::json;

    fn load(name: &str) -> &'static Load {
        LOADS.iter().find(|load| load.name == name).unwrap()
    }

    /// Of a job with so many bytes a second.
    fn report_of(bytes: u64) -> Value {
        let direction = json!({
            "bw_bytes": bytes, "total_ios": 100,
            "lat_ns": { "percentile": { "99.000000": 7_000_000 } },
            "clat_ns": { "percentile": { "99.000000": 9_000_000 } },
        });
        let (read, write) = (direction.clone(), direction);
        json!({ "error": 0, "read": read, "write": write, "usr_cpu": 10.0, "sys_cpu": 10.0, "job_runtime": 1000 })
    }

    #[test]
    fn a_run_has_the_rate_and_the_latency_of_each_job() {
        let sample =
            Sample::of(load("W2"), &[report_of(1), report_of(1)], [204_800.0, 6e7]).unwrap();
        let shown: Vec<String> =
            sample.0.iter().map(|(name, value)| format!("{}: {value}", name.text)).collect();
        let cost = "CPU of the client, us an I/O: 1000";
        assert_eq!(
            shown,
            ["reader IOPS: 50", "reader p99 ms: 7", "writers MB/s: 60", "writers p99 ms: 7", cost]
        );
        let mut failed = report_of(1);
        failed["error"] = 5.into();
        assert!(Sample::of(load("W1"), &[failed], [0.0, 0.0]).is_err());
    }

    #[test]
    fn shares_are_of_the_last_job_to_the_first() {
        let sample =
            Sample::of(load("W3b"), &[report_of(409_600), report_of(1_228_800)], [9e9, 9e9])
                .unwrap();
        assert_eq!(sample.rates(), [100.0, 300.0], "the device counts both together");
        let (name, share) = &sample.0[4];
        assert_eq!((name.text.as_str(), *share), ("share, W3b", 3.0));
        assert_eq!(name.kind, Kind::Other);
    }

    /// fio reported 330 reads a second for a reader that the device did not serve during its time.
    #[test]
    fn a_job_that_starves_has_what_the_others_leave() {
        let reports = [report_of(1_351_680), report_of(1_474_560)];
        let sample = Sample::of(load("W3d"), &reports, [1_478_656.0, 0.0]).unwrap();
        assert_eq!(sample.rates(), [1.0, 360.0]);
        assert!(sample.0.iter().all(|(name, _)| name.text != "idle p99 ms"));
    }

    #[test]
    fn the_interval_of_a_median_is_as_wide_as_it_must_be() {
        assert_eq!(Middle::of(&[]), None);
        let few = Middle::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((few.low, few.median, few.high), (1.0, 2.0, 3.0));
        assert!((few.confidence - 0.75).abs() < 1e-9, "1 - 2/8: {few:?}");
        let six = Middle::of(&[6.0, 5.0, 4.0, 3.0, 2.0, 1.0]).unwrap();
        assert_eq!((six.low, six.median, six.high), (1.0, 3.5, 6.0));
        assert!((six.confidence - (1.0 - 2.0 / 64.0)).abs() < 1e-9);
        let nine: Vec<f64> = (1..=9).map(f64::from).collect();
        let nine = Middle::of(&nine).unwrap();
        assert_eq!((nine.low, nine.high), (2.0, 8.0), "the table of the sign test");
        assert!((nine.confidence - (1.0 - 2.0 * 10.0 / 512.0)).abs() < 1e-9);
    }

    #[test]
    fn ours_is_as_good_within_the_bounds() {
        let cell = Cell { device: "hdd4", load: "W2", scheduler: "bfq".into() };
        let name = |text: &str, kind| Name { text: text.into(), kind };
        let names = [name("r", Kind::Rate), name("l", Kind::Latency), name("o", Kind::Other)];
        let mut figures = Figures::default();
        for (side, values) in [(Side::Linux, [100.0, 100.0, 1.0]), (Side::Ours, [96.0, 116.0, 5.0])]
        {
            let sample = Sample(names.iter().cloned().zip(values).collect());
            figures.keep(&cell, side, sample, Lateness::default());
        }
        let verdicts = names.each_ref().map(|name| figures.is_as_good(&cell, name));
        assert_eq!(verdicts, [Some(true), Some(false), None]);
        assert_eq!(figures.names(&cell), names);
        assert_eq!(figures.kept, 2);
    }

    #[test]
    fn what_was_printed_is_read_again() {
        let text = "written elsewhere: no run\n\
                    hdd4 W3a bfq blkmq: light MB/s 30.3, light p99 ms 4.65, heavy MB/s 91.3, heavy p99 ms 3.24, \
                    share, W3a 3.02, CPU of the client, us an I/O 43.6; timer late by 1.2 ms, 3 in all\n\
                    hdd4 W1 bfq Linux: a client failed, or did not end in time\n\
                    hdd4 W1 bfq blkmq: writers IOPS 366, writers p99 ms 6241; timer late by 51.2 ms, 300 in all\n";
        let mut figures = Figures::default();
        read(text, 50.0, &mut figures);
        let cell = Cell { device: "hdd4", load: "W3a", scheduler: "bfq".into() };
        assert_eq!(figures.cells, std::slice::from_ref(&cell));
        let shown: Vec<_> = figures
            .names(&cell)
            .iter()
            .map(|name| (name.text.as_str(), figures.values(&cell, name, Side::Ours)[0]))
            .collect();
        assert_eq!(
            shown,
            [
                ("light MB/s", 30.3),
                ("light p99 ms", 4.65),
                ("heavy MB/s", 91.3),
                ("heavy p99 ms", 3.24),
                ("share, W3a", 3.02),
                ("CPU of the client, us an I/O", 43.6)
            ]
        );
        assert_eq!((figures.kept, figures.dropped, figures.overtime.len()), (1, 1, 1));
    }

    fn report() -> Report<'static> {
        let machine = Box::leak(Box::new(Machine::describe()));
        let plan = Box::leak(Box::new(Plan::parse(&[]).unwrap()));
        let mut figures = Figures::default();
        let cell = Cell { device: "hdd4", load: "W2", scheduler: "bfq".into() };
        let name = |text: &str, kind| Name { text: text.into(), kind };
        let runs = [
            (Side::Linux, 27.0, 125.0),
            (Side::Ours, 128.0, 39.0),
            (Side::Linux, 25.0, 135.0),
            (Side::Ours, 12.0, 390.0),
            (Side::Ours, 13.0, 39.0),
        ];
        for (side, rate, p99) in runs {
            let names = [name("reader IOPS", Kind::Rate), name("reader p99 ms", Kind::Latency)];
            let sample = Sample(names.into_iter().zip([rate, p99]).collect());
            figures.keep(&cell, side, sample, Lateness { worst: 2.0, sum: 2.0 });
        }
        figures.overtime.insert((cell, Side::Linux), 2);
        Report { machine, plan, figures: Box::leak(Box::new(figures)) }
    }

    #[test]
    fn the_table_has_medians_intervals_ratios_and_verdicts() {
        let page = report().markdown();
        let rate =
            "| W2 | bfq | reader IOPS | 26.0 (25.0 to 27.0) | 13.0 (12.0 to 128) | 0.50 | worse |";
        let p99 =
            "| W2 | bfq | reader p99 ms | 130 (125 to 135) | 39.0 (39.0 to 390) | 0.30 | as good |";
        assert!(page.contains(rate), "{page}");
        assert!(page.contains(p99), "{page}");
        assert!(page.contains("5 runs; 0 dropped"), "{page}");
        assert!(page.contains("- W2: a random reader"), "{page}");
        assert!(
            page.contains("hdd4, W2, bfq: 2 of Linux's runs failed or had to be ended"),
            "{page}"
        );
    }

    #[test]
    fn the_data_has_every_run() {
        let data = report().json();
        let first = &data["results"][0];
        assert_eq!(first["blkmq"]["runs"], json!([128.0, 12.0, 13.0]));
        assert_eq!(first["linux"]["interval"], json!([25.0, 27.0]));
        assert_eq!(first["as_good"], json!(false));
    }

    #[test]
    fn every_run_is_a_dot_and_the_page_asks_for_nothing() {
        let page = html(&report());
        assert_eq!(page.matches("<circle").count(), 10, "five runs, two figures");
        assert!(page.contains("<td class=\"worse\">worse</td>"), "{page}");
        assert_eq!(page.matches("<table>").count(), page.matches("</table>").count());
        for outside in ["src=", "href=", "http:", "https:", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn words_of_others_are_text() {
        assert_eq!(escaped("a<b>&\""), "a&lt;b&gt;&amp;&quot;");
    }
}
