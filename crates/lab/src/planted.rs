//! Planted bugs: each breaks one promise, so that a run can show that the oracles notice it.
//!
//! They sit where the engine cannot tell them from real bugs: between it and the policy, the device, or the host.

use crate::Stamp;
use crate::host::Wakes;
use blkmq_core::{HwQueue, Instant, IoMeta, Nanos, Op, Owner, RequestId, SubmitterId, Tag};
use blkmq_engine::DeviceQueues;
use blkmq_engine::{BioTable, DeviceQueue, Enqueued, Expiry, Finished, Host, Inflight};
use blkmq_sched::{
    At, Capacity, Cx, DepthLimits, Done, GroupChange, Grown, Note, Pick, PolicyEnv, Scheduler,
    StatsLevel, Used,
};
use std::sync::atomic::{AtomicU32, Ordering};

/// A planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// Every third wake-up of a submitter is lost.
    LostWakeUp,
    /// The device forgets every fiftieth request.
    LostRequest,
    /// The device answers every third flush without doing it.
    SwallowedFlush,
    /// The device answers every twentieth write without doing it, and only a read can tell.
    LostWrite,
    /// The device answers every flush and does nothing, and only a power cut can tell.
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
}

impl Bug {
    /// Every kind.
    pub const ALL: [Self; 10] = [
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
/// One pick in `PICKS` goes wrong.
const PICKS: u32 = 20;
/// One withdrawn request in `WITHDRAWALS` is kept.
const WITHDRAWALS: u32 = 3;

/// Counts, and is true at each `every`-th count.
fn strikes(count: &mut u32, every: u32) -> bool {
    *count += 1;
    count.is_multiple_of(every)
}

/// The host, with the bug in it if it is a bug of a host.
pub(crate) fn in_host(bug: Option<Bug>, wakes: Wakes) -> Box<dyn Host> {
    match bug {
        Some(Bug::LostWakeUp) => Box::new(Drowsy { wakes, count: AtomicU32::new(0) }),
        _ => Box::new(wakes),
    }
}

/// The device, with the bug in it if it is a bug of a device.
pub(crate) fn in_device(bug: Option<Bug>, queues: DeviceQueues<Stamp>) -> DeviceQueues<Stamp> {
    let Some(bug @ (Bug::LostRequest | Bug::SwallowedFlush | Bug::SilentDevice)) = bug else {
        return queues;
    };
    broken(bug, queues)
}

/// The device, with the bug in it if no witness beside a device can see the bug.
pub(crate) fn inside(bug: Option<Bug>, queues: DeviceQueues<Stamp>) -> DeviceQueues<Stamp> {
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
pub(crate) fn in_policy(bug: Option<Bug>, inner: Box<dyn Scheduler>) -> Box<dyn Scheduler> {
    match bug {
        Some(
            bug @ (Bug::SwappedPicks | Bug::PickedTwice | Bug::KeptWithdrawn | Bug::UnaskedMerge),
        ) => Box::new(BrokenPolicy { inner, bug, count: 0, kept: None }),
        _ => inner,
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

    fn reap(&mut self, now: Instant, out: &mut Vec<Finished>) {
        let before = out.len();
        self.inner.reap(now, out);
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
    inner: Box<dyn Scheduler>,
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
    fn spoil(&mut self, cx: &Cx<'_>, hw: HwQueue, first: RequestId) -> RequestId {
        match self.bug {
            // The token that was taken for the first request goes with the second.
            Bug::SwappedPicks => match self.inner.pick(&cx.through(&Lender(cx.env)), hw) {
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

impl Scheduler for BrokenPolicy {
    fn pick(&mut self, cx: &Cx<'_>, hw: HwQueue) -> Pick {
        if let Some(kept) = self.kept.take() {
            return Pick::Issue(kept);
        }
        match self.inner.pick(cx, hw) {
            Pick::Issue(first) if self.spoils_picks() && strikes(&mut self.count, PICKS) => {
                Pick::Issue(self.spoil(cx, hw, first))
            }
            other => other,
        }
    }

    fn insert(&mut self, cx: &Cx<'_>, rq: RequestId, at: At) {
        self.inner.insert(cx, rq, at);
    }

    fn completed(&mut self, cx: &Cx<'_>, done: &Done) {
        self.inner.completed(cx, done);
    }

    fn withdraw(&mut self, cx: &Cx<'_>, rq: RequestId) {
        if self.bug == Bug::KeptWithdrawn && strikes(&mut self.count, WITHDRAWALS) {
            return;
        }
        if self.kept == Some(rq) {
            // To the policy the request is issued.
            self.kept = None;
            self.inner.insert(cx, rq, At::Head);
        }
        self.inner.withdraw(cx, rq);
    }

    fn absorbed(&mut self, cx: &Cx<'_>, into: RequestId, gone: RequestId) {
        self.inner.absorbed(cx, into, gone);
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        self.inner.inspect(out);
    }

    fn may_merge(&self, cx: &Cx<'_>, into: RequestId, io: &IoMeta) -> bool {
        if self.bug == Bug::UnaskedMerge && cx.requests.get(into).owner != io.owner {
            return true;
        }
        // The kept request is not the policy's any more; the bug is to break only the order.
        self.kept != Some(into) && self.inner.may_merge(cx, into, io)
    }

    fn front_merges(&self) -> bool {
        self.inner.front_merges()
    }

    fn grown(&mut self, cx: &Cx<'_>, rq: RequestId, edge: Grown) {
        self.inner.grown(cx, rq, edge);
    }

    fn depth_limits(&self) -> DepthLimits {
        self.inner.depth_limits()
    }

    fn limits_slots(&self) -> bool {
        self.inner.limits_slots()
    }

    fn shares_by_group(&self) -> bool {
        self.inner.shares_by_group()
    }

    fn capacity(&self) -> Option<Capacity> {
        self.inner.capacity()
    }

    fn bounds_device(&self) -> bool {
        self.inner.bounds_device()
    }

    fn charged(&self, rq: RequestId) -> Option<Nanos> {
        self.inner.charged(rq)
    }

    fn notes_groups(&self) -> bool {
        self.inner.notes_groups()
    }

    fn admits(&self, cx: &Cx<'_>, io: &IoMeta, used: Used) -> bool {
        self.inner.admits(cx, io, used)
    }

    fn regroup(&mut self, cx: &Cx<'_>, change: GroupChange) {
        self.inner.regroup(cx, change);
    }

    fn owner_gone(&mut self, cx: &Cx<'_>, owner: Owner) {
        self.inner.owner_gone(cx, owner);
    }

    fn attribute(&self, name: &str) -> Option<i64> {
        self.inner.attribute(name)
    }

    fn set_attribute(&mut self, name: &str, value: i64) -> bool {
        self.inner.set_attribute(name, value)
    }
}
