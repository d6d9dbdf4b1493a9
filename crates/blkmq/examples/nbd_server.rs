//! An NBD server on one thread. An epoll loop waits for sockets and the disk, one client of the queue does the I/O of
//! all connections, and each connection is a group, so that a scheduler with weights shares the disk among connections.
//!
//! `cargo run --release --example nbd_server -- memory,size=1024 nbd.sock bfq`, and then `nbdinfo
//! 'nbd+unix:///weight=300?socket=nbd.sock'`. The server has no TLS and no timeouts.
//!
//! A connection is NBD's fixed newstyle handshake, requests and simple replies. It does socket I/O only; the server
//! does the disk I/O.

use blkmq::prelude::*;
use blkmq::{GroupGuard, GroupOptions};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::str::from_utf8;

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

/// The longest read or write in bytes, and the most bytes in flight for a connection, counting the buffer of each
/// request and `EACH`.
const MOST: usize = 32 << 20;
const EACH: usize = 256 << 10;
/// Pairs of a Linux errno and the NBD error for it. NBD has EPERM, ENOMEM, EINVAL, ENOSPC, EOPNOTSUPP and ESHUTDOWN; an
/// errno that is not listed becomes EIO.
const ERRORS: [(u16, u32); 8] =
    [(1, 1), (30, 1), (12, 12), (11, 12), (22, 22), (28, 28), (95, 95), (131, 108)];

/// The state that connections share. `facts` (size and flags) and `block_sizes` are encoded as they are sent.
struct Export {
    service: Service<AlignedBuf>,
    pool: BufferPool,
    facts: Vec<u8>,
    block_sizes: Vec<u8>,
}

#[derive(Clone, Copy, Default)]
struct Request {
    is_read: bool,
    cookie: u64,
}

struct Connection {
    socket: UnixStream,
    /// The events for which epoll watches the socket.
    watched: EventFlags,
    is_over: bool,
    /// The group of the connection; `None` until the handshake is over.
    group: Option<GroupGuard<AlignedBuf>>,
    /// Received bytes that have not been parsed, and how many of them to skip: the client's flags, ahead of its
    /// options.
    input: VecDeque<u8>,
    skip: usize,
    /// Bytes that are still to be sent.
    output: VecDeque<u8>,
    in_flight: usize,
}

impl Connection {
    fn new(socket: UnixStream) -> Self {
        let (watched, is_over, group, input) = (EventFlags::IN, false, None, VecDeque::new());
        let (skip, output, in_flight) = (4, (*b"NBDMAGICIHAVEOPT\0\x01").into(), 0);
        Self { socket, watched, is_over, group, input, skip, output, in_flight }
    }

