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
//!
//! In an exact replay, the environment of the policy gives the recorded answers. An engine changes the tree of groups
//! one group at a time and never leaves a child without its parent, and policies rely on that; the bytes of a log may
//! violate it.

use crate::observe::Observation;
use blkmq_core::{Class, GroupId, GroupIndex, Histogram, Instant, IoMeta, Op, RequestId};
use blkmq_engine::{
    Config, ConfigError, Io, MAX_GROUPS, MAX_WEIGHT, Queue, QueueStats, Refusal, Submitter,
};
use blkmq_sched::{
    At, Cx, Factory, GroupChange, Grown, Note, OptionError, Options, Pick, PolicyEnv, Requests,
    Scheduler, StatsLevel, registry,
};
pub use blkmq_trace::elevator_log::{Call, ElevatorLog, Entry, Heard, Instance, Log, LogError};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

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
            _ => {}
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

/// The number of calls before a difference that are shown with it.
const CONTEXT: usize = 8;

/// The result of a replay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replayed {
    /// The number of calls made.
    pub calls: u64,
    /// Answers that were compared.
    pub answers: u64,
    /// The first answer that differs, if there is one. The replay stops there.
    pub difference: Option<Difference>,
}

/// An answer that differs from the recorded one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Number of the call, from 0.
    pub call: u64,
    /// The call with the recorded answer.
    pub recorded: String,
    /// The call with the answer of the replay.
    pub replayed: String,
    /// Calls before it, the oldest first.
    pub before: Vec<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "call {} is answered differently:", self.call)?;
        self.before.iter().try_for_each(|line| writeln!(f, "    {line}"))?;
        writeln!(f, "  - {}    (recorded)", self.recorded)?;
        write!(f, "  + {}    (replayed)", self.replayed)
    }
}

/// Why a log cannot be replayed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReplayError {
    /// It cannot be read.
    #[error("{0}")]
    Log(#[from] LogError),
    /// Its policy does not exist; with the list of existing ones.
    #[error("the log: {}", registry::refusal(.0, &[]))]
    Policy(String),
    /// An option is not the policy's.
    #[error("the log is of another version of its scheduler: {0}")]
    Option(OptionError),
    /// A call violates the contract between engine and policy, so no engine has recorded it.
    #[error("call {call} of the log cannot have been made: {what}")]
    Contract {
        /// Number of the call, from 0.
        call: u64,
        /// The breach.
        what: String,
    },
}

/// Makes the calls of `instance` to a new policy of its kind, until an answer differs.
///
/// # Errors
/// If the log cannot be read, or was not made by this program's engine and policies.
pub fn replay(instance: &Instance<'_>) -> Result<Replayed, ReplayError> {
    let factory = registry::find(instance.policy);
    let factory = factory.ok_or_else(|| ReplayError::Policy(instance.policy.into()))?;
    let mut options = Options::defaults(factory.attributes);
    for (name, value) in &instance.options {
        options.set(name, &value.to_string()).map_err(ReplayError::Option)?;
    }
    let policy = (factory.build)(&instance.shape, &options);
    let mut stage = Stage::new(factory, policy, instance.shape.slots);
    let mut replayed = Replayed { calls: 0, answers: 0, difference: None };
    let mut before = VecDeque::with_capacity(CONTEXT);
    for call in instance.calls() {
        let call = call?;
        stage
            .check(&call.entry)
            .map_err(|what| ReplayError::Contract { call: replayed.calls, what })?;
        let answer = stage.make(&call);
        replayed.answers += u64::from(answer.is_some());
        let other = answer.filter(|entry| *entry != call.entry);
        let other = other.map(|entry| Call { entry, ..call }.to_string());
        if let Some(other) = other.or_else(|| stage.unheard(&call.entry)) {
            replayed.difference = Some(Difference {
                call: replayed.calls,
                recorded: call.to_string(),
                replayed: other,
                before: before.iter().map(Call::to_string).collect(),
            });
            return Ok(replayed);
        }
        stage.follow(&call.entry);
        replayed.calls += 1;
        if before.len() == CONTEXT {
            before.pop_front();
        }
        before.push_back(call);
    }
    Ok(replayed)
}

