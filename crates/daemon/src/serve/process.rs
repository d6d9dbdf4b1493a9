//! The process of a server: its signals, from its start to its end, the notices to its supervisor in systemd's protocol
//! (`NOTIFY_SOCKET`), and its log on standard error.
//!
//! One thread handles the signals. Before the server serves, the first signal ends the program, after undoing the
//! layout of a file. While it serves, SIGHUP reloads the configuration and the other signals drain the server. While it
//! drains, they end the program.
//!
//! Without a supervisor nothing is sent. A message that cannot be sent is logged and otherwise ignored: the server
//! continues.

use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{self, Signals};
use std::io;
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, format};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

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
    handle: iterator::Handle,
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

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("the supervisor cannot be told: {error}");
    }
}

/// Reports that the server listens; `serves` is its status text.
pub fn ready(serves: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(serves)]);
}

/// Runs `reload` between the messages that announce its beginning and end.
pub fn reloading<R>(reload: impl FnOnce() -> R) -> R {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!("the supervisor is not told of a reload: {error}"),
    }
    let done = reload();
    tell(&[NotifyState::Ready]);
    done
}

/// Reports that the server will end once it has answered the requests in flight.
pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("answers what is in flight")]);
}

/// The keep-alive messages to the supervisor, sent until this is dropped.
pub struct Watchdog(Option<(Sender<()>, JoinHandle<()>)>);

impl Watchdog {
    /// Sends two messages in the supervisor's timeout, as long as every worker makes progress. Sends none if there is
    /// no timeout.
    pub fn start(handle: blkmq_server::Handle) -> Self {
        let Some(limit) = sd_notify::watchdog_enabled() else { return Self(None) };
        let (stop, stopped) = mpsc::channel::<()>();
        let signs = move || {
            let mut before = Vec::new();
            while stopped.recv_timeout(limit / 2) == Err(RecvTimeoutError::Timeout) {
                let beats = handle.beats();
                match stuck(&before, &beats) {
                    None => tell(&[NotifyState::Watchdog]),
                    Some(worker) => tracing::error!(worker, "a worker is stuck"),
                }
                before = beats;
            }
        };
        if limit < SHORTEST {
            tracing::warn!("WatchdogSec is below {} s; workers may seem stuck", SHORTEST.as_secs());
        }
        let thread = std::thread::Builder::new().name("watchdog".to_owned()).spawn(signs);
        match thread {
            Ok(thread) => Self(Some((stop, thread))),
            Err(error) => {
                tracing::error!("no signs of life will be sent: {error}");
                Self(None)
            }
        }
    }
}

/// An idle worker makes a turn once a second.
const SHORTEST: Duration = Duration::from_secs(4);

/// The first worker whose count has not changed.
fn stuck(before: &[u32], now: &[u32]) -> Option<usize> {
    before.iter().zip(now).position(|(before, now)| before == now)
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.0.take() {
            drop(stop);
            // The thread has no result.
            let _ = thread.join();
        }
    }
}

/// The form of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// Time, level, message, and `key=value`.
    #[default]
    Text,
    /// An object for each line.
    Json,
    /// For the journal, which adds times: a priority such as `<6>`, message, and `key=value`.
    Journald,
}

impl LogFormat {
    /// The names of the formats.
    pub const NAMES: [&str; 3] = ["text", "json", "journald"];

    /// The format with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Text, Self::Json, Self::Journald];
        Self::NAMES.iter().zip(all).find(|(known, _)| **known == name).map(|(_, form)| form)
    }
}

/// Changes the level of the log.
pub type SetLevel = Box<dyn Fn(LevelFilter) -> Result<(), String> + Send + Sync>;

/// Starts logging to standard error. Returns a function that changes the level.
pub fn start_log(level: LevelFilter, form: LogFormat) -> SetLevel {
    let (filter, handle) = tracing_subscriber::reload::Layer::new(level);
    let lines = fmt::layer().with_writer(io::stderr).with_ansi(false).with_target(false);
    let lines = match form {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
        LogFormat::Journald => lines.event_format(Journald::default()).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(lines).init();
    Box::new(move |level| handle.reload(level).map_err(|e| e.to_string()))
}

/// Prefixes lines with the priority by which the journal files them.
struct Journald(Format<format::Full, ()>);

impl Default for Journald {
    fn default() -> Self {
        Self(format().without_time().with_level(false).with_target(false).with_ansi(false))
    }
}

/// The priority, as in `<syslog.h>`.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

impl<S, N> FormatEvent<S, N> for Journald
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_does_not_turn_is_stuck() {
        assert_eq!(stuck(&[], &[5, 5]), None, "nothing is known before");
        assert_eq!(stuck(&[5, 5], &[6, 9]), None);
        assert_eq!(stuck(&[5, u32::MAX, 7], &[6, 0, 7]), Some(2));
    }

    #[test]
    fn every_form_has_a_name() {
        for name in LogFormat::NAMES {
            assert!(LogFormat::named(name).is_some(), "{name}");
        }
        assert_eq!(LogFormat::named("syslog"), None);
    }

    #[test]
    fn the_journal_gets_priorities_of_syslog() {
        let all = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG];
        assert_eq!(all.map(priority), [3, 4, 6, 7]);
    }
}
