//! For callers that can wait: the end of a queue, its attributes and their changes while it is in use, traces of it, and
//! observers of its policies. Traces and observers are begun and ended in one call each.
//!
//! The engine decides which changes are possible and takes the steps; this module has the loop around them.

use crate::port::thread::yield_now;
use crate::{Changing, Clock, Service, StillHeld};
use blkmq_core::{Nanos, Payload};
use blkmq_engine::attributes::{self, Attribute, AttributeError, SetAttributeError};
use blkmq_engine::{
    Change, ChangeError, EditError, Plan, PolicyObserver, Queue, Trace, TraceError,
};
use std::sync::Arc;

impl<P: Payload> Service<P> {
    /// Ends the service: waits until no request of dropped clients is left, and then drops it. Live clients and
    /// reactors keep the queue, so they are closed or dropped before.
    ///
    /// # Blocking
    /// For `within` at most.
    ///
    /// # Errors
    /// If requests have not ended by then: the error lists them. The queue stays in memory with their payloads until the
    /// process ends, since the device may still use them; dropping it would wait for the device.
    pub fn close(self, within: Nanos) -> Result<(), StillHeld> {
        let goes_on = until(self.clock(), within);
        let mut patience = Patience::new(self.clock());
        while self.queue().has_departed() {
            self.queue().poll(self.clock().now());
            if !goes_on() {
                let held = StillHeld::of(self.queue(), self.clock().now());
                std::mem::forget(self);
                return Err(held);
            }
            patience.wait();
        }
        Ok(())
    }

    /// Every attribute of the queue with its present value, in the order in which attributes are listed.
    #[must_use]
    pub fn attributes(&self) -> Vec<(Attribute, String)> {
        attributes::read_all(&self.queue().snapshot())
    }

    /// The attribute at `path`, as text.
    ///
    /// # Errors
    /// If there is no such attribute.
    pub fn attribute(&self, path: &str) -> Result<String, AttributeError> {
        self.queue().attribute(path)
    }

    /// Sets the attribute at `path` to the value that `text` says, and waits until it is in force. If another thread
    /// is changing the queue, waits for that first. Returns the time that it took in all. I/O may continue in the
    /// meantime, and the calling thread's own I/Os need not be reaped; but while the queue is quiesced, this may not
    /// return.
    ///
    /// # Blocking
    /// Until other changes are over, and I/Os in flight if the change needs that: without bound.
    ///
    /// # Errors
    /// If there is no such attribute, or it cannot be set to that value.
    pub fn set_attribute(&self, path: &str, text: &str) -> Result<Nanos, SetAttributeError> {
        self.set_attribute_while(path, text, &|| true)
    }

    /// As [`set_attribute`](Self::set_attribute), for a caller that gives up: `goes_on` is asked while another thread's
    /// change, or an I/O in flight, is in the way.
    ///
    /// # Blocking
    /// While `goes_on` is true.
    ///
    /// # Errors
    /// As [`set_attribute`](Self::set_attribute), and [`ChangeError::Busy`] once `goes_on` is false; the queue is as before
    /// then.
    pub fn set_attribute_while(
        &self,
        path: &str,
        text: &str,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Nanos, SetAttributeError> {
        set_attribute(self.queue(), self.clock(), path, text, goes_on)
    }

    /// As [`set_attribute`](Self::set_attribute), for callers that must not block: a thread of its own waits, for `within` at
    /// most.
    ///
    /// # Errors
    /// As [`set_attribute`](Self::set_attribute), and [`ChangeError::Busy`] if something was in the way for so long; the queue
    /// is as before then.
    pub fn set_attribute_async(
        &self,
        path: &str,
        text: &str,
        within: Nanos,
    ) -> Changing<Result<Nanos, SetAttributeError>> {
        let (queue, clock) = (self.queue().clone(), self.clock());
        let (path, text) = (path.to_owned(), text.to_owned());
        let goes_on = until(clock, within);
        Changing::start(move || set_attribute(&queue, clock, &path, &text, &goes_on))
    }

    /// Changes the plan with `edit`, and waits until the new one is in force. Returns the time that it took. The
    /// remarks about waiting at [`set_attribute`](Self::set_attribute) hold here as well: several threads that edit
    /// take turns. `edit` is called once, and must not call the queue.
    ///
    /// # Blocking
    /// Until other changes are over, and I/Os in flight if the change needs that: without bound.
    ///
    /// # Errors
    /// If `edit` refuses, if the plan that it leaves is impossible or for another device, or if the queue is
    /// poisoned.
    pub fn edit<E>(
        &self,
        edit: impl FnOnce(&mut Plan) -> Result<(), E>,
    ) -> Result<Nanos, EditError<E>> {
        self.edit_while(edit, &|| true)
    }

    /// As [`edit`](Self::edit), for a caller that gives up; see [`set_attribute_while`](Self::set_attribute_while).
    ///
    /// # Blocking
    /// While `goes_on` is true.
    ///
    /// # Errors
    /// As [`edit`](Self::edit), and [`ChangeError::Busy`] once `goes_on` is false; the queue is as before then.
    pub fn edit_while<E>(
        &self,
        edit: impl FnOnce(&mut Plan) -> Result<(), E>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Nanos, EditError<E>> {
        self::edit(self.queue(), self.clock(), edit, goes_on)
    }

    /// As [`edit`](Self::edit), for callers that must not block: a thread of its own calls `edit` and waits, for `within` at
    /// most.
    ///
    /// # Errors
    /// As [`edit`](Self::edit), and [`ChangeError::Busy`] if something was in the way for so long; the queue is as before then.
    pub fn edit_async<E: Send + 'static>(
        &self,
        edit: impl FnOnce(&mut Plan) -> Result<(), E> + Send + 'static,
        within: Nanos,
    ) -> Changing<Result<Nanos, EditError<E>>> {
        let (queue, clock) = (self.queue().clone(), self.clock());
        let goes_on = until(clock, within);
        Changing::start(move || self::edit(&queue, clock, edit, &goes_on))
    }
}

/// True until `within` is over.
pub(crate) fn until(clock: Clock, within: Nanos) -> impl Fn() -> bool + Send + 'static {
    let begun = clock.now();
    move || clock.now() - begun <= within
}

