//! Waiting for something that other threads do.

use blkmq::{Clock, Nanos};

/// Waits until it is so.
///
/// # Panics
/// After a minute: a defect fails the test then, and does not hang it.
#[track_caller]
pub fn until(is_so: impl Fn() -> bool) {
    let clock = Clock::start();
    let last = clock.now() + Nanos::from_secs(60);
    while !is_so() {
        assert!(clock.now() < last, "this has not come about");
        std::thread::yield_now();
    }
}
