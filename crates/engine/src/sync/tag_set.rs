//! A set of tags, and the elevators that wait for one.
//!
//! A bitmap hands the tags out. An elevator that gets none registers as a waiter, *tries once more*, and leaves. The
//! thread that returns tags receives the waiters that it has to wake. Waiters are woken in batches, so that a device
//! that completes one request at a time does not wake an elevator for each (`spec/framework.md` section 3.2).
//!
//! # States
//!
//! A waiter has a bit in `waiting`. `freed` counts the tags returned while a waiter was registered, less those
//! already acted on.
//!
//! | waiter's bit | `wait` | retry succeeds, `cancel` | `put` by another thread |
//! |---|---|---|---|
//! | clear | set; *you* try again | - | nothing to do for it |
//! | set | set; *you* try again | clear, true | in its turn: cleared, *you* wake it |
//! | cleared by a `put` | set; *you* try again | clear, false: a wake-up was spent on you | - |
//!
//! # When waiters are woken
//!
//! When `freed` reaches the wake batch, that number of waiters is woken, in rotation. When a `put` leaves fewer tags in
//! use than a wake batch, all waiters are woken, because the batch might not fill again.
//!
//! So no waiter is stranded when frees stop. Of all puts, take the put with the last fence in the order of full
//! fences. It sees every put, so it finds no tag in use, and wakes every waiter that has the fence of its `wait`
//! before it. The waiters behind it find in their retry that every tag is free. (A count of 0 is never missed:
//! `Bitmap::in_use` may be too low, but it counts no number that is free, cleared or being folded.)
//!
//! # Why the orderings are enough
//!
//! `wait` sets the bit, has a full fence, and the caller checks the bitmap. `put` changes the bitmap, has a full fence,
//! and checks the bits. So the caller finds the tag, or `put` finds the waiter. A bit is taken by a read-modify-write,
//! so a waiter is woken once per registration. `wait` releases and the taking acquires: the thread that has to wake a
//! waiter sees everything that this waiter wrote before it registered, even if it registered twice. `freed` and the
//! turn are only counts.
//!
//! Read-modify-writes: those of the bitmap while no waiter is registered; then two more per `put`, and one per word
//! from which waiters are woken.

use super::{
    AtomicU16, AtomicU32, AtomicU64, BitBatch, Bitmap, FairShare, Ordering, fence_after_rmw,
    looks_again,
};
use blkmq_core::{Instant, Tag};
use crossbeam_utils::CachePadded;

const WORD_BITS: u32 = u64::BITS;
const MAX_WAKE_BATCH: u32 = 8;

/// The dimensions of a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TagSetShape {
    /// The number of tags.
    pub(crate) depth: u32,
    /// The smallest share of the tags to which a caller is confined; `depth` if no caller is confined. Without it, a
    /// confined caller could wait for a batch that only other callers' frees can fill.
    pub(crate) min_shallow: u32,
    /// The number of waiters, which are numbered from 0.
    pub(crate) waiters: u16,
    /// The number of users among which the tags are divided; 0 if they are not.
    pub(crate) users: u16,
}

impl TagSetShape {
    /// Undivided tags: every caller may take all of them.
    #[must_use]
    pub(crate) const fn new(depth: u32, waiters: u16) -> Self {
        Self { depth, min_shallow: depth, waiters, users: 0 }
    }
}

/// The driver tags of a hardware queue, or of several hardware queues that share them.
pub(crate) struct TagSet {
    bitmap: Bitmap,
    min_shallow: u32,
    waiting: Box<[CachePadded<AtomicU64>]>,
    wake: CachePadded<Wake>,
    shares: Option<Shares>,
}

/// Written only while a waiter is registered.
struct Wake {
    freed: AtomicU32,
    /// The waiter with which the next wake-up begins.
    next: AtomicU32,
}

struct Shares {
    fair: FairShare,
    /// The user for which each tag was taken. Written and read only by the holder of the tag.
    holders: Box<[AtomicU16]>,
}

/// Tags taken together. Unused ones must go back by [`TagSet::put_rest`] or `put`.
#[must_use = "tags that are not put back are lost"]
#[derive(Debug)]
pub(crate) struct TagBatch(BitBatch);

impl TagBatch {
    /// Takes out one tag.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Tag> {
        self.0.pop().map(Tag)
    }

    #[inline]
    #[must_use]
    pub(crate) fn len(&self) -> u32 {
        self.0.len()
    }

    #[inline]
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Drop for TagBatch {
    #[inline]
    fn drop(&mut self) {
        debug_assert!(self.is_empty() || std::thread::panicking(), "{} tags are lost", self.len());
    }
}

