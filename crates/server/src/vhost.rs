//! Exports as disks of virtual machines: vhost-user-blk, with a thread for each.
//!
//! A [`VhostUser`](crate::VhostUser) presents an export of the server on a separate socket, to one front end at a time,
//! with the same disk, group, promises and counts as for its NBD clients. The thread owns the rings of all queues of
//! the guest and a client of the disk. In a turn it takes requests from the rings, pushes their I/Os as one plug, reaps
//! the completed I/Os, and answers with at most one notification for each queue.
//!
//! [`Backend`] is the thread: its turns, connections and drains, and the conversion of requests to I/Os and of
//! completions to answers. [`Front`] is a connection: its messages, and the memory and rings that they set up. The data
//! of a request is copied between the guest's memory and the buffers of the disk.

use crate::allow::Identity;
use crate::carrier::{
    Carrier, DISK, EVENTS, Finished, INBOX, LOOKS, ROUNDS, SOON, TICK, check_queues,
};
use crate::clients::{Listed, Totals};
use crate::export::{Cache, Seat, Served, VhostUser};
use crate::flight::Work;
use crate::listener::{Rights, listen_on};
use crate::log::{Rarely, Reason};
use crate::stream::{local_identity, local_peer};
use crate::threads::{Inbox, Load, Message, Sleeper};
use crate::worker::Shared;
use blkmq::{Instant, IoError, Nanos};
use blkmq_vhost::config::DiskConfig;
use blkmq_vhost::message::{ReceiveError, Receiver, send};
use blkmq_vhost::request::{self, Request, Status};
use blkmq_vhost::ring::{Chain, Ring, RingError};
use blkmq_vhost::session::{Answer, Next, Session};
use rustix::event::epoll;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;

/// The numbers of events, besides those of the carrier.
const LISTENER: u64 = 2;
const SOCKET: u64 = 3;
/// The event number of a queue's kicks is this plus the number of the queue.
const KICKS: u64 = 16;

/// The thread's state.
pub(crate) struct Backend {
    settings: VhostUser,
    carrier: Carrier<To>,
    listener: UnixListener,
    front: Option<Front>,
    /// Unused chains, kept for their memory.
    chains: Vec<Chain>,
    /// The time at which the drain of the server began.
    draining: Option<Instant>,
    stopped: bool,
    refused: Rarely,
}

impl Backend {
    /// Listens for front ends of the export named `export` on a disk, on a socket with these permissions.
    ///
    /// # Errors
    /// If the socket's path is in use or not permitted, or the disk was not started for another thread.
    pub(crate) fn new(
        of: (&str, usize),
        settings: VhostUser,
        rights: &Rights,
        shared: Arc<Shared>,
        inbox: Arc<Inbox>,
    ) -> io::Result<Self> {
        check_queues(settings.queues)?;
        let client = shared.disks[of.1].service().client().map_err(io::Error::other)?;
        let carrier = Carrier::new(of, client, shared, inbox)?;
        let listener = listen_on(&settings.path, rights)?;
        listener.set_nonblocking(true)?;
        carrier.sleeper.watch(&listener, LISTENER)?;
        Ok(Self {
            settings,
            carrier,
            listener,
            front: None,
            chains: Vec::new(),
            draining: None,
            stopped: false,
            refused: Rarely::default(),
        })
    }

