//! The bound of the device that is found while groups compete: how much it may hold, in device time; and the pace
//! that is found for floors.
//!
//! Time is cut into windows of many completions. The first ones, without a bound, teach the rate of the saturated
//! device. From there the bound goes down for as long as two things hold: the device delivers nearly that rate, and
//! no more is waiting than before. It goes down further, if not all the way, where a group whose turn came had
//! everything that it asks for in the device already, because weights then decide nothing. Now and then a window with
//! a wider bound teaches the rate anew. `doc/mclock.md` has the rules in full.
//!
//! A device that is limited by tokens makes each request wait that comes while it has all that it takes, however
//! little it holds. Where the bound can do no more for a floor, requests leave at a pace a little below the rate of
//! the device: as much of it as leaves its queue to those who have floors. The pace grows for as long as floors have
//! room.

use super::node::Floors;
use super::prices::Work;
use super::window::{Ended, Judged, LONGEST, Moment, SHORTEST, Seen, Window};
use blkmq_core::Instant;

/// With so many completions rates are known to a percent.
const MANY: u32 = 512;
/// Requests in the device that are never refused: one at work, one behind it.
pub(super) const LEAST: u32 = 2;
/// The time for which a finding about a bound is believed, in nanoseconds, and the longest; and in windows, at least.
const BELIEF: u64 = 2_000_000_000;
const LONGEST_BELIEF: u64 = 8_000_000_000;
const BELIEVED: u64 = 32;
/// Parts of the rate of the saturated device, in thousandths: enough, also with few completions; and as little as is worth a
/// share, also one that has grown.
const FAST: [u64; 2] = [980, 950];
const WORTH: [u64; 2] = [700, 400];
/// A share has grown if the group that lacks most has so many thousandths of what it had on the saturated device.
const GROWN: u64 = 1_050;
/// A group lacks its share if it has less than this of it, in thousandths, and less than the second if the bound costs
/// the device some of its rate; and may get it if it has at least this, also in a mixed window.
const FAIR: [u64; 2] = [990, 980];
const IN_REACH: [u64; 2] = [500, 1];
/// The least part of the mean in the device to which one window lowers the bound for a share, in thousandths.
const LEAST_STEP: u64 = 250;
/// A window counts as mixed, and prices are tried, when groups have competed for so long, in nanoseconds: a neighbour that
/// comes for a second is gone before a price is found.
const SETTLED: u64 = 2_000_000_000;
/// The least bound in a mixed window, as a part of the mean in the device, as a shift.
const BELOW: u32 = 4;
/// The most windows without a bound, and the least length of those that follow if the rate has not settled by then.
const MOST_SATURATED: u8 = 16;
const UNSETTLED: u64 = 4 * SHORTEST;
/// The rate of the saturated device is known for so long, in nanoseconds.
const FRESH: u64 = 1_000_000_000;
/// The rate of another device, in thousandths of the known one: no window of the same device is so much faster.
const OTHER: u64 = 1_250;
/// A device varies by itself if one window has so much more than another one, in thousandths, against the bound.
const VARIES: u64 = 1_400;
/// No window counts as longer, in nanoseconds: a device that was silent is no slow one.
const SILENT: u64 = 2 * LONGEST;
/// The parts to which a bound is lowered for a floor at most and at least, in thousandths.
const LOWERED: [u64; 2] = [63, 950];
/// Requests in the device, in hundredths, of which a lower bound leaves no fewer.
const FEW: u64 = 100 * LEAST as u64 + 50;
/// A request, in hundredths.
const ONE: u64 = 100;
/// The part of the saturated rate below which a pace is given up, in thousandths; and the time after which another
/// one is tried, in nanoseconds, which doubles up to eight times as much.
const IN_VAIN: u64 = 100;
const VAIN: u64 = 8_000_000_000;

/// The state of the search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// There is no bound: so many windows teach the rate of the saturated device.
    Saturated(u8),
    /// A bound is tried.
    Search,
    /// One window with half as much again. The rate of the saturated device is at least this.
    Wide(u64),
}

