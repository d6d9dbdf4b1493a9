//! Formats the result of an experiment: sentences, a table, a page with plots, and lines of CSV.

use super::compare::{Answer, LEAST_PAIRS, Metric, Question, Verdict};
use super::row::{KindRow, Row, show};
use super::study::{Axis, Study, Value};
use crate::report::html;
use crate::report::markup::Markup;
use crate::report::number::counted;
use crate::report::svg::rows::{self, LEFT, RIGHT};
use crate::report::svg::{bar, line};
use blkmq_terminal::paper::{Align, Paper, TextTable, push_line};
use std::collections::BTreeMap;

/// Everything known about an experiment.
pub struct Result<'a> {
    /// The experiment.
    pub study: &'a Study,
    /// Its axes.
    pub axes: &'a [Axis],
    /// The number of its points that were run.
    pub rows: usize,
    /// Points of the grid.
    pub points: usize,
    /// The answers.
    pub questions: &'a [Question],
}

impl Result<'_> {
    /// The result of the comparison, a sentence for each question about a figure that `is_asked` for.
    pub fn sentences(&self, is_asked: impl Fn(&Metric) -> bool) -> Vec<String> {
        let asked = self.questions.iter().filter(|question| is_asked(&question.metric));
        asked.map(|question| sentence(self.study, question)).collect()
    }

    /// Describes how the answers were computed.
    fn method(&self) -> Vec<String> {
        let mut lines = vec![format!("{} of {}", self.rows, counted(self.points as u64, "point"))];
        if self.rows < self.points {
            lines[0].push_str("; the others are missing");
        }
        let (Some(compared), Some(first)) = (self.study.compared(), self.questions.first()) else {
            return lines;
        };
        let baseline = self.study.shown(&first.answers[0].value);
        lines.push(match self.study.pair() {
            Some(pair) => format!(
                "differences of each {compared} from {baseline}, over pairs with the same {pair}, and their 95 % intervals; \
                 below {} % they are none",
                self.study.least()
            ),
            None => format!(
                "no axis is one of repetitions, such as seed: differences from {baseline} have no interval"
            ),
        });
        if self.questions.iter().any(|it| it.answers.iter().any(is_too_few)) {
            lines.push(format!("fewer than {LEAST_PAIRS} pairs say nothing about chance"));
        }
        lines
    }

    /// The names of the columns.
    fn columns(&self) -> Vec<(&str, Align)> {
        let mut columns: Vec<(&str, Align)> =
            self.places().into_iter().map(|name| (name, Align::Left)).collect();
        columns.push(("figure", Align::Left));
        columns.push((self.study.compared().unwrap_or_default(), Align::Left));
        columns.extend(["median", "difference", "95 % interval"].map(|name| (name, Align::Right)));
        columns
    }

    /// The axes that are neither compared nor paired, and have several values.
    fn places(&self) -> Vec<&str> {
        let others = self.axes.iter().filter(|axis| {
            let name = Some(axis.name.as_str());
            name != self.study.compared() && name != self.study.pair() && axis.values.len() > 1
        });
        others.map(|axis| axis.name.as_str()).collect()
    }

    fn cells(&self) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        for question in self.questions {
            for answer in &question.answers {
                let mut cells: Vec<String> =
                    self.places().iter().map(|name| question.place[*name].to_string()).collect();
                cells.push(question.metric.to_string());
                cells.push(self.study.shown(&answer.value));
                let median = answer.median.map(|value| show(&question.metric.name, value));
                cells.push(median.unwrap_or_else(|| "-".into()));
                let (difference, interval) = words(answer);
                cells.extend([difference, interval]);
                rows.push(cells);
            }
        }
        rows
    }

    /// Formats the result as text of at most `width` columns, where that is possible.
    pub fn text(&self, width: usize) -> String {
        let mut out = Paper::new(width);
        for line in self.method() {
            push_line(&mut out, 0, &line);
        }
        if self.questions.is_empty() {
            return out.finish();
        }
        out.push('\n');
        self.table(&mut out);
        out.push('\n');
        for line in self.sentences(|_| true) {
            push_line(&mut out, 0, &line);
        }
        out.finish()
    }

    /// Adds the table of all answers.
    pub fn table(&self, out: &mut Paper) {
        let columns = self.columns();
        let columns = columns.into_iter().map(|(name, align)| (name.to_owned(), align)).collect();
        let mut table = TextTable::new(columns);
        self.cells().iter().for_each(|row| table.row(row));
        out.table(&table);
    }

    /// The page.
    pub fn page(&self, name: &str) -> String {
        let title = format!("blkmq experiment: {name}");
        html::page(&title, |m| {
            m.leaf("h1", &[], &title);
            html::list(m, "findings", &self.sentences(|_| true));
            html::list(m, "notes", &self.method());
            self.draw(m, "h2");
            m.leaf("h2", &[], "The study");
            m.leaf("pre", &[], &self.study.json());
        })
    }

    /// Adds a plot for each figure and the table of all answers, under headings of that level.
    pub fn draw(&self, m: &mut Markup, heading: &'static str) {
        let mut drawn: Vec<&Metric> = Vec::new();
        for question in self.questions {
            if drawn.contains(&&question.metric) {
                continue;
            }
            drawn.push(&question.metric);
            let mut plot = Markup::default();
            if !self.differences(&mut plot, &question.metric) {
                continue;
            }
            m.leaf(heading, &[], &question.metric.to_string());
            let better = if question.metric.less_is_better() { "left" } else { "right" };
            let says = format!(
                "Difference from {}, with its interval; further {better} is better.",
                self.study.shown(&question.answers[0].value)
            );
            m.leaf("p", &[("class", &"soft")], &says);
            m.append(&plot);
        }
        m.leaf(heading, &[], "All figures");
        let columns = self.columns();
        let columns = Vec::from_iter(columns.into_iter().map(|(name, align)| (name, "", align)));
        html::table(m, &columns, &self.cells());
    }

    /// Draws the differences in `metric`; returns whether there was one.
    fn differences(&self, m: &mut Markup, metric: &Metric) -> bool {
        let mut marks = Vec::new();
        let mut named = Vec::new();
        for question in self.questions.iter().filter(|question| question.metric == *metric) {
            for answer in &question.answers {
                let Some(difference) = &answer.difference else { continue };
                let places = self.places();
                let place = places.iter().map(|name| format!(", {}", question.place[*name]));
                let value = self.study.shown(&answer.value);
                let name = format!("{value}{}", place.collect::<String>());
                let (low, high) = difference.interval.unwrap_or((difference.mean, difference.mean));
                marks.push((low, difference.mean, high));
                named.push(rows::Row { name, figure: percent(difference.mean) });
            }
        }
        if marks.is_empty() {
            return false;
        }
        let low = marks.iter().map(|it| it.0).fold(0.0, f64::min);
        let high = marks.iter().map(|it| it.2).fold(0.0, f64::max);
        let span = (high - low).max(0.02);
        let at = |value: f64| LEFT + (RIGHT - LEFT) * (value - low) / span;
        // Zero, and the two ends if there is room for their figures.
        let mut ticks = vec![(at(0.0), "0 %".to_owned())];
        let ends = [low, high].map(|end| (at(end), percent(end)));
        ticks.extend(ends.into_iter().filter(|(x, _)| (x - at(0.0)).abs() > 60.0));
        let axis = rows::Axis { ticks, figures: "difference" };
        rows::rows(m, "Differences with their intervals", &axis, &named, |m, row, y| {
            let (low, mean, high) = marks[row];
            line(m, "grid", (at(0.0), y - 12.0), (at(0.0), y + 12.0));
            line(m, "curve c0", (at(low), y), (at(high), y));
            let title = between(low, high);
            bar(m, "fill c0", (at(mean) - 3.0, y - 6.0), (6.0, 12.0), &title);
        });
        true
    }
}

