//! Converts requests to I/Os, and completions to answers.

use super::Backend;
use crate::carrier::Finished;
use crate::export::{Cache, Served};
use crate::flight::Work;
use blkmq::IoError;
use blkmq_vhost::request;
use blkmq_vhost::request::{Request, Status};
use blkmq_vhost::ring::{Chain, Ring, RingError};

/// The maximum length of a read or write. The Linux driver requests at most a few MiB.
const LONGEST: u64 = 32 << 20;
/// The maximum number of requests taken from a ring before the next ring is served.
const IN_A_ROW: usize = 32;
/// How often the rings are polled before messages are: a disk that completes each I/O within its push could be busy for
/// ever.
const ROUNDS: usize = 8;

/// The queue of a request, and its descriptor chain.
pub(super) type To = (usize, Chain);

impl Backend {
    /// Takes requests from the rings, performs them as far as the disk permits, and answers.
    pub(super) fn serve(&mut self) {
        for _ in 0..ROUNDS {
            if let Some(front) = &self.front {
                self.carrier.go_on(&front.seat);
            }
            let mut has_taken = false;
            for queue in 0..usize::from(self.settings.queues) {
                has_taken |= self.take_requests(queue);
            }
            let has_reaped = self.carrier.has_ended() && self.reap();
            self.publish();
            if !has_taken && !has_reaped {
                return;
            }
        }
    }

    /// Takes requests from the ring of `queue`, within limits. Returns whether there was one.
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
                        Err(status) => self.answer((queue, chain), status, 0),
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
        let Self { front: Some(front), carrier, settings, .. } = self else { return };
        let export = &*front.seat;
        let fua = !front.session.is_writeback() || export.cache == Cache::Writethrough;
        if let Err(status) = check(request, export) {
            return self.answer((queue, chain), status, 0);
        }
        let of = ((queue, chain), settings.guest_ioprio.apply(ioprio, export.ioprio));
        match request {
            Request::GetId => {
                let (to, id) = (of.0, front.session.disk().id());
                let is_written = to.1.write(front.session.memory(), 0, &id);
                let status = if is_written { Status::Ok } else { Status::IoError };
                self.answer(to, status, id.len() as u64);
            }
            Request::Flush => carrier.flush(of, export),
            Request::Read { at, len } => carrier.read(of, export, (at, len as u32)),
            Request::Write { at, len } => {
                let memory = front.session.memory();
                let fill = |(_, chain): &To, data: &mut [u8], from: usize| {
                    chain.read(memory, (request::HEADER + from) as u64, data)
                };
                if let Err(to) = carrier.write(of, export, (at, len as u32, fua), fill) {
                    self.answer(to, Status::IoError, 0);
                }
            }
            Request::Discard { at, len } => carrier.discard(of, export, at..at + len),
            Request::WriteZeroes { at, len, no_hole } => {
                carrier.zero(of, export, (at..at + len, no_hole, fua));
            }
        }
    }

    /// Flushes the plug and reaps completions. Returns whether there were any.
    pub(super) fn reap(&mut self) -> bool {
        let mut finished = std::mem::take(&mut self.finished);
        let has_some = self.carrier.reap(&mut finished);
        finished.drain(..).for_each(|done| self.finish(done));
        self.finished = finished;
        has_some
    }

    /// Handles the completion of all I/Os of a request.
    fn finish(&mut self, mut done: Finished<To>) {
        if let Some((what, error)) = done.failure() {
            self.shared.disks[self.disk].failed(&self.export, what, error);
        }
        let Some(front) = &mut self.front else { return };
        let (queue, chain) = done.to;
        if front.is_over {
            front.in_flight[queue] -= 1;
            return self.chains.push(chain);
        }
        let mut written = 0;
        let mut copy = |data: &mut [u8]| {
            let is_copied = chain.write(front.session.memory(), written, data);
            written += data.len() as u64;
            is_copied
        };
        let is_copied = match (done.result, done.work) {
            (Err(_), _) => true,
            (Ok(()), Work::Read(_)) => copy(done.payload.as_mut_slice()),
            (Ok(()), Work::Long(long)) if long.is_read() => {
                long.into_payloads().iter_mut().all(|payload| copy(payload.as_mut_slice()))
            }
            (Ok(()), Work::Write(len)) => {
                front.totals.written += u64::from(len);
                true
            }
            (Ok(()), Work::Long(long)) => {
                front.totals.written += u64::from(long.length());
                true
            }
            (Ok(()), Work::Plain | Work::Steps(_)) => true,
        };
        front.totals.requests += 1;
        front.totals.read += written;
        let status = match done.result {
            Ok(()) if is_copied => Status::Ok,
            Err(IoError::NOT_SUPPORTED) => Status::Unsupported,
            _ => Status::IoError,
        };
        self.answer((queue, chain), status, written);
    }

    /// Answers a request. The driver sees it when the ring is published.
    fn answer(&mut self, (queue, chain): To, status: Status, data: u64) {
        let Some(front) = &mut self.front else { return };
        front.in_flight[queue] -= 1;
        let (of_front, memory) = front.session.queue(queue);
        if let Some(ring) = of_front.ring() {
            ring.give(chain.head(), request::answer(&chain, memory, status, data));
        }
        self.chains.push(chain);
    }

    /// Makes answers visible to the drivers, and notifies those that wait.
    fn publish(&mut self) {
        let Some(front) = self.front.as_mut().filter(|front| !front.is_over) else { return };
        for queue in 0..front.in_flight.len() {
            let of_front = front.session.queue(queue).0;
            if of_front.ring().is_some_and(Ring::publish) {
                of_front.notify();
            }
        }
    }

    /// Gives up the requests of a finished connection that have not begun.
    pub(super) fn give_up(&mut self) {
        let mut finished = std::mem::take(&mut self.finished);
        self.carrier.give_up(&mut finished);
        finished.drain(..).for_each(|done| self.finish(done));
        self.finished = finished;
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
