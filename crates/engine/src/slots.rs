//! Bio cells: where an I/O lives from submission to completion, and the tokens that give access to it.
//!
//! Every submitter owns a range of cells. A free cell is an index in its owner's private list. A cell in
//! use is named by exactly one [`Bio`] token; whoever has the token has the cell. Tokens move: from the
//! submitter's plug through staging into the elevator, inside an [`Inflight`] to the device, and through
//! the completion queue back. Nothing here is locked, because ownership is never shared.
//!
//! A request is a chain of bios: the head's token names them all, since each cell owns the next one's.
//!
//! # Why this is sound
//!
//! *Invariant: for every cell there is at most one token, and cells are reached only through tokens.*
//! [`Bio`] is neither `Clone` nor forgeable outside this file; a token carries the number of its table and
//! is checked against it on every access, so it cannot open a cell of another queue. `&Bio` gives `&cell`
//! and `&mut Bio` gives `&mut cell`, and the borrow checker does the rest. A cell's `next` is part of the
//! cell, so holding the head means holding the chain. Moving a token between threads goes through rings
//! whose release and acquire make the cell's contents visible with it.

use crate::sync::UnsafeCell;
use blkmq_core::{HwQueue, Instant, IoMeta, Op, RequestId, SubmitterId, Tag};
use std::mem::ManuallyDrop;

const NIL: u32 = u32::MAX;

/// The right to one cell and, through it, to the bios chained behind.
#[derive(Debug)]
pub(crate) struct Bio {
    index: u32,
    table: u32,
}

/// What is kept of one bio. A head's `meta` covers its whole chain.
#[repr(align(64))]
struct Cell<P> {
    meta: IoMeta,
    cookie: u64,
    /// This bio's own length; `meta.sectors` is the chain's in a head.
    own_sectors: u32,
    next: u32,
    /// Last of the chain; only meaningful in a head.
    tail: u32,
    submitter: SubmitterId,
    payload: Option<P>,
}

/// All bio cells of a queue.
///
/// `P` is whatever lets a device find the bytes. The engine keeps it in place from submission until the
/// bio's completion is taken, and never looks inside.
pub struct BioTable<P> {
    cells: Box<[UnsafeCell<Cell<P>>]>,
    id: u32,
}

// SAFETY: a cell is only reached through its unique token (module invariant), so sharing the table between
// threads amounts to sending cells between them; `P: Send` is all that needs.
unsafe impl<P: Send> Sync for BioTable<P> {}
// SAFETY: as above; the table owns its cells.
unsafe impl<P: Send> Send for BioTable<P> {}

/// One bio as a device sees it.
#[derive(Debug)]
pub struct BioRef<'a, P> {
    /// First sector.
    pub sector: u64,
    /// Length in sectors.
    pub sectors: u32,
    /// Who submitted it.
    pub submitter: SubmitterId,
    /// What the submitter gave it to find its completion by.
    pub cookie: u64,
    /// What the submitter gave it for the device.
    pub payload: &'a P,
}

impl<P> BioTable<P> {
    /// `cells` cells, all free. `id` must differ from that of every other table that tokens could meet.
    pub(crate) fn new(cells: u32, id: u32) -> Self {
        let cell = || Cell {
            meta: IoMeta::new(Op::Read, 0, 0),
            cookie: 0,
            own_sectors: 0,
            next: NIL,
            tail: NIL,
            submitter: SubmitterId(0),
            payload: None,
        };
        Self { cells: (0..cells).map(|_| UnsafeCell::new(cell())).collect(), id }
    }

    fn index(&self, bio: &Bio) -> usize {
        assert_eq!(bio.table, self.id, "a bio token of another queue");
        bio.index as usize
    }

    fn with<R>(&self, bio: &Bio, f: impl FnOnce(&Cell<P>) -> R) -> R {
        let index = self.index(bio);
        // SAFETY: `&Bio` is a shared borrow of the cell's only token, so nobody has `&mut` to the cell.
        self.cells[index].with(|cell| f(unsafe { &*cell }))
    }

    fn with_mut<R>(&self, bio: &mut Bio, f: impl FnOnce(&mut Cell<P>) -> R) -> R {
        let index = self.index(bio);
        // SAFETY: `&mut Bio` is an exclusive borrow of the cell's only token.
        self.cells[index].with_mut(|cell| f(unsafe { &mut *cell }))
    }

    /// Makes the token of a free cell.
    ///
    /// # Safety
    /// Cell `index` must be free: no token for it may exist, neither as a [`Bio`] nor in a chain.
    pub(crate) unsafe fn claim(
        &self,
        index: u32,
        submitter: SubmitterId,
        meta: IoMeta,
        cookie: u64,
        payload: P,
    ) -> Bio {
        let mut bio = Bio { index, table: self.id };
        self.with_mut(&mut bio, |cell| {
            *cell = Cell {
                meta,
                cookie,
                own_sectors: meta.sectors,
                next: NIL,
                tail: index,
                submitter,
                payload: Some(payload),
            };
        });
        bio
    }
}
