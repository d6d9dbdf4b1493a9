//! The write buffer: slots of one unit each, filled by the host and emptied by the dies in FIFO order.
//!
//! A write is acknowledged when it is in the buffer. Other files decide when a write enters the buffer and when a die
//! takes it. A slot is *queued* until a die takes it, *in flight* until that die has programmed it, and then free
//! again.

/// No slot, or no logical unit.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Queued,
    InFlight,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    state: State,
    logical: u32,
    /// The number of slots queued before this one since the device was made.
    position: u64,
    /// Neighbours in the queue; for a free slot, the next free one.
    next: u32,
    previous: u32,
}

#[derive(Debug)]
pub(super) struct Buffer {
    slots: Vec<Slot>,
    free: u32,
    head: u32,
    tail: u32,
    queued: u32,
    /// The number of slots ever queued.
    pushed: u64,
    /// Slots queued before this position must leave, in incomplete rows if necessary.
    drain_to: u64,
}

impl Buffer {
    pub(super) fn new(slots: u32) -> Self {
        let empty =
            Slot { state: State::Free, logical: NONE, position: 0, next: NONE, previous: NONE };
        let mut buffer = Self {
            slots: vec![empty; slots as usize],
            free: NONE,
            head: NONE,
            tail: NONE,
            queued: 0,
            pushed: 0,
            drain_to: 0,
        };
        (0..slots).rev().for_each(|slot| buffer.put_back(slot));
        buffer
    }

    fn slot(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    /// Frees a slot.
    fn put_back(&mut self, slot: u32) {
        let free = self.free;
        (self.slot(slot).state, self.slot(slot).next) = (State::Free, free);
        self.free = slot;
    }

    /// Takes a slot out of the queue, wherever it is.
    fn leave(&mut self, slot: u32) {
        let Slot { next, previous, .. } = *self.slot(slot);
        match previous {
            NONE => self.head = next,
            before => self.slot(before).next = next,
        }
        match next {
            NONE => self.tail = previous,
            behind => self.slot(behind).previous = previous,
        }
        self.queued -= 1;
    }

    /// The logical unit in a slot that is in flight.
    pub(super) fn logical(&self, slot: u32) -> u32 {
        self.slots[slot as usize].logical
    }

    /// Queues `logical`; `None` if there is no room.
    pub(super) fn push(&mut self, logical: u32) -> Option<u32> {
        let (slot, tail, position) = (self.free, self.tail, self.pushed);
        if slot == NONE {
            return None;
        }
        self.free = self.slot(slot).next;
        let state = State::Queued;
        *self.slot(slot) = Slot { state, logical, position, next: NONE, previous: tail };
        match tail {
            NONE => self.head = slot,
            last => self.slot(last).next = slot,
        }
        self.tail = slot;
        self.queued += 1;
        self.pushed += 1;
        Some(slot)
    }

    /// Returns whether the slot still waits for a die, so that its contents may be replaced.
    pub(super) fn is_queued(&self, slot: u32) -> bool {
        self.slots[slot as usize].state == State::Queued
    }

    /// Discards the contents of `slot`. If it is queued, no die gets it.
    pub(super) fn kill(&mut self, slot: u32) {
        if self.is_queued(slot) {
            self.leave(slot);
            self.put_back(slot);
        }
    }

    /// Returns whether there is a row for a die: a full row, or an incomplete one that must leave.
    pub(super) fn has_row(&self, row_units: u32) -> bool {
        self.queued >= row_units || self.position() < self.drain_to
    }

    /// Takes the next slot out of the queue.
    pub(super) fn pull(&mut self) -> Option<u32> {
        let slot = self.head;
        if slot == NONE {
            return None;
        }
        self.leave(slot);
        self.slot(slot).state = State::InFlight;
        Some(slot)
    }

    /// Frees a slot that was in flight and is programmed.
    pub(super) fn release(&mut self, slot: u32) {
        debug_assert!(self.slot(slot).state == State::InFlight, "slot {slot} is not in flight");
        self.put_back(slot);
    }

    /// Makes every queued slot leave. Returns the position after the last of them.
    pub(super) fn drain(&mut self) -> u64 {
        self.drain_to = self.pushed;
        self.pushed
    }

    /// The position of the first queued slot: all slots before it have left the queue.
    pub(super) fn position(&self) -> u64 {
        match self.head {
            NONE => self.pushed,
            head => self.slots[head as usize].position,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_leave_in_order_and_come_back_free() {
        let mut buffer = Buffer::new(3);
        assert_eq!([7, 8, 9].map(|logical| buffer.push(logical)), [Some(0), Some(1), Some(2)]);
        assert_eq!(buffer.push(10), None, "it is full");
        assert!(buffer.has_row(3) && !buffer.has_row(4));
        let slot = buffer.pull().unwrap();
        assert_eq!((buffer.logical(slot), buffer.is_queued(slot)), (7, false));
        assert_eq!(buffer.push(10), None, "what is in flight takes its room");
        buffer.release(slot);
        assert_eq!(buffer.push(10), Some(0));
        let left = Vec::from_iter(std::iter::from_fn(|| buffer.pull()));
        assert_eq!(left, [1, 2, 0]);
    }

    #[test]
    fn what_is_wanted_no_longer_makes_room_at_once() {
        let mut buffer = Buffer::new(5);
        (0..5).for_each(|logical| _ = buffer.push(logical));
        [0, 2, 4].into_iter().for_each(|slot| buffer.kill(slot));
        assert!(!buffer.has_row(3) && buffer.has_row(2));
        assert_eq!((buffer.push(5), buffer.push(6)), (Some(4), Some(2)));
        let left = Vec::from_iter(std::iter::from_fn(|| buffer.pull()));
        assert_eq!(left, [1, 3, 4, 2]);
        buffer.kill(3);
        assert!(!buffer.is_queued(3), "what is in flight stays there");
        assert_eq!(buffer.push(7), Some(0));
        assert_eq!(buffer.push(8), None);
    }

    #[test]
    fn a_drain_lets_rows_leave_that_are_not_full_up_to_where_it_was_asked_for() {
        let mut buffer = Buffer::new(4);
        _ = buffer.push(1);
        assert_eq!((buffer.drain(), buffer.position()), (1, 0));
        _ = buffer.push(2);
        assert!(buffer.has_row(4));
        _ = buffer.pull();
        assert!(!buffer.has_row(4), "what came later waits for its row");
        assert_eq!(buffer.position(), 1);
        buffer.kill(1);
        assert_eq!(buffer.position(), 2, "nothing waits");
    }
}
