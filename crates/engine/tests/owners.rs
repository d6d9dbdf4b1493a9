//! I/Os of several owners in one request: they merge where the elevator allows it, and are repeated by owner when the
//! request fails.

use crate::common;

use blkmq_core::{Instant, IoError, IoResult, Nanos, Owner};
use blkmq_engine::{
    BioTable, Config, DeviceQueue, Enqueued, Finished, Inflight, Io, Queue, Verdict,
};
use common::{accesses, deadline, shape, write};
use std::sync::{Arc, Mutex};

const T0: Instant = Instant::ZERO;

/// A request as the device saw it: first sector, sectors, bios and segments.
type Shape = (u64, u32, u32, u16);
/// The requests that a device has seen.
type Seen = Arc<Mutex<Vec<Shape>>>;

/// Fails every request that covers the sector `bad`; ends requests inline, or at the next reap.
struct BadSector {
    bad: u64,
    error: IoError,
    inline: bool,
    held: Vec<Inflight>,
    seen: Seen,
    /// Requeues the second request that it is offered.
    wants_back: bool,
}

impl BadSector {
    fn result(&self, rq: &Inflight) -> IoResult {
        let covers = (rq.sector()..rq.sector() + u64::from(rq.sectors())).contains(&self.bad);
        if covers { Err(self.error) } else { Ok(()) }
    }
}

impl<P> DeviceQueue<P> for BadSector {
    fn enqueue(&mut self, _: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        let sum: u32 = rq.bios(bios).map(|bio| bio.sectors).sum();
        assert_eq!((rq.bios(bios).count() as u32, sum), (rq.bio_count(), rq.sectors()));
        let seen = (rq.sector(), rq.sectors(), rq.bio_count(), rq.segments());
        self.seen.lock().expect("no panic").push(seen);
        if self.inline {
            let result = self.result(&rq);
            return Enqueued::Done(rq, result);
        }
        self.held.push(rq);
        Enqueued::Accepted
    }

    fn reap(&mut self, _: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        for rq in std::mem::take(&mut self.held) {
            let offered = self.seen.lock().expect("no panic").len();
            let verdict = match self.wants_back && offered == 2 {
                true => Verdict::Requeue,
                false => Verdict::Done(self.result(&rq)),
            };
            out.push(Finished { rq, verdict });
        }
    }

    fn next_event(&self) -> Option<Instant> {
        Some(if self.held.is_empty() { Instant::MAX } else { T0 })
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.append(&mut self.held);
    }
}

/// Marks the case in which the device requeues the first run.
const WANTED_BACK: IoError = IoError::NO_SPACE;

/// The results, by sector, of writes of 8 sectors from 0 on, one for each of `owners`; and the requests that the device
/// saw.
fn run(
    owners: &[u32],
    (bad, error): (u64, IoError),
    change: impl FnOnce(&mut Config<u32>),
    inline: bool,
) -> (Vec<IoResult>, Vec<Shape>, Queue<u32>) {
    let seen = Seen::default();
    let (held, wants_back) = (Vec::new(), error == WANTED_BACK);
    let device = BadSector { bad, error, inline, held, seen: Arc::clone(&seen), wants_back };
    let mut config = Config::new(shape(1, 1), vec![Box::new(device) as _]).scheduler(deadline());
    change(&mut config);
    let queue = Queue::new(config).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    // Frozen until all I/Os are submitted, so that they meet in the elevator.
    let freeze = queue.freeze();
    for (n, owner) in (0..).zip(owners) {
        sub.push(T0, Io { owner: Owner(*owner), ..write(n * 8, 8) }).expect("there is credit");
    }
    sub.flush(T0);
    drop(freeze);
    let mut back = vec![None; owners.len()];
    for step in 0..50 {
        sub.poll(T0 + Nanos::from_millis(step));
        sub.reap(u32::MAX, |done| back[done.cookie as usize / 8] = Some(done.result));
    }
    let back = back.into_iter().map(|result| result.expect("all come back")).collect();
    let seen = seen.lock().expect("no panic").clone();
    assert_eq!((sub.outstanding(), queue.stats().completed), (0, owners.len() as u64));
    (back, seen, queue)
}

