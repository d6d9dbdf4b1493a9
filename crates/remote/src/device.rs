//! [`NbdDevice`]: an export of a server, and its hardware queues ([`NbdQueue`]), each with its own connection; and
//! [`Holes`], the allocated ranges of the export, as its server reports them by block status.
//!
//! Queries of holes use a separate connection and block until the answer: the connections of hardware queues carry I/O
//! only. A server that does not answer costs [`PATIENCE`] once, and is not queried again until a hardware queue has
//! reconnected to it. Answers are not cached: a hole may have been written since.

use crate::link::{self, Connection, Link};
use crate::options::{OpenError, Options, Uri};
use crate::place::Flight;
use crate::stream::Stream;
use crate::target::{Outages, Target, Welcome, wait};
use blkmq_buf::IoBuf;
use blkmq_core::{Extent, Instant, IoError, Nanos, Op, Tag};
use blkmq_engine::{
    BioTable, BlockDevice, Busy, DeviceQueue, DeviceQueues, DeviceShape, Enqueued, Expiry,
    Finished, Inflight,
};
use blkmq_nbd::client::{BrokenReply, Content, Extents, Parsed, Pending, Replies, Reply, Requests};
use blkmq_nbd::{
    BASE_ALLOCATION, Command, CommandFlags, Cookie, HOLE, HeaderStyle, Limits, Request, Span,
    TransmissionFlags, ZERO,
};
use rustix::event::PollFlags;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// An export of an NBD server.
///
/// Each hardware queue has its own connection, which is re-established when it is lost. The first queue takes over the
/// connection that opened the device; [`queues`](BlockDevice::queues) makes the others. `doc/nbd.md` describes the
/// parameters, and the guarantees if the server goes away.
#[derive(Clone, Debug)]
pub struct NbdDevice {
    target: Arc<Target>,
    holes: Arc<Holes>,
    options: Options,
    shape: DeviceShape,
    notes: Vec<String>,
}

impl NbdDevice {
    /// Opens the export that `text` describes: `URI[,KEY=VALUE]...`.
    ///
    /// # Errors
    /// See [`open`](Self::open); also if a word is not understood.
    pub fn parse(text: &str) -> Result<Self, OpenError> {
        let (uri, options) = Options::parse(text)?;
        Self::open(&uri, &options)
    }

    /// Connects to the server and negotiates the export. The first hardware queue takes over the connection. Blocks for
    /// the lookup of the host name, and for at most 10 seconds for each answer of the server.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses, or the export cannot be a device.
    pub fn open(uri: &Uri, options: &Options) -> Result<Self, OpenError> {
        if uri.tls && cfg!(not(feature = "tls")) {
            return Err(OpenError::NoTls);
        }
        let target = Target::find(uri)?;
        let (shape, notes) = link::shape_of(&target.agreed, options)?;
        let mut options = options.clone();
        options.readonly |= target.agreed.details.flags.contains(TransmissionFlags::READ_ONLY);
        Ok(Self { target: Arc::new(target), holes: Arc::default(), options, shape, notes })
    }

    /// The properties of the export that the engine needs.
    #[must_use]
    pub fn shape(&self) -> &DeviceShape {
        &self.shape
    }

    /// Returns deviations from the description, one sentence each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns whether the device is read-only, by the server or by the description.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.options.readonly
    }

    /// Returns whether the server writes zeroes faster than data.
    #[must_use]
    pub fn has_fast_zeroes(&self) -> bool {
        self.target.agreed.details.flags.contains(TransmissionFlags::SEND_FAST_ZERO)
    }

    /// The lost connections so far, over all queues of this device.
    #[must_use]
    pub fn outages(&self) -> Outages {
        self.target.outages.read()
    }

    /// The allocation of `range`, a range of bytes within the export, as at least one and at most `most` extents, which
    /// may end before the range. The first call makes a connection for all calls. Blocks until the server has answered,
    /// or has been silent for a second. The whole range is reported as stored if the server does not answer, or if it
    /// does not promise that writes on other connections are visible (multi-conn).
    #[must_use]
    pub fn extents(&self, range: Range<u64>, most: usize) -> Vec<Extent> {
        let stored = || vec![Extent { end: range.end, is_hole: false }];
        self.holes.find(&self.target, range.clone(), most).unwrap_or_else(stored)
    }

    /// Makes a connection for each hardware queue.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses, or no longer has the export as it was opened.
    pub fn queues<P: IoBuf>(&self) -> io::Result<DeviceQueues<P>> {
        let queue = |_| -> Result<Box<dyn DeviceQueue<P>>, OpenError> {
            let welcome = self.target.connect_queue()?;
            link::check_same(&self.target.agreed, &welcome.agreed)?;
            let style = welcome.agreed.style;
            let link = Link::new(Arc::clone(&self.target), welcome)?;
            Ok(Box::new(NbdQueue::new(link, style, &self.options)))
        };
        (0..self.shape.hw_queues).map(queue).collect::<Result<_, _>>().map_err(io::Error::other)
    }
}

