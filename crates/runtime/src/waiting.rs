//! How a thread waits: how long it stays awake before it sleeps, and what wakes it.
//!
//! | the client's I/Os | first | then |
//! |---|---|---|
//! | at the device of its own lane | - | sleeps in the kernel, on its ring |
//! | with other threads: staged, held, or on their way | spins for some microseconds | sleeps on its ring until woken, and checks all lanes at times |
//! | at a device that several clients watch | - | sleeps on the device's descriptor, or is woken by a client that does ([`Post`]) |
//! | at a device that cannot be watched | spins, then yields | sleeps until the device's next event, or a wake-up |
//!
//! A thread that sleeps on a device uses no CPU time, and the completion wakes it. So it does not spin by default: at
//! depth 1 on a file, spinning would save a few microseconds of some thirty and cost twice the CPU time.
//! [`Service::set_waiting`](crate::Service::set_waiting) enables it.
//!
//! A [`Seat`] is the place where one thread sleeps. [`PumpThreads`] sleep there, too. A thread sleeps on its [`Bell`],
//! and other threads ring it to wake the thread. [`Threads`] has the bells of a queue, one for each submitter and each
//! pump, and [`ThreadHost`] is the engine's view of them.
//!
//! Without a device to watch, a sleep is thread parking. With device descriptors ([`event_fd`]), it is poll(2) on these
//! and on the thread's own eventfd.
//!
//! # No lost wake-up
//!
//! Both remember a ring, parking by its token and the eventfd by its count, until the sleeper wakes and clears it. So a
//! ring between a thread's last check for work and its sleep ends the sleep immediately. Descriptors are
//! level-triggered: poll(2) reports their state, not changes, and a device's descriptor stays readable until a thread
//! has reaped. So no completion is slept through: if the check missed it, poll(2) finds it. If another thread has
//! reaped it in between, that thread is awake, and rings the bells of the threads concerned, as the engine's protocols
//! require.
//!
//! [`event_fd`]: blkmq_engine::DeviceQueue::event_fd

use crate::planted::{self, Planted};
#[cfg(target_os = "linux")]
use crate::port;
use crate::port::thread::{self, JoinHandle, Thread};
use crate::port::{AtomicBool, Mutex, MutexGuard, available_cpus};
use crate::{Clock, Placement};
use blkmq_core::{HwQueue, Instant, Nanos, Payload, SubmitterId};
use blkmq_engine::{Another, Awaited, Config, Host, PumpMode, Queue, Submitter};
#[cfg(target_os = "linux")]
use blkmq_engine::{Berth, DeviceQueue};
#[cfg(target_os = "linux")]
pub(crate) use linux::DeviceFds;
#[cfg(target_os = "linux")]
use nix::sys::eventfd::EventFd;
use std::ops::Range;
#[cfg(target_os = "linux")]
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::{fmt, io};

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

/// The bell of a client, on whichever thread it is used, or of a pump thread.
pub(crate) enum Bell {
    /// In a queue without device descriptors to watch.
    Thread(Mutex<Sleeper>),
    #[cfg(target_os = "linux")]
    Event(EventFd),
    /// For a client that sleeps on its own lane to the device.
    #[cfg(target_os = "linux")]
    Berth(Box<dyn Berth>),
}

/// The target of a [`Bell::Thread`].
pub(crate) enum Sleeper {
    /// No thread has enrolled yet.
    Nobody,
    /// The thread that enrolled last.
    Thread(Thread),
    /// Any thread that polls this descriptor, which the client was asked for.
    #[cfg(target_os = "linux")]
    Event(Arc<EventFd>),
}

impl Bell {
    /// A bell for a thread with nothing else to watch.
    pub(crate) fn thread() -> Self {
        Self::Thread(Mutex::new(Sleeper::Nobody))
    }

