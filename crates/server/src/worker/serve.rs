//! [`Requests`]: converts the requests of a worker's connections to I/Os, and completions to replies.
//!
//! It uses no socket: it gets received bytes, and adds replies to the output of the connection. BLOCK_STATUS
//! (`base:allocation`) and large reads of holes are answered from the extents of the disk, without an I/O. A long
//! request performs some portions, or one step, in each turn of its connection.

use super::Shared;
use super::connection::{Arriving, Connection, Payload, Phase, Transmission, Writing};
use super::places::Turn;
use crate::disk::Disk;
use crate::export::Cache;
use crate::flight::{self, Buffers, Cookie, Flight, Flights, Key, Long, Steps, Work, Zeroes};
use crate::log::Reason;
use crate::threads::DiskClient;
use blkmq::{AlignedBuf, Bytes, Instant, Io, IoError, IoResult, Owner, Refusal, SECTOR_SIZE};
use blkmq_nbd::server::{Extents, Parsed, Room};
use blkmq_nbd::{
    Checked, Command, ErrorCode, Extent, ExtentCount, HOLE, Header, Limits, ReplyTo, Request, Span,
    ZERO,
};
use std::ops::Range;
use std::sync::Arc;

/// The length in bytes of a write payload after which reads take little beyond a payload, so that the next one is
/// received into its own buffer.
const LARGE: usize = 32 << 10;
/// Bytes charged for every request in addition to its payload.
const OVERHEAD: usize = 256;
/// Bytes that a connection may have in flight while the worker is at its limit, so that clients that take no replies do
/// not stop the others. Few clients send longer requests. For 256 connections the total is 512 MiB.
const RESERVED: usize = 2 << 20;

/// A completed or refused I/O.
pub(super) struct Ended {
    cookie: Cookie,
    pub(super) result: IoResult,
    payload: AlignedBuf,
}

/// The requests of a worker that are in flight, and the worker's client of every disk.
pub(super) struct Requests {
    shared: Arc<Shared>,
    /// By disk.
    pub(super) clients: Vec<DiskClient>,
    pub(super) flights: Flights<Flight>,
    pub(super) buffers: Buffers,
    /// Bytes in flight for all connections, including those in their outputs and incomplete payloads.
    pub(super) bytes: usize,
    pub(super) ended: Vec<Ended>,
    /// Connections with an I/O that got no credit, oldest first.
    pub(super) starved: Vec<Key>,
    pub(super) turn: Turn,
    /// The time at which the drain began, from which on requests are refused; `None` if there is no drain.
    pub(super) draining: Option<Instant>,
}

impl Requests {
    pub(super) fn new(shared: Arc<Shared>, clients: Vec<DiskClient>) -> Self {
        let bytes_per_turn = shared.bounds.bytes_per_turn;
        Self {
            shared,
            clients,
            flights: Flights::default(),
            buffers: Buffers::new(bytes_per_turn),
            bytes: 0,
            ended: Vec::new(),
            starved: Vec::new(),
            turn: Turn::new(bytes_per_turn),
            draining: None,
        }
    }

