//! A worker: one thread with an event loop, its connections, and one client of every disk.
//!
//! In a turn of the loop the worker reads its sockets, parses the input, and queues the I/Os in the plugs of its
//! clients. Then it flushes the plugs, reaps completed I/Os, and sends the replies with one write for each connection.
//! If the device completes an I/O immediately, its reply is sent in the same turn.
//!
//! | file | step |
//! |---|---|
//! | `../waiting.rs` | sleep until there is an event |
//! | `sockets.rs` | receive handshakes, requests and payloads; send replies; close connections |
//! | `admission.rs` | admit or refuse clients, and limit the handshakes in progress |
//! | `connection.rs` | the state of a connection, and write payloads that arrive in their buffers |
//! | `serve.rs` | convert requests to I/Os, and completions to replies or the next portion or step of a long request |
//! | `places.rs` | the connections, the order of service among greedy ones, and deadlines |
//!
//! Back-pressure comes from the credit of the disk clients and from the limits of connections: a connection at its
//! limit is not read.

mod admission;
mod connection;
mod places;
mod serve;
mod sockets;
#[cfg(test)]
mod tests;

use crate::allow::Gate;
use crate::bounds::{Bounds, Guest, Tenants};
use crate::clients::Clients;
use crate::disk::Disk;
use crate::export::Catalog;
use crate::figures::{Counting, Judge};
use crate::flight::Key;
use crate::log::Refusals;
use crate::stream::Stream;
use crate::threads::{Devices, Inbox, Message};
use crate::tls::Tls;
use crate::waiting::{DiskClient, Sleeper};
use admission::Admission;
use blkmq::{Clock, Nanos};
use blkmq_nbd::server::Config;
use connection::CAPACITY;
use places::{Deadlines, Places, Turns};
use rustix::event::epoll;
use serve::Requests;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Event numbers: the inbox, then the disks, then connections from [`CONNECTIONS`] on.
const INBOX: u64 = 0;
const DISKS: u64 = 1;
const CONNECTIONS: u64 = 1 << 32;
/// The maximum number of events taken from the kernel at a time.
const EVENTS: usize = 128;
/// How long idle connections stay open after a drain has begun, so that the reply to their next request reports it.
const GRACE: Nanos = Nanos::from_millis(100);

/// The state that all workers of a server share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) disks: Vec<Disk>,
    pub(crate) exports: Catalog,
    pub(crate) bounds: Bounds,
    /// The maximum number of handshakes in progress on each worker.
    pub(crate) handshakes: usize,
    pub(crate) handshake: Config,
    pub(crate) tls: Option<Tls>,
    /// The clients that may use the server.
    pub(crate) allow: Gate,
    pub(crate) tenants: Arc<Tenants>,
    pub(crate) refusals: Arc<Refusals>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) judge: Judge,
    pub(crate) counting: Counting,
    pub(crate) devices: Devices,
    /// For each worker, the number of its periodic checks, at least one per second; wraps around.
    pub(crate) beats: Vec<AtomicU32>,
}

pub(crate) struct Worker {
    /// The index of the worker.
    number: usize,
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    sleeper: Sleeper,
    clock: Clock,
    connections: Places,
    requests: Requests,
    admission: Admission,
    deadlines: Deadlines,
    /// The input buffer of all connections. Unparsed bytes are kept with their connection, and precede its next input.
    input: Box<[u8]>,
    /// Connections that wait for their turn. While there are any, the worker does not sleep: no event announces bytes
    /// that have already been read.
    turns: Turns,
    /// Connections with an event that are in their handshakes. They are served after the others.
    newcomers: Vec<Key>,
    /// Connections below their own limits that wait because the worker is at its limit.
    crowded: Vec<Key>,
    /// Whether the drain takes no requests, so that clients send them to the next server.
    hands_over: bool,
    stopped: bool,
}

impl Worker {
    /// # Errors
    /// If the system has no descriptors left, or the disks have no place for another worker.
    pub(crate) fn new(number: usize, shared: Arc<Shared>, inbox: Arc<Inbox>) -> io::Result<Self> {
        let clock = Clock::start();
        let sleeper = Sleeper::new(clock)?;
        sleeper.watch(&*inbox, INBOX)?;
        let mut clients = Vec::new();
        for (number, disk) in (DISKS..).zip(&shared.disks) {
            let mut client = disk.service().client().map_err(io::Error::other)?;
            sleeper.watch(client.event_fd()?, number)?;
            clients.push(DiskClient::new(client));
        }
        Ok(Self {
            number,
            inbox,
            sleeper,
            clock,
            connections: Places::default(),
            requests: Requests::new(Arc::clone(&shared), clients),
            admission: Admission::new(Arc::clone(&shared), clock),
            deadlines: Deadlines::new(Arc::clone(&shared), clock.now()),
            input: vec![0; CAPACITY].into_boxed_slice(),
            turns: Turns::default(),
            newcomers: Vec::new(),
            crowded: Vec::new(),
            hands_over: false,
            stopped: false,
            shared,
        })
    }

