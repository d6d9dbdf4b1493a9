//! How a thread that serves clients waits for its next turn: its disk clients, and its way to sleep.

mod spin;

pub(crate) use spin::{Load, Spin};

use crate::disk::CREDIT;
use crate::flight::Cookie;
use blkmq::{AlignedBuf, Client, Clock, IoResult, Nanos, Sleep};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The thread's client of a disk. It is not polled while it has no I/Os in flight: a thread that polls a disk does all
/// work that is due there, also for other threads, and these wait if its own clients delay it.
pub(crate) struct DiskClient {
    pub(crate) client: Client<AlignedBuf>,
    /// Whether its descriptor has an event: there may be work that other threads rely on.
    pub(crate) is_called: bool,
}

impl DiskClient {
    pub(crate) fn new(client: Client<AlignedBuf>) -> Self {
        Self { client, is_called: false }
    }

    pub(crate) fn has_work(&self) -> bool {
        self.is_called || self.client.outstanding() > 0
    }

    /// Flushes the plug, and passes each completed or refused I/O to `ended`.
    pub(crate) fn reap(&mut self, mut ended: impl FnMut(Cookie, IoResult, AlignedBuf)) {
        self.is_called = false;
        let client = &mut self.client;
        client.flush();
        client.poll();
        client.reap(CREDIT, |done| ended(done.cookie.into(), done.result, done.payload));
        while let Some(refused) = client.take_refused() {
            let (result, io) = (Err(refused.why.into()), refused.into_io());
            ended(io.cookie.into(), result, io.payload);
        }
    }
}

/// The descriptors for which a thread waits, each with a number.
#[derive(Debug)]
pub(crate) struct Sleeper {
    epoll: OwnedFd,
    clock: Clock,
    /// Learns whether to poll the descriptors before sleeping; `None` for a thread that polls its clients instead.
    spin: Option<Spin>,
}

impl Sleeper {
    /// # Errors
    /// If the system has no descriptor left.
    pub(crate) fn new(clock: Clock) -> io::Result<Self> {
        Ok(Self { spin: Some(Spin::default()), ..Self::without_looks(clock)? })
    }

    /// Like [`new`](Self::new), for a thread that polls its clients before it waits.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub(crate) fn without_looks(clock: Clock) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, clock, spin: None })
    }

    /// Adds `what` to the descriptors; its events have this number.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn watch(&self, what: impl AsFd, number: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::add(&self.epoll, what, data, epoll::EventFlags::IN)?)
    }

    /// Removes `what` from the descriptors.
    ///
    /// # Errors
    /// If `what` was not watched.
    pub(crate) fn forget(&self, what: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, what)?)
    }

    /// Sleeps for at most `most` until there is an event, unless a disk has something to reap. Events of `disks` have
    /// the numbers from `first` on.
    ///
    /// # Errors
    /// If the kernel refuses to wait.
    pub(crate) fn wait(
        &mut self,
        (first, disks): (u64, &mut [DiskClient]),
        most: Nanos,
        events: &mut Vec<epoll::Event>,
    ) -> io::Result<()> {
        let mut left = most;
        for DiskClient { client, .. } in disks.iter_mut().filter(|it| it.has_work()) {
            match client.prepare_wait() {
                Sleep::No => left = Nanos::ZERO,
                Sleep::Until(Some(at)) => left = left.min(at - client.clock().now()),
                Sleep::Until(None) => {}
            }
        }
        let is_exact = Nanos::ZERO < left && left < most;
        let slept = self.look_and_sleep(left, is_exact, events);
        // Each `prepare_wait` must be ended, even after an error. Most turns only involve sockets.
        for (number, DiskClient { client, .. }) in (first..).zip(disks) {
            if slept.is_err() || events.iter().any(|event| event.data.u64() == number) {
                client.end_wait();
            } else {
                client.end_wait_without_event();
            }
        }
        match slept {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Polls briefly for events, if that pays, and then sleeps.
    fn look_and_sleep(
        &mut self,
        left: Nanos,
        is_exact: bool,
        events: &mut Vec<epoll::Event>,
    ) -> rustix::io::Result<usize> {
        let wants = !is_exact && left > Nanos::ZERO;
        let Self { epoll, clock, spin } = self;
        let spin = spin.as_mut().filter(|_| wants);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut look = || epoll::wait(&*epoll, rustix::buffer::spare_capacity(events), Some(&now));
        let find = || Some(look()).filter(|found| *found != Ok(0)).zip(Some(Load::Several));
        match spin.and_then(|spin| spin.poll(*clock, find)) {
            Some(found) => found,
            None => self.sleep(left, is_exact, events),
        }
    }

    /// epoll's own timeout has a resolution of milliseconds; poll waits for the times of disks, at the cost of another
    /// system call.
    fn sleep(
        &self,
        left: Nanos,
        is_exact: bool,
        events: &mut Vec<epoll::Event>,
    ) -> rustix::io::Result<usize> {
        let timeout = Timespec::try_from(Duration::from_nanos(left.0)).ok();
        let mut left = timeout.as_ref();
        if is_exact {
            poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], left)?;
            left = Some(&Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), left)
    }
}

impl AsFd for Sleeper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