impl TagSet {
    /// A set with all tags free, no waiter registered, and all users idle.
    ///
    /// # Panics
    /// If the depth is 0.
    pub(crate) fn new(shape: &TagSetShape) -> Self {
        let words = u32::from(shape.waiters).div_ceil(WORD_BITS);
        let holders = || (0..shape.depth).map(|_| AtomicU16::new(0)).collect();
        Self {
            bitmap: Bitmap::new(shape.depth),
            min_shallow: shape.min_shallow,
            waiting: (0..words).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
            wake: CachePadded::new(Wake { freed: AtomicU32::new(0), next: AtomicU32::new(0) }),
            shares: (shape.users > 0).then(|| Shares {
                fair: FairShare::new(shape.depth, shape.users),
                holders: holders(),
            }),
        }
    }

    /// The number of tags.
    #[must_use]
    pub(crate) fn depth(&self) -> u32 {
        self.bitmap.depth()
    }

    /// The number of tags in use; see [`Bitmap::in_use`].
    #[must_use]
    pub(crate) fn in_use(&self) -> u32 {
        self.bitmap.in_use()
    }

    /// Takes a tag, regardless of shares. `hint` as in [`Bitmap::get`].
    #[inline]
    pub(crate) fn get(&self, hint: &mut u32) -> Option<Tag> {
        debug_assert!(self.shares.is_none(), "tags that are divided are taken for a user");
        self.bitmap.get(hint).map(Tag)
    }

    /// Takes up to `want` tags, regardless of shares.
    #[inline]
    pub(crate) fn get_batch(&self, hint: &mut u32, want: u32) -> Option<TagBatch> {
        debug_assert!(self.shares.is_none(), "tags that are divided are taken for a user");
        self.bitmap.get_batch(hint, want).map(TagBatch)
    }

    /// Takes up to `want` tags for `user`, which becomes active, within its fair share. Like
    /// [`get_batch`](Self::get_batch) if the tags are not divided. One thread at a time per user: the holder of the
    /// user's run.
    #[inline]
    pub(crate) fn get_batch_for(&self, user: u16, hint: &mut u32, want: u32) -> Option<TagBatch> {
        let Some(Shares { fair, holders }) = &self.shares else {
            return self.get_batch(hint, want);
        };
        fair.activate(user);
        let admitted = fair.admit(user, want);
        let Some(batch) = self.bitmap.get_batch(hint, admitted) else {
            fair.release(user, admitted);
            return None;
        };
        fair.release(user, admitted - batch.len());
        for tag in batch.numbers() {
            holders[tag as usize].store(user, Ordering::Relaxed);
        }
        Some(TagBatch(batch))
    }

    /// How the tags are divided; `None` if they are not.
    #[must_use]
    pub(crate) fn fair_share(&self) -> Option<&FairShare> {
        self.shares.as_ref().map(|shares| &shares.fair)
    }

    /// Counts `user` as idle. The limits of the other users may rise, so all waiters are woken.
    pub(crate) fn deactivate(&self, user: u16, woken: &mut dyn FnMut(u16)) {
        if self.fair_share().is_some_and(|fair| fair.deactivate(user)) {
            fence_after_rmw();
            self.wake_up(u32::MAX, woken);
        }
    }

    /// Occasionally counts users that have become idle ([`FairShare::deactivate_idle`]), and names the waiters to wake.
    pub(crate) fn deactivate_idle(&self, now: Instant, woken: &mut dyn FnMut(u16)) {
        if self.fair_share().is_some_and(|fair| fair.deactivate_idle(now)) {
            fence_after_rmw();
            self.wake_up(u32::MAX, woken);
        }
    }

    /// Returns tags, and names the waiters to wake. One read-modify-write per run of tags of the same word while no
    /// waiter is registered.
    #[inline]
    pub(crate) fn put(&self, tags: &[Tag], woken: &mut dyn FnMut(u16)) {
        if tags.is_empty() {
            return;
        }
        if let [tag] = tags
            && self.shares.is_none()
        {
            self.bitmap.put(tag.0);
        } else {
            self.give_back(tags);
        }
        fence_after_rmw();
        self.after_put(tags.len() as u32, woken);
    }

    #[inline(never)]
    fn give_back(&self, tags: &[Tag]) {
        self.release_shares(tags.iter().map(|tag| tag.0));
        self.bitmap.put_many(tags.iter().map(|tag| tag.0));
    }

    /// Returns the unused tags of a batch, and names the waiters to wake: a waiter may have tried in the meantime.
    #[inline]
    #[cfg(test)]
    pub(crate) fn put_rest(&self, mut batch: TagBatch, woken: &mut dyn FnMut(u16)) {
        let rest = batch.0.take();
        if rest.is_empty() {
            return;
        }
        let n = rest.len();
        self.release_shares(rest.numbers());
        self.bitmap.put_batch(rest);
        fence_after_rmw();
        self.after_put(n, woken);
    }

