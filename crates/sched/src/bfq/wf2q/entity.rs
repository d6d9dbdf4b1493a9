//! An entity that competes for service: a queue or a group, with its timestamps.
//!
//! This module does arithmetic on virtual time and knows nothing of trees.

/// No entity.
pub(super) const NIL: u32 = u32::MAX;

/// One sector of service at weight 1 is 2^22 units of virtual time.
const SHIFT: u32 = 22;

/// The duration of `service` sectors at `weight`, in virtual time.
#[inline]
#[must_use]
pub const fn delta(service: u64, weight: u64) -> u64 {
    (service << SHIFT) / weight
}

/// Returns whether `a` is later than `b`. Virtual time wraps, and two times that are compared are less than half of its
/// range apart.
#[inline]
#[must_use]
pub const fn after(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) as i64) > 0
}

/// The later of the two.
#[inline]
pub(super) const fn later(a: u64, b: u64) -> u64 {
    if after(a, b) { a } else { b }
}

/// A class of service: a higher class is served as long as it has requests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// Before all others.
    Realtime = 0,
    /// The default; groups always have this class.
    BestEffort = 1,
    /// Served when no other class has requests, and once in a while.
    Idle = 2,
}

impl Class {
    /// Highest first.
    pub const ALL: [Self; 3] = [Self::Realtime, Self::BestEffort, Self::Idle];
}

/// The tree that an entity is in. An entity in service is in none, unless it is a group with further entities to
/// serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Off,
    Active,
    Idle,
}

/// A queue or a group. The fields that trees read come first, in one cache line.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Entity {
    pub(super) start: u64,
    pub(super) finish: u64,
    /// The earliest start in the subtree of this entity, if it is in the active tree.
    pub(super) min_start: u64,
    /// The order between equal finishing times: the entity that entered a tree first comes first.
    pub(super) seq: u64,
    pub(super) left: u32,
    pub(super) right: u32,
    /// The priority in the treap: an entity with a larger value is above.
    pub(super) height: u32,
    /// The weight in force.
    pub(super) weight: u32,
    /// The sectors that it may be served in its next or current slot.
    pub(super) budget: u64,
    /// The service of this slot that is not part of its timestamps yet.
    pub(super) service: u64,
    /// The weight that it will have from the next time it enters the active tree.
    pub(super) wanted: u32,
    /// The factor by which the weight is raised; `weight` contains it.
    pub(super) raised: u32,
    /// The level on which it competes.
    pub(super) level: u32,
    pub(super) class: Class,
    pub(super) wanted_class: Class,
    pub(super) place: Place,
    /// Whether the weight of the entity is part of the sum of its service tree. True if the entity is active, idle or
    /// in service.
    pub(super) tracked: bool,
}

const _: () = assert!(core::mem::offset_of!(Entity, service) == 56);

impl Entity {
    pub(super) const NEW: Self = Self {
        start: 0,
        finish: 0,
        min_start: 0,
        seq: 0,
        left: NIL,
        right: NIL,
        height: 0,
        weight: 1,
        budget: 0,
        service: 0,
        wanted: 1,
        raised: 1,
        level: 0,
        class: Class::BestEffort,
        wanted_class: Class::BestEffort,
        place: Place::Off,
        tracked: false,
    };

    /// The time at which it has been served `service` sectors since it started.
    #[inline]
    pub(super) fn finish_after(&self, service: u64) -> u64 {
        self.start.wrapping_add(delta(service, self.weight.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_time_wraps() {
        assert!(after(5, u64::MAX - 5) && !after(u64::MAX - 5, 5) && !after(7, 7));
        assert_eq!(later(3, u64::MAX), 3);
    }

    #[test]
    fn a_heavier_entity_takes_less_virtual_time() {
        assert_eq!(delta(8, 8), 8 * delta(8, 64));
        assert_eq!(delta(1, 1), 1 << 22);
    }
}
