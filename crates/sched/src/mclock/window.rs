//! A window of completions: its sums, the figures computed from them, and its judgement.

use super::node::Floors;
use super::prices::Work;
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
    pub(super) fn has_competed(&self) -> bool {
        self.competed >= self.ios / 2
    }

    /// Returns the work of the window, and its length in ns at the time `now`; `None` if groups did not compete.
    pub(super) fn work(&self, now: Instant) -> Option<(Work, u64)> {
        self.has_competed().then(|| (self.work, now.as_nanos() - self.begun))
    }

    /// Returns the figures of the window, which ends `now` and has at least one completion.
    pub(super) fn seen(&self, now: Instant, mixed: bool) -> Seen {
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
pub(super) struct Seen {
    /// Device time a second, in millionths.
    pub(super) rate: u64,
    /// Its length, in nanoseconds; at least one.
    pub(super) span: u64,
    /// The mean device time in the device, in nanoseconds.
    pub(super) inside: u64,
    /// The mean requests in the device and in the scheduler.
    pub(super) outstanding: u64,
    /// The mean requests in the device, in hundredths.
    pub(super) issued: u64,
    pub(super) ios: u32,
    pub(super) mixed: bool,
}

impl Seen {
    /// The mean requests in the scheduler, in hundredths.
    pub(super) fn waits(self) -> u64 {
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
