//! `bfq` against `spec/bfq.md`: the service engine against its twin, and section 19 line by line. This file has short
//! constructors of I/Os, and a small world of clients and a device in virtual time.

mod fairness;
mod refinements;
mod section19;

use blkmq_core::{Class, GroupIndex, Instant, IoMeta, IoPrio, Nanos, Op, Owner, RequestId};
use blkmq_sched::testkit::Driver;
use blkmq_sched::{At, Factory, GroupChange, Pick, Shape, registry};
use std::collections::VecDeque;

pub fn factory() -> &'static Factory {
    registry::find("bfq").expect("it is registered")
}

/// A driver of the policy, on a device without moving parts.
pub fn driver(options: &str) -> Driver {
    Driver::of(factory(), 256, options)
}

pub fn disk(options: &str) -> Driver {
    let shape = Shape { rotational: true, ..Driver::shape(256) };
    Driver::of_shape(factory(), &shape, options)
}

pub fn ms(n: u64) -> Nanos {
    Nanos::from_millis(n)
}

pub fn us(n: u64) -> Nanos {
    Nanos::from_micros(n)
}

/// A sync read of 8 sectors.
pub fn read(owner: u32, sector: u64) -> IoMeta {
    IoMeta { owner: Owner(owner), ..IoMeta::new(Op::Read, sector, 8) }
}

/// An async write of 8 sectors.
pub fn write(owner: u32, sector: u64) -> IoMeta {
    IoMeta { owner: Owner(owner), ..IoMeta::new(Op::Write, sector, 8) }
}

/// Changes to an I/O, as method chains.
pub trait With {
    fn len(self, sectors: u32) -> Self;
    fn level(self, level: u16) -> Self;
    fn class(self, class: Class) -> Self;
    fn of(self, group: u16) -> Self;
}

impl With for IoMeta {
    fn len(self, sectors: u32) -> Self {
        Self { sectors, ..self }
    }

    fn level(self, level: u16) -> Self {
        Self { ioprio: IoPrio::new(Class::BestEffort, level).expect("a level"), ..self }
    }

    fn class(self, class: Class) -> Self {
        Self { ioprio: IoPrio::new(class, 4).expect("a level"), ..self }
    }

    fn of(self, group: u16) -> Self {
        Self { group: GroupIndex(group), ..self }
    }
}

/// Inserts an I/O.
pub fn put(d: &mut Driver, meta: IoMeta) -> RequestId {
    d.insert_meta(meta, At::Tail).expect("a slot is free")
}

/// Inserts I/Os.
pub fn put_all(d: &mut Driver, all: impl IntoIterator<Item = IoMeta>) {
    for meta in all {
        put(d, meta);
    }
}

/// Adds a group below `parent`, which may be the root.
pub fn add_group(d: &mut Driver, group: u16, parent: u16, weight: u32) {
    let (group, parent) = (GroupIndex(group), GroupIndex(parent));
    d.regroup(GroupChange::Added { group, parent, weight });
}

/// Issues the next request. Returns its owner.
pub fn issue_owner(d: &mut Driver) -> u32 {
    let rq = d.issue();
    d.meta(rq).owner.0
}

/// The way in which a client chooses the position of its next request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Path {
    Sequential,
    Random,
}

/// A client that keeps `depth` I/Os under way.
pub struct Client {
    pub like: IoMeta,
    pub path: Path,
    /// The time from a completion to the next I/O.
    pub think: Nanos,
    /// Sectors, I/Os and device time that it has received.
    pub sectors: u64,
    pub ios: u64,
    pub time: Nanos,
    next_sector: u64,
    /// The time of the next submission, for each I/O that is not under way.
    ready: VecDeque<Instant>,
}

impl Client {
    pub fn new(like: IoMeta, depth: u32, path: Path) -> Self {
        let ready = (0..depth).map(|_| Instant::ZERO).collect();
        let next_sector = like.sector;
        let (sectors, ios) = (0, 0);
        let (think, time) = (Nanos::ZERO, Nanos::ZERO);
        Self { like, path, think, sectors, ios, time, next_sector, ready }
    }

    pub fn thinking(self, think: Nanos) -> Self {
        Self { think, ..self }
    }

