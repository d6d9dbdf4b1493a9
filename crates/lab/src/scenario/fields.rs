//! The settings of a scenario, by name: one table for printing, reading and shrinking.

use super::Scenario;
use crate::load::Pattern;
use crate::policies;
use blkmq_core::{Instant, Nanos};
use blkmq_engine::{
    Access, DispatchMode, InsertMode, KickMode, MergeMode, NoMerges, PumpMode, StatsMode,
};
use blkmq_sched::{Scope, StatsLevel};

/// One setting.
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

/// A mode besides the access; the access's own default has a name, too.
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
    Field {
        key: "pump",
        kind: Kind::Word {
            words: || names(&PUMPS),
            get: |s| name_of(&PUMPS, &s.pump),
            set: |s, name| s.pump = value_of(&PUMPS, name),
        },
    },
    mode!("dispatch", DispatchMode, s => s.modes.dispatch),
    mode!("insert", InsertMode, s => s.modes.insert),
    mode!("merge", MergeMode, s => s.modes.merge),
    mode!("kick", KickMode, s => s.modes.kick),
    Field {
        key: "access",
        kind: Kind::Word {
            words: || names(&Access::ALL),
            get: |s| name_of(&Access::ALL, &s.access),
            set: |s, name| s.access = value_of(&Access::ALL, name),
        },
    },
    Field {
        key: "scope",
        kind: Kind::Word {
            words: || names(&SCOPES),
            get: |s| name_of(&SCOPES, &s.scope),
            set: |s, name| s.scope = value_of(&SCOPES, name),
        },
    },
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
    Field {
        key: "group_stats",
        kind: Kind::Word {
            words: || names(&STATS),
            get: |s| name_of(&STATS, &s.stats),
            set: |s, name| s.stats = value_of(&STATS, name),
        },
    },
    number!("groups", 0, 1023, s => s.groups),
    number!("limited", 0, 1000, s => s.limited),
    Field {
        key: "pattern",
        kind: Kind::Word {
            words: || names(&Pattern::ALL),
            get: |s| name_of(&Pattern::ALL, &s.load.pattern),
            set: |s, name| s.load.pattern = value_of(&Pattern::ALL, name),
        },
    },
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
