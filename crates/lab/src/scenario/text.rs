//! A scenario as a line of `key=value`, and back: `seed=7 cpus=2 ios=3 device=memory,cache_size=1`.
//!
//! Values equal to those of [`Scenario::plain`] are left out, so that a line shows only the relevant ones; a printed
//! line reads back as exactly the same scenario. One table has the settings by name, for printing, reading and
//! shrinking.

use super::Scenario;
use crate::scenario::Pattern;
use crate::{Stamp, policies};
use blkmq_core::{Instant, Nanos, Op};
use blkmq_engine::{
    Access, DispatchMode, InsertMode, KickMode, MergeMode, NoMerges, PumpMode, Queue, StatsMode,
};
use blkmq_sched::{Scope, StatsLevel};
use std::fmt;
use std::str::FromStr;

/// Why a text is no scenario.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ScenarioError {
    /// A word that is not of the form `key=value`.
    #[error("'{0}' is not of the form key=value")]
    Syntax(String),
    /// No such key.
    #[error(
        "no key '{0}'; accepted: {keys}",
        keys = Vec::from_iter(FIELDS.iter().map(|field| field.key)).join(", ")
    )]
    Unknown(String),
    /// A key that occurs more than once.
    #[error("{0} is given twice")]
    Twice(&'static str),
    /// A value that the key does not accept.
    #[error("{key}={value} is not possible; accepted: {accepted}")]
    Value {
        /// The key.
        key: &'static str,
        /// The refused value.
        value: String,
        /// The accepted values.
        accepted: String,
    },
    /// Each value is possible, but not all of them together; with the reason.
    #[error("no such run is possible: {0}")]
    Impossible(String),
}

impl Field {
    /// The value of this field in `scenario`, as it is written.
    pub(crate) fn text(&self, scenario: &Scenario) -> String {
        match self.kind {
            Kind::Number { get, .. } => get(scenario).to_string(),
            Kind::Word { get, .. } => get(scenario).to_owned(),
            Kind::List { get, .. } => get(scenario).clone(),
        }
    }

    /// The accepted values, in words.
    fn accepted(&self) -> String {
        match self.kind {
            Kind::Number { least, most, .. } => format!("a whole number from {least} to {most}"),
            Kind::Word { words, .. } => words().join(", "),
            Kind::List { .. } => "a list separated by commas, without blanks".to_owned(),
        }
    }

    /// Sets this field in `scenario` to `value`.
    ///
    /// # Errors
    /// If the field does not accept that value.
    pub(crate) fn set(&self, scenario: &mut Scenario, value: &str) -> Result<(), ScenarioError> {
        let refused = || ScenarioError::Value {
            key: self.key,
            value: value.to_owned(),
            accepted: self.accepted(),
        };
        match self.kind {
            Kind::Number { least, most, set, .. } => {
                let number = value.parse().ok();
                let number = number.filter(|number| (least..=most).contains(number));
                set(scenario, number.ok_or_else(refused)?);
            }
            Kind::Word { words, set, .. } => {
                let is_one = words().contains(&value);
                is_one.then(|| set(scenario, value)).ok_or_else(refused)?;
            }
            Kind::List { set, .. } => set(scenario, value.to_owned()),
        }
        Ok(())
    }
}

impl Scenario {
    /// Checks that the scenario can be run.
    ///
    /// # Errors
    /// If it cannot, with the reason.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let impossible = |why: &dyn fmt::Display| ScenarioError::Impossible(why.to_string());
        let device = self.device().map_err(|why| impossible(&why))?;
        self.options().map_err(|why| impossible(&why))?;
        Queue::<Stamp>::new(self.config(&device)).map_err(|why| impossible(&why))?;
        if self.load.ops.iter().all(|weight| *weight == 0) {
            return Err(impossible(&"there is nothing to submit; let there be writes"));
        }
        let limits = &device.shape.limits;
        if limits.max_sectors_of(Op::Write) == 0
            || self.load.needed(self.cpus, limits) > limits.capacity
        {
            return Err(impossible(&"the device is too small for one block of each CPU"));
        }
        if self.power.most > 0 && self.power.device_only && device.memory().is_none() {
            return Err(impossible(&"a device that does not store has no power to lose"));
        }
        Ok(())
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = Self::plain();
        write!(f, "seed={}", self.seed)?;
        for field in FIELDS.iter().filter(|field| field.key != "seed") {
            let value = field.text(self);
            if value != field.text(&plain) {
                write!(f, " {}={value}", field.key)?;
            }
        }
        Ok(())
    }
}

