//! The list of attributes. One line each: path, unit, description, source of the value, and, if the attribute can be
//! written, the accepted range and its effect on the plan.

use super::{Snapshot, Unit};
use crate::attributes::{Edges, Form, Permission, Row, SetNumber, Shown, Words};
use crate::plan::{AUTO, Plan, PolicyChoice};
use crate::shared::{MAX_DEVICE_DEPTH, MAX_NR_REQUESTS, MIN_NR_REQUESTS, PumpMode};
use crate::{DeviceDepth, NoMerges, WriteCache};
use blkmq_core::{HwQueue, Nanos, SECTOR_SIZE};
use blkmq_sched::{Factory, Scope, StatsLevel, registry};
use std::fmt::Write;
use std::ops::RangeInclusive;

/// A read-only attribute of every hardware queue.
pub(super) struct HwRow {
    /// The path, with N for the number of the hardware queue.
    pub(super) pattern: &'static str,
    pub(super) unit: Unit,
    pub(super) help: &'static str,
    pub(super) get: fn(&Snapshot, HwQueue) -> u64,
}

impl HwRow {
    pub(super) fn path_of(&self, hw: HwQueue) -> String {
        self.pattern.replace('N', &hw.0.to_string())
    }
}

/// All attributes except those of schedulers and of hardware queues, in listing order.
pub(super) const QUEUE: &[Row] = &[
    number("size", Unit::Sectors, "the device's size", |plan| plan.device.limits.capacity),
    words(
        "queue/scheduler",
        "the policy, another one begins with its defaults; or 'auto', as the groups ask for",
        SCHEDULER,
    ),
    number(
        "queue/nr_requests",
        Unit::COUNT,
        "scheduler tags per hardware queue; less than 4 is raised to 4",
        |plan| plan.effective_nr_requests().into(),
    )
    .set(nr_requests, Edges::Raise, |plan, n| plan.nr_requests(n as u32)),
    number(
        "queue/async_depth",
        Unit::COUNT,
        "how many of nr_requests everything but sync reads may hold; iosched/async_depth counts if it is less",
        |plan| plan.effective_async_depth().into(),
    )
    .set(async_depth, Edges::Lower, |plan, n| Plan { async_depth: Some(n as u32), ..plan }),
    number("queue/nomerges", Unit::COUNT, "0: all merges; 1: only simple ones; 2: none", |plan| {
        plan.nomerges as u64
    })
    .set(|_| Ok(0..=2), Edges::Strict, |plan, n| Plan { nomerges: no_merges(n), ..plan }),
    words(
        "queue/write_cache",
        "'write back' or 'write through'; to write the latter to a device that has a volatile cache ends its \
         flushes, at your risk",
        WRITE_CACHE,
    ),
    number("queue/fua", Unit::FLAG, "the device makes single writes durable by itself", |plan| {
        (plan.flushed_cache() == WriteCache::Back { fua: true }).into()
    }),
    number("queue/logical_block_size", Unit::Bytes, "every I/O is a multiple of this", |plan| {
        plan.device.limits.logical_block_size.into()
    }),
    number("queue/hw_sector_size", Unit::Bytes, "the old name of logical_block_size", |plan| {
        plan.device.limits.logical_block_size.into()
    }),
    number(
        "queue/physical_block_size",
        Unit::Bytes,
        "what the device writes at once; I/Os are divided at multiples of this where they can",
        |plan| plan.device.limits.physical_block_size.into(),
    ),
    number("queue/max_sectors_kb", Unit::KiB, "the largest read or write", |plan| {
        kib(plan.device.limits.max_sectors)
    })
    .set_in_steps(max_sectors_kb, Edges::Strict, block_kib, set_max_sectors_kb),
    number("queue/max_hw_sectors_kb", Unit::KiB, "the largest that the device takes", |plan| {
        kib(plan.hardware.limits.max_sectors)
    }),
    number("queue/max_segments", Unit::COUNT, "scatter-gather segments of a request", |plan| {
        plan.device.limits.max_segments.into()
    }),
    number("queue/max_segment_size", Unit::Bytes, "the largest segment", |plan| {
        plan.device.limits.max_segment_size.into()
    }),
    number("queue/max_discard_segments", Unit::COUNT, "ranges in one discard", |plan| {
        plan.device.limits.max_discard_segments.into()
    }),
    number("queue/discard_max_bytes", Unit::Bytes, "the largest discard; 0: none at all", |plan| {
        bytes(plan.device.limits.max_discard_sectors)
    })
    .set_in_steps(
        |plan| Ok(0..=bytes(plan.hardware.limits.max_discard_sectors)),
        Edges::Strict,
        |plan| plan.device.limits.logical_block_size.into(),
        set_discard_max_bytes,
    ),
    number(
        "queue/discard_max_hw_bytes",
        Unit::Bytes,
        "the largest discard that the device takes; 0 if it takes none",
        |plan| bytes(plan.hardware.limits.max_discard_sectors),
    ),
    number("queue/discard_granularity", Unit::Bytes, "discards are divided at multiples of this", |plan| {
        plan.device.limits.discard_granularity.into()
    }),
    number(
        "queue/write_zeroes_max_bytes",
        Unit::Bytes,
        "the largest write of zeroes that are not sent; 0: none at all",
        |plan| bytes(plan.device.limits.max_write_zeroes_sectors),
    ),
    number(
        "queue/chunk_sectors",
        Unit::Sectors,
        "no read or write crosses a multiple of this; 0 if they may",
        |plan| plan.device.limits.chunk_sectors.into(),
    ),
    number(
        "queue/virt_boundary_mask",
        Unit::Bytes,
        "segments meet only at multiples of this plus one; 0 if anywhere",
        |plan| plan.device.limits.virt_boundary_mask,
    ),
    number(
        "queue/io_timeout",
        Unit::MILLIS,
        "how long the device may keep a request before it is asked about it",
        |plan| plan.device.timeout.0 / MILLI.0,
    )
    .set(|_| Ok(1..=u32::MAX.into()), Edges::Strict, set_io_timeout),
    number(
        "blkmq/device_depth",
        Unit::COUNT,
        "blkmq's own: how many requests the device may hold, over all hardware queues; 0: as many as it takes",
        |plan| plan.device_depth.number().into(),
    )
    .set(|_| Ok(0..=MAX_DEVICE_DEPTH.into()), Edges::Strict, |plan, n| Plan {
        device_depth: DeviceDepth::of_number(n as u32),
        ..plan
    }),
    number(
        "blkmq/retries",
        Unit::COUNT,
        "blkmq's own: how often a request is tried again that failed or timed out",
        |plan| plan.retries.into(),
    )
    .set(|_| Ok(0..=u8::MAX.into()), Edges::Strict, |plan, n| Plan { retries: n as u8, ..plan }),
    number(
        "queue/iostats",
        Unit::COUNT,
        "1: requests, and where their time goes, are counted for each group; 0: they are not",
        |plan| plan.stats.times.into(),
    )
    .set(|_| Ok(0..=1), Edges::Strict, |mut plan, n| {
        plan.stats.times = n == 1;
        plan
    }),
    number(
        "blkmq/slow_io",
        Unit::MILLIS,
        "blkmq's own: requests that take longer are listed, if queue/iostats is 1; 0: none",
        |plan| plan.stats.slow.0 / MILLI.0,
    )
    .set(|_| Ok(0..=u32::MAX.into()), Edges::Strict, |mut plan, n| {
        plan.stats.slow = Nanos::from_millis(n);
        plan
    }),
    number(
        "blkmq/forecast",
        Unit::COUNT,
        "blkmq's own: 1: the time of each I/O is predicted, for those with a deadline; 0: it is not",
        |plan| plan.forecast.into(),
    )
    .set(|_| Ok(0..=1), Edges::Strict, |plan, n| Plan { forecast: n == 1, ..plan }),
    words(
        "blkmq/scope",
        "blkmq's own: one elevator for the 'queue', one per 'hwqueue', or 'auto', as the policy prefers",
        SCOPE,
    ),
    words(
        "blkmq/group_stats",
        "blkmq's own: what is counted about groups: 'off', 'basic' (I/Os, their bytes and times) or 'full'",
        GROUP_STATS,
    ),
    Row {
        path: "blkmq/auto",
        unit: Unit::Word,
        help: "blkmq's own: what queue/scheduler=auto has chosen, and why; 'off' if the policy was named",
        form: Form::Said(|snapshot| snapshot.plan.auto().map_or("off".into(), |it| it.to_string())),
    },
    Row {
        path: "blkmq/goals",
        unit: Unit::Word,
        help: "blkmq's own: the latency goals of groups, how they stand, and what is taken for them; 'none' without any",
        form: Form::Said(|snapshot| match &snapshot.goals {
            None => "none".into(),
            Some(goals) => goals.lines(&snapshot.plan.groups).join("; "),
        }),
    },
    Row {
        path: "blkmq/learned",
        unit: Unit::Word,
        help: "blkmq's own: figures of the device that the scheduler has learned, as options that it takes; 'none' if it learns none, 'busy' if it cannot be asked now",
        form: Form::Said(|snapshot| match snapshot.learned.as_deref() {
            None => "busy".into(),
            Some("") => "none".into(),
            Some(learned) => learned.into(),
        }),
    },
    Row {
        path: "blkmq/pump",
        unit: Unit::Word,
        help: "blkmq's own: who pumps: 'inline', each thread that submits or waits; 'owner', likewise, each with a lane of its own; or a 'thread' per hardware queue",
        form: Form::Said(|snapshot| match snapshot.pump {
            PumpMode::Inline => "inline".into(),
            PumpMode::Thread => "thread".into(),
            PumpMode::Owner => "owner".into(),
        }),
    },
];

