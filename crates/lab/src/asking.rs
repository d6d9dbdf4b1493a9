//! Checks that the engine returns in time: it must ask a policy again that holds requests back, and visit a hardware
//! queue at the time that its device has named.
//!
//! A policy that waits names the event, a time or a completion; a completion is a reason to ask again in both cases
//! ([`Pick`]). Tags, budgets and a busy device can be reasons not to ask. So [`Asking`] demands only that an idle
//! device does not stay idle while a policy waits to be asked.
//!
//! A hardware queue must be visited at the time that its device names, and 3 ms after RESOURCE. Any thread may visit it
//! earlier. If the visit is much later, I/Os wait for no reason (`spec/framework.md` section 16, points 6 and 8).

use crate::violation::Violation;
use blkmq_core::{HwQueue, Instant, Nanos};
use blkmq_sched::Pick;

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

    const HW: HwQueue = HwQueue(1);

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn a_policy_that_waits_is_asked_after_the_last_completion() {
        let mut asking = Asking::new(1, 2, Nanos(5));
        asking.asked(at(0), HW, Pick::WaitUntil(at(1000)), false);
        assert_eq!(asking.check(at(900)), Ok(()));
        asking.idle(at(900), HW);
        assert_eq!(asking.check(at(905)), Ok(()));
        assert!(asking.check(at(906)).is_err());
        asking.asked(at(904), HW, Pick::Empty, true);
        assert_eq!(asking.check(at(906)), Ok(()));
    }

    #[test]
    fn a_policy_that_holds_nothing_any_more_need_not_be_asked() {
        let mut asking = Asking::new(2, 2, Nanos(5));
        asking.asked(at(0), HW, Pick::WaitCompletion, true);
        asking.emptied(HwQueue(0));
        assert!(asking.check(at(6)).is_err(), "that was the other one");
        asking.emptied(HW);
        assert_eq!(asking.check(at(6)), Ok(()));
    }

    #[test]
    fn a_completion_is_a_reason_for_its_own_elevator() {
        let mut asking = Asking::new(2, 2, Nanos(5));
        let wait_until =
            |asking: &mut Asking, hw| asking.asked(at(0), hw, Pick::WaitUntil(at(1000)), false);
        wait_until(&mut asking, HwQueue(0));
        asking.idle(at(900), HW);
        assert_eq!(asking.check(at(1005)), Ok(()));
        assert!(asking.check(at(1006)).is_err(), "the time that it named comes all the same");
        wait_until(&mut asking, HW);
        asking.emptied(HwQueue(0));
        asking.idle(at(900), HW);
        assert!(asking.check(at(906)).is_err());
        asking.asked(at(900), HwQueue(0), Pick::WaitToken, false);
        asking.asked(at(900), HW, Pick::Empty, false);
        asking.idle(at(900), HW);
        assert!(asking.check(at(906)).is_err(), "a token came back, perhaps");
    }

    #[test]
    fn a_policy_that_waits_for_a_time_with_the_device_idle_is_asked_then() {
        let mut asking = Asking::new(2, 2, Nanos(5));
        asking.asked(at(0), HW, Pick::WaitUntil(at(1000)), true);
        assert_eq!(asking.check(at(1005)), Ok(()));
        assert!(asking.check(at(1006)).is_err());
        asking.busy();
        assert_eq!(asking.check(at(1006)), Ok(()));
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
