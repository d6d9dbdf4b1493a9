//! No request is held for ever (section 19, line 17): random histories with everything switched on, and the bound of
//! `doc/bfq.md` under a load that is drawn to strain it.

use super::common::{disk, driver, factory, ms, put, read, us};
use blkmq_core::{Class, Instant, IoPrio, RequestId, Rng};
use blkmq_sched::testkit::{Driver, Event, Script};
use blkmq_sched::{At, Pick, Shape};
use std::collections::BTreeMap;

/// Owners leave, groups move and are removed, queues merge and split, attributes change, requests are requeued and
/// withdrawn, and at times the queue drains, so that the device must not be kept idle.
#[test]
fn s19_17_whatever_happens_every_request_is_picked() {
    let mut waits = 0;
    for seed in 0..400 {
        let mut script = Script::with_tenants(seed, factory().attributes);
        let options = script.options();
        let shape = Shape { rotational: seed % 4 != 0, ..Driver::shape(1 + seed as u32 % 60) };
        let mut d = Driver::of_shape(factory(), &shape, &options);
        for nth in 0..2_000 {
            let draining = nth % 200 >= 180;
            d.env().set_draining(draining);
            if let Event::Picked(Pick::WaitUntil(at)) = d.apply(script.step()) {
                waits += 1;
                assert!(at > d.now() && !draining, "seed {seed}");
            }
        }
        // Fails if the policy waits more often than about twice for each request.
        d.drain();
        assert_eq!(d.shown("queued") + d.shown("dispatch") + d.shown("in_driver"), 0);
    }
    assert!(waits > 1_000, "only {waits} waits prove little");
}

#[test]
fn owners_without_number_are_forgotten_in_their_order() {
    let mut d = driver("");
    for owner in 0..20_000 {
        let rq = put(&mut d, read(owner, u64::from(owner) * 8));
        while !d.issued().contains(&rq) {
            if let Pick::WaitUntil(at) = d.pick() {
                d.advance(at.since(d.now()));
            }
        }
        d.complete(rq);
        d.advance(us(50));
    }
    assert!(d.shown("queues") <= 1_026, "{}", d.shown("queues"));
    (0..20_000).for_each(|owner| d.owner_gone(blkmq_core::Owner(owner)));
    assert!(d.shown("queues") <= 1, "but for the one in service");
}

#[test]
fn an_owner_that_leaves_too_early_comes_back_as_a_new_one() {
    let mut d = driver("low_latency=0");
    let first = put(&mut d, read(1, 0));
    let second = put(&mut d, read(1, 8));
    assert_eq!(d.issue(), first);
    d.owner_gone(blkmq_core::Owner(1));
    let third = put(&mut d, read(1, 16));
    assert_eq!(d.shown("queues"), 2);
    d.owner_gone(blkmq_core::Owner(1));
    d.complete(first);
    let order = d.drain();
    assert_eq!(order.len(), 2);
    assert!(order.contains(&second) && order.contains(&third));
}

const BUDGET: u64 = 256;
const EXPIRE: u64 = 20;
const OWNERS: u64 = 6;

struct Waiting {
    weight: u64,
    /// Requests of its owner that were inserted before it.
    older: u64,
    due: Instant,
    /// Sectors served to any queue since it is due.
    overtaken: u64,
}

/// All owners are backlogged, and most new requests lie just ahead of the device's position.
fn strain(seed: u64, rotational: bool) {
    let mut rng = Rng::new(seed);
    let options = format!(
        "low_latency=0,queue_merge=0,max_budget={BUDGET},fifo_expire_sync={EXPIRE},injection={}",
        rng.below(2)
    );
    let mut d: Driver = if rotational { disk(&options) } else { driver(&options) };
    let mut waiting: BTreeMap<RequestId, (u64, Waiting)> = BTreeMap::new();
    let mut pos = 1 << 20;
    let all: u64 = (0..OWNERS).map(|owner| (8 - owner) * 10).sum();
    for _ in 0..6_000 {
        if d.held().len() < 60 {
            let owner = rng.below(OWNERS);
            let near = rng.chance(7, 8);
            let sector = if near { pos + 8 * rng.below(4) } else { 8 * rng.below(1 << 22) };
            let ioprio = IoPrio::new(Class::BestEffort, owner as u16).expect("a level");
            let meta = blkmq_core::IoMeta { ioprio, ..read(owner as u32, sector) };
            let older = waiting.values().filter(|(o, _)| *o == owner).count() as u64;
            let rq = d.insert_meta(meta, At::Tail).expect("a slot is free");
            let (weight, due) = ((8 - owner) * 10, d.now() + ms(EXPIRE));
            waiting.insert(rq, (owner, Waiting { weight, older, due, overtaken: 0 }));
        }
        match d.pick() {
            Pick::Issue(rq) => {
                pos = d.meta(rq).end();
                let (_, its) = waiting.remove(&rq).expect("it waited");
                let slot = BUDGET + 24;
                let bound = (its.older + 3) * (all * slot / its.weight + (OWNERS + 1) * slot);
                assert!(its.overtaken <= bound, "seed {seed}: {} > {bound}", its.overtaken);
                let now = d.now();
                let due = waiting.values_mut().filter(|(_, w)| w.due <= now);
                due.for_each(|(_, w)| w.overtaken += 8);
                d.advance(us(100));
                d.complete(rq);
            }
            Pick::WaitUntil(at) => d.advance(at.since(d.now())),
            Pick::WaitCompletion => panic!("nothing is in flight"),
            Pick::Empty | Pick::WaitToken => {}
        }
    }
}

#[test]
fn no_request_is_overtaken_by_more_than_the_page_says() {
    for seed in 0..12 {
        strain(seed, seed % 2 == 0);
    }
}

/// Requests of one owner, most of which are served in sector order; the oldest lies behind and would wait for ever if
/// ages were not checked.
#[test]
fn the_oldest_request_of_a_queue_is_served_once_it_is_due() {
    let mut d = driver("low_latency=0,max_budget=64,fifo_expire_sync=20");
    let far = put(&mut d, read(1, 1 << 30));
    let mut at = 0;
    for n in 0_u64.. {
        assert!(n < 400, "it is never served");
        at += 8;
        put(&mut d, read(1, at));
        put(&mut d, read(1, (1 << 24) + at));
        let rq = d.issue();
        if rq == far {
            assert!(d.now() >= Instant::ZERO + ms(20));
            return;
        }
        at = d.meta(rq).sector;
        d.complete(rq);
        d.advance(ms(1));
        if d.held().len() > 100 {
            let extra = d.held().into_iter().find(|rq| *rq != far).expect("there are many");
            d.withdraw(extra);
        }
    }
}