impl<P: IoBuf> BlockDevice<P> for NbdDevice {
    fn shape(&self) -> DeviceShape {
        self.shape
    }

    fn queues(&self) -> io::Result<DeviceQueues<P>> {
        self.queues()
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// EROFS: the answer of a read-only device to every operation that would change it.
const READ_ONLY: IoError = IoError(30);

/// The time without an answer after which requests are no longer held back behind suspects.
const WAIT_FOR_SUSPECTS: Nanos = Nanos::from_millis(250);

/// One hardware queue of an export.
#[derive(Debug)]
pub struct NbdQueue {
    link: Link,
    flight: Flight,
    /// The form of headers of the present or the last connection.
    requests: Requests,
    readonly: bool,
    reconnect_delay: Nanos,
    /// Whether the server's silence ends the connection.
    has_timeout: bool,
    /// The time at which held requests are released, if there are any.
    widens_at: Instant,
    /// Requests that ended outside of `reap`.
    ended: Vec<Finished>,
}

impl NbdQueue {
    fn new(link: Link, style: HeaderStyle, options: &Options) -> Self {
        Self {
            link,
            flight: Flight::new(options.hw_queue_depth),
            requests: Requests::new(style),
            readonly: options.readonly,
            reconnect_delay: options.reconnect_delay,
            has_timeout: options.timeout.is_some(),
            widens_at: Instant::ZERO,
            ended: Vec::new(),
        }
    }

    /// Returns the time at which requests fail because the connection is down, or `None` while it is up.
    fn fails_at(&self) -> Option<Instant> {
        self.link.down_since().map(|since| since + self.reconnect_delay)
    }

    fn send(&mut self, now: Instant) {
        let Some(Connection { stream, output, .. }) = self.link.connection() else { return };
        let sent = output.send(stream, &mut self.flight, &mut self.ended);
        let watched = sent.and_then(|is_all| self.link.watch_room(!is_all));
        if let Err(error) = watched {
            self.lose(now, &error);
        }
    }

    /// Handles the loss of the connection and of the requests sent on it.
    fn lose(&mut self, now: Instant, why: &dyn fmt::Display) {
        if let Some(connection) = self.link.connection() {
            let is_inside = connection.stream.is_inside;
            let guilty = self.flight.lost(is_inside, &mut self.ended);
            self.link.give_up(guilty);
        }
        self.link.lose(now, why);
    }

    fn receive(&mut self, now: Instant, out: &mut Vec<Finished>) {
        let Some(Connection { stream, input, .. }) = self.link.connection() else { return };
        let before = out.len();
        let received = input.receive(stream, &mut self.flight, out);
        if out.len() > before {
            self.link.proven();
            self.widens_at = now + WAIT_FOR_SUSPECTS;
        }
        if let Err(lost) = received {
            self.lose(now, &lost);
        }
    }

    /// Sends all unanswered requests on a new connection.
    fn restart(&mut self, now: Instant) {
        if let Some(connection) = self.link.connection() {
            self.requests = Requests::new(connection.style);
        }
        self.flight.restart(self.requests);
        self.widens_at = now + WAIT_FOR_SUSPECTS;
        self.send(now);
    }
}

impl<P: IoBuf> DeviceQueue<P> for NbdQueue {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        if self.readonly && rq.op().is_write() && rq.op() != Op::Flush {
            return Enqueued::Done(rq, Err(READ_ONLY));
        }
        if self.fails_at().is_some_and(|at| at <= now) {
            return Enqueued::Done(rq, Err(IoError::IO));
        }
        let Some(at) = self.flight.vacant() else {
            // The queue is full, so a request will complete.
            return Enqueued::Busy(rq, Busy::DevResource);
        };
        let memory = &mut self.flight.place_mut(at).memory;
        if matches!(rq.op(), Op::Read | Op::Write) {
            if let Err((rq, error)) = memory.hold_data(bios, rq) {
                return Enqueued::Done(rq, Err(error));
            }
        } else {
            memory.hold(rq);
        }
        self.flight.take(at, self.requests);
        Enqueued::Accepted
    }

    fn commit(&mut self, now: Instant) {
        self.send(now);
    }

    fn reap(&mut self, now: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        if self.link.step(now) {
            self.restart(now);
        }
        self.receive(now, out);
        if self.flight.is_narrow() && self.widens_at <= now {
            self.flight.widen();
        }
        if !self.flight.unsent.is_empty() {
            self.send(now);
        }
        // A lost connection is retried immediately.
        if self.link.next_event().is_some_and(|at| at <= now) && self.link.step(now) {
            self.restart(now);
        }
        out.append(&mut self.ended);
        if self.fails_at().is_some_and(|at| at <= now) {
            self.flight.fail_all(IoError::IO, out);
        }
    }

    /// Gives up the connection after `timeout`, and sends the request again on the next one, as Linux's nbd does.
    fn timed_out(&mut self, now: Instant, tag: Tag) -> Expiry {
        debug_assert!(self.flight.has(tag), "the engine asks about what is here");
        if self.has_timeout && self.link.connection().is_some() {
            let guilty = self.flight.unanswered(tag, &mut self.ended);
            self.link.give_up(guilty);
            self.link.lose(now, &"a request had no answer within the timeout");
        }
        Expiry::ResetTimer
    }

    fn next_event(&self) -> Option<Instant> {
        let fails_at = self.fails_at().filter(|_| self.flight.count() > 0);
        let widens_at = Some(self.widens_at).filter(|_| self.flight.is_narrow());
        self.link.next_event().into_iter().chain(fails_at).chain(widens_at).min()
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.link.event_fd())
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.ended.drain(..).map(|finished| finished.rq));
        self.flight.abandon(out);
    }
}