/// The attributes of each hardware queue.
pub(super) const HW_QUEUE: &[HwRow] = &[
    HwRow {
        pattern: "mq/N/nr_tags",
        unit: Unit::COUNT,
        help: "its driver tags; where they are shared, those of all hardware queues",
        get: |snapshot, _| snapshot.plan.device.hw_queue_depth.into(),
    },
    HwRow {
        pattern: "mq/N/nr_reserved_tags",
        unit: Unit::COUNT,
        help: "driver tags that only drivers may take; none here",
        get: |_, _| 0,
    },
    HwRow {
        pattern: "hctxN/active",
        unit: Unit::COUNT,
        help: "driver tags in use; where they are shared, by all hardware queues",
        get: |snapshot, hw| snapshot.hctxs[usize::from(hw.0)].active.into(),
    },
    HwRow {
        pattern: "hctxN/dispatch_busy",
        unit: Unit::COUNT,
        help: "average of how often the device had no room; above 0, one request is issued at a time",
        get: |snapshot, hw| snapshot.hctxs[usize::from(hw.0)].dispatch_busy.into(),
    },
];

const MILLI: Nanos = Nanos::from_millis(1);

/// Schedulers that are not registered follow the registered ones. The policy in force is in brackets even if it was
/// chosen by groups, because programs look for it there.
const SCHEDULER: Words = Words {
    get: |plan| plan.scheduler.name,
    accepted: |plan| {
        let all = registry::ALL.iter().chain(&plan.schedulers);
        let mut names: Vec<_> = all.map(|factory| factory.name).collect();
        if !names.contains(&plan.scheduler.name) {
            names.push(plan.scheduler.name);
        }
        names.push(AUTO);
        names
    },
    shown: Shown::AmongAll,
    set: |plan, name| match named(&plan, name) {
        _ if name == AUTO => plan.choose_by_groups(),
        Some(factory) if factory.name == plan.scheduler.name => {
            Plan { choice: PolicyChoice::Named, ..plan }
        }
        Some(factory) => plan.scheduler(factory),
        None => plan,
    },
};

