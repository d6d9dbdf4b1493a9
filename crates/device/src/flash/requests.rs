//! The host's requests, and the page reads of reads. Tables of fixed size.
//!
//! The number of a request is derived from its hardware queue and driver tag; its token stays with the hardware queue
//! (`mod.rs`).

use blkmq_core::{HwQueue, Instant, Op, SECTOR_SIZE, Tag};

use super::geometry::UNIT_SECTORS;

/// No page read.
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
}
