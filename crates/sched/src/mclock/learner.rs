//! Finds the bound of what the device may hold while groups compete, in device time, and the pace for floors.
//!
//! Time is divided into windows of many completions. The first windows, without a bound, teach the rate of the
//! saturated device. Then the bound is lowered for as long as the device delivers nearly that rate and no more requests
//! wait. It is lowered further, within limits, if a group had all that it asks for in the device when its turn came,
//! because weights then decide nothing. From time to time a window with a wider bound teaches the rate anew.
//! `doc/mclock.md` has the rules in full.
//!
//! A device that is limited by tokens delays each request beyond its rate, however little it holds. Where a lower bound
//! does not help a floor, requests leave at a pace a little below the rate of the device, which leaves its queue to
//! groups with floors. The pace grows for as long as floors have room.
//!
//! A [`Window`] has the sums over its completions, and the figures computed from them.

use super::prices::Work;
use super::tree::Floors;
use blkmq_core::Instant;

/// A window ends at the length `SHORTEST`, in nanoseconds, with `ENOUGH` completions, or at `LONGEST` with `FEWEST`.
pub(super) const SHORTEST: u64 = 50_000_000;
pub(super) const LONGEST: u64 = 1_000_000_000;
const ENOUGH: u32 = 128;
const FEWEST: u32 = 24;
/// The longest window of few completions while floors are watched.
const HURRIED: u64 = 200_000_000;

/// The sums of a window.
#[derive(Clone, Copy, Default)]
pub(super) struct Window {
    begun: u64,
    /// The number of coming completions that are not counted, of requests issued under another bound.
    skip: u32,
    /// Completions, and those while groups competed.
    ios: u32,
    competed: u32,
    /// The work completed, and the device time in the device, summed over completions.
    work: Work,
    inside: u64,
    /// Requests in the device and in the scheduler, and in the device alone, summed over completions.
    outstanding: u64,
    issued: u64,
}

impl Window {
    /// A window that begins after the next `skip` completions.
    pub(super) fn after(now: Instant, skip: u32) -> Self {
        Self { begun: now.as_nanos(), skip, ..Self::default() }
    }

    /// Counts a completion. With enough of them the window ends when it is `shortest` ns old.
    #[inline]
    pub(super) fn add(&mut self, at: Moment, shortest: u64) -> Ended {
        let now = at.now.as_nanos();
        if self.skip > 0 {
            self.skip -= 1;
            self.begun = now;
            return if self.skip == 0 { Ended::Change } else { Ended::Nothing };
        }
        self.ios += 1;
        self.competed += u32::from(at.competing);
        self.work.add(at.kind, at.cost);
        self.inside += at.inside;
        self.outstanding += u64::from(at.issued + at.held);
        self.issued += u64::from(at.issued);
        let span = now - self.begun;
        let longest = if at.floors { HURRIED } else { LONGEST };
        let shortest = shortest.min(longest);
        let is_over =
            span >= shortest && self.ios >= ENOUGH || span >= longest && self.ios >= FEWEST;
        if is_over { Ended::Window } else { Ended::Nothing }
    }

    /// The time at which it began, in nanoseconds.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// Returns whether groups competed at half of its completions or more.
    fn has_competed(&self) -> bool {
        self.competed >= self.ios / 2
    }

    /// Returns the work of the window, and its length in ns at the time `now`; `None` if groups did not compete.
    pub(super) fn work(&self, now: Instant) -> Option<(Work, u64)> {
        self.has_competed().then(|| (self.work, now.as_nanos() - self.begun))
    }

    /// Returns the figures of the window, which ends `now` and has at least one completion.
    fn seen(&self, now: Instant, mixed: bool) -> Seen {
        let span = (now.as_nanos() - self.begun).max(1);
        let mean = |sum: u64| sum / u64::from(self.ios);
        Seen {
            rate: (u128::from(self.work.all()) * 1_000_000 / u128::from(span)) as u64,
            span,
            inside: mean(self.inside),
            outstanding: mean(self.outstanding),
            issued: mean(100 * self.issued),
            ios: self.ios,
            mixed,
        }
    }
}

/// A window that has ended.
#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    /// Device time a second, in millionths.
    pub(super) rate: u64,
    /// Its length, in nanoseconds; at least one.
    pub(super) span: u64,
    /// The mean device time in the device, in nanoseconds.
    pub(super) inside: u64,
    /// The mean requests in the device and in the scheduler.
    outstanding: u64,
    /// The mean requests in the device, in hundredths.
    pub(super) issued: u64,
    pub(super) ios: u32,
    pub(super) mixed: bool,
}

