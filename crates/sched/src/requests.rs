//! The slot table: every request in the elevator, by id.
//!
//! Slots are the scheduler tags, `nr_requests` per hardware queue. Policies get `&Requests`; the mutators take
//! `&mut self`, which a policy never gets.

use alloc::boxed::Box;
use alloc::vec::Vec;
use blkmq_core::{IoMeta, Op, RequestId};

/// Metadata of all live requests. Allocates only at creation.
pub struct Requests {
    slots: Box<[Slot]>,
    free: Vec<u32>,
}

struct Slot {
    meta: IoMeta,
    /// The id of the slot's current or next request.
    id: RequestId,
    live: bool,
}

impl Requests {
    /// A table of `slots` free slots.
    ///
    /// # Panics
    /// If `slots` exceeds [`RequestId::MAX_SLOTS`].
    #[must_use]
    pub fn new(slots: u32) -> Self {
        assert!(slots <= RequestId::MAX_SLOTS, "{slots} slots; a request index has 24 bits");
        let empty = |index| Slot {
            meta: IoMeta::new(Op::Read, 0, 0),
            id: RequestId::new(index, 0),
            live: false,
        };
        Self {
            slots: (0..slots).map(empty).collect(),
            // Slots are popped from the end: low indices first, so that a shallow queue stays in few cache lines.
            free: (0..slots).rev().collect(),
        }
    }

    /// The metadata of `id`. O(1).
    ///
    /// # Panics
    /// If `id` is stale: its request has completed, been merged away or been withdrawn.
    #[inline]
    #[must_use]
    pub fn get(&self, id: RequestId) -> &IoMeta {
        let slot = &self.slots[id.index()];
        assert!(slot.live && slot.id == id, "stale request id {id:?}");
        &slot.meta
    }

    /// For the engine: the metadata of `id`, to be changed before the policy is called.
    ///
    /// # Panics
    /// As [`get`](Self::get).
    #[inline]
    pub fn get_mut(&mut self, id: RequestId) -> &mut IoMeta {
        let slot = &mut self.slots[id.index()];
        assert!(slot.live && slot.id == id, "stale request id {id:?}");
        &mut slot.meta
    }

    /// For the engine: takes a slot; `None` if all are in use. O(1).
    #[inline(always)]
    pub fn alloc(&mut self, meta: IoMeta) -> Option<RequestId> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[index as usize];
        slot.meta = meta;
        slot.live = true;
        Some(slot.id)
    }

    /// For the engine: frees a slot; `id` is stale from then on. Returns the last metadata. O(1).
    ///
    /// # Panics
    /// If `id` is stale already.
    #[inline]
    pub fn free(&mut self, id: RequestId) -> &IoMeta {
        let slot = &mut self.slots[id.index()];
        assert!(slot.live && slot.id == id, "double free of {id:?}");
        slot.live = false;
        slot.id = id.next_generation();
        self.free.push(id.index() as u32);
        &slot.meta
    }

    /// For the engine: the requests that have slots, in no particular order. O(slots).
    pub fn live(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.slots.iter().filter(|slot| slot.live).map(|slot| slot.id)
    }

    /// Slots in use.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Slots in all.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_slot_has_another_name() {
        let mut requests = Requests::new(1);
        let a = requests.alloc(IoMeta::new(Op::Read, 8, 8)).expect("one slot is free");
        assert!(requests.alloc(IoMeta::new(Op::Read, 8, 8)).is_none());
        requests.free(a);
        let b = requests.alloc(IoMeta::new(Op::Write, 16, 8)).expect("it was given back");
        assert_eq!(a.index(), b.index());
        assert_ne!(a, b);
        assert!(requests.live().eq([b]));
        assert_eq!(requests.get(b).sector, 16);
    }

    #[test]
    #[should_panic(expected = "stale request id")]
    fn a_stale_id_is_caught() {
        let mut requests = Requests::new(1);
        let a = requests.alloc(IoMeta::new(Op::Read, 8, 8)).expect("one slot is free");
        requests.free(a);
        let _ = requests.get(a);
    }
}
