//! [`Holes`]: the allocated ranges of an export, as its server reports them by block status.
//!
//! Queries use a separate connection and block until the answer: the connections of hardware queues carry I/O only. A
//! server that does not answer costs [`PATIENCE`] once, and is not queried again until a hardware queue has reconnected
//! to it. Answers are not cached: a hole may have been written since.

use crate::options::OpenError;
use crate::stream::Stream;
use crate::target::{Target, Welcome, wait};
use blkmq_core::Extent;
use blkmq_nbd::client::{BrokenReply, Content, Extents, Parsed, Pending, Replies, Reply, Requests};
use blkmq_nbd::{
    BASE_ALLOCATION, Command, CommandFlags, Cookie, HOLE, HeaderStyle, Limits, Request, Span,
    TransmissionFlags, ZERO,
};
use rustix::event::PollFlags;
use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

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
pub(crate) struct Holes(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    /// The server has not been queried.
    #[default]
    New,
    Open(Connection),
    /// The server did not answer. Holds the number of reconnections of hardware queues at that time.
    GivenUp(u64),
}

/// A connection for block status.
#[derive(Debug)]
struct Connection {
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
    pub(crate) fn find(
        &self,
        target: &Target,
        range: Range<u64>,
        most: usize,
    ) -> Option<Vec<Extent>> {
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
type Answer = Result<(Connection, Option<Vec<Extent>>), OpenError>;

fn ask_anew(target: &Target, range: Range<u64>, most: usize) -> Answer {
    Connection::open(target)?.ask(range, most)
}

impl Connection {
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
