//! [`Link`]: the connection of a hardware queue, and its re-establishment after a loss; the bytes on it; and the
//! properties of an export that the engine needs, derived from those sent by its server, which a later connection must
//! keep.
//!
//! A link that is down tries to connect: immediately, then after 100 ms, 200 ms and so on, up to every two seconds. It
//! never blocks, and itself exchanges only handshakes. [`Output`] sends the bytes of requests, many requests in one
//! system call, and [`Input`] receives replies. The data of reads goes directly from the socket to the payloads.

use crate::options::{OpenError, Options};
use crate::place::Flight;
use crate::stream::Stream;
use crate::target::{self, Greeted, Greeting, Target, Welcome};
use blkmq_core::{Instant, IoError, Limits, Nanos, SECTOR_SIZE};
use blkmq_engine::{DeviceShape, Finished, WriteCache};
use blkmq_nbd::client::{Agreed, BrokenReply, Content, Parsed, Replies, Reply};
use blkmq_nbd::{ErrorCode, HeaderStyle, TransmissionFlags};
use rustix::event::epoll;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The time after which an attempt to connect, or a handshake, is given up.
const PATIENCE: Nanos = Nanos::from_secs(10);
const FIRST_DELAY: Nanos = Nanos::from_millis(100);
const LONGEST_DELAY: Nanos = Nanos::from_secs(2);

/// A connection in its transmission phase.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    pub(crate) style: HeaderStyle,
    pub(crate) output: Output,
    pub(crate) input: Input,
    /// Whether the descriptor of the link reports room in the socket.
    watches_room: bool,
}

#[derive(Debug)]
enum State {
    Up(Connection),
    Connecting { socket: OwnedFd, until: Instant },
    Greeting { greeting: Box<Greeting>, until: Instant },
    Down { retry_at: Instant },
}

/// The period without a connection that has answered a request.
#[derive(Clone, Copy, Debug)]
struct Outage {
    since: Instant,
    attempts: u32,
}

/// The connection of a hardware queue.
#[derive(Debug)]
pub(crate) struct Link {
    target: Arc<Target>,
    /// Readable when the link or its connection can make progress.
    epoll: OwnedFd,
    state: State,
    outage: Option<Outage>,
}

