//! A run with all its parameters: drawn from one seed, printed in one line and read back from it.
//!
//! The settings and the line are in `text.rs`. The values come from a seed (`draw`), a person, or a shrunk failure
//! (`shrink`).

mod text;

pub use text::ScenarioError;
pub(crate) use text::{FIELDS, Field, Kind, STATS};

use crate::load::{Load, LoadClient, Place};
use crate::policies;
use crate::{Costs, Habits, Plan, PowerCuts, Stamp};
use blkmq_core::{GroupId, Instant, Limits, Nanos, Rng};
use blkmq_device::{Device, DeviceError, MachineShape, registry as devices};
use blkmq_engine::{
    Access, Burst, Config, DeviceDepth, GroupSpec, GroupTree, IoMax, KickMode, Modes, NoMerges,
    Promise, PumpMode, StatsMode,
};
use blkmq_sched::{Factory, OptionError, Options, Scope};

/// A device has at most as many hardware queues as there are CPUs; this machine has enough.
pub(crate) const MACHINE: MachineShape = MachineShape { cpus: 64, nodes: 1 };

/// The most turns within which a CPU performs a duty: a follower skips up to eight polls because it expects the leader
/// to act, and one turn may have begun before.
const LET_PASS: u64 = 10;

/// The settings of an operator; its actions are drawn from the seed of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meddling {
    /// The number of changes and holds in all.
    pub most: u32,
    /// The longest pause between two of them.
    pub pause: Nanos,
    /// The longest hold.
    pub hold: Nanos,
}

impl Meddling {
    /// No operator.
    pub const NONE: Self = Self { most: 0, pause: Nanos::ZERO, hold: Nanos::ZERO };
}

/// Bounds of merging and submission, beyond the device's own limits. 0 keeps the device's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bounds {
    /// The least physical block size, in bytes.
    pub physical_block_size: u32,
    /// Segments in one request.
    pub max_segments: u16,
    /// Bytes in one segment.
    pub max_segment_size: u32,
    /// The most sectors in one discard, if the device takes discards.
    pub max_discard_sectors: u32,
    /// The least discard granularity, in bytes.
    pub discard_granularity: u32,
    /// The most sectors in one write of zeroes.
    pub max_write_zeroes_sectors: u32,
    /// The device takes no writes of zeroes.
    pub no_write_zeroes: bool,
    /// Ranges in one discard.
    pub max_discard_segments: u16,
    /// A boundary that no request crosses, in sectors.
    pub chunk_sectors: u32,
}

impl Bounds {
    fn apply(&self, device: &mut Device) {
        let is_model = device.is_model();
        let limits = &mut device.shape.limits;
        let most = |limit: &mut u32, bound: u32| {
            if bound > 0 {
                *limit = (*limit).min(bound);
            }
        };
        limits.physical_block_size = limits.physical_block_size.max(self.physical_block_size);
        limits.discard_granularity = limits.discard_granularity.max(self.discard_granularity);
        most(&mut limits.max_segment_size, self.max_segment_size);
        most(&mut limits.max_discard_sectors, self.max_discard_sectors);
        most(&mut limits.max_write_zeroes_sectors, self.max_write_zeroes_sectors);
        if self.no_write_zeroes {
            limits.max_write_zeroes_sectors = 0;
        }
        if self.max_segments > 0 {
            limits.max_segments = limits.max_segments.min(self.max_segments);
        }
        // A model treats a discard as one range, as its limits say; the other devices check every part of it.
        if self.max_discard_segments > 0 && !is_model {
            limits.max_discard_segments = self.max_discard_segments;
        }
        if self.chunk_sectors > 0 {
            limits.chunk_sectors = self.chunk_sectors;
        }
    }
}

