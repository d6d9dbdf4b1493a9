//! [`Leg`]: a device below a layer, behind a queue of the engine, driven by the thread that drives the layer.

#![forbid(unsafe_code)]

use crate::lent::Part;
use blkmq_core::{Instant, IoError};
#[cfg(target_os = "linux")]
use blkmq_engine::Berth;
use blkmq_engine::{
    Another, BlockDevice, Completion, Config, DeviceShape, Io, Queue, Refusal, Submitter,
};
use std::collections::VecDeque;
use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// I/Os of a layer that the engine holds for one leg. Further I/Os wait in the leg.
const CREDIT: u32 = 1024;

pub(crate) struct Leg {
    /// Declared, and so dropped, before the queue, which ends when both are gone.
    submitter: Submitter<Part>,
    _queue: Queue<Part>,
    /// I/Os that wait for credit, in the order in which the layer sent them.
    waiting: VecDeque<Io<Part>>,
    /// The completions of the device come without a signal and at no known time.
    is_polled: bool,
    /// The device has work to do even without requests.
    pub(crate) has_own_work: bool,
    /// The last flush has driven the device, and completions have not been polled since.
    has_turned: bool,
    /// Makes another leg on the same device; `None` if the device cannot make another queue.
    pub(crate) origin: Option<Arc<Origin>>,
    /// The sleeping place of a thread that has the layer to itself.
    #[cfg(target_os = "linux")]
    pub(crate) berth: Option<Arc<dyn Berth>>,
}

/// A device that makes queues for one submitter each.
pub(crate) struct Origin {
    shape: DeviceShape,
    another: Another<Part>,
}

/// Descriptors that become readable when any leg has completions.
#[cfg(target_os = "linux")]
pub(crate) struct Bells {
    epoll: Option<OwnedFd>,
}

#[cfg(target_os = "linux")]
impl Bells {
    pub(crate) fn new() -> Self {
        Self { epoll: None }
    }

    fn add(&mut self, bell: std::os::fd::BorrowedFd<'_>) -> io::Result<()> {
        use rustix::event::epoll;
        let all = match &mut self.epoll {
            Some(all) => all,
            none => none.insert(epoll::create(epoll::CreateFlags::CLOEXEC)?),
        };
        epoll::add(all, bell, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(())
    }

    /// Readable while any of the descriptors is; `None` if no leg has one.
    pub(crate) fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        self.epoll.as_ref().map(AsFd::as_fd)
    }
}

impl Leg {
    /// # Errors
    /// If the system refuses resources for the queues of the device.
    pub(crate) fn new(
        device: &dyn BlockDevice<Part>,
        #[cfg(target_os = "linux")] bells: &mut Bells,
    ) -> io::Result<Self> {
        Self::of(
            device.config()?,
            None,
            #[cfg(target_os = "linux")]
            bells,
        )
    }

    /// Another leg on the same device.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn another(
        origin: &Arc<Origin>,
        #[cfg(target_os = "linux")] bells: &mut Bells,
    ) -> io::Result<Self> {
        Self::of(
            Config::new(origin.shape, vec![(origin.another)()?]),
            Some(origin),
            #[cfg(target_os = "linux")]
            bells,
        )
    }

    fn of(
        mut config: Config<Part>,
        origin: Option<&Arc<Origin>>,
        #[cfg(target_os = "linux")] bells: &mut Bells,
    ) -> io::Result<Self> {
        let shape = config.device;
        let first = config.queues.first().and_then(|queue| queue.another());
        let new = |another| Arc::new(Origin { shape, another });
        let origin = origin.cloned().or_else(|| first.map(new));
        #[cfg(target_os = "linux")]
        let berth = match &origin {
            Some(_) => config.queues[0].berth().transpose()?.map(Arc::from),
            None => None,
        };
        let mut is_polled = false;
        for queue in &config.queues {
            let has_time = queue.next_event().is_some();
            #[cfg(target_os = "linux")]
            let has_time = match queue.event_fd() {
                Some(bell) => {
                    bells.add(bell)?;
                    true
                }
                None => has_time,
            };
            is_polled |= !has_time;
        }
        let has_own_work = config.queues.iter().any(|queue| queue.has_own_work());
        (config.submitters, config.depth) = (1, CREDIT);
        let queue = Queue::new(config.own_lanes()).map_err(io::Error::other)?;
        let submitter = queue.submitter().map_err(io::Error::other)?;
        Ok(Self {
            submitter,
            _queue: queue,
            waiting: VecDeque::new(),
            is_polled,
            has_own_work,
            has_turned: false,
            origin,
            #[cfg(target_os = "linux")]
            berth,
        })
    }

    /// Sends an I/O, behind the waiting ones.
    pub(crate) fn send(&mut self, io: Io<Part>) {
        self.waiting.push_back(io);
    }

    /// Submits waiting I/Os for which there is credit. Passes the cookie and the error of each I/O that the queue
    /// refuses to `over`. Returns whether any I/O was submitted or refused.
    pub(crate) fn submit(&mut self, now: Instant, mut over: impl FnMut(u64, IoError)) -> bool {
        let mut were_any = false;
        while let Some(io) = self.waiting.pop_front() {
            let cookie = io.cookie;
            match self.submitter.push(now, io) {
                Ok(()) => self.has_turned = true,
                Err(refused) if matches!(refused.why, Refusal::NoCredit { .. }) => {
                    self.waiting.push_front(refused.into_io());
                    break;
                }
                Err(refused) => {
                    let unsupported = matches!(refused.why, Refusal::Unsupported { .. });
                    over(
                        cookie,
                        if unsupported { IoError::NOT_SUPPORTED } else { IoError::INVALID },
                    );
                }
            }
            were_any = true;
        }
        self.submitter.flush(now);
        were_any
    }

    /// Does the work that is due, and passes the completions to `over`. Returns whether more work may be due at the
    /// same time.
    pub(crate) fn poll(&mut self, now: Instant, over: impl FnMut(Completion<Part>)) -> bool {
        // Driving the device again would submit entries that the flush has left for the thread to submit as it goes to
        // sleep.
        if !std::mem::take(&mut self.has_turned) {
            self.submitter.poll(now);
        }
        let ended = self.submitter.reap(u32::MAX, over);
        let rests = self.submitter.prepare_park(now).is_some();
        self.submitter.unpark();
        let is_dead = self.submitter.is_poisoned() && self.submitter.in_flight() == 0;
        ended > 0 || !(rests || is_dead)
    }

    /// When the leg has work without a signal; `None` if it has to be polled.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        if self.is_polled && self.submitter.in_flight() > 0 {
            return None;
        }
        Some(self.submitter.next_deadline().unwrap_or(Instant::MAX))
    }
}
