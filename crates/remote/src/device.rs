//! [`NbdDevice`]: an export of a server, and its hardware queues ([`NbdQueue`]), each with its own connection.

use crate::holes::Holes;
use crate::link::{self, Connection, Link};
use crate::options::{OpenError, Options, Uri};
use crate::place::Flight;
use crate::target::{Outages, Target};
use blkmq_buf::IoBuf;
use blkmq_core::{Extent, Instant, IoError, Nanos, Op, Tag};
use blkmq_engine::{
    BioTable, BlockDevice, Busy, DeviceQueue, DeviceQueues, DeviceShape, Enqueued, Expiry,
    Finished, Inflight,
};
use blkmq_nbd::client::Requests;
use blkmq_nbd::{HeaderStyle, TransmissionFlags};
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// An export of an NBD server.
///
/// Each hardware queue has its own connection, which is re-established when it is lost. The first queue takes over the
/// connection that opened the device; [`queues`](BlockDevice::queues) makes the others. `doc/nbd.md` describes the
/// parameters, and the guarantees if the server goes away.
#[derive(Clone, Debug)]
pub struct NbdDevice {
    target: Arc<Target>,
    holes: Arc<Holes>,
    options: Options,
    shape: DeviceShape,
    notes: Vec<String>,
}

impl NbdDevice {
    /// Opens the export that `text` describes: `URI[,KEY=VALUE]...`.
    ///
    /// # Errors
    /// See [`open`](Self::open); also if a word is not understood.
    pub fn parse(text: &str) -> Result<Self, OpenError> {
        let (uri, options) = Options::parse(text)?;
        Self::open(&uri, &options)
    }

    /// Connects to the server and negotiates the export. The first hardware queue takes over the connection. Blocks for
    /// the lookup of the host name, and for at most 10 seconds for each answer of the server.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses, or the export cannot be a device.
    pub fn open(uri: &Uri, options: &Options) -> Result<Self, OpenError> {
        if uri.tls && cfg!(not(feature = "tls")) {
            return Err(OpenError::NoTls);
        }
        let target = Target::find(uri)?;
        let (shape, notes) = link::shape_of(&target.agreed, options)?;
        let mut options = options.clone();
        options.readonly |= target.agreed.details.flags.contains(TransmissionFlags::READ_ONLY);
        Ok(Self { target: Arc::new(target), holes: Arc::default(), options, shape, notes })
    }

    /// The properties of the export that the engine needs.
    #[must_use]
    pub fn shape(&self) -> &DeviceShape {
        &self.shape
    }

    /// Returns deviations from the description, one sentence each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns whether the device is read-only, by the server or by the description.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.options.readonly
    }

    /// Returns whether the server writes zeroes faster than data.
    #[must_use]
    pub fn has_fast_zeroes(&self) -> bool {
        self.target.agreed.details.flags.contains(TransmissionFlags::SEND_FAST_ZERO)
    }

    /// The lost connections so far, over all queues of this device.
    #[must_use]
    pub fn outages(&self) -> Outages {
        self.target.outages.read()
    }

    /// The allocation of `range`, a range of bytes within the export, as at least one and at most `most` extents, which
    /// may end before the range. The first call makes a connection for all calls. Blocks until the server has answered,
    /// or has been silent for a second. The whole range is reported as stored if the server does not answer, or if it
    /// does not promise that writes on other connections are visible (multi-conn).
    #[must_use]
    pub fn extents(&self, range: Range<u64>, most: usize) -> Vec<Extent> {
        let stored = || vec![Extent { end: range.end, is_hole: false }];
        self.holes.find(&self.target, range.clone(), most).unwrap_or_else(stored)
    }

    /// Makes a connection for each hardware queue.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses, or no longer has the export as it was opened.
    pub fn queues<P: IoBuf>(&self) -> io::Result<DeviceQueues<P>> {
        let queue = |_| -> Result<Box<dyn DeviceQueue<P>>, OpenError> {
            let welcome = self.target.connect_queue()?;
            link::check_same(&self.target.agreed, &welcome.agreed)?;
            let style = welcome.agreed.style;
            let link = Link::new(Arc::clone(&self.target), welcome)?;
            Ok(Box::new(NbdQueue::new(link, style, &self.options)))
        };
        (0..self.shape.hw_queues).map(queue).collect::<Result<_, _>>().map_err(io::Error::other)
    }
}

impl<P: IoBuf> BlockDevice<P> for NbdDevice {
    fn shape(&self) -> DeviceShape {
        self.shape
    }

