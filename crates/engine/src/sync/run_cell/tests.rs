use super::*;
use crate::sync::Arc;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn the_state_and_the_value_are_on_different_lines() {
    let cell = RunCell::new(0u64);
    let state = std::ptr::from_ref(&*cell.state).addr();
    let value = cell.held.value.with(<*const u64>::addr);
    assert!(state.abs_diff(value) >= 64);
}

#[test]
fn one_runner_at_a_time_and_the_other_is_owed_a_pass() {
    let mut cell = RunCell::new(0);
    let mut run = cell.try_enter().expect("nobody runs");
    assert!(cell.try_enter().is_none());
    *run += 1;
    assert!(run.finish().is_none(), "try_enter leaves no mark");

    let run = cell.enter_or_owe().expect("nobody runs");
    assert!(cell.enter_or_owe().is_none());
    let mut run = run.finish().expect("another pass is owed");
    *run += 1;
    assert!(run.finish().is_none());
    assert!(!cell.is_running());
    assert_eq!(*cell.get_mut(), 2);
}

#[test]
fn handing_over_and_dropping_leave_a_pass_that_is_due() {
    let cell = RunCell::new(());
    cell.try_enter().expect("nobody runs").hand_over();
    assert!(cell.due(Instant::ZERO));
    assert_eq!(cell.kick(), Kick::Coalesced);
    drop(cell.try_enter().expect("nobody runs"));
    assert!(cell.due(Instant::ZERO));
    assert!(cell.try_enter().expect("nobody runs").finish().is_none());
    assert!(!cell.due(Instant::MAX));
    assert!(cell.arm(Instant::from_nanos(5)));
    assert_eq!(cell.deadline(), Some(Instant::from_nanos(5)));
}

#[test]
fn after_a_panic_in_a_pass_the_alarm_is_raised_and_the_run_can_only_be_seized() {
    struct Raised(crate::sync::AtomicU32);
    impl crate::sync::Alarm for Raised {
        fn raise(&self) {
            self.0.fetch_add(1, crate::sync::Ordering::Relaxed);
        }
    }
    let raised = Arc::new(Raised(crate::sync::AtomicU32::new(0)));
    let cell = RunCell::with_alarm(0, Some(raised.clone()));
    let pass = catch_unwind(AssertUnwindSafe(|| {
        let mut run = cell.try_enter().expect("the run is free");
        *run = 1;
        panic!("in the middle of it");
    }));
    assert!(pass.is_err());
    for _ in 0..2 {
        assert!(cell.enter_or_owe().is_none() && cell.try_enter().is_none());
        let run = cell.seize().expect("the run is free");
        assert!(run.is_poisoned() && *run == 1);
    }
    assert_eq!(raised.0.load(crate::sync::Ordering::Relaxed), 1);
}

/// Real threads, more than CPUs: no staged work is lost, and no two passes overlap.
#[test]
fn threads_combine_without_losing_anything() {
    const THREADS: u64 = 4;
    const EACH: u64 = if cfg!(miri) { 8 } else { 20_000 };
    let cell = Arc::new(RunCell::new(0u64));
    let staged: Arc<Vec<_>> =
        Arc::new((0..THREADS).map(|_| crate::sync::AtomicU64::new(0)).collect());
    let threads: Vec<_> = (0..THREADS as usize)
        .map(|who| {
            let (cell, staged) = (Arc::clone(&cell), Arc::clone(&staged));
            std::thread::spawn(move || {
                for _ in 0..EACH {
                    staged[who].fetch_add(1, crate::sync::Ordering::Relaxed);
                    let mut run = cell.enter_or_owe();
                    while let Some(mut pass) = run {
                        for inbox in &*staged {
                            *pass += inbox.swap(0, crate::sync::Ordering::Relaxed);
                        }
                        run = pass.finish();
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no thread panics"));
    let mut cell = Arc::into_inner(cell).expect("all threads are gone");
    assert_eq!(*cell.get_mut(), THREADS * EACH);
}
