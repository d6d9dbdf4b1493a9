//! The record of requests in flight: memory that the front end keeps while this process is killed and restarted.
//!
//! Each queue has a header of 16 bytes (features, version, descriptors, the last answered head, the published index)
//! and 16 bytes for each descriptor: whether it is in flight, the head answered before it, and a number that grows with
//! each request. The next back end finds the requests that were taken and not answered, in their order.
//!
//! # A kill at any instruction
//!
//! A request is recorded before it is carried out, so none is lost. A batch of answers is first linked, then published
//! in the ring, then cleared here, then counted. After a kill in between, the difference between the ring's index and
//! the counted index gives the number of links to clear: an answer that the driver may have seen is never carried out
//! again. A request whose answer the driver has not seen is repeated, which is harmless while the driver waits for it.

use crate::memory::{Mapping, Span};
use crate::message::InflightInfo;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

/// The length of the header of a queue, and of an entry, in bytes.
const HEADER: usize = 16;
const ENTRY: usize = 16;
/// The alignment of the record of a queue, in bytes.
const ALIGN: usize = 64;
/// Offsets in the header.
const VERSION: usize = 8;
const DESCRIPTORS: usize = 10;
const LAST_HEAD: usize = 12;
const PUBLISHED: usize = 14;
/// Offsets in an entry.
const NEXT: usize = 6;
const COUNTER: usize = 8;

/// The reason why a record cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordError {
    /// The record belongs to a ring with another number of descriptors.
    #[error("the record of requests in flight is of a ring of {0} descriptors")]
    Size(u16),
    /// The record does not agree with its ring.
    #[error("the record of requests in flight is damaged")]
    Damaged,
}

/// The memory of the records of all queues.
#[derive(Clone, Debug)]
pub struct Records {
    info: InflightInfo,
    mapping: Arc<Mapping>,
}

/// The length of the record of a queue in bytes.
fn bytes_of(queue_size: u16) -> usize {
    (HEADER + usize::from(queue_size) * ENTRY).next_multiple_of(ALIGN)
}

impl Records {
    /// Creates empty records for `queues` queues. Returns them with the file for the front end to keep.
    ///
    /// # Errors
    /// If the system lacks memory or descriptors.
    pub fn create(queues: u16, queue_size: u16) -> io::Result<(Self, OwnedFd)> {
        let size = (bytes_of(queue_size) * usize::from(queues)) as u64;
        let file = memfd_create(c"blkmq-inflight", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, size)?;
        let info = InflightInfo { size, offset: 0, queues, queue_size };
        Ok((Self { info, mapping: Mapping::new(&file, size)? }, file))
    }

    /// Maps the records in `file`, as described by the front end.
    ///
    /// # Errors
    /// If the file or the described size is too small, or the file cannot be mapped.
    pub fn open(info: InflightInfo, file: &OwnedFd) -> io::Result<Self> {
        let needed = (bytes_of(info.queue_size) * usize::from(info.queues)) as u64;
        let end = info.offset.checked_add(info.size);
        let end = end.filter(|_| info.size >= needed && info.offset.is_multiple_of(ALIGN as u64));
        let end = end.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self { info, mapping: Mapping::new(file, end)? })
    }

    /// The description for the front end.
    #[must_use]
    pub fn info(&self) -> InflightInfo {
        self.info
    }

    /// The record of a queue, or `None` beyond the last queue.
    #[must_use]
    pub fn of(&self, queue: usize) -> Option<Span> {
        let len = bytes_of(self.info.queue_size);
        let at = usize::try_from(self.info.offset).ok()? + queue * len;
        if queue < usize::from(self.info.queues) { self.mapping.span(at, len) } else { None }
    }
}

#[derive(Debug)]
pub(crate) struct Record {
    span: Span,
    /// The number of the next request.
    counter: u64,
    /// Heads that were answered but not published.
    batch: Vec<u16>,
}

impl Record {
    /// Opens the record at `span` of a ring of `size` descriptors whose driver has seen `published` answers. Also
    /// returns the heads in flight, oldest first.
    pub(crate) fn open(
        span: Span,
        size: u16,
        published: u16,
    ) -> Result<(Self, Vec<u16>), RecordError> {
        if span.len() < HEADER + usize::from(size) * ENTRY {
            return Err(RecordError::Size(((span.len() - HEADER) / ENTRY) as u16));
        }
        let mut record = Self { span, counter: 1, batch: Vec::with_capacity(size.into()) };
        if record.field(VERSION) == 0 {
            record.set(DESCRIPTORS, size);
            record.set(PUBLISHED, published);
            record.set(VERSION, 1);
            return Ok((record, Vec::new()));
        }
        if record.field(DESCRIPTORS) != size {
            return Err(RecordError::Size(record.field(DESCRIPTORS)));
        }
        record.clear_published(size, published)?;
        let mut heads: Vec<_> = (0..size).filter(|head| record.is_in_flight(*head)).collect();
        heads.sort_by_key(|head| record.number(*head));
        record.counter = heads.last().map_or(1, |head| record.number(*head).wrapping_add(1));
        Ok((record, heads))
    }