impl Link {
    /// Creates a link that is up.
    pub(crate) fn new(target: Arc<Target>, welcome: Welcome) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&epoll, welcome.stream.as_fd(), epoll::EventFlags::IN)?;
        let state = State::Up(Connection::new(welcome));
        Ok(Self { target, epoll, state, outage: None })
    }

    /// Readable, level-triggered, when [`step`](Self::step) or the connection can make progress.
    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The connection, or `None` while the link is down.
    pub(crate) fn connection(&mut self) -> Option<&mut Connection> {
        match &mut self.state {
            State::Up(connection) => Some(connection),
            _ => None,
        }
    }

    /// Returns when the outage began, or `None` if there is none.
    pub(crate) fn down_since(&self) -> Option<Instant> {
        match self.state {
            State::Up(_) => None,
            _ => self.outage.map(|outage| outage.since),
        }
    }

    /// Ends the outage: the connection has answered a request. Merely accepting connections does not end it: the
    /// attempts become rarer, and the time after which requests fail continues to run.
    pub(crate) fn proven(&mut self) {
        self.outage = None;
    }

    /// Records `request`, which was given up, if there is one. It was at fault and not the server, so the next attempt
    /// does not wait.
    pub(crate) fn give_up(&mut self, request: Option<String>) {
        if let Some(request) = request {
            self.target.outages.give_up(request);
            self.outage = None;
        }
    }

    /// Returns the time at which [`step`](Self::step) must be called even if the descriptor is not readable.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        match &self.state {
            State::Up(_) => None,
            State::Connecting { until, .. } | State::Greeting { until, .. } => Some(*until),
            State::Down { retry_at } => Some(*retry_at),
        }
    }

    /// Starts or stops watching for room in the socket.
    pub(crate) fn watch_room(&mut self, wanted: bool) -> io::Result<()> {
        let State::Up(connection) = &mut self.state else { return Ok(()) };
        if connection.watches_room != wanted {
            change(&self.epoll, connection.stream.as_fd(), wanted)?;
            connection.watches_room = wanted;
        }
        Ok(())
    }

    /// Takes the link down: the connection, or the attempt to make one, has failed.
    pub(crate) fn lose(&mut self, now: Instant, why: &dyn fmt::Display) {
        self.target.outages.note(matches!(self.state, State::Up(_)), why);
        let outage = self.outage.get_or_insert(Outage { since: now, attempts: 0 });
        let delay = match outage.attempts {
            0 => Nanos(0),
            n => Nanos(FIRST_DELAY.0 << (n - 1).min(16)).min(LONGEST_DELAY),
        };
        outage.attempts = outage.attempts.saturating_add(1);
        // Dropping a socket also removes it from the epoll set.
        self.state = State::Down { retry_at: now + delay };
    }

    /// Continues an attempt to connect as far as possible without waiting. Returns whether the link has come up.
    pub(crate) fn step(&mut self, now: Instant) -> bool {
        let down = State::Down { retry_at: now };
        let next = match std::mem::replace(&mut self.state, down) {
            up @ State::Up(_) => {
                self.state = up;
                return false;
            }
            State::Down { retry_at } if retry_at > now => Ok(State::Down { retry_at }),
            State::Down { .. } => self.connect(now),
            State::Connecting { until, .. } | State::Greeting { until, .. } if until <= now => {
                Err(OpenError::Silent)
            }
            State::Connecting { socket, until } => self.arrive(socket, until),
            State::Greeting { greeting, until } => self.greet(greeting, until),
        };
        match next {
            Ok(state) => self.state = state,
            Err(error) => self.lose(now, &error),
        }
        let is_up = matches!(self.state, State::Up(_));
        if is_up {
            self.target.outages.end();
        }
        is_up
    }

    fn connect(&mut self, now: Instant) -> Result<State, OpenError> {
        let attempts = self.outage.map_or(0, |outage| outage.attempts);
        let socket = self.target.address(attempts).connect()?;
        // The socket becomes writable when the connection has been made.
        watch(&self.epoll, socket.as_fd(), epoll::EventFlags::OUT)?;
        self.arrive(socket, now + PATIENCE)
    }

    /// Begins the handshake if the socket has connected.
    fn arrive(&mut self, socket: OwnedFd, until: Instant) -> Result<State, OpenError> {
        if !is_writable(&socket)? {
            return Ok(State::Connecting { socket, until });
        }
        target::outcome(&socket)?;
        let greeting = self.target.greeting(Stream::new(socket), &[]);
        self.greet(greeting, until)
    }

    fn greet(&mut self, greeting: Box<Greeting>, until: Instant) -> Result<State, OpenError> {
        match greeting.step()? {
            Greeted::Waiting(greeting) => {
                change(&self.epoll, greeting.stream.as_fd(), greeting.wants_write())?;
                Ok(State::Greeting { greeting, until })
            }
            Greeted::Agreed(welcome) => {
                check_same(&self.target.agreed, &welcome.agreed)?;
                change(&self.epoll, welcome.stream.as_fd(), false)?;
                Ok(State::Up(Connection::new(welcome)))
            }
        }
    }
}

impl Connection {
    fn new(welcome: Welcome) -> Self {
        let Welcome { stream, agreed, early } = welcome;
        let input = Input::new(agreed.style, &early);
        Self { stream, style: agreed.style, output: Output::default(), input, watches_room: false }
    }
}

fn watch(epoll: &OwnedFd, socket: BorrowedFd<'_>, events: epoll::EventFlags) -> io::Result<()> {
    Ok(epoll::add(epoll, socket, epoll::EventData::new_u64(0), events)?)
}

