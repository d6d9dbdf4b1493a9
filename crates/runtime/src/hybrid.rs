//! [`Hybrid`]: hybrid polling, the way between sleeping through a wait and spinning through it.
//!
//! A CPU that sleeps takes some 10 us from the interrupt to its thread, more in a virtual machine; a thread that spins
//! through a wait of 200 us costs a CPU. Where waits are alike, a thread sleeps by a timer through most of the wait, and
//! spins for the rest. Linux had that for its polled queues, under `io_poll_delay`.
//!
//! This module learns how long waits are and how late timers are, and so when to wake. Whether spinning pays at all is
//! decided by [`waiting`](crate::waiting).

use blkmq_core::{Instant, Nanos};

/// The lateness that is assumed before any timer has been seen. The kernel may delay a timer by 50 us, the usual slack.
const LATE: Nanos = Nanos::from_micros(60);
/// A later timer says nothing of timers: the host of a virtual machine had the CPU, or another thread.
const LATEST: Nanos = Nanos::from_micros(200);
/// A thread that wakes this late did not get its CPU from another thread, which has it for its time slice.
const LOST: Nanos = Nanos::from_millis(1);
/// A thread is awake this long before the completion that it expects: so long takes a CPU to wake.
const AHEAD: Nanos = Nanos::from_micros(16);
/// In a longer wait than this the time that waking up takes is not worth a timer and the CPU time of spinning.
const LONGEST: Nanos = Nanos::from_micros(500);
/// A longer wait raises the estimate by this part of it, a shorter one lowers it by eight times as much. So it stays where
/// one wait in nine is shorter, and one wait of ten milliseconds moves it no more than any other.
const RAISE: u64 = 256;

/// The lengths of one thread's waits, and the lateness of its timers.
#[derive(Debug)]
pub(crate) struct Hybrid {
    /// One wait in nine is shorter, roughly; zero before the first one.
    short: Nanos,
    /// Mean lateness of timers.
    late: Nanos,
    /// The start of the current wait.
    began: Option<Instant>,
    /// When the timer of the current sleep is due.
    due: Option<Instant>,
}

impl Default for Hybrid {
    fn default() -> Self {
        Self { short: Nanos(0), late: LATE, began: None, due: None }
    }
}

impl Hybrid {
    /// A wait begins.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.began = Some(now);
    }

    /// The time until which to sleep in the wait that begins at `now`, before spinning; `None` if the completion is
    /// expected too soon for that, or too late.
    pub(crate) fn sleep(&mut self, now: Instant) -> Option<Instant> {
        let span = self.short.0.saturating_sub(self.late.0 + AHEAD.0);
        self.due = (span > 0 && self.short <= LONGEST).then(|| now + Nanos(span));
        self.due
    }

    /// The thread is awake. If a timer has woken it, its lateness counts. True if another thread had the CPU then.
    pub(crate) fn woke(&mut self, now: Instant) -> bool {
        let Some(due) = self.due.take().filter(|due| now >= *due) else { return false };
        let late = now - due;
        if late < LATEST {
            self.late = Nanos((self.late.0 * 7 + late.0) / 8);
        }
        late >= LOST
    }

    /// The completion has come.
    pub(crate) fn came(&mut self, now: Instant) {
        let Some(began) = self.began.take() else { return };
        let (wait, short) = (now - began, self.short.0);
        self.short = match short {
            0 => wait,
            _ if wait.0 < short => Nanos(short - short * 8 / RAISE),
            _ => Nanos(short + (short / RAISE).max(1)),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that waits for completions that come after `waits`, each in microseconds, and whose timers are late by
    /// `late`. Returns how long before the completion the thread was awake in each wait; `None` if it spun from the
    /// start or the completion came first.
    fn awake_before(hybrid: &mut Hybrid, late: u64, waits: &[u64]) -> Vec<Option<u64>> {
        let mut now = Instant::from_nanos(1);
        let wait = |us: &u64| {
            let comes = now + Nanos::from_micros(*us);
            hybrid.begin(now);
            let wakes = hybrid.sleep(now).map(|due| due + Nanos::from_micros(late));
            let woke = wakes.map(|wakes| wakes.min(comes));
            woke.into_iter().for_each(|woke| _ = hybrid.woke(woke));
            hybrid.came(comes);
            now = comes + Nanos::from_micros(100);
            wakes.filter(|wakes| *wakes < comes).map(|wakes| (comes - wakes).0 / 1000)
        };
        waits.iter().map(wait).collect()
    }

    /// Lengths between `least` and `least + 3 * step`, in a fixed order.
    fn around(least: u64, step: u64) -> Vec<u64> {
        (0..400).map(|n| least + n * 7 % 16 * step / 5).collect()
    }

    #[test]
    fn a_thread_is_awake_shortly_before_completions_that_come_alike() {
        for late in [5, 55, 90] {
            let mut hybrid = Hybrid::default();
            let settled = awake_before(&mut hybrid, late, &around(170, 10)).split_off(200);
            let awake = Vec::from_iter(settled.iter().flatten());
            assert!(awake.len() >= 195, "{} of 200 in time, late by {late}", awake.len());
            assert!(awake.iter().all(|us| **us < 70), "late by {late}: {awake:?}");
        }
    }

    #[test]
    fn it_spins_at_once_where_a_timer_would_wake_too_late() {
        let mut hybrid = Hybrid::default();
        let short = awake_before(&mut hybrid, 55, &around(30, 5));
        assert!(short.iter().all(Option::is_none), "{short:?}");
    }

    #[test]
    fn it_does_not_sleep_by_a_timer_in_long_waits() {
        let mut hybrid = Hybrid::default();
        let long = awake_before(&mut hybrid, 55, &around(2000, 100));
        assert!(long.iter().all(Option::is_none), "{long:?}");
    }

    #[test]
    fn one_long_wait_changes_little_and_a_timer_that_lost_the_cpu_nothing() {
        let mut hybrid = Hybrid::default();
        awake_before(&mut hybrid, 55, &around(170, 10));
        let (short, late) = (hybrid.short, hybrid.late);
        awake_before(&mut hybrid, 3_000, &[30_000]);
        assert!(hybrid.short.0 <= short.0 * 257 / 256, "{:?} after {short:?}", hybrid.short);
        assert_eq!(hybrid.late, late);
    }

    #[test]
    fn a_timer_that_is_very_late_says_that_another_thread_has_the_cpu() {
        let mut hybrid = Hybrid::default();
        awake_before(&mut hybrid, 55, &around(170, 10));
        let now = Instant::from_nanos(1_000_000_000);
        let mut woke = |late: Nanos| {
            hybrid.begin(now);
            let due = hybrid.sleep(now).expect("waits are alike");
            hybrid.woke(due + late)
        };
        assert!(!woke(Nanos(LOST.0 - 1)));
        assert!(woke(LOST));
        assert!(!hybrid.woke(now + Nanos::from_secs(1)), "no timer was set");
    }

    #[test]
    fn it_follows_a_device_that_becomes_faster_or_slower() {
        let mut hybrid = Hybrid::default();
        let waits = [around(170, 10), around(120, 5), around(300, 20)];
        for waits in &waits {
            let awake = awake_before(&mut hybrid, 55, waits).split_off(300);
            let in_time = awake.iter().flatten().count();
            assert!(in_time >= 95, "{in_time} of 100");
        }
    }
}
