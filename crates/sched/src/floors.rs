//! The account of floors: whether each group with a floor completes its promised work in a second, and the cause if
//! not.
//!
//! The evidence is the work that a group *completed* while it had I/Os outstanding, between their arrival and their
//! end, in the device time that the policy charges. A policy cannot judge itself: it does not see I/Os that wait for a
//! slot, and it has no influence on those that the device holds among others. The account receives each I/O that ends,
//! and the time. Every tenth of a second it looks where the outstanding I/Os are. It has no clock and changes nothing.
//!
//! | in a second | judged |
//! |---|---|
//! | nothing was outstanding for more than 1 % of it | no |
//! | the group completed at least the floor, less 1 % and two I/Os, one for each end of the second | kept |
//! | it completed less | missed, with a [`FloorCause`] |
//!
//! A floor is *infeasible* after three seconds in a row in which the device as a whole completed less than the floors
//! need. The next second in which it is kept ends that.
//!
//! An I/O is reported at its end, so one that was outstanding for long covers gaps between earlier reports. A few of
//! the latest gaps stay open for that. Older gaps are closed: the idle time in them may be too long, never too short,
//! so no second is judged in which the group may have been idle.

use crate::goals::Member;
use crate::{Capacity, Rate};
use alloc::vec::Vec;
use blkmq_core::{GroupIndex, Instant, Nanos};

const SECOND: u64 = 1_000_000_000;
/// The time from one look to the next.
const STEP: Nanos = Nanos::from_millis(100);
/// The longest time without an outstanding I/O in a second that is judged: a client that sends one I/O after the other
/// takes a moment for each.
const MOST_IDLE: u64 = SECOND / 100;
/// The seconds in a row after which a floor is infeasible.
const INFEASIBLE_AFTER: u32 = 3;
/// The most seconds that one look judges. After a longer time without a look, earlier seconds are not judged.
const MOST_JUDGED: u64 = 60;
/// The number of I/Os over which the mean cost is taken.
const MEAN_OF: u64 = 16;
const MILLION: u64 = 1_000_000;
/// No floor.
const NONE: u16 = u16::MAX;

/// The cause of a floor that was missed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FloorCause {
    /// A ceiling of the group, or of one above, held its I/Os back.
    Ceiling,
    /// Its I/Os waited for a slot.
    Slots,
    /// The latency goal of another group held its I/Os back.
    Goal,
    /// Its I/Os were in the device, or waited for it, among those of others.
    Device,
    /// Its I/Os were alone in the device: it has too few in flight.
    Depth,
    /// The device as a whole completed less than the floors need.
    Infeasible,
}

impl FloorCause {
    /// All causes, in the order in which they are counted.
    pub const ALL: [Self; 6] =
        [Self::Ceiling, Self::Slots, Self::Goal, Self::Device, Self::Depth, Self::Infeasible];

    /// Its name in statistics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ceiling => "ceiling",
            Self::Slots => "slots",
            Self::Goal => "goal",
            Self::Device => "device",
            Self::Depth => "depth",
            Self::Infeasible => "infeasible",
        }
    }

    /// The cause as a clause.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Ceiling => "a ceiling holds its I/Os back",
            Self::Slots => "its I/Os wait for a slot",
            Self::Goal => "the latency goal of another group holds its I/Os back",
            Self::Device => "the device holds too much",
            Self::Depth => "it has too few I/Os in flight",
            Self::Infeasible => "infeasible, the device does less than the floors need",
        }
    }
}

/// The state of a floor, by the last second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FloorState {
    /// The group had no I/O outstanding for a part of the second.
    #[default]
    Idle,
    /// The group completed its promised device time.
    Kept,
    /// The group completed less.
    Missed,
    /// For three seconds or more, the group completed less, and the whole device less than the floors need.
    Infeasible,
}

impl FloorState {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Kept => "kept",
            Self::Missed => "missed",
            Self::Infeasible => "infeasible",
        }
    }
}

