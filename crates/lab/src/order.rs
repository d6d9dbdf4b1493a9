//! Checks of the engine towards a policy and a device: the order of requests, consent to share them, and returns in
//! time.
//!
//! Requests arrive on each hardware queue in the order of their picks. The order includes requests that the device
//! refuses, since they wait ahead of all others, and requests that it requeues, since the policy picks them again, or
//! they wait behind the requests picked by then. Flushes bypass the policy and must not be passed to this module.
//!
//! The engine does not distinguish owners; the policy decides each time whether an I/O may join another owner's
//! request. Its consent leaves a *seam*. Seams are collected per request in the recorder of the policy, and travel with
//! the request when it is picked; at the device there must be one wherever the owner changes from one bio to the next.
//! Within a plug the policy is not asked, so only I/Os of one owner may be merged there.
//!
//! A policy that waits names the event, a time or a completion; a completion is a reason to ask again in both cases
//! ([`Pick`]). Tags, budgets and a busy device can be reasons not to ask. So [`Asking`] demands only that an idle
//! device does not stay idle while a policy waits to be asked. A hardware queue must be visited at the time that its
//! device names, and 3 ms after RESOURCE. Any thread may visit it earlier. If the visit is much later, I/Os wait for no
//! reason (`spec/framework.md` section 16, points 6 and 8).

use crate::ledger::{Bio, Seen};
use crate::violation::Violation;
use blkmq_core::{HwQueue, Instant, IoMeta, Nanos, Op, Owner, RequestId};
use blkmq_sched::{Grown, Pick};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A request as the policy knew it at the pick; the device must get it unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Picked {
    pub(crate) op: Op,
    pub(crate) sector: u64,
    pub(crate) sectors: u32,
}

impl From<&IoMeta> for Picked {
    fn from(meta: &IoMeta) -> Self {
        Self { op: meta.op, sector: meta.sector, sectors: meta.sectors }
    }
}

/// Requests picked and not yet taken by the device, by hardware queue; each with its seams.
pub(crate) struct Order(Vec<VecDeque<(Picked, Vec<Seam>)>>);

impl Order {
    /// An order without picks.
    pub(crate) fn new(hw_queues: u16) -> Self {
        Self((0..hw_queues).map(|_| VecDeque::new()).collect())
    }

    /// The policy picked this request for `hw`, with these seams.
    pub(crate) fn picked(&mut self, hw: HwQueue, what: Picked, seams: Vec<Seam>) {
        self.0[usize::from(hw.0)].push_back((what, seams));
    }

    /// The device was offered this request on `hw`; `taken` if it did not refuse. Returns the seams of a request that
    /// was offered for the first time.
    pub(crate) fn arrived(
        &mut self,
        hw: HwQueue,
        what: Picked,
        taken: bool,
    ) -> Result<Vec<Seam>, Violation> {
        let lane = &mut self.0[usize::from(hw.0)];
        let Some((_, seams)) = lane.front_mut().filter(|(next, _)| *next == what) else {
            let picked = lane.front().map(|(next, _)| next.sector);
            return Err(Violation::OutOfOrder { hw, picked, arrived: what.sector });
        };
        let seams = std::mem::take(seams);
        if taken {
            lane.pop_front();
        }
        Ok(seams)
    }
}

/// The place where an I/O joined a request with the policy's consent: the first sector of the part behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seam(pub(crate) u64);

/// The consents of one policy for the requests that it holds.
#[derive(Default)]
pub(crate) struct Agreements {
    /// The last question to which it agreed.
    last: Option<(RequestId, IoMeta)>,
    held: BTreeMap<RequestId, Vec<Seam>>,
}

impl Agreements {
    /// The policy was asked whether `io` may join `into`.
    pub(crate) fn answered(&mut self, into: RequestId, io: &IoMeta, answer: bool) {
        self.last = answer.then_some((into, *io));
    }

    /// An I/O has joined `into` at this edge.
    pub(crate) fn grown(&mut self, into: RequestId, edge: Grown) {
        let Some((_, io)) = self.last.take().filter(|(agreed, _)| *agreed == into) else { return };
        let behind = match edge {
            Grown::Front { .. } => io.end(),
            Grown::Back | Grown::Discard => io.sector,
        };
        self.held.entry(into).or_default().push(Seam(behind));
    }

    /// `gone` has joined `into` at its end, with all its seams.
    pub(crate) fn absorbed(&mut self, into: RequestId, gone: RequestId) {
        self.grown(into, Grown::Back);
        let inherited = self.take(gone);
        if !inherited.is_empty() {
            self.held.entry(into).or_default().extend(inherited);
        }
    }

