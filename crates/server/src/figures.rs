//! The counts of a server at a moment: what `stat`, the metrics and the page show, with the condition of each export
//! and device, as a word with a reason, and the state of promises.
//!
//! The counts only grow while counting is on, except where stated otherwise. `control/answer.rs` takes them. [`Judge`]
//! finds the conditions from the counts of the last seconds: each reading of the counts is compared with earlier
//! readings, whichever client requested them. A server that counts also takes a reading once a second.

use crate::locked;
use blkmq::engine::GoalsStatus;
use blkmq::sched::{GoalReport, Taken};
use blkmq::{FloorCause, GroupIndex, SECTOR_SIZE};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Mutex;

/// Counts so far.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stat {
    /// The server's time in nanoseconds.
    pub at: u64,
    /// Exports, in the order given.
    pub exports: Vec<ExportStat>,
    /// Devices, by number.
    pub devices: Vec<DeviceStat>,
}

/// Counts of an export.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ExportStat {
    /// Its name.
    pub name: String,
    /// The number of its device, from 1.
    pub device: usize,
    /// The present weight.
    pub weight: u32,
    /// The present limits, in the form of [`ExportSettings::max`](crate::control::ExportSettings::max).
    pub max: String,
    /// The present floor, ceiling and goals, in the form of
    /// [`ExportSettings::promise`](crate::control::ExportSettings::promise).
    pub promise: String,
    /// The condition.
    pub condition: Condition,
    /// The present number of connections that have agreed on it.
    pub connections: usize,
    /// Requests.
    pub figures: Figures,
    /// The stages of their time.
    pub stages: Stages,
    /// Nanoseconds of device time charged to its requests ([`IoTimes::charged`](blkmq::IoTimes::charged)); compared
    /// with those of the other exports of the device, the share that weights control.
    pub charged: u64,
    /// Nanoseconds in which it had unfinished requests ([`IoTimes::busy`](blkmq::IoTimes::busy)).
    pub busy: u64,
    /// Failed requests: reads, writes, discards and flushes.
    pub errors: [u64; 4],
    /// The unfinished requests at present.
    pub held: Held,
    /// The shortfall from its floor in seconds in which it always had requests, in nanoseconds: half a floor for a
    /// second gives half a second.
    pub short_time: u64,
    /// How well its floor was kept.
    pub floor: FloorStat,
    /// Its latency goals, reads first.
    pub goals: Vec<GoalStat>,
}

/// Unfinished requests, excluding those delayed by a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Held {
    /// Requests issued by the scheduler.
    pub in_flight: u64,
    /// Requests in the scheduler or waiting for a slot.
    pub waiting: u64,
    /// The age of the oldest in nanoseconds.
    pub oldest: u64,
    /// The age of the oldest waiting request in nanoseconds.
    pub waited: u64,
}

/// Counts of a device: the sums over its exports, and counts that only exist for the device.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeviceStat {
    /// Its description.
    pub name: String,
    /// The name of its present scheduler.
    pub scheduler: String,
    /// Requests.
    pub figures: Figures,
    /// The stages of their time.
    pub stages: Stages,
    /// Failed requests: reads, writes, discards and flushes.
    pub errors: [u64; 4],
    /// Flushes sent to the device, each of which may serve many requests.
    pub flushes: u64,
    /// The total time of these flushes at the device, in nanoseconds.
    pub flush_time: u64,
    /// The present number of issued and unfinished requests: reads, and all others.
    pub in_flight: [u64; 2],
    /// Nanoseconds with at least one such request.
    pub busy_time: u64,
    /// The present number of I/Os that wait for a slot or in the scheduler.
    pub waiting: u64,
    /// The age of the oldest unfinished request, in nanoseconds.
    pub oldest: u64,
    /// The age of the oldest request at the device, in nanoseconds.
    pub kept: u64,
    /// The present bounds for latency goals.
    pub bounded: Bounded,
    /// The condition.
    pub condition: Condition,
}

/// Counts of requests as in iostat, each for reads, writes and discards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Completed requests.
    pub ios: [u64; 3],
    /// Their bytes.
    pub bytes: [u64; 3],
    /// I/Os merged into existing requests.
    pub merged: [u64; 3],
    /// The total time that requests waited for the device, in nanoseconds.
    pub wait: [u64; 3],
    /// The total time that requests were at the device, in nanoseconds.
    pub service: [u64; 3],
}

