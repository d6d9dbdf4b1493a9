//! Reads the counts of a server, and which export waited behind which. Each queue is read once, so that the figures of
//! exports and device refer to the same moment.

use crate::figures::{
    Bounded, Condition, Counting, DeviceStat, ExportStat, Figures, FloorStat, Held, Stages, Stat,
    Times, bounded, goals,
};
use crate::worker::Shared;
use blkmq::engine::GoalsStatus;
use blkmq::engine::attributes::SetAttributeError;
use blkmq::{
    ChangeError, Clock, FloorCause, FloorReport, Group, GroupIndex, Instant, IoTimes, Latencies,
    Nanos, Outstanding, Place, Plan, QueueTimes,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The attribute that enables counting.
const IOSTATS: &str = "queue/iostats";
/// How long a request waits for a device that is being changed. After that, counting begins with a later request.
const PATIENCE: Nanos = Nanos::from_millis(100);

/// Enables counting where it is off, unless the server must not count.
pub(crate) fn begin(shared: &Shared) -> Result<(), String> {
    for disk in &shared.disks {
        let service = disk.service();
        if service.queue().plan().stats.times {
            continue;
        }
        if shared.counting == Counting::Never {
            return Err(format!(
                "the server does not count (stats=never); accepted: blkmqctl set {IOSTATS} 1"
            ));
        }
        let clock = Clock::start();
        let goes_on = || clock.now() - Instant::ZERO < PATIENCE;
        match service.set_attribute_while(IOSTATS, "1", &goes_on) {
            Ok(_) | Err(SetAttributeError::Change(ChangeError::Busy)) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

struct Read {
    times: QueueTimes,
    plan: Plan,
    goals: Option<GoalsStatus>,
    held: BTreeMap<GroupIndex, Held>,
}

/// The counts so far. Figures that were not counted are 0.
pub(crate) fn counts(shared: &Shared) -> Stat {
    let mut stat = Stat::default();
    let mut read: Vec<Read> = Vec::new();
    for disk in &shared.disks {
        let queue = disk.service().queue();
        let (times, goals) = (queue.times(), queue.goals());
        let now = disk.service().clock().now();
        stat.at = now.as_nanos();
        let plan = queue.plan();
        let outstanding = disk.outstanding(now);
        let held = held(&outstanding, now);
        let oldest = held.values().map(|held| held.oldest).max().unwrap_or(0);
        let kept = outstanding.iter().filter(|one| one.place != Place::Elevator);
        let kept = kept.map(|one| now.since(one.since).0).max().unwrap_or(0);
        let device = DeviceStat::of(disk.name(), plan.scheduler.name, &times);
        stat.devices.push(DeviceStat { oldest, kept, bounded: bounded(goals.as_ref()), ..device });
        read.push(Read { times, plan, goals, held });
    }
    for export in shared.exports.now().all() {
        let Read { times, plan, goals: status, held } = &read[export.disk];
        let id = export.group.id();
        let (of, group) = (times.group(id), plan.groups.get(id));
        stat.exports.push(ExportStat {
            name: export.info.name.clone(),
            device: export.disk + 1,
            weight: group.map_or(0, |group| group.weight),
            max: group.map(|group| group.max.to_string()).unwrap_or_default(),
            promise: group.map(|group| group.promise.to_string()).unwrap_or_default(),
            condition: Condition::default(),
            connections: export.connections(),
            figures: figures(&of),
            stages: stages(&of),
            charged: of.iter().map(|times| times.charged).sum(),
            errors: of.each_ref().map(|times| times.errors),
            held: held.get(&id.index()).copied().unwrap_or_default(),
            short_time: times.shortfall(id),
            floor: floor(group, times.floor(id)),
            goals: goals(status.as_ref(), id.index()),
        });
    }
    let by_weight = Vec::from_iter(read.iter().map(|read| read.plan.shares_by_group()));
    shared.judge.judge(&mut stat, &by_weight);
    stat
}

/// The unfinished requests at `now`, by group.
fn held(all: &[Outstanding], now: Instant) -> BTreeMap<GroupIndex, Held> {
    let mut groups = BTreeMap::<_, Held>::new();
    for one in all {
        let held = groups.entry(one.group).or_default();
        match one.place {
            Place::Elevator => {
                held.waiting += 1;
                held.waited = held.waited.max(now.since(one.since).0);
            }
            Place::HardwareQueue | Place::Device => held.in_flight += 1,
        }
        held.oldest = held.oldest.max(now.since(one.since).0);
    }
    groups
}

pub(super) fn floor(group: Option<&Group>, report: Option<&FloorReport>) -> FloorStat {
    let promised = group.and_then(|group| group.promise.floor()).unwrap_or_default();
    let Some(report) = report else { return FloorStat { promised, ..FloorStat::default() } };
    let missed = FloorCause::ALL.into_iter().zip(report.causes).filter(|(_, count)| *count > 0);
    FloorStat {
        promised,
        state: report.state.name().to_owned(),
        seconds: report.seconds,
        missed: missed.map(|(cause, count)| (cause.name().to_owned(), count)).collect(),
    }
}

impl DeviceStat {
    /// The counts of a queue, for a device with this name and scheduler.
    #[must_use]
    pub fn of(name: &str, scheduler: &str, times: &QueueTimes) -> Self {
        let all = times.all();
        Self {
            name: name.to_owned(),
            scheduler: scheduler.to_owned(),
            figures: figures(&all),
            stages: stages(&all),
            errors: all.each_ref().map(|times| times.errors),
            flushes: times.flushes,
            flush_time: times.flush_time,
            in_flight: [times.reads_in_flight, times.others_in_flight],
            busy_time: times.busy,
            waiting: times.waiting,
            oldest: 0,
            kept: 0,
            bounded: Bounded::new(),
            condition: Condition::default(),
        }
    }
}

fn figures(of: &[IoTimes; 4]) -> Figures {
    let each = |f: fn(&IoTimes) -> u64| [f(&of[0]), f(&of[1]), f(&of[2])];
    Figures {
        ios: each(|it| it.ios),
        bytes: each(|it| it.bytes),
        merged: each(|it| it.merged),
        wait: each(before_device),
        service: each(|it| it.device),
    }
}

fn before_device(it: &IoTimes) -> u64 {
    it.slot + it.policy + it.tag
}

fn stages(of: &[IoTimes; 4]) -> Stages {
    let sums = |f: fn(&IoTimes) -> u64| {
        of.each_ref().map(|it| Times { count: it.ios, sum: f(it), buckets: Vec::new() })
    };
    let whole = |f: fn(&IoTimes) -> u64, times: fn(&IoTimes) -> &Latencies| {
        let one = |it| Times { buckets: times(it).buckets().collect(), count: it.ios, sum: f(it) };
        of.each_ref().map(one)
    };
    Stages {
        slot: sums(|it| it.slot),
        policy: sums(|it| it.policy),
        tag: sums(|it| it.tag),
        queue: whole(before_device, |it| &it.queue_times),
        device: whole(|it| it.device, |it| &it.device_times),
        total: whole(|it| before_device(it) + it.device, |it| &it.total_times),
    }
}

/// Times so far, which only grow while counting is on.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Waits {
    /// The server's time in nanoseconds.
    pub at: u64,
    /// Sorted by device, then by group.
    pub waits: Vec<ExportWait>,
}

/// The time for which I/Os of an export waited behind I/Os of another export, or of the same one
/// ([`Queue::waits`](blkmq::Queue::waits)).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExportWait {
    /// The number of the device, from 1.
    pub device: usize,
    /// The export that waited. `/` stands for removed exports.
    pub export: String,
    /// The export that had requests at the device; `None` while the device was idle.
    pub behind: Option<String>,
    /// The duration in nanoseconds.
    pub time: u64,
}

/// The times so far.
pub(crate) fn waits(shared: &Shared) -> Waits {
    let mut found = Waits::default();
    let exports = shared.exports.now();
    for (at, disk) in shared.disks.iter().enumerate() {
        let of_disk = exports.all().filter(|export| export.disk == at);
        let named = of_disk.map(|export| (export.group.id().index(), export.info.name.as_str()));
        let names: BTreeMap<_, _> = named.collect();
        let name = |group| names.get(&group).map_or("/", |name| *name).to_owned();
        let waits = disk.service().queue().waits().into_iter();
        found.waits.extend(waits.map(|wait| ExportWait {
            device: at + 1,
            export: name(wait.waiting),
            behind: wait.behind.map(name),
            time: wait.time.0,
        }));
        found.at = disk.service().clock().now().as_nanos();
    }
    found
}