    /// Takes requests from `bytes` until none is left or the next one must wait. Returns the number of bytes consumed.
    pub(super) fn take_from(&mut self, connection: &mut Connection, bytes: &[u8]) -> usize {
        let mut at = 0;
        connection.is_crowded = false;
        while let Phase::Transmission(transmission) = &mut connection.phase {
            match std::mem::replace(&mut transmission.payload, Payload::None) {
                Payload::None => {}
                Payload::Filling { request, mut arriving } => {
                    let used = arriving.fill(&self.buffers, &bytes[at..]);
                    at += used;
                    connection.earned += used;
                    if !arriving.is_complete() {
                        transmission.payload = Payload::Filling { request, arriving };
                        return at;
                    }
                    self.write(connection, request, arriving);
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
            if !connection.has_room(&self.shared.bounds) || self.turn.is_over_for(connection) {
                return at;
            }
            let Phase::Transmission(transmission) = &mut connection.phase else { return at };
            match transmission.requests.next(&bytes[at..]) {
                Parsed::NeedMore => return at,
                Parsed::Malformed(why) => {
                    let why = format!("a connection lost its place: {why}");
                    connection.refused(&self.shared.refusals, Reason::Protocol, None, &why);
                    connection.is_over = true;
                }
                Parsed::Request { request, header_len, payload_len } => {
                    if !self.may_take(connection, &request) {
                        return at;
                    }
                    at += header_len;
                    self.take(connection, request, payload_len as usize);
                }
            }
            if connection.is_over {
                return bytes.len();
            }
        }
        at
    }

    /// Returns whether the request may be taken. If false, the connection waits for room, or for its turn in the line.
    fn may_take(&self, connection: &mut Connection, request: &Request) -> bool {
        connection.is_crowded = !self.has_room(connection, request);
        if connection.is_crowded {
            return false;
        }
        let waits = self.turn.must_wait(connection, cost(request));
        if waits {
            self.turn.use_up(connection);
        }
        !waits
    }

    /// Returns whether the worker has room for the bytes of the request.
    fn has_room(&self, connection: &Connection, request: &Request) -> bool {
        let of_connection = connection.bytes + connection.output.waiting();
        self.bytes < self.shared.bounds.bytes_per_worker
            || of_connection as u64 + moved(request) <= RESERVED as u64
    }

    /// Takes a request, whose payload, if any, has not been received.
    fn take(&mut self, connection: &mut Connection, request: Request, payload: usize) {
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
                let arriving = Arriving::new(&self.buffers, payload);
                let request = Writing { to, offset: start + span.offset, fua: fua || through };
                transmission.payload = Payload::Filling { request, arriving };
            }
            // No reply reaches the client.
            Ok(Checked::Read { .. } | Checked::BlockStatus { .. }) if connection.is_cut => {}
            Ok(Checked::Nothing | Checked::Cache { .. }) => {
                connection.output.header(transmission.replies.done(to));
            }
            Ok(Checked::Disconnect) => connection.is_over = true,
            Ok(Checked::Read { span, .. }) => {
                let disk = &self.shared.disks[transmission.export.disk];
                if let Some(reply) = read_of_hole(transmission, disk, to, span) {
                    return connection.output.header(reply);
                }
                self.read_from(connection, to, (start + span.offset, span.length as u32));
            }
            Ok(Checked::Flush) => self.begin(connection, to, Work::Plain, Io::flush()),
            Ok(Checked::Trim { span, fua }) => {
                let steps = Steps::trim(range(start, span), transmission.export.discard, fua);
                self.begin_steps(connection, to, steps);
            }
            Ok(Checked::WriteZeroes { span, fua, no_hole, fast }) => {
                let (most, zeroing) = (transmission.export.zeroes, transmission.export.zeroing);
                let can = most > 0 && (zeroing.keeps_room || !no_hole);
                if fast && !(can && zeroing.is_fast) {
                    let error = transmission.replies.error(to, ErrorCode::NotSupported);
                    return connection.output.header(error);
                }
                let (range, fua) = (range(start, span), fua || through);
                let portion = self.buffers.portion();
                let steps = if can {
                    let zeroes = Zeroes { no_hole, otherwise: (!fast).then_some(portion) };
                    Steps::zero(range, most, fua, zeroes)
                } else {
                    Steps::fill(range, portion, fua)
                };
                self.begin_steps(connection, to, steps);
            }
            Ok(Checked::BlockStatus { span, count }) => {
                let disk = &self.shared.disks[transmission.export.disk];
                let mut bytes = Vec::new();
                block_status(transmission, disk, to, (span, count), &mut bytes);
                connection.output.bytes(bytes);
            }
        }
    }

    /// Begins a read of `length` bytes from byte `start` of the disk on.
    fn read_from(&mut self, connection: &mut Connection, to: ReplyTo, (start, length): (u64, u32)) {
        let portion = self.buffers.portion() as u32;
        if length > portion {
            return self.begin_long(connection, to, Long::read(start, length, portion));
        }
        let buffer = buffer_to_read(connection, &self.buffers, length as usize);
        self.begin(connection, to, Work::Read(length), Io::read(Bytes(start), buffer));
    }

    fn write(&mut self, connection: &mut Connection, request: Writing, arriving: Arriving) {
        let Writing { to, offset, fua } = request;
        match arriving.into_payloads() {
            Ok(buffer) => {
                // At most a portion.
                let length = buffer.len() as u32;
                let io = Io::write(Bytes(offset), buffer);
                let io = if fua { io.fua() } else { io };
                self.begin(connection, to, Work::Write(length), io);
            }
            Err(payloads) => {
                self.begin_long(connection, to, Long::write(offset, payloads, fua));
            }
        }
    }