impl Figures {
    /// The growth since `earlier`, a previous reading of the same figures.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let each = |of: fn(&Self) -> &[u64; 3]| {
            std::array::from_fn(|at| of(self)[at].saturating_sub(of(earlier)[at]))
        };
        Self {
            ios: each(|it| &it.ios),
            bytes: each(|it| &it.bytes),
            merged: each(|it| &it.merged),
            wait: each(|it| &it.wait),
            service: each(|it| &it.service),
        }
    }
}

/// The times of completed requests by stage, each for reads, writes, discards and flushes.
///
/// `slot`, `policy` and `tag` are the parts of `queue`; `queue` and `device` are the parts of `total`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stages {
    /// From arrival until the request got a slot (a scheduler tag). Sums only.
    pub slot: [Times; 4],
    /// In the scheduler, which delayed the request or issued others first. Sums only.
    pub policy: [Times; 4],
    /// In the scheduler, while no driver tag or no room at the device was available. Sums only.
    pub tag: [Times; 4],
    /// From arrival until the scheduler picked the request.
    pub queue: [Times; 4],
    /// From the pick until the completion was reaped from the device.
    pub device: [Times; 4],
    /// From arrival until the completion was reaped.
    pub total: [Times; 4],
}

/// A distribution of times.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Times {
    /// The number of times.
    pub count: u64,
    /// Their sum in nanoseconds.
    pub sum: u64,
    /// Buckets in ascending order: the longest time of a bucket in nanoseconds, and the number of times in it. Empty
    /// buckets are omitted. There are no buckets where only sums are counted.
    pub buckets: Vec<(u64, u64)>,
}

impl Times {
    /// The times added since `earlier`, a previous reading of the same distribution.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut before = earlier.buckets.iter().peekable();
        let mut buckets = Vec::with_capacity(self.buckets.len());
        for &(upper, count) in &self.buckets {
            while before.next_if(|(old, _)| *old < upper).is_some() {}
            let old = before.next_if(|(old, _)| *old == upper).map_or(0, |(_, count)| *count);
            if count > old {
                buckets.push((upper, count - old));
            }
        }
        Self {
            count: self.count.saturating_sub(earlier.count),
            sum: self.sum.saturating_sub(earlier.sum),
            buckets,
        }
    }

    /// The quantile `q`, from 0.0 to 1.0, of the times in nanoseconds, rounded up to the end of its bucket; `None`
    /// without buckets.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let all: u64 = self.buckets.iter().map(|(_, count)| count).sum();
        let wanted = (q.clamp(0.0, 1.0) * all as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let reaches = |(_, count): &&(u64, u64)| {
            seen += count;
            seen >= wanted
        };
        self.buckets.iter().find(reaches).map(|(upper, _)| *upper)
    }
}

/// The condition of an export or a device. If several apply, the last in this order is reported.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// There are no requests, and none has ended recently.
    #[default]
    Idle,
    /// Requests are being served.
    Served,
    /// The export nearly always had several requests, and used less of the device than is due to its weight.
    ShareMissed,
    /// One of its latency goals is missed.
    GoalMissed,
    /// Its floor is missed.
    FloorMissed,
    /// Its requests have waited for a second or more: other exports use what is due to it, or have precedence.
    Starved,
    /// Requests have failed.
    Errors,
    /// The device holds requests and completes none.
    Stuck,
}

impl State {
    /// All states.
    pub const ALL: [Self; 8] = [
        Self::Idle,
        Self::Served,
        Self::ShareMissed,
        Self::GoalMissed,
        Self::FloorMissed,
        Self::Starved,
        Self::Errors,
        Self::Stuck,
    ];

    /// The name on screens and in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Served => "served",
            Self::ShareMissed => "share-missed",
            Self::GoalMissed => "goal-missed",
            Self::FloorMissed => "floor-missed",
            Self::Starved => "starved",
            Self::Errors => "errors",
            Self::Stuck => "stuck",
        }
    }

    /// Returns whether nothing is wrong.
    #[must_use]
    pub fn is_well(self) -> bool {
        self <= Self::Served
    }
}

/// A state and its reason.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Condition {
    /// The state over the last five seconds.
    pub state: State,
    /// The reason; empty if nothing is wrong.
    pub why: String,
}

