//! Traces of a queue in use, and observers of its policies, for callers that can wait: begun and ended in one call each.

use crate::Service;
use crate::control::{Patience, finish, finish_while};
use blkmq_core::{Nanos, Payload};
use blkmq_engine::{Change, ChangeError, PolicyObserver, Trace, TraceError};
use std::sync::Arc;

impl<P: Payload> Service<P> {
    /// Begins a trace, with room for `notes` notes at each elevator (`Queue::begin_trace`). Stops no I/O.
    ///
    /// # Errors
    /// If a trace is under way, so many notes cannot be kept, or the queue is poisoned.
    pub fn begin_trace(&self, notes: u32) -> Result<Trace, TraceError> {
        let (trace, change) = self.patiently(|| match self.queue().begin_trace(notes) {
            Err(TraceError::Change(ChangeError::Busy)) => None,
            result => Some(result),
        })?;
        finish(change, self.clock())?;
        Ok(trace)
    }

    /// Ends a trace: no event is added to it any more. Those before can still be read.
    ///
    /// # Errors
    /// If the queue is poisoned.
    pub fn end_trace(&self, trace: &Trace) -> Result<(), ChangeError> {
        self.change_patiently(|| self.queue().end_trace(trace))
    }

    /// Puts `observer` around new policies of the queue (`Queue::observe_policies`). The queue is frozen and drained for
    /// that, as for another scheduler, but for `patience` at most. Returns how long it took.
    ///
    /// # Errors
    /// If there is an observer already, the queue is poisoned, or I/Os in flight did not end in time
    /// ([`ChangeError::Busy`]); the queue is as before then.
    pub fn observe_policies(
        &self,
        observer: &Arc<dyn PolicyObserver>,
        patience: Nanos,
    ) -> Result<Nanos, TraceError> {
        let begun = self.clock().now();
        let goes_on = || self.clock().now() - begun <= patience;
        let change =
            self.patiently(|| match self.queue().observe_policies(Arc::clone(observer)) {
                Err(TraceError::Change(ChangeError::Busy)) if goes_on() => None,
                result => Some(result),
            })?;
        finish_while(change, self.clock(), &goes_on)?;
        Ok(self.clock().now() - begun)
    }

    /// Takes the observer away again. Stops no I/O.
    ///
    /// # Errors
    /// If the queue is poisoned.
    pub fn unobserve_policies(&self) -> Result<(), ChangeError> {
        self.change_patiently(|| self.queue().unobserve_policies())
    }

    fn change_patiently(
        &self,
        begin: impl Fn() -> Result<Change<P>, ChangeError>,
    ) -> Result<(), ChangeError> {
        let change = self.patiently(|| match begin() {
            Err(ChangeError::Busy) => None,
            result => Some(result),
        })?;
        finish(change, self.clock())
    }

    /// Asks until there is an answer: until other threads' changes are over.
    fn patiently<T>(&self, mut ask: impl FnMut() -> Option<T>) -> T {
        let mut patience = Patience::new(self.clock());
        loop {
            match ask() {
                Some(answer) => return answer,
                None => patience.wait(),
            }
        }
    }
}
