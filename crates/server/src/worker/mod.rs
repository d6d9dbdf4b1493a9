//! A worker: one thread with an event loop, its connections, and one client of every disk.
//!
//! A turn of the loop reads what sockets have, parses all of it, and pushes the I/Os into the plugs of the clients;
//! then it flushes the plugs, reaps what has completed, and sends the replies, one write for each connection. A device
//! that completes at once is answered in the turn in which it was asked.
//!
//! | file | step |
//! |---|---|
//! | `hear.rs` | bytes arrive: handshake, or requests |
//! | `arriving.rs` | payloads of writes come into their buffers |
//! | `serve.rs` | requests become I/Os |
//! | `portions.rs` | a portion of a long request, in each turn of its connection |
//! | `status.rs` | requests about holes, which need none |
//! | `turns.rs` | the order among clients with much to do |
//! | `spin.rs` | whether to look a little longer before sleeping |
//! | `finish.rs` | completions become replies, and replies are sent |
//!
//! Back-pressure is the credit of the clients, and the bounds of connections: a connection without room is not read.

mod arriving;
mod connection;
mod finish;
mod hear;
mod portions;
mod serve;
mod spin;
mod status;
#[cfg(test)]
mod tests;
mod turns;

use crate::bounds::Bounds;
use crate::buffers::Buffers;
use crate::counting::Counting;
use crate::disk::Disk;
use crate::export::Catalog;
use crate::flight::{Cookie, Flights, Key};
use crate::guest::{Guest, UnderWay, one_too_many};
use crate::inbox::{Inbox, Message};
use crate::input::Input;
use crate::rarely::Rarely;
use crate::stream::Stream;
use crate::tls::Tls;
use blkmq::{AlignedBuf, Client, Clock, Instant, IoResult, Nanos, Sleep};
use blkmq_nbd::server::{Config, Handshake};
use connection::{Connection, Phase};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use spin::Spin;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use turns::Turns;

/// The numbers of events: the inbox, then the disks, then connections from [`CONNECTIONS`] on.
const INBOX: u64 = 0;
const DISKS: u64 = 1;
const CONNECTIONS: u64 = 1 << 32;
/// Events taken from the kernel at a time.
const EVENTS: usize = 128;
/// How many times the bytes of a turn all connections with an event may spend: many clients with small requests are not
/// slowed by the bound. And the bytes that each may spend beyond.
const TOGETHER: usize = 2;
const LITTLE: usize = 16 << 10;
/// How often connections that keep the worker waiting are looked at, at least.
const TICK: Nanos = Nanos::from_millis(1000);
/// After a drain has begun, idle connections stay open for this long, so that clients learn of it from the answer to
/// their next request.
const GRACE: Nanos = Nanos::from_millis(100);

/// What all workers of a server share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) disks: Vec<Disk>,
    pub(crate) exports: Catalog,
    pub(crate) bounds: Bounds,
    /// The handshakes that each worker may have under way.
    pub(crate) handshakes: usize,
    pub(crate) handshake: Config,
    pub(crate) tls: Option<Tls>,
    pub(crate) counting: Counting,
    /// By worker: how often it has looked at the clock. A worker that does nothing else looks every second.
    pub(crate) beats: Vec<AtomicU32>,
}

/// An I/O that has ended.
struct Ended {
    cookie: Cookie,
    result: IoResult,
    payload: AlignedBuf,
}

/// The worker's client of a disk. Without I/Os of its own in flight it is left alone: a thread that looks at a disk does
/// whatever is due there, for other workers too, and these wait while it is kept from that by clients of its own.
struct DiskClient {
    client: Client<AlignedBuf>,
    /// Its descriptor has an event: there may be work that others count on.
    is_called: bool,
}

impl DiskClient {
    fn has_work(&self) -> bool {
        self.is_called || self.client.outstanding() > 0
    }
}

pub(crate) struct Worker {
    /// Its place among the workers.
    number: usize,
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    epoll: OwnedFd,
    clock: Clock,
    /// By disk.
    clients: Vec<DiskClient>,
    connections: Vec<Place>,
    flights: Flights,
    input: Input,
    buffers: Buffers,
    /// Bytes in flight for all connections, and those that wait in them.
    bytes: usize,
    ended: Vec<Ended>,
    /// Connections to be looked at in this turn: they have output, may go on, or are over.
    listed: Vec<Key>,
    /// Connections with an I/O that found no credit, oldest first.
    starved: Vec<Key>,
    /// Bytes that connections have spent in this turn, of which those in line have their own count.
    spent: usize,
    /// Connections that wait for their turn. For some of their bytes there will be no event.
    turns: Turns,
    /// Connections in their handshakes that have an event. They come behind those that are served.
    newcomers: Vec<Key>,
    /// Connections that have room, and had to stop because the worker had none.
    crowded: Vec<Key>,
    /// When the connections that keep the worker waiting are looked at next.
    tick: Instant,
    /// The time between two of these looks.
    every: Nanos,
    /// Since when the worker refuses requests, if it does.
    draining: Option<Instant>,
    /// While it drains it takes no requests, so that clients send them to the server that follows.
    hands_over: bool,
    stopped: bool,
    /// Counts the turns of its loop, around at the end of the numbers.
    turn: u32,
    /// Lines of the log about handshakes too many.
    crowds: Rarely,
    /// Lines about clients that break the protocol.
    faults: Rarely,
    spin: Spin,
}

