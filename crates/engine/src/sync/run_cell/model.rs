//! No two threads touch the value at the same time, and every runner sees the writes of the last one: loom watches the
//! `UnsafeCell`.

use super::super::{Arc, AtomicU32, Ordering};
use super::*;
use loom::thread;

type Shared = (RunCell<u32>, AtomicU32);

fn submit(shared: &Shared, enter: fn(&RunCell<u32>) -> Option<RunGuard<'_, u32>>) {
    let (cell, staged) = shared;
    staged.fetch_add(1, Ordering::Relaxed);
    let mut run = enter(cell);
    while let Some(mut pass) = run {
        *pass += staged.swap(0, Ordering::Relaxed);
        run = pass.finish();
    }
}

fn runs_do_not_overlap(enter: fn(&RunCell<u32>) -> Option<RunGuard<'_, u32>>) {
    loom::model(move || {
        let shared = Arc::new((RunCell::new(0), AtomicU32::new(0)));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || submit(&shared, enter))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no submitter panics"));
        assert_eq!(*shared.0.try_enter().expect("nobody runs"), 2, "work was left behind");
    });
}

#[test]
fn loom_runs_do_not_overlap() {
    runs_do_not_overlap(RunCell::enter_or_owe);
}

#[test]
#[should_panic(expected = "left behind")]
fn loom_planted_refusal_without_a_mark() {
    runs_do_not_overlap(RunCell::try_enter);
}

/// Checks first and begins afterwards.
#[test]
#[should_panic(expected = "Causality violation")]
fn loom_planted_entry_without_a_compare() {
    runs_do_not_overlap(|cell| {
        if cell.is_running() {
            return cell.enter_or_owe();
        }
        let _ = cell.state.begin_or_owe();
        cell.guard()
    });
}

/// The writes of a run that was handed over are seen by the next runner.
#[test]
fn loom_a_hand_over_publishes_the_value() {
    loom::model(|| {
        let cell = Arc::new(RunCell::new(0));
        let first = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || {
                let mut run = cell.try_enter().expect("the other waits for this one");
                *run = 7;
                run.hand_over();
            })
        };
        while !cell.due(Instant::ZERO) {
            thread::yield_now();
        }
        let run = cell.try_enter().expect("it was handed over");
        assert_eq!(*run, 7);
        assert!(run.finish().is_none());
        first.join().expect("the first runner does not panic");
    });
}
