//! Requests become I/Os, and completions become answers.

use super::Backend;
use crate::export::{Cache, Served};
use crate::flight::Cookie;
use crate::long::Long;
use crate::steps::{Steps, Zeroes};
use blkmq::{AlignedBuf, Bytes, Io, IoError, IoResult, Owner, Refusal, SECTOR_SIZE};
use blkmq_vhost::request::{self, Request, Status};
use blkmq_vhost::ring::{Chain, Ring, RingError};

/// The longest read or write. The driver of Linux asks for no more than some MiB.
const LONGEST: u64 = 32 << 20;
/// Bytes that every request counts for beside its data.
const OVERHEAD: usize = 256;
/// Requests that are taken from a ring before the next ring is looked at.
const IN_A_ROW: usize = 32;
/// Times that the rings are looked at before messages are: a disk that completes each I/O in its push could be busy for ever.
const ROUNDS: usize = 8;

/// A request in flight.
#[derive(Debug)]
pub(super) struct Flight {
    queue: usize,
    chain: Chain,
    work: Work,
    ioprio: u16,
    /// The place on the disk of the last I/O that began, in bytes.
    at: u64,
    /// Bytes that it counts for.
    bytes: usize,
}

/// The I/Os of a request.
#[derive(Debug)]
enum Work {
    Read,
    Write(u64),
    Flush,
    /// A read or write in portions.
    Long(Long),
    /// A range in steps.
    Steps(Steps),
}

impl Work {
    fn name(&self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write(_) => "write",
            Self::Flush => "flush",
            Self::Long(long) if long.is_read() => "read",
            Self::Long(_) => "write",
            Self::Steps(steps) => steps.name(),
        }
    }
}

impl Backend {
    /// Takes requests from the rings, carries them out as far as the disk does, and answers.
    pub(super) fn serve(&mut self) {
        for _ in 0..ROUNDS {
            self.go_on();
            let mut has_taken = false;
            for queue in 0..usize::from(self.settings.queues) {
                has_taken |= self.take_requests(queue);
            }
            let has_reaped = self.has_ended() && self.reap();
            self.publish();
            if !has_taken && !has_reaped {
                return;
            }
        }
    }

    /// Takes requests from the ring of `queue`, within bounds. Returns whether there was one.
    fn take_requests(&mut self, queue: usize) -> bool {
        let mut has_taken = false;
        for _ in 0..IN_A_ROW {
            if !self.may_take() {
                break;
            }
            let Some(front) = &mut self.front else { break };
            let (of_front, memory) = front.session.queue(queue);
            let Some(ring) = of_front.running() else { break };
            let mut chain = self.chains.pop().unwrap_or_default();
            let taken = ring.take(memory, &mut chain).and_then(|taken| {
                ring.disarm();
                Ok(if taken { Some(request::parse(&chain, memory)?) } else { None })
            });
            match taken {
                Ok(Some(asked)) => {
                    has_taken = true;
                    front.in_flight[queue] += 1;
                    match asked.request {
                        Ok(request) => self.begin(queue, chain, request, asked.ioprio),
                        Err(status) => self.answer(queue, chain, status, 0),
                    }
                }
                Ok(None) => {
                    self.chains.push(chain);
                    break;
                }
                Err(error) => {
                    self.chains.push(chain);
                    self.break_off(queue, error);
                    break;
                }
            }
        }
        has_taken
    }

    fn break_off(&mut self, queue: usize, error: RingError) {
        let export = &self.export;
        self.faults.log(self.clock.now(), |before| {
            tracing::warn!(before, export, queue, "a ring is stopped: {error}");
        });
        if let Some(front) = &mut self.front {
            front.break_off(queue, &self.sleeper);
        }
    }

