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
