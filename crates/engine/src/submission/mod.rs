//! From a program to an elevator, and back: submitters, and the I/Os that they hold back or divide.
//!
//! Here is the root of a queue: its current engine, and the state of its changes.

pub(crate) mod io;
pub(crate) mod split;
pub(crate) mod submitter;
pub(crate) mod throttle;

use crate::dispatch::Engine;
use crate::plan::Plan;
use crate::plan::config::Watchers;
use crate::shared::hctx::Member;
use crate::shared::hub::Lasting;
use crate::shared::stats::QueueStats;
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) struct Root<P> {
    pub(crate) lasting: Arc<Lasting<P>>,
    current: Mutex<Arc<Engine<P>>>,
    /// Lets one thread at a time change the queue.
    change_state: Mutex<ChangeState>,
}

/// The state of reconfiguration: the plan, and the counters of replaced queues.
pub(crate) struct ChangeState {
    pub(crate) plan: Plan,
    /// The observers of the queue, in addition to the plan.
    pub(crate) watchers: Watchers,
    /// The counters of the replaced queues.
    pub(crate) past: QueueStats,
    /// A change is in progress.
    pub(crate) taken: bool,
}

impl<P> Root<P> {
    /// The root of a queue that has just been built.
    pub(crate) fn new(engine: Engine<P>, plan: Plan) -> Self {
        let state = ChangeState {
            plan,
            watchers: Watchers::default(),
            past: QueueStats::default(),
            taken: false,
        };
        Self {
            lasting: Arc::clone(&engine.hub.lasting),
            current: Mutex::new(Arc::new(engine)),
            change_state: Mutex::new(state),
        }
    }

    /// The current queue.
    pub(crate) fn current(&self) -> Arc<Engine<P>> {
        Arc::clone(&self.current.lock().expect("no panic happens under this lock"))
    }

    /// Replaces the current queue by `next`. Returns the old one.
    pub(crate) fn replace(&self, next: Engine<P>) -> Arc<Engine<P>> {
        let (version, next) = (next.hub.version, Arc::new(next));
        *self.current.lock().expect("no panic happens under this lock") = Arc::clone(&next);
        self.lasting.control.publish(version);
        next
    }

    pub(crate) fn change_state(&self) -> MutexGuard<'_, ChangeState> {
        // The state is consistent wherever a thread may panic, and a thread that drops its change during unwinding must
        // not panic again.
        self.change_state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Send + 'static> Member for Root<P> {
    fn tags_came_back(&self) {
        let q = self.current();
        let mut wakes = Vec::new();
        q.hub.tag_wait.take(|shard| wakes.extend(q.kick_shard(shard)));
        q.wake(&wakes);
    }
}
