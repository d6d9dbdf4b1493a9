//! A worker waits for its next turn: which of its disks it looks after meanwhile, and how it sleeps.

use super::{DISKS, Worker};
use blkmq::{AlignedBuf, Client, Nanos, Sleep};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::io;
use std::time::Duration;

/// The worker's client of a disk. Without I/Os of its own in flight it is left alone: a thread that looks at a disk does
/// whatever is due there, for other workers too, and these wait while it is kept from that by clients of its own.
pub(super) struct DiskClient {
    pub(super) client: Client<AlignedBuf>,
    /// Its descriptor has an event: there may be work that others count on.
    pub(super) is_called: bool,
}

impl DiskClient {
    pub(super) fn has_work(&self) -> bool {
        self.is_called || self.client.outstanding() > 0
    }
}

impl Worker {
    /// Sleeps until there is an event, unless a disk has something to reap.
    pub(super) fn wait(&mut self, events: &mut Vec<epoll::Event>) -> io::Result<()> {
        let tick = self.tick - self.clock.now();
        let mut left = if self.turns.is_empty() { tick } else { Nanos::ZERO };
        for DiskClient { client, .. } in self.clients.iter_mut().filter(|it| it.has_work()) {
            match client.prepare_wait() {
                Sleep::No => left = Nanos::ZERO,
                Sleep::Until(Some(at)) => left = left.min(at - client.clock().now()),
                Sleep::Until(None) => {}
            }
        }
        let is_exact = Nanos::ZERO < left && left < tick;
        let slept = self.look_and_sleep(left, is_exact, events);
        // Each `prepare_wait` needs its end, even after an error. Most turns are for sockets only.
        for (number, DiskClient { client, .. }) in (DISKS..).zip(&mut self.clients) {
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

    /// Looks for events for a moment, where that pays, and then sleeps.
    fn look_and_sleep(
        &mut self,
        left: Nanos,
        is_exact: bool,
        events: &mut Vec<epoll::Event>,
    ) -> rustix::io::Result<usize> {
        let wants = !is_exact && left > Nanos::ZERO;
        let looks = if wants { self.spin.begin(self.clock) } else { None };
        if let Some(mut looks) = looks {
            loop {
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                let found =
                    epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&now))?;
                if found > 0 {
                    self.spin.found(&looks);
                    return Ok(found);
                }
                if !self.spin.goes_on(&mut looks) {
                    break;
                }
            }
        }
        self.sleep(left, is_exact, events)
    }

    /// epoll's own timeout has whole milliseconds; the times of disks are waited for by poll, at the price of a further
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
