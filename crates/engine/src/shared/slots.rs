//! Bio cells, which hold I/Os from submission to completion, and the tokens that give access to them.
//!
//! Every submitter owns a range of cells. A free cell is an index in its owner's private list. A cell in use is named
//! by exactly one [`Bio`] token, and the holder of the token holds the cell. Tokens move: from the submitter's plug
//! through staging into the elevator, inside an [`Inflight`](crate::Inflight) to the device, and through the completion
//! ring back. No cell is locked, because ownership is never shared.
//!
//! A request is a chain of bios in ascending order. Each cell owns the next one, so the head's token stands for all.
//!
//! # Why this is sound
//!
//! *Invariant: for every cell there is at most one token or one link, and cells are reached only through them.*
//! [`Bio`] is neither `Clone` nor forgeable outside this module; a token carries the number of its table, unique in the
//! process, and is checked against it on every access, so it cannot open a cell of another queue. `&Bio` gives shared
//! and `&mut Bio` exclusive access, and the borrow checker does the rest. A cell's `next` is part of the cell, so
//! holding the head means holding the chain. A token moves between threads only through rings; their release and
//! acquire make the cell's contents visible with it.
//!
//! The index of a free cell is in its submitter's [`Credit`], and nowhere else. Claiming the cell removes the index and
//! makes the token. A completion ring carries the index of a token that was given up; taking the index from there
//! returns it to the credit. Both ends of those rings are wrapped here, so that no other number gets into them.
//!
//! # Lost tokens
//!
//! Devices are safe code, and own tokens. A device may forget a token, or keep it beyond the end of the queue, and the
//! kernel may still write into its payload. So the table does not trust devices to return tokens. An
//! [`Inflight`](crate::Inflight) that is dropped, by a device or by a stack that unwinds, leaves its bios with
//! [`ORPHANS`]: its holder loses access to the payload, and a holder that shares the payload with the kernel does not
//! drop the token before the kernel is done (`blkmq-uring` waits for that). Tokens that the engine itself gives up go
//! there too. At the end of a queue [`BioTable::settle`] checks every payload that is still in its cell. If its token
//! was returned, or is among the orphans, the payload is dropped. Otherwise the token is unaccounted for, and the
//! payload is leaked and counted.

use crate::sync::lines::Lines;
use crate::sync::{
    CompletionReceiver, CompletionSender, GlobalCount, Orphans, UnsafeCell, completion_ring,
};
use blkmq_core::{IoError, IoResult, Limits, Op, Owner, Payload, SubmitterId};
use std::num::NonZeroU32;

mod finish;
pub(crate) use finish::{Aside, BATCH, Few, Finish};

/// No cell; the value below the bit [`PART`].
const NIL: u32 = PART - 1;
/// In a link: the cell holds a part of a divided I/O. Its submitter knows the I/O.
const PART: u32 = 1 << 31;
/// Replaces the number of a token that was taken; no cell has this number.
const TAKEN: u32 = u32::MAX;
/// Log2 of a number of cells that fills whole cache lines, if a cell is a multiple of 16 bytes.
const LINES: u32 = 2;

/// Tokens of all tables that were given up without a result.
static ORPHANS: Orphans = Orphans::new();

/// The right to one cell and, through it, to the bios chained behind.
#[derive(Debug)]
pub(crate) struct Bio {
    index: u32,
    table: NonZeroU32,
}

impl Bio {
    /// Moves the token out of its place, which is empty afterwards.
    ///
    /// # Panics
    /// If the place is empty.
    #[inline]
    pub(crate) fn take(&mut self) -> Self {
        assert!(!self.is_taken(), "a token is taken once");
        let index = std::mem::replace(&mut self.index, TAKEN);
        Self { index, table: self.table }
    }

    /// Returns whether the place is empty.
    #[inline]
    pub(crate) fn is_taken(&self) -> bool {
        self.index == TAKEN
    }

    /// Gives the token up without a result, for the thread that ends the rest of the queue. Not done by `Drop`, which
    /// would make the hot path check whether there is a token to drop.
    #[cold]
    #[inline(never)]
    #[allow(clippy::needless_pass_by_value, reason = "the token is given up")]
    pub(crate) fn orphan(self) {
        ORPHANS.leave(self.table, self.index);
    }
}

/// A bio as it was submitted, without its payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) sector: u64,
    pub(crate) sectors: u32,
    pub(crate) owner: Owner,
    pub(crate) cookie: u64,
}