/// The report about the floor of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FloorReport {
    /// The group.
    pub group: GroupIndex,
    /// The state of the floor.
    pub state: FloorState,
    /// Seconds in which the group had I/Os outstanding all the time.
    pub seconds: u64,
    /// Seconds among them in which the group completed less than its floor.
    pub missed: u64,
    /// The part of the floor that it lacked in missed seconds: half of a floor for a second is half a second.
    pub short: Nanos,
    /// The device time that it completed in the worst of these, in millionths of its floor; 1,000,000 without any.
    pub least: u64,
    /// The missed seconds by cause, in the order of [`FloorCause::ALL`].
    pub causes: [u64; 6],
    /// The evidence of an infeasible floor: the device time completed for all groups in the last infeasible second, in
    /// millionths of the need of the floors; zero if there was none.
    pub best: u64,
}

impl FloorReport {
    /// A report of no seconds.
    #[must_use]
    pub fn new(group: GroupIndex) -> Self {
        Self {
            group,
            state: FloorState::Idle,
            seconds: 0,
            missed: 0,
            short: Nanos::ZERO,
            least: MILLION,
            causes: [0; 6],
            best: 0,
        }
    }

    /// Adds the counts of `later`, and takes its state.
    pub fn add(&mut self, later: &Self) {
        self.state = later.state;
        self.seconds += later.seconds;
        self.missed += later.missed;
        self.short.0 += later.short.0;
        self.least = self.least.min(later.least);
        self.causes.iter_mut().zip(later.causes).for_each(|(sum, more)| *sum += more);
        self.best = if later.best > 0 { later.best } else { self.best };
    }

    /// The cause of the most missed seconds; `None` if none was missed.
    #[must_use]
    pub fn cause(&self) -> Option<FloorCause> {
        let counted = FloorCause::ALL.into_iter().zip(self.causes);
        let (cause, count) = counted.max_by_key(|(_, count)| *count)?;
        (count > 0).then_some(cause)
    }
}

/// The place of an outstanding I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FloorPlace {
    /// It waits for a slot.
    Slot,
    /// A latency goal of another group holds it back, although there is a slot.
    Goal,
    /// The policy holds it.
    Policy,
    /// The device has it.
    Device,
}

/// The I/Os of a group at a look: the oldest arrival, and the number by place.
#[derive(Clone, Copy, Default)]
struct Seen {
    oldest: Option<Instant>,
    at: [u32; 4],
}

impl Seen {
    /// The cause if the group completes too little, with `at_device` I/Os of all groups in the device.
    fn cause(&self, at_device: u32) -> FloorCause {
        let [slot, goal, policy, device] = self.at;
        match () {
            () if policy > 0 => FloorCause::Device,
            () if goal > 0 => FloorCause::Goal,
            () if slot > 0 => FloorCause::Slots,
            () if device == 0 => FloorCause::Ceiling,
            () if device == at_device => FloorCause::Depth,
            () => FloorCause::Device,
        }
    }
}

/// A second, to be judged if I/Os were outstanding all the time.
#[derive(Clone, Copy)]
struct Second {
    number: u64,
    /// The device time that the group completed, in nanoseconds.
    done: u64,
    cause: FloorCause,
    best: u64,
}

/// A group with a floor.
struct Watched {
    group: GroupIndex,
    /// The place of the next group above that has a floor.
    up: u16,
    reserve: Rate,
    /// The device time that it is promised in a second, in nanoseconds.
    due: u64,
    /// The device time that it completed in this second and in later ones, in nanoseconds.
    done: [u64; 2],
    /// [`MEAN_OF`] times the mean cost of its I/Os, and the greatest cost, in nanoseconds.
    mean: u64,
    largest: u64,
    cover: Cover,
    seen: Seen,
    /// The time of this second by the cause that was seen, in nanoseconds.
    spent: [u64; 6],
    /// The second before this one, if it cannot be judged yet: I/Os behind a ceiling are not seen until they end.
    pending: Option<Second>,
    /// Infeasible seconds in a row.
    in_a_row: u32,
    report: FloorReport,
}

