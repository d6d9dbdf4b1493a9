//! The queue under test, with witnesses around its policy and its device: they report to the oracle which requests are
//! picked, arrive and return, and change nothing; and with planted bugs, to show that the oracles notice them.
//!
//! The recorder around a policy notes where requests were joined. The witness around a device checks the handling of a
//! failed request that several owners share: it must be offered again as runs, one after another, each of the leading
//! bios of one owner, with the request's tag.
//!
//! Each planted bug breaks one promise. It is injected between the engine and the policy, the device, or the host,
//! where the engine cannot tell it from a real bug.

use crate::contents::Contents;
use crate::cpu::Wakes;
use crate::ledger::Seen;
pub(crate) use crate::observe::factory;
use crate::observe::{self, Entry, PolicyWatch, watched};
use crate::oracle::{Answer, Offer, Oracle, Return};
use crate::order::{Agreements, Picked};
use crate::{FlushFates, Stamp, Violation};
use blkmq_core::{
    HwQueue, Instant, IoError, IoMeta, IoResult, Nanos, Op, Owner, RequestId, SubmitterId, Tag,
};
use blkmq_device::contract::Checked;
use blkmq_engine::{
    BioTable, Config, ConfigError, DeviceQueue, DeviceQueues, DeviceShape, Enqueued, Expiry,
    Finished, FlushStats, Host, Inflight, PumpMode, Queue, QueueStats, Verdict,
};
use blkmq_sched::{
    Admission, At, Bypass, Cx, Factory, Facts, Fresh, Note, Observed, Observer, Pick, PolicyEnv,
    Scheduler, StatsLevel,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};

/// A queue with its witnesses. A [`World`](crate::World) drives it.
pub struct Subject {
    pub(crate) queue: Queue<Stamp>,
    pub(crate) wakes: Wakes,
    pub(crate) oracle: Oracle,
    pub(crate) shape: DeviceShape,
    pub(crate) pump: PumpMode,
}

impl Subject {
    /// Builds the queue that `config` describes; its host is replaced. A CPU may come up to `slack` late to a
    /// hardware queue.
    ///
    /// # Errors
    /// If the configuration is impossible.
    ///
    /// # Panics
    /// If its scheduler is neither in the registry nor one of the laboratory's own.
    pub fn new(config: Config<Stamp>, slack: Nanos, bug: Option<Bug>) -> Result<Self, ConfigError> {
        let (shape, pump) = (config.device, config.pump);
        let plan = config.plan();
        let oracle = Oracle::new((shape, plan.budget()), &config.groups, plan.shards(), slack);
        let wakes = Wakes::default();
        let (checked, _) = Checked::wrap(&shape, inside(bug, config.queues));
        let watched = witnessed(checked, &shape, config.retries, &oracle);
        let queues = in_device(bug, watched);
        let plan = Plan { factory: config.scheduler, oracle: oracle.clone(), bug };
        let config = Config {
            queues,
            scheduler: factory(config.scheduler),
            host: in_host(bug, wakes.clone()),
            ..config
        };
        let queue = build_with(plan, || Queue::new(config))?;
        Ok(Self { queue, wakes, oracle, shape, pump })
    }

    /// The device stores; `contents` is the knowledge about it in its life number `life`.
    pub(crate) fn keep(&self, contents: Contents, life: u32) {
        self.oracle.with(|oracle| oracle.keep(contents, life));
    }

    /// The payloads of reads and writes have ranges of so many sectors; 0 if they have one.
    pub(crate) fn scatter(&self, range: u32) {
        self.oracle.with(|oracle| oracle.ledger.takes.range = range);
    }

    /// The present knowledge about the contents of the device.
    pub(crate) fn take_contents(&self) -> Option<Contents> {
        self.oracle.with(|oracle| oracle.contents.take())
    }

    /// Its counters.
    #[must_use]
    pub fn stats(&self) -> QueueStats {
        self.queue.stats()
    }

    /// The outcomes of the flushes that its device was given.
    #[must_use]
    pub fn flushes(&self) -> FlushFates {
        self.oracle.with(|oracle| oracle.ledger.durable.fates)
    }

