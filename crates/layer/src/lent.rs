//! [`Lent`] and [`Part`]: the bytes of a request, lent to requests of legs. All `unsafe` code of the crate.
//!
//! # Why this is sound
//!
//! *Invariant: the token of a request stays in its [`Lent`] as long as a [`Part`] of the request exists.* While the
//! token is away from the engine, the bytes exist, stay where they are, and are reached by nothing else ([`IoBuf`],
//! [`Inflight`]). A part and the parts divided off it hold a share. If a leg forgets a part, or its queue leaks one,
//! the share keeps the token, and thereby the bytes, for ever.
//!
//! The parts of a read are disjoint, so that each byte has one writer. The parts of a write may overlap, because they
//! are only read: a device reads the payloads of writes, and [`Payload::read_from`] refuses to write to them.
//!
//! [`Lent`] owns the memory that stands in for a request's bytes, and keeps it like the token. The layer reaches that
//! memory only when no part is left. Memory of the layer itself has one part, and its [`Own`] keeps it in the same way.

#![allow(unsafe_code)]

use blkmq_buf::{AlignedBuf, IoBuf};
use blkmq_core::{IoError, IoResult, Op, Payload, SECTOR_SIZE};
use blkmq_engine::{BioTable, Inflight};
use std::mem;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

/// A request whose bytes are lent to requests of legs.
pub(crate) struct Lent {
    /// `None` only in `drop`.
    rq: Option<Inflight>,
    /// The bytes lent, in order; no range is empty. Empty if the request moves no data.
    ranges: Vec<*mut [u8]>,
    is_read: bool,
    /// The bytes of each part that was lent, and its share, which is the only one again when the part is gone.
    lent: Vec<(Range<usize>, Arc<()>)>,
    /// Memory that is lent in place of the request's.
    stand_in: Option<StandIn>,
}

struct StandIn {
    buf: AlignedBuf,
    /// The bytes of the request itself while a stand-in is lent.
    plain: Vec<*mut [u8]>,
}

// SAFETY: the addresses lead to payloads behind the token, which is `Send` like them; nothing is reached through them
// here.
unsafe impl Send for Lent {}

impl Lent {
    /// Takes a request, and finds its bytes.
    ///
    /// # Errors
    /// Gives the request back if its payloads have some bytes, but not as many as the request.
    pub(crate) fn new<P: IoBuf>(
        bios: &BioTable<P>,
        rq: Inflight,
    ) -> Result<Self, (Inflight, IoError)> {
        let mut ranges = Vec::new();
        let mut bytes = 0;
        if matches!(rq.op(), Op::Read | Op::Write) {
            for bio in rq.bios(bios) {
                for range in bio.payload.ranges().filter(|range| !range.is_empty()) {
                    bytes += range.len() as u64;
                    ranges.push(range);
                }
            }
        }
        if bytes > 0 && bytes != u64::from(rq.sectors()) * u64::from(SECTOR_SIZE) {
            return Err((rq, IoError::INVALID));
        }
        let is_read = rq.op() == Op::Read;
        Ok(Self { rq: Some(rq), ranges, is_read, lent: Vec::new(), stand_in: None })
    }

    /// Lends `len` zeroes in place of the bytes of the request, if it moves any. Must be called before parts are lent.
    ///
    /// # Panics
    /// If there are parts.
    pub(crate) fn stand_in(&mut self, len: usize) {
        assert!(self.lent.is_empty(), "parts are lent already");
        if !self.ranges.is_empty() {
            let buf = AlignedBuf::new(len);
            let plain = mem::replace(&mut self.ranges, buf.ranges().collect());
            self.stand_in = Some(StandIn { buf, plain });
        }
    }

    /// Calls `convert` with the bytes of the request and the bytes of its stand-in, if it has one.
    ///
    /// # Panics
    /// If there are parts.
    pub(crate) fn convert(
        &mut self,
        convert: impl FnOnce(&Part, &mut [u8]) -> IoResult,
    ) -> IoResult {
        // Acquires the writes that the drops of the parts released, as in `take`.
        let is_back = self.lent.iter_mut().all(|(_, share)| Arc::get_mut(share).is_some());
        let Some(StandIn { buf, plain }) = &mut self.stand_in else { return Ok(()) };
        assert!(is_back, "parts are lent");
        // The part does not outlive this call, and the token is here throughout.
        let part = Part { ranges: mem::take(plain), is_read: self.is_read, share: None };
        convert(&part, buf.as_mut_slice())
    }

