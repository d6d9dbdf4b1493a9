//! How fine the stamps of a trace are, and whether they are in order.

/// Facts about the stamps of the records so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamps {
    /// The coarsest power of ten, in nanoseconds and up to a second, of which all arrivals are multiples.
    pub unit: u64,
    /// Records with the arrival of the one before.
    pub same: u64,
    /// Records before the one ahead of them.
    pub unordered: u64,
    /// The furthest that a record is behind the latest arrival so far, in nanoseconds.
    pub most_back: u64,
    last: i64,
    latest: i64,
    is_first: bool,
}

const SECOND: u64 = 1_000_000_000;

impl Stamps {
    pub(crate) fn new() -> Self {
        let (same, unordered, most_back) = (0, 0, 0);
        Self { unit: SECOND, same, unordered, most_back, last: 0, latest: 0, is_first: true }
    }

    pub(crate) fn add(&mut self, arrival: i64) {
        if !self.is_first {
            self.same += u64::from(arrival == self.last);
            self.unordered += u64::from(arrival < self.last);
        }
        self.is_first = false;
        self.last = arrival;
        self.latest = self.latest.max(arrival);
        self.most_back = self.most_back.max(self.latest.abs_diff(arrival));
        while self.unit > 1 && !arrival.unsigned_abs().is_multiple_of(self.unit) {
            self.unit /= 10;
        }
    }

    /// Returns whether the order and the places of I/Os within a unit are unknown: stamps are whole milliseconds or
    /// coarser, and most of them are equal to the one before.
    #[must_use]
    pub fn is_coarse(&self, records: u64) -> bool {
        self.unit >= 1_000_000 && self.same * 2 > records
    }
}