    /// Begins a request, or answers it.
    fn begin(&mut self, queue: usize, chain: Chain, request: Request, ioprio: u16) {
        let Some(front) = &self.front else { return };
        let export = &*front.seat;
        let through = !front.session.is_writeback() || export.cache == Cache::Writethrough;
        if let Err(status) = check(request, export) {
            return self.answer(queue, chain, status, 0);
        }
        let (start, portion) = (export.start, self.buffers.portion());
        let add = |chain, work, at, bytes| Flight { queue, chain, work, ioprio, at, bytes };
        match request {
            Request::GetId => {
                let id = front.session.disk().id();
                let is_written = chain.write(front.session.memory(), 0, &id);
                let status = if is_written { Status::Ok } else { Status::IoError };
                self.answer(queue, chain, status, id.len() as u64);
            }
            Request::Flush => self.begin_io(add(chain, Work::Flush, 0, OVERHEAD), Io::flush()),
            Request::Read { at, len } if len as usize <= portion => {
                let buffer = self.buffers.cleared(len as usize, export.clears);
                let flight = add(chain, Work::Read, start + at, OVERHEAD + len as usize);
                self.begin_io(flight, Io::read(Bytes(start + at), buffer));
            }
            Request::Read { at, len } => {
                let long = Long::read(start + at, len as u32, portion as u32);
                let flight = add(chain, Work::Long(long), start + at, OVERHEAD + len as usize);
                self.begin_unfinished(flight);
            }
            Request::Write { at, len } => {
                let flight = add(chain, Work::Write(len), start + at, OVERHEAD + len as usize);
                self.write(flight, start + at, len as usize, through);
            }
            Request::Discard { at, len } => {
                let steps = Steps::trim(start + at..start + at + len, export.discard, false);
                self.begin_unfinished(add(chain, Work::Steps(steps), start + at, OVERHEAD));
            }
            Request::WriteZeroes { at, len, no_hole } => {
                let range = start + at..start + at + len;
                let can = export.zeroes > 0 && (export.zeroing.keeps_room || !no_hole);
                let steps = if can {
                    let zeroes = Zeroes { no_hole, otherwise: Some(portion) };
                    Steps::zero(range, export.zeroes, through, zeroes)
                } else {
                    Steps::fill(range, portion, through)
                };
                self.begin_unfinished(add(chain, Work::Steps(steps), start + at, OVERHEAD));
            }
        }
    }

    /// Begins a write: its data is copied before the guest can change it again.
    fn write(&mut self, mut flight: Flight, at: u64, len: usize, fua: bool) {
        let portion = self.buffers.portion();
        let mut payloads = Vec::new();
        let mut from = request::HEADER as u64;
        let Some(front) = &self.front else { return };
        let memory = front.session.memory();
        let mut first = None;
        for begin in (0..len).step_by(portion) {
            let part = portion.min(len - begin);
            let mut buffer = self.buffers.take(part);
            if !flight.chain.read(memory, from, buffer.as_mut_slice()) {
                return self.answer(flight.queue, flight.chain, Status::IoError, 0);
            }
            from += part as u64;
            if part == len {
                first = Some(buffer);
            } else {
                payloads.push(buffer);
            }
        }
        match first {
            Some(buffer) => {
                let io = Io::write(Bytes(at), buffer);
                self.begin_io(flight, if fua { io.fua() } else { io });
            }
            None => {
                flight.work = Work::Long(Long::write(at, payloads, fua));
                self.begin_unfinished(flight);
            }
        }
    }

    /// Begins a request of one I/O.
    fn begin_io(&mut self, flight: Flight, io: Io<AlignedBuf>) {
        self.bytes += flight.bytes;
        let place = self.flights.insert(flight);
        self.push(Cookie { place, portion: 0 }, io);
    }

    /// Begins a request of several I/Os.
    fn begin_unfinished(&mut self, flight: Flight) {
        self.bytes += flight.bytes;
        let place = self.flights.insert(flight);
        self.unfinished.push_back(place);
        self.go_on();
    }

