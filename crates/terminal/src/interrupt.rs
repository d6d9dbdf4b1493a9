//! Signals that end a run early: after the first, runs end in good order and print their results; a second one ends the
//! program immediately.
//!
//! This file stops nothing itself: runs look at their [`Stop`]. The server hears these signals itself.

use blkmq_core::{Instant, Nanos};
use blkmq_runtime::Clock;
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Builder;

/// The exit code of a program that a signal has ended; fio's.
pub const EXIT: u8 = 128;

/// Signals closer together are one: `timeout` sends its signal to the program and again to all of its group.
const ONE: Nanos = Nanos::from_millis(500);

/// Makes writes beyond the file size limit (`ulimit -f`, `LimitFSIZE=`) fail with EFBIG. Their signal, SIGXFSZ, would end the
/// program, and the connections of a server with it.
pub fn outlive_the_limit_of_files() {
    // A handler that only sets a flag. Without it the signal has its usual effect.
    let _ = flag::register(SIGXFSZ, Arc::default());
}

/// Says whether a run is to end now. Copies agree.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// The signal; 0 without any.
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// Returns a stop that is set by the first signal that asks the program to end. A later one ends the program
    /// immediately.
    pub fn on_signals() -> Self {
        let (stop, asked) = (Self::default(), [SIGINT, SIGTERM]);
        // If no handler can be installed, signals end the program as they do by default.
        let Ok(signals) = Signals::new(asked) else { return stop };
        let watched = stop.clone();
        let watcher = Builder::new().name("signals".into()).spawn(move || watched.watch(signals));
        if watcher.is_err() {
            // Without a thread the first signal has to end the program, since nothing else would notice it.
            for signal in asked {
                let at_once = Arc::new(AtomicBool::new(true));
                let _ = flag::register_conditional_shutdown(signal, EXIT.into(), at_once);
            }
        }
        stop
    }

    fn watch(&self, mut signals: Signals) {
        let clock = Clock::start();
        let mut first: Option<Instant> = None;
        for signal in signals.forever() {
            let now = clock.now();
            if now - *first.get_or_insert(now) >= ONE {
                low_level::exit(EXIT.into());
            }
            // Nothing else is published with it.
            self.signal.store(signal as usize, Ordering::Relaxed);
        }
    }

    /// The signal, if there was one.
    pub fn signal(&self) -> Option<i32> {
        match self.signal.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(signal as i32),
        }
    }

    /// Returns whether the run is to end.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.signal().is_some()
    }

    /// Ends the runs, as Ctrl-C does.
    pub fn set(&self) {
        // Nothing else is published with it.
        self.signal.store(SIGINT as usize, Ordering::Relaxed);
    }

    /// A stop as after Ctrl-C.
    #[must_use]
    pub fn after_ctrl_c() -> Self {
        Self { signal: Arc::new(AtomicUsize::new(SIGINT as usize)) }
    }
}