    /// The policy no longer holds `rq`; returns its seams.
    pub(crate) fn take(&mut self, rq: RequestId) -> Vec<Seam> {
        self.held.remove(&rq).unwrap_or_default()
    }
}

/// Neighbours in requests at the device whose owners differ with the policy's consent.
#[derive(Default)]
pub(crate) struct Neighbours(BTreeSet<(Bio, Bio)>);

impl Neighbours {
    /// Checks a request made of `bios`, each with its owner, that was offered on `hw` and had these `seams` when it was
    /// picked; no seams if it is offered again.
    pub(crate) fn check(
        &mut self,
        hw: HwQueue,
        sector: u64,
        bios: &[(Owner, Seen)],
        seams: &[Seam],
    ) -> Result<(), Violation> {
        for pair in bios.windows(2) {
            let [(owner, former), (other, next)] = pair else { continue };
            let both = (former.bio(), next.bio());
            if owner == other || self.0.contains(&both) {
                continue;
            }
            if !seams.contains(&Seam(next.sector)) {
                let what = "bios of different owners were merged, and the policy had not agreed";
                return Err(Violation::Malformed { hw, what, sector });
            }
            self.0.insert(both);
        }
        Ok(())
    }
}

/// The last answers of the elevators' policies, and the times by which they must be asked again.
pub(crate) struct Asking {
    /// By elevator; `None` for a policy that did not answer "wait".
    waits: Vec<Option<Wait>>,
    hw_queues_per_elevator: u16,
    slack: Nanos,
}

#[derive(Clone, Copy)]
struct Wait {
    hw: HwQueue,
    /// The time that the policy waits for; `None` if it waits for a completion.
    until: Option<Instant>,
    /// The time by which the policy must be asked; `None` while the device is at work.
    due: Option<Instant>,
}

impl Asking {
    /// No policy waits. A policy may be asked up to `slack` late.
    pub(crate) fn new(elevators: u16, hw_queues: u16, slack: Nanos) -> Self {
        let hw_queues_per_elevator = hw_queues / elevators;
        Self { waits: vec![None; elevators.into()], hw_queues_per_elevator, slack }
    }

    /// The policy of the elevator that serves `hw` was asked. `idle`: the device holds no request.
    pub(crate) fn asked(&mut self, now: Instant, hw: HwQueue, answer: Pick, idle: bool) {
        let until = match answer {
            Pick::Issue(_) | Pick::Empty => {
                self.emptied(hw);
                return;
            }
            Pick::WaitUntil(at) => Some(at),
            Pick::WaitCompletion | Pick::WaitToken => None,
        };
        // A policy that waits for a completion has not been notified of the last one yet.
        let due = idle.then_some(until.unwrap_or(now));
        let elevator = self.elevator(hw);
        self.waits[elevator] = Some(Wait { hw, until, due });
    }

    /// The policy of the elevator that serves `hw` holds no request any more.
    pub(crate) fn emptied(&mut self, hw: HwQueue) {
        let elevator = self.elevator(hw);
        self.waits[elevator] = None;
    }

    fn elevator(&self, hw: HwQueue) -> usize {
        usize::from(hw.0 / self.hw_queues_per_elevator)
    }

    /// The device has finished all its requests at this time, the last of them on `hw`. A policy that waits for a
    /// time need not be asked because of another elevator's completion, of which it is not notified.
    pub(crate) fn idle(&mut self, now: Instant, hw: HwQueue) {
        let own = self.elevator(hw);
        for (elevator, wait) in self.waits.iter_mut().enumerate() {
            let Some(wait) = wait else { continue };
            let until = wait.until.filter(|_| elevator != own);
            wait.due = Some(until.map_or(now, |at| at.max(now)));
        }
    }

    /// The device was offered a request.
    pub(crate) fn busy(&mut self) {
        for wait in self.waits.iter_mut().flatten() {
            wait.due = None;
        }
    }

    /// No policy could be asked until now.
    pub(crate) fn put_off(&mut self, now: Instant) {
        for wait in self.waits.iter_mut().flatten() {
            wait.due = wait.due.map(|due| due.max(now));
        }
    }

    /// Like `self`, but for `elevators` elevators with new policies.
    pub(crate) fn anew(&self, elevators: u16) -> Self {
        let hw_queues = self.waits.len() as u16 * self.hw_queues_per_elevator;
        Self::new(elevators, hw_queues, self.slack)
    }

    /// Checks that no policy is overdue at time `now`.
    pub(crate) fn check(&self, now: Instant) -> Result<(), Violation> {
        for Wait { hw, due, .. } in self.waits.iter().flatten() {
            if let Some(due) = due.filter(|due| *due + self.slack < now) {
                return Err(Violation::NotAsked { hw: *hw, due, now, slack: self.slack });
            }
        }
        Ok(())
    }
}

