//! Numbers that many threads allocate and return: Linux's sbitmap.
//!
//! The numbers are spread over words, each on a separate cache line, so that threads that stay with a word do not
//! contend. A returned number does not go to the word from which others are allocating but to a second one beside it,
//! on another line, which is folded back when the first looks empty: one write to the busy line for up to 64 numbers.
//!
//! # States
//!
//! A number is *free* (its bit is in `free`), *cleared* (its bit is in `cleared`), or *in use* (in neither).
//! `folds` counts the threads that have emptied `cleared` and not yet filled `free`.
//!
//! | word | `get` | `put` |
//! |---|---|---|
//! | `free` has bits | takes some: *yours* | adds to `cleared` |
//! | `free` empty, `cleared` not | folds: takes all, keeps some, the rest goes to `free` | likewise |
//! | both empty, `folds` > 0 | waits for the folder: a few instructions | likewise |
//! | both empty, `folds` 0 | goes to the next word; after the last, none | likewise |
//!
//! Invariant: a number is in at most one of `free`, `cleared`, the hands of one folder, and use; it moves by one
//! read-modify-write, so it is never in two. And `get` fails only if it saw each word with no number free, cleared or
//! being folded: an unused number is not overlooked because a folder has it.
//!
//! # Why the orderings are enough
//!
//! The writes of a number's holder before `put` are visible after the next `get` of that number: put releases into
//! `cleared`, the folder acquires from there and releases into `free`, the getter acquires.
//!
//! A folder raises `folds`, swaps `cleared` (releasing), fills `free`, lowers `folds` (releasing). A reader loads
//! `cleared`, then `folds`, then `free`, the first two acquiring. If it reads the zero that a folder left in
//! `cleared`, it sees `folds` raised; and if it sees `folds` lowered again, it sees `free` filled.
//!
//! Read-modify-writes: one per `get`, single or batch; one per word touched by a `put`; four per fold.

use super::{AtomicU32, AtomicU64, Backoff, Ordering, looks_again};
use crossbeam_utils::CachePadded;

/// A set of the numbers `0..depth`, each free or in use.
pub(crate) struct Bitmap {
    words: Box<[Word]>,
    depth: u32,
    /// Numbers per word, as log2.
    shift: u32,
}

struct Word {
    free: CachePadded<AtomicU64>,
    cleared: CachePadded<Cleared>,
}

struct Cleared {
    bits: AtomicU64,
    folds: AtomicU32,
}

// Allocating from a word and returning to it use different lines, and so do two words.
const _: () = assert!(size_of::<CachePadded<AtomicU64>>() >= 64 && align_of::<Word>() >= 64);

/// Numbers of one word, taken together.
#[must_use = "numbers that are not put back are lost"]
#[derive(Debug)]
pub(crate) struct BitBatch {
    base: u32,
    bits: u64,
}

impl BitBatch {
    /// Takes out the lowest number.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<u32> {
        if self.bits == 0 {
            return None;
        }
        let bit = self.bits.trailing_zeros();
        self.bits &= self.bits - 1;
        Some(self.base + bit)
    }

    /// The remaining numbers, without taking them out.
    #[inline]
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        let mut copy = Self { base: self.base, bits: self.bits };
        std::iter::from_fn(move || copy.pop())
    }

    /// Takes out all numbers.
    #[inline]
    #[cfg(test)]
    pub(crate) fn take(&mut self) -> Self {
        Self { base: self.base, bits: std::mem::take(&mut self.bits) }
    }

    #[inline]
    #[must_use]
    pub(crate) fn len(&self) -> u32 {
        self.bits.count_ones()
    }

    #[inline]
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.bits == 0
    }
}

impl Bitmap {
    /// A bitmap with all of `0..depth` free.
    ///
    /// Words hold 64 numbers. That is halved while four words would exceed the depth, so that even a small bitmap has
    /// about four words (`spec/framework.md` section 3.2).
    ///
    /// # Panics
    /// If `depth` is 0.
    pub(crate) fn new(depth: u32) -> Self {
        assert!(depth > 0, "a bitmap of nothing");
        let mut shift = 6;
        while depth >= 4 && 4 << shift > u64::from(depth) {
            shift -= 1;
        }
        let word = |first: u32| Word::new(mask((depth - first).min(1 << shift)));
        Self { words: (0..depth).step_by(1 << shift).map(word).collect(), depth, shift }
    }

