//! Keeps an elevator on one core while that core continues to run it (decision 0004).
//!
//! A run touches some fifty cache lines (slots, indices, the policy's tables, outbox, returns). If threads take turns
//! at running the elevator, each turn begins by fetching those lines from another core, which costs more than the run
//! itself. So a submitter that has seen another submitter run the elevator leaves its work staged even when the
//! elevator is free at that moment: the leader will soon return with its own work, and then admits the staged work.
//!
//! The decision is a guess, and a wrong guess is cheap: a submitter that sees no pass between two checks runs the
//! elevator itself. Progress does not depend on this file; the run state says which pass is due.

use crate::sync::{AtomicU64, Ordering};
use blkmq_core::{Instant, Nanos, SubmitterId};

/// The number of submissions that a follower leaves to the leader, and of polls that it skips, before it checks the
/// leader's words again, because a check takes cache lines that the leader is about to write. They take about 4 us if a
/// client spins between polls.
const PATIENCE: u32 = 8;
/// The most polls between two checks of the leader's words, reached by doubling while each check finds the leader
/// active. If fifteen followers check every 4 us, they take these lines from the leader four times per microsecond.
const MOST_POLLS: u32 = if cfg!(shuttle) { 2 * PATIENCE } else { 8 * PATIENCE };
/// The longest time for which a follower relies on a leader that makes no pass, however rarely the follower polls. A
/// leader that has lost its CPU makes no pass for longer than any pass takes.
const LONGEST: Nanos = Nanos::from_micros(50);
const ID_BITS: u32 = 16;

/// The leader, and how many passes submitters have made: `passes << 16 | submitter`. Only the runner writes it. A pump
/// thread does not, because it runs when its device signals and not when a submitter submits.
#[derive(Default)]
pub(crate) struct Lead(AtomicU64);

impl Lead {
    /// Called by the runner, `id`, at the beginning of a pass.
    #[inline]
    pub(crate) fn note_pass(&self, id: SubmitterId) {
        let (_, passes) = self.get();
        let word = passes.wrapping_add(1) << ID_BITS | u64::from(id.0);
        self.0.store(word, Ordering::Relaxed);
    }

    #[inline]
    fn get(&self) -> (SubmitterId, u64) {
        let word = self.0.load(Ordering::Relaxed);
        (SubmitterId(word as u16), word >> ID_BITS)
    }
}

/// One submitter's view of the leader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Follow {
    id: SubmitterId,
    seen: u64,
    /// The number of further submissions that are left to the leader.
    plugs: u32,
    /// Polls to skip before the next check of the leader's words.
    polls: u32,
    /// Polls to skip after that check, if it finds the leader active.
    next_polls: u32,
    /// The end of reliance on the leader.
    until: Instant,
    /// Polls skipped since the last check of the devices. Devices do not wait for a leader.
    skipped: u32,
}

/// The words that an otherwise idle submitter should check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// No words: the leader is active.
    Nothing,
    /// The words of devices, which the leader rarely writes.
    Devices,
    /// The words of all work that may be due.
    All,
}

impl Follow {
    pub(crate) fn new(id: SubmitterId, lead: &Lead) -> Self {
        let seen = lead.get().1;
        Self {
            id,
            seen,
            plugs: 0,
            polls: 0,
            next_polls: PATIENCE,
            until: Instant::ZERO,
            skipped: 0,
        }
    }

    /// Returns whether another submitter has run the elevator since this one last checked.
    #[inline]
    fn is_led(&mut self, lead: &Lead) -> bool {
        let (leader, passes) = lead.get();
        let moved = passes != self.seen;
        self.seen = passes;
        moved && leader != self.id
    }

    /// Relies on the leader for a while.
    #[inline]
    fn rely(&mut self, now: Instant) {
        self.plugs = PATIENCE;
        self.polls = self.next_polls;
        self.until = now + LONGEST;
    }

    /// Stops relying on another thread.
    #[inline]
    fn rely_on_none(&mut self) {
        (self.plugs, self.polls, self.next_polls) = (0, 0, PATIENCE);
    }

    /// Returns whether a submitter should leave its work to the leader.
    #[inline]
    pub(crate) fn should_leave(&mut self, lead: &Lead, now: Instant) -> bool {
        if self.is_led(lead) {
            self.rely(now);
            return true;
        }
        if lead.get().0 == self.id {
            self.rely_on_none();
            return false;
        }
        // Several plugs may come between two passes of the leader.
        self.plugs = self.plugs.saturating_sub(1);
        self.plugs > 0 && now < self.until
    }

    /// Returns where an otherwise idle submitter should check for work that is due. After any check, the caller calls
    /// [`should_run`](Self::should_run) or [`was_in_vain`](Self::was_in_vain), unless it ran something.
    #[inline]
    pub(crate) fn look(&mut self, now: Instant) -> Look {
        if self.polls == 0 || now >= self.until {
            self.skipped = 0;
            return Look::All;
        }
        self.polls -= 1;
        self.skipped += 1;
        if self.skipped < PATIENCE {
            return Look::Nothing;
        }
        self.skipped = 0;
        Look::Devices
    }

