//! The sleepers of a shard: how many submitters are asleep or about to sleep, and when one of them will check for work
//! without being woken.
//!
//! Which submitters sleep is recorded elsewhere, one cache line each ([`completion_ring`](super::completion_ring)).
//! [`Sleepers`] is one line for all of them. A thread that goes to sleep writes it; a thread that has work for a
//! sleeper reads it. While no thread sleeps it is not written, so it stays in every reader's cache.
//!
//! | asleep | `lie_down` | `get_up` | `any` |
//! |---|---|---|---|
//! | 0 | 1: check for work once more, then sleep | a bug | false: none is asleep; one that is about to sleep will check |
//! | n > 0 | n + 1: likewise | n - 1 | true: *you* find out which, and wake one |
//!
//! | alarm | `set_alarm(at)` | `get_up(its own alarm)` | `look_by(due)` |
//! |---|---|---|---|
//! | none | `at`: *you* sleep no longer than that | none | false: *you* wake a sleeper for work that is due then |
//! | `a` | the earlier of both | none if it was `a`, else `a` | true if `a <= due`: the sleeper that set it checks in time |
//!
//! Invariants: a sleeper is counted from before its last check for work until after it has woken up. A counted thread
//! need not be asleep. While the alarm is `a`, a sleeper that set `a` has not got up. The converse need not hold: a
//! sleeper with a later alarm, or with the same one, is forgotten when another one gets up, and is then woken more
//! often than necessary.
//!
//! # Why the orderings are enough
//!
//! A thread that goes to sleep is counted, has a full fence, and checks for work. A thread with work makes it visible,
//! has a full fence, and calls `any`. One of the two fences is first, and the read behind the second fence sees the
//! write ahead of the first. An alarm works in the same way. A sleeper that gets up clears it, has a full fence, and
//! checks for work: it parks again, or leaves and looks for a successor. A thread with a timer sets it, has a full
//! fence, and calls `look_by`. So a thread that relies on an alarm relies on a sleeper that checks the timer later. The
//! fences are in the callers, which know the writes that are made visible. The words order nothing else, so relaxed
//! accesses suffice.

use super::{AtomicU32, AtomicU64, Ordering};
use blkmq_core::Instant;
use crossbeam_utils::CachePadded;

/// Both words, with a separate cache line.
#[derive(Default)]
pub(crate) struct Sleepers(CachePadded<Words>);

struct Words {
    asleep: AtomicU32,
    /// In nanoseconds; [`NO_ALARM`] for none.
    alarm: AtomicU64,
}

const NO_ALARM: u64 = u64::MAX;

impl Default for Words {
    fn default() -> Self {
        Self { asleep: AtomicU32::new(0), alarm: AtomicU64::new(NO_ALARM) }
    }
}

impl Sleepers {
    /// Notes that the caller is about to sleep. It must have a full fence and check for work once more before it does.
    /// One read-modify-write.
    #[inline]
    pub(crate) fn lie_down(&self) {
        self.0.asleep.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the caller, which has lain down, will check for work at `at` at the latest. One read-modify-write.
    #[inline]
    pub(crate) fn set_alarm(&self, at: Instant) {
        self.0.alarm.fetch_min(at.as_nanos(), Ordering::Relaxed);
    }

    /// Notes that the caller has woken up, or stays awake. `alarm` is the alarm that it has set, if any. It must have a
    /// full fence before it checks for work. One read-modify-write, or two with an alarm.
    #[inline]
    pub(crate) fn get_up(&self, alarm: Option<Instant>) {
        if let Some(at) = alarm {
            let (mine, none) = (at.as_nanos(), NO_ALARM);
            // Another sleeper may have set an earlier alarm.
            let _ = self.0.alarm.compare_exchange(mine, none, Ordering::Relaxed, Ordering::Relaxed);
        }
        let before = self.0.asleep.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "a thread gets up that has not lain down");
    }

    /// Returns whether a sleeper will check for work by `due` without being woken. For a caller that has work for a
    /// sleeper, and has had a full fence since. One load.
    #[inline]
    #[must_use]
    pub(crate) fn look_by(&self, due: Instant) -> bool {
        let alarm = self.0.alarm.load(Ordering::Relaxed);
        alarm != NO_ALARM && alarm <= due.as_nanos()
    }