/// The longest that a request refused with RESOURCE waits for another attempt (`spec/framework.md` section 1).
const RESOURCE_DELAY: Nanos = Nanos::from_millis(3);

/// The visits owed to one hardware queue.
#[derive(Clone, Copy, Default)]
struct Owed {
    /// The time that its device named when it was last asked.
    named: Option<Instant>,
    /// The end of the delay after a RESOURCE.
    resource: Option<Instant>,
}

/// The visits owed to all hardware queues.
pub(crate) struct Promises {
    owed: Vec<Owed>,
    slack: Nanos,
}

impl Promises {
    /// Nothing is owed. A visit may come up to `slack` late: the CPUs may have been busy.
    pub(crate) fn new(hw_queues: u16, slack: Nanos) -> Self {
        Self { owed: vec![Owed::default(); hw_queues.into()], slack }
    }

    /// The device of `hw` was asked for the time of its next event.
    pub(crate) fn named(&mut self, hw: HwQueue, at: Option<Instant>) {
        self.owed[usize::from(hw.0)].named = at.filter(|at| *at < Instant::MAX);
    }

    /// A request was offered to `hw`; `resource` if it was refused with RESOURCE.
    pub(crate) fn offered(&mut self, hw: HwQueue, now: Instant, resource: bool) {
        self.owed[usize::from(hw.0)].resource = resource.then_some(now + RESOURCE_DELAY);
    }

    /// No visit was possible until now: overdue visits are due from here on.
    pub(crate) fn put_off(&mut self, now: Instant) {
        for Owed { named, resource } in &mut self.owed {
            *named = named.map(|at| at.max(now));
            *resource = resource.map(|at| at.max(now));
        }
    }