    /// The depth: the number of all numbers.
    #[inline]
    #[must_use]
    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// The number of numbers in use: a snapshot, exact while no other thread acts. Numbers that are being folded never
    /// make it too high.
    #[must_use]
    pub(crate) fn in_use(&self) -> u32 {
        self.words.iter().enumerate().map(|(at, word)| self.used_in(at, word)).sum()
    }

    /// Returns whether `n` or more are in use. Stops counting at `n`.
    pub(crate) fn in_use_reaches(&self, n: u32) -> bool {
        let mut used = 0;
        self.words.iter().enumerate().any(|(at, word)| {
            used += self.used_in(at, word);
            used >= n
        })
    }

    fn used_in(&self, at: usize, word: &Word) -> u32 {
        word.vacant().map_or(0, |vacant| self.word_depth(at as u32) - vacant.count_ones())
    }

    /// Takes a number. The search begins at `hint`, which is set to the place of the number, so that callers stay with
    /// the word in which they succeed.
    #[inline]
    pub(crate) fn get(&self, hint: &mut u32) -> Option<u32> {
        // Usually the word of the hint has a free number.
        let (at, offset) = (*hint >> self.shift, *hint & ((1 << self.shift) - 1));
        let taken =
            self.words.get(at as usize).map_or(0, |word| word.get_free(offset, 1, u64::MAX));
        if taken == 0 {
            return self.get_elsewhere(hint);
        }
        *hint = (at << self.shift) + taken.trailing_zeros();
        Some(*hint)
    }

    /// Like [`get`](Self::get), for a number outside of the word of the hint.
    #[inline(never)]
    fn get_elsewhere(&self, hint: &mut u32) -> Option<u32> {
        self.search(hint, 1, |_| u64::MAX)?.pop()
    }

    /// Takes up to `want` numbers of one word.
    #[inline]
    pub(crate) fn get_batch(&self, hint: &mut u32, want: u32) -> Option<BitBatch> {
        self.search(hint, want, |_| u64::MAX)
    }

    /// Takes a number from a share of `shallow_depth` numbers of the whole bitmap, for callers that must leave the rest
    /// to others. Each word contributes in proportion, rounded down; the remainder goes to the first words
    /// (`spec/framework.md` section 3.2, as since Linux 6.18). The share always consists of the same numbers, so
    /// callers confined to it never hold more than `shallow_depth`.
    #[inline]
    #[cfg(test)]
    pub(crate) fn get_shallow(&self, hint: &mut u32, shallow_depth: u32) -> Option<u32> {
        if shallow_depth >= self.depth {
            return self.get(hint);
        }
        self.search(hint, 1, |word| mask(self.share(word, shallow_depth)))?.pop()
    }

    /// Returns a number. One read-modify-write.
    ///
    /// # Panics
    /// If it is not below the depth; in debug builds also if it is not in use.
    #[inline]
    pub(crate) fn put(&self, bit: u32) {
        self.words[(bit >> self.shift) as usize].put(self.bit(bit));
    }

    /// Returns the rest of a batch. One read-modify-write.
    #[inline]
    #[cfg(test)]
    pub(crate) fn put_batch(&self, mut batch: BitBatch) {
        let BitBatch { base, bits } = batch.take();
        if bits != 0 {
            self.words[(base >> self.shift) as usize].put(bits);
        }
    }