    /// Serves until it is asked to stop, or has drained.
    ///
    /// # Errors
    /// If the kernel refuses to wait.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        while !self.is_done() {
            for _ in 0..LOOKS {
                if !self.look() {
                    break;
                }
                self.serve();
            }
            let most = self.sleep_for();
            self.carrier.sleep(most, &mut events)?;
            self.take_turn(&mut events);
        }
        Ok(())
    }

    /// Polls briefly for requests and completions, if that pays: a driver that need not kick saves a VM exit. Returns
    /// whether there is one.
    fn look(&mut self) -> bool {
        if !self.may_take() || self.front.as_ref().is_some_and(|front| front.drain.is_some()) {
            return false;
        }
        let mut spin = std::mem::take(&mut self.carrier.spin);
        let found = spin.poll(self.carrier.clock, || {
            let has_request = self.front.as_mut().is_some_and(Front::has_request);
            let is_due = has_request || self.carrier.has_ended() && self.reap();
            is_due.then(|| ((), Load::of(self.carrier.len())))
        });
        self.carrier.spin = spin;
        found.is_some()
    }

    /// The maximum sleep before the next turn; zero while a ring has a request to take, or a request has a step to
    /// begin.
    fn sleep_for(&mut self) -> Nanos {
        if self.carrier.is_due() {
            return Nanos::ZERO;
        }
        if self.may_take()
            && let Some(front) = &mut self.front
            && front.arm()
        {
            return Nanos::ZERO;
        }
        if self.draining.is_some() { SOON } else { TICK }
    }

    fn take_turn(&mut self, events: &mut Vec<epoll::Event>) {
        self.carrier.next_turn();
        for event in events.drain(..) {
            match event.data.u64() {
                INBOX => self.read_inbox(),
                DISK => self.carrier.disk_client.is_called = true,
                LISTENER => self.accept(),
                SOCKET => self.hear(),
                kick => self.front.iter().for_each(|front| front.kicked((kick - KICKS) as usize)),
            }
        }
        self.follow_size();
        self.serve();
        self.end_drain();
        self.end_connection();
    }

    /// Updates the size of the machine's disk to that of the export. QEMU ignores messages about the size until its
    /// queues run.
    fn follow_size(&mut self) {
        let Some(front) = &mut self.front else { return };
        let (before, bytes) = (front.session.disk().bytes, front.seat.bytes());
        if before == bytes && (front.is_told || front.totals.requests == 0) {
            return;
        }
        front.is_told = true;
        let export = &self.carrier.name;
        if let Err(error) = front.session.resize(bytes) {
            tracing::warn!(export, bytes, "a machine cannot be notified of its size: {error}");
        } else if before != bytes {
            tracing::info!(export, before, bytes, "a machine's disk has another size");
        }
    }

    fn read_inbox(&mut self) {
        for message in self.carrier.inbox.take() {
            match message {
                // Only workers get connections.
                Message::Connection(..) => {}
                Message::Drain | Message::HandOver => {
                    self.draining = self.draining.or(Some(self.carrier.clock.now()));
                }
                Message::Stop => self.stopped = true,
            }
        }
    }

    fn is_done(&self) -> bool {
        let Some(since) = self.draining else { return self.stopped };
        let is_late = self.carrier.clock.now() >= since + self.carrier.shared.bounds.drain;
        if is_late && self.carrier.len() > 0 {
            let (export, requests) = (&self.carrier.name, self.carrier.len());
            tracing::warn!(export, requests, "a drain takes too long and is given up");
        }
        self.stopped || is_late || self.carrier.len() == 0
    }

    /// Returns whether requests may be taken from the rings.
    fn may_take(&self) -> bool {
        let bounds = &self.carrier.shared.bounds;
        let has_room = self.carrier.has_room(bounds.bytes);
        has_room && self.draining.is_none() && self.front.as_ref().is_some_and(|it| !it.is_over)
    }

    /// Accepts a front end, unless one is connected. The next one waits until it has gone.
    fn accept(&mut self) {
        let socket = match self.listener.accept() {
            Ok((socket, _)) => socket,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => {
                self.refuse(&error.to_string());
                return;
            }
        };
        let identity = local_identity(&socket);
        let exports = self.carrier.shared.exports.now();
        if exports.get(&self.carrier.name).is_some_and(|export| !export.allow.allows(&identity)) {
            self.turn_away(&identity, Reason::Export);
            return;
        }
        let most = self.carrier.shared.bounds.connections_per_export;
        let seat = exports.get(&self.carrier.name).and_then(|export| Seat::take(export, most));
        let Some(seat) =
            seat.filter(|seat| seat.disk == self.carrier.disk && self.draining.is_none())
        else {
            self.refuse("the export is gone, or has too many connections");
            return;
        };
        let watched = socket
            .set_nonblocking(true)
            .and_then(|()| self.carrier.sleeper.watch(&socket, SOCKET))
            .and_then(|()| self.carrier.sleeper.forget(&self.listener));
        if let Err(error) = watched {
            self.refuse(&error.to_string());
            return;
        }
        let of = identity.to_string();
        tracing::info!(identity = of, export = self.carrier.name, "a front end connects");
        let peer = local_peer(&socket).map_or_else(|| "unknown".to_owned(), |it| it.to_string());
        let listed =
            self.carrier.shared.clients.list(format!("machine of {peer}"), of, &self.carrier.name);
        self.front = Some(Front::new(socket, seat, (identity, listed), &self.settings));
    }

    /// Logs that the user of a front end may not use the export.
    fn turn_away(&self, identity: &Identity, reason: Reason) {
        let (identity, export) = (identity.to_string(), &self.carrier.name);
        self.carrier.shared.refusals.add(reason, |before| {
            let why = "a front end that may not use the export is closed";
            tracing::warn!(before, identity, export, "{why}");
        });
    }

    fn refuse(&mut self, why: &str) {
        let export = &self.carrier.name;
        self.refused.log(self.carrier.clock.now(), |before| {
            tracing::warn!(before, export, "a front end cannot be accepted: {why}");
        });
    }

    /// Handles the messages that have arrived.
    fn hear(&mut self) {
        let Some(front) = &mut self.front else { return };
        let heard = front.hear(self.carrier.clock.now(), &self.carrier.sleeper, KICKS);
        if let Err(why) = heard {
            front.is_over = true;
            if let Some(why) = why {
                self.carrier.fault(|before, export| {
                    tracing::warn!(before, export, "a front end is disconnected: {why}");
                });
            }
        }
        if front.drain.is_some() && self.carrier.sleeper.forget(&front.socket).is_err() {
            front.is_over = true;
        }
    }

    /// Answers the message that waits for a drain, once its requests have finished.
    fn end_drain(&mut self) {
        let Some(front) = self.front.as_mut().filter(|front| !front.is_over) else { return };
        let Some(drain) = front.drain else { return };
        if !front.has_drained(drain) {
            return;
        }
        let ended = front.end_drain(drain, &self.carrier.sleeper, KICKS);
        let goes_on = ended.and_then(|()| self.carrier.sleeper.watch(&front.socket, SOCKET));
        if goes_on.is_err() {
            front.is_over = true;
        }
    }

    /// Drops a finished connection once its requests have completed: their I/Os must not overtake those of the next
    /// connection.
    fn end_connection(&mut self) {
        let Some(front) = &mut self.front else { return };
        if !front.is_over && !front.is_allowed() {
            front.is_over = true;
            let identity = front.identity.clone();
            self.turn_away(&identity, Reason::Revoked);
        }
        let Some(front) = &mut self.front else { return };
        if let Some(number) = front.shall_end().filter(|_| !front.is_over) {
            front.is_over = true;
            let (identity, export) = (front.identity.to_string(), &self.carrier.name);
            tracing::info!(number, identity, export, "a front end ends as an operator wants");
        }
        front.is_over |= front.seat.is_withdrawn();
        if !front.is_over && front.session.memory().is_broken() {
            front.is_over = true;
            self.carrier.fault(|before, export| {
                let why = "memory that it shared is gone";
                tracing::warn!(before, export, "a front end is disconnected: {why}");
            });
        }
        if !front.is_over {
            return;
        }
        self.give_up();
        if self.carrier.len() > 0 {
            // A closed socket is a permanent event, which would keep the thread awake until the requests have finished.
            if let Some(front) = &self.front {
                // During a drain the socket is not watched.
                let _ = self.carrier.sleeper.forget(&front.socket);
            }
            return;
        }
        if let Some(front) = self.front.take() {
            front.end(&self.carrier.sleeper, &self.carrier.name);
        }
        if let Err(error) = self.carrier.sleeper.watch(&self.listener, LISTENER) {
            tracing::error!(export = self.carrier.name, "no front end can connect: {error}");
            self.stopped = true;
        }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        let path: &PathBuf = &self.settings.path;
        // The file may have been removed already.
        let _ = std::fs::remove_file(path);
    }
}