pub(super) struct Learner {
    /// The bound and the rate that the search begins with.
    told: [u64; 2],
    phase: Phase,
    window: Window,
    /// The most device time in the device; `u64::MAX` for no bound.
    bound: u64,
    /// The rate of the saturated device, and the device time that was outstanding then.
    reference: u64,
    crowd: u64,
    /// The time at which they were seen last.
    checked: u64,
    /// The last bound that was found fast enough, the greatest that was not, and the last at which a group lacked its
    /// share: zero if not known. They are believed until then, and the next ones for as long as `belief`.
    good: u64,
    slow: u64,
    unfair: u64,
    /// The mean in the device of the first slow window while a floor is owed; zero for none.
    narrow: u64,
    until: u64,
    belief: u64,
    /// The time for which an unfair bound is believed was over once.
    doubted: bool,
    /// Until then no bound is lowered for the sake of shares: it was not worth it.
    resigned: u64,
    resigns: u64,
    /// The rate of the group that lacked most on the saturated device, over its share.
    poorest: u64,
    /// A floor was short since groups began to compete; the pace for it beside the bound, and the time until which no
    /// bound and no pace is found for floors, since the last pace was given up.
    owed: bool,
    pace: Pace,
    vain: u64,
    vains: u64,
    /// The least length of a window, in nanoseconds, and whether the device has varied by itself since findings were forgotten
    /// last.
    shortest: u64,
    varied: bool,
    /// The last window and its bound, the number of windows since groups began to compete, and the time at which they did.
    seen: Seen,
    tried: u64,
    windows: u64,
    began: u64,
}

impl Learner {
    /// Begins with a bound and the rate of the saturated device; zero if they are not known.
    pub(super) fn new(told: [u64; 2]) -> Self {
        let [bound, rate] = told;
        let is_told = bound > 0;
        Self {
            told,
            phase: if is_told && rate > 0 { Phase::Search } else { Phase::Saturated(0) },
            window: Window::default(),
            bound: if is_told { bound } else { u64::MAX },
            reference: rate,
            crowd: 0,
            checked: 0,
            good: 0,
            slow: 0,
            unfair: 0,
            narrow: 0,
            until: 0,
            belief: BELIEF,
            doubted: false,
            resigned: 0,
            resigns: BELIEF,
            poorest: 0,
            owed: false,
            pace: Pace::default(),
            vain: 0,
            vains: VAIN,
            shortest: SHORTEST,
            varied: false,
            seen: Seen::default(),
            tried: 0,
            windows: 0,
            began: 0,
        }
    }

    /// The most device time in the device.
    #[inline]
    pub(super) fn bound(&self) -> u64 {
        if let Phase::Wide(_) = self.phase { self.bound + self.bound / 2 } else { self.bound }
    }

    /// The pace that was found, in millionths of the device; zero for none.
    pub(super) fn pace(&self) -> u64 {
        self.pace.ppm()
    }

    /// Returns whether groups competed in the last window.
    pub(super) fn is_searching(&self) -> bool {
        self.windows > 0
    }

    /// A request has completed. If a window has ended, shares and floors are to be judged.
    #[inline]
    pub(super) fn completed(&mut self, at: Moment) -> Ended {
        self.window.add(at, self.shortest)
    }

    /// The work of the window, and its length by the time `now`; `None` if groups did not compete.
    pub(super) fn work(&self, now: Instant) -> Option<(Work, u64)> {
        self.window.work(now)
    }

    /// Returns whether prices may be tried: the device is saturated under a bound, and groups have competed for some time.
    pub(super) fn is_settled(&self, now: Instant) -> bool {
        self.phase == Phase::Search && now.as_nanos() - self.began >= SETTLED
    }

    /// A window begins that does not count the `issued` requests in the device.
    pub(super) fn begin_anew(&mut self, now: Instant, issued: u32) {
        self.window = Window::after(now, issued);
    }