/// Seconds of silence after which a query is given up.
const PATIENCE: i64 = 1;
/// The number of reads after which a query is given up, too: a server must not detain its client by sending single
/// bytes.
const WAITS: u32 = 64;
/// The maximum range of a query in bytes. A range beyond 32 bits would need extended headers, and answers must be
/// bounded.
const LONGEST: u64 = 1 << 30;
/// The maximum length of an answer in bytes: four times what an extent for each 4 KiB of the longest range needs.
const ANSWER: u32 = 16 << 20;
/// Bytes read at a time.
const BUFFER: usize = 64 << 10;

/// Queries the holes of an export.
#[derive(Debug, Default)]
struct Holes(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    /// The server has not been queried.
    #[default]
    New,
    Open(HolesConnection),
    /// The server did not answer. Holds the number of reconnections of hardware queues at that time.
    GivenUp(u64),
}

/// A connection for block status.
#[derive(Debug)]
struct HolesConnection {
    stream: Stream,
    style: HeaderStyle,
    /// The server's id for [`BASE_ALLOCATION`].
    context: u32,
    input: Vec<u8>,
    serial: u64,
}

/// Returns whether block status can be queried, and reflects writes on other connections.
///
/// Multi-conn promises the latter. Without it, a block just written could be reported as a hole.
fn is_told(target: &Target) -> bool {
    let agreed = &target.agreed;
    agreed.details.flags.contains(TransmissionFlags::CAN_MULTI_CONN)
        && agreed.contexts.iter().any(|context| context.name == BASE_ALLOCATION)
}

impl Holes {
    /// The extents of `range` from its beginning, at most `most`, or `None` if the server does not report them.
    fn find(&self, target: &Target, range: Range<u64>, most: usize) -> Option<Vec<Extent>> {
        if !is_told(target) {
            return None;
        }
        // After a panic the connection may be in the middle of an answer, and could not be used for another query.
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let restored = target.outages.restored();
        let answer = match std::mem::take(&mut *state) {
            State::GivenUp(before) if before == restored => {
                *state = State::GivenUp(before);
                return None;
            }
            State::GivenUp(_) | State::New => ask_anew(target, range, most),
            State::Open(connection) => match connection.ask(range.clone(), most) {
                // The server closed the connection: it was restarted, or closes idle connections.
                Err(OpenError::Server(_)) => ask_anew(target, range, most),
                answer => answer,
            },
        };
        let (next, found) = match answer {
            Ok((connection, found)) => (State::Open(connection), found),
            Err(_) => (State::GivenUp(restored), None),
        };
        *state = next;
        found
    }
}

/// The answer of a server, and the connection for the next query. The answer is `None` if the server refused.
type Answer = Result<(HolesConnection, Option<Vec<Extent>>), OpenError>;

fn ask_anew(target: &Target, range: Range<u64>, most: usize) -> Answer {
    HolesConnection::open(target)?.ask(range, most)
}