/// The contents of a cell: one bio.
struct Cell<P> {
    sector: u64,
    cookie: u64,
    sectors: u32,
    owner: Owner,
    /// The next cell of the chain or [`NIL`], combined with [`PART`].
    link: u32,
    /// `None` in a free cell.
    held: Option<Held<P>>,
}

/// The fields of a cell in use. One of them has an unused value that marks a free cell, so no extra byte is needed.
struct Held<P> {
    /// The number of the chain's last cell plus one; kept up to date only in a head.
    behind_tail: NonZeroU32,
    payload: P,
}

/// See [`Held::behind_tail`].
#[inline]
fn behind(tail: u32) -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(tail)
}

impl<P> Cell<P> {
    #[inline]
    fn next(&self) -> u32 {
        self.link & !PART
    }

    /// Sets the next cell; returns the old one.
    #[inline]
    fn set_next(&mut self, next: u32) -> u32 {
        let old = self.next();
        self.link = self.link & PART | next;
        old
    }

    #[inline]
    fn is_part(&self) -> bool {
        self.link & PART != 0
    }

    #[inline]
    fn behind_tail(&mut self) -> &mut NonZeroU32 {
        &mut self.held.as_mut().expect("a bio has its payload").behind_tail
    }
}

/// All bio cells of a queue.
///
/// A device finds the bytes through the payload `P`. The engine keeps it in place from submission until the bio's
/// completion is taken, and never looks inside.
pub struct BioTable<P> {
    cells: Lines<UnsafeCell<Cell<P>>>,
    /// Log2 of the cells per submitter, so that a token names its submitter without access to the cell. Whole cache
    /// lines, so that two submitters share none.
    shift: u32,
    id: NonZeroU32,
    segments: CountSegments<P>,
}

/// [`Limits::segments_of`], as a pointer, because the code behind the push is independent of the payload's type.
type CountSegments<P> = fn(&Limits, Op, u32, &P) -> u64;

// SAFETY: a cell is only reached through its unique token (module invariant), so sharing the table between threads
// amounts to sending cells between them, which needs only `P: Send`. Two threads can read one cell through two `&Bio`
// only if they share the token itself. Devices have tokens inside an `Inflight`, which is not `Sync`, and nothing in
// the engine shares one; a `BioRef` is `Send` only if `P` is `Sync`.
unsafe impl<P: Send> Sync for BioTable<P> {}

/// One bio as a device sees it.
#[derive(Debug)]
pub struct BioRef<'a, P> {
    /// First sector.
    pub sector: u64,
    /// Length in sectors.
    pub sectors: u32,
    /// The submitter.
    pub submitter: SubmitterId,
    /// The owner, as given with the I/O.
    pub owner: Owner,
    /// The cookie given with the I/O. All parts of a divided I/O have the same.
    pub cookie: u64,
    /// The submitter's payload for the device, or the piece of it for this part.
    pub payload: &'a P,
}

/// Leading bios of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) bios: u32,
    pub(crate) sectors: u32,
}

/// A submitter's free cells, which bound the bios that it may still submit.
#[derive(Debug)]
pub(crate) struct Credit {
    /// The first `left` are free cells. Taken from the end, because the cell used last is still in the cache.
    free: Lines<u32>,
    left: u32,
    depth: u32,
    table: NonZeroU32,
}

/// A finished bio, taken out of its cell.
pub(crate) struct Popped<P> {
    pub(crate) cookie: u64,
    pub(crate) result: IoResult,
    pub(crate) payload: P,
    /// The number of the cell.
    pub(crate) cell: u32,
    /// The bio is a part of a divided I/O, and its cell is at the [`place`](BioTable::place) that
    /// [`BioTable::mark_part`] named.
    pub(crate) part: bool,
}

impl Credit {
    /// The maximum number of bios in flight.
    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// The number of bios that may still be submitted.
    pub(crate) fn left(&self) -> u32 {
        self.left
    }

    #[inline]
    fn take(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        Some(*self.free.at(self.left as usize))
    }

    #[inline]
    fn put(&mut self, index: u32) {
        *self.free.at_mut(self.left as usize) = index;
        self.left += 1;
    }
}

/// The path of finished bios back to one submitter, shared by all threads that finish bios.
pub(crate) struct BioSender {
    ring: CompletionSender,
    table: NonZeroU32,
}

/// The submitter's end of that path.
pub(crate) struct BioReceiver {
    ring: CompletionReceiver,
    table: NonZeroU32,
}

fn next_table_id() -> NonZeroU32 {
    static TABLES: GlobalCount = GlobalCount::new(1);
    u32::try_from(TABLES.take_one())
        .ok()
        .and_then(NonZeroU32::new)
        .expect("fewer than 2^32 queues are made in one process")
}

