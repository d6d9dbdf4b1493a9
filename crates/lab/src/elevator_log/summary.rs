//! The fate of the requests of a log, in figures: their order, the seek distances, and the waiting times.

use super::{Entry, Log, LogError};
use blkmq_core::{Class, Histogram, Instant, IoMeta, Op};
use blkmq_sched::{At, Pick};
use std::collections::BTreeMap;

/// Times of one kind of request, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// Time in the elevator: from the first insert to the last pick.
    pub waited: Histogram,
    /// Time from that pick until the completion was found.
    pub served: Histogram,
}

/// The figures of a log.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Requests inserted, each counted once.
    pub inserted: u64,
    /// How many of them had a priority: by class and level, and whether they are reads.
    pub priorities: BTreeMap<(Class, u16, bool), u64>,
    /// The number of times that a request was returned to be issued again.
    pub requeued: u64,
    /// I/Os that joined a held request, and requests that were fused.
    pub merged: u64,
    /// Requests picked, including those picked again.
    pub picked: u64,
    /// Requests that were withdrawn.
    pub withdrawn: u64,
    /// Sectors between the end of each pick and the beginning of the next one, in either direction, summed up over
    /// each elevator.
    pub distance: u128,
    /// Picks that begin exactly where the previous pick ended.
    pub sequential: u64,
    /// Picks that begin before the beginning of the previous pick.
    pub backwards: u64,
    /// Picks of a request while another one that arrived earlier was held.
    pub overtaken: u64,
    /// Times of reads.
    pub reads: Waits,
    /// Times of all other requests.
    pub writes: Waits,
    /// From the first call to the last.
    pub lasted: blkmq_core::Nanos,
}

/// A held or issued request.
struct Held {
    inserted: Instant,
    picked: Instant,
    meta: IoMeta,
    /// Its arrival number, which is its place among waiting requests.
    number: u64,
}

/// The figures of a log, over all its elevators. O(calls times log of held requests).
///
/// # Errors
/// If it cannot be read.
pub fn summary(log: &Log<'_>) -> Result<Summary, LogError> {
    let mut sum = Summary::default();
    let (mut first, mut last) = (Instant::MAX, Instant::ZERO);
    for instance in &log.instances {
        let mut elevator = Elevator::default();
        for call in instance.calls() {
            let call = call?;
            first = first.min(call.now);
            last = last.max(call.now);
            elevator.follow(&mut sum, call.now, &call.entry);
        }
    }
    sum.lasted = last - first.min(last);
    Ok(sum)
}

#[derive(Default)]
struct Elevator {
    requests: BTreeMap<usize, Held>,
    /// Numbers of the waiting requests.
    waiting: std::collections::BTreeSet<u64>,
    inserts: u64,
    /// The beginning and the end of the last pick.
    last: Option<(u64, u64)>,
}

impl Elevator {
    fn follow(&mut self, sum: &mut Summary, now: Instant, entry: &Entry<'_>) {
        match *entry {
            Entry::Insert { rq, at, meta } => {
                let again = at == At::Head && self.requests.contains_key(&rq.index());
                if again {
                    sum.requeued += 1;
                    let held = self.requests.get_mut(&rq.index()).expect("it was seen just now");
                    self.waiting.insert(held.number);
                    return;
                }
                sum.inserted += 1;
                let (class, level) = (meta.ioprio.class(), meta.ioprio.level());
                if class != Class::None {
                    let is_read = meta.op == Op::Read;
                    *sum.priorities.entry((class, level, is_read)).or_default() += 1;
                }
                self.inserts += 1;
                let number = self.inserts;
                self.waiting.insert(number);
                let held = Held { inserted: now, picked: now, meta, number };
                self.requests.insert(rq.index(), held);
            }
            Entry::Pick { answer: Pick::Issue(rq), .. } => {
                let Some(held) = self.requests.get_mut(&rq.index()) else { return };
                held.picked = now;
                let number = held.number;
                let (start, end) = (held.meta.sector, held.meta.end());
                self.waiting.remove(&number);
                sum.picked += 1;
                sum.overtaken += u64::from(self.waiting.first().is_some_and(|it| *it < number));
                if let Some((before, behind)) = self.last {
                    sum.distance += u128::from(start.abs_diff(behind));
                    sum.sequential += u64::from(start == behind);
                    sum.backwards += u64::from(start < before);
                }
                self.last = Some((start, end));
            }
            Entry::Completed { done } => {
                let Some(held) = self.requests.remove(&done.rq.index()) else { return };
                let reads = held.meta.op == Op::Read;
                let waits = if reads { &mut sum.reads } else { &mut sum.writes };
                waits.waited.record((held.picked - held.inserted).0);
                waits.served.record((done.completed - held.picked).0);
            }
            Entry::Withdraw { rq } => {
                sum.withdrawn += 1;
                self.forget(rq.index());
            }
            Entry::Absorbed { into, gone, meta } => {
                sum.merged += 1;
                self.forget(gone.index());
                self.update(into.index(), meta);
            }
            Entry::Grown { rq, meta, .. } => {
                sum.merged += 1;
                self.update(rq.index(), meta);
            }
            Entry::Pick { .. }
            | Entry::MayMerge { .. }
            | Entry::Admits { .. }
            | Entry::Regroup(_)
            | Entry::Left(_)
            | Entry::Heard(_)
            | Entry::FrontMerges { .. }
            | Entry::AsyncDepth { .. }
            | Entry::Set { .. } => {}
        }
    }

    fn forget(&mut self, index: usize) {
        if let Some(held) = self.requests.remove(&index) {
            self.waiting.remove(&held.number);
        }
    }

    fn update(&mut self, index: usize, meta: IoMeta) {
        if let Some(held) = self.requests.get_mut(&index) {
            held.meta = meta;
        }
    }
}