impl Seen {
    /// The mean requests in the scheduler, in hundredths.
    fn waits(self) -> u64 {
        (100 * self.outstanding).saturating_sub(self.issued)
    }
}

/// The policy's numbers at a completion.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub(super) now: Instant,
    /// The cost of the completed request in ns, its kind, and the cost of all in the device, this one included.
    pub(super) cost: u64,
    pub(super) kind: u8,
    pub(super) inside: u64,
    /// Requests in the device, the completed one included, and requests in the scheduler.
    pub(super) issued: u32,
    pub(super) held: u32,
    /// More than one group has requests.
    pub(super) competing: bool,
    /// A group has a floor, so the longest window is shorter.
    pub(super) floors: bool,
}

/// The phase that a completion has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    Nothing,
    /// The time in which requests issued under another bound are in the device.
    Change,
    Window,
}

/// The judgement of a window.
#[derive(Clone, Copy)]
pub(super) struct Judged {
    /// The part of its share that the group with the greatest loss got, in thousandths.
    pub(super) got: u64,
    pub(super) floors: Floors,
    /// The work is of more than one kind, and no group has a floor.
    pub(super) mixed: bool,
}

/// With so many completions, the rate of a window is accurate to a percent.
const MANY: u32 = 512;
/// The requests that the device may always have: one in service, one behind it.
pub(super) const LEAST: u32 = 2;
/// The time for which findings about bounds are believed, first and at most, in nanoseconds; and the fewest windows.
const BELIEF: u64 = 2_000_000_000;
const LONGEST_BELIEF: u64 = 8_000_000_000;
const BELIEVED: u64 = 32;
/// Parts of the saturated rate, in thousandths. A bound is fast from `FAST` on, by many completions and by few. A share
/// is worth `WORTH` of the rate, and one that has grown the second.
const FAST: [u64; 2] = [980, 950];
const WORTH: [u64; 2] = [700, 400];
/// A share has grown above this, in thousandths of the rate that the group had on the saturated device.
const GROWN: u64 = 1_050;
/// Parts of a share, in thousandths. A group lacks its share below `FAIR`, under a fast bound and under a slow one. A
/// lower bound may give it the share from `IN_REACH` on, in a plain window and in a mixed one.
const FAIR: [u64; 2] = [990, 980];
const IN_REACH: [u64; 2] = [500, 1];
/// The least part of the mean in the device to which one window lowers the bound for a share, in thousandths.
const LEAST_STEP: u64 = 250;
/// The time for which groups have competed when windows may count as mixed and prices are tried, in nanoseconds. A
/// neighbour that stays for a second is gone before a price is found.
const SETTLED: u64 = 2_000_000_000;
/// The least bound in a mixed window: the mean in the device, shifted right by so many bits.
const BELOW: u32 = 4;
/// The most windows without a bound after the first, and the least length in nanoseconds of the following ones if the
/// rate has not settled by then.
const MOST_SATURATED: u8 = 16;
const UNSETTLED: u64 = 4 * SHORTEST;
/// The time for which the saturated rate is believed, in nanoseconds.
const FRESH: u64 = 1_000_000_000;
/// A rate above this, in thousandths of the saturated one, is that of another device.
const OTHER: u64 = 1_250;
/// A device varies independently of the bound if the rate of a window is above this, in thousandths of that of another
/// window whose bound was no less.
const VARIES: u64 = 1_400;
/// The longest window for beliefs, in nanoseconds: a device that answers nothing for a while is no slow one.
const SILENT: u64 = 2 * LONGEST;
/// The least and the greatest part to which a bound is lowered for a floor, in thousandths.
const LOWERED: [u64; 2] = [63, 950];
/// Mean requests in the device, in hundredths, up to which a lower bound changes nothing.
const FEW: u64 = 100 * LEAST as u64 + 50;
/// A request, in hundredths.
const ONE: u64 = 100;
/// A pace is given up below this, in thousandths of the saturated rate. The next one is tried after this time, in
/// nanoseconds, which doubles up to eight times as much.
const IN_VAIN: u64 = 100;
const VAIN: u64 = 8_000_000_000;

/// The state of the search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// No bound: windows teach the saturated rate. The number of windows so far.
    Saturated(u8),
    /// A bound is tried.
    Search,
    /// One window with half as much again as the bound. The saturated rate is at least this.
    Wide(u64),
    /// The wide window was as fast as on another device, perhaps with tokens that this one had saved up: another wide
    /// window. Also the rate of the window before both.
    Again(u64, u64),
}