/// How well the floor of an export was kept, judged by the completions in each second in which it always had requests
/// outstanding.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FloorStat {
    /// The present floor, such as `200 IOPS`; empty if there is none.
    pub promised: String,
    /// The state in the last second: `idle`, `kept`, `missed` or `infeasible`; empty if it was never judged.
    pub state: String,
    /// The number of seconds judged.
    pub seconds: u64,
    /// The number of seconds in which it completed less, by cause: `ceiling`, `slots`, `goal`, `device`, `depth` or
    /// `infeasible`.
    pub missed: BTreeMap<String, u64>,
}

impl FloorStat {
    /// The seconds judged since `before`, those in which the floor was missed, and the most frequent cause.
    #[must_use]
    pub fn since(&self, before: &Self) -> (u64, u64, Option<FloorCause>) {
        let grown = |cause: &FloorCause| {
            let of = |it: &Self| it.missed.get(cause.name()).copied().unwrap_or(0);
            of(self).saturating_sub(of(before))
        };
        let most = FloorCause::ALL.into_iter().max_by_key(grown).filter(|cause| grown(cause) > 0);
        let missed = FloorCause::ALL.iter().map(grown).sum();
        (self.seconds.saturating_sub(before.seconds), missed, most)
    }
}

/// A latency goal of an export. Times are in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GoalStat {
    /// The word that sets it, such as `p99_read`.
    pub word: String,
    /// The target.
    pub target: u64,
    /// `idle`, `unknown`, `met`, `missed`, `own-backlog` or `infeasible`.
    pub state: String,
    /// The 99th percentile in the last window judged, at most 25 % above the true one; 0 before the first.
    pub p99: u64,
    /// The number of windows judged.
    pub windows: u64,
    /// The number of windows in which it was missed.
    pub missed: u64,
}

impl GoalStat {
    fn of(report: &GoalReport) -> Self {
        Self {
            word: report.kind.word().to_owned(),
            target: report.goal.0,
            state: report.state.name().to_owned(),
            p99: report.p99.0,
            windows: report.windows,
            missed: report.missed,
        }
    }

    /// Returns whether the goal is missed.
    #[must_use]
    pub fn is_missed(&self) -> bool {
        matches!(self.state.as_str(), "missed" | "own-backlog" | "infeasible")
    }
}

/// The goals of a group, reads first.
pub(crate) fn goals(status: Option<&GoalsStatus>, group: GroupIndex) -> Vec<GoalStat> {
    let all = status.into_iter().flat_map(|status| &status.goals);
    all.filter(|report| report.group == group).map(GoalStat::of).collect()
}

/// The present bounds for latency goals on exports without a goal, by kind: `length` (bytes of a request), `depth`
/// (requests at the device), and bytes per second, with 16 KiB added for each request, of exports that are `lighter`
/// than the lightest export with a goal, as heavy (`equal`), or `heavier`. Empty if nothing is bounded.
pub type Bounded = BTreeMap<String, u64>;

pub(crate) fn bounded(status: Option<&GoalsStatus>) -> Bounded {
    let Some(Taken { sectors, device_depth, rates: [lighter, equal, heavier] }) =
        status.map(|status| status.taken)
    else {
        return Bounded::new();
    };
    let all = [
        ("length", sectors.map(|it| u64::from(it) * u64::from(SECTOR_SIZE))),
        ("depth", device_depth.map(u64::from)),
        ("lighter", lighter),
        ("equal", equal),
        ("heavier", heavier),
    ];
    let there = all.into_iter().filter_map(|(name, bound)| Some((name.to_owned(), bound?)));
    there.collect()
}

/// When a server counts requests and the stages of their time (the attribute `queue/iostats` of its devices).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Counting {
    /// From the first request for the counts.
    #[default]
    Asked,
    /// From the start.
    Always,
    /// Never; requests for the counts are refused.
    Never,
}

const SECOND: u64 = 1_000_000_000;
/// The maximum age of the readings compared, in nanoseconds.
const WINDOW: u64 = 5 * SECOND;
/// The minimum distance of two readings that are kept, in nanoseconds.
const APART: u64 = SECOND / 2;
/// A device is stuck if it has completed nothing for this long, and holds a request for as long; in nanoseconds.
const STUCK: u64 = 2 * SECOND;
/// A wait of this length or more counts as long, in nanoseconds.
const LONG: u64 = SECOND;
/// The period over which shares are judged, in nanoseconds: schedulers alternate between exports.
const TURNS: u64 = 3 * SECOND;
/// The requests of an export that the device may always have, whatever is due to others: one in service, one behind it.
const ALWAYS: u64 = 2;

