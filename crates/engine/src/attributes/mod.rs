//! The attributes of a queue by the names, units and spelling of sysfs: one tree, read and written as text.
//!
//! Pure. Values come from a [`Snapshot`]; writing an attribute makes another [`Plan`], which
//! [`Queue::edit`](crate::Queue::edit) applies. So the code here is independent of threads, time and waiting.
//!
//! | part of the tree | subject | from |
//! |---|---|---|
//! | `size`, `queue/*` | the queue and its device | `table.rs` |
//! | `iosched/*` | the current scheduler | its [`Factory`] |
//! | `mq/N/*`, `hctxN/*` | hardware queue N, as in sysfs and in debugfs | `table.rs` |
//! | `blkmq/*` | settings that the kernel does not have | `table.rs` |
//!
//! A new attribute takes one line of the table. Its accepted values, and the error for a refused one, follow from that
//! line. Numbers are decimal, as in sysfs.

use crate::GoalsStatus;
use crate::dispatch::Engine;
use crate::plan::Plan;
use crate::queue::Queue;
use crate::reconfiguration::{Change, ChangeError};
use crate::shared::PumpMode;
use crate::shared::stats::Board;
use blkmq_core::HwQueue;
use blkmq_sched::{Factory, OptionError, Shape, Unit as Count, registry};
use std::borrow::Cow;
use std::fmt;
use std::num::IntErrorKind;
use std::ops::RangeInclusive;
use table::HwRow;
pub use table::table;

mod table;

/// An attribute of a queue: its name and description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attribute {
    /// The path in the tree: `queue/nr_requests`.
    pub path: Cow<'static, str>,
    /// The kind of its text, or the unit of its number.
    pub unit: Unit,
    /// The description, in a line.
    pub help: &'static str,
    /// Whether it can be written.
    pub permission: Permission,
}

/// Whether an attribute can be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Permission {
    /// The attribute can be read only.
    ReadOnly,
    /// The attribute can be read and written.
    ReadWrite,
}

/// The kind of an attribute's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// A number, in a unit of schedulers.
    Number(Count),
    /// A number of bytes.
    Bytes,
    /// A number of units of 1024 bytes.
    KiB,
    /// A number of sectors of 512 bytes.
    Sectors,
    /// One of a few words.
    Word,
}

impl Unit {
    /// A plain number.
    pub const COUNT: Self = Self::Number(Count::Count);
    /// Milliseconds.
    pub const MILLIS: Self = Self::Number(Count::Millis);
    /// 0 or 1.
    pub const FLAG: Self = Self::Number(Count::Flag);
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(unit) => unit.fmt(f),
            Self::Bytes => f.write_str("bytes"),
            Self::KiB => f.write_str("KiB"),
            Self::Sectors => f.write_str("sectors"),
            Self::Word => f.write_str("word"),
        }
    }
}

/// The state of a queue at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The settings.
    pub plan: Plan,
    /// Which threads pump.
    pub pump: PumpMode,
    /// The state of latency goals; `None` if no group has one.
    pub goals: Option<GoalsStatus>,
    /// Figures of the device that the policy of the first elevator has learned, as options of the policy. Empty if it
    /// has learned none, `None` if that elevator was busy.
    pub learned: Option<String>,
    /// Its hardware queues.
    pub hctxs: Vec<HctxSnapshot>,
}

/// The state of a hardware queue at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HctxSnapshot {
    /// Driver tags in use; with shared tags, those of all hardware queues.
    pub active: u32,
    /// The busy average (`spec/framework.md` section 8.2).
    pub dispatch_busy: u8,
}

/// The attributes of a queue with this plan, in listing order.
pub fn list(plan: &Plan) -> impl Iterator<Item = Attribute> + '_ {
    nodes(plan).map(Node::describe)
}

/// The attribute at `path`, as text. Linear in the number of attributes.
///
/// # Errors
/// If there is no such attribute.
pub fn read(snapshot: &Snapshot, path: &str) -> Result<String, AttributeError> {
    find(&snapshot.plan, path).map(|node| node.read(snapshot))
}

/// All attributes with their values, in listing order.
#[must_use]
pub fn read_all(snapshot: &Snapshot) -> Vec<(Attribute, String)> {
    nodes(&snapshot.plan).map(|node| (node.describe(), node.read(snapshot))).collect()
}