    /// Serves until it is asked to stop, or has drained.
    ///
    /// # Errors
    /// If the kernel refuses to wait.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        while !self.is_done() {
            self.wait(&mut events)?;
            self.take_turn(&mut events);
        }
        Ok(())
    }

    /// Sleeps until there is something to do.
    fn wait(&mut self, events: &mut Vec<epoll::Event>) -> io::Result<()> {
        let tick = self.deadlines.tick - self.clock.now();
        let most = if self.turns.is_empty() { tick } else { Nanos::ZERO };
        self.sleeper.wait((DISKS, &mut self.requests.clients), most, events)
    }

    /// Handles the events, within the limits of a turn.
    fn take_turn(&mut self, events: &mut Vec<epoll::Event>) {
        self.requests.turn.begin();
        let mut has_mail = false;
        for event in events.drain(..) {
            match event.data.u64() {
                INBOX => has_mail = true,
                number if number < CONNECTIONS => {
                    self.requests.clients[(number - DISKS) as usize].is_called = true;
                }
                number => self.hear((number - CONNECTIONS) as u32, event.flags),
            }
        }
        self.serve_line();
        self.finish();
        if has_mail || !self.newcomers.is_empty() {
            self.welcome(has_mail);
        }
        self.look_at_the_clock();
    }

    fn is_done(&self) -> bool {
        let Some(since) = self.requests.draining.filter(|_| !self.stopped) else {
            return self.stopped;
        };
        let requests = self.requests.flights.len();
        let connections =
            self.connections.iter().filter(|place| place.connection.is_some()).count();
        let is_drained = (requests, connections) == (0, 0);
        let is_late = self.clock.now() >= since + self.shared.bounds.drain;
        if is_late && !is_drained {
            tracing::warn!(requests, connections, "a drain takes too long and is given up");
        }
        is_drained || is_late
    }

    /// Serves new connections and handshakes, after the other connections.
    fn welcome(&mut self, has_mail: bool) {
        if has_mail {
            self.read_inbox();
        }
        let mut newcomers = std::mem::take(&mut self.newcomers);
        newcomers.drain(..).for_each(|key| self.read(key));
        self.newcomers = newcomers;
        self.finish();
    }

    fn read_inbox(&mut self) {
        for message in self.inbox.take() {
            match message {
                Message::Connection(stream, guest) => self.accept(stream, guest),
                Message::Stop => self.stopped = true,
                Message::Drain | Message::HandOver => {
                    self.hands_over |= matches!(message, Message::HandOver);
                    self.requests.draining = self.requests.draining.or(Some(self.clock.now()));
                }
            }
        }
    }

    fn accept(&mut self, stream: Stream, guest: Guest) {
        if !self.admission.may_begin(&stream, &guest) {
            return;
        }
        let one_too_many = self.admission.close_one_too_many(&mut self.connections);
        one_too_many.into_iter().for_each(|key| self.settle(key));
        let key = self.connections.free();
        if stream.prepare().is_err()
            || self.sleeper.watch(&stream, CONNECTIONS + u64::from(key.place)).is_err()
        {
            tracing::warn!("a connection could not be watched and is closed");
            return;
        }
        self.connections.put_back(Box::new(self.admission.begin(key, stream, guest)));
        self.connections.list(key);
    }

    /// Once a second, and more often during a drain: ends connections that are too slow, revoked, ended by an operator,
    /// or idle in a drain.
    fn look_at_the_clock(&mut self) {
        let now = self.clock.now();
        if let Some(since) = self.requests.draining {
            let from = if self.hands_over { since } else { since + GRACE };
            let idle = self.deadlines.close_idle(now, from, &mut self.connections);
            self.settle_all(idle);
        }
        if !self.deadlines.are_due(now) {
            return;
        }
        // After a change of scheduler, a disk keeps the old one until its clients have noticed the change.
        self.requests.clients.iter_mut().for_each(|disk| disk.is_called = true);
        // Relaxed: a sign of life that orders nothing.
        self.shared.beats[self.number].fetch_add(1, Ordering::Relaxed);
        let revoked = self.deadlines.close_revoked(&mut self.connections);
        self.settle_all(revoked);
        let unwanted = self.deadlines.end_unwanted(now, &mut self.connections);
        self.settle_all(unwanted);
        let slow = self.deadlines.close_slow(now, &mut self.connections);
        self.settle_all(slow);
    }

    fn settle_all(&mut self, ending: Vec<Key>) {
        ending.into_iter().for_each(|key| self.settle(key));
    }
}
