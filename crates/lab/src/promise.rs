//! The times at which a hardware queue must be visited: the time that its device names, and 3 ms after RESOURCE.
//!
//! Any thread may visit it earlier. A visit that is not much later keeps I/Os from waiting for nothing
//! (`spec/framework.md` section 16, points 6 and 8).

use crate::violation::Violation;
use blkmq_core::{HwQueue, Instant, Nanos};

/// The longest that a request refused with RESOURCE waits for another attempt (`spec/framework.md` section 1).
pub(crate) const RESOURCE_DELAY: Nanos = Nanos::from_millis(3);

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

    const HW: HwQueue = HwQueue(0);

    fn at(us: u64) -> Instant {
        Instant::ZERO + Nanos::from_micros(us)
    }

    #[test]
    fn a_named_time_and_the_3_ms_are_kept_up_to_the_slack() {
        let mut promises = Promises::new(1, Nanos::from_micros(2));
        promises.named(HW, Some(at(10)));
        assert_eq!(promises.check(at(12)), Ok(()));
        assert!(promises.check(at(13)).is_err());
        promises.named(HW, Some(Instant::MAX));
        promises.offered(HW, at(13), true);
        assert_eq!(promises.check(at(3015)), Ok(()));
        assert!(promises.check(at(3016)).is_err());
        promises.offered(HW, at(3014), false);
        assert_eq!(promises.check(at(9999)), Ok(()));
    }
}