    /// Pushes I/Os that have waited for credit, and begins steps and portions of unfinished requests, the oldest first.
    fn go_on(&mut self) {
        if let Some((cookie, io)) = self.held.take() {
            self.push(cookie, io);
        }
        while self.held.is_none() {
            let Some(place) = self.unfinished.pop_front() else { return };
            let clears = self.front.as_ref().is_none_or(|front| front.seat.clears);
            let Self { flights, buffers, turn, .. } = self;
            let flight = flights.get_mut(place);
            let take = |len| buffers.cleared(len, clears);
            let (portion, io, has_more) = match &mut flight.work {
                Work::Long(long) => {
                    let (portion, io) = long.begin(take);
                    (portion, io, long.has_more())
                }
                // The next step begins when this one has ended.
                Work::Steps(steps) => (0, steps.begin(*turn, take), false),
                Work::Read | Work::Write(_) | Work::Flush => continue,
            };
            flight.at = io.sector * u64::from(SECTOR_SIZE);
            if has_more {
                self.unfinished.push_back(place);
            }
            self.push(Cookie { place, portion }, io);
        }
    }

    /// Pushes an I/O. Without credit it waits, and so does every request behind it.
    fn push(&mut self, cookie: Cookie, io: Io<AlignedBuf>) {
        let Some(front) = &self.front else { return };
        let export = &*front.seat;
        let asked = self.flights.get_mut(cookie.place).ioprio;
        let ioprio = self.settings.guest_ioprio.apply(asked, export.ioprio);
        let io = io.cookie(cookie.into()).owner(Owner(export.number)).group(export.group.id());
        if let Err(refused) = self.disk_client.client.line_up(io.ioprio(ioprio)) {
            if matches!(refused.why, Refusal::NoCredit { .. }) {
                self.held = Some((cookie, refused.into_io()));
                return;
            }
            let result = Err(refused.why.into());
            self.ended.push((cookie, result, refused.into_io().payload));
        }
    }

    /// Returns whether an I/O has ended, or may have.
    pub(super) fn has_ended(&self) -> bool {
        // A refused I/O leaves nothing in flight.
        !self.ended.is_empty() || self.disk_client.has_work()
    }

    /// Flushes the plug and takes completions. Returns whether there were any.
    pub(super) fn reap(&mut self) -> bool {
        let Self { disk_client, ended, .. } = self;
        disk_client.reap(|cookie, result, payload| ended.push((cookie, result, payload)));
        let mut ended = std::mem::take(&mut self.ended);
        let has_some = !ended.is_empty();
        ended.drain(..).for_each(|(cookie, result, payload)| self.end(cookie, result, payload));
        // A request that began in between may have been refused.
        ended.append(&mut self.ended);
        self.ended = ended;
        has_some
    }

    /// An I/O has ended: the next step of its request, or the answer.
    fn end(&mut self, cookie: Cookie, mut result: IoResult, mut payload: AlignedBuf) {
        let Cookie { place, portion } = cookie;
        let flight = self.flights.get_mut(place);
        let mut goes_on = false;
        match &mut flight.work {
            Work::Steps(steps) => {
                if result == Err(IoError::NOT_SUPPORTED) && steps.falls_back() {
                    result = Ok(());
                }
                goes_on = result.is_ok() && !steps.is_over();
                if goes_on {
                    steps.end(self.turn);
                    self.unfinished.push_back(place);
                }
            }
            Work::Long(long) => {
                long.end(portion, result, std::mem::take(&mut payload));
                goes_on = !long.is_over();
                result = long.result();
                if result.is_err() {
                    self.unfinished.retain(|other| *other != place);
                }
            }
            Work::Read | Work::Write(_) | Work::Flush => {}
        }
        if let Err(error) = result
            && ![IoError::CANCELLED, IoError::NOT_SUPPORTED].contains(&error)
        {
            let what = (flight.work.name(), flight.at);
            self.shared.disks[self.disk].failed(&self.export, what, error);
        }
        if !goes_on {
            self.finish(place, result, payload);
        }
    }