    fn queues(&self) -> io::Result<DeviceQueues<P>> {
        self.queues()
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// EROFS: the answer of a read-only device to every operation that would change it.
const READ_ONLY: IoError = IoError(30);

/// The time without an answer after which requests are no longer held back behind suspects.
const WAIT_FOR_SUSPECTS: Nanos = Nanos::from_millis(250);

/// One hardware queue of an export.
#[derive(Debug)]
pub struct NbdQueue {
    link: Link,
    flight: Flight,
    /// The form of headers of the present or the last connection.
    requests: Requests,
    readonly: bool,
    reconnect_delay: Nanos,
    /// Whether the server's silence ends the connection.
    has_timeout: bool,
    /// The time at which held requests are released, if there are any.
    widens_at: Instant,
    /// Requests that ended outside of `reap`.
    ended: Vec<Finished>,
}

impl NbdQueue {
    pub(crate) fn new(link: Link, style: HeaderStyle, options: &Options) -> Self {
        Self {
            link,
            flight: Flight::new(options.hw_queue_depth),
            requests: Requests::new(style),
            readonly: options.readonly,
            reconnect_delay: options.reconnect_delay,
            has_timeout: options.timeout.is_some(),
            widens_at: Instant::ZERO,
            ended: Vec::new(),
        }
    }

    /// Returns the time at which requests fail because the connection is down, or `None` while it is up.
    fn fails_at(&self) -> Option<Instant> {
        self.link.down_since().map(|since| since + self.reconnect_delay)
    }

    fn send(&mut self, now: Instant) {
        let Some(Connection { stream, output, .. }) = self.link.connection() else { return };
        let sent = output.send(stream, &mut self.flight, &mut self.ended);
        let watched = sent.and_then(|is_all| self.link.watch_room(!is_all));
        if let Err(error) = watched {
            self.lose(now, &error);
        }
    }

    /// Handles the loss of the connection and of the requests sent on it.
    fn lose(&mut self, now: Instant, why: &dyn fmt::Display) {
        if let Some(connection) = self.link.connection() {
            let is_inside = connection.stream.is_inside;
            let guilty = self.flight.lost(is_inside, &mut self.ended);
            self.link.give_up(guilty);
        }
        self.link.lose(now, why);
    }

    fn receive(&mut self, now: Instant, out: &mut Vec<Finished>) {
        let Some(Connection { stream, input, .. }) = self.link.connection() else { return };
        let before = out.len();
        let received = input.receive(stream, &mut self.flight, out);
        if out.len() > before {
            self.link.proven();
            self.widens_at = now + WAIT_FOR_SUSPECTS;
        }
        if let Err(lost) = received {
            self.lose(now, &lost);
        }
    }

    /// Sends all unanswered requests on a new connection.
    fn restart(&mut self, now: Instant) {
        if let Some(connection) = self.link.connection() {
            self.requests = Requests::new(connection.style);
        }
        self.flight.restart(self.requests);
        self.widens_at = now + WAIT_FOR_SUSPECTS;
        self.send(now);
    }
}

impl<P: IoBuf> DeviceQueue<P> for NbdQueue {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        if self.readonly && rq.op().is_write() && rq.op() != Op::Flush {
            return Enqueued::Done(rq, Err(READ_ONLY));
        }
        if self.fails_at().is_some_and(|at| at <= now) {
            return Enqueued::Done(rq, Err(IoError::IO));
        }
        let Some(at) = self.flight.vacant() else {
            // The queue is full, so a request will complete.
            return Enqueued::Busy(rq, Busy::DevResource);
        };
        let memory = &mut self.flight.place_mut(at).memory;
        if matches!(rq.op(), Op::Read | Op::Write) {
            if let Err((rq, error)) = memory.hold_data(bios, rq) {
                return Enqueued::Done(rq, Err(error));
            }
        } else {
            memory.hold(rq);
        }
        self.flight.take(at, self.requests);
        Enqueued::Accepted
    }

    fn commit(&mut self, now: Instant) {
        self.send(now);
    }

    fn reap(&mut self, now: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        if self.link.step(now) {
            self.restart(now);
        }
        self.receive(now, out);
        if self.flight.is_narrow() && self.widens_at <= now {
            self.flight.widen();
        }
        if !self.flight.unsent.is_empty() {
            self.send(now);
        }
        // A lost connection is retried immediately.
        if self.link.next_event().is_some_and(|at| at <= now) && self.link.step(now) {
            self.restart(now);
        }
        out.append(&mut self.ended);
        if self.fails_at().is_some_and(|at| at <= now) {
            self.flight.fail_all(IoError::IO, out);
        }
    }

    /// Gives up the connection after `timeout`, and sends the request again on the next one, as Linux's nbd does.
    fn timed_out(&mut self, now: Instant, tag: Tag) -> Expiry {
        debug_assert!(self.flight.has(tag), "the engine asks about what is here");
        if self.has_timeout && self.link.connection().is_some() {
            let guilty = self.flight.unanswered(tag, &mut self.ended);
            self.link.give_up(guilty);
            self.link.lose(now, &"a request had no answer within the timeout");
        }
        Expiry::ResetTimer
    }

    fn next_event(&self) -> Option<Instant> {
        let fails_at = self.fails_at().filter(|_| self.flight.count() > 0);
        let widens_at = Some(self.widens_at).filter(|_| self.flight.is_narrow());
        self.link.next_event().into_iter().chain(fails_at).chain(widens_at).min()
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.link.event_fd())
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.ended.drain(..).map(|finished| finished.rq));
        self.flight.abandon(out);
    }
}
