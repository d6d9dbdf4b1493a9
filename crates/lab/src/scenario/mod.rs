//! A run with all its parameters: drawn from one seed, printed in one line and read back from it; and the I/Os of its
//! CPUs: every operation, in patterns that merge, collide and mix.
//!
//! The settings and the line are in `text.rs`. The values come from a seed (`draw`), a person, or a shrunk failure
//! (`shrink`). The load is not a realistic workload; those are in [`workload`](crate::workload). It searches for
//! unforeseen combinations.

mod text;

use crate::client::Memory;
use crate::{Client, Costs, Habits, Permille, Plan, PowerCuts, Stamp, Want, policies};
use blkmq_core::{
    Class, Deadline, GroupId, Instant, IoFlags, IoPrio, Limits, Nanos, Op, Owner, Payload as _,
    Rng, SECTOR_SIZE,
};
use blkmq_device::{Device, DeviceError, MachineShape, registry as devices};
use blkmq_engine::{
    Access, Burst, Config, DeviceDepth, GroupSpec, GroupTree, Io, IoMax, KickMode, Modes, NoMerges,
    Promise, PumpMode, StatsMode,
};
use blkmq_sched::{Factory, OptionError, Options, Scope};
pub use text::ScenarioError;
pub(crate) use text::{FIELDS, Field, Kind, STATS};

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

    /// The virtual CPUs in life number `life` of the machine, for a device with these limits and a queue with these
    /// groups.
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

/// The sectors of I/Os.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// Each CPU goes sequentially through its own region, next to that of the next CPU.
    Sequential,
    /// Each CPU takes every n-th block of one region, with n the number of CPUs, so that neighbours come from
    /// different CPUs.
    Interleaved,
    /// Each CPU goes backwards through its own region.
    Backwards,
    /// Anywhere in the common region.
    Random,
    /// Anywhere in the first few blocks, so that I/Os overlap.
    Hot,
}

impl Pattern {
    /// Every pattern, with its name.
    pub(crate) const ALL: [(&'static str, Self); 5] = [
        ("sequential", Self::Sequential),
        ("interleaved", Self::Interleaved),
        ("backwards", Self::Backwards),
        ("random", Self::Random),
        ("hot", Self::Hot),
    ];
}

/// Blocks of the hot spot.
const HOT: u64 = 16;

/// The common load of all CPUs of a scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// How the sectors of its I/Os are chosen.
    pub pattern: Pattern,
    /// Weights of reads, writes, flushes, discards and write-zeroes.
    pub ops: [u16; 5],
    /// Blocks of one CPU's region, at least 1; fewer if the device is too small.
    pub region: u64,
    /// The most blocks in an I/O.
    pub blocks: u32,
    /// Owners, at least 1; each I/O has one of them.
    pub owners: u32,
    /// I/Os have priorities of their own.
    pub prios: bool,
    /// The chance that an I/O has flags that bar merging.
    pub flags: Permille,
    /// The chance that an I/O has a deadline. If it is not 0, the queue forecasts.
    pub deadlines: Permille,
    /// The chance that a CPU pauses before an I/O.
    pub pause: Permille,
    /// The longest pause.
    pub pauses: Nanos,
    /// Blocks in each range of memory of a read or write; 0 if it has one range.
    pub range: u32,
}

impl Load {
    /// Sequential writes of one block each.
    const PLAIN: Self = Self {
        pattern: Pattern::Sequential,
        ops: [0, 1, 0, 0, 0],
        region: 4096,
        blocks: 1,
        owners: 1,
        prios: false,
        flags: Permille(0),
        deadlines: Permille(0),
        pause: Permille(0),
        pauses: Nanos::ZERO,
        range: 0,
    };

    /// Blocks behind the regions that an I/O may reach.
    fn beyond(&self) -> u64 {
        HOT + u64::from(self.blocks)
    }

    /// Sectors that a device must have for this load with `cpus` CPUs.
    pub(crate) fn needed(&self, cpus: u16, limits: &Limits) -> u64 {
        let block = u64::from(limits.logical_block_size / SECTOR_SIZE);
        (u64::from(cpus) + self.beyond()) * block
    }

    /// This load with regions that fit.
    fn within(self, cpus: u16, limits: &Limits) -> Self {
        let blocks = limits.capacity / u64::from(limits.logical_block_size / SECTOR_SIZE);
        let most = blocks.saturating_sub(self.beyond()) / u64::from(cpus);
        Self { region: self.region.min(most).max(1), ..self }
    }
}

/// In the order of the weights.
const OPS: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

/// A CPU's number among all CPUs, and its share of the load.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) cpu: u16,
    pub(crate) cpus: u16,
    /// I/Os to submit.
    pub(crate) ios: u32,
    /// Parts that an I/O may have.
    pub(crate) credit: u32,
}

/// The client of one CPU under a [`Load`].
pub(crate) struct LoadClient {
    load: Load,
    limits: Limits,
    /// The root, and the other groups: each I/O is of one of them.
    groups: Vec<GroupId>,
    rng: Rng,
    cpu: u64,
    cpus: u64,
    /// Parts that an I/O may have.
    credit: u32,
    /// I/Os still to be submitted.
    left: u32,
    /// Blocks submitted so far, for the patterns that go through their region.
    cursor: u64,
    paused: Option<Instant>,
}