    /// Returns whether any thread is asleep. For a caller that has work for a sleeper, and has had a full fence since.
    /// One load.
    #[inline]
    #[must_use]
    pub(crate) fn any(&self) -> bool {
        self.0.asleep.load(Ordering::Relaxed) > 0
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_is_counted_until_it_is_up() {
        let sleepers = Sleepers::default();
        assert!(!sleepers.any());
        sleepers.lie_down();
        sleepers.lie_down();
        sleepers.get_up(None);
        assert!(sleepers.any());
        sleepers.get_up(None);
        assert!(!sleepers.any());
    }

    #[test]
    fn the_earliest_alarm_counts_until_its_sleeper_is_up() {
        let at = Instant::from_nanos;
        let sleepers = Sleepers::default();
        assert!(!sleepers.look_by(Instant::MAX), "no sleeper has an alarm");
        for alarm in [20, 10, 30] {
            sleepers.lie_down();
            sleepers.set_alarm(at(alarm));
        }
        assert!(sleepers.look_by(at(10)) && !sleepers.look_by(at(9)));
        sleepers.get_up(Some(at(30)));
        assert!(sleepers.look_by(at(10)), "another sleeper has it");
        sleepers.get_up(Some(at(10)));
        assert!(!sleepers.look_by(Instant::MAX), "nothing is known of the third");
        sleepers.get_up(Some(at(20)));
        assert!(!sleepers.any());
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "that has not lain down")]
    fn a_thread_that_is_up_does_not_get_up() {
        Sleepers::default().get_up(None);
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::sync::{Arc, AtomicBool, fence};
    use loom::thread;

    struct Bed {
        sleepers: Sleepers,
        something: AtomicBool,
    }

    /// One thread goes to sleep unless there is work, while another one makes work visible and checks for sleepers.
    fn nobody_sleeps_through_it(sleep: fn(&Bed) -> bool, wake: fn(&Bed) -> bool) {
        loom::model(move || {
            let bed =
                Arc::new(Bed { sleepers: Sleepers::default(), something: AtomicBool::new(false) });
            let sleeper = {
                let bed = Arc::clone(&bed);
                thread::spawn(move || sleep(&bed))
            };
            let woken = wake(&bed);
            let sleeps = sleeper.join().expect("the sleeper does not panic");
            assert!(!sleeps || woken, "somebody sleeps, and nobody knows");
            bed.sleepers.get_up(None);
            assert!(!bed.sleepers.any(), "everybody is up");
        });
    }

    fn sleep(bed: &Bed) -> bool {
        bed.sleepers.lie_down();
        fence(Ordering::SeqCst);
        !bed.something.load(Ordering::Relaxed)
    }

    fn wake(bed: &Bed) -> bool {
        bed.something.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        bed.sleepers.any()
    }

    #[test]
    fn loom_nobody_sleeps_through_it() {
        nobody_sleeps_through_it(sleep, wake);
    }

    #[test]
    #[should_panic(expected = "nobody knows")]
    fn loom_planted_counted_after_the_last_look() {
        let sleep = |bed: &Bed| {
            let sleeps = !bed.something.load(Ordering::Relaxed);
            bed.sleepers.lie_down();
            fence(Ordering::SeqCst);
            sleeps
        };
        nobody_sleeps_through_it(sleep, wake);
    }

    #[test]
    #[should_panic(expected = "nobody knows")]
    fn loom_planted_a_waker_without_a_fence() {
        let wake = |bed: &Bed| {
            bed.something.store(true, Ordering::Relaxed);
            bed.sleepers.any()
        };
        nobody_sleeps_through_it(sleep, wake);
    }

    /// A thread with an alarm gets up, and checks the timers; another one sets a timer, and relies on the alarm.
    fn no_timer_is_left_alone(get_up: fn(&Bed) -> bool, set: fn(&Bed) -> bool) {
        loom::model(move || {
            let bed =
                Arc::new(Bed { sleepers: Sleepers::default(), something: AtomicBool::new(false) });
            bed.sleepers.lie_down();
            bed.sleepers.set_alarm(ALARM);
            let sleeper = {
                let bed = Arc::clone(&bed);
                thread::spawn(move || get_up(&bed))
            };
            let relies = set(&bed);
            let has_seen = sleeper.join().expect("the sleeper does not panic");
            assert!(!relies || has_seen, "the timer is left alone");
        });
    }

    const ALARM: Instant = Instant::from_nanos(8);

    fn get_up(bed: &Bed) -> bool {
        bed.sleepers.get_up(Some(ALARM));
        fence(Ordering::SeqCst);
        bed.something.load(Ordering::Relaxed)
    }

    fn set(bed: &Bed) -> bool {
        bed.something.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        bed.sleepers.look_by(ALARM)
    }

    #[test]
    fn loom_no_timer_is_left_alone() {
        no_timer_is_left_alone(get_up, set);
    }

    #[test]
    #[should_panic(expected = "left alone")]
    fn loom_planted_an_alarm_taken_back_after_the_look() {
        let get_up = |bed: &Bed| {
            let seen = bed.something.load(Ordering::Relaxed);
            bed.sleepers.get_up(Some(ALARM));
            fence(Ordering::SeqCst);
            seen
        };
        no_timer_is_left_alone(get_up, set);
    }

    #[test]
    #[should_panic(expected = "left alone")]
    fn loom_planted_a_timer_without_a_fence() {
        let set = |bed: &Bed| {
            bed.something.store(true, Ordering::Relaxed);
            bed.sleepers.look_by(ALARM)
        };
        no_timer_is_left_alone(get_up, set);
    }

    #[test]
    #[should_panic(expected = "left alone")]
    fn loom_planted_a_sleeper_that_keeps_its_alarm() {
        let get_up = |bed: &Bed| {
            bed.sleepers.get_up(None);
            fence(Ordering::SeqCst);
            bed.something.load(Ordering::Relaxed)
        };
        no_timer_is_left_alone(get_up, set);
    }
}
