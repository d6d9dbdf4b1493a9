//! [`Connection`]: a connection of a worker, with its socket, its phase in the protocol and its requests in flight; and
//! [`Arriving`], the payload of a write on its way into its buffers.

use crate::allow::Identity;
use crate::clients::{Bounds, Guest, Listed, Tenancy, Totals};
use crate::export::Seat;
use crate::flight::{Buffers, Cookie, Flight, Key, Work};
use crate::log::{Reason, Refusals};
use crate::stream::{Output, Stream};
use blkmq::{AlignedBuf, Instant, Io, IoResult};
use blkmq_nbd::server::{Handshake, Replies, Requests};
use blkmq_nbd::{Context, ErrorCode, ReplyTo, Terms};
use rustix::event::epoll::EventFlags;
use std::collections::VecDeque;

/// The maximum number of bytes read at a time: some 9,000 requests without a payload.
pub(crate) const CAPACITY: usize = 256 << 10;

/// The limit on bytes in flight for a new connection: enough to keep a fast disk busy.
const FIRST: usize = 4 << 20;

/// A connection, from its first byte to its last.
pub(crate) struct Connection {
    pub(crate) key: Key,
    pub(crate) stream: Stream,
    pub(crate) phase: Phase,
    /// Received bytes that are not parsed yet.
    pub(crate) rest: Vec<u8>,
    pub(crate) output: Output,
    /// The events for which epoll watches the socket; if empty, the socket is not in the epoll set.
    pub(crate) watched: EventFlags,
    /// Requests in flight, and their bytes.
    pub(crate) requests: usize,
    pub(crate) bytes: usize,
    /// Whether TLS begins once the waiting output is sent. Nothing is read until then.
    pub(crate) begins_tls: bool,
    /// An I/O that got no credit. No further request is parsed until it is pushed.
    pub(crate) held: Option<(Cookie, Io<AlignedBuf>)>,
    /// The place of a long request with portions left to begin. No further request is parsed until all have begun.
    pub(crate) long: Option<u32>,
    /// The places of requests with a further step to begin, longest wait first.
    pub(crate) steps: VecDeque<u32>,
    /// Whether the connection ends: the client has sent its last byte, or the server reads no more.
    pub(crate) is_over: bool,
    /// Whether the client has closed both directions, so that no reply reaches it. Requests before its DISC are still
    /// performed, except for reads and BLOCK_STATUS.
    pub(crate) is_cut: bool,
    /// The state of its shutdown by the server.
    pub(crate) farewell: Farewell,
    /// The time at which a byte was last received or sent.
    pub(crate) moved: Instant,
    /// The time since which the client has taken none of its waiting replies; `None` while it takes them.
    pub(crate) deaf: Option<Instant>,
    /// Whether the next request waits until the worker has room for it.
    pub(crate) is_crowded: bool,
    /// Its waiting bytes that are included in the worker's count.
    pub(crate) counted: usize,
    /// The number of the last turn in which it spent bytes, and how many it spent.
    pub(crate) begun: (u32, usize),
    /// Whether it is on the worker's list for `finish`.
    pub(crate) is_listed: bool,
    /// Whether it waits in the line of greedy connections (`places.rs`).
    pub(crate) is_in_line: bool,
    /// Whether its output stopped at the limit of a turn, not at a full socket.
    pub(crate) is_paused: bool,
    /// Bytes transferred so far: everything sent, and the payloads received.
    pub(crate) earned: usize,
    /// Whether its last request was a large write.
    pub(crate) writes_much: bool,
    /// Its successful requests.
    pub(crate) totals: Totals,
    /// Everything known about the client, including its certificate once TLS has begun.
    pub(crate) identity: Identity,
    /// Whether the rules of the server have admitted the client.
    pub(crate) is_admitted: bool,
    /// Its place in the count of its identity; `None` until it has agreed on an export.
    pub(crate) tenancy: Option<Tenancy>,
    /// Its entry in the list of clients; `None` until it has agreed on an export.
    pub(crate) listed: Option<Listed>,
    /// Its place in the count of the server. The last field, so that it is released after everything else.
    pub(crate) guest: Guest,
}

/// The shutdown of a connection by the server, possibly while its client sends. Closing a TCP socket with unread input
/// resets the connection, and replies on their way are lost. So the server shuts down its writing side, and discards
/// input until the client has shut down its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Farewell {
    /// The server does not shut it down, or does not wait for the client.
    None,
    /// Due once the kernel has the last reply.
    Due,
    /// The server's side is shut down. The socket is closed when the client's side is, too, or at this time at the
    /// latest.
    Said(Instant),
}