impl LoadClient {
    /// The client of a CPU for a device with these limits.
    pub(crate) fn new(
        load: Load,
        limits: Limits,
        place: Place,
        groups: Vec<GroupId>,
        seed: u64,
    ) -> Self {
        let Place { cpu, cpus, ios, credit } = place;
        Self {
            load: load.within(cpus, &limits),
            limits,
            groups,
            rng: Rng::new(seed),
            cpu: cpu.into(),
            cpus: cpus.into(),
            credit,
            left: ios,
            cursor: 0,
            paused: None,
        }
    }

    /// Shortens an I/O of at most this many sectors, at this position, to at most `most` parts.
    fn within_parts(&self, most: u32, (op, sector, sectors): (Op, u64, u32)) -> u32 {
        let range = self.load.range * (self.limits.logical_block_size / SECTOR_SIZE);
        let most = most as usize;
        if range == 0 || !matches!(op, Op::Read | Op::Write) {
            let parts = self.limits.parts(op, sector, sectors);
            return parts.take(most).map(|(_, sectors)| sectors).sum();
        }
        let stamp = Stamp::of(&Io::new(op, sector, sectors, 0, 0), Memory { stores: false, range });
        let parts = self.limits.parts_of_list(op, sector, sectors, stamp.ranges());
        let blocks = parts.map(|part| part.expect("ranges of whole blocks can be divided"));
        blocks.take(most).map(|(_, sectors)| sectors).sum()
    }

    fn op(&mut self) -> Op {
        let all: u64 = self.load.ops.iter().map(|weight| u64::from(*weight)).sum();
        let mut at = self.rng.below(all);
        for (op, weight) in OPS.into_iter().zip(self.load.ops) {
            match at.checked_sub(weight.into()) {
                Some(rest) => at = rest,
                None => return op,
            }
        }
        Op::Read
    }

    /// The first block of the next I/O, of `blocks` blocks.
    fn place(&mut self, blocks: u64) -> u64 {
        let Load { pattern, region, .. } = self.load;
        let at = self.cursor % region;
        self.cursor += if pattern == Pattern::Interleaved { 1 } else { blocks };
        match pattern {
            Pattern::Sequential => self.cpu * region + at,
            Pattern::Interleaved => at * self.cpus + self.cpu,
            Pattern::Backwards => (self.cpu + 1) * region - 1 - at,
            Pattern::Random => self.rng.below(self.cpus * region),
            Pattern::Hot => self.rng.below(HOT),
        }
    }

    fn io(&mut self) -> Io<u64> {
        let mut op = self.op();
        if op == Op::Flush {
            return Io::new(op, 0, 0, 0, 0);
        }
        if self.limits.max_sectors_of(op) == 0 {
            op = Op::Write;
        }
        let block = self.limits.logical_block_size / SECTOR_SIZE;
        let wanted = match self.load.pattern {
            Pattern::Interleaved => 1,
            _ => 1 + self.rng.below(self.load.blocks.into()),
        };
        let sector = self.place(wanted) * u64::from(block);
        let sectors = self.within_parts(self.credit, (op, sector, wanted as u32 * block));
        let mut io = Io::new(op, sector, sectors, 0, 0);
        io.owner = Owner(self.rng.below(self.load.owners.into()) as u32);
        if self.groups.len() > 1 {
            io.group = self.groups[self.rng.below(self.groups.len() as u64) as usize];
        }
        if self.load.prios {
            let classes = [Class::None, Class::Realtime, Class::BestEffort, Class::Idle];
            let class = classes[self.rng.below(4) as usize];
            let level = self.rng.below(2) as u16;
            io.ioprio = IoPrio::new(class, level).expect("0 and 1 are levels");
        }
        if self.load.flags.strikes(&mut self.rng) {
            let both = IoFlags::FUA | IoFlags::PREFLUSH;
            let (alone, sync) = (IoFlags::NOMERGE, IoFlags::SYNC);
            let flags = [alone, IoFlags::FUA, IoFlags::PREFLUSH, both, sync, IoFlags::NOWAIT];
            io.flags = flags[self.rng.below(flags.len() as u64) as usize];
        }
        if io.flags.contains(IoFlags::NOWAIT) {
            io.sectors = self.within_parts(1, (op, sector, io.sectors));
        }
        if self.load.deadlines.strikes(&mut self.rng) {
            // From a microsecond to a second.
            let within = Nanos::from_micros(1 << self.rng.below(21));
            let serves = self.rng.chance(1, 4);
            io.deadline = if serves { Deadline::serve(within) } else { Deadline::reject(within) };
        }
        io
    }
}

impl Client for LoadClient {
    fn next(&mut self, now: Instant, _in_flight: u32) -> Want {
        if self.left == 0 {
            return Want::Nothing;
        }
        if self.paused.is_none() && self.load.pause.strikes(&mut self.rng) {
            self.paused = Some(now + Nanos(self.rng.below(self.load.pauses.0 + 1)));
        }
        if let Some(until) = self.paused.filter(|until| *until > now) {
            return Want::At(until);
        }
        self.paused = None;
        self.left -= 1;
        Want::Io(self.io())
    }
}
