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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use blkmq_core::Rng;
    use std::collections::BTreeSet;

    fn set(depth: u32, waiters: u16) -> TagSet {
        TagSet::new(&TagSetShape::new(depth, waiters))
    }

    fn all(set: &TagSet) -> Vec<Tag> {
        let mut hint = 0;
        std::iter::from_fn(|| set.get(&mut hint)).collect()
    }

    /// Returns tags, and collects the woken waiters.
    fn put(set: &TagSet, tags: &[Tag]) -> Vec<u16> {
        let mut woken = Vec::new();
        set.put(tags, &mut |who| woken.push(who));
        woken
    }

    #[test]
    fn wake_batches() {
        for (depth, min_shallow, batch) in [
            (1, 1, 1),
            (8, 8, 1),
            (16, 16, 2),
            (64, 64, 8),
            (1024, 1024, 8),
            (1024, 24, 3),
            (1024, 2, 1),
        ] {
            let shape = TagSetShape { min_shallow, ..TagSetShape::new(depth, 1) };
            assert_eq!(TagSet::new(&shape).wake_batch(), batch, "{shape:?}");
        }
        let shared = TagSet::new(&TagSetShape { users: 5, ..TagSetShape::new(160, 1) });
        assert_eq!(shared.wake_batch(), 8);
        for user in 0..5 {
            shared.fair_share().expect("it is divided").activate(user);
        }
        assert_eq!(shared.wake_batch(), 4, "160 / 5 / 8");
    }

    #[test]
    fn a_batch_of_frees_wakes_a_batch_of_waiters_in_rotation() {
        let set = set(32, 100);
        assert_eq!(set.wake_batch(), 4);
        let mut tags = all(&set);
        assert_eq!(tags.len(), 32);
        let mut free = |n: usize| put(&set, &tags.split_off(tags.len() - n));
        assert_eq!(free(3), [], "no elevator waits, so nothing is counted");
        for who in [5, 9, 70, 80, 99, 99] {
            set.wait(who);
        }
        assert_eq!(free(3), []);
        assert_eq!(free(1), [5, 9, 70, 80]);
        set.wait(5);
        set.wait(98);
        assert_eq!(free(4), [98, 99, 5], "the turn has moved on");
        assert_eq!(free(4), []);
        set.wait(1);
        assert_eq!(free(9), [1], "two batches, one waiter");
        set.wait(2);
        assert_eq!(free(2), [], "one was left over, so three are counted");
        assert_eq!(free(1), [2]);
        drop(tags);
    }

    #[test]
    fn no_elevator_is_stranded_when_frees_stop() {
        let set = set(64, 20);
        let mut tags = all(&set);
        (0..20).for_each(|who| set.wait(who));
        let last = tags.split_off(57);
        let mut woken = put(&set, &tags[..1]);
        for tag in &tags[1..] {
            // A woken waiter finds that others were faster, and waits again.
            (0..20).for_each(|who| set.wait(who));
            woken.extend(put(&set, &[*tag]));
        }
        (0..20).for_each(|who| set.wait(who));
        assert_eq!(set.in_use(), 7);
        assert_eq!(
            woken.len(),
            7 * 8 + 20,
            "seven batches, and every elevator once less than eight are in use"
        );
        let woken: BTreeSet<u16> = put(&set, &last).into_iter().collect();
        assert!(woken.into_iter().eq(0..20));
        assert_eq!(set.in_use(), 0);
    }

    #[test]
    fn a_cancelled_waiter_is_not_woken() {
        let set = set(1, 2);
        let tags = all(&set);
        set.wait(0);
        set.wait(1);
        assert!(set.cancel(0));
        assert!(!set.cancel(0));
        assert_eq!(put(&set, &tags), [1]);
        assert!(!set.cancel(1), "the wake-up was spent on it");
    }

    #[test]
    fn what_is_left_of_a_batch_wakes_like_a_free() {
        let set = set(4, 1);
        let mut hint = 0;
        let mut batch = set.get_batch(&mut hint, 1).expect("all are free");
        set.wait(0);
        let mut woken = Vec::new();
        set.put_rest(batch, &mut |who| woken.push(who));
        assert_eq!((woken, set.in_use()), (vec![0], 0));
        batch = set.get_batch(&mut hint, 1).expect("all are free");
        let tag = batch.pop().expect("it holds one");
        assert!(batch.is_empty());
        set.put_rest(batch, &mut |_| panic!("nothing was left"));
        assert_eq!(put(&set, &[tag]), []);
    }

    #[test]
    #[should_panic(expected = "tags are lost")]
    #[cfg(debug_assertions)]
    fn losing_tags_is_a_bug() {
        drop(set(4, 1).get_batch(&mut 0, 1));
    }

    #[test]
    fn s16_04_users_hold_their_share_and_no_more() {
        let set = TagSet::new(&TagSetShape { users: 5, ..TagSetShape::new(32, 5) });
        let fair = set.fair_share().expect("it is divided");
        (0..5).for_each(|user| assert!(fair.activate(user)));
        let mut held: Vec<Vec<Tag>> = Vec::new();
        for user in 0..5 {
            let mut tags = Vec::new();
            let mut hint = 0;
            while let Some(mut batch) = set.get_batch_for(user, &mut hint, 3) {
                tags.extend(std::iter::from_fn(|| batch.pop()));
            }
            held.push(tags);
        }
        let lens: Vec<usize> = held.iter().map(Vec::len).collect();
        assert_eq!(lens, [7, 7, 7, 7, 4], "7 each while there are tags");
        set.wait(4);
        assert_eq!(put(&set, &held[0][..2]), [4]);
        let mut batch = set.get_batch_for(4, &mut 0, 9).expect("two are free");
        assert!(set.get_batch_for(1, &mut 0, 1).is_none(), "it has its share");
        held[4].extend(std::iter::from_fn(|| batch.pop()));
        held[0].drain(..2);

        for user in 0..4 {
            set.wait(user);
        }
        let mut woken = Vec::new();
        set.deactivate(0, &mut |who| woken.push(who));
        assert_eq!(woken, [0, 1, 2, 3], "the others' limit has risen");
        set.deactivate(0, &mut |_| panic!("it is idle already"));
        let everything: Vec<Tag> = held.into_iter().flatten().collect();
        put(&set, &everything);
        assert!((0..5).all(|user| fair.held(user) == 0));
        assert_eq!(set.in_use(), 0);
    }

    /// Random users and waiters against a model that knows every holder.
    #[test]
    fn conservation_against_a_naive_set() {
        for seed in 0..if cfg!(miri) { 2 } else { 40 } {
            let mut rng = Rng::new(seed);
            let users = rng.below(4) as u16;
            let depth = 1 + rng.below(100) as u32;
            let set = TagSet::new(&TagSetShape { users, ..TagSetShape::new(depth, 8) });
            let (mut held, mut waiting) = (BTreeSet::new(), BTreeSet::new());
            let mut hint = 0;
            for _ in 0..if cfg!(miri) { 20 } else { 2000 } {
                let user = rng.below(u64::from(users.max(1))) as u16;
                match rng.below(4) {
                    0 | 1 => match set.get_batch_for(user, &mut hint, 1 + rng.below(10) as u32) {
                        Some(mut batch) => {
                            for _ in 0..rng.below(u64::from(batch.len()) + 1) {
                                let tag = batch.pop().expect("no more than there are");
                                assert!(tag.0 < depth && held.insert((tag.0, user)));
                            }
                            set.put_rest(batch, &mut |who| assert!(waiting.remove(&who)));
                        }
                        None => {
                            let who = rng.below(8) as u16;
                            set.wait(who);
                            waiting.insert(who);
                        }
                    },
                    2 => {
                        let back = held.split_off(&(rng.below(u64::from(depth)) as u32, 0));
                        let back: Vec<Tag> = back.into_iter().map(|(tag, _)| Tag(tag)).collect();
                        set.put(&back, &mut |who| assert!(waiting.remove(&who)));
                    }
                    _ => {
                        let who = rng.below(8) as u16;
                        assert_eq!(set.cancel(who), waiting.remove(&who));
                    }
                }
                assert_eq!(set.in_use() as usize, held.len());
                if let Some(fair) = set.fair_share() {
                    for user in 0..users {
                        let of_user = held.iter().filter(|(_, holder)| *holder == user).count();
                        assert_eq!(fair.held(user) as usize, of_user, "seed {seed}");
                    }
                }
            }
            let back: Vec<Tag> = held.into_iter().map(|(tag, _)| Tag(tag)).collect();
            set.put(&back, &mut |who| assert!(waiting.remove(&who)));
            assert!(back.is_empty() || waiting.is_empty(), "seed {seed}: stranded {waiting:?}");
        }
    }

    /// Depth 2, four threads: a thread that gets no tag sleeps until it is woken. A lost wake-up would hang this test.
    #[test]
    fn s16_08_no_lost_wake_up_between_threads() {
        const THREADS: u16 = 4;
        let set = set(2, THREADS);
        let threads = crate::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for who in 0..THREADS {
                let (set, threads) = (&set, &threads);
                scope.spawn(move || {
                    threads.lock().unwrap().push((who, std::thread::current()));
                    while threads.lock().unwrap().len() < usize::from(THREADS) {
                        std::thread::yield_now();
                    }
                    let mut sleepers = threads.lock().unwrap().clone();
                    sleepers.sort_by_key(|(who, _)| *who);
                    let wake = &mut |who: u16| sleepers[usize::from(who)].1.unpark();
                    let mut hint = u32::from(who);
                    for _ in 0..if cfg!(miri) { 10 } else { 20_000 } {
                        let tag = loop {
                            if let Some(tag) = set.get(&mut hint) {
                                break tag;
                            }
                            set.wait(who);
                            if let Some(tag) = set.get(&mut hint) {
                                set.cancel(who);
                                break tag;
                            }
                            std::thread::park();
                        };
                        set.put(&[tag], wake);
                    }
                });
            }
        });
        assert_eq!(set.in_use(), 0);
    }
}

