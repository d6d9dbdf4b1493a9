//! What a policy may use that is not its own: tokens, counters and values that its instances share, and somebody
//! to note down what happened to a group.
//!
//! A policy with an instance per hardware queue cannot bound what is in the device as a whole, or learn from all
//! of it, by itself. So the engine keeps for it what is common: pools of tokens, counters that the instances
//! add to, and values that they read. A [`Governor`], one for all of them, looks at the counters from time to time
//! and decides about tokens and values. How threads share this is the engine's business; to a policy these are
//! plain calls, and two runs that get the same answers here do the same.

use crate::{Note, Options, Shape, Tallies};
use alloc::boxed::Box;
use blkmq_core::Instant;
use core::cell::RefCell;

/// The outside of a policy, on every call.
///
/// None of it blocks or allocates, and each call is O(1).
pub trait Outside {
    /// Takes a token of a pool, for the request that this [`pick`] is about to issue. The engine gives it back when
    /// that request comes back from the device, completed or to be tried again; or at once, if none is issued.
    ///
    /// False if there is none. Then the instance is asked again when one has come back, and may answer
    /// [`WaitToken`] until then. To be called within [`pick`], until it succeeds.
    ///
    /// [`pick`]: crate::Scheduler::pick
    /// [`WaitToken`]: crate::Pick::WaitToken
    ///
    /// # Panics
    /// If the policy's [`Common`] has no such pool.
    fn take(&self, pool: usize) -> bool;

    /// Adds one to a counter of this instance.
    ///
    /// # Panics
    /// If there is no such counter.
    fn count(&self, counter: usize);

    /// What the governor has last said about this.
    ///
    /// # Panics
    /// If there is no such value.
    fn value(&self, index: usize) -> u64;

    /// Has the governor look at the counters at `at`, unless it does so earlier anyway. It does no later than
    /// on the first pass after that time.
    fn review_by(&self, at: Instant);

    /// Notes down what happened to a group, for whoever counts (see [`Note`]); nothing if nobody wants to know. Policies
    /// use [`Cx::note`](crate::Cx::note), which comes here only where there are no [`sums`](Self::sums).
    fn note(&self, note: &Note);

    /// Where notes are added up, so that they need not be told one by one. The same as long as [`stats`](Self::stats) is.
    fn sums(&self) -> Option<&RefCell<Tallies>> {
        None
    }

    /// How much is noted down; so that a policy need not find out what nobody wants to know.
    fn stats(&self) -> StatsLevel;

    /// The queue is frozen: no I/O will come until everything that is held has been picked and has completed. To wait
    /// for an arrival would be in vain, and would keep whoever changes the queue waiting as long.
    fn is_draining(&self) -> bool;
}

/// How much is counted about groups.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum StatsLevel {
    /// Nothing.
    #[default]
    Off,
    /// I/Os, their bytes and times.
    Basic,
    /// Everything that `spec/bfq.md` section 17 names.
    Full,
}

/// The part of a policy that its instances share. Like a policy, a plain state machine that is told the time.
pub trait Governor: Send {
    /// Counters have been added to, and it is time. `grown` says by how much each of them grew since the last
    /// review, over all instances; `tokens` is how many each pool has, and `values` what instances read: both
    /// may be changed. Tokens that are out stay out; a pool with fewer than that gives none until enough are
    /// back.
    fn review(&mut self, now: Instant, grown: &[u64], tokens: &mut [u32], values: &mut [u64]);

    /// Change an attribute, as in [`Scheduler::set_attribute`](crate::Scheduler::set_attribute); the instances are
    /// told as well. Called once for every attribute before the first review, with its value, too.
    fn set_attribute(&mut self, name: &str, value: i64, tokens: &mut [u32], values: &mut [u64]);

    /// Name every number that decides about tokens and values, in a fixed order.
    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64));
}

/// What instances of a policy have in common.
#[derive(Clone, Copy)]
pub struct Common {
    /// The pools, with the tokens that each has at first.
    pub tokens: &'static [u32],
    /// How many counters each instance has.
    pub counters: usize,
    /// How many values the governor publishes; 0 each at first.
    pub values: usize,
    /// Makes the governor.
    pub governor: fn(&Shape, &Options) -> Box<dyn Governor>,
}

/// The outside of a policy that has nothing in common with other instances, where nobody counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nothing;

impl Outside for Nothing {
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