impl<P> BioTable<P> {
    /// Room for `submitters` times `depth` bios, and each submitter's credit; `depth` is rounded up to a
    /// power of two.
    pub(crate) fn new(submitters: u16, depth: u32) -> (Self, Vec<Credit>)
    where
        P: Payload,
    {
        let depth = depth.next_power_of_two();
        let shift = depth.trailing_zeros().max(LINES);
        let cell =
            || Cell { sector: 0, cookie: 0, sectors: 0, owner: Owner(0), link: NIL, held: None };
        let cells = u32::from(submitters) << shift;
        assert!(cells < NIL, "{submitters} submitters with {depth} cells each");
        let id = next_table_id();
        let credit = |submitter: u16| {
            let first = u32::from(submitter) << shift;
            // The lowest cells are used most and stay in the cache.
            let free = Lines::new(depth as usize, |n| first + depth.saturating_sub(1 + n as u32));
            Credit { free, left: depth, depth, table: id }
        };
        let credits = (0..submitters).map(credit).collect();
        let cells = Lines::new(cells as usize, |_| UnsafeCell::new(cell()));
        (Self { cells, shift, id, segments: Limits::segments_of }, credits)
    }

    /// The segments of a bio.
    pub(crate) fn segments(&self, limits: &Limits, op: Op, bio: &BioRef<'_, P>) -> u64 {
        (self.segments)(limits, op, bio.sectors, bio.payload)
    }

    /// The maximum number of bios in the table.
    pub(crate) fn capacity(&self) -> usize {
        self.cells.len()
    }

    /// A ring for the finished bios of the submitter with this credit.
    pub(crate) fn finish_ring(&self, credit: &Credit) -> (BioSender, BioReceiver) {
        let (sender, receiver) = completion_ring(credit.depth);
        (BioSender { ring: sender, table: self.id }, BioReceiver { ring: receiver, table: self.id })
    }

    /// The submitter of a bio.
    #[inline]
    pub(crate) fn submitter(&self, bio: &Bio) -> SubmitterId {
        SubmitterId((bio.index >> self.shift) as u16)
    }

    /// Returns whether `bio`, or the first of its chain, is a whole I/O with this cookie, and not a part of one.
    pub(crate) fn is_io(&self, bio: &Bio, cookie: u64) -> bool {
        self.check(bio);
        // SAFETY: `bio` is borrowed.
        let cell = unsafe { self.cell(bio.index) };
        cell.cookie == cookie && !cell.is_part()
    }

    #[inline]
    fn check(&self, bio: &Bio) {
        assert!(bio.table == self.id, "a bio token of another queue");
    }

    /// Reads a cell of a chain; the caller has borrowed the chain's token.
    ///
    /// # Safety
    /// The caller holds, for as long as the result lives, a shared borrow of the token at the head of the chain to
    /// which cell `index` belongs.
    #[inline]
    unsafe fn cell(&self, index: u32) -> &Cell<P> {
        // SAFETY: while the caller's borrow lasts, no thread has exclusive access to the chain.
        self.cells.at(index as usize).with(|cell| unsafe { &*cell })
    }

    /// Changes a cell of a chain; the caller has borrowed the chain's token exclusively.
    ///
    /// # Safety
    /// The caller holds an exclusive borrow (or the value) of the token at the head of the chain to which cell
    /// `index` belongs, or the cell is free and the caller is about to make its token.
    #[inline]
    unsafe fn cell_mut<R>(&self, index: u32, f: impl FnOnce(&mut Cell<P>) -> R) -> R {
        // SAFETY: because of the caller's exclusive hold on the chain no other thread reaches the cell.
        self.cells.at(index as usize).with_mut(|cell| f(unsafe { &mut *cell }))
    }

    /// Makes a bio of the submitter with this credit. Returns the payload if no credit is left.
    #[inline]
    pub(crate) fn claim(&self, credit: &mut Credit, claim: Claim, payload: P) -> Result<Bio, P> {
        let Claim { sector, sectors, owner, cookie } = claim;
        assert!(credit.table == self.id, "credit of another queue");
        let Some(index) = credit.take() else { return Err(payload) };
        // SAFETY: the index was in the credit, so the cell was free, and the credit no longer has it.
        unsafe {
            self.cell_mut(index, |cell| {
                *cell = Cell {
                    sector,
                    cookie,
                    sectors,
                    owner,
                    link: NIL,
                    held: Some(Held { behind_tail: behind(index), payload }),
                };
            });
        }
        Ok(Bio { index, table: self.id })
    }