/// Watches for incoming bytes and, if `room`, for room in the socket.
fn change(epoll: &OwnedFd, socket: BorrowedFd<'_>, room: bool) -> io::Result<()> {
    let events =
        if room { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
    Ok(epoll::modify(epoll, socket, epoll::EventData::new_u64(0), events)?)
}

fn is_writable(socket: &OwnedFd) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::new(socket, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(rustix::io::retry_on_intr(|| poll(&mut polled, Some(&now)))? > 0)
}

/// The maximum length of a read or write in bytes, even if the server accepts more: more merging gains nothing and
/// costs latency.
const LONGEST: u32 = 4 << 20;
/// The maximum length of a discard or a range of zeroes in bytes; fits 32 bits.
const LONGEST_RANGE: u32 = 1 << 30;

/// The shape of the device, and notes for the user.
///
/// # Errors
/// If the export is shorter than a block, or its blocks are longer than the engine's maximum.
pub(crate) fn shape_of(
    agreed: &Agreed,
    options: &Options,
) -> Result<(DeviceShape, Vec<String>), OpenError> {
    let mut notes = Vec::new();
    let flags = agreed.details.flags;
    let blocks = agreed.details.blocks.unwrap_or_default();
    let block = blocks.min().max(SECTOR_SIZE);
    if block > 4096 {
        return Err(OpenError::Unfit(format!(
            "the export has blocks of {block} bytes; accepted: up to 4096"
        )));
    }
    let rest = agreed.details.size % u64::from(block);
    if agreed.details.size == rest {
        return Err(OpenError::Unfit(format!(
            "the export has {rest} bytes; accepted: at least a block of {block}"
        )));
    }
    if rest > 0 {
        notes.push(format!("the last {rest} bytes are no whole block and are left alone"));
    }
    let mut hw_queues = options.hw_queues;
    if hw_queues > 1 && !flags.contains(TransmissionFlags::CAN_MULTI_CONN) {
        notes.push(format!(
            "the server does not announce multi-conn; hw_queues={hw_queues} is one connection"
        ));
        hw_queues = 1;
    }
    let sectors = |bytes: u32| bytes / block * (block / SECTOR_SIZE);
    let range = |flag| if flags.contains(flag) { sectors(LONGEST_RANGE) } else { 0 };
    let limits = Limits {
        logical_block_size: block,
        physical_block_size: blocks.preferred().clamp(block, 1 << 20),
        max_sectors: sectors(blocks.max_payload().min(LONGEST)),
        max_discard_sectors: range(TransmissionFlags::SEND_TRIM),
        discard_granularity: if flags.contains(TransmissionFlags::SEND_TRIM) { block } else { 0 },
        max_write_zeroes_sectors: range(TransmissionFlags::SEND_WRITE_ZEROES),
        max_segments: 1024,
        max_segment_size: LONGEST,
        capacity: (agreed.details.size - rest) / u64::from(SECTOR_SIZE),
        rotational: flags.contains(TransmissionFlags::ROTATIONAL),
        ..Limits::default()
    };
    let cache = if flags.contains(TransmissionFlags::SEND_FLUSH) {
        WriteCache::Back { fua: flags.contains(TransmissionFlags::SEND_FUA) }
    } else {
        WriteCache::Through
    };
    let shape = DeviceShape {
        hw_queues,
        hw_queue_depth: options.hw_queue_depth,
        shared_tags: false,
        budget: None,
        limits,
        cache,
        // The time that requests wait for a lost connection is limited by `reconnect_delay`.
        timeout: options.timeout.unwrap_or(Nanos(u64::MAX)),
    };
    Ok((shape, notes))
}

/// Checks, after a reconnection, that the server still has the export for which the device was made.
///
/// # Errors
/// If the export is smaller, has fewer features, or has longer blocks.
pub(crate) fn check_same(before: &Agreed, now: &Agreed) -> Result<(), OpenError> {
    let (old, new) = (&before.details, &now.details);
    let blocks = |details: &blkmq_nbd::client::Details| details.blocks.unwrap_or_default();
    let lost = [
        (new.size < old.size, "is smaller"),
        (!keeps_flags(old.flags, new.flags), "can do less"),
        (blocks(new).min() > blocks(old).min(), "has longer blocks"),
        (blocks(new).max_payload() < blocks(old).max_payload(), "takes less in a request"),
    ];
    match lost.iter().find(|(is_so, _)| *is_so) {
        Some((_, why)) => Err(OpenError::Unfit(format!("the export {why} than before"))),
        None => Ok(()),
    }
}

/// Returns whether all features that requests may use are still there, and everything permitted is still permitted.
fn keeps_flags(old: TransmissionFlags, new: TransmissionFlags) -> bool {
    let abilities = [
        TransmissionFlags::SEND_FLUSH,
        TransmissionFlags::SEND_FUA,
        TransmissionFlags::SEND_TRIM,
        TransmissionFlags::SEND_WRITE_ZEROES,
        TransmissionFlags::CAN_MULTI_CONN,
    ];
    let keeps = |ability| !old.contains(ability) || new.contains(ability);
    let read_only = TransmissionFlags::READ_ONLY;
    abilities.into_iter().all(keeps) && (old.contains(read_only) || !new.contains(read_only))
}

/// The most slices in one system call. The kernel accepts 1024, but the cost of the call is negligible beyond a few
/// dozen.
const SENT_SLICES: usize = 64;

/// The position in the stream of requests.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Bytes of the first unsent request that have been sent.
    done: usize,
}