    /// The hash of all events: equal for two runs exactly if they were alike.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.oracle.with(|oracle| oracle.hash())
    }

    /// Checks the conditions that hold between any two calls.
    pub(crate) fn check(&self) -> Result<(), Violation> {
        self.oracle.with(|oracle| {
            for hw in (0..self.shape.hw_queues).map(HwQueue) {
                let used = self.queue.tags_in_use(hw);
                oracle.check_use("driver tags", used, self.shape.hw_queue_depth);
            }
            oracle.check_tokens(&self.queue.tokens());
            if let Some(budget) = oracle.budget {
                oracle.check_use("budgets", self.queue.budgets_in_use(), budget);
            }
            oracle.check()
        })
    }

    /// The queue.
    #[must_use]
    pub fn queue(&self) -> &Queue<Stamp> {
        &self.queue
    }

    /// Checks the conditions that hold when every I/O has ended: nothing is in use, and the counters agree with each
    /// other and with the observations of the witnesses.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check_at_rest(&self) -> Result<(), Violation> {
        self.check()?;
        let stats = self.queue.stats();
        let (ios, bios, busy, flushes, seen) = self.oracle.with(|oracle| {
            let ledger = &oracle.ledger;
            (ledger.submitted(), ledger.bios, oracle.busy, ledger.durable.fates, ledger.cancelled)
        });
        let cancelled = stats.cancelled;
        let env = cancelled.plugged + cancelled.staged;
        let tags: u32 =
            (0..self.shape.hw_queues).map(|hw| self.queue.tags_in_use(HwQueue(hw))).sum();
        let merges = stats.merges;
        let submitted = stats.submitted;
        let alone = submitted - merges.total() - cancelled.total();
        let expected = alone.checked_add_signed(stats.flushes.surplus());
        let FlushStats { dataless, needless, .. } = stats.flushes;
        let joined = merges.plug + merges.back + merges.front + merges.discard;
        let requests = stats.completed_requests;
        for (rule, holds) in [
            ("no driver tag in use", tags == 0),
            ("no budget in use", self.queue.budgets_in_use() == 0),
            ("no token out", self.queue.tokens().iter().all(|(out, _)| *out == 0)),
            (
                "bios witnessed, or given up before == submitted - dataless - needless flushes",
                bios == submitted - dataless - needless,
            ),
            ("submitted - splits == I/Os", submitted - stats.splits == ios),
            ("completed == submitted", stats.completed == submitted),
            (
                "inserted == submitted - joined - cancelled outside - needless flushes",
                stats.inserted == submitted - joined - env - needless,
            ),
            (
                "completed_requests == submitted - merges - cancelled + flushes.surplus",
                Some(requests) == expected,
            ),
            ("dispatched == completed + requeues", stats.dispatched == requests + stats.requeues),
            (
                "issued == dispatched + tail_requeues + runs",
                stats.issued == stats.dispatched + stats.tail_requeues + stats.runs,
            ),
            ("retries are requeues", stats.retries <= stats.requeues),
            ("cancelled as many as witnessed", cancelled.total() == seen),
            ("busy as often as witnessed", stats.busy == busy),
            ("as many flushes as witnessed", stats.flushes.issued == flushes.ended()),
            ("no batch without a request", stats.batches <= stats.dispatched),
        ] {
            if !holds {
                return Err(Violation::Counters { rule, stats: Box::new(stats) });
            }
        }
        Ok(())
    }
}

/// One hardware queue with its witness.
struct Witness {
    inner: Box<dyn DeviceQueue<Stamp>>,
    hw: HwQueue,
    oracle: Oracle,
    /// How long the device may keep a request, and the number of retries.
    timeout: Nanos,
    retries: u8,
    /// The requests at the device, by driver tag.
    held: BTreeMap<Tag, Held>,
    apart: Apart,
    /// The last request offered was refused.
    refused: bool,
}

/// A request at the device.
struct Held {
    what: Picked,
    bios: Vec<Owned>,
    /// The time at which the engine has to ask about it.
    deadline: Instant,
}

