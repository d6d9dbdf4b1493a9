//! The host's side of a drive: the requests, the page reads of reads, and the write buffer. Tables of fixed size.
//!
//! The number of a request is derived from its hardware queue and driver tag; its token stays with the hardware queue
//! (`mod.rs`).
//!
//! The write buffer has slots of one unit each, filled by the host and emptied by the dies in FIFO order. A write is
//! acknowledged when it is in the buffer. `backend.rs` decides when a write enters the buffer and when a die takes it.
//! A slot is *queued* until a die takes it, *in flight* until that die has programmed it, and then free again.

use super::geometry::UNIT_SECTORS;
use blkmq_core::{HwQueue, Instant, Op, SECTOR_SIZE, Tag};

/// No page read, no slot, or no logical unit.
const NONE: u32 = u32::MAX;

/// A command from a hardware queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Command {
    pub(super) hw: HwQueue,
    pub(super) tag: Tag,
    pub(super) op: Op,
    pub(super) sector: u64,
    pub(super) sectors: u32,
    /// Whether the write must be durable before it completes; set only if the write buffer is volatile.
    pub(super) fua: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) op: Op,
    pub(super) fua: bool,
    pub(super) hw: HwQueue,
    pub(super) tag: Tag,
    pub(super) bytes: u64,
    /// The units still to be handled: for reads and writes every unit that the range touches, for discards and
    /// write-zeroes every unit that it covers completely.
    pub(super) next: u32,
    pub(super) end: u32,
    /// The number of page reads that have not ended.
    pub(super) reading: u32,
    /// The time at which the last data so far has been transferred over the host link.
    pub(super) passed: Instant,
}

impl Request {
    fn new(command: &Command) -> Self {
        let Command { hw, tag, op, sector, sectors, fua } = *command;
        let (unit, end) = (u64::from(UNIT_SECTORS), sector + u64::from(sectors));
        let whole = matches!(op, Op::Discard | Op::WriteZeroes);
        let (first, last) = if whole {
            (sector.div_ceil(unit), end / unit)
        } else {
            (sector / unit, end.div_ceil(unit))
        };
        Self {
            op,
            fua,
            hw,
            tag,
            bytes: u64::from(sectors) * u64::from(SECTOR_SIZE),
            next: first as u32,
            end: last.max(first) as u32,
            reading: 0,
            passed: Instant::ZERO,
        }
    }
}

/// The requests of all hardware queues, by number.
#[derive(Debug)]
pub(super) struct Requests {
    depth: u32,
    all: Vec<Option<Request>>,
}

impl Requests {
    pub(super) fn new(hw_queues: u16, depth: u32) -> Self {
        Self { depth, all: vec![None; usize::from(hw_queues) * depth as usize] }
    }

    /// Adds a command; returns its number.
    pub(super) fn add(&mut self, command: &Command) -> u32 {
        let which = u32::from(command.hw.0) * self.depth + command.tag.0;
        let before = self.all[which as usize].replace(Request::new(command));
        debug_assert!(before.is_none(), "a tag is used for one request at a time");
        which
    }

    pub(super) fn get(&mut self, which: u32) -> &mut Request {
        self.all[which as usize].as_mut().expect("a number is used until its request has ended")
    }

    pub(super) fn end(&mut self, which: u32) -> Request {
        self.all[which as usize].take().expect("a request ends once")
    }
}

/// A read of one row, or a part of it, for one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageRead {
    pub(super) request: u32,
    pub(super) units: u32,
}

/// Page reads that wait for their die or are in progress, by number, with a queue of waiting ones for each die.
#[derive(Debug)]
pub(super) struct PageReads {
    all: Vec<PageRead>,
    next: Vec<u32>,
    free: u32,
    /// By die.
    head: Vec<u32>,
    tail: Vec<u32>,
}

impl PageReads {
    pub(super) fn new(room: u32, dies: u32) -> Self {
        let next = (1..room).chain([NONE]).collect();
        Self {
            all: vec![PageRead { request: 0, units: 0 }; room as usize],
            next,
            free: 0,
            head: vec![NONE; dies as usize],
            tail: vec![NONE; dies as usize],
        }
    }

    /// Queues a page read for `die`. Returns false if there is no room.
    pub(super) fn push(&mut self, die: u32, read: PageRead) -> bool {
        let number = self.free;
        if number == NONE {
            return false;
        }
        self.free = self.next[number as usize];
        (self.all[number as usize], self.next[number as usize]) = (read, NONE);
        match self.tail[die as usize] {
            NONE => self.head[die as usize] = number,
            last => self.next[last as usize] = number,
        }
        self.tail[die as usize] = number;
        true
    }

    /// Returns whether a page read waits for `die`.
    pub(super) fn waits(&self, die: u32) -> bool {
        self.head[die as usize] != NONE
    }

    /// Begins the next page read of `die`, and returns its number.
    ///
    /// # Panics
    /// If none waits.
    pub(super) fn begin(&mut self, die: u32) -> u32 {
        let number = self.head[die as usize];
        assert!(number != NONE, "no read waits for die {die}");
        self.head[die as usize] = self.next[number as usize];
        if self.head[die as usize] == NONE {
            self.tail[die as usize] = NONE;
        }
        number
    }

    pub(super) fn get(&self, number: u32) -> PageRead {
        self.all[number as usize]
    }

    /// Ends a page read and frees its number.
    pub(super) fn end(&mut self, number: u32) -> PageRead {
        self.next[number as usize] = self.free;
        self.free = number;
        self.all[number as usize]
    }
}

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

    fn units(op: Op, sector: u64, sectors: u32) -> (u32, u32) {
        let (hw, tag) = (HwQueue(0), Tag(0));
        let request = Request::new(&Command { hw, tag, op, sector, sectors, fua: false });
        (request.next, request.end)
    }

    #[test]
    fn data_touches_units_and_discards_cover_them() {
        assert_eq!(units(Op::Read, 8, 8), (1, 2));
        assert_eq!(units(Op::Write, 7, 2), (0, 2));
        assert_eq!(units(Op::Discard, 7, 18), (1, 3));
        assert_eq!(units(Op::WriteZeroes, 9, 6), (2, 2), "no whole one");
        assert_eq!(units(Op::Flush, 0, 0), (0, 0));
    }

    #[test]
    fn page_reads_of_a_die_begin_in_order_and_room_comes_back() {
        let mut reads = PageReads::new(3, 2);
        let read = |request| PageRead { request, units: 1 };
        assert!(reads.push(0, read(7)) && reads.push(1, read(8)) && reads.push(0, read(9)));
        assert!(!reads.push(1, read(10)), "there is no room");
        let (first, second) = (reads.begin(0), reads.begin(0));
        assert_eq!((reads.end(first).request, reads.get(second).request), (7, 9));
        assert!(!reads.waits(0) && reads.waits(1));
        assert!(reads.push(0, read(11)) && !reads.push(0, read(12)));
    }

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
