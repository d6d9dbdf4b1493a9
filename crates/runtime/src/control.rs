//! Control of a queue in use, for callers that can wait: its end, its attributes and their changes, traces, and
//! observers of its policies. One call each begins and ends a trace or an observer.
//!
//! The engine decides which changes are possible and carries out the steps; this module loops around them.
//! A [`Changing`] runs a change on its own thread, for callers that must not block.
//!
//! A server makes a group for each tenant or connection, which exists as long as its [`GroupGuard`].

use crate::port::thread::yield_now;
use crate::port::{Mutex, thread};
use crate::{Clock, Service, StillHeld};
use blkmq_core::{GroupId, Nanos, Payload};
use blkmq_engine::attributes::{self, Attribute, AttributeError, SetAttributeError};
use blkmq_engine::{
    Change, ChangeError, EditError, GroupError, IoMax, Plan, PolicyObserver, Promise, Queue, Trace,
    TraceError,
};
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

impl<P: Payload> Service<P> {
    /// Ends the service: waits until no request of a dropped client is left, and then drops the queue. Live clients and
    /// reactors keep the queue, so close or drop them first.
    ///
    /// # Blocking
    /// For `within` at most.
    ///
    /// # Errors
    /// If requests have not ended by then: the error lists them. The queue stays in memory with their payloads until
    /// the process ends, because the device may still use them; dropping it would wait for the device.
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

    /// Sets the attribute at `path` to the value in `text`, and waits until it is in force. If another thread is
    /// changing the queue, waits for that first. Returns the total time taken. I/O may continue in the meantime, and
    /// the calling thread need not reap its own I/Os. While the queue is quiesced, this may not return.
    ///
    /// # Blocking
    /// Until other changes are over, and I/Os in flight if the change needs that: without bound.
    ///
    /// # Errors
    /// If there is no such attribute, or it cannot be set to that value.
    pub fn set_attribute(&self, path: &str, text: &str) -> Result<Nanos, SetAttributeError> {
        self.set_attribute_while(path, text, &|| true)
    }

