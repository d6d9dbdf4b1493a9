//! [`Memory`]: the bytes of the request in a place.
//!
//! The only `unsafe` code of the crate. It is independent of the protocol: callers copy to and from ranges, or get
//! slices for a system call.

#![allow(unsafe_code)]

use blkmq_buf::IoBuf;
use blkmq_core::{IoError, SECTOR_SIZE};
use blkmq_engine::{BioTable, Inflight};
use std::io::{IoSlice, IoSliceMut};

/// A request's token and the addresses of its bytes.
///
/// *Invariant: `pieces` is empty, or names the bytes of the bios of the token in `rq`.* By the contracts of [`IoBuf`]
/// and [`Inflight`], those bytes are valid, do not move, and are accessed only here until the token leaves.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    rq: Option<Inflight>,
    /// Keeps its capacity, so that a steady load does not allocate.
    pieces: Vec<*mut [u8]>,
}

// SAFETY: the addresses are used only together with the token, which is `Send`, as are its payloads.
unsafe impl Send for Memory {}

impl Memory {
    /// Stores a request without data.
    ///
    /// # Panics
    /// If there is a request already.
    pub(crate) fn hold(&mut self, rq: Inflight) {
        assert!(self.rq.is_none(), "a place holds one request");
        self.pieces.clear();
        self.rq = Some(rq);
    }

    /// Stores a read or write, and collects the addresses of its bytes.
    ///
    /// # Errors
    /// Returns the request if the length of a payload differs from that of its I/O.
    ///
    /// # Panics
    /// If there is a request already.
    pub(crate) fn hold_data<P: IoBuf>(
        &mut self,
        bios: &BioTable<P>,
        rq: Inflight,
    ) -> Result<(), (Inflight, IoError)> {
        assert!(self.rq.is_none(), "a place holds one request");
        self.pieces.clear();
        let mut is_whole = true;
        for bio in rq.bios(bios) {
            let mut bytes = 0;
            for range in bio.payload.ranges() {
                bytes += range.len() as u64;
                self.pieces.push(range);
            }
            is_whole &= bytes == u64::from(bio.sectors) * u64::from(SECTOR_SIZE);
        }
        if !is_whole {
            self.pieces.clear();
            return Err((rq, IoError::INVALID));
        }
        self.rq = Some(rq);
        Ok(())
    }

    /// The request, if there is one.
    pub(crate) fn request(&self) -> Option<&Inflight> {
        self.rq.as_ref()
    }

    /// Takes the request out, and forgets its bytes.
    pub(crate) fn release(&mut self) -> Option<Inflight> {
        self.pieces.clear();
        self.rq.take()
    }

    /// The parts of the pieces from byte `at` on, at most `most` bytes in total.
    fn parts(&self, mut at: usize, mut most: usize) -> impl Iterator<Item = *mut [u8]> {
        debug_assert!(self.rq.is_some() || self.pieces.is_empty(), "addresses have their token");
        self.pieces.iter().filter_map(move |piece| {
            let skipped = at.min(piece.len());
            at -= skipped;
            let len = (piece.len() - skipped).min(most);
            most -= len;
            let start = piece.cast::<u8>().wrapping_add(skipped);
            (len > 0).then(|| std::ptr::slice_from_raw_parts_mut(start, len))
        })
    }

    /// Fills `out` with slices of the bytes from `at` on, at most `most` bytes and as many slices as fit. Returns the
    /// number of slices.
    pub(crate) fn slices<'a>(&'a self, at: usize, most: usize, out: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        for (slot, part) in out.iter_mut().zip(self.parts(at, most)) {
            // SAFETY: by the invariant the bytes are valid, and only shared references to them exist while `self` is
            // shared.
            *slot = IoSlice::new(unsafe { &*part });
            count += 1;
        }
        count
    }

    /// Like [`slices`](Self::slices), with mutable slices.
    pub(crate) fn slices_mut<'a>(
        &'a mut self,
        at: usize,
        most: usize,
        out: &mut [IoSliceMut<'a>],
    ) -> usize {
        let mut count = 0;
        for (slot, part) in out.iter_mut().zip(self.parts(at, most)) {
            // SAFETY: by the invariant the bytes are valid and accessed only through `self`, which is borrowed
            // exclusively while the slices live; pieces and their parts do not overlap.
            *slot = IoSliceMut::new(unsafe { &mut *part });
            count += 1;
        }
        count
    }

    /// Copies `bytes` to the bytes from `at` on, ignoring those beyond the end.
    pub(crate) fn fill(&mut self, at: usize, mut bytes: &[u8]) {
        for part in self.parts(at, bytes.len()) {
            let (now, rest) = bytes.split_at(part.len());
            // SAFETY: as in `slices_mut`.
            unsafe { &mut *part }.copy_from_slice(now);
            bytes = rest;
        }
    }

    /// Zeroes `len` bytes from `at` on.
    pub(crate) fn zero(&mut self, at: usize, len: usize) {
        for part in self.parts(at, len) {
            // SAFETY: as in `slices_mut`.
            unsafe { &mut *part }.fill(0);
        }
    }
}