    /// A window has ended. The device has `issued` requests, the one that has just completed included.
    pub(super) fn judge(&mut self, now: Instant, judged: Judged, issued: u32) {
        if self.windows == 0 {
            self.began = self.window.begun();
        }
        let mixed = judged.mixed && now.as_nanos() - self.began >= SETTLED;
        let seen = self.window.seen(now, mixed);
        let last = core::mem::replace(&mut self.seen, seen).rate;
        self.windows += 1;
        let before = self.bound();
        if !self.window.has_competed() {
            *self = Self { seen, ..Self::new(self.told) };
        } else {
            self.watch(before, last);
            self.step(now.as_nanos(), judged, last);
        }
        self.tried = before;
        let skip = if before == self.bound() { 0 } else { issued };
        self.window = Window::after(now, skip);
    }

    /// A rate that falls although the device may hold as much as before, or rises although it may hold no more, is not the
    /// bound's doing: a device that varies by itself is judged by longer windows. A mix varies with the requests that complete.
    /// `bound` was that of this window, and `last` is the rate of the one before.
    fn watch(&mut self, bound: u64, last: u64) {
        let rate = self.seen.rate;
        let is_more = |rate: u64, than: u64| rate / VARIES > than / 1_000;
        let varies = bound >= self.tried && is_more(last, rate)
            || bound <= self.tried && is_more(rate, last);
        if self.seen.mixed {
            self.shortest = SHORTEST;
        } else if varies && !matches!(self.phase, Phase::Saturated(_)) {
            self.lengthen(2 * self.shortest);
        }
    }

    /// Windows are as long as this at least.
    fn lengthen(&mut self, shortest: u64) {
        (self.shortest, self.varied) = (shortest.min(LONGEST), true);
    }

    /// `last` is the rate of the window before.
    fn step(&mut self, now: u64, judged: Judged, last: u64) {
        let (seen, got) = (self.seen, judged.got);
        if self.crowd == 0 && self.phase == Phase::Search {
            // The search began with a given bound.
            self.crowd = seen.outstanding;
            self.forget(now);
        }
        match judged.floors {
            Floors::Short(part) if now >= self.vain => return self.hold(now, part),
            Floors::Short(_) => {}
            Floors::Edge => self.pace.keep(),
            Floors::Unknown | Floors::Roomy => {
                self.pace.grow(self.reference);
                self.vains = VAIN;
                if self.owed {
                    self.unfair = 0;
                }
            }
        }
        match self.phase {
            Phase::Saturated(windows) => {
                let before = core::mem::replace(&mut self.reference, seen.rate);
                self.crowd = self.crowd.max(seen.outstanding);
                // A cache that fills makes the first windows faster than the device.
                let settled = before.abs_diff(seen.rate) <= seen.rate / 16;
                if !settled && windows < MOST_SATURATED {
                    self.phase = Phase::Saturated(windows + 1);
                    return;
                }
                if !settled {
                    self.lengthen(UNSETTLED);
                }
                self.phase = Phase::Search;
                self.checked = now;
                self.bound = seen.inside + seen.inside / 8;
                self.poorest = seen.rate / 1_000 * got;
                self.forget(now);
                self.search(now, got);
            }
            Phase::Search => self.search(now, got),
            Phase::Wide(least) => {
                self.phase = Phase::Search;
                if Self::is_other(seen.rate, self.reference) {
                    if Self::is_other(seen.rate, last) {
                        let Self { windows, shortest, .. } = *self;
                        *self = Self { seen, windows, shortest, ..Self::new([0; 2]) };
                        return;
                    }
                    self.belief = BELIEF;
                    self.forget(now);
                }
                self.reference = seen.rate.max(least);
                if least == 0 {
                    self.checked = now;
                }
                self.crowd = self.crowd.max(seen.outstanding);
            }
        }
    }