    /// Begins a request with its first I/O.
    fn begin(&mut self, connection: &mut Connection, to: ReplyTo, work: Work, io: Io<AlignedBuf>) {
        let bytes = OVERHEAD + io.payload.len();
        self.turn.spend(connection, bytes);
        let at = io.sector * u64::from(SECTOR_SIZE);
        let flight = Flight { connection: connection.key, to, work, at, bytes };
        let place = self.add(connection, flight);
        self.push(connection, Cookie { place, portion: 0 }, io);
    }

    /// Counts a request, and returns its place.
    fn add(&mut self, connection: &mut Connection, flight: Flight) -> u32 {
        connection.count(flight.bytes);
        self.bytes += flight.bytes;
        self.flights.insert(flight)
    }

    /// Pushes an I/O. Without credit it waits, and so does the connection. Of the I/Os delayed by a ceiling of their
    /// export, only the first in each direction takes credit, so that other exports have some.
    pub(super) fn push(&mut self, connection: &mut Connection, cookie: Cookie, io: Io<AlignedBuf>) {
        let Phase::Transmission(transmission) = &connection.phase else {
            let result = Err(IoError::CANCELLED);
            return self.ended.push(Ended { cookie, result, payload: io.payload });
        };
        let export = &transmission.export;
        let io = io.cookie(cookie.into()).owner(Owner(export.number)).group(export.group.id());
        let io = io.ioprio(export.ioprio);
        let disk = export.disk;
        if let Err(refused) = self.clients[disk].client.line_up(io) {
            if matches!(refused.why, Refusal::NoCredit { .. }) {
                connection.held = Some((cookie, refused.into_io()));
                return self.starved.push(connection.key);
            }
            let result = Err(refused.why.into());
            self.ended.push(Ended { cookie, result, payload: refused.into_io().payload });
        }
    }
}

/// The number of bytes that the request transfers.
fn moved(request: &Request) -> u64 {
    match request.command {
        Ok(Command::Read | Command::Write) => request.span.length.min(u32::MAX.into()),
        _ => 0,
    }
}

/// The bytes charged to a turn for the request.
fn cost(request: &Request) -> u64 {
    match request.command {
        Ok(Command::Trim | Command::WriteZeroes) => flight::step_cost(request.span.length),
        _ => moved(request),
    }
}

/// A buffer for a read of the connection.
fn buffer_to_read(connection: &Connection, buffers: &Buffers, len: usize) -> AlignedBuf {
    let clears = match &connection.phase {
        Phase::Transmission(transmission) => transmission.export.clears,
        Phase::Handshake { .. } | Phase::Broken { .. } => false,
    };
    buffers.cleared(len, clears)
}

/// The range on the disk of a request to an export that begins at `start`.
fn range(start: u64, span: Span) -> Range<u64> {
    start + span.offset..start + span.offset + span.length
}

/// The length in bytes of a read from which on the disk is checked for a hole first. For a file this is a system call,
/// which costs more than a small read gains.
const SPARSE: u64 = 64 << 10;

/// The reply to a large read of a hole, which saves the I/O and the bandwidth. `None` if the range has data, if the
/// client has no structured replies, or if the disk does not know its holes or would have to ask a server, whose own
/// replies omit holes. Completed writes are taken into account.
fn read_of_hole(
    transmission: &Transmission,
    disk: &Disk,
    to: ReplyTo,
    span: Span,
) -> Option<Header> {
    if span.length < SPARSE || disk.device().asks_for_extents() {
        return None;
    }
    let length = u32::try_from(span.length).ok()?;
    let mut pieces = transmission.replies.pieces(to, length)?;
    let start = transmission.export.start + span.offset;
    let end = start + span.length;
    let found = disk.device().extents(start..end, 1).ok()?;
    let is_hole = found.first().is_some_and(|first| first.is_hole && first.end == end);
    is_hole.then(|| pieces.hole(length))
}

