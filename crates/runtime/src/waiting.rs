//! How a thread waits: how long it stays awake before it sleeps, and what wakes it.
//!
//! | the client's I/Os | first | then |
//! |---|---|---|
//! | at the device of its own lane | - | sleeps in the kernel, on its ring |
//! | with other threads: staged, held, or on their way | spins for some microseconds | sleeps on its ring until woken, and checks all lanes at times |
//! | at a device that several clients watch | - | sleeps on the device's descriptor, or is woken by a client that does (`bell.rs`) |
//! | at a device that cannot be watched | spins, then yields | sleeps until the device's next event, or a wake-up |
//!
//! A thread that sleeps on a device uses no CPU time, and the completion wakes it. So it does not spin by default: at
//! depth 1 on a file, spinning would save a few microseconds of some thirty and cost twice the CPU time.
//! [`Service::set_waiting`](crate::Service::set_waiting) enables it.
//!
//! A [`Seat`] is the place where one thread sleeps. [`PumpThreads`] sleep there, too.

use crate::bell::{Bell, Place, Threads};
use crate::planted::{self, Planted};
use crate::port::AtomicBool;
use crate::port::thread::{self, JoinHandle};
use crate::{Clock, Placement};
use blkmq_core::{HwQueue, Instant, Nanos, SubmitterId};
#[cfg(target_os = "linux")]
use blkmq_engine::Berth;
use blkmq_engine::{Awaited, Queue};
use std::fmt;
use std::io;
use std::ops::Range;
#[cfg(target_os = "linux")]
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A thread with an event due within this time yields until then instead of sleeping: a timer would overshoot by
/// more.
pub(crate) const AWAKE_FOR: Nanos = Nanos::from_micros(60);

/// The spin rounds of a thread whose I/Os another thread is about to send, in a pass of a few microseconds.
const PASS_ROUNDS: u32 = if cfg!(shuttle) { 1 } else { 4 };

/// The checks of its own completions in each round.
const PASS_SPINS: u32 = if cfg!(shuttle) { 1 } else { 16 };

/// The first sleep of a client while none of its I/Os is at the device of its lane. After it the client checks all
/// lanes, since its I/Os may wait for a resource of a client whose thread is busy elsewhere. Each later sleep is as
/// long as the wait so far, up to [`LONGEST_LOOK`].
const FIRST_LOOK: Nanos = Nanos::from_millis(4);

const LONGEST_LOOK: Nanos = Nanos::from_millis(256);

/// How long a waiting thread stays awake before it parks.
///
/// Waking a thread on another core costs some 50 us, so for a short wait spinning is cheaper. But where threads
/// outnumber cores, the thread that this one waits for may need this very core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Checks of the thread's own completion queue between two checks for work of the queue.
    pub spins: u32,
    /// Checks for work of the queue before yielding the CPU.
    pub rounds: u32,
    /// Yields of the CPU before parking.
    pub yields: u32,
}

impl Waiting {
    /// For a thread that shares `cpus` CPUs with others, `threads` in total.
    #[must_use]
    pub const fn for_threads(threads: u16, cpus: u16) -> Self {
        if threads <= cpus {
            Self { spins: 32, rounds: 64, yields: 16 }
        } else {
            Self { spins: 16, rounds: 4, yields: 32 }
        }
    }

    /// Like [`for_threads`](Self::for_threads), but for a client of a queue with pump threads, which count among
    /// `threads`.
    ///
    /// Where `threads` exceed the CPUs, the pump thread that a client waits for needs the client's CPU.
    #[must_use]
    pub const fn on_pump_threads(threads: u16, cpus: u16) -> Self {
        let usual = Self::for_threads(threads, cpus);
        if threads <= cpus { usual } else { Self { rounds: 1, ..usual } }
    }

    /// For a thread that sleeps on the device itself: the interrupt wakes it, without another thread in between.
    #[must_use]
    pub const fn on_device() -> Self {
        Self { spins: PASS_SPINS, rounds: 0, yields: 0 }
    }

