//! A policy that holds something back is asked again in time.
//!
//! A policy that says "wait" also says for what: for a time, or for a completion; and in both cases a
//! completion is a reason to ask again ([`Pick`]). Tags, budgets and a busy device can be reasons not to ask.
//! So only this is demanded: a device that is idle does not stay idle while a policy waits to be asked.

use crate::violation::Violation;
use blkmq_core::{HwQueue, Instant, Nanos};
use blkmq_sched::Pick;

/// What the elevators' policies said last, and when that calls for another question.
pub(crate) struct Asking {
    /// By elevator; `None` for a policy that did not say "wait".
    waits: Vec<Option<Wait>>,
    hw_queues_per_elevator: u16,
    slack: Nanos,
}

#[derive(Clone, Copy)]
struct Wait {
    hw: HwQueue,
    /// For this time; `None` for something to come back.
    until: Option<Instant>,
    /// When it must be asked; `None` while the device is at work.
    due: Option<Instant>,
}

impl Asking {
    /// Nobody waits. Coming up to `slack` late will be all right.
    pub(crate) fn new(elevators: u16, hw_queues: u16, slack: Nanos) -> Self {
        let hw_queues_per_elevator = hw_queues / elevators;
        Self { waits: vec![None; elevators.into()], hw_queues_per_elevator, slack }
    }

    /// The policy of the elevator that serves `hw` was asked. `idle`: the device holds nothing.
    pub(crate) fn asked(&mut self, now: Instant, hw: HwQueue, answer: Pick, idle: bool) {
        let until = match answer {
            Pick::Issue(_) | Pick::Empty => {
                self.emptied(hw);
                return;
            }
            Pick::WaitUntil(at) => Some(at),
            Pick::WaitCompletion | Pick::WaitToken => None,
        };
        // If for a completion, it has not heard of the last one yet.
        let due = idle.then_some(until.unwrap_or(now));
        let elevator = self.elevator(hw);
        self.waits[elevator] = Some(Wait { hw, until, due });
    }

    /// The policy of the elevator that serves `hw` holds nothing any more.
    pub(crate) fn emptied(&mut self, hw: HwQueue) {
        let elevator = self.elevator(hw);
        self.waits[elevator] = None;
    }

    fn elevator(&self, hw: HwQueue) -> usize {
        usize::from(hw.0 / self.hw_queues_per_elevator)
    }

    /// The device has finished all that it held, the last of it on `hw`, at this time. Who waits for a time need not
    /// be asked because of another elevator's completion, of which it hears nothing.
    pub(crate) fn idle(&mut self, now: Instant, hw: HwQueue) {
        let own = self.elevator(hw);
        for (elevator, wait) in self.waits.iter_mut().enumerate() {
            let Some(wait) = wait else { continue };
            let until = wait.until.filter(|_| elevator != own);
            wait.due = Some(until.map_or(now, |at| at.max(now)));
        }
    }

    /// The device was offered something.
    pub(crate) fn busy(&mut self) {
        for wait in self.waits.iter_mut().flatten() {
            wait.due = None;
        }
    }

    /// Nobody could be asked until now.
    pub(crate) fn put_off(&mut self, now: Instant) {
        for wait in self.waits.iter_mut().flatten() {
            wait.due = wait.due.map(|due| due.max(now));
        }
    }

    /// The same for so many elevators with new policies.
    pub(crate) fn anew(&self, elevators: u16) -> Self {
        let hw_queues = self.waits.len() as u16 * self.hw_queues_per_elevator;
        Self::new(elevators, hw_queues, self.slack)
    }

    /// It has become `now`.
    pub(crate) fn check(&self, now: Instant) -> Result<(), Violation> {
        for Wait { hw, due, .. } in self.waits.iter().flatten() {
            if let Some(due) = due.filter(|due| *due + self.slack < now) {
                return Err(Violation::NotAsked { hw: *hw, due, now, slack: self.slack });
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
}