    /// Registers a waiter for one wake-up. The caller must try again before it relies on that.
    ///
    /// # Panics
    /// If the number is beyond the words of the set.
    pub(crate) fn wait(&self, who: u16) {
        let (word, bit) = self.waiter(who);
        word.fetch_or(bit, Ordering::Release);
        fence_after_rmw();
    }

    /// Withdraws a registration. Returns false if a `put` has consumed it: the wake-up is on its way.
    #[cfg(test)]
    pub(crate) fn cancel(&self, who: u16) -> bool {
        let (word, bit) = self.waiter(who);
        word.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }

    /// The number of tags that must be returned before waiters are woken: few enough that a user confined to a share of
    /// the tags fills a batch alone.
    #[must_use]
    pub(crate) fn wake_batch(&self) -> u32 {
        let users = self.fair_share().map_or(1, |fair| fair.users().max(1));
        let depth = self.depth().div_ceil(users).min(self.min_shallow);
        (depth / 8).clamp(1, MAX_WAKE_BATCH)
    }

    fn waiter(&self, who: u16) -> (&AtomicU64, u64) {
        let who = u32::from(who);
        (&self.waiting[(who / WORD_BITS) as usize], 1 << (who % WORD_BITS))
    }

    #[inline]
    fn release_shares(&self, tags: impl Iterator<Item = u32>) {
        let Some(Shares { fair, holders }) = &self.shares else { return };
        let mut run: Option<(u16, u32)> = None;
        for tag in tags {
            let user = holders[tag as usize].load(Ordering::Relaxed);
            run = match run {
                Some((same, n)) if same == user => Some((user, n + 1)),
                Some((other, n)) => {
                    fair.release(other, n);
                    Some((user, 1))
                }
                None => Some((user, 1)),
            };
        }
        if let Some((user, n)) = run {
            fair.release(user, n);
        }
    }

    /// Must be called after the full fence that follows a change of the bitmap.
    #[inline]
    fn after_put(&self, n: u32, woken: &mut dyn FnMut(u16)) {
        if self.waiting.iter().any(|word| word.load(Ordering::Relaxed) != 0) {
            self.wake_some(n, woken);
        }
    }

    #[inline(never)]
    fn wake_some(&self, n: u32, woken: &mut dyn FnMut(u16)) {
        let batch = self.wake_batch();
        let due = if self.bitmap.in_use_reaches(batch) { self.count(n, batch) } else { u32::MAX };
        if due > 0 {
            self.wake_up(due, woken);
        }
    }

    /// Counts `n` frees. Returns the number of waiters that they wake: whole batches.
    fn count(&self, n: u32, batch: u32) -> u32 {
        let freed = &self.wake.freed;
        let mut seen = freed.load(Ordering::Relaxed);
        loop {
            let (total, rest) = (seen + n, (seen + n) % batch);
            match freed.compare_exchange_weak(seen, rest, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return total - rest,
                Err(now) => seen = now,
            }
        }
    }

    /// Wakes up to `n` waiters, beginning with the next one in turn. Two concurrent callers may begin at the same
    /// waiter; each waiter is still woken once, and the turn moves on.
    fn wake_up(&self, mut n: u32, woken: &mut dyn FnMut(u16)) {
        let words = self.waiting.len() as u32;
        let start = self.wake.next.load(Ordering::Relaxed) % (words * WORD_BITS).max(1);
        let (first, below) = (start / WORD_BITS, (1 << (start % WORD_BITS)) - 1);
        // The first word is visited twice: from the start bit upwards, and at the end up to the start bit.
        for step in 0..=words {
            let word = (first + step) % words.max(1);
            let part = match step {
                0 => !below,
                _ if step == words => below,
                _ => u64::MAX,
            };
            n -= self.wake_in(word, part, n, woken);
            if n == 0 {
                return;
            }
        }
    }

    /// Wakes up to `n` waiters of a part of a word. Returns their number.
    fn wake_in(&self, at: u32, part: u64, n: u32, woken: &mut dyn FnMut(u16)) -> u32 {
        let Some(word) = self.waiting.get(at as usize) else { return 0 };
        let mut rest = word.load(Ordering::Relaxed) & part;
        let all = rest;
        for _ in 0..n.min(all.count_ones()) {
            rest &= rest - 1;
        }
        if all == rest {
            return 0;
        }
        let before = word.fetch_and(!(all ^ rest), Ordering::Acquire);
        let mut claimed = (all ^ rest) & if looks_again() { before } else { u64::MAX };
        let count = claimed.count_ones();
        while claimed != 0 {
            let who = at * WORD_BITS + claimed.trailing_zeros();
            claimed &= claimed - 1;
            self.wake.next.store(who + 1, Ordering::Relaxed);
            // Waiters are numbered in 16 bits.
            woken(who as u16);
        }
        count
    }
}

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