/// The policy of this name: a registered one, or the program's own.
fn named(plan: &Plan, name: &str) -> Option<&'static Factory> {
    let own = || plan.schedulers.iter().copied().find(|factory| factory.name == name);
    registry::find(name).or_else(own)
}

const BACK: &str = "write back";
const THROUGH: &str = "write through";

const WRITE_CACHE: Words = Words {
    get: |plan| match plan.device.cache {
        WriteCache::Through => THROUGH,
        WriteCache::Back { .. } => BACK,
    },
    accepted: |plan| match plan.hardware.cache {
        WriteCache::Through => vec![THROUGH],
        WriteCache::Back { .. } => vec![BACK, THROUGH],
    },
    shown: Shown::Alone,
    set: |mut plan, text| {
        plan.device.cache = if text == BACK { plan.hardware.cache } else { WriteCache::Through };
        plan
    },
};

const GROUP_STATS: Words = Words {
    get: |plan| match plan.stats.level {
        StatsLevel::Off => "off",
        StatsLevel::Basic => "basic",
        StatsLevel::Full => "full",
    },
    accepted: |_| vec!["off", "basic", "full"],
    shown: Shown::Alone,
    set: |mut plan, name| {
        plan.stats.level = match name {
            "basic" => StatsLevel::Basic,
            "full" => StatsLevel::Full,
            _ => StatsLevel::Off,
        };
        plan
    },
};

const SCOPE: Words = Words {
    get: |plan| match plan.scope {
        None => "auto",
        Some(Scope::Queue) => "queue",
        Some(Scope::HwQueue) => "hwqueue",
    },
    accepted: |_| vec!["auto", "queue", "hwqueue"],
    shown: Shown::Alone,
    set: |plan, name| Plan {
        scope: match name {
            "queue" => Some(Scope::Queue),
            "hwqueue" => Some(Scope::HwQueue),
            _ => None,
        },
        ..plan
    },
};

