//! The threads, the locks and the system calls by which this crate waits. Under shuttle, a model replaces them, so
//! the loops of clients, reactors and pump threads run there unchanged.
//!
//! The model uses real descriptors, and asks the kernel whether they are readable; only the waiting is modelled.
//!
//! The clock is not part of the port (`clock.rs`), nor is a berth, which is a port itself (`blkmq_engine::Berth`).

#[cfg(all(not(all(test, shuttle)), target_os = "linux"))]
pub(crate) use kernel::{drain, poll, ring};
#[cfg(not(all(test, shuttle)))]
pub(crate) use {
    crate::placement::available_cpus,
    kernel::park,
    std::hint::spin_loop,
    std::sync::{Mutex, MutexGuard, atomic::AtomicBool},
    std::thread,
};

#[cfg(all(test, shuttle))]
pub(crate) use {
    model::{available_cpus, drain, park, poll, ring, thread},
    shuttle::hint::spin_loop,
    shuttle::sync::{Mutex, MutexGuard, atomic::AtomicBool},
};

/// The system calls by which a thread sleeps and is woken.
#[cfg(not(all(test, shuttle)))]
mod kernel {
    use blkmq_core::Nanos;
    use std::thread;
    use std::time::Duration;

    #[cfg(target_os = "linux")]
    pub(crate) use linux::{drain, poll, ring};

    /// Parks the thread, for `left` at most.
    pub(crate) fn park(left: Option<Nanos>) {
        match left {
            None => thread::park(),
            Some(Nanos(ns)) => thread::park_timeout(Duration::from_nanos(ns)),
        }
    }

    #[cfg(target_os = "linux")]
    mod linux {
        use blkmq_core::Nanos;
        use nix::poll::{PollFd, ppoll};
        use nix::sys::eventfd::EventFd;
        use std::time::Duration;

        /// Sleeps until one of `fds` is ready, for `left` at most. Returns the number of ready ones.
        pub(crate) fn poll(fds: &mut [PollFd<'_>], left: Option<Nanos>) -> nix::Result<usize> {
            let left = left.map(|Nanos(ns)| Duration::from_nanos(ns).into());
            ppoll(fds, left, None).map(|ready| ready as usize)
        }

        /// Makes an eventfd readable.
        pub(crate) fn ring(fd: &EventFd) {
            // Fails only at a count of 2^64 - 2, and then the descriptor is readable anyway.
            let _ = fd.write(1);
        }

        /// Makes an eventfd unreadable.
        pub(crate) fn drain(fd: &EventFd) {
            // The read fails if the count is zero already.
            let _ = fd.read();
        }
    }
}

#[cfg(all(test, shuttle))]
pub(crate) mod model {
    //! The model behind the port: where threads sleep, and the clock.
    //!
    //! Time stands still while any thread is awake. When the last one goes to sleep, time jumps to the earliest
    //! time-out of a sleeper; without one, shuttle reports a deadlock. So a time-out cannot hide a lost wake-up: a test
    //! compares the [number of time-outs](World::timeouts) that ended a sleep with the number that its load needs.
    //!
    //! A sleeper states its condition, and checks it again after each change that another thread announces. So the
    //! conditions can be the kernel's: whether a descriptor is readable.

    use blkmq_core::{Instant, Nanos};
    use nix::poll::{PollFd, PollTimeout};
    use nix::sys::eventfd::EventFd;
    use shuttle::rand::Rng;
    use shuttle::sync::{Condvar, Mutex, MutexGuard};
    use std::cell::RefCell;
    use std::sync::Arc;

    thread_local! {
        // All threads of a model are coroutines on the thread of its test.
        static WORLD: RefCell<Option<Arc<World>>> = const { RefCell::new(None) };
    }

    /// The world of the current schedule.
    pub(crate) fn world() -> Arc<World> {
        WORLD.with_borrow(|world| Arc::clone(world.as_ref().expect("a schedule has begun")))
    }

    /// Sleepers and clock of one schedule.
    pub(crate) struct World {
        state: Mutex<State>,
        cpus: u16,
        /// Lets time pass while threads are awake, so that time-outs may end sleeps at any moment.
        drift: bool,
    }

    struct State {
        now: Instant,
        timeouts: u32,
        seats: Vec<Seat>,
    }

    /// A thread.
    struct Seat {
        id: Option<shuttle::thread::ThreadId>,
        doing: Doing,
        bell: Arc<Condvar>,
        /// The thread was unparked, and has not parked since.
        token: bool,
    }

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Doing {
        Awake,
        /// Asleep until a change, or until this time.
        Asleep(Instant),
        Gone,
    }