impl Watched {
    fn new(group: GroupIndex) -> Self {
        Self {
            group,
            up: NONE,
            reserve: Rate::default(),
            due: 0,
            done: [0; 2],
            mean: 0,
            largest: 0,
            cover: Cover::default(),
            seen: Seen::default(),
            spent: [0; 6],
            pending: None,
            in_a_row: 0,
            report: FloorReport::new(group),
        }
    }

    /// Returns whether the group had I/Os outstanding all the time in `second`.
    fn is_covered(&self, second: u64) -> bool {
        self.cover.idle(second) <= MOST_IDLE
    }

    /// Returns whether `done` is less than the floor.
    fn is_missed(&self, done: u64) -> bool {
        let edges = (2 * self.largest).min(self.due / 2);
        done + edges < self.due - self.due / 100
    }

    fn judge(&mut self, second: &Second) {
        self.report.seconds += 1;
        let is_infeasible = second.cause == FloorCause::Infeasible;
        if !self.is_missed(second.done) {
            self.in_a_row = 0;
            self.report.state = FloorState::Kept;
            return;
        }
        let lacks = self.due - second.done;
        let part = |of: u64| (u128::from(of) * u128::from(MILLION) / u128::from(self.due)) as u64;
        self.report.missed += 1;
        self.report.short.0 += part(lacks) * (SECOND / MILLION);
        self.report.least = self.report.least.min(part(second.done));
        self.report.causes[second.cause as usize] += 1;
        self.in_a_row = if is_infeasible { self.in_a_row + 1 } else { 0 };
        self.report.state = FloorState::Missed;
        if self.in_a_row >= INFEASIBLE_AFTER {
            self.report.state = FloorState::Infeasible;
            self.report.best = second.best;
        }
    }

    /// The cause that was seen for the longest time.
    fn seen_cause(&self) -> FloorCause {
        let causes = FloorCause::ALL.into_iter().zip(self.spent);
        causes.max_by_key(|(_, spent)| *spent).map_or(FloorCause::Device, |(cause, _)| cause)
    }

    /// Ends a second. `best` is the device time completed for all groups, in millionths of the need of all floors.
    fn close(&mut self, number: u64, best: u64, is_judged: bool) {
        if let Some(pending) = self.pending.take()
            && self.is_covered(pending.number)
        {
            self.judge(&pending);
        }
        let done = self.done[0];
        let seen = self.seen_cause();
        let is_infeasible = seen == FloorCause::Device && best < MILLION / 100 * 99;
        let cause = if is_infeasible { FloorCause::Infeasible } else { seen };
        let second = Second { number, done, cause, best };
        if !is_judged {
            self.in_a_row = 0;
        } else if self.is_covered(number) {
            self.judge(&second);
        } else if self.is_missed(done) && self.cover.idle(number) < SECOND {
            self.pending = Some(second);
        } else {
            (self.in_a_row, self.report.state) = (0, FloorState::Idle);
        }
        self.done = [self.done[1], 0];
        self.spent = [0; 6];
        self.cover.forget(if self.pending.is_some() { number } else { number + 1 });
    }
}

/// The account of the floors of one elevator.
pub struct Floors {
    watched: Vec<Watched>,
    /// By number of the group: the place of its floor, or of the next floor above; `NONE` without one.
    of: Vec<u16>,
    capacity: Capacity,
    /// The number of the second, from time zero on, and its end in nanoseconds; zero before the first look.
    second: u64,
    end: u64,
    /// The first second that is judged. The account began in the middle of the one before.
    first: u64,
    /// The device time that all groups completed in this second and in later ones, in nanoseconds.
    total: [u64; 2],
    looked: Instant,
    due: Instant,
    /// By floor: the need of the floors below it, in nanoseconds.
    needs: Vec<u64>,
}

impl Floors {
    /// An account without groups, for a policy that charges by this capacity. It begins with its first look.
    #[must_use]
    pub fn new(capacity: Capacity) -> Self {
        Self {
            watched: Vec::new(),
            of: Vec::new(),
            capacity,
            second: 0,
            end: 0,
            first: 0,
            total: [0; 2],
            looked: Instant::ZERO,
            due: Instant::ZERO,
            needs: Vec::new(),
        }
    }

