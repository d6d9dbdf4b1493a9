//! [`Session`]: the connection of a front end, and the state built from its messages.
//!
//! Front ends differ in the order of their messages, so any order is accepted. A ring starts when its addresses, size
//! and kick descriptor are known, and is served while it is enabled. The caller serves the rings and knows when a queue
//! has drained.

use crate::config::{DiskConfig, WRITEBACK, protocol, virtio};
use crate::inflight::Records;
use crate::memory::{MOST_REGIONS, Memory, MemoryError};
use crate::message::{
    self, InflightInfo, MOST_CONFIG, Message, MessageError, Received, RingAddress, send,
};
use crate::ring::{MOST_SIZE, Ring, RingError};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The protocol features that a session offers.
const PROTOCOL: u64 = protocol::MQ
    | protocol::REPLY_ACK
    | protocol::BACKEND_REQ
    | protocol::CONFIG
    | protocol::INFLIGHT_SHMFD
    | protocol::RESET_DEVICE
    | protocol::CONFIGURE_MEM_SLOTS;

/// The reason why a message was refused.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The message is malformed.
    #[error("{0}")]
    Message(#[from] MessageError),
    /// The memory is invalid.
    #[error("{0}")]
    Memory(#[from] MemoryError),
    /// The ring with this index is invalid.
    #[error("ring {0}: {1}")]
    Ring(usize, RingError),
    /// The queue does not exist; holds its index and the number of queues.
    #[error("there is no queue {0}; accepted: 0 to {1}")]
    Queue(usize, usize),
    /// The features were not offered.
    #[error("features {0:#x} were not offered")]
    Features(u64),
    /// The message came with the wrong number of descriptors.
    #[error("a message with {got} descriptors that needs {wanted}")]
    Descriptors {
        /// The number received.
        got: usize,
        /// The number required.
        wanted: usize,
    },
    /// The number is invalid for a ring.
    #[error("{0} is impossible for a ring")]
    Number(u32),
    /// The guest may not write this part of the configuration.
    #[error("the guest may write byte {WRITEBACK} of the configuration alone, and 0 or 1")]
    Config,
    /// The ring lacks a kick descriptor: rings are not polled.
    #[error("a ring without a descriptor for kicks is not served")]
    NoKick,
    /// The record of requests in flight has more queues than the disk may have.
    #[error("records for {0} queues; accepted: 1 to {1}")]
    Records(u16, usize),
    /// The memory for requests in flight was refused.
    #[error("the record of requests in flight: {0}")]
    Inflight(io::Error),
}

/// The answer to a message.
#[derive(Debug)]
pub struct Answer {
    /// The encoded message.
    pub bytes: Vec<u8>,
    /// The descriptor sent with it.
    pub fd: Option<OwnedFd>,
}

impl From<Vec<u8>> for Answer {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, fd: None }
    }
}

/// The caller's next step after a message.
#[derive(Debug)]
pub enum Next {
    /// Send the answer, if there is one, and receive the next message.
    Go(Option<Answer>),
    /// Let the requests of this queue finish, and then call [`Session::stop`].
    Drain(usize),
    /// Let the requests of all queues finish, and then call [`Session::reset`].
    DrainAll,
}

/// A queue of the disk.
#[derive(Debug, Default)]
pub struct Queue {
    size: u32,
    address: Option<RingAddress>,
    base: u16,
    kick: Option<Arc<OwnedFd>>,
    call: Option<OwnedFd>,
    error: Option<OwnedFd>,
    is_enabled: bool,
    /// Whether the queue takes no more requests, and waits for those in flight.
    is_draining: bool,
    ring: Option<Ring>,
}

impl Queue {
    /// The ring while requests may be taken from it. While it drains, it still yields requests that a previous back end
    /// left in flight: only the record knows them, since they precede the ring's index.
    pub fn running(&mut self) -> Option<&mut Ring> {
        let (is_enabled, is_draining) = (self.is_enabled, self.is_draining);
        self.ring.as_mut().filter(|it| if is_draining { it.owes() } else { is_enabled })
    }

    /// The ring, to answer requests taken from it.
    pub fn ring(&mut self) -> Option<&mut Ring> {
        self.ring.as_mut()
    }

