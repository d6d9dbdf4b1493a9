//! The environment of a policy: its dimensions, the tokens, counters and values that its instances share, and the
//! receiver of notes about groups.
//!
//! A policy with an instance per hardware queue cannot bound the requests in the device as a whole, or learn from all
//! of them, on its own. So the engine keeps the shared state: token pools, counters that the instances add to, and
//! values that they read. A [`Governor`], one for all instances, reviews the counters from time to time and sets
//! tokens and values. The engine handles the sharing between threads; to a policy these are plain calls, and two runs
//! that get the same answers here behave the same.

use crate::{Note, Options, Tallies};
use alloc::boxed::Box;
use blkmq_core::Instant;
use core::cell::RefCell;

/// The environment of a policy, passed to every call.
///
/// No method blocks or allocates, and each is O(1).
pub trait PolicyEnv {
    /// Takes a token of a pool, for the request that this [`pick`] is about to issue. The engine returns the token
    /// when the device returns that request, completed or to be tried again; or immediately, if `pick` issues no
    /// request.
    ///
    /// False if there is none. The engine then asks the instance again when a token has been returned; until then, the
    /// instance may answer [`WaitToken`]. To be called within [`pick`], until it succeeds.
    ///
    /// [`pick`]: crate::Scheduler::pick
    /// [`WaitToken`]: crate::Pick::WaitToken
    ///
    /// # Panics
    /// If the policy's [`Common`] has no such pool.
    fn take(&self, pool: usize) -> bool;

    /// Takes `n` tokens of a pool, one for each request of the plug that [`admit`] is about to issue; the
    /// policy then issues them all. The engine returns them one by one, as with [`take`](Self::take).
    ///
    /// False, and nothing is taken, if there are not as many, or if the environment gives out no tokens by the plug. The
    /// engine does not ask the instance again because of that.
    ///
    /// [`admit`]: crate::Scheduler::admit
    ///
    /// # Panics
    /// If the policy's [`Common`] has no such pool.
    fn take_all(&self, _pool: usize, _n: u32) -> bool {
        false
    }

    /// Adds one to a counter of this instance.
    ///
    /// # Panics
    /// If there is no such counter.
    fn count(&self, counter: usize);

    /// The value `index`, as the governor last published it.
    ///
    /// # Panics
    /// If there is no such value.
    fn value(&self, index: usize) -> u64;

    /// Asks for a review by the governor at `at`, unless one happens earlier anyway. It happens no later than on the
    /// first pass after that time.
    fn review_by(&self, at: Instant);

    /// Passes a note about a group to the statistics (see [`Note`]); does nothing if statistics are off. Policies use
    /// [`Cx::note`](crate::Cx::note), which comes here only where there are no [`sums`](Self::sums).
    fn note(&self, note: &Note);

    /// The tallies that sum notes, so that they need not be passed on one by one. Does not change as long as
    /// [`stats`](Self::stats) does not.
    fn sums(&self) -> Option<&RefCell<Tallies>> {
        None
    }

    /// The level of detail of notes, so that a policy need not compute numbers that are not counted.
    fn stats(&self) -> StatsLevel;

    /// The queue is frozen: no I/O arrives until all held requests have been picked and have completed. Waiting for
    /// an arrival would be useless, and would delay the thread that changes the queue.
    fn is_draining(&self) -> bool;
}

/// The level of detail of the statistics of groups.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum StatsLevel {
    /// Nothing.
    #[default]
    Off,
    /// I/Os, their bytes and times.
    Basic,
    /// All statistics that `spec/bfq.md` section 17 names.
    Full,
}

/// The part of a policy that its instances share. Like a policy, a plain state machine that receives the time.
pub trait Governor: Send {
    /// A review: counters have grown, and it is time. `grown` is the growth of each counter since the last review,
    /// over all instances; `tokens` is the size of each pool, and `values` are those that instances read. Both may be
    /// changed. Tokens that are taken stay taken; a pool that shrinks below that number gives none until enough have
    /// been returned.
    fn review(&mut self, now: Instant, grown: &[u64], tokens: &mut [u32], values: &mut [u64]);

    /// Change an attribute, as in [`Scheduler::set_attribute`](crate::Scheduler::set_attribute); the instances are
    /// notified as well. Also called once for every attribute, with its value, before the first review.
    fn set_attribute(&mut self, name: &str, value: i64, tokens: &mut [u32], values: &mut [u64]);

    /// Report every number that affects tokens and values, in a fixed order.
    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64));
}

/// The state that the instances of a policy share.
#[derive(Clone, Copy)]
pub struct Common {
    /// The initial number of tokens of each pool.
    pub tokens: &'static [u32],
    /// The number of counters of each instance.
    pub counters: usize,
    /// The number of values that the governor publishes; each is 0 at first.
    pub values: usize,
    /// Creates the governor.
    pub governor: fn(&Shape, &Options) -> Box<dyn Governor>,
}

/// The environment of a policy without shared state, and without statistics.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoEnv;

impl PolicyEnv for NoEnv {
    fn take(&self, pool: usize) -> bool {
        panic!("a policy without pools takes from pool {pool}")
    }

    fn count(&self, counter: usize) {
        panic!("a policy without counters adds to counter {counter}")
    }

    fn value(&self, index: usize) -> u64 {
        panic!("a policy without a governor reads value {index}")
    }

    fn review_by(&self, _: Instant) {}

    fn note(&self, _: &Note) {}

    fn stats(&self) -> StatsLevel {
        StatsLevel::Off
    }

    fn is_draining(&self) -> bool {
        false
    }
}

/// The dimensions that a policy is built for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Request indices are below this. Side tables of this size never grow.
    pub slots: u32,
    /// Scheduler tags per hardware queue (`nr_requests`).
    pub nr_requests: u32,
    /// Driver tags per hardware queue (`hw_queue_depth`).
    pub hw_depth: u32,
    /// The hardware queues that this instance serves.
    pub hw_queues: u16,
    /// The device reports itself as rotational.
    pub rotational: bool,
}
