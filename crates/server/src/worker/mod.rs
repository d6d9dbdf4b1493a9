//! A worker: one thread with an event loop, its connections, and one client of every disk.
//!
//! In a turn of the loop the worker reads its sockets, parses the input, and queues the I/Os in the plugs of its
//! clients. Then it flushes the plugs, reaps completed I/Os, and sends the replies with one write for each connection.
//! If the device completes an I/O immediately, its reply is sent in the same turn.
//!
//! | file | step |
//! |---|---|
//! | `../threads.rs` | sleep until there is an event |
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

use crate::allow::Gate;
use crate::clients::{Bounds, Clients, Guest, Tenants};
use crate::disk::Disk;
use crate::export::Catalog;
use crate::figures::{Counting, Judge};
use crate::flight::Key;
use crate::log::Refusals;
use crate::stream::Stream;
use crate::threads::{Devices, DiskClient, Inbox, Message, Sleeper};
use crate::tls::Tls;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allow::Gate;
    use crate::clients::Guests;
    use crate::export::Export;
    use crate::figures::{Counting, Judge};
    use blkmq::Instant;
    use std::io::{ErrorKind, Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicU32;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    /// Bytes of a portion, and of a turn.
    const PORTION: u64 = 256 * KIB;

    /// A worker that takes a turn when a test asks for one.
    struct Scene {
        worker: Worker,
        events: Vec<epoll::Event>,
        guests: Arc<Guests>,
    }

    impl Scene {
        fn new(device: &str) -> Self {
            Self::on(&[device])
        }

        /// The first of up to two workers of a server with these devices. The default export is the last one.
        fn on(devices: &[&str]) -> Self {
            let start = |device: &&str| {
                let device = blkmq::open(device).expect("a device");
                Disk::start("disk", device, "none", 2).expect("a disk")
            };
            let disks: Vec<Disk> = devices.iter().map(start).collect();
            let exports = [Export::new("first", 0), Export::new("", devices.len() - 1)];
            let exports = Catalog::new(&exports, &disks).expect("exports");
            let shared = Shared {
                disks,
                exports,
                bounds: Bounds::default(),
                handshakes: 64,
                handshake: Config::default(),
                tls: None,
                allow: Gate::default(),
                tenants: Arc::new(Tenants::default()),
                refusals: Arc::new(Refusals::new()),
                clients: Clients::new(),
                judge: Judge::default(),
                devices: Devices::default(),
                counting: Counting::default(),
                beats: vec![AtomicU32::new(0), AtomicU32::new(0)],
            };
            Self::worker(0, Arc::new(shared))
        }

        /// The second worker of the same server.
        fn second(&self) -> Self {
            Self::worker(1, Arc::clone(&self.worker.shared))
        }

        fn worker(number: usize, shared: Arc<Shared>) -> Self {
            let inbox = Arc::new(Inbox::new().expect("a descriptor"));
            let worker = Worker::new(number, shared, inbox).expect("a worker");
            let guests = Arc::new(Guests::new(1));
            Self { worker, events: Vec::with_capacity(EVENTS), guests }
        }

        /// Takes a turn, after a second if there is nothing to do.
        fn turn(&mut self) {
            self.worker.wait(&mut self.events).expect("epoll waits");
            self.worker.take_turn(&mut self.events);
        }

        /// The number of completed I/Os of the disk.
        fn ended(&self) -> u64 {
            self.worker.shared.disks[0].service().queue().stats().completed
        }

        /// A client of the default export that has sent no request.
        fn newcomer(&mut self) -> UnixStream {
            self.newcomer_of("")
        }

        fn newcomer_of(&mut self, export: &str) -> UnixStream {
            let (mut client, server) = UnixStream::pair().expect("a pair of sockets");
            client.set_nonblocking(true).expect("a socket");
            let guest = self.guests.admit(None, &self.worker.shared.bounds).expect("a place");
            self.worker.inbox.send(Message::Connection(Stream::from(server), guest));
            // Flags; EXPORT_NAME.
            let len = export.len() as u32;
            let words = [&3_u32.to_be_bytes(), &b"IHAVEOPT\0\0\0\x01"[..], &len.to_be_bytes()];
            client.write_all(&words.concat()).expect("the kernel keeps it");
            client.write_all(export.as_bytes()).expect("the kernel keeps it");
            self.expect(&mut client, 18 + 10);
            client
        }

        /// A client that is known for small requests.
        fn client(&mut self) -> UnixStream {
            let mut client = self.newcomer();
            client.write_all(&read(0, 512)).expect("the kernel keeps it");
            self.expect(&mut client, 16 + 512);
            client
        }

        /// Takes turns until the client has received this many bytes.
        fn expect(&mut self, client: &mut UnixStream, bytes: usize) {
            let mut taken = 0;
            while taken < bytes {
                self.turn();
                taken += take(client, bytes - taken);
            }
        }
    }

    /// A READ request.
    fn read(offset: u64, length: u64) -> Vec<u8> {
        request(0, 0, offset, length)
    }

    /// A request without a payload.
    fn request(flags: u16, command: u16, offset: u64, length: u64) -> Vec<u8> {
        let length = u32::try_from(length).expect("it fits").to_be_bytes();
        let (flags, command) = (flags.to_be_bytes(), command.to_be_bytes());
        let magic = [0x25, 0x60, 0x95, 0x13];
        [&magic[..], &flags, &command, &[0; 8], &offset.to_be_bytes(), &length].concat()
    }

    /// Takes up to `most` of the available bytes.
    fn take(client: &mut UnixStream, most: usize) -> usize {
        match client.read(&mut vec![0; most]) {
            Ok(taken) => taken,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                0
            }
        }
    }

    /// Regression test: a read of megabytes was performed at a stretch, and all other clients of the worker waited for
    /// it.
    #[test]
    fn a_long_read_takes_a_portion_of_each_turn_and_others_go_on() {
        let mut scene = Scene::new("memory,size=64");
        let (mut long, mut small) = (scene.client(), scene.client());
        long.write_all(&read(0, 8 * MIB)).expect("the kernel keeps it");
        for turn in 1..=32 {
            // A small request is answered by the end of the turn in which it arrives.
            small.write_all(&read(turn * 512, 512)).expect("the kernel keeps it");
            let before = scene.ended();
            scene.turn();
            assert_eq!(take(&mut small, 4096), 16 + 512, "in turn {turn}");
            let portions = scene.ended() - before - 1;
            assert!(portions <= 1, "{portions} portions in turn {turn}");
        }
        let mut taken = 0;
        for _ in 0..200 {
            small.write_all(&read(0, 512)).expect("the kernel keeps it");
            scene.turn();
            take(&mut small, 4096);
            taken += take(&mut long, 16 << 20) as u64;
        }
        assert_eq!(taken, 16 + 8 * MIB);
    }

    /// Regression test: each worker polled all disks in every turn, and so did work that was due for other workers.
    /// They waited while it was busy with its own clients, or had lost its processor.
    #[test]
    fn a_worker_leaves_disks_alone_that_it_asks_for_nothing() {
        const LATER: u64 = 10_000_000;
        let slow = format!("null,size=64,irqmode=2,completion_nsec={LATER}");
        let mut scene = Scene::on(&[&slow, "memory,size=64"]);
        let mut second = scene.second();
        let (mut client, mut busy) = (scene.newcomer_of("first"), second.client());
        client.write_all(&read(0, 512)).expect("the kernel keeps it");
        scene.turn();
        let clock = Clock::start();
        while clock.now() < Instant::from_nanos(2 * LATER) {
            busy.write_all(&read(0, 512)).expect("the kernel keeps it");
            second.turn();
            assert_eq!(take(&mut busy, 4096), 16 + 512);
        }
        let stats = scene.worker.shared.disks[0].service().queue().stats();
        assert_eq!(
            (stats.issued, stats.completed_requests),
            (1, 0),
            "it is due, for the first worker"
        );
        scene.expect(&mut client, 16 + 512);
    }

    /// Regression test: a range of any length was trimmed or zeroed at a stretch, and all other clients of the worker
    /// waited for it.
    #[test]
    fn a_range_is_trimmed_and_zeroed_by_a_step_a_turn_and_others_go_on() {
        const NO_HOLE: u16 = 2;
        let kinds = [("TRIM", 0, 4, MIB), ("WRITE_ZEROES", 0, 6, MIB)];
        for (name, flags, command, step) in
            kinds.into_iter().chain([("zeroes without holes", NO_HOLE, 6, PORTION / 2)])
        {
            let mut scene = Scene::new("memory,size=64,discard=1");
            let (mut long, mut small) = (scene.client(), scene.client());
            let steps = 32 * MIB / step;
            long.write_all(&request(flags, command, 0, 32 * MIB)).expect("the kernel keeps it");
            // A later request on the same connection is answered before it ends.
            long.write_all(&read(0, 512)).expect("the kernel keeps it");
            let before = scene.ended();
            for turn in 1..=steps {
                small.write_all(&read(turn * 512, 512)).expect("the kernel keeps it");
                let before = scene.ended();
                scene.turn();
                assert_eq!(take(&mut small, 4096), 16 + 512, "{name}, turn {turn}");
                let others = scene.ended() - before - 1;
                assert!(others <= 2, "{name}: {others} I/Os in turn {turn}");
                if turn == 2 {
                    assert_eq!(take(&mut long, 4096), 16 + 512, "{name}: the read behind it");
                }
            }
            assert_eq!(take(&mut long, 4096), 16, "{name}: the answer");
            assert_eq!(scene.ended() - before, steps + steps + 1, "{name}");
        }
    }

    /// Regression test: requests of a client that had closed its socket were performed completely, so that clients that
    /// connect, request much and disconnect caused unlimited work.
    #[test]
    fn no_step_begins_for_a_client_that_is_gone() {
        let mut scene = Scene::new("memory,size=64,discard=1");
        let (mut long, mut small) = (scene.client(), scene.client());
        let trims: Vec<u8> = (0..4).flat_map(|_| request(0, 4, 0, 64 * MIB)).collect();
        long.write_all(&trims).expect("the kernel keeps it");
        (0..4).for_each(|_| scene.turn());
        drop(long);
        let before = scene.ended();
        while scene.worker.connections.iter().filter(|place| place.connection.is_some()).count() > 1
        {
            small.write_all(&read(0, 512)).expect("the kernel keeps it");
            scene.turn();
        }
        assert!(scene.ended() - before < 32, "they are not carried out to their end");
        assert_eq!((scene.worker.requests.flights.len(), scene.worker.requests.bytes), (0, 0));
    }

    /// The number of portions in each turn, while 20 clients of `kind` request one each, and another client sends a
    /// small request per turn.
    fn crowd(kind: fn(&mut Scene) -> UnixStream) -> Vec<u64> {
        let mut scene = Scene::new("memory,size=64");
        let mut small = scene.client();
        let mut all: Vec<UnixStream> = (0..20).map(|_| kind(&mut scene)).collect();
        for client in &mut all {
            client.write_all(&read(0, PORTION)).expect("the kernel keeps it");
        }
        let turn = |_| {
            small.write_all(&read(0, 512)).expect("the kernel keeps it");
            let before = scene.ended();
            scene.turn();
            assert_eq!(take(&mut small, 4096), 16 + 512);
            scene.ended() - before - 1
        };
        (0..20).map(turn).collect()
    }

    /// Regression test: each new connection had a turn of its own, so that the length of a turn grew with their number.
    #[test]
    fn new_clients_share_the_bytes_of_a_turn() {
        assert_eq!(crowd(Scene::newcomer), [1; 20]);
    }

    /// Regression test, likewise: a client with only small requests so far had a turn of its own.
    #[test]
    fn clients_that_become_greedy_share_the_bytes_of_a_turn() {
        let portions = crowd(Scene::client);
        // Two for sockets with events, and one for the line.
        assert!(portions.iter().all(|count| *count <= 3), "{portions:?}");
        assert_eq!(portions.iter().sum::<u64>(), 20);
    }

    /// Regression test: for each client that took no replies, seven megabytes were read and copied into its socket.
    #[test]
    fn a_client_that_takes_no_replies_has_one_request_carried_out() {
        let mut scene = Scene::new("memory,size=64");
        let (mut deaf, mut small) = (scene.client(), scene.client());
        let before = scene.ended();
        deaf.write_all(&read(0, MIB).repeat(64)).expect("the kernel keeps it");
        for _ in 0..100 {
            small.write_all(&read(0, 512)).expect("the kernel keeps it");
            scene.turn();
            take(&mut small, 4096);
        }
        let portions = scene.ended() - before - 100;
        assert_eq!(portions, 4, "portions of {PORTION} bytes");
        // It is served once it takes its replies.
        scene.expect(&mut deaf, 64 * (16 + (1 << 20)));
    }

    /// Regression test: each new connection could have 64 MiB in flight without taking any replies.
    #[test]
    fn what_a_client_may_have_in_flight_grows_with_what_it_takes() {
        // No I/O completes.
        let mut scene = Scene::new("null,size=64,irqmode=2,completion_nsec=3600000000000");
        let mut client = scene.newcomer();
        client.write_all(&read(0, MIB).repeat(64)).expect("the kernel keeps it");
        scene.turn();
        while !scene.worker.turns.is_empty() {
            scene.turn();
        }
        let in_flight = scene.worker.requests.bytes as u64;
        assert!((4 * MIB..=5 * MIB + 64 * KIB).contains(&in_flight), "{in_flight} bytes");
    }

    /// Regression test: I/Os that waited for the ceiling of their export kept their credit, and eight connections with
    /// 128 requests each took all of it, so that other exports waited, too.
    #[test]
    fn an_export_at_its_ceiling_leaves_credit_to_the_others() {
        let mut scene = Scene::new("memory,size=64");
        let exports = scene.worker.shared.exports.now();
        let max = blkmq::IoMax::default().set("riops=20").expect("a limit");
        exports.get("first").expect("it is there").group.set_max(max).expect("nothing refuses it");
        let mut slow: Vec<UnixStream> = (0..10).map(|_| scene.newcomer_of("first")).collect();
        let mut small = scene.client();
        for client in &mut slow {
            client.write_all(&read(0, 512).repeat(128)).expect("the kernel keeps it");
            small.write_all(&read(0, 512)).expect("the kernel keeps it");
            scene.expect(&mut small, 16 + 512);
        }
        assert!(scene.worker.requests.flights.len() > 1024, "more than there is credit");
        for turn in 0..20 {
            small.write_all(&read(0, 512)).expect("the kernel keeps it");
            scene.turn();
            assert_eq!(take(&mut small, 4096), 16 + 512, "in turn {turn}");
        }
        exports
            .get("first")
            .expect("it is there")
            .group
            .set_max(blkmq::IoMax::default())
            .expect("likewise");
        for client in &mut slow {
            scene.expect(client, 128 * (16 + 512));
        }
        assert_eq!(scene.worker.requests.flights.len(), 0);
    }
}
