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
const LEFT_OUT: std::ops::RangeInclusive<u32> = 32..=4096;

/// What a worker has learned.
#[derive(Debug)]
pub(crate) struct Spin {
    in_vain: u32,
    left_out: u32,
    try_again: u32,
}

/// The polls of one wait.
#[derive(Debug)]
pub(crate) struct Looks {
    clock: Clock,
    begun: Instant,
    last: Instant,
}

impl Default for Spin {
    fn default() -> Self {
        Self { in_vain: 0, left_out: 0, try_again: *LEFT_OUT.start() }
    }
}

impl Spin {
    /// Begins a wait. Returns `None` if the worker should sleep immediately.
    pub(crate) fn begin(&mut self, clock: Clock) -> Option<Looks> {
        if self.in_vain >= GIVE_UP && self.left_out < self.try_again {
            self.left_out += 1;
            return None;
        }
        self.left_out = 0;
        let begun = clock.now();
        Some(Looks { clock, begun, last: begun })
    }

    /// Called when a poll found nothing. Returns whether to poll again.
    pub(crate) fn goes_on(&mut self, looks: &mut Looks) -> bool {
        std::thread::yield_now();
        self.judge(looks, looks.clock.now())
    }

    fn judge(&mut self, looks: &mut Looks, now: Instant) -> bool {
        if now - looks.last >= INTERRUPTED {
            self.in_vain = GIVE_UP;
            self.try_again = (self.try_again * 2).min(*LEFT_OUT.end());
            return false;
        }
        looks.last = now;
        let goes_on = now - looks.begun < LONGEST;
        if !goes_on {
            self.in_vain = self.in_vain.saturating_add(1);
        }
        goes_on
    }

    /// Called when polling found something that a sleep would not have gathered, however soon it came.
    pub(crate) fn paid(&mut self) {
        *self = Self::default();
    }

    /// Called when a poll found something.
    pub(crate) fn found(&mut self, looks: &Looks) {
        self.learn(looks.clock.now() - looks.begun);
    }

    fn learn(&mut self, after: Nanos) {
        if after >= SOON {
            *self = Self::default();
        } else {
            self.in_vain = self.in_vain.saturating_add(1);
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
    fn looking_in_vain_is_given_up_and_tried_now_and_then() {
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
            while spin.left_out < spin.try_again {
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