    /// Returns numbers: one read-modify-write for each run of numbers of the same word.
    #[inline]
    pub(crate) fn put_many(&self, mut numbers: impl Iterator<Item = u32> + Clone) {
        let Some(first) = numbers.clone().next() else { return };
        // Nearly always all are of one word, and all are below the depth.
        let (word, mut bits, mut highest, mut elsewhere) = (first >> self.shift, 0, 0, 0);
        for number in numbers.clone() {
            bits |= 1 << (number & ((1 << self.shift) - 1));
            highest = number.max(highest);
            elsewhere |= (number >> self.shift) ^ word;
        }
        if elsewhere == 0 {
            assert!(highest < self.depth, "{highest} in a bitmap of {}", self.depth);
            self.words[word as usize].put(bits);
            return;
        }
        let Some(first) = numbers.next() else { return };
        let (mut word, mut bits) = (first >> self.shift, self.bit(first));
        for number in numbers {
            let (at, bit) = (number >> self.shift, self.bit(number));
            if at == word {
                debug_assert!(bits & bit == 0, "{number} is given back twice");
                bits |= bit;
            } else {
                self.words[word as usize].put(bits);
                (word, bits) = (at, bit);
            }
        }
        self.words[word as usize].put(bits);
    }

    #[inline]
    fn bit(&self, number: u32) -> u64 {
        assert!(number < self.depth, "{number} in a bitmap of {}", self.depth);
        1 << (number & ((1 << self.shift) - 1))
    }

    /// Up to `want` numbers of the first word, from `hint` on, that has a free one among `allowed(word)`.
    #[inline]
    fn search(&self, hint: &mut u32, want: u32, allowed: impl Fn(u32) -> u64) -> Option<BitBatch> {
        let words = self.words.len() as u32;
        let start = if *hint < self.depth { *hint } else { 0 };
        let (mut at, mut offset) = (start >> self.shift, start & ((1 << self.shift) - 1));
        for _ in 0..words {
            let bits = self.words[at as usize].get(offset, want, allowed(at));
            if bits != 0 {
                let base = at << self.shift;
                *hint = base + bits.trailing_zeros();
                return Some(BitBatch { base, bits });
            }
            at = if at + 1 == words { 0 } else { at + 1 };
            offset = 0;
        }
        None
    }

    /// The size of word `word`: all words are full except the last.
    #[inline]
    fn word_depth(&self, word: u32) -> u32 {
        (self.depth - (word << self.shift)).min(1 << self.shift)
    }

    /// The contribution of word `word` to a share of `shallow` numbers, which is less than the depth.
    #[inline]
    #[cfg(test)]
    fn share(&self, word: u32, shallow: u32) -> u32 {
        let floor = |word_depth: u32| {
            (u64::from(word_depth) * u64::from(shallow) / u64::from(self.depth)) as u32
        };
        let last = self.words.len() as u32 - 1;
        let rounded = floor(1 << self.shift) * last + floor(self.word_depth(last));
        floor(self.word_depth(word)) + u32::from(word < shallow - rounded)
    }
}

/// The lowest `n` bits.
#[inline]
fn mask(n: u32) -> u64 {
    if n == 0 { 0 } else { u64::MAX >> (u64::BITS - n) }
}

/// Up to `want` of `bits`, from bit `offset` upwards and around.
#[inline]
fn choose(bits: u64, offset: u32, want: u32) -> u64 {
    if want == 1 {
        let first = bits.rotate_right(offset);
        return (first & first.wrapping_neg()).rotate_left(offset);
    }
    if bits.count_ones() <= want {
        return bits;
    }
    let mut left = bits.rotate_right(offset);
    let rotated = left;
    for _ in 0..want {
        left &= left - 1;
    }
    (rotated ^ left).rotate_left(offset)
}

impl Word {
    fn new(free: u64) -> Self {
        Self {
            free: CachePadded::new(AtomicU64::new(free)),
            cleared: CachePadded::new(Cleared {
                bits: AtomicU64::new(0),
                folds: AtomicU32::new(0),
            }),
        }
    }

    /// Takes up to `want` numbers out of `allowed`; 0 if none is free and none is being folded.
    #[inline]
    fn get(&self, offset: u32, want: u32, allowed: u64) -> u64 {
        if want == 0 || allowed == 0 {
            return 0;
        }
        match self.get_free(offset, want, allowed) {
            0 => self.get_cleared(offset, want, allowed),
            taken => taken,
        }
    }

    #[inline]
    fn get_free(&self, offset: u32, want: u32, allowed: u64) -> u64 {
        let mut free = self.free.load(Ordering::Relaxed) & allowed;
        while free != 0 {
            let chosen = choose(free, offset, want);
            let before = self.free.fetch_and(!chosen, Ordering::Acquire);
            if before & chosen != 0 {
                return before & chosen;
            }
            // Other threads were faster, so the system made progress.
            free = before & allowed;
        }
        0
    }