    fn begin(&mut self, now: Instant) {
        self.second = now.as_nanos() / SECOND;
        self.end = (self.second + 1) * SECOND;
        self.first = (now.as_nanos() + SECOND - MOST_IDLE - 1) / SECOND;
        self.looked = now;
        self.total = [0; 2];
        self.watched.iter_mut().for_each(|one| one.done = [0; 2]);
    }

    /// Follows a change of groups or capacity. Remaining floors keep their counts. O(groups + floors squared).
    pub fn set(&mut self, members: &[Member], capacity: Capacity) {
        self.capacity = capacity;
        let last = members.iter().map(|member| usize::from(member.group.0)).max().unwrap_or(0);
        let mut known = core::mem::take(&mut self.watched);
        self.of.clear();
        self.of.resize(last + 1, NONE);
        for member in members {
            let above = self.of.get(usize::from(member.parent.0)).copied().unwrap_or(NONE);
            let mut place = above;
            if !member.reserve.is_none() {
                place = self.watched.len() as u16;
                let at = known.iter().position(|old| old.group == member.group);
                let mut one =
                    at.map_or_else(|| Watched::new(member.group), |at| known.swap_remove(at));
                (one.up, one.reserve) = (above, member.reserve);
                self.watched.push(one);
            }
            self.of[usize::from(member.group.0)] = place;
        }
        self.needs.resize(self.watched.len(), 0);
        self.reprice(capacity);
    }

    fn reprice(&mut self, capacity: Capacity) {
        self.capacity = capacity;
        for one in &mut self.watched {
            one.due = capacity.time(&one.reserve).max(1);
            if one.mean == 0 {
                one.mean = MEAN_OF * capacity.time(&Rate { iops: 1, ..Rate::default() }).max(1);
            }
        }
    }

    /// Counts an ended I/O of a group, for which the policy charged the device time `cost`. O(depth of the tree).
    #[inline]
    pub fn completed(&mut self, group: GroupIndex, arrived: Instant, ended: Instant, cost: Nanos) {
        let later = usize::from(ended.as_nanos() >= self.end);
        self.total[later] += cost.0;
        let mut place = self.of.get(usize::from(group.0)).copied().unwrap_or(NONE);
        while let Some(one) = self.watched.get_mut(usize::from(place)) {
            one.done[later] += cost.0;
            one.mean = one.mean - one.mean / MEAN_OF + cost.0;
            one.largest = one.largest.max(cost.0);
            one.cover.add(arrived.as_nanos(), ended.as_nanos());
            place = one.up;
        }
    }

    /// The time of the next look.
    #[must_use]
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Looks at the outstanding I/Os, and judges the seconds that are over. `show` shows each I/O, or the oldest of
    /// several that wait in one line. The policy charges by `capacity`. O(groups with floors + I/Os shown).
    pub fn look(
        &mut self,
        now: Instant,
        capacity: Capacity,
        show: impl FnOnce(&mut dyn FnMut(GroupIndex, Instant, FloorPlace)),
    ) {
        if capacity != self.capacity {
            self.reprice(capacity);
        }
        if self.end == 0 {
            self.begin(now);
        }
        let mut at_device = 0;
        let Self { watched, of, .. } = self;
        watched.iter_mut().for_each(|one| one.seen = Seen::default());
        show(&mut |group, arrived, place| {
            at_device += u32::from(place == FloorPlace::Device);
            let mut floor = of.get(usize::from(group.0)).copied().unwrap_or(NONE);
            while let Some(one) = watched.get_mut(usize::from(floor)) {
                let Seen { oldest, at } = &mut one.seen;
                *oldest = Some(oldest.map_or(arrived, |oldest| oldest.min(arrived)));
                at[place as usize] += 1;
                floor = one.up;
            }
        });
        let spent = now.since(self.looked).0;
        for one in watched {
            one.spent[one.seen.cause(at_device) as usize] += spent;
            if let Some(oldest) = one.seen.oldest {
                one.cover.add(oldest.as_nanos(), now.as_nanos());
            }
        }
        self.looked = now;
        let second = now.as_nanos() / SECOND;
        if self.second < second {
            self.close();
            self.second = self.second.max(second.saturating_sub(MOST_JUDGED));
        }
        while self.second < second {
            self.close();
        }
        self.end = (self.second + 1) * SECOND;
        self.due = (now + STEP).min(Instant::from_nanos(self.end));
    }

