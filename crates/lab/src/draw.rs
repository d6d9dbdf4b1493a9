//! Draws a scenario from a seed, swarm style: each run disables some features and exaggerates others.
//!
//! Uniform parameters would make all runs alike, and rare combinations would hardly occur. So most numbers are drawn by
//! magnitude, and most features are off in most runs.
//!
//! A device consists of its kind, its parameters, and the faults in or around it. Parameters are drawn by name, for
//! every device that has them, since devices share the names of null_blk. Every device of the registry is drawn; its
//! other parameters stay at their defaults, or at the values in [`ALWAYS`].

use crate::scenario::{BEGINS, Bounds, Load, MACHINE, Pattern, STATS};
use crate::{Caught, Costs, Habits, Meddling, Permille, PowerCuts, Scenario, policies};
use blkmq_core::{Instant, Nanos, Rng};
use blkmq_device::registry;
use blkmq_engine::{Access, DeviceDepth, KickMode, Modes, NoMerges, PumpMode, StatsMode};
use blkmq_sched::{Attribute, Scope};

/// The most I/Os of a run, over all CPUs.
const IOS: u64 = 500;
/// The most blocks in an I/O to a device that stores: the contents of each block are tracked.
const STORED_BLOCKS: u32 = 8;

/// A source of decisions.
struct Dice<'a>(&'a mut Rng);

impl Dice<'_> {
    fn one_in(&mut self, n: u64) -> bool {
        self.0.chance(1, n)
    }

    fn among<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.0.below(all.len() as u64) as usize]
    }

    /// A number from `least` to `most`; small magnitudes are as likely as large ones.
    fn magnitude(&mut self, least: u64, most: u64) -> u64 {
        let span = most - least + 1;
        let bits = 1 + self.0.below((u64::BITS - span.leading_zeros()).into());
        least + self.0.below((1 << bits).min(span))
    }

    fn sometimes<T>(&mut self, n: u64, draw: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.one_in(n).then(|| draw(self))
    }

    fn permille(&mut self) -> Permille {
        Permille(self.among(&[0, 0, 10, 100, 500]))
    }
}

impl Scenario {
    /// The scenario of `seed`, always the same one.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let dice = &mut Dice(&mut rng);
        let scheduler = dice.among(policies::all());
        let (_, access) = dice.among(&Access::ALL);
        // Half of the draws are replaced by combining: it is the access with the protocol.
        let access = if dice.one_in(2) { Access::Combining } else { access };
        let cpus = dice.magnitude(1, 8) as u16;
        let ios = dice.magnitude(1, IOS / u64::from(cpus)) as u32;
        let Drawn { text, stores } = device(dice);
        let groups = dice.sometimes(4, |dice| dice.magnitude(1, 6) as u16).unwrap_or(0);
        let scenario = Self {
            seed,
            scheduler,
            options: some_options(dice, scheduler.attributes),
            scope: dice.among(&[None, None, Some(Scope::Queue), Some(Scope::HwQueue)]),
            access,
            modes: Modes::default(),
            pump: dice.among(&[PumpMode::Inline, PumpMode::Inline, PumpMode::Thread]),
            pump_late: dice.sometimes(4, |dice| nanos(dice, 1_000_000)).unwrap_or_default(),
            nr_requests: dice.sometimes(2, |dice| dice.magnitude(1, 256) as u32).unwrap_or(0),
            device_depth: 0,
            nomerges: dice.among(&[NoMerges::All, NoMerges::All, NoMerges::Simple, NoMerges::None]),
            retries: dice.among(&[0, 0, 1, 5]),
            device: text,
            bounds: bounds(dice),
            groups,
            stats: StatsMode::default(),
            goals: 0,
            limited: if groups > 0 { dice.among(&[0, 1, 3]) } else { 0 },
            cpus,
            credit: dice.magnitude(1, 64) as u32,
            ios,
            habits: habits(dice),
            load: load(dice, stores),
            costs: Costs::draw(dice.0),
            meddling: dice.sometimes(2, meddling).unwrap_or(Meddling::NONE),
            power: power(dice, stores),
            begin: Instant::ZERO,
        };
        // Drawn last, so that these draws do not change any other choice.
        let modes = modes(dice.0, access);
        let (_, stats) = dice.among(&STATS);
        let begin = dice.among(&BEGINS);
        let depth = dice.sometimes(4, |dice| dice.magnitude(1, 64) as u32);
        let device_depth = depth.unwrap_or(0);
        let goals = if groups > 0 { dice.among(&[0, 0, 1, 3]) } else { 0 };
        let deadlines = dice.among(&[0, 0, 0, 300]);
        let load = Load { deadlines: Permille(deadlines), ..scenario.load };
        let scenario = Self { modes, stats, begin, device_depth, goals, load, ..scenario };
        let mut scenario = if dice.one_in(2) { scenario.with_shared_failures() } else { scenario };
        scenario.load.range = dice.among(&[0, 0, 1, 2, 3, 8]);
        scenario
    }
}

