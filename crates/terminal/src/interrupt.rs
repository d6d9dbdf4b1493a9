//! Signals that end a run early. After the first signal, runs stop cleanly and print their results; a second one ends
//! the program immediately.
//!
//! This module stops nothing: runs poll their [`Stop`]. The server handles these signals separately.

use blkmq_core::{Instant, Nanos};
use blkmq_runtime::Clock;
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Builder;

/// The exit code of a program that a signal has ended, as in fio.
pub const EXIT: u8 = 128;

/// Signals less than this apart count as one: `timeout` signals the program and then its whole process group.
const ONE: Nanos = Nanos::from_millis(500);

/// Makes writes beyond the file size limit (`ulimit -f`, `LimitFSIZE=`) fail with EFBIG. By default SIGXFSZ would end
/// the program, and with it all connections of a server.
pub fn outlive_the_limit_of_files() {
    // A handler that only sets a flag suppresses the default action of the signal.
    let _ = flag::register(SIGXFSZ, Arc::default());
}

/// Says whether a run is to end. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// The signal number; 0 if none has arrived.
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// Returns a stop that is set by the first signal that asks the program to end. A later signal ends the program
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
            // Relaxed: no other data is published with the signal.
            self.signal.store(signal as usize, Ordering::Relaxed);
        }
    }

    /// The signal, or `None` if none has arrived.
    pub fn signal(&self) -> Option<i32> {
        match self.signal.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(signal as i32),
        }
    }

    /// Returns whether the run must end.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.signal().is_some()
    }

    /// Ends the runs, as Ctrl-C does.
    pub fn set(&self) {
        // Relaxed: no other data is published with the signal.
        self.signal.store(SIGINT as usize, Ordering::Relaxed);
    }

    /// A stop that is already set, as after Ctrl-C.
    #[must_use]
    pub fn after_ctrl_c() -> Self {
        Self { signal: Arc::new(AtomicUsize::new(SIGINT as usize)) }
    }
}
