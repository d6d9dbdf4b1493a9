//! Decides whether a worker polls for a while before it sleeps.
//!
//! A client with one request at a time sends the next one some microseconds after a reply. If the worker sleeps in
//! between, it has to wait for an idle processor to wake up, which takes longer. A worker that polls, yielding the
//! processor each time, answers sooner and takes no more processor time. It learns when polling does not pay: while
//! nothing arrives, and while other threads want the processor.

use blkmq::{Clock, Instant, Nanos};

/// The maximum duration of polling: about the time of a wake-up.
const LONGEST: Nanos = Nanos::from_micros(40);
/// A poll that takes this long was interrupted by a thread that wants the processor.
const INTERRUPTED: Nanos = Nanos::from_micros(10);
/// A client whose next request arrives this soon has several in flight. Sleeping gathers more of them for the next
/// turn.
const SOON: Nanos = Nanos::from_micros(5);
/// Consecutive unsuccessful waits after which polling is skipped.
const GIVE_UP: u32 = 4;
/// The minimum and maximum number of waits without polling before the next attempt.
const SKIPS: std::ops::RangeInclusive<u32> = 32..=4096;

/// The experience of a worker with polling.
#[derive(Debug)]
pub(crate) struct Spin {
    misses: u32,
    skipped: u32,
    try_again: u32,
}

/// The load that a poll has found, by which it is judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Load {
    /// At most one request is in flight: a sleep would have gathered no others.
    Single,
    /// Other requests may be in flight: a sleep gathers those that arrive soon.
    Several,
}

impl Load {
    pub(crate) fn of(in_flight: usize) -> Self {
        if in_flight <= 1 { Self::Single } else { Self::Several }
    }
}

/// The times of one wait's polls.
#[derive(Debug)]
struct Looks {
    begun: Instant,
    last: Instant,
}

impl Default for Spin {
    fn default() -> Self {
        Self { misses: 0, skipped: 0, try_again: *SKIPS.start() }
    }
}

impl Spin {
    /// Polls by `find` for a while, if that pays. Returns the find, or `None` if the worker should sleep.
    pub(crate) fn poll<T>(
        &mut self,
        clock: Clock,
        mut find: impl FnMut() -> Option<(T, Load)>,
    ) -> Option<T> {
        let mut looks = self.begin(clock)?;
        loop {
            match find() {
                Some((found, Load::Single)) => {
                    *self = Self::default();
                    return Some(found);
                }
                Some((found, Load::Several)) => {
                    self.learn(clock.now() - looks.begun);
                    return Some(found);
                }
                None => std::thread::yield_now(),
            }
            if !self.judge(&mut looks, clock.now()) {
                return None;
            }
        }
    }

    fn begin(&mut self, clock: Clock) -> Option<Looks> {
        if self.misses >= GIVE_UP && self.skipped < self.try_again {
            self.skipped += 1;
            return None;
        }
        self.skipped = 0;
        let begun = clock.now();
        Some(Looks { begun, last: begun })
    }

    /// Returns whether to poll again after a poll that found nothing.
    fn judge(&mut self, looks: &mut Looks, now: Instant) -> bool {
        if now - looks.last >= INTERRUPTED {
            self.misses = GIVE_UP;
            self.try_again = (self.try_again * 2).min(*SKIPS.end());
            return false;
        }
        looks.last = now;
        let again = now - looks.begun < LONGEST;
        if !again {
            self.misses = self.misses.saturating_add(1);
        }
        again
    }

    fn learn(&mut self, after: Nanos) {
        if after >= SOON {
            *self = Self::default();
        } else {
            self.misses = self.misses.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a wait whose polls take `each` and find nothing. Returns the number of polls.
    fn wait(spin: &mut Spin, each: Nanos) -> u32 {
        let Some(mut looks) = spin.begin(Clock::start()) else { return 0 };
        let begun = looks.begun;
        (1..)
            .find(|n| !spin.judge(&mut looks, begun + Nanos(each.0 * u64::from(*n))))
            .expect("it ends")
    }

    #[test]
    fn polling_without_success_is_given_up_and_tried_again() {
        let mut spin = Spin::default();
        let looks = Vec::from_iter((0..70).map(|_| wait(&mut spin, Nanos::from_micros(1))));
        let expected = |at: usize| if at < 4 || at % 33 == 3 { 40 } else { 0 };
        let expected = Vec::from_iter((0..70).map(expected));
        assert_eq!(looks, expected);
    }

    #[test]
    fn a_client_with_many_requests_is_slept_for() {
        let mut spin = Spin::default();
        let looked = Vec::from_iter((0..70).map(|_| {
            let looks = spin.begin(Clock::start());
            looks.inspect(|_| spin.learn(Nanos::from_micros(1))).is_some()
        }));
        let expected = Vec::from_iter((0..70).map(|at| at < 4 || at % 33 == 3));
        assert_eq!(looked, expected);
    }

    #[test]
    fn where_others_want_the_processor_looking_becomes_rare() {
        let mut spin = Spin::default();
        let mut gaps = Vec::new();
        for _ in 0..10 {
            assert_eq!(wait(&mut spin, Nanos::from_micros(20)), 1);
            let mut gap = 0;
            while spin.skipped < spin.try_again {
                assert_eq!(wait(&mut spin, Nanos::from_micros(20)), 0);
                gap += 1;
            }
            gaps.push(gap);
        }
        assert_eq!(gaps[..3], [64, 128, 256]);
        assert_eq!(gaps[9], 4096);
        spin.learn(Nanos::from_micros(12));
        assert!(wait(&mut spin, Nanos::from_micros(1)) > 1, "it pays again");
    }
}
