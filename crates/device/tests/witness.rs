//! The contract's checks can fail: each test plants a bug in a device, which the witness must detect.

use crate::common;

use blkmq_core::{Instant, Nanos, Op, Tag};
use blkmq_device::contract::{self, Checked, Rig};
use blkmq_engine::{
    BioTable, Busy, Config, DeviceQueue, DeviceShape, Enqueued, Expiry, Finished, Inflight, Verdict,
};
use common::null;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bug {
    /// No bug: serves one request at a time, 10 us each.
    None,
    /// Answers DEV_RESOURCE with nothing in service and no next event.
    BreaksPromise,
    /// Accepts a request and forgets it.
    Swallows,
    /// Announces its next event and does nothing at that time.
    NamesAndForgets,
    /// Finishes a request before the announced time.
    TooEarly,
    /// Keeps its requests when it is abandoned.
    KeepsOnAbandon,
    /// Answers a timeout with a request other than the one in question.
    SwapsExpired,
    /// Answers `enqueue` with the completion of another request.
    Swaps,
}

struct Faulty {
    bug: Bug,
    held: Vec<(Instant, Inflight)>,
}

impl DeviceQueue<u64> for Faulty {
    fn enqueue(&mut self, now: Instant, _: &BioTable<u64>, rq: Inflight) -> Enqueued {
        match self.bug {
            Bug::BreaksPromise => return Enqueued::Busy(rq, Busy::DevResource),
            Bug::Swallows => {
                std::mem::forget(rq);
                return Enqueued::Accepted;
            }
            Bug::Swaps if !self.held.is_empty() => {
                let (_, other) = std::mem::replace(&mut self.held[0], (now, rq));
                return Enqueued::Done(other, Ok(()));
            }
            _ => {}
        }
        let queues = self.bug == Bug::SwapsExpired;
        if !queues && self.held.iter().any(|(until, _)| *until > now) {
            return Enqueued::Busy(rq, Busy::DevResource);
        }
        let stays = if queues { Nanos(u64::MAX) } else { Nanos(10_000) };
        self.held.push((now + stays, rq));
        Enqueued::Accepted
    }

    fn timed_out(&mut self, _: Instant, _: Tag) -> Expiry {
        match self.held.pop() {
            Some((_, rq)) if self.bug == Bug::SwapsExpired => Expiry::Done(rq, Ok(())),
            other => {
                self.held.extend(other);
                Expiry::ResetTimer
            }
        }
    }

    fn reap(&mut self, now: Instant, _: &BioTable<u64>, out: &mut Vec<Finished>) {
        let early = if self.bug == Bug::TooEarly { 5_000 } else { 0 };
        while self.bug != Bug::NamesAndForgets
            && self.held.first().is_some_and(|(until, _)| *until <= now + Nanos(early))
        {
            let (_, rq) = self.held.remove(0);
            out.push(Finished { rq, verdict: Verdict::Done(Ok(())) });
        }
    }

    fn next_event(&self) -> Option<Instant> {
        Some(self.held.first().map_or(Instant::MAX, |(until, _)| *until))
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        if self.bug != Bug::KeepsOnAbandon {
            out.extend(self.held.drain(..).map(|(_, rq)| rq));
        }
    }
}

fn faulty(bug: Bug) -> (DeviceShape, Vec<Box<dyn DeviceQueue<u64>>>) {
    (null("").shape, vec![Box::new(Faulty { bug, held: Vec::new() })])
}

#[test]
fn without_a_bug_it_conforms() {
    let (shape, queues) = faulty(Bug::None);
    let outcome = contract::conformance(shape, queues, 1);
    assert!(outcome.dev_resource > 0 && outcome.failed == 0);
    let (shape, queues) = faulty(Bug::None);
    assert_eq!(contract::abandonment(shape, queues, 1), 1);
}

#[test]
#[should_panic(expected = "DEV_RESOURCE with nothing in service and no time named")]
fn a_broken_promise_is_seen() {
    let (shape, queues) = faulty(Bug::BreaksPromise);
    contract::conformance(shape, queues, 1);
}

#[test]
#[should_panic(expected = "requests for ever")]
fn a_swallowed_request_is_seen() {
    let (shape, queues) = faulty(Bug::Swallows);
    contract::conformance(shape, queues, 1);
}

/// Regression test: the witness took a slow device for one that loses requests. A disk that spent 7 s on each bad
/// sector always announced its next event, yet the requests after those sectors were reported as lost.
#[test]
fn a_device_that_is_far_slower_than_its_timeout_holds_nothing_for_ever() {
    let (shape, queues) = faulty(Bug::None);
    let shape = DeviceShape { timeout: Nanos(100), ..shape };
    let (queues, watch) = Checked::wrap(&shape, queues);
    let mut rig = Rig::new(Config::new(shape, queues));
    rig.submit(Op::Read, 0, 8);
    rig.finish();
    assert_eq!(watch.lock().expect("no test panics while holding it").timeouts, 99);
}

#[test]
#[should_panic(expected = "nothing had happened")]
fn a_time_that_is_not_kept_is_seen() {
    let (shape, queues) = faulty(Bug::NamesAndForgets);
    contract::conformance(shape, queues, 1);
}

#[test]
#[should_panic(expected = "another request came back")]
fn a_swapped_request_is_seen() {
    let (shape, queues) = faulty(Bug::Swaps);
    contract::conformance(shape, queues, 1);
}

#[test]
#[should_panic(expected = "another request came back")]
fn a_wrong_answer_to_a_timeout_is_seen() {
    let (shape, queues) = faulty(Bug::SwapsExpired);
    contract::conformance(shape, queues, 1);
}

#[test]
#[should_panic(expected = "kept 1 requests for good")]
fn a_request_kept_for_good_is_seen() {
    let (shape, queues) = faulty(Bug::KeepsOnAbandon);
    contract::abandonment(shape, queues, 1);
}

#[test]
#[should_panic(expected = "finished something at Instant(6000), having named Instant(10000)")]
fn finishing_before_the_named_time_is_seen() {
    let (shape, queues) = faulty(Bug::TooEarly);
    let (queues, _) = Checked::wrap(&shape, queues);
    let mut rig = Rig::new(Config::new(shape, queues));
    rig.submit(Op::Read, 0, 8);
    // The second submission makes the queue reap the device while the first request is in service.
    rig.now = Instant::from_nanos(6_000);
    rig.submit(Op::Read, 64, 8);
}

/// Even without a witness, the rig notices a queue that makes no progress.
#[test]
#[should_panic(expected = "1 I/Os are in flight and nothing will ever happen")]
fn a_queue_that_stops_is_seen_without_a_witness() {
    let (shape, queues) = faulty(Bug::BreaksPromise);
    let mut rig = Rig::new(Config::new(shape, queues));
    rig.submit(Op::Read, 0, 8);
    rig.finish();
}
