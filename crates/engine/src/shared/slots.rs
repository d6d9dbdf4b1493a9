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
//!
//! # Finished bios
//!
//! Bios of finished requests are sent to their submitter together ([`Finish`]): their tokens are given up, and only
//! indices remain.

use crate::sync::completion_ring::Lines;
use crate::sync::{
    CompletionReceiver, CompletionSender, GlobalCount, Orphans, UnsafeCell, completion_ring,
};
use blkmq_core::{IoError, IoResult, Limits, Op, Owner, Payload, SubmitterId};
use std::num::NonZeroU32;

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

/// The most completions gathered for one submitter, and the most tags returned together.
pub(crate) const BATCH: usize = 32;

/// Up to `N` values in order; `N` is a power of two.
#[derive(Debug)]
pub(crate) struct Few<T, const N: usize> {
    list: [T; N],
    len: usize,
}

impl<T: Copy, const N: usize> Few<T, N> {
    /// An empty list; `filler` fills unused places.
    pub(crate) fn new(filler: T) -> Self {
        const { assert!(N.is_power_of_two()) };
        Self { list: [filler; N], len: 0 }
    }

    /// Adds a value. The caller must have checked that the list [is not full](Self::is_full).
    #[inline]
    pub(crate) fn push(&mut self, value: T) {
        debug_assert!(!self.is_full(), "a list that is full takes nothing");
        // The remainder avoids a bounds check.
        self.list[self.len % N] = value;
        self.len += 1;
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.len == N
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The values, the oldest first.
    #[inline]
    pub(crate) fn values(&self) -> &[T] {
        &self.list[..self.len]
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }
}

/// Finished bios of one submitter, gathered to be sent together.
pub(crate) struct Finish {
    payloads: Few<u64, BATCH>,
    table: NonZeroU32,
}

/// A few finished bios of one submitter, put aside.
pub(crate) struct Aside {
    payloads: Few<u64, ASIDE>,
    table: NonZeroU32,
}

/// The number of finished bios that makes a send worthwhile.
const ASIDE: usize = 4;

impl<P> BioTable<P> {
    /// An empty batch of finished bios.
    pub(crate) fn finish_batch(&self) -> Finish {
        Finish { payloads: Few::new(0), table: self.id }
    }

    /// An empty place for finished bios.
    pub(crate) fn aside(&self) -> Aside {
        Aside { payloads: Few::new(0), table: self.id }
    }
}

impl Finish {
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.payloads.is_full()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.payloads.is_empty()
    }

    /// Returns whether the batch fits into an [`Aside`]. A larger batch is worth a send.
    #[inline]
    pub(crate) fn is_small(&self) -> bool {
        self.payloads.values().len() < ASIDE
    }

    /// Moves a [small](Self::is_small) batch to `aside`, which is empty.
    pub(crate) fn put_aside(&mut self, aside: &mut Aside) {
        assert!(aside.table == self.table && aside.payloads.is_empty(), "a place that is taken");
        self.payloads.values().iter().for_each(|bio| aside.payloads.push(*bio));
        self.payloads.clear();
    }

    /// Moves the bios in `aside` back into an empty batch.
    pub(crate) fn take_up(&mut self, aside: &mut Aside) {
        assert!(aside.table == self.table && self.payloads.is_empty(), "a batch of another one");
        aside.payloads.values().iter().for_each(|bio| self.payloads.push(*bio));
        aside.payloads.clear();
    }

    /// Ends a bio that is not chained to others.
    #[inline]
    pub(crate) fn push(&mut self, bio: Bio, result: IoResult) {
        self.payloads.push(bio.into_payload(self.table, result));
    }

    /// Sends the batch. Returns whether the submitter is parked and must be woken by the caller.
    #[inline]
    pub(crate) fn send(&mut self, to: &BioSender) -> bool {
        assert!(to.table == self.table, "a ring of another queue");
        let wake = to.ring.push(self.payloads.values());
        self.payloads.clear();
        wake
    }
}

