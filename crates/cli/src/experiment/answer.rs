//! The answers of an experiment: for each figure, the difference between each alternative and the baseline, over pairs
//! of points that are otherwise equal, with a confidence interval; and the result as sentences, a table, a page with
//! plots, and lines of CSV.
//!
//! Differences are relative: the mean of the logarithms of ratios or, where a figure is zero, of the ratios themselves.
//! The interval is a percentile bootstrap of that mean at 95 %, widened as Hesterberg proposes for few pairs (What
//! Teachers Should Know about the Bootstrap, 2015): by the quantile of Student's distribution over that of the normal
//! one, and by `sqrt(n / (n - 1))`. An interval that contains zero, or that lies within the negligible differences, is
//! reported as no difference.

use super::Points;
use super::rows::{JobRow, KindRow, OfRun, Row, show};
use super::study::{Axis, Study, Value};
use crate::report::figures::text_table;
use crate::report::html;
use crate::report::lines::{csv_line, or_empty};
use crate::report::svg::rows::{self, LEFT, RIGHT};
use crate::report::svg::{Markup, bar, line};
use crate::report::wording::{counted, distinct};
use blkmq_terminal::UsageError;
use blkmq_terminal::paper::{Align, Paper, push_line};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Samples of the bootstrap.
const SAMPLES: usize = 4_000;
/// The minimum number of pairs for an interval.
pub const LEAST_PAIRS: usize = 5;
/// Student's 97.5 % quantiles from one degree of freedom on.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];
const NORMAL: f64 = 1.960;

/// A figure of a job, or of a run.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Metric {
    /// The job; empty for a figure of the run.
    pub job: String,
    /// `iops`, `bytes_per_s`, or `KIND_FIGURE`; or one of [`OF_RUN`](super::rows::OF_RUN).
    pub name: String,
}

/// The result of a comparison.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Too few pairs for one.
    TooFew,
    /// No relevant difference.
    NoDifference,
    /// Larger than the baseline.
    Higher,
    /// Smaller than the baseline.
    Lower,
}

/// An alternative compared with the baseline.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Answer {
    /// The value of the compared axis.
    pub value: Value,
    /// The median of the figure over repetitions; `None` if it was not measured.
    pub median: Option<f64>,
    /// The difference from the baseline; `None` for the baseline, and without pairs.
    pub difference: Option<Difference>,
}

/// A relative difference, 0.1 for 10 % more.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Difference {
    /// The mean over pairs.
    pub mean: f64,
    /// The interval; `None` with fewer than [`LEAST_PAIRS`] pairs.
    pub interval: Option<(f64, f64)>,
    /// Pairs.
    pub pairs: usize,
    /// The interpretation.
    pub verdict: Verdict,
}

/// The answers for one figure and one combination of values on the other axes.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Question {
    /// The values of the axes that are neither compared nor paired.
    pub place: BTreeMap<String, Value>,
    /// The figure.
    pub metric: Metric,
    /// The baseline first.
    pub answers: Vec<Answer>,
}

/// All questions that `rows` of `study` answer; none without an axis to compare.
///
/// # Errors
/// If a metric or the baseline does not exist.
pub fn questions(study: &Study, axes: &[Axis], rows: &[&Row]) -> Result<Vec<Question>, UsageError> {
    let Some(compared) = study.compared() else { return Ok(Vec::new()) };
    let axis = axes.iter().find(|axis| axis.name == compared).expect("it is one of the axes");
    let mut values = axis.values.clone();
    if let Some(with) = &study.compare.with {
        let at = values.iter().position(|value| value == with).ok_or_else(|| {
            let known = Vec::from_iter(values.iter().map(Value::to_string)).join(", ");
            UsageError::new(format!("compare.with: no {with} on the axis; accepted: {known}"))
        })?;
        values[..=at].rotate_right(1);
    }
    let metrics = metrics(study, rows)?;
    // In the order of the grid.
    let mut places: Vec<Vec<&Row>> = Vec::new();
    let mut known = BTreeMap::new();
    let of_place = |row: &Row| {
        let mut place = row.values.clone();
        place.retain(|name, _| name != compared && Some(name.as_str()) != study.pair());
        place
    };
    for row in rows {
        let key = serde_json::to_string(&of_place(row)).expect("keys are texts");
        let at = *known.entry(key).or_insert_with(|| {
            places.push(Vec::new());
            places.len() - 1
        });
        places[at].push(row);
    }
    let mut questions = Vec::new();
    for rows in &places {
        for metric in &metrics {
            let figures = Vec::from_iter(values.iter().map(|value| {
                let mine = rows.iter().filter(|row| row.values.get(compared) == Some(value));
                // By the value on the axis of repetitions.
                let figure = |row: &&Row| {
                    let pair = study.pair().and_then(|pair| row.values.get(pair));
                    Some((or_empty(pair), metric.of(row)?))
                };
                Vec::from_iter(mine.filter_map(figure))
            }));
            if figures.iter().all(Vec::is_empty) {
                continue;
            }
            let baseline = &figures[0];
            let answers = values.iter().zip(&figures).enumerate().map(|(at, (value, figures))| {
                let difference =
                    (at > 0).then(|| difference(baseline, figures, study.least())).flatten();
                Answer { value: value.clone(), median: median(figures), difference }
            });
            let (answers, metric) = (answers.collect(), metric.clone());
            questions.push(Question { place: of_place(rows[0]), metric, answers });
        }
    }
    Ok(questions)
}

