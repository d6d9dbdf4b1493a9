//! An NBD server on one thread. An epoll loop waits for sockets and the disk, one client of the queue does the I/O of
//! all connections, and each connection is a group, so that a scheduler with weights shares the disk among connections.
//!
//! `cargo run --release --example nbd_server -- memory,size=1024 nbd.sock bfq`, and then
//! `nbdinfo 'nbd+unix:///weight=300?socket=nbd.sock'`. The server has no TLS and no timeouts.

mod connection;

use blkmq::prelude::*;
use connection::{Connection, Export, MOST, Request};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::{buffer::spare_capacity, io::Errno};
use std::{collections::BTreeMap, os::fd::OwnedFd, os::unix::net::UnixListener};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The epoll data of the listener and of the disk; connections have the numbers above.
const LISTENER: u64 = 0;
const DISK: u64 = 1;
/// The most connections; the server closes further ones.
const CONNECTIONS: usize = 32;

/// The state of the server, which belongs to its one thread.
pub struct Server {
    export: Export,
    client: Client<AlignedBuf>,
    epoll: OwnedFd,
    connections: BTreeMap<u64, Connection>,
    /// The connection and the request of each I/O, by cookie; and the free cookies.
    at_disk: Vec<(u64, Request)>,
    free: Vec<usize>,
    newest: u64,
}

/// Serves until the process is killed.
pub fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let (Some(device), Some(path)) = (arguments.next(), arguments.next()) else {
        return Err("usage: nbd_server DEVICE SOCKET [SCHEDULER]".into());
    };
    let listener = UnixListener::bind(path)?;
    Server::new(&device, arguments.next().as_deref())?.run(&listener)
}

impl Server {
    /// Builds a server for `device`, with its default scheduler unless `scheduler` names one.
    pub fn new(device: &str, scheduler: Option<&str>) -> Result<Self, Failure> {
        let mut disk = blkmq::open(device)?;
        let pool = BufferPool::new(256, 256 << 10);
        disk.register(&pool);
        let scheduler = blkmq::scheduler(scheduler.unwrap_or(disk.default_scheduler()))?;
        let mut config = disk.config()?.scheduler(scheduler);
        // Enough credit for the requests of all connections.
        config.depth = CONNECTIONS as u32 * 128;
        let service = Service::start(config)?;
        let client = service.client()?;
        let limits = disk.shape().limits;
        // HAS_FLAGS, SEND_FLUSH, SEND_FUA, CAN_MULTI_CONN; SEND_TRIM and SEND_WRITE_ZEROES if the disk can.
        let (trim, zeroes) = (limits.max_discard_sectors > 0, limits.max_write_zeroes_sectors > 0);
        let flags = 1 | 4 | 8 | 256 | u16::from(trim) << 5 | u16::from(zeroes) << 6;
        let facts = [&[0, 0], &disk.bytes().to_be_bytes()[..], &flags.to_be_bytes()].concat();
        let sizes = [limits.logical_block_size, 4096, MOST as u32].map(u32::to_be_bytes);
        let block_sizes = [&[0, 3], sizes.as_flattened()].concat();
        let export = Export { service, pool, facts, block_sizes };
        let (epoll, connections) = (epoll::create(epoll::CreateFlags::CLOEXEC)?, BTreeMap::new());
        // One cookie more than there is credit: an I/O gets its cookie before the push is refused for want of credit.
        let places = client.depth() as usize + 1;
        let (at_disk, free) = (vec![Default::default(); places], Vec::from_iter(0..places));
        Ok(Self { export, client, epoll, connections, at_disk, free, newest: DISK })
    }

    /// Serves until the listener is shut down.
    pub fn run(mut self, listener: &UnixListener) -> Result<(), Failure> {
        listener.set_nonblocking(true)?;
        epoll::add(&self.epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&self.epoll, self.client.event_fd()?, EventData::new_u64(DISK), EventFlags::IN)?;
        let (mut events, mut buffer) = (Vec::with_capacity(64), vec![0; 256 << 10]);
        loop {
            // The wait has two steps, so that the thread can wait for sockets as well.
            let timeout = self.client.prepare_wait().timeout(self.client.clock());
            let timeout = timeout.map(Timespec::try_from).transpose()?;
            let slept = epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref());
            self.client.end_wait();
            slept.or_else(|error| if error == Errno::INTR { Ok(0) } else { Err(error) })?;
            for event in events.drain(..) {
                match (event.data.u64(), event.flags) {
                    (LISTENER, flags) if flags.contains(EventFlags::HUP) => return Ok(()),
                    (LISTENER, _) => self.accept(listener)?,
                    (_, EventFlags::OUT) => {}
                    (number, _) => {
                        let connection = self.connections.get_mut(&number);
                        connection.into_iter().for_each(|it| it.receive(&self.export, &mut buffer));
                    }
                }
            }
            while self.turn() {}
        }
    }

    fn accept(&mut self, listener: &UnixListener) -> Result<(), Failure> {
        // The NBD client may have closed the connection already.
        let Ok((socket, _)) = listener.accept() else { return Ok(()) };
        if self.connections.len() < CONNECTIONS {
            socket.set_nonblocking(true)?;
            self.newest += 1;
            epoll::add(&self.epoll, &socket, EventData::new_u64(self.newest), EventFlags::IN)?;
            self.connections.insert(self.newest, Connection::new(socket));
        }
        Ok(())
    }

    /// Sends replies, pushes the I/Os of new requests, and queues replies to completed ones. Returns false if it found
    /// nothing to do.
    fn turn(&mut self) -> bool {
        self.connections.retain(|&number, connection| {
            let wanted = connection.send();
            if wanted != connection.watched {
                connection.watched = wanted;
                let (socket, number) = (&connection.socket, EventData::new_u64(number));
                connection.is_over |= epoll::modify(&self.epoll, socket, number, wanted).is_err();
            }
            !connection.is_over
        });
        let (mut batch, mut is_busy) = (self.client.batch(), false);
        for (number, connection) in &mut self.connections {
            while let Some((request, io)) = connection.next(&self.export.pool) {
                is_busy = true;
                let place = self.free.pop().expect("one more than there is credit");
                self.at_disk[place] = (*number, request);
                if let Err(refused) = batch.push(io.cookie(place as u64)) {
                    self.free.push(place);
                    let why = refused.why.into();
                    connection.reply(request, Err(why), refused.into_io().payload);
                }
            }
            is_busy |= connection.is_over;
        }
        drop(batch);
        self.client.poll();
        let done = self.client.reap(u32::MAX, |done| {
            let place = done.cookie as usize;
            let (number, request) = self.at_disk[place];
            self.free.push(place);
            // The connection may be closed.
            if let Some(connection) = self.connections.get_mut(&number) {
                connection.reply(request, done.result, done.payload);
            }
        });
        is_busy || done > 0
    }
}
