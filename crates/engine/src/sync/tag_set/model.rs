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
        let told = other.join().expect("nobody panics");
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

/// Two holders return the last tags, of different words, while three elevators wait, and each free wakes only one: the
/// last holder must notice that it is the last.
fn everybody_is_woken_in_the_end(put: Put) {
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
fn loom_everybody_is_woken_in_the_end() {
    everybody_is_woken_in_the_end(put);
}

#[test]
#[should_panic(expected = "waiters woken")]
fn loom_planted_last_put_without_a_fence() {
    everybody_is_woken_in_the_end(put_without_a_fence);
}

#[test]
#[should_panic(expected = "waiters woken")]
fn loom_planted_put_that_counts_before_it_frees() {
    everybody_is_woken_in_the_end(|set, tag| {
        let last = !set.bitmap.in_use_reaches(set.wake_batch() + 1);
        set.bitmap.put(tag.0);
        fence(Ordering::SeqCst);
        let mut woken = 0;
        set.wake_up(if last { u32::MAX } else { 1 }, &mut |_| woken += 1);
        woken
    });
}

/// A folder that may take no number (its share is used up) holds the last free tag while the last put counts: the put
/// must not count that tag as in use.
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
