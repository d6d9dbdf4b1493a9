//! Detects whether another thread had the CPU while a thread spun. `waiting` decides what follows from that.

use blkmq_core::{Instant, Nanos};

/// A round of spinning takes less than a microsecond. A round that takes this long was interrupted: by a hardware
/// interrupt, by the host of a virtual machine, or by another thread.
const INTERRUPTED: Nanos = Nanos::from_micros(100);

/// One thread's view of its CPU.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    spins_from: Option<Instant>,
    /// When the thread began to spin, or began again; it has had the CPU to itself since.
    alone_since: Option<Instant>,
    /// Involuntary context switches of the thread, when last asked.
    switches: Option<i64>,
}

impl Watch {
    /// A round of spinning begins. A system call if it is the first one.
    #[inline]
    pub(crate) fn spins_from(&mut self, now: Instant) {
        self.spins_from = Some(now);
        self.alone_since.get_or_insert(now);
        if self.switches.is_none() {
            self.switches = Some(involuntary_switches());
        }
    }

    /// If another thread interrupted the round of spinning that ends at `now`: how long this thread had been alone.
    /// Makes a system call if the round took long, and none otherwise.
    #[inline]
    pub(crate) fn disturbed(&mut self, now: Instant) -> Option<Nanos> {
        if !self.was_interrupted(now) || !self.was_switched(involuntary_switches()) {
            return None;
        }
        self.alone_since.take().map(|since| now - since)
    }

    /// Another thread had the CPU when this one was to wake, before `now`: how long this one had been alone since it spun.
    #[cold]
    pub(crate) fn woke_late(&mut self, now: Instant) -> Nanos {
        self.alone_since.take().map_or(Nanos(0), |since| now - since)
    }

    #[inline]
    fn was_interrupted(&mut self, now: Instant) -> bool {
        self.spins_from.take().is_some_and(|from| now - from >= INTERRUPTED)
    }

    #[cold]
    fn was_switched(&mut self, switches: i64) -> bool {
        self.switches.replace(switches) != Some(switches)
    }
}

#[cfg(target_os = "linux")]
fn involuntary_switches() -> i64 {
    use nix::sys::resource::{UsageWho, getrusage};
    // Fails for invalid arguments only.
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.involuntary_context_switches())
}

/// Elsewhere there is no device to sleep on, and spinning is not given up.
#[cfg(not(target_os = "linux"))]
fn involuntary_switches() -> i64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Instant = Instant::from_nanos(1_000);

    #[test]
    fn only_a_long_round_of_spinning_was_interrupted() {
        let mut watch = Watch::default();
        assert!(!watch.was_interrupted(T0 + INTERRUPTED), "it did not spin");
        watch.spins_from(T0);
        assert!(!watch.was_interrupted(T0 + Nanos(INTERRUPTED.0 - 1)));
        assert!(!watch.was_interrupted(T0 + INTERRUPTED), "that round is over");
        watch.spins_from(T0);
        assert!(watch.was_interrupted(T0 + INTERRUPTED));
    }

    #[test]
    fn how_long_it_had_been_alone() {
        let mut watch = Watch::default();
        let mut interrupted = |at: Instant| {
            watch.spins_from(at);
            // As if another thread had been there.
            watch.switches = Some(-1);
            watch.disturbed(at + INTERRUPTED)
        };
        assert_eq!(interrupted(T0), Some(INTERRUPTED));
        let long = Nanos::from_millis(1);
        assert_eq!(interrupted(T0 + long), Some(INTERRUPTED), "since it spun again");
        watch.spins_from(T0);
        assert_eq!(watch.disturbed(T0 + Nanos(1)), None);
        watch.spins_from(T0 + long);
        watch.switches = Some(-1);
        assert_eq!(watch.disturbed(T0 + long + INTERRUPTED), Some(Nanos(long.0 + INTERRUPTED.0)));
    }

    #[test]
    fn a_thread_that_wakes_late_was_alone_until_then() {
        let mut watch = Watch::default();
        assert_eq!(watch.woke_late(T0), Nanos(0), "it has never spun");
        watch.spins_from(T0);
        assert_eq!(watch.woke_late(T0 + INTERRUPTED), INTERRUPTED);
        assert_eq!(watch.woke_late(T0 + INTERRUPTED), Nanos(0), "and not since");
    }

    #[test]
    fn who_had_the_cpu_is_blamed_once() {
        let mut watch = Watch { switches: Some(3), ..Watch::default() };
        let blamed = [3, 4, 4, 6, 6].map(|switches| watch.was_switched(switches));
        assert_eq!(blamed, [false, true, false, true, false]);
    }
}
