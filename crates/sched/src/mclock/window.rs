//! A window of completions: its sums, the figures that it gives, and how it is judged.

use super::node::Floors;
use super::prices::Work;
use blkmq_core::Instant;

/// A window is at least as long, in nanoseconds, and has as many completions; or is as long as this, with fewer.
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
    /// Completions before it that are not counted: requests issued under another bound.
    skip: u32,
    /// Completions, and those while groups competed.
    ios: u32,
    competed: u32,
    /// The requests completed, and the device time of those in the device at each completion.
    work: Work,
    inside: u64,
    /// Requests in the device and in the scheduler at each completion, and those in the device alone.
    outstanding: u64,
    issued: u64,
}

impl Window {
    /// A window that begins behind the next `skip` completions.
    pub(super) fn after(now: Instant, skip: u32) -> Self {
        Self { begun: now.as_nanos(), skip, ..Self::default() }
    }

    /// Counts a completion. With enough of them the window is over when it is `shortest` ns old.
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

    /// The time at which it began.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// Returns whether groups competed during half of its completions or more.
    pub(super) fn has_competed(&self) -> bool {
        self.competed >= self.ios / 2
    }

    /// The work of the window, and its length by the time `now`; `None` if groups did not compete.
    pub(super) fn work(&self, now: Instant) -> Option<(Work, u64)> {
        self.has_competed().then(|| (self.work, now.as_nanos() - self.begun))
    }

    /// The figures of the window, which ends `now` and has one completion at least.
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
    /// Means of the window.
    pub(super) inside: u64,
    pub(super) outstanding: u64,
    /// In hundredths.
    pub(super) issued: u64,
    pub(super) ios: u32,
    pub(super) mixed: bool,
}

impl Seen {
    /// The mean of the requests in the scheduler, in hundredths.
    pub(super) fn waits(self) -> u64 {
        (100 * self.outstanding).saturating_sub(self.issued)
    }
}

/// The policy's numbers at a completion.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub(super) now: Instant,
    /// The cost of the request, and of all in the device with it.
    pub(super) cost: u64,
    pub(super) kind: u8,
    pub(super) inside: u64,
    /// Requests in the device, and those with the scheduler.
    pub(super) issued: u32,
    pub(super) held: u32,
    /// More than one group has requests.
    pub(super) competing: bool,
    /// There are floors, for which a window is shorter.
    pub(super) floors: bool,
}

/// The phase that has ended with a completion.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    Nothing,
    /// The last request that was issued under another bound.
    Change,
    Window,
}

/// The judgement of a window: the thousandths of its share that the group got which lacked most, and the floors.
#[derive(Clone, Copy)]
pub(super) struct Judged {
    pub(super) got: u64,
    pub(super) floors: Floors,
    /// The work was of more than one kind, and there are no floors.
    pub(super) mixed: bool,
}
