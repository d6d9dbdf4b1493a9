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
        let theirs = other.join().expect("nobody panics");
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
        other.join().expect("nobody panics");
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
fn loom_planted_folds_that_nobody_waits_for() {
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