/// All parameters of a run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed of the I/Os and of the times of faults; a drawn scenario comes entirely from it.
    pub seed: u64,
    /// The policy.
    pub scheduler: &'static Factory,
    /// Its options, as `key=value,...`.
    pub options: String,
    /// One elevator or one per hardware queue; `None`: as the policy prefers.
    pub scope: Option<Scope>,
    /// Access to the elevator.
    pub access: Access,
    /// The modes besides the access.
    pub modes: Modes,
    /// The threads that pump.
    pub pump: PumpMode,
    /// The longest delay of a pump thread, each time.
    pub pump_late: Nanos,
    /// Scheduler tags per hardware queue; 0 for the default.
    pub nr_requests: u32,
    /// The most requests that the device may hold; 0: as many as it takes.
    pub device_depth: u32,
    /// The level of merging.
    pub nomerges: NoMerges,
    /// The number of retries after an error.
    pub retries: u8,
    /// The device, as the registry describes it.
    pub device: String,
    /// Further bounds of requests.
    pub bounds: Bounds,
    /// The number of groups for owners, besides the root.
    pub groups: u16,
    /// The level of statistics about them.
    pub stats: StatsMode,
    /// One in `limited` groups has limits; 0 for none.
    pub limited: u16,
    /// One in `goals` groups has a latency goal; 0 for none.
    pub goals: u16,
    /// Virtual CPUs, a submitter each.
    pub cpus: u16,
    /// The most I/Os that each may have in flight.
    pub credit: u32,
    /// The number of I/Os that each submits, in each life of the machine.
    pub ios: u32,
    /// Their habits.
    pub habits: Habits,
    /// Their load.
    pub load: Load,
    /// The costs of actions.
    pub costs: Costs,
    /// Changes of the queue while it runs.
    pub meddling: Meddling,
    /// Power cuts.
    pub power: PowerCuts,
    /// The time at which the CPUs begin, in each life of the machine. Up to 2^62 ns, 146 years.
    pub begin: Instant,
}

/// The initial values of clocks: zero; and, like Linux' jiffies, which begin shortly before they wrap, one second
/// before the nanoseconds overflow in code that shifts them by 10 bits, or by 2.
pub(crate) const BEGINS: [Instant; 3] = [
    Instant::ZERO,
    Instant::from_nanos((1 << 54) - 1_000_000_000),
    Instant::from_nanos((1 << 62) - 1_000_000_000),
];

impl Scenario {
    /// One diligent CPU that writes one block to a null device, with everything else at its default.
    #[must_use]
    pub fn plain() -> Self {
        Self {
            seed: 0,
            scheduler: policies::all()[0],
            options: String::new(),
            scope: None,
            access: Access::Combining,
            modes: Modes::default(),
            pump: PumpMode::Inline,
            pump_late: Nanos::ZERO,
            nr_requests: 0,
            device_depth: 0,
            nomerges: NoMerges::All,
            retries: 0,
            device: "null".into(),
            bounds: Bounds::default(),
            groups: 0,
            stats: StatsMode::default(),
            limited: 0,
            goals: 0,
            cpus: 1,
            credit: 64,
            ios: 1,
            habits: Habits::diligent(1),
            load: Load::PLAIN,
            costs: Costs::TYPICAL,
            meddling: Meddling::NONE,
            power: PowerCuts::NONE,
            begin: Instant::ZERO,
        }
    }

    /// The device, with nothing stored.
    ///
    /// # Errors
    /// If the registry does not know it.
    pub fn device(&self) -> Result<Device, DeviceError> {
        let mut device = devices::parse(&self.device, &MACHINE)?;
        self.bounds.apply(&mut device);
        Ok(device)
    }

    /// The policy's options.
    ///
    /// # Errors
    /// If the policy does not have them.
    pub fn options(&self) -> Result<Options, OptionError> {
        Options::parse(self.scheduler.attributes, &self.options)
    }

    /// The queue to build around `device`, which is this scenario's.
    ///
    /// # Panics
    /// If the scenario was built by hand and its options do not exist.
    #[must_use]
    pub fn config(&self, device: &Device) -> Config<Stamp> {
        let groups = self.group_tree();
        Config {
            scheduler: self.scheduler,
            options: self.options().expect("the options are the policy's"),
            // Goals take one elevator.
            scope: self.scope.filter(|_| !groups.has_goals()),
            nr_requests: Some(self.nr_requests).filter(|requests| *requests > 0),
            access: self.access,
            modes: self.modes,
            device_depth: DeviceDepth::of_number(self.device_depth),
            nomerges: self.nomerges,
            retries: self.retries,
            pump: self.pump,
            submitters: self.cpus,
            depth: self.credit,
            groups,
            stats: self.stats,
            forecast: self.load.deadlines.0 > 0,
            ..device.config()
        }
    }