/// The maximum length of a read or write. The Linux driver requests at most a few MiB.
const LONGEST: u64 = 32 << 20;
/// The maximum number of requests taken from a ring before the next ring is served.
const IN_A_ROW: usize = 32;

/// The queue of a request, and its descriptor chain.
type To = (usize, Chain);

impl Backend {
    /// Takes requests from the rings, performs them as far as the disk permits, and answers.
    fn serve(&mut self) {
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
        self.carrier.fault(|before, export| {
            tracing::warn!(before, export, queue, "a ring is stopped: {error}");
        });
        if let Some(front) = &mut self.front {
            front.break_off(queue, &self.carrier.sleeper);
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
    fn reap(&mut self) -> bool {
        let mut finished = std::mem::take(&mut self.carrier.finished);
        let has_some = self.carrier.reap(&mut finished);
        finished.drain(..).for_each(|done| self.finish(done));
        self.carrier.finished = finished;
        has_some
    }

    /// Handles the completion of all I/Os of a request.
    fn finish(&mut self, mut done: Finished<To>) {
        self.carrier.tell_of(&done);
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
            (Ok(()), Work::Long(mut long)) if long.is_read() => {
                long.payloads.iter_mut().all(|payload| copy(payload.as_mut_slice()))
            }
            (Ok(()), Work::Write(len)) => {
                front.totals.written += u64::from(len);
                true
            }
            (Ok(()), Work::Long(long)) => {
                front.totals.written += u64::from(long.length);
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
    fn give_up(&mut self) {
        let mut finished = std::mem::take(&mut self.carrier.finished);
        self.carrier.give_up(&mut finished);
        finished.drain(..).for_each(|done| self.finish(done));
        self.carrier.finished = finished;
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

/// The maximum number of messages handled before the rings are served again.
const MESSAGES: usize = 32;
/// The maximum length in bytes of a discard or of zeroes that is announced. The disk gets it in steps.
const LONGEST_RANGE: u64 = 1 << 30;

/// The requests that must finish before a message is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Drain {
    Queue(usize),
    All,
}

struct Front {
    socket: UnixStream,
    receiver: Receiver,
    session: Session,
    seat: Seat,
    /// The process that connected.
    identity: Identity,
    /// Its entry in the list of clients.
    listed: Listed,
    /// The version of the export's rules under which it was admitted.
    rules: u32,
    /// The message that waits for a drain. The next message is not received before.
    drain: Option<Drain>,
    /// Whether the connection ends when its requests have finished. Their answers are dropped.
    is_over: bool,
    /// Requests in flight, by queue.
    in_flight: Vec<u32>,
    /// The kick descriptors being watched, by queue.
    kicks: Vec<Option<Arc<OwnedFd>>>,
    /// Whether the monitor has been notified of the size. A monitor that has reconnected may know the size from a
    /// previous server.
    is_told: bool,
    /// Limits the log lines about refused messages.
    refused: Rarely,
    totals: Totals,
}

impl Front {
    fn new(
        socket: UnixStream,
        seat: Seat,
        (identity, listed): (Identity, Listed),
        settings: &VhostUser,
    ) -> Self {
        let announced = |most: u64| if most > 0 { LONGEST_RANGE } else { 0 };
        let disk = DiskConfig {
            bytes: seat.bytes(),
            is_read_only: seat.is_read_only(),
            block: seat.info.blocks.min(),
            discard: announced(seat.discard),
            // If the disk lacks the operation, zeroed buffers are written.
            zeroes: LONGEST_RANGE,
            queues: settings.queues,
            name: seat.info.name.clone(),
        };
        let session = Session::new(disk, seat.cache == Cache::Writeback);
        let queues = usize::from(settings.queues);
        Self {
            socket,
            receiver: Receiver::default(),
            session,
            // Checked again in the first turn: the rules may have changed since the front end was admitted.
            rules: seat.allow.version().wrapping_sub(1),
            seat,
            identity,
            listed,
            drain: None,
            is_over: false,
            in_flight: vec![0; queues],
            kicks: vec![None; queues],
            is_told: false,
            refused: Rarely::default(),
            totals: Totals::default(),
        }
    }

    /// Handles messages that have arrived, until one must wait for a drain. The event numbers of kicks begin at
    /// `first`.
    ///
    /// # Errors
    /// If the connection has ended, with the reason unless the front end has closed it.
    fn hear(&mut self, now: Instant, sleeper: &Sleeper, first: u64) -> Result<(), Option<String>> {
        for _ in 0..MESSAGES {
            if self.drain.is_some() {
                break;
            }
            let received = match self.receiver.receive(&self.socket) {
                Ok(Some(received)) => received,
                Ok(None) => break,
                Err(ReceiveError::Io(error)) if is_end(&error) => return Err(None),
                Err(error) => return Err(Some(error.to_string())),
            };
            match self.session.handle(received) {
                Ok(Next::Go(answer)) => self.answer(answer)?,
                Ok(Next::Drain(queue)) => self.drain = Some(Drain::Queue(queue)),
                Ok(Next::DrainAll) => self.drain = Some(Drain::All),
                Err((error, Some(answer))) => {
                    let export = &self.seat.info.name;
                    self.refused.log(now, |before| {
                        tracing::warn!(before, export, "a message is refused: {error}");
                    });
                    self.answer(Some(answer))?;
                }
                Err((error, None)) => return Err(Some(error.to_string())),
            }
            self.follow_kicks(sleeper, first).map_err(|error| Some(error.to_string()))?;
        }
        Ok(())
    }

    fn answer(&mut self, answer: Option<Answer>) -> Result<(), Option<String>> {
        let Some(Answer { bytes, fd }) = answer else { return Ok(()) };
        let sent = send(&self.socket, &bytes, fd.as_ref().map(AsFd::as_fd));
        sent.map_err(|error| if is_end(&error) { None } else { Some(error.to_string()) })
    }

    /// Watches exactly the kicks of the running rings. The front end has their descriptors, too, so closing them here
    /// would not remove them from the epoll set.
    fn follow_kicks(&mut self, sleeper: &Sleeper, first: u64) -> io::Result<()> {
        for (number, (queue, watched)) in
            (first..).zip(self.session.queues().iter().zip(&mut self.kicks))
        {
            let kick = queue.kick();
            let is_watched = match (kick, &watched) {
                (Some(kick), Some(watched)) => Arc::ptr_eq(kick, watched),
                (kick, watched) => kick.is_none() && watched.is_none(),
            };
            if is_watched {
                continue;
            }
            if let Some(old) = watched.take() {
                sleeper.forget(&*old)?;
            }
            if let Some(kick) = kick {
                sleeper.watch(&**kick, number)?;
                *watched = Some(Arc::clone(kick));
            }
        }
        Ok(())
    }

    /// Consumes the kicks of a queue; its ring is polled in every turn.
    fn kicked(&self, queue: usize) {
        if let Some(Some(kick)) = self.kicks.get(queue) {
            // A descriptor that is not an eventfd is the front end's mistake, and only wakes this thread.
            let _ = rustix::io::read(&**kick, &mut [0; 8]);
        }
    }

    /// Returns whether a driver has a request.
    fn has_request(&mut self) -> bool {
        (0..self.in_flight.len()).any(|queue| {
            self.session.queue(queue).0.running().is_some_and(|ring| ring.has_request())
        })
    }

    /// Requests kicks from all drivers. Returns whether one of them already has a request.
    fn arm(&mut self) -> bool {
        let mut has_some = false;
        for queue in 0..self.in_flight.len() {
            has_some |= self.session.queue(queue).0.running().is_some_and(Ring::arm);
        }
        has_some
    }

    /// Returns whether the requests for which a message waits have finished.
    fn has_drained(&mut self, drain: Drain) -> bool {
        let queues = match drain {
            Drain::Queue(queue) => queue..queue + 1,
            Drain::All => 0..self.in_flight.len(),
        };
        let mut is_idle = |queue: usize| {
            self.in_flight[queue] == 0 && self.session.queue(queue).0.running().is_none()
        };
        queues.into_iter().all(&mut is_idle)
    }

    /// Answers the message that has waited.
    ///
    /// # Errors
    /// If the front end has disconnected.
    fn end_drain(&mut self, drain: Drain, sleeper: &Sleeper, first: u64) -> io::Result<()> {
        self.drain = None;
        let answer = match drain {
            Drain::Queue(queue) => Some(self.session.stop(queue)),
            Drain::All => self.session.reset(),
        };
        self.follow_kicks(sleeper, first)?;
        self.answer(answer).map_err(|_| ErrorKind::BrokenPipe.into())
    }

    /// Stops the ring of a queue, whose driver has broken a rule.
    fn break_off(&mut self, queue: usize, sleeper: &Sleeper) {
        self.session.queue(queue).0.break_off();
        if let Some(kick) = self.kicks[queue].take() {
            // The descriptor was being watched.
            let _ = sleeper.forget(&*kick);
        }
    }

    /// Returns whether the rules of its export, which a reload may have changed, admit it.
    fn is_allowed(&mut self) -> bool {
        let rules = self.seat.allow.version();
        if rules == self.rules {
            return true;
        }
        self.rules = rules;
        self.seat.allow.allows(&self.identity)
    }

    /// Updates its figures in the list of clients. Returns its number if an operator wants to close it.
    fn shall_end(&self) -> Option<u64> {
        let in_flight = self.in_flight.iter().map(|count| u64::from(*count)).sum();
        self.listed.look(self.totals, in_flight).then_some(self.listed.number)
    }

    /// Stops watching its descriptors, and logs the end.
    fn end(self, sleeper: &Sleeper, export: &str) {
        for kick in self.kicks.iter().flatten() {
            // The descriptor was being watched.
            let _ = sleeper.forget(&**kick);
        }
        let Totals { requests, read, written } = self.totals;
        let identity = self.identity.to_string();
        tracing::info!(identity, export, requests, read, written, "a front end disconnects");
    }
}

/// Returns whether the front end has closed the connection.
fn is_end(error: &io::Error) -> bool {
    use ErrorKind as K;
    matches!(error.kind(), K::UnexpectedEof | K::ConnectionReset | K::BrokenPipe)
}
