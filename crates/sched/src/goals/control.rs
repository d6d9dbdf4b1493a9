//! The steps of the controller, taking after a missed window and giving back; and the pace of the groups without a
//! goal: the bytes a second that the groups of a tier may begin together.
//!
//! The order of taking is: the length of requests; the depth of the device, while that helps; the rates of the tiers,
//! lightest first. The order of giving back is the reverse.
//!
//! The effect of short requests is not judged. They cost the others little. They help directly where one request is
//! most of what the device holds, and a depth or a rate is fine enough only with short requests.
//!
//! A rate is finer than a depth. A drive with a write cache is as fast, and as busy behind its cache, at a depth of one
//! as at 32, so a bound below one request at a time is needed (decision 0024).

use blkmq_core::{Instant, IoMeta, Nanos, SECTOR_SIZE};

/// The number of tiers: groups lighter than the lightest group with a goal, as heavy, and heavier.
pub(super) const TIERS: usize = 3;
/// The cost of a request beside its bytes.
const OF_A_REQUEST: u64 = 16 << 10;
/// The unused time of a rate that may be used later, since a pass may be late.
const LATE: Nanos = Nanos::from_millis(5);
/// The longest time until the next request of a tier, so that none waits for ever.
const LONGEST: Nanos = Nanos::from_millis(250);
/// The part of its rate before anything was taken that a tier keeps in any case.
const LEFT: u64 = 64;

/// The length of a request or an I/O, in bytes.
pub(super) fn bytes(io: &IoMeta) -> u64 {
    u64::from(io.sectors) * u64::from(SECTOR_SIZE)
}

/// The cost of a request, in bytes.
pub(super) fn cost(io: &IoMeta) -> u64 {
    OF_A_REQUEST + bytes(io)
}

#[derive(Clone, Copy, Default)]
struct Tier {
    /// Bytes a second; `None` for no bound.
    rate: Option<u64>,
    /// The rate in use before anything was taken.
    had: u64,
    /// The least rate that it keeps.
    kept: u64,
    /// The cost of the requests of this window.
    used: u64,
    /// The cost a second in the last window.
    lately: u64,
    /// A rate at which a goal was missed, and the time until which it is not tried again.
    ceiling: (u64, Instant),
    /// The distance that it keeps from that rate, as a shift (3: an eighth), and the time from which it may come
    /// closer.
    near: (u32, Instant),
    /// The earliest time of its next request.
    next: Instant,
}

/// The rates of all tiers.
#[derive(Default)]
pub(super) struct Pace {
    tiers: [Tier; TIERS],
    began: Instant,
}

/// A tier comes closer to such a rate after this time, from a distance of `FARTHEST` to one of `NEAREST`, as shifts. At
/// 7/8, a beat between two tenants may leave less than half of the available rate.
const CLOSER: Nanos = Nanos::from_secs(2);
const NEAREST: u32 = 5;
const FARTHEST: u32 = 3;

/// The result of giving back.
enum Raise {
    /// A tier has a higher rate. With its number, and the rate before.
    Raised((usize, Option<u64>)),
    /// A tier has a rate, and more was too much lately.
    Held,
    /// No tier has a rate.
    Free,
}

/// The size of a step that lowers a rate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// To three quarters.
    Little,
    /// To a quarter.
    Much,
}

impl Tier {
    /// The rate to which it is lowered at most, in bytes a second.
    fn least(&self) -> u64 {
        self.kept.max(self.had / LEFT).max(1)
    }

    /// Remembers that a goal was missed at this rate.
    fn was_too_much(&mut self, rate: u64, now: Instant) {
        self.ceiling = (rate, now + REMEMBERED);
        self.near = (FARTHEST, now + CLOSER);
    }
}

impl Pace {
    fn tier(&self, tier: u16) -> Option<&Tier> {
        self.tiers.get(usize::from(tier))
    }

    pub(super) fn is_limited(&self, tier: u16) -> bool {
        self.tier(tier).is_some_and(|tier| tier.rate.is_some())
    }

    pub(super) fn charge(&mut self, tier: u16, now: Instant, cost: u64) {
        let Some(tier) = self.tiers.get_mut(usize::from(tier)) else { return };
        tier.used += cost;
        if let Some(rate) = tier.rate {
            let from = tier.next.max(Instant::from_nanos(now.as_nanos().saturating_sub(LATE.0)));
            let next = from + Nanos(cost.saturating_mul(1_000_000_000) / rate.max(1));
            tier.next = next.min(now + LONGEST);
        }
    }

