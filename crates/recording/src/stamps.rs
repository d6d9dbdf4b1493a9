//! The resolution and the order of the stamps of a trace.

/// Facts about the stamps of the records so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamps {
    /// The largest power of ten, in nanoseconds and up to a second, that divides all arrivals.
    pub unit: u64,
    /// The number of records with the same arrival as the previous record.
    pub same: u64,
    /// The number of records that arrived earlier than the previous record.
    pub unordered: u64,
    /// The maximum by which a record precedes the latest arrival so far, in nanoseconds.
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

    /// Returns whether the stamps are too coarse to give the order and the times of I/Os within a unit: they are whole
    /// milliseconds or coarser, and most equal the previous one.
    #[must_use]
    pub fn is_coarse(&self, records: u64) -> bool {
        self.unit >= 1_000_000 && self.same * 2 > records
    }
}
