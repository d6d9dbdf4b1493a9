//! The comparison modes: a thread takes a tag for which the policy has no request. Another thread, which needs the tag
//! at that moment, must still finish its request.
//!
//! The bug needs four thread switches at the right places, which random schedules find once in 150,000. So one thread
//! does the steps of both in order: the steps of the second run at a [`Stop`] of the first.

use super::device::{Script, TestDevice};
use super::durable;
use crate::planted::{self, Planted, Stop};
use crate::sync::{Arc, Mutex};
use crate::{
    Access, Config, DeviceQueue, DeviceShape, Host, InsertMode, Io, MergeMode, Modes, Queue,
    Submitter, WriteCache,
};
use blkmq_core::{HwQueue, Instant, IoFlags, Limits, Nanos, Op, RequestId, SubmitterId};
use blkmq_sched::{At, Cx, Done, Factory, Pick, Scheduler, Scope};
use std::rc::Rc;

/// First in, first out, but writes are never picked.
struct KeepsWrites(Vec<RequestId>);

impl Scheduler for KeepsWrites {
    fn insert(&mut self, _: &Cx<'_>, rq: RequestId, _: At) {
        self.0.push(rq);
    }

    fn pick(&mut self, cx: &Cx<'_>, _: HwQueue) -> Pick {
        match self.0.iter().position(|rq| cx.requests.get(*rq).op == Op::Read) {
            Some(at) => Pick::Issue(self.0.remove(at)),
            None => Pick::WaitUntil(cx.now + Nanos::from_millis(1)),
        }
    }

    fn completed(&mut self, _: &Cx<'_>, _: &Done) {}

    fn withdraw(&mut self, _: &Cx<'_>, rq: RequestId) {
        self.0.retain(|held| *held != rq);
    }

    fn absorbed(&mut self, cx: &Cx<'_>, _: RequestId, gone: RequestId) {
        self.withdraw(cx, gone);
    }

    fn inspect(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}

static KEEPS_WRITES: Factory = Factory {
    name: "keeps-writes",
    summary: "",
    scope: Scope::Queue,
    attributes: &[],
    common: None,
    build: |_, _| Box::new(KeepsWrites(Vec::new())),
};

struct Silent;

impl Host for Silent {
    fn wake_submitter(&self, _: SubmitterId) {}
    fn wake_pump(&self, _: HwQueue) {}
}

const T0: Instant = Instant::ZERO;

fn submit(submitter: &mut Submitter<()>, op: Op, sector: u64) {
    durable::pushed(sector, IoFlags::NONE);
    submitter.push(T0, Io::new(op, sector, 8, 0, ())).expect("there is credit for it");
    submitter.flush(T0);
}

/// One thread takes the only tag, for a write that the policy keeps. At `place` another one submits a read. The read
/// must be done before the first thread leaves, because nothing happens after that.
fn check(insert: InsertMode, place: Stop, bug: Option<Planted>) {
    let once = move || {
        planted::plant(bug);
        durable::begin(WriteCache::Through);
        let shape = DeviceShape {
            hw_queues: 1,
            hw_queue_depth: 1,
            shared_tags: false,
            budget: None,
            limits: Limits::default(),
            cache: WriteCache::Through,
            timeout: Nanos(u64::MAX),
        };
        let device = Box::new(TestDevice::new(Script::INLINE, None)) as Box<dyn DeviceQueue<()>>;
        let skip = MergeMode::SkipWhenContended;
        let config = Config {
            access: Access::Mutex,
            modes: Modes { insert: Some(insert), merge: Some(skip), ..Modes::default() },
            nr_requests: Some(8),
            submitters: 2,
            host: Box::new(Silent),
            ..Config::new(shape, vec![device]).scheduler(&KEEPS_WRITES)
        };
        let queue = Queue::new(config).expect("valid");
        let mut first = queue.submitter().expect("one is free");
        let second = Arc::new(Mutex::new(queue.submitter().expect("one is free")));
        let late = Arc::clone(&second);
        let read = move || submit(&mut late.lock().expect("one thread"), Op::Read, 64);
        planted::stop_with(Some((place, Rc::new(read))));
        submit(&mut first, Op::Write, 0);
        planted::stop_with(None);
        let done = second.lock().expect("one thread").reap(1, drop);
        assert_eq!(done, 1, "a read lies, with a tag free and no thread on its way");
    };
    shuttle::check_random(once, 1);
}

#[test]
fn shuttle_a_request_inserted_behind_a_pick_in_vain_finds_the_tag() {
    check(InsertMode::Direct, Stop::PickedInVain, None);
}

#[test]
fn shuttle_a_request_parked_beside_a_pick_in_vain_is_taken_over() {
    check(InsertMode::PercpuLists, Stop::PicksInVain, None);
}

#[test]
#[should_panic(expected = "a read lies")]
fn shuttle_planted_a_tag_that_is_returned_behind_the_lock() {
    check(InsertMode::Direct, Stop::PickedInVain, Some(Planted::ReturnsTagLate));
}

#[test]
#[should_panic(expected = "a read lies")]
fn shuttle_planted_a_pick_in_vain_that_looks_for_no_parked_request() {
    check(InsertMode::PercpuLists, Stop::PicksInVain, Some(Planted::ForgetsLateComers));
}