pub(super) struct Learner {
    /// The bound and the saturated rate with which the search begins; zero if not known.
    told: [u64; 2],
    phase: Phase,
    window: Window,
    /// The most device time in the device, in nanoseconds; `u64::MAX` for no bound.
    bound: u64,
    /// The saturated rate in millionths, and the most requests outstanding so far, as the mean of a window.
    reference: u64,
    crowd: u64,
    /// The time at which the saturated rate was seen last.
    checked: u64,
    /// The last fast bound, the greatest slow one, and the last unfair one; zero if not known. They are believed until
    /// the time `until`, and the next ones for `belief`.
    good: u64,
    slow: u64,
    unfair: u64,
    /// The mean in the device of the narrow window, the first slow one while a floor is owed; zero for none.
    narrow: u64,
    until: u64,
    belief: u64,
    /// The time of belief in an unfair bound was over once.
    doubted: bool,
    /// The time until which no bound is lowered for shares, since the search resigned, and the next such time span.
    resigned: u64,
    resigns: u64,
    /// The rate of the saturated device times the part that the group with the greatest loss got of its share.
    poorest: u64,
    /// A floor was short since groups began to compete. Then its pace, the time until which neither a bound nor a pace
    /// is found for floors, after a pace was given up, and the next such time span.
    owed: bool,
    pace: Pace,
    vain: u64,
    vains: u64,
    /// The least length of a window, in nanoseconds, and whether it was lengthened since findings were last forgotten.
    shortest: u64,
    varied: bool,
    /// The last window and its bound, the number of windows since groups began to compete, and the time of that begin.
    seen: Seen,
    tried: u64,
    windows: u64,
    began: u64,
}

impl Learner {
    /// Begins with a bound and the saturated rate; zero if not known.
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

    /// The most device time in the device, in nanoseconds; `u64::MAX` for no bound.
    #[inline]
    pub(super) fn bound(&self) -> u64 {
        let is_wide = matches!(self.phase, Phase::Wide(_) | Phase::Again(..));
        if is_wide { self.bound + self.bound / 2 } else { self.bound }
    }

    /// The pace that was found, in millionths of the device; zero for none.
    pub(super) fn pace(&self) -> u64 {
        self.pace.ppm()
    }

    /// Returns whether groups competed in the last window.
    pub(super) fn is_searching(&self) -> bool {
        self.windows > 0
    }

    /// Counts a completion. If it ends a window, the caller judges shares and floors.
    #[inline]
    pub(super) fn completed(&mut self, at: Moment) -> Ended {
        self.window.add(at, self.shortest)
    }

    /// Returns the work of the window, and its length in ns at the time `now`; `None` if groups did not compete.
    pub(super) fn work(&self, now: Instant) -> Option<(Work, u64)> {
        self.window.work(now)
    }

    /// Returns whether prices may be tried: a bound is tried, and groups have competed for [`SETTLED`].
    pub(super) fn is_settled(&self, now: Instant) -> bool {
        self.phase == Phase::Search && now.as_nanos() - self.began >= SETTLED
    }

    /// Begins a window that does not count the `issued` requests in the device.
    pub(super) fn begin_anew(&mut self, now: Instant, issued: u32) {
        self.window = Window::after(now, issued);
    }

    /// Judges a window that has ended. The device has `issued` requests, the one that completes included.
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

    /// Lengthens windows if the device varies independently of the bound: if the rate falls under a bound that is no
    /// lower, or rises under one that is no higher. A mixed window is exempt, since its rate varies with the requests
    /// that complete. `bound` is that of this window, and `last` the rate of the window before.
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

    /// Makes the least length of windows `shortest` ns, or the longest one.
    fn lengthen(&mut self, shortest: u64) {
        (self.shortest, self.varied) = (shortest.min(LONGEST), true);
    }