    /// The next step after the check number `looks`, counted from 1, has found nothing.
    pub(crate) fn next(self, looks: u32) -> Pause {
        let Self { spins, rounds, yields } = self;
        if looks <= rounds {
            Pause::Spin(spins)
        } else if looks - rounds <= yields {
            Pause::Yield
        } else {
            Pause::Sleep
        }
    }

    /// As [`next`](Self::next), for a client whose next completion comes from `awaited`.
    #[inline]
    pub(crate) fn next_of(self, awaited: Awaited, looks: u32) -> Pause {
        match awaited {
            Awaited::Shared | Awaited::OwnLane => self.next(looks),
            Awaited::Others => self.next_of_held(looks),
        }
    }

    fn next_of_held(self, looks: u32) -> Pause {
        let awake = self.rounds.max(PASS_ROUNDS);
        if looks <= awake { Pause::Spin(self.spins.max(PASS_SPINS)) } else { Pause::Sleep }
    }
}

/// The checks of all lanes by a client whose I/Os are with other threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looks {
    /// The number of completions at the first check since the last completion.
    had: u64,
    /// The time of that check.
    since: Instant,
}

impl Looks {
    pub(crate) const NONE: Self = Self { had: u64::MAX, since: Instant::ZERO };

    /// Notes a check at `now`, after `had` completions in total. Returns how long the client may sleep before the next
    /// one.
    pub(crate) fn next(&mut self, now: Instant, had: u64) -> Nanos {
        if self.had != had {
            *self = Self { had, since: now };
        }
        (now - self.since).clamp(FIRST_LOOK, LONGEST_LOOK)
    }
}

/// The next step of a thread that has found no work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pause {
    /// Check the thread's own completion queue this many times.
    Spin(u32),
    /// Yield the CPU.
    Yield,
    /// Sleep, if that is allowed.
    Sleep,
}

/// The place where one thread sleeps, and the devices that it watches during the sleep. It belongs to a client, on
/// whichever thread that is used, or to a pump thread.
pub(crate) struct Seat {
    threads: Arc<Threads>,
    who: Who,
    /// The hardware queues of the devices that it watches, if they can be watched.
    watches: Range<u16>,
    /// Whether sleeping clients may rely on this one to watch the devices, until it sleeps again or leaves.
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

    /// The seat of the pump of `hw`, for the calling thread.
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

    /// Makes the calling thread the one that sleeps here. Must be called before its last check for work.
    pub(crate) fn enrol(&self) {
        self.bell().enrol();
    }

    fn bell(&self) -> &Bell {
        match &self.who {
            Who::Submitter(_, bell) => bell,
            Who::Pump(hw) => self.threads.pump(*hw),
        }
    }

    /// Sleeps until the bell rings, a watched device is readable, or `at` is reached; [`Instant::MAX`] is no limit. May
    /// wake spuriously. Returns immediately if the bell has rung since the last sleep, or if a watched device is
    /// readable already. `now` is the time last read by the caller.
    ///
    /// Of many sleeping clients, few watch the devices. These reap for all, and wake the others. A client must
    /// [`leave`](Self::leave) unless it parks again.
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

    /// Ends the wait of the thread. If others rely on it, one of them is woken to watch the devices. Costs nothing
    /// otherwise.
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

    /// Sleeps until the bell rings, without watching devices. May wake spuriously. Returns immediately if the bell has
    /// rung since the last sleep.
    pub(crate) fn rest(&self) {
        self.sleep(0..0, None);
    }

    /// A descriptor that is readable when [`park_until`](Self::park_until) without a time limit would return.
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

    /// Begins a wait, up to [`leave`](Self::leave): requests that the thread sends on its own lane in the meantime may
    /// be submitted by its sleep.
    #[inline]
    pub(crate) fn begin(&self) {
        #[cfg(target_os = "linux")]
        if let Some(berth) = self.berth() {
            berth.begin();
        }
    }

    /// Returns whether a thread may sleep on the [descriptor](Self::descriptor). If not, the caller must poll once more
    /// first.
    #[cfg(target_os = "linux")]
    pub(crate) fn attend(&self) -> bool {
        self.berth().is_none_or(Berth::attend)
    }

    /// Forgets all rings so far, for a thread that checks for work afterwards.
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
        // Needed after a panic during a wait; otherwise the thread has left.
        self.leave();
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").finish_non_exhaustive()
    }
}