/// The figures to compare: those named by the study, or else the rate and the 99th percentiles of each job.
fn metrics(study: &Study, rows: &[&Row]) -> Result<Vec<Metric>, UsageError> {
    let all_jobs = || rows.iter().flat_map(|row| &row.jobs);
    let jobs = distinct(all_jobs().map(|job| job.name.as_str()));
    let of_run = |name: &String| Metric { job: String::new(), name: name.clone() };
    let mut has = BTreeSet::from_iter(all_jobs().flat_map(known));
    has.extend(rows.iter().flat_map(|row| row.run.keys().map(of_run)));
    let mut all = Vec::new();
    let usual = ["iops", "read_p99", "write_p99", "sync_p99"].map(String::from);
    let is_usual = study.compare.metrics.is_empty();
    let asked = if is_usual { &usual[..] } else { &study.compare.metrics };
    for metric in asked {
        let of_job = jobs
            .iter()
            .find_map(|job| Some((*job, metric.strip_prefix(job)?.strip_prefix('.')?.to_owned())));
        let found: Vec<Metric> = match of_job {
            Some((job, name)) => vec![Metric { job: job.into(), name }],
            None if OfRun::find(metric).is_some() => vec![of_run(metric)],
            None => {
                jobs.iter().map(|job| Metric { job: (*job).into(), name: metric.clone() }).collect()
            }
        };
        let found = Vec::from_iter(found.into_iter().filter(|metric| has.contains(metric)));
        if found.is_empty() && !is_usual && !rows.is_empty() {
            let names: BTreeSet<&str> = has.iter().map(|metric| metric.name.as_str()).collect();
            let names = Vec::from_iter(names).join(", ");
            let text =
                format!("compare.metrics: no run has {metric}; accepted: [JOB.]NAME of {names}");
            return Err(UsageError::new(text));
        }
        all.extend(found);
    }
    if is_usual {
        all.sort_by_key(|metric| jobs.iter().position(|job| *job == metric.job));
    }
    Ok(all)
}

/// The metrics that a job has.
fn known(job: &JobRow) -> Vec<Metric> {
    let metric = |name: String| Metric { job: job.name.clone(), name };
    let mut all = vec![metric("iops".into()), metric("bytes_per_s".into())];
    for (kind, row) in &job.kinds {
        all.push(metric(format!("{kind}_iops")));
        if row.mean_ns.is_some() {
            all.extend(["mean", "max"].map(|name| metric(format!("{kind}_{name}"))));
            all.extend(row.percentiles_ns.keys().map(|name| metric(format!("{kind}_p{name}"))));
        }
    }
    all
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.job.as_str() {
            "" => f.write_str(&self.name),
            job => write!(f, "{job}.{}", self.name),
        }
    }
}

impl Metric {
    /// The figure in `row`; latencies are in nanoseconds.
    pub fn of(&self, row: &Row) -> Option<f64> {
        if self.job.is_empty() {
            return row.run.get(&self.name).copied();
        }
        let job = row.jobs.iter().find(|job| job.name == self.job)?;
        match self.name.as_str() {
            "iops" => Some(job.iops),
            "bytes_per_s" => Some(job.bytes_per_s),
            name => {
                let (kind, name) = name.split_once('_')?;
                kind_figure(job.kinds.get(kind)?, name)
            }
        }
    }

    /// Returns whether less of it is better.
    pub fn less_is_better(&self) -> bool {
        match OfRun::find(&self.name) {
            Some(figure) => figure.less_is_better,
            None => !self.name.ends_with("iops") && self.name != "bytes_per_s",
        }
    }
}