    fn close(&mut self) {
        let second = self.second;
        let need = self.need();
        let best = u128::from(self.total[0]) * u128::from(MILLION) / u128::from(need.max(1));
        let best = if need == 0 { u64::MAX } else { u64::try_from(best).unwrap_or(u64::MAX) };
        let is_judged = second >= self.first;
        self.watched.iter_mut().for_each(|one| one.close(second, best, is_judged));
        self.total = [self.total[1], 0];
        self.second += 1;
    }

    /// The device time that the floors need in this second. A group that had I/Os at the device, or next to it, all the
    /// time needs its floor, and any other the work that it did. A group needs at least the sum of the groups below it.
    fn need(&mut self) -> u64 {
        let Self { watched, needs, second, .. } = self;
        needs.fill(0);
        let mut need = 0;
        // In reverse, since groups come before those below them.
        for (at, one) in watched.iter().enumerate().rev() {
            let is_there = one.is_covered(*second) && one.seen_cause() == FloorCause::Device;
            let own = if is_there { one.due } else { one.done[0].min(one.due) };
            let own = own.max(needs[at]);
            match needs.get_mut(usize::from(one.up)) {
                Some(above) => *above += own,
                None => need += own,
            }
        }
        need
    }

    /// Passes the report of each group with a floor to `tell`, with the counts since the last call.
    pub fn take(&mut self, tell: &mut dyn FnMut(FloorReport)) {
        for one in &mut self.watched {
            let state = one.report.state;
            let fresh = FloorReport { state, ..FloorReport::new(one.group) };
            tell(core::mem::replace(&mut one.report, fresh));
        }
    }

    /// The time between two I/Os of each group at which its floor is kept, in nanoseconds, by their mean cost.
    pub fn gaps(&self) -> impl Iterator<Item = (GroupIndex, u64)> + '_ {
        self.watched.iter().map(|one| {
            let gap = u128::from(one.mean) * u128::from(SECOND) / u128::from(one.due * MEAN_OF);
            (one.group, u64::try_from(gap).unwrap_or(u64::MAX).max(1))
        })
    }
}

/// The most spans, with open gaps between them.
const SPANS: usize = 8;
/// The seconds for which closed gaps are counted.
const SECONDS: usize = 4;

/// Spans of time with I/Os outstanding, in nanoseconds, in order and apart from each other.
#[derive(Clone, Copy, Debug, Default)]
struct Cover {
    spans: [(u64, u64); SPANS],
    len: usize,
    /// By second, modulo [`SECONDS`]: the time in closed gaps, in nanoseconds.
    closed: [u64; SECONDS],
}

impl Cover {
    /// Adds an I/O that was outstanding from `from` to `to`. O(1) if it began in or after the last span.
    #[inline]
    fn add(&mut self, from: u64, to: u64) {
        match self.spans[..self.len].last_mut() {
            Some((begin, end)) if from <= *end => {
                if from >= *begin {
                    *end = to.max(*end);
                } else {
                    self.join(from, to);
                }
            }
            _ => self.begin(from, to),
        }
    }

    /// Adds a span that begins before the last one, and joins those that it touches.
    #[inline(never)]
    fn join(&mut self, mut from: u64, mut to: u64) {
        let spans = &self.spans[..self.len];
        let first = spans.iter().take_while(|(_, end)| *end < from).count();
        let touched = spans[first..].iter().take_while(|(begin, _)| *begin <= to).count();
        if touched == 0 {
            // The span lies in a gap: the I/O ended long before it was reported. The gap stays as it is.
            return;
        }
        let after = first + touched;
        (from, to) = (from.min(spans[first].0), to.max(spans[after - 1].1));
        self.spans[first] = (from, to);
        self.spans.copy_within(after..self.len, first + 1);
        self.len -= touched - 1;
    }