    /// The descriptor by which the driver announces requests, if there is a ring.
    #[must_use]
    pub fn kick(&self) -> Option<&Arc<OwnedFd>> {
        self.kick.as_ref().filter(|_| self.ring.is_some())
    }

    /// Notifies the driver of answers. A driver without a call descriptor polls.
    pub fn notify(&self) {
        signal(self.call.as_ref());
    }

    /// Stops a ring whose driver has broken a rule, and notifies the front end.
    pub fn break_off(&mut self) {
        self.ring = None;
        signal(self.error.as_ref());
    }
}

fn signal(event: Option<&OwnedFd>) {
    if let Some(event) = event {
        // A counter at its maximum wakes the reader as well.
        let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
    }
}

/// A connection of a front end.
#[derive(Debug)]
pub struct Session {
    disk: DiskConfig,
    features: u64,
    protocol: u64,
    memory: Memory,
    queues: Vec<Queue>,
    records: Option<Records>,
    /// The mode set by the guest, or else the disk's initial mode.
    is_writeback: bool,
    /// Always kept open: otherwise user-mode Linux gives up the device.
    to_front_end: Option<OwnedFd>,
    /// The message that waits for a drain, and whether it requests an acknowledgement.
    pending: Option<(u32, bool)>,
}

impl Session {
    /// Creates a session for `disk`, whose cache is initially in the mode `is_writeback`.
    #[must_use]
    pub fn new(disk: DiskConfig, is_writeback: bool) -> Self {
        let mut queues = Vec::new();
        queues.resize_with(disk.queues.into(), Queue::default);
        Self {
            disk,
            features: 0,
            protocol: 0,
            memory: Memory::default(),
            queues,
            records: None,
            is_writeback,
            to_front_end: None,
            pending: None,
        }
    }

    /// The description of the disk.
    #[must_use]
    pub fn disk(&self) -> &DiskConfig {
        &self.disk
    }

    /// A queue, and the memory that contains its requests.
    ///
    /// # Panics
    /// If the disk has no such queue.
    pub fn queue(&mut self, queue: usize) -> (&mut Queue, &Memory) {
        (&mut self.queues[queue], &self.memory)
    }

