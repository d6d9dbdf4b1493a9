//! A connection of a worker: its socket, its place in the protocol, and its requests in flight.

use crate::allow::Identity;
use crate::bounds::{Bounds, Guest, Tenancy};
use crate::clients::{Figures, Listed};
use crate::export::Seat;
use crate::flight::{Buffers, Cookie, Flight, Key, Work};
use crate::log::{Reason, Refusals};
use crate::stream::{Output, Stream};
use blkmq::{AlignedBuf, Instant, Io, IoResult};
use blkmq_nbd::server::{Handshake, Replies, Requests};
use blkmq_nbd::{Context, ErrorCode, ReplyTo, Terms};
use rustix::event::epoll::EventFlags;
use std::collections::VecDeque;

/// The maximum length of a read: some 9,000 requests without a payload.
pub(crate) const CAPACITY: usize = 256 << 10;

/// Bytes that a new connection may have in flight: enough to keep a fast disk busy.
const FIRST: usize = 4 << 20;

/// A connection, from its first byte to its last.
pub(crate) struct Connection {
    pub(crate) key: Key,
    pub(crate) stream: Stream,
    pub(crate) phase: Phase,
    /// Bytes that have arrived and are not parsed.
    pub(crate) rest: Vec<u8>,
    pub(crate) output: Output,
    /// The events for which epoll watches the socket; without any it does not watch.
    pub(crate) watched: EventFlags,
    /// Requests in flight, and their bytes.
    pub(crate) requests: usize,
    pub(crate) bytes: usize,
    /// TLS begins when everything before it is sent. Nothing is read until then.
    pub(crate) begins_tls: bool,
    /// An I/O that found no credit. Nothing is parsed behind it.
    pub(crate) held: Option<(Cookie, Io<AlignedBuf>)>,
    /// The place of a long request of which portions are still to begin. Nothing is parsed behind it.
    pub(crate) long: Option<u32>,
    /// The places of requests in steps whose next step is still to begin, longest wait first.
    pub(crate) steps: VecDeque<u32>,
    /// The connection ends: the client has sent its last byte, or the server reads no more.
    pub(crate) is_over: bool,
    /// The client has closed both directions: no reply reaches it. Requests in front of its DISC are carried out, but
    /// for reads.
    pub(crate) is_cut: bool,
    /// How far the server has come in ending it.
    pub(crate) farewell: Farewell,
    /// The last time that a byte came or went.
    pub(crate) moved: Instant,
    /// The time since which the client has taken none of the replies that wait for it.
    pub(crate) deaf: Option<Instant>,
    /// The next request waits until the worker has room for it.
    pub(crate) is_crowded: bool,
    /// Bytes that wait here, as counted with those of the worker.
    pub(crate) counted: usize,
    /// Bytes that it has spent in a turn, and the number of that turn.
    pub(crate) begun: (u32, usize),
    /// It is on the worker's list for `finish`.
    pub(crate) is_listed: bool,
    /// It waits in the line of greedy connections (`places.rs`).
    pub(crate) is_in_line: bool,
    /// Its output stopped at the end of a turn, and not because the socket is full.
    pub(crate) is_paused: bool,
    /// Bytes that have gone to and come from the client, without headers that came.
    pub(crate) earned: usize,
    /// Its last request was a large write.
    pub(crate) writes_much: bool,
    /// Its requests that were carried out.
    pub(crate) totals: Totals,
    /// Everything that is known of the client. Its certificate is among it once TLS has begun.
    pub(crate) identity: Identity,
    /// The rules of the server have let the client in.
    pub(crate) is_admitted: bool,
    /// Its place among the connections of its identity, once it has agreed on an export.
    pub(crate) tenancy: Option<Tenancy>,
    /// Its place in the list of clients, once it has agreed on an export.
    pub(crate) listed: Option<Listed>,
    /// Its place among the connections of the server. Given back last: a connection that is not counted has nothing
    /// left.
    pub(crate) guest: Guest,
}

/// The end of a connection by the server, which may come while its client sends. A TCP socket that is closed over
/// unread bytes is reset, and replies on their way would be lost. So the server closes its half, and reads and drops
/// all further input until the client has closed the other half.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Farewell {
    /// The server does not end it, or does not wait for the client.
    None,
    /// Due when the last reply is with the kernel.
    Due,
    /// The server's half is closed. The rest is closed when the client's is, or then at the latest.
    Said(Instant),
}

/// Requests that were carried out, and bytes of those that read and wrote.
#[derive(Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) requests: u64,
    pub(crate) read: u64,
    pub(crate) written: u64,
}

impl Totals {
    /// Counts a request that has ended.
    pub(crate) fn count(&mut self, flight: &Flight, result: IoResult) {
        if result.is_err() {
            return;
        }
        self.requests += 1;
        match flight.work {
            Work::Read(length) => self.read += u64::from(length),
            Work::Write(length) => self.written += u64::from(length),
            Work::Long(ref long) if long.is_read() => self.read += u64::from(long.length()),
            Work::Long(ref long) => self.written += u64::from(long.length()),
            Work::Plain | Work::Steps(_) => {}
        }
    }
}

/// The place of a connection in the protocol.
pub(crate) enum Phase {
    Handshake {
        handshake: Box<Handshake>,
        began: Instant,
    },
    Transmission(Box<Transmission>),
    /// The socket is broken: nothing is sent any more, and the connection ends with its I/Os. Until then it keeps its
    /// place at the export.
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
    /// The metadata contexts to answer for.
    pub(crate) contexts: Vec<Context>,
    /// A payload that arrives.
    pub(crate) payload: Payload,
}

/// The payload of the last request.
pub(crate) enum Payload {
    /// All of it is here.
    None,
    /// Bytes of a write on their way into its buffers.
    Filling { request: Writing, arriving: Arriving },
    /// Bytes of a refused request, and the error to answer with behind them.
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

