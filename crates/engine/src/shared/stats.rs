//! Figures of a queue, which any thread can read without stopping it: counters, which each part writes for itself, and
//! values that a runner publishes, the board of latency goals and the forecast.
//!
//! Each counter has one writer at a time (the runner, a pump, a submitter), so that counting is a plain load and
//! store. A reader may see one counter a little ahead of another; at rest they agree.

use crate::GroupTree;
use crate::groups::{MAX_GROUPS, micros};
use crate::sync::{Arc, AtomicU16, AtomicU32, AtomicU64, Counter, Mutex, Ordering, PoisonError};
use blkmq_core::{GroupIndex, Instant, Nanos, Op, SECTOR_SIZE};
use blkmq_sched::forecast::{CLASSES, Share};
use blkmq_sched::{GoalReport, Goals, Outlook, Taken};

/// Written by the runner of one shard.
#[derive(Default)]
pub(crate) struct ElevatorCounters {
    pub(crate) inserted: Counter,
    pub(crate) back: Counter,
    pub(crate) front: Counter,
    pub(crate) discard: Counter,
    pub(crate) request: Counter,
    pub(crate) dispatched: Counter,
    pub(crate) batches: Counter,
    pub(crate) requeues: Counter,
    pub(crate) passes: Counter,
    pub(crate) longest_run: Counter,
    pub(crate) hand_overs: Counter,
    pub(crate) flushes_asked: Counter,
    pub(crate) flushes_issued: Counter,
    pub(crate) dataless: Counter,
    pub(crate) cancelled_staged: Counter,
    pub(crate) cancelled_held: Counter,
    pub(crate) in_time: Counter,
    pub(crate) missed: Counter,
    pub(crate) late: Counter,
    pub(crate) false_alarms: Counter,
}

/// Written by the pump of one hardware queue.
#[derive(Default)]
pub(crate) struct PumpCounters {
    pub(crate) issued: Counter,
    pub(crate) completed: Counter,
    pub(crate) busy: Counter,
    pub(crate) tail_requeues: Counter,
    pub(crate) timeouts: Counter,
    pub(crate) retries: Counter,
    pub(crate) taken_apart: Counter,
    pub(crate) runs: Counter,
    pub(crate) turns: Counter,
    pub(crate) kicks_sent: Counter,
    pub(crate) kicks_coalesced: Counter,
}

/// Written by one submitter.
#[derive(Default)]
pub(crate) struct SubmitterCounters {
    pub(crate) submitted: Counter,
    pub(crate) completed: Counter,
    pub(crate) dropped: Counter,
    pub(crate) splits: Counter,
    pub(crate) plug_merges: Counter,
    pub(crate) needless_flushes: Counter,
    pub(crate) cancelled: Counter,
    pub(crate) throttled: Counter,
    pub(crate) staged: Counter,
    pub(crate) direct: Counter,
    pub(crate) kicks_sent: Counter,
    pub(crate) kicks_coalesced: Counter,
    pub(crate) locked: Counter,
    pub(crate) contended: Counter,
    pub(crate) waited: Counter,
    /// The ticks at the end of the last measured wait.
    pub(crate) measured_at: Counter,
    pub(crate) merges_skipped: Counter,
    pub(crate) parked: Counter,
    pub(crate) left: Counter,
    pub(crate) refused_late: Counter,
}

/// Merges by where they happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MergeStats {
    /// In a submitter's plug.
    pub plug: u64,
    /// To the end of a held request.
    pub back: u64,
    /// To the start of a held request.
    pub front: u64,
    /// Between two held requests that became adjacent.
    pub request: u64,
    /// Of discard ranges.
    pub discard: u64,
}

/// Flushes requested and done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlushStats {
    /// Requests for a flush: bare flushes, flushes before data, and flushes after it. `asked / issued` is the average
    /// number of requests that shared a flush.
    pub asked: u64,
    /// Flushes begun at the device.
    pub issued: u64,
    /// Requests that ended at a flush without any of their data at the device: bare flushes, and data whose preceding
    /// flush failed.
    pub dataless: u64,
    /// Bare flushes answered immediately, because the device has no volatile cache.
    pub needless: u64,
}