    /// Lends `len` bytes from byte `at` on; an empty part if the request moves no data.
    ///
    /// # Panics
    /// If the request has fewer bytes, or if it is a read and an earlier part has some of these bytes.
    pub(crate) fn part(&mut self, at: usize, len: usize) -> Part {
        if self.ranges.is_empty() {
            return Part::default();
        }
        let end = at.checked_add(len).expect("a part of a request");
        let all: usize = self.ranges.iter().map(|range| range.len()).sum();
        assert!(end <= all, "bytes {at} to {end} of {all}");
        self.lent.retain_mut(|(_, share)| Arc::get_mut(share).is_none());
        let is_free = self.lent.iter().all(|(other, _)| end <= other.start || other.end <= at);
        assert!(!self.is_read || is_free, "bytes {at} to {end} of a read are lent twice");
        let share = Arc::new(());
        self.lent.push((at..end, Arc::clone(&share)));
        let ranges = cut(&self.ranges, at, len);
        Part { ranges, is_read: self.is_read, share: Some(share) }
    }

    /// Returns the token if no part is left. Otherwise keeps it for ever, and the engine counts its payloads as leaked.
    pub(crate) fn release(mut self) -> Option<Inflight> {
        self.take()
    }

    fn take(&mut self) -> Option<Inflight> {
        let rq = self.rq.take()?;
        // Acquires the writes that the drops of the parts released.
        if self.lent.iter_mut().all(|(_, share)| Arc::get_mut(share).is_some()) {
            return Some(rq);
        }
        mem::forget((rq, self.stand_in.take()));
        None
    }
}

impl Drop for Lent {
    /// Dropping a token tells the engine that its bytes may be freed.
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// Memory of the layer itself, lent to one request of a leg.
pub(crate) struct Own {
    /// `None` only in `drop`.
    buf: Option<AlignedBuf>,
    /// The only share again when the part is gone.
    share: Arc<()>,
}

impl Own {
    /// Lends all of `buf`. The part may be read into if `is_read`, and is empty if `buf` is.
    pub(crate) fn lend(buf: AlignedBuf, is_read: bool) -> (Self, Part) {
        let share = Arc::new(());
        let ranges = Vec::from_iter(buf.ranges().filter(|range| !range.is_empty()));
        let part = Part { ranges, is_read, share: Some(Arc::clone(&share)) };
        (Self { buf: Some(buf), share }, part)
    }

    /// Returns the memory if the part is gone. Otherwise keeps it for ever.
    pub(crate) fn take_back(mut self) -> Option<AlignedBuf> {
        self.take()
    }

    fn take(&mut self) -> Option<AlignedBuf> {
        let buf = self.buf.take()?;
        // Acquires the writes that the drop of the part released.
        if Arc::get_mut(&mut self.share).is_some() {
            return Some(buf);
        }
        mem::forget(buf);
        None
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// The ranges of `len` bytes, from byte `at` of `ranges` on. `ranges` has at least that many.
fn cut(ranges: &[*mut [u8]], mut at: usize, mut len: usize) -> Vec<*mut [u8]> {
    let mut found = Vec::new();
    for range in ranges {
        if len == 0 {
            break;
        }
        let skipped = at.min(range.len());
        at -= skipped;
        let taken = (range.len() - skipped).min(len);
        if taken > 0 {
            let start = range.cast::<u8>().wrapping_add(skipped);
            found.push(ptr::slice_from_raw_parts_mut(start, taken));
            len -= taken;
        }
    }
    found
}

/// The payload of a request to a leg: bytes of the request to the layer, in one or several ranges of memory, or none if
/// the leg's request moves no data. Only the crate makes parts with bytes.
#[derive(Debug, Default)]
pub struct Part {
    ranges: Vec<*mut [u8]>,
    /// The part may be read into.
    is_read: bool,
    /// `None` for a part without bytes.
    share: Option<Arc<()>>,
}

// SAFETY: the bytes of a part are reached through it only, or only read; see the head of this file.
unsafe impl Send for Part {}

impl Payload for Part {
    fn data_len(&self) -> Option<usize> {
        let bytes: usize = self.ranges.iter().map(|range| range.len()).sum();
        (bytes > 0).then_some(bytes)
    }

    fn ranges(&self) -> impl Iterator<Item = *mut [u8]> + Clone {
        self.ranges.iter().copied()
    }

    fn write_to(&self, at: usize, memory: &mut [u8]) -> IoResult {
        let mut rest = memory;
        for range in cut(&self.ranges, at, rest.len()) {
            let (now, behind) = rest.split_at_mut(range.len());
            // SAFETY: the token is away from the engine while this part exists, so the bytes are valid. Nothing writes
            // to them during the copy: the bytes of a write are only read, and the bytes of a read belong to this part
            // alone, which this call borrows.
            unsafe { ptr::copy_nonoverlapping(range.cast(), now.as_mut_ptr(), now.len()) };
            rest = behind;
        }
        if rest.is_empty() { Ok(()) } else { Err(IoError::INVALID) }
    }

    fn read_from(&self, at: usize, memory: &[u8]) -> IoResult {
        if !self.is_read {
            return Err(IoError::INVALID);
        }
        let mut rest = memory;
        for range in cut(&self.ranges, at, rest.len()) {
            let (now, behind) = rest.split_at(range.len());
            // SAFETY: the bytes are valid as above. They are of a read, so no other part has them, and a part is not
            // `Sync`: no other thread reaches them.
            unsafe { ptr::copy_nonoverlapping(now.as_ptr(), range.cast(), now.len()) };
            rest = behind;
        }
        if rest.is_empty() { Ok(()) } else { Err(IoError::INVALID) }
    }

    fn split_off(&mut self, at: usize) -> Option<Self> {
        let all = self.data_len().unwrap_or(0);
        let at = at.min(all);
        let rest = cut(&self.ranges, at, all - at);
        self.ranges = cut(&self.ranges, 0, at);
        Some(Self { ranges: rest, is_read: self.is_read, share: self.share.clone() })
    }

    fn join(&mut self, mut rest: Self) {
        let is_one = match (&self.share, &rest.share) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (own, other) => own.is_none() && other.is_none(),
        };
        assert!(is_one, "parts of one payload");
        self.ranges.append(&mut rest.ranges);
    }
}

// SAFETY: the ranges lie in payloads that promise the same, and the token, which is away from the engine as long as
// this part exists, keeps them in place. Moving a part moves no bytes. The ranges are as long as `data_len` says. They
// do not overlap, because ranges of the payloads do not; the parts of a divided part are disjoint.
unsafe impl IoBuf for Part {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts of bytes that live as long as the test.
    fn part(bytes: &mut [&mut [u8]], is_read: bool) -> Part {
        let ranges = bytes.iter_mut().map(|range| ptr::from_mut::<[u8]>(range)).collect();
        Part { ranges, is_read, share: Some(Arc::new(())) }
    }

