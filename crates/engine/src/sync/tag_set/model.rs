//! A waiter finds a tag or is woken; and when the last tags come back, everybody is.

use super::*;
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

/// Two holders give back the last tags, of different words, while three wait, and each free wakes only one:
/// whoever is last must notice that he is.
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

/// A folder that may take nothing (its share is used up) has the last free tag in its hands while the last
/// put counts: the put must not count it as used.
fn a_fold_does_not_hide_the_last_free_tag(in_use: fn(&TagSet) -> bool) {
    loom::model(move || {
        let set = Arc::new(TagSet::new(&TagSetShape::new(2, 1)));
        let mut hint = 0;
        let tags = [0, 1].map(|_| set.get(&mut hint).expect("two are free"));
        set.bitmap.put(tags[1].0);
        let folder = {
            let set = Arc::clone(&set);
            // What `get` does after losing the numbers that it is allowed to have to somebody else.
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
