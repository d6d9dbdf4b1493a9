//! [`Flight`]: the unanswered requests of a hardware queue, in places; and [`Suspicion`], which estimates whether a
//! request causes the losses of its connection.
//!
//! A server may close every connection at a certain request, without saying which one: every request that was sent and
//! not answered is a suspect. After a loss, the requests with more losses are sent last, and fewer at a time after each
//! loss, until the culprit is alone.

use crate::memory::Memory;
use blkmq_core::{IoError, IoFlags, IoResult, Op, SECTOR_SIZE, Tag};
use blkmq_engine::{Finished, Inflight, Verdict};
use blkmq_nbd::client::{InFlight, Pending, Requests};
use blkmq_nbd::{Command, CommandFlags, Cookie, Header, Request, Span};
use std::collections::VecDeque;

/// A place for one request.
#[derive(Debug, Default)]
pub(crate) struct Place {
    pub(crate) memory: Memory,
    /// The request as sent to the server, and the data needed to check its reply.
    wire: Option<(Request, Pending)>,
    /// The header of the request, in the form of the present connection.
    pub(crate) header: Option<Header>,
    /// The error that the server has answered, if any.
    failed: Option<IoError>,
    /// Whether the last byte has been sent on the present connection.
    is_sent: bool,
    /// Whether the reply is complete although the last bytes of the request have not been sent.
    is_answered: bool,
    suspicion: Suspicion,
    /// Numbers requests in the order in which the engine issued them.
    serial: u64,
    /// Changes with every use of the place, so that a late reply to an earlier request is not matched.
    generation: u32,
}

/// The unanswered requests, including those not sent yet.
#[derive(Debug)]
pub(crate) struct Flight {
    places: Vec<Place>,
    free: Vec<u32>,
    depth: u32,
    /// The places of requests that are not, or not completely, sent on the present connection.
    pub(crate) unsent: VecDeque<u32>,
    /// The places of requests that are held back until fewer than `window` requests are unanswered.
    held: VecDeque<u32>,
    /// The most unanswered requests; unlimited unless there are suspects.
    window: usize,
    /// The number of requests for which [`Suspicion::is_suspect`] is true.
    suspects: usize,
    /// The number of requests that the server has answered.
    answered: u64,
    serial: u64,
}

/// After each loss, the window is the number of requests in flight divided by this: from 1024, four losses leave one.
const NARROWER: usize = 8;

impl Place {
    /// The number of payload bytes that follow the header.
    pub(crate) fn payload_len(&self) -> usize {
        match &self.wire {
            Some((request, _)) if request.command == Ok(Command::Write) => {
                request.span.length as usize
            }
            _ => 0,
        }
    }

    /// The offset of the request in the export, in bytes.
    pub(crate) fn offset(&self) -> u64 {
        self.wire.as_ref().map_or(0, |(request, _)| request.span.offset)
    }

    /// Records an error that the server has answered; the first one counts.
    pub(crate) fn fail(&mut self, error: IoError) {
        self.failed.get_or_insert(error);
    }
}

/// The command, the flags and the range of a request on the wire.
fn command(rq: &Inflight) -> (Command, CommandFlags, Span) {
    let command = match rq.op() {
        Op::Read => Command::Read,
        Op::Write => Command::Write,
        Op::Flush => return (Command::Flush, CommandFlags::NONE, Span::default()),
        Op::Discard => Command::Trim,
        Op::WriteZeroes => Command::WriteZeroes,
    };
    let is_durable = rq.op().is_write() && rq.flags().contains(IoFlags::FUA);
    let flags = if is_durable { CommandFlags::FUA } else { CommandFlags::NONE };
    let bytes = |sectors: u64| sectors * u64::from(SECTOR_SIZE);
    (command, flags, Span { offset: bytes(rq.sector()), length: bytes(rq.sectors().into()) })
}

