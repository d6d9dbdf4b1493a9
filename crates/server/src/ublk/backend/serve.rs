//! Requests become I/Os, and completions become answers.

use super::Serving;
use crate::export::Served;
use crate::flight::Cookie;
use crate::steps::{Steps, Zeroes};
use blkmq::{AlignedBuf, Bytes, Io, IoError, IoResult, Owner, Refusal, SECTOR_SIZE};
use blkmq_ublk::queues::Taken;
use blkmq_ublk::wire::{Descriptor, Op};

/// Bytes that every request counts for beside its data.
const OVERHEAD: usize = 256;
/// Times that the queues are looked at before messages are: a disk that completes each I/O in its push could be busy for ever.
const ROUNDS: usize = 8;

/// A request in flight.
#[derive(Debug)]
pub(super) struct Flight {
    tag: u32,
    work: Work,
    /// The place on the disk of the last I/O that began, in bytes.
    at: u64,
    /// Bytes that it counts for.
    bytes: usize,
}

/// The I/Os of a request.
#[derive(Debug)]
enum Work {
    Read,
    Write(usize),
    Flush,
    /// A range in steps.
    Steps(Steps),
}

impl Work {
    fn name(&self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write(_) => "write",
            Self::Flush => "flush",
            Self::Steps(steps) => steps.name(),
        }
    }
}

impl Serving {
    /// Takes requests from the kernel, carries them out as far as the disk does, and answers.
    pub(super) fn serve(&mut self) {
        for _ in 0..ROUNDS {
            self.go_on();
            // All of them: the kernel calls until its ring is empty.
            let queues = &mut self.queues;
            self.waiting.extend(std::iter::from_fn(|| queues.take()));
            let has_begun = self.begin_waiting();
            let has_reaped = self.has_ended() && self.reap();
            self.publish();
            if !has_begun && !has_reaped {
                return;
            }
        }
    }

    /// Returns whether another request may begin.
    pub(super) fn may_begin(&self) -> bool {
        self.bytes < self.shared.bounds.bytes && self.held.is_none()
    }

    /// Begins requests that wait, within bounds. Returns whether there was one.
    fn begin_waiting(&mut self) -> bool {
        let mut has_begun = false;
        while self.may_begin()
            && let Some(Taken { tag, request }) = self.waiting.pop_front()
        {
            has_begun = true;
            self.begin(tag, request);
        }
        has_begun
    }

