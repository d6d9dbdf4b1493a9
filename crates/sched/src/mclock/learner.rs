//! The bound of the device that is found while groups compete: how much it may hold, in device time.
//!
//! Time is cut into windows of many completions. The first ones, without a bound, teach the rate of the saturated device.
//! From there the bound goes down for as long as two things hold: the device delivers nearly that rate, and no more is
//! waiting than before. It goes down further, if not all the way, where a group whose turn came had everything that it
//! asks for in the device already, because weights then decide nothing. Now and then a window with a wider bound
//! teaches the rate anew. `doc/mclock.md` has the rules in full.

use blkmq_core::Instant;

/// A window is at least as long, in nanoseconds, and has as many completions; or is as long as this, with fewer.
const SHORTEST: u64 = 50_000_000;
const LONGEST: u64 = 1_000_000_000;
const ENOUGH: u32 = 128;
const FEWEST: u32 = 24;
/// With so many completions rates are known to a percent.
const MANY: u32 = 512;
/// Requests in the device that are never refused: one at work, one behind it.
pub(super) const LEAST: u32 = 2;
/// The time for which a finding about a bound is believed, in nanoseconds, and the longest; and in windows, at least.
const BELIEF: u64 = 2_000_000_000;
const LONGEST_BELIEF: u64 = 16_000_000_000;
const BELIEVED: u64 = 32;
/// Parts of the rate of the saturated device, in thousandths: enough; and as little as is worth a share.
const FAST: [u64; 2] = [980, 950];
const WORTH: u64 = 700;
/// A group lacks its share if it has less than this of it, in thousandths, and less than the second if the bound costs
/// the device some of its rate; and may get it if it has at least this.
const FAIR: [u64; 2] = [990, 980];
const IN_REACH: u64 = 500;
/// The most windows without a bound.
const MOST_SATURATED: u8 = 16;
/// The rate of the saturated device is known for so long, in nanoseconds.
const FRESH: u64 = 1_000_000_000;

/// What the search does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// There is no bound: so many windows teach the rate of the saturated device.
    Saturated(u8),
    /// A bound is tried.
    Search,
    /// One window with half as much again.
    Wide,
}

/// The sums of a window.
#[derive(Clone, Copy, Default)]
struct Window {
    begun: u64,
    /// Completions before it that are not counted: requests issued under another bound.
    skip: u32,
    /// Completions, and those while groups competed.
    ios: u32,
    competed: u32,
    /// Device time of the requests completed, and of those in the device at each completion.
    work: u64,
    inside: u64,
    /// Requests in the device and in the scheduler at each completion.
    outstanding: u64,
}

/// A window that has ended.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Device time a second, in millionths.
    rate: u64,
    /// Means of the window.
    inside: u64,
    outstanding: u64,
    ios: u32,
}

/// What the policy counts at a completion.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub(super) now: Instant,
    /// The cost of the request, and of all in the device with it.
    pub(super) cost: u64,
    pub(super) inside: u64,
    /// Requests in the device, and those with the scheduler.
    pub(super) issued: u32,
    pub(super) held: u32,
    /// More than one group has requests.
    pub(super) competing: bool,
}

pub(super) struct Learner {
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
    until: u64,
    belief: u64,
    /// Until then no bound is lowered for the sake of shares: it was not worth it.
    resigned: u64,
    resigns: u64,
    /// The last window, and the number of windows since groups began to compete.
    seen: Seen,
    windows: u64,
}