/// The phase of a connection in the protocol.
pub(crate) enum Phase {
    Handshake {
        handshake: Box<Handshake>,
        began: Instant,
    },
    Transmission(Box<Transmission>),
    /// The connection is broken: nothing is sent, and it ends when its I/Os have completed. Until then it keeps its
    /// seat at the export.
    Broken {
        export: Option<Seat>,
    },
}

/// A connection to an export.
pub(crate) struct Transmission {
    pub(crate) export: Seat,
    pub(crate) terms: Terms,
    pub(crate) requests: Requests,
    pub(crate) replies: Replies,
    /// The negotiated metadata contexts.
    pub(crate) contexts: Vec<Context>,
    /// The payload that is being received.
    pub(crate) payload: Payload,
}

/// The payload of the last request.
pub(crate) enum Payload {
    /// It is complete, or there is none.
    None,
    /// The payload of a write, being received into its buffers.
    Filling { request: Writing, arriving: Arriving },
    /// The payload of a refused request: the bytes still to discard, and the error to send after them.
    Dropping { left: usize, to: ReplyTo, error: ErrorCode },
}

/// A write whose payload is not complete.
#[derive(Clone, Copy)]
pub(crate) struct Writing {
    pub(crate) to: ReplyTo,
    pub(crate) offset: u64,
    pub(crate) fua: bool,
}

impl Connection {
    pub(crate) fn new(
        key: Key,
        stream: Stream,
        guest: Guest,
        handshake: Handshake,
        now: Instant,
    ) -> Self {
        let identity = stream.identity();
        Self {
            key,
            identity,
            is_admitted: false,
            tenancy: None,
            listed: None,
            stream,
            phase: Phase::Handshake { handshake: Box::new(handshake), began: now },
            rest: Vec::new(),
            output: Output::default(),
            watched: EventFlags::IN,
            requests: 0,
            bytes: 0,
            begins_tls: false,
            held: None,
            long: None,
            steps: VecDeque::new(),
            earned: 0,
            is_over: false,
            is_cut: false,
            farewell: Farewell::None,
            moved: now,
            deaf: None,
            is_crowded: false,
            counted: 0,
            begun: (0, 0),
            is_listed: false,
            is_in_line: false,
            is_paused: false,
            totals: Totals::default(),
            writes_much: false,
            guest,
        }
    }

    /// Returns whether another request may be taken.
    pub(crate) fn has_room(&self, bounds: &Bounds) -> bool {
        let bytes = self.bytes + self.output.waiting();
        // A client that takes no replies reaches this limit and stays there.
        let most = if self.deaf.is_some() { bounds.bytes_per_turn } else { self.allowance(bounds) };
        self.held.is_none()
            && self.long.is_none()
            && !self.begins_tls
            && self.requests < bounds.requests
            && self.output.waiting() < bounds.replies
            && bytes < most
    }

    /// Counts and logs a refusal of the client; `export` is the name that it concerns, if any.
    pub(crate) fn refused(
        &self,
        refusals: &Refusals,
        reason: Reason,
        export: Option<&str>,
        why: &str,
    ) {
        let (peer, identity) = (self.guest.name(), self.identity.to_string());
        refusals.add(reason, |before| tracing::warn!(before, peer, identity, export, "{why}"));
    }

    /// Counts a completed request unless it failed.
    pub(crate) fn count_end(&mut self, flight: &Flight, result: IoResult) {
        if result.is_err() {
            return;
        }
        let totals = &mut self.totals;
        totals.requests += 1;
        match &flight.work {
            Work::Read(length) => totals.read += u64::from(*length),
            Work::Write(length) => totals.written += u64::from(*length),
            Work::Long(long) if long.is_read() => totals.read += u64::from(long.length),
            Work::Long(long) => totals.written += u64::from(long.length),
            Work::Plain | Work::Steps(_) => {}
        }
    }

    /// The limit on its bytes in flight: [`FIRST`] plus the bytes transferred so far, up to the limit of the server.
    fn allowance(&self, bounds: &Bounds) -> usize {
        bounds.bytes.min(FIRST.saturating_add(self.earned))
    }

    /// Returns whether a portion of its long request may begin.
    pub(crate) fn may_go_on(&self, bounds: &Bounds) -> bool {
        let is_taken = self.deaf.is_none() || self.output.waiting() < bounds.bytes_per_turn;
        self.held.is_none() && is_taken
    }

