//! Drives a worker with a real thread and a real clock: performs the worker's steps until the worker is done.

use super::setup::{BenchPayload, Pool};
use super::status::Asked;
use super::tally::{Part, Usage};
use blkmq_core::{Instant, Nanos};
use blkmq_engine::{Completion, Io, Refused};
use blkmq_lab::trace::{ClientTrace, Plugged, Traced, on_cpu};
use blkmq_lab::workload::{Port, Step, Worker};
use blkmq_runtime::{Client, Clock};
use blkmq_terminal::program::Stop;
use std::cell::Cell;

/// The number of portions for which one reading of the clock is enough, if none of their I/Os is timed and the thread
/// has not waited.
const PORTIONS: u32 = 8;

/// A client, its clock, and the CPU usage of its thread.
struct Real<P: BenchPayload> {
    client: Client<P>,
    clock: Clock,
    /// The last reading of the clock, and the number of portions for which it is still valid.
    recently: (Instant, u32),
    /// The last reading of the clock by the worker, if the thread has not waited since: completions found then had
    /// arrived by that time.
    last: Cell<Option<Instant>>,
    /// Whether the client has its own lane.
    has_own_lane: bool,
    /// Whether the only I/O in flight is in the client's plug. The wait for it submits it, in one system call.
    is_unsent: bool,
    /// While measuring: the thread's usage when measuring began. After the end: the usage in between.
    usage: Usage,
}

/// The completions that a thread waits for.
#[derive(Clone, Copy)]
struct Wait {
    until: Instant,
    least: u32,
    most: u32,
}

impl<P: BenchPayload> Real<P> {
    /// Submits an I/O that was left to a wait.
    #[cold]
    fn send(&mut self, now: Instant) {
        self.is_unsent = false;
        self.client.flush_at(now);
    }

    /// Waits for enough completions, for a time, or for a request from `outside`, which it polls; `look` is the time of
    /// the next poll. Returns the number of completions reaped.
    #[inline(never)]
    fn wait(
        &mut self,
        wait: Wait,
        outside: &Outside<'_>,
        look: &mut Instant,
        mut take: impl FnMut(Completion<P>),
    ) -> u32 {
        let Wait { until, least, most } = wait;
        self.recently.1 = 0;
        let mut got = 0;
        loop {
            let pause = until.min(*look);
            got += self.client.wait_until(pause, least - got, most - got, &mut take);
            if got >= least || outside.asks() {
                return got;
            }
            let now = self.clock.now();
            *look = now + LOOK;
            // Before its time the client returns if I/Os are lost.
            if now < pause || now >= until {
                return got;
            }
        }
    }

    /// The counts of `worker` so far.
    fn so_far(&self, worker: &Worker<'_, P, Pool<P>>) -> Part {
        let usage =
            if worker.is_counting() { Usage::of_thread().since(self.usage) } else { self.usage };
        let counted = worker.is_measuring();
        Part { tally: worker.so_far(self.clock.now()), usage, counted }
    }
}

impl<P: BenchPayload> Port<P> for Real<P> {
    #[inline]
    fn now(&self) -> Instant {
        let now = self.clock.now();
        self.last.set(Some(now));
        now
    }

    #[inline]
    fn recently(&mut self) -> Instant {
        let (now, left) = &mut self.recently;
        if *left == 0 {
            (*now, *left) = (self.clock.now(), PORTIONS);
        }
        *left -= 1;
        *now
    }

    #[inline(always)]
    fn push(&mut self, now: Instant, io: Io<P>) -> Result<(), Refused<P>> {
        if self.is_unsent {
            self.send(now);
        }
        self.client.push_at(now, io)
    }

    #[inline]
    fn flush(&mut self, now: Instant) {
        self.is_unsent = self.has_own_lane && self.client.in_flight() == 1;
        if !self.is_unsent {
            self.client.flush_at(now);
        }
    }

    fn cancel(&mut self, _: Instant, cookie: u64) {
        self.client.cancel(cookie);
    }

    #[inline]
    fn outstanding(&self) -> u32 {
        self.client.outstanding()
    }

    fn measuring_begins(&mut self) {
        self.usage = Usage::of_thread();
    }

    fn measuring_ends(&mut self) {
        self.usage = Usage::of_thread().since(self.usage);
    }
}

impl<P: BenchPayload> Plugged for Real<P> {
    fn plugged(&self) -> (u32, u64) {
        self.client.plugged()
    }
}

