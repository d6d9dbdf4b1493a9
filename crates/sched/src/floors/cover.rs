//! The spans of time in which a group had an I/O outstanding, from the arrival and the end of each I/O.
//!
//! An I/O is reported at its end, so one that was outstanding for long covers gaps between earlier reports. A few of
//! the latest gaps stay open for that. Older gaps are closed: the idle time in them may be too long, never too short,
//! so no second is judged in which the group may have been idle.

use super::SECOND;

/// The most spans, with open gaps between them.
const SPANS: usize = 8;
/// The seconds for which closed gaps are counted.
const SECONDS: usize = 4;

/// Spans of time with I/Os outstanding, in nanoseconds, in order and apart from each other.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cover {
    spans: [(u64, u64); SPANS],
    len: usize,
    /// By second, modulo [`SECONDS`]: the time in closed gaps, in nanoseconds.
    closed: [u64; SECONDS],
}

impl Cover {
    /// Adds an I/O that was outstanding from `from` to `to`. O(1) if it began in or after the last span.
    #[inline]
    pub(super) fn add(&mut self, from: u64, to: u64) {
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
    pub(super) fn idle(&self, second: u64) -> u64 {
        let (from, to) = (second * SECOND, (second + 1) * SECOND);
        let inside = |(begin, end): &(u64, u64)| (*end).min(to).saturating_sub((*begin).max(from));
        let covered: u64 = self.spans[..self.len].iter().map(inside).sum();
        let closed = self.closed[second as usize % SECONDS];
        (SECOND - covered + closed).min(SECOND)
    }

    /// Forgets the seconds before number `second`.
    pub(super) fn forget(&mut self, second: u64) {
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
    use alloc::vec::Vec;
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
}