    /// Whether the end of a sleep by its time-out is counted.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Timer {
        Counted,
        /// The time-out is the only thing that the thread waits for.
        Wanted,
    }

    impl World {
        /// Begins a schedule on the calling thread, on a machine with `cpus` CPUs.
        pub(crate) fn begin(cpus: u16, drift: bool) -> Arc<Self> {
            let me = Seat { id: Some(shuttle::thread::current().id()), ..Seat::new() };
            let state = State { now: Instant::ZERO, timeouts: 0, seats: vec![me] };
            let world = Arc::new(Self { state: Mutex::new(state), cpus, drift });
            WORLD.set(Some(Arc::clone(&world)));
            world
        }

        /// Ends the schedule.
        pub(crate) fn end() {
            WORLD.set(None);
        }

        fn state(&self) -> MutexGuard<'_, State> {
            self.state.lock().expect("a panic ends the schedule")
        }

        /// The time.
        pub(crate) fn now(&self) -> Instant {
            let mut state = self.state();
            if self.drift {
                let mut rng = shuttle::rand::thread_rng();
                if rng.gen_range(0..16) == 0 {
                    state.pass(Nanos::from_micros(rng.gen_range(1..5_000)));
                }
            }
            state.now
        }

        /// The number of sleeps ended by a time-out.
        pub(crate) fn timeouts(&self) -> u32 {
            self.state().timeouts
        }

        /// Sleeps until `ready`, which must not sleep, or for `left`. Returns whether it was ready.
        pub(crate) fn sleep(&self, left: Option<Nanos>, mut ready: impl FnMut() -> bool) -> bool {
            self.sleep_until(left, Timer::Counted, |_| ready())
        }

        /// Occupies the calling thread for `span`.
        pub(crate) fn compute(&self, span: Nanos) {
            self.sleep_until(Some(span), Timer::Wanted, |_| false);
        }

        fn sleep_until(
            &self,
            left: Option<Nanos>,
            timer: Timer,
            mut ready: impl FnMut(&mut State) -> bool,
        ) -> bool {
            let mut state = self.state();
            let until = left.map_or(Instant::MAX, |left| state.now + left);
            let mut has_slept = false;
            loop {
                if ready(&mut state) {
                    drop(state);
                    if !has_slept {
                        // The thread may be waiting for another one that is about to act.
                        shuttle::thread::yield_now();
                    }
                    return true;
                }
                if until <= state.now {
                    state.timeouts += u32::from(has_slept && timer == Timer::Counted);
                    return false;
                }
                has_slept = true;
                let me = state.me();
                state.seats[me].doing = Doing::Asleep(until);
                state.settle();
                let bell = Arc::clone(&state.seats[me].bell);
                while state.seats[me].doing != Doing::Awake {
                    state = bell.wait(state).expect("a panic ends the schedule");
                }
            }
        }

