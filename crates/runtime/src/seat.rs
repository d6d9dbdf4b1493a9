//! [`Seat`]: a place where one thread sleeps, and the devices that it watches meanwhile.

use crate::Clock;
use crate::bell::Bell;
use crate::host::Threads;
use crate::post::Place;
use blkmq_core::{HwQueue, Instant, Nanos, SubmitterId};
use std::fmt;
#[cfg(target_os = "linux")]
use std::io;
use std::ops::Range;
#[cfg(target_os = "linux")]
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The length of the first nap, and of the longest: a completion that no other thread reaps is this late, once.
const NAP: Nanos = Nanos::from_millis(1);
const LONGEST_NAP: Nanos = Nanos::from_millis(4);

/// Times in a row that a client woke for completions of others.
#[derive(Clone, Copy, Default)]
struct InVain {
    by_device: u32,
    naps: u32,
}

impl InVain {
    /// After so many wake-ups by a device the client naps while another one watches.
    const MANY: u32 = 4;

    /// The client has slept in that place. A wake-up is in vain until a completion has come for the client.
    fn woke(&mut self, place: Place, by_device: bool) {
        self.by_device = self.by_device.saturating_add(by_device.into());
        self.naps = self.naps.saturating_add((place == Place::Napping).into());
    }

    fn naps(self) -> bool {
        self.by_device >= Self::MANY
    }

    /// Each nap in a row is twice as long as the one before, up to the longest.
    fn nap(self) -> Nanos {
        Nanos(NAP.0 << self.naps.min(8)).min(LONGEST_NAP)
    }
}

/// The seat of a client, on whatever thread that is used, or of a pump thread.
pub(crate) struct Seat {
    threads: Arc<Threads>,
    who: Who,
    /// The hardware queues of the devices that it watches, if they can be watched.
    watches: Range<u16>,
    /// Clients that sleep may rely on this one, which watched the devices for them, until it lies down again or leaves.
    duty: bool,
    in_vain: InVain,
    /// A descriptor of the bell and all watched devices, if it was asked for.
    #[cfg(target_os = "linux")]
    all: Option<OwnedFd>,
}

#[derive(Clone, Copy, Debug)]
enum Who {
    Submitter(SubmitterId),
    Pump(HwQueue),
}

impl Seat {
    /// The seat of the client with this submitter.
    pub(crate) fn submitter(threads: &Arc<Threads>, id: SubmitterId) -> Self {
        Self {
            threads: Arc::clone(threads),
            who: Who::Submitter(id),
            watches: threads.watched_by_submitters(),
            duty: false,
            in_vain: InVain::default(),
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
            in_vain: InVain::default(),
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
        match self.who {
            Who::Submitter(id) => self.threads.submitter(id),
            Who::Pump(hw) => self.threads.pump(hw),
        }
    }

    /// Sleeps until the bell rings, a watched device has something, or `at` comes; sometimes wakes for no reason.
    /// Returns at once if the bell has rung since the last time, or if a watched device has something already.
    ///
    /// Of many clients that sleep, few watch the devices; the others are woken by those, who reap for all. A client must
    /// [`leave`](Self::leave) when it does not park again.
    pub(crate) fn park_until(&mut self, at: Option<Instant>, clock: Clock) {
        let left = at.map(|at| at - clock.now());
        if left.is_some_and(|left| left.0 == 0) {
            return;
        }
        let watches = self.watches.clone();
        match self.who {
            Who::Submitter(id) if self.threads.watch_devices() && !watches.is_empty() => {
                let place = self.threads.post.lie_down(id, self.in_vain.naps());
                let by_device = match place {
                    Place::Watching => self.sleep(watches, left),
                    Place::Asleep => self.sleep(0..0, left),
                    Place::Napping => {
                        let nap = self.in_vain.nap();
                        self.sleep(0..0, Some(left.map_or(nap, |left| left.min(nap))))
                    }
                };
                self.duty = self.threads.post.get_up(id, place);
                self.in_vain.woke(place, by_device);
            }
            Who::Submitter(_) | Who::Pump(_) => {
                self.sleep(watches, left);
            }
        }
    }

    /// Completions of this client have come.
    #[inline]
    pub(crate) fn came(&mut self) {
        self.in_vain = InVain::default();
    }

    /// May other clients rely on this one?
    #[inline]
    pub(crate) fn has_duty(&self) -> bool {
        self.duty
    }

    /// The thread turns to something else: if others rely on it, one of them is woken to watch the devices. Costs nothing
    /// if none does.
    #[inline]
    pub(crate) fn leave(&mut self) {
        if std::mem::take(&mut self.duty)
            && let Some(next) = self.threads.post.leave()
        {
            self.threads.wake_submitter(next);
        }
    }

    /// Sleeps until the bell rings, and watches no device; sometimes wakes for no reason. Returns at once if the bell
    /// has rung since the last time.
    pub(crate) fn rest(&self) {
        let _ = self.sleep(0..0, None);
    }

    /// A descriptor that is readable when [`park_until`](Self::park_until) without a time would return.
    #[cfg(target_os = "linux")]
    pub(crate) fn descriptor(&mut self) -> io::Result<BorrowedFd<'_>> {
        if self.all.is_none() {
            let (devices, watches) = (&self.threads.devices, self.watches.clone());
            let all = self.bell().with_event(|bell| devices.join(bell, watches))??;
            self.all = Some(all);
        }
        Ok(self.all.as_ref().expect("it was just made").as_fd())
    }

    /// Forgets all rings so far. For a thread that looks for work after this.
    #[cfg(target_os = "linux")]
    pub(crate) fn silence(&self) {
        self.bell().silence();
    }

    /// True if a device ended the sleep, and the bell did not ring.
    #[cfg_attr(not(target_os = "linux"), allow(unused_variables))]
    fn sleep(&self, watches: Range<u16>, left: Option<Nanos>) -> bool {
        match self.bell() {
            #[cfg(target_os = "linux")]
            Bell::Thread(place) => Bell::rest(place, left),
            #[cfg(not(target_os = "linux"))]
            Bell::Thread(_) => Bell::park(left),
            #[cfg(target_os = "linux")]
            Bell::Event(fd) => return self.threads.devices.sleep(fd, watches, left),
        }
        false
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
        f.debug_struct("Seat").field("who", &self.who).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_naps_after_four_wake_ups_by_devices_in_vain() {
        let mut in_vain = InVain::default();
        for by_device in [true, true, false, true] {
            in_vain.woke(Place::Watching, by_device);
            assert!(!in_vain.naps(), "the bell and the clock do not count");
        }
        in_vain.woke(Place::Watching, true);
        assert!(in_vain.naps());
    }

    #[test]
    fn naps_in_a_row_grow_to_four_milliseconds() {
        let mut in_vain = InVain::default();
        let naps = [(); 5].map(|()| {
            let nap = in_vain.nap();
            in_vain.woke(Place::Napping, false);
            nap
        });
        assert_eq!(naps, [1, 2, 4, 4, 4].map(Nanos::from_millis));
        in_vain.woke(Place::Watching, true);
        assert_eq!(in_vain.nap(), LONGEST_NAP, "no completion has come");
    }
}
