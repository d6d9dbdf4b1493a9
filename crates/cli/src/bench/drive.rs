//! Drives a worker with a real thread and a real clock: carries out the worker's steps until the worker is done.

use super::payload::{BenchPayload, Pool};
use super::tally::Part;
use super::usage::Usage;
use blkmq_core::Instant;
use blkmq_engine::{Io, Refused};
use blkmq_lab::trace::{ClientTrace, Plugged, Traced, on_cpu};
use blkmq_lab::workload::{Port, Step, Worker};
use blkmq_runtime::{Client, Clock};

/// A client, its clock, and the CPU usage of its thread.
struct Real<P: BenchPayload> {
    client: Client<P>,
    clock: Clock,
    /// While measuring: the thread's usage when measuring began. After the end: the usage in between.
    usage: Usage,
}

impl<P: BenchPayload> Port<P> for Real<P> {
    #[inline]
    fn now(&self) -> Instant {
        self.clock.now()
    }

    #[inline]
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

/// Runs `worker` to its end.
pub fn drive<P: BenchPayload>(
    worker: Worker<'_, P, Pool<P>>,
    client: Client<P>,
    trace: Option<OnCpu>,
) -> Part {
    // Two loops, so that the usual one knows nothing of traces.
    match trace {
        None => drive_with(worker, client, Worker::step),
        Some(OnCpu { cpu, pid, mut trace }) => {
            on_cpu(cpu, pid);
            drive_with(worker, client, |worker, port| {
                worker.step(&mut Traced { port, trace: &mut trace })
            })
        }
    }
}

#[inline]
fn drive_with<'a, P: BenchPayload>(
    mut worker: Worker<'a, P, Pool<P>>,
    client: Client<P>,
    mut step: impl FnMut(&mut Worker<'a, P, Pool<P>>, &mut Real<P>) -> Step,
) -> Part {
    let clock = client.clock();
    let mut port = Real { client, clock, usage: Usage::default() };
    loop {
        match step(&mut worker, &mut port) {
            Step::Go => {}
            Step::Look { most } => {
                port.client.poll();
                worker.take(|| clock.now(), |taking| port.client.reap(most, |io| taking.take(io)));
            }
            Step::Wait { until, least, most } => worker.take(
                || clock.now(),
                |taking| port.client.wait_until(until, least, most, |io| taking.take(io)),
            ),
            Step::Sleep { until } => clock.sleep_until(until),
            Step::Over => return Part { tally: worker.into_tally(), usage: port.usage },
        }
    }
}

#[cfg(test)]
#[path = "drive_tests.rs"]
mod tests;