impl Flight {
    /// Creates a flight without places: up to `depth` places are made on demand.
    pub(crate) fn new(depth: u32) -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            depth,
            unsent: VecDeque::new(),
            held: VecDeque::new(),
            window: usize::MAX,
            suspects: 0,
            answered: 0,
            serial: 0,
        }
    }

    /// A free place, or `None` if all are taken.
    pub(crate) fn vacant(&mut self) -> Option<u32> {
        if let Some(at) = self.free.last() {
            return Some(*at);
        }
        let at = self.places.len() as u32;
        if at == self.depth {
            return None;
        }
        self.places.push(Place::default());
        // Reserved here, so that neither sending nor freeing a place allocates.
        self.free.reserve(self.places.len());
        self.unsent.reserve(self.places.len());
        self.held.reserve(self.places.len());
        self.free.push(at);
        Some(at)
    }

    /// Sends the request in place `at`, which must be the last result of [`vacant`](Self::vacant).
    pub(crate) fn take(&mut self, at: u32, requests: Requests) {
        assert_eq!(self.free.pop(), Some(at), "the place that was named last");
        self.serial += 1;
        let place = &mut self.places[at as usize];
        place.serial = self.serial;
        self.prepare(at, requests);
        self.held.push_back(at);
        self.admit();
    }

    /// Releases held requests while the window has room.
    fn admit(&mut self) {
        while !self.held.is_empty() && self.count() - self.held.len() < self.window {
            self.unsent.extend(self.held.pop_front());
        }
    }

    /// Returns whether requests are held back behind suspects.
    pub(crate) fn is_narrow(&self) -> bool {
        !self.held.is_empty()
    }

    /// Releases all requests. A server that is slow at one request must not hold up the others.
    pub(crate) fn widen(&mut self) {
        self.window = usize::MAX;
        self.admit();
    }

    /// Encodes the request of place `at` again, with a new cookie, as if it had never been sent.
    fn prepare(&mut self, at: u32, requests: Requests) {
        let place = &mut self.places[at as usize];
        let rq = place.memory.request().expect("a place that is taken has a request");
        let (command, flags, span) = command(rq);
        place.generation = place.generation.wrapping_add(1);
        let cookie = Cookie(u64::from(place.generation) << 32 | u64::from(at));
        let request = Request { command: Ok(command), flags, cookie, span };
        let pending = Pending::of(&request).expect("only DISC has no reply");
        place.wire = Some((request, pending));
        place.header = requests.header(&request);
        assert!(place.header.is_some(), "limits keep lengths within the form of headers");
        (place.failed, place.is_sent, place.is_answered) = (None, false, false);
    }

    /// Called on a new connection: sends all unanswered requests again in the order of issue, except that requests with
    /// more losses go last.
    pub(crate) fn restart(&mut self, requests: Requests) {
        self.unsent.clear();
        self.held.clear();
        for at in 0..self.places.len() as u32 {
            if self.places[at as usize].memory.request().is_some() {
                self.prepare(at, requests);
                self.held.push_back(at);
            }
        }
        let (places, answered) = (&self.places, self.answered);
        self.held.make_contiguous().sort_unstable_by_key(|at| {
            let place = &places[*at as usize];
            (place.suspicion.rank(answered), place.serial)
        });
        self.admit();
    }

    /// Called when the connection is lost; `is_inside` says whether the first unsent request was sent in part. Answered
    /// requests end. Every request that was sent and not answered counts a loss, and is at fault if it was the only
    /// one.
    ///
    /// Returns the description of a request that fails because it was at fault too often.
    pub(crate) fn lost(&mut self, is_inside: bool, out: &mut Vec<Finished>) -> Option<String> {
        let partial = self.unsent.front().copied().filter(|_| is_inside);
        let mut in_flight = 0;
        let mut last = 0;
        for at in 0..self.places.len() as u32 {
            let place = &self.places[at as usize];
            if place.memory.request().is_none() {
                continue;
            }
            if place.is_answered {
                self.unsent.retain(|unsent| *unsent != at);
                self.end(at, out);
            } else if place.is_sent || partial == Some(at) {
                (in_flight, last) = (in_flight + 1, at);
            }
        }
        for at in 0..self.places.len() as u32 {
            let place = &self.places[at as usize];
            if place.memory.request().is_some() && (place.is_sent || partial == Some(at)) {
                let cause = if in_flight == 1 { Cause::Alone } else { Cause::AnyOfSeveral };
                self.suspect(at, cause);
            }
        }
        if self.suspects > 0 && in_flight > 0 {
            self.window = (in_flight / NARROWER).max(1);
        }
        if in_flight == 1 { self.condemn(last, out) } else { None }
    }

    /// Like [`lost`](Self::lost), for a connection that is given up because the request with this tag was not answered
    /// in time.
    pub(crate) fn unanswered(&mut self, tag: Tag, out: &mut Vec<Finished>) -> Option<String> {
        let has = |place: &Place| place.memory.request().is_some_and(|rq| rq.tag() == tag);
        let at = self.places.iter().position(has)? as u32;
        self.suspect(at, Cause::Silence);
        self.condemn(at, out)
    }

    fn suspect(&mut self, at: u32, cause: Cause) {
        let suspicion = &mut self.places[at as usize].suspicion;
        let was_suspect = suspicion.is_suspect();
        suspicion.lost(cause, self.answered);
        self.suspects += usize::from(suspicion.is_suspect() && !was_suspect);
    }

    /// Fails the request if it was at fault too often, and returns its description.
    fn condemn(&mut self, at: u32, out: &mut Vec<Finished>) -> Option<String> {
        let place = &self.places[at as usize];
        if !place.suspicion.is_guilty(self.answered) {
            return None;
        }
        let rq = place.memory.request()?;
        let (command, _, span) = command(rq);
        let (length, offset, losses) = (span.length, span.offset, place.suspicion.losses);
        let text = format!("{command:?} of {length} bytes at {offset}, {losses} connections");
        self.unsent.retain(|unsent| *unsent != at);
        self.held.retain(|held| *held != at);
        self.finish(at, Err(IoError::IO), out);
        Some(text.to_lowercase())
    }

    /// The number of unanswered requests.
    pub(crate) fn count(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(crate) fn place(&self, at: u32) -> &Place {
        &self.places[at as usize]
    }

    pub(crate) fn place_mut(&mut self, at: u32) -> &mut Place {
        &mut self.places[at as usize]
    }

    /// The place of a cookie that [`find`](InFlight::find) accepts.
    pub(crate) fn of(cookie: Cookie) -> u32 {
        cookie.0 as u32
    }

    /// Returns whether a request with this tag is unanswered.
    pub(crate) fn has(&self, tag: Tag) -> bool {
        self.places.iter().any(|place| place.memory.request().is_some_and(|rq| rq.tag() == tag))
    }

    /// Called when the reply to the request of place `at` is complete. The request completes when its last byte has
    /// been sent, too: until then its payload is needed.
    pub(crate) fn answered(&mut self, at: u32, out: &mut Vec<Finished>) {
        self.answered += 1;
        self.place_mut(at).is_answered = true;
        if self.place(at).is_sent {
            self.end(at, out);
        }
    }

    /// Called when the last byte of the first unsent request has been sent.
    pub(crate) fn sent(&mut self, out: &mut Vec<Finished>) {
        let at = self.unsent.pop_front().expect("a request was being sent");
        self.place_mut(at).is_sent = true;
        if self.place(at).is_answered {
            self.end(at, out);
        }
    }

    /// Completes a request with the result of the server.
    fn end(&mut self, at: u32, out: &mut Vec<Finished>) {
        let failed = self.place(at).failed;
        self.finish(at, failed.map_or(Ok(()), Err), out);
        self.admit();
    }

    fn finish(&mut self, at: u32, result: IoResult, out: &mut Vec<Finished>) {
        if let Some(rq) = self.release(at) {
            out.push(Finished { rq, verdict: Verdict::Done(result) });
        }
    }

    fn release(&mut self, at: u32) -> Option<Inflight> {
        let place = &mut self.places[at as usize];
        let rq = place.memory.release()?;
        place.wire = None;
        self.suspects -= usize::from(place.suspicion.is_suspect());
        place.suspicion = Suspicion::default();
        self.free.push(at);
        if self.suspects == 0 {
            self.window = usize::MAX;
        }
        Some(rq)
    }

    /// Completes every request with `error`.
    pub(crate) fn fail_all(&mut self, error: IoError, out: &mut Vec<Finished>) {
        self.unsent.clear();
        self.held.clear();
        for at in 0..self.places.len() as u32 {
            self.finish(at, Err(error), out);
        }
    }

    /// Returns every request.
    pub(crate) fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.unsent.clear();
        self.held.clear();
        for at in 0..self.places.len() as u32 {
            out.extend(self.release(at));
        }
    }
}