impl HolesConnection {
    fn open(target: &Target) -> Result<Self, OpenError> {
        let Welcome { stream, agreed, early } =
            target.connect_once(&[BASE_ALLOCATION], PATIENCE)?;
        let context = agreed.contexts.iter().find(|context| context.name == BASE_ALLOCATION);
        let context = context.map(|context| context.id).ok_or(OpenError::Silent)?;
        Ok(Self { stream, style: agreed.style, context, input: early, serial: 0 })
    }

    /// Sends a query and waits for the answer. A connection that fails is dropped here.
    fn ask(mut self, range: Range<u64>, most: usize) -> Answer {
        let end = range.end.min(range.start.saturating_add(LONGEST));
        self.serial += 1;
        let request = Request {
            command: Ok(Command::BlockStatus),
            flags: if most <= 1 { CommandFlags::REQ_ONE } else { CommandFlags::NONE },
            cookie: Cookie(self.serial),
            span: Span { offset: range.start, length: end - range.start },
        };
        self.send(&request)?;
        let mut waits = 0;
        let found = self.receive(&request, most, &mut waits)?;
        Ok((self, found))
    }

    fn send(&mut self, request: &Request) -> Result<(), OpenError> {
        let header = Requests::new(self.style).header(request);
        let header = header.expect("a length of 30 bits fits every form of headers");
        let mut rest = &header[..];
        while !rest.is_empty() {
            match self.stream.write(&[IoSlice::new(rest)]) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait(self.stream.as_fd(), PollFlags::OUT, PATIENCE)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        while !self.stream.send_rest()? {
            wait(self.stream.as_fd(), PollFlags::OUT, PATIENCE)?;
        }
        Ok(())
    }

    /// Receives the chunks of the answer to `request`.
    fn receive(
        &mut self,
        request: &Request,
        most: usize,
        waits: &mut u32,
    ) -> Result<Option<Vec<Extent>>, OpenError> {
        let limits = Limits { payload_dropped: ANSWER, ..Limits::default() };
        let replies = Replies::new(self.style, &limits);
        let pending = Pending::of(request).expect("block status has a reply");
        let mut in_flight = BTreeMap::from([(request.cookie, pending)]);
        let mut found = None;
        loop {
            let (used, is_last) = match replies.next(&self.input, &mut in_flight) {
                Parsed::NeedMore => {
                    self.more(waits)?;
                    continue;
                }
                Parsed::Broken(broken) => return Err(is_broken(&broken)),
                Parsed::Reply(Reply { content, header_len, payload_len, is_last, .. }) => {
                    let is_ours =
                        matches!(content, Content::Extents { context } if context == self.context);
                    let end = header_len + payload_len as usize;
                    while self.input.len() < end {
                        self.more(waits)?;
                    }
                    let payload = &self.input[header_len..end];
                    if is_ours {
                        let extents = Extents::read(payload, self.style, &pending);
                        let extents = extents.map_err(|broken| is_broken(&broken))?;
                        found = stretches(extents, request.span, most);
                    }
                    (end, is_last)
                }
            };
            self.input.drain(..used);
            if is_last {
                return Ok(found);
            }
        }
    }

    /// Waits for more bytes and receives them.
    fn more(&mut self, waits: &mut u32) -> Result<(), OpenError> {
        let here = self.input.len();
        self.input.resize(here + BUFFER, 0);
        loop {
            match self.stream.read(&mut [IoSliceMut::new(&mut self.input[here..])]) {
                Ok(read) => {
                    self.input.truncate(here + read);
                    return Ok(());
                }
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error.into()),
                Err(_) if *waits == WAITS => return Err(OpenError::Silent),
                Err(_) => *waits += 1,
            }
            wait(self.stream.as_fd(), PollFlags::IN, PATIENCE)?;
        }
    }
}

fn is_broken(broken: &BrokenReply) -> OpenError {
    io::Error::new(io::ErrorKind::InvalidData, broken.to_string()).into()
}

/// Converts the reported extents to allocated ranges and holes of `span`. Unallocated bytes with undefined contents do
/// not count as a hole, and allocated zeroes count as stored.
fn stretches(extents: Extents<'_>, span: Span, most: usize) -> Option<Vec<Extent>> {
    let (mut at, end) = (span.offset, span.offset + span.length);
    let mut all = Vec::new();
    for extent in extents {
        at = at.saturating_add(extent.length).min(end);
        let next = Extent { end: at, is_hole: extent.flags & (HOLE | ZERO) == HOLE | ZERO };
        Extent::append(&mut all, next);
        if all.len() > most.max(1) {
            all.pop();
            break;
        }
    }
    (!all.is_empty()).then_some(all)
}
