//! Drawing a scenario from a seed, swarm style: each run has some features off and others far too strong.
//!
//! Uniform parameters would make all runs alike, and rare combinations would never be seen. So most numbers
//! are drawn by magnitude, and most features are off in most runs.

use crate::load::{Load, Pattern};
use crate::scenario::Bounds;
use crate::{Caught, Costs, Habits, Meddling, Permille, Scenario};
use blkmq_core::{Nanos, Rng};
use blkmq_engine::{Access, KickMode, Modes, NoMerges, PumpMode};
use blkmq_sched::{Attribute, Scope, registry};

/// I/Os of a run, at most, over all CPUs.
const IOS: u64 = 500;
/// Failures of one fault point of one hardware queue, at most. They end, so everything must end.
const FAULTS: u64 = 60;
/// The same for lost requests, each of which takes 5 s of virtual time.
const LOSSES: u64 = 4;

/// A source of decisions.
struct Dice(Rng);

impl Dice {
    fn one_in(&mut self, n: u64) -> bool {
        self.0.chance(1, n)
    }

    fn among<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.0.below(all.len() as u64) as usize]
    }

    /// From `least` to `most`, small ones as likely as large ones.
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
        let mut dice = Dice(Rng::new(seed));
        let dice = &mut dice;
        let scheduler = dice.among(registry::ALL);
        let (_, access) = dice.among(&Access::ALL);
        // Twice as often as the others: it is the one with the protocol.
        let access = if dice.one_in(2) { Access::Combining } else { access };
        let cpus = dice.magnitude(1, 8) as u16;
        let ios = dice.magnitude(1, IOS / u64::from(cpus)) as u32;
        let faulty = dice.one_in(2);
        let scenario = Self {
            seed,
            scheduler,
            options: some_options(dice, scheduler.attributes),
            scope: dice.among(&[None, None, Some(Scope::Queue), Some(Scope::HwQueue)]),
            access,
            modes: Modes::default(),
            pump: dice.among(&[PumpMode::Inline, PumpMode::Inline, PumpMode::Thread]),
            nr_requests: dice.sometimes(2, |dice| dice.magnitude(1, 256) as u32),
            nomerges: dice.among(&[NoMerges::All, NoMerges::All, NoMerges::Simple, NoMerges::None]),
            retries: dice.among(&[0, 0, 1, 5]),
            device: device(dice, faulty),
            bounds: bounds(dice),
            cpus,
            credit: dice.magnitude(1, 64) as u32,
            ios,
            habits: habits(dice),
            load: load(dice),
            costs: Costs::draw(&mut dice.0),
            meddling: dice.sometimes(2, meddling),
        };
        // Last, so that they decide about nothing else.
        let cancels = dice.permille();
        let modes = modes(&mut dice.0, access);
        Self { habits: Habits { cancels, ..scenario.habits }, modes, ..scenario }
    }
}

/// Modes that go with `access`; its own, as often as not.
pub(crate) fn modes(rng: &mut Rng, access: Access) -> Modes {
    fn some<M: Copy>(dice: &mut Dice, all: &[M]) -> Option<M> {
        dice.sometimes(2, |dice| dice.among(all))
    }
    let mut dice = Dice(rng.clone());
    let modes = Modes {
        dispatch: some(&mut dice, access.dispatch()),
        insert: some(&mut dice, access.insert()),
        merge: some(&mut dice, access.merge()),
        kick: dice.sometimes(4, |dice| dice.among(&KickMode::ALL).1),
    };
    *rng = dice.0;
    modes
}

/// Options of a policy with these attributes, as `key=value,...`.
pub(crate) fn options(rng: &mut Rng, attributes: &[Attribute]) -> String {
    let mut dice = Dice(rng.clone());
    let options = some_options(&mut dice, attributes);
    *rng = dice.0;
    options
}