fn kind_figure(row: &KindRow, name: &str) -> Option<f64> {
    match name {
        "iops" => Some(row.iops),
        "mean" => row.mean_ns,
        "max" => row.max_ns.map(|ns| ns as f64),
        _ => row.percentiles_ns.get(name.strip_prefix('p')?).map(|ns| *ns as f64),
    }
}

/// The middle figure.
fn median(figures: &[(String, f64)]) -> Option<f64> {
    let mut values = Vec::from_iter(figures.iter().map(|it| it.1));
    values.sort_by(f64::total_cmp);
    values.get(values.len().checked_sub(1)? / 2).copied()
}

/// The difference of `figures` from `baseline`, over the pairs whose baseline is above zero.
fn difference(
    baseline: &[(String, f64)],
    figures: &[(String, f64)],
    least: f64,
) -> Option<Difference> {
    let of = |(pair, figure): &(String, f64)| {
        let before = baseline.iter().find(|it| it.0 == *pair)?.1;
        (before > 0.0).then(|| figure / before)
    };
    let ratios = Vec::from_iter(figures.iter().filter_map(of));
    if ratios.is_empty() {
        return None;
    }
    // Zero has no logarithm.
    let has_logs = ratios.iter().all(|ratio| *ratio > 0.0);
    let value = |ratio: &f64| if has_logs { ratio.ln() } else { ratio - 1.0 };
    let relative = |value: f64| if has_logs { value.exp_m1() } else { value.max(-1.0) };
    let values = Vec::from_iter(ratios.iter().map(value));
    let middle = mean(&values);
    let interval = (values.len() >= LEAST_PAIRS).then(|| {
        let (low, high) = bootstrap(&values);
        (relative(low), relative(high))
    });
    let least = least / 100.0;
    let verdict = match interval {
        None => Verdict::TooFew,
        Some((low, high)) if low <= 0.0 && high >= 0.0 => Verdict::NoDifference,
        Some((low, high)) if low.abs() < least && high.abs() < least => Verdict::NoDifference,
        Some((low, _)) if low > 0.0 => Verdict::Higher,
        Some(_) => Verdict::Lower,
    };
    Some(Difference { mean: relative(middle), interval, pairs: values.len(), verdict })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// A pseudo-random generator, deterministic for a seed.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// The interval of the mean of `values`. Equal values always have equal intervals.
fn bootstrap(values: &[f64]) -> (f64, f64) {
    let count = values.len();
    let mut random = SplitMix(0);
    // The product selects the upper bits.
    let mut draw = || ((u128::from(random.next()) * count as u128) >> 64) as usize;
    let mut means = Vec::from_iter(
        (0..SAMPLES).map(|_| (0..count).map(|_| values[draw()]).sum::<f64>() / count as f64),
    );
    means.sort_by(f64::total_cmp);
    let middle = mean(values);
    let student = STUDENT.get(count - 2).copied().unwrap_or(NORMAL);
    let wider = student / NORMAL * (count as f64 / (count as f64 - 1.0)).sqrt();
    let at = |part: f64| middle + wider * (means[(part * (SAMPLES - 1) as f64) as usize] - middle);
    (at(0.025), at(0.975))
}

/// Everything known about an experiment.
pub struct Answers<'a> {
    /// Its points.
    pub points: &'a Points,
    /// The number of points that were run.
    pub rows: usize,
    /// The answers.
    pub questions: &'a [Question],
}