/// The readings that were kept, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Judge(Mutex<VecDeque<Reading>>);

#[derive(Debug)]
struct Reading {
    at: u64,
    /// The number of completed requests of each device.
    ended: Vec<u64>,
    exports: BTreeMap<String, Seen>,
}

/// The counts of an export.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    ended: u64,
    charged: u64,
    busy: u64,
    /// The time before the device, and at it, of its completed requests.
    queued: u64,
    at_device: u64,
    errors: u64,
    missed: u64,
}

/// Whether an export nearly always had requests that a scheduler could prefer or hold back, in ascending order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Asks {
    /// No request waited, and the device had at most [`ALWAYS`] requests; or the export often had no request.
    Few,
    /// The device had all of its requests.
    AtDevice,
    /// Requests waited.
    Waiting,
}

impl Asks {
    fn new(waiting: u64, in_flight: u64) -> Self {
        match (waiting, in_flight) {
            (0, ..=ALWAYS) => Self::Few,
            (0, _) => Self::AtDevice,
            _ => Self::Waiting,
        }
    }
}

impl Seen {
    fn of(one: &ExportStat) -> Self {
        Self {
            ended: one.stages.total.iter().map(|times| times.count).sum(),
            charged: one.charged,
            busy: one.busy,
            queued: sum(&one.stages.queue),
            at_device: sum(&one.stages.device),
            errors: one.errors.iter().sum(),
            missed: one.floor.missed.values().sum(),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            ended: self.ended.saturating_sub(before.ended),
            charged: self.charged.saturating_sub(before.charged),
            busy: self.busy.saturating_sub(before.busy),
            queued: self.queued.saturating_sub(before.queued),
            at_device: self.at_device.saturating_sub(before.at_device),
            errors: self.errors.saturating_sub(before.errors),
            missed: self.missed.saturating_sub(before.missed),
        }
    }
}

fn ended(device: &DeviceStat) -> u64 {
    device.stages.total.iter().map(|times| times.count).sum()
}

/// The sum of the times of all kinds.
fn sum(stage: &[Times; 4]) -> u64 {
    stage.iter().map(|times| times.sum).sum()
}

impl Judge {
    /// Sets the condition of each export and device of `stat`. `by_weight` says which devices have schedulers that
    /// share by weight.
    pub(crate) fn judge(&self, stat: &mut Stat, by_weight: &[bool]) {
        let mut readings = locked(&self.0);
        // A reading of another thread may be slightly more recent.
        let at = readings.back().map_or(stat.at, |last| last.at.max(stat.at));
        while readings.get(1).is_some_and(|second| at - second.at >= WINDOW) {
            readings.pop_front();
        }
        if readings.front().is_some_and(|first| at - first.at >= 2 * WINDOW) {
            readings.clear();
        }
        let window = Window::new(&readings, stat, at);
        let devices = Vec::from_iter((0..).zip(&stat.devices).map(|(n, it)| window.device(n, it)));
        let of = |one: &ExportStat| window.export(one, stat, by_weight);
        let exports = Vec::from_iter(stat.exports.iter().map(of));
        if readings.back().is_none_or(|last| at - last.at >= APART) {
            let seen = stat.exports.iter().map(|one| (one.name.clone(), Seen::of(one)));
            let ended = stat.devices.iter().map(ended).collect();
            readings.push_back(Reading { at, ended, exports: seen.collect() });
        }
        stat.devices.iter_mut().zip(devices).for_each(|(one, found)| one.condition = found);
        stat.exports.iter_mut().zip(exports).for_each(|(one, found)| one.condition = found);
    }
}

/// The time from the oldest reading to now.
struct Window<'a> {
    readings: &'a VecDeque<Reading>,
    /// The length in nanoseconds.
    length: u64,
    at: u64,
    /// The growth of the counts of each export in the window.
    exports: BTreeMap<&'a str, Seen>,
}

