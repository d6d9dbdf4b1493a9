//! What competes for service: a queue or a group, with its timestamps.
//!
//! Knows arithmetic on virtual time and nothing of trees.

/// No entity.
pub(super) const NIL: u32 = u32::MAX;

/// Service becomes virtual time in steps of 2^-22 sectors at weight 1.
const SHIFT: u32 = 22;

/// How long `service` sectors take at `weight`, in virtual time.
#[inline]
#[must_use]
pub const fn delta(service: u64, weight: u64) -> u64 {
    (service << SHIFT) / weight
}

/// Is `a` later than `b`? Virtual time wraps, and two times that are compared are less than half of it apart.
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

/// A class of service: a higher one is served as long as it has anything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// Before all others.
    Realtime = 0,
    /// The ordinary one; groups are always of it.
    BestEffort = 1,
    /// When there is nobody else; and once in a while.
    Idle = 2,
}

impl Class {
    /// Highest first.
    pub const ALL: [Self; 3] = [Self::Realtime, Self::BestEffort, Self::Idle];
}

/// Which tree an entity is in. One in service is in none, unless it is a group with others to serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Off,
    Active,
    Idle,
}

/// A queue or a group. What trees look at comes first, in one cache line.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Entity {
    pub(super) start: u64,
    pub(super) finish: u64,
    /// The earliest start in the subtree below this one, if it is in the active tree.
    pub(super) min_start: u64,
    /// Decides between equal finishing times: who was put into a tree first.
    pub(super) seq: u64,
    pub(super) left: u32,
    pub(super) right: u32,
    /// Keeps the tree shallow: who has more of it is above.
    pub(super) height: u32,
    /// In force.
    pub(super) weight: u32,
    /// What it may be served in its next or present slot, in sectors.
    pub(super) budget: u64,
    /// What it has been served in this slot and its timestamps do not know yet.
    pub(super) service: u64,
    /// The weight that it will have from the next time it enters the active tree.
    pub(super) wanted: u32,
    /// By how much the weight is raised; `weight` contains it.
    pub(super) raised: u32,
    /// Where it competes.
    pub(super) level: u32,
    pub(super) class: Class,
    pub(super) wanted_class: Class,
    pub(super) place: Place,
    /// Is its weight part of the sum of its service tree? If it is active, idle or in service.
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
