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

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