/// Appends the reply, up to the limit of the specification. Costs one or two system calls for each extent of a file. If
/// the disk is an export of another server, the worker waits for its reply.
fn block_status(
    transmission: &Transmission,
    disk: &Disk,
    to: ReplyTo,
    (span, count): (Span, ExtentCount),
    out: &mut Vec<u8>,
) {
    let limits = Limits::default();
    let start = transmission.export.start + span.offset;
    let range = start..start + span.length;
    let most = match count {
        ExtentCount::One => 1,
        ExtentCount::Many => limits.extents as usize,
    };
    let stretches = match disk.device().extents(range.clone(), most) {
        Ok(stretches) => stretches,
        Err(error) => {
            let errno = error.raw_os_error().and_then(|errno| u16::try_from(errno).ok());
            let error = errno.map_or(IoError::IO, IoError);
            disk.failed(&transmission.export.info.name, ("block status", start), error);
            return out.extend_from_slice(&transmission.replies.error(to, ErrorCode::Io));
        }
    };
    let mut extents = Extents::new(span, count, &limits);
    let mut at = range.start;
    for stretch in stretches {
        let flags = if stretch.is_hole { HOLE | ZERO } else { 0 };
        let extent = Extent { length: stretch.end - at, flags };
        at = stretch.end;
        if extents.push(extent) == Room::Full {
            break;
        }
    }
    let contexts: Vec<(u32, &Extents)> =
        transmission.contexts.iter().map(|context| (context.id, &extents)).collect();
    transmission.replies.block_status(to, &contexts, out);
}

/// Requests of a broken connection complete without a reply.
impl Requests {
    /// Flushes the plugs, and reaps completions.
    pub(super) fn reap(&mut self) {
        let Self { clients, ended, .. } = self;
        for disk in clients.iter_mut().filter(|disk| disk.has_work()) {
            disk.reap(|cookie, result, payload| ended.push(Ended { cookie, result, payload }));
        }
    }

    /// The connection of an I/O, which exists until its requests have ended.
    pub(super) fn connection_of(&mut self, io: &Ended) -> Key {
        self.flights.get_mut(io.cookie.place).connection
    }

    /// Handles a completed I/O of the connection: its request continues, or the reply is added.
    pub(super) fn end(&mut self, connection: &mut Connection, io: Ended) {
        let Ended { cookie, mut result, mut payload } = io;
        let Cookie { place, portion } = cookie;
        if result == Err(IoError::NOT_SUPPORTED)
            && let Work::Steps(steps) = &mut self.flights.get_mut(place).work
            && steps.falls_back()
        {
            result = Ok(());
        }
        if let Err(error) = result {
            self.tell_of(connection, cookie, error);
        }
        match &mut self.flights.get_mut(place).work {
            Work::Steps(steps) if result.is_ok() && !steps.is_over() => {
                steps.end(self.turn.number);
                return connection.steps.push_back(place);
            }
            Work::Long(long) => {
                long.end(portion, result, std::mem::take(&mut payload));
                result = long.result;
                if !long.is_over() {
                    return;
                }
            }
            _ => {}
        }
        let flight = self.flights.remove(place);
        self.forget(connection, &flight);
        connection.long = connection.long.filter(|long| *long != place);
        connection.count_end(&flight, result);
        reply(connection, flight, result, payload);
    }

    /// Logs a failed I/O of the connection. I/Os cancelled by the server, and operations that the device does not
    /// support, are not failures.
    fn tell_of(&mut self, connection: &Connection, cookie: Cookie, error: IoError) {
        let has_failed = ![IoError::CANCELLED, IoError::NOT_SUPPORTED].contains(&error);
        let Some(export) = connection.seat().filter(|_| has_failed) else { return };
        let flight = self.flights.get_mut(cookie.place);
        let skipped = match &flight.work {
            Work::Long(long) => long.skips(cookie.portion),
            _ => 0,
        };
        let what = (flight.work.name(), flight.at + skipped);
        self.shared.disks[export.disk].failed(&export.info.name, what, error);
    }
}

/// Adds the reply to the output of its connection.
fn reply(connection: &mut Connection, flight: Flight, result: IoResult, payload: AlignedBuf) {
    let Phase::Transmission(transmission) = &connection.phase else { return };
    let (replies, output) = (transmission.replies, &mut connection.output);
    match (result, flight.work) {
        (Err(error), work) => {
            // Reads beyond the end are refused before they are submitted, so this is an error of the device.
            let is_read = match work {
                Work::Read(_) => true,
                Work::Long(long) => long.is_read(),
                Work::Write(_) | Work::Plain | Work::Steps(_) => false,
            };
            let code = match ErrorCode::from_linux(error.0.into()) {
                ErrorCode::NoSpace if is_read => ErrorCode::Io,
                // The device has shut down, not the server, to which a client would reconnect.
                ErrorCode::Shutdown => ErrorCode::Io,
                code => code,
            };
            output.header(replies.error(flight.to, code));
        }
        (Ok(()), Work::Read(length)) => {
            output.header(replies.read(flight.to, length));
            output.data(payload);
        }
        (Ok(()), Work::Long(long)) if long.is_read() => {
            output.header(replies.read(flight.to, long.length));
            long.payloads.into_iter().for_each(|data| output.data(data));
        }
        (Ok(()), Work::Write(_) | Work::Plain | Work::Steps(_) | Work::Long(_)) => {
            output.header(replies.done(flight.to));
        }
    }
}