/// The place of a request according to the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Nowhere,
    Held(RequestId),
    Issued(RequestId),
}

/// A policy and the requests that it learns of.
struct Stage {
    factory: &'static Factory,
    policy: Box<dyn Scheduler>,
    env: Recorded,
    /// All slots are in use at all times, so that each of them can be given any name.
    requests: Requests,
    names: Box<[RequestId]>,
    places: Box<[Place]>,
    groups: Groups,
}

impl Stage {
    fn new(factory: &'static Factory, policy: Box<dyn Scheduler>, slots: u32) -> Self {
        let mut requests = Requests::new(slots);
        let empty = IoMeta::new(Op::Read, 0, 0);
        let names = (0..slots).map(|_| requests.alloc(empty).expect("as many as there are slots"));
        let names: Box<[RequestId]> = names.collect();
        Self {
            factory,
            policy,
            env: Recorded::default(),
            requests,
            names,
            places: vec![Place::Nowhere; slots as usize].into(),
            groups: Groups::default(),
        }
    }

    /// Checks that an engine could have made this call.
    fn check(&self, entry: &Entry<'_>) -> Result<(), String> {
        let place = |rq: RequestId| self.places[rq.index()];
        let held = |rq: RequestId| match place(rq) {
            Place::Held(known) if known == rq => Ok(()),
            place => Err(format!("{rq:?} is not held; its slot: {place:?}")),
        };
        match *entry {
            Entry::Insert { rq, at, .. } => match (place(rq), at) {
                (Place::Nowhere, _) => Ok(()),
                (Place::Issued(known), At::Head) if known == rq => Ok(()),
                (place, _) => Err(format!("{rq:?} is inserted at the {at:?}; its slot: {place:?}")),
            },
            Entry::Pick { answer: Pick::Issue(rq), .. } | Entry::Withdraw { rq } => held(rq),
            Entry::Grown { rq, .. } | Entry::MayMerge { into: rq, .. } => held(rq),
            Entry::Absorbed { into, gone, .. } => {
                if into == gone {
                    return Err(format!("{into:?} absorbs itself"));
                }
                held(into)?;
                held(gone)
            }
            Entry::Completed { done } => match place(done.rq) {
                Place::Issued(known) if known == done.rq => Ok(()),
                place => Err(format!("{:?} ends; its slot: {place:?}", done.rq)),
            },
            Entry::Set { name, value, answer } => {
                let known = self.factory.attributes.iter().find(|known| known.name == name);
                let fits = known.is_none_or(|known| (known.min..=known.max).contains(&value));
                if fits && known.is_some() >= answer {
                    Ok(())
                } else {
                    Err(format!("{name}={value} is no attribute of {}", self.factory.name))
                }
            }
            Entry::Regroup(change) => self.groups.check(change),
            _ => Ok(()),
        }
    }