/// The plan that results when `text` is written to the attribute at `path` of a queue with the plan `plan`. White space
/// around the text is ignored, such as the newline that `echo` sends. Writing the current value changes nothing.
///
/// # Errors
/// If there is no such attribute, it cannot be written, or it does not accept `text`.
pub fn write(plan: &Plan, path: &str, text: &str) -> Result<Plan, AttributeError> {
    let text = text.trim();
    match find(plan, path)? {
        Node::Row(row) => row.write(plan, text),
        Node::Scheduler(attribute) => write_scheduler(plan, attribute, text),
        Node::Hw(..) => Err(AttributeError::ReadOnly { path: path.to_string() }),
    }
}

/// An attribute, by its place of definition.
#[derive(Clone, Copy)]
enum Node {
    Row(&'static Row),
    Scheduler(&'static blkmq_sched::Attribute),
    Hw(&'static HwRow, HwQueue),
}

fn nodes(plan: &Plan) -> impl Iterator<Item = Node> + '_ {
    let hws = (0..plan.device.hw_queues).map(HwQueue);
    let hws = hws.flat_map(|hw| table::HW_QUEUE.iter().map(move |row| Node::Hw(row, hw)));
    let scheduler = plan.scheduler.attributes.iter().map(Node::Scheduler);
    table::QUEUE.iter().map(Node::Row).chain(scheduler).chain(hws)
}

fn find(plan: &Plan, path: &str) -> Result<Node, AttributeError> {
    let found = nodes(plan).find(|node| node.path() == path);
    found.ok_or_else(|| AttributeError::unknown(plan, path))
}

impl Node {
    fn path(self) -> Cow<'static, str> {
        match self {
            Self::Row(row) => row.path.into(),
            Self::Scheduler(attribute) => scheduler_path(attribute).into(),
            Self::Hw(row, hw) => row.path_of(hw).into(),
        }
    }

    fn describe(self) -> Attribute {
        let (unit, help, permission) = match self {
            Self::Row(row) => (row.unit, row.help, row.permission()),
            Self::Scheduler(a) => (Unit::Number(a.unit), a.help, Permission::ReadWrite),
            Self::Hw(row, _) => (row.unit, row.help, Permission::ReadOnly),
        };
        Attribute { path: self.path(), unit, help, permission }
    }

    fn read(self, snapshot: &Snapshot) -> String {
        match self {
            Self::Row(row) => row.read(snapshot),
            Self::Scheduler(attribute) => read_scheduler(&snapshot.plan, attribute),
            Self::Hw(row, hw) => (row.get)(snapshot, hw).to_string(),
        }
    }
}

impl Snapshot {
    /// The snapshot of a queue with this plan and nothing in flight.
    #[must_use]
    pub fn idle(plan: Plan) -> Self {
        let hctxs = vec![HctxSnapshot::default(); plan.device.hw_queues.into()];
        Self { plan, pump: PumpMode::default(), goals: None, learned: Some(String::new()), hctxs }
    }
}

impl<P: Send + 'static> Queue<P> {
    /// The state of the queue that attributes show. All parts belong to one plan, but may have been read at slightly
    /// different moments.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        // Held throughout, so that the queue and the plan belong together.
        let state = self.root.change_state();
        let q = self.root.current();
        let hctxs = q
            .hub
            .hctxs
            .iter()
            .map(|hctx| HctxSnapshot { active: hctx.tags.in_use(), dispatch_busy: hctx.busy() });
        Snapshot {
            plan: state.plan.clone(),
            pump: q.hub.lasting.pump_mode,
            goals: q.hub.board.as_ref().map(Board::read),
            learned: learned(&q, state.plan.scheduler),
            hctxs: hctxs.collect(),
        }
    }

    /// The attribute at `path`, as text.
    ///
    /// # Errors
    /// If there is no such attribute.
    pub fn attribute(&self, path: &str) -> Result<String, AttributeError> {
        read(&self.snapshot(), path)
    }

    /// Begins to set the attribute at `path` to the value in `text`, based on the plan in force, so that no concurrent
    /// change is lost.
    ///
    /// # Errors
    /// If there is no such attribute, it cannot be set to this value, or another change is in progress.
    pub fn set_attribute(&self, path: &str, text: &str) -> Result<Change<P>, SetAttributeError> {
        self.change_by(|plan| write(plan, path, text).map_err(SetAttributeError::from))
    }
}

