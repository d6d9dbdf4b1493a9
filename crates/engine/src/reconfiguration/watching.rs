//! Traces of a queue, and observers of its policies: begun and ended as changes of the queue.

use super::change::{Change, ChangeError};
use super::watchers::{PolicyObserver, Watchers};
use crate::sync::{Arc, ArcDyn};
use crate::{MAX_TRACE_NOTES, Queue, Trace};
use std::fmt;

/// Why no trace begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceError {
    /// Another trace, or another observer of the policies, is under way.
    Busy,
    /// So many notes cannot be kept.
    Room(u32),
    /// The queue refuses changes now.
    Change(ChangeError),
}

impl From<ChangeError> for TraceError {
    fn from(error: ChangeError) -> Self {
        Self::Change(error)
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("busy: another one of the device is under way"),
            Self::Room(notes) => {
                write!(f, "room for {notes} notes; accepted: 1 to {MAX_TRACE_NOTES}")
            }
            Self::Change(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TraceError {}

impl<P: Send + 'static> Queue<P> {
    /// Begins a trace, with room for `notes` notes at each elevator, rounded up to a power of two. It takes place in
    /// the steps of the [`Change`], and stops no I/O. There is one trace of a queue at a time.
    ///
    /// # Errors
    /// If there is a trace already, the room is none or more than [`MAX_TRACE_NOTES`], or the queue refuses changes
    /// now.
    pub fn begin_trace(&self, notes: u32) -> Result<(Trace, Change<P>), TraceError> {
        if !(1..=MAX_TRACE_NOTES).contains(&notes) {
            return Err(TraceError::Room(notes));
        }
        let trace = Trace::new(notes);
        let change = self.change_watched(|plan, watchers| match watchers.trace {
            Some(_) => Err(TraceError::Busy),
            None => {
                let trace = Some(Arc::clone(trace.shared()));
                Ok((plan.clone(), Watchers { trace, ..watchers.clone() }))
            }
        })?;
        Ok((trace, change))
    }

    /// Has elevators write down the ends of requests that no pass has seen yet: while no I/O comes, there is none. For
    /// readers of traces, between two readings. O(elevators).
    pub fn settle_trace(&self) {
        // Held because elevators are entered here under the number of the thread that changes the queue.
        let _state = self.root.change_state();
        self.root.current().learn_all();
    }

    /// Begins to end `trace`; when the [`Change`] is over, no event is added to it. Those before can still be read.
    ///
    /// # Errors
    /// If the queue refuses changes now.
    pub fn end_trace(&self, trace: &Trace) -> Result<Change<P>, ChangeError> {
        self.settle_trace();
        self.change_watched(|plan, watchers| {
            let mut to = watchers.clone();
            to.trace = to.trace.filter(|mine| !Arc::ptr_eq(mine, trace.shared()));
            Ok((plan.clone(), to))
        })
    }

    /// Puts `observer` around the queue's policies, until [`unobserve_policies`](Self::unobserve_policies). It sees each
    /// policy from its beginning, so the queue gets new ones: it is frozen and drained as for another scheduler, and
    /// what the policies have learnt is lost. There is one observer of a queue at a time.
    ///
    /// # Errors
    /// If there is an observer already, or the queue refuses changes now.
    pub fn observe_policies(
        &self,
        observer: ArcDyn<dyn PolicyObserver>,
    ) -> Result<Change<P>, TraceError> {
        self.change_watched(|plan, watchers| match watchers.observer {
            Some(_) => Err(TraceError::Busy),
            None => {
                let observer = Some(observer);
                Ok((plan.clone(), Watchers { observer, ..watchers.clone() }))
            }
        })
    }

    /// Takes the observer away again, which stops no I/O: the policies stay, with what they have learnt.
    ///
    /// # Errors
    /// If the queue refuses changes now.
    pub fn unobserve_policies(&self) -> Result<Change<P>, ChangeError> {
        self.change_watched(|plan, watchers| {
            Ok((plan.clone(), Watchers { observer: None, ..watchers.clone() }))
        })
    }
}