impl<'a> Window<'a> {
    fn new(readings: &'a VecDeque<Reading>, stat: &Stat, at: u64) -> Self {
        let mut exports = BTreeMap::new();
        let first = readings.front();
        let before = first.into_iter().flat_map(|first| &first.exports);
        for (name, before) in before {
            if let Some(one) = stat.exports.iter().find(|one| one.name == *name) {
                exports.insert(name.as_str(), Seen::of(one).since(*before));
            }
        }
        let length = first.map_or(0, |first| at - first.at);
        Self { readings, length, at, exports }
    }

    fn of(&self, one: &ExportStat) -> Seen {
        self.exports.get(one.name.as_str()).copied().unwrap_or_default()
    }

    /// Returns for how many nanoseconds of the window the device has completed nothing.
    fn silent(&self, number: usize, device: &DeviceStat) -> u64 {
        let now = ended(device);
        let same = |reading: &&Reading| reading.ended.get(number) == Some(&now);
        let last = self.readings.iter().rev().take_while(same).last();
        last.map_or(0, |reading| self.at - reading.at)
    }

    /// Returns why a device is stuck, or `None` if it is not.
    fn stuck(&self, number: usize, device: &DeviceStat) -> Option<Condition> {
        if device.kept < STUCK || self.silent(number, device) < STUCK {
            return None;
        }
        let (count, seconds) = (device.in_flight.iter().sum::<u64>(), device.kept / SECOND);
        let why = format!("the device keeps {} for {seconds} s and answers none", requests(count));
        Some(Condition { state: State::Stuck, why })
    }

    fn device(&self, number: usize, device: &DeviceStat) -> Condition {
        if let Some(stuck) = self.stuck(number, device) {
            return stuck;
        }
        let before = self.readings.front().and_then(|first| first.ended.get(number));
        let came = before.is_some_and(|before| *before < ended(device));
        let is_there = device.waiting + device.in_flight.iter().sum::<u64>() > 0;
        served(is_there || came)
    }

    fn export(&self, one: &ExportStat, stat: &Stat, by_weight: &[bool]) -> Condition {
        let number = one.device.wrapping_sub(1);
        let Some(device) = stat.devices.get(number) else { return Condition::default() };
        let is_there = one.held.in_flight + one.held.waiting > 0;
        if let Some(stuck) = self.stuck(number, device).filter(|_| is_there) {
            return stuck;
        }
        let came = self.of(one);
        if came.errors > 0 {
            let seconds = self.length.div_ceil(SECOND);
            let why = format!("{} failed in {seconds} s", requests(came.errors));
            return Condition { state: State::Errors, why };
        }
        let rivals = Vec::from_iter(stat.exports.iter().filter(|it| it.device == one.device));
        let share = self.share(one, &rivals, by_weight.get(number) == Some(&true));
        let found = starved(one, device, &rivals, share).or_else(|| missed(one, came));
        found.or_else(|| missed_share(device, share)).unwrap_or(served(is_there || came.ended > 0))
    }

    /// The demand of an export in the window. A slow client in a closed loop often has no request here, whatever its
    /// depth.
    fn asks(&self, one: &ExportStat) -> Asks {
        let came = self.of(one);
        let most = self.length / 10 * 9;
        if self.length == 0 || came.busy.max(one.held.oldest) < most {
            return Asks::Few;
        }
        // The sum of the times of requests, divided by the length, is the mean number of requests.
        let mean = Asks::new(came.queued / self.length, came.at_device / self.length);
        let now = Asks::new(one.held.waiting, one.held.in_flight);
        if one.held.oldest < most { mean } else { mean.max(now) }
    }

    /// The shares of the device that an export has used and that are due to it by weight, if it nearly always had
    /// several requests and weights decide.
    fn share(&self, one: &ExportStat, rivals: &[&ExportStat], by_weight: bool) -> Option<Share> {
        let asks = self.asks(one);
        let has_floor = rivals.iter().any(|it| !it.floor.promised.is_empty());
        let is_judged = by_weight && asks > Asks::Few && self.length >= TURNS;
        if !is_judged || has_floor || is_limited(one) {
            return None;
        }
        let is_active =
            |it: &&&ExportStat| self.of(it).charged + it.held.waiting + it.held.in_flight > 0;
        let sum = |of: &dyn Fn(&ExportStat) -> u64| {
            rivals.iter().filter(is_active).map(|it| of(it)).sum::<u64>()
        };
        let all = sum(&|it| self.of(it).charged);
        let weights = sum(&|it| it.weight.into());
        (all > 0).then(|| Share {
            has: percent(self.of(one).charged, all),
            due: percent(one.weight.into(), weights),
            asks,
        })
    }
}

