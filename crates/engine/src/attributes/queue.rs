//! The attributes of a queue that is in use.

use super::error::{AttributeError, SetAttributeError};
use super::{HctxSnapshot, Snapshot, read, write};
use crate::change::Change;
use crate::queue::Queue;

impl<P: Send + 'static> Queue<P> {
    /// What the queue says about itself now. The parts of it agree with one plan, and else may be from slightly
    /// different moments.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        // Held throughout, so that the queue is the one that the plan is of.
        let desk = self.root.desk();
        let q = self.root.current();
        let hctxs = q.hctxs.iter().map(|hctx| HctxSnapshot {
            active: hctx.tags.in_use(),
            dispatch_busy: hctx.busy().get(),
        });
        Snapshot { plan: desk.plan.clone(), pump: q.lasting.pump_mode, hctxs: hctxs.collect() }
    }

    /// The attribute at `path`, as text.
    ///
    /// # Errors
    /// If there is no such attribute.
    pub fn attribute(&self, path: &str) -> Result<String, AttributeError> {
        read(&self.snapshot(), path)
    }

    /// Begins to set the attribute at `path` to what `text` says. Nobody else's change gets lost in between.
    ///
    /// # Errors
    /// If there is no such attribute, it cannot be set to that, or another change is under way.
    pub fn set_attribute(&self, path: &str, text: &str) -> Result<Change<P>, SetAttributeError> {
        self.change_by(|plan| write(plan, path, text).map_err(SetAttributeError::from))
    }
}