fn is_too_few(answer: &Answer) -> bool {
    answer.difference.as_ref().is_some_and(|it| it.verdict == Verdict::TooFew)
}

/// Formats the answer to a question: the best value, and its advantage.
fn sentence(study: &Study, question: &Question) -> String {
    let places = question.place.iter().map(|(name, value)| format!("{name} {value}, "));
    let head = format!("{}{}", places.collect::<String>(), question.metric);
    let baseline = study.shown(&question.answers[0].value);
    let differences = || question.answers.iter().filter_map(|it| Some((&it.value, it.difference?)));
    if differences().count() == 0 {
        return format!("{head}: nothing to compare with {baseline}");
    }
    if differences().any(|(_, it)| it.verdict == Verdict::TooFew) {
        return format!("{head}: too few pairs for an answer");
    }
    if differences().all(|(_, it)| it.verdict == Verdict::NoDifference) {
        return format!("{head}: no difference");
    }
    let less = question.metric.less_is_better();
    let (good, bad) =
        if less { (Verdict::Lower, Verdict::Higher) } else { (Verdict::Higher, Verdict::Lower) };
    let best = differences().filter(|(_, it)| it.verdict == good);
    let best =
        best.min_by(
            |(_, a), (_, b)| {
                if less { a.mean.total_cmp(&b.mean) } else { b.mean.total_cmp(&a.mean) }
            },
        );
    match best {
        Some((value, it)) => {
            let (low, high) = it.interval.expect("a verdict has an interval");
            format!(
                "{head}: {} is best, {} against {baseline} ({})",
                study.shown(value),
                percent(it.mean),
                between(low, high)
            )
        }
        None => {
            let worse = differences().filter(|(_, it)| it.verdict == bad);
            let worse = Vec::from_iter(worse.map(|(value, _)| study.shown(value))).join(", ");
            format!("{head}: {baseline} is best; worse: {worse}")
        }
    }
}