/// The share of a device that an export has used and that is due to it, in percent.
#[derive(Clone, Copy)]
struct Share {
    has: u64,
    due: u64,
    asks: Asks,
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it has {} % of the device, and is due {} %", self.has, self.due)
    }
}

fn requests(count: u64) -> String {
    if count == 1 { "1 request".to_owned() } else { format!("{count} requests") }
}

fn percent(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 100 / u128::from(whole)) as u64
}

fn served(is_used: bool) -> Condition {
    let state = if is_used { State::Served } else { State::Idle };
    Condition { state, why: String::new() }
}

/// Returns whether a ceiling may delay I/Os of the export.
fn is_limited(one: &ExportStat) -> bool {
    let max = one
        .max
        .split_whitespace()
        .any(|word| !word.starts_with("burst") && !word.ends_with("=max"));
    let limits = one.promise.split_whitespace().filter(|word| word.starts_with("limit_"));
    max || limits.into_iter().any(|word| !word.ends_with("=0"))
}

fn starved(
    one: &ExportStat,
    device: &DeviceStat,
    rivals: &[&ExportStat],
    share: Option<Share>,
) -> Option<Condition> {
    if one.held.waiting == 0 || one.held.waited < LONG {
        return None;
    }
    let waits = time(one.held.waited);
    let preferred = rivals.iter().filter(|it| it.goals.iter().any(is_tried));
    let preferred = Vec::from_iter(preferred.map(|it| it.name.as_str()));
    let why = if !device.bounded.is_empty() && one.goals.is_empty() && !preferred.is_empty() {
        let names = preferred.join(", ");
        format!("its requests wait for {waits}: the latency goal of {names} holds them back")
    } else {
        let share = share.filter(|share| 2 * share.has < share.due)?;
        format!("its requests wait for {waits}: {share}")
    };
    Some(Condition { state: State::Starved, why })
}

fn is_tried(goal: &GoalStat) -> bool {
    !matches!(goal.state.as_str(), "infeasible" | "own-backlog")
}

/// A missed floor or goal.
fn missed(one: &ExportStat, came: Seen) -> Option<Condition> {
    if came.missed > 0 || matches!(one.floor.state.as_str(), "missed" | "infeasible") {
        let (_, _, cause) = one.floor.since(&Default::default());
        let cause = cause.map_or("", |cause| cause.text());
        let why = format!("floor of {} not kept: {cause}", one.floor.promised);
        return Some(Condition { state: State::FloorMissed, why });
    }
    let goal = one.goals.iter().find(|goal| goal.is_missed())?;
    let more = match goal.state.as_str() {
        "infeasible" => ", with nothing left to take from others: infeasible, all is given back",
        "own-backlog" => ": it has its share, and its requests wait for each other",
        _ => "",
    };
    let (p99, target) = (time(goal.p99), time(goal.target));
    let why = format!("{} is {p99}, the goal {target}{more}", goal.word);
    Some(Condition { state: State::GoalMissed, why })
}

fn missed_share(device: &DeviceStat, share: Option<Share>) -> Option<Condition> {
    let share = share.filter(|_| device.bounded.is_empty())?;
    let cause = match share.asks {
        Asks::Waiting => "",
        Asks::Few | Asks::AtDevice => ": the device holds too much",
    };
    let why = format!("{share}{cause}");
    (4 * share.has < 3 * share.due).then_some(Condition { state: State::ShareMissed, why })
}

