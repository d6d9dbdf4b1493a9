//! [`Seat`]: where one thread sleeps, and what it watches meanwhile.

use crate::Clock;
use crate::bell::Bell;
use crate::host::Threads;
use blkmq_core::{HwQueue, Instant, Nanos, SubmitterId};
use std::fmt;
#[cfg(target_os = "linux")]
use std::io;
use std::ops::Range;
#[cfg(target_os = "linux")]
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A client's, wherever it is used, or a pump thread's.
pub(crate) struct Seat {
    threads: Arc<Threads>,
    who: Who,
    /// Hardware queues whose devices it watches, if they can be watched.
    watches: Range<u16>,
    /// All of that in one, if it was asked for.
    #[cfg(target_os = "linux")]
    all: Option<OwnedFd>,
}

#[derive(Clone, Copy, Debug)]
enum Who {
    Submitter(SubmitterId),
    Pump(HwQueue),
}

impl Seat {
    pub(crate) fn submitter(threads: Arc<Threads>, id: SubmitterId, watches: Range<u16>) -> Self {
        Self {
            threads,
            who: Who::Submitter(id),
            watches,
            #[cfg(target_os = "linux")]
            all: None,
        }
    }

    pub(crate) fn pump(threads: Arc<Threads>, hw: HwQueue, watches: Range<u16>) -> Self {
        Self {
            threads,
            who: Who::Pump(hw),
            watches,
            #[cfg(target_os = "linux")]
            all: None,
        }
    }

    /// What else sleeps in the same service.
    pub(crate) fn threads(&self) -> &Arc<Threads> {
        &self.threads
    }

    /// The calling thread is the one that sleeps here from now on. To be called before the last look for work.
    pub(crate) fn enrol(&self) {
        self.bell().enrol();
    }

    fn bell(&self) -> &Bell {
        match self.who {
            Who::Submitter(id) => self.threads.submitter(id),
            Who::Pump(hw) => self.threads.pump(hw),
        }
    }

    /// Sleeps until the bell rings, a watched device has something, or `at` comes; now and then for no reason.
    /// A ring since the last time makes it return at once, and so does what a device has by now.
    pub(crate) fn park_until(&self, at: Option<Instant>, clock: Clock) {
        let left = at.map(|at| at - clock.now());
        if left.is_some_and(|left| left.0 == 0) {
            return;
        }
        self.sleep(self.watches.clone(), left);
    }

    /// Sleeps until somebody calls, whatever devices have; now and then for no reason. A call since the last
    /// time makes it return at once.
    pub(crate) fn rest(&self) {
        self.sleep(0..0, None);
    }

    /// One descriptor that is readable when it would wake up.
    #[cfg(target_os = "linux")]
    pub(crate) fn descriptor(&mut self) -> io::Result<BorrowedFd<'_>> {
        if self.all.is_none() {
            let (devices, watches) = (&self.threads.devices, self.watches.clone());
            let all = self.bell().with_event(|bell| devices.join(bell, watches))??;
            self.all = Some(all);
        }
        Ok(self.all.as_ref().expect("it was just made").as_fd())
    }

    /// Forgets rings so far. For a thread that looks for work after this.
    #[cfg(target_os = "linux")]
    pub(crate) fn silence(&self) {
        self.bell().silence();
    }

    #[cfg_attr(not(target_os = "linux"), allow(unused_variables))]
    fn sleep(&self, watches: Range<u16>, left: Option<Nanos>) {
        match self.bell() {
            #[cfg(target_os = "linux")]
            Bell::Thread(place) => Bell::rest(place, left),
            #[cfg(not(target_os = "linux"))]
            Bell::Thread(_) => Bell::park(left),
            #[cfg(target_os = "linux")]
            Bell::Event(fd) => self.threads.devices.sleep(fd, watches, left),
        }
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("who", &self.who).finish_non_exhaustive()
    }
}