    /// A floor is short: the device holds less, and if it holds little, is given less in a second.
    fn hold(&mut self, now: u64, part: u64) {
        let seen = self.seen;
        if let Phase::Saturated(_) = self.phase {
            self.reference = seen.rate;
            self.bound = seen.inside;
            self.forget(now);
        }
        (self.phase, self.checked, self.owed) = (Phase::Search, now, true);
        self.widen();
        let bound = self.bound.min(seen.inside);
        self.unfair = bound;
        if seen.issued > FEW {
            self.bound = (bound / 1_000 * part.clamp(LOWERED[0], LOWERED[1])).max(1);
            return;
        }
        self.pace.cut(seen.rate);
        if self.pace.ppm() < self.reference / 1_000 * IN_VAIN {
            self.pace = Pace::default();
            self.vain = now.saturating_add(self.vains);
            self.vains = (2 * self.vains).min(8 * VAIN);
            (self.owed, self.unfair) = (false, 0);
        }
    }

    /// Returns whether only another device has so much more than the `known` rate.
    fn is_other(rate: u64, known: u64) -> bool {
        rate / OTHER > known / 1_000
    }

    /// Findings about bounds are not believed any longer than this.
    fn forget(&mut self, now: u64) {
        (self.good, self.slow, self.unfair, self.doubted) = (0, 0, 0, false);
        self.until = now.saturating_add(self.belief.max(self.seen.span.min(SILENT) * BELIEVED));
        self.belief = (2 * self.belief).min(LONGEST_BELIEF);
        if !core::mem::take(&mut self.varied) {
            self.shortest = (self.shortest / 2).max(SHORTEST);
        }
    }

    fn is_fast(&self, seen: Seen) -> bool {
        let least = FAST[usize::from(seen.ios < MANY)];
        let pace = if self.pace.ppm() == 0 { u64::MAX } else { self.pace.ppm() };
        seen.rate >= self.reference.min(pace) / 1_000 * least
            && seen.outstanding <= self.crowd + self.crowd / 8 + 1
    }

    /// Returns whether the rate of the saturated device was seen a short time ago; if not, the next window is wide.
    fn is_checked(&mut self, now: u64) -> bool {
        if self.owed {
            let has_widened = self.widen();
            if !has_widened && self.narrow == 0 {
                self.narrow = self.seen.inside;
            }
            return !has_widened;
        }
        let checked = now - self.checked < FRESH.max(4 * self.seen.span.min(SILENT));
        if !checked {
            self.phase = Phase::Wide(0);
        }
        checked
    }

    /// While a floor is owed no window is wide, but a bound that has grown step by step shows the rate of the saturated device
    /// as well. Returns whether that of this window has.
    fn widen(&mut self) -> bool {
        let Seen { rate, inside, .. } = self.seen;
        let is_wide = self.narrow > 0 && inside >= self.narrow + self.narrow / 3;
        if is_wide {
            (self.reference, self.slow, self.narrow) = (rate, 0, 0);
        }
        is_wide
    }