impl Output {
    /// Sends as much as the socket has room for. Returns false if some bytes are left. Moves requests that were
    /// answered before their last byte was sent to `out`.
    ///
    /// # Errors
    /// If the connection is lost.
    pub(crate) fn send(
        &mut self,
        stream: &mut Stream,
        flight: &mut Flight,
        out: &mut Vec<Finished>,
    ) -> io::Result<bool> {
        while !flight.unsent.is_empty() {
            let sent = {
                let mut slices = [IoSlice::new(&[]); SENT_SLICES];
                let count = self.gather(flight, &mut slices);
                match stream.write(&slices[..count]) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(sent) => sent,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    Err(error) => return Err(error),
                }
            };
            self.advance(sent, flight, out);
            stream.is_inside = self.done > 0;
        }
        stream.send_rest()
    }

    /// Fills `slices` with the bytes to be sent next. Returns the number of slices.
    fn gather<'a>(&self, flight: &'a Flight, slices: &mut [IoSlice<'a>; SENT_SLICES]) -> usize {
        let (mut done, mut count) = (self.done, 0);
        for at in &flight.unsent {
            if count == SENT_SLICES {
                break;
            }
            let place = flight.place(*at);
            let header = place.header.as_ref().expect("a request to be sent has its header");
            if done < header.len() {
                slices[count] = IoSlice::new(&header[done..]);
                count += 1;
            }
            let payload = done.saturating_sub(header.len());
            let left = place.payload_len() - payload;
            count += place.memory.slices(payload, left, &mut slices[count..]);
            done = 0;
        }
        count
    }

    fn advance(&mut self, mut sent: usize, flight: &mut Flight, out: &mut Vec<Finished>) {
        while let Some(at) = flight.unsent.front() {
            let place = flight.place(*at);
            let whole =
                place.header.as_ref().map_or(0, |header| header.len()) + place.payload_len();
            let left = whole - self.done;
            if sent < left {
                self.done += sent;
                return;
            }
            sent -= left;
            self.done = 0;
            flight.sent(out);
        }
    }
}

/// Bytes read at a time, besides those that go to a payload: enough for the replies to a full depth of writes, or small
/// reads.
const BUFFER: usize = 64 << 10;
/// The most slices in one system call: pieces of a payload, and the buffer.
const RECEIVED_SLICES: usize = 33;

/// Receives replies.
pub(crate) struct Input {
    replies: Replies,
    /// The buffer, of which the bytes from `start` to `end` have been read but not consumed.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    data: Option<Data>,
}

/// A chunk of a read whose data is arriving.
struct Data {
    place: u32,
    /// The offset in the request's memory, in bytes.
    at: usize,
    left: usize,
    /// Whether this chunk completes the reply.
    is_last: bool,
}

/// The reason why a connection cannot be used any longer.
#[derive(Debug)]
pub(crate) enum Lost {
    Socket(io::Error),
    Broken(BrokenReply),
    /// The server accepts no more requests.
    ShutDown,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(error) => error.fmt(f),
            Self::Broken(broken) => write!(f, "the server breaks the protocol: {broken}"),
            Self::ShutDown => f.write_str("the server is shutting down"),
        }
    }
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        Self::Socket(error)
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input").field("here", &(self.end - self.start)).finish_non_exhaustive()
    }
}

impl Input {
    /// Creates an input for replies with headers of this form; `early` are bytes that have already arrived.
    fn new(style: HeaderStyle, early: &[u8]) -> Self {
        let mut buffer = vec![0; BUFFER.max(early.len())].into_boxed_slice();
        buffer[..early.len()].copy_from_slice(early);
        let replies = Replies::new(style, &blkmq_nbd::Limits::default());
        Self { replies, buffer, start: 0, end: early.len(), data: None }
    }

