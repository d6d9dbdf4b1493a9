//! Judges the condition of exports and devices from the counts of the last seconds.
//!
//! Each reading of the counts is compared with earlier readings, whichever client requested them. A server that counts
//! also takes a reading once a second.

use super::{Condition, DeviceStat, ExportStat, GoalStat, Stat, State};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

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
    errors: u64,
    missed: u64,
    waits: bool,
}

impl Seen {
    fn of(one: &ExportStat) -> Self {
        Self {
            ended: one.stages.total.iter().map(|times| times.count).sum(),
            charged: one.charged,
            errors: one.errors.iter().sum(),
            missed: one.floor.missed.values().sum(),
            waits: one.held.waiting > 0,
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            ended: self.ended.saturating_sub(before.ended),
            charged: self.charged.saturating_sub(before.charged),
            errors: self.errors.saturating_sub(before.errors),
            missed: self.missed.saturating_sub(before.missed),
            waits: self.waits,
        }
    }
}

fn ended(device: &DeviceStat) -> u64 {
    device.stages.total.iter().map(|times| times.count).sum()
}

impl Judge {
    /// Sets the condition of each export and device of `stat`. `by_weight` says which devices have schedulers that
    /// share by weight.
    pub(crate) fn judge(&self, stat: &mut Stat, by_weight: &[bool]) {
        let mut readings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// The shares of the device, in percent, that an export has used and that are due to it by weight, if it always had
    /// requests waiting and weights decide.
    fn share(
        &self,
        one: &ExportStat,
        rivals: &[&ExportStat],
        by_weight: bool,
    ) -> Option<(u64, u64)> {
        let seen = |reading: &Reading| reading.exports.get(&one.name).is_some_and(|it| it.waits);
        let waited = one.held.waiting > 0 && self.readings.iter().all(seen);
        let has_floor = rivals.iter().any(|it| !it.floor.promised.is_empty());
        if !by_weight || !waited || self.length < TURNS || has_floor || is_limited(one) {
            return None;
        }
        let is_active = |it: &&&ExportStat| self.of(it).charged > 0 || it.held.waiting > 0;
        let sum = |of: &dyn Fn(&ExportStat) -> u64| {
            rivals.iter().filter(is_active).map(|it| of(it)).sum::<u64>().max(1)
        };
        let all = sum(&|it| self.of(it).charged);
        let weights = sum(&|it| it.weight.into());
        Some((percent(self.of(one).charged, all), percent(one.weight.into(), weights)))
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
    share: Option<(u64, u64)>,
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
        let (has, due) = share.filter(|(has, due)| 2 * has < *due)?;
        format!("its requests wait for {waits}: it has {has} % of the device, and is due {due} %")
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

fn missed_share(device: &DeviceStat, share: Option<(u64, u64)>) -> Option<Condition> {
    let (has, due) = share.filter(|_| device.bounded.is_empty())?;
    let why = format!("it has {has} % of the device, and is due {due} %");
    (4 * has < 3 * due).then_some(Condition { state: State::ShareMissed, why })
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
            one.stages.total[0].count = at * part;
        }
        stat.devices[0].stages.total[0].count = at * 100;
    }

    #[test]
    fn an_export_without_requests_is_idle() {
        assert_eq!(states(|_, _| {}), [State::Idle; 2]);
    }

    #[test]
    fn a_share_is_judged_where_requests_always_wait() {
        assert_eq!(states(|at, stat| backlogged(at, stat, [70, 30])), [State::Served; 2]);
        let [gold, silver] = judged(|at, stat| backlogged(at, stat, [40, 60]));
        assert_eq!((gold.state, silver.state), (State::ShareMissed, State::Served));
        assert_eq!(gold.why, "it has 40 % of the device, and is due 75 %");
        let pauses = |at: u64, stat: &mut Stat| {
            backlogged(at, stat, [40, 60]);
            stat.exports[0].held.waiting = at % 2;
        };
        assert_eq!(states(pauses)[0], State::Served);
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