impl FromStr for Scenario {
    type Err = ScenarioError;

    fn from_str(text: &str) -> Result<Self, ScenarioError> {
        let mut scenario = Self::plain();
        let mut given: Vec<&str> = Vec::new();
        for word in text.split_whitespace() {
            let pair = word.split_once('=');
            let (key, value) = pair.ok_or_else(|| ScenarioError::Syntax(word.to_owned()))?;
            let field = FIELDS.iter().find(|field| field.key == key);
            let field = field.ok_or_else(|| ScenarioError::Unknown(key.to_owned()))?;
            if given.contains(&field.key) {
                return Err(ScenarioError::Twice(field.key));
            }
            given.push(field.key);
            field.set(&mut scenario, value)?;
        }
        scenario.check()?;
        Ok(scenario)
    }
}

pub(crate) struct Field {
    /// Its name in the line.
    pub(crate) key: &'static str,
    pub(crate) kind: Kind,
}

/// The type of a setting.
pub(crate) enum Kind {
    /// A number within these bounds.
    Number { least: u64, most: u64, get: fn(&Scenario) -> u64, set: fn(&mut Scenario, u64) },
    /// One of some words.
    Word {
        words: fn() -> Vec<&'static str>,
        get: fn(&Scenario) -> &'static str,
        /// Called with one of the words.
        set: fn(&mut Scenario, &str),
    },
    /// Words without blanks, separated by commas, which are checked together with all other settings.
    List { get: fn(&Scenario) -> &String, set: fn(&mut Scenario, String) },
}

macro_rules! number {
    ($key:literal, $least:expr, $most:expr, $s:ident => $place:expr) => {
        Field {
            key: $key,
            kind: Kind::Number {
                least: $least,
                most: $most,
                get: |$s| $place as u64,
                set: |$s, number| $place = number as _,
            },
        }
    };
}

macro_rules! nanos {
    ($key:literal, $s:ident => $place:expr) => {
        Field {
            key: $key,
            kind: Kind::Number {
                least: 0,
                most: HOUR,
                get: |$s| $place.0,
                set: |$s, number| $place = Nanos(number),
            },
        }
    };
}

macro_rules! flag {
    ($key:literal, $s:ident => $place:expr) => {
        Field {
            key: $key,
            kind: Kind::Number {
                least: 0,
                most: 1,
                get: |$s| $place.into(),
                set: |$s, number| $place = number == 1,
            },
        }
    };
}

macro_rules! permille {
    ($key:literal, $s:ident => $place:expr) => {
        number!($key, 0, 1000, $s => $place.0)
    };
}

/// A value with a word in a table.
macro_rules! word {
    ($key:literal, $table:expr, $s:ident => $place:expr) => {
        Field {
            key: $key,
            kind: Kind::Word {
                words: || names(&$table),
                get: |$s| name_of(&$table, &$place),
                set: |$s, name| $place = value_of(&$table, name),
            },
        }
    };
}

/// A mode besides the access; the default of the access has a name, too.
macro_rules! mode {
    ($key:literal, $mode:ident, $s:ident => $place:expr) => {
        Field {
            key: $key,
            kind: Kind::Word {
                words: || [OWN].into_iter().chain($mode::ALL.map(|(name, _)| name)).collect(),
                get: |$s| $place.map_or(OWN, $mode::name),
                set: |$s, name| $place = $mode::from_name(name),
            },
        }
    };
}

/// The word for the default of the access.
const OWN: &str = "own";
const HOUR: u64 = 3_600_000_000_000;
const U16: u64 = u16::MAX as u64;
const U32: u64 = u32::MAX as u64;

/// The names of the scopes; the policy's own has a name, too.
const SCOPES: [(&str, Option<Scope>); 3] =
    [(OWN, None), ("queue", Some(Scope::Queue)), ("hw_queue", Some(Scope::HwQueue))];
/// The levels of statistics about groups, with the time of counting.
pub(crate) const STATS: [(&str, StatsMode); 4] = [
    ("off", stats(StatsLevel::Off, false)),
    ("basic", stats(StatsLevel::Basic, false)),
    ("full", stats(StatsLevel::Full, false)),
    ("inline", stats(StatsLevel::Full, true)),
];

