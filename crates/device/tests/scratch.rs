//! scratch
mod common;
use blkmq_device::testkit::*;
use blkmq_engine::*;
use blkmq_core::*;
use common::*;
#[test]
fn scratch() {
    let text = std::env::var("P").unwrap();
    let d = null(&text);
    for (name, access) in Access::ALL {
    let mut bad = 0;
    for seed in 0..40 {
        let r = std::panic::catch_unwind(|| {
            let (queues, _w) = Checked::wrap(&d.shape, d.queues());
            let mut rig = Rig::new(Config { access, submitters: 5, depth: 128, ..Config::new(d.shape, queues) });
            let mut rng = Rng::new(seed);
            for _ in 0..500 {
                let who = rng.below(5) as usize;
                for _ in 0..rng.below(20) { if rig.push(who, Op::Write, rng.below(1000)*8, 8).is_none() {rig.settle(); } }
                rig.flush(who);
                if rng.below(3)==0 { let n = rng.below(20000); rig.run_for(Nanos(n)); }
            }
            rig.finish();
            rig.check_at_rest(d.shape.hw_queues);
        });
        if let Err(e) = r { bad += 1; if bad<2 {println!("seed {seed}: {:?} {:?}", e.downcast_ref::<String>(), e.downcast_ref::<&str>());} }
    }
    println!("{name} {text}: bad {bad}/40");
    }
}
/// cannot tell, refuses once with RESOURCE
struct Real(u32, Vec<(Instant)>, std::sync::Arc<std::sync::Mutex<Vec<Instant>>>);
impl DeviceQueue<u64> for Real {
    fn enqueue(&mut self, now: Instant, _: &BioTable<u64>, rq: Inflight) -> Enqueued {
        self.2.lock().unwrap().push(now);
        if self.0 > 0 { self.0 -= 1; Enqueued::Busy(rq, Busy::Resource) } else { Enqueued::Done(rq, Ok(())) }
    }
    fn reap(&mut self, _: Instant, _: &mut Vec<Finished>) {}
    fn abandon(&mut self, _: &mut Vec<Inflight>) {}
}
#[test]
fn real() {
    let log = std::sync::Arc::new(std::sync::Mutex::new(vec![]));
    let d = null("");
    for access in Access::ALL {
    let q: Vec<Box<dyn DeviceQueue<u64>>> = vec![Box::new(Real(3, vec![], log.clone()))];
    let mut rig = Rig::new(Config{access: access.1, ..Config::new(d.shape, q)});
    rig.submit(Op::Read, 0, 8);
    println!("deadline {:?} {:?}", rig.next_deadline(), log.lock().unwrap());
    rig.poll(); rig.poll();
    println!("{} {:?}", access.0, log.lock().unwrap());
    rig.finish();
    println!("{} {:?}", access.0, log.lock().unwrap());
    log.lock().unwrap().clear();
    }
}
