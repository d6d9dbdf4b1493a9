//! The steps of the controller: taking after a missed window, and giving back.
//!
//! The order of taking: what the device holds, as long as that helps; then the rates of the tiers, lightest first. The
//! order of giving back is the reverse.

use super::pace::{Cut, Pace, Raise};
use blkmq_core::{Instant, Nanos};

/// Good windows before something is given back; after each time that this was wrong, twice as many.
const PATIENCE: u32 = 2;
const MOST_PATIENCE: u32 = 8;
/// A depth at which a goal was missed is not tried again for so long.
const REMEMBERED: Nanos = Nanos::from_secs(60);
/// How long a goal is missed with nothing left to take before it is infeasible: a drive goes on for a while with the
/// writes in its cache.
const NOTHING_LEFT: Nanos = Nanos::from_millis(2000);
/// A step shows its effect after this time: requests in the device or behind a cache end first. Where several tiers have
/// something left, the time is divided by their number, so that the end is known within five seconds.
const SHOWS: Nanos = Nanos::from_millis(300);

/// The outcome of the windows.
pub(super) struct Seen {
    pub(super) now: Instant,
    /// A goal was missed.
    pub(super) missed: bool,
    /// The largest mean latency of a goal's I/Os, in nanoseconds.
    pub(super) mean: u64,
    /// Every percentile is below half of its goal.
    pub(super) ease: bool,
    /// Every percentile is below three quarters of its goal: there is something to give back.
    pub(super) room: bool,
    pub(super) at_device: u32,
}

/// The outcome of a decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// Go on.
    Goes,
    /// The goals that were missed cannot be met.
    Infeasible,
}

/// The last step.
#[derive(Clone, Copy)]
enum Last {
    None,
    /// The depth was lowered when the mean was this.
    CutDepth(u64),
    CutRate,
    /// A tier got back something; its rate was this before.
    RaisedRate((usize, Option<u64>)),
    RaisedDepth(Option<u32>),
}

pub(super) struct Control {
    most: u32,
    depth: Option<u32>,
    /// A lower depth did not help.
    depth_is_useless: bool,
    /// The depth is not raised before this.
    depth_rests: Instant,
    last: Last,
    good: u32,
    patience: u32,
    /// No step before this shows anything.
    shows: Instant,
    /// Since when nothing is left to take.
    bare_since: Option<Instant>,
}

impl Control {
    pub(super) fn new(most: u32) -> Self {
        Self {
            most,
            depth: None,
            depth_is_useless: false,
            depth_rests: Instant::ZERO,
            last: Last::None,
            good: 0,
            patience: PATIENCE,
            shows: Instant::ZERO,
            bare_since: None,
        }
    }

    pub(super) fn depth(&self) -> Option<u32> {
        self.depth
    }

    pub(super) fn decide(&mut self, seen: &Seen, pace: &mut Pace) -> Answer {
        pace.measure(seen.now);
        if seen.missed {
            self.good = 0;
            return self.take(seen, pace);
        }
        self.bare_since = None;
        self.good += 1;
        if self.good >= self.patience {
            self.good = 0;
            self.give_back(seen, pace);
        } else if !matches!(self.last, Last::RaisedRate(_) | Last::RaisedDepth(_)) {
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
            // Beside a rate that keeps the device from filling, a depth would only cost.
            Last::CutDepth(mean) if seen.mean > mean / 10 * 9 => {
                self.depth = None;
                self.depth_is_useless = true;
            }
            Last::CutDepth(..) | Last::CutRate | Last::None => {}
        }
        let depth = self.depth.unwrap_or(self.most).min(seen.at_device.max(1));
        if !self.depth_is_useless && depth > 1 {
            self.last = Last::CutDepth(seen.mean);
            let little = how == Cut::Little && self.depth.is_some();
            let less = if little { depth / 4 * 3 } else { depth / 4 };
            self.depth = Some(less.clamp(1, depth - 1));
        } else if pace.cut(seen.now, how) {
            self.last = Last::CutRate;
        } else {
            self.last = Last::CutRate;
            let since = *self.bare_since.get_or_insert(seen.now);
            if seen.now.since(since) >= NOTHING_LEFT {
                pace.release();
                *self = Self::new(self.most);
                return Answer::Infeasible;
            }
        }
        Answer::Goes
    }

    fn give_back(&mut self, seen: &Seen, pace: &mut Pace) {
        if !seen.room {
            self.last = Last::None;
            return;
        }
        self.last = match (pace.raise(seen.now, seen.ease), self.depth) {
            (Raise::Raised(before), _) => Last::RaisedRate(before),
            (Raise::Free, Some(depth)) if seen.now >= self.depth_rests => {
                let more = depth + (depth / 4).max(1);
                self.depth = Some(more).filter(|more| *more < self.most);
                Last::RaisedDepth(Some(depth))
            }
            (Raise::Free, None) => {
                self.depth_is_useless = false;
                self.patience = PATIENCE;
                Last::None
            }
            (Raise::Held | Raise::Free, _) => Last::None,
        };
    }
}