#[cfg(all(test, loom))]
mod model {
    //! A waiter finds a tag or is woken; and when the last tags are returned, every waiter is woken.

    use super::*;
    use crate::sync::fair_share::IDLE;
    use crate::sync::{Arc, fence};
    use loom::thread;

    type Wait = fn(&TagSet, u16);
    type Put = fn(&TagSet, Tag) -> usize;

    fn put(set: &TagSet, tag: Tag) -> usize {
        let mut woken = 0;
        set.put(&[tag], &mut |_| woken += 1);
        woken
    }

    fn put_without_a_fence(set: &TagSet, tag: Tag) -> usize {
        let mut woken = 0;
        set.bitmap.put(tag.0);
        set.after_put(1, &mut |_| woken += 1);
        woken
    }

    fn a_waiter_finds_a_tag_or_is_woken(wait: Wait, put: Put) {
        loom::model(move || {
            let set = Arc::new(TagSet::new(&TagSetShape::new(1, 1)));
            let tag = set.get(&mut 0).expect("it is free");
            let holder = {
                let set = Arc::clone(&set);
                thread::spawn(move || put(&set, tag))
            };
            wait(&set, 0);
            let found = set.get(&mut 0).is_some();
            let woken = holder.join().expect("the holder does not panic") > 0;
            assert!(found || woken, "a waiter sleeps beside a free tag");
        });
    }

