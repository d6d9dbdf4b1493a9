//! The study file: a command with its options, a grid of values for some of them, and the requested comparison.
//!
//! A point of the grid is a command line. A study always has the same points in the same order, whichever process runs
//! them.

use blkmq_terminal::UsageError;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The most points of a grid.
const MOST_POINTS: usize = 1_000_000;
/// The axes treated as repetitions by default.
const REPETITIONS: [&str; 2] = ["seed", "randseed"];
/// The axis compared by default.
const COMPARED: &str = "scheduler";

/// The command that runs a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    /// A simulation.
    #[default]
    Sim,
    /// A benchmark in real time.
    Bench,
    /// The replay of a trace, in virtual time unless `real` is an option.
    Replay,
}

impl Program {
    /// The word for it on a command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Sim => "sim",
            Self::Bench => "bench",
            Self::Replay => "replay",
        }
    }
}

/// The value of an option.
#[derive(Clone, PartialEq, PartialOrd, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A switch.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// A fraction.
    Float(f64),
    /// Text.
    Text(String),
}

/// One value, or several of an option that may be repeated.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Values {
    /// One.
    One(Value),
    /// Several. A range `1..10` is all whole numbers from its first to its last.
    Many(Vec<Value>),
}

/// Options by name.
pub type Options = BTreeMap<String, Values>;

/// An experiment.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Study {
    /// The command.
    #[serde(default)]
    pub program: Program,
    /// The trace of a replay, if it is the same at all points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// Options in front of the first job.
    #[serde(default)]
    pub options: Options,
    /// The jobs; their `name` is one of the options.
    #[serde(default)]
    pub job: Vec<Options>,
    /// The axes: the values of an option, or of `JOB.OPTION`.
    pub grid: Options,
    /// The comparison.
    #[serde(default)]
    pub compare: Compare,
}

/// The comparison of an experiment.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Compare {
    /// The axis whose values are compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub axis: Option<String>,
    /// The baseline; by default the first value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub with: Option<Value>,
    /// The axis of repetitions: points that are otherwise equal are pairs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pair: Option<String>,
    /// The figures, each `NAME` or `JOB.NAME`; by default some of each job.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<String>,
    /// Labels of values in the results.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub names: BTreeMap<String, String>,
    /// Differences below this percentage count as none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least: Option<f64>,
}

/// An option that varies, with its values.
#[derive(Clone, PartialEq, Debug)]
pub struct Axis {
    /// The option, or `JOB.OPTION`.
    pub name: String,
    /// At least one.
    pub values: Vec<Value>,
}

/// A point of the grid: the value on each axis.
pub type Point = BTreeMap<String, Value>;

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // As fio spells switches.
            Self::Bool(on) => write!(f, "{}", u8::from(*on)),
            Self::Integer(number) => number.fmt(f),
            Self::Float(number) => number.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl Values {
    fn written(&self) -> &[Value] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }

    /// Each value; a range gives all of its numbers.
    ///
    /// # Errors
    /// If a range is empty or has more than [`MOST_POINTS`] numbers.
    fn each(&self) -> Result<Vec<Value>, UsageError> {
        let mut all = Vec::new();
        for value in self.written() {
            match range(value)? {
                Some(range) => all.extend(range.map(Value::Integer)),
                None => all.push(value.clone()),
            }
        }
        Ok(all)
    }
}

/// The numbers of a range; `None` if the value is not a range.
fn range(value: &Value) -> Result<Option<std::ops::RangeInclusive<i64>>, UsageError> {
    let Value::Text(text) = value else { return Ok(None) };
    let Some((first, last)) = text.split_once("..") else { return Ok(None) };
    let (Ok(first), Ok(last)) = (first.parse::<i64>(), last.parse::<i64>()) else {
        return Ok(None);
    };
    if first > last || last.abs_diff(first) >= MOST_POINTS as u64 {
        let text = format!("{text}; accepted: a range of 1 to {MOST_POINTS} numbers, as 1..10");
        return Err(UsageError::new(text));
    }
    Ok(Some(first..=last))
}

