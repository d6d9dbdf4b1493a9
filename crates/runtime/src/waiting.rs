//! How a thread waits: how long it stays awake before it sleeps, and where a completion finds it.
//!
//! | the client's I/Os | first | then |
//! |---|---|---|
//! | at the device of its own lane | - | sleeps in the kernel, on its ring |
//! | with other threads: staged, held, or on their way | spins for some microseconds | sleeps there, until a call, and looks after all lanes at times |
//! | at a device that several clients watch | - | sleeps on the device's descriptor, or is woken by a client that does (`host.rs`) |
//! | at a device that cannot be watched | spins, then yields | sleeps until the device's next event, or a wake-up |
//!
//! A thread that sleeps on a device uses no CPU for the wait, and the completion wakes it. So by default it does not
//! spin: at depth 1 on a file that would save a few microseconds of some thirty and cost twice the CPU time. A program
//! that wants it says so ([`Service::set_waiting`](crate::Service::set_waiting)).

use blkmq_core::{Instant, Nanos};
use blkmq_engine::Awaited;

/// A thread with an event due within this time yields until then instead of sleeping: a timer would overshoot by
/// more.
pub(crate) const AWAKE_FOR: Nanos = Nanos::from_micros(60);

/// Rounds of spinning for a thread whose I/Os another thread is about to send, in a pass of a few microseconds.
const PASS_ROUNDS: u32 = if cfg!(shuttle) { 1 } else { 4 };
/// Looks at its own completions in each of them.
const PASS_SPINS: u32 = if cfg!(shuttle) { 1 } else { 16 };
/// How long a client sleeps, at first, while none of its I/Os is at the device of its lane: then it looks after all lanes,
/// since its I/Os may wait for something that a client has whose thread does something else. Later it sleeps for as long as
/// it has waited, up to [`LONGEST_LOOK`].
const FIRST_LOOK: Nanos = Nanos::from_millis(4);
const LONGEST_LOOK: Nanos = Nanos::from_millis(256);

/// How long a waiting thread stays awake before it parks.
///
/// Waking a thread on another core costs some 50 us, so for a short wait spinning is cheaper. But where threads
/// outnumber cores, the thread that this one waits for may need this very core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Looks at the thread's own completion queue between two looks for work to help with.
    pub spins: u32,
    /// Looks for work before giving the CPU away.
    pub rounds: u32,
    /// Times to give the CPU away before parking.
    pub yields: u32,
}

impl Waiting {
    /// For a thread that shares `cpus` CPUs with others, `threads` in all.
    #[must_use]
    pub const fn for_threads(threads: u16, cpus: u16) -> Self {
        if threads <= cpus {
            Self { spins: 32, rounds: 64, yields: 16 }
        } else {
            Self { spins: 16, rounds: 4, yields: 32 }
        }
    }

    /// Like [`for_threads`](Self::for_threads), but for a client of a queue with pump threads, which count among
    /// `threads`.
    ///
    /// Where `threads` exceed the CPUs, the pump thread that a client waits for needs the client's CPU.
    #[must_use]
    pub const fn on_pump_threads(threads: u16, cpus: u16) -> Self {
        let usual = Self::for_threads(threads, cpus);
        if threads <= cpus { usual } else { Self { rounds: 1, ..usual } }
    }

    /// For a thread that sleeps on the device itself: the interrupt wakes it, without another thread in between.
    #[must_use]
    pub const fn on_device() -> Self {
        Self { spins: PASS_SPINS, rounds: 0, yields: 0 }
    }

    /// The next step after `looks` in a row, the first of them 1, that have found nothing.
    pub(crate) fn next(self, looks: u32) -> Pause {
        let Self { spins, rounds, yields } = self;
        if looks <= rounds {
            Pause::Spin(spins)
        } else if looks - rounds <= yields {
            Pause::Yield
        } else {
            Pause::Sleep
        }
    }

    /// As [`next`](Self::next), for a client whose next completion comes from `awaited`.
    #[inline]
    pub(crate) fn next_of(self, awaited: Awaited, looks: u32) -> Pause {
        match awaited {
            Awaited::Shared | Awaited::OwnLane => self.next(looks),
            Awaited::Others => self.next_of_held(looks),
        }
    }

    fn next_of_held(self, looks: u32) -> Pause {
        let awake = self.rounds.max(PASS_ROUNDS);
        if looks <= awake { Pause::Spin(self.spins.max(PASS_SPINS)) } else { Pause::Sleep }
    }
}

/// The looks after all lanes of a client that waits for something that other threads have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looks {
    /// Completions that had come by the first of them.
    had: u64,
    /// The time of that one.
    since: Instant,
}

impl Looks {
    pub(crate) const NONE: Self = Self { had: u64::MAX, since: Instant::ZERO };

    /// The client looks at `now`, and `had` completions have come in all. Returns how long it may sleep before it looks
    /// again.
    pub(crate) fn next(&mut self, now: Instant, had: u64) -> Nanos {
        if self.had != had {
            *self = Self { had, since: now };
        }
        (now - self.since).clamp(FIRST_LOOK, LONGEST_LOOK)
    }
}

/// The next step of a thread that has found no work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pause {
    /// Look this many times at the thread's own completion queue.
    Spin(u32),
    /// Yield the CPU.
    Yield,
    /// Sleep, if that is allowed.
    Sleep,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_spins_then_yields_then_sleeps() {
        let waiting = Waiting { spins: 5, rounds: 2, yields: 1 };
        let pauses = [1, 2, 3, 4, 5].map(|looks| waiting.next(looks));
        let sleep = Pause::Sleep;
        let expected = [Pause::Spin(5), Pause::Spin(5), Pause::Yield, sleep, sleep];
        assert_eq!(pauses, expected);
    }

    #[test]
    fn on_a_device_it_sleeps_at_once() {
        for awaited in [Awaited::Shared, Awaited::OwnLane] {
            assert_eq!(Waiting::on_device().next_of(awaited, 1), Pause::Sleep);
        }
    }

    #[test]
    fn a_client_whose_io_is_held_looks_after_all_lanes_ever_more_seldom() {
        let next = |looks| Waiting::on_device().next_of(Awaited::Others, looks);
        assert!((1..=PASS_ROUNDS).all(|looks| next(looks) == Pause::Spin(PASS_SPINS)));
        assert_eq!(next(PASS_ROUNDS + 1), Pause::Sleep);
        let (mut looks, mut now) = (Looks::NONE, Instant::ZERO + Nanos::from_secs(1));
        let mut sleep = |now, had| looks.next(now, had).0 / 1_000_000;
        let spans = [4, 4, 8, 16, 32, 64, 128, 256, 256, 256];
        for span in spans {
            assert_eq!(sleep(now, 7), span);
            // Called early, for no reason: that makes no difference.
            assert!(sleep(now + Nanos(1), 7) <= span.max(4));
            now += Nanos::from_millis(span);
        }
        assert_eq!(sleep(now, 8), 4, "a completion has come");
    }

    #[test]
    fn where_threads_outnumber_cpus_those_who_wait_for_a_pump_thread_spin_little() {
        assert_eq!(Waiting::on_pump_threads(4, 4), Waiting::for_threads(4, 4));
        let (clients, usual) = (Waiting::on_pump_threads(5, 4), Waiting::for_threads(5, 4));
        assert!(clients.rounds < usual.rounds && clients.yields == usual.yields);
    }
}