    /// As [`set_attribute`](Self::set_attribute), for a caller that may give up: `goes_on` is called while another
    /// thread's change, or an I/O in flight, delays the change.
    ///
    /// # Blocking
    /// While `goes_on` is true.
    ///
    /// # Errors
    /// As [`set_attribute`](Self::set_attribute), and [`ChangeError::Busy`] once `goes_on` is false; the queue is then
    /// unchanged.
    pub fn set_attribute_while(
        &self,
        path: &str,
        text: &str,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Nanos, SetAttributeError> {
        set_attribute(self.queue(), self.clock(), path, text, goes_on)
    }

    /// As [`set_attribute`](Self::set_attribute), for callers that must not block: a new thread waits, for `within` at
    /// most.
    ///
    /// # Errors
    /// As [`set_attribute`](Self::set_attribute), and [`ChangeError::Busy`] if the change is not in force within that
    /// time; the queue is then unchanged.
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

    /// Changes the plan with `edit`, and waits until the new one is in force. Returns the time taken. The remarks about
    /// waiting at [`set_attribute`](Self::set_attribute) apply here as well: edits by several threads take turns.
    /// `edit` is called once, and must not call the queue.
    ///
    /// # Blocking
    /// Until other changes are over, and I/Os in flight if the change needs that: without bound.
    ///
    /// # Errors
    /// If `edit` refuses, if the resulting plan is impossible or for another device, or if the queue is poisoned.
    pub fn edit<E>(
        &self,
        edit: impl FnOnce(&mut Plan) -> Result<(), E>,
    ) -> Result<Nanos, EditError<E>> {
        self.edit_while(edit, &|| true)
    }

    /// As [`edit`](Self::edit), for a caller that may give up; see [`set_attribute_while`](Self::set_attribute_while).
    ///
    /// # Blocking
    /// While `goes_on` is true.
    ///
    /// # Errors
    /// As [`edit`](Self::edit), and [`ChangeError::Busy`] once `goes_on` is false; the queue is then unchanged.
    pub fn edit_while<E>(
        &self,
        edit: impl FnOnce(&mut Plan) -> Result<(), E>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Nanos, EditError<E>> {
        self::edit(self.queue(), self.clock(), edit, goes_on)
    }

    /// As [`edit`](Self::edit), for callers that must not block: a new thread calls `edit` and waits, for `within` at
    /// most.
    ///
    /// # Errors
    /// As [`edit`](Self::edit), and [`ChangeError::Busy`] if the change is not in force within that time; the queue is
    /// then unchanged.
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

/// Returns true until `within` is over.
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
            // A busy queue has not called the closure, so it is tried again.
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

/// Takes the steps of `change`. Abandons a change that waits for I/Os once `goes_on` is false.
fn finish_while<P: Send + 'static>(
    mut change: Change<P>,
    clock: Clock,
    goes_on: &dyn Fn() -> bool,
) -> Result<(), ChangeError> {
    let mut patience = Patience::new(clock);
    while !change.step(clock.now()) {
        patience.wait();
        // Checked before the next step, which may find that the I/Os have ended.
        if change.waits_for_io() && !goes_on() {
            return Err(ChangeError::Busy);
        }
    }
    change.outcome()
}

/// The wait for other threads' changes, which signal nothing: yields first, then short sleeps.
struct Patience {
    clock: Clock,
    waits: u32,
}

/// Yields before the first sleep: about the time that a fast device takes for the I/Os in flight.
const YIELDS: u32 = 64;

/// The first sleep, as short as timers allow. Each further sleep is twice as long.
const SHORTEST: Nanos = Nanos::from_micros(50);

/// Doublings of the sleep: up to 1.6 ms, which is short beside a disk's seek.
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
    /// If a trace is in progress, so many notes cannot be kept, or the queue is poisoned.
    pub fn begin_trace(&self, notes: u32) -> Result<Trace, TraceError> {
        let (trace, change) = self.patiently(|| match self.queue().begin_trace(notes) {
            Err(TraceError::Change(ChangeError::Busy)) => None,
            result => Some(result),
        })?;
        finish(change, self.clock())?;
        Ok(trace)
    }

    /// Ends a trace: no more events are added. The recorded ones can still be read.
    ///
    /// # Blocking
    /// Until other changes are over: without bound.
    ///
    /// # Errors
    /// If the queue is poisoned.
    pub fn end_trace(&self, trace: &Trace) -> Result<(), ChangeError> {
        self.change_patiently(|| self.queue().end_trace(trace))
    }

    /// Puts `observer` around new policies of the queue (`Queue::observe_policies`). This freezes and drains the queue,
    /// as a change of scheduler does, for `patience` at most. Returns the time taken.
    ///
    /// # Blocking
    /// For `patience` at most.
    ///
    /// # Errors
    /// If there is an observer already, the queue is poisoned, or I/Os in flight did not end in time
    /// ([`ChangeError::Busy`]); the queue is then unchanged.
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

    /// Removes the observer. Stops no I/O.
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

    /// Calls `ask` until it returns a value, which it does once other threads' changes are over.
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

/// A change in progress; a future of its result. Any executor can poll it. Dropping it does not stop the change.
///
/// A panic of the closure that was passed to the change resumes in the task that awaits the future.
#[must_use = "only the result says whether the change was made"]
pub struct Changing<T>(Arc<Mutex<Slot<T>>>);

enum Slot<T> {
    Waits(Option<Waker>),
    /// The result, or the panic of the closure.
    Done(Result<T, Box<dyn Any + Send>>),
    Taken,
}

impl<T: Send + 'static> Changing<T> {
    /// Runs `change` on a new thread; on the calling thread if the system cannot start one.
    pub(crate) fn start(change: impl FnOnce() -> T + Send + 'static) -> Self {
        let slot = Arc::new(Mutex::new(Slot::Waits(None)));
        // Kept here as well, in case the thread cannot be started.
        let change = Arc::new(Mutex::new(Some(change)));
        let (its_slot, its_change) = (Arc::clone(&slot), Arc::clone(&change));
        let body = move || run(&its_slot, &its_change);
        if thread::Builder::new().name("blkmq-change".into()).spawn(body).is_err() {
            run(&slot, &change);
        }
        Self(slot)
    }
}

fn run<T, F: FnOnce() -> T>(slot: &Mutex<Slot<T>>, change: &Mutex<Option<F>>) {
    let Some(change) = change.lock().expect(NO_PANIC).take() else { return };
    let result = catch_unwind(AssertUnwindSafe(change));
    let before = std::mem::replace(&mut *slot.lock().expect(NO_PANIC), Slot::Done(result));
    if let Slot::Waits(Some(waker)) = before {
        waker.wake();
    }
}

/// The reason why the locks are never poisoned.
const NO_PANIC: &str = "no code of others runs under the lock";

impl<T> Future for Changing<T> {
    type Output = T;