/// [`Service::set_attribute_while`], for callers that have a queue and no service.
fn set_attribute<P: Payload>(
    queue: &Queue<P>,
    clock: Clock,
    path: &str,
    text: &str,
    goes_on: &dyn Fn() -> bool,
) -> Result<Nanos, SetAttributeError> {
    let begun = clock.now();
    let mut patience = Patience::new(clock);
    let change = loop {
        match queue.set_attribute(path, text) {
            Err(SetAttributeError::Change(ChangeError::Busy)) if goes_on() => patience.wait(),
            result => break result?,
        }
    };
    finish_while(change, clock, goes_on).map_err(SetAttributeError::Change)?;
    Ok(clock.now() - begun)
}

/// [`Service::edit_while`], for callers that have a queue and no service.
pub(crate) fn edit<P: Payload, E>(
    queue: &Queue<P>,
    clock: Clock,
    edit: impl FnOnce(&mut Plan) -> Result<(), E>,
    goes_on: &dyn Fn() -> bool,
) -> Result<Nanos, EditError<E>> {
    let begun = clock.now();
    let mut patience = Patience::new(clock);
    let mut edit = Some(edit);
    let change = loop {
        let once = |plan: &mut Plan| edit.take().map_or(Ok(()), |edit| edit(plan));
        match queue.edit(once) {
            // A busy queue has not called the closure.
            Err(EditError::Change(ChangeError::Busy)) if goes_on() => patience.wait(),
            result => break result?,
        }
    };
    finish_while(change, clock, goes_on)?;
    Ok(clock.now() - begun)
}

pub(crate) fn finish<P: Send + 'static>(
    change: Change<P>,
    clock: Clock,
) -> Result<(), ChangeError> {
    finish_while(change, clock, &|| true)
}

/// Takes the steps of `change`. One that waits for I/Os is given up once `goes_on` is false.
fn finish_while<P: Send + 'static>(
    mut change: Change<P>,
    clock: Clock,
    goes_on: &dyn Fn() -> bool,
) -> Result<(), ChangeError> {
    let mut patience = Patience::new(clock);
    while !change.step(clock.now()) {
        patience.wait();
        // Before the next step, which may find that nothing is in the way any more.
        if change.waits_for_io() && !goes_on() {
            return Err(ChangeError::Busy);
        }
    }
    change.outcome()
}

/// How to wait for other threads' changes, which give no wake-up: yield first, then sleep, but never for long.
struct Patience {
    clock: Clock,
    waits: u32,
}

/// Times to yield: as long as the I/Os in flight on a fast device take.
const YIELDS: u32 = 64;
/// The first sleep; as short as timers go. Each further sleep is twice as long.
const SHORTEST: Nanos = Nanos::from_micros(50);
/// How often it doubles: up to 1.6 ms, which is little beside a disk's seek.
const DOUBLINGS: u32 = 5;

impl Patience {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, waits: 0 }
    }

    pub(crate) fn wait(&mut self) {
        self.waits += 1;
        match self.waits.checked_sub(YIELDS) {
            None => yield_now(),
            Some(slept) => {
                let sleep = Nanos(SHORTEST.0 << slept.min(DOUBLINGS));
                self.clock.sleep_until(self.clock.now() + sleep);
            }
        }
    }
}

impl<P: Payload> Service<P> {
    /// Begins a trace, with room for `notes` notes at each elevator (`Queue::begin_trace`). Stops no I/O.
    ///
    /// # Blocking
    /// Until other changes are over: without bound.
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
    /// # Blocking
    /// Until other changes are over: without bound.
    ///
    /// # Errors
    /// If the queue is poisoned.
    pub fn end_trace(&self, trace: &Trace) -> Result<(), ChangeError> {
        self.change_patiently(|| self.queue().end_trace(trace))
    }

    /// Puts `observer` around new policies of the queue (`Queue::observe_policies`). The queue is frozen and drained for
    /// that, as for another scheduler, but for `patience` at most. Returns how long it took.
    ///
    /// # Blocking
    /// For `patience` at most.
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
        let goes_on = until(self.clock(), patience);
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
    /// # Blocking
    /// Until other changes are over: without bound.
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