    /// Makes the bell wake the calling thread. Must be called before the sleeper's last check for work: an earlier ring
    /// may wake the previously enrolled thread, and the check finds the work that it announced.
    pub(crate) fn enrol(&self) {
        match self {
            Self::Thread(place) => {
                let mut place = place.lock().expect("no thread panics while it holds this");
                match &*place {
                    Sleeper::Thread(thread) if thread.id() == thread::current().id() => {}
                    #[cfg(target_os = "linux")]
                    Sleeper::Event(_) => {}
                    Sleeper::Nobody | Sleeper::Thread(_) => {
                        *place = Sleeper::Thread(thread::current());
                    }
                }
            }
            // An eventfd wakes any thread that polls it.
            #[cfg(target_os = "linux")]
            Self::Event(_) | Self::Berth(_) => {}
        }
    }

    /// Wakes the thread, or ends its next sleep immediately. Does nothing before a thread has enrolled: the thread
    /// checks for work between enrolling and its first sleep.
    pub(crate) fn ring(&self) {
        match self {
            Self::Thread(place) => {
                let place = place.lock().expect("no thread panics while it holds this");
                match &*place {
                    Sleeper::Nobody => {}
                    Sleeper::Thread(thread) => thread.unpark(),
                    #[cfg(target_os = "linux")]
                    Sleeper::Event(fd) => port::ring(fd),
                }
            }
            #[cfg(target_os = "linux")]
            Self::Event(fd) => port::ring(fd),
            #[cfg(target_os = "linux")]
            Self::Berth(berth) => berth.call(),
        }
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use super::{Bell, Sleeper};
    use crate::port::{Mutex, drain, park, poll};
    use blkmq_core::Nanos;
    use blkmq_engine::DeviceQueue;
    use nix::poll::{PollFd, PollFlags};
    use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
    use nix::sys::eventfd::{EfdFlags, EventFd};
    use std::io;
    use std::ops::Range;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::sync::Arc;

    impl Bell {
        /// A bell for a thread that also watches devices.
        pub(crate) fn event() -> io::Result<Self> {
            new_event().map(Self::Event)
        }

        /// Calls `then` with the descriptor that a ring makes readable. Creates it if the bell has only woken threads
        /// so far. Must be called by the sleeper, before its last check for work.
        pub(crate) fn with_event<T>(&self, then: impl FnOnce(&EventFd) -> T) -> io::Result<T> {
            let place = match self {
                Self::Event(fd) => return Ok(then(fd)),
                Self::Thread(place) => place,
                Self::Berth(_) => unreachable!("it has a descriptor of its own"),
            };
            let mut place = place.lock().expect("no thread panics while it holds this");
            if !matches!(&*place, Sleeper::Event(_)) {
                *place = Sleeper::Event(Arc::new(new_event()?));
            }
            match &*place {
                Sleeper::Event(fd) => Ok(then(fd)),
                Sleeper::Nobody | Sleeper::Thread(_) => unreachable!("it was just set"),
            }
        }

        /// The descriptor, if it exists.
        fn event_of(place: &Mutex<Sleeper>) -> Option<Arc<EventFd>> {
            match &*place.lock().expect("no thread panics while it holds this") {
                Sleeper::Event(fd) => Some(Arc::clone(fd)),
                Sleeper::Nobody | Sleeper::Thread(_) => None,
            }
        }

        /// Sleeps on a bell of a queue without device descriptors to watch.
        pub(crate) fn rest(place: &Mutex<Sleeper>, left: Option<Nanos>) {
            match Self::event_of(place) {
                None => park(left),
                Some(fd) => sleep(&fd, std::iter::empty(), left),
            }
        }

        /// Forgets all rings so far, for a thread that is awake and checks for work afterwards.
        pub(crate) fn silence(&self) {
            match self {
                Self::Event(fd) => drain(fd),
                // A turn of the pump consumes them.
                Self::Berth(_) => {}
                Self::Thread(place) => {
                    if let Some(fd) = Self::event_of(place) {
                        drain(&fd);
                    }
                }
            }
        }
    }

    fn sleep<'a>(
        bell: &'a EventFd,
        devices: impl Iterator<Item = BorrowedFd<'a>>,
        left: Option<Nanos>,
    ) {
        let watch = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds: Vec<_> = std::iter::once(bell.as_fd()).chain(devices).map(watch).collect();
        // An interruption or a lack of memory counts as a ring: the thread checks for work, and sleeps again.
        let polled = poll(&mut fds, left);
        if polled.is_err() || fds[0].any() != Some(false) {
            drain(bell);
        }
    }