const fn stats(level: StatsLevel, inline: bool) -> StatsMode {
    StatsMode { level, inline, times: false, slow: Nanos::ZERO }
}

const PUMPS: [(&str, PumpMode); 2] = [("inline", PumpMode::Inline), ("thread", PumpMode::Thread)];
const MERGES: [NoMerges; 3] = [NoMerges::All, NoMerges::Simple, NoMerges::None];

fn name_of<T: PartialEq>(table: &[(&'static str, T)], value: &T) -> &'static str {
    let entry = table.iter().find(|(_, other)| other == value);
    entry.expect("every value is in its table").0
}

fn value_of<T: Copy>(table: &[(&'static str, T)], name: &str) -> T {
    let entry = table.iter().find(|(other, _)| *other == name);
    entry.expect("it is one of the words").1
}

fn names<T>(table: &[(&'static str, T)]) -> Vec<&'static str> {
    table.iter().map(|(name, _)| *name).collect()
}

/// All settings, in the order in which they are printed, and in which shrinking tries to do without them.
pub(crate) const FIELDS: &[Field] = &[
    number!("seed", 0, u64::MAX, s => s.seed),
    number!("cpus", 1, 64, s => s.cpus),
    number!("ios", 1, 1_000_000, s => s.ios),
    number!("credit", 1, 4096, s => s.credit),
    Field {
        key: "scheduler",
        kind: Kind::Word {
            words: || policies::all().iter().map(|factory| factory.name).collect(),
            get: |s| s.scheduler.name,
            set: |s, name| s.scheduler = policies::find(name).expect("it is one of the words"),
        },
    },
    Field {
        key: "options",
        kind: Kind::List { get: |s| &s.options, set: |s, text| s.options = text },
    },
    Field {
        key: "device",
        kind: Kind::List { get: |s| &s.device, set: |s, text| s.device = text },
    },
    Field {
        key: "begin",
        kind: Kind::Number {
            least: 0,
            most: 1 << 62,
            get: |s| s.begin.as_nanos(),
            set: |s, number| s.begin = Instant::from_nanos(number),
        },
    },
    number!("power_cuts", 0, 100, s => s.power.most),
    flag!("cut_device", s => s.power.device_only),
    nanos!("cut_after", s => s.power.after),
    number!("changes", 0, 10_000, s => s.meddling.most),
    nanos!("change_pause", s => s.meddling.pause),
    nanos!("change_hold", s => s.meddling.hold),
    permille!("cancels", s => s.habits.cancels),
    permille!("caught", s => s.habits.caught.chance),
    number!("caught_steps", 0, 1000, s => s.habits.caught.steps),
    nanos!("caught_gap", s => s.habits.caught.gap),
    permille!("absent", s => s.habits.absent),
    nanos!("absence", s => s.habits.absence),
    permille!("stalls", s => s.habits.stalls),
    nanos!("stall", s => s.habits.stall),
    flag!("leaves", s => s.habits.leaves),
    nanos!("pump_late", s => s.pump_late),
    word!("pump", PUMPS, s => s.pump),
    mode!("dispatch", DispatchMode, s => s.modes.dispatch),
    mode!("insert", InsertMode, s => s.modes.insert),
    mode!("merge", MergeMode, s => s.modes.merge),
    mode!("kick", KickMode, s => s.modes.kick),
    word!("access", Access::ALL, s => s.access),
    word!("scope", SCOPES, s => s.scope),
    number!("nr_requests", 0, 2048, s => s.nr_requests),
    number!("goals", 0, 65535, s => s.goals),
    number!("device_depth", 0, 10240, s => s.device_depth),
    Field {
        key: "nomerges",
        kind: Kind::Number {
            least: 0,
            most: 2,
            get: |s| s.nomerges as u64,
            set: |s, number| s.nomerges = MERGES[number as usize],
        },
    },
    number!("retries", 0, 255, s => s.retries),
    word!("group_stats", STATS, s => s.stats),
    number!("groups", 0, 1023, s => s.groups),
    number!("limited", 0, 1000, s => s.limited),
    word!("pattern", Pattern::ALL, s => s.load.pattern),
    number!("reads", 0, 1000, s => s.load.ops[0]),
    number!("writes", 0, 1000, s => s.load.ops[1]),
    number!("flushes", 0, 1000, s => s.load.ops[2]),
    number!("discards", 0, 1000, s => s.load.ops[3]),
    number!("write_zeroes", 0, 1000, s => s.load.ops[4]),
    number!("blocks", 1, 1024, s => s.load.blocks),
    number!("region", 1, 1 << 20, s => s.load.region),
    number!("owners", 1, 1000, s => s.load.owners),
    flag!("prios", s => s.load.prios),
    permille!("flags", s => s.load.flags),
    permille!("deadlines", s => s.load.deadlines),
    permille!("pauses", s => s.load.pause),
    nanos!("pause", s => s.load.pauses),
    number!("range", 0, 1 << 20, s => s.load.range),
    number!("batch", 1, 4096, s => s.habits.batch),
    number!("physical_block_size", 0, 1 << 20, s => s.bounds.physical_block_size),
    number!("max_segments", 0, U16, s => s.bounds.max_segments),
    number!("max_segment_size", 0, U32, s => s.bounds.max_segment_size),
    number!("max_discard_sectors", 0, U32, s => s.bounds.max_discard_sectors),
    number!("discard_granularity", 0, U32, s => s.bounds.discard_granularity),
    number!("max_write_zeroes_sectors", 0, U32, s => s.bounds.max_write_zeroes_sectors),
    flag!("no_write_zeroes", s => s.bounds.no_write_zeroes),
    number!("max_discard_segments", 0, U16, s => s.bounds.max_discard_segments),
    number!("chunk_sectors", 0, U32, s => s.bounds.chunk_sectors),
    nanos!("cost_push", s => s.costs.push),
    nanos!("cost_flush", s => s.costs.flush),
    nanos!("cost_poll", s => s.costs.poll),
    nanos!("cost_reap", s => s.costs.reap),
    nanos!("cost_step", s => s.costs.step),
    nanos!("cost_wake", s => s.costs.wake),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawn_scenario_is_read_back_exactly() {
        for seed in 0..3000 {
            let drawn = Scenario::draw(seed);
            let line = drawn.to_string();
            let again: Scenario = line.parse().unwrap_or_else(|why| panic!("{line}: {why}"));
            assert_eq!(format!("{drawn:?}"), format!("{again:?}"), "{line}");
            assert_eq!(line, again.to_string());
        }
    }

    /// Guards against a field that is lost, or writes to another field: each field changes the scenario, and can be
    /// changed back.
    #[test]
    fn every_field_is_printed_if_it_is_not_plain() {
        let plain = Scenario::plain();
        for field in FIELDS {
            let other = match field.kind {
                Kind::Number { most, get, .. } if get(&plain) != most => most.to_string(),
                Kind::Number { least, .. } => least.to_string(),
                Kind::Word { words, .. } => words().last().map(|word| (*word).to_owned()).unwrap(),
                Kind::List { .. } => "x=1".to_owned(),
            };
            let mut changed = plain.clone();
            field.set(&mut changed, &other).expect("it is accepted");
            let line = changed.to_string();
            assert!(line.contains(&format!("{}={other}", field.key)), "{line}");
            assert_ne!(format!("{changed:?}"), format!("{plain:?}"), "{}", field.key);
            field.set(&mut changed, &field.text(&plain)).expect("it was that before");
            assert_eq!(format!("{changed:?}"), format!("{plain:?}"), "{}", field.key);
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let error = |text: &str| text.parse::<Scenario>().expect_err(text).to_string();
        assert!(error("seed").contains("'seed' is not of the form key=value"));
        assert!(error("sed=1").contains("no key 'sed'; accepted: seed, cpus, ios"));
        assert_eq!(error("cpus=1 cpus=1"), "cpus is given twice");
        assert!(
            error("cpus=0")
                .contains("cpus=0 is not possible; accepted: a whole number from 1 to 64")
        );
        assert!(error("ios=many").contains("accepted: a whole number"));
        assert!(error("access=lock").contains("accepted: combining, spin, mutex"));
        assert!(error("scheduler=cfq").contains("accepted: none, mq-deadline"));
        assert!(error("device=zram").contains("no device 'zram'"));
        assert!(error("options=x=1").contains("no option 'x'"));
        assert!(error("writes=0").contains("nothing to submit"));
        assert!(error("power_cuts=1 cut_device=1").contains("does not store"));
        assert!(error("max_segment_size=1").contains("max_segment_size is 1"));
        assert!("".parse::<Scenario>().is_ok());
    }
}
