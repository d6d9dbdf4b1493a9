//! Notifies the supervisor of the server in systemd's protocol (`NOTIFY_SOCKET`).
//!
//! Without a supervisor nothing is sent. A message that cannot be sent is logged and otherwise ignored: the server
//! continues.

use blkmq_server::Handle;
use sd_notify::NotifyState;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

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
    pub fn start(handle: Handle) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_does_not_turn_is_stuck() {
        assert_eq!(stuck(&[], &[5, 5]), None, "nothing is known before");
        assert_eq!(stuck(&[5, 5], &[6, 9]), None);
        assert_eq!(stuck(&[5, u32::MAX, 7], &[6, 0, 7]), Some(2));
    }
}
