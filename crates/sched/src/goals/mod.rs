//! Latency goals: a controller beside the policy that keeps the 99th percentile of a group's latency below a target, by
//! taking from the groups without a goal.
//!
//! The controller receives every request and the time. It bounds the length of requests and what the device may hold,
//! and decides whether a group may have another request. It has no clock, orders no request, and knows neither the
//! policy nor the device: it finds the bounds by trial. `doc/goals.md` has the rules in full.
//!
//! | state of a goal | in a window | the controller |
//! |---|---|---|
//! | idle | no I/O came, none waits | gives back, as if it were met |
//! | unknown | I/Os wait, none for longer than the goal, and none has ended | waits |
//! | met | at most 1 % took longer than the goal | after some windows in a row, gives back a step |
//! | missed | more took longer, or one waits for longer | takes a step, or undoes the last one that it gave back |
//! | own backlog | missed, and the group has its share of the device: its I/Os wait for each other | gives back, as if it were met |
//! | infeasible | was missed when there was nothing left to take | gives all back, and tries again when the device is faster |
//!
//! *A window without completions in which I/Os wait is unknown, never good*: a device that is stuck has no late
//! completions.

mod control;
mod floors;
mod pace;
mod report;
mod rest;
mod shares;
mod window;

#[cfg(test)]
mod tests;

use crate::{Capacity, Rate};
use alloc::vec::Vec;
use blkmq_core::{GroupIndex, Instant, IoMeta, Nanos, Op};
use control::Control;
use floors::Floors;
use pace::Pace;
pub use report::{GoalKind, GoalReport, GoalState, Taken};
use rest::Rest;
use shares::Shares;
use window::{Sampling, Verdict, Window};

/// The targets of a group; zero for none. They hold for the group and the groups below it without targets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Goal {
    /// 99 of 100 reads end within this time, from their arrival at the queue.
    pub p99_read: Nanos,
    /// Like `p99_read`, for all other I/O. Flushes count here if `p99_sync` is zero.
    pub p99_write: Nanos,
    /// Like `p99_read`, for flushes.
    pub p99_sync: Nanos,
    /// The most that is taken from any group for the goals, in percent of its share by weight, up to 100. Of several
    /// groups with goals, the largest value holds. 90 by default.
    pub takes_at_most: u8,
}

impl Default for Goal {
    /// No targets.
    fn default() -> Self {
        let none = Nanos::ZERO;
        Self { p99_read: none, p99_write: none, p99_sync: none, takes_at_most: TAKES_AT_MOST }
    }
}

impl Goal {
    /// The target for a kind of I/O; zero for none.
    #[must_use]
    pub fn of(&self, kind: GoalKind) -> Nanos {
        match kind {
            GoalKind::Read => self.p99_read,
            GoalKind::Write => self.p99_write,
            GoalKind::Sync => self.p99_sync,
        }
    }

    /// Like [`of`](Self::of), but mutable.
    pub fn of_mut(&mut self, kind: GoalKind) -> &mut Nanos {
        match kind {
            GoalKind::Read => &mut self.p99_read,
            GoalKind::Write => &mut self.p99_write,
            GoalKind::Sync => &mut self.p99_sync,
        }
    }

    /// Returns whether there is no target.
    #[must_use]
    pub fn is_none(&self) -> bool {
        GoalKind::ALL.into_iter().all(|kind| self.of(kind) == Nanos::ZERO)
    }
}

/// A group as the controller of goals and the account of floors know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its number. The root is not in the list.
    pub group: GroupIndex,
    /// The group above it, which comes earlier in the list or is the root.
    pub parent: GroupIndex,
    /// Its weight. Lighter groups are taken from first.
    pub weight: u32,
    /// Its targets.
    pub goal: Goal,
    /// Its floor, below which nothing is taken.
    pub reserve: Rate,
}

/// The requests of a queue at a look of the controller.
pub trait Sight {
    /// Shows every request that has not ended, in any order.
    fn waiting(&self, show: &mut dyn FnMut(&IoMeta));
    /// The number of requests at the device.
    fn at_device(&self) -> u32;
}