    fn search(&mut self, now: u64, got: u64) {
        let seen = self.seen;
        if self.owed {
            // A wide window would be too wide for a floor.
            if Self::is_other(seen.rate, self.reference) {
                self.reference = seen.rate;
            }
        } else if now >= self.until {
            if self.unfair == 0 {
                self.forget(now);
                self.phase = Phase::Wide(0);
                return;
            }
            // Even a wide window has less than the rate of the saturated device then.
            if !core::mem::replace(&mut self.doubted, true) {
                self.until =
                    now.saturating_add(self.belief.max(self.seen.span.min(SILENT) * BELIEVED));
                self.phase = Phase::Wide(self.reference);
                return;
            }
            self.forget(now);
        }
        if seen.inside < self.bound - self.bound / 8 && seen.waits() < ONE {
            // The bound holds nothing back, so this is the saturated device. Where requests wait, less is in it because it is
            // refilled after several completions.
            self.reference = seen.rate;
            self.checked = now;
            self.bound = seen.inside + seen.inside / 8;
        }
        if Self::is_other(seen.rate, self.reference) {
            self.phase = Phase::Wide(0);
            return;
        }
        // Where the requests that are never refused cost more than the bound, neither it nor half as much again holds any back.
        // Large requests are most of what is inside beside small ones, which the bound holds back nevertheless.
        let least = if seen.mixed { seen.inside >> BELOW } else { seen.inside / 4 * 3 };
        self.bound = self.bound.max(least);
        let bound = self.bound;
        let fast = self.is_fast(seen);
        // Beside work that disturbs it little, a group gains nothing by a lower bound.
        let has_grown = seen.mixed && seen.rate / 1_000 * got > self.poorest / 1_000 * GROWN;
        let worth = self.reference / 1_000 * WORTH[usize::from(has_grown)];
        let in_reach = IN_REACH[usize::from(seen.mixed)]..FAIR[usize::from(!fast)];
        if in_reach.contains(&got) && now >= self.resigned {
            if seen.rate >= worth {
                self.unfair = bound;
                // In proportion, since a group's part of the requests in the device is its part of the device's work.
                self.bound = (seen.inside.min(bound) / 1_000 * got.max(LEAST_STEP)).max(1);
            } else {
                self.resign(now);
            }
        } else if fast {
            self.good = bound;
            // Down, but not to where it was too slow.
            let lower = bound / 8 * if self.slow == 0 { 6 } else { 7 };
            if lower > self.slow {
                self.bound = lower;
            }
        } else {
            let wider = bound + bound / 8;
            if self.unfair == 0 || wider < self.unfair {
                if self.is_checked(now) {
                    self.slow = self.slow.max(bound);
                    self.bound = wider;
                }
            } else if seen.mixed && seen.rate < worth {
                self.resign(now);
            }
        }
    }

    /// Shares are not worth what they cost of the rate: the bound grows, and they lower it no more for some time.
    fn resign(&mut self, now: u64) {
        if self.is_checked(now) {
            self.resigned = now.saturating_add(self.resigns);
            self.resigns = (2 * self.resigns).min(8 * LONGEST_BELIEF);
            self.unfair = 0;
            self.bound = self.bound.max(self.good) + self.bound / 2;
        }
    }

    /// The findings, by the names of the page.
    pub(super) fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("windows", self.windows);
        out("pace_ppm", self.pace.ppm());
        out("bound_nsec", if self.bound == u64::MAX { 0 } else { self.bound });
        out("saturated_ppm", self.reference);
        out("seen_ppm", self.seen.rate);
        out("seen_nsec", self.seen.inside);
        out("slow_nsec", self.slow);
        out("unfair_nsec", self.unfair);
    }
}

/// The part of the rate that is cut at first, and at most, as a shift.
const CUTS: [u32; 2] = [6, 2];
/// The part by which the pace grows: near the last one that was too fast, and elsewhere, as shifts.
const GROWTH: [u32; 2] = [11, 5];

/// The pace, in millionths of a second of device time a second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// Zero for none.
    ppm: u64,
    /// The last one at which a floor was short.
    fast: u64,
    /// Cuts in a row.
    cuts: u32,
}

impl Pace {
    pub(super) fn ppm(self) -> u64 {
        self.ppm
    }

    /// A floor was short at the device's `rate`.
    pub(super) fn cut(&mut self, rate: u64) {
        let from = if self.ppm == 0 { rate } else { rate.min(self.ppm) };
        let shift = CUTS[0].saturating_sub(self.cuts).max(CUTS[1]);
        (self.fast, self.ppm) = (from, (from - (from >> shift)).max(1));
        self.cuts += 1;
    }

    /// Floors are kept: it ends the cuts.
    pub(super) fn keep(&mut self) {
        self.cuts = 0;
    }

    /// Floors have room. A pace beyond the `saturated` rate holds nothing back.
    pub(super) fn grow(&mut self, saturated: u64) {
        self.cuts = 0;
        if self.ppm == 0 {
            return;
        }
        let near = self.fast - self.fast / 32..self.fast + self.fast / 128;
        let is_near = near.contains(&self.ppm);
        self.ppm += (self.ppm >> GROWTH[usize::from(!is_near)]).max(1);
        if self.ppm > saturated + saturated / 4 {
            *self = Self::default();
        }
    }
}