    /// Returns whether received requests, or portions of its long request, may begin.
    pub(crate) fn may_begin(&self, bounds: &Bounds) -> bool {
        !self.rest.is_empty() && !self.is_over && self.has_room(bounds)
            || self.long.is_some() && self.may_go_on(bounds)
    }

    /// The number of bytes that it has spent in `turn`.
    pub(crate) fn begun_in(&self, turn: u32) -> usize {
        if self.begun.0 == turn { self.begun.1 } else { 0 }
    }

    /// Charges `bytes` that are copied, or submitted to a disk, in `turn`.
    pub(crate) fn spend(&mut self, turn: u32, bytes: usize) {
        self.begun = (turn, self.begun_in(turn) + bytes);
    }

    /// Counts a request of `bytes` that begins.
    pub(crate) fn count(&mut self, bytes: usize) {
        self.requests += 1;
        self.bytes += bytes;
    }

    fn payload(&self) -> &Payload {
        match &self.phase {
            Phase::Transmission(transmission) => &transmission.payload,
            Phase::Handshake { .. } | Phase::Broken { .. } => &Payload::None,
        }
    }

    /// Returns whether the payload being received is longer than a portion, or is discarded.
    pub(crate) fn takes_much(&self, portion: usize) -> bool {
        match self.payload() {
            Payload::Filling { arriving, .. } => arriving.len() > portion,
            Payload::Dropping { .. } => true,
            Payload::None => false,
        }
    }

    /// The number of bytes held without an I/O: unsent replies, and an incomplete payload.
    pub(crate) fn waiting(&self) -> usize {
        let payload = match self.payload() {
            Payload::Filling { arriving, .. } => arriving.len(),
            Payload::None | Payload::Dropping { .. } => 0,
        };
        self.output.waiting() + payload
    }

    /// Returns whether bytes wait for the socket, in TLS or in the output.
    pub(crate) fn has_output(&self) -> bool {
        !self.is_cut && (self.output.waiting() > 0 || self.stream.wants_write())
    }

    /// Notes that no reply reaches the client, and drops the waiting replies.
    pub(crate) fn cut(&mut self) {
        self.is_cut = true;
        self.output = Output::default();
        self.deaf = None;
    }

    /// Its export; `None` until it has agreed on one.
    pub(crate) fn seat(&self) -> Option<&Seat> {
        match &self.phase {
            Phase::Transmission(transmission) => Some(&transmission.export),
            Phase::Broken { export } => export.as_ref(),
            Phase::Handshake { .. } => None,
        }
    }

    pub(crate) fn export(&self) -> Option<&str> {
        self.seat().map(|seat| seat.info.name.as_str())
    }

    /// Returns whether the connection may be closed: it is over, and has neither requests nor output.
    pub(crate) fn is_finished(&self) -> bool {
        let silent = !self.has_output() || matches!(self.phase, Phase::Broken { .. });
        self.is_over && self.requests == 0 && silent
    }

    /// Keeps `bytes` until more can be parsed.
    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        debug_assert!(bytes.len() <= CAPACITY, "no more than the buffer holds");
        self.rest.clear();
        self.rest.extend_from_slice(bytes);
    }

    /// Takes no further requests. Requests in flight are completed and answered, and unparsed input is dropped.
    pub(crate) fn end(&mut self) {
        if !self.is_over {
            self.farewell = Farewell::Due;
        }
        self.is_over = true;
        self.rest = Vec::new();
        if let Phase::Transmission(transmission) = &mut self.phase {
            transmission.payload = Payload::None;
        }
    }

    /// Ends the connection without further replies: drops its output and unparsed input.
    pub(crate) fn break_off(&mut self) {
        self.is_over = true;
        self.farewell = Farewell::None;
        self.output = Output::default();
        self.rest = Vec::new();
        self.phase = match std::mem::replace(&mut self.phase, Phase::Broken { export: None }) {
            Phase::Transmission(transmission) => {
                Phase::Broken { export: Some(transmission.export) }
            }
            Phase::Handshake { .. } => Phase::Broken { export: None },
            broken @ Phase::Broken { .. } => broken,
        };
    }

    /// The time at which the worker has waited for the connection for too long; `None` if it does not wait for it.
    pub(crate) fn deadline(&self, bounds: &Bounds) -> Option<Instant> {
        match &self.phase {
            Phase::Handshake { began, .. } => Some(*began + bounds.handshake),
            Phase::Transmission(_) => {
                let inside = !matches!(self.payload(), Payload::None);
                let reads = self.has_room(bounds) && !self.is_crowded;
                let inside = inside || !self.rest.is_empty() && reads;
                let since = inside.then_some(self.moved);
                since.into_iter().chain(self.deaf).min().map(|since| since + bounds.silence)
            }
            Phase::Broken { .. } => None,
        }
    }
}

