//! A device that serves one request at a time in the time that it costs, and tenants that keep requests waiting.

use blkmq_core::{GroupIndex, IoMeta, Nanos, Op};
use blkmq_sched::testkit::Driver;
use blkmq_sched::{At, GroupChange, Guarantee, Pick, Rate, registry};

/// A group, and its load.
#[derive(Clone, Copy)]
pub struct Tenant {
    pub parent: u16,
    pub weight: u32,
    pub guarantee: Guarantee,
    /// Requests that it keeps waiting; they are random reads of 4 KiB.
    pub depth: u32,
}

pub const IDLE: u32 = 0;

impl Tenant {
    pub const fn new(weight: u32) -> Self {
        let none = Rate { iops: 0, bps: 0, percent: 0 };
        Self { parent: 0, weight, guarantee: Guarantee { reserve: none, limit: none }, depth: 8 }
    }

    pub const fn reserve(mut self, iops: u64) -> Self {
        self.guarantee.reserve.iops = iops;
        self
    }

    pub const fn limit(mut self, iops: u64) -> Self {
        self.guarantee.limit.iops = iops;
        self
    }

    pub const fn below(self, parent: u16) -> Self {
        Self { parent, ..self }
    }

    pub const fn depth(self, depth: u32) -> Self {
        Self { depth, ..self }
    }
}

/// Tenants, groups 1 and up, on a device that serves `capacity` random reads in a second.
pub struct World {
    pub driver: Driver,
    tenants: Vec<Tenant>,
    waiting: Vec<u32>,
    capacity: u64,
    sector: u64,
}

impl World {
    /// The clock begins at `begin` nanoseconds.
    pub fn new(capacity: u64, begin: u64, tenants: &[Tenant]) -> Self {
        let factory = registry::find("mclock").expect("it is registered");
        let options = format!("rbps=1000000000000,rrandiops={capacity}");
        let mut driver = Driver::of(factory, 4_096, &options);
        driver.advance(Nanos(begin));
        for (group, tenant) in (1..).map(GroupIndex).zip(tenants) {
            let (parent, weight) = (GroupIndex(tenant.parent), tenant.weight);
            driver.regroup(GroupChange::Added { group, parent, weight });
            driver.regroup(GroupChange::Guarantee { group, guarantee: tenant.guarantee });
        }
        let waiting = vec![0; tenants.len()];
        Self { driver, tenants: tenants.to_vec(), waiting, capacity, sector: 0 }
    }

    pub fn set_depth(&mut self, tenant: usize, depth: u32) {
        self.tenants[tenant].depth = depth;
    }

    fn fill(&mut self) {
        for (at, tenant) in self.tenants.iter().enumerate() {
            while self.waiting[at] < tenant.depth {
                // No request begins where another one ends.
                self.sector += 1_000;
                let group = GroupIndex(at as u16 + 1);
                let io = IoMeta { group, ..IoMeta::new(Op::Read, self.sector, 8) };
                self.driver.insert_meta(io, At::Tail).expect("slots enough");
                self.waiting[at] += 1;
            }
        }
    }

    /// Lets `span` pass; returns the requests served, by tenant.
    pub fn run(&mut self, span: Nanos) -> Vec<u64> {
        let end = self.driver.now() + span;
        let mut served = vec![0; self.tenants.len()];
        while self.driver.now() < end {
            self.fill();
            match self.driver.pick() {
                Pick::Issue(rq) => {
                    let tenant = usize::from(self.driver.meta(rq).group.0) - 1;
                    self.driver.advance(Nanos(1_000_000_000 / self.capacity));
                    self.driver.complete(rq);
                    self.waiting[tenant] -= 1;
                    served[tenant] += 1;
                }
                Pick::WaitUntil(at) => self.driver.advance((at.min(end)) - self.driver.now()),
                Pick::Empty => self.driver.advance(end - self.driver.now()),
                other => panic!("a device without requests is waited for: {other:?}"),
            }
        }
        served
    }
}
