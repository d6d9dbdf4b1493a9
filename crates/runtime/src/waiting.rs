//! How a thread waits: how long it stays awake before it sleeps, and where a completion finds it.
//!
//! | the client's I/Os | first | then |
//! |---|---|---|
//! | at the device of its own lane | - | sleeps in the kernel, on its ring |
//! | with other threads: staged, held, or on their way | spins for some microseconds | sleeps there, until a call, and looks after all lanes at times |
//! | at a device that several clients watch | - | sleeps on the device's descriptor, or is woken by a client that does (`bell.rs`) |
//! | at a device that cannot be watched | spins, then yields | sleeps until the device's next event, or a wake-up |
//!
//! A thread that sleeps on a device uses no CPU for the wait, and the completion wakes it. So by default it does not
//! spin: at depth 1 on a file that would save a few microseconds of some thirty and cost twice the CPU time. A program
//! that wants it says so ([`Service::set_waiting`](crate::Service::set_waiting)).
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
#[cfg(target_os = "linux")]
use std::io;
use std::ops::Range;
#[cfg(target_os = "linux")]
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A thread with an event due within this time yields until then instead of sleeping: a timer would overshoot by
/// more.
pub(crate) const AWAKE_FOR: Nanos = Nanos::from_micros(60);

/// Rounds of spinning for a thread whose I/Os another thread is about to send, in a pass of a few microseconds.
const PASS_ROUNDS: u32 = if cfg!(shuttle) { 1 } else { 4 };

/// Looks at its own completions in each of them.
const PASS_SPINS: u32 = if cfg!(shuttle) { 1 } else { 16 };

/// How long a client sleeps, at first, while none of its I/Os is at the device of its lane: then it looks after all lanes,
/// since its I/Os may wait for something that a client has whose thread does something else. Later it sleeps for as long as
/// it has waited, up to [`LONGEST_LOOK`].
const FIRST_LOOK: Nanos = Nanos::from_millis(4);

const LONGEST_LOOK: Nanos = Nanos::from_millis(256);

/// How long a waiting thread stays awake before it parks.
///
/// Waking a thread on another core costs some 50 us, so for a short wait spinning is cheaper. But where threads
/// outnumber cores, the thread that this one waits for may need this very core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Looks at the thread's own completion queue between two looks for work to help with.
    pub spins: u32,
    /// Looks for work before giving the CPU away.
    pub rounds: u32,
    /// Times to give the CPU away before parking.
    pub yields: u32,
}

impl Waiting {
    /// For a thread that shares `cpus` CPUs with others, `threads` in all.
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

    /// The next step after `looks` in a row, the first of them 1, that have found nothing.
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

/// The looks after all lanes of a client that waits for something that other threads have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looks {
    /// Completions that had come by the first of them.
    had: u64,
    /// The time of that one.
    since: Instant,
}

impl Looks {
    pub(crate) const NONE: Self = Self { had: u64::MAX, since: Instant::ZERO };

    /// The client looks at `now`, and `had` completions have come in all. Returns how long it may sleep before it looks
    /// again.
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
    /// Look this many times at the thread's own completion queue.
    Spin(u32),
    /// Yield the CPU.
    Yield,
    /// Sleep, if that is allowed.
    Sleep,
}

/// A place where one thread sleeps, and the devices that it watches during that sleep: the seat of a client, on whatever
/// thread that is used, or of a pump thread.
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

/// Running pump threads, one per hardware queue, for blocking clients and for devices that interrupt; dropping stops and
/// joins them.
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
            // Called early, for no reason: that makes no difference.
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