/// Puts a witness around each of `queues`, which belong to a device of this shape. The engine retries a failed request
/// `retries` times.
fn witnessed(
    queues: DeviceQueues<Stamp>,
    shape: &DeviceShape,
    retries: u8,
    oracle: &Oracle,
) -> DeviceQueues<Stamp> {
    let timeout = shape.timeout;
    let witness = |(hw, inner)| {
        let (hw, oracle) = (HwQueue(hw), oracle.clone());
        let (held, apart, refused) = (BTreeMap::new(), Apart::default(), false);
        Box::new(Witness { inner, hw, oracle, timeout, retries, held, apart, refused })
            as Box<dyn DeviceQueue<_>>
    };
    (0..).zip(queues).map(witness).collect()
}

impl Witness {
    /// The next step of a request, made of `bios`, that the device has finished.
    fn outcome(&mut self, rq: &Inflight, bios: &[Owned], result: IoResult) -> Return {
        let tag = rq.tag();
        if self.apart.has(tag) {
            self.apart.ran(tag, bios.len());
            return Return::Done(result);
        }
        match result {
            Err(error) if error.is_retryable() && rq.retries() < self.retries => Return::Again,
            _ if Apart::concerns(bios, result) => {
                self.apart.begin(tag, bios.to_vec());
                Return::Apart
            }
            _ => Return::Done(result),
        }
    }

    /// The bios of the request at the device with this tag.
    fn bios_of(&self, tag: Tag) -> Vec<Owned> {
        self.held.get(&tag).map(|held| held.bios.clone()).unwrap_or_default()
    }

    fn returned(&mut self, now: Instant, tag: Tag, how: Return) {
        let Some(Held { what, bios, .. }) = self.held.remove(&tag) else { return };
        let (place, bios) = ((self.hw, tag), bios.iter().map(|(_, seen)| seen.bio()).collect());
        self.oracle.with(|oracle| oracle.returned(now, place, what, bios, how));
    }
}

impl DeviceQueue<Stamp> for Witness {
    fn enqueue(&mut self, now: Instant, table: &BioTable<Stamp>, rq: Inflight) -> Enqueued {
        let owned: Vec<Owned> = rq
            .bios(table)
            .map(|bio| {
                let seen = Seen {
                    cookie: bio.cookie,
                    by: bio.submitter,
                    sector: bio.sector,
                    sectors: bio.sectors,
                    payload: bio.payload.key,
                };
                (bio.owner, seen)
            })
            .collect();
        let what = Picked { op: rq.op(), sector: rq.sector(), sectors: rq.sectors() };
        let (tag, flags) = (rq.tag(), rq.flags());
        let run = self.apart.has(tag).then(|| self.apart.is_next_run(tag, &owned));
        let bios = owned.iter().map(|(_, seen)| *seen).collect();
        let offer = Offer { now, hw: self.hw, tag, what, flags, bios, run };
        let answer = self.inner.enqueue(now, table, rq);
        let seen = match &answer {
            Enqueued::Accepted => Answer::Accepted,
            Enqueued::Done(rq, result) => Answer::Done(self.outcome(rq, &owned, *result)),
            Enqueued::Busy(_, why) => Answer::Busy(*why),
        };
        if matches!(seen, Answer::Accepted) {
            let held = Held { what, bios: owned, deadline: now + self.timeout };
            self.held.insert(offer.tag, held);
        }
        self.refused = matches!(seen, Answer::Busy(_));
        self.oracle.with(|oracle| oracle.offered(&offer, &seen));
        answer
    }

    fn commit(&mut self, now: Instant) {
        self.inner.commit(now);
    }

    fn reap(&mut self, now: Instant, bios: &BioTable<Stamp>, out: &mut Vec<Finished>) {
        let before = out.len();
        self.inner.reap(now, bios, out);
        for Finished { rq, verdict } in &out[before..] {
            let how = match verdict {
                Verdict::Done(result) => self.outcome(rq, &self.bios_of(rq.tag()), *result),
                // A run is offered again unchanged.
                Verdict::Requeue | Verdict::RequeueTail if self.apart.has(rq.tag()) => {
                    Return::Apart
                }
                Verdict::Requeue => Return::Again,
                Verdict::RequeueTail => Return::Tail,
            };
            self.returned(now, rq.tag(), how);
        }
    }