impl Learner {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Saturated(0),
            window: Window::default(),
            bound: u64::MAX,
            reference: 0,
            crowd: 0,
            checked: 0,
            good: 0,
            slow: 0,
            unfair: 0,
            until: 0,
            belief: BELIEF,
            resigned: 0,
            resigns: BELIEF,
            seen: Seen { rate: 0, inside: 0, outstanding: 0, ios: 0 },
            windows: 0,
        }
    }

    /// The most device time in the device.
    #[inline]
    pub(super) fn bound(&self) -> u64 {
        if self.phase == Phase::Wide { self.bound + self.bound / 2 } else { self.bound }
    }

    /// A request has completed; true if a window has ended, and shares are to be judged.
    #[inline]
    pub(super) fn completed(&mut self, at: Moment) -> bool {
        let window = &mut self.window;
        let now = at.now.as_nanos();
        if window.skip > 0 {
            window.skip -= 1;
            window.begun = now;
            return false;
        }
        window.ios += 1;
        window.competed += u32::from(at.competing);
        window.work += at.cost;
        window.inside += at.inside;
        window.outstanding += u64::from(at.issued + at.held);
        let span = now - window.begun;
        span >= SHORTEST && window.ios >= ENOUGH || span >= LONGEST && window.ios >= FEWEST
    }

    /// A window has ended, in which the group that lacked most had `got` thousandths of its share. The device has
    /// `issued` requests, the one that has just completed included.
    pub(super) fn judge(&mut self, now: Instant, got: u64, issued: u32) {
        let Window { begun, ios, competed, work, inside, outstanding, .. } = self.window;
        let span = (now.as_nanos() - begun).max(1);
        let mean = |sum: u64| sum / u64::from(ios);
        let rate = (u128::from(work) * 1_000_000 / u128::from(span)) as u64;
        let seen = Seen { rate, inside: mean(inside), outstanding: mean(outstanding), ios };
        self.seen = seen;
        self.windows += 1;
        let before = self.bound();
        if competed < ios / 2 {
            *self = Self { seen, ..Self::new() };
        } else {
            self.step(now.as_nanos(), span, got, seen);
        }
        let skip = if before == self.bound() { 0 } else { issued };
        self.window = Window { begun: now.as_nanos(), skip, ..Window::default() };
    }

    fn step(&mut self, now: u64, span: u64, got: u64, seen: Seen) {
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
                self.phase = Phase::Search;
                self.checked = now;
                self.bound = seen.inside + seen.inside / 8;
                self.forget(now, span);
                self.search(now, span, got, seen);
            }
            Phase::Search => self.search(now, span, got, seen),
            Phase::Wide => {
                self.phase = Phase::Search;
                self.checked = now;
                self.reference = seen.rate;
                self.crowd = self.crowd.max(seen.outstanding);
            }
        }
    }

    /// What was found about bounds is not believed any longer than this.
    fn forget(&mut self, now: u64, span: u64) {
        (self.good, self.slow, self.unfair) = (0, 0, 0);
        // A device may be silent for as long as time lasts.
        self.until = now.saturating_add(self.belief.max(span.saturating_mul(BELIEVED)));
        self.belief = (2 * self.belief).min(LONGEST_BELIEF);
    }

    fn is_fast(&self, seen: Seen) -> bool {
        let least = FAST[usize::from(seen.ios < MANY)];
        seen.rate >= self.reference / 1_000 * least
            && seen.outstanding <= self.crowd + self.crowd / 8 + 1
    }

    /// Returns whether the rate of the saturated device was seen a short time ago; if not, the next window is wide.
    fn is_checked(&mut self, now: u64, span: u64) -> bool {
        let checked = now - self.checked < FRESH.max(span.saturating_mul(4));
        if !checked {
            self.phase = Phase::Wide;
        }
        checked
    }

    fn search(&mut self, now: u64, span: u64, got: u64, seen: Seen) {
        if now >= self.until {
            let was_fair = self.unfair == 0;
            self.forget(now, span);
            if was_fair {
                self.phase = Phase::Wide;
                return;
            }
        }
        if seen.inside < self.bound - self.bound / 8 {
            // The bound holds nothing back, so this is the saturated device.
            self.reference = seen.rate;
            self.checked = now;
            self.bound = seen.inside + seen.inside / 8;
        }
        // Where the requests that are never refused cost more than the bound, neither it nor half as much again holds any back.
        self.bound = self.bound.max(seen.inside / 4 * 3);
        let bound = self.bound;
        let fast = self.is_fast(seen);
        if (IN_REACH..FAIR[usize::from(!fast)]).contains(&got) && now >= self.resigned {
            if seen.rate >= self.reference / 1_000 * WORTH {
                self.unfair = bound;
                // In proportion, since what a group has in the device is its part of what the device does.
                self.bound = (seen.inside.min(bound) / 1_000 * got).max(1);
            } else if self.is_checked(now, span) {
                self.resigned = now.saturating_add(self.resigns);
                self.resigns = (2 * self.resigns).min(8 * LONGEST_BELIEF);
                self.unfair = 0;
                self.bound = bound.max(self.good) + bound / 2;
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
            if (self.unfair == 0 || wider < self.unfair) && self.is_checked(now, span) {
                self.slow = self.slow.max(bound);
                self.bound = wider;
            }
        }
    }

    /// What was found, by the names of the page.
    pub(super) fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("windows", self.windows);
        out("bound_nsec", if self.bound == u64::MAX { 0 } else { self.bound });
        out("saturated_ppm", self.reference);
        out("seen_ppm", self.seen.rate);
        out("seen_nsec", self.seen.inside);
        out("slow_nsec", self.slow);
        out("unfair_nsec", self.unfair);
    }
}
