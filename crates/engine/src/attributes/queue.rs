//! The attributes of a queue that is in use.

use super::error::{AttributeError, SetAttributeError};
use super::{HctxSnapshot, Snapshot, read, write};
use crate::dispatch::engine::Engine;
use crate::elevator::goals::Board;
use crate::queue::Queue;
use crate::reconfiguration::change::Change;
use blkmq_sched::Factory;

impl<P: Send + 'static> Queue<P> {
    /// The state of the queue that attributes show. All parts of it belong to one plan, but may be from slightly
    /// different moments.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        // Held throughout, so that the queue is the one that was built from this plan.
        let state = self.root.change_state();
        let q = self.root.current();
        let hctxs = q.hub.hctxs.iter().map(|hctx| HctxSnapshot {
            active: hctx.tags.in_use(),
            dispatch_busy: hctx.busy().get(),
        });
        Snapshot {
            plan: state.plan.clone(),
            pump: q.hub.lasting.pump_mode,
            goals: q.hub.board.as_ref().map(Board::read),
            learned: learned(&q, state.plan.scheduler),
            hctxs: hctxs.collect(),
        }
    }

    /// The attribute at `path`, as text.
    ///
    /// # Errors
    /// If there is no such attribute.
    pub fn attribute(&self, path: &str) -> Result<String, AttributeError> {
        read(&self.snapshot(), path)
    }

    /// Begins to set the attribute at `path` to the value in `text`. No concurrent change is lost.
    ///
    /// # Errors
    /// If there is no such attribute, it cannot be set to this value, or another change is under way.
    pub fn set_attribute(&self, path: &str, text: &str) -> Result<Change<P>, SetAttributeError> {
        self.change_by(|plan| write(plan, path, text).map_err(SetAttributeError::from))
    }
}

/// The figures of the policy in the first elevator that have the names of its options; `None` if that elevator is busy.
fn learned<P: Send>(q: &Engine<P>, policy: &Factory) -> Option<String> {
    let mut told = Vec::new();
    let mut take = |name: &'static str, value: u64| {
        if policy.attributes.iter().any(|option| option.name == name) {
            told.push(format!("{name}={value}"));
        }
    };
    q.visit(q.hub.shards.first()?, |runner| runner.elevator.inspect(&mut take))?;
    Some(told.join(","))
}