impl Requests {
    /// Begins a long request with as many portions as fit into the turn.
    fn begin_long(&mut self, connection: &mut Connection, to: ReplyTo, long: Long) {
        let bytes = OVERHEAD + long.length as usize;
        self.turn.spend(connection, OVERHEAD);
        let at = long.start;
        let flight = Flight { connection: connection.key, to, work: Work::Long(long), at, bytes };
        connection.long = Some(self.add(connection, flight));
        self.go_on(connection);
    }

    /// Begins a request that covers its range in steps.
    fn begin_steps(&mut self, connection: &mut Connection, to: ReplyTo, mut steps: Steps) {
        let io = steps.begin(self.turn.number, |len| self.buffers.take(len));
        let bytes = OVERHEAD + io.payload.len();
        let flight =
            Flight { connection: connection.key, to, work: Work::Steps(steps), at: 0, bytes };
        let place = self.add(connection, flight);
        self.push_step(connection, place, io);
    }

    /// Begins the next step of the request that has waited longest for one. This is only done at the beginning of a
    /// turn, so that some of the turn is left for later requests.
    fn step(&mut self, connection: &mut Connection) {
        if connection.held.is_some() || connection.begun_in(self.turn.number) > 0 {
            return;
        }
        let Some(place) = connection.steps.pop_front() else { return };
        let Work::Steps(steps) = &mut self.flights.get_mut(place).work else { return };
        let io = steps.begin(self.turn.number, |len| self.buffers.take(len));
        self.push_step(connection, place, io);
    }

    fn push_step(&mut self, connection: &mut Connection, place: u32, io: Io<AlignedBuf>) {
        let cost = flight::step_cost(u64::from(io.sectors) * u64::from(SECTOR_SIZE)) as usize;
        self.turn.spend(connection, OVERHEAD + cost.max(io.payload.len()));
        self.flights.get_mut(place).at = io.sector * u64::from(SECTOR_SIZE);
        self.push(connection, Cookie { place, portion: 0 }, io);
    }

    /// Begins a step, and portions of the long request of the connection while its turn lasts.
    pub(super) fn go_on(&mut self, connection: &mut Connection) {
        self.step(connection);
        while let Some(place) = connection.long
            && connection.may_go_on(&self.shared.bounds)
            && !self.turn.is_over_for(connection)
        {
            let Self { flights, buffers, .. } = self;
            let Work::Long(long) = &mut flights.get_mut(place).work else { return };
            if !long.has_more() {
                connection.long = None;
                return;
            }
            let (portion, io) = long.begin(|len| buffer_to_read(connection, buffers, len));
            if !long.has_more() {
                connection.long = None;
            }
            self.turn.spend(connection, io.payload.len());
            self.push(connection, Cookie { place, portion }, io);
        }
    }

    /// Ends the long request and the steps of a broken connection: no further portion or step begins.
    pub(super) fn give_up(&mut self, connection: &mut Connection) {
        if !matches!(connection.phase, Phase::Broken { .. }) {
            return;
        }
        while let Some(place) = connection.steps.pop_front() {
            let flight = self.flights.remove(place);
            self.forget(connection, &flight);
        }
        let Some(place) = connection.long.take() else { return };
        let Work::Long(long) = &mut self.flights.get_mut(place).work else { return };
        long.stop(Err(IoError::CANCELLED));
        if long.is_over() {
            let flight = self.flights.remove(place);
            self.forget(connection, &flight);
        }
    }

    /// Removes the request from the counts of the worker and of the connection.
    fn forget(&mut self, connection: &mut Connection, flight: &Flight) {
        self.bytes -= flight.bytes;
        connection.requests -= 1;
        connection.bytes -= flight.bytes;
    }
}