    /// # Panics
    /// If the closure of the change did, or if the future has been ready before.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // Foreign code, so it is called outside the lock.
        let waker = cx.waker().clone();
        let mut slot = self.0.lock().expect(NO_PANIC);
        let before = match &mut *slot {
            Slot::Waits(old) => old.replace(waker),
            Slot::Done(_) => match std::mem::replace(&mut *slot, Slot::Taken) {
                Slot::Done(Ok(result)) => return Poll::Ready(result),
                Slot::Done(Err(panic)) => {
                    drop(slot);
                    resume_unwind(panic)
                }
                Slot::Waits(_) | Slot::Taken => unreachable!("it was seen just now"),
            },
            Slot::Taken => {
                drop(slot);
                panic!("polled after it was ready")
            }
        };
        drop(slot);
        drop(before);
        Poll::Pending
    }
}

impl<T> fmt::Debug for Changing<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changing").finish_non_exhaustive()
    }
}

/// The parent, the weight and the limits of a new group; see [`Service::add_group`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupOptions<'a> {
    /// The name of the parent; `/`, the default, is the root.
    pub parent: &'a str,
    /// Its share among its siblings, 1 to 1000, under schedulers that share by weight; 100 by default.
    pub weight: u32,
    /// Its limits, under every scheduler; none by default.
    pub max: IoMax,
    /// Its floor and its ceiling, under schedulers that keep them; none by default.
    pub promise: Promise,
}

impl Default for GroupOptions<'_> {
    fn default() -> Self {
        Self { parent: "/", weight: 100, max: IoMax::default(), promise: Promise::default() }
    }
}

/// A group of a queue, from [`Service::add_group`]. Dropping the guard removes the group. If that has to wait for
/// another change or for I/Os, a new thread waits, and the name becomes free a little later. I/Os that still carry the
/// id of the group count for its parent and keep its limits, until its index is reused; from then on they are refused
/// ([`Refusal::NoGroup`](blkmq_engine::Refusal::NoGroup)). A group with children is not removed.
///
/// The guard keeps the queue alive.
pub struct GroupGuard<P: Payload> {
    queue: Queue<P>,
    clock: Clock,
    id: GroupId,
    name: String,
    is_removed: bool,
}

impl<P: Payload> GroupGuard<P> {
    /// The id that its I/Os carry ([`Io::group`](blkmq_engine::Io::group)).
    #[must_use]
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// The name of the group.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the weight, 1 to 1000.
    ///
    /// # Blocking
    /// As [`Service::edit`].
    ///
    /// # Errors
    /// If `weight` is out of range, the group has been removed by another caller, or the queue is poisoned.
    pub fn set_weight(&self, weight: u32) -> Result<(), EditError<GroupError>> {
        self.edit(|plan| plan.groups.set_weight(&self.name, weight), &|| true)
    }

    /// Sets the limits.
    ///
    /// # Blocking
    /// As [`Service::edit`].
    ///
    /// # Errors
    /// If the group has been removed by another caller, or the queue is poisoned.
    pub fn set_max(&self, max: IoMax) -> Result<(), EditError<GroupError>> {
        self.edit(|plan| plan.groups.set_max(&self.name, max), &|| true)
    }

    /// Sets the floor and the ceiling.
    ///
    /// # Blocking
    /// As [`Service::edit`].
    ///
    /// # Errors
    /// If the scheduler cannot keep all floors, the group has been removed by another caller, or the queue is poisoned.
    pub fn set_promise(&self, promise: Promise) -> Result<(), EditError<GroupError>> {
        self.edit(|plan| plan.groups.set_promise(&self.name, promise), &|| true)
    }