const FAILS: IoResult = Err(IoError::IO);

#[test]
fn owners_merge_in_the_elevator_and_a_bad_sector_fails_the_owner_whose_it_is() {
    for access in accesses() {
        for inline in [false, true] {
            let bad = (16, IoError::IO);
            let (back, seen, queue) = run(&[1, 1, 2, 3, 3], bad, |c| c.access = access, inline);
            assert_eq!(back, [Ok(()), Ok(()), FAILS, Ok(()), Ok(())], "{access:?} {inline}");
            let apart = [(0, 40, 5, 5), (0, 16, 2, 2), (16, 8, 1, 1), (24, 16, 2, 2)];
            assert_eq!(seen, apart, "{access:?} {inline}");
            let stats = queue.stats();
            assert_eq!((stats.taken_apart, stats.runs, stats.retries), (1, 3, 0));
            assert_eq!((stats.dispatched, stats.completed_requests), (1, 1));
        }
    }
}

#[test]
fn an_owner_whose_ios_lie_apart_is_repeated_in_runs() {
    let (back, seen, _) = run(&[1, 2, 1], (8, IoError::INVALID), |_| {}, false);
    assert_eq!(back, [Ok(()), Err(IoError::INVALID), Ok(())]);
    assert_eq!(seen, [(0, 24, 3, 3), (0, 8, 1, 1), (8, 8, 1, 1), (16, 8, 1, 1)]);
}

#[test]
fn one_owner_alone_is_not_repeated_and_neither_is_what_timed_out() {
    let (back, seen, _) = run(&[1, 1, 1], (8, IoError::IO), |_| {}, false);
    assert_eq!((back, seen.len()), (vec![FAILS; 3], 1));
    let late = IoError::TIMED_OUT;
    let (back, seen, _) = run(&[1, 2], (8, late), |_| {}, false);
    assert_eq!((back, seen.len()), (vec![Err(late); 2], 1));
}

#[test]
fn the_whole_is_tried_again_first() {
    let (back, seen, queue) = run(&[1, 2], (8, IoError::IO), |c| c.retries = 2, false);
    assert_eq!(back, [Ok(()), FAILS]);
    let whole = (0, 16, 2, 2);
    assert_eq!(seen, [whole, whole, whole, (0, 8, 1, 1), (8, 8, 1, 1)]);
    assert_eq!((queue.stats().retries, queue.stats().taken_apart), (2, 1));
}

/// Regression test: a run that the device requeued went to the elevator, which knows only the whole request, and the
/// runs behind it were lost. It must stay with its hardware queue.
#[test]
fn a_run_that_the_device_wants_back_later_comes_again_as_it_is() {
    let (back, seen, _) = run(&[1, 2], (8, WANTED_BACK), |_| {}, false);
    assert_eq!(back, [Ok(()), Err(WANTED_BACK)]);
    assert_eq!(seen, [(0, 16, 2, 2), (0, 8, 1, 1), (0, 8, 1, 1), (8, 8, 1, 1)]);
}

/// A queue may be dropped while runs wait.
#[test]
fn a_request_in_runs_ends_with_its_queue() {
    let seen = Seen::default();
    let (held, inline, wants_back) = (Vec::new(), false, false);
    let device = BadSector { bad: 0, error: IoError::IO, inline, held, seen, wants_back };
    let config = Config::new(shape(1, 1), vec![Box::new(device) as _]).scheduler(deadline());
    let queue = Queue::new(config).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    let freeze = queue.freeze();
    for owner in 0..4 {
        sub.push(T0, Io { owner: Owner(owner), ..write(u64::from(owner) * 8, 8) }).expect("credit");
    }
    sub.flush(T0);
    drop(freeze);
    sub.poll(T0);
    drop((sub, queue));
    assert_eq!(blkmq_engine::leaked_bios(), 0);
}
