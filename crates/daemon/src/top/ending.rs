//! The end of `top` from outside: SIGTERM, SIGHUP, and the hang-up of its terminal.
//!
//! The main thread looks at a flag and ends in good order. It may be unable to: crossterm reads a terminal that has hung
//! up in a loop that does not return, and output to a terminal that is stopped (Ctrl-S) blocks. Threads of this file then
//! end the program.

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

/// After a signal the main thread has this long to put the terminal back: ten of its looks at the flag.
const GRACE: Duration = Duration::from_secs(1);

/// Whether the program is to end.
pub struct Ending {
    due: Arc<AtomicBool>,
}

impl Ending {
    /// Watches the signals and the terminal at standard input until the program ends.
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
        // Nothing else is published with it.
        self.due.load(Ordering::Relaxed)
    }
}

fn end_on(mut signals: Signals, due: &AtomicBool) {
    for signal in signals.forever() {
        due.store(true, Ordering::Relaxed);
        // Nothing unparks this thread: the program ends in the meantime, or it is stuck.
        thread::park_timeout(GRACE);
        // Sets attributes only, so it does not block; the screen stays as it is.
        let _ = terminal::disable_raw_mode();
        let _ = emulate_default_handler(signal);
    }
}

/// Ends the program as SIGHUP does when the terminal has hung up: nothing is left to be put back. The signal itself only
/// comes to the process group in the foreground.
fn end_with_terminal() {
    let input = io::stdin();
    // Without events to wait for, poll(2) returns for hang-up and errors only.
    let mut terminal = [PollFd::new(input.as_fd(), nix::poll::PollFlags::empty())];
    while let Err(nix::errno::Errno::EINTR) = poll(&mut terminal, PollTimeout::NONE) {}
    let _ = emulate_default_handler(SIGHUP);
}