fn some_options(dice: &mut Dice, attributes: &[Attribute]) -> String {
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

fn fault(dice: &mut Dice, most: u64) -> String {
    let interval = dice.magnitude(1, 20);
    let probability = dice.among(&[5, 30, 100]);
    let space = dice.magnitude(0, 50);
    format!("{interval}:{probability}:{space}:{}", dice.magnitude(1, most))
}

fn device(dice: &mut Dice, faulty: bool) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let mut set = |name: &str, value: String| pairs.push((name.to_owned(), value));
    let hw_queues = dice.among(&[1, 1, 2, 4]);
    set("submit_queues", hw_queues.to_string());
    set("hw_queue_depth", dice.magnitude(1, 64).to_string());
    let irqmode = dice.among(&[0, 1, 2, 2, 2]);
    set("irqmode", irqmode.to_string());
    if irqmode == 2 {
        set("completion_nsec", dice.magnitude(1, 1_000_000).to_string());
    }
    set("bs", dice.among(&[512, 512, 1024, 4096]).to_string());
    set("discard", dice.among(&[0, 1]).to_string());
    if dice.one_in(2) {
        set("write_cache", "1".to_owned());
        set("fua", dice.among(&[0, 1]).to_string());
    }
    let rare = [
        ("shared_tags", 1, 1),
        ("virt_boundary", 1, 1),
        ("budget", 1, 64),
        ("service_limit", 1, 64),
        ("mbps", 1, 200),
        ("max_sectors", 8, 64),
    ];
    for (name, least, most) in rare {
        if let Some(value) = dice.sometimes(4, |dice| dice.magnitude(least, most)) {
            set(name, value.to_string());
        }
    }
    if faulty {
        for (name, most) in [
            ("resource", FAULTS),
            ("dev_resource", FAULTS),
            ("requeue", FAULTS),
            ("requeue_tail", FAULTS),
            ("timeout", LOSSES),
        ] {
            if let Some(value) = dice.sometimes(2, |dice| fault(dice, most)) {
                set(name, value);
            }
        }
        set("timeout_resets", dice.among(&[0, 0, 1, 3]).to_string());
        set("seed", dice.0.next_u64().to_string());
    }
    pairs
}

fn bounds(dice: &mut Dice) -> Bounds {
    // Lengths of pages, which are multiples of every block size.
    let mut pages = |one_in, most, otherwise, unit: u32| {
        dice.sometimes(one_in, |dice| unit * dice.magnitude(1, most) as u32).unwrap_or(otherwise)
    };
    let max_segment_size = pages(3, 8, 65536, 4096);
    let max_discard_sectors = pages(2, 16, u32::MAX, 8);
    let discard_granularity = pages(3, 8, 0, 4096);
    let max_write_zeroes_sectors = pages(2, 16, u32::MAX, 8);
    Bounds {
        physical_block_size: dice.among(&[512, 512, 1024, 4096, 16384]),
        max_segment_size,
        max_discard_sectors,
        discard_granularity,
        max_write_zeroes_sectors: if dice.one_in(8) { 0 } else { max_write_zeroes_sectors },
        max_segments: dice.sometimes(3, |dice| dice.magnitude(1, 16)).unwrap_or(128) as u16,
        max_discard_segments: dice.sometimes(2, |dice| dice.magnitude(1, 8)).unwrap_or(1) as u16,
        // Chunks are multiples of every block size.
        chunk_sectors: dice.sometimes(4, |dice| 8 * dice.magnitude(1, 8)).unwrap_or(0) as u32,
    }
}

fn meddling(dice: &mut Dice) -> Meddling {
    Meddling {
        most: dice.magnitude(1, 20) as u32,
        pause: Nanos(dice.magnitude(1, 1_000_000)),
        hold: Nanos(dice.magnitude(1, 1_000_000)),
    }
}

fn habits(dice: &mut Dice) -> Habits {
    Habits {
        batch: dice.magnitude(1, 40) as u32,
        caught: Caught {
            chance: dice.permille(),
            steps: dice.magnitude(0, 8) as u32,
            gap: Nanos(dice.magnitude(1, 1_000_000)),
        },
        absent: dice.permille(),
        absence: Nanos(dice.magnitude(1, 10_000_000)),
        cancels: Permille(0),
        leaves: dice.one_in(2),
    }
}

fn load(dice: &mut Dice) -> Load {
    let mut ops = [0; 5];
    for weight in &mut ops {
        *weight = dice.among(&[0, 0, 1, 10]);
    }
    // At least writes.
    ops[1] = ops[1].max(1);
    Load {
        pattern: dice.among(&Pattern::ALL),
        ops,
        region: dice.magnitude(1, 4096),
        blocks: dice.magnitude(1, 64) as u32,
        owners: dice.among(&[1, 1, 3]),
        prios: dice.one_in(4),
        flags: dice.permille(),
        pause: dice.permille(),
        pauses: Nanos(dice.magnitude(1, 1_000_000)),
    }
}
