//! How a thread waits: how long it stays awake before it sleeps, and where a completion finds it.
//!
//! | the client's I/Os | first | then |
//! |---|---|---|
//! | at the device of its own lane | - | sleeps in the kernel, on its ring |
//! | with other threads: staged, held, or on their way | spins for some microseconds | sleeps there, until a call, and looks after all lanes at times |
//! | at a device that several clients watch | - | sleeps on the device's descriptor, or is woken by a client that does (`post.rs`) |
//! | at a device that cannot be watched | spins, then yields | sleeps until the device's next event, or a wake-up |
//!
//! A thread that sleeps on a device uses no CPU for the wait, and the completion wakes it. So by default it does not
//! spin: at depth 1 on a file that would save a few microseconds of some thirty and cost twice the CPU time. A program
//! that wants it says so ([`Service::set_waiting`](crate::Service::set_waiting)).

use blkmq_core::Nanos;

/// A thread with an event due within this time yields until then instead of sleeping: a timer would overshoot by
/// more.
pub(crate) const AWAKE_FOR: Nanos = Nanos::from_micros(60);

/// Rounds of spinning for a thread whose I/Os another thread is about to send, in a pass of a few microseconds.
const PASS_ROUNDS: u32 = 4;
/// Looks at its own completions in each of them.
const PASS_SPINS: u32 = 16;
/// How long a client sleeps on its own lane, at first, while none of its I/Os is at the device there: then it looks after
/// all lanes, since what it waits for may have come back to a client whose thread does something else. Each further
/// sleep in one wait is twice as long, up to [`LONGEST_LOOK`].
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

    /// The same for a client of a queue with pump threads, which count among `threads`.
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

    /// What to do when `looks` in a row, the first of them 1, have found nothing.
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

    /// The same for a client with a lane of its own, none of whose I/Os is at the device there. A sleep has a limit: with
    /// it, the caller looks after all lanes before it sleeps again.
    pub(crate) fn next_of_held(self, looks: u32) -> (Pause, Option<Nanos>) {
        let awake = self.rounds.max(PASS_ROUNDS);
        if looks <= awake {
            return (Pause::Spin(self.spins.max(PASS_SPINS)), None);
        }
        let sleeps = (looks - awake - 1).min(16);
        (Pause::Sleep, Some(Nanos((FIRST_LOOK.0 << sleeps).min(LONGEST_LOOK.0))))
    }
}

/// What a thread that has found no work does next.
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
        let expected = [Pause::Spin(5), Pause::Spin(5), Pause::Yield, Pause::Sleep, Pause::Sleep];
        assert_eq!(pauses, expected);
    }

    #[test]
    fn on_a_device_it_sleeps_at_once() {
        assert_eq!(Waiting::on_device().next(1), Pause::Sleep);
    }

    #[test]
    fn a_client_whose_io_is_held_looks_after_all_lanes_ever_more_seldom() {
        let limits = |waiting: Waiting| {
            let pauses = Vec::from_iter((1..100).map(|looks| waiting.next_of_held(looks)));
            let spun = pauses.iter().take_while(|(pause, _)| *pause == Pause::Spin(16)).count();
            assert!(pauses[spun..].iter().all(|(pause, _)| *pause == Pause::Sleep));
            let limit = |(_, limit): &(Pause, Option<Nanos>)| limit.expect("a sleep has one").0;
            (spun, Vec::from_iter(pauses[spun..].iter().map(|it| limit(it) / 1_000_000)))
        };
        let (spun, limits) = limits(Waiting::on_device());
        assert_eq!(spun, 4);
        assert_eq!(limits[..8], [4, 8, 16, 32, 64, 128, 256, 256]);
    }

    #[test]
    fn where_threads_outnumber_cpus_those_who_wait_for_a_pump_thread_spin_little() {
        assert_eq!(Waiting::on_pump_threads(4, 4), Waiting::for_threads(4, 4));
        let (clients, usual) = (Waiting::on_pump_threads(5, 4), Waiting::for_threads(5, 4));
        assert!(clients.rounds < usual.rounds && clients.yields == usual.yields);
    }
}