    /// Receives bytes through `buffer`, and answers the handshake.
    fn receive(&mut self, export: &Export, buffer: &mut [u8]) {
        match self.socket.read(buffer) {
            Ok(len) if len > 0 => self.input.extend(&buffer[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            _ => self.is_over = true,
        }
        while self.group.is_none() && self.negotiate(export).is_some() {}
    }

    /// Parses and answers an option, if one has arrived completely.
    fn negotiate(&mut self, export: &Export) -> Option<()> {
        let input = self.input.make_contiguous().get(self.skip..)?;
        let (header, rest) = input.split_first_chunk::<16>()?;
        let (option, len) = (number(&header[8..12]) as u32, number(&header[12..]) as usize);
        self.is_over |= !header.starts_with(b"IHAVEOPT") || len > 4096;
        let data = rest.get(..len).filter(|_| !self.is_over)?;
        let reply = |kind: u32, data: &[u8]| {
            let words = [0x0003_e889, 0x0455_65a9, option, kind, data.len() as u32];
            [words.map(u32::to_be_bytes).as_flattened(), data].concat()
        };
        let (facts, ack, asked) = (reply(3, &export.facts), reply(1, &[]), asked(option, data));
        self.output.extend(match (option, asked) {
            // EXPORT_NAME has its own form of reply; for an unknown export it gets none.
            (1, Some(_)) => [&export.facts[2..], &[0; 124]].concat(),
            (1, None) => Vec::new(),
            // ABORT; and LIST: one export, without a name.
            (2, _) => ack,
            (3, _) => [reply(2, &[0; 4]), ack].concat(),
            // INFO and GO
            (6 | 7, Some((_, true))) => [facts, reply(3, &export.block_sizes), ack].concat(),
            (6 | 7, Some((_, false))) => [facts, ack].concat(),
            // ERR_UNKNOWN, ERR_UNSUP
            (6 | 7, None) => reply(1 << 31 | 6, &[]),
            _ => reply(1 << 31 | 1, &[]),
        });
        self.input.drain(..self.skip + 16 + len);
        self.skip = 0;
        if let (1 | 7, Some((weight, _))) = (option, asked) {
            let name = self.socket.as_raw_fd().to_string();
            let options = GroupOptions { weight, ..GroupOptions::default() };
            self.group = export.service.add_group(&name, &options).ok();
        }
        self.is_over |= self.group.is_none() && (option == 1 || option == 7 && asked.is_some());
        Some(())
    }

    /// Returns the next complete request and the I/O for it; `None` if there is none, while replies wait to be sent, or
    /// while [`MOST`] bytes are in flight.
    fn next(&mut self, pool: &BufferPool) -> Option<(Request, Io<AlignedBuf>)> {
        let is_ready = self.in_flight < MOST && self.output.is_empty();
        let group = self.group.as_ref().filter(|_| is_ready)?.id();
        let (header, rest) = self.input.make_contiguous().split_first_chunk::<28>()?;
        let (command, len) = (number(&header[6..8]), number(&header[24..]) as usize);
        let is_lost = header[..4] != 0x2560_9513_u32.to_be_bytes();
        // 2 is DISC.
        self.is_over |= is_lost || command == 2 || command == 1 && len > MOST;
        let data = rest.get(..if command == 1 { len } else { 0 }).filter(|_| !self.is_over)?;
        let mut buffer = pool.take_or_new(if command > 1 || len > MOST { 0 } else { len });
        buffer.as_mut_slice()[..data.len()].copy_from_slice(data);
        let start = Bytes(number(&header[16..24]));
        let range = start..Bytes(start.0.saturating_add(len as u64));
        let io = match command {
            1 => Io::write(start, buffer),
            3 => Io::flush(),
            4 => Io::discard(range),
            6 => Io::write_zeroes(range),
            // An unknown command and an overlong read have an empty buffer, so the queue refuses the I/O as invalid.
            _ => Io::read(start, buffer),
        };
        let is_fua = header[5] & 1 > 0 && io.op != Op::Read;
        self.in_flight += EACH + io.payload.len();
        let request = Request { is_read: command == 0, cookie: number(&header[8..16]) };
        let taken = header.len() + data.len();
        self.input.drain(..taken);
        Some((request, if is_fua { io.fua() } else { io }.group(group)))
    }

    /// Queues the reply to `request` with its result and the buffer of its I/O.
    fn reply(&mut self, request: Request, result: IoResult, mut buffer: AlignedBuf) {
        let known = |errno| ERRORS.iter().find(|(linux, _)| *linux == errno);
        let error = result.err().map_or(0, |IoError(errno)| known(errno).map_or(5, |it| it.1));
        // A read beyond the end of the export gets EINVAL: ENOSPC fits writes only.
        let error = if request.is_read && error == 28 { 22 } else { error };
        let header = 0x6744_6698 << 96 | u128::from(error) << 64 | u128::from(request.cookie);
        self.output.extend(header.to_be_bytes());
        if request.is_read && error == 0 {
            self.output.extend(&*buffer.as_mut_slice());
        }
        self.in_flight -= EACH + buffer.len();
    }

    /// Sends as much as the socket takes, and returns the events to watch for: room, requests, or nothing for now.
    fn send(&mut self) -> EventFlags {
        while !self.output.is_empty() {
            match self.socket.write(self.output.as_slices().0) {
                Ok(len) => drop(self.output.drain(..len)),
                Err(error) => {
                    self.is_over |= error.kind() != ErrorKind::WouldBlock;
                    return EventFlags::OUT;
                }
            }
        }
        if self.in_flight < MOST { EventFlags::IN } else { EventFlags::empty() }
    }
}

/// Decodes a big-endian integer of any length.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Returns the weight that EXPORT_NAME, INFO or GO asks for, and whether the client wants block sizes; `None` if there
/// is no such export.
fn asked(option: u32, data: &[u8]) -> Option<(u32, bool)> {
    let (length, data) = data.split_at_checked(if option == 1 { 0 } else { 4 })?;
    let length = if option == 1 { data.len() } else { number(length) as usize };
    let (name, wanted) = data.split_at_checked(length)?;
    let weight = || from_utf8(name).ok()?.strip_prefix("weight=")?.parse().ok();
    let weight = if name.is_empty() { Some(100) } else { weight() };
    Some((weight?, wanted.chunks(2).skip(1).any(|info| info == [0, 3])))
}