/// The name of a job.
fn name_of(job: &Options) -> Option<&str> {
    match job.get("name")? {
        Values::One(Value::Text(name)) if !name.is_empty() => Some(name),
        _ => None,
    }
}

impl Study {
    /// Parses the text of a file, and checks everything except the options of the command.
    ///
    /// # Errors
    /// If it is not a study.
    pub fn parse(text: &str) -> Result<Self, UsageError> {
        let study: Self = toml::from_str(text).map_err(|e| {
            let line = e.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            UsageError::new(format!("line {line}: {}", e.message()))
        })?;
        study.check()?;
        Ok(study)
    }

    /// Parses the form stored with results.
    ///
    /// # Errors
    /// If it is not a study.
    pub fn of_json(text: &str) -> Result<Self, UsageError> {
        let study: Self = serde_json::from_str(text).map_err(|e| UsageError::new(e.to_string()))?;
        study.check()?;
        Ok(study)
    }

    /// The form stored with results.
    pub fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("keys are texts");
        format!("{text}\n")
    }

    fn check(&self) -> Result<(), UsageError> {
        let refuse = |text: String| Err(UsageError::new(text));
        self.check_jobs()?;
        let is_replay = self.program == Program::Replay;
        if is_replay && !self.job.is_empty() {
            return refuse("job: a replay has the tenants of its trace as jobs".into());
        }
        if is_replay != (self.trace.is_some() || self.grid.contains_key("trace")) {
            let accepted = "accepted: program = \"replay\" with a trace";
            return refuse(format!("trace: of a replay, and only of that; {accepted}"));
        }
        if self.grid.is_empty() {
            return refuse("grid: no axis; accepted: at least one option with values".into());
        }
        for name in self.grid.keys() {
            self.check_axis(name).map_err(|e| e.at(format!("grid.{name}")))?;
        }
        let axes = self.axes()?;
        let points = axes.iter().try_fold(1usize, |all, axis| all.checked_mul(axis.values.len()));
        if points.is_none_or(|points| points > MOST_POINTS) {
            return refuse(format!("grid: too many points; accepted: up to {MOST_POINTS}"));
        }
        match self.least() {
            0.0..=100.0 => Ok(()),
            least => refuse(format!("compare.least: {least}; accepted: 0 to 100, in percent")),
        }
    }

    /// Refuses jobs that no name tells apart.
    fn check_jobs(&self) -> Result<(), UsageError> {
        let mut names = BTreeSet::new();
        for (at, job) in self.job.iter().enumerate() {
            let Some(name) = name_of(job) else {
                let text = format!("job {}: no name; accepted: name = \"WORD\"", at + 1);
                return Err(UsageError::new(text));
            };
            if !names.insert(name) {
                return Err(UsageError::new(format!("job {name}: a second one of that name")));
            }
        }
        Ok(())
    }

    /// Refuses an axis with no effect, or with more than one.
    fn check_axis(&self, name: &str) -> Result<(), UsageError> {
        let values = self.grid[name].each()?;
        let mut seen = BTreeSet::new();
        let twice = values.iter().find(|value| !seen.insert(value.to_string()));
        let fault = match self.of_job(name) {
            _ if values.is_empty() => Some("no value; accepted: at least one".into()),
            _ if twice.is_some() => twice.map(|value| format!("{value} stands there twice")),
            Some((job, option)) => {
                let has = |it: &Options| name_of(it) == Some(job) && it.contains_key(option);
                let says = || format!("job {job} has {option} as well; accepted: one of both");
                self.job.iter().any(has).then(says)
            }
            None if name == "trace" && self.trace.is_some() => {
                Some("the study has a trace as well; accepted: one of both".into())
            }
            None if self.options.contains_key(name) => {
                Some(format!("options has {name} as well; accepted: one of both"))
            }
            None => {
                let job = self.job.iter().find(|job| job.contains_key(name)).and_then(name_of);
                job.map(|job| {
                    let accepted = format!("accepted: {job}.{name}");
                    format!("job {job} has a {name} of its own, which counts there; {accepted}")
                })
            }
        };
        fault.map_or(Ok(()), |text| Err(UsageError::new(text)))
    }

    /// The job and the option in `JOB.OPTION`.
    fn of_job<'a>(&self, name: &'a str) -> Option<(&'a str, &'a str)> {
        let is_job = |name| self.job.iter().any(|job| name_of(job) == Some(name));
        name.rsplit_once('.').filter(|(job, _)| is_job(*job))
    }

    /// The axis of repetitions, if there is one.
    pub fn pair(&self) -> Option<&str> {
        let usual = REPETITIONS.into_iter().find(|name| self.grid.contains_key(*name));
        self.compare.pair.as_deref().or(usual).filter(|name| self.grid.contains_key(*name))
    }

    /// The axis that is compared, if there is one.
    pub fn compared(&self) -> Option<&str> {
        let usual = self.grid.contains_key(COMPARED).then_some(COMPARED);
        let first = self.grid.keys().map(String::as_str).find(|name| Some(*name) != self.pair());
        self.compare.axis.as_deref().or(usual).or(first)
    }

    /// The label of a value of the compared axis.
    pub fn shown(&self, value: &Value) -> String {
        let value = value.to_string();
        match self.compare.names.get(&value) {
            Some(name) => format!("{name} ({value})"),
            None => value,
        }
    }

    /// Returns the percentage below which a difference counts as none.
    pub fn least(&self) -> f64 {
        self.compare.least.unwrap_or(1.0)
    }

    /// The axes, the repetitions first and the compared axis last: in real time, compared runs follow each other.
    ///
    /// # Errors
    /// If a range is invalid, or an axis of the comparison is not in the grid.
    pub fn axes(&self) -> Result<Vec<Axis>, UsageError> {
        for named in [&self.compare.pair, &self.compare.axis].into_iter().flatten() {
            if !self.grid.contains_key(named) {
                let names = Vec::from_iter(self.grid.keys().cloned()).join(", ");
                let text = format!("compare: {named} is no axis; accepted: {names}");
                return Err(UsageError::new(text));
            }
        }
        if self.pair().is_some() && self.pair() == self.compared() {
            return Err(UsageError::new("compare: one axis is both compared and paired"));
        }
        let place = |name: &str| match name {
            _ if Some(name) == self.pair() => 0,
            _ if Some(name) == self.compared() => 2,
            _ => 1,
        };
        let axis = |(name, values): (&String, &Values)| {
            Ok(Axis { name: name.clone(), values: values.each()? })
        };
        let mut axes = self.grid.iter().map(axis).collect::<Result<Vec<_>, UsageError>>()?;
        axes.sort_by_key(|axis| place(&axis.name));
        Ok(axes)
    }

    /// The point `index` of `axes`.
    pub fn point(axes: &[Axis], index: usize) -> Point {
        let mut rest = index;
        let mut values = BTreeMap::new();
        for axis in axes.iter().rev() {
            let value = axis.values[rest % axis.values.len()].clone();
            rest /= axis.values.len();
            values.insert(axis.name.clone(), value);
        }
        values
    }

    /// The trace of `point`.
    pub fn trace_of(&self, point: &Point) -> Option<String> {
        self.trace.clone().or_else(|| Some(point.get("trace")?.to_string()))
    }

    /// The words of `point` after the command.
    pub fn words(&self, point: &Point) -> Vec<String> {
        let mut words = Vec::from_iter(self.trace_of(point));
        for (name, values) in &self.options {
            self.push(&mut words, name, values.written());
        }
        for (name, value) in point {
            if self.of_job(name).is_none() && name != "trace" {
                self.push(&mut words, name, std::slice::from_ref(value));
            }
        }
        for job in &self.job {
            self.push(&mut words, "name", job["name"].written());
            for (option, values) in job.iter().filter(|(option, _)| *option != "name") {
                self.push(&mut words, option, values.written());
            }
            for (axis, value) in point {
                let of_job = self.of_job(axis).filter(|(name, _)| Some(*name) == name_of(job));
                if let Some((_, option)) = of_job {
                    self.push(&mut words, option, std::slice::from_ref(value));
                }
            }
        }
        words
    }

    /// Adds the words of an option. Options of a replay are clap's, whose switches take no value.
    fn push(&self, words: &mut Vec<String>, name: &str, values: &[Value]) {
        for value in values {
            match (self.program, value) {
                (Program::Replay, Value::Bool(true)) => words.push(format!("--{name}")),
                (Program::Replay, Value::Bool(false)) => {}
                _ => words.push(format!("--{name}={value}")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        options = { direct = true, runtime = "1s" }
        job = [
            { name = "readers", rw = "randread", iodepth = 1 },
            { name = "writers", rw = "write", bs = "128k" },
        ]
        [grid]
        scheduler = ["none", "bfq:low_latency=0"]
        seed = "1..3"
        "writers.iodepth" = [4, 32]
    "#;

    #[test]
    fn a_point_is_a_command_line() {
        let study = Study::parse(TEXT).expect("a study");
        let axes = study.axes().expect("axes");
        assert_eq!(
            Vec::from_iter(axes.iter().map(|axis| (axis.name.as_str(), axis.values.len()))),
            [("seed", 3), ("writers.iodepth", 2), ("scheduler", 2)]
        );
        let words = |index| study.words(&Study::point(&axes, index)).join(" ");
        assert_eq!(
            words(0),
            "--direct=1 --runtime=1s --scheduler=none --seed=1 --name=readers --iodepth=1 --rw=randread --name=writers \
             --bs=128k --rw=write --iodepth=4"
        );
        assert!(words(11).contains("bfq:low_latency=0 --seed=3") && words(11).ends_with("=32"));
        let again = Study::of_json(&study.json()).expect("the same");
        assert_eq!(again, study);
    }

    #[test]
    fn switches_of_a_replay_have_no_value() {
        let text = "program='replay'\ntrace='t.csv'\n[options]\nthink=true\nreal=false\nweight=['a=3','b=1']\n\
                    [grid]\nscheduler=['bfq']";
        let study = Study::parse(text).expect("a study");
        let words = study.words(&Study::point(&study.axes().expect("axes"), 0));
        assert_eq!(words, ["t.csv", "--think", "--weight=a=3", "--weight=b=1", "--scheduler=bfq"]);
    }

    #[test]
    fn what_has_no_effect_is_refused_by_name() {
        let refused = |text: &str, says: &str| {
            let error = Study::parse(text).expect_err(text).to_string();
            assert!(error.contains(says), "{text}: {error}");
        };
        refused("", "missing field `grid`");
        refused("[grid]", "no axis");
        refused("[grid]\nseed=[]", "grid.seed: no value");
        refused("[grid]\nseed=[1,1]", "1 stands there twice");
        refused("[grid]\nseed='3..1'", "accepted: a range");
        refused("[options]\nrw='read'\n[grid]\nrw=['read']", "options has rw as well");
        refused("[[job]]\nname='a'\nbs=512\n[grid]\nbs=[4096]", "accepted: a.bs");
        refused("[[job]]\nname='a'\nbs=512\n[grid]\n'a.bs'=[4096]", "job a has bs as well");
        refused("[[job]]\nbs=512\n[grid]\nseed=[1]", "job 1: no name");
        refused("[[job]]\nname='a'\n[[job]]\nname='a'\n[grid]\nseed=[1]", "a second one");
        refused("trace='x'\n[grid]\nseed=[1]", "accepted: program");
        refused("program='replay'\n[grid]\nseed=[1]", "accepted: program");
        refused("[grid]\na='1..1000000'\nb='1..2'", "too many points");
        refused("[grid]\nseed=[1]\n[compare]\naxis='x'", "x is no axis; accepted: seed");
        refused("[grid]\nseed=[1]\n[compare]\nleast=101", "accepted: 0 to 100");
        refused("[grid]\nseed=[1]\n[compare]\naxis='seed'", "both compared and paired");
        refused("bogus=1\n[grid]\nseed=[1]", "unknown field `bogus`");
    }
}
