//! The signals of a server, from its first moment to its last.
//!
//! One thread hears them. Before the server serves, the first one ends the program, once a file that is being laid out is
//! taken back; then SIGHUP has it read its file again and the others have it drain; and while it drains, they end it.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use std::io;
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

/// The wish of a signal to a server that serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// Read the file again.
    Reload,
    /// Answer the requests in flight, and end.
    Drain,
}

/// Nothing is served; there is nothing to take back.
const OPENS: u8 = 0;
const LAYS_OUT: u8 = 1;
const SERVES: u8 = 2;
const ENDS: u8 = 3;

/// The program, as the thread that hears signals knows it. The layout and a signal each write one and then read the other, so
/// both are ordered; nothing else is published with them.
#[derive(Debug, Default)]
struct Progress {
    phase: AtomicU8,
    stop: AtomicBool,
}

/// The thread, and the way to it.
#[derive(Debug)]
pub struct Heard {
    progress: Arc<Progress>,
    asked: Receiver<Asked>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Heard {
    /// Hears signals from now on.
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

    /// Lays a file out: `work` looks at its flag now and then, and takes everything back once the flag is set.
    pub fn laying_out<R>(&self, work: impl FnOnce(&AtomicBool) -> R) -> R {
        self.progress.phase.store(LAYS_OUT, Ordering::SeqCst);
        let done = work(&self.progress.stop);
        // A signal that still saw the layout has set it, and no other one does.
        self.progress.phase.store(OPENS, Ordering::SeqCst);
        if self.progress.stop.load(Ordering::SeqCst) {
            too_early();
        }
        done
    }

    /// The server begins to serve: signals are kept for [`wait`](Self::wait) from now on.
    pub fn serves(&self) {
        self.progress.phase.store(SERVES, Ordering::Relaxed);
    }

    /// Returns false once a signal has come that ends the program.
    pub fn is_serving(&self) -> bool {
        self.progress.phase.load(Ordering::Relaxed) == SERVES
    }

    /// Waits for a signal.
    pub fn wait(&self) -> Asked {
        // Without the thread nothing could end the server.
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
            // It has ended: the handle is closed.
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
                // The next one ends the program, even if this one has not been taken yet.
                self.phase.store(ENDS, Ordering::Relaxed);
                let _ = asked.send(Asked::Drain);
            }
            SERVES => {
                let _ = asked.send(Asked::Reload);
            }
            // The first one; the layout ends the program.
            LAYS_OUT if is_end && !self.stop.swap(true, Ordering::SeqCst) => {}
            OPENS if is_end => too_early(),
            _ if is_end => exit(1),
            _ => {}
        }
    }
}