    /// Marks a bio as part of a divided I/O. Returns the place of its cell among those of its submitter, below the
    /// credit's depth. The finished bio reports the same place.
    pub(crate) fn mark_part(&self, bio: &mut Bio) -> u32 {
        self.check(bio);
        // SAFETY: the caller holds the bio exclusively.
        unsafe { self.cell_mut(bio.index, |cell| cell.link |= PART) };
        self.place(bio.index)
    }

    /// The place of a cell among those of its submitter.
    pub(crate) fn place(&self, index: u32) -> u32 {
        index & ((1 << self.shift) - 1)
    }

    /// Chains `behind` to the end of `head`'s chain. O(1).
    #[allow(clippy::needless_pass_by_value, reason = "the token is given up: it becomes a link")]
    pub(crate) fn append(&self, head: &mut Bio, behind: Bio) {
        self.check(head);
        self.check(&behind);
        // SAFETY: the caller holds both chains exclusively; `behind` is consumed and becomes a link.
        unsafe {
            let tail = self.cell_mut(behind.index, |cell| *cell.behind_tail());
            let old_tail =
                self.cell_mut(head.index, |cell| std::mem::replace(cell.behind_tail(), tail));
            self.cell_mut(old_tail.get() - 1, |cell| cell.set_next(behind.index));
        }
    }

    /// The leading bios of a chain that have one owner, and how many sectors they have. O(bios of that owner).
    pub(crate) fn first_run(&self, head: &Bio) -> Run {
        let mut bios = self.iter(head).peekable();
        let owner = bios.peek().expect("a chain has a first bio").owner;
        let mut run = Run { bios: 0, sectors: 0 };
        for bio in bios.take_while(|bio| bio.owner == owner) {
            run.bios += 1;
            run.sectors += bio.sectors;
        }
        run
    }

    /// Cuts a chain behind its first `bios` bios, of which there are at least one. O(`bios`).
    pub(crate) fn split_at(&self, head: Bio, bios: u32) -> (Bio, Option<Bio>) {
        let (mut front, mut rest) = self.split_first(head);
        for _ in 1..bios {
            let Some(behind) = rest else { break };
            let (next, others) = self.split_first(behind);
            self.append(&mut front, next);
            rest = others;
        }
        (front, rest)
    }

    /// Takes the orphans of this table: tokens that were given up without a result. For a queue that ends or has
    /// failed.
    pub(crate) fn take_orphans(&self) -> Vec<Bio> {
        let bio = |index| Bio { index, table: self.id };
        ORPHANS.take(self.id).into_iter().map(bio).collect()
    }

    /// At the end of a queue, leaks each payload with an unaccounted token, and returns their number. Every other
    /// payload is dropped with the table. O(cells).
    pub(crate) fn settle(&mut self, receivers: impl Iterator<Item = BioReceiver>) -> u64 {
        let mut is_back = vec![false; self.cells.len()];
        for mut receiver in receivers {
            assert!(receiver.table == self.id, "a ring of another queue");
            // Indices in the ring belong to tokens that were given up.
            while let Some(entry) = receiver.ring.pop() {
                is_back[entry as u32 as usize] = true;
            }
        }
        for orphan in ORPHANS.take(self.id) {
            let mut next = orphan;
            while next != NIL {
                is_back[next as usize] = true;
                next = self.cells.at_mut(next as usize).with_mut(|cell| {
                    // SAFETY: `&mut self`, so there is no other access.
                    unsafe { (*cell).next() }
                });
            }
        }
        let mut leaked = 0;
        for (index, is_back) in is_back.into_iter().enumerate() {
            let held = self.cells.at_mut(index).with_mut(|cell| {
                // SAFETY: `&mut self`, as above.
                unsafe { (*cell).held.take_if(|_| !is_back) }
            });
            if let Some(held) = held {
                std::mem::forget(held);
                leaked += 1;
            }
        }
        leaked
    }

    /// Takes the first bio off a chain. O(1).
    pub(crate) fn split_first(&self, head: Bio) -> (Bio, Option<Bio>) {
        self.check(&head);
        // SAFETY: the caller gave up the chain; the cut link becomes a token again, once.
        let rest = unsafe {
            let (next, tail) = self.cell_mut(head.index, |cell| {
                let tail = std::mem::replace(cell.behind_tail(), behind(head.index));
                (cell.set_next(NIL), tail)
            });
            if next != NIL {
                self.cell_mut(next, |cell| *cell.behind_tail() = tail);
            }
            (next != NIL).then_some(Bio { index: next, table: self.id })
        };
        (head, rest)
    }

