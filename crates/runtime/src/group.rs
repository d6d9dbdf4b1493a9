//! Groups for servers: one for each tenant or connection, there as long as its guard is.

use crate::control;
use crate::{Clock, Service};
use blkmq_core::{GroupId, Payload};
use blkmq_engine::{EditError, GroupError, IoMax, Plan, Queue};
use std::fmt;

/// What a group is to be; see [`Service::add_group`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupOptions<'a> {
    /// The name of the group above it; `/`, the default, is the root.
    pub parent: &'a str,
    /// Its share among its siblings, 1 to 1000, under schedulers that share by weight; 100 by default.
    pub weight: u32,
    /// What it may use at most, under every scheduler; no limits by default.
    pub max: IoMax,
}

impl Default for GroupOptions<'_> {
    fn default() -> Self {
        Self { parent: "/", weight: 100, max: IoMax::default() }
    }
}

/// A group of a queue, from [`Service::add_group`]. Dropping it removes the group: I/Os that still bear its number count
/// for the group above. Where other groups are below it, it stays.
///
/// It keeps the queue alive.
pub struct GroupGuard<P: Payload> {
    queue: Queue<P>,
    clock: Clock,
    id: GroupId,
    name: String,
}

impl<P: Payload> GroupGuard<P> {
    /// The number that its I/Os bear ([`Io::group`](blkmq_engine::Io::group)).
    #[must_use]
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives it another weight, 1 to 1000.
    ///
    /// # Errors
    /// If it is no weight, the group was removed by others, or the queue is poisoned.
    pub fn set_weight(&self, weight: u32) -> Result<(), EditError<GroupError>> {
        self.edit(|plan| plan.groups.set_weight(&self.name, weight))
    }

    /// Gives it other limits.
    ///
    /// # Errors
    /// If the group was removed by others, or the queue is poisoned.
    pub fn set_max(&self, max: IoMax) -> Result<(), EditError<GroupError>> {
        self.edit(|plan| plan.groups.set_max(&self.name, max))
    }

    /// Changes the plan if the group of this name is still this one.
    fn edit(
        &self,
        change: impl FnOnce(&mut Plan) -> Result<(), GroupError>,
    ) -> Result<(), EditError<GroupError>> {
        let edit = |plan: &mut Plan| {
            if plan.groups.find(&self.name)? == self.id {
                return change(plan);
            }
            // Another one of its name.
            Err(GroupError::Gone(self.name.clone()))
        };
        control::edit(&self.queue, self.clock, edit).map(drop)
    }
}

impl<P: Payload> Drop for GroupGuard<P> {
    fn drop(&mut self) {
        // Refused if groups are below it, if others have removed it, or if the queue is poisoned: then it stays as it is.
        let _ = self.edit(|plan| plan.groups.remove(&self.name));
    }
}

impl<P: Payload> fmt::Debug for GroupGuard<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupGuard").field("id", &self.id).field("name", &self.name).finish()
    }
}

impl<P: Payload> Service<P> {
    /// Adds a group called `name` and waits until it counts. What is said about waiting for
    /// [`edit`](Self::edit) holds here and where the guard is dropped.
    ///
    /// # Errors
    /// If the name is taken or impossible, the parent unknown, the weight none, if there are too many groups, or if the
    /// queue is poisoned.
    pub fn add_group(
        &self,
        name: &str,
        options: &GroupOptions<'_>,
    ) -> Result<GroupGuard<P>, EditError<GroupError>> {
        let mut id = GroupId::ROOT;
        self.edit(|plan| {
            id = plan.groups.add(name, options.parent)?;
            plan.groups.set_weight(name, options.weight)?;
            plan.groups.set_max(name, options.max)
        })?;
        let (queue, clock) = (self.queue().clone(), self.clock());
        Ok(GroupGuard { queue, clock, id, name: name.to_owned() })
    }
}