    #[test]
    fn loom_a_waiter_finds_a_tag_or_is_woken() {
        a_waiter_finds_a_tag_or_is_woken(TagSet::wait, put);
    }

    #[test]
    #[should_panic(expected = "sleeps beside a free tag")]
    fn loom_planted_wait_without_a_fence() {
        let wait: Wait = |set, who| {
            let (word, bit) = set.waiter(who);
            word.fetch_or(bit, Ordering::AcqRel);
        };
        a_waiter_finds_a_tag_or_is_woken(wait, put);
    }

    #[test]
    #[should_panic(expected = "sleeps beside a free tag")]
    fn loom_planted_put_without_a_fence() {
        a_waiter_finds_a_tag_or_is_woken(TagSet::wait, put_without_a_fence);
    }

    /// Like [`loom_a_waiter_finds_a_tag_or_is_woken`], for a thread that returns the unused tags of a batch.
    #[test]
    fn loom_a_waiter_finds_the_rest_of_a_batch_or_is_woken() {
        loom::model(|| {
            let set = Arc::new(TagSet::new(&TagSetShape::new(1, 1)));
            let batch = set.get_batch(&mut 0, 1).expect("it is free");
            let holder = {
                let set = Arc::clone(&set);
                thread::spawn(move || {
                    let mut woken = false;
                    set.put_rest(batch, &mut |_| woken = true);
                    woken
                })
            };
            set.wait(0);
            let found = set.get(&mut 0).is_some();
            let woken = holder.join().expect("the holder does not panic");
            assert!(found || woken, "a waiter sleeps beside a free tag");
        });
    }

