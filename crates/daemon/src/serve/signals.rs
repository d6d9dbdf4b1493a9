//! The signals of a server, from its start to its end.
//!
//! One thread handles them. Before the server serves, the first signal ends the program, after undoing the layout of a
//! file. While it serves, SIGHUP reloads the configuration and the other signals drain the server. While it drains,
//! they end the program.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use std::io;
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

/// The action that a signal requests of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// Reload the configuration.
    Reload,
    /// Answer the requests in flight, and end.
    Drain,
}

/// The server is starting, and has nothing to undo.
const OPENS: u8 = 0;
const LAYS_OUT: u8 = 1;
const SERVES: u8 = 2;
const ENDS: u8 = 3;

/// The phase of the program, shared with the signal thread. The layout and a signal each write one variable and then
/// read the other, so both accesses are sequentially consistent; no other data is published with them.
#[derive(Debug, Default)]
struct Progress {
    phase: AtomicU8,
    stop: AtomicBool,
}

/// The signal thread, and the channel from it.
#[derive(Debug)]
pub struct Heard {
    progress: Arc<Progress>,
    asked: Receiver<Asked>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Heard {
    /// Starts handling signals.
    ///
    /// # Errors
    /// If the system refuses handlers or threads.
    pub fn start() -> io::Result<Self> {
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
        let progress = Arc::new(Progress::default());
        let handle = signals.handle();
        let (sender, asked) = mpsc::channel();
        let known = Arc::clone(&progress);
        let hear = move || signals.forever().for_each(|signal| known.hear(signal, &sender));
        let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(hear)?;
        Ok(Self { progress, asked, handle, thread: Some(thread) })
    }

    /// Runs `work`, which lays out a file. It must poll its flag, and undo everything once the flag is set.
    pub fn laying_out<R>(&self, work: impl FnOnce(&AtomicBool) -> R) -> R {
        self.progress.phase.store(LAYS_OUT, Ordering::SeqCst);
        let done = work(&self.progress.stop);
        // A signal that saw the layout has set the flag, and no later one does.
        self.progress.phase.store(OPENS, Ordering::SeqCst);
        if self.progress.stop.load(Ordering::SeqCst) {
            too_early();
        }
        done
    }

    /// Notes that the server serves: signals are queued for [`wait`](Self::wait) from now on.
    pub fn serves(&self) {
        self.progress.phase.store(SERVES, Ordering::Relaxed);
    }

    /// Returns false once a signal has asked for the end.
    pub fn is_serving(&self) -> bool {
        self.progress.phase.load(Ordering::Relaxed) == SERVES
    }

    /// Waits for the next signal.
    pub fn wait(&self) -> Asked {
        // Without the signal thread, nothing could end the server later.
        let asked = self.asked.recv().unwrap_or(Asked::Drain);
        if asked == Asked::Drain {
            self.progress.phase.store(ENDS, Ordering::Relaxed);
        }
        asked
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // The handle is closed, so the thread has ended.
            let _ = thread.join();
        }
    }
}

fn too_early() -> ! {
    tracing::warn!("a signal came before the server was ready");
    exit(1);
}

impl Progress {
    fn hear(&self, signal: i32, asked: &Sender<Asked>) {
        let is_end = signal != SIGHUP;
        match self.phase.load(Ordering::SeqCst) {
            SERVES if is_end => {
                // Set here, so that the next signal ends the program even if this one has not been handled yet.
                self.phase.store(ENDS, Ordering::Relaxed);
                let _ = asked.send(Asked::Drain);
            }
            SERVES => {
                let _ = asked.send(Asked::Reload);
            }
            // The first signal during a layout sets the flag; the layout then ends the program.
            LAYS_OUT if is_end && !self.stop.swap(true, Ordering::SeqCst) => {}
            OPENS if is_end => too_early(),
            _ if is_end => exit(1),
            _ => {}
        }
    }
}
