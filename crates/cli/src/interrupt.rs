//! Signals that end a run early: after the first, runs end in good order and print their results; the second ends the
//! program at once.
//!
//! This file stops nothing itself: runs look at their [`Stop`]. The server has signals of its own.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The exit code of a program that a signal has ended; fio's.
pub const EXIT: u8 = 128;

/// Says whether a run is to end now. Copies agree.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// The signal; 0 without any.
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// Is set by the first signal that asks the program to end. From then on a second one ends the program at once.
    pub fn on_signals() -> Self {
        let (stop, asked) = (Self::default(), Arc::new(AtomicBool::new(false)));
        for signal in [SIGINT, SIGTERM] {
            // In the order of registration: at the first signal nothing has been asked yet. If a handler cannot be
            // registered, the signal ends the program as it does by default.
            let _ = flag::register_conditional_shutdown(signal, EXIT.into(), asked.clone());
            let _ = flag::register(signal, asked.clone());
            let _ = flag::register_usize(signal, stop.signal.clone(), signal as usize);
        }
        stop
    }

    /// The signal, if there was one.
    pub fn signal(&self) -> Option<i32> {
        // Nothing else is published by the handler.
        match self.signal.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(signal as i32),
        }
    }

    /// Is the run to end?
    #[inline]
    pub fn is_set(&self) -> bool {
        self.signal().is_some()
    }

    /// A stop as after Ctrl-C.
    #[cfg(test)]
    pub fn after_ctrl_c() -> Self {
        Self { signal: Arc::new(AtomicUsize::new(SIGINT as usize)) }
    }
}
