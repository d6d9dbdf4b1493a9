//! Helpers of these tests.

use blkmq_core::{Class, IoMeta, IoPrio, Nanos, Op, RequestId};
use blkmq_sched::testkit::Driver;
use blkmq_sched::{At, registry};

/// Slots, and so `nr_requests`, of every driver.
pub const SLOTS: u32 = 128;

pub fn driver(options: &str) -> Driver {
    Driver::of(registry::find("mq-deadline").expect("it is registered"), SLOTS, options)
}

pub fn ms(n: u64) -> Nanos {
    Nanos::from_millis(n)
}

/// Inserts a request with a class.
pub fn classed(d: &mut Driver, class: Class, op: Op, sector: u64) -> RequestId {
    let ioprio = IoPrio::new(class, 4).expect("4 is a level");
    let meta = IoMeta { ioprio, ..IoMeta::new(op, sector, 8) };
    d.insert_meta(meta, At::Tail).expect("a slot is free")
}

/// Inserts a read at each sector.
pub fn reads<const N: usize>(d: &mut Driver, sectors: [u64; N]) -> [RequestId; N] {
    sectors.map(|sector| d.insert(Op::Read, sector))
}

/// Issues and completes `n` requests, one after the other; returns their start sectors.
pub fn serve(d: &mut Driver, n: usize) -> Vec<u64> {
    (0..n).map(|_| d.serve_sector()).collect()
}

/// Inserted and not completed, by class, highest first.
pub fn queued(d: &Driver) -> [u64; 3] {
    ["rt_queued", "be_queued", "idle_queued"].map(|name| d.shown(name))
}

/// Directions of the next `n` requests, a letter each, with both directions kept backlogged.
pub fn directions(d: &mut Driver, n: usize) -> String {
    let mut sector = 0;
    let mut refill = |d: &mut Driver| {
        sector += 8;
        d.insert(Op::Read, sector);
        d.insert(Op::Write, sector);
    };
    (0..4).for_each(|_| refill(d));
    let mut letters = String::new();
    for _ in 0..n {
        let rq = d.issue();
        let op = d.meta(rq).op;
        letters.push(if op.is_write() { 'W' } else { 'R' });
        d.complete(rq);
        sector += 8;
        d.insert(op, sector);
    }
    letters
}
