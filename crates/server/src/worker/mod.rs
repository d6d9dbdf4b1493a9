//! A worker: one thread with an event loop, its connections, and one client of every disk.
//!
//! A turn of the loop reads the sockets' input, parses all of it, and pushes the I/Os into the plugs of the clients;
//! then it flushes the plugs, reaps the completed I/Os, and sends the replies, one write for each connection. A device
//! that completes immediately is answered in the turn in which it was asked.
//!
//! | file | step |
//! |---|---|
//! | `../waiting` | sleep until there is an event |
//! | `hear.rs` | bytes arrive: handshake, or requests |
//! | `view.rs` | the exports that exist for a client |
//! | `arriving.rs` | payloads of writes come into their buffers |
//! | `serve.rs` | requests become I/Os |
//! | `portions.rs` | a portion of a long request, or a step, in each turn of its connection |
//! | `status.rs` | requests about holes, which need none |
//! | `turns.rs` | the order among clients with much to do |
//! | `finish.rs` | completions become replies, and replies are sent |
//! | `welcome.rs` | connections come, and handshakes too many go |
//! | `deadlines.rs` | clients that keep the worker waiting are closed |
//!
//! Back-pressure is the credit of the clients, and the bounds of connections: a connection without room is not read.

mod arriving;
mod connection;
mod deadlines;
mod finish;
mod hear;
mod portions;
mod serve;
mod status;
#[cfg(test)]
mod tests;
mod turns;
mod view;
mod welcome;

use crate::bounds::Bounds;
use crate::buffers::Buffers;
use crate::clients::Clients;
use crate::counting::Counting;
use crate::disk::Disk;
use crate::export::Catalog;
use crate::figures::Judge;
use crate::flight::{Cookie, Flight, Flights, Key};
use crate::gate::Gate;
use crate::inbox::Inbox;
use crate::input::Input;
use crate::rarely::Rarely;
use crate::refusals::Refusals;
use crate::running::Devices;
use crate::tenants::Tenants;
use crate::tls::Tls;
use crate::waiting::{DiskClient, Sleeper};
use blkmq::{AlignedBuf, Clock, Instant, IoResult, Nanos};
use blkmq_nbd::server::Config;
use connection::Connection;
use rustix::event::epoll;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use turns::Turns;

/// The numbers of events: the inbox, then the disks, then connections from [`CONNECTIONS`] on.
const INBOX: u64 = 0;
const DISKS: u64 = 1;
const CONNECTIONS: u64 = 1 << 32;
/// Events taken from the kernel at a time.
const EVENTS: usize = 128;
/// All connections with an event may spend this many times the bytes of a turn together, so that the bound does not slow
/// many clients with small requests.
const TOGETHER: usize = 2;
/// Beyond that bound each connection may still spend these bytes.
const LITTLE: usize = 16 << 10;
/// The longest time between two looks at the connections that keep the worker waiting.
const TICK: Nanos = Nanos::from_millis(1000);
/// After a drain has begun, idle connections stay open for this long, so that clients learn of it from the answer to
/// their next request.
const GRACE: Nanos = Nanos::from_millis(100);

/// The state that all workers of a server share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) disks: Vec<Disk>,
    pub(crate) exports: Catalog,
    pub(crate) bounds: Bounds,
    /// The handshakes that each worker may have under way.
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
    /// For each worker, the number of its looks at the clock. An idle worker looks every second.
    pub(crate) beats: Vec<AtomicU32>,
}

/// An I/O that has ended.
struct Ended {
    cookie: Cookie,
    result: IoResult,
    payload: AlignedBuf,
}

pub(crate) struct Worker {
    /// Its place among the workers.
    number: usize,
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    sleeper: Sleeper,
    clock: Clock,
    /// By disk.
    clients: Vec<DiskClient>,
    connections: Vec<Place>,
    flights: Flights<Flight>,
    input: Input,
    buffers: Buffers,
    /// Bytes in flight for all connections, and bytes that wait in their outputs and payloads.
    bytes: usize,
    ended: Vec<Ended>,
    /// Connections for `finish`: they have output, may continue, or are over.
    listed: Vec<Key>,
    /// Connections with an I/O that found no credit, oldest first.
    starved: Vec<Key>,
    /// Bytes that connections have spent in this turn; [`Turns`] counts those of connections in line.
    spent: usize,
    /// Connections that wait for their turn. For some of their bytes there will be no event.
    turns: Turns,
    /// Connections in their handshakes that have an event. They come behind those that are served.
    newcomers: Vec<Key>,
    /// Connections that have room, and stopped because the worker had none.
    crowded: Vec<Key>,
    /// The time of the next look at connections that keep the worker waiting.
    tick: Instant,
    /// The time between two of these looks.
    every: Nanos,
    /// The beginning of the drain, if there is one: the worker refuses requests from then on.
    draining: Option<Instant>,
    /// While it drains it takes no requests, so that clients send them to the server that follows.
    hands_over: bool,
    stopped: bool,
    /// Counts the turns of its loop, around at the end of the numbers.
    turn: u32,
    /// Lines of the log about handshakes too many.
    crowds: Rarely,
    /// Lines about clients that keep the worker waiting.
    slow: Rarely,
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
        let clock = Clock::start();
        let sleeper = Sleeper::new(clock)?;
        sleeper.watch(&*inbox, INBOX)?;
        let mut clients = Vec::new();
        for (number, disk) in (DISKS..).zip(&shared.disks) {
            let mut client = disk.service().client().map_err(io::Error::other)?;
            sleeper.watch(client.event_fd()?, number)?;
            clients.push(DiskClient::new(client));
        }
        let bounds = &shared.bounds;
        let buffers = Buffers::new(bounds.bytes_per_turn);
        let every = TICK.min(bounds.handshake).min(bounds.silence);
        Ok(Self {
            number,
            shared,
            inbox,
            sleeper,
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
            crowds: Rarely::default(),
            slow: Rarely::default(),
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
        let tick = self.tick - self.clock.now();
        let most = if self.turns.is_empty() { tick } else { Nanos::ZERO };
        self.sleeper.wait((DISKS, &mut self.clients), most, events)
    }

    /// Handles the events, within the bounds of a turn.
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
        self.stopped || drained || self.is_late()
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
}