impl FlushStats {
    /// The number of requests that reached the device because of flushes, beyond those that submitters sent; usually
    /// negative.
    #[must_use]
    pub fn surplus(&self) -> i64 {
        self.issued as i64 - (self.dataless + self.needless) as i64
    }
}

/// I/Os cancelled by their submitters, by the place where they were. They count as submitted and completed, are merged
/// with nothing, and never reach the device; after a requeue by the device, they do not reach it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CancelStats {
    /// In a submitter's plug, or held back by a limit of its group.
    pub plugged: u64,
    /// In staging.
    pub staged: u64,
    /// In an elevator: inserted, and not dispatched, or requeued.
    pub held: u64,
}

impl CancelStats {
    /// The sum.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.plugged + self.staged + self.held
    }
}

/// Contention at the locks of elevators; all zero with `Access::Combining`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LockStats {
    /// Times that a lock was taken.
    pub taken: u64,
    /// Times that the thread had to wait for the lock.
    pub contended: u64,
    /// Thread time spent waiting for locks, estimated from a sample. Zero if the host does not measure
    /// ([`Host::ticks`](crate::Host::ticks)).
    pub waited: Nanos,
    /// Merge attempts skipped because the lock was taken.
    pub merges_skipped: u64,
    /// Requests parked in insertion lists because the lock was taken.
    pub parked: u64,
    /// Times that a thread left its requests to the thread that was already dispatching.
    pub left: u64,
}

/// I/Os with deadlines: predictions and outcomes. The prediction that counts is made when the request gets its slot. A
/// request has the deadline of its first I/O, and is judged without its flushes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeadlineStats {
    /// I/Os refused because they were expected to be late.
    pub refused: u64,
    /// Requests that ended in time, as predicted.
    pub in_time: u64,
    /// Requests that were predicted to end in time, and were late.
    pub missed: u64,
    /// Requests that were late, as predicted.
    pub late: u64,
    /// Requests that were predicted to be late, and ended in time.
    pub false_alarms: u64,
}

impl DeadlineStats {
    /// The share of predictions that were wrong, from 0 to 1; 0 if there were none.
    #[must_use]
    pub fn wrong(&self) -> f64 {
        let wrong = self.missed + self.false_alarms;
        let all = wrong + self.in_time + self.late;
        if all == 0 { 0.0 } else { wrong as f64 / all as f64 }
    }
}

/// A queue's counters since it was built.
///
/// At rest, `submitted == completed + dropped`, and
/// `completed_requests == submitted - merges.total() - cancelled.total() + flushes.surplus()`, and
/// `dispatched == completed_requests + requeues`, and `issued == dispatched + tail_requeues + runs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueStats {
    /// Bios taken from submitters: an I/O each, or a part of a divided one. There were `submitted - splits` I/Os.
    pub submitted: u64,
    /// Bios that their submitters have reaped.
    pub completed: u64,
    /// Bios that a submitter had not reaped when it was dropped, wherever they were.
    pub dropped: u64,
    /// Cuts in I/Os that were too long for the device.
    pub splits: u64,
    /// Bios that waited in their submitter because of a limit of their group.
    pub throttled: u64,
    /// Merges.
    pub merges: MergeStats,
    /// Flushes.
    pub flushes: FlushStats,
    /// Cancelled I/Os.
    pub cancelled: CancelStats,
    /// I/Os with deadlines.
    pub deadlines: DeadlineStats,
    /// Requests that took a scheduler tag.
    pub inserted: u64,
    /// Requests that left an elevator for a hardware queue, flushes included; a requeued one counts again.
    pub dispatched: u64,
    /// Batches of dispatched requests; `dispatched / batches` is the mean batch.
    pub batches: u64,
    /// Requests accepted by the device.
    pub issued: u64,
    /// Requests that the device finished.
    pub completed_requests: u64,
    /// Requests that returned to their elevator, because the device wanted them later, or for a retry after an error.
    pub requeues: u64,
    /// Requests that the device wanted again later and that stayed with their hardware queue; they are issued again
    /// without being dispatched.
    pub tail_requeues: u64,
    /// Times that a device was asked about a request that it had kept for too long.
    pub timeouts: u64,
    /// Retries after an error; included in `requeues`.
    pub retries: u64,
    /// Failed requests of several owners that were repeated owner by owner.
    pub taken_apart: u64,
    /// Requests issued to repeat these, each with the I/Os of one owner.
    pub runs: u64,
    /// Times that the device had no room (RESOURCE or DEV_RESOURCE).
    pub busy: u64,
    /// Passes over an elevator.
    pub passes: u64,
    /// The most passes that one thread made in one run.
    pub longest_run: u64,
    /// Runs that ended because they had become too long.
    pub hand_overs: u64,
    /// Plugs that found the elevator free and were inserted directly.
    pub direct: u64,
    /// Plugs that were staged, because another thread ran the elevator or led it.
    pub staged: u64,
    /// Kicks that started a pass or a turn.
    pub kicks_sent: u64,
    /// Kicks that found a pass or a turn already due.
    pub kicks_coalesced: u64,
    /// Locks.
    pub locks: LockStats,
}

