//! Elevator logs: every call of a policy and every answer, with times.
//!
//! The answers of a policy depend on the calls alone, so a log can be played back: to the same policy, which must give
//! every answer again ([`replay`]), or as a workload to another policy ([`rerun`]). [`summary`] reports the fate of a
//! log's requests in figures, so that the two can be compared: their order, the seek distances, and the waiting times.
//!
//! A rerun keeps the arrivals: their times, operations and sectors; the device is simulated. An I/O arrives when it was
//! inserted or joined a held request; I/Os that merged in a plug arrive as one. No arrival waits for an earlier I/O,
//! since the log does not record why an I/O came at its time.
//!
//! An [`ElevatorLog`] is filled through [`Observation`], in real or in virtual time;
//! [`ElevatorLog::bytes`] encodes it, and [`Log`] decodes the bytes. `blkmq-trace` has the format and the recorder,
//! which servers use, too.

mod replay;

use crate::observe::Observation;
use blkmq_core::{Class, GroupId, Histogram, Instant, IoMeta, Op};
use blkmq_engine::{Config, ConfigError, Io, Queue, QueueStats, Refusal, Submitter};
use blkmq_sched::{At, Grown, Pick};
pub use blkmq_trace::elevator_log::{Call, ElevatorLog, Entry, Heard, Instance, Log, LogError};
pub use replay::{Difference, ReplayError, Replayed, replay};
use std::collections::BTreeMap;

/// I/Os by the time of their arrival.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Workload {
    ios: Vec<IoMeta>,
    /// The number of discards that joined a request, whose ranges the log does not record.
    unknown: u64,
}

impl Workload {
    /// The arrivals of all elevators of a log. O(n log n).
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn of(log: &Log<'_>) -> Result<Self, LogError> {
        let mut workload = Self::default();
        for instance in &log.instances {
            let mut extents = vec![(0, 0); instance.shape.slots as usize];
            for call in instance.calls() {
                let call = call?;
                workload.arrives(call.now, &call.entry, &mut extents);
            }
        }
        workload.ios.sort_by_key(|io| io.arrived);
        Ok(workload)
    }

    fn arrives(&mut self, now: Instant, entry: &Entry<'_>, extents: &mut [(u64, u64)]) {
        let (rq, io) = match *entry {
            Entry::Insert { rq, at: At::Tail, meta } => (rq, Some((meta.sector, meta.end()))),
            Entry::Grown { rq, edge, meta } => {
                let (start, end) = extents[rq.index()];
                self.unknown += u64::from(edge == Grown::Discard);
                let joined = match edge {
                    Grown::Back => Some((end, meta.end())),
                    Grown::Front { .. } => Some((meta.sector, start)),
                    Grown::Discard => None,
                };
                (rq, joined)
            }
            Entry::Absorbed { into, meta, .. } => {
                extents[into.index()] = (meta.sector, meta.end());
                return;
            }
            _ => return,
        };
        let (Entry::Insert { meta, .. } | Entry::Grown { meta, .. }) = *entry else { return };
        extents[rq.index()] = (meta.sector, meta.end());
        let Some((start, end)) = io.filter(|(start, end)| start < end) else { return };
        let sectors = u32::try_from(end - start).unwrap_or(u32::MAX);
        self.ios.push(IoMeta { sector: start, sectors, arrived: now, ..meta });
    }

    /// The number of I/Os.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ios.len()
    }

    /// Returns whether there are no I/Os.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ios.is_empty()
    }

    /// The number of discard ranges left out, since the log does not record them.
    #[must_use]
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    /// The sector behind the last one that is used.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.ios.iter().map(IoMeta::end).max().unwrap_or(0)
    }

    /// Hardware queues that the I/Os are for.
    #[must_use]
    pub fn hw_queues(&self) -> u16 {
        self.ios.iter().map(|io| io.hw.0).max().map_or(1, |most| most.saturating_add(1))
    }
}

