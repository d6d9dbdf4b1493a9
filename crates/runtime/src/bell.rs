//! Bells: a thread sleeps on its bell, and other threads ring it to wake the thread. [`Threads`] has the bells of a
//! queue, one for each submitter and each pump, and [`ThreadHost`] is the engine's view of them.
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

#[cfg(target_os = "linux")]
pub(crate) use linux::DeviceFds;

use crate::Clock;
#[cfg(target_os = "linux")]
use crate::port;
use crate::port::thread::{self, Thread};
use crate::port::{Mutex, MutexGuard, available_cpus};
use blkmq_core::{HwQueue, Payload, SubmitterId};
use blkmq_engine::{Another, Config, Host, PumpMode, Submitter};
#[cfg(target_os = "linux")]
use blkmq_engine::{Berth, DeviceQueue};
#[cfg(target_os = "linux")]
use nix::sys::eventfd::EventFd;
use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

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
    pub(crate) post: Post,
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
    pub(crate) fn watched_by_submitters(&self) -> Range<u16> {
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

    pub(crate) fn wake_all_pumps(&self) {
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
pub(crate) enum Place {
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
pub(crate) struct Post(Mutex<Places>);

impl Post {
    /// For submitters with numbers below `submitters`, of which `at_once` may watch while no other one sleeps.
    pub(crate) fn new(submitters: u16, at_once: u16) -> Self {
        Self(Mutex::new(Places::new(submitters, at_once)))
    }

    /// Registers a client that is about to sleep, and returns its place. The client has announced that it parks, and
    /// has checked for work after that.
    pub(crate) fn lie_down(&self, id: SubmitterId) -> Place {
        self.places().lie_down(id)
    }

    /// Unregisters a client that has slept in `place`. Returns whether it now has the duty: others rely on it to watch.
    pub(crate) fn get_up(&self, id: SubmitterId, place: Place) -> bool {
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