/// Running pump threads, one per hardware queue, for blocking clients and for devices that interrupt. Dropping stops
/// and joins them.
pub(crate) struct PumpThreads {
    stop: Arc<AtomicBool>,
    threads: Arc<Threads>,
    handles: Vec<JoinHandle<()>>,
}

impl fmt::Debug for PumpThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PumpThreads").field("threads", &self.handles.len()).finish_non_exhaustive()
    }
}

impl PumpThreads {
    pub(crate) fn start<P: Send + 'static>(
        queue: &Queue<P>,
        hw_queues: u16,
        clock: Clock,
        threads: &Arc<Threads>,
        placement: Placement,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut started =
            Self { stop: Arc::clone(&stop), threads: Arc::clone(threads), handles: Vec::new() };
        for hw in (0..hw_queues).map(HwQueue) {
            let (queue, threads, stop) = (queue.clone(), Arc::clone(threads), Arc::clone(&stop));
            let body = move || {
                placement.apply(hw.0);
                let mut seat = Seat::pump(&threads, hw);
                while !stop.load(Ordering::Acquire) {
                    let next = queue.pump(hw, clock.now()).unwrap_or(Instant::MAX);
                    let now = clock.now();
                    if next - now <= AWAKE_FOR {
                        thread::yield_now();
                    } else {
                        seat.park_until(next, now);
                    }
                }
            };
            started
                .handles
                .push(thread::Builder::new().name(format!("blkmq-pump-{}", hw.0)).spawn(body)?);
        }
        Ok(started)
    }
}

impl Drop for PumpThreads {
    fn drop(&mut self) {
        if planted::is(Planted::StopsAfterTheCall) {
            self.threads.wake_all_pumps();
        }
        self.stop.store(true, Ordering::Release);
        if !planted::is(Planted::StopsAfterTheCall) {
            self.threads.wake_all_pumps();
        }
        for handle in self.handles.drain(..) {
            // Its panic has been printed; a second one here would hide it.
            let _ = handle.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_spins_then_yields_then_sleeps() {
        let waiting = Waiting { spins: 5, rounds: 2, yields: 1 };
        let pauses = [1, 2, 3, 4, 5].map(|looks| waiting.next(looks));
        let sleep = Pause::Sleep;
        let expected = [Pause::Spin(5), Pause::Spin(5), Pause::Yield, sleep, sleep];
        assert_eq!(pauses, expected);
    }

    #[test]
    fn on_a_device_it_sleeps_at_once() {
        for awaited in [Awaited::Shared, Awaited::OwnLane] {
            assert_eq!(Waiting::on_device().next_of(awaited, 1), Pause::Sleep);
        }
    }

    #[test]
    fn a_client_whose_io_is_held_looks_after_all_lanes_ever_more_seldom() {
        let next = |looks| Waiting::on_device().next_of(Awaited::Others, looks);
        assert!((1..=PASS_ROUNDS).all(|looks| next(looks) == Pause::Spin(PASS_SPINS)));
        assert_eq!(next(PASS_ROUNDS + 1), Pause::Sleep);
        let (mut looks, mut now) = (Looks::NONE, Instant::ZERO + Nanos::from_secs(1));
        let mut sleep = |now, had| looks.next(now, had).0 / 1_000_000;
        let spans = [4, 4, 8, 16, 32, 64, 128, 256, 256, 256];
        for span in spans {
            assert_eq!(sleep(now, 7), span);
            // A spurious early call makes no difference.
            assert!(sleep(now + Nanos(1), 7) <= span.max(4));
            now += Nanos::from_millis(span);
        }
        assert_eq!(sleep(now, 8), 4, "a completion has come");
    }

    #[test]
    fn where_threads_outnumber_cpus_those_who_wait_for_a_pump_thread_spin_little() {
        assert_eq!(Waiting::on_pump_threads(4, 4), Waiting::for_threads(4, 4));
        let (clients, usual) = (Waiting::on_pump_threads(5, 4), Waiting::for_threads(5, 4));
        assert!(clients.rounds < usual.rounds && clients.yields == usual.yields);
    }
}