impl MergeStats {
    /// All merges.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.plug + self.back + self.front + self.request + self.discard
    }
}

impl QueueStats {
    /// The mean number of requests per batch; 0 without batches.
    #[must_use]
    pub fn batch_mean(&self) -> f64 {
        if self.batches == 0 { 0.0 } else { self.dispatched as f64 / self.batches as f64 }
    }

    pub(crate) fn add_elevator(&mut self, c: &ElevatorCounters) {
        self.inserted += c.inserted.get();
        self.merges.back += c.back.get();
        self.merges.front += c.front.get();
        self.merges.discard += c.discard.get();
        self.merges.request += c.request.get();
        self.dispatched += c.dispatched.get();
        self.batches += c.batches.get();
        self.requeues += c.requeues.get();
        self.passes += c.passes.get();
        self.longest_run = self.longest_run.max(c.longest_run.get());
        self.hand_overs += c.hand_overs.get();
        self.flushes.asked += c.flushes_asked.get();
        self.flushes.issued += c.flushes_issued.get();
        self.flushes.dataless += c.dataless.get();
        self.cancelled.staged += c.cancelled_staged.get();
        self.cancelled.held += c.cancelled_held.get();
        self.deadlines.in_time += c.in_time.get();
        self.deadlines.missed += c.missed.get();
        self.deadlines.late += c.late.get();
        self.deadlines.false_alarms += c.false_alarms.get();
    }

    pub(crate) fn add_pump(&mut self, c: &PumpCounters) {
        self.issued += c.issued.get();
        self.completed_requests += c.completed.get();
        self.busy += c.busy.get();
        self.tail_requeues += c.tail_requeues.get();
        self.timeouts += c.timeouts.get();
        self.retries += c.retries.get();
        self.taken_apart += c.taken_apart.get();
        self.runs += c.runs.get();
        self.kicks_sent += c.kicks_sent.get();
        self.kicks_coalesced += c.kicks_coalesced.get();
    }

    pub(crate) fn add_submitter(&mut self, c: &SubmitterCounters) {
        self.submitted += c.submitted.get();
        self.completed += c.completed.get();
        self.dropped += c.dropped.get();
        self.splits += c.splits.get();
        self.merges.plug += c.plug_merges.get();
        self.flushes.needless += c.needless_flushes.get();
        self.cancelled.plugged += c.cancelled.get();
        self.throttled += c.throttled.get();
        self.staged += c.staged.get();
        self.direct += c.direct.get();
        self.kicks_sent += c.kicks_sent.get();
        self.kicks_coalesced += c.kicks_coalesced.get();
        self.locks.taken += c.locked.get();
        self.locks.contended += c.contended.get();
        self.locks.waited = Nanos(self.locks.waited.0 + c.waited.get());
        self.locks.merges_skipped += c.merges_skipped.get();
        self.locks.parked += c.parked.get();
        self.locks.left += c.left.get();
        self.deadlines.refused += c.refused_late.get();
    }
}