    /// Notes that nothing was due. If there is a runner, the next check comes after more polls than this one: under
    /// constant load, a runner is found at every check.
    #[inline]
    pub(crate) fn was_in_vain(&mut self, lead: &Lead, is_running: bool, now: Instant) {
        if is_running {
            // Does not read the leader's word, whose cache line is written by threads that stage.
            self.rely(now);
            self.next_polls = (2 * self.next_polls).min(MOST_POLLS);
        } else if self.is_led(lead) {
            self.rely(now);
        } else {
            self.rely_on_none();
        }
    }

    /// Returns whether a submitter that finds a pass due should make it. False if the leader has made one in the
    /// meantime.
    pub(crate) fn should_run(&mut self, lead: &Lead, now: Instant) -> bool {
        let led = self.is_led(lead);
        // The elevator is not always busy, so the next check comes early.
        self.rely_on_none();
        if led {
            self.rely(now);
        }
        !led
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(1_000);

    #[test]
    fn a_follower_leaves_its_work_only_while_the_leader_keeps_at_it() {
        let lead = Lead::default();
        let mut me = Follow::new(SubmitterId(1), &lead);
        assert!(!me.should_leave(&lead, NOW), "nobody has run");
        lead.note_pass(SubmitterId(2));
        assert!(me.should_leave(&lead, NOW));
        let left = (0..).take_while(|_| me.should_leave(&lead, NOW)).count();
        assert_eq!(left, PATIENCE as usize - 1, "nobody has run since");
        lead.note_pass(SubmitterId(1));
        assert!(!me.should_leave(&lead, NOW), "that was this one itself");
    }

    /// The number of polls until the next check.
    fn polls(me: &mut Follow) -> usize {
        (0..).take_while(|_| me.look(NOW) != Look::All).count()
    }

    #[test]
    fn a_follower_looks_after_devices_every_few_polls() {
        let lead = Lead::default();
        let mut me = Follow::new(SubmitterId(1), &lead);
        let turn = |_: &u32| {
            lead.note_pass(SubmitterId(2));
            assert!(me.should_leave(&lead, NOW));
            me.look(NOW) == Look::Nothing
        };
        assert_eq!((0..100).take_while(turn).count(), PATIENCE as usize - 1);
    }

    #[test]
    fn a_waiting_follower_takes_over_when_its_patience_is_at_an_end() {
        let lead = Lead::default();
        let mut me = Follow::new(SubmitterId(1), &lead);
        lead.note_pass(SubmitterId(2));
        assert!(me.should_leave(&lead, NOW));
        assert_eq!(polls(&mut me), PATIENCE as usize);
        lead.note_pass(SubmitterId(2));
        assert!(!me.should_run(&lead, NOW), "the leader was back meanwhile");
        assert_eq!(polls(&mut me), PATIENCE as usize);
        assert!(me.should_run(&lead, NOW), "and now it was not");
        assert_eq!(polls(&mut me), 0);
    }

    #[test]
    fn looks_become_rarer_while_the_elevator_is_busy() {
        let lead = Lead::default();
        let mut me = Follow::new(SubmitterId(1), &lead);
        let between = |me: &mut Follow| {
            lead.note_pass(SubmitterId(2));
            me.was_in_vain(&lead, true, NOW);
            polls(me) as u32
        };
        assert_eq!([(); 3].map(|()| between(&mut me)), [1, 2, 4].map(|n| n * PATIENCE));
        assert_eq!([(); 4].map(|()| between(&mut me))[1..], [MOST_POLLS; 3]);
        lead.note_pass(SubmitterId(2));
        assert!(!me.should_run(&lead, NOW), "the leader left a pass for the next time");
        assert_eq!(polls(&mut me), PATIENCE as usize);
        me.was_in_vain(&lead, false, NOW);
        assert_eq!(polls(&mut me), 0, "the leader has stopped");
    }

    /// Regression test: a thread that polled every 100 us waited 800 us for a leader without a CPU.
    #[test]
    fn a_follower_that_comes_by_seldom_waits_no_longer_than_one_that_spins() {
        let lead = Lead::default();
        let mut me = Follow::new(SubmitterId(1), &lead);
        lead.note_pass(SubmitterId(2));
        assert!(me.should_leave(&lead, NOW));
        let soon = NOW + Nanos(LONGEST.0 - 1);
        assert!(me.look(soon) == Look::Nothing && me.should_leave(&lead, soon));
        assert_eq!(me.look(NOW + LONGEST), Look::All);
        assert!(!me.should_leave(&lead, NOW + LONGEST));
    }
}
