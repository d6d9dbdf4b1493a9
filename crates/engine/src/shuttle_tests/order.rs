//! The device sees the elevator's order (decision 0003): per hardware queue, requests arrive as they were picked.

use crate::shuttle_tests::world::{Arrivals, Script};
use crate::shuttle_tests::{Client, Model};
use crate::{Access, DispatchMode, Modes, PumpMode};
use blkmq_core::{HwQueue, Nanos, RequestId};
use blkmq_sched::{Bypass, Cx, Factory, Facts, Observed, Observer, Pick, Scheduler, Scope, none};
use std::cell::{Cell, RefCell};

const THREE: &[Client] = &[Client::new(4, 4, 2), Client::new(4, 2, 1), Client::new(4, 4, 4)];
const PAIR: &[Client] = &[Client::new(2, 2, 2), Client::new(2, 2, 2)];

thread_local! {
    // All threads of a model are coroutines on the thread of its test.
    static PICKS: RefCell<Vec<(HwQueue, u64)>> = const { RefCell::new(Vec::new()) };
}

/// First come, first served, with a record of every pick.
const RECORDED: Factory = Factory {
    name: "recorded",
    summary: "none, under observation",
    scope: Scope::Queue,
    attributes: &[],
    common: None,
    build: |shape, options| {
        Box::new(Observed::new((none::FACTORY.build)(shape, options), Recorded))
    },
};

struct Recorded;

impl Observer for Recorded {
    fn facts(&self, policy: &dyn Scheduler) -> Facts {
        Facts { bypass: Bypass::Never, ..policy.facts() }
    }

    fn pick(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, hw: HwQueue) -> Pick {
        let pick = policy.pick(cx, hw);
        if let Pick::Issue(id) = pick {
            PICKS.with_borrow_mut(|picks| picks.push((hw, cx.requests.get(id).sector)));
        }
        pick
    }
}

/// The picks and the arrivals, each in order, with hardware queues.
type Orders = (Vec<(HwQueue, u64)>, Vec<(HwQueue, u64)>);

/// Runs one schedule.
fn picks_and_arrivals(model: &Model) -> Orders {
    PICKS.take();
    let arrivals = Arrivals::default();
    model.schedule(Some(&arrivals));
    let arrivals = arrivals.lock().expect("a panic ends the schedule").clone();
    assert!(arrivals.len() >= model.clients.len());
    (PICKS.take(), arrivals)
}

fn in_order(model: &Model) {
    let (picks, arrivals) = picks_and_arrivals(model);
    for hw in (0..model.hw_queues).map(HwQueue) {
        let of = |list: &[(HwQueue, u64)]| -> Vec<u64> {
            list.iter().filter(|entry| entry.0 == hw).map(|entry| entry.1).collect()
        };
        assert_eq!(of(&arrivals), of(&picks), "arrivals on {hw:?} are not in the order of picks");
    }
}

const ORDERED: Model = Model {
    scheduler: &RECORDED,
    hw_queue_depth: 4,
    device: Script { room: 4, ..Script::INLINE },
    ..Model::new(61, THREE)
};

#[test]
fn shuttle_the_device_sees_the_order_of_picks() {
    ORDERED.explore(in_order);
}

/// A request that the device refuses waits ahead of all requests picked later.
#[test]
fn shuttle_the_device_sees_the_order_of_picks_through_refusals() {
    let device = Script { room: 2, resource: 5, dev_resource: 3, inline: 2, ..Script::LATER };
    let most_time = Nanos::from_millis(30);
    Model { device, most_time, drift: true, seed: 62, ..ORDERED }.explore(in_order);
}

#[test]
fn shuttle_two_hardware_queues_each_see_the_order_of_their_picks() {
    Model { hw_queues: 2, seed: 63, ..ORDERED }.explore(in_order);
}

#[test]
fn shuttle_a_pump_thread_keeps_the_order_of_picks() {
    Model { pump: PumpMode::Thread, seed: 64, ..ORDERED }.explore(in_order);
}

/// As in the kernel: each thread picks under the lock, and issues after it has released the lock (`spec/framework.md`
/// section 15).
#[test]
#[should_panic(expected = "are not in the order of picks")]
fn shuttle_planted_one_at_a_time_dispatch_inverts_the_order() {
    Model { access: Access::Mutex, ..ORDERED }.explore(in_order);
}

/// As proposed: the requests of one hold of the lock stay together, but the batches of two threads may change places.
/// Each pair is inserted in one hold, so no batch has only half of a pair.
#[test]
fn shuttle_batch_dispatch_keeps_batches_together_and_may_exchange_them() {
    thread_local! {
        static SEEN: Cell<u32> = const { Cell::new(0) };
    }
    let modes = Modes { dispatch: Some(DispatchMode::Batch), ..ORDERED.modes };
    let model =
        Model { access: Access::Spin, modes, clients: PAIR, seed: 66, schedules: 6000, ..ORDERED };
    model.explore(|model| {
        let (picks, arrivals) = picks_and_arrivals(model);
        let [one, two, three, four] = picks[..] else { panic!("{picks:?} are not four") };
        let exchanged = arrivals == [three, four, one, two];
        assert!(exchanged || arrivals == picks, "{arrivals:?} for {picks:?}: a batch is torn");
        SEEN.set(SEEN.get() + u32::from(exchanged));
    });
    assert!(SEEN.get() > 0, "no schedule has exchanged them");
}

/// Two threads that take turns at the lock: one collects 1 and 3, the other 2 and 4.
#[test]
fn shuttle_one_at_a_time_dispatch_shows_1_3_2_4() {
    thread_local! {
        static SEEN: Cell<u32> = const { Cell::new(0) };
    }
    let model = Model { access: Access::Spin, clients: PAIR, seed: 65, ..ORDERED };
    model.explore(|model| {
        let (picks, arrivals) = picks_and_arrivals(model);
        let [one, two, three, four] = picks[..] else { panic!("{picks:?} are not four") };
        if arrivals == [one, three, two, four] {
            SEEN.set(SEEN.get() + 1);
        }
    });
    assert!(SEEN.get() > 0, "no schedule has shown it");
}