/// The latency goals of a queue, their states, and the bounds on groups without goals.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GoalsStatus {
    /// The goals, sorted by group, reads first.
    pub goals: Vec<GoalReport>,
    /// The bounds on the groups without goals.
    pub taken: Taken,
    /// The time of the controller's last check.
    pub at: Instant,
}

impl GoalsStatus {
    /// A line for each goal, and one for the bounds. `groups` has the names.
    #[must_use]
    pub fn lines(&self, groups: &GroupTree) -> Vec<String> {
        let name = |index: GroupIndex| groups.at(index).map_or("/", |group| &group.name);
        let line = |it: &GoalReport| {
            format!(
                "{} {}={} state={} p99={} windows={} missed={} best={}",
                name(it.group),
                it.kind.word(),
                micros(it.goal),
                it.state.name(),
                micros(it.p99),
                it.windows,
                it.missed,
                micros(it.best),
            )
        };
        let mut lines = Vec::from_iter(self.goals.iter().map(line));
        let shown = |rate: Option<u64>| rate.map_or("max".into(), |rate| rate.to_string());
        let [lighter, equal, heavier] = self.taken.rates.map(shown);
        let depth = shown(self.taken.device_depth.map(u64::from));
        let bytes = |sectors: u32| u64::from(sectors) * u64::from(SECTOR_SIZE);
        let length = shown(self.taken.sectors.map(bytes));
        lines.push(format!(
            "taken length={length} device_depth={depth} lighter={lighter} equal={equal} heavier={heavier}"
        ));
        lines
    }
}

/// The published state of a queue's latency goals, and the time of the next check.
#[derive(Clone)]
pub(crate) struct Board(Arc<Published>);

struct Published {
    status: Mutex<GoalsStatus>,
    /// The time at which a pass is needed for a check, if none is made before, in nanoseconds; `u64::MAX` for never. A
    /// timer of the gate would have to be set in every pass, because each pass clears it.
    next_look: AtomicU64,
    /// The most sectors of a read or a write of a group whose requests are shortened; `u32::MAX` for any number. A
    /// submitter reads it when it sends its plug, and divides longer I/Os from then on.
    ///
    /// This word and `shortened` are hints, and guard nothing: an I/O is valid whether or not it was divided by the
    /// latest value. So accesses are relaxed.
    longest: AtomicU32,
    /// A bit for each group whose requests are shortened. Set together with the groups.
    shortened: [AtomicU64; SHORTENED],
}

/// The number of words with a bit for each group.
const SHORTENED: usize = MAX_GROUPS as usize / 64 + 1;