/// The difference of an alternative, and its interval.
fn words(answer: &Answer) -> (String, String) {
    let Some(it) = &answer.difference else { return (String::new(), String::new()) };
    match (it.verdict, it.interval) {
        (Verdict::NoDifference, Some((low, high))) => ("none".into(), between(low, high)),
        (_, Some((low, high))) => (percent(it.mean), between(low, high)),
        (_, None) => (percent(it.mean), format!("{} is too few", counted(it.pairs as u64, "pair"))),
    }
}

/// Formats `+12.3 %`; differences of a factor of two or more are shown as a factor.
pub fn percent(relative: f64) -> String {
    if relative >= 1.0 {
        return format!("{:.2}x", relative + 1.0);
    }
    let text = format!("{:+.1} %", relative * 100.0);
    if text == "-0.0 %" { "+0.0 %".into() } else { text }
}

/// Formats an interval, with a common unit for both ends if possible.
fn between(low: f64, high: f64) -> String {
    let (low, high) = (percent(low), percent(high));
    match (low.strip_suffix(" %"), high.ends_with(" %")) {
        (Some(low), true) => format!("{low} to {high}"),
        _ => format!("{low} to {high}"),
    }
}

/// A line for each job of each row.
pub fn csv(axes: &[Axis], rows: &[&Row]) -> String {
    const KINDS: [&str; 4] = ["read", "write", "trim", "sync"];
    const TIMES: [&str; 5] = ["50", "90", "95", "99", "99.9"];
    let mut out = String::new();
    let mut heading: Vec<String> = vec!["id".into()];
    heading.extend(axes.iter().map(|axis| axis.name.clone()));
    heading.extend(["job", "runtime_ns", "iops", "bytes_per_s"].map(String::from));
    for kind in KINDS {
        heading
            .extend(["ios", "bytes", "iops", "mean_ns", "max_ns"].map(|it| format!("{kind}_{it}")));
        heading.extend(TIMES.map(|time| format!("{kind}_p{}_ns", time.replace('.', "_"))));
    }
    push(&mut out, &heading);
    for row in rows {
        for job in &row.jobs {
            let mut cells = vec![row.id.clone()];
            cells.extend(
                axes.iter().map(|axis| {
                    row.values.get(&axis.name).map_or_else(String::new, Value::to_string)
                }),
            );
            cells.push(job.name.clone());
            cells.extend([
                job.runtime_ns.to_string(),
                job.iops.to_string(),
                job.bytes_per_s.to_string(),
            ]);
            for kind in KINDS {
                cells.extend(of_kind(job.kinds.get(kind), &TIMES));
            }
            push(&mut out, &cells);
        }
    }
    out
}

fn of_kind(row: Option<&KindRow>, times: &[&str]) -> Vec<String> {
    let text = |value: Option<String>| value.unwrap_or_default();
    let mut cells = vec![
        text(row.map(|row| row.ios.to_string())),
        text(row.map(|row| row.bytes.to_string())),
        text(row.map(|row| row.iops.to_string())),
        text(row.and_then(|row| Some(row.mean_ns?.to_string()))),
        text(row.and_then(|row| Some(row.max_ns?.to_string()))),
    ];
    let empty = BTreeMap::new();
    let percentiles = row.map_or(&empty, |row| &row.percentiles_ns);
    cells.extend(times.iter().map(|time| text(percentiles.get(*time).map(u64::to_string))));
    cells
}

fn push(out: &mut String, cells: &[String]) {
    out.push_str(&Vec::from_iter(cells.iter().map(|cell| crate::report::quoted(cell))).join(","));
    out.push('\n');
}