        /// Announces that the condition of a sleeper may have changed.
        pub(crate) fn changed(&self) {
            self.state().rouse_all();
        }
    }

    impl Seat {
        fn new() -> Self {
            Self { id: None, doing: Doing::Awake, bell: Arc::new(Condvar::new()), token: false }
        }
    }

    impl State {
        /// The seat of the calling thread.
        fn me(&self) -> usize {
            self.seat(shuttle::thread::current().id())
        }

        fn seat(&self, id: shuttle::thread::ThreadId) -> usize {
            let seat = self.seats.iter().position(|seat| seat.id == Some(id));
            seat.expect("every thread of a schedule is started by the port")
        }

        fn rouse(&mut self, seat: usize) {
            if matches!(self.seats[seat].doing, Doing::Asleep(_)) {
                self.seats[seat].doing = Doing::Awake;
                self.seats[seat].bell.notify_one();
            }
        }

        fn rouse_all(&mut self) {
            (0..self.seats.len()).for_each(|seat| self.rouse(seat));
        }

        fn pass(&mut self, span: Nanos) {
            self.now += span;
            for seat in 0..self.seats.len() {
                if matches!(self.seats[seat].doing, Doing::Asleep(until) if until <= self.now) {
                    self.rouse(seat);
                }
            }
        }

        /// Lets time pass if no thread is awake.
        fn settle(&mut self) {
            if self.seats.iter().any(|seat| seat.doing == Doing::Awake) {
                return;
            }
            let until = |seat: &Seat| match seat.doing {
                Doing::Asleep(until) => until,
                Doing::Awake | Doing::Gone => Instant::MAX,
            };
            let next = self.seats.iter().map(until).min();
            if let Some(next) = next.filter(|next| *next < Instant::MAX) {
                self.pass(next - self.now);
            }
        }
    }

    /// The CPUs of the model's machine.
    pub(crate) fn available_cpus() -> u16 {
        world().cpus
    }

    /// Sleeps until a descriptor is ready, in the model; returns the result of the system call.
    pub(crate) fn poll(fds: &mut [PollFd<'_>], left: Option<Nanos>) -> nix::Result<usize> {
        let mut found = Ok(0);
        world().sleep(left, || {
            found = nix::poll::poll(fds, PollTimeout::ZERO).map(|ready| ready as usize);
            found != Ok(0)
        });
        found
    }

    /// Makes an eventfd readable.
    pub(crate) fn ring(fd: &EventFd) {
        let world = world();
        let mut state = world.state();
        fd.write(1).expect("there is room in the count");
        state.rouse_all();
    }

    /// Makes an eventfd unreadable.
    pub(crate) fn drain(fd: &EventFd) {
        let world = world();
        let _state = world.state();
        // The read fails if the count is zero already.
        let _ = fd.read();
    }

    /// Parks the thread, for `left` at most.
    pub(crate) fn park(left: Option<Nanos>) {
        world().sleep_until(left, Timer::Counted, |state| {
            let me = state.me();
            std::mem::take(&mut state.seats[me].token)
        });
    }

    /// The threads of a schedule, in the shape of `std::thread`.
    pub(crate) mod thread {
        use super::{Doing, Seat, Timer, world};
        use blkmq_core::Nanos;
        use std::io;

        pub(crate) use shuttle::thread::ThreadId;

        /// A handle to a thread, by which it is unparked.
        #[derive(Clone)]
        pub(crate) struct Thread(ThreadId);

        impl Thread {
            pub(crate) fn id(&self) -> ThreadId {
                self.0
            }

            pub(crate) fn unpark(&self) {
                let world = world();
                let mut state = world.state();
                let seat = state.seat(self.0);
                state.seats[seat].token = true;
                state.rouse(seat);
            }
        }

        pub(crate) fn current() -> Thread {
            Thread(shuttle::thread::current().id())
        }

        /// Yields, and advances time by a microsecond, because threads yield while they wait for a time that is near.
        pub(crate) fn yield_now() {
            world().state().pass(Nanos::from_micros(1));
            shuttle::thread::yield_now();
        }

        /// Starts threads.
        pub(crate) struct Builder;

        impl Builder {
            pub(crate) fn new() -> Self {
                Self
            }

            pub(crate) fn name(self, _: String) -> Self {
                self
            }

            pub(crate) fn spawn<T: Send + 'static>(
                self,
                body: impl FnOnce() -> T + Send + 'static,
            ) -> io::Result<JoinHandle<T>> {
                Ok(spawn(body))
            }
        }

        pub(crate) struct JoinHandle<T> {
            seat: usize,
            inner: shuttle::thread::JoinHandle<T>,
        }

        /// Removes the thread from the model when it is dropped.
        struct Leaves(usize);

        impl Drop for Leaves {
            fn drop(&mut self) {
                let world = world();
                let mut state = world.state();
                state.seats[self.0].doing = Doing::Gone;
                // A thread may wait for the end of this one.
                state.rouse_all();
            }
        }

        pub(crate) fn spawn<T: Send + 'static>(
            body: impl FnOnce() -> T + Send + 'static,
        ) -> JoinHandle<T> {
            let seat = {
                let world = world();
                let mut state = world.state();
                state.seats.push(Seat::new());
                state.seats.len() - 1
            };
            let inner = shuttle::thread::spawn(move || {
                let id = shuttle::thread::current().id();
                world().state().seats[seat].id = Some(id);
                let _leaves = Leaves(seat);
                body()
            });
            JoinHandle { seat, inner }
        }

        impl<T> JoinHandle<T> {
            pub(crate) fn thread(&self) -> Thread {
                Thread(self.inner.thread().id())
            }

            pub(crate) fn join(self) -> std::thread::Result<T> {
                let seat = self.seat;
                let gone = |state: &mut super::State| state.seats[seat].doing == Doing::Gone;
                world().sleep_until(None, Timer::Wanted, gone);
                self.inner.join()
            }
        }
    }
}
