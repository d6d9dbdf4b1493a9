//! The lines of `spec/framework.md` section 16 that need a device to be tested.

use crate::common;

use blkmq_core::{HwQueue, Instant, Nanos, Op};
use blkmq_device::Device;
use blkmq_device::contract::{Checked, Rig};
use blkmq_engine::{Access, Config};
use common::{Event, events, null, observed, rig, unmerged};

const HW: HwQueue = HwQueue(0);

/// The times at which the request at `sector` was offered to the device.
fn offered(device: &Device, sector: u64) -> Vec<Nanos> {
    let arrivals = device.log.as_ref().expect("log=1").arrivals();
    let mine = arrivals.iter().filter(|arrival| arrival.sector == sector);
    mine.map(|arrival| arrival.at - Instant::ZERO).collect()
}

#[test]
fn s16_02_driver_tags_in_use_never_exceed_the_hardware_depth() {
    for text in
        ["irqmode=2,hw_queue_depth=4", "irqmode=2,hw_queue_depth=4,shared_tags=1,submit_queues=2"]
    {
        let device = null(&format!("{text},log=1"));
        let (queues, watch) = Checked::wrap(&device.shape, device.queues());
        let mut rig = Rig::new(Config { queues, ..unmerged(&device, 4, 64) });
        let mut most = 0;
        for io in 0..200 {
            rig.push(io % 4, Op::Write, io as u64 * 64, 8).expect("there is credit");
            rig.flush(io % 4);
            most = most.max(rig.queue.tags_in_use(HW));
        }
        while let Some(at) = rig.next_deadline() {
            rig.now = rig.now.max(at);
            rig.poll();
            most = most.max(rig.queue.tags_in_use(HW));
        }
        rig.finish();
        assert_eq!(most, 4, "{text}: all of them were used, and no more");
        assert!(watch.lock().unwrap().most_held <= 4);
        assert!(device.log.as_ref().expect("log=1").arrivals().iter().all(|a| a.tag.0 < 4));
        rig.check_at_rest(device.shape.hw_queues);
    }
}

#[test]
fn s16_06_resource_with_nothing_in_flight_is_retried_after_3_ms() {
    let device = null("irqmode=0,resource=1:100:0:1,log=1");
    let mut rig = rig(&device);
    rig.submit(Op::Read, 0, 8);
    rig.finish();
    assert_eq!(offered(&device, 0), [Nanos(0), Nanos::from_millis(3)]);
}

#[test]
fn s16_06_dev_resource_is_not_retried_by_a_timer_but_when_the_device_says() {
    // A fault with no request in service: the device announces the time of its next event.
    let device = null("irqmode=0,dev_resource=1:100:0:1,log=1");
    let mut one = rig(&device);
    one.submit(Op::Read, 0, 8);
    one.finish();
    assert_eq!(offered(&device, 0), [Nanos(0), Nanos::from_millis(1)]);
    // The bandwidth is used up for a second, much longer than any timer of the engine.
    let device = null("irqmode=0,mbps=1,log=1");
    let mut two = rig(&device);
    two.submit(Op::Write, 0, 2048);
    two.submit(Op::Write, 4096, 8);
    two.finish();
    assert_eq!(offered(&device, 4096), [Nanos(0), Nanos::from_secs(1)]);
}

#[test]
fn s16_06_dev_resource_is_retried_promptly_on_a_completion() {
    let device = null("irqmode=2,completion_nsec=10000,dev_resource=1:100:1:1,log=1");
    let mut rig = rig(&device);
    rig.submit(Op::Read, 0, 8);
    rig.submit(Op::Read, 64, 8);
    rig.finish();
    assert_eq!(offered(&device, 64), [Nanos(0), Nanos(10_000)]);
}

#[test]
fn s16_07_leftovers_keep_their_order_and_the_scheduler_is_not_asked_meanwhile() {
    for (_, access) in Access::ALL {
        leftovers_keep_their_order(access);
    }
}

fn leftovers_keep_their_order(access: Access) {
    use Event::{Refused, Taken};
    let (a, b, c, d) = (0, 100, 200, 300);
    // The device refuses b, the second attempt, twice.
    let mut rig = observed(&null("irqmode=2,resource=1:100:1:2"), access);
    for sector in [a, b, c] {
        rig.push(0, Op::Write, sector, 8).expect("there is credit");
    }
    rig.flush(0);
    let first = events();
    let arrivals: Vec<_> = arrivals(&first);
    assert_eq!(arrivals, [Taken(a), Refused(b)], "{access:?}");
    // While b waits, d arrives and a completes; the scheduler is not asked for a request.
    rig.submit(Op::Write, d, 8);
    rig.run_for(Nanos::from_millis(2));
    assert_eq!(rig.ended.len(), 1, "a has completed");
    assert!(!events().iter().any(is_question), "{access:?}: asked while b was stuck");
    rig.finish();
    let rest = events();
    let order = self::arrivals(&rest);
    let order: Vec<_> = order.into_iter().skip_while(|event| *event == Refused(b)).collect();
    assert_eq!(order, [Taken(b), Taken(c), Taken(d)], "{access:?}");
    let asked = rest.iter().position(is_question).expect("d was in the scheduler");
    let c_taken = rest.iter().position(|event| *event == Taken(c)).expect("c was taken");
    assert!(c_taken < asked, "{rest:?}");
}

#[test]
fn s16_22_while_dispatch_busy_is_set_requests_leave_one_at_a_time() {
    for (_, access) in Access::ALL {
        // The device refuses the request at 0, 3, 6, 9 and 12 ms, so the average is 6 when it accepts it at 15 ms.
        let mut rig = observed(&null("irqmode=0,resource=1:100:0:5,hw_queue_depth=64"), access);
        rig.submit(Op::Write, 0, 8);
        assert!(rig.queue.dispatch_busy(HW) > 0);
        for io in 1..=30 {
            rig.push(0, Op::Write, io * 64, 8).expect("there is credit");
        }
        rig.flush(0);
        rig.run_until(Instant::ZERO + Nanos::from_millis(14));
        assert_eq!(rig.queue.dispatch_busy(HW), 6);
        events();
        rig.finish();
        let batches = batches(&events());
        // The first request lowers the average to 5. Requests are issued one at a time until it is 0, and the others
        // together.
        assert_eq!(batches, [1, 1, 1, 1, 1, 25], "{access:?}: picked between two arrivals");
        assert_eq!(rig.queue.dispatch_busy(HW), 0);
    }
}

fn is_question(event: &Event) -> bool {
    matches!(event, Event::Picked(_) | Event::AskedInVain)
}

fn arrivals(events: &[Event]) -> Vec<Event> {
    events.iter().filter(|event| !is_question(event)).copied().collect()
}

/// The numbers of requests picked between one arrival and the next, without zeros.
fn batches(events: &[Event]) -> Vec<usize> {
    let groups = events.split(|event| matches!(event, Event::Taken(_) | Event::Refused(_)));
    let picked = groups.map(|group| group.iter().filter(|e| matches!(e, Event::Picked(_))).count());
    picked.filter(|count| *count > 0).collect()
}