    #[test]
    fn a_part_is_its_bytes_however_it_is_divided() {
        let (mut one, mut two) = ([1, 2, 3], [4, 5]);
        let mut whole = part(&mut [&mut one, &mut two], true);
        let mut rest = whole.split_off(2).expect("any part can be divided");
        let last = rest.split_off(1).expect("again");
        assert_eq!(
            [whole.data_len(), rest.data_len(), last.data_len()],
            [Some(2), Some(1), Some(2)]
        );
        let mut copy = [0; 1];
        assert_eq!((rest.write_to(0, &mut copy), copy), (Ok(()), [3]));
        assert_eq!(last.read_from(1, &[9]), Ok(()));
        rest.join(last);
        whole.join(rest);
        let mut all = [0; 5];
        assert_eq!((whole.write_to(0, &mut all), all), (Ok(()), [1, 2, 3, 4, 9]));
        assert_eq!(whole.write_to(1, &mut all), Err(IoError::INVALID), "beyond the end");
        drop(whole);
        assert_eq!(two, [4, 9]);
    }

    #[test]
    fn own_memory_comes_back_when_its_part_is_gone() {
        let (own, mut part) = Own::lend(AlignedBuf::new(8), true);
        let rest = part.split_off(5).expect("any part can be divided");
        assert_eq!((part.read_from(0, &[7; 5]), rest.read_from(0, &[9; 3])), (Ok(()), Ok(())));
        drop((part, rest));
        let mut buf = own.take_back().expect("no part is left");
        assert_eq!(buf.as_mut_slice(), [7, 7, 7, 7, 7, 9, 9, 9]);
        let (own, part) = Own::lend(buf, false);
        let mut copy = [0; 2];
        assert_eq!((part.write_to(4, &mut copy), copy), (Ok(()), [7, 9]));
        assert_eq!(part.read_from(0, &[1]), Err(IoError::INVALID));
        drop(part);
        drop(own);
        let (own, part) = Own::lend(AlignedBuf::empty(), false);
        assert_eq!(part.data_len(), None, "a flush carries no bytes");
        drop(part);
        assert_eq!(own.take_back().map(|buf| buf.len()), Some(0));
    }

    #[test]
    fn what_is_written_is_not_read_into() {
        let mut bytes = [1, 2];
        let part = part(&mut [&mut bytes], false);
        assert_eq!(part.read_from(0, &[9]), Err(IoError::INVALID));
        drop(part);
        assert_eq!(bytes, [1, 2]);
    }
}