impl Scenario {
    /// If the device has failures, lets several owners share requests, so that a failed request has to be taken apart.
    fn with_shared_failures(mut self) -> Self {
        if ["error=", "badblocks="].iter().any(|fault| self.device.contains(fault)) {
            self.nomerges = NoMerges::All;
            self.habits.batch = self.habits.batch.max(16);
            self.load = Load {
                pattern: Pattern::Sequential,
                ops: [0, 1, 0, 0, 0],
                blocks: self.load.blocks.min(4),
                owners: 3,
                prios: false,
                flags: Permille(0),
                ..self.load
            };
        }
        self
    }
}

/// Modes that fit `access`; half of the time its defaults.
pub(crate) fn modes(rng: &mut Rng, access: Access) -> Modes {
    fn some<M: Copy>(dice: &mut Dice<'_>, all: &[M]) -> Option<M> {
        dice.sometimes(2, |dice| dice.among(all))
    }
    let dice = &mut Dice(rng);
    Modes {
        dispatch: some(dice, access.dispatch()),
        insert: some(dice, access.insert()),
        merge: some(dice, access.merge()),
        kick: dice.sometimes(4, |dice| dice.among(&KickMode::ALL).1),
    }
}

/// A limit on the requests at the device; half of the time, none.
pub(crate) fn device_depth(rng: &mut Rng) -> DeviceDepth {
    let depth = Dice(rng).sometimes(2, |dice| dice.magnitude(1, 64) as u32);
    depth.map_or(DeviceDepth::Device, DeviceDepth::AtMost)
}

fn nanos(dice: &mut Dice<'_>, most: u64) -> Nanos {
    Nanos(dice.magnitude(1, most))
}

/// Options of a policy with these attributes, as `key=value,...`.
pub(crate) fn options(rng: &mut Rng, attributes: &[Attribute]) -> String {
    some_options(&mut Dice(rng), attributes)
}

fn some_options(dice: &mut Dice<'_>, attributes: &[Attribute]) -> String {
    let mut options = Vec::new();
    for attribute in attributes {
        if dice.one_in(3) {
            let some = dice.magnitude(0, 1000) as i64;
            let value = dice.among(&[attribute.min, attribute.max, -1, 0, 1, 2, some]);
            options.push(format!("{}={value}", attribute.name));
        }
    }
    options.join(",")
}

fn bounds(dice: &mut Dice<'_>) -> Bounds {
    // Lengths of pages, which are multiples of every block size.
    let mut pages = |one_in, most, unit: u32| {
        dice.sometimes(one_in, |dice| unit * dice.magnitude(1, most) as u32).unwrap_or(0)
    };
    let max_segment_size = pages(3, 8, 4096);
    let max_discard_sectors = pages(2, 16, 8);
    let discard_granularity = pages(3, 8, 4096);
    let max_write_zeroes_sectors = pages(2, 16, 8);
    let chunk_sectors = pages(4, 8, 8);
    Bounds {
        physical_block_size: dice.among(&[0, 0, 1024, 4096, 16384]),
        max_segment_size,
        max_discard_sectors,
        discard_granularity,
        max_write_zeroes_sectors,
        no_write_zeroes: dice.one_in(8),
        max_segments: dice.sometimes(3, |dice| dice.magnitude(1, 16)).unwrap_or(0) as u16,
        max_discard_segments: dice.sometimes(2, |dice| dice.magnitude(1, 8)).unwrap_or(0) as u16,
        chunk_sectors,
    }
}

