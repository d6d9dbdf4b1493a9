//! Decides which thread pumps the lane of a submitter after another thread has put a request into its outbox: the owner
//! if it waits for completions, because it polls its lane until the wait ends; otherwise the other thread.
//!
//! | word | `begin` | `end`, then a check of the lane | `kick` of the lane, then `is_waiting` |
//! |---|---|---|---|
//! | away | waiting | - | false: *you* pump the lane |
//! | waiting | waiting | away; *you* pump the lane if it is kicked | true: the owner pumps it |
//!
//! Invariant: a lane that is kicked is pumped by the thread that kicked it, or by its owner, or by both in turn.
//!
//! # Why the orderings are enough
//!
//! An owner that leaves writes the word, has a full fence, and checks the lane. The other thread kicks the lane, has a
//! full fence, and checks the word. One of the two fences is first, and the check behind the second fence sees the
//! write ahead of the first. The word orders nothing else, so relaxed accesses suffice. `begin` needs no fence: if an
//! owner is taken to be away, another thread pumps its lane, under the lane's run.

use super::{AtomicBool, Ordering, fence};

/// The word of one submitter.
#[derive(Default)]
pub(crate) struct Attendance(AtomicBool);

impl Attendance {
    /// Notes that the owner polls its lane until [`end`](Self::end). One store.
    #[inline]
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Notes that the owner stops waiting. It must check its lane once more after this call. A store and a full fence.
    #[inline]
    pub(crate) fn end(&self) {
        self.0.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Returns whether the owner will check its lane without being woken. For a caller that has kicked the lane, and
    /// has had a full fence since. One load.
    #[inline]
    #[must_use]
    pub(crate) fn is_waiting(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::sync::Arc;
    use loom::thread;

    struct Lane {
        attendance: Attendance,
        kicked: AtomicBool,
    }

    /// An owner leaves while another thread kicks its lane.
    fn a_kicked_lane_is_pumped(leave: fn(&Lane) -> bool, call: fn(&Lane) -> bool) {
        loom::model(move || {
            let (attendance, kicked) = (Attendance::default(), AtomicBool::new(false));
            let lane = Arc::new(Lane { attendance, kicked });
            lane.attendance.begin();
            let owner = {
                let lane = Arc::clone(&lane);
                thread::spawn(move || leave(&lane))
            };
            let left_to_owner = call(&lane);
            let owner_pumps = owner.join().expect("the owner does not panic");
            assert!(owner_pumps || !left_to_owner, "the lane is left alone");
        });
    }

    fn leave(lane: &Lane) -> bool {
        lane.attendance.end();
        lane.kicked.load(Ordering::Relaxed)
    }

    fn call(lane: &Lane) -> bool {
        lane.kicked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        lane.attendance.is_waiting()
    }

    #[test]
    fn loom_a_kicked_lane_is_pumped() {
        a_kicked_lane_is_pumped(leave, call);
    }

    #[test]
    #[should_panic(expected = "left alone")]
    fn loom_planted_an_owner_that_leaves_after_its_look() {
        let leave = |lane: &Lane| {
            let kicked = lane.kicked.load(Ordering::Relaxed);
            lane.attendance.end();
            kicked
        };
        a_kicked_lane_is_pumped(leave, call);
    }

    #[test]
    #[should_panic(expected = "left alone")]
    fn loom_planted_an_owner_that_leaves_without_a_fence() {
        let leave = |lane: &Lane| {
            lane.attendance.0.store(false, Ordering::Relaxed);
            lane.kicked.load(Ordering::Relaxed)
        };
        a_kicked_lane_is_pumped(leave, call);
    }

    #[test]
    #[should_panic(expected = "left alone")]
    fn loom_planted_a_call_without_a_fence() {
        let call = |lane: &Lane| {
            lane.kicked.store(true, Ordering::Relaxed);
            lane.attendance.is_waiting()
        };
        a_kicked_lane_is_pumped(leave, call);
    }
}