/// Why a workload cannot be run again.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RerunError {
    /// The queue is impossible.
    #[error("the queue cannot be built: {0}")]
    Config(ConfigError),
    /// The device does not take one of the I/Os.
    #[error("the device does not take the {op:?} at sector {sector}: {why}")]
    Refused {
        /// The I/O.
        op: Op,
        /// Its first sector.
        sector: u64,
        /// The reason.
        why: Refusal,
    },
    /// The run makes no progress, with this number of I/Os in flight.
    #[error("stuck with {0} I/Os in flight")]
    Stuck(u32),
}

/// I/Os that may be in flight for one hardware queue; further ones arrive late.
const CREDIT: u32 = 1 << 14;

/// Runs `workload` through the queue that `config` describes, in virtual time: one submitter for each hardware queue
/// of its device, whose I/Os arrive at their recorded times. Replaces the number of submitters and the depth in
/// `config`. I/Os of groups that `config` does not have at their index are the root's.
///
/// # Errors
/// If the queue is impossible or its device does not take an I/O.
pub fn rerun(
    workload: &Workload,
    config: Config<()>,
    observation: &Observation,
) -> Result<QueueStats, RerunError> {
    let hw_queues = config.device.hw_queues;
    let config = Config { submitters: hw_queues, depth: CREDIT, ..config };
    let queue = observation.of(config, Queue::new).map_err(RerunError::Config)?;
    let register = |_| queue.submitter().expect("the queue was built for as many");
    let mut submitters: Vec<Submitter<()>> = (0..hw_queues).map(register).collect();
    let groups = queue.plan().groups;
    let mut ios = workload.ios.iter().peekable();
    let (mut now, mut idle_turns) = (Instant::ZERO, 0);
    loop {
        let mut full = false;
        while let Some(io) = ios.peek().filter(|io| io.arrived <= now && !full) {
            let group = groups.at(io.group).map_or(GroupId::ROOT, |group| group.id);
            full = !push(&mut submitters[usize::from(io.hw.0 % hw_queues)], now, (io, group))?;
            if !full {
                ios.next();
            }
        }
        let reaped: u32 = submitters.iter_mut().map(|submitter| turn(submitter, now)).sum();
        let in_flight = submitters.iter().map(Submitter::outstanding).sum();
        if in_flight == 0 && ios.peek().is_none() {
            return Ok(queue.stats());
        }
        if full && reaped > 0 {
            // Some I/Os are late because there was no credit; now there is.
            continue;
        }
        let arrival = ios.peek().map(|io| io.arrived).filter(|_| !full);
        let due = submitters.iter().filter_map(Submitter::next_deadline).min();
        let next = due.into_iter().chain(arrival).min().ok_or(RerunError::Stuck(in_flight))?;
        // For a few turns, a submitter may leave a due duty undone if it expects another thread to do it.
        idle_turns = if next <= now && reaped == 0 { idle_turns + 1 } else { 0 };
        if idle_turns > MOST_IDLE_TURNS {
            return Err(RerunError::Stuck(in_flight));
        }
        now = next.max(now);
    }
}

/// Turns without an effect, at one moment of virtual time, after which the run counts as stuck.
const MOST_IDLE_TURNS: u32 = 10_000;

/// Pushes an I/O; false if there is no credit for it.
fn push(
    submitter: &mut Submitter<()>,
    now: Instant,
    (io, group): (&IoMeta, GroupId),
) -> Result<bool, RerunError> {
    let IoMeta { op, sector, sectors, flags, ioprio, owner, write_hint, .. } = *io;
    let io = Io { flags, ioprio, owner, group, write_hint, ..Io::new(op, sector, sectors, 0, ()) };
    match submitter.push(now, io) {
        Ok(()) => Ok(true),
        Err(refused) if matches!(refused.why, Refusal::NoCredit { .. }) => Ok(false),
        Err(refused) => Err(RerunError::Refused { op, sector, why: refused.why }),
    }
}

/// Does all due work. Returns how many I/Os have ended.
fn turn(submitter: &mut Submitter<()>, now: Instant) -> u32 {
    submitter.flush(now);
    submitter.poll(now);
    submitter.reap(u32::MAX, |_| {})
}

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