impl Answers<'_> {
    /// The result of the comparison, a sentence for each question about a figure that `is_asked` for.
    pub fn sentences(&self, is_asked: impl Fn(&Metric) -> bool) -> Vec<String> {
        let asked = self.questions.iter().filter(|question| is_asked(&question.metric));
        asked.map(|question| sentence(&self.points.study, question)).collect()
    }

    /// Describes how the answers were computed.
    fn method(&self) -> Vec<String> {
        let points = self.points.len();
        let mut lines = vec![format!("{} of {}", self.rows, counted(points as u64, "point"))];
        if self.rows < points {
            lines[0].push_str("; the others are missing");
        }
        let (Some(compared), Some(first)) = (self.points.study.compared(), self.questions.first())
        else {
            return lines;
        };
        let baseline = self.points.study.shown(&first.answers[0].value);
        lines.push(match self.points.study.pair() {
            Some(pair) => format!(
                "differences of each {compared} from {baseline}, over pairs with the same {pair}, and their 95 % intervals; \
                 below {} % they are none",
                self.points.study.least()
            ),
            None => format!(
                "no axis is one of repetitions, such as seed: differences from {baseline} have no interval"
            ),
        });
        let mut differences = self.questions.iter().flat_map(|it| &it.answers);
        let is_too_few = |it: &Difference| it.verdict == Verdict::TooFew;
        if differences.any(|it| it.difference.as_ref().is_some_and(is_too_few)) {
            lines.push(format!("fewer than {LEAST_PAIRS} pairs say nothing about chance"));
        }
        lines
    }

    /// The names of the columns.
    fn columns(&self) -> Vec<(&str, &str, Align)> {
        let places = self.places().into_iter().chain(["figure"]);
        let words = places.chain(self.points.study.compared().or(Some("")));
        let figures = ["median", "difference", "95 % interval"];
        let words = words.map(|name| (name, "", Align::Left));
        words.chain(figures.map(|name| (name, "", Align::Right))).collect()
    }

    /// The axes that are neither compared nor paired, and have several values.
    fn places(&self) -> Vec<&str> {
        let others = self.points.axes.iter().filter(|axis| {
            let name = Some(axis.name.as_str());
            name != self.points.study.compared()
                && name != self.points.study.pair()
                && axis.values.len() > 1
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
                cells.push(self.points.study.shown(&answer.value));
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
        out.table(&text_table(&self.columns(), &self.cells()));
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
            m.leaf("pre", &[], &self.points.study.json());
        })
    }

    /// Adds a plot for each figure and the table of all answers, under headings of that level.
    pub fn draw(&self, m: &mut Markup, heading: &'static str) {
        for metric in distinct(self.questions.iter().map(|question| &question.metric)) {
            let mut plot = Markup::default();
            if !self.differences(&mut plot, metric) {
                continue;
            }
            m.leaf(heading, &[], &metric.to_string());
            let better = if metric.less_is_better() { "left" } else { "right" };
            let baseline = self.points.study.shown(&self.questions[0].answers[0].value);
            let says = format!(
                "Difference from {baseline}, with its interval; further {better} is better."
            );
            html::soft(m, &says);
            m.append(&plot);
        }
        m.leaf(heading, &[], "All figures");
        html::table(m, &self.columns(), &self.cells());
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
                let value = self.points.study.shown(&answer.value);
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

/// Formats the answer to a question: the best value, and its advantage.
fn sentence(study: &Study, question: &Question) -> String {
    let places = question.place.iter().map(|(name, value)| format!("{name} {value}, "));
    let head = format!("{}{}", places.collect::<String>(), question.metric);
    let baseline = study.shown(&question.answers[0].value);
    let differences = question.answers.iter().filter_map(|it| Some((&it.value, it.difference?)));
    let differences = Vec::from_iter(differences);
    let with = |verdict| differences.iter().filter(move |(_, it)| it.verdict == verdict);
    if differences.is_empty() {
        return format!("{head}: nothing to compare with {baseline}");
    }
    if with(Verdict::TooFew).next().is_some() {
        return format!("{head}: too few pairs for an answer");
    }
    if with(Verdict::NoDifference).count() == differences.len() {
        return format!("{head}: no difference");
    }
    let (good, bad, sign) = if question.metric.less_is_better() {
        (Verdict::Lower, Verdict::Higher, 1.0)
    } else {
        (Verdict::Higher, Verdict::Lower, -1.0)
    };
    let rank = |it: &Difference| sign * it.mean;
    let best = with(good).min_by(|(_, a), (_, b)| rank(a).total_cmp(&rank(b)));
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
            let worse = Vec::from_iter(with(bad).map(|(value, _)| study.shown(value))).join(", ");
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
    let low = if high.ends_with(" %") { low.trim_end_matches(" %") } else { &low };
    format!("{low} to {high}")
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
    out.push_str(&csv_line(&heading));
    for row in rows {
        for job in &row.jobs {
            let values = axes.iter().map(|axis| or_empty(row.values.get(&axis.name)));
            let mut cells = Vec::from_iter([row.id.clone()].into_iter().chain(values));
            cells.extend([job.name.clone(), job.runtime_ns.to_string()]);
            cells.extend([job.iops, job.bytes_per_s].map(|rate| rate.to_string()));
            for kind in KINDS {
                let row = job.kinds.get(kind);
                cells.extend([row.map(|row| row.ios), row.map(|row| row.bytes)].map(or_empty));
                cells.extend(
                    [row.map(|row| row.iops), row.and_then(|row| row.mean_ns)].map(or_empty),
                );
                cells.push(or_empty(row.and_then(|row| row.max_ns)));
                cells.extend(
                    TIMES.map(|time| or_empty(row.and_then(|row| row.percentiles_ns.get(time)))),
                );
            }
            out.push_str(&csv_line(&cells));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns figures of `count` repetitions around `middle`, with relative noise of up to `noise`.
    fn noisy(seed: u64, count: u64, middle: f64, noise: f64) -> Vec<(String, f64)> {
        let mut random = SplitMix(seed);
        let mut figure = || {
            let part = random.next() as f64 / u64::MAX as f64;
            middle * (1.0 + noise * (part - 0.5) * 2.0)
        };
        (0..count).map(|at| (at.to_string(), figure())).collect()
    }

    #[test]
    fn a_difference_is_found_and_its_direction() {
        let (slow, fast) = (noisy(1, 10, 100.0, 0.05), noisy(2, 10, 120.0, 0.05));
        let up = difference(&slow, &fast, 1.0).expect("pairs");
        let (low, high) = up.interval.expect("ten pairs");
        assert_eq!(up.verdict, Verdict::Higher);
        assert!(low > 0.14 && low < 0.2 && high > 0.2 && high < 0.26, "{up:?}");
        assert_eq!(difference(&fast, &slow, 1.0).expect("pairs").verdict, Verdict::Lower);
        assert_eq!(difference(&slow, &slow, 1.0).expect("pairs").verdict, Verdict::NoDifference);
    }

    /// Of 400 comparisons without a difference, 20 are expected to find one; without the widening 42 do.
    #[test]
    fn where_there_is_no_difference_few_are_found() {
        let found = (0..400).filter(|at| {
            let (a, b) = (noisy(2 * at, 8, 100.0, 0.1), noisy(2 * at + 1, 8, 100.0, 0.1));
            difference(&a, &b, 0.0).expect("pairs").verdict != Verdict::NoDifference
        });
        let found = found.count();
        assert!((6..=30).contains(&found), "{found}");
    }

    #[test]
    fn places_and_figures_stand_in_the_order_of_the_study() {
        let text = "[grid]\niodepth=[2,16]\nscheduler=['none','bfq']\n[compare]\nmetrics=['r.iops','merged']";
        let study = Study::parse(text).expect("a study");
        let axes = study.axes().expect("axes");
        let row = |index| Row {
            id: String::new(),
            values: Study::point(&axes, index),
            run: BTreeMap::from([("merged".into(), 0.5)]),
            jobs: vec![JobRow {
                name: "r".into(),
                runtime_ns: 1,
                iops: 1.0,
                bytes_per_s: 0.0,
                kinds: BTreeMap::new(),
            }],
            groups: Vec::new(),
            notes: Vec::new(),
        };
        let rows = Vec::from_iter((0..4).map(row));
        let asked = questions(&study, &axes, &Vec::from_iter(&rows)).expect("answers");
        let names = asked.iter().map(|it| format!("{} {}", it.place["iodepth"], it.metric));
        assert_eq!(Vec::from_iter(names), ["2 r.iops", "2 merged", "16 r.iops", "16 merged"]);
    }

    #[test]
    fn small_differences_few_pairs_and_zeroes_have_their_words() {
        let (a, b) = (noisy(1, 10, 100.0, 0.0), noisy(2, 10, 100.5, 0.0));
        assert_eq!(difference(&a, &b, 1.0).expect("pairs").verdict, Verdict::NoDifference);
        assert_eq!(difference(&a, &b, 0.1).expect("pairs").verdict, Verdict::Higher);
        let few = difference(&a[..4], &b, 1.0).expect("pairs");
        assert_eq!((few.verdict, few.interval, few.pairs), (Verdict::TooFew, None, 4));
        let nothing = noisy(1, 10, 0.0, 0.0);
        assert_eq!(difference(&nothing, &b, 1.0), None);
        let gone = difference(&b, &nothing, 1.0).expect("pairs");
        assert_eq!((gone.mean, gone.interval), (-1.0, Some((-1.0, -1.0))));
        assert_eq!((gone.verdict, gone.pairs), (Verdict::Lower, 10));
        let mut rare = noisy(1, 10, 0.0, 0.0);
        rare[3].1 = 10.0;
        let rare = difference(&a, &rare, 1.0).expect("pairs");
        assert!((rare.mean + 0.99).abs() < 1e-9 && rare.pairs == 10, "{rare:?}");
        assert_eq!((rare.verdict, rare.interval.expect("ten pairs").0), (Verdict::Lower, -1.0));
    }
}