/// The learned figures of the policy in the first elevator, which have the names of its options; `None` if that
/// elevator is busy.
fn learned<P: Send>(q: &Engine<P>, policy: &Factory) -> Option<String> {
    let mut told = Vec::new();
    let mut take = |name: &'static str, value: u64| {
        if policy.attributes.iter().any(|option| option.name == name) {
            told.push(format!("{name}={value}"));
        }
    };
    q.visit(q.hub.shards.first()?, |runner| runner.elevator.inspect(&mut take))?;
    Some(told.join(","))
}

impl AttributeError {
    /// The error for a path that a queue with the plan `plan` does not have. Lists the paths with a similar last part.
    /// If there are none, lists all paths, with N for the number of a hardware queue.
    pub(super) fn unknown(plan: &Plan, path: &str) -> Self {
        let hws = table::HW_QUEUE.iter().map(|row| Cow::Borrowed(row.pattern));
        let single = nodes(plan).map(Node::path).filter(|path| !is_of_hw_queue(path));
        let all: Vec<_> = single.chain(hws).collect();
        let like: Vec<_> = all.iter().filter(|known| is_like(name(known), name(path))).collect();
        let accepted = if like.is_empty() { all } else { like.into_iter().cloned().collect() };
        Self::Unknown { path: path.to_string(), accepted }
    }
}

fn is_of_hw_queue(path: &str) -> bool {
    path.starts_with("mq/") || path.starts_with("hctx")
}

/// The last part of a path.
fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns whether `known` begins with the first two thirds of `asked`, or contains all of it.
fn is_like(known: &str, asked: &str) -> bool {
    let same = known.bytes().zip(asked.bytes()).take_while(|(a, b)| a == b).count();
    3 * same >= 2 * asked.len() || known.contains(asked)
}

fn scheduler_path(attribute: &blkmq_sched::Attribute) -> String {
    format!("iosched/{}", attribute.name)
}

/// The options as the scheduler applies them: some depend on `nr_requests` or on each other. They are read from an
/// instance that never receives a request and so needs no slots.
fn read_scheduler(plan: &Plan, attribute: &blkmq_sched::Attribute) -> String {
    let shape = Shape {
        slots: 1,
        nr_requests: plan.effective_nr_requests(),
        hw_depth: plan.device.hw_queue_depth,
        hw_queues: plan.device.hw_queues / plan.shards(),
        rotational: plan.device.limits.rotational,
    };
    let policy = (plan.scheduler.build)(&shape, &plan.options);
    let value = policy.attribute(attribute.name);
    value.unwrap_or_else(|| plan.options.get(attribute.name)).to_string()
}

/// [`Options`](blkmq_sched::Options) has the names, the ranges and the parsing: numbers out of range are clamped, as in
/// sysfs.
fn write_scheduler(
    plan: &Plan,
    attribute: &blkmq_sched::Attribute,
    text: &str,
) -> Result<Plan, AttributeError> {
    let mut plan = plan.clone();
    match plan.options.set(attribute.name, text) {
        Ok(()) => Ok(plan),
        Err(OptionError::NotANumber(blkmq_sched::Attribute { min, max, unit, .. }, _)) => {
            let accepted = Accepted { min: *min, max: *max, step: 1, unit: Unit::Number(*unit) };
            Err(AttributeError::NotANumber {
                path: scheduler_path(attribute),
                text: text.into(),
                accepted,
            })
        }
        Err(OptionError::Unknown(..) | OptionError::NoValue(_)) => {
            unreachable!("the options are those of the scheduler")
        }
    }
}

impl Row {
    pub(super) fn permission(&self) -> Permission {
        match self.form {
            Form::Said(_) | Form::Number { set: None, .. } => Permission::ReadOnly,
            Form::Number { set: Some(_), .. } | Form::Words(_) => Permission::ReadWrite,
        }
    }

    pub(super) fn read(&self, snapshot: &Snapshot) -> String {
        let plan = &snapshot.plan;
        match self.form {
            Form::Said(said) => said(snapshot),
            Form::Number { get, .. } => get(plan).to_string(),
            Form::Words(words) => match words.shown {
                Shown::Alone => (words.get)(plan).to_string(),
                Shown::AmongAll => among(&(words.accepted)(plan), (words.get)(plan)),
            },
        }
    }