/// The default of [`Goal::takes_at_most`].
const TAKES_AT_MOST: u8 = 90;

/// The time from one look to the next.
pub const STEP: Nanos = Nanos::from_millis(100);
/// No goal, and no tier.
const NONE: u16 = u16::MAX;

/// A goal for one kind of I/O, and its window.
struct Watched {
    group: GroupIndex,
    kind: GoalKind,
    goal: Nanos,
    window: Window,
    /// The arrival of the oldest of its I/Os that had not ended at the last look.
    oldest: Option<Instant>,
    state: GoalState,
    /// The last look that found I/Os.
    used: Option<Instant>,
    /// Its rest while it is infeasible.
    rest: Rest,
    p99: Nanos,
    best: Nanos,
    windows: u64,
    missed: u64,
}

/// The treatment of a group.
#[derive(Clone, Copy)]
struct Treated {
    /// The places of its goals in `watched`, by kind; `NONE` without a goal.
    watched: [u16; 3],
    /// Its tier; `NONE` if nothing is taken from it.
    tier: u16,
}

impl Treated {
    /// The place of the goal for `op`.
    fn place(&self, op: Op) -> usize {
        self.watched[GoalKind::of(op) as usize].into()
    }
}

/// The controller of one elevator.
pub struct Goals {
    watched: Vec<Watched>,
    /// The treatment of the groups, by number.
    treated: Vec<Treated>,
    pace: Pace,
    floors: Floors,
    shares: Shares,
    control: Control,
    sampling: Sampling,
    /// The longest request of groups whose requests may be shortened, in sectors, since nothing was last taken.
    longest: u32,
    /// The most that is taken from a group, in percent of its share.
    takes_at_most: u8,
    /// The begin of the window. I/Os that came earlier do not show the effect of the last step.
    since: Instant,
    due: Instant,
}

impl Goals {
    /// A controller for a device that takes `most` requests, and for these groups. `capacity` is that by which the
    /// policy keeps floors; `None` if it keeps none.
    #[must_use]
    pub fn new(most: u32, members: &[Member], capacity: Option<Capacity>) -> Self {
        let mut goals = Self {
            watched: Vec::new(),
            treated: Vec::new(),
            pace: Pace::default(),
            floors: Floors::default(),
            shares: Shares::default(),
            control: Control::new(most),
            sampling: Sampling::default(),
            longest: 0,
            takes_at_most: TAKES_AT_MOST,
            since: Instant::ZERO,
            due: Instant::ZERO,
        };
        goals.set(members, capacity);
        goals
    }

    /// Follows a change of the groups. Goals that do not change keep their counts. O(groups + goals squared).
    pub fn set(&mut self, members: &[Member], capacity: Option<Capacity>) {
        let last = members.iter().map(|member| usize::from(member.group.0)).max().unwrap_or(0);
        let known = core::mem::take(&mut self.watched);
        let root = Treated { watched: [NONE; 3], tier: NONE };
        self.treated = alloc::vec![root; last + 1];
        let with_goals = members.iter().filter(|member| !member.goal.is_none());
        let lightest = with_goals.clone().map(|member| member.weight).min().unwrap_or(0);
        let most = with_goals.map(|member| member.goal.takes_at_most).max();
        self.takes_at_most = most.unwrap_or(TAKES_AT_MOST).min(100);
        self.treated[0].tier = tier(DEFAULT_WEIGHT, lightest);
        for member in members {
            let above = self.treated[usize::from(member.parent.0)];
            let mut one = Treated { watched: above.watched, tier: NONE };
            for kind in GoalKind::ALL {
                let goal = member.goal.of(kind);
                if goal > Nanos::ZERO {
                    // There are at most 1023 groups.
                    let place = self.watched.len() as u16;
                    one.watched[kind as usize] = place;
                    if kind == GoalKind::Write {
                        one.watched[GoalKind::Sync as usize] = place;
                    }
                    self.watched.push(Watched::new(member.group, kind, goal));
                }
            }
            if one.watched == [NONE; 3] {
                one.tier = tier(member.weight, lightest);
            }
            self.treated[usize::from(member.group.0)] = one;
        }
        for old in known {
            let same = |new: &&mut Watched| {
                (new.group, new.kind, new.goal) == (old.group, old.kind, old.goal)
            };
            if let Some(new) = self.watched.iter_mut().find(same) {
                *new = old;
            }
        }
        self.floors.set(members, capacity);
        self.shares.set(members);
    }