    pub(super) fn admits(&self, tier: u16, now: Instant) -> bool {
        self.tier(tier).is_none_or(|tier| tier.rate.is_none() || tier.next <= now)
    }

    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        let limited = self.tiers.iter().filter(|tier| tier.rate.is_some());
        limited.map(|tier| tier.next).filter(|next| *next > now).min()
    }

    pub(super) fn rates(&self) -> [Option<u64>; TIERS] {
        self.tiers.map(|tier| tier.rate)
    }

    /// Notes the rates of the tiers in the window, which is over.
    pub(super) fn measure(&mut self, now: Instant) {
        let elapsed = now.since(self.began).0.max(1);
        for tier in &mut self.tiers {
            let lately = u128::from(tier.used) * 1_000_000_000 / u128::from(elapsed);
            tier.lately = u64::try_from(lately).unwrap_or(u64::MAX);
        }
    }

    /// The number of tiers that have I/O or a rate.
    fn busy(&self) -> u64 {
        self.tiers.iter().filter(|tier| tier.lately > 0 || tier.rate.is_some()).count() as u64
    }

    /// Sets the least rates of the tiers. While something is taken (not `is_free`), they do not fall.
    pub(super) fn keep(&mut self, kept: [u64; TIERS], is_free: bool) {
        for (tier, kept) in self.tiers.iter_mut().zip(kept) {
            tier.kept = if is_free { kept } else { tier.kept.max(kept) };
        }
    }

    /// Returns whether all tiers with a rate have their least rate.
    fn is_bare(&self) -> bool {
        self.tiers.iter().all(|tier| tier.rate.is_none_or(|rate| rate <= tier.least()))
    }

    /// Returns whether a tier that had I/O used no more than its least rate.
    fn is_short(&self) -> bool {
        self.tiers.iter().any(|tier| tier.lately > 0 && tier.lately <= tier.least())
    }

    /// Begins the next window.
    pub(super) fn restart(&mut self, now: Instant) {
        self.began = now;
        self.tiers.iter_mut().for_each(|tier| tier.used = 0);
    }

    /// Takes from the lightest tier above its least rate. Returns false if there is none.
    fn cut(&mut self, at: Instant, how: Cut) -> bool {
        for tier in &mut self.tiers {
            if tier.rate.is_none() {
                tier.had = tier.lately;
            }
            let now = tier.rate.map_or(tier.lately, |rate| rate.min(tier.lately.max(1)));
            let least = tier.least();
            if now > least {
                if let (Some(rate), Cut::Little) = (tier.rate, how) {
                    tier.was_too_much(rate, at);
                }
                let lower = if how == Cut::Little { now / 4 * 3 } else { now / 4 };
                tier.rate = Some(lower.max(least));
                return true;
            }
        }
        false
    }

    /// Gives back to the heaviest tier that has a rate, more `with_ease`.
    fn raise(&mut self, now: Instant, with_ease: bool) -> Raise {
        let lacks = |place: &usize| self.tiers[*place].rate.is_some();
        let Some(place) = (0..TIERS).rev().find(lacks) else { return Raise::Free };
        let tier = &mut self.tiers[place];
        let before = tier.rate;
        let rate = before.unwrap_or(0);
        let (missed, until) = tier.ceiling;
        let is_held = now < until;
        if is_held && with_ease && now >= tier.near.1 && tier.near.0 < NEAREST {
            tier.near = (tier.near.0 + 1, now + CLOSER);
        }
        let most = if is_held { missed - (missed >> tier.near.0) } else { u64::MAX };
        // Large steps end at the rate that was too much, however long ago that was.
        let large = rate / 2 * 3;
        let more =
            if with_ease && (missed == 0 || large <= missed) { large } else { rate / 8 * 9 } + 1;
        if more.min(most) <= rate + rate / 64 {
            return Raise::Held;
        }
        // The rate is not lifted while it is remembered that less was too much.
        tier.rate = Some(more.min(most)).filter(|rate| is_held || *rate < 2 * tier.had);
        Raise::Raised((place, before))
    }

    /// Undoes the last increase of a tier, which was too much.
    fn put_back(&mut self, now: Instant, (place, rate): (usize, Option<u64>)) {
        let tier = &mut self.tiers[place];
        tier.had = tier.had.max(tier.lately);
        tier.was_too_much(tier.rate.unwrap_or(tier.lately), now);
        tier.rate = rate;
    }

    /// Lifts all rates.
    fn release(&mut self) {
        self.tiers.iter_mut().for_each(|tier| tier.rate = None);
    }
}

