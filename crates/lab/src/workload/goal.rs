//! The search for the depth that keeps a latency: fio's `latency_target` and related options.
//!
//! A thread begins with one I/O in flight. After each window in which enough I/Os were fast, the depth is doubled;
//! after a window that missed the target, the search continues between the best depth that kept it and the one that did
//! not. I/Os that began before a change of depth do not count.

use blkmq_core::{Instant, Nanos};

/// fio's error for a latency target that no depth keeps: ETIMEDOUT.
pub const NEVER_KEPT: u16 = 110;

/// `latency_target` and its companions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LatencyTarget {
    /// `latency_target`: the longest time of an I/O, from the decision to issue it on.
    pub target: Nanos,
    /// `latency_window`: the time for which a depth is tried.
    pub window: Nanos,
    /// `latency_percentile`: the I/Os that must keep the target, in percent.
    pub percentile: f64,
    /// `latency_run`: continue with the depth that was found, instead of ending.
    pub run: bool,
}

/// The outcome of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Go on.
    Continue,
    /// The depth is found, and the thread ends.
    Found,
    /// Even one I/O at a time misses the target.
    Missed,
}

/// A search, or the watch over the depth that was found.
#[derive(Clone, Debug)]
pub(super) struct Goal {
    wanted: LatencyTarget,
    /// The depth of this window.
    depth: u32,
    /// The largest depth known to keep the target; 0 if none.
    good: u32,
    /// The smallest depth known to miss it, or the maximum depth plus one.
    bad: u32,
    settled: bool,
    since: Option<Instant>,
    ios: u64,
    quick: u64,
}

impl Goal {
    /// A search among depths up to `most`.
    pub(super) fn new(wanted: LatencyTarget, most: u32) -> Self {
        Self {
            wanted,
            depth: 1,
            good: 0,
            bad: most.saturating_add(1),
            settled: false,
            since: None,
            ios: 0,
            quick: 0,
        }
    }

    /// The most I/Os in flight for now.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// An I/O that began at `start` took `took`.
    pub(super) fn count(&mut self, start: Instant, took: Nanos) {
        if self.since.is_some_and(|since| start >= since) {
            self.ios += 1;
            self.quick += u64::from(took <= self.wanted.target);
        }
    }

    /// Judges the window if it is over at `now`, and chooses the next depth.
    pub(super) fn judge(&mut self, now: Instant) -> Verdict {
        let since = *self.since.get_or_insert(now);
        if now - since < self.wanted.window || self.ios == 0 {
            return Verdict::Continue;
        }
        let share = 100.0 * self.quick as f64 / self.ios as f64;
        let kept = share >= self.wanted.percentile;
        (self.since, self.ios, self.quick) = (Some(now), 0, 0);
        if self.settled && kept {
            return Verdict::Continue;
        }
        if kept {
            self.good = self.depth;
        } else {
            self.bad = self.depth;
            // A depth that was good before no longer is.
            self.good = self.good.min(self.depth - 1);
            self.settled = false;
        }
        if self.bad == 1 {
            return Verdict::Missed;
        }
        if self.good > 0 && self.good + 1 == self.bad {
            (self.depth, self.settled) = (self.good, true);
            return if self.wanted.run { Verdict::Continue } else { Verdict::Found };
        }
        let doubled = self.depth.saturating_mul(2);
        let between = self.good + (self.bad - self.good) / 2;
        // While no depth has missed, `bad` is only the limit.
        self.depth = if kept && doubled < self.bad { doubled } else { between.max(1) };
        Verdict::Continue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Nanos = Nanos::from_millis(1);

    fn target(run: bool) -> LatencyTarget {
        let target = Nanos::from_micros(100);
        LatencyTarget { target, window: WINDOW, percentile: 90.0, run }
    }

    /// A device on which an I/O takes 10 us for each in flight.
    fn search(most: u32, run: bool, windows: u32) -> (Goal, Verdict, Vec<u32>) {
        let (mut goal, mut now, mut tried) =
            (Goal::new(target(run), most), Instant::ZERO, Vec::new());
        goal.judge(now);
        for _ in 0..windows {
            tried.push(goal.depth());
            for _ in 0..20 {
                goal.count(now, Nanos::from_micros(10 * u64::from(goal.depth())));
            }
            now += WINDOW;
            match goal.judge(now) {
                Verdict::Continue => {}
                end => return (goal, end, tried),
            }
        }
        (goal, Verdict::Continue, tried)
    }

    #[test]
    fn the_largest_depth_that_keeps_the_target_is_found() {
        let (goal, end, tried) = search(64, false, 100);
        assert_eq!((goal.depth(), end), (10, Verdict::Found));
        assert_eq!(tried, [1, 2, 4, 8, 16, 12, 10, 11]);
        let (goal, end, tried) = search(7, false, 100);
        assert_eq!((goal.depth(), end), (7, Verdict::Found), "all that is allowed");
        assert_eq!(tried, [1, 2, 4, 6, 7]);
        let (goal, end, tried) = search(64, true, 100);
        assert_eq!((goal.depth(), end, tried.len()), (10, Verdict::Continue, 100));
    }

    #[test]
    fn a_target_that_one_io_misses_is_given_up() {
        let mut goal = Goal::new(target(false), 8);
        goal.judge(Instant::ZERO);
        for at in 0..10u64 {
            // Eight of ten are quick, and nine have to be.
            goal.count(Instant::ZERO, Nanos::from_micros(if at < 8 { 5 } else { 101 }));
        }
        assert_eq!(goal.judge(Instant::ZERO + WINDOW), Verdict::Missed);
    }

    #[test]
    fn a_depth_that_was_found_is_left_when_the_device_gets_slower() {
        let (mut goal, ..) = search(64, true, 50);
        let mut now = Instant::ZERO + Nanos::from_secs(1);
        for _ in 0..50 {
            goal.count(now, Nanos::from_micros(30 * u64::from(goal.depth())));
            now += WINDOW;
            goal.judge(now);
        }
        assert_eq!(goal.depth(), 3);
    }

    #[test]
    fn ios_from_before_the_window_do_not_count() {
        let mut goal = Goal::new(target(false), 8);
        let begin = Instant::ZERO + WINDOW;
        goal.judge(begin);
        goal.count(Instant::ZERO, Nanos::from_secs(1));
        assert_eq!(
            goal.judge(begin + WINDOW),
            Verdict::Continue,
            "a window without an I/O goes on"
        );
        goal.count(begin, Nanos::from_micros(1));
        goal.judge(begin + WINDOW);
        assert_eq!(goal.depth(), 2);
    }
}
