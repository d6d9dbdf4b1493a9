//! The bounds that `doc/mq-deadline.md` promises, under loads drawn to strain them: both directions backlogged, and
//! most new requests just ahead of the last one served.

use super::common::{driver, ms};
use blkmq_core::{Class, IoMeta, IoPrio, Nanos, Op, RequestId, Rng};
use blkmq_sched::At;
use blkmq_sched::testkit::Driver;
use std::collections::BTreeMap;

const EXPIRE: u64 = 20;

struct Waiting {
    write: bool,
    /// Older requests of its direction at insertion.
    older: u64,
    deadline: blkmq_core::Instant,
    /// Requests picked before it since its deadline.
    overtaken: u64,
}

struct Load {
    rng: Rng,
    driver: Driver,
    waiting: BTreeMap<RequestId, Waiting>,
    pos: u64,
}

impl Load {
    fn insert(&mut self) {
        let write = self.rng.chance(1, 2);
        let sector = match self.rng.below(8) {
            0 => self.rng.below(10_000),
            _ => self.pos + self.rng.below(100),
        };
        let meta = IoMeta::new(if write { Op::Write } else { Op::Read }, sector, 8);
        let older = self.waiting.values().filter(|w| w.write == write).count() as u64;
        let deadline = self.driver.now() + ms(EXPIRE);
        if let Some(rq) = self.driver.insert_meta(meta, At::Tail) {
            self.waiting.insert(rq, Waiting { write, older, deadline, overtaken: 0 });
        }
    }

    /// Picks and completes one request; returns its record, with the requests that overtook it since its deadline.
    fn serve(&mut self) -> Waiting {
        let rq = self.driver.issue();
        self.pos = self.driver.meta(rq).sector;
        let served = self.waiting.remove(&rq).expect("it was inserted");
        self.driver.complete(rq);
        let now = self.driver.now();
        for other in self.waiting.values_mut() {
            other.overtaken += u64::from(other.deadline <= now);
        }
        served
    }
}

#[test]
fn no_request_is_overtaken_more_often_than_the_page_says() {
    let mut closest = [0; 2];
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let (starved, batch) = (1 + rng.below(4), 1 + rng.below(8));
        let driver = driver(&format!(
            "writes_starved={starved},fifo_batch={batch},read_expire={EXPIRE},write_expire={EXPIRE}"
        ));
        let mut load = Load { rng, driver, waiting: BTreeMap::new(), pos: 0 };
        let target = 1 + load.rng.below(20) as usize;
        for _ in 0..1_000 {
            while load.waiting.len() < target {
                load.insert();
            }
            let Waiting { write, older, overtaken, .. } = load.serve();
            // Multiplied by writes_starved, to stay with integers.
            let bound = if write {
                (older + 1) * (starved + 1) * batch * starved
            } else {
                (older * starved + older + 2 * starved) * batch
            };
            assert!(
                overtaken * starved < bound,
                "seed {seed}: {overtaken} against {bound}/{starved}"
            );
            let share = &mut closest[usize::from(write)];
            *share = (*share).max(100 * overtaken * starved / bound);
            load.driver.advance(Nanos::from_millis(load.rng.below(4)));
        }
    }
    // A bound that no request comes near would prove little.
    assert!(closest.iter().all(|percent| *percent >= 40), "closest: {closest:?} percent");
}

#[test]
fn a_lower_class_waits_for_its_age_and_then_only_for_those_as_old() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut d = driver("prio_aging_expire=50");
        let mut waiting: Vec<(RequestId, blkmq_core::Instant)> = Vec::new();
        for _ in 0..2_000 {
            // The device serves faster than the lower classes fill, and real-time requests never run out.
            let class = if rng.chance(1, 8) { Class::BestEffort } else { Class::Realtime };
            let ioprio = IoPrio::new(class, 0).expect("0 is a level");
            let op = if rng.chance(1, 2) { Op::Read } else { Op::Write };
            let meta = IoMeta { ioprio, ..IoMeta::new(op, rng.below(1_000), 8) };
            if let Some(rq) = d.insert_meta(meta, At::Tail)
                && class == Class::BestEffort
            {
                waiting.push((rq, d.now() + ms(50)));
            }
            let rq = d.issue();
            let oldest_due =
                waiting.first().filter(|(_, due)| *due <= d.now()).map(|(_, due)| *due);
            match waiting.iter().position(|(w, _)| *w == rq) {
                Some(at) => {
                    let (_, due) = waiting.remove(at);
                    assert!(oldest_due.is_none_or(|oldest| due == oldest), "seed {seed}");
                }
                None => assert_eq!(oldest_due, None, "seed {seed}: real-time before an aged one"),
            }
            d.complete(rq);
            d.advance(Nanos::from_micros(rng.below(2_000)));
        }
    }
}
