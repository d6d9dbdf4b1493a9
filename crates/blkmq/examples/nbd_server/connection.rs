//! A connection: NBD's fixed newstyle handshake, requests and simple replies. It does socket I/O only; the server does
//! the disk I/O.

use blkmq::prelude::*;
use blkmq::{GroupGuard, GroupOptions};
use rustix::event::epoll::EventFlags;
use std::io::{ErrorKind, Read, Write};
use std::{collections::VecDeque, os::fd::AsRawFd, os::unix::net::UnixStream, str::from_utf8};

/// The longest read or write in bytes, and the most bytes in flight for a connection, counting the buffer of each
/// request and `EACH`.
pub const MOST: usize = 32 << 20;
const EACH: usize = 256 << 10;
/// Pairs of a Linux errno and the NBD error for it. NBD has EPERM, ENOMEM, EINVAL, ENOSPC, EOPNOTSUPP and ESHUTDOWN; an
/// errno that is not listed becomes EIO.
const ERRORS: [(u16, u32); 8] =
    [(1, 1), (30, 1), (12, 12), (11, 12), (22, 22), (28, 28), (95, 95), (131, 108)];

/// The state that connections share. `facts` (size and flags) and `block_sizes` are encoded as they are sent.
pub struct Export {
    pub service: Service<AlignedBuf>,
    pub pool: BufferPool,
    pub facts: Vec<u8>,
    pub block_sizes: Vec<u8>,
}

#[derive(Clone, Copy, Default)]
pub struct Request {
    is_read: bool,
    cookie: u64,
}

pub struct Connection {
    pub socket: UnixStream,
    /// The events for which epoll watches the socket.
    pub watched: EventFlags,
    pub is_over: bool,
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
    pub fn new(socket: UnixStream) -> Self {
        let (watched, is_over, group, input) = (EventFlags::IN, false, None, VecDeque::new());
        let (skip, output, in_flight) = (4, (*b"NBDMAGICIHAVEOPT\0\x01").into(), 0);
        Self { socket, watched, is_over, group, input, skip, output, in_flight }
    }

    /// Receives bytes through `buffer`, and answers the handshake.
    pub fn receive(&mut self, export: &Export, buffer: &mut [u8]) {
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
    pub fn next(&mut self, pool: &BufferPool) -> Option<(Request, Io<AlignedBuf>)> {
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
    pub fn reply(&mut self, request: Request, result: IoResult, mut buffer: AlignedBuf) {
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
    pub fn send(&mut self) -> EventFlags {
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