    /// Whether another request may be taken.
    pub(crate) fn has_room(&self, bounds: &Bounds) -> bool {
        let bytes = self.bytes + self.output.waiting();
        // A client that takes no replies comes to this bound and stays there.
        let most = if self.deaf.is_some() { bounds.bytes_per_turn } else { self.allowance(bounds) };
        self.held.is_none()
            && self.long.is_none()
            && !self.begins_tls
            && self.requests < bounds.requests
            && self.output.waiting() < bounds.replies
            && bytes < most
    }

    /// Counts and logs that the client is turned away, from this export or from all.
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

    /// Its figures for the list of clients.
    pub(crate) fn figures(&self) -> Figures {
        let Totals { requests, read, written } = self.totals;
        Figures { requests, read, written, in_flight: self.requests as u64 }
    }

    /// Bytes that it may have in flight: [`FIRST`], and as many more as have gone to and come from the client.
    fn allowance(&self, bounds: &Bounds) -> usize {
        bounds.bytes.min(FIRST.saturating_add(self.earned))
    }

    /// Whether a portion of its long request may begin.
    pub(crate) fn may_go_on(&self, bounds: &Bounds) -> bool {
        let is_taken = self.deaf.is_none() || self.output.waiting() < bounds.bytes_per_turn;
        self.held.is_none() && is_taken
    }

    /// Whether requests that have arrived, or portions of its long one, may begin.
    pub(crate) fn may_begin(&self, bounds: &Bounds) -> bool {
        !self.rest.is_empty() && !self.is_over && self.has_room(bounds)
            || self.long.is_some() && self.may_go_on(bounds)
    }

    /// Whether it used up its last turn. Then it waits in line for the next one.
    pub(crate) fn is_greedy(&self, bounds: &Bounds) -> bool {
        self.begun.1 >= bounds.bytes_per_turn
    }

    /// Bytes that it has spent in this turn.
    pub(crate) fn begun_in(&self, turn: u32) -> usize {
        if self.begun.0 == turn { self.begun.1 } else { 0 }
    }

    /// Bytes of a request are copied, or given to a disk, in this turn.
    pub(crate) fn spend(&mut self, turn: u32, bytes: usize) {
        self.begun = (turn, self.begun_in(turn) + bytes);
    }

    /// A request of `bytes` has begun.
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

    /// Whether a payload arrives that is longer than a portion, or that is dropped.
    pub(crate) fn takes_much(&self, portion: usize) -> bool {
        match self.payload() {
            Payload::Filling { arriving, .. } => arriving.len() > portion,
            Payload::Dropping { .. } => true,
            Payload::None => false,
        }
    }

    /// Bytes that wait without an I/O: replies for the client, and a payload for its end.
    pub(crate) fn waiting(&self) -> usize {
        let payload = match self.payload() {
            Payload::Filling { arriving, .. } => arriving.len(),
            Payload::None | Payload::Dropping { .. } => 0,
        };
        self.output.waiting() + payload
    }

    /// Whether bytes wait for the socket, in TLS or before it.
    pub(crate) fn has_output(&self) -> bool {
        !self.is_cut && (self.output.waiting() > 0 || self.stream.wants_write())
    }

    /// The client takes no replies any more. Those that wait are dropped.
    pub(crate) fn cut(&mut self) {
        self.is_cut = true;
        self.output = Output::default();
        self.deaf = None;
    }

    /// Its export, once it has agreed on one.
    pub(crate) fn seat(&self) -> Option<&Seat> {
        match &self.phase {
            Phase::Transmission(transmission) => Some(&transmission.export),
            Phase::Broken { export } => export.as_ref(),
            Phase::Handshake { .. } => None,
        }
    }

    /// The name of its export.
    pub(crate) fn export(&self) -> Option<&str> {
        self.seat().map(|seat| seat.info.name.as_str())
    }

    /// Whether the connection may be closed: it is over, and has neither requests nor output.
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

    /// Takes no more requests. Those that have begun are carried out and answered; later ones were never taken.
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

    /// Drops the output and the rest: the socket is broken.
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

    /// The time at which the connection has kept the worker waiting for too long; `None` while it does not.
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

/// [`Arriving`]: the payload of a write, on its way from the socket into its buffers.
///
/// Each portion has a buffer, which is taken when the bytes before it have arrived: a client that announces much and
/// sends little takes little memory.
#[derive(Debug)]
pub(crate) struct Arriving {
    /// The portions that are complete.
    full: Vec<AlignedBuf>,
    buffer: AlignedBuf,
    /// Bytes of `buffer` that are there.
    filled: usize,
    /// Bytes behind `buffer` that are still to come.
    behind: usize,
    len: usize,
}

impl Arriving {
    /// A payload of `len` bytes, none of which is there.
    pub(crate) fn new(buffers: &Buffers, len: usize) -> Self {
        let first = len.min(buffers.portion());
        let buffer = buffers.take(first);
        Self { full: Vec::new(), buffer, filled: 0, behind: len - first, len }
    }

    /// Bytes of all of it.
    fn len(&self) -> usize {
        self.len
    }

    /// The place of the next bytes, and how many of them fit.
    pub(crate) fn gap(&mut self) -> &mut [u8] {
        &mut self.buffer.as_mut_slice()[self.filled..]
    }

    /// `count` bytes are in the gap.
    pub(crate) fn arrived(&mut self, count: usize) {
        self.filled += count;
    }

    /// Copies as much of `bytes` as belongs to it; returns how much that is.
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

    /// The only buffer, or those of all portions in order.
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

    /// A payload of 10,000 bytes whose portions have 4,096, in pieces of this length, every other one of them put
    /// into the gap.
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