/// Good windows before something is given back, at first and at most. They double each time that it was too much.
const PATIENCE: u32 = 2;
const MOST_PATIENCE: u32 = 8;
/// The factor of good windows where goals are met but not far from missed: the device alone may be so slow.
const MORE: u32 = 10;
/// The time for which a rate, a depth or a length at which a goal was missed is not tried again.
const REMEMBERED: Nanos = Nanos::from_secs(60);
/// The shortest length, in sectors (128 KiB): a drive needs it for its full speed.
const SHORTEST: u32 = 256;
/// The time that a goal is missed with nothing left to take until it is infeasible: a drive still writes its cache.
const NOTHING_LEFT: Nanos = Nanos::from_millis(2000);
/// Time in which the goal is met reduces that by this part of it. So a goal at the edge of what the device can do,
/// missed in more than one of so many windows, is infeasible too.
const EDGE: u64 = 16;
/// The time after which a step shows its effect, since requests in the device or behind its cache end first. It is
/// divided by the number of busy tiers, so that an infeasible goal is known within five seconds.
const SHOWS: Nanos = Nanos::from_millis(300);

/// The outcome of the windows.
pub(super) struct Seen {
    pub(super) now: Instant,
    /// The length of the window.
    pub(super) elapsed: Nanos,
    /// A goal was missed.
    pub(super) missed: bool,
    /// The largest mean latency of a goal's I/Os, in nanoseconds.
    pub(super) mean: u64,
    /// Every percentile is below an eighth of its goal.
    pub(super) rest: bool,
    /// Every percentile is below half of its goal.
    pub(super) ease: bool,
    /// Every percentile is below three quarters of its goal.
    pub(super) room: bool,
    /// Requests at the device.
    pub(super) at_device: u32,
    /// The longest request of the groups without a goal or a floor, in sectors.
    pub(super) longest: u32,
    /// Groups with a floor have I/Os, so the depth of the device is not bounded.
    pub(super) floors: bool,
}

/// The outcome of a decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// The control continues.
    Goes,
    /// The missed goals cannot be met.
    Infeasible,
}

/// The last step.
#[derive(Clone, Copy)]
enum Last {
    None,
    CutLength,
    /// With the length before the step.
    RaisedLength(Option<u32>),
    /// With the mean latency before the step, in nanoseconds.
    CutDepth(u64),
    CutRate,
    /// With the tier, and its rate before the step.
    RaisedRate((usize, Option<u64>)),
    /// With the depth before the step.
    RaisedDepth(Option<u32>),
}

pub(super) struct Control {
    /// The most requests that the device takes.
    most: u32,
    /// The longest request in sectors; `None` for no bound.
    length: Option<u32>,
    /// The length is not raised before this time.
    length_rests: Instant,
    /// The most requests at the device; `None` for no bound.
    depth: Option<u32>,
    /// A lower depth did not help.
    depth_is_useless: bool,
    /// The depth is not raised before this time.
    depth_rests: Instant,
    last: Last,
    /// Good windows in a row, and those needed to give back.
    good: u32,
    patience: u32,
    /// The last step shows its effect from this time on.
    shows: Instant,
    /// The time for which a goal was missed with nothing left to take; `None` while there is something left.
    bare: Option<Nanos>,
}

impl Control {
    pub(super) fn new(most: u32) -> Self {
        Self {
            most,
            length: None,
            length_rests: Instant::ZERO,
            depth: None,
            depth_is_useless: false,
            depth_rests: Instant::ZERO,
            last: Last::None,
            good: 0,
            patience: PATIENCE,
            shows: Instant::ZERO,
            bare: None,
        }
    }

    pub(super) fn depth(&self) -> Option<u32> {
        self.depth
    }

    pub(super) fn length(&self) -> Option<u32> {
        self.length
    }

    /// Lets the device have as many requests as it takes.
    pub(super) fn free_depth(&mut self) {
        if self.depth.take().is_some() {
            self.last = Last::None;
        }
    }

    pub(super) fn decide(&mut self, seen: &Seen, pace: &mut Pace) -> Answer {
        pace.measure(seen.now);
        if seen.missed {
            self.good = 0;
            self.bare = self.bare.map(|bare| Nanos(bare.0.saturating_add(seen.elapsed.0)));
            return self.take(seen, pace);
        }
        // A tier above its least rate can be cut again.
        let met = seen.elapsed.0 / EDGE;
        self.bare =
            self.bare.filter(|_| pace.is_bare()).map(|bare| Nanos(bare.0.saturating_sub(met)));
        self.good += 1;
        let patience = if seen.room { self.patience } else { MORE * self.patience };
        if self.good >= patience {
            self.good = 0;
            self.give_back(seen, pace);
        } else if !matches!(
            self.last,
            Last::RaisedRate(_) | Last::RaisedDepth(_) | Last::RaisedLength(_)
        ) {
            self.last = Last::None;
        }
        Answer::Goes
    }

