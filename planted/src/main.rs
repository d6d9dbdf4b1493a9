//! Bugs of memory, planted to see that Miri and the sanitizers find them: `planted BUG`, or `planted none`.
//!
//! Each is what such a bug looks like in a block layer: a buffer whose other half is not waited for, a ring that
//! is read after it was freed, a slot that was never written, a payload that is reached in two ways.

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

/// A payload that one thread hands to another.
struct Handed {
    payload: UnsafeCell<u64>,
    is_ready: AtomicBool,
}

// SAFETY: none. Whether the payload is raced for is up to the orderings that `hand_over` is called with.
unsafe impl Sync for Handed {}

/// One thread writes, the other one reads when it is told to.
fn hand_over(store: Ordering, load: Ordering) -> u64 {
    let handed = &Handed { payload: UnsafeCell::new(0), is_ready: AtomicBool::new(false) };
    std::thread::scope(|scope| {
        // Joined at the end only: to drop a handle of a thread that has ended orders what it did before.
        let writer = scope.spawn(|| {
            // SAFETY: nothing else looks before `is_ready` is set, if that is a release.
            unsafe { *handed.payload.get() = 7 };
            handed.is_ready.store(true, store);
        });
        while !handed.is_ready.load(load) {
            std::thread::yield_now();
        }
        // SAFETY: it is ready, if that load was an acquire.
        let payload = unsafe { *handed.payload.get() };
        writer.join().expect("it only writes");
        payload
    })
}

/// What the ring held, read while it is there or after it has gone.
fn ring(is_freed: bool) -> u8 {
    let ring = Box::into_raw(vec![7u8; 64].into_boxed_slice());
    let first = ring.cast::<u8>();
    // SAFETY: it was a box.
    let free = || drop(unsafe { Box::from_raw(ring) });
    if is_freed {
        free();
        // SAFETY: none, that is the bug.
        return unsafe { black_box(first).read_volatile() };
    }
    // SAFETY: it is not freed yet.
    let byte = unsafe { black_box(first).read_volatile() };
    free();
    byte
}

/// A slot of a table that was, or was not, written before it is looked at.
fn slot(is_written: bool) -> bool {
    let mut slot = MaybeUninit::<u64>::uninit();
    if black_box(is_written) {
        slot.write(7);
    }
    // SAFETY: it was written, or that is the bug.
    unsafe { slot.assume_init() == 7 }
}

/// A payload that is reached by a reference and by a pointer that is older than it.
fn payload(is_aliased: bool) -> u64 {
    let mut payload = 7u64;
    let old: *mut u64 = &raw mut payload;
    let new = &mut payload;
    if is_aliased {
        // SAFETY: none: `new` is used afterwards, and says that nothing else reaches the payload.
        unsafe { *old += 1 };
    }
    *new += 1;
    *new
}

fn main() {
    let bug = std::env::args().nth(1).unwrap_or_default();
    match bug.as_str() {
        "none" => {
            hand_over(Ordering::Release, Ordering::Acquire);
            ring(false);
            slot(true);
            payload(false);
        }
        "race" => drop(black_box(hand_over(Ordering::Relaxed, Ordering::Relaxed))),
        "use-after-free" => drop(black_box(ring(true))),
        "uninitialised" => drop(black_box(slot(false))),
        "aliasing" => drop(black_box(payload(true))),
        other => panic!("no bug '{other}'"),
    }
    println!("planted: '{bug}' was not found");
}