    /// Checks that no visit is overdue at time `now`.
    pub(crate) fn check(&self, now: Instant) -> Result<(), Violation> {
        for (hw, owed) in self.owed.iter().enumerate() {
            let due = owed.named.into_iter().chain(owed.resource).min();
            if let Some(due) = due.filter(|due| *due + self.slack < now) {
                let hw = HwQueue(hw as u16);
                return Err(Violation::Late { hw, due, now, slack: self.slack });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::SubmitterId;
    use blkmq_sched::Requests;

    const HW: HwQueue = HwQueue(0);

    fn at(sector: u64) -> Picked {
        Picked { op: Op::Write, sector, sectors: 8 }
    }

    #[test]
    fn a_refused_request_comes_again_before_the_next_one() {
        let mut order = Order::new(1);
        order.picked(HW, at(8), vec![Seam(12)]);
        order.picked(HW, at(0), Vec::new());
        assert_eq!(order.arrived(HW, at(8), false), Ok(vec![Seam(12)]));
        assert!(order.arrived(HW, at(0), true).is_err());
        assert_eq!(order.arrived(HW, at(8), true), Ok(vec![]));
        assert_eq!(order.arrived(HW, at(0), true), Ok(vec![]));
        assert!(order.arrived(HW, at(0), true).is_err(), "it was picked once");
    }

    fn seen(cookie: u64, sector: u64, owner: u32) -> (Owner, Seen) {
        let by = SubmitterId(0);
        (Owner(owner), Seen { cookie, by, sector, sectors: 8, payload: 0 })
    }

    fn io(sector: u64) -> IoMeta {
        IoMeta::new(Op::Write, sector, 8)
    }

    fn is_right(bios: &[(Owner, Seen)], seams: &[Seam]) -> bool {
        Neighbours::default().check(HwQueue(0), 0, bios, seams).is_ok()
    }

    #[test]
    fn where_the_owner_changes_there_is_a_seam() {
        let bios = [seen(0, 0, 1), seen(1, 8, 1), seen(2, 16, 2)];
        assert!(is_right(&bios[..2], &[]), "one owner");
        assert!(!is_right(&bios, &[]));
        assert!(!is_right(&bios, &[Seam(8)]), "that is another place");
        assert!(is_right(&bios, &[Seam(8), Seam(16)]));
    }

    #[test]
    fn what_was_right_once_stays_right_when_it_is_offered_again() {
        let bios = [seen(0, 0, 1), seen(1, 8, 2)];
        let mut neighbours = Neighbours::default();
        assert_eq!(neighbours.check(HwQueue(0), 0, &bios, &[Seam(8)]), Ok(()));
        assert_eq!(neighbours.check(HwQueue(0), 0, &bios, &[]), Ok(()));
        assert!(neighbours.check(HwQueue(0), 0, &[bios[0], seen(2, 8, 2)], &[]).is_err());
    }

    #[test]
    fn only_what_was_agreed_to_makes_a_seam() {
        let mut requests = Requests::new(2);
        let mut alloc = |sector| requests.alloc(io(sector)).expect("a slot is free");
        let (one, other) = (alloc(8), alloc(32));
        let mut agreements = Agreements::default();
        agreements.answered(one, &io(16), false);
        agreements.grown(one, Grown::Back);
        assert_eq!(agreements.take(one), [], "it said no");
        agreements.answered(other, &io(16), true);
        agreements.grown(one, Grown::Back);
        assert_eq!(agreements.take(one), [], "that was about another one");
        agreements.answered(other, &io(24), true);
        agreements.grown(other, Grown::Front { old_sector: 32 });
        agreements.answered(one, &io(0), true);
        agreements.grown(one, Grown::Front { old_sector: 8 });
        agreements.grown(one, Grown::Back);
        agreements.answered(one, &io(24), true);
        agreements.absorbed(one, other);
        assert_eq!(agreements.take(one), [8, 24, 32].map(Seam), "each consent counts once");
        assert_eq!(agreements.take(one), []);
    }

    const VISITED: HwQueue = HwQueue(1);

    fn after(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn a_policy_that_waits_is_asked_after_the_last_completion() {
        let mut asking = Asking::new(1, 2, Nanos(5));
        asking.asked(after(0), VISITED, Pick::WaitUntil(after(1000)), false);
        assert_eq!(asking.check(after(900)), Ok(()));
        asking.idle(after(900), VISITED);
        assert_eq!(asking.check(after(905)), Ok(()));
        assert!(asking.check(after(906)).is_err());
        asking.asked(after(904), VISITED, Pick::Empty, true);
        assert_eq!(asking.check(after(906)), Ok(()));
    }

    #[test]
    fn a_policy_that_holds_nothing_any_more_need_not_be_asked() {
        let mut asking = Asking::new(2, 2, Nanos(5));
        asking.asked(after(0), VISITED, Pick::WaitCompletion, true);
        asking.emptied(HwQueue(0));
        assert!(asking.check(after(6)).is_err(), "that was the other one");
        asking.emptied(VISITED);
        assert_eq!(asking.check(after(6)), Ok(()));
    }

    #[test]
    fn a_completion_is_a_reason_for_its_own_elevator() {
        let mut asking = Asking::new(2, 2, Nanos(5));
        let wait_until = |asking: &mut Asking, hw| {
            asking.asked(after(0), hw, Pick::WaitUntil(after(1000)), false);
        };
        wait_until(&mut asking, HwQueue(0));
        asking.idle(after(900), VISITED);
        assert_eq!(asking.check(after(1005)), Ok(()));
        assert!(asking.check(after(1006)).is_err(), "the time that it named comes all the same");
        wait_until(&mut asking, VISITED);
        asking.emptied(HwQueue(0));
        asking.idle(after(900), VISITED);
        assert!(asking.check(after(906)).is_err());
        asking.asked(after(900), HwQueue(0), Pick::WaitToken, false);
        asking.asked(after(900), VISITED, Pick::Empty, false);
        asking.idle(after(900), VISITED);
        assert!(asking.check(after(906)).is_err(), "a token came back, perhaps");
    }

    #[test]
    fn a_policy_that_waits_for_a_time_with_the_device_idle_is_asked_then() {
        let mut asking = Asking::new(2, 2, Nanos(5));
        asking.asked(after(0), VISITED, Pick::WaitUntil(after(1000)), true);
        assert_eq!(asking.check(after(1005)), Ok(()));
        assert!(asking.check(after(1006)).is_err());
        asking.busy();
        assert_eq!(asking.check(after(1006)), Ok(()));
    }

    const QUEUE: HwQueue = HwQueue(0);

    fn at_us(us: u64) -> Instant {
        Instant::ZERO + Nanos::from_micros(us)
    }

    #[test]
    fn a_named_time_and_the_3_ms_are_kept_up_to_the_slack() {
        let mut promises = Promises::new(1, Nanos::from_micros(2));
        promises.named(QUEUE, Some(at_us(10)));
        assert_eq!(promises.check(at_us(12)), Ok(()));
        assert!(promises.check(at_us(13)).is_err());
        promises.named(QUEUE, Some(Instant::MAX));
        promises.offered(QUEUE, at_us(13), true);
        assert_eq!(promises.check(at_us(3015)), Ok(()));
        assert!(promises.check(at_us(3016)).is_err());
        promises.offered(QUEUE, at_us(3014), false);
        assert_eq!(promises.check(at_us(9999)), Ok(()));
    }
}