    /// The memory of the guest.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The queues.
    #[must_use]
    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }

    /// Returns whether writes are answered before they are durable. A guest without flushes has every write durable.
    #[must_use]
    pub fn is_writeback(&self) -> bool {
        self.is_writeback && self.features & virtio::FLUSH != 0
    }

    /// Returns whether the guest has negotiated all of `features`.
    #[must_use]
    pub fn has(&self, features: u64) -> bool {
        self.features & features == features
    }

    /// Handles a message.
    ///
    /// # Errors
    /// If the message is invalid. Includes the answer that reports the failure if the front end waits for one;
    /// otherwise the front end cannot know, and the connection must end.
    pub fn handle(&mut self, received: Received) -> Result<Next, (SessionError, Option<Answer>)> {
        let Received { header, payload, fds } = received;
        let message = Message::parse(header.request, &payload);
        let done =
            message.map_err(SessionError::from).and_then(|message| self.carry_out(message, fds));
        // User-mode Linux requests an answer even to the message that negotiates answers.
        let needs_reply = header.needs_reply && self.protocol & protocol::REPLY_ACK != 0;
        let acknowledge = |result: u64| {
            needs_reply.then(|| Answer::from(message::reply_number(header.request, result)))
        };
        match done {
            Ok(Next::Go(None)) => Ok(Next::Go(acknowledge(0))),
            Ok(next @ Next::Go(Some(_))) => Ok(next),
            Ok(next) => {
                self.pending = Some((header.request, needs_reply));
                Ok(next)
            }
            Err(error) => Err((error, acknowledge(1))),
        }
    }

    fn carry_out(&mut self, message: Message, fds: Vec<OwnedFd>) -> Result<Next, SessionError> {
        let number = |request, number| Answer::from(message::reply_number(request, number));
        let answer = match message {
            Message::GetFeatures => number(1, self.disk.features()),
            Message::GetProtocolFeatures => number(15, PROTOCOL),
            Message::GetQueueNum => number(17, self.queues.len() as u64),
            Message::GetMaxMemSlots => number(36, MOST_REGIONS as u64),
            Message::GetConfig { offset, size, flags } => self.config(offset, size, flags),
            Message::GetInflightFd(info) => self.make_records(info)?,
            Message::GetVringBase { queue } => {
                self.at(queue)?.is_draining = true;
                return Ok(Next::Drain(queue));
            }
            Message::ResetOwner | Message::ResetDevice => {
                self.queues.iter_mut().for_each(|queue| queue.is_draining = true);
                return Ok(Next::DrainAll);
            }
            other => {
                self.set(other, fds)?;
                return Ok(Next::Go(None));
            }
        };
        Ok(Next::Go(Some(answer)))
    }

    /// Handles a message that changes the state.
    fn set(&mut self, message: Message, fds: Vec<OwnedFd>) -> Result<(), SessionError> {
        match message {
            Message::SetFeatures(features) => {
                self.features = offered(features, self.disk.features())?;
                if features & virtio::PROTOCOL_FEATURES == 0 {
                    self.queues.iter_mut().for_each(|queue| queue.is_enabled = true);
                }
            }
            Message::SetProtocolFeatures(features) => self.protocol = offered(features, PROTOCOL)?,
            Message::SetMemTable(regions) => {
                let mut memory = Memory::default();
                exactly(&fds, regions.len())?;
                regions.into_iter().zip(&fds).try_for_each(|(it, file)| memory.add(it, file))?;
                self.memory = memory;
                self.find_rings()?;
            }
            Message::AddMemReg(region) => {
                exactly(&fds, 1)?;
                self.memory.add(region, &fds[0])?;
            }
            Message::RemMemReg(region) => {
                self.memory.remove(region)?;
                self.find_rings()?;
            }
            Message::SetVringNum { queue, num } => {
                if !num.is_power_of_two() || num > MOST_SIZE {
                    return Err(SessionError::Number(num));
                }
                self.at(queue)?.size = num;
            }
            Message::SetVringBase { queue, base } => {
                let base = u16::try_from(base).map_err(|_| SessionError::Number(base))?;
                self.at(queue)?.base = base;
            }
            Message::SetVringAddr { queue, address } => {
                self.at(queue)?.address = Some(address);
                self.begin(queue)?;
            }
            Message::SetVringKick { queue, has_fd } => {
                let kick = one(fds, has_fd)?.ok_or(SessionError::NoKick)?;
                self.at(queue)?.kick = Some(Arc::new(kick));
                self.begin(queue)?;
            }
            Message::SetVringCall { queue, has_fd } => self.at(queue)?.call = one(fds, has_fd)?,
            Message::SetVringErr { queue, has_fd } => self.at(queue)?.error = one(fds, has_fd)?,
            Message::SetVringEnable { queue, enable } => self.at(queue)?.is_enabled = enable,
            Message::SetBackendReqFd => self.to_front_end = one(fds, true)?,
            Message::SetConfig { offset, bytes } => match (offset as usize, &bytes[..]) {
                (WRITEBACK, [mode @ 0..=1]) => self.is_writeback = *mode == 1,
                _ => return Err(SessionError::Config),
            },
            Message::SetInflightFd(info) => {
                exactly(&fds, 1)?;
                let records = Records::open(info, &fds[0]).map_err(SessionError::Inflight)?;
                self.records = Some(records);
            }
            // A connection has only one owner, so ownership is not tracked.
            _ => {}
        }
        Ok(())
    }

    fn at(&mut self, queue: usize) -> Result<&mut Queue, SessionError> {
        let last = self.queues.len() - 1;
        self.queues.get_mut(queue).ok_or(SessionError::Queue(queue, last))
    }

    fn config(&self, offset: u32, size: u32, flags: u32) -> Answer {
        let all = self.disk.bytes(self.is_writeback);
        let is_possible = size > 0 && size as usize <= MOST_CONFIG;
        let mut bytes = Vec::new();
        if is_possible {
            // A front end may know more fields than this back end.
            bytes.extend(all.iter().skip(offset as usize).take(size as usize));
            bytes.resize(size as usize, 0);
        }
        message::reply_config(offset, flags, &bytes).into()
    }

    fn make_records(&mut self, info: InflightInfo) -> Result<Answer, SessionError> {
        let InflightInfo { queues, queue_size, .. } = info;
        let size = u32::from(queue_size);
        if size == 0 || size > MOST_SIZE {
            return Err(SessionError::Number(size));
        }
        if queues == 0 || usize::from(queues) > self.queues.len() {
            return Err(SessionError::Records(queues, self.queues.len()));
        }
        let (records, file) =
            Records::create(queues, queue_size).map_err(SessionError::Inflight)?;
        let bytes = message::reply_inflight(records.info());
        self.records = Some(records);
        Ok(Answer { bytes, fd: Some(file) })
    }

    /// Starts a ring if its parameters are complete.
    fn begin(&mut self, number: usize) -> Result<(), SessionError> {
        let has_event_idx = self.has(virtio::EVENT_IDX);
        let queue = &mut self.queues[number];
        let Some(address) = queue.address.filter(|_| queue.kick.is_some() && queue.size > 0) else {
            return Ok(());
        };
        let ring = match queue.ring.take() {
            Some(mut ring) => ring.find_again(&self.memory, address).map(|()| ring),
            None => {
                let record = self.records.as_ref().and_then(|records| records.of(number));
                let (size, base) = (queue.size, queue.base);
                Ring::new(&self.memory, address, size, base, has_event_idx, record)
            }
        };
        queue.is_draining = false;
        queue.ring = Some(ring.map_err(|error| SessionError::Ring(number, error))?);
        Ok(())
    }

    /// Maps the rings again after a change of memory. Rings whose memory has gone stop.
    fn find_rings(&mut self) -> Result<(), SessionError> {
        let running = |at: &usize| self.queues[*at].ring.is_some();
        let running = Vec::from_iter((0..self.queues.len()).filter(running));
        running.into_iter().try_for_each(|queue| self.begin(queue))
    }

    /// Changes the size of the disk, and notifies the front end if it has negotiated such messages. Otherwise it sees
    /// the size when it next reads the configuration.
    ///
    /// # Errors
    /// If the message cannot be sent.
    pub fn resize(&mut self, bytes: u64) -> io::Result<()> {
        self.disk.bytes = bytes;
        let agreed = protocol::BACKEND_REQ | protocol::CONFIG;
        match &self.to_front_end {
            Some(socket) if self.protocol & agreed == agreed => {
                send(socket, &message::config_changed(), None)
            }
            _ => Ok(()),
        }
    }

    /// Stops a queue whose requests have finished. Returns the answer to the message that requested it.
    #[must_use]
    pub fn stop(&mut self, number: usize) -> Answer {
        self.pending = None;
        let queue = &mut self.queues[number];
        let base = queue.ring.take().map_or(queue.base, |ring| ring.base());
        (queue.kick, queue.is_draining, queue.base) = (None, false, base);
        message::reply_base(number, base).into()
    }

    /// Resets all queues to their initial state once their requests have finished. Returns the answer if the front end
    /// waits for one.
    #[must_use]
    pub fn reset(&mut self) -> Option<Answer> {
        self.queues.iter_mut().for_each(|queue| *queue = Queue::default());
        self.features = 0;
        let (request, needs_reply) = self.pending.take()?;
        needs_reply.then(|| message::reply_number(request, 0).into())
    }
}

/// Checks that all negotiated features were offered.
fn offered(features: u64, offer: u64) -> Result<u64, SessionError> {
    match features & !offer {
        0 => Ok(features),
        unknown => Err(SessionError::Features(unknown)),
    }
}

fn exactly(fds: &[OwnedFd], wanted: usize) -> Result<(), SessionError> {
    let got = fds.len();
    if got == wanted { Ok(()) } else { Err(SessionError::Descriptors { got, wanted }) }
}

/// The only descriptor of a message, or `None` if it should have none.
fn one(mut fds: Vec<OwnedFd>, has_fd: bool) -> Result<Option<OwnedFd>, SessionError> {
    exactly(&fds, has_fd.into())?;
    Ok(fds.pop())
}
