//! Latency goals: a controller beside the policies that keeps the 99th percentile of a group's latency below a target, by
//! taking from the groups without a goal.
//!
//! The controller is told every request and the time, and answers two questions: how many requests the device may hold, and
//! whether a group may have another request now. It has no clock, orders no request, and knows neither policy nor device:
//! it tries. `doc/goals.md` has the rules in full.
//!
//! | state of a goal | in a window | the controller |
//! |---|---|---|
//! | idle | no I/O came, none waits | gives back, as if it were met |
//! | unknown | none ended, some wait, none for longer than the goal | waits |
//! | met | at most 1 % took longer than the goal | after some windows in a row, gives back a step |
//! | missed | more did, or one waits for longer | takes a step, or undoes the last one that it gave back |
//! | infeasible | was missed when there was nothing left to take | gives all back, and tries again later |
//!
//! *No completions while I/Os wait is unknown, never good*: a device that is stuck has no late completions.

mod control;
mod pace;
mod sampling;
mod window;

#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use blkmq_core::{GroupId, Instant, IoMeta, Nanos, Op};
use control::Control;
use pace::{Pace, TIERS};
use sampling::Sampling;
use window::{Verdict, Window};

/// The targets of a group; zero for none. Targets hold for the group and the groups below it that have none of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Goal {
    /// 99 of 100 reads end within this time, from their arrival at the queue.
    pub p99_read: Nanos,
    /// The same of everything else.
    pub p99_write: Nanos,
}

impl Goal {
    /// Has it no target?
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// A group as the controller knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its number; the root is not in the list.
    pub group: GroupId,
    /// The group above it, which comes earlier in the list or is the root.
    pub parent: GroupId,
    /// Its weight: of two groups, the lighter one is taken from first.
    pub weight: u32,
    /// Its targets.
    pub goal: Goal,
}

/// The state of a goal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GoalState {
    /// No I/O came and none waits.
    #[default]
    Idle,
    /// I/Os wait, and none has ended.
    Unknown,
    /// At most 1 % took longer.
    Met,
    /// More than 1 % took longer.
    Missed,
    /// Missed although nothing was left to take.
    Infeasible,
}

impl GoalState {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Unknown => "unknown",
            Self::Met => "met",
            Self::Missed => "missed",
            Self::Infeasible => "infeasible",
        }
    }
}

/// A goal and how it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GoalReport {
    /// The group.
    pub group: GroupId,
    /// Is it the goal for reads?
    pub reads: bool,
    /// The target.
    pub goal: Nanos,
    /// How it stands.
    pub state: GoalState,
    /// The 99th percentile in the last window that was judged, at most 19 % above the true one; zero before the first.
    pub p99: Nanos,
    /// Windows judged so far, without those in which nothing came.
    pub windows: u64,
    /// Windows in which the goal was missed.
    pub missed: u64,
    /// The 99th percentile when there was nothing left to take: the evidence of an infeasible goal. Zero if the goal was
    /// never found infeasible.
    pub best: Nanos,
}

/// The bounds that the controller has put on the groups without a goal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Taken {
    /// The most requests at the device; `None`: as many as it takes.
    pub device_depth: Option<u32>,
    /// Bytes a second, with 16 KiB for each request, of all groups that are lighter than those with goals, as heavy as the
    /// lightest of these, and heavier; `None`: any number.
    pub rates: [Option<u64>; TIERS],
}

/// The requests of a queue, as the controller sees them when it looks.
pub trait Sight {
    /// Shows every request that has not ended, in any order.
    fn waiting(&self, show: &mut dyn FnMut(&IoMeta));
    /// Requests at the device.
    fn at_device(&self) -> u32;
}

/// The time from one look to the next.
pub const STEP: Nanos = Nanos::from_millis(100);
/// No goal, and no tier.
const NONE: u16 = u16::MAX;

/// A goal for one direction, and its window.
struct Watched {
    group: GroupId,
    reads: bool,
    goal: Nanos,
    window: Window,
    /// When the oldest of its I/Os came that have not ended, at the last look.
    oldest: Option<Instant>,
    state: GoalState,
    /// The last look that found I/Os.
    used: Option<Instant>,
    /// While it is infeasible: when it is tried again, and how long it rests the next time.
    rests: (Instant, Nanos),
    p99: Nanos,
    best: Nanos,
    windows: u64,
    missed: u64,
}

/// How a group is treated.
#[derive(Clone, Copy)]
struct Treated {
    /// The places of its goals for reads and others.
    watched: [u16; 2],
    /// The tier that it is in; `NONE` if nothing is taken from it.
    tier: u16,
}

/// The controller of one elevator.
pub struct Goals {
    watched: Vec<Watched>,
    /// By number of the group.
    treated: Vec<Treated>,
    pace: Pace,
    control: Control,
    sampling: Sampling,
    /// I/Os that came before this do not show what was done then.
    since: Instant,
    due: Instant,
}