    /// Like [`get`](Self::get), for a word that looks empty.
    #[inline(never)]
    fn get_cleared(&self, offset: u32, want: u32, allowed: u64) -> u64 {
        let mut backoff = Backoff::new();
        loop {
            if self.cleared.bits.load(Ordering::Relaxed) & allowed != 0 {
                let taken = self.fold(offset, want, allowed);
                if taken != 0 {
                    return taken;
                }
            }
            match self.vacant() {
                Some(vacant) if vacant & allowed == 0 || !looks_again() => return 0,
                Some(_) => {}
                None => backoff.wait(),
            }
            let taken = self.get_free(offset, want, allowed);
            if taken != 0 {
                return taken;
            }
        }
    }

    /// Empties `cleared`, keeps up to `want` numbers out of `allowed`, and makes the rest free.
    fn fold(&self, offset: u32, want: u32, allowed: u64) -> u64 {
        self.cleared.folds.fetch_add(1, Ordering::Relaxed);
        let held = self.cleared.bits.swap(0, Ordering::AcqRel);
        let kept = choose(held & allowed, offset, want);
        if held != kept {
            self.free.fetch_or(held & !kept, Ordering::Release);
        }
        self.cleared.folds.fetch_sub(1, Ordering::Release);
        kept
    }

    /// The unused numbers; `None` while some are being folded.
    ///
    /// The answer contains every number that has been unused since before the call and still is.
    fn vacant(&self) -> Option<u64> {
        let cleared = self.cleared.bits.load(Ordering::Acquire);
        if self.cleared.folds.load(Ordering::Acquire) != 0 && looks_again() {
            return None;
        }
        Some(cleared | self.free.load(Ordering::Relaxed))
    }

