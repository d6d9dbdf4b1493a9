//! Ends `top` from outside: on SIGTERM, on SIGHUP, and when its terminal hangs up.
//!
//! Normally the main thread polls a flag and ends cleanly. It may be stuck: crossterm loops for ever on a terminal that
//! has hung up, and output to a stopped terminal (Ctrl-S) blocks. Then the threads of this file end the program.

use crossterm::terminal;
use nix::poll::{PollFd, PollTimeout, poll};
use signal_hook::consts::{SIGHUP, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Builder};
use std::time::Duration;

/// How long the main thread has to restore the terminal after a signal: ten polls of the flag.
const GRACE: Duration = Duration::from_secs(1);

/// Whether the program must end.
pub struct Ending {
    due: Arc<AtomicBool>,
}

impl Ending {
    /// Watches signals, and the terminal at standard input, until the program ends.
    ///
    /// # Errors
    /// If the system refuses handlers or threads.
    pub fn watch() -> io::Result<Self> {
        let due = Arc::new(AtomicBool::new(false));
        let (told, signals) = (Arc::clone(&due), Signals::new([SIGTERM, SIGHUP])?);
        Builder::new().name("signals".into()).spawn(move || end_on(signals, &told))?;
        Builder::new().name("terminal".into()).spawn(end_with_terminal)?;
        Ok(Self { due })
    }

    /// Returns whether a signal has asked for the end.
    pub fn is_due(&self) -> bool {
        // Relaxed: no other data is published with the flag.
        self.due.load(Ordering::Relaxed)
    }
}

fn end_on(mut signals: Signals, due: &AtomicBool) {
    for signal in signals.forever() {
        due.store(true, Ordering::Relaxed);
        // Nothing unparks this thread: if it wakes, the main thread is stuck.
        thread::park_timeout(GRACE);
        // This only sets attributes, so it does not block; the contents of the screen stay.
        let _ = terminal::disable_raw_mode();
        let _ = emulate_default_handler(signal);
    }
}

/// Ends the program when the terminal hangs up, as SIGHUP does: there is no terminal to restore. The signal itself only
/// reaches the foreground process group.
fn end_with_terminal() {
    let input = io::stdin();
    // With no requested events, poll(2) returns only for hang-ups and errors.
    let mut terminal = [PollFd::new(input.as_fd(), nix::poll::PollFlags::empty())];
    while let Err(nix::errno::Errno::EINTR) = poll(&mut terminal, PollTimeout::NONE) {}
    let _ = emulate_default_handler(SIGHUP);
}
