//! [`Seat`]: a place where one thread sleeps, and the devices that it watches during that sleep.

use crate::bell::Bell;
use crate::host::{Place, Threads};
use crate::planted::{self, Planted};
use blkmq_core::{HwQueue, Instant, Nanos, SubmitterId};
#[cfg(target_os = "linux")]
use blkmq_engine::Berth;
use std::fmt;
#[cfg(target_os = "linux")]
use std::io;
use std::ops::Range;
#[cfg(target_os = "linux")]
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The seat of a client, on whatever thread that is used, or of a pump thread.
pub(crate) struct Seat {
    threads: Arc<Threads>,
    who: Who,
    /// The hardware queues of the devices that it watches, if they can be watched.
    watches: Range<u16>,
    /// Clients that sleep may rely on this one, which watched the devices for them, until it lies down again or leaves.
    duty: bool,
    /// A descriptor of the bell and all watched devices, if it was asked for.
    #[cfg(target_os = "linux")]
    all: Option<OwnedFd>,
}

enum Who {
    Submitter(SubmitterId, Arc<Bell>),
    Pump(HwQueue),
}

impl Seat {
    /// The seat of the client with this submitter.
    pub(crate) fn submitter(threads: &Arc<Threads>, id: SubmitterId) -> Self {
        Self {
            threads: Arc::clone(threads),
            who: Who::Submitter(id, Arc::clone(threads.submitter(id))),
            watches: threads.watched_by_submitters(),
            duty: false,
            #[cfg(target_os = "linux")]
            all: None,
        }
    }

    /// The seat of the pump of `hw`, which the calling thread is.
    pub(crate) fn pump(threads: &Arc<Threads>, hw: HwQueue) -> Self {
        threads.pump(hw).enrol();
        Self {
            threads: Arc::clone(threads),
            who: Who::Pump(hw),
            watches: hw.0..hw.0 + 1,
            duty: false,
            #[cfg(target_os = "linux")]
            all: None,
        }
    }

    /// The bells of the whole service.
    pub(crate) fn threads(&self) -> &Arc<Threads> {
        &self.threads
    }

    /// Makes the calling thread the one that sleeps here from now on. To be called before its last look for work.
    pub(crate) fn enrol(&self) {
        self.bell().enrol();
    }

    fn bell(&self) -> &Bell {
        match &self.who {
            Who::Submitter(_, bell) => bell,
            Who::Pump(hw) => self.threads.pump(*hw),
        }
    }

    /// Sleeps until the bell rings, a watched device has something, or `at` comes, the end of time for never; sometimes
    /// wakes for no reason. Does not sleep if the bell has rung since the last time, or if a watched device has something
    /// already. `now` is the time as the caller has last read it.
    ///
    /// Of many clients that sleep, few watch the devices; the others are woken by those, who reap for all. A client must
    /// [`leave`](Self::leave) when it does not park again.
    pub(crate) fn park_until(&mut self, at: Instant, now: Instant) {
        let left = (at < Instant::MAX).then(|| at - now);
        if left.is_some_and(|left| left.0 == 0) {
            return;
        }
        let watches = self.watches.clone();
        match self.who {
            Who::Submitter(id, _) if !watches.is_empty() && self.threads.watch_devices() => {
                let place = self.threads.post.lie_down(id);
                self.sleep(if place == Place::Watching { watches } else { 0..0 }, left);
                self.duty = self.threads.post.get_up(id, place);
            }
            Who::Submitter(..) | Who::Pump(_) => {
                self.sleep(watches, left);
            }
        }
    }

    /// Returns whether other clients may rely on this one.
    #[inline]
    pub(crate) fn has_duty(&self) -> bool {
        self.duty
    }

    /// The thread turns to something else: if others rely on it, one of them is woken to watch the devices. Costs nothing
    /// if none does.
    #[inline]
    pub(crate) fn leave(&mut self) {
        #[cfg(target_os = "linux")]
        if let Some(berth) = self.berth() {
            berth.end();
        }
        if std::mem::take(&mut self.duty)
            && !planted::is(Planted::ForgetsDuty)
            && let Some(next) = self.threads.post.leave()
        {
            self.threads.wake_submitter(next);
        }
    }

    /// Sleeps until the bell rings, and watches no device; sometimes wakes for no reason. Returns immediately if the
    /// bell has rung since the last time.
    pub(crate) fn rest(&self) {
        self.sleep(0..0, None);
    }

    /// A descriptor that is readable when [`park_until`](Self::park_until) without a time would return.
    #[cfg(target_os = "linux")]
    pub(crate) fn descriptor(&mut self) -> io::Result<BorrowedFd<'_>> {
        if self.berth().is_some() {
            return Ok(self.berth().expect("it was seen just now").fd());
        }
        if self.all.is_none() {
            let (devices, watches) = (&self.threads.devices, self.watches.clone());
            let all = self.bell().with_event(|bell| devices.join(bell, watches))??;
            self.all = Some(all);
        }
        Ok(self.all.as_ref().expect("it was just made").as_fd())
    }

    /// The place on the client's own lane, if it has one.
    #[cfg(target_os = "linux")]
    fn berth(&self) -> Option<&dyn Berth> {
        match self.bell() {
            Bell::Berth(berth) => Some(&**berth),
            Bell::Thread(_) | Bell::Event(_) => None,
        }
    }

    /// The thread waits from now on, until [`leave`](Self::leave): the requests that it sends by its own lane in the
    /// meantime may go with its sleep.
    #[inline]
    pub(crate) fn begin(&self) {
        #[cfg(target_os = "linux")]
        if let Some(berth) = self.berth() {
            berth.begin();
        }
    }

    /// Returns whether a thread may sleep on the [descriptor](Self::descriptor). If not, the caller must poll once more
    /// before.
    #[cfg(target_os = "linux")]
    pub(crate) fn attend(&self) -> bool {
        self.berth().is_none_or(Berth::attend)
    }

    /// Forgets all rings so far. For a thread that looks for work after this.
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
            Bell::Thread(_) => crate::port::park(left),
            #[cfg(target_os = "linux")]
            Bell::Event(fd) => self.threads.devices.sleep(fd, watches, left),
            #[cfg(target_os = "linux")]
            Bell::Berth(berth) => berth.sleep(left),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // After a panic in the midst of a wait; otherwise it has left.
        self.leave();
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").finish_non_exhaustive()
    }
}
