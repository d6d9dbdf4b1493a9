//! Requests become I/Os.

use super::Worker;
use super::connection::{Connection, Payload, Phase, Transmission, Writing};
use super::status;
use crate::export::Cache;
use crate::flight::{Flight, Key, StepOp, Steps, Work};
use blkmq::{AlignedBuf, Bytes, Io, Owner, Refusal};
use blkmq_nbd::server::Parsed;
use blkmq_nbd::{Checked, Command, ErrorCode, ReplyTo, Request};
use std::ops::Range;

/// A write of zeroes where the disk has no such operation: bytes of a step.
const FILL: u64 = 1 << 20;
/// Bytes of a payload from which on the next one is not read into the worker's buffer first.
const LARGE: usize = 32 << 10;
/// Bytes that every request counts for beside its payload.
const OVERHEAD: usize = 256;
/// Bytes that a connection may always have in flight, even if others have taken all of the worker's: clients that take
/// no replies must not stop those that do. Few clients send longer requests; 256 connections come to 512 MiB.
const RESERVED: usize = 2 << 20;

impl Worker {
    /// Takes requests from `bytes` until they end or have to wait. Returns how many bytes are done with.
    pub(super) fn take_requests(
        &mut self,
        connection: &mut Connection,
        key: Key,
        bytes: &[u8],
    ) -> usize {
        if self.hands_over {
            // The client sends it again, to the server that follows.
            return bytes.len();
        }
        let mut at = 0;
        connection.is_crowded = false;
        while let Phase::Transmission(transmission) = &mut connection.phase {
            match std::mem::replace(&mut transmission.payload, Payload::None) {
                Payload::None => {}
                Payload::Filling { request, buffer, filled } => {
                    match fill(request, buffer, filled, &bytes[at..]) {
                        Filled::Yes(buffer, used) => {
                            at += used;
                            self.write(connection, key, request, buffer);
                        }
                        Filled::NotYet(payload, used) => {
                            transmission.payload = payload;
                            return at + used;
                        }
                    }
                    continue;
                }
                Payload::Dropping { left, to, error } => {
                    let dropped = left.min(bytes.len() - at);
                    at += dropped;
                    if dropped < left {
                        transmission.payload =
                            Payload::Dropping { left: left - dropped, to, error };
                        return at;
                    }
                    connection.output.header(transmission.replies.error(to, error));
                    continue;
                }
            }
            if !connection.has_room(&self.shared.bounds) || self.has_had_its_turn(connection) {
                return at;
            }
            let Phase::Transmission(transmission) = &mut connection.phase else { return at };
            match transmission.requests.next(&bytes[at..]) {
                Parsed::NeedMore => return at,
                Parsed::Malformed(why) => {
                    self.faults.log(self.clock.now(), |before| {
                        let peer = connection.guest.name();
                        tracing::warn!(before, peer, "a connection lost its place: {why}");
                    });
                    connection.is_over = true;
                }
                Parsed::Request { request, header_len, payload_len } => {
                    if !self.has_room(connection, &request) {
                        connection.is_crowded = true;
                        return at;
                    }
                    at += header_len;
                    self.take(connection, key, request, payload_len as usize);
                }
            }
            if connection.is_over {
                return bytes.len();
            }
        }
        at
    }

    /// Has the worker room for the bytes of the request?
    fn has_room(&self, connection: &Connection, request: &Request) -> bool {
        let asked = match request.command {
            Ok(Command::Read | Command::Write) => request.span.length,
            _ => 0,
        };
        let of_connection = connection.bytes + connection.output.waiting();
        self.bytes < self.shared.bounds.bytes_per_worker
            || of_connection as u64 + asked.min(u32::MAX.into()) <= RESERVED as u64
    }

    /// Takes a request whose payload, if it has one, is still to come.
    fn take(&mut self, connection: &mut Connection, key: Key, request: Request, payload: usize) {
        let Phase::Transmission(transmission) = &mut connection.phase else { return };
        let to = request.reply_to();
        let is_over = self.draining.is_some() || transmission.export.is_withdrawn();
        let checked = if is_over && request.command != Ok(Command::Disconnect) {
            Err(ErrorCode::Shutdown)
        } else {
            transmission.terms.check(&request)
        };
        connection.writes_much = payload >= LARGE;
        let start = transmission.export.start;
        let through = transmission.export.cache == Cache::Writethrough;
        match checked {
            Err(error) if payload > 0 => {
                transmission.payload = Payload::Dropping { left: payload, to, error };
            }
            Err(error) => connection.output.header(transmission.replies.error(to, error)),
            Ok(Checked::Write { span, fua }) => {
                let buffer = self.pool.take_or_new(payload);
                let request = Writing { to, offset: start + span.offset, fua: fua || through };
                transmission.payload = Payload::Filling { request, buffer, filled: 0 };
            }
            Ok(Checked::Nothing | Checked::Cache { .. }) => {
                connection.output.header(transmission.replies.done(to));
            }
            Ok(Checked::Disconnect) => connection.is_over = true,
            Ok(Checked::Read { span, .. }) => {
                let disk = &self.shared.disks[transmission.export.disk];
                if let Some(reply) = status::read_of_hole(transmission, disk, to, span) {
                    return connection.output.header(reply);
                }
                let length = span.length as u32;
                let mut buffer = self.pool.take_or_new(length as usize);
                if transmission.export.clears {
                    // It may hold the data of another client.
                    buffer.as_mut_slice().fill(0);
                }
                let io = Io::read(Bytes(start + span.offset), buffer);
                self.begin(connection, key, to, Work::Read(length), io);
            }
            Ok(Checked::Flush) => self.begin(connection, key, to, Work::Plain, Io::flush()),
            Ok(Checked::Trim { span, fua }) => {
                let (next, step) = (start + span.offset, transmission.export.discard);
                let end = next + span.length;
                let steps = Steps { op: StepOp::Discard, next, end, step, fua };
                self.step(connection, key, to, steps);
            }
            Ok(Checked::WriteZeroes { span, fua, no_hole, fast }) => {
                // The disk's own operation may leave holes.
                let zeroes = if no_hole { 0 } else { transmission.export.zeroes };
                if fast && zeroes == 0 {
                    let error = transmission.replies.error(to, ErrorCode::NotSupported);
                    return connection.output.header(error);
                }
                let range = start + span.offset..start + span.offset + span.length;
                self.step(connection, key, to, zeroing(range, zeroes, fua || through));
            }
            Ok(Checked::BlockStatus { span, count }) => {
                let disk = &self.shared.disks[transmission.export.disk];
                let mut bytes = Vec::new();
                status::answer(transmission, disk, to, (span, count), &mut bytes);
                connection.output.bytes(bytes);
            }
        }
    }