/// Draws power cuts, more often for a device that has data to lose.
fn power(dice: &mut Dice<'_>, stores: bool) -> PowerCuts {
    if !dice.one_in(if stores { 2 } else { 8 }) {
        return PowerCuts::NONE;
    }
    PowerCuts {
        most: dice.magnitude(1, 4) as u32,
        device_only: dice.one_in(2) && stores,
        // The first cut comes when some I/Os have probably begun.
        after: Nanos(1_000 * dice.magnitude(1, 20_000)),
    }
}

fn meddling(dice: &mut Dice<'_>) -> Meddling {
    Meddling {
        most: dice.magnitude(1, 20) as u32,
        pause: nanos(dice, 1_000_000),
        hold: nanos(dice, 1_000_000),
    }
}

fn habits(dice: &mut Dice<'_>) -> Habits {
    Habits {
        batch: dice.magnitude(1, 40) as u32,
        caught: Caught {
            chance: dice.permille(),
            steps: dice.magnitude(0, 8) as u32,
            gap: nanos(dice, 1_000_000),
        },
        absent: dice.permille(),
        absence: nanos(dice, 10_000_000),
        stalls: dice.permille(),
        stall: nanos(dice, 1_000_000),
        cancels: dice.permille(),
        leaves: dice.one_in(2),
    }
}

fn load(dice: &mut Dice<'_>, stores: bool) -> Load {
    let mut ops = [0; 5];
    for weight in &mut ops {
        *weight = dice.among(&[0, 0, 1, 10]);
    }
    // There are always writes.
    ops[1] = ops[1].max(1);
    Load {
        pattern: dice.among(&Pattern::ALL).1,
        ops,
        region: dice.magnitude(1, 4096),
        blocks: (dice.magnitude(1, 64) as u32).min(if stores { STORED_BLOCKS } else { 64 }),
        owners: dice.among(&[1, 1, 3]),
        prios: dice.one_in(4),
        flags: dice.permille(),
        deadlines: Permille(0),
        pause: dice.permille(),
        pauses: nanos(dice, 1_000_000),
        range: 0,
    }
}

/// The devices that are drawn more often than others, and how often.
const FREQUENT: [(&str, usize); 2] = [("null", 4), ("memory", 2)];

/// Parameters that are always set.
const ALWAYS: [(&str, &str); 1] = [("flash", "size=1")];

/// The description of a drawn device of the registry, without drawn parameters.
fn kind(dice: &mut Dice<'_>) -> String {
    let innermost = registry::ALL.iter().filter(|it| it.argument == registry::Argument::None);
    let often = |name| FREQUENT.iter().find(|it| it.0 == name).map_or(1, |it| it.1);
    let names: Vec<&str> =
        innermost.flat_map(|it| std::iter::repeat_n(it.name, often(it.name))).collect();
    let name = dice.among(&names);
    let always = ALWAYS.iter().filter(|it| it.0 == name);
    always.fold(name.to_owned(), |text, (_, pair)| format!("{text},{pair}"))
}

/// The most failures of one fault point of one hardware queue. They end, so every I/O must end.
const FAULTS: u64 = 60;
/// The most lost requests, each of which takes 5 s of virtual time.
const LOSSES: u64 = 4;