    fn new_event() -> io::Result<EventFd> {
        // Non-blocking: a full or an empty count makes no thread wait.
        Ok(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?)
    }

    /// The descriptors of a queue's devices, by hardware queue. They are duplicates, so threads may sleep on them even
    /// after the queue was dropped.
    pub(crate) struct DeviceFds(Box<[Option<OwnedFd>]>);

    impl DeviceFds {
        pub(crate) fn of<P>(queues: &[Box<dyn DeviceQueue<P>>]) -> io::Result<Self> {
            let fds = queues.iter().map(|queue| {
                let fd = queue.event_fd();
                fd.map(|fd| fd.try_clone_to_owned()).transpose()
            });
            fds.collect::<io::Result<_>>().map(Self)
        }

        /// Returns whether no device has a descriptor.
        pub(crate) fn is_empty(&self) -> bool {
            self.0.iter().all(Option::is_none)
        }

        /// Sleeps until `bell` rings, a device of the hardware queues `hws` is readable, or `left` is over. May wake
        /// spuriously. Consumes a ring.
        pub(crate) fn sleep(&self, bell: &EventFd, hws: Range<u16>, left: Option<Nanos>) {
            let hws = usize::from(hws.start)..usize::from(hws.end);
            sleep(bell, self.0[hws].iter().flatten().map(AsFd::as_fd), left);
        }

        /// A descriptor that is readable when `bell` has rung or a device of the hardware queues `hws` is readable.
        pub(crate) fn join(&self, bell: &EventFd, hws: Range<u16>) -> io::Result<OwnedFd> {
            let all = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            let hws = usize::from(hws.start)..usize::from(hws.end);
            let devices = self.0[hws].iter().flatten().map(AsFd::as_fd);
            for fd in std::iter::once(bell.as_fd()).chain(devices) {
                all.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
            }
            Ok(all.0)
        }
    }
}

/// The bells of one queue's threads, and the devices that some of them watch while they sleep.
///
/// The bell of a submitter is created when a client first gets its number.
pub(crate) struct Threads {
    submitters: Box<[OnceLock<Arc<Bell>>]>,
    pumps: Box<[Bell]>,
    pump_mode: PumpMode,
    /// Which of the sleeping clients watch the devices.
    post: Post,
    #[cfg(target_os = "linux")]
    pub(crate) devices: DeviceFds,
}

impl Threads {
    /// Creates the bells of the queue that `config` describes, and duplicates the descriptors of its device queues.
    pub(crate) fn new<P>(config: &Config<P>) -> io::Result<Arc<Self>> {
        #[cfg(target_os = "linux")]
        let devices = DeviceFds::of(&config.queues)?;
        #[cfg(target_os = "linux")]
        let new = if devices.is_empty() { || Ok(Bell::thread()) } else { Bell::event };
        #[cfg(not(target_os = "linux"))]
        let new = || Ok(Bell::thread());
        let pumps = match config.pump {
            PumpMode::Inline | PumpMode::Thread => config.device.hw_queues,
            PumpMode::Owner => 0,
        };
        let threads = Self {
            submitters: (0..config.submitters).map(|_| OnceLock::new()).collect(),
            pumps: (0..pumps).map(|_| new()).collect::<io::Result<_>>()?,
            pump_mode: config.pump,
            post: Post::new(config.submitters, available_cpus()),
            #[cfg(target_os = "linux")]
            devices,
        };
        #[cfg(target_os = "linux")]
        if config.pump == PumpMode::Owner {
            for (id, queue) in (0..).map(SubmitterId).zip(&config.queues) {
                threads.set_berth(id, &**queue)?;
            }
        }
        Ok(Arc::new(threads))
    }