    fn treated(&self, group: GroupIndex) -> Treated {
        let found = self.treated.get(usize::from(group.0));
        found.copied().unwrap_or(self.treated[0])
    }

    /// Counts a request that has arrived.
    pub fn inserted(&mut self, now: Instant, io: &IoMeta) {
        self.charge(now, io, (pace::cost(io), false));
    }

    /// Counts an I/O that has merged into a request.
    pub fn joined(&mut self, now: Instant, io: &IoMeta) {
        self.charge(now, io, (pace::bytes(io), true));
    }

    fn charge(&mut self, now: Instant, io: &IoMeta, (cost, joined): (u64, bool)) {
        let tier = self.treated(io.group).tier;
        // I/O by a floor does not use up the rate of the tier.
        let is_owed = self.pace.is_limited(tier) && self.floors.owes(io.group, now);
        if !is_owed {
            self.pace.charge(tier, now, cost);
        }
        self.shares.charge(io.group, cost, 1);
        self.floors.charge(io, now, joined);
        if self.control.depth().is_some() && self.floors.covers(io.group) {
            // The next look takes the bound off.
            self.due = now;
        }
    }

    /// Counts a request that has ended.
    pub fn completed(&mut self, io: &IoMeta, at: Instant) {
        let treated = self.treated(io.group);
        match self.watched.get_mut(treated.place(io.op)) {
            Some(watched) => watched.window.count(io.arrived, at, self.since, watched.goal),
            None => self.measure(treated, io),
        }
    }

    /// Notes the length of a request without a goal.
    fn measure(&mut self, treated: Treated, io: &IoMeta) {
        if matches!(io.op, Op::Read | Op::Write) && self.is_shortened(treated, io.group) {
            self.longest = self.longest.max(io.sectors);
        }
    }

    fn is_shortened(&self, treated: Treated, group: GroupIndex) -> bool {
        treated.tier != NONE && !self.floors.covers(group)
    }

    /// Returns whether [`Taken::sectors`] bounds the requests of `group`.
    #[must_use]
    pub fn shortens(&self, group: GroupIndex) -> bool {
        self.is_shortened(self.treated(group), group)
    }

    /// Counts a request that has ended and was not reported on arrival: [`inserted`](Self::inserted) and
    /// [`completed`](Self::completed) in one call.
    pub fn passed(&mut self, io: &IoMeta, at: Instant) {
        self.count(io, at, 1);
    }

    /// Like [`passed`](Self::passed), for a request that stands for several, while nothing is taken. Returns the number
    /// of requests up to and including the next one to report.
    pub fn sampled(&mut self, io: &IoMeta, at: Instant) -> u32 {
        self.count(io, at, self.sampling.stride());
        self.sampling.next()
    }

    /// The number of requests that a sample stands for. After a look, the next sample is due after at most so many.
    #[must_use]
    pub fn stride(&self) -> u32 {
        self.sampling.stride()
    }

    fn count(&mut self, io: &IoMeta, at: Instant, requests: u32) {
        let cost = pace::cost(io) * u64::from(requests);
        // Nothing is taken from a group with a goal.
        self.pace.charge(self.treated(io.group).tier, at, cost);
        self.shares.charge(io.group, cost, requests);
        self.floors.charge(io, at, false);
        // The part of late requests in a window is that of late samples.
        self.completed(io, at);
    }

    /// Returns whether `group` may have another request at `now`.
    #[must_use]
    pub fn admits(&self, group: GroupIndex, now: Instant) -> bool {
        self.pace.admits(self.treated(group).tier, now) || self.floors.owes(group, now)
    }

    /// The earliest time after `now` at which a refused group may have a request; `None` if no rate is bounded.
    #[must_use]
    pub fn next_admission(&self, now: Instant) -> Option<Instant> {
        let floor = self.floors.next(now);
        self.pace.next(now).map(|next| floor.map_or(next, |floor| floor.min(next)))
    }

