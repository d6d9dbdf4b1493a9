//! Waits for the work of other threads.

use blkmq::{Clock, Nanos};

/// Waits until `is_so` returns true.
///
/// # Panics
/// After a minute: a defect must fail the test instead of hanging it.
#[track_caller]
pub fn until(is_so: impl Fn() -> bool) {
    let clock = Clock::start();
    let last = clock.now() + Nanos::from_secs(60);
    while !is_so() {
        assert!(clock.now() < last, "this has not come about");
        std::thread::yield_now();
    }
}
