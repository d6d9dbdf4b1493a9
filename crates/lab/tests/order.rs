//! Order at the device (`spec/framework.md` section 15): combining keeps the elevator's order.
//!
//! Dispatching one request at a time can turn 1-2-3-4 into 1-3-2-4. That needs two threads between two requests of one
//! collection, where the engine calls no plug-in; so it cannot be shown here, in virtual time.

use blkmq_core::{Instant, Nanos, Op, Rng};
use blkmq_device::{MachineShape, registry as devices};
use blkmq_engine::{Config, Io};
use blkmq_lab::{
    Bug, Caught, Client, Costs, Habits, Permille, Plan, Subject, Violation, Want, World,
};
use blkmq_sched::{Factory, registry};

const SUBMITTERS: u16 = 4;
const READS: u32 = 2_000;

/// A client that reads anywhere, up to 16 at a time.
struct Reader {
    rng: Rng,
    left: u32,
}

impl Client for Reader {
    fn next(&mut self, _: Instant, in_flight: u32) -> Want {
        if self.left == 0 {
            return Want::Nothing;
        }
        if in_flight >= 16 {
            return Want::Completion;
        }
        self.left -= 1;
        Want::Io(Io::new(Op::Read, self.rng.below(1 << 20), 8, 0, 0))
    }
}

/// Four submitters at one hardware queue are caught repeatedly. The witnesses compare each arrival at the device with
/// the policy's choice.
fn run(scheduler: &'static Factory, bug: Option<Bug>) -> Result<Subject, Violation> {
    let text = "null,hw_queue_depth=8,irqmode=2,dev_resource=7:50:0:-1";
    let machine = MachineShape { cpus: 4, nodes: 1 };
    let device = devices::parse(text, &machine).expect("a null device");
    let config = Config { submitters: SUBMITTERS, depth: 16, ..device.config() };
    let subject = Subject::new(config.scheduler(scheduler), Nanos::from_millis(1), bug);
    let subject = subject.expect("the queue is possible");
    let caught = Caught { chance: Permille(300), steps: 3, gap: Nanos(3_000) };
    let habits = Habits { caught, ..Habits::diligent(2) };
    let plans = (0..SUBMITTERS).map(|number| {
        let client = Box::new(Reader { rng: Rng::new(number.into()), left: READS });
        Plan { client, habits, seed: number.into() }
    });
    let mut world = World::new(&subject, Costs::TYPICAL, plans.collect());
    world.finish(10_000_000)?;
    drop(world);
    subject.check_at_rest()?;
    Ok(subject)
}

#[test]
fn s16_21_combining_keeps_the_elevators_order() {
    for scheduler in registry::ALL {
        let subject =
            run(scheduler, None).unwrap_or_else(|why| panic!("{}: {why}", scheduler.name));
        let stats = subject.stats();
        assert!(stats.staged > 1_000 && stats.direct > 0, "contended and not: {stats:?}");
        assert!(stats.busy > 100 && stats.batches < stats.dispatched, "all paths: {stats:?}");
    }
}

#[test]
fn s16_21_another_order_would_be_noticed() {
    for scheduler in registry::ALL {
        let why = run(scheduler, Some(Bug::SwappedPicks)).err();
        assert!(matches!(why, Some(Violation::OutOfOrder { .. })), "{}: {why:?}", scheduler.name);
    }
}