    #[inline]
    fn put(&self, bits: u64) {
        debug_assert!(
            self.free.load(Ordering::Relaxed) & bits == 0,
            "given back, but free: {bits:#x}"
        );
        let before = self.cleared.bits.fetch_or(bits, Ordering::Release);
        debug_assert!(before & bits == 0, "given back twice: {:#x}", before & bits);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use blkmq_core::Rng;
    use std::collections::BTreeSet;

    #[test]
    fn words_are_halved_until_there_are_about_four() {
        for (depth, words, each) in [
            (1, 1, 64),
            (3, 1, 64),
            (4, 4, 1),
            (8, 4, 2),
            (31, 8, 4),
            (32, 4, 8),
            (128, 4, 32),
            (256, 4, 64),
            (1000, 16, 64),
        ] {
            let bitmap = Bitmap::new(depth);
            assert_eq!((bitmap.words.len(), 1 << bitmap.shift), (words, each), "depth {depth}");
        }
    }

    #[test]
    fn each_number_is_given_out_once() {
        for depth in [1, 2, 3, 4, 5, 31, 63, 64, 65, 200] {
            let bitmap = Bitmap::new(depth);
            for start in [0, depth / 2, depth - 1, u32::MAX] {
                let mut hint = start;
                let got: BTreeSet<u32> = std::iter::from_fn(|| bitmap.get(&mut hint)).collect();
                assert!(got.iter().copied().eq(0..depth), "depth {depth}: {got:?}");
                assert_eq!(bitmap.in_use(), depth);
                bitmap.put_many(got.iter().copied());
                assert_eq!(bitmap.in_use(), 0);
            }
        }
    }

    #[test]
    fn a_caller_stays_with_its_word_while_numbers_come_back() {
        let bitmap = Bitmap::new(256);
        let mut hint = 130;
        for _ in 0..if cfg!(miri) { 100 } else { 1000 } {
            let number = bitmap.get(&mut hint).expect("all others are free");
            assert!((128..192).contains(&number));
            bitmap.put(number);
        }
    }

    #[test]
    fn a_batch_is_of_one_word_and_can_be_put_back_in_part() {
        let bitmap = Bitmap::new(256);
        let mut hint = 64 + 60;
        let mut batch = bitmap.get_batch(&mut hint, 8).expect("all are free");
        assert_eq!((batch.len(), bitmap.in_use()), (8, 8));
        let got: Vec<u32> = batch.numbers().collect();
        assert_eq!(got, [64, 65, 66, 67, 124, 125, 126, 127]);
        assert_eq!(batch.pop(), Some(64));
        bitmap.put_batch(batch);
        assert_eq!(bitmap.in_use(), 1);
        let batch = bitmap.get_batch(&mut hint, 1000).expect("63 are free");
        assert_eq!(batch.len(), 56, "what was put back is folded in later");
        bitmap.put_batch(batch);
        assert!(bitmap.get_batch(&mut hint, 0).is_none());
    }

    #[test]
    fn shares_add_up_to_the_shallow_depth() {
        for depth in [1, 3, 4, 31, 32, 63, 64, 65, 127, 200, 1000] {
            let bitmap = Bitmap::new(depth);
            for shallow in 0..depth {
                let words = bitmap.words.len() as u32;
                let shares: Vec<u32> = (0..words).map(|word| bitmap.share(word, shallow)).collect();
                assert_eq!(shares.iter().sum::<u32>(), shallow, "depth {depth}: {shares:?}");
                assert!((0..words).all(|word| shares[word as usize] <= bitmap.word_depth(word)));
            }
        }
        // Floor of 10 * 8 / 32 is 2 for each of the four words; the remaining 2 go to the first two.
        let bitmap = Bitmap::new(32);
        assert_eq!([0, 1, 2, 3].map(|word| bitmap.share(word, 10)), [3, 3, 2, 2]);
    }

    #[test]
    fn those_confined_to_a_share_never_hold_more() {
        let bitmap = Bitmap::new(32);
        let mut hint = 17;
        let got: Vec<u32> = std::iter::from_fn(|| bitmap.get_shallow(&mut hint, 10)).collect();
        assert_eq!(got.len(), 10);
        assert!(bitmap.get(&mut hint).is_some(), "the rest is for others");
        bitmap.put(got[4]);
        assert_eq!(bitmap.get_shallow(&mut hint, 10), Some(got[4]));
        assert_eq!(bitmap.get_shallow(&mut hint, 0), None);
        assert!(bitmap.get_shallow(&mut hint, 32).is_some(), "as deep as the bitmap is no share");
    }

    /// A few thousand random calls against a naive set.
    #[test]
    fn conservation_against_a_naive_set() {
        for seed in 0..if cfg!(miri) { 2 } else { 50 } {
            let mut rng = Rng::new(seed);
            let depth = 1 + rng.below(200) as u32;
            let bitmap = Bitmap::new(depth);
            let (mut used, mut hint) = (BTreeSet::new(), rng.below(u64::from(depth)) as u32);
            for _ in 0..if cfg!(miri) { 20 } else { 2000 } {
                let any = |rng: &mut Rng| rng.below(u64::from(depth) + 2) as u32;
                match rng.below(5) {
                    0 => match bitmap.get(&mut hint) {
                        Some(number) => assert!(number < depth && used.insert(number)),
                        None => assert_eq!(used.len() as u32, depth),
                    },
                    1 => {
                        let shallow = any(&mut rng);
                        if let Some(number) = bitmap.get_shallow(&mut hint, shallow) {
                            assert!(number < depth && used.insert(number));
                        } else {
                            assert!(used.len() as u32 >= shallow.min(depth));
                        }
                    }
                    2 => match bitmap.get_batch(&mut hint, 1 + any(&mut rng)) {
                        Some(mut batch) => {
                            let kept = rng.below(u64::from(batch.len()) + 1);
                            for _ in 0..kept {
                                assert!(used.insert(batch.pop().expect("no more than there are")));
                            }
                            assert!(batch.numbers().all(|number| !used.contains(&number)));
                            bitmap.put_batch(batch);
                        }
                        None => assert_eq!(used.len() as u32, depth),
                    },
                    3 => {
                        if let Some(number) = used.range(any(&mut rng)..).next().copied() {
                            used.remove(&number);
                            bitmap.put(number);
                        }
                    }
                    _ => {
                        let from = any(&mut rng);
                        let back = used.split_off(&from);
                        bitmap.put_many(back.iter().copied());
                    }
                }
                assert_eq!(bitmap.in_use() as usize, used.len(), "seed {seed}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    #[cfg(debug_assertions)]
    fn giving_back_twice_is_a_bug() {
        let bitmap = Bitmap::new(8);
        let number = bitmap.get(&mut 0).expect("all are free");
        bitmap.put(number);
        bitmap.put(number);
    }

    #[test]
    fn threads_never_hold_the_same_number() {
        const DEPTH: u32 = 24;
        let bitmap = Bitmap::new(DEPTH);
        let held: Vec<crate::sync::AtomicBool> =
            (0..DEPTH).map(|_| crate::sync::AtomicBool::new(false)).collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (bitmap, held) = (&bitmap, &held);
                scope.spawn(move || {
                    let (mut rng, mut hint) = (Rng::new(thread), thread as u32);
                    for _ in 0..if cfg!(miri) { 10 } else { 30_000 } {
                        // All four together never want more numbers than exist, so no thread may be refused.
                        let want = 1 + rng.below(6) as u32;
                        let batch =
                            bitmap.get_batch(&mut hint, want).expect("24 numbers for four threads");
                        for number in batch.numbers() {
                            assert!(!held[number as usize].swap(true, Ordering::Relaxed));
                        }
                        for number in batch.numbers() {
                            assert!(held[number as usize].swap(false, Ordering::Relaxed));
                        }
                        bitmap.put_batch(batch);
                    }
                });
            }
        });
        assert_eq!(bitmap.in_use(), 0);
    }
}

#[cfg(all(test, loom))]
mod model {
    //! A number has one owner at a time, which sees the writes of its predecessor; and every unused number is found.

    use super::*;
    use crate::sync::{Arc, UnsafeCell};
    use loom::thread;

    type Get = fn(&Word) -> u64;
    type Put = fn(&Word, u64);

    fn get(word: &Word) -> u64 {
        word.get(0, 1, u64::MAX)
    }

    /// Two threads use the only number twice each, or find that it is in use. Each writes the cell behind it.
    fn owners_follow_each_other(get: Get, put: Put) {
        loom::model(move || {
            let shared = Arc::new((Word::new(1), UnsafeCell::new(0)));
            let work = |shared: Arc<(Word, UnsafeCell<u32>)>| {
                move || {
                    for _ in 0..2 {
                        let bit = get(&shared.0);
                        if bit != 0 {
                            // SAFETY: the number is ours, and the cell with it; loom checks it.
                            shared.1.with_mut(|cell| unsafe { *cell += 1 });
                            put(&shared.0, bit);
                        }
                    }
                }
            };
            let other = thread::spawn(work(Arc::clone(&shared)));
            work(Arc::clone(&shared))();
            other.join().expect("no owner panics");
            assert_eq!(shared.0.vacant(), Some(1));
        });
    }

    #[test]
    fn loom_owners_follow_each_other() {
        owners_follow_each_other(get, Word::put);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_put_without_release() {
        owners_follow_each_other(get, |word, bits| {
            word.cleared.bits.fetch_or(bits, Ordering::Relaxed);
        });
    }

    /// Fills `free` before it empties `cleared`: two folders make the same number free twice.
    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_fold_that_adds_before_it_removes() {
        owners_follow_each_other(
            |word| {
                let taken = word.get_free(0, 1, u64::MAX);
                if taken != 0 {
                    return taken;
                }
                let cleared = word.cleared.bits.load(Ordering::Acquire);
                word.free.fetch_or(cleared, Ordering::AcqRel);
                word.cleared.bits.fetch_and(!cleared, Ordering::AcqRel);
                word.get_free(0, 1, u64::MAX)
            },
            Word::put,
        );
    }

    /// Two numbers have been returned, and two threads want one each. One of them folds, and both must succeed. (In the
    /// kernel, a fold that other threads did not see made waiters hang.)
    fn what_is_being_folded_is_not_overlooked(get: Get) {
        loom::model(move || {
            let word = Arc::new(Word::new(0));
            word.put(0b11);
            let other = {
                let word = Arc::clone(&word);
                thread::spawn(move || get(&word))
            };
            let mine = get(&word);
            let theirs = other.join().expect("no thread panics");
            assert_eq!(mine | theirs, 0b11, "a number was free and not found");
        });
    }

    #[test]
    fn loom_what_is_being_folded_is_not_overlooked() {
        what_is_being_folded_is_not_overlooked(get);
    }

    /// Two numbers are returned together after a change of both cells, while two threads take one each, or none: one of
    /// them folds, and the other finds the number that the folder left.
    fn who_gets_a_number_sees_what_was_done_with_it(get: Get) {
        loom::model(move || {
            let cells = || [UnsafeCell::new(0), UnsafeCell::new(0)];
            let shared = Arc::new((Word::new(0), cells()));
            let work = |shared: Arc<(Word, [UnsafeCell<u32>; 2])>| {
                move || {
                    let bit = get(&shared.0);
                    if bit != 0 {
                        let cell = &shared.1[bit.trailing_zeros() as usize];
                        // SAFETY: the number is ours, and the cell with it; loom checks it.
                        assert_eq!(cell.with(|cell| unsafe { *cell }), 1);
                    }
                }
            };
            let other = thread::spawn(work(Arc::clone(&shared)));
            let holder = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    for cell in &shared.1 {
                        // SAFETY: both numbers are in use, by this thread; loom checks it.
                        cell.with_mut(|cell| unsafe { *cell = 1 });
                    }
                    shared.0.put(0b11);
                })
            };
            work(Arc::clone(&shared))();
            other.join().expect("no thread panics");
            holder.join().expect("the holder does not panic");
        });
    }