    fn take(&mut self, seen: &Seen, pace: &mut Pace) -> Answer {
        if seen.now < self.shows {
            return Answer::Goes;
        }
        let how = if matches!(self.last, Last::None) { Cut::Little } else { Cut::Much };
        self.shows = seen.now + Nanos(SHOWS.0 / pace.busy().max(1));
        match core::mem::replace(&mut self.last, Last::None) {
            Last::RaisedRate(before) => {
                pace.put_back(seen.now, before);
                self.patience = (2 * self.patience).min(MOST_PATIENCE);
                return Answer::Goes;
            }
            Last::RaisedDepth(before) => {
                self.depth = before;
                self.depth_rests = seen.now + REMEMBERED;
                self.patience = (2 * self.patience).min(MOST_PATIENCE);
                return Answer::Goes;
            }
            Last::RaisedLength(before) => {
                self.length = before;
                self.length_rests = seen.now + REMEMBERED;
                self.patience = (2 * self.patience).min(MOST_PATIENCE);
                return Answer::Goes;
            }
            // A depth beside a rate that keeps the device from filling would only cost.
            Last::CutDepth(mean) if seen.mean > mean / 10 * 9 || pace.is_short() => {
                self.depth = None;
                self.depth_is_useless = true;
            }
            Last::CutLength | Last::CutDepth(..) | Last::CutRate | Last::None => {}
        }
        let length = self.length.unwrap_or(seen.longest);
        if length > SHORTEST {
            self.last = Last::CutLength;
            self.length = Some((length / 8).max(SHORTEST));
            return Answer::Goes;
        }
        let depth = self.depth.unwrap_or(self.most).min(seen.at_device.max(1));
        if !self.depth_is_useless && !seen.floors && depth > 1 && !pace.is_short() {
            self.last = Last::CutDepth(seen.mean);
            let little = how == Cut::Little && self.depth.is_some();
            let less = if little { depth / 4 * 3 } else { depth / 4 };
            self.depth = Some(less.clamp(1, depth - 1));
        } else if pace.cut(seen.now, how) {
            self.last = Last::CutRate;
        } else {
            self.last = Last::CutRate;
            let bare = *self.bare.get_or_insert(Nanos::ZERO);
            if bare >= NOTHING_LEFT {
                pace.release();
                *self = Self::new(self.most);
                return Answer::Infeasible;
            }
        }
        Answer::Goes
    }

    fn give_back(&mut self, seen: &Seen, pace: &mut Pace) {
        self.last = match (pace.raise(seen.now, seen.ease), self.depth) {
            (Raise::Raised(before), _) => Last::RaisedRate(before),
            (Raise::Free, Some(depth)) if seen.now >= self.depth_rests => {
                let more = depth + (depth / 4).max(1);
                self.depth = Some(more).filter(|more| *more < self.most);
                Last::RaisedDepth(Some(depth))
            }
            (Raise::Free, None) => {
                self.depth_is_useless = false;
                self.raise_length(seen)
            }
            (Raise::Held | Raise::Free, _) => Last::None,
        };
    }

    /// Gives back length, the last bound of all, and only where the goals are far from missed.
    fn raise_length(&mut self, seen: &Seen) -> Last {
        let Some(length) = self.length else {
            self.patience = PATIENCE;
            return Last::None;
        };
        if !seen.rest || seen.now < self.length_rests {
            return Last::None;
        }
        self.length = length.checked_mul(2).filter(|more| *more < seen.longest);
        Last::RaisedLength(Some(length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::Op;

    const WINDOW: Nanos = Nanos::from_millis(500);

    /// The second at which a goal is given up that is missed in one of `every` windows, with nothing left to take.
    fn given_up(every: u64) -> Option<u64> {
        let (mut control, mut pace) = (Control::new(1), Pace::default());
        let mut now = Instant::ZERO;
        for window in 1..1_200 {
            pace.restart(now);
            pace.charge(1, now, cost(&IoMeta::new(Op::Write, 0, 8)));
            now += WINDOW;
            // Nothing can be taken: the tier is to keep more than it has.
            pace.keep([0, u64::MAX, 0], true);
            let seen = Seen {
                now,
                elapsed: WINDOW,
                missed: window % every == 0,
                mean: 1,
                rest: false,
                ease: false,
                room: false,
                at_device: 1,
                longest: 8,
                floors: false,
            };
            if control.decide(&seen, &mut pace) == Answer::Infeasible {
                return Some(now.as_nanos() / 1_000_000_000);
            }
        }
        None
    }

    /// A goal missed in three of ten windows, never for two seconds in a row, must not take from others for ever.
    #[test]
    fn a_goal_at_the_edge_of_what_can_be_had_is_infeasible() {
        assert!(given_up(1).expect("given up") <= 3);
        assert!(given_up(2).expect("given up") <= 6);
        assert!(given_up(4).expect("given up") <= 12);
        assert_eq!(given_up(20), None, "it is kept in 95 of 100");
    }
}
