//! HTTP access to a running server: a web page, figures for programs, and a few switches.
//!
//! One thread answers all requests, separately from the data, and another exists while a setting is being changed. It
//! implements HTTP/1.1 with one request for each connection, and only the features that browsers, curl and Prometheus
//! need: decision 16 says why no library is used. Everything is limited, in [`limits`]. HTTP is off unless a listener
//! is given.
//!
//! | path | |
//! |---|---|
//! | `/` | the page, one file that loads nothing from any other host |
//! | `/metrics` | the same counts for [Prometheus](crate::Format) |
//! | `/stat.json`, `/waits.json`, `/list.json` | the answers of [control](crate::control) to `stat`, `stat --waits` and `list` |
//! | `/schedulers.json` | the names of the schedulers, and `auto` |
//! | `/healthz` | 200, or 503 once the server drains |
//! | `/readyz` | 200, or 503 if it accepts no further client, or a device is stuck |
//! | POST `/api/scheduler`, `/api/export` | a change, for requests with the key |
//!
//! | file | step |
//! |---|---|
//! | `serving.rs` | the loop: sockets, time, and the thread that changes settings |
//! | `connection.rs` | one connection, from its first byte to its last |
//! | `request.rs` | parses requests |
//! | `guard.rs` | refuses requests of other sites, and of users without the key |
//! | `routes.rs` | maps a request to an answer or a change |
//! | `reply.rs` | encodes answers |

mod bell;
mod connection;
mod guard;
mod key;
mod limits;
mod reply;
mod request;
mod routes;
mod serving;

use crate::bounds::Guests;
use crate::listener::Listener;
use crate::worker::Shared;
use bell::Bell;
use key::Key;
use serving::Serving;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

/// The server, shared by all requests.
#[derive(Debug)]
struct Site {
    shared: Arc<Shared>,
    guests: Arc<Guests>,
    /// Host names of the server, besides those of this machine and IP addresses.
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
    /// Answers on `listener`. `names` are accepted host names, besides `localhost` and IP addresses.
    ///
    /// # Errors
    /// If the system cannot provide random numbers, descriptors or threads.
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

    /// Notes that the server accepts no more clients.
    pub(crate) fn drain(&self) {
        self.site.draining.store(true, Ordering::Relaxed);
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has already been reported.
            let _ = thread.join();
        }
    }
}