/// A place for a connection.
struct Place {
    generation: u32,
    connection: Option<Box<Connection>>,
}

impl Worker {
    /// # Errors
    /// If the system has no descriptors left, or the disks have no place for another worker.
    pub(crate) fn new(number: usize, shared: Arc<Shared>, inbox: Arc<Inbox>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&epoll, &*inbox, INBOX)?;
        let mut clients = Vec::new();
        for (number, disk) in (DISKS..).zip(&shared.disks) {
            let mut client = disk.service().client().map_err(io::Error::other)?;
            watch(&epoll, client.event_fd()?, number)?;
            clients.push(DiskClient { client, is_called: false });
        }
        let clock = Clock::start();
        let bounds = &shared.bounds;
        let buffers = Buffers::new(bounds.bytes_per_turn);
        let every = TICK.min(bounds.handshake).min(bounds.silence);
        Ok(Self {
            number,
            shared,
            inbox,
            epoll,
            clock,
            clients,
            connections: Vec::new(),
            flights: Flights::default(),
            input: Input::new(),
            buffers,
            bytes: 0,
            ended: Vec::new(),
            listed: Vec::new(),
            starved: Vec::new(),
            spent: 0,
            turns: Turns::default(),
            newcomers: Vec::new(),
            crowded: Vec::new(),
            tick: clock.now() + every,
            every,
            draining: None,
            hands_over: false,
            stopped: false,
            turn: 0,
            spin: Spin::default(),
            crowds: Rarely::default(),
            faults: Rarely::default(),
        })
    }

    /// Serves until it is told to stop, or has drained.
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

    /// Does what the events ask for, within the bounds of a turn.
    fn take_turn(&mut self, events: &mut Vec<epoll::Event>) {
        self.turn = self.turn.wrapping_add(1);
        self.spent = 0;
        let mut has_mail = false;
        for event in events.drain(..) {
            match event.data.u64() {
                INBOX => has_mail = true,
                number if number < CONNECTIONS => {
                    self.clients[(number - DISKS) as usize].is_called = true;
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
        let drained = self.draining.is_some()
            && self.connections.iter().all(|place| place.connection.is_none())
            && self.flights.len() == 0;
        self.stopped || drained
    }

    /// Sleeps until there is an event, unless a disk has something to reap.
    fn wait(&mut self, events: &mut Vec<epoll::Event>) -> io::Result<()> {
        let tick = self.tick - self.clock.now();
        let mut left = if self.turns.is_empty() { tick } else { Nanos::ZERO };
        for DiskClient { client, .. } in self.clients.iter_mut().filter(|it| it.has_work()) {
            match client.prepare_wait() {
                Sleep::No => left = Nanos::ZERO,
                Sleep::Until(Some(at)) => left = left.min(at - client.clock().now()),
                Sleep::Until(None) => {}
            }
        }
        let is_exact = Nanos::ZERO < left && left < tick;
        let slept = self.look_and_sleep(left, is_exact, events);
        // Each `prepare_wait` needs its end, even after an error. Most turns are for sockets only.
        for (number, DiskClient { client, .. }) in (DISKS..).zip(&mut self.clients) {
            if slept.is_err() || events.iter().any(|event| event.data.u64() == number) {
                client.end_wait();
            } else {
                client.end_wait_without_event();
            }
        }
        match slept {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Looks for events for a moment, where that pays, and then sleeps.
    fn look_and_sleep(
        &mut self,
        left: Nanos,
        is_exact: bool,
        events: &mut Vec<epoll::Event>,
    ) -> rustix::io::Result<usize> {
        let wants = !is_exact && left > Nanos::ZERO;
        let looks = if wants { self.spin.begin(self.clock) } else { None };
        if let Some(mut looks) = looks {
            loop {
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                let found =
                    epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&now))?;
                if found > 0 {
                    self.spin.found(&looks);
                    return Ok(found);
                }
                if !self.spin.goes_on(&mut looks) {
                    break;
                }
            }
        }
        self.sleep(left, is_exact, events)
    }

    /// epoll's own timeout has whole milliseconds; the times of disks are waited for by poll, at the price of a further
    /// system call.
    fn sleep(
        &self,
        left: Nanos,
        is_exact: bool,
        events: &mut Vec<epoll::Event>,
    ) -> rustix::io::Result<usize> {
        let timeout = Timespec::try_from(Duration::from_nanos(left.0)).ok();
        let mut left = timeout.as_ref();
        if is_exact {
            poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], left)?;
            left = Some(&Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), left)
    }

    /// Looks at new connections, and at those in their handshakes, once the others are answered.
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
                Message::Drain => self.draining = self.draining.or(Some(self.clock.now())),
                Message::HandOver => {
                    self.hands_over = true;
                    self.draining = self.draining.or(Some(self.clock.now()));
                }
                Message::Stop => self.stopped = true,
            }
        }
    }

    fn accept(&mut self, stream: Stream, guest: Guest) {
        self.close_a_handshake();
        let free = self.connections.iter().position(|place| place.connection.is_none());
        let at = free.unwrap_or_else(|| {
            self.connections.push(Place { generation: 0, connection: None });
            self.connections.len() - 1
        });
        if stream.prepare().is_err()
            || watch(&self.epoll, &stream, CONNECTIONS + at as u64).is_err()
        {
            tracing::warn!("a connection could not be watched and is closed");
            return;
        }
        let handshake = Handshake::new(self.shared.handshake);
        let mut greeting = Vec::new();
        handshake.greeting(&mut greeting);
        let generation = self.connections[at].generation;
        let mut connection = Connection::new(stream, guest, handshake, self.clock.now());
        connection.output.bytes(greeting);
        self.connections[at].connection = Some(Box::new(connection));
        self.list(Key { place: at as u32, generation });
    }

    /// Makes room for another handshake.
    fn close_a_handshake(&mut self) {
        let under_way = |(at, place): (u32, &Place)| {
            let connection = place.connection.as_deref()?;
            match connection.phase {
                Phase::Handshake { began, .. } => Some((connection.guest.peer(), began, at)),
                Phase::Transmission(_) | Phase::Broken { .. } => None,
            }
        };
        let all: Vec<UnderWay> = (0..).zip(&self.connections).filter_map(under_way).collect();
        if all.len() < self.shared.handshakes {
            return;
        }
        let Some(at) = one_too_many(all) else { return };
        self.crowds.log(self.clock.now(), |before| {
            tracing::info!(
                before,
                "a handshake too many: the oldest of the peer with the most is closed"
            );
        });
        let place: &mut Place = &mut self.connections[at as usize];
        let key = Key { place: at, generation: place.generation };
        if let Some(connection) = &mut place.connection {
            connection.break_off();
        }
        self.settle(key);
    }

    /// The connection of `key`, unless it is gone.
    fn connection(&mut self, key: Key) -> Option<&mut Connection> {
        let place = self.connections.get_mut(key.place as usize)?;
        (place.generation == key.generation).then_some(place.connection.as_deref_mut()?)
    }

    /// Has the connection looked at in this turn.
    fn list(&mut self, key: Key) {
        if let Some(connection) = self.connection(key)
            && !connection.is_listed
        {
            connection.is_listed = true;
            self.listed.push(key);
        }
    }

    /// Once a second, and often during a drain: closes connections that keep the worker waiting for too long.
    fn look_at_the_clock(&mut self) {
        let now = self.clock.now();
        if let Some(since) = self.draining {
            self.close_idle(now, since);
        }
        if now < self.tick {
            return;
        }
        self.tick = now + self.every;
        // A disk that was given another scheduler has its old one until its clients have looked.
        self.clients.iter_mut().for_each(|disk| disk.is_called = true);
        // A sign of life, not an order of anything.
        self.shared.beats[self.number].fetch_add(1, Ordering::Relaxed);
        let bounds = self.shared.bounds;
        for at in 0..self.connections.len() {
            let Some(connection) = self.connections[at].connection.as_deref_mut() else { continue };
            if connection.deadline(&bounds).is_some_and(|at| at <= now) {
                tracing::info!("a client kept the server waiting for too long and is closed");
                connection.break_off();
                let key = Key { place: at as u32, generation: self.connections[at].generation };
                self.settle(key);
            }
        }
    }

    /// During a drain: closes connections that have nothing in flight.
    fn close_idle(&mut self, now: Instant, since: Instant) {
        self.tick = self.tick.min(now + GRACE);
        for at in 0..self.connections.len() {
            let Some(connection) = self.connections[at].connection.as_deref_mut() else { continue };
            let is_idle = connection.requests == 0 && !connection.has_output();
            let asks = matches!(connection.phase, Phase::Transmission(_));
            if is_idle && (!asks || self.hands_over || now >= since + GRACE) {
                connection.break_off();
                let key = Key { place: at as u32, generation: self.connections[at].generation };
                self.settle(key);
            }
        }
    }
}

fn watch(epoll: impl AsFd, what: impl AsFd, number: u64) -> io::Result<()> {
    let data = epoll::EventData::new_u64(number);
    Ok(epoll::add(epoll, what, data, epoll::EventFlags::IN)?)
}