    #[test]
    fn loom_who_gets_a_number_sees_what_was_done_with_it() {
        who_gets_a_number_sees_what_was_done_with_it(get);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_fold_that_fills_without_release() {
        who_gets_a_number_sees_what_was_done_with_it(|word| {
            let taken = word.get_free(0, 1, u64::MAX);
            if taken != 0 {
                return taken;
            }
            let held = word.cleared.bits.swap(0, Ordering::AcqRel);
            let kept = choose(held, 0, 1);
            word.free.fetch_or(held & !kept, Ordering::Relaxed);
            kept
        });
    }

    fn get_unannounced(word: &Word, fold: fn(&Word) -> u64) -> u64 {
        let taken = word.get_free(0, 1, u64::MAX);
        if taken != 0 {
            return taken;
        }
        if word.cleared.bits.load(Ordering::Relaxed) != 0 {
            let taken = fold(word);
            if taken != 0 {
                return taken;
            }
        }
        word.get_free(0, 1, u64::MAX)
    }

    #[test]
    #[should_panic(expected = "was free and not found")]
    fn loom_planted_folds_without_a_waiter() {
        what_is_being_folded_is_not_overlooked(|word| {
            get_unannounced(word, |word| word.fold(0, 1, u64::MAX))
        });
    }

    /// Announces the fold only after taking the numbers.
    #[test]
    #[should_panic(expected = "was free and not found")]
    fn loom_planted_fold_announced_too_late() {
        what_is_being_folded_is_not_overlooked(|word| {
            let late = |word: &Word| {
                let held = word.cleared.bits.swap(0, Ordering::AcqRel);
                word.cleared.folds.fetch_add(1, Ordering::Relaxed);
                let kept = choose(held, 0, 1);
                word.free.fetch_or(held & !kept, Ordering::Release);
                word.cleared.folds.fetch_sub(1, Ordering::Release);
                kept
            };
            let taken = get_unannounced(word, late);
            if taken != 0 { taken } else { word.get(0, 1, u64::MAX) }
        });
    }

    /// For the model of `TagSet`: steps that it cannot reach from outside.
    impl Bitmap {
        /// A fold that keeps nothing.
        pub(crate) fn fold_nothing(&self) {
            self.words[0].fold(0, 1, 0);
        }

        /// A count of the unused numbers in the first word that overlooks those being folded.
        pub(crate) fn vacant_without_folds(&self) -> u32 {
            let word = &self.words[0];
            let cleared = word.cleared.bits.load(Ordering::Acquire);
            (cleared | word.free.load(Ordering::Acquire)).count_ones()
        }
    }
}
