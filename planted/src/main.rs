//! Planted memory bugs, to check that Miri and the sanitizers find them: `planted BUG`, or `planted none`.
//!
//! Each bug is one that a block layer can have: a payload that is read without waiting for its writer, a ring that is
//! read after it was freed, a slot that is read before it was written, a payload with two aliasing pointers.

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

/// A payload that one thread hands to another.
struct Handed {
    payload: UnsafeCell<u64>,
    is_ready: AtomicBool,
}

// SAFETY: none. The orderings that the caller of `hand_over` passes decide whether there is a race for the payload.
unsafe impl Sync for Handed {}

/// One thread writes a payload and sets a flag; another thread reads the payload once it sees the flag.
fn hand_over(store: Ordering, load: Ordering) -> u64 {
    let handed = &Handed { payload: UnsafeCell::new(0), is_ready: AtomicBool::new(false) };
    std::thread::scope(|scope| {
        // The handle is kept until the end: dropping the handle of a finished thread would order that thread's accesses
        // before this thread's.
        let writer = scope.spawn(|| {
            // SAFETY: no other thread accesses the payload before `is_ready` is set, if the store is a release.
            unsafe { *handed.payload.get() = 7 };
            handed.is_ready.store(true, store);
        });
        while !handed.is_ready.load(load) {
            std::thread::yield_now();
        }
        // SAFETY: the payload is written, if the load was an acquire.
        let payload = unsafe { *handed.payload.get() };
        writer.join().expect("it only writes");
        payload
    })
}

/// Reads a byte of a ring, before or after the ring is freed.
fn ring(is_freed: bool) -> u8 {
    let ring = Box::into_raw(vec![7u8; 64].into_boxed_slice());
    let first = ring.cast::<u8>();
    // SAFETY: the pointer comes from `Box::into_raw`.
    let free = || drop(unsafe { Box::from_raw(ring) });
    if is_freed {
        free();
        // SAFETY: none; this is the bug.
        return unsafe { black_box(first).read_volatile() };
    }
    // SAFETY: the ring is not freed yet.
    let byte = unsafe { black_box(first).read_volatile() };
    free();
    byte
}

/// Reads a slot of a table that was, or was not, written.
fn slot(is_written: bool) -> bool {
    let mut slot = MaybeUninit::<u64>::uninit();
    if black_box(is_written) {
        slot.write(7);
    }
    // SAFETY: the slot was written if `is_written`; otherwise this is the bug.
    unsafe { slot.assume_init() == 7 }
}

/// Writes a payload through a reference and through a pointer that is older than the reference.
fn payload(is_aliased: bool) -> u64 {
    let mut payload = 7u64;
    let old: *mut u64 = &raw mut payload;
    let new = &mut payload;
    if is_aliased {
        // SAFETY: none: `new` is used afterwards, and as a unique reference excludes other accesses to the payload.
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