/// How the value of a parameter is drawn; `None` leaves the parameter out.
type Draw = fn(&mut Dice<'_>) -> Option<u64>;

/// Parameters by name.
const PARAMETERS: &[(&str, Draw)] = &[
    ("submit_queues", |dice| Some(dice.among(&[1, 1, 2, 4]))),
    ("hw_queue_depth", |dice| Some(dice.magnitude(1, 64))),
    ("irqmode", |dice| Some(dice.among(&[0, 1, 2, 2, 2]))),
    ("completion_nsec", |dice| Some(dice.magnitude(1, 1_000_000))),
    ("bs", |dice| Some(dice.among(&[512, 512, 1024, 4096]))),
    ("discard", |dice| Some(dice.among(&[0, 1]))),
    ("write_cache", |dice| Some(dice.among(&[0, 1]))),
    ("cache_size", |dice| Some(dice.among(&[0, 1]))),
    ("fua", |dice| Some(dice.among(&[0, 1]))),
    ("shared_tags", |dice| dice.one_in(4).then_some(1)),
    ("virt_boundary", |dice| dice.one_in(4).then_some(1)),
    ("budget", |dice| dice.sometimes(4, |dice| dice.magnitude(1, 64))),
    ("service_limit", |dice| dice.sometimes(4, |dice| dice.magnitude(1, 64))),
    ("mbps", |dice| dice.sometimes(4, |dice| dice.magnitude(1, 200))),
    ("max_sectors", |dice| dice.sometimes(4, |dice| dice.magnitude(8, 64))),
    ("badblocks_once", |dice| dice.one_in(2).then_some(1)),
    ("badblocks_partial_io", |dice| dice.one_in(2).then_some(1)),
    ("seed", |dice| Some(dice.0.next_u64())),
];

struct Drawn {
    /// Its description.
    text: String,
    /// Whether the device stores contents.
    stores: bool,
}

fn pair(text: &mut String, name: &str, value: impl std::fmt::Display) {
    text.push_str(&format!(",{name}={value}"));
}

fn device(dice: &mut Dice<'_>) -> Drawn {
    let mut text = kind(dice);
    let name = text.split(',').next().unwrap_or_default();
    let factory = registry::find(name).expect("drawn devices are in the registry");
    let has = |name: &str| factory.parameters.iter().any(|parameter| parameter.name == name);
    for (name, draw) in PARAMETERS.iter().filter(|(name, _)| has(name)) {
        if let Some(value) = draw(dice) {
            pair(&mut text, name, value);
        }
    }
    if has("badblocks") && dice.one_in(4) {
        let first = dice.magnitude(0, 512);
        pair(&mut text, "badblocks", format!("+{first}-{}", first + dice.magnitude(0, 64)));
    }
    let built = registry::parse(&text, &MACHINE).expect("what is drawn is possible");
    let stores = built.memory().is_some();
    if dice.one_in(2) {
        if has("dev_resource") && dice.one_in(2) {
            inner_faults(dice, &mut text);
        } else {
            text = format!("{}:{text}", outer_faults(dice, &text));
        }
    }
    Drawn { text, stores }
}

fn fault(dice: &mut Dice<'_>, most: u64) -> String {
    let interval = dice.magnitude(1, 20);
    let probability = dice.among(&[5, 30, 100]);
    let space = dice.magnitude(0, 50);
    format!("{interval}:{probability}:{space}:{}", dice.magnitude(1, most))
}

/// Draws faults of a null device itself.
fn inner_faults(dice: &mut Dice<'_>, text: &mut String) {
    for (name, most) in [
        ("resource", FAULTS),
        ("dev_resource", FAULTS),
        ("requeue", FAULTS),
        ("requeue_tail", FAULTS),
        ("timeout", LOSSES),
    ] {
        if let Some(value) = dice.sometimes(2, |dice| fault(dice, most)) {
            pair(text, name, value);
        }
    }
    pair(text, "timeout_resets", dice.among(&[0, 0, 1, 3]));
}

/// The fault-injecting device around that device, without the part behind its colon.
fn outer_faults(dice: &mut Dice<'_>, inside: &str) -> String {
    let mut text = "faults".to_owned();
    for name in [
        "resource",
        "dev_resource",
        "requeue",
        "timeout",
        "error",
        "flush_error",
        "late",
        "reorder",
    ] {
        if dice.one_in(3) {
            pair(&mut text, name, dice.among(&["0.01", "0.1", "0.5"]));
        }
    }
    // The device answers the engine's questions about a late request eventually, but the number of questions is
    // limited: the timeout must not be much shorter than the longest service time, where that is known.
    if inside.contains(",completion_nsec=") && !inside.contains(",mbps=") {
        pair(&mut text, "timeout_nsec", dice.magnitude(1_500_000, 100_000_000));
    }
    pair(&mut text, "late_nsec", dice.magnitude(1, 10_000_000));
    pair(&mut text, "space", dice.magnitude(0, 50));
    pair(&mut text, "times", dice.magnitude(1, FAULTS));
    pair(&mut text, "seed", dice.0.next_u64());
    text
}