    fn timed_out(&mut self, now: Instant, tag: Tag) -> Expiry {
        let answer = self.inner.timed_out(now, tag);
        match &answer {
            Expiry::Done(rq, result) => {
                let how = self.outcome(rq, &self.bios_of(tag), *result);
                self.returned(now, tag, how);
            }
            Expiry::ResetTimer => {
                let held = self.held.get_mut(&tag);
                held.expect("it was asked about what it holds").deadline = now + self.timeout;
            }
        }
        answer
    }

    fn next_event(&self) -> Option<Instant> {
        let at = self.inner.next_event();
        // While the device holds no request and has refused none, the time that it names does not matter.
        let matters = !self.held.is_empty() || self.refused;
        // The engine has to ask about requests that may be lost, independent of the time that the device names.
        let timer = self.held.values().map(|held| held.deadline).min();
        let due = at.filter(|_| matters).into_iter().chain(timer).min();
        self.oracle.with(|oracle| oracle.promises.named(self.hw, due));
        at
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.inner.abandon(out);
    }
}

/// A bio with its owner.
type Owned = (Owner, Seen);

/// The requests of one hardware queue that are being repeated, each with its remaining bios.
#[derive(Default)]
pub(crate) struct Apart(BTreeMap<Tag, VecDeque<Owned>>);

impl Apart {
    /// Returns whether the request with this tag is being repeated.
    pub(crate) fn has(&self, tag: Tag) -> bool {
        self.0.contains_key(&tag)
    }

    /// Returns whether a request made of `bios` must be repeated after this result, which would otherwise be final.
    fn concerns(bios: &[Owned], result: IoResult) -> bool {
        let partial = result.is_err_and(IoError::may_be_partial);
        partial && bios.iter().any(|(owner, _)| *owner != bios[0].0)
    }

    /// The request with this tag, made of `bios`, is to be repeated.
    pub(crate) fn begin(&mut self, tag: Tag, bios: Vec<Owned>) {
        self.0.insert(tag, bios.into());
    }

    /// Returns whether a request with this tag, which is being repeated and is offered to the device, is the next run.
    fn is_next_run(&self, tag: Tag, bios: &[Owned]) -> bool {
        let Some(rest) = self.0.get(&tag) else { return false };
        let owner = rest.front().map(|(owner, _)| *owner);
        let run = rest.iter().take_while(|(of, _)| Some(*of) == owner);
        run.map(|(_, seen)| seen.bio()).eq(bios.iter().map(|(_, seen)| seen.bio()))
    }

    /// The device has returned a run of `bios` bios.
    fn ran(&mut self, tag: Tag, bios: usize) {
        let Some(rest) = self.0.get_mut(&tag) else { return };
        rest.drain(..bios.min(rest.len()));
        if rest.is_empty() {
            self.0.remove(&tag);
        }
    }
}

/// The wrapper of the next policies built on this thread.
pub(crate) struct Plan {
    /// The real factory.
    pub(crate) factory: &'static Factory,
    /// The oracle that is notified.
    pub(crate) oracle: Oracle,
    /// The bug between the recorder and the engine.
    pub(crate) bug: Option<Bug>,
}

/// Runs `build`, which builds a queue with the [`factory`] of the plan's policy.
pub(crate) fn build_with<R>(plan: Plan, build: impl FnOnce() -> R) -> R {
    let Plan { factory, oracle, bug } = plan;
    let wrap = move |inner, _: &_, _: &_| {
        let recorder = Box::new(Recorder {
            oracle: oracle.clone(),
            held: 0,
            agreements: Agreements::default(),
        });
        in_policy(bug, watched(inner, vec![recorder]))
    };
    observe::build_with(factory, wrap, build)
}

struct Recorder {
    oracle: Oracle,
    held: u32,
    agreements: Agreements,
}