    /// The time of the next look.
    #[must_use]
    pub fn due(&self) -> Instant {
        self.due
    }

    /// The bounds in force.
    #[must_use]
    pub fn taken(&self) -> Taken {
        let (sectors, device_depth) = (self.control.length(), self.control.depth());
        Taken { sectors, device_depth, rates: self.pace.rates() }
    }

    /// The goals, in the order of the groups, reads first.
    pub fn reports(&self) -> impl Iterator<Item = GoalReport> + '_ {
        self.watched.iter().map(|watched| GoalReport {
            group: watched.group,
            kind: watched.kind,
            goal: watched.goal,
            state: watched.state,
            p99: watched.p99,
            windows: watched.windows,
            missed: watched.missed,
            best: watched.best,
        })
    }

    /// Judges the windows that are over, and takes or gives back. To be called from the time [`due`](Self::due) on.
    pub fn look(&mut self, now: Instant, sight: &dyn Sight) {
        self.due = now + STEP;
        let elapsed = now.since(self.since);
        let floors = self.floors.take_used();
        if floors {
            self.control.free_depth();
        }
        self.find_oldest(sight);
        let waiting = self.watched.iter().filter(|watched| watched.oldest.is_some());
        waiting.for_each(|watched| self.shares.wait(watched.group));
        let is_free = self.taken() == Taken::default();
        self.shares.measure(elapsed, is_free);
        self.pace.keep(self.kept(), is_free);
        let (open, missed) = self.judge(now, elapsed);
        if !missed && open {
            return;
        }
        let tried = self.watched.iter().filter(|it| it.is_tried());
        let mean = tried.clone().map(|it| it.window.mean()).max().unwrap_or(0);
        let below = |part: u64| tried.clone().all(|it| it.level(now) <= it.goal.0 / 8 * part);
        let (rest, ease, room) = (below(1), below(4), below(6));
        let (at_device, longest) = (sight.at_device(), self.longest);
        let seen = control::Seen {
            now,
            elapsed,
            missed,
            mean,
            rest,
            ease,
            room,
            at_device,
            longest,
            floors,
        };
        if self.control.decide(&seen, &mut self.pace) == control::Answer::Infeasible {
            self.give_up(now);
        }
        if self.taken() == Taken::default() {
            self.longest = 0;
        } else {
            // While something is taken, every request is counted.
            self.sampling.set(1);
        }
        self.restart(now, is_free);
    }

    /// The rates that the tiers keep of what their groups are due by weight, in bytes a second.
    fn kept(&self) -> [u64; pace::TIERS] {
        let mut kept = [0_u64; pace::TIERS];
        self.shares.due(|group, due| {
            if let Some(tier) = kept.get_mut(usize::from(self.treated(group).tier)) {
                *tier = tier.saturating_add(due);
            }
        });
        let left = u128::from(100 - self.takes_at_most);
        kept.map(|due| (u128::from(due) * left / 100) as u64)
    }

    /// Judges the windows of all goals. Returns whether one is still open, and whether a goal is missed for which
    /// something may be taken.
    fn judge(&mut self, now: Instant, elapsed: Nanos) -> (bool, bool) {
        let usual = self.shares.usual();
        let (mut open, mut missed) = (false, false);
        let mut stride = window::MOST;
        for watched in &mut self.watched {
            let waits = watched.oldest.map(|came| now.since(came.max(self.since)));
            let verdict = watched.window.verdict(elapsed, waits, watched.goal);
            let idle_for = watched.idle_for(verdict, now);
            stride = stride.min(self.sampling.wanted(verdict, watched.window.ios(), idle_for));
            watched.note(verdict, now, usual);
            if watched.state == GoalState::Missed {
                let mean = watched.window.mean();
                if self.shares.explain(watched.group, elapsed, mean, watched.goal) {
                    watched.state = GoalState::OwnBacklog;
                }
            }
            match verdict {
                _ if !watched.is_tried() => {}
                Verdict::Missed => missed = true,
                Verdict::Open | Verdict::Unknown => open = true,
                Verdict::Met | Verdict::Idle => {}
            }
        }
        self.sampling.set(stride);
        (open, missed)
    }

    /// Finds the oldest request of each goal that has not ended, and the longest of groups without one.
    fn find_oldest(&mut self, sight: &dyn Sight) {
        self.watched.iter_mut().for_each(|watched| watched.oldest = None);
        sight.waiting(&mut |io| {
            let treated = self.treated(io.group);
            match self.watched.get_mut(treated.place(io.op)) {
                Some(watched) => {
                    let oldest = watched.oldest.map_or(io.arrived, |other| other.min(io.arrived));
                    watched.oldest = Some(oldest);
                }
                None => self.measure(treated, io),
            }
        });
    }

    /// Lets the goals rest that are missed although nothing is left to take.
    fn give_up(&mut self, now: Instant) {
        let usual = self.shares.usual();
        for watched in &mut self.watched {
            if watched.state == GoalState::Missed {
                watched.state = GoalState::Infeasible;
                watched.best = watched.p99;
                watched.rest.begin(now, usual);
            }
        }
    }

    /// Begins the next window. In the last one nothing was taken if it `was_free`.
    fn restart(&mut self, now: Instant, was_free: bool) {
        self.shares.restart(now.since(self.since), was_free);
        self.since = now;
        self.pace.restart(now);
        self.sampling.restart();
        self.watched.iter_mut().for_each(|watched| watched.window = Window::default());
    }
}