/// The CPU and the process under which a thread records its trace events.
pub struct OnCpu {
    /// The number under which it appears as a CPU.
    pub cpu: u16,
    /// The number under which it appears as a process.
    pub pid: u32,
    pub trace: ClientTrace,
}

/// The requests from outside to a thread.
pub struct Outside<'a> {
    /// Requests the end of the run.
    pub stop: &'a Stop,
    /// Requests the counts so far, if a status may be requested.
    pub asked: Option<Asked<'a>>,
}

impl<'a> From<&'a Stop> for Outside<'a> {
    fn from(stop: &'a Stop) -> Self {
        Self { stop, asked: None }
    }
}

impl Outside<'_> {
    #[inline]
    fn asks(&self) -> bool {
        self.stop.is_set() || self.asks_for_counts()
    }

    #[inline]
    fn asks_for_counts(&self) -> bool {
        self.asked.as_ref().is_some_and(Asked::is_due)
    }

    /// Answers a request for the status with `part`.
    #[inline]
    fn answer(&mut self, part: impl FnOnce() -> Part) {
        if let Some(asked) = self.asked.as_mut().filter(|asked| asked.is_due()) {
            asked.answer(part());
        }
    }
}

/// The longest time that a thread waits without checking [`Outside`] for requests.
const LOOK: Nanos = Nanos::from_millis(50);

/// Runs `worker` until its work is done or `outside` stops it.
pub fn drive<P: BenchPayload>(
    worker: Worker<'_, P, Pool<P>>,
    client: Client<P>,
    trace: Option<OnCpu>,
    outside: Outside<'_>,
) -> Part {
    // Two loops, so that the usual one has no code for traces.
    match trace {
        None => drive_with(worker, client, outside, Worker::step),
        Some(OnCpu { cpu, pid, mut trace }) => {
            on_cpu(cpu, pid);
            drive_with(worker, client, outside, |worker, port| {
                worker.step(&mut Traced { port, trace: &mut trace })
            })
        }
    }
}

#[inline]
fn drive_with<'a, P: BenchPayload>(
    mut worker: Worker<'a, P, Pool<P>>,
    client: Client<P>,
    mut outside: Outside<'_>,
    mut step: impl FnMut(&mut Worker<'a, P, Pool<P>>, &mut Real<P>) -> Step,
) -> Part {
    let clock = client.clock();
    let mut port = Real {
        has_own_lane: client.has_own_lane(),
        client,
        clock,
        recently: (Instant::ZERO, 0),
        last: Cell::new(None),
        is_unsent: false,
        usage: Usage::default(),
    };
    // The next poll of the outside while the thread waits.
    let mut look = clock.now() + LOOK;
    loop {
        if outside.stop.is_set() {
            worker.stop(clock.now());
        }
        outside.answer(|| port.so_far(&worker));
        let next = step(&mut worker, &mut port);
        if port.is_unsent && !matches!(next, Step::Wait { .. }) {
            port.send(clock.now());
        }
        match next {
            Step::Go => {}
            Step::Look { most } => {
                port.last.set(None);
                port.client.poll();
                worker.take(|| clock.now(), |taking| port.client.reap(most, |io| taking.take(io)));
            }
            Step::Wait { until, least, most } => {
                let last = Cell::new(port.last.take());
                worker.take(
                    || last.get().unwrap_or_else(|| clock.now()),
                    |taking| {
                        let got = port.client.reap(most, |io| taking.take(io));
                        if got >= least {
                            return got;
                        }
                        port.is_unsent = false;
                        last.set(None);
                        let wait = Wait { until, least: least - got, most: most - got };
                        got + port.wait(wait, &outside, &mut look, |io| taking.take_later(io))
                    },
                );
            }
            Step::Sleep { until } => {
                sleep(clock, until, &mut outside, || port.so_far(&worker));
                port.recently.1 = 0;
                port.last.set(None);
            }
            Step::Over => {
                let counted = worker.is_measuring();
                let part = Part { tally: worker.into_tally(), usage: port.usage, counted };
                if let Some(asked) = outside.asked {
                    asked.end(part.clone());
                }
                return part;
            }
        }
    }
}

/// Sleeps until `until`, or until [`LOOK`] after the stop of `outside`. Answers a request for the status with `part`.
fn sleep(clock: Clock, until: Instant, outside: &mut Outside<'_>, part: impl Fn() -> Part) {
    let mut now = clock.now();
    while until > now && !outside.stop.is_set() {
        outside.answer(&part);
        clock.sleep_until(until.min(now + LOOK));
        now = clock.now();
    }
}

#[cfg(test)]
mod tests;