impl PolicyWatch for Recorder {
    fn called(&mut self, cx: &Cx<'_>, entry: &Entry<'_>) {
        match *entry {
            Entry::Pick { hw, answer } => {
                let what = match answer {
                    Pick::Issue(rq) => {
                        self.held -= 1;
                        Some((Picked::from(cx.requests.get(rq)), self.agreements.take(rq)))
                    }
                    _ => None,
                };
                self.oracle.with(|oracle| oracle.asked(cx.now, hw, answer, what));
            }
            Entry::Insert { .. } => self.held += 1,
            Entry::MayMerge { into, ref io, answer } => self.agreements.answered(into, io, answer),
            Entry::Grown { rq, edge, .. } => self.agreements.grown(rq, edge),
            Entry::Withdraw { rq } => {
                self.held -= 1;
                self.agreements.take(rq);
                if self.held == 0 {
                    let hw = cx.requests.get(rq).hw;
                    self.oracle.with(|oracle| oracle.asking.emptied(hw));
                }
            }
            Entry::Absorbed { into, gone, .. } => {
                self.held -= 1;
                self.agreements.absorbed(into, gone);
            }
            _ => {}
        }
    }
}

/// A planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// Every third wake-up of a submitter is lost.
    LostWakeUp,
    /// The device forgets every fiftieth request.
    LostRequest,
    /// The device answers every third flush without doing it.
    SwallowedFlush,
    /// The device answers every twentieth write without executing it. Only a read can detect that.
    LostWrite,
    /// The device answers every flush without executing it. Only a power cut can detect that.
    IdleFlush,
    /// The device does not name the time of its next event.
    SilentDevice,
    /// The policy swaps every twentieth pick with the pick behind it.
    SwappedPicks,
    /// The policy hands out every twentieth request twice.
    PickedTwice,
    /// The policy keeps every third withdrawn request, and hands it out later.
    KeptWithdrawn,
    /// The policy is not asked whether an I/O may join a request of another owner.
    UnaskedMerge,
    /// The first two requests of every third plug leave in the wrong order.
    SwappedPlug,
    /// The policy is not notified of every twentieth request that passes it by.
    SilentPass,
    /// Every twentieth request that comes alone is issued without being given to the policy.
    SilentAdmission,
}

impl Bug {
    /// Every kind.
    pub const ALL: [Self; 13] = [
        Self::LostWakeUp,
        Self::LostRequest,
        Self::SwallowedFlush,
        Self::LostWrite,
        Self::IdleFlush,
        Self::SilentDevice,
        Self::SwappedPicks,
        Self::PickedTwice,
        Self::KeptWithdrawn,
        Self::UnaskedMerge,
        Self::SwappedPlug,
        Self::SilentPass,
        Self::SilentAdmission,
    ];
}

/// One wake-up in `WAKE_UPS` is lost.
const WAKE_UPS: u32 = 3;
/// One request in `REQUESTS` is forgotten.
const REQUESTS: u32 = 50;
/// One flush in `FLUSHES` is not done.
const FLUSHES: u32 = 3;
/// One write in `WRITES` is not done.
const WRITES: u32 = 20;
/// One pick, or one passing or single request, in `PICKS` goes wrong.
const PICKS: u32 = 20;
/// One plug in `PLUGS` leaves in the wrong order.
const PLUGS: u32 = 3;
/// One withdrawn request in `WITHDRAWALS` is kept.
const WITHDRAWALS: u32 = 3;

/// Counts; returns true at every `every`-th call.
fn strikes(count: &mut u32, every: u32) -> bool {
    *count += 1;
    count.is_multiple_of(every)
}

/// The host, with the bug in it if it is a bug of a host.
fn in_host(bug: Option<Bug>, wakes: Wakes) -> Box<dyn Host> {
    match bug {
        Some(Bug::LostWakeUp) => Box::new(Drowsy { wakes, count: AtomicU32::new(0) }),
        _ => Box::new(wakes),
    }
}

/// The device, with the bug in it if it is a bug of a device.
fn in_device(bug: Option<Bug>, queues: DeviceQueues<Stamp>) -> DeviceQueues<Stamp> {
    let Some(bug @ (Bug::LostRequest | Bug::SwallowedFlush | Bug::SilentDevice)) = bug else {
        return queues;
    };
    broken(bug, queues)
}

/// The device, with the bug inside it if a witness beside the device cannot see the bug.
fn inside(bug: Option<Bug>, queues: DeviceQueues<Stamp>) -> DeviceQueues<Stamp> {
    match bug {
        Some(bug @ (Bug::LostWrite | Bug::IdleFlush)) => broken(bug, queues),
        _ => queues,
    }
}

