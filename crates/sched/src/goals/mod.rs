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
mod shares;
mod window;

use crate::{Capacity, Rate};
use alloc::vec::Vec;
use blkmq_core::{GroupIndex, Instant, IoMeta, Nanos, Op};
use control::{Control, Pace};
use shares::{Floors, Shares};
pub use window::{GoalKind, GoalReport, GoalState, Taken};
use window::{Rest, Sampling, Verdict, Window};

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
        self.charge(now, io, (control::cost(io), false));
    }

    /// Counts an I/O that has merged into a request.
    pub fn joined(&mut self, now: Instant, io: &IoMeta) {
        self.charge(now, io, (control::bytes(io), true));
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
        let cost = control::cost(io) * u64::from(requests);
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
    fn kept(&self) -> [u64; control::TIERS] {
        let mut kept = [0_u64; control::TIERS];
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

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const VICTIM: GroupIndex = GroupIndex(1);
    const FLOOD: GroupIndex = GroupIndex(2);
    const HEAVY: GroupIndex = GroupIndex(3);

    fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    fn members(goal: Nanos) -> [Member; 3] {
        let member = |group, weight, goal| Member {
            group,
            parent: GroupIndex::ROOT,
            weight,
            goal,
            reserve: Rate::default(),
        };
        let none = Goal::default();
        let goal = Goal { p99_read: goal, ..none };
        [member(VICTIM, 100, goal), member(FLOOD, 100, none), member(HEAVY, 300, none)]
    }

    fn io(op: Op, group: GroupIndex, sectors: u32, arrived: Instant) -> IoMeta {
        IoMeta { group, arrived, ..IoMeta::new(op, 0, sectors) }
    }

    /// The I/Os in the list wait, and no others.
    struct Waiting(Vec<IoMeta>, u32);

    impl Sight for Waiting {
        fn waiting(&self, show: &mut dyn FnMut(&IoMeta)) {
            self.0.iter().for_each(show);
        }
        fn at_device(&self) -> u32 {
            self.1
        }
    }

    /// A victim that reads in turn and a flood that writes as fast as it may. `latency` is that of a read, by the
    /// device's depth and the MiB that others wrote in the last 100 ms.
    struct Plant {
        goals: Goals,
        now: Instant,
        latency: fn(u32, u64) -> Nanos,
        /// MiB a second that the device takes.
        most: u64,
        written: Vec<u64>,
    }

    impl Plant {
        fn new(goal: Nanos, latency: fn(u32, u64) -> Nanos) -> Self {
            let goals = Goals::new(32, &members(goal), None);
            Self { goals, now: Instant::ZERO, latency, most: 200, written: Vec::new() }
        }

        /// A hundred milliseconds.
        fn step(&mut self) {
            let end = self.now + ms(100);
            let depth = self.goals.taken().device_depth.unwrap_or(32);
            let mut mib = 0;
            for at in (0..self.most / 10).map(|n| self.now + Nanos(n * 1_000_000_000 / self.most)) {
                if self.goals.admits(FLOOD, at) {
                    self.goals.inserted(at, &io(Op::Write, FLOOD, 2048, at));
                    mib += 1;
                }
            }
            self.written.push(mib);
            let latency = (self.latency)(depth, mib);
            let mut came = self.now;
            while came + latency <= end {
                self.goals.completed(&io(Op::Read, VICTIM, 8, came), came + latency);
                came += latency;
            }
            self.now = end;
            let waits = Waiting(alloc::vec![io(Op::Read, VICTIM, 8, came)], depth);
            if self.goals.due() <= end {
                self.goals.look(end, &waits);
            }
        }

        fn run(&mut self, seconds: u64) -> GoalReport {
            (0..seconds * 10).for_each(|_| self.step());
            self.report()
        }

        fn report(&self) -> GoalReport {
            self.goals.reports().next().expect("a goal")
        }

        /// MiB a second written in the last ten seconds.
        fn rate(&self) -> u64 {
            self.written[self.written.len() - 100..].iter().sum::<u64>() / 10
        }
    }

    /// A disk behind a cache: its depth does not matter, the amount written does.
    fn cached(_: u32, mib: u64) -> Nanos {
        if mib > 10 { ms(60) } else { ms(6 + mib) }
    }

    /// A device with a queue: a read waits for the requests in it.
    fn queued(depth: u32, _: u64) -> Nanos {
        ms((1 + depth).into())
    }

    #[test]
    fn behind_a_cache_the_rate_is_taken_and_what_remains_is_given_back() {
        let mut plant = Plant::new(ms(20), cached);
        plant.run(60);
        let before = plant.report();
        let after = plant.run(60);
        let (windows, missed) = (after.windows - before.windows, after.missed - before.missed);
        assert!(missed * 20 <= windows, "{missed} of {windows}");
        assert!((60..=105).contains(&plant.rate()), "{} of 100 MiB a second", plant.rate());
        assert_eq!(
            plant.goals.taken().device_depth,
            None,
            "it did not help: {:?}",
            plant.goals.taken()
        );
    }

    #[test]
    fn a_depth_that_helps_is_enough() {
        let mut plant = Plant::new(ms(10), queued);
        let report = plant.run(120);
        assert!(report.missed * 20 <= report.windows, "{report:?}");
        let taken = plant.goals.taken();
        assert_eq!(taken.rates, [None; 3]);
        assert!((2..=9).contains(&taken.device_depth.expect("bounded")), "{taken:?}");
        assert!(plant.rate() >= 190, "{}", plant.rate());
    }

    #[test]
    fn an_infeasible_goal_is_called_so_within_five_seconds_and_costs_the_others_nothing() {
        for latency in [cached as fn(u32, u64) -> Nanos, |_, _| ms(40), |_, _| ms(900)] {
            let mut plant = Plant::new(ms(5), latency);
            let report = plant.run(5);
            assert_eq!(report.state, GoalState::Infeasible, "{report:?}");
            assert!(report.best > ms(5), "{report:?}");
            assert_eq!(plant.goals.taken(), Taken::default());
            plant.run(15);
            assert_eq!(plant.rate(), 200, "nothing is taken any more");
            // The goal is tried again, and given up again.
            let report = plant.run(60);
            assert_eq!(
                (report.state, plant.goals.taken()),
                (GoalState::Infeasible, Taken::default())
            );
            assert!(plant.rate() < 200 || report.windows > 100);
        }
    }

    /// The flood has half of the weight in use, so half of 200 MiB a second is its share.
    #[test]
    fn others_keep_a_tenth_of_their_share_or_what_the_goal_says() {
        let tight = |_, mib| if mib > 0 { ms(60) } else { ms(6) };
        let least = |takes_at_most| {
            let mut plant = Plant::new(ms(20), tight);
            let mut members = members(ms(20));
            members[0].goal.takes_at_most = takes_at_most;
            plant.goals.set(&members, None);
            plant.run(5);
            // From the second second on, since the first one has no rate to compare with.
            (
                plant.written[10..].chunks(10).map(|second| second.iter().sum::<u64>()).min(),
                plant.report().state,
            )
        };
        let (kept, state) = least(90);
        assert!((9..=12).contains(&kept.expect("a second")), "{kept:?} of 10 MiB");
        assert_eq!(state, GoalState::Infeasible);
        let (kept, _) = least(100);
        assert!(kept.expect("a second") <= 5, "{kept:?}: a request in 250 ms, or 1/64");
    }

    #[test]
    fn when_the_flood_becomes_harmless_all_is_given_back() {
        let mut plant = Plant::new(ms(20), cached);
        plant.run(20);
        assert_ne!(plant.goals.taken(), Taken::default());
        plant.latency = |_, _| ms(1);
        plant.run(120);
        assert_eq!(plant.goals.taken(), Taken::default());
        assert_eq!(plant.rate(), 200);
    }

    #[test]
    fn a_stuck_device_is_unknown_and_then_missed_and_never_good() {
        let mut goals = Goals::new(32, &members(ms(300)), None);
        let came = Instant::ZERO + ms(50);
        let state = |goals: &mut Goals, at: u64| {
            let now = Instant::ZERO + ms(at);
            goals.look(now, &Waiting(alloc::vec![io(Op::Read, VICTIM, 8, came)], 32));
            goals.reports().next().expect("a goal").state
        };
        assert_eq!(state(&mut goals, 100), GoalState::Unknown);
        assert_eq!(state(&mut goals, 300), GoalState::Unknown);
        assert_eq!(state(&mut goals, 400), GoalState::Unknown);
        assert_eq!(state(&mut goals, 500), GoalState::Missed);
        assert_eq!(goals.taken().device_depth, Some(8));
    }

    #[test]
    fn lighter_groups_are_taken_from_first_and_those_with_goals_never() {
        let mut list = members(ms(1));
        list[1].weight = 10;
        let mut goals = Goals::new(1, &list, None);
        let mut now = Instant::ZERO;
        let mut miss = |goals: &mut Goals| {
            for group in [FLOOD, HEAVY] {
                goals.inserted(now, &io(Op::Write, group, 2048, now));
            }
            for _ in 0..2 {
                goals.completed(&io(Op::Read, VICTIM, 8, now), now + ms(50));
            }
            now += ms(100);
            goals.look(now, &Waiting(Vec::new(), 1));
            goals.taken().rates
        };
        let rates = miss(&mut goals);
        assert!(rates[0].is_some() && rates[2].is_none(), "{rates:?}");
        let rates = (0..25).map(|_| miss(&mut goals)).last().expect("twelve");
        assert!(rates[0].is_some() && rates[2].is_some(), "{rates:?}");
        assert!(goals.admits(VICTIM, Instant::ZERO) && !goals.admits(FLOOD, now));
    }

    #[test]
    fn a_goal_holds_for_the_groups_below() {
        let goal = Goal { p99_read: ms(1), ..Goal::default() };
        let reserve = Rate::default();
        let member = |group, parent, goal| Member { group, parent, weight: 100, goal, reserve };
        let tree = [
            member(GroupIndex(1), GroupIndex::ROOT, goal),
            member(GroupIndex(2), GroupIndex(1), Goal::default()),
        ];
        let mut goals = Goals::new(8, &tree, None);
        goals.completed(&io(Op::Read, GroupIndex(2), 8, Instant::ZERO), Instant::ZERO + ms(2));
        goals.look(Instant::ZERO + ms(500), &Waiting(Vec::new(), 0));
        let report = goals.reports().next().expect("one");
        assert_eq!(
            (report.group, report.state, report.missed),
            (GroupIndex(1), GoalState::Missed, 1)
        );
        // Counts stay as long as the goal does.
        goals.set(&tree, None);
        assert_eq!(goals.reports().next().expect("one").missed, 1);
        goals.set(&[member(GroupIndex(1), GroupIndex::ROOT, Goal::default())], None);
        assert_eq!(goals.reports().count(), 0);
    }

    /// One call at a request's end has the effect of one at its beginning and one at its end.
    #[test]
    fn a_request_that_is_told_at_its_end_counts_like_any_other() {
        let came = Instant::ZERO + ms(1);
        let all = [
            io(Op::Read, VICTIM, 8, came),
            io(Op::Write, VICTIM, 8, came),
            io(Op::Write, FLOOD, 2048, came),
        ];
        let [mut told, mut passed] = [0, 1].map(|_| Goals::new(1, &members(ms(1)), None));
        for n in 0..20 {
            let (begin, end) = (came + ms(100 * n), came + ms(100 * n + 50));
            for io in all {
                let io = IoMeta { arrived: begin, ..io };
                told.inserted(begin, &io);
                told.completed(&io, end);
                passed.passed(&io, end);
            }
            for goals in [&mut told, &mut passed] {
                goals.look(end, &Waiting(Vec::new(), 1));
            }
            assert_eq!(told.taken(), passed.taken(), "look {n}");
            assert!(told.reports().eq(passed.reports()), "look {n}");
        }
        assert_ne!(told.taken(), Taken::default());
    }

    /// A window of reads of which the `n`th takes `latency(n)`, reported by samples. Returns the number of samples.
    fn sampled(
        goals: &mut Goals,
        from: Instant,
        reads: u32,
        latency: impl Fn(u32) -> Nanos,
    ) -> u32 {
        let (mut left, mut told) = (goals.sampling.next(), 0);
        for n in 0..reads {
            left -= 1;
            if left == 0 {
                let came = from + Nanos(u64::from(n) * ms(100).0 / u64::from(reads));
                left = goals.sampled(&io(Op::Read, VICTIM, 8, came), came + latency(n));
                told += 1;
            }
        }
        goals.look(from + ms(100), &Waiting(Vec::new(), 0));
        told
    }

    #[test]
    fn at_high_rates_samples_tell_what_all_requests_would() {
        let mut goals = Goals::new(32, &members(ms(2)), None);
        let report = |goals: &Goals| goals.reports().next().expect("a goal");
        let window = |nth: u64| Instant::from_nanos(1_000_000_000 + nth * ms(100).0);
        let good = |n: u32| if n % 200 == 7 { ms(3) } else { ms(1) };
        assert_eq!(
            sampled(&mut goals, window(0), 50_000, good),
            50_000,
            "the rate is not known yet"
        );
        for nth in 1..20 {
            let told = sampled(&mut goals, window(nth), 50_000, good);
            assert!((2_500..4_000).contains(&told), "{told}");
            assert_eq!((report(&goals).state, goals.taken()), (GoalState::Met, Taken::default()));
        }
        assert!((1_000..1_500).contains(&(report(&goals).p99.0 / 1_000)), "{:?}", report(&goals));
        let bad = |n: u32| if n % 33 == 7 { ms(3) } else { ms(1) };
        sampled(&mut goals, window(20), 50_000, bad);
        assert_eq!(report(&goals).state, GoalState::Missed);
        assert_eq!(sampled(&mut goals, window(21), 5_000, bad), 5_000, "all, where it is missed");
    }

    #[test]
    fn reads_that_are_few_are_all_counted_from_the_next_look_on() {
        let mut goals = Goals::new(32, &members(ms(2)), None);
        let window = |nth: u64| Instant::from_nanos(1_000_000_000 + nth * ms(100).0);
        // The group has no I/O, and another one has much.
        for nth in 0..3 {
            let mut left = goals.sampling.next();
            for n in 0..50_000 {
                left -= 1;
                if left == 0 {
                    let at = window(nth) + Nanos(n * 2_000);
                    left = goals.sampled(&io(Op::Write, FLOOD, 8, at), at + ms(1));
                }
            }
            goals.look(window(nth + 1), &Waiting(Vec::new(), 0));
        }
        assert!(sampled(&mut goals, window(3), 80, |_| ms(1)) < 20);
        assert_eq!(sampled(&mut goals, window(4), 80, |_| ms(1)), 80);
    }

    /// One late flush of a group with this goal, and one late write: the goals that are missed by them.
    fn missed_by(goal: Goal) -> [Vec<GoalKind>; 2] {
        [Op::Flush, Op::Write].map(|op| {
            let mut goals = Goals::new(8, &[members(ms(1))[0], members(ms(1))[1]], None);
            let victim = Member { goal, ..members(ms(1))[0] };
            goals.set(&[victim], None);
            goals.completed(&io(op, VICTIM, 0, Instant::ZERO), Instant::ZERO + ms(2));
            goals.look(Instant::ZERO + ms(500), &Waiting(Vec::new(), 0));
            goals.reports().filter(|it| it.missed > 0).map(|it| it.kind).collect()
        })
    }

    /// A goal must not be met by a database that waits for its commits, so flushes count.
    #[test]
    fn a_flush_counts_as_a_write_unless_it_has_a_goal_of_its_own() {
        let (write, sync) = (GoalKind::Write, GoalKind::Sync);
        let goal = Goal { p99_write: ms(1), ..Goal::default() };
        assert_eq!(missed_by(goal), [vec![write], vec![write]]);
        assert_eq!(missed_by(Goal { p99_sync: ms(1), ..goal }), [vec![sync], vec![write]]);
        assert_eq!(missed_by(Goal { p99_sync: ms(9), ..goal }), [vec![], vec![write]]);
        let alone = Goal { p99_sync: ms(1), ..Goal::default() };
        assert_eq!(missed_by(alone), [vec![sync], vec![]]);
    }

    /// Long requests of others are shortened before anything else is taken, and those of groups with a goal or a floor
    /// not.
    #[test]
    fn requests_are_shortened_first() {
        let mut list = members(ms(10)).to_vec();
        list[2].reserve = Rate { percent: 10, ..Rate::default() };
        let capacity = Capacity { iops: 1_000, bps: 1_000_000, safe_percent: 90 };
        let mut goals = Goals::new(32, &list, Some(capacity));
        let mut now = Instant::ZERO;
        let mut miss = |goals: &mut Goals| {
            goals.completed(&io(Op::Write, FLOOD, 8_192, now), now + ms(90));
            for _ in 0..2 {
                goals.completed(&io(Op::Read, VICTIM, 8, now), now + ms(90));
            }
            now += ms(300);
            goals.look(now, &Waiting(Vec::new(), 16));
            goals.taken()
        };
        let short = |sectors| Taken { sectors: Some(sectors), ..Taken::default() };
        assert_eq!(miss(&mut goals), short(1_024));
        assert_eq!(miss(&mut goals), short(256));
        assert_eq!(miss(&mut goals), Taken { device_depth: Some(4), ..short(256) });
        let shortened = [VICTIM, FLOOD, HEAVY].map(|group| goals.shortens(group));
        assert_eq!(shortened, [false, true, false]);
    }

    /// While a group with a floor has I/Os, the number of requests in the device is not bounded.
    #[test]
    fn a_floor_takes_off_the_bound_on_what_the_device_holds() {
        let mut list = members(ms(10)).to_vec();
        list[2].reserve = Rate { percent: 10, ..Rate::default() };
        let capacity = Capacity { iops: 1_000, bps: 1_000_000, safe_percent: 90 };
        let mut goals = Goals::new(32, &list, Some(capacity));
        let late = |goals: &mut Goals, now: Instant| {
            for _ in 0..2 {
                goals.completed(&io(Op::Read, VICTIM, 8, now), now + ms(90));
            }
            goals.look(now + ms(300), &Waiting(Vec::new(), 16));
            goals.taken()
        };
        assert_eq!(late(&mut goals, Instant::ZERO).device_depth, Some(4));
        let now = Instant::ZERO + ms(310);
        assert!(goals.due() > now);
        goals.inserted(now, &io(Op::Read, HEAVY, 8, now));
        assert_eq!(goals.due(), now, "it looks now");
        let taken = late(&mut goals, now);
        assert_eq!((taken.device_depth, taken.rates), (None, [None, None, taken.rates[2]]));
    }
}
