//! The watchers of a queue besides its statistics: a trace, and an observer of its policies. Neither is a setting of the
//! plan; both stay when the plan is changed.

use crate::elevator::Tapping;
use crate::sync::{Arc, ArcDyn};
use crate::trace::{self, Tap};
use blkmq_sched::{Factory, Options, Scheduler, Shape};
use std::fmt;

/// An observer of a queue's policies: it may put a policy of its own around each, which sees every call and passes it
/// on.
pub trait PolicyObserver: Send + Sync {
    /// The policy to use in place of `policy`, which `factory` has made for `shape` with `options`. It must answer as
    /// `policy` does, and give it back when it is [released](Scheduler::release).
    fn around(
        &self,
        policy: Box<dyn Scheduler>,
        factory: &'static Factory,
        shape: &Shape,
        options: &Options,
    ) -> Box<dyn Scheduler>;
}

#[derive(Clone, Default)]
pub(crate) struct Watchers {
    pub(crate) trace: Option<Arc<trace::Shared>>,
    pub(crate) observer: Option<ArcDyn<dyn PolicyObserver>>,
}

impl fmt::Debug for Watchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchers").finish_non_exhaustive()
    }
}

impl Watchers {
    /// Can it not be changed from `before` in running elevators, because an observer must see its policies from their
    /// beginning?
    pub(crate) fn need_new_policies(&self, before: &Self) -> bool {
        match (&before.observer, &self.observer) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(old), Some(new)) => !ArcDyn::ptr_eq(old, new),
        }
    }

    /// What becomes of the watches of `shards` elevators that had those of `before`, the last elevator first.
    pub(crate) fn tapping(&self, before: &Self, shards: u16) -> Vec<Tapping> {
        let one = |shard| match (&before.trace, &self.trace) {
            (_, None) => Tapping::End,
            (Some(old), Some(new)) if Arc::ptr_eq(old, new) => Tapping::Keep,
            // Its ring is allocated here, where no elevator waits for that.
            (_, Some(new)) => Tapping::Begin(new.tap(shard)),
        };
        (0..shards).rev().map(one).collect()
    }

    /// The end of the trace for elevator `shard`, if one is taken.
    pub(crate) fn tap(&self, shard: u16) -> Option<Tap> {
        self.trace.as_ref().map(|trace| trace.tap(shard))
    }

    /// A policy of `factory`, with the observer around it if there is one.
    pub(crate) fn policy(
        &self,
        factory: &'static Factory,
        shape: &Shape,
        options: &Options,
    ) -> Box<dyn Scheduler> {
        let policy = (factory.build)(shape, options);
        match &self.observer {
            Some(observer) => observer.around(policy, factory, shape, options),
            None => policy,
        }
    }
}