    /// Removes the group, for a caller that may give up; see [`Service::set_attribute_while`].
    ///
    /// # Blocking
    /// While `goes_on` is true.
    ///
    /// # Errors
    /// If it has child groups, another caller has removed it, the queue is poisoned, or `goes_on` is false
    /// ([`ChangeError::Busy`]).
    pub fn remove_while(
        &mut self,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(), EditError<GroupError>> {
        self.edit(|plan| plan.groups.remove(&self.name), goes_on)?;
        self.is_removed = true;
        Ok(())
    }

    /// Changes the plan if the name still belongs to the group of this guard.
    fn edit(
        &self,
        change: impl FnOnce(&mut Plan) -> Result<(), GroupError>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(), EditError<GroupError>> {
        let checked = |plan: &mut Plan| {
            if plan.groups.find(&self.name)? == self.id {
                return change(plan);
            }
            // The name belongs to another group.
            Err(GroupError::Gone(self.name.clone()))
        };
        edit(&self.queue, self.clock, checked, goes_on).map(drop)
    }
}

impl<P: Payload> Drop for GroupGuard<P> {
    fn drop(&mut self) {
        if self.is_removed {
            return;
        }
        // Other refusals leave the group as it is: it has children, another caller has removed it, or the queue is
        // poisoned.
        if matches!(self.remove_while(&|| false), Err(EditError::Change(ChangeError::Busy))) {
            let (queue, clock, id) = (self.queue.clone(), self.clock, self.id);
            let name = std::mem::take(&mut self.name);
            let mut guard = Self { queue, clock, id, name, is_removed: true };
            drop(Changing::start(move || guard.remove_while(&|| true)));
        }
    }
}

impl<P: Payload> fmt::Debug for GroupGuard<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupGuard").field("id", &self.id).field("name", &self.name).finish()
    }
}

impl<P: Payload> Service<P> {
    /// Adds a group called `name` and waits until it is in force. The remarks about waiting at [`edit`](Self::edit)
    /// apply here and to dropping the guard. If the scheduler is chosen by groups and this group is the second one to
    /// compete, the scheduler changes, which waits for the I/Os in flight.
    ///
    /// # Blocking
    /// As [`edit`](Self::edit).
    ///
    /// # Errors
    /// If the name is taken or impossible, if the parent is unknown, if the weight is out of range, if the scheduler
    /// cannot keep all floors, if there are too many groups, or if the queue is poisoned.
    pub fn add_group(
        &self,
        name: &str,
        options: &GroupOptions<'_>,
    ) -> Result<GroupGuard<P>, EditError<GroupError>> {
        self.add_group_while(name, options, &|| true)
    }

    /// As [`add_group`](Self::add_group), for a caller that may give up; see
    /// [`set_attribute_while`](Self::set_attribute_while).
    ///
    /// # Blocking
    /// While `goes_on` is true.
    ///
    /// # Errors
    /// As [`add_group`](Self::add_group), and [`ChangeError::Busy`] once `goes_on` is false; no group is added then.
    pub fn add_group_while(
        &self,
        name: &str,
        options: &GroupOptions<'_>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<GroupGuard<P>, EditError<GroupError>> {
        add_group(self.queue(), self.clock(), name, options, goes_on)
    }

    /// As [`add_group`](Self::add_group), for callers that must not block: a new thread waits, for `within` at most. If
    /// the future is dropped without its guard having been taken, the group is removed.
    ///
    /// # Errors
    /// As [`add_group`](Self::add_group), and [`ChangeError::Busy`] if the group is not in force within that time; no
    /// group is added then.
    pub fn add_group_async(
        &self,
        name: &str,
        options: &GroupOptions<'_>,
        within: Nanos,
    ) -> Changing<Result<GroupGuard<P>, EditError<GroupError>>> {
        let (queue, clock) = (self.queue().clone(), self.clock());
        let (name, parent) = (name.to_owned(), options.parent.to_owned());
        let GroupOptions { weight, max, promise, .. } = *options;
        let goes_on = until(clock, within);
        Changing::start(move || {
            let options = GroupOptions { parent: &parent, weight, max, promise };
            add_group(&queue, clock, &name, &options, &goes_on)
        })
    }
}

/// [`Service::add_group_while`], for callers that have a queue and no service.
fn add_group<P: Payload>(
    queue: &Queue<P>,
    clock: Clock,
    name: &str,
    options: &GroupOptions<'_>,
    goes_on: &dyn Fn() -> bool,
) -> Result<GroupGuard<P>, EditError<GroupError>> {
    let mut id = GroupId::ROOT;
    let add = |plan: &mut Plan| {
        id = plan.groups.add(name, options.parent)?;
        plan.groups.set_weight(name, options.weight)?;
        plan.groups.set_max(name, options.max)?;
        plan.groups.set_promise(name, options.promise)
    };
    edit(queue, clock, add, goes_on)?;
    let (queue, name) = (queue.clone(), name.to_owned());
    Ok(GroupGuard { queue, clock, id, name, is_removed: false })
}
