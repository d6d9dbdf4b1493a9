//! Closed loops of readers and writers at a device with a latency that depends on its load, in virtual time.

use super::common::driver;
use blkmq_core::{Instant, IoMeta, Nanos, Op, RequestId, Rng};
use blkmq_sched::testkit::{Driver, FakeDevice};
use blkmq_sched::{At, Pick};
use std::collections::BTreeSet;

/// A device and its load.
#[derive(Clone, Copy)]
pub struct Scene {
    /// Requests that it works on at once.
    pub ways: usize,
    /// Service time of a read and of a write, plus or minus a quarter.
    pub service: [Nanos; 2],
    /// Reads and writes that wait or are in the device, at any time.
    pub loops: [usize; 2],
}

/// The completions of one operation in a span of time.
#[derive(Default)]
pub struct Seen {
    device: Vec<u64>,
    total: Vec<u64>,
}

impl Seen {
    pub fn count(&self) -> u64 {
        self.device.len() as u64
    }

    /// The device latency at or below which `percent` of the samples lie.
    pub fn device(&self, percent: usize) -> Nanos {
        Self::percentile(&self.device, percent)
    }

    pub fn total(&self, percent: usize) -> Nanos {
        Self::percentile(&self.total, percent)
    }

    fn percentile(latencies: &[u64], percent: usize) -> Nanos {
        let mut sorted = latencies.to_vec();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        Nanos(sorted.get(rank - 1).copied().expect("there were some"))
    }
}

pub struct Load {
    pub scene: Scene,
    pub driver: Driver,
    device: FakeDevice,
    rng: Rng,
    finished: BTreeSet<(Instant, RequestId)>,
    outstanding: [usize; 2],
}

impl Load {
    pub fn new(scene: Scene, options: &str) -> Self {
        Self {
            scene,
            driver: driver(options),
            device: FakeDevice::new(scene.ways),
            rng: Rng::new(1),
            finished: BTreeSet::new(),
            outstanding: [0; 2],
        }
    }

    /// Runs the load for `span`; returns the completions, by operation.
    pub fn run(&mut self, span: Nanos) -> [Seen; 2] {
        let end = self.driver.now() + span;
        let mut seen = [Seen::default(), Seen::default()];
        loop {
            self.submit();
            let asks_again = self.dispatch();
            let finishes = self.finished.first().map(|(when, _)| *when);
            let next = [finishes, asks_again].into_iter().flatten().min();
            let next = next.expect("loops never run dry");
            if next > end {
                let rest = end - self.driver.now();
                self.driver.advance(rest);
                return seen;
            }
            let wait = next - self.driver.now();
            self.driver.advance(wait);
            self.reap(&mut seen);
        }
    }

    fn submit(&mut self) {
        for (op, kind) in [(Op::Read, 0), (Op::Write, 1)] {
            while self.outstanding[kind] < self.scene.loops[kind] {
                self.outstanding[kind] += 1;
                let rq = self.driver.insert_meta(IoMeta::new(op, 0, 8), At::Tail);
                rq.expect("loops are smaller than the table");
            }
        }
    }

    /// Hands the picked requests to the device; returns the latest time to ask the policy again, if it gives one.
    fn dispatch(&mut self) -> Option<Instant> {
        loop {
            let rq = match self.driver.pick() {
                Pick::Issue(rq) => rq,
                Pick::WaitUntil(at) => return Some(at),
                _ => return None,
            };
            let service = self.scene.service[self.driver.meta(rq).op as usize].0;
            let service = Nanos(service * (75 + self.rng.below(51)) / 100);
            let now = self.driver.now();
            self.finished.insert((self.device.accept(now, service), rq));
        }
    }

    fn reap(&mut self, seen: &mut [Seen; 2]) {
        let now = self.driver.now();
        while let Some((when, rq)) = self.finished.first().copied()
            && when <= now
        {
            self.finished.pop_first();
            let meta = *self.driver.meta(rq);
            let issued = self.driver.picked_at(rq).expect("it was picked");
            self.driver.complete(rq);
            let kind = meta.op as usize;
            self.outstanding[kind] -= 1;
            seen[kind].device.push((now - issued).0);
            seen[kind].total.push((now - meta.arrived).0);
        }
    }
}