    /// Applies `text`, which has no white space around it.
    pub(super) fn write(&self, plan: &Plan, text: &str) -> Result<Plan, AttributeError> {
        match self.form {
            Form::Said(_) | Form::Number { set: None, .. } => {
                Err(AttributeError::ReadOnly { path: self.path.to_string() })
            }
            Form::Number { get, set: Some(set) } => {
                let number = self.number(plan, &set, get(plan), text)?;
                Ok(changed(plan, number == get(plan), |plan| (set.set)(plan, number)))
            }
            Form::Words(words) => {
                let accepted = (words.accepted)(plan);
                if !accepted.contains(&text) {
                    let (path, text) = (self.path.to_string(), text.to_string());
                    return Err(AttributeError::NotAWord { path, text, accepted });
                }
                Ok((words.set)(plan.clone(), text))
            }
        }
    }

    /// The number in `text`, if it is accepted. The current number is always accepted.
    fn number(
        &self,
        plan: &Plan,
        set: &SetNumber,
        present: u64,
        text: &str,
    ) -> Result<u64, AttributeError> {
        let path = || self.path.to_string();
        let range = (set.range)(plan);
        let range = range.map_err(|why| AttributeError::NotNow { path: path(), why })?;
        let (min, max, step) = (*range.start(), *range.end(), (set.step)(plan));
        let accepted = accepted(min, max, step, self.unit);
        let out_of_range =
            || AttributeError::OutOfRange { path: path(), text: text.to_string(), accepted };
        let number = match parse(text) {
            Ok(number) => u64::try_from(number).map_err(|_| out_of_range())?,
            Err(Garbled::TooLong) => return Err(out_of_range()),
            Err(Garbled::NotANumber) => {
                let text = text.to_string();
                return Err(AttributeError::NotANumber { path: path(), text, accepted });
            }
        };
        let number = match set.edges {
            _ if number == present => return Ok(present),
            Edges::Strict => number,
            Edges::Raise => number.max(min),
            Edges::Lower => number.min(max),
        };
        let is_accepted = range.contains(&number) && number % step == 0;
        is_accepted.then_some(number).ok_or_else(out_of_range)
    }
}

fn changed(plan: &Plan, same: bool, change: impl FnOnce(Plan) -> Plan) -> Plan {
    let plan = plan.clone();
    if same { plan } else { change(plan) }
}

fn among(words: &[&str], present: &str) -> String {
    let bracketed = |word: &&str| match *word == present {
        true => format!("[{word}]"),
        false => (*word).to_string(),
    };
    Vec::from_iter(words.iter().map(bracketed)).join(" ")
}

fn accepted(min: u64, max: u64, step: u64, unit: Unit) -> Accepted {
    let signed = |n| i64::try_from(n).unwrap_or(i64::MAX);
    Accepted { min: signed(min), max: signed(max), step: signed(step), unit }
}

/// Why a text is not a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Garbled {
    NotANumber,
    TooLong,
}

/// A decimal number.
fn parse(text: &str) -> Result<i128, Garbled> {
    text.parse::<i128>().map_err(|e| match e.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => Garbled::TooLong,
        _ => Garbled::NotANumber,
    })
}

/// An attribute that exists once in a queue.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) path: &'static str,
    pub(super) unit: Unit,
    pub(super) help: &'static str,
    pub(super) form: Form,
}

/// The numbers that an attribute accepts at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// The smallest.
    pub min: i64,
    /// The largest.
    pub max: i64,
    /// All accepted numbers are multiples of this; 1 or more.
    pub step: i64,
    /// The unit.
    pub unit: Unit,
}

impl fmt::Display for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min, max, step, unit } = self;
        match min == max {
            true => write!(f, "only {min}")?,
            false => write!(f, "a whole number from {min} to {max}")?,
        }
        if *step > 1 {
            write!(f, " that is a multiple of {step}")?;
        }
        write!(f, " ({unit})")
    }
}