    /// Makes the call; if the call has an answer, returns the entry with this policy's answer.
    fn make<'a>(&mut self, call: &Call<'a>) -> Option<Entry<'a>> {
        match call.entry {
            Entry::Insert { rq, meta, .. } | Entry::Grown { rq, meta, .. } => self.set(rq, meta),
            Entry::Absorbed { into, meta, .. } => self.set(into, meta),
            _ => {}
        }
        let cx = Cx::new(call.now, &self.requests, &self.env);
        let policy = &mut *self.policy;
        match call.entry {
            Entry::Insert { rq, at, .. } => policy.insert(&cx, rq, at),
            Entry::Completed { done } => policy.completed(&cx, &done),
            Entry::Withdraw { rq } => policy.withdraw(&cx, rq),
            Entry::Absorbed { into, gone, .. } => policy.absorbed(&cx, into, gone),
            Entry::Grown { rq, edge, .. } => policy.grown(&cx, rq, edge),
            Entry::Regroup(change) => policy.regroup(&cx, change),
            Entry::Left(owner) => policy.owner_gone(&cx, owner),
            Entry::Heard(heard) => self.env.will_say(heard),
            Entry::Admits { io, used, .. } => {
                return Some(Entry::Admits { io, used, answer: policy.admits(&cx, &io, used) });
            }
            Entry::Pick { hw, .. } => {
                return Some(Entry::Pick { hw, answer: policy.pick(&cx, hw) });
            }
            Entry::MayMerge { into, io, .. } => {
                return Some(Entry::MayMerge {
                    into,
                    io,
                    answer: policy.may_merge(&cx, into, &io),
                });
            }
            Entry::FrontMerges { .. } => {
                return Some(Entry::FrontMerges { answer: policy.facts().front_merges });
            }
            Entry::AsyncDepth { .. } => {
                return Some(Entry::AsyncDepth { answer: policy.facts().async_depth });
            }
            Entry::Set { name, value, .. } => {
                return Some(Entry::Set { name, value, answer: policy.set_attribute(name, value) });
            }
        }
        None
    }

    /// The difference between the policy's questions to its environment and the recorded ones, in either direction.
    fn unheard(&mut self, entry: &Entry<'_>) -> Option<String> {
        if matches!(entry, Entry::Heard(_)) { None } else { self.env.left_over() }
    }

    /// Gives the slot of `rq` this name and metadata.
    fn set(&mut self, rq: RequestId, meta: IoMeta) {
        let name = &mut self.names[rq.index()];
        // A slot that is freed and immediately taken again is the same slot in its next generation.
        while *name != rq {
            self.requests.free(*name);
            *name = self.requests.alloc(meta).expect("one was given back just now");
        }
        *self.requests.get_mut(rq) = meta;
    }

    /// Updates the places of requests, and the groups, after the call.
    fn follow(&mut self, entry: &Entry<'_>) {
        let (rq, place) = match *entry {
            Entry::Insert { rq, .. } => (rq, Place::Held(rq)),
            Entry::Pick { answer: Pick::Issue(rq), .. } => (rq, Place::Issued(rq)),
            Entry::Withdraw { rq } | Entry::Absorbed { gone: rq, .. } => (rq, Place::Nowhere),
            Entry::Completed { done } => (done.rq, Place::Nowhere),
            Entry::Regroup(change) => return self.groups.follow(change),
            _ => return,
        };
        self.places[rq.index()] = place;
    }
}

/// The recorded answers for the coming call, and a question of the policy that has no recorded answer.
#[derive(Default)]
struct Recorded {
    /// The pools from which the policy wants tokens in the coming call, and whether there was one.
    tokens: RefCell<VecDeque<(u32, bool)>>,
    values: RefCell<BTreeMap<u32, u64>>,
    level: Cell<StatsLevel>,
    draining: Cell<bool>,
    /// The pool of a token that the policy wants now and did not want in the recording.
    surprise: Cell<Option<usize>>,
}

impl Recorded {
    /// Adds an answer that the policy gets in the next call.
    fn will_say(&self, heard: Heard) {
        match heard {
            Heard::Token { pool, there } => self.tokens.borrow_mut().push_back((pool, there)),
            Heard::Value { index, value } => {
                self.values.borrow_mut().insert(index, value);
            }
            Heard::Level(level) => self.level.set(level),
            Heard::Draining(draining) => self.draining.set(draining),
        }
    }

    /// After a call: the difference between the policy's questions and the recorded ones.
    fn left_over(&self) -> Option<String> {
        if let Some(pool) = self.surprise.take() {
            return Some(format!("wants a token of pool {pool}, which it did not"));
        }
        let unused = self.tokens.take();
        let (pool, _) = unused.front()?;
        Some(format!("wants no token of pool {pool}, which it did"))
    }
}

impl PolicyEnv for Recorded {
    fn take(&self, pool: usize) -> bool {
        let next = self.tokens.borrow_mut().pop_front();
        match next.filter(|(wanted, _)| *wanted as usize == pool) {
            Some((_, there)) => there,
            None => {
                self.surprise.set(Some(pool));
                false
            }
        }
    }

    fn count(&self, _: usize) {}

    fn value(&self, index: usize) -> u64 {
        self.values.borrow().get(&(index as u32)).copied().unwrap_or(0)
    }

    fn review_by(&self, _: Instant) {}

    fn note(&self, _: &Note) {}

    fn stats(&self) -> StatsLevel {
        self.level.get()
    }

    fn is_draining(&self) -> bool {
        self.draining.get()
    }
}