    /// The bios of a chain in ascending order, with their payloads.
    pub(crate) fn iter<'a>(&'a self, head: &'a Bio) -> impl Iterator<Item = BioRef<'a, P>> + 'a {
        self.check(head);
        let mut next = head.index;
        std::iter::from_fn(move || {
            if next == NIL {
                return None;
            }
            // SAFETY: `head` is borrowed for `'a`, and `next` was reached through its links.
            let cell = unsafe { self.cell(next) };
            let submitter = SubmitterId((next >> self.shift) as u16);
            next = cell.next();
            let Held { payload, .. } = cell.held.as_ref().expect("a bio in flight has its payload");
            Some(BioRef {
                sector: cell.sector,
                sectors: cell.sectors,
                submitter,
                owner: cell.owner,
                cookie: cell.cookie,
                payload,
            })
        })
    }
}

/// Above the cell's index in a payload of the completion ring.
const ERRNO_SHIFT: u32 = 32;

impl Bio {
    /// Gives the token up: its index is sent on, through a ring of the table with this number.
    #[inline]
    fn into_payload(self, table: NonZeroU32, result: IoResult) -> u64 {
        assert!(self.table == table, "a bio token of another queue");
        let errno = result.err().map_or(0, |IoError(errno)| errno);
        u64::from(self.index) | u64::from(errno) << ERRNO_SHIFT
    }
}

impl BioSender {
    /// Ends a bio that is not chained to others and sends it separately. Returns whether the submitter is parked and
    /// must be woken by the caller.
    pub(crate) fn send_one(&self, bio: Bio, result: IoResult) -> bool {
        self.ring.push(&[bio.into_payload(self.table, result)])
    }

    /// See [`CompletionSender::take_parked`].
    pub(crate) fn take_parked(&self) -> bool {
        self.ring.take_parked()
    }
}

impl BioReceiver {
    /// Takes the finished bios. Their cells become part of `credit` again.
    #[inline]
    pub(crate) fn finished<'a, P>(
        &'a mut self,
        table: &'a BioTable<P>,
        credit: &'a mut Credit,
    ) -> FinishedBios<'a, P> {
        assert!(self.table == table.id && credit.table == table.id, "a ring of another queue");
        FinishedBios { ring: &mut self.ring, table, credit }
    }

    /// The place of the oldest finished bio; `None` if there is none or it is not part of a divided I/O.
    pub(crate) fn peek_part<P>(&self, table: &BioTable<P>) -> Option<u32> {
        assert!(self.table == table.id, "a ring of another queue");
        let index = self.ring.peek()? as u32;
        // SAFETY: as for `pop`, which only this caller calls; no thread writes to the cell during this call.
        let part = unsafe { table.cell(index).is_part() };
        part.then(|| table.place(index))
    }

    /// See [`CompletionReceiver::reaches`].
    #[inline]
    pub(crate) fn reaches(&self, n: u32) -> bool {
        self.ring.reaches(n)
    }

    /// See [`CompletionReceiver::prepare_park`].
    pub(crate) fn prepare_park(&mut self) -> bool {
        self.ring.prepare_park()
    }

    /// See [`CompletionReceiver::cancel_park`].
    pub(crate) fn cancel_park(&mut self) {
        self.ring.cancel_park();
    }
}

/// Takes finished bios, the oldest first.
pub(crate) struct FinishedBios<'a, P> {
    ring: &'a mut CompletionReceiver,
    table: &'a BioTable<P>,
    credit: &'a mut Credit,
}

impl<P> Iterator for FinishedBios<'_, P> {
    type Item = Popped<P>;

    #[inline(always)]
    fn next(&mut self) -> Option<Popped<P>> {
        let entry = self.ring.pop()?;
        let index = entry as u32;
        // SAFETY: indices in the ring come from `into_payload` alone, each for a token that was given up, so the cell
        // has no other holder; the ring returns each index once.
        let (cookie, part, payload) = unsafe {
            self.table.cell_mut(index, |cell| {
                let Held { payload, .. } =
                    cell.held.take().expect("a finished bio has its payload");
                (cell.cookie, cell.is_part(), payload)
            })
        };
        self.credit.put(index);
        let result = match (entry >> ERRNO_SHIFT) as u16 {
            0 => Ok(()),
            errno => Err(IoError(errno)),
        };
        Some(Popped { cookie, result, payload, cell: index, part })
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;
