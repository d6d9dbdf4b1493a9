//! `kyber` against `spec/kyber.md`: section 8 line by line, the governor alone and against its twin, and the promises
//! of `adaptive` in `doc/kyber.md`.
//!
//! This file has one instance, or several that share tokens ([`Fleet`]), and closed loops of readers and writers at a
//! device whose latency depends on its load, in virtual time ([`Load`]).

mod adaptive;
mod governor;
mod section8;

use blkmq_core::{HwQueue, Instant, IoMeta, Nanos, Op, Owner, RequestId, Rng};
use blkmq_sched::testkit::{Checked, Driver, FakeDevice, LocalEnv};
use blkmq_sched::{At, Cx, Done, Factory, Options, Pick, Requests, Scheduler, Shape, registry};
use std::collections::{BTreeMap, BTreeSet};

/// Scheduler tags of an instance.
pub const NR_REQUESTS: u32 = 1024;

/// An operation of each domain, in the order of their numbers.
pub const OPS: [Op; 4] = [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes];
/// The initial tokens of each domain.
pub const TOKENS: [u32; 4] = [256, 128, 64, 16];

pub fn factory() -> &'static Factory {
    registry::find("kyber").expect("it is registered")
}

pub fn driver(options: &str) -> Driver {
    Driver::of(factory(), NR_REQUESTS, options)
}

pub const fn us(n: u64) -> Nanos {
    Nanos::from_micros(n)
}

pub const fn ms(n: u64) -> Nanos {
    Nanos::from_millis(n)
}

/// Inserts a request of an owner.
pub fn owned(d: &mut Driver, owner: u32, op: Op, at: At) -> RequestId {
    let meta = IoMeta { owner: Owner(owner), ..IoMeta::new(op, 0, 8) };
    d.insert_meta(meta, at).expect("a slot is free")
}

/// A counter that the governor reports.
pub fn governed(env: &LocalEnv, name: &str) -> u64 {
    let found = env.inspect().into_iter().find(|(n, _)| *n == name);
    found.unwrap_or_else(|| panic!("nothing called '{name}' is shown")).1
}

/// Several instances, each for a hardware queue, with one environment.
pub struct Fleet {
    instances: Vec<Checked>,
    requests: Requests,
    pub env: LocalEnv,
    pub now: Instant,
    /// The instance of each live request, and the time at which it was picked.
    home: BTreeMap<RequestId, (usize, Instant)>,
}

impl Fleet {
    pub fn new(instances: usize, options: &str) -> Self {
        let options = Options::parse(factory().attributes, options).expect("valid options");
        let slots = NR_REQUESTS * instances as u32;
        let shape = Shape { slots, nr_requests: NR_REQUESTS, ..Driver::shape(slots) };
        let build = |_| Checked::checking((factory().build)(&shape, &options));
        Self {
            instances: (0..instances).map(build).collect(),
            requests: Requests::new(slots),
            env: LocalEnv::of(factory(), &shape, &options),
            now: Instant::ZERO,
            home: BTreeMap::new(),
        }
    }

    fn call<R>(&mut self, nth: usize, call: impl FnOnce(&mut Checked, &Cx<'_>) -> R) -> R {
        let Self { instances, requests, env, now, .. } = self;
        call(&mut instances[nth], &Cx::new(*now, requests, env))
    }

    pub fn held(&self, nth: usize) -> usize {
        self.instances[nth].observer().held().len()
    }

    /// Requests in the device, by domain, over all instances.
    pub fn in_device(&self) -> [u32; 4] {
        let issued = || self.instances.iter().flat_map(|policy| policy.observer().issued());
        OPS.map(|op| issued().filter(|rq| self.requests.get(**rq).op == op).count() as u32)
    }

    pub fn has_issued(&self, nth: usize) -> bool {
        !self.instances[nth].observer().issued().is_empty()
    }

    /// One of the requests that an instance has in the device.
    pub fn some_issued(&self, nth: usize, which: u64) -> RequestId {
        let issued = self.instances[nth].observer().issued();
        let which = (which % issued.len() as u64) as usize;
        *issued.iter().nth(which).expect("there are that many")
    }

    pub fn insert(&mut self, nth: usize, op: Op) -> Option<RequestId> {
        let meta = IoMeta { arrived: self.now, ..IoMeta::new(op, 0, 8) };
        let rq = self.requests.alloc(meta)?;
        self.home.insert(rq, (nth, self.now));
        self.call(nth, |instance, cx| instance.insert(cx, rq, At::Tail));
        Some(rq)
    }

    pub fn pick(&mut self, nth: usize) -> Pick {
        self.env.review(self.now);
        let pick = self.call(nth, |instance, cx| instance.pick(cx, HwQueue(nth as u16)));
        let issued = if let Pick::Issue(rq) = pick { Some(rq) } else { None };
        self.env.settle(issued);
        if let Some(rq) = issued {
            self.home.insert(rq, (nth, self.now));
        }
        pick
    }

    pub fn complete(&mut self, rq: RequestId) {
        let (nth, issued) = self.home.remove(&rq).expect("it is live");
        let done = Done { rq, result: Ok(()), issued, completed: self.now };
        self.env.give_back(rq);
        self.call(nth, |instance, cx| instance.completed(cx, &done));
        self.requests.free(rq);
    }

    pub fn requeue(&mut self, rq: RequestId) {
        let (nth, _) = self.home[&rq];
        self.env.give_back(rq);
        self.call(nth, |instance, cx| instance.insert(cx, rq, At::Head));
    }
}

/// A device and its load.
#[derive(Clone, Copy)]
pub struct Scene {
    /// The number of requests that it works on at a time.
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

    /// Runs the load for `span`. Returns the completions, by operation.
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

    /// Hands the picked requests to the device. Returns the latest time to ask the policy again, if it gives one.
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