/// Formats a time with three digits and a unit.
#[must_use]
pub fn time(ns: u64) -> String {
    let units = [(SECOND, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns")];
    let (of, unit) = units.into_iter().find(|(of, _)| ns >= *of).unwrap_or((1, "ns"));
    let number = ns as f64 / of as f64;
    let digits = match number {
        _ if of == 1 => 0,
        number if number >= 99.95 => 0,
        number if number >= 9.995 => 1,
        _ => 2,
    };
    format!("{number:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(buckets: &[(u64, u64)]) -> Times {
        let count = buckets.iter().map(|(_, n)| n).sum();
        let sum = buckets.iter().map(|(upper, n)| upper * n).sum();
        Times { count, sum, buckets: buckets.to_vec() }
    }

    #[test]
    fn a_difference_has_what_came_between() {
        let earlier = times(&[(10, 1), (30, 5)]);
        let later = times(&[(10, 3), (20, 4), (30, 5), (40, 1)]);
        assert_eq!(later.since(&earlier), times(&[(10, 2), (20, 4), (40, 1)]));
        assert_eq!(later.since(&Times::default()), later);
        assert_eq!(later.since(&later), Times::default());
    }

    #[test]
    fn a_quantile_is_the_end_of_its_bucket() {
        let times = times(&[(10, 50), (20, 49), (30, 1)]);
        let of = |q| times.quantile(q);
        assert_eq!([of(0.0), of(0.5), of(0.501)], [Some(10), Some(10), Some(20)]);
        assert_eq!([of(0.99), of(0.991), of(1.0)], [Some(20), Some(30), Some(30)]);
        assert_eq!(Times::default().quantile(0.5), None);
    }

    /// Two exports of weights 300 and 100 on a device.
    fn stat(at: u64) -> Stat {
        let export = |name: &str, weight| ExportStat {
            name: name.into(),
            device: 1,
            weight,
            max: "rbps=max wbps=max riops=max wiops=max".into(),
            promise: "limit_iops=0".into(),
            ..ExportStat::default()
        };
        Stat {
            at: at * SECOND,
            exports: vec![export("gold", 300), export("silver", 100)],
            devices: vec![DeviceStat::default()],
        }
    }

    /// The conditions of gold and silver at the last of eight readings, a second apart; `fill` sets the counts of each
    /// second.
    fn judged(fill: impl Fn(u64, &mut Stat)) -> [Condition; 2] {
        let judge = Judge::default();
        let mut last = Stat::default();
        for at in 1..=8 {
            last = stat(at);
            fill(at, &mut last);
            judge.judge(&mut last, &[true]);
        }
        let mut conditions = last.exports.into_iter().map(|one| one.condition);
        [(); 2].map(|()| conditions.next().expect("two"))
    }

    fn states(fill: impl Fn(u64, &mut Stat)) -> [State; 2] {
        judged(fill).map(|it| it.state)
    }

    /// Both exports have requests waiting, and use these shares of the device.
    fn backlogged(at: u64, stat: &mut Stat, parts: [u64; 2]) {
        for (one, part) in stat.exports.iter_mut().zip(parts) {
            one.held.waiting = 5;
            one.held.waited = SECOND / 10;
            one.charged = at * part;
            one.busy = at * SECOND;
            one.stages.total[0].count = at * part;
            one.stages.queue[0].sum = at * 5 * SECOND;
        }
        stat.devices[0].stages.total[0].count = at * 100;
    }

    #[test]
    fn an_export_without_requests_is_idle() {
        assert_eq!(states(|_, _| {}), [State::Idle; 2]);
    }

    #[test]
    fn a_share_is_judged_by_the_mean_number_of_requests() {
        let mean = |waiting: u64, at_device: u64, percent: u64| {
            move |at: u64, stat: &mut Stat| {
                backlogged(at, stat, [50, 50]);
                let gold = &mut stat.exports[0];
                // A reading that happens to find no request.
                gold.held = Held::default();
                gold.busy = at * SECOND / 100 * percent;
                gold.stages.queue[0].sum = at * waiting * SECOND;
                gold.stages.device[1].sum = at * at_device * SECOND;
            }
        };
        let why = "it has 50 % of the device, and is due 75 %";
        let [gold, silver] = judged(mean(4, 8, 100));
        assert_eq!((gold.state, silver.state), (State::ShareMissed, State::Served));
        assert_eq!(gold.why, why);
        let held = format!("{why}: the device holds too much");
        assert_eq!(judged(mean(0, 8, 95))[0].why, held);
        assert_eq!(states(mean(0, 8, 80))[0], State::Served, "often it has none");
        assert_eq!(states(mean(0, 2, 100))[0], State::Served, "it asks for no more");
    }

    #[test]
    fn a_share_of_nothing_is_judged_by_the_requests_that_do_not_end() {
        let unanswered = |at: u64, stat: &mut Stat| {
            backlogged(at, stat, [0, 100]);
            let gold = &mut stat.exports[0];
            (gold.busy, gold.stages.queue[0].sum) = (0, 0);
            gold.held.oldest = at * SECOND;
        };
        assert_eq!(judged(unanswered)[0].why, "it has 0 % of the device, and is due 75 %");
    }

    #[test]
    fn a_share_is_judged_where_requests_always_wait() {
        assert_eq!(states(|at, stat| backlogged(at, stat, [70, 30])), [State::Served; 2]);
        let [gold, silver] = judged(|at, stat| backlogged(at, stat, [40, 60]));
        assert_eq!((gold.state, silver.state), (State::ShareMissed, State::Served));
        assert_eq!(gold.why, "it has 40 % of the device, and is due 75 %");
        let limited = |at: u64, stat: &mut Stat| {
            backlogged(at, stat, [40, 60]);
            stat.exports[0].max = "rbps=max riops=500".into();
        };
        assert_eq!(states(limited)[0], State::Served);
    }

    #[test]
    fn an_export_that_is_held_back_is_starved_with_the_reason() {
        let goal = |at: u64, stat: &mut Stat| {
            backlogged(at, stat, [90, 10]);
            stat.exports[1].held.waited = 6 * SECOND;
            stat.exports[0].goals = vec![GoalStat { state: "met".into(), ..GoalStat::default() }];
            stat.devices[0].bounded.insert("lighter".into(), 1 << 20);
        };
        let [gold, silver] = judged(goal);
        assert_eq!((gold.state, silver.state), (State::Served, State::Starved));
        assert_eq!(
            silver.why,
            "its requests wait for 6.00 s: the latency goal of gold holds them back"
        );
        let unfair = |at: u64, stat: &mut Stat| {
            backlogged(at, stat, [97, 3]);
            stat.exports[1].held.waited = 2 * SECOND;
        };
        assert_eq!(states(unfair), [State::Served, State::Starved]);
    }

    #[test]
    fn a_device_that_answers_nothing_is_stuck_for_those_who_wait() {
        let stuck = |at: u64, stat: &mut Stat| {
            let device = &mut stat.devices[0];
            device.stages.total[0].count = at.min(5);
            (device.in_flight, device.kept) = ([3, 0], at.saturating_sub(5) * SECOND);
            stat.exports[0].held.in_flight = 3;
        };
        let [gold, silver] = judged(stuck);
        assert_eq!((gold.state, silver.state), (State::Stuck, State::Idle));
        assert_eq!(gold.why, "the device keeps 3 requests for 3 s and answers none");
        let slow = |at: u64, stat: &mut Stat| {
            stuck(at, stat);
            stat.devices[0].stages.total[0].count = at;
        };
        assert_eq!(states(slow)[0], State::Served);
    }

    #[test]
    fn errors_and_missed_promises_are_told_until_the_window_is_over() {
        let errors = |last: u64| {
            move |at: u64, stat: &mut Stat| {
                backlogged(at, stat, [75, 25]);
                stat.exports[1].errors[1] = at.min(last);
            }
        };
        let [_, silver] = judged(errors(8));
        assert_eq!((silver.state, &*silver.why), (State::Errors, "5 requests failed in 5 s"));
        assert_eq!(states(errors(2))[1], State::Served, "that is over");
        let goal = |state: &'static str| {
            move |at: u64, stat: &mut Stat| {
                backlogged(at, stat, [75, 25]);
                let (word, state) = ("p99_read".to_owned(), state.to_owned());
                let (target, p99) = (80_000_000, 98_304_000);
                stat.exports[0].goals =
                    vec![GoalStat { word, target, state, p99, ..GoalStat::default() }];
            }
        };
        let [gold, _] = judged(goal("missed"));
        assert_eq!(
            (gold.state, &*gold.why),
            (State::GoalMissed, "p99_read is 98.3 ms, the goal 80.0 ms")
        );
        assert_eq!(states(goal("met"))[0], State::Served);
        assert!(judged(goal("infeasible"))[0].why.contains("all is given back"));
        let floor = |at: u64, stat: &mut Stat| {
            stat.exports[0].floor.promised = "200 IOPS".into();
            stat.exports[0].floor.missed.insert("device".into(), at / 4);
        };
        let [gold, _] = judged(floor);
        assert_eq!(gold.why, "floor of 200 IOPS not kept: the device holds too much");
    }
}
