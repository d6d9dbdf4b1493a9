//! [`Output`]: sends the bytes of requests, many requests in one system call; and [`Input`]: receives replies. The data
//! of reads goes directly from the socket to the payloads.

use crate::place::Flight;
use crate::stream::Stream;
use blkmq_core::IoError;
use blkmq_engine::Finished;
use blkmq_nbd::client::{BrokenReply, Content, Parsed, Replies, Reply};
use blkmq_nbd::{ErrorCode, HeaderStyle, Limits};
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};

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
    pub(crate) fn new(style: HeaderStyle, early: &[u8]) -> Self {
        let mut buffer = vec![0; BUFFER.max(early.len())].into_boxed_slice();
        buffer[..early.len()].copy_from_slice(early);
        let replies = Replies::new(style, &Limits::default());
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
