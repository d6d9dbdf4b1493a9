//! Helpers of these tests: one instance, or several that share tokens.

use blkmq_core::{HwQueue, Instant, IoMeta, Nanos, Op, Owner, RequestId};
use blkmq_sched::testkit::{Checked, Driver, LocalEnv};
use blkmq_sched::{At, Cx, Done, Factory, Options, Pick, Requests, Scheduler, Shape, registry};
use std::collections::BTreeMap;

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