    /// A waiter that tries and then registers.
    #[test]
    #[should_panic(expected = "sleeps beside a free tag")]
    fn loom_planted_try_before_the_wait() {
        loom::model(|| {
            let set = Arc::new(TagSet::new(&TagSetShape::new(1, 1)));
            let tag = set.get(&mut 0).expect("it is free");
            let holder = {
                let set = Arc::clone(&set);
                thread::spawn(move || put(&set, tag))
            };
            let found = set.get(&mut 0).is_some();
            set.wait(0);
            let woken = holder.join().expect("the holder does not panic") > 0;
            assert!(found || woken, "a waiter sleeps beside a free tag");
        });
    }

    /// A waiter leaves a value for the thread that wakes it, and registers a second time. The thread that takes its bit
    /// sees the value, or the bit is set again.
    fn who_wakes_sees_what_was_left(wait: Wait) {
        loom::model(move || {
            let set = Arc::new((TagSet::new(&TagSetShape::new(1, 1)), AtomicU32::new(0)));
            let tag = set.0.get(&mut 0).expect("it is free");
            set.0.wait(0);
            let holder = {
                let set = Arc::clone(&set);
                thread::spawn(move || {
                    assert_eq!(put(&set.0, tag), 1);
                    set.1.load(Ordering::Relaxed) == 1
                })
            };
            set.1.store(1, Ordering::Relaxed);
            wait(&set.0, 0);
            let seen = holder.join().expect("the holder does not panic");
            assert!(set.0.cancel(0) || seen, "a registration was swallowed");
            assert!(!set.0.cancel(0), "a registration is taken back once");
        });
    }

    #[test]
    fn loom_who_wakes_sees_what_was_left() {
        who_wakes_sees_what_was_left(TagSet::wait);
    }

    #[test]
    #[should_panic(expected = "a registration was swallowed")]
    fn loom_planted_wait_that_skips_a_set_bit() {
        who_wakes_sees_what_was_left(|set, who| {
            let (word, bit) = set.waiter(who);
            if word.load(Ordering::Relaxed) & bit == 0 {
                set.wait(who);
            }
        });
    }

    const SHARE: u32 = 4;

    /// A user holds its share of eight tags, and wants one more while another user goes idle.
    fn who_may_have_more_is_told(leave: fn(&TagSet) -> bool) {
        loom::model(move || {
            let shape = TagSetShape { users: 2, ..TagSetShape::new(2 * SHARE, 1) };
            let set = Arc::new(TagSet::new(&shape));
            let fair = set.fair_share().expect("they are divided");
            fair.activate(1);
            let mut hint = 0;
            let mut held = Vec::new();
            while let Some(mut batch) = set.get_batch_for(0, &mut hint, SHARE) {
                held.extend(std::iter::from_fn(|| batch.pop()));
            }
            assert_eq!(held.len() as u32, SHARE);
            // The first search finds that both users have been seen.
            assert!(!fair.deactivate_idle(Instant::ZERO + IDLE));
            let other = {
                let set = Arc::clone(&set);
                thread::spawn(move || leave(&set))
            };
            set.wait(0);
            let more = set.get_batch_for(0, &mut hint, 1);
            let told = other.join().expect("no thread panics");
            assert!(more.is_some() || told, "a user may have more and does not know");
            held.extend(more.and_then(|mut batch| batch.pop()));
            set.put(&held, &mut |_| ());
            let fair = set.fair_share().expect("they are divided");
            assert_eq!((fair.held(0), fair.users(), set.in_use()), (0, 1, 0));
        });
    }