impl Goals {
    /// A controller for a device that takes `most` requests, and these groups.
    #[must_use]
    pub fn new(most: u32, members: &[Member]) -> Self {
        let mut goals = Self {
            watched: Vec::new(),
            treated: Vec::new(),
            pace: Pace::default(),
            control: Control::new(most),
            sampling: Sampling::default(),
            since: Instant::ZERO,
            due: Instant::ZERO,
        };
        goals.set(members);
        goals
    }

    /// Follows a change of the groups. Goals that are as before keep their counts. O(groups), and of the goals the square.
    pub fn set(&mut self, members: &[Member]) {
        let last = members.iter().map(|member| usize::from(member.group.0)).max().unwrap_or(0);
        let known = core::mem::take(&mut self.watched);
        let root = Treated { watched: [NONE; 2], tier: NONE };
        self.treated = alloc::vec![root; last + 1];
        let with_goals = members.iter().filter(|member| !member.goal.is_none());
        let lightest = with_goals.map(|member| member.weight).min().unwrap_or(0);
        self.treated[0].tier = tier(DEFAULT_WEIGHT, lightest);
        for member in members {
            let above = self.treated[usize::from(member.parent.0)];
            let mut one = Treated { watched: above.watched, tier: NONE };
            let targets = [(true, member.goal.p99_read), (false, member.goal.p99_write)];
            for (place, (reads, goal)) in targets.into_iter().enumerate() {
                if goal > Nanos::ZERO {
                    // There are at most 1023 groups.
                    one.watched[place] = self.watched.len() as u16;
                    self.watched.push(Watched::new(member.group, reads, goal));
                }
            }
            if one.watched == [NONE; 2] {
                one.tier = tier(member.weight, lightest);
            }
            self.treated[usize::from(member.group.0)] = one;
        }
        for old in known {
            let same = |new: &&mut Watched| {
                (new.group, new.reads, new.goal) == (old.group, old.reads, old.goal)
            };
            if let Some(new) = self.watched.iter_mut().find(same) {
                *new = old;
            }
        }
    }

    fn treated(&self, group: GroupId) -> Treated {
        let found = self.treated.get(usize::from(group.0));
        found.copied().unwrap_or(self.treated[0])
    }

    /// A request came in.
    pub fn inserted(&mut self, now: Instant, io: &IoMeta) {
        self.pace.charge(self.treated(io.group).tier, now, pace::cost(io));
    }

    /// An I/O has joined a request.
    pub fn joined(&mut self, now: Instant, io: &IoMeta) {
        self.pace.charge(self.treated(io.group).tier, now, pace::bytes(io));
    }

    /// A request has ended.
    pub fn completed(&mut self, io: &IoMeta, at: Instant) {
        let place = self.treated(io.group).watched[usize::from(io.op != Op::Read)];
        if let Some(watched) = self.watched.get_mut(usize::from(place)) {
            watched.window.count(io.arrived, at, self.since, watched.goal);
        }
    }

    /// A request has ended that was not told when it came in: as [`inserted`](Self::inserted) and
    /// [`completed`](Self::completed) at once.
    pub fn passed(&mut self, io: &IoMeta, at: Instant) {
        self.count(io, at, 1);
    }

    /// The same for a request that stands for others, while nothing is taken. Returns the number of requests until the
    /// next one that is to be told, with that.
    pub fn sampled(&mut self, io: &IoMeta, at: Instant) -> u32 {
        self.count(io, at, self.sampling.stride());
        self.sampling.next()
    }

    /// How many requests a sample stands for. After a look the next sample is to come after no more than so many.
    #[must_use]
    pub fn stride(&self) -> u32 {
        self.sampling.stride()
    }

    fn count(&mut self, io: &IoMeta, at: Instant, requests: u32) {
        let treated = self.treated(io.group);
        let place = treated.watched[usize::from(io.op != Op::Read)];
        match self.watched.get_mut(usize::from(place)) {
            // Nothing is taken from a group with a goal. A share of a window is the same share of its samples.
            Some(watched) => watched.window.count(io.arrived, at, self.since, watched.goal),
            None => self.pace.charge(treated.tier, at, pace::cost(io) * u64::from(requests)),
        }
    }

    /// May `group` have another request now?
    #[must_use]
    pub fn admits(&self, group: GroupId, now: Instant) -> bool {
        self.pace.admits(self.treated(group).tier, now)
    }

    /// The earliest time, later than `now`, at which a group may have a request that may have none now.
    #[must_use]
    pub fn next_admission(&self, now: Instant) -> Option<Instant> {
        self.pace.next(now)
    }

    /// When the controller wants to look again.
    #[must_use]
    pub fn due(&self) -> Instant {
        self.due
    }

    /// The bounds in force.
    #[must_use]
    pub fn taken(&self) -> Taken {
        Taken { device_depth: self.control.depth(), rates: self.pace.rates() }
    }

