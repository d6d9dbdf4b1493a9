//! HTTP of a running server: a page to look at, figures for programs, and a few switches.
//!
//! One thread answers all of it, apart from the data, and a second one exists while a setting is changed. It is HTTP/1.1
//! with one request for each connection, and knows no more of it than browsers, curl and Prometheus need: decision 16
//! says why no library does it. Everything has a bound, in [`limits`]. It is off unless a listener is given.
//!
//! | path | |
//! |---|---|
//! | `/` | the page, one file that asks nothing of any other host |
//! | `/metrics` | the same counts for [Prometheus](crate::Format) |
//! | `/stat.json`, `/waits.json`, `/list.json` | the answers of [control](crate::control) to `stat`, `stat --waits` and `list` |
//! | `/schedulers.json` | the names of the schedulers, and `auto` |
//! | `/healthz` | 200, or 503 once the server drains |
//! | `/readyz` | 200, or 503 if it takes no further client, or a device is stuck |
//! | POST `/api/scheduler`, `/api/export` | a change, for requests with the key |
//!
//! | file | step |
//! |---|---|
//! | `serving.rs` | the loop: sockets, time, and the thread that changes settings |
//! | `connection.rs` | one connection, from its first byte to its last |
//! | `request.rs` | bytes become a request |
//! | `guard.rs` | requests that another site, or a user without the key, makes are refused |
//! | `routes.rs` | a request becomes an answer, or a change |
//! | `reply.rs` | an answer becomes bytes |

mod bell;
mod connection;
mod guard;
mod key;
mod limits;
mod reply;
mod request;
mod routes;
mod serving;

use crate::guest::Guests;
use crate::listener::Listener;
use crate::worker::Shared;
use bell::Bell;
use key::Key;
use serving::Serving;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

/// The server, as all requests see it.
#[derive(Debug)]
struct Site {
    shared: Arc<Shared>,
    guests: Arc<Guests>,
    /// Names, besides those of this machine and IP addresses, that users have for the server.
    names: Vec<String>,
    key: Key,
    draining: AtomicBool,
}

/// HTTP of a server; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Http {
    site: Arc<Site>,
    stop: Arc<AtomicBool>,
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl Http {
    /// Answers on `listener`. `names` are host names that users have for the server; `localhost` and IP addresses are
    /// known.
    ///
    /// # Errors
    /// If the system has no random numbers, descriptors or threads.
    pub(crate) fn start(
        listener: Listener,
        names: Vec<String>,
        shared: Arc<Shared>,
        guests: Arc<Guests>,
    ) -> io::Result<Self> {
        let draining = AtomicBool::new(false);
        let site = Arc::new(Site { shared, guests, names, key: Key::new()?, draining });
        let (stop, bell) = (Arc::new(AtomicBool::new(false)), Arc::new(Bell::new()?));
        let serving =
            Serving::new(listener, Arc::clone(&site), Arc::clone(&stop), Arc::clone(&bell));
        let thread = Builder::new().name("http".to_owned()).spawn(move || {
            if let Err(error) = serving.run() {
                tracing::error!("HTTP has ended: {error}");
            }
        })?;
        Ok(Self { site, stop, bell, thread: Some(thread) })
    }

    /// The key that changes need.
    pub(crate) fn key(&self) -> &str {
        self.site.key.text()
    }

    /// The server takes no more clients.
    pub(crate) fn drain(&self) {
        self.site.draining.store(true, Ordering::Relaxed);
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported.
            let _ = thread.join();
        }
    }
}