    /// Begins a request, or answers it.
    fn begin(&mut self, tag: u32, request: Descriptor) {
        let export = &*self.seat;
        let sector = u64::from(SECTOR_SIZE);
        let len = u64::from(request.sectors) * sector;
        let Some(at) = check(request, len, self.buffers.portion(), export) else {
            return self.answer(tag, Err(IoError::IO), 0);
        };
        let at = export.start + at;
        let fua = request.fua || self.through;
        let add = |work, bytes| Flight { tag, work, at, bytes };
        match request.op {
            Op::Flush => self.begin_io(add(Work::Flush, OVERHEAD), Io::flush()),
            Op::Read => {
                let len = len as usize;
                let buffer = self.buffers.cleared(len, export.clears);
                self.begin_io(add(Work::Read, OVERHEAD + len), Io::read(Bytes(at), buffer));
            }
            Op::Write => {
                let len = len as usize;
                let mut buffer = self.buffers.take(len);
                let Some(data) = self.queues.data(tag, len) else {
                    return self.answer(tag, Err(IoError::IO), 0);
                };
                buffer.as_mut_slice().copy_from_slice(data);
                let io = Io::write(Bytes(at), buffer);
                let io = if fua { io.fua() } else { io };
                self.begin_io(add(Work::Write(len), OVERHEAD + len), io);
            }
            Op::Discard => {
                let steps = Steps::trim(at..at + len, export.discard, false);
                self.begin_unfinished(add(Work::Steps(steps), OVERHEAD));
            }
            Op::WriteZeroes { no_hole } => {
                let portion = self.buffers.portion();
                let can = export.zeroes > 0 && (export.zeroing.keeps_room || !no_hole);
                let steps = if can {
                    let zeroes = Zeroes { no_hole, otherwise: Some(portion) };
                    Steps::zero(at..at + len, export.zeroes, fua, zeroes)
                } else {
                    Steps::fill(at..at + len, portion, fua)
                };
                self.begin_unfinished(add(Work::Steps(steps), OVERHEAD));
            }
            Op::Other(_) => self.answer(tag, Err(IoError::NOT_SUPPORTED), 0),
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

    /// Pushes an I/O that has waited for credit, and begins steps of unfinished requests, the oldest first.
    fn go_on(&mut self) {
        if let Some((cookie, io)) = self.held.take() {
            self.push(cookie, io);
        }
        while self.held.is_none() {
            let Some(place) = self.unfinished.pop_front() else { return };
            let clears = self.seat.clears;
            let Self { flights, buffers, turn, .. } = self;
            let flight = flights.get_mut(place);
            // The next step begins when this one has ended.
            let Work::Steps(steps) = &mut flight.work else { continue };
            let io = steps.begin(*turn, |len| buffers.cleared(len, clears));
            flight.at = io.sector * u64::from(SECTOR_SIZE);
            self.push(Cookie { place, portion: 0 }, io);
        }
    }

    /// Pushes an I/O. Without credit it waits, and so does every request behind it.
    fn push(&mut self, cookie: Cookie, io: Io<AlignedBuf>) {
        let export = &*self.seat;
        let io = io.cookie(cookie.into()).owner(Owner(export.number)).group(export.group.id());
        if let Err(refused) = self.disk_client.client.line_up(io.ioprio(export.ioprio)) {
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
        ended.drain(..).for_each(|(cookie, result, payload)| self.end_io(cookie, result, payload));
        // A request that began in between may have been refused.
        ended.append(&mut self.ended);
        self.ended = ended;
        has_some
    }

    /// An I/O has ended: the next step of its request, or the answer.
    fn end_io(&mut self, cookie: Cookie, mut result: IoResult, payload: AlignedBuf) {
        let Cookie { place, .. } = cookie;
        let flight = self.flights.get_mut(place);
        let mut goes_on = false;
        if let Work::Steps(steps) = &mut flight.work {
            if result == Err(IoError::NOT_SUPPORTED) && steps.falls_back() {
                result = Ok(());
            }
            goes_on = result.is_ok() && !steps.is_over();
            if goes_on {
                steps.end(self.turn);
                self.unfinished.push_back(place);
            }
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
    fn finish(&mut self, place: u32, mut result: IoResult, mut payload: AlignedBuf) {
        let Flight { tag, work, bytes, .. } = self.flights.remove(place);
        self.bytes -= bytes;
        let mut len = 0;
        if result.is_ok() {
            match work {
                Work::Read => match self.queues.data(tag, payload.len()) {
                    Some(data) => {
                        data.copy_from_slice(payload.as_mut_slice());
                        len = payload.len();
                        self.totals.read += len as u64;
                    }
                    None => result = Err(IoError::IO),
                },
                Work::Write(written) => {
                    len = written;
                    self.totals.written += len as u64;
                }
                Work::Flush | Work::Steps(_) => {}
            }
        }
        self.totals.requests += 1;
        self.answer(tag, result, len);
    }

    /// Answers a request, with the bytes of a read or write. The kernel gets the answer when answers are published.
    fn answer(&mut self, tag: u32, result: IoResult, len: usize) {
        let result = match result {
            Ok(()) => len as i32,
            Err(error) => -i32::from(error.0),
        };
        self.queues.answer(tag, result);
    }

    /// Gives the kernel the answers.
    fn publish(&mut self) {
        if let Err(error) = self.queues.submit() {
            let export = &self.export;
            // They are given again in the next turn.
            self.faults.log(self.clock.now(), |before| {
                tracing::warn!(before, export, "the kernel takes no answers: {error}");
            });
        }
    }
}

/// Checks a request of `len` bytes against the export. Returns its first byte there; `None` if it is impossible.
fn check(request: Descriptor, len: u64, portion: usize, export: &Served) -> Option<u64> {
    let most = match request.op {
        Op::Flush | Op::Other(_) => return Some(0),
        Op::Discard if export.discard == 0 => return None,
        Op::Read | Op::Write => portion as u64,
        Op::Discard | Op::WriteZeroes { .. } => u64::MAX,
    };
    let at = request.sector.checked_mul(SECTOR_SIZE.into())?;
    let is_forbidden = request.op != Op::Read && export.is_read_only();
    let is_inside = at.checked_add(len).is_some_and(|end| end <= export.bytes());
    ((1..=most).contains(&len) && is_inside && !is_forbidden).then_some(at)
}