    /// The goals, in the order of the groups, reads first.
    pub fn reports(&self) -> impl Iterator<Item = GoalReport> + '_ {
        self.watched.iter().map(|watched| GoalReport {
            group: watched.group,
            reads: watched.reads,
            goal: watched.goal,
            state: watched.state,
            p99: watched.p99,
            windows: watched.windows,
            missed: watched.missed,
            best: watched.best,
        })
    }

    /// Judges the windows that are over, and takes or gives back. To be called once [`due`](Self::due) has come.
    pub fn look(&mut self, now: Instant, sight: &dyn Sight) {
        self.due = now + STEP;
        let elapsed = now.since(self.since);
        self.find_oldest(sight);
        let mut open = false;
        let mut missed = false;
        let mut stride = sampling::MOST;
        for watched in &mut self.watched {
            let waits = watched.oldest.map(|came| now.since(came.max(self.since)));
            let verdict = watched.window.verdict(elapsed, waits, watched.goal);
            let idle_for = watched.idle_for(verdict, now);
            stride = stride.min(self.sampling.wanted(verdict, watched.window.ios(), idle_for));
            watched.note(verdict, now);
            match verdict {
                _ if watched.state == GoalState::Infeasible => {}
                Verdict::Missed => missed = true,
                Verdict::Open | Verdict::Unknown => open = true,
                Verdict::Met | Verdict::Idle => {}
            }
        }
        self.sampling.set(stride);
        if !missed && open {
            return;
        }
        let tried = self.watched.iter().filter(|it| it.state != GoalState::Infeasible);
        let mean = tried.clone().map(|it| it.window.mean()).max().unwrap_or(0);
        let ease = tried.clone().all(|it| it.p99.0 <= it.goal.0 / 2);
        let room = tried.clone().all(|it| it.p99.0 <= it.goal.0 / 4 * 3);
        let at_device = sight.at_device();
        let seen = control::Seen { now, missed, mean, ease, room, at_device };
        if self.control.decide(&seen, &mut self.pace) == control::Answer::Infeasible {
            self.give_up(now);
        }
        if self.taken() != Taken::default() {
            // Every request is counted.
            self.sampling.set(1);
        }
        self.restart(now);
    }

    fn find_oldest(&mut self, sight: &dyn Sight) {
        self.watched.iter_mut().for_each(|watched| watched.oldest = None);
        let (watched, treated) = (&mut self.watched, &self.treated);
        sight.waiting(&mut |io| {
            let of = treated.get(usize::from(io.group.0)).unwrap_or(&treated[0]);
            let place = of.watched[usize::from(io.op != Op::Read)];
            if let Some(watched) = watched.get_mut(usize::from(place)) {
                let oldest = watched.oldest.map_or(io.arrived, |other| other.min(io.arrived));
                watched.oldest = Some(oldest);
            }
        });
    }

    /// Sets the goals aside that were missed although nothing is left to take.
    fn give_up(&mut self, now: Instant) {
        for watched in &mut self.watched {
            if watched.state == GoalState::Missed {
                watched.state = GoalState::Infeasible;
                watched.best = watched.p99;
                let rest = watched.rests.1;
                watched.rests = (now + rest, Nanos((2 * rest.0).min(LONGEST_REST.0)));
            }
        }
    }

    fn restart(&mut self, now: Instant) {
        self.since = now;
        self.pace.restart(now);
        self.sampling.restart();
        self.watched.iter_mut().for_each(|watched| watched.window = Window::default());
    }
}

/// The weight of I/Os of no group.
const DEFAULT_WEIGHT: u32 = 100;
/// An infeasible goal is tried again after this time, and after twice that, up to the next.
const FIRST_REST: Nanos = Nanos::from_secs(60);
const LONGEST_REST: Nanos = Nanos::from_secs(960);

/// The tier of a group of this weight, beside goals of groups of which `lightest` is the least weight.
fn tier(weight: u32, lightest: u32) -> u16 {
    match weight.cmp(&lightest) {
        core::cmp::Ordering::Less => 0,
        core::cmp::Ordering::Equal => 1,
        core::cmp::Ordering::Greater => 2,
    }
}

impl Watched {
    fn new(group: GroupId, reads: bool, goal: Nanos) -> Self {
        Self {
            group,
            reads,
            goal,
            window: Window::default(),
            oldest: None,
            state: GoalState::Idle,
            used: None,
            rests: (Instant::ZERO, FIRST_REST),
            p99: Nanos::ZERO,
            best: Nanos::ZERO,
            windows: 0,
            missed: 0,
        }
    }

    /// How long no look has found I/Os.
    fn idle_for(&mut self, verdict: Verdict, now: Instant) -> Nanos {
        if verdict != Verdict::Idle {
            self.used = Some(now);
        }
        self.used.map_or(Nanos(u64::MAX), |used| now.since(used))
    }

    fn note(&mut self, verdict: Verdict, now: Instant) {
        if let Verdict::Met | Verdict::Missed = verdict {
            self.windows += 1;
            self.missed += u64::from(verdict == Verdict::Missed);
            self.p99 = self.window.p99();
        }
        if self.state == GoalState::Infeasible && now < self.rests.0 {
            return;
        }
        self.state = match verdict {
            Verdict::Idle => GoalState::Idle,
            Verdict::Unknown => GoalState::Unknown,
            Verdict::Met => GoalState::Met,
            Verdict::Missed => GoalState::Missed,
            Verdict::Open => self.state,
        };
        if self.state == GoalState::Infeasible {
            self.state = GoalState::Unknown;
        }
    }
}