    /// Creates the resources on which the submitter sleeps, unless they exist: its bell and, if submitters have lanes,
    /// its lane to the device, made by `another`.
    pub(crate) fn prepare<P: Payload>(
        &self,
        submitter: &mut Submitter<P>,
        another: Option<&Another<P>>,
    ) -> io::Result<()> {
        let place = &self.submitters[usize::from(submitter.id().0)];
        if place.get().is_some() {
            return Ok(());
        }
        #[cfg(target_os = "linux")]
        if self.pump_mode == PumpMode::Owner {
            let another = another.expect("a queue with lanes has been given all, or can make them");
            let lane = another()?;
            self.set_berth(submitter.id(), &*lane)?;
            submitter.install_lane(lane);
            return Ok(());
        }
        let _ = another;
        #[cfg(target_os = "linux")]
        let bell = if self.devices.is_empty() { Bell::thread() } else { Bell::event()? };
        #[cfg(not(target_os = "linux"))]
        let bell = Bell::thread();
        place.get_or_init(|| Arc::new(bell));
        Ok(())
    }

    #[cfg(target_os = "linux")]
    fn set_berth<P>(&self, id: SubmitterId, lane: &dyn DeviceQueue<P>) -> io::Result<()> {
        let berth = lane.berth().expect("a device with lanes has places to sleep on")?;
        self.submitters[usize::from(id.0)].get_or_init(|| Arc::new(Bell::Berth(berth)));
        Ok(())
    }

    /// The number of threads that only pump hardware queues.
    pub(crate) fn pump_threads(&self) -> u16 {
        match self.pump_mode {
            PumpMode::Inline | PumpMode::Owner => 0,
            PumpMode::Thread => self.pumps.len() as u16,
        }
    }

    /// Returns whether threads sleep on the devices themselves.
    pub(crate) fn watch_devices(&self) -> bool {
        #[cfg(target_os = "linux")]
        return !self.devices.is_empty();
        #[cfg(not(target_os = "linux"))]
        false
    }

    /// The hardware queues that a submitter watches: none with pump threads or own lanes. Otherwise all, because the
    /// other clients of its elevator may sleep while its own requests are at the device, and the number of hardware
    /// queues that an elevator serves may change during its sleep.
    fn watched_by_submitters(&self) -> Range<u16> {
        match self.pump_mode {
            PumpMode::Thread | PumpMode::Owner => 0..0,
            PumpMode::Inline => 0..self.pumps.len() as u16,
        }
    }

    /// The bell of a submitter that has been [prepared](Self::prepare).
    pub(crate) fn submitter(&self, id: SubmitterId) -> &Arc<Bell> {
        self.submitters[usize::from(id.0)].get().expect("a client has a bell")
    }

    pub(crate) fn pump(&self, hw: HwQueue) -> &Bell {
        &self.pumps[usize::from(hw.0)]
    }

    /// Wakes the thread that waits as this submitter, or ends its next sleep immediately.
    pub(crate) fn wake_submitter(&self, id: SubmitterId) {
        // Without a bell, no thread waits as this submitter.
        if let Some(bell) = self.submitters[usize::from(id.0)].get() {
            bell.ring();
        }
    }

    fn wake_all_pumps(&self) {
        self.pumps.iter().for_each(Bell::ring);
    }
}

/// The engine's view of [`Threads`], with the clock by which the engine measures waits for locks.
pub(crate) struct ThreadHost {
    pub(crate) threads: Arc<Threads>,
    pub(crate) clock: Clock,
}

impl Host for ThreadHost {
    fn wake_submitter(&self, submitter: SubmitterId) {
        self.threads.wake_submitter(submitter);
    }

    fn wake_pump(&self, hw: HwQueue) {
        self.threads.pump(hw).ring();
    }

    fn ticks(&self) -> u64 {
        self.clock.now().as_nanos()
    }
}

/// How a client sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// On its bell and on the devices.
    Watching,
    /// On its bell alone.
    Asleep,
}

/// The places of all clients of a queue.
///
/// A device's descriptor wakes all threads that watch it, and most completions are for one of them. So where many
/// threads sleep, one watches, and the others sleep on their bells. A completion wakes the watching thread, which reaps
/// it and rings the bell of its client. While no thread sleeps without watching, as many threads as there are CPUs may
/// watch: each then wakes directly, without another thread in between.
#[derive(Debug)]
struct Post(Mutex<Places>);

impl Post {
    /// For submitters with numbers below `submitters`, of which `at_once` may watch while no other one sleeps.
    pub(crate) fn new(submitters: u16, at_once: u16) -> Self {
        Self(Mutex::new(Places::new(submitters, at_once)))
    }