    /// Receives the replies that have arrived, and moves answered requests to `out`.
    ///
    /// # Errors
    /// If the connection is lost or broken.
    pub(crate) fn receive(
        &mut self,
        stream: &mut Stream,
        flight: &mut Flight,
        out: &mut Vec<Finished>,
    ) -> Result<(), Lost> {
        loop {
            self.consume(flight, out)?;
            let (read, room) = match self.read(stream, flight) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            // If the read did not fill the slices, the socket is empty; otherwise it is read again.
            if read < room && !stream.has_more() {
                return self.consume(flight, out);
            }
        }
    }

    /// Reads into the payload whose data is arriving, and then into the buffer. Returns the bytes read, and the bytes
    /// for which there was room.
    fn read(&mut self, stream: &mut Stream, flight: &mut Flight) -> io::Result<(usize, usize)> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let tail = &mut self.buffer[self.end..];
        let room = tail.len();
        let Some(data) = &mut self.data else {
            let read = stream.read(&mut [IoSliceMut::new(tail)])?;
            self.end += read;
            return Ok((read, room));
        };
        // All bytes in the buffer have been consumed for the payload.
        let mut slices: [_; RECEIVED_SLICES] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let memory = &mut flight.place_mut(data.place).memory;
        let mut count = memory.slices_mut(data.at, data.left, &mut slices[..RECEIVED_SLICES - 1]);
        let direct: usize = slices[..count].iter().map(|slice| slice.len()).sum();
        let takes_all = direct == data.left;
        if takes_all {
            slices[count] = IoSliceMut::new(tail);
            count += 1;
        }
        let read = stream.read(&mut slices[..count])?;
        let moved = read.min(direct);
        data.at += moved;
        data.left -= moved;
        self.end += read - moved;
        Ok((read, if takes_all { direct + room } else { direct }))
    }

    /// Consumes the contents of the buffer.
    fn consume(&mut self, flight: &mut Flight, out: &mut Vec<Finished>) -> Result<(), Lost> {
        loop {
            if let Some(data) = &mut self.data {
                let here = data.left.min(self.end - self.start);
                let bytes = &self.buffer[self.start..self.start + here];
                flight.place_mut(data.place).memory.fill(data.at, bytes);
                self.start += here;
                data.at += here;
                data.left -= here;
                if data.left > 0 {
                    return Ok(());
                }
                let Some(Data { place, is_last, .. }) = self.data.take() else { return Ok(()) };
                if is_last {
                    flight.answered(place, out);
                }
            }
            match self.replies.next(&self.buffer[self.start..self.end], flight) {
                Parsed::NeedMore => return Ok(()),
                Parsed::Broken(broken) => return Err(Lost::Broken(broken)),
                Parsed::Reply(reply) => {
                    let (header_len, data) = take(&reply, flight, out)?;
                    self.start += header_len;
                    self.data = data;
                }
            }
        }
    }
}

/// Handles a reply. Returns its length without the payload, and the destination of the payload.
fn take(
    reply: &Reply<'_>,
    flight: &mut Flight,
    out: &mut Vec<Finished>,
) -> Result<(usize, Option<Data>), Lost> {
    let at = Flight::of(reply.cookie);
    let place = flight.place_mut(at);
    match reply.content {
        Content::None => {}
        Content::Error { error: ErrorCode::Shutdown, .. } => return Err(Lost::ShutDown),
        Content::Error { error, .. } => place.fail(IoError(error.to_wire() as u16)),
        Content::Hole(span) => {
            let from = (span.offset - place.offset()) as usize;
            place.memory.zero(from, span.length as usize);
        }
        Content::Data(span) => {
            let from = (span.offset - place.offset()) as usize;
            let left = reply.payload_len as usize;
            let data = Data { place: at, at: from, left, is_last: reply.is_last };
            return Ok((reply.header_len, Some(data)));
        }
        Content::Extents { .. } => unreachable!("no context is chosen for I/O"),
    }
    if reply.is_last {
        flight.answered(at, out);
    }
    Ok((reply.header_len, None))
}