/// The payload of a write, on its way from the socket into its buffers.
///
/// The buffer of a portion is allocated when all bytes before it have arrived, so a client that announces much and
/// sends little uses little memory.
#[derive(Debug)]
pub(crate) struct Arriving {
    full: Vec<AlignedBuf>,
    buffer: AlignedBuf,
    /// Bytes received into `buffer`.
    filled: usize,
    /// Bytes of the payload after `buffer`.
    behind: usize,
    len: usize,
}

impl Arriving {
    /// Creates a payload of `len` bytes, of which none has arrived.
    pub(crate) fn new(buffers: &Buffers, len: usize) -> Self {
        let first = len.min(buffers.portion());
        let buffer = buffers.take(first);
        Self { full: Vec::new(), buffer, filled: 0, behind: len - first, len }
    }

    fn len(&self) -> usize {
        self.len
    }

    /// The unfilled part of the current buffer, for the next bytes.
    pub(crate) fn gap(&mut self) -> &mut [u8] {
        &mut self.buffer.as_mut_slice()[self.filled..]
    }

    /// Notes that `count` bytes were read into the gap.
    pub(crate) fn arrived(&mut self, count: usize) {
        self.filled += count;
    }

    /// Copies the beginning of `bytes` that belongs to the payload. Returns its length.
    pub(crate) fn fill(&mut self, buffers: &Buffers, bytes: &[u8]) -> usize {
        let mut used = 0;
        loop {
            let rest = &bytes[used..];
            let gap = self.gap();
            let count = gap.len().min(rest.len());
            gap[..count].copy_from_slice(&rest[..count]);
            self.filled += count;
            used += count;
            if self.filled < self.buffer.len() || self.behind == 0 {
                return used;
            }
            let next = self.behind.min(buffers.portion());
            self.full.push(std::mem::replace(&mut self.buffer, buffers.take(next)));
            (self.filled, self.behind) = (0, self.behind - next);
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.behind == 0 && self.filled == self.buffer.len()
    }

    /// Returns the only buffer, or as `Err` the buffers of all portions in order.
    pub(crate) fn into_payloads(mut self) -> Result<AlignedBuf, Vec<AlignedBuf>> {
        if self.full.is_empty() {
            return Ok(self.buffer);
        }
        self.full.push(self.buffer);
        Err(self.full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives 10,000 bytes in portions of 4,096, as pieces of this length, every other one of which is read into the
    /// gap. Returns the portions.
    fn arrive(piece: usize) -> Vec<Vec<u8>> {
        let buffers = Buffers::new(4096);
        let data: Vec<u8> = (0..10_000_u32).map(|n| (n / 7) as u8).collect();
        let mut arriving = Arriving::new(&buffers, data.len());
        let (mut at, mut direct) = (0, true);
        while !arriving.is_complete() {
            let mut bytes = &data[at..data.len().min(at + piece)];
            direct = !direct;
            if direct {
                let gap = arriving.gap();
                let count = gap.len().min(bytes.len());
                gap[..count].copy_from_slice(&bytes[..count]);
                arriving.arrived(count);
                (at, bytes) = (at + count, &bytes[count..]);
            }
            at += arriving.fill(&buffers, bytes);
        }
        assert_eq!((at, arriving.len()), (data.len(), data.len()));
        let payloads = arriving.into_payloads().expect_err("several portions");
        assert!(payloads.iter().all(|it| it.len() <= 4096));
        let payloads: Vec<Vec<u8>> =
            payloads.into_iter().map(|mut it| it.as_mut_slice().to_vec()).collect();
        assert!(payloads.concat() == data, "pieces of {piece}");
        payloads
    }

    #[test]
    fn bytes_arrive_in_order_however_they_are_cut() {
        for piece in [1, 100, 4095, 4096, 4097, 9000, 10_000] {
            assert_eq!(arrive(piece).len(), 3);
        }
    }

    #[test]
    fn bytes_behind_a_payload_are_left() {
        let buffers = Buffers::new(4096);
        let mut arriving = Arriving::new(&buffers, 10);
        assert_eq!(arriving.fill(&buffers, &[7; 12]), 10);
        assert!(arriving.is_complete());
        assert_eq!(arriving.into_payloads().map(|it| it.len()).ok(), Some(10));
    }
}