/// A goal without I/Os for this time leaves room for everything.
const UNUSED: Nanos = Nanos::from_secs(1);
/// The weight of I/O of no group.
const DEFAULT_WEIGHT: u32 = 100;

/// The tier of a group of this weight, where `lightest` is the least weight of the groups with goals.
fn tier(weight: u32, lightest: u32) -> u16 {
    match weight.cmp(&lightest) {
        core::cmp::Ordering::Less => 0,
        core::cmp::Ordering::Equal => 1,
        core::cmp::Ordering::Greater => 2,
    }
}

impl Watched {
    fn new(group: GroupIndex, kind: GoalKind, goal: Nanos) -> Self {
        Self {
            group,
            kind,
            goal,
            window: Window::default(),
            oldest: None,
            state: GoalState::Idle,
            used: None,
            rest: Rest::default(),
            p99: Nanos::ZERO,
            best: Nanos::ZERO,
            windows: 0,
            missed: 0,
        }
    }

    /// The time since the last look that found I/Os.
    fn idle_for(&mut self, verdict: Verdict, now: Instant) -> Nanos {
        if verdict != Verdict::Idle {
            self.used = Some(now);
        }
        self.used.map_or(Nanos(u64::MAX), |used| now.since(used))
    }

    /// The 99th percentile in nanoseconds; zero for a goal without recent I/Os.
    fn level(&self, now: Instant) -> u64 {
        if self.used.is_some_and(|used| now.since(used) < UNUSED) { self.p99.0 } else { 0 }
    }

    fn note(&mut self, verdict: Verdict, now: Instant, usual: u64) {
        if let Verdict::Met | Verdict::Missed = verdict {
            self.windows += 1;
            self.missed += u64::from(verdict == Verdict::Missed);
            self.p99 = self.window.p99();
        }
        if self.state == GoalState::Infeasible {
            if !self.rest.is_over(now, self.window.whole(), (self.goal, usual)) {
                return;
            }
            self.state = GoalState::Unknown;
        }
        match verdict {
            Verdict::Met | Verdict::Idle => self.rest.keeps(now),
            Verdict::Missed => self.rest.breaks(),
            Verdict::Open | Verdict::Unknown => {}
        }
        self.state = match verdict {
            Verdict::Idle => GoalState::Idle,
            Verdict::Unknown => GoalState::Unknown,
            Verdict::Met => GoalState::Met,
            Verdict::Missed => GoalState::Missed,
            Verdict::Open => self.state,
        };
    }

    /// Returns whether something is taken for the goal when it is missed.
    fn is_tried(&self) -> bool {
        !matches!(self.state, GoalState::Infeasible | GoalState::OwnBacklog)
    }
}