/// The groups that exist after the calls so far, each with its parent. The root is not in it.
#[derive(Debug, Default)]
struct Groups(BTreeMap<GroupIndex, GroupIndex>);

impl Groups {
    /// Checks that an engine could have made this change. The error says why not. O(groups) for a removal.
    fn check(&self, change: GroupChange) -> Result<(), String> {
        match change {
            GroupChange::Added { group, parent, weight } => {
                if self.exists(group) {
                    return Err(format!("{group:?} is added, which exists already"));
                }
                if self.0.len() >= usize::from(MAX_GROUPS) {
                    return Err(format!("{group:?} is added to {MAX_GROUPS} groups, the most"));
                }
                self.known(parent)?;
                weighs(weight)
            }
            GroupChange::Weight { group, weight } => {
                self.known(group)?;
                weighs(weight)
            }
            GroupChange::Guarantee { group, .. } => self.known(group),
            GroupChange::Removed { group: GroupIndex::ROOT } => {
                Err("the root is removed".to_owned())
            }
            GroupChange::Removed { group } => {
                self.known(group)?;
                match self.0.iter().find(|(_, parent)| **parent == group) {
                    Some((child, _)) => Err(format!("{group:?} is removed before its {child:?}")),
                    None => Ok(()),
                }
            }
        }
    }

    /// Makes the change.
    fn follow(&mut self, change: GroupChange) {
        match change {
            GroupChange::Added { group, parent, .. } => {
                self.0.insert(group, parent);
            }
            GroupChange::Removed { group } => {
                self.0.remove(&group);
            }
            GroupChange::Weight { .. } | GroupChange::Guarantee { .. } => {}
        }
    }

    fn exists(&self, group: GroupIndex) -> bool {
        group == GroupIndex::ROOT || self.0.contains_key(&group)
    }

    fn known(&self, group: GroupIndex) -> Result<(), String> {
        if self.exists(group) { Ok(()) } else { Err(format!("there is no {group:?}")) }
    }
}

fn weighs(weight: u32) -> Result<(), String> {
    if (1..=MAX_WEIGHT).contains(&weight) {
        return Ok(());
    }
    Err(format!("a weight of {weight}; weights are 1 to {MAX_WEIGHT}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_sched::Guarantee;

    fn added(group: u16, parent: u16, weight: u32) -> GroupChange {
        GroupChange::Added { group: GroupIndex(group), parent: GroupIndex(parent), weight }
    }

    fn removed(group: u16) -> GroupChange {
        GroupChange::Removed { group: GroupIndex(group) }
    }

    #[test]
    fn a_change_that_no_engine_makes_is_said_to_be_one() {
        let mut groups = Groups::default();
        for change in [added(1, 0, 100), added(2, 1, 1), added(3, 1, 1000), removed(3)] {
            assert_eq!(groups.check(change), Ok(()));
            groups.follow(change);
        }
        let guarantee = |group| GroupChange::Guarantee {
            group: GroupIndex(group),
            guarantee: Guarantee::default(),
        };
        assert_eq!(groups.check(guarantee(2)), Ok(()));
        let weight = |group, weight| GroupChange::Weight { group: GroupIndex(group), weight };
        let wrong = [
            (added(0, 0, 100), "exists already"),
            (added(2, 0, 100), "exists already"),
            (added(4, 3, 100), "no GroupIndex(3)"),
            (added(4, 4, 100), "no GroupIndex(4)"),
            (added(4, 0, 0), "weight of 0"),
            (weight(2, 1001), "weight of 1001"),
            (weight(3, 1), "no GroupIndex(3)"),
            (guarantee(3), "no GroupIndex(3)"),
            (removed(0), "the root"),
            (removed(1), "before its GroupIndex(2)"),
            (removed(3), "no GroupIndex(3)"),
        ];
        for (change, part) in wrong {
            let error = groups.check(change).expect_err(part);
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn there_are_no_more_groups_than_an_engine_has() {
        let mut groups = Groups::default();
        (1..=MAX_GROUPS).for_each(|group| groups.follow(added(group, group - 1, 100)));
        let error = groups.check(added(MAX_GROUPS + 1, 0, 100)).expect_err("one too many");
        assert!(error.contains("1023"), "{error}");
    }
}