impl InFlight for Flight {
    fn find(&mut self, cookie: Cookie) -> Option<&mut Pending> {
        let place = self.places.get_mut(Self::of(cookie) as usize)?;
        let (request, pending) = place.wire.as_mut()?;
        (request.cookie == cookie && !place.is_answered).then_some(pending)
    }
}

/// The faults after which a request fails, if the server has answered other requests since its first loss. Fewer could
/// be restarts of the server.
const ALONE: u8 = 4;
/// The faults after which a request fails if no other answer shows that the server works. With the pauses of a link
/// they take 1.5 s.
const UNPROVEN: u8 = 6;
/// The losses after which a request is a suspect: the first one may be a restart of the server.
const SUSPECT: u8 = 2;

/// The cause of a loss, with its weight as a fault of the request.
#[derive(Clone, Copy, Debug)]
enum Cause {
    /// Several requests were unanswered.
    AnyOfSeveral = 0,
    /// No other request was sent and unanswered.
    Alone = 1,
    /// The request had no answer within the timeout, which is longer than a restart takes.
    Silence = 3,
}

/// The evidence against one request.
#[derive(Clone, Copy, Debug, Default)]
struct Suspicion {
    /// Losses while the request was sent and unanswered.
    losses: u8,
    /// The weighted sum of losses that no other request can have caused.
    alone: u8,
    /// The requests that the server had answered at the first loss.
    answered: u64,
}

