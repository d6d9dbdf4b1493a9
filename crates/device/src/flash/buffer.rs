//! The write buffer: slots of one unit each, filled by the host and emptied by the dies, first in, first out.
//!
//! A write is acknowledged when it is in here; how fast it gets here and when a die takes it is decided elsewhere. A
//! slot is *queued* until a die takes it, *in flight* until that die has programmed it, and free again then.

/// No slot, and no logical unit.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Queued,
    /// Queued, but its contents are wanted no longer.
    Dead,
    InFlight,
}

#[derive(Debug)]
pub(super) struct Buffer {
    logical: Vec<u32>,
    state: Vec<State>,
    /// Behind it in the queue, or in the list of free ones.
    next: Vec<u32>,
    free: u32,
    head: u32,
    tail: u32,
    /// Queued and not dead.
    live: u32,
    /// Slots ever queued, and ever taken out of the queue: where the tail and the head of it are.
    pushed: u64,
    pulled: u64,
    /// Whatever was queued before this is to leave, if need be in rows that are not full.
    drain_to: u64,
}

impl Buffer {
    pub(super) fn new(slots: u32) -> Self {
        let mut buffer = Self {
            logical: vec![NONE; slots as usize],
            state: vec![State::Free; slots as usize],
            next: vec![NONE; slots as usize],
            free: NONE,
            head: NONE,
            tail: NONE,
            live: 0,
            pushed: 0,
            pulled: 0,
            drain_to: 0,
        };
        (0..slots).rev().for_each(|slot| buffer.link_free(slot));
        buffer
    }

    fn link_free(&mut self, slot: u32) {
        self.state[slot as usize] = State::Free;
        self.next[slot as usize] = self.free;
        self.free = slot;
    }

    /// The logical unit in a slot that is in flight.
    pub(super) fn logical(&self, slot: u32) -> u32 {
        self.logical[slot as usize]
    }

    /// Queues `logical`; `None` if there is no room.
    pub(super) fn push(&mut self, logical: u32) -> Option<u32> {
        let slot = self.free;
        if slot == NONE {
            return None;
        }
        self.free = self.next[slot as usize];
        (self.logical[slot as usize], self.next[slot as usize]) = (logical, NONE);
        self.state[slot as usize] = State::Queued;
        match self.tail {
            NONE => self.head = slot,
            last => self.next[last as usize] = slot,
        }
        self.tail = slot;
        self.live += 1;
        self.pushed += 1;
        Some(slot)
    }

    /// Is the slot still waiting for a die, so that its contents may be replaced?
    pub(super) fn is_queued(&self, slot: u32) -> bool {
        self.state[slot as usize] == State::Queued
    }

    /// The contents of `slot` are wanted no longer. If it is queued, no die will get it.
    pub(super) fn kill(&mut self, slot: u32) {
        if self.is_queued(slot) {
            self.state[slot as usize] = State::Dead;
            self.live -= 1;
        }
    }

    /// Is there a row for a die: a full one, or one that is to leave all the same?
    pub(super) fn has_row(&self, row_units: u32) -> bool {
        self.live >= row_units || (self.live > 0 && self.pulled < self.drain_to)
    }

    /// Takes the next slot out of the queue.
    pub(super) fn pull(&mut self) -> Option<u32> {
        while self.head != NONE {
            let slot = self.head;
            self.head = self.next[slot as usize];
            if self.head == NONE {
                self.tail = NONE;
            }
            self.pulled += 1;
            if self.state[slot as usize] == State::Dead {
                self.link_free(slot);
                continue;
            }
            self.live -= 1;
            self.state[slot as usize] = State::InFlight;
            return Some(slot);
        }
        None
    }

    /// A slot that was in flight is programmed.
    pub(super) fn release(&mut self, slot: u32) {
        debug_assert!(self.state[slot as usize] == State::InFlight, "slot {slot} is not in flight");
        self.link_free(slot);
    }

    /// Everything queued so far is to leave. Returns the position up to which that is.
    pub(super) fn drain(&mut self) -> u64 {
        self.drain_to = self.pushed;
        self.pushed
    }

    /// The position of the first slot that waits: everything before has been taken by a die.
    pub(super) fn position(&self) -> u64 {
        if self.live == 0 { self.pushed } else { self.pulled }
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
    fn what_is_dead_reaches_no_die_and_still_leaves() {
        let mut buffer = Buffer::new(4);
        (0..4).for_each(|logical| _ = buffer.push(logical));
        [0, 2].into_iter().for_each(|slot| buffer.kill(slot));
        assert!(!buffer.has_row(3) && buffer.has_row(2));
        assert_eq!((buffer.pull(), buffer.pull(), buffer.pull()), (Some(1), Some(3), None));
        assert_eq!((buffer.push(5), buffer.push(6)), (Some(2), Some(0)));
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