impl Board {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Published {
            status: Mutex::new(GoalsStatus::default()),
            next_look: AtomicU64::new(u64::MAX),
            longest: AtomicU32::new(u32::MAX),
            shortened: std::array::from_fn(|_| AtomicU64::new(0)),
        }))
    }

    /// The most sectors of a read or a write of a group whose requests are shortened; `u32::MAX` for any number.
    #[inline]
    pub(crate) fn longest(&self) -> u32 {
        self.0.longest.load(Ordering::Relaxed)
    }

    /// Returns whether the requests of `group` are shortened.
    pub(crate) fn shortens(&self, group: GroupIndex) -> bool {
        let word = self.0.shortened.get(usize::from(group.0) / 64);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (group.0 % 64) & 1 == 1)
    }

    pub(crate) fn set_longest(&self, sectors: Option<u32>) {
        self.0.longest.store(sectors.unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    pub(crate) fn set_shortened(&self, goals: &Goals) {
        for (word, of) in self.0.shortened.iter().enumerate() {
            let bit = |at: u16| goals.shortens(GroupIndex(word as u16 * 64 + at));
            let bits = (0..64).fold(0, |bits, at| bits | u64::from(bit(at)) << at);
            of.store(bits, Ordering::Relaxed);
        }
    }

    pub(crate) fn read(&self) -> GoalsStatus {
        self.0.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The time at which a pass is needed for a check; `None` for never. A hint, like the deadline of a gate.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        match self.0.next_look.load(Ordering::Acquire) {
            u64::MAX => None,
            ns => Some(Instant::from_nanos(ns)),
        }
    }

    pub(crate) fn set_next_look(&self, at: Option<Instant>) {
        self.0.next_look.store(at.map_or(u64::MAX, Instant::as_nanos), Ordering::Release);
    }

    /// Publishes the state, unless a reader is using it at this moment: the next check comes soon.
    pub(crate) fn publish(&self, now: Instant, goals: &Goals) {
        if let Ok(mut status) = self.0.status.try_lock() {
            status.goals.clear();
            status.goals.extend(goals.reports());
            status.taken = goals.taken();
            status.at = now;
        }
    }
}

/// The last published forecast.
///
/// Each word of a prospect is an independent hint: it guards no other memory, so loads and stores are relaxed. A thread
/// may see words of two publications; the forecast is then off by the difference between them.
pub(crate) struct Prospect {
    held: AtomicU64,
    at_device: AtomicU32,
    clear: AtomicU64,
    device: AtomicU64,
    costs: [AtomicU64; CLASSES],
    /// By group and direction.
    shares: Box<[AtomicU16]>,
}

/// Stores only a changed value, so that readers keep the cache line otherwise.
fn store(word: &AtomicU64, value: u64) {
    if word.load(Ordering::Relaxed) != value {
        word.store(value, Ordering::Relaxed);
    }
}

fn place(group: GroupIndex, writes: bool) -> usize {
    2 * usize::from(group.0) + usize::from(writes)
}

impl Prospect {
    /// A forecast for the groups with numbers below `groups`.
    pub(crate) fn new(groups: u16) -> Self {
        let shares = 0..2 * usize::from(groups);
        Self {
            held: AtomicU64::new(0),
            at_device: AtomicU32::new(0),
            clear: AtomicU64::new(0),
            device: AtomicU64::new(0),
            costs: std::array::from_fn(|_| AtomicU64::new(0)),
            shares: shares.map(|_| AtomicU16::new(Share::ALL.parts())).collect(),
        }
    }

    pub(crate) fn publish(&self, outlook: &Outlook) {
        store(&self.held, outlook.held.0);
        self.at_device.store(outlook.at_device, Ordering::Relaxed);
        store(&self.clear, outlook.clear.as_nanos());
        store(&self.device, outlook.device.0);
        for (word, cost) in self.costs.iter().zip(&outlook.costs) {
            store(word, cost.0);
        }
    }

    pub(crate) fn publish_share(&self, group: GroupIndex, writes: bool, share: Share) {
        if let Some(word) = self.shares.get(place(group, writes)) {
            word.store(share.parts(), Ordering::Relaxed);
        }
    }

    /// The time that an I/O that arrives at `now` is expected to take, with `at_device` requests at the device, and the
    /// part of it that is the I/O's own device time.
    pub(crate) fn expects(
        &self,
        now: (Instant, u32),
        group: GroupIndex,
        op: Op,
        sectors: u32,
    ) -> (Nanos, Nanos) {
        let outlook = Outlook {
            held: Nanos(self.held.load(Ordering::Relaxed)),
            at_device: self.at_device.load(Ordering::Relaxed),
            clear: Instant::from_nanos(self.clear.load(Ordering::Relaxed)),
            device: Nanos(self.device.load(Ordering::Relaxed)),
            costs: std::array::from_fn(|at| Nanos(self.costs[at].load(Ordering::Relaxed))),
        };
        let share = self.shares.get(place(group, op.is_write()));
        let share = share.map_or(Share::ALL, |word| Share::of_parts(word.load(Ordering::Relaxed)));
        (outlook.expects(now, share, op, sectors), outlook.own(op, sectors))
    }
}
