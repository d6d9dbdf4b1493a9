//! The costs of actions in virtual time.
//!
//! The figures of [`Costs::TYPICAL`] are round numbers of the size that measurements of the engine give; a claim
//! about speed needs a real machine. The costs serve to order events: whether an I/O arrives while another thread is
//! in the elevator depends on how long that thread stays there.

use blkmq_core::{Nanos, Rng};

/// Time that a virtual CPU spends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// Taking one I/O into the plug.
    pub push: Nanos,
    /// Flushing a plug.
    pub flush: Nanos,
    /// Polling for duties.
    pub poll: Nanos,
    /// Taking one completion.
    pub reap: Nanos,
    /// One pass over an elevator by a CPU that is caught in it.
    pub step: Nanos,
    /// Between a wake-up and the first action of the woken thread.
    pub wake: Nanos,
    /// How long a waiting thread stays awake before it sleeps. A thread that is woken in that time has been awake all
    /// the while, and continues after a [`poll`](Self::poll).
    pub spin: Nanos,
}

impl Costs {
    /// An ordinary machine.
    pub const TYPICAL: Self = Self {
        push: Nanos(20),
        flush: Nanos(200),
        poll: Nanos(50),
        reap: Nanos(20),
        step: Nanos(500),
        wake: Nanos(5_000),
        spin: Nanos(20_000),
    };

    /// A random machine: each cost is up to four times the typical one, and may be next to nothing.
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let mut some = |typical: Nanos| Nanos(1 + rng.below(4 * typical.0));
        let Self { push, flush, poll, reap, step, wake, .. } = Self::TYPICAL;
        Self {
            push: some(push),
            flush: some(flush),
            poll: some(poll),
            reap: some(reap),
            step: some(step),
            wake: some(wake),
            // Only a job's thread stays awake before it sleeps; under oracles a CPU sleeps immediately, which
            // is the harder case.
            spin: Self::TYPICAL.spin,
        }
    }

    /// The most that one event with `ios` I/Os can take, apart from the delays of its CPU's habits.
    pub(crate) fn most(&self, ios: u64) -> Nanos {
        let each = (self.push.0 + self.reap.0) * ios;
        Nanos(each + self.flush.0 + self.poll.0 + self.step.0 + self.wake.0)
    }
}
