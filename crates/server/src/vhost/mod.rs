//! Exports as disks of virtual machines: vhost-user-blk, with a thread for each.
//!
//! A [`VhostUser`](crate::VhostUser) presents an export of the server on a separate socket, to one front end at a time,
//! with the same disk, group, promises and counts as for its NBD clients. The thread owns the rings of all queues of
//! the guest and a client of the disk. In a turn it takes requests from the rings, pushes their I/Os as one plug, reaps
//! the completed I/Os, and answers with at most one notification for each queue.
//!
//! | file | step |
//! |---|---|
//! | `mod.rs` | the thread: turns, connections, drains |
//! | `front.rs` | a connection: messages, and the memory and rings that they set up |
//! | `serve.rs` | converts requests to I/Os, completions to answers |
//!
//! The data of a request is copied between the guest's memory and the buffers of the disk.

mod front;
mod serve;

use crate::allow::Identity;
use crate::carrier::{Carrier, Finished};
use crate::export::Seat;
use crate::listener::{Rights, listen_on};
use crate::log::{Rarely, Reason};
use crate::machine::{MOST_QUEUES, VhostUser};
use crate::stream::{local_identity, local_peer};
use crate::threads::{Inbox, Message};
use crate::waiting::{DiskClient, Load, Sleeper, Spin};
use crate::worker::Shared;
use blkmq::{Clock, Instant, Nanos};
use blkmq_vhost::ring::Chain;
use front::Front;
use rustix::event::epoll;
use serve::To;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

/// The numbers of events.
const INBOX: u64 = 0;
const DISK: u64 = 1;
const LISTENER: u64 = 2;
const SOCKET: u64 = 3;
/// The event number of a queue's kicks is this plus the number of the queue.
const KICKS: u64 = 16;
/// The maximum number of events taken from the kernel at a time.
const EVENTS: usize = 16;
/// How often polling may find requests or completions before messages are checked.
const LOOKS: usize = 64;
/// The maximum sleep, and the interval for checking a drain, or whether an export has been removed.
const TICK: Nanos = Nanos::from_millis(1000);
const SOON: Nanos = Nanos::from_millis(50);

/// The thread's state.
pub(crate) struct Backend {
    /// The name of the export.
    export: String,
    settings: VhostUser,
    shared: Arc<Shared>,
    /// The index of the disk among those of the server.
    disk: usize,
    carrier: Carrier<To>,
    /// Finished requests. Empty between calls; keeps its capacity.
    finished: Vec<Finished<To>>,
    inbox: Arc<Inbox>,
    sleeper: Sleeper,
    clock: Clock,
    listener: UnixListener,
    front: Option<Front>,
    /// Unused chains, kept for their memory.
    chains: Vec<Chain>,
    /// The time at which the drain of the server began.
    draining: Option<Instant>,
    stopped: bool,
    /// Learns whether to poll before sleeping.
    spin: Spin,
    faults: Rarely,
    refused: Rarely,
}