    /// The tree of groups: each below the root or one before it, with a weight, and perhaps limits.
    fn group_tree(&self) -> GroupTree {
        let mut rng = Rng::new(self.seed ^ 0x0067_726f_7570);
        let group = |number: u16| GroupSpec {
            name: group_name(number),
            parent: match rng.below(2 * u64::from(number)) {
                below if below < u64::from(number) && below > 0 => group_name(below as u16),
                _ => "/".into(),
            },
            weight: 1 + rng.below(1000) as u32,
            max: some_limits(&mut rng, self.limited),
            promise: some_goal(&mut rng, self.goals),
        };
        GroupTree::of((1..=self.groups).map(group).collect()).expect("each is below an earlier one")
    }

    /// The virtual CPUs in life number `life` of the machine, for a device with these limits and a queue with these groups.
    #[must_use]
    pub fn plans(&self, limits: Limits, groups: &GroupTree, life: u32) -> Vec<Plan> {
        let mut ids = vec![GroupId::ROOT];
        ids.extend(groups.iter().map(|group| group.id));
        ids.sort_unstable_by_key(|id| id.index());
        (0..self.cpus)
            .map(|cpu| {
                let seed = self.seed ^ u64::from(cpu + 1) << 40 ^ u64::from(life) << 56;
                let place = Place { cpu, cpus: self.cpus, ios: self.ios, credit: self.credit };
                let client = LoadClient::new(self.load, limits, place, ids.clone(), seed);
                Plan { client: Box::new(client), habits: self.habits, seed: !seed }
            })
            .collect()
    }

    /// How late a CPU may come to a hardware queue, given its possible delays in between and in each of the polls that
    /// it may skip.
    #[must_use]
    pub fn slack(&self) -> Nanos {
        let turn = self.costs.most(u64::from(self.credit.next_power_of_two() + self.habits.batch));
        let away = self.habits.longest(self.costs.step).0;
        // The kernel's kicks can be postponed by the delay after a refusal.
        let put_off = match self.modes.kick {
            None | Some(KickMode::Coalesced) => Nanos::ZERO,
            Some(KickMode::Always | KickMode::Flag) => Nanos::from_millis(3),
        };
        Nanos(LET_PASS * (away + turn.0 + self.pump_late.0) + put_off.0)
    }

    /// A generous bound on the events of a life: it may be slow, but not endless.
    pub(crate) fn most_events(&self) -> u64 {
        20_000 + 1_000 * u64::from(self.cpus) * u64::from(self.ios)
    }
}

/// The name of group `number`, from 1 on.
pub(crate) fn group_name(number: u16) -> String {
    format!("g{number}")
}

/// A latency goal for one group in `one_in`; some are impossible, some cost nothing.
pub(crate) fn some_goal(rng: &mut Rng, one_in: u16) -> Promise {
    let promise = Promise::default();
    if one_in == 0 || !rng.chance(1, one_in.into()) {
        return promise;
    }
    let some = |rng: &mut Rng| if rng.chance(1, 2) { 1 << rng.below(20) } else { 0 };
    // Drawn from a copy of the generator, so that nothing else of a scenario depends on it.
    let sync = some(&mut rng.clone());
    let words = format!("p99_read={} p99_write={} p99_sync={sync}", some(rng), some(rng));
    promise.set(&words).expect("any number is possible")
}

/// Limits for one group in `one_in`; each kind of limit for every other of these.
pub(crate) fn some_limits(rng: &mut Rng, one_in: u16) -> IoMax {
    let mut max = IoMax::default();
    if one_in == 0 || !rng.chance(1, one_in.into()) {
        return max;
    }
    let mut some = |least: u64, bits: u64| rng.chance(1, 2).then(|| least << rng.below(bits));
    // With these figures a run takes seconds, and I/Os in flight have to wait.
    (max.rbps, max.wbps) = (some(1 << 20, 12), some(1 << 20, 12));
    (max.riops, max.wiops) = (some(200, 16), some(200, 16));
    (max.bps, max.iops) = (some(1 << 20, 12), some(200, 16));
    if rng.chance(1, 2) {
        let length = Nanos::from_millis(1 + rng.below(500));
        max.burst = Burst { thousandths: 1000 + rng.below(4000) as u32, length };
    }
    max
}
