//! A scheduler in one file, and a queue that uses it. `write-cap` issues reads and writes in turns and limits the
//! number of writes at the device, so that reads do not wait behind a flood of writes.
//!
//! The page of [`Scheduler`] describes the calls that a policy gets and the answers that it must give. This policy uses
//! the parts that most policies use: lists that never allocate, a side table indexed by slot, a pick that says "not
//! now", and an attribute. A policy for general use belongs in the crate `blkmq-sched`; see `CONTRIBUTING.md`.
//!
//! `cargo run --release --example own_scheduler`

use blkmq::core::{Histogram, HwQueue, RequestId, Rng};
use blkmq::prelude::*;
use blkmq::sched::index::Fifo;
use blkmq::sched::{
    At, Attribute, Cx, Done, Factory, Options, Pick, Scheduler, Scope, Shape, Unit,
};
use std::error::Error;

/// The factory, which [`Config::scheduler`] takes: a name, the attributes, and a function that builds an instance.
///
/// Reads and writes go in turns, each in order of arrival, with at most `writes` writes at the device. A read waits for
/// the earlier reads and as many writes. A write waits for the earlier writes, as many reads, and the completion of one
/// of `writes` writes.
pub const FACTORY: Factory = Factory {
    name: "write-cap",
    summary: "reads and writes in turns, few writes at the device at once",
    scope: Scope::Queue,
    common: None,
    attributes: &[Attribute {
        name: "writes",
        unit: Unit::Count,
        default: 4,
        min: 1,
        max: 1024,
        help: "writes at the device at once",
    }],
    build: |shape, options| Box::new(WriteCap::new(shape, options)),
};

struct WriteCap {
    /// Requests that were inserted at the head, such as requeued ones. They go before all others.
    head: Fifo,
    reads: Fifo,
    writes: Fifo,
    /// By slot: true for a write that was picked and has not completed.
    is_writing: Box<[bool]>,
    writing: u32,
    most: u32,
    read_is_next: bool,
}

impl WriteCap {
    fn new(shape: &Shape, options: &Options) -> Self {
        // The policy allocates only here.
        let list = || Fifo::new(shape.slots);
        Self {
            head: list(),
            reads: list(),
            writes: list(),
            is_writing: vec![false; shape.slots as usize].into_boxed_slice(),
            writing: 0,
            most: options.get("writes") as u32,
            read_is_next: true,
        }
    }

    fn list_of(&mut self, cx: &Cx<'_>, rq: RequestId) -> &mut Fifo {
        if cx.requests.get(rq).op.is_write() { &mut self.writes } else { &mut self.reads }
    }

    fn issue(&mut self, cx: &Cx<'_>, rq: RequestId) -> Pick {
        let is_write = cx.requests.get(rq).op.is_write();
        self.is_writing[rq.index()] = is_write;
        self.writing += u32::from(is_write);
        self.read_is_next = is_write;
        Pick::Issue(rq)
    }

    /// Notes that `rq` is no longer at the device.
    fn came_back(&mut self, rq: RequestId) {
        let was_writing = std::mem::take(&mut self.is_writing[rq.index()]);
        self.writing -= u32::from(was_writing);
    }
}

impl Scheduler for WriteCap {
    fn insert(&mut self, cx: &Cx<'_>, rq: RequestId, at: At) {
        match at {
            At::Head => {
                // This may be a requeue: such a request was picked, and `completed` is not called for that pick.
                self.came_back(rq);
                self.head.push_front(rq);
            }
            At::Tail => self.list_of(cx, rq).push_back(rq),
        }
    }

    fn pick(&mut self, cx: &Cx<'_>, _: HwQueue) -> Pick {
        if let Some(rq) = self.head.pop_front() {
            return self.issue(cx, rq);
        }
        let may_write = !self.writes.is_empty() && self.writing < self.most;
        let reads_go = !self.reads.is_empty() && (self.read_is_next || !may_write);
        let next = match (reads_go, may_write) {
            (true, _) => self.reads.pop_front(),
            (false, true) => self.writes.pop_front(),
            (false, false) => None,
        };
        match next {
            Some(rq) => self.issue(cx, rq),
            None if self.writes.is_empty() => Pick::Empty,
            // The cap is at least 1 and is reached, so a write is at the device and will complete.
            None => Pick::WaitCompletion,
        }
    }

    fn completed(&mut self, _: &Cx<'_>, done: &Done) {
        self.came_back(done.rq);
    }

    fn withdraw(&mut self, cx: &Cx<'_>, rq: RequestId) {
        let list = if self.head.contains(rq) { &mut self.head } else { self.list_of(cx, rq) };
        list.remove(rq);
    }

    fn absorbed(&mut self, cx: &Cx<'_>, _into: RequestId, gone: RequestId) {
        // The surviving request keeps its place in its list.
        self.withdraw(cx, gone);
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("head", self.head.len() as u64);
        out("reads", self.reads.len() as u64);
        out("writes", self.writes.len() as u64);
        out("writing", self.writing.into());
    }

    fn attribute(&self, name: &str) -> Option<i64> {
        (name == "writes").then_some(self.most.into())
    }

    fn set_attribute(&mut self, name: &str, value: i64) -> bool {
        let is_ours = name == "writes";
        if is_ours {
            self.most = value as u32;
        }
        is_ours
    }
}

/// Compares the policy with two built-in ones. Each round is a flood of 24 writes with 8 reads behind it.
pub fn main() -> Result<(), Box<dyn Error>> {
    println!("reads behind a flood of writes:");
    for name in ["none", "mq-deadline", FACTORY.name] {
        let factory = blkmq::scheduler(name).unwrap_or(&FACTORY);
        let latencies = reads_behind_writes(factory)?;
        let micros = |share| latencies.quantile(share, 100) / 1000;
        println!("  {name:<12} p50 {:>4} us, p99 {:>4} us", micros(50), micros(99));
    }
    Ok(())
}

fn reads_behind_writes(factory: &'static Factory) -> Result<Histogram, Box<dyn Error>> {
    // The device serves eight requests at once and takes 50 us for each.
    let device = blkmq::open("null,irqmode=2,completion_nsec=50000,hw_queue_depth=8")?;
    let mut config = device.config()?.scheduler(factory);
    // A scheduler can choose only among the requests that it holds: give it enough slots for the whole flood.
    config.nr_requests = Some(64);
    let service = Service::start(config)?;
    let mut client = service.client()?;
    let (mut random, mut latencies) = (Rng::new(1), Histogram::new());
    for _ in 0..50 {
        let begun = client.clock().now();
        for nth in 0..32 {
            let op = if nth < 24 { Op::Write } else { Op::Read };
            // The cookie holds the operation. The sectors are far apart, so that nothing merges.
            let (sector, page) = (random.below(1 << 20) * 64, AlignedBuf::new(4096));
            client.push_at(begun, Io::new(op, sector, 8, op as u64, page))?;
        }
        while client.in_flight() > 0 {
            let mut reads = 0;
            client.wait(1, 32, |done| reads += u32::from(done.cookie == Op::Read as u64));
            let latency = client.clock().now().since(begun);
            (0..reads).for_each(|_| latencies.record(latency.0));
        }
    }
    Ok(latencies)
}
