//! The HTTP loop: it waits for sockets and timeouts, and blocks nowhere else.
//!
//! A change of a setting may wait for the I/Os in flight, so each change has a thread, and the loop keeps answering. A
//! change ends with its connection.

use super::bell::Bell;
use super::connection::{Connection, Step};
use super::reply::{Refusal, Reply};
use super::request::{Method, Request};
use super::routes::{self, Action};
use super::{Site, limits};
use crate::control;
use crate::listener::Listener;
use crate::log::Rarely;
use blkmq::{Clock, Instant};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::Builder;

/// The pause after a connection could not be accepted.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

pub(super) struct Serving {
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
    pub(super) fn run(mut self) -> io::Result<()> {
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
        for _ in 0..limits::CONNECTIONS {
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
            if self.connections.len() >= limits::CONNECTIONS {
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