    /// All I/Os of a request have ended.
    fn finish(&mut self, place: u32, result: IoResult, mut payload: AlignedBuf) {
        let Flight { queue, chain, work, bytes, .. } = self.flights.remove(place);
        self.bytes -= bytes;
        let Some(front) = &mut self.front else { return };
        if front.is_over {
            front.in_flight[queue] -= 1;
            return self.chains.push(chain);
        }
        let mut written = 0;
        let mut copy = |payload: &mut AlignedBuf| {
            let is_copied = chain.write(front.session.memory(), written, payload.as_mut_slice());
            written += payload.len() as u64;
            is_copied
        };
        let is_copied = match (result, work) {
            (Err(_), _) => true,
            (Ok(()), Work::Read) => copy(&mut payload),
            (Ok(()), Work::Long(long)) if long.is_read() => {
                long.into_payloads().iter_mut().all(&mut copy)
            }
            (Ok(()), Work::Write(len)) => {
                front.totals.written += len;
                true
            }
            (Ok(()), Work::Long(long)) => {
                front.totals.written += u64::from(long.length());
                true
            }
            (Ok(()), Work::Flush | Work::Steps(_)) => true,
        };
        front.totals.requests += 1;
        front.totals.read += written;
        let status = match result {
            Ok(()) if is_copied => Status::Ok,
            Err(IoError::NOT_SUPPORTED) => Status::Unsupported,
            _ => Status::IoError,
        };
        self.answer(queue, chain, status, written);
    }

    /// Answers a request. The driver sees it when the ring is published.
    fn answer(&mut self, queue: usize, chain: Chain, status: Status, data: u64) {
        let Some(front) = &mut self.front else { return };
        front.in_flight[queue] -= 1;
        let (of_front, memory) = front.session.queue(queue);
        if let Some(ring) = of_front.ring() {
            ring.give(chain.head(), request::answer(&chain, memory, status, data));
        }
        self.chains.push(chain);
    }

    /// Shows the drivers their answers, and notifies those that wait for one.
    fn publish(&mut self) {
        let Some(front) = self.front.as_mut().filter(|front| !front.is_over) else { return };
        for queue in 0..front.in_flight.len() {
            let of_front = front.session.queue(queue).0;
            if of_front.ring().is_some_and(Ring::publish) {
                of_front.notify();
            }
        }
    }

    /// Gives up the requests of a connection that is over, as far as they have not begun.
    pub(super) fn give_up(&mut self) {
        if let Some((cookie, io)) = self.held.take() {
            self.end(cookie, Err(IoError::CANCELLED), io.payload);
        }
        while let Some(place) = self.unfinished.pop_front() {
            let over = match &mut self.flights.get_mut(place).work {
                Work::Long(long) => {
                    long.stop(Err(IoError::CANCELLED));
                    long.is_over()
                }
                _ => true,
            };
            if over {
                self.finish(place, Err(IoError::CANCELLED), AlignedBuf::empty());
            }
        }
    }
}

/// Checks a request against the export.
fn check(request: Request, export: &Served) -> Result<(), Status> {
    let (at, len, most) = match request {
        Request::Flush | Request::GetId => return Ok(()),
        Request::Discard { .. } if export.discard == 0 => return Err(Status::Unsupported),
        Request::Read { at, len } | Request::Write { at, len } => (at, len, LONGEST),
        Request::Discard { at, len } | Request::WriteZeroes { at, len, .. } => (at, len, u64::MAX),
    };
    let is_forbidden = !matches!(request, Request::Read { .. }) && export.is_read_only();
    let is_inside = at.checked_add(len).is_some_and(|end| end <= export.bytes());
    if (1..=most).contains(&len) && is_inside && !is_forbidden {
        Ok(())
    } else {
        Err(Status::IoError)
    }
}
