//! HTTP access to a running server: a web page, figures for programs, and a few switches.
//!
//! One thread answers all requests, separately from the data: it waits for sockets and timeouts, and blocks nowhere
//! else. A change of a setting may wait for the I/Os in flight, so each change has a thread, and ends with its
//! connection. This implements HTTP/1.1 with one request for each connection, and only the features that browsers, curl
//! and Prometheus need: decision 16 says why no library is used. Everything is limited, in `connection.rs`. HTTP is off
//! unless a listener is given.
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
//! | `connection.rs` | one connection, its request and the answer, as bytes |
//! | `routes.rs` | refuses requests of other sites, and of users without the key; maps others to an answer or a change |

mod connection;
mod routes;

use crate::bounds::Guests;
use crate::control;
use crate::listener::Listener;
use crate::log::Rarely;
use crate::worker::Shared;
use blkmq::{Clock, Instant};
use connection::{Connection, Method, Refusal, Reply, Request, Step};
use routes::{Action, Key};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
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

/// The pause after a connection could not be accepted.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

struct Serving {
    listener: Listener,
    site: Arc<Site>,
    stop: Arc<AtomicBool>,
    bell: Arc<Bell>,
    clock: Clock,
    /// Oldest first.
    connections: Vec<Connection>,
    next: u64,
    /// The answers to changes, with the numbers of their connections.
    done: mpsc::Sender<(u64, Reply)>,
    changed: mpsc::Receiver<(u64, Reply)>,
    refused: Rarely,
}

impl Serving {
    pub(super) fn new(
        listener: Listener,
        site: Arc<Site>,
        stop: Arc<AtomicBool>,
        bell: Arc<Bell>,
    ) -> Self {
        let (done, changed) = mpsc::channel();
        Self {
            listener,
            site,
            stop,
            bell,
            clock: Clock::start(),
            connections: Vec::new(),
            next: 0,
            done,
            changed,
            refused: Rarely::default(),
        }
    }

    /// Answers requests until it is asked to stop.
    ///
    /// # Errors
    /// If the kernel refuses to wait.
    fn run(mut self) -> io::Result<()> {
        while !self.stop.load(Ordering::Relaxed) {
            let ready = self.wait()?;
            let now = self.clock.now();
            self.bell.quiet();
            self.take_changed(now);
            // Ready connections are identified by number: their indexes change.
            for number in ready {
                self.visit(number, now, |connection| connection.step(now));
            }
            let is_late = |it: &&Connection| it.deadline.is_some_and(|at| at <= now);
            let late: Vec<u64> =
                self.connections.iter().filter(is_late).map(|it| it.number).collect();
            for number in late {
                self.visit(number, now, |connection| connection.expire(now));
            }
            self.accept(now);
        }
        Ok(())
    }

    /// Sleeps until there is an event, and returns the numbers of the connections that have one.
    fn wait(&self) -> io::Result<Vec<u64>> {
        let soonest = self.connections.iter().filter_map(|it| it.deadline).min();
        let left = soonest.map(|at| (at - self.clock.now()).0);
        let left = left.map(|left| Timespec {
            tv_sec: (left / 1_000_000_000) as i64,
            tv_nsec: (left % 1_000_000_000) as i64,
        });
        let mut watched = vec![
            PollFd::new(&*self.bell, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        watched.extend(self.connections.iter().map(|it| PollFd::new(it, it.interest())));
        match poll(&mut watched, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let events = watched.iter().skip(2).zip(&self.connections);
        let ready = events.filter(|(fd, _)| !fd.revents().is_empty());
        Ok(ready.map(|(_, connection)| connection.number).collect())
    }

    /// Lets the connection with this number take a step, and handles the outcome.
    fn visit(&mut self, number: u64, now: Instant, step: impl FnOnce(&mut Connection) -> Step) {
        let Some(at) = self.connections.iter().position(|it| it.number == number) else { return };
        let connection = &mut self.connections[at];
        let step = match step(connection) {
            Step::Asked(request) => match routes::action(&request, &self.site) {
                Action::Reply(reply) => connection.answer(reply, request.method, now),
                Action::Change(change) => self.change(at, &request, change, now),
            },
            other => other,
        };
        if matches!(step, Step::Over) {
            self.connections.remove(at);
        }
    }

    /// Begins a change.
    fn change(
        &mut self,
        at: usize,
        request: &Request,
        change: control::Request,
        now: Instant,
    ) -> Step {
        let connection = &mut self.connections[at];
        let by = connection.client();
        let (site, bell) = (Arc::clone(&self.site), Arc::clone(&self.bell));
        let (stop, is_open) = (Arc::clone(&self.stop), connection.watch());
        let (number, done) = (connection.number, self.done.clone());
        let started = Builder::new().name("http change".to_owned()).spawn(move || {
            let goes_on = || is_open.strong_count() > 0 && !stop.load(Ordering::Relaxed);
            let origin = control::Origin { way: "HTTP", by: &by };
            let answer = control::audited(change, &site.shared, None, &goes_on, origin);
            let reply = routes::changed(&answer);
            // The loop may have ended.
            let _ = done.send((number, reply));
            bell.ring();
        });
        match started {
            Ok(_) => Step::Stay,
            Err(error) => {
                let why = Refusal::new(503, error.to_string());
                connection.answer(why.into(), request.method, now)
            }
        }
    }

    /// Answers the clients of completed changes.
    fn take_changed(&mut self, now: Instant) {
        while let Ok((number, reply)) = self.changed.try_recv() {
            self.visit(number, now, |connection| connection.answer(reply, Method::Post, now));
        }
    }

    /// Accepts the waiting connections.
    fn accept(&mut self, now: Instant) {
        for _ in 0..connection::CONNECTIONS {
            let stream = match self.listener.accept() {
                Ok(stream) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    self.refused.log(now, |before| {
                        tracing::warn!(before, "a connection for HTTP cannot be accepted: {error}");
                    });
                    let mut bell = [PollFd::new(&*self.bell, PollFlags::IN)];
                    let _ = poll(&mut bell, Some(&PAUSE));
                    return;
                }
            };
            if self.connections.len() >= connection::CONNECTIONS {
                let oldest = self.connections.iter().position(Connection::is_hearing);
                // If no connection can be replaced, this one is closed.
                let Some(oldest) = oldest else { continue };
                self.connections.remove(oldest);
            }
            if let Ok(connection) = Connection::new(stream, self.next, now) {
                self.next += 1;
                self.connections.push(connection);
            }
        }
    }
}

#[derive(Debug)]
struct Bell(OwnedFd);

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    fn ring(&self) {
        // A counter at its maximum wakes the loop as well.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Silences the bell until it is rung again.
    fn quiet(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