impl Suspicion {
    /// Records a loss with its cause, after `answered` answers of the server.
    pub(crate) fn lost(&mut self, cause: Cause, answered: u64) {
        if self.losses == 0 {
            self.answered = answered;
        }
        self.losses = self.losses.saturating_add(1);
        self.alone = self.alone.saturating_add(cause as u8);
    }

    fn is_suspect(self) -> bool {
        self.losses >= SUSPECT
    }

    /// Returns whether the request must fail.
    fn is_guilty(self, answered: u64) -> bool {
        self.alone >= self.limit(answered)
    }

    /// The position among the requests to be sent again, lowest first: requests with fewer losses precede. A request
    /// whose next loss is its last goes first, since a server that fails after some number of requests of any kind
    /// survives the first.
    fn rank(self, answered: u64) -> u8 {
        if self.alone + 1 >= self.limit(answered) { 0 } else { self.losses }
    }

    fn limit(self, answered: u64) -> u8 {
        if answered > self.answered { ALONE } else { UNPROVEN }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(times: u8, answered: u64) -> Suspicion {
        let mut suspicion = Suspicion::default();
        (0..times).for_each(|_| suspicion.lost(Cause::Alone, answered));
        suspicion
    }

    #[test]
    fn a_request_fails_sooner_if_the_server_answers_others() {
        for (answered, limit) in [(8, ALONE), (7, UNPROVEN)] {
            assert!(!lost(limit - 1, 7).is_guilty(answered));
            assert!(lost(limit, 7).is_guilty(answered));
            assert_eq!(lost(limit - 1, 7).rank(answered), 0, "the last try");
            assert_eq!(lost(limit - 2, 7).rank(answered), limit - 2);
        }
    }

    #[test]
    fn losses_beside_others_fail_no_request() {
        let mut suspicion = Suspicion::default();
        (0..=u8::MAX).for_each(|_| suspicion.lost(Cause::AnyOfSeveral, 0));
        assert!(suspicion.is_suspect() && !suspicion.is_guilty(1));
        assert!(!lost(1, 0).is_suspect());
    }

    #[test]
    fn the_second_silence_is_the_last() {
        let mut suspicion = Suspicion::default();
        suspicion.lost(Cause::Silence, 7);
        assert!(!suspicion.is_guilty(7) && !suspicion.is_guilty(8));
        suspicion.lost(Cause::Silence, 7);
        assert!(suspicion.is_guilty(7) && suspicion.is_guilty(8));
    }
}