impl Backend {
    /// Listens for front ends of the export named `export` on a disk, on a socket with these permissions.
    ///
    /// # Errors
    /// If the socket's path is in use or not permitted, or the disk was not started for another thread.
    pub(crate) fn new(
        (export, disk): (&str, usize),
        settings: VhostUser,
        rights: &Rights,
        shared: Arc<Shared>,
        inbox: Arc<Inbox>,
    ) -> io::Result<Self> {
        let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
        if settings.queues == 0 || settings.queues > MOST_QUEUES {
            let text = format!("{} queues; accepted: 1 to {MOST_QUEUES}", settings.queues);
            return Err(invalid(text));
        }
        let service = shared.disks[disk].service();
        let mut client = service.client().map_err(io::Error::other)?;
        let clock = Clock::start();
        let sleeper = Sleeper::without_looks(clock)?;
        sleeper.watch(&*inbox, INBOX)?;
        sleeper.watch(client.event_fd()?, DISK)?;
        let listener = listen_on(&settings.path, rights)?;
        listener.set_nonblocking(true)?;
        sleeper.watch(&listener, LISTENER)?;
        let carrier = Carrier::new(DiskClient::new(client), shared.bounds.bytes_per_turn);
        Ok(Self {
            export: export.to_owned(),
            settings,
            shared,
            disk,
            carrier,
            finished: Vec::new(),
            inbox,
            sleeper,
            clock,
            listener,
            front: None,
            chains: Vec::new(),
            draining: None,
            stopped: false,
            spin: Spin::default(),
            faults: Rarely::default(),
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
            let disks = std::slice::from_mut(&mut self.carrier.disk_client);
            self.sleeper.wait((DISK, disks), most, &mut events)?;
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
        let mut spin = std::mem::take(&mut self.spin);
        let found = spin.poll(self.clock, || {
            let has_request = self.front.as_mut().is_some_and(Front::has_request);
            let is_due = has_request || self.carrier.has_ended() && self.reap();
            is_due.then(|| ((), Load::of(self.carrier.len())))
        });
        self.spin = spin;
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
        let export = &self.export;
        if let Err(error) = front.session.resize(bytes) {
            tracing::warn!(export, bytes, "a machine cannot be notified of its size: {error}");
        } else if before != bytes {
            tracing::info!(export, before, bytes, "a machine's disk has another size");
        }
    }

    fn read_inbox(&mut self) {
        for message in self.inbox.take() {
            match message {
                // Only workers get connections.
                Message::Connection(..) => {}
                Message::Drain | Message::HandOver => {
                    self.draining = self.draining.or(Some(self.clock.now()));
                }
                Message::Stop => self.stopped = true,
            }
        }
    }

    fn is_done(&self) -> bool {
        let Some(since) = self.draining else { return self.stopped };
        let is_late = self.clock.now() >= since + self.shared.bounds.drain;
        if is_late && self.carrier.len() > 0 {
            let (export, requests) = (&self.export, self.carrier.len());
            tracing::warn!(export, requests, "a drain takes too long and is given up");
        }
        self.stopped || is_late || self.carrier.len() == 0
    }

    /// Returns whether requests may be taken from the rings.
    fn may_take(&self) -> bool {
        let bounds = &self.shared.bounds;
        let has_room = self.carrier.has_room(bounds.bytes);
        has_room && self.draining.is_none() && self.front.as_ref().is_some_and(|it| !it.is_over)
    }

    /// Accepts a front end, unless one is connected. The next one waits until it has gone.
    fn accept(&mut self) {
        let socket = match self.listener.accept() {
            Ok((socket, _)) => socket,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => {
                self.refuse(&error.to_string());
                return;
            }
        };
        let identity = local_identity(&socket);
        let exports = self.shared.exports.now();
        if exports.get(&self.export).is_some_and(|export| !export.allow.allows(&identity)) {
            self.turn_away(&identity, Reason::Export);
            return;
        }
        let most = self.shared.bounds.connections_per_export;
        let seat = exports.get(&self.export).and_then(|export| Seat::take(export, most));
        let Some(seat) = seat.filter(|seat| seat.disk == self.disk && self.draining.is_none())
        else {
            self.refuse("the export is gone, or has too many connections");
            return;
        };
        let watched = socket
            .set_nonblocking(true)
            .and_then(|()| self.sleeper.watch(&socket, SOCKET))
            .and_then(|()| self.sleeper.forget(&self.listener));
        if let Err(error) = watched {
            self.refuse(&error.to_string());
            return;
        }
        let of = identity.to_string();
        tracing::info!(identity = of, export = self.export, "a front end connects");
        let peer = local_peer(&socket).map_or_else(|| "unknown".to_owned(), |it| it.to_string());
        let listed = self.shared.clients.list(format!("machine of {peer}"), of, &self.export);
        self.front = Some(Front::new(socket, seat, (identity, listed), &self.settings));
    }

    /// Logs that the user of a front end may not use the export.
    fn turn_away(&self, identity: &Identity, reason: Reason) {
        let (identity, export) = (identity.to_string(), &self.export);
        self.shared.refusals.add(reason, |before| {
            let why = "a front end that may not use the export is closed";
            tracing::warn!(before, identity, export, "{why}");
        });
    }

    fn refuse(&mut self, why: &str) {
        let export = &self.export;
        self.refused.log(self.clock.now(), |before| {
            tracing::warn!(before, export, "a front end cannot be accepted: {why}");
        });
    }

    /// Handles the messages that have arrived.
    fn hear(&mut self) {
        let Some(front) = &mut self.front else { return };
        let heard = front.hear(self.clock.now(), &self.sleeper, KICKS);
        if let Err(why) = heard {
            front.is_over = true;
            if let Some(why) = why {
                let export = &self.export;
                self.faults.log(self.clock.now(), |before| {
                    tracing::warn!(before, export, "a front end is disconnected: {why}");
                });
            }
        }
        if front.drain.is_some() && self.sleeper.forget(front.socket()).is_err() {
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
        let ended = front.end_drain(drain, &self.sleeper, KICKS);
        let goes_on = ended.and_then(|()| self.sleeper.watch(front.socket(), SOCKET));
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
            let (identity, export) = (front.identity.to_string(), &self.export);
            tracing::info!(number, identity, export, "a front end ends as an operator wants");
        }
        front.is_over |= front.is_withdrawn();
        if !front.is_over && front.session.memory().is_broken() {
            front.is_over = true;
            let export = &self.export;
            self.faults.log(self.clock.now(), |before| {
                tracing::warn!(
                    before,
                    export,
                    "a front end is disconnected: memory that it shared is gone"
                );
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
                let _ = self.sleeper.forget(front.socket());
            }
            return;
        }
        if let Some(front) = self.front.take() {
            front.end(&self.sleeper, &self.export);
        }
        if let Err(error) = self.sleeper.watch(&self.listener, LISTENER) {
            tracing::error!(export = self.export, "no front end can connect: {error}");
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
