//! Planted bugs: each breaks one promise, to show that the oracles notice it.
//!
//! They are injected between the engine and the policy, the device, or the host, where the engine cannot tell them from
//! real bugs.

use crate::Stamp;
use crate::timeline::Wakes;
use blkmq_core::{HwQueue, Instant, IoMeta, Op, RequestId, SubmitterId, Tag};
use blkmq_engine::DeviceQueues;
use blkmq_engine::{BioTable, DeviceQueue, Enqueued, Expiry, Finished, Host, Inflight};
use blkmq_sched::{
    Admission, At, Bypass, Cx, Facts, Fresh, Note, Observed, Observer, Pick, PolicyEnv, Scheduler,
    StatsLevel,
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

/// The device, with the bug inside it if a witness beside the device cannot see the bug.
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
pub(crate) fn in_policy(bug: Option<Bug>, policy: Box<dyn Scheduler>) -> Box<dyn Scheduler> {
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
