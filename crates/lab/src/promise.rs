//! When somebody must come to a hardware queue: at the time that its device names, and 3 ms after RESOURCE.
//!
//! Anybody may come earlier. That nobody comes much later is what keeps I/Os from waiting for nothing
//! (`spec/framework.md` section 16, points 6 and 8).

use crate::violation::Violation;
use blkmq_core::{HwQueue, Instant, Nanos};

/// The longest that a request refused with RESOURCE waits for another attempt (`spec/framework.md` section 1).
pub(crate) const RESOURCE_DELAY: Nanos = Nanos::from_millis(3);

/// What is owed to one hardware queue.
#[derive(Clone, Copy, Default)]
struct Owed {
    /// As its device said when it was asked last.
    named: Option<Instant>,
    /// Since the device said RESOURCE.
    resource: Option<Instant>,
}

/// What is owed to all of them.
pub(crate) struct Promises {
    owed: Vec<Owed>,
    slack: Nanos,
}

impl Promises {
    /// Nothing is owed. Coming up to `slack` late will be all right: the CPUs may have been busy.
    pub(crate) fn new(hw_queues: u16, slack: Nanos) -> Self {
        Self { owed: vec![Owed::default(); hw_queues.into()], slack }
    }

    /// The device of `hw` was asked when it will next have something.
    pub(crate) fn named(&mut self, hw: HwQueue, at: Option<Instant>) {
        self.owed[usize::from(hw.0)].named = at.filter(|at| *at < Instant::MAX);
    }

    /// A request was offered to `hw`, and refused with RESOURCE or not.
    pub(crate) fn offered(&mut self, hw: HwQueue, now: Instant, resource: bool) {
        self.owed[usize::from(hw.0)].resource = resource.then_some(now + RESOURCE_DELAY);
    }

    /// Nothing could be kept until now: what was owed is owed from here on.
    pub(crate) fn put_off(&mut self, now: Instant) {
        for Owed { named, resource } in &mut self.owed {
            *named = named.map(|at| at.max(now));
            *resource = resource.map(|at| at.max(now));
        }
    }

    /// It has become `now`.
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