impl Aside {
    /// See [`Finish::send`].
    pub(crate) fn send(&mut self, to: &BioSender) -> bool {
        assert!(to.table == self.table, "a ring of another queue");
        let wake = to.ring.push(self.payloads.values());
        self.payloads.clear();
        wake
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    //! Chains, credits, and lost tokens.

    use super::*;

    /// A payload with its own number.
    #[derive(Clone, PartialEq, Eq, Debug)]
    struct Of<T>(T);

    impl<T: Send + 'static> Payload for Of<T> {}

    fn table(submitters: u16, depth: u32) -> (BioTable<Of<&'static str>>, Vec<Credit>) {
        BioTable::new(submitters, depth)
    }

    fn plain() -> Claim {
        Claim { sector: 0, sectors: 8, owner: Owner(0), cookie: 7 }
    }

    fn claim(table: &BioTable<Of<&'static str>>, credit: &mut Credit, name: &'static str) -> Bio {
        table.claim(credit, plain(), Of(name)).expect("there is credit")
    }

    #[test]
    fn a_chain_keeps_its_order_and_comes_apart_again() {
        let (table, mut credits) = table(2, 2);
        let [one, two] = &mut credits[..] else { panic!("two submitters") };
        let mut a = claim(&table, one, "a");
        let mut b = claim(&table, one, "b");
        table.append(&mut b, claim(&table, two, "c"));
        table.append(&mut a, b);
        table.append(&mut a, claim(&table, two, "d"));
        let names: Vec<_> = table.iter(&a).map(|bio| bio.payload.0).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);

        let rings: Vec<_> = [&*one, &*two].map(|credit| table.finish_ring(credit)).into();
        let mut finish = table.finish_batch();
        let mut rest = Some(a);
        while let Some(head) = rest {
            let (bio, tail) = table.split_first(head);
            let to = usize::from(table.submitter(&bio).0);
            finish.push(bio, if to == 0 { Ok(()) } else { Err(IoError::IO) });
            assert!(!finish.send(&rings[to].0), "no receiver is parked");
            rest = tail;
        }
        let mut receivers = rings.into_iter().map(|(_, receiver)| receiver);
        for (credit, expected) in [(one, ["a", "b"]), (two, ["c", "d"])] {
            let mut receiver = receivers.next().expect("two rings");
            assert_eq!(credit.left(), 0);
            let got: Vec<_> = receiver.finished(&table, credit).collect();
            assert_eq!(got.iter().map(|bio| bio.payload.0).collect::<Vec<_>>(), expected);
            assert_eq!(credit.left(), 2);
            let failed = expected[0] == "c";
            assert!(got.iter().all(|bio| bio.cookie == 7 && bio.result.is_err() == failed));
            assert!(got.iter().all(|bio| !bio.part));
        }
    }

    #[test]
    fn a_part_is_known_by_its_place_and_the_next_bio_of_the_cell_is_none() {
        let (table, mut credits) = table(2, 4);
        let credit = &mut credits[1];
        let (sender, mut receiver) = table.finish_ring(credit);
        let mut finish = table.finish_batch();
        let whole = claim(&table, credit, "whole");
        let mut part = claim(&table, credit, "part");
        assert_eq!(table.mark_part(&mut part), 1, "the second cell of its submitter");
        finish.push(part, Ok(()));
        assert!(!finish.send(&sender));
        assert_eq!(receiver.peek_part(&table), Some(1));
        let popped = receiver.finished(&table, credit).next().expect("it is finished");
        assert_eq!((popped.payload, popped.part), (Of("part"), true));
        assert_eq!(table.place(popped.cell), 1);
        let again = claim(&table, credit, "again");
        for bio in [again, whole] {
            assert_eq!(receiver.peek_part(&table), None);
            finish.push(bio, Ok(()));
            assert!(!finish.send(&sender));
            assert_eq!(receiver.peek_part(&table), None);
            assert!(!receiver.finished(&table, credit).next().expect("it is finished").part);
        }
    }