/// Without a scheduler, the device's tags are the limit. With one, the limit is the kernel's maximum
/// (`spec/framework.md` section 3).
fn nr_requests(plan: &Plan) -> Range {
    let most = if plan.has_scheduler() { MAX_NR_REQUESTS } else { plan.device.hw_queue_depth };
    Ok(MIN_NR_REQUESTS.into()..=most.max(MIN_NR_REQUESTS).into())
}

fn async_depth(plan: &Plan) -> Range {
    if !plan.has_scheduler() {
        return Err(
            "without a scheduler there is nothing to divide; choose one in queue/scheduler",
        );
    }
    Ok(1..=plan.effective_nr_requests().into())
}

fn no_merges(n: u64) -> NoMerges {
    match n {
        0 => NoMerges::All,
        1 => NoMerges::Simple,
        _ => NoMerges::None,
    }
}

fn bytes(sectors: u32) -> u64 {
    u64::from(sectors) * u64::from(SECTOR_SIZE)
}

fn kib(sectors: u32) -> u64 {
    bytes(sectors) / 1024
}

/// The logical block, but at least 1 KiB, the unit of the attribute.
fn block_kib(plan: &Plan) -> u64 {
    (u64::from(plan.device.limits.logical_block_size) / 1024).max(1)
}

fn max_sectors_kb(plan: &Plan) -> Range {
    let (least, most) = (block_kib(plan), kib(plan.hardware.limits.max_sectors));
    if most < least { Err("the device takes less than 1 KiB at once") } else { Ok(least..=most) }
}

fn set_max_sectors_kb(mut plan: Plan, n: u64) -> Plan {
    let most = plan.hardware.limits.max_sectors;
    // The device's own limit may not be a whole number of KiB. Writing it rounded down sets the limit exactly.
    plan.device.limits.max_sectors =
        if n == kib(most) { most } else { (n * 1024 / u64::from(SECTOR_SIZE)) as u32 };
    plan
}

fn set_io_timeout(mut plan: Plan, n: u64) -> Plan {
    plan.device.timeout = Nanos::from_millis(n);
    plan
}

fn set_discard_max_bytes(mut plan: Plan, n: u64) -> Plan {
    plan.device.limits.max_discard_sectors = (n / u64::from(SECTOR_SIZE)) as u32;
    plan
}

/// All attributes as a table in Markdown. One line stands for the attributes of schedulers, which each scheduler's page
/// lists.
#[must_use]
pub fn table() -> String {
    let mut text = String::from("| attribute | | unit | what it is |\n|---|---|---|---|\n");
    let mut line = |path: &str, permission, unit: &dyn std::fmt::Display, help: &str| {
        let permission = match permission {
            Permission::ReadOnly => "r",
            Permission::ReadWrite => "rw",
        };
        writeln!(text, "| `{path}` | {permission} | {unit} | {help} |")
            .expect("a String takes everything");
    };
    for row in QUEUE {
        line(row.path, row.permission(), &row.unit, row.help);
    }
    line(
        "iosched/*",
        Permission::ReadWrite,
        &"",
        "what the present scheduler lets you set; `blkmq doc NAME` lists it",
    );
    for row in HW_QUEUE {
        line(row.pattern, Permission::ReadOnly, &row.unit as &Unit, row.help);
    }
    text
}

/// The accepted range of a number, or the reason why it cannot be written.
pub(super) type Range = Result<RangeInclusive<u64>, &'static str>;

/// A read-only number.
pub(super) const fn number(
    path: &'static str,
    unit: Unit,
    help: &'static str,
    get: fn(&Plan) -> u64,
) -> Row {
    Row { path, unit, help, form: Form::Number { get, set: None } }
}

/// A choice among words, for reading and writing.
pub(super) const fn words(path: &'static str, help: &'static str, words: Words) -> Row {
    Row { path, unit: Unit::Word, help, form: Form::Words(words) }
}

impl Row {
    /// Makes the number writable.
    pub(super) const fn set(
        self,
        range: fn(&Plan) -> Range,
        edges: Edges,
        set: fn(Plan, u64) -> Plan,
    ) -> Self {
        self.set_in_steps(range, edges, |_| 1, set)
    }

    /// Makes the number writable, in multiples of `step`.
    pub(super) const fn set_in_steps(
        self,
        range: fn(&Plan) -> Range,
        edges: Edges,
        step: fn(&Plan) -> u64,
        set: fn(Plan, u64) -> Plan,
    ) -> Self {
        let Form::Number { get, .. } = self.form else { panic!("only numbers have a range") };
        let set = SetNumber { range, edges, step, set };
        Self { form: Form::Number { get, set: Some(set) }, ..self }
    }
}