    #[inline(never)]
    fn begin(&mut self, from: u64, to: u64) {
        if self.len == SPANS {
            self.close(self.spans[0].1, self.spans[1].0);
            self.spans[0].1 = self.spans[1].1;
            self.spans.copy_within(2.., 1);
            self.len -= 1;
        }
        self.spans[self.len] = (from, to);
        self.len += 1;
    }

    /// Closes a gap: later reports do not cover it.
    fn close(&mut self, from: u64, to: u64) {
        let last = to / SECOND;
        // Earlier seconds are not judged.
        let first = (from / SECOND).max(last.saturating_sub(SECONDS as u64 - 1));
        for second in first..=last {
            let inside = to.min((second + 1) * SECOND) - from.max(second * SECOND);
            self.closed[second as usize % SECONDS] += inside;
        }
    }

    /// The time of a second without an I/O outstanding, in nanoseconds, by the I/Os reported so far.
    fn idle(&self, second: u64) -> u64 {
        let (from, to) = (second * SECOND, (second + 1) * SECOND);
        let inside = |(begin, end): &(u64, u64)| (*end).min(to).saturating_sub((*begin).max(from));
        let covered: u64 = self.spans[..self.len].iter().map(inside).sum();
        let closed = self.closed[second as usize % SECONDS];
        (SECOND - covered + closed).min(SECOND)
    }

