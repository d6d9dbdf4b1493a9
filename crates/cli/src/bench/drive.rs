//! Drives a worker with a real thread and a real clock: carries out the worker's steps until the worker is done.

use super::payload::{BenchPayload, Pool};
use super::tally::Part;
use super::usage::Usage;
use crate::interrupt::Stop;
use blkmq_core::{Instant, Nanos};
use blkmq_engine::{Io, Refused};
use blkmq_lab::trace::{ClientTrace, Plugged, Traced, on_cpu};
use blkmq_lab::workload::{Port, Step, Worker};
use blkmq_runtime::{Client, Clock};

/// Portions for which one reading of the clock is enough, if none of their I/Os is timed and the thread has not waited.
const PORTIONS: u32 = 8;

/// A client, its clock, and the CPU usage of its thread.
struct Real<P: BenchPayload> {
    client: Client<P>,
    clock: Clock,
    /// The time as last read for such a portion, and the portions for which it is still enough.
    recently: (Instant, u32),
    /// While measuring: the thread's usage when measuring began. After the end: the usage in between.
    usage: Usage,
}

impl<P: BenchPayload> Port<P> for Real<P> {
    #[inline]
    fn now(&self) -> Instant {
        self.clock.now()
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
        self.client.push_at(now, io)
    }

    #[inline]
    fn flush(&mut self, now: Instant) {
        self.client.flush_at(now);
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
    /// Its number as a CPU.
    pub cpu: u16,
    /// Its number as a process.
    pub pid: u32,
    pub trace: ClientTrace,
}

/// How long a thread waits without a look at its [`Stop`].
const LOOK: Nanos = Nanos::from_millis(50);

/// Runs `worker` to its end, or until `stop` is set.
pub fn drive<P: BenchPayload>(
    worker: Worker<'_, P, Pool<P>>,
    client: Client<P>,
    trace: Option<OnCpu>,
    stop: &Stop,
) -> Part {
    // Two loops, so that the usual one knows nothing of traces.
    match trace {
        None => drive_with(worker, client, stop, Worker::step),
        Some(OnCpu { cpu, pid, mut trace }) => {
            on_cpu(cpu, pid);
            drive_with(worker, client, stop, |worker, port| {
                worker.step(&mut Traced { port, trace: &mut trace })
            })
        }
    }
}

#[inline]
fn drive_with<'a, P: BenchPayload>(
    mut worker: Worker<'a, P, Pool<P>>,
    client: Client<P>,
    stop: &Stop,
    mut step: impl FnMut(&mut Worker<'a, P, Pool<P>>, &mut Real<P>) -> Step,
) -> Part {
    let clock = client.clock();
    let mut port = Real { client, clock, recently: (Instant::ZERO, 0), usage: Usage::default() };
    // The next look at `stop` of a thread that waits.
    let mut look = clock.now() + LOOK;
    loop {
        if stop.is_set() {
            worker.stop(clock.now());
        }
        match step(&mut worker, &mut port) {
            Step::Go => {}
            Step::Look { most } => {
                port.client.poll();
                worker.take(|| clock.now(), |taking| port.client.reap(most, |io| taking.take(io)));
            }
            Step::Wait { until, least, most } => worker.take(
                || clock.now(),
                |taking| {
                    let mut got = port.client.reap(most, |io| taking.take(io));
                    if got >= least {
                        return got;
                    }
                    port.recently.1 = 0;
                    loop {
                        let pause = until.min(look);
                        let take = |io| taking.take(io);
                        got += port.client.wait_until(pause, least - got, most - got, take);
                        if got >= least || stop.is_set() {
                            return got;
                        }
                        let now = clock.now();
                        look = now + LOOK;
                        // Before its time the client returns if I/Os are lost.
                        if now < pause || now >= until {
                            return got;
                        }
                    }
                },
            ),
            Step::Sleep { until } => {
                sleep(clock, until, stop);
                port.recently.1 = 0;
            }
            Step::Over => {
                let counted = worker.is_measuring();
                return Part { tally: worker.into_tally(), usage: port.usage, counted };
            }
        }
    }
}

/// Sleeps until `until`, or until shortly after `stop` is set.
fn sleep(clock: Clock, until: Instant, stop: &Stop) {
    let mut now = clock.now();
    while until > now && !stop.is_set() {
        clock.sleep_until(until.min(now + LOOK));
        now = clock.now();
    }
}

#[cfg(test)]
#[path = "drive_tests.rs"]
mod tests;