    /// Clears the answers that were published but not counted.
    fn clear_published(&mut self, size: u16, published: u16) -> Result<(), RecordError> {
        let missing = published.wrapping_sub(self.field(PUBLISHED));
        if missing > size {
            return Err(RecordError::Damaged);
        }
        let mut head = self.field(LAST_HEAD);
        for _ in 0..missing {
            if head >= size {
                return Err(RecordError::Damaged);
            }
            self.span.write(entry(head), &[0]);
            head = self.span.load(entry(head) + NEXT, Ordering::Relaxed);
        }
        self.set(PUBLISHED, published);
        Ok(())
    }

    /// Records a request that was taken and has not begun.
    pub(crate) fn begin(&mut self, head: u16) {
        self.span.write(entry(head) + COUNTER, &self.counter.to_le_bytes());
        self.counter = self.counter.wrapping_add(1);
        compiler_fence(Ordering::SeqCst);
        self.span.write(entry(head), &[1]);
        compiler_fence(Ordering::SeqCst);
    }

    /// Records the answer to a request, which the driver cannot see yet.
    pub(crate) fn end(&mut self, head: u16) {
        self.span.store(entry(head) + NEXT, self.field(LAST_HEAD), Ordering::Relaxed);
        self.set(LAST_HEAD, head);
        self.batch.push(head);
    }

    /// Records that the driver can see all answers, `published` in total.
    pub(crate) fn published(&mut self, published: u16) {
        compiler_fence(Ordering::SeqCst);
        for head in self.batch.drain(..) {
            self.span.write(entry(head), &[0]);
        }
        self.set(PUBLISHED, published);
    }

    fn is_in_flight(&self, head: u16) -> bool {
        let mut byte = [0];
        self.span.read(entry(head), &mut byte);
        byte[0] == 1
    }

    fn number(&self, head: u16) -> u64 {
        let mut bytes = [0; 8];
        self.span.read(entry(head) + COUNTER, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn field(&self, at: usize) -> u16 {
        self.span.load(at, Ordering::Relaxed)
    }

    fn set(&self, at: usize, value: u16) {
        compiler_fence(Ordering::SeqCst);
        self.span.store(at, value, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }
}

fn entry(head: u16) -> usize {
    HEADER + usize::from(head) * ENTRY
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(records: &Records, published: u16) -> (Record, Vec<u16>) {
        Record::open(records.of(1).expect("two queues"), 8, published).expect("a record")
    }

    #[test]
    fn requests_in_flight_are_found_in_their_order() {
        let (records, file) = Records::create(2, 8).expect("memory");
        let (mut first, none) = opened(&records, 0);
        assert_eq!(none, []);
        [5, 2, 7].into_iter().for_each(|head| first.begin(head));
        first.end(2);
        first.published(1);
        let again = Records::open(records.info(), &file).expect("the same memory");
        let (mut second, heads) = opened(&again, 1);
        assert_eq!(heads, [5, 7]);
        second.begin(2);
        assert_eq!(opened(&again, 1).1, [5, 7, 2], "a later request has a higher number");
    }

    /// Kills the back end between each two steps of a batch of answers.
    #[test]
    fn an_answer_that_the_driver_has_seen_is_not_carried_out_again() {
        let begun = || {
            let (records, _) = Records::create(2, 8).expect("memory");
            let (mut record, _) = opened(&records, 0);
            [1, 2, 3].into_iter().for_each(|head| record.begin(head));
            [1, 2].into_iter().for_each(|head| record.end(head));
            (records, record)
        };
        let (records, _) = begun();
        assert_eq!(opened(&records, 0).1, [1, 2, 3], "killed before the index was published");
        assert_eq!(opened(&records, 2).1, [3], "killed behind it");
        let (records, record) = begun();
        record.span.write(entry(1), &[0]);
        assert_eq!(opened(&records, 2).1, [3], "killed when one of two was cleared");
        let (records, mut record) = begun();
        record.published(2);
        assert_eq!(opened(&records, 2).1, [3], "killed behind the last step");
    }

    #[test]
    fn a_record_of_another_ring_is_refused() {
        let (records, _) = Records::create(2, 8).expect("memory");
        let span = || records.of(0).expect("a queue");
        Record::open(span(), 4, 0).expect("a smaller ring fits");
        assert_eq!(Record::open(span(), 8, 0).expect_err("of 4"), RecordError::Size(4));
        assert_eq!(Record::open(span(), 4, 9).expect_err("ahead"), RecordError::Damaged);
        assert!(Record::open(span(), 16, 0).is_err(), "it is too short");
        assert!(records.of(2).is_none());
    }

    #[test]
    fn a_description_that_is_too_short_is_refused() {
        let (records, file) = Records::create(2, 8).expect("memory");
        let info = records.info();
        for wrong in [
            InflightInfo { size: 0, ..info },
            InflightInfo { queues: 3, ..info },
            InflightInfo { offset: 64, ..info },
            InflightInfo { offset: u64::MAX, ..info },
        ] {
            assert!(Records::open(wrong, &file).is_err(), "{wrong:?}");
        }
    }
}