    fn next(&mut self) -> IoMeta {
        let sector = self.next_sector;
        self.next_sector = match self.path {
            Path::Sequential => sector + u64::from(self.like.sectors),
            // A walk that never returns near an earlier position.
            Path::Random => (sector + 7_919 * 1_024) % (1 << 30),
        };
        IoMeta { sector, ..self.like }
    }
}

/// Clients, the policy, and a device that serves one request at a time, each for the time given by `cost`.
pub struct World {
    pub driver: Driver,
    pub clients: Vec<Client>,
    pub cost: fn(from: u64, meta: &IoMeta) -> Nanos,
    /// The number of requests that the device takes. It serves them in their order.
    pub width: usize,
    /// The device serves all its requests at the same time. Their costs must be equal.
    pub parallel: bool,
    /// Requests in the device, each with its client and its end.
    flying: VecDeque<(RequestId, usize, Instant)>,
    owners: Vec<(RequestId, usize)>,
    head: u64,
    /// The time for which the device has had no request.
    pub idle: Nanos,
    pub most_flying: usize,
}

impl World {
    pub fn new(driver: Driver, clients: Vec<Client>, cost: fn(u64, &IoMeta) -> Nanos) -> Self {
        Self {
            driver,
            clients,
            cost,
            width: 1,
            parallel: false,
            flying: VecDeque::new(),
            owners: Vec::new(),
            head: 0,
            idle: Nanos::ZERO,
            most_flying: 0,
        }
    }

    fn submit(&mut self) {
        let now = self.driver.now();
        for (nth, client) in self.clients.iter_mut().enumerate() {
            while client.ready.front().is_some_and(|at| *at <= now) {
                client.ready.pop_front();
                let rq = put(&mut self.driver, client.next());
                self.owners.push((rq, nth));
            }
        }
    }

    /// Fills the device. Returns the time to ask again, if the policy gives one.
    fn feed(&mut self) -> Option<Instant> {
        while self.flying.len() < self.width {
            match self.driver.pick() {
                Pick::Issue(rq) => self.start(rq),
                Pick::WaitUntil(at) => return Some(at),
                _ => return None,
            }
        }
        None
    }

    fn start(&mut self, rq: RequestId) {
        let at = self.owners.iter().position(|(r, _)| *r == rq).expect("it was submitted");
        let (_, client) = self.owners.swap_remove(at);
        let meta = *self.driver.meta(rq);
        let took = (self.cost)(self.head, &meta);
        self.head = meta.end();
        self.clients[client].time.0 += took.0;
        let behind = self.flying.back().filter(|_| !self.parallel);
        let from = behind.map_or(self.driver.now(), |(_, _, end)| *end);
        self.flying.push_back((rq, client, from + took));
        self.most_flying = self.most_flying.max(self.flying.len());
    }

    /// Lets `span` pass.
    pub fn run(&mut self, span: Nanos) {
        let end = self.driver.now() + span;
        while self.driver.now() < end {
            self.submit();
            let again = self.feed();
            let done = self.flying.front().map(|(_, _, end)| *end);
            let ready = self.clients.iter().filter_map(|c| c.ready.front().copied()).min();
            let next = [again, done, ready].into_iter().flatten().min().unwrap_or(end).min(end);
            let span = next.since(self.driver.now());
            if self.flying.is_empty() {
                self.idle.0 += span.0;
            }
            self.driver.advance(span);
            while let Some((rq, client, _)) = self.flying.front().copied()
                && done == Some(self.driver.now())
                && self.flying.front().is_some_and(|(_, _, end)| *end <= self.driver.now())
            {
                self.flying.pop_front();
                let sectors = self.driver.meta(rq).sectors;
                self.driver.complete(rq);
                let now = self.driver.now();
                let client = &mut self.clients[client];
                client.sectors += u64::from(sectors);
                client.ios += 1;
                client.ready.push_back(now + client.think);
            }
        }
    }

    /// Each client's share of all sectors, in thousandths.
    pub fn shares(&self) -> Vec<u64> {
        let all: u64 = self.clients.iter().map(|c| c.sectors).sum();
        self.clients.iter().map(|c| c.sectors * 1_000 / all.max(1)).collect()
    }

    /// Each client's share of the device's time, in thousandths.
    pub fn time_shares(&self) -> Vec<u64> {
        let all: u64 = self.clients.iter().map(|c| c.time.0).sum();
        self.clients.iter().map(|c| c.time.0 * 1_000 / all.max(1)).collect()
    }
}
