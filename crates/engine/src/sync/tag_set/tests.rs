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
    assert_eq!(free(3), [], "nobody waits, so nothing is counted");
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
fn nobody_is_stranded_when_frees_stop() {
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
        "seven batches, and everybody once less than eight are in use"
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