    #[test]
    fn without_credit_the_payload_comes_back() {
        let (table, mut credits) = table(1, 1);
        let _bio = claim(&table, &mut credits[0], "a");
        let refused = table.claim(&mut credits[0], plain(), Of("b"));
        assert_eq!(refused.expect_err("one is out"), Of("b"));
    }

    #[test]
    #[should_panic(expected = "a bio token of another queue")]
    fn a_token_opens_no_cell_of_another_table() {
        let (one, mut credits) = table(1, 1);
        let (other, _) = table(1, 1);
        let bio = claim(&one, &mut credits[0], "x");
        let _ = other.iter(&bio).count();
    }

    #[test]
    fn without_a_payload_two_cells_share_a_line() {
        assert_eq!(size_of::<UnsafeCell<Cell<()>>>(), 32);
    }

    #[test]
    fn a_token_that_is_given_up_is_an_orphan_of_its_table_with_its_chain() {
        let (table, mut credits) = table(1, 4);
        let mut head = claim(&table, &mut credits[0], "a");
        table.append(&mut head, claim(&table, &mut credits[0], "b"));
        head.orphan();
        let orphans = table.take_orphans();
        let names: Vec<_> =
            orphans.iter().flat_map(|head| table.iter(head).map(|bio| bio.payload.0)).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(table.take_orphans().is_empty(), "each is taken up once");
    }

    #[test]
    fn payloads_of_tokens_that_are_unaccounted_for_are_leaked_and_no_others() {
        use std::sync::{Arc, OnceLock};
        static LEAKED: OnceLock<Arc<u32>> = OnceLock::new();
        let [ringed, given_up, forgotten] = [1, 2, 3].map(Arc::new);
        let (mut table, mut credits) = BioTable::new(1, 4);
        let (sender, receiver) = table.finish_ring(&credits[0]);
        let mut claim = |payload: &Arc<u32>| {
            let bio = table.claim(&mut credits[0], plain(), Of(Arc::clone(payload)));
            bio.expect("there is credit")
        };
        let (one, two, three) = (claim(&ringed), claim(&given_up), claim(&forgotten));
        assert!(!sender.send_one(one, Ok(())));
        two.orphan();
        let _ = three;
        assert_eq!(table.settle([receiver].into_iter()), 1);
        drop(table);
        assert_eq!([&ringed, &given_up, &forgotten].map(Arc::strong_count), [1, 1, 2]);
        // Leaked on purpose. The static keeps it reachable, so that a leak detector reports only other leaks.
        LEAKED.get_or_init(|| forgotten);
    }

    #[test]
    fn a_run_ends_where_the_owner_changes() {
        let (table, mut credits) = table(1, 8);
        let owned = |credit: &mut Credit, owner| {
            let claim = Claim { owner: Owner(owner), ..plain() };
            table.claim(credit, claim, Of("x")).expect("there is credit")
        };
        let mut head = owned(&mut credits[0], 1);
        for owner in [1, 2, 1] {
            let behind = owned(&mut credits[0], owner);
            table.append(&mut head, behind);
        }
        assert_eq!(table.first_run(&head), Run { bios: 2, sectors: 16 });
        let (front, rest) = table.split_at(head, 2);
        let rest = rest.expect("two are left");
        assert_eq!((table.iter(&front).count(), table.iter(&rest).count()), (2, 2));
        assert_eq!(table.first_run(&rest).bios, 1);
        let (last, none) = table.split_at(rest, 2);
        assert!(none.is_none() && table.iter(&last).count() == 2);
    }

    #[test]
    fn it_holds_what_it_was_given_until_it_is_cleared() {
        let mut few = Few::<u32, 4>::new(0);
        assert!(few.is_empty() && few.values().is_empty());
        (1..=4).for_each(|n| few.push(n));
        assert!(few.is_full() && few.values() == [1, 2, 3, 4]);
        few.clear();
        few.push(9);
        assert!(!few.is_full() && few.values() == [9]);
    }
}