    /// Changes the phase, the bound and the pace by the last window. `last` is the rate of the window before.
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
            Phase::Wide(least) if self.is_faster_than(last) => {
                self.phase = Phase::Again(least, last);
            }
            Phase::Again(_, before) if self.is_faster_than(before) => {
                let Self { windows, shortest, .. } = *self;
                *self = Self { seen, windows, shortest, ..Self::new([0; 2]) };
            }
            Phase::Wide(least) | Phase::Again(least, _) => self.end_wide(now, least),
        }
    }

    /// Returns whether a wide window was as fast as only on another device, compared with the saturated rate and with
    /// the rate of the window `before`.
    fn is_faster_than(&self, before: u64) -> bool {
        let rate = self.seen.rate;
        Self::is_other(rate, self.reference) && Self::is_other(rate, before)
    }

    /// A wide window of the same device teaches the saturated rate, which is at least `least`.
    fn end_wide(&mut self, now: u64, least: u64) {
        let seen = self.seen;
        self.phase = Phase::Search;
        if Self::is_other(seen.rate, self.reference) {
            self.belief = BELIEF;
            self.forget(now);
        }
        self.reference = seen.rate.max(least);
        if least == 0 {
            self.checked = now;
        }
        self.crowd = self.crowd.max(seen.outstanding);
    }

    /// Lowers the bound for a short floor, or the pace if the device holds little. `part` is in thousandths of the
    /// floor.
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

    /// Returns whether the rate is too far above the `known` one to be of the same device.
    fn is_other(rate: u64, known: u64) -> bool {
        rate / OTHER > known / 1_000
    }

    /// Forgets findings about bounds, and sets the time until which the next are believed.
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

    /// Returns whether the saturated rate was seen a short time ago. If not, the next window is wide.
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

    /// While a floor is owed, a bound that has grown step by step shows the saturated rate in place of a wide window.
    /// Returns whether this window showed it.
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
            // A wide window would make a floor short.
            if Self::is_other(seen.rate, self.reference) {
                self.reference = seen.rate;
            }
        } else if now >= self.until {
            if self.unfair == 0 {
                self.forget(now);
                self.phase = Phase::Wide(0);
                return;
            }
            // Under an unfair bound, even a wide window has less than the saturated rate.
            if !core::mem::replace(&mut self.doubted, true) {
                self.until =
                    now.saturating_add(self.belief.max(self.seen.span.min(SILENT) * BELIEVED));
                self.phase = Phase::Wide(self.reference);
                return;
            }
            self.forget(now);
        }
        if seen.inside < self.bound - self.bound / 8 && seen.waits() < ONE {
            // The bound holds nothing back, so the device is saturated. Where requests wait, the device has less
            // because it is refilled after several completions.
            self.reference = seen.rate;
            self.checked = now;
            self.bound = seen.inside + seen.inside / 8;
        }
        if Self::is_other(seen.rate, self.reference) {
            self.phase = Phase::Wide(0);
            return;
        }
        // If the requests that the device may always have cost more than the bound, a lower bound changes nothing. In a
        // mixed window large requests are most of what is inside, and the bound holds back small ones all the same.
        let least = if seen.mixed { seen.inside >> BELOW } else { seen.inside / 4 * 3 };
        self.bound = self.bound.max(least);
        let bound = self.bound;
        let fast = self.is_fast(seen);
        // A group gains nothing by a lower bound beside work that disturbs it little.
        let has_grown = seen.mixed && seen.rate / 1_000 * got > self.poorest / 1_000 * GROWN;
        let worth = self.reference / 1_000 * WORTH[usize::from(has_grown)];
        let in_reach = IN_REACH[usize::from(seen.mixed)]..FAIR[usize::from(!fast)];
        if in_reach.contains(&got) && now >= self.resigned {
            if seen.rate >= worth {
                self.unfair = bound;
                // In proportion, since a group's part of what is in the device is its part of the device's work.
                self.bound = (seen.inside.min(bound) / 1_000 * got.max(LEAST_STEP)).max(1);
            } else {
                self.resign(now);
            }
        } else if fast {
            self.good = bound;
            // Lower, but not as low as a bound that was slow.
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

    /// Raises the bound, and lets shares not lower it for some time: they cost too much of the rate.
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

/// The first and the greatest part that is cut off the rate, as shifts.
const CUTS: [u32; 2] = [6, 2];
/// The part by which the pace grows, near the last pace that was too fast and elsewhere, as shifts.
const GROWTH: [u32; 2] = [11, 5];

/// The pace, in millionths of a second of device time a second.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// Zero for none.
    ppm: u64,
    /// The last pace, or rate, at which a floor was short.
    fast: u64,
    /// Cuts in a row.
    cuts: u32,
}

impl Pace {
    pub(super) fn ppm(self) -> u64 {
        self.ppm
    }

    /// Lowers the pace, since a floor was short at the device's `rate`.
    fn cut(&mut self, rate: u64) {
        let from = if self.ppm == 0 { rate } else { rate.min(self.ppm) };
        let shift = CUTS[0].saturating_sub(self.cuts).max(CUTS[1]);
        (self.fast, self.ppm) = (from, (from - (from >> shift)).max(1));
        self.cuts += 1;
    }

    /// Ends a row of cuts, since floors are kept.
    fn keep(&mut self) {
        self.cuts = 0;
    }

    /// Raises the pace, since floors have room. Far above the `saturated` rate a pace has no effect, and is dropped.
    fn grow(&mut self, saturated: u64) {
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
