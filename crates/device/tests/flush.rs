//! Writers share flushes (`spec/framework.md` section 12 and section 16, point 20), on the null device in virtual time.

use crate::common;

use blkmq_core::{Instant, IoFlags, Nanos, Op, Rng};
use blkmq_device::contract::Rig;
use blkmq_device::{Arrival, Device};
use blkmq_engine::{Access, Config};
use blkmq_sched::{Factory, registry};
use common::null;

/// The time that the device takes for any request.
const SERVICE: Nanos = Nanos::from_micros(50);
const WRITERS: usize = 16;
/// Writes of each writer.
const WRITES: u64 = 100;
const ALL: u64 = WRITERS as u64 * WRITES;

/// A device with a volatile cache and without FUA.
fn cached() -> Device {
    let text = format!("irqmode=2,completion_nsec={},hw_queue_depth=64,log=1", SERVICE.0);
    null(&format!("{text},write_cache=1,fua=0"))
}

/// Writers that write with FUA, one write at a time, and pause for up to `think` between writes.
struct Writers {
    rig: Rig,
    rng: Rng,
    think: Nanos,
    /// The time of each writer's next write; `None` while it waits for a completion, and at the end.
    next: [Option<Instant>; WRITERS],
    left: [u64; WRITERS],
    /// For each cookie, the writer and the sector.
    written: Vec<(usize, u64)>,
}

impl Writers {
    fn new(config: Config<u64>, think: Nanos) -> Self {
        Self {
            rig: Rig::new(Config { submitters: WRITERS as u16, ..config }),
            rng: Rng::new(16),
            think,
            next: [Some(Instant::ZERO); WRITERS],
            left: [WRITES; WRITERS],
            written: Vec::new(),
        }
    }

    fn run(&mut self) {
        let mut seen = 0;
        loop {
            for who in 0..WRITERS {
                if self.next[who].is_some_and(|at| at <= self.rig.now) {
                    self.next[who] = None;
                    self.write(who);
                }
            }
            self.rig.settle();
            while let Some(ended) = self.rig.ended.get(seen) {
                assert_eq!(ended.result, Ok(()));
                let (who, _) = self.written[ended.cookie as usize];
                let thinks = Nanos(self.rng.below(self.think.0 + 1));
                self.next[who] = (self.left[who] > 0).then_some(ended.at + thinks);
                seen += 1;
            }
            let deadline = self.rig.next_deadline().filter(|_| self.rig.in_flight() > 0);
            let next = self.next.into_iter().flatten().chain(deadline).min();
            let Some(next) = next else { return };
            self.rig.now = self.rig.now.max(next);
        }
    }

    /// Writes to a sector far from all others, so that no writes can merge.
    fn write(&mut self, who: usize) {
        let sector = self.written.len() as u64 * 64;
        let cookie = self.rig.push_with(who, Op::Write, sector, 8, IoFlags::FUA);
        assert_eq!(cookie, Some(self.written.len() as u64), "it has nothing else in flight");
        self.written.push((who, sector));
        self.rig.flush(who);
        self.left[who] -= 1;
    }

    /// Checks that each write ended after a flush that began when its data was already in the cache. The evidence is
    /// only the device's arrival log, not the engine's statistics.
    fn check_each_has_its_flush(&self, arrivals: &[Arrival]) {
        for ended in &self.rig.ended {
            let (_, sector) = self.written[ended.cookie as usize];
            let is_data = |a: &&Arrival| a.op == Op::Write && a.sector == sector;
            let data = arrivals.iter().find(is_data).expect("its data was written");
            let cached = data.at + SERVICE;
            let flush = arrivals.iter().find(|a| a.op == Op::Flush && a.at >= cached);
            let durable = flush.is_some_and(|a| a.at + SERVICE <= ended.at);
            assert!(durable, "{ended:?} has seen no flush in time");
        }
    }
}

/// Returns the number of flushes that [`ALL`] writes cost.
fn flushes(access: Access, scheduler: &'static Factory, think: Nanos) -> u64 {
    let device = cached();
    let config = Config { access, ..device.config() }.scheduler(scheduler);
    let mut writers = Writers::new(config, think);
    writers.run();
    writers.rig.check_at_rest(1);
    let arrivals = device.log.as_ref().expect("log=1").arrivals();
    writers.check_each_has_its_flush(&arrivals);
    let issued = arrivals.iter().filter(|a| a.op == Op::Flush).count() as u64;
    assert_eq!(arrivals.len() as u64 - issued, ALL, "and every write came once");
    let stats = writers.rig.queue.stats().flushes;
    assert_eq!((stats.asked, stats.issued), (ALL, issued), "the counters agree");
    issued
}

#[test]
fn s16_20_sixteen_fua_writers_share_flushes() {
    println!("{WRITERS} writers, one FUA write at a time each, write_cache=1,fua=0:");
    for (name, access) in Access::ALL {
        for scheduler in registry::ALL {
            for think in [Nanos(0), SERVICE, Nanos(4 * SERVICE.0)] {
                let issued = flushes(access, scheduler, think);
                println!(
                    "  {name:9} {:11} thinking up to {:6} ns: {ALL} flushes asked for, {issued} issued ({}.{} %)",
                    scheduler.name,
                    think.0,
                    issued * 100 / ALL,
                    issued * 1000 / ALL % 10,
                );
                assert!(issued * 10 <= ALL, "{issued} flushes for {ALL}");
            }
        }
    }
}