    #[test]
    fn loom_who_may_have_more_is_told() {
        who_may_have_more_is_told(|set| {
            let mut told = false;
            set.deactivate(1, &mut |_| told = true);
            told
        });
    }

    #[test]
    fn loom_who_may_have_more_is_told_when_others_were_idle() {
        who_may_have_more_is_told(|set| {
            let mut told = false;
            set.deactivate_idle(Instant::ZERO + IDLE + IDLE, &mut |_| told = true);
            told
        });
    }

    #[test]
    #[should_panic(expected = "does not know")]
    fn loom_planted_a_user_that_leaves_without_a_fence() {
        who_may_have_more_is_told(|set| {
            let mut told = false;
            assert!(set.fair_share().is_some_and(|fair| fair.deactivate(1)));
            set.wake_up(u32::MAX, &mut |_| told = true);
            told
        });
    }

    /// Two holders return the last tags, of different words, while three elevators wait, and each free wakes only one:
    /// the last holder must notice that it is the last.
    fn every_elevator_is_woken_in_the_end(put: Put) {
        loom::model(move || {
            let set = Arc::new(TagSet::new(&TagSetShape::new(4, 3)));
            let tags = [0, 1].map(|mut hint| set.get(&mut hint).expect("four are free"));
            (0..3).for_each(|who| set.wait(who));
            let other = {
                let set = Arc::clone(&set);
                thread::spawn(move || put(&set, tags[0]))
            };
            let woken = put(&set, tags[1]) + other.join().expect("no holder panics");
            assert_eq!(woken, 3, "waiters woken when everything is free");
        });
    }

    #[test]
    fn loom_every_elevator_is_woken_in_the_end() {
        every_elevator_is_woken_in_the_end(put);
    }

    #[test]
    #[should_panic(expected = "waiters woken")]
    fn loom_planted_last_put_without_a_fence() {
        every_elevator_is_woken_in_the_end(put_without_a_fence);
    }

    #[test]
    #[should_panic(expected = "waiters woken")]
    fn loom_planted_put_that_counts_before_it_frees() {
        every_elevator_is_woken_in_the_end(|set, tag| {
            let last = !set.bitmap.in_use_reaches(set.wake_batch() + 1);
            set.bitmap.put(tag.0);
            fence(Ordering::SeqCst);
            let mut woken = 0;
            set.wake_up(if last { u32::MAX } else { 1 }, &mut |_| woken += 1);
            woken
        });
    }

    /// A folder that may take no number (its share is used up) holds the last free tag while the last put counts: the
    /// put must not count that tag as in use.
    fn a_fold_does_not_hide_the_last_free_tag(in_use: fn(&TagSet) -> bool) {
        loom::model(move || {
            let set = Arc::new(TagSet::new(&TagSetShape::new(2, 1)));
            let mut hint = 0;
            let tags = [0, 1].map(|_| set.get(&mut hint).expect("two are free"));
            set.bitmap.put(tags[1].0);
            let folder = {
                let set = Arc::clone(&set);
                // The steps of `get` after another thread has taken the numbers that it may take.
                thread::spawn(move || set.bitmap.fold_nothing())
            };
            set.bitmap.put(tags[0].0);
            fence(Ordering::SeqCst);
            assert!(!in_use(&set), "a free tag is counted as used");
            folder.join().expect("the folder does not panic");
        });
    }

    #[test]
    fn loom_a_fold_does_not_hide_the_last_free_tag() {
        a_fold_does_not_hide_the_last_free_tag(|set| set.bitmap.in_use_reaches(1));
    }

    #[test]
    #[should_panic(expected = "counted as used")]
    fn loom_planted_count_without_looking_for_folds() {
        a_fold_does_not_hide_the_last_free_tag(|set| set.bitmap.vacant_without_folds() < 2);
    }
}
