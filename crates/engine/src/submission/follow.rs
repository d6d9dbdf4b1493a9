//! Keeping an elevator on one core while that core goes on running it (decision 0004).
//!
//! A run touches some fifty cache lines (slots, indices, the policy's tables, outbox, returns). If threads take turns
//! at running the elevator, each turn begins by fetching those lines from another core, which costs more than the run
//! itself. So a submitter that sees another submitter running it leaves its work staged even when the elevator is
//! free at that moment: the leader is about to come back with work of its own, and admits the staged work then.
//!
//! That is a guess, and a wrong guess is cheap: a submitter that has seen no pass since its last look runs the
//! elevator itself. Progress does not depend on anything here; the run state says what is due.

use crate::sync::{AtomicU64, Ordering};
use blkmq_core::{Instant, Nanos, SubmitterId};

/// Submissions and polls that a follower lets pass before it looks again at the leader's word, since looking takes
/// the lines that the leader is about to write. Some 4 us where a client spins between polls.
const PATIENCE: u32 = 8;
/// The most time for which a follower relies on a leader that makes no pass, however seldom it comes by. A leader that
/// has lost its CPU is away for longer than any pass takes.
const LONGEST: Nanos = Nanos::from_micros(50);
const ID_BITS: u32 = 16;

/// The leader, and how many passes submitters have made: `passes << 16 | submitter`. Written by the runner only. A
/// pump thread does not write it, since it runs when its device calls and not when a submitter submits.
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

/// What one submitter has seen of the leader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Follow {
    id: SubmitterId,
    seen: u64,
    /// Submissions and polls to let pass.
    patience: u32,
    /// Not after this.
    until: Instant,
    /// Polls let pass since the last look. A leader that makes passes slowly resets the patience again and again, and
    /// devices do not wait.
    skipped: u32,
}

impl Follow {
    pub(crate) fn new(id: SubmitterId, lead: &Lead) -> Self {
        Self { id, seen: lead.get().1, patience: 0, until: Instant::ZERO, skipped: 0 }
    }

    /// Has another submitter run the elevator since this one last looked?
    #[inline]
    fn is_led(&mut self, lead: &Lead) -> bool {
        let (leader, passes) = lead.get();
        let moved = passes != self.seen;
        self.seen = passes;
        moved && leader != self.id
    }

    /// For a submitter that has work to submit: should it leave that to the leader?
    #[inline]
    pub(crate) fn should_leave(&mut self, lead: &Lead, now: Instant) -> bool {
        if self.is_led(lead) {
            self.patience = PATIENCE;
            self.until = now + LONGEST;
            return true;
        }
        // Several plugs may fit between two passes of the leader.
        self.patience = if lead.get().0 == self.id { 0 } else { self.patience.saturating_sub(1) };
        self.patience > 0 && now < self.until
    }

    /// For a submitter that has nothing else to do: should it look for work that is due?
    #[inline]
    pub(crate) fn should_look(&mut self, now: Instant) -> bool {
        if self.patience == 0 || self.skipped == PATIENCE || now >= self.until {
            self.skipped = 0;
            return true;
        }
        self.patience -= 1;
        self.skipped += 1;
        false
    }

    /// For a submitter that finds a pass due: should it run it? Not if the leader has made one meanwhile.
    pub(crate) fn should_run(&mut self, lead: &Lead, now: Instant) -> bool {
        let led = self.is_led(lead);
        self.patience = if led { PATIENCE } else { 0 };
        self.until = now + LONGEST;
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

    #[test]
    fn a_follower_that_submits_and_is_led_looks_all_the_same() {
        let lead = Lead::default();
        let mut me = Follow::new(SubmitterId(1), &lead);
        let turn = |_: &u32| {
            lead.note_pass(SubmitterId(2));
            assert!(me.should_leave(&lead, NOW));
            !me.should_look(NOW)
        };
        assert_eq!((0..100).take_while(turn).count(), PATIENCE as usize);
    }

    #[test]
    fn a_waiting_follower_takes_over_when_its_patience_is_at_an_end() {
        let lead = Lead::default();
        let mut me = Follow::new(SubmitterId(1), &lead);
        lead.note_pass(SubmitterId(2));
        assert!(me.should_leave(&lead, NOW));
        let polls = (0..).take_while(|_| !me.should_look(NOW)).count();
        assert_eq!(polls, PATIENCE as usize);
        lead.note_pass(SubmitterId(2));
        assert!(!me.should_run(&lead, NOW), "the leader was back meanwhile");
        assert!(!me.should_look(NOW));
        (1..PATIENCE).for_each(|_| assert!(!me.should_look(NOW)));
        assert!(me.should_look(NOW) && me.should_run(&lead, NOW), "and now it was not");
    }

    /// A thread that came by every 100 us let a leader without a CPU have its patience, which is 800 us then.
    #[test]
    fn a_follower_that_comes_by_seldom_waits_no_longer_than_one_that_spins() {
        let lead = Lead::default();
        let mut me = Follow::new(SubmitterId(1), &lead);
        lead.note_pass(SubmitterId(2));
        assert!(me.should_leave(&lead, NOW));
        let soon = NOW + Nanos(LONGEST.0 - 1);
        assert!(!me.should_look(soon) && me.should_leave(&lead, soon));
        assert!(me.should_look(NOW + LONGEST));
        assert!(!me.should_leave(&lead, NOW + LONGEST));
    }
}