/// Why an attribute cannot be read or written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttributeError {
    /// There is no attribute of that name.
    #[error("{path}: no such attribute; accepted: {}", accepted.join(", "))]
    Unknown {
        /// The path asked for.
        path: String,
        /// Similar paths, or all paths.
        accepted: Vec<Cow<'static, str>>,
    },
    /// The attribute is read-only.
    #[error("{path} can only be read")]
    ReadOnly {
        /// The attribute.
        path: String,
    },
    /// The text is not a number.
    #[error("{path}={text}: accepted: {accepted}")]
    NotANumber {
        /// The attribute.
        path: String,
        /// The text written.
        text: String,
        /// The accepted numbers.
        accepted: Accepted,
    },
    /// The number is too large or too small, or not an accepted multiple.
    #[error("{path}={text}: accepted: {accepted}")]
    OutOfRange {
        /// The attribute.
        path: String,
        /// The text written.
        text: String,
        /// The accepted numbers.
        accepted: Accepted,
    },
    /// The text is not an accepted word.
    #[error("{path}={text}: accepted: {}{}", accepted.join(", "), added_by(text))]
    NotAWord {
        /// The attribute.
        path: String,
        /// The text written.
        text: String,
        /// The accepted words.
        accepted: Vec<&'static str>,
    },
    /// The current settings leave nothing to set.
    #[error("{path} cannot be set: {why}")]
    NotNow {
        /// The attribute.
        path: String,
        /// The reason, and the remedy.
        why: &'static str,
    },
}

/// The feature that adds the word `text` to a build that is without it, as the end of a message.
fn added_by(text: &str) -> String {
    registry::left_out(text)
        .map_or_else(String::new, |name| format!("; the feature '{name}' of blkmq adds it"))
}

/// Why an attribute of a queue was not set.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
#[non_exhaustive]
pub enum SetAttributeError {
    /// The attribute cannot be set, or not to this value.
    Attribute(AttributeError),
    /// The queue cannot be changed.
    Change(ChangeError),
}

impl From<AttributeError> for SetAttributeError {
    fn from(e: AttributeError) -> Self {
        Self::Attribute(e)
    }
}

impl From<ChangeError> for SetAttributeError {
    fn from(e: ChangeError) -> Self {
        Self::Change(e)
    }
}

/// The kind of an attribute's value, and its source.
#[derive(Clone, Copy)]
pub(super) enum Form {
    /// A read-only text.
    Said(fn(&Snapshot) -> String),
    /// A number of the plan, which can be written if `set` is present.
    Number { get: fn(&Plan) -> u64, set: Option<SetNumber> },
    /// One of a few words.
    Words(Words),
}

/// How a number is set.
#[derive(Clone, Copy)]
pub(super) struct SetNumber {
    /// The accepted range, or the reason why the number cannot be set at present.
    pub(super) range: fn(&Plan) -> Result<RangeInclusive<u64>, &'static str>,
    pub(super) edges: Edges,
    /// The number must be a multiple of this.
    pub(super) step: fn(&Plan) -> u64,
    /// Makes the plan with this number, which was accepted and differs from the current one.
    pub(super) set: fn(Plan, u64) -> Plan,
}

/// How a number outside of its range is treated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Edges {
    /// It is refused.
    Strict,
    /// A number below the range is raised into it; one above is refused.
    Raise,
    /// A number above the range is lowered into it; one below is refused.
    Lower,
}

/// How a word is shown and set.
#[derive(Clone, Copy)]
pub(super) struct Words {
    /// The word for the current value.
    pub(super) get: fn(&Plan) -> &'static str,
    pub(super) accepted: fn(&Plan) -> Vec<&'static str>,
    pub(super) shown: Shown,
    /// Makes the plan with this word, which was accepted and may be the current one.
    pub(super) set: fn(Plan, &str) -> Plan,
}

/// How a choice among words is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    /// The current word.
    Alone,
    /// All accepted words, with the current one in brackets: `none [mq-deadline]`.
    AmongAll,
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal() {
        assert_eq!(parse("0"), Ok(0));
        assert_eq!(parse("+128"), Ok(128));
        assert_eq!(parse("-1"), Ok(-1));
        assert_eq!(parse("010"), Ok(10), "not octal");
        for text in ["", "0x80", "12k", "1 2", "1.5", "-", "auto"] {
            assert_eq!(parse(text), Err(Garbled::NotANumber), "{text:?}");
        }
        assert_eq!(parse(&"9".repeat(50)), Err(Garbled::TooLong));
    }

    #[test]
    fn the_word_that_is_stands_in_brackets() {
        assert_eq!(among(&["none", "mq-deadline"], "mq-deadline"), "none [mq-deadline]");
        assert_eq!(among(&["none"], "none"), "[none]");
    }
}
