//! A bell: the thing that one thread sleeps on and by which other threads wake it.
//!
//! Where there is nothing else to watch, that is thread parking. Where a device has a descriptor to watch
//! ([`event_fd`]), it is poll(2) on that descriptor and on an eventfd of the thread's own.
//!
//! # No lost wake-up
//!
//! Both remember one ring: parking by its token, the eventfd by its count, and only the sleeper takes that away, when
//! it wakes. So a ring between a thread's last look for work and its falling asleep ends that sleep immediately.
//! Descriptors are level-triggered: poll(2) looks at the state and not at changes, and a device's descriptor stays
//! readable until a thread has reaped. So no completion before, during or after the look is slept through: if the
//! look missed it, poll(2) finds it. If another thread reaped it in between, that thread is awake, and rings the
//! bells of the threads concerned, as the engine's protocols require.
//!
//! [`event_fd`]: blkmq_engine::DeviceQueue::event_fd

#[cfg(target_os = "linux")]
use crate::port;
use crate::port::Mutex;
use crate::port::thread::{self, Thread};
#[cfg(target_os = "linux")]
use blkmq_engine::Berth;
#[cfg(target_os = "linux")]
use nix::sys::eventfd::EventFd;
#[cfg(target_os = "linux")]
use std::sync::Arc;

#[cfg(target_os = "linux")]
pub(crate) use linux::DeviceFds;

/// The bell of one sleeper: of a client, on whatever thread that is used, or of a pump thread.
pub(crate) enum Bell {
    /// In a queue without device descriptors to watch.
    Thread(Mutex<Sleeper>),
    #[cfg(target_os = "linux")]
    Event(EventFd),
    /// Of a client that owns a lane to the device, and sleeps on it.
    #[cfg(target_os = "linux")]
    Berth(Box<dyn Berth>),
}

/// The target of a [`Bell::Thread`].
pub(crate) enum Sleeper {
    /// Nothing: no thread has enrolled yet.
    Nobody,
    /// The thread that enrolled last.
    Thread(Thread),
    /// Any thread that polls the descriptor that the client was asked for.
    #[cfg(target_os = "linux")]
    Event(Arc<EventFd>),
}

impl Bell {
    /// For a thread with nothing else to watch.
    pub(crate) fn thread() -> Self {
        Self::Thread(Mutex::new(Sleeper::Nobody))
    }

    /// Makes the calling thread the one to wake from now on. To be called before the sleeper's last look for work: a
    /// ring before that may wake the thread that enrolled earlier, and the look finds the work that it announced.
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

    /// Wakes the thread, or keeps it from sleeping next time. Does nothing before a thread has enrolled: the thread
    /// looks for work between enrolling and its first sleep.
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
        /// For a thread that watches devices as well.
        pub(crate) fn event() -> io::Result<Self> {
            new_event().map(Self::Event)
        }

        /// Calls `then` with the descriptor that a ring makes readable. Makes that descriptor now if the bell has
        /// woken a thread so far. To be called by the sleeper, before its last look for work.
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

        /// The descriptor, if it has been made.
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

        /// Forgets all rings so far. For a thread that is awake and looks for work after this.
        pub(crate) fn silence(&self) {
            match self {
                Self::Event(fd) => drain(fd),
                // A turn of the pump takes notice.
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
        // Interrupted or out of memory counts as a ring: the thread looks for work, and sleeps again.
        let polled = poll(&mut fds, left);
        if polled.is_err() || fds[0].any() != Some(false) {
            drain(bell);
        }
    }

    fn new_event() -> io::Result<EventFd> {
        // Non-blocking, so that neither side ever waits for the other at a full or an empty count.
        Ok(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?)
    }

    /// The descriptors of a queue's devices, by hardware queue. They are duplicates, so threads may sleep on them
    /// even when the queue is gone.
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

        /// Sleeps until `bell` rings, a device of the hardware queues `hws` has something, or `left` is over;
        /// sometimes wakes for no reason. Consumes a ring.
        pub(crate) fn sleep(&self, bell: &EventFd, hws: Range<u16>, left: Option<Nanos>) {
            let hws = usize::from(hws.start)..usize::from(hws.end);
            sleep(bell, self.0[hws].iter().flatten().map(AsFd::as_fd), left);
        }

        /// One descriptor for all of these: readable when `bell` has rung or a device of the hardware queues `hws`
        /// has something.
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