fn broken(bug: Bug, queues: DeviceQueues<Stamp>) -> DeviceQueues<Stamp> {
    let broken = |inner| Box::new(BrokenQueue { inner, bug, count: 0 }) as Box<dyn DeviceQueue<_>>;
    queues.into_iter().map(broken).collect()
}

/// The policy, with the bug in it if it is a bug of a policy.
fn in_policy(bug: Option<Bug>, policy: Box<dyn Scheduler>) -> Box<dyn Scheduler> {
    match bug {
        Some(
            bug @ (Bug::SwappedPicks
            | Bug::PickedTwice
            | Bug::KeptWithdrawn
            | Bug::UnaskedMerge
            | Bug::SwappedPlug
            | Bug::SilentPass
            | Bug::SilentAdmission),
        ) => Box::new(Observed::new(policy, BrokenPolicy { bug, count: 0, kept: None })),
        _ => policy,
    }
}

struct Drowsy {
    wakes: Wakes,
    count: AtomicU32,
}

impl Host for Drowsy {
    fn wake_submitter(&self, submitter: SubmitterId) {
        if !(self.count.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(WAKE_UPS) {
            self.wakes.wake_submitter(submitter);
        }
    }

    fn wake_pump(&self, hw: HwQueue) {
        self.wakes.wake_pump(hw);
    }
}

struct BrokenQueue {
    inner: Box<dyn DeviceQueue<Stamp>>,
    bug: Bug,
    count: u32,
}

impl DeviceQueue<Stamp> for BrokenQueue {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<Stamp>, rq: Inflight) -> Enqueued {
        let every = match (self.bug, rq.op()) {
            (Bug::SwallowedFlush, Op::Flush) => Some(FLUSHES),
            (Bug::LostWrite, Op::Write) => Some(WRITES),
            (Bug::IdleFlush, Op::Flush) => Some(1),
            _ => None,
        };
        if every.is_some_and(|every| strikes(&mut self.count, every)) {
            return Enqueued::Done(rq, Ok(()));
        }
        self.inner.enqueue(now, bios, rq)
    }

    fn commit(&mut self, now: Instant) {
        self.inner.commit(now);
    }

    fn reap(&mut self, now: Instant, bios: &BioTable<Stamp>, out: &mut Vec<Finished>) {
        let before = out.len();
        self.inner.reap(now, bios, out);
        if self.bug == Bug::LostRequest {
            let lost = out.extract_if(before.., |_| strikes(&mut self.count, REQUESTS));
            lost.for_each(std::mem::forget);
        }
    }

    fn timed_out(&mut self, now: Instant, tag: Tag) -> Expiry {
        self.inner.timed_out(now, tag)
    }

    fn next_event(&self) -> Option<Instant> {
        let at = self.inner.next_event();
        if self.bug == Bug::SilentDevice { at.map(|_| Instant::MAX) } else { at }
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.inner.abandon(out);
    }
}

struct BrokenPolicy {
    bug: Bug,
    count: u32,
    /// The request to be handed out next.
    kept: Option<RequestId>,
}

impl BrokenPolicy {
    fn spoils_picks(&self) -> bool {
        matches!(self.bug, Bug::SwappedPicks | Bug::PickedTwice)
    }

    /// The request that is handed out instead of `first`, which the policy has picked.
    fn spoil(
        &mut self,
        policy: &mut dyn Scheduler,
        cx: &Cx<'_>,
        hw: HwQueue,
        first: RequestId,
    ) -> RequestId {
        match self.bug {
            // The token taken for the first request is passed with the second.
            Bug::SwappedPicks => match policy.pick(&cx.through(&Lender(cx.env)), hw) {
                Pick::Issue(second) => {
                    self.kept = Some(first);
                    second
                }
                _ => first,
            },
            _ => {
                self.kept = Some(first);
                first
            }
        }
    }
}

/// The outside of a policy that has the token for its pick already.
struct Lender<'a>(&'a dyn PolicyEnv);

