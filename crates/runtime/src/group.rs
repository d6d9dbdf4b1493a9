//! Groups for servers: a group for each tenant or connection, which exists as long as its guard.

use crate::control;
use crate::{Changing, Clock, Service};
use blkmq_core::{GroupId, Nanos, Payload};
use blkmq_engine::{ChangeError, EditError, GroupError, IoMax, Plan, Promise, Queue};
use std::fmt;

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
        let edit = |plan: &mut Plan| {
            if plan.groups.find(&self.name)? == self.id {
                return change(plan);
            }
            // The name belongs to another group.
            Err(GroupError::Gone(self.name.clone()))
        };
        control::edit(&self.queue, self.clock, edit, goes_on).map(drop)
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
        let goes_on = control::until(clock, within);
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
    control::edit(queue, clock, add, goes_on)?;
    let (queue, name) = (queue.clone(), name.to_owned());
    Ok(GroupGuard { queue, clock, id, name, is_removed: false })
}