    fn write(
        &mut self,
        connection: &mut Connection,
        key: Key,
        request: Writing,
        buffer: AlignedBuf,
    ) {
        // At most 32 MiB.
        let length = buffer.len() as u32;
        let io = Io::write(Bytes(request.offset), buffer);
        let io = if request.fua { io.fua() } else { io };
        self.begin(connection, key, request.to, Work::Write(length), io);
    }

    /// Begins a request that covers its range in steps.
    fn step(&mut self, connection: &mut Connection, key: Key, to: ReplyTo, mut steps: Steps) {
        let io = next_step(&mut steps, &self.pool);
        self.begin(connection, key, to, Work::Steps(steps), io);
    }

    /// Begins a request with its first I/O.
    fn begin(
        &mut self,
        connection: &mut Connection,
        key: Key,
        to: ReplyTo,
        work: Work,
        io: Io<AlignedBuf>,
    ) {
        let bytes = OVERHEAD + io.payload.len();
        let place = self.flights.insert(Flight { connection: key, to, work, bytes });
        connection.count(self.turn, bytes);
        self.bytes += bytes;
        self.push(connection, key, place, io);
    }

    /// Pushes an I/O of the request in `place`. Without credit it waits, and so does the connection.
    pub(super) fn push(
        &mut self,
        connection: &mut Connection,
        key: Key,
        place: u32,
        io: Io<AlignedBuf>,
    ) {
        let Phase::Transmission(transmission) = &connection.phase else {
            let payload = io.payload;
            self.ended.push(super::Ended {
                place,
                result: Err(blkmq::IoError::CANCELLED),
                payload,
            });
            return;
        };
        let Transmission { export, .. } = &**transmission;
        let io = io.cookie(place.into()).owner(Owner(export.number)).group(export.group.id());
        let io = io.ioprio(export.ioprio);
        let disk = export.disk;
        if let Err(refused) = self.clients[disk].push(io) {
            if matches!(refused.why, Refusal::NoCredit { .. }) {
                connection.held = Some((place, refused.into_io()));
                self.starved.push(key);
                return;
            }
            let result = Err(refused.why.into());
            self.ended.push(super::Ended { place, result, payload: refused.into_io().payload });
        }
    }
}

/// The steps that write zeroes: the disk's own operation, `zeroes` bytes at a time, or buffers if it has none.
fn zeroing(range: Range<u64>, zeroes: u64, fua: bool) -> Steps {
    let (op, step) = if zeroes > 0 { (StepOp::WriteZeroes, zeroes) } else { (StepOp::Fill, FILL) };
    Steps { op, next: range.start, end: range.end, step, fua }
}

/// The I/O of the next step, which is taken off `steps`.
pub(super) fn next_step(steps: &mut Steps, pool: &blkmq::BufferPool) -> Io<AlignedBuf> {
    let end = steps.end.min(steps.next + steps.step);
    let range = Bytes(steps.next)..Bytes(end);
    let io = match steps.op {
        StepOp::Discard => Io::discard(range),
        StepOp::WriteZeroes => Io::write_zeroes(range),
        StepOp::Fill => {
            let mut buffer = pool.take_or_new((end - steps.next) as usize);
            buffer.as_mut_slice().fill(0);
            Io::write(Bytes(steps.next), buffer)
        }
    };
    steps.next = end;
    if steps.fua && steps.op != StepOp::Discard { io.fua() } else { io }
}

/// A payload, after bytes arrived.
enum Filled {
    /// Complete, with this many of the bytes.
    Yes(AlignedBuf, usize),
    NotYet(Payload, usize),
}

fn fill(request: Writing, mut buffer: AlignedBuf, filled: usize, bytes: &[u8]) -> Filled {
    let left = &mut buffer.as_mut_slice()[filled..];
    let used = left.len().min(bytes.len());
    left[..used].copy_from_slice(&bytes[..used]);
    if used == left.len() {
        Filled::Yes(buffer, used)
    } else {
        Filled::NotYet(Payload::Filling { request, buffer, filled: filled + used }, used)
    }
}