    /// Registers a client that is about to sleep, and returns its place. The client has announced that it parks, and
    /// has checked for work after that.
    fn lie_down(&self, id: SubmitterId) -> Place {
        self.places().lie_down(id)
    }

    /// Unregisters a client that has slept in `place`. Returns whether it now has the duty: others rely on it to watch.
    fn get_up(&self, id: SubmitterId, place: Place) -> bool {
        self.places().get_up(id, place)
    }

    /// Ends the duty of a client that does not sleep again at present. Returns the client that takes it over, whose
    /// bell the caller must ring; `None` if no client needs to.
    pub(crate) fn leave(&self) -> Option<SubmitterId> {
        self.places().leave()
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().expect("no code of others runs under the lock")
    }
}

/// The state behind the mutex. Allocates nothing after creation.
#[derive(PartialEq, Eq, Debug)]
struct Places {
    at_once: u16,
    watching: u16,
    /// A bit for each client that sleeps without watching, and their number.
    asleep: Box<[u64]>,
    sleepers: u16,
    /// The sleeper that was woken to take over the duty.
    called: Option<SubmitterId>,
}

impl Places {
    fn new(submitters: u16, at_once: u16) -> Self {
        let words = usize::from(submitters).div_ceil(64);
        let asleep = vec![0; words].into_boxed_slice();
        Self { at_once, watching: 0, asleep, sleepers: 0, called: None }
    }

    fn lie_down(&mut self, id: SubmitterId) -> Place {
        if self.watching == 0 || (self.sleepers == 0 && self.watching < self.at_once) {
            self.watching += 1;
            return Place::Watching;
        }
        self.asleep[usize::from(id.0 / 64)] |= 1 << (id.0 % 64);
        self.sleepers += 1;
        Place::Asleep
    }

    fn get_up(&mut self, id: SubmitterId, place: Place) -> bool {
        if place == Place::Watching {
            self.watching -= 1;
            return true;
        }
        self.asleep[usize::from(id.0 / 64)] &= !(1 << (id.0 % 64));
        self.sleepers -= 1;
        let was_called = self.called == Some(id);
        if was_called {
            self.called = None;
        }
        was_called
    }

    fn leave(&mut self) -> Option<SubmitterId> {
        if self.watching > 0 || self.called.is_some() {
            return None;
        }
        let (at, word) = self.asleep.iter().enumerate().find(|(_, word)| **word != 0)?;
        self.called = Some(SubmitterId(at as u16 * 64 + word.trailing_zeros() as u16));
        self.called
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

    const A: SubmitterId = SubmitterId(0);

    const B: SubmitterId = SubmitterId(70);

    const C: SubmitterId = SubmitterId(3);

    #[test]
    fn with_no_more_threads_than_cpus_each_watches() {
        let mut places = Places::new(80, 2);
        let mut lie_down = |id| places.lie_down(id);
        assert_eq!((lie_down(A), lie_down(B)), (Place::Watching, Place::Watching));
        assert_eq!(lie_down(C), Place::Asleep);
        // From here on one of them watches.
        assert!(places.get_up(A, Place::Watching));
        assert_eq!(places.lie_down(A), Place::Asleep);
        assert_eq!(places.leave(), None, "B watches");
        assert!(places.get_up(B, Place::Watching));
        assert_eq!(places.lie_down(B), Place::Watching);
    }

    #[test]
    fn one_that_leaves_calls_a_sleeper_if_no_thread_watches() {
        let mut places = Places::new(80, 1);
        assert_eq!(places.lie_down(A), Place::Watching);
        assert_eq!((places.lie_down(B), places.lie_down(C)), (Place::Asleep, Place::Asleep));
        assert!(places.get_up(A, Place::Watching));
        assert_eq!(places.leave(), Some(C));
        assert_eq!(places.leave(), None, "one is enough");
        assert!(!places.get_up(B, Place::Asleep), "it was woken for something else");
        assert!(places.get_up(C, Place::Asleep));
        assert_eq!(places.leave(), None, "no thread sleeps");
        assert_eq!(places, Places::new(80, 1));
    }
}