impl PolicyEnv for Lender<'_> {
    fn take(&self, _: usize) -> bool {
        true
    }

    fn count(&self, counter: usize) {
        self.0.count(counter);
    }

    fn value(&self, index: usize) -> u64 {
        self.0.value(index)
    }

    fn review_by(&self, at: Instant) {
        self.0.review_by(at);
    }

    fn note(&self, note: &Note) {
        self.0.note(note);
    }

    fn stats(&self) -> StatsLevel {
        self.0.stats()
    }

    fn is_draining(&self) -> bool {
        self.0.is_draining()
    }
}

impl Observer for BrokenPolicy {
    /// A kept request is held, so a policy with this bug has no shortcuts.
    fn facts(&self, policy: &dyn Scheduler) -> Facts {
        let facts = policy.facts();
        if self.spoils_picks() {
            Facts { bypass: Bypass::Never, takes_plugs: false, ..facts }
        } else {
            facts
        }
    }

    fn pick(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, hw: HwQueue) -> Pick {
        if let Some(kept) = self.kept.take() {
            return Pick::Issue(kept);
        }
        match policy.pick(cx, hw) {
            Pick::Issue(first) if self.spoils_picks() && strikes(&mut self.count, PICKS) => {
                Pick::Issue(self.spoil(policy, cx, hw, first))
            }
            other => other,
        }
    }

    fn admit(
        &mut self,
        policy: &mut dyn Scheduler,
        cx: &Cx<'_>,
        fresh: &Fresh<'_>,
        order: &mut [u8],
    ) -> Admission {
        if self.spoils_picks() {
            return Admission::Refused;
        }
        let is_alone = fresh.rqs.len() == 1;
        if is_alone && self.bug == Bug::SilentAdmission && strikes(&mut self.count, PICKS) {
            return Admission::Issued;
        }
        let admission = policy.admit(cx, fresh, order);
        let is_plug = !is_alone && admission == Admission::Issued;
        if is_plug && self.bug == Bug::SwappedPlug && strikes(&mut self.count, PLUGS) {
            order.swap(0, 1);
        }
        admission
    }

    fn passed(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, rq: RequestId, hw: HwQueue) {
        if !(self.bug == Bug::SilentPass && strikes(&mut self.count, PICKS)) {
            policy.passed(cx, rq, hw);
        }
    }

    fn withdraw(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, rq: RequestId) {
        if self.bug == Bug::KeptWithdrawn && strikes(&mut self.count, WITHDRAWALS) {
            return;
        }
        if self.kept == Some(rq) {
            // For the policy, the request is issued.
            self.kept = None;
            policy.insert(cx, rq, At::Head);
        }
        policy.withdraw(cx, rq);
    }

    fn may_merge(&self, policy: &dyn Scheduler, cx: &Cx<'_>, into: RequestId, io: &IoMeta) -> bool {
        if self.bug == Bug::UnaskedMerge && cx.requests.get(into).owner != io.owner {
            return true;
        }
        // The policy no longer holds the kept request; the bug is to break only the order.
        self.kept != Some(into) && policy.may_merge(cx, into, io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::SubmitterId;

    fn bio(owner: u32, sector: u64) -> Owned {
        let seen = Seen { cookie: sector, by: SubmitterId(0), sector, sectors: 8, payload: 0 };
        (Owner(owner), seen)
    }

    #[test]
    fn runs_come_in_order_and_are_as_long_as_one_owner_goes() {
        let all = vec![bio(1, 0), bio(1, 8), bio(2, 16), bio(1, 24)];
        assert!(Apart::concerns(&all, Err(IoError::IO)));
        assert!(!Apart::concerns(&all, Ok(())) && !Apart::concerns(&all[..2], Err(IoError::IO)));
        assert!(!Apart::concerns(&all, Err(IoError::TIMED_OUT)));
        let (mut apart, tag) = (Apart::default(), Tag(3));
        apart.begin(tag, all.clone());
        assert!(!apart.is_next_run(tag, &all[..1]) && !apart.is_next_run(tag, &all[2..3]));
        for run in [&all[..2], &all[2..3], &all[3..]] {
            assert!(apart.has(tag) && apart.is_next_run(tag, run));
            apart.ran(tag, run.len());
        }
        assert!(!apart.has(tag));
    }
}