    /// Forgets the seconds before number `second`.
    fn forget(&mut self, second: u64) {
        let kept = self.spans[..self.len].iter().take_while(|(_, end)| *end <= second * SECOND);
        let gone = kept.count();
        self.spans.copy_within(gone.., 0);
        self.len -= gone;
        // The seconds that may still be judged are this one and the next two.
        self.closed[(second as usize + SECONDS - 1) % SECONDS] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Goal;
    use blkmq_core::Rng;

    #[test]
    fn an_io_that_ends_late_covers_the_gaps_before_it() {
        let mut cover = Cover::default();
        cover.add(0, 100);
        cover.add(300, 400);
        cover.add(600, SECOND);
        assert_eq!(cover.idle(0), 400);
        cover.add(50, 350);
        assert_eq!(cover.idle(0), 200, "all but the last gap");
        cover.add(0, SECOND + 5);
        assert_eq!((cover.idle(0), cover.idle(1)), (0, SECOND - 5));
        cover.forget(1);
        assert_eq!(cover.idle(1), SECOND - 5);
    }

    /// Compared with a map of each nanosecond: exact while few gaps are open, and otherwise never less than the truth.
    #[test]
    fn the_time_without_ios_is_never_too_short() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let base = SECOND - 500;
            let (mut cover, mut map) = (Cover::default(), Vec::from([false; 1_000]));
            let (mut at, mut ios) = (0_u64, 0);
            while at < 990 {
                at += rng.below(if seed % 2 == 0 { 30 } else { 200 });
                let to = at.min(1_000);
                let from = to.saturating_sub(rng.below(40));
                cover.add(base + from, base + to);
                map[from as usize..to as usize].fill(true);
                ios += 1;
            }
            let outside = SECOND - 500;
            for (second, half) in [(0, &map[..500]), (1, &map[500..])] {
                let truth = half.iter().filter(|is| !**is).count() as u64 + outside;
                let idle = cover.idle(second);
                assert!(idle >= truth, "seed {seed}: {idle} of {truth}");
                if ios <= SPANS {
                    assert_eq!(idle, truth, "seed {seed}");
                }
            }
        }
    }

    const CAPACITY: Capacity = Capacity { iops: 1_000, bps: 1 << 40, safe_percent: 90 };
    /// The cost of an I/O.
    const COST: Nanos = Nanos(SECOND / 1_000);

    fn member(group: u16, parent: u16, iops: u64) -> Member {
        let reserve = Rate { iops, ..Rate::default() };
        Member {
            group: GroupIndex(group),
            parent: GroupIndex(parent),
            weight: 100,
            goal: Goal::default(),
            reserve,
        }
    }

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    fn account(members: &[Member]) -> Floors {
        let mut floors = Floors::new(CAPACITY);
        floors.set(members, CAPACITY);
        floors.look(Instant::ZERO, CAPACITY, |_| {});
        floors
    }

    /// A group that always has four I/Os outstanding, seen at `place`.
    struct Load {
        group: u16,
        iops: u64,
        place: FloorPlace,
    }

    /// Runs the loads from second `from` to second `to`.
    fn run(floors: &mut Floors, (from, to): (u64, u64), loads: &[Load]) {
        for step in from * 1_000..to * 1_000 {
            let now = step * (SECOND / 1_000);
            for load in loads {
                // The I/O with this number ends in this millisecond.
                if (step + 1) * load.iops / 1_000 > step * load.iops / 1_000 {
                    let arrived = now.saturating_sub(4 * SECOND / load.iops);
                    floors.completed(GroupIndex(load.group), at(arrived), at(now), COST);
                }
            }
            if floors.due() <= at(now) {
                floors.look(at(now), CAPACITY, |show| {
                    let arrived = |load: &Load| at(now.saturating_sub(4 * SECOND / load.iops));
                    loads.iter().for_each(|it| show(GroupIndex(it.group), arrived(it), it.place));
                });
            }
        }
        floors.look(at(to * SECOND), CAPACITY, |_| {});
    }

    fn taken(floors: &mut Floors) -> Vec<FloorReport> {
        let mut all = Vec::new();
        floors.take(&mut |report| all.push(report));
        all
    }

    #[test]
    fn a_floor_is_missed_by_what_was_completed_and_the_cause_is_the_place_of_its_ios() {
        for (place, cause) in [
            (FloorPlace::Slot, FloorCause::Slots),
            (FloorPlace::Goal, FloorCause::Goal),
            (FloorPlace::Policy, FloorCause::Device),
            (FloorPlace::Device, FloorCause::Device),
        ] {
            let mut floors = account(&[member(1, 0, 200)]);
            let other = Load { group: 2, iops: 500, place: FloorPlace::Device };
            run(&mut floors, (0, 10), &[Load { group: 1, iops: 50, place }, other]);
            let [report] = taken(&mut floors)[..] else { panic!("one floor") };
            assert_eq!((report.seconds, report.missed, report.state), (10, 10, FloorState::Missed));
            assert_eq!((report.cause(), report.least / 1_000), (Some(cause), 250));
            assert_eq!(report.short, Nanos(7_500_000_000));
            assert_eq!(taken(&mut floors)[0].seconds, 0, "it was taken");
        }
    }

    #[test]
    fn a_floor_that_is_kept_but_for_one_percent_is_no_miss_and_an_idle_group_has_none() {
        let mut floors = account(&[member(1, 0, 200)]);
        run(&mut floors, (0, 5), &[Load { group: 1, iops: 197, place: FloorPlace::Policy }]);
        let kept = taken(&mut floors)[0];
        assert_eq!((kept.seconds, kept.missed, kept.state), (5, 0, FloorState::Kept));
        assert_eq!((kept.cause(), kept.least), (None, MILLION));
        // I/Os of 1 ms, one at a time, at 10 a second: for most of the time there was nothing to do.
        for n in 50..100_u64 {
            let now = n * 100_000_000;
            floors.completed(GroupIndex(1), at(now - 1_000_000), at(now), COST);
            floors.look(at(now), CAPACITY, |_| {});
        }
        let idle = taken(&mut floors)[0];
        assert_eq!((idle.seconds, idle.missed), (0, 0), "{idle:?}");
    }

    #[test]
    fn ios_that_no_look_finds_are_held_back_by_a_ceiling() {
        let mut floors = account(&[member(1, 0, 200)]);
        for n in 1..=100_u64 {
            let now = n * 100_000_000;
            floors.completed(GroupIndex(1), at(now.saturating_sub(1_600_000_000)), at(now), COST);
            floors.look(at(now), CAPACITY, |_| {});
        }
        let report = taken(&mut floors)[0];
        // The last second is judged when the next I/O has ended.
        assert!(report.seconds >= 9 && report.missed == report.seconds, "{report:?}");
        assert_eq!(report.cause(), Some(FloorCause::Ceiling));
    }

    #[test]
    fn a_floor_on_a_device_that_got_slower_is_infeasible_within_five_seconds_until_it_recovers() {
        let members = [member(1, 0, 400), member(2, 0, 200)];
        let mut floors = account(&members);
        let loads = |first, second| {
            [(1, first), (2, second)].map(|(group, iops)| Load {
                group,
                iops,
                place: FloorPlace::Policy,
            })
        };
        run(&mut floors, (0, 3), &loads(400, 300));
        assert!(taken(&mut floors).iter().all(|one| one.state == FloorState::Kept));
        run(&mut floors, (3, 8), &loads(200, 100));
        for report in taken(&mut floors) {
            assert_eq!((report.state, report.missed), (FloorState::Infeasible, 5));
            assert_eq!((report.cause(), report.best / 1_000), (Some(FloorCause::Infeasible), 500));
        }
        run(&mut floors, (8, 10), &loads(400, 300));
        assert!(taken(&mut floors).iter().all(|one| one.state == FloorState::Kept));
    }

    #[test]
    fn an_io_alone_in_the_device_has_too_few_beside_it() {
        let mut floors = account(&[member(1, 0, 400)]);
        run(&mut floors, (0, 4), &[Load { group: 1, iops: 100, place: FloorPlace::Device }]);
        let report = taken(&mut floors)[0];
        assert_eq!((report.cause(), report.state), (Some(FloorCause::Depth), FloorState::Missed));
    }

    #[test]
    fn a_group_completes_for_the_groups_above_it_and_their_floors_are_not_added_up() {
        let members = [member(1, 0, 400), member(2, 1, 300), member(3, 1, 0)];
        let mut floors = account(&members);
        let load = |group, iops| Load { group, iops, place: FloorPlace::Policy };
        run(&mut floors, (0, 4), &[load(2, 300), load(3, 200)]);
        assert!(taken(&mut floors).iter().all(|one| (one.seconds, one.missed) == (4, 0)));
        // 450 of 400, of which 300 are those of group 2: more than the floors need.
        run(&mut floors, (4, 8), &[load(2, 100), load(3, 350)]);
        let [above, below] = taken(&mut floors)[..] else { panic!("two floors") };
        assert_eq!((above.missed, below.missed), (0, 4));
        assert_eq!(below.cause(), Some(FloorCause::Device));
    }

    #[test]
    fn a_stall_of_hours_is_not_judged_second_by_second() {
        let mut floors = account(&[member(1, 0, 400)]);
        let hours = 100_000 * SECOND;
        floors.look(at(hours), CAPACITY, |show| {
            show(GroupIndex(1), Instant::ZERO, FloorPlace::Device);
        });
        let report = taken(&mut floors)[0];
        assert_eq!((report.missed, report.least), (MOST_JUDGED + 1, 0));
        assert!(floors.due() > at(hours) && floors.due() <= at(hours) + STEP);
    }

    #[test]
    fn the_gap_between_two_ios_follows_their_cost() {
        let mut floors = account(&[member(1, 0, 200)]);
        assert_eq!(Vec::from_iter(floors.gaps()), [(GroupIndex(1), SECOND / 200)]);
        for n in 0..400 {
            floors.completed(GroupIndex(1), at(n), at(n + 1), Nanos(4 * COST.0));
        }
        let gap = Vec::from_iter(floors.gaps())[0].1;
        assert!(gap.abs_diff(SECOND / 50) < SECOND / 5_000, "{gap}");
    }
}
