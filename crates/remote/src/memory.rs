//! [`Memory`]: the bytes of the request that a place holds.
//!
//! The only `unsafe` code of the crate. It knows no protocol: callers copy to and from ranges, or get slices for a
//! system call.

#![allow(unsafe_code)]

use blkmq_buf::IoBuf;
use blkmq_core::{IoError, SECTOR_SIZE};
use blkmq_engine::{BioTable, Inflight};
use std::io::{IoSlice, IoSliceMut};

/// A request's token and the addresses of its bytes.
///
/// *Invariant: `pieces` is empty, or names the bytes of the bios of the token in `rq`.* By the contracts of [`IoBuf`]
/// and [`Inflight`], those bytes exist, stay where they are and are reached by nothing else until the token leaves.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    rq: Option<Inflight>,
    /// Keeps its capacity, so that a steady load allocates nothing.
    pieces: Vec<*mut [u8]>,
}

// SAFETY: the addresses are used only together with the token, which is `Send` as the payloads behind it are.
unsafe impl Send for Memory {}

impl Memory {
    /// Takes a request without bytes.
    ///
    /// # Panics
    /// If there is a request already.
    pub(crate) fn hold(&mut self, rq: Inflight) {
        assert!(self.rq.is_none(), "a place holds one request");
        self.pieces.clear();
        self.rq = Some(rq);
    }

    /// Takes a read or write, and finds its bytes.
    ///
    /// # Errors
    /// Gives the request back if a payload is not as long as its I/O.
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

    /// Gives the request away, and forgets its bytes.
    pub(crate) fn release(&mut self) -> Option<Inflight> {
        self.pieces.clear();
        self.rq.take()
    }

    /// The parts of the pieces from byte `at` on, at most `most` bytes in all.
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

    /// Puts slices of the bytes from `at` on into `out`, of at most `most` bytes; returns how many slices there are. As
    /// many bytes as fit the slices of `out`.
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

    /// As [`slices`](Self::slices), to be written to.
    pub(crate) fn slices_mut<'a>(
        &'a mut self,
        at: usize,
        most: usize,
        out: &mut [IoSliceMut<'a>],
    ) -> usize {
        let mut count = 0;
        for (slot, part) in out.iter_mut().zip(self.parts(at, most)) {
            // SAFETY: by the invariant the bytes are valid and reached through `self` only, which is borrowed
            // exclusively for as long as the slices live; pieces do not overlap, nor do their parts.
            *slot = IoSliceMut::new(unsafe { &mut *part });
            count += 1;
        }
        count
    }

    /// Copies `bytes` over the bytes from `at` on; those beyond the end are left out.
    pub(crate) fn fill(&mut self, at: usize, mut bytes: &[u8]) {
        for part in self.parts(at, bytes.len()) {
            let (now, rest) = bytes.split_at(part.len());
            // SAFETY: as in `slices_mut`.
            unsafe { &mut *part }.copy_from_slice(now);
            bytes = rest;
        }
    }

    /// Makes `len` bytes from `at` on zero.
    pub(crate) fn zero(&mut self, at: usize, len: usize) {
        for part in self.parts(at, len) {
            // SAFETY: as in `slices_mut`.
            unsafe { &mut *part }.fill(0);
        }
    }
}
