//! Announcements by a thread that changes a queue, to all other threads: admit nothing, issue nothing, switch to
//! another queue.
//!
//! | word | 0 | n > 0 |
//! |---|---|---|
//! | `frozen` | runners admit staged bios | n holds: runners admit nothing; staging fills up |
//! | `quiesced` | pumps offer requests to their devices | n holds: pumps offer none |
//!
//! | `version` | |
//! |---|---|
//! | equal to that of the queue that a submitter knows | that queue is current |
//! | another | the queue was rebuilt: the submitter switches to the new one, and marks its staged bios in it |
//! | with `POISONED` | a policy or a device panicked: equal to none, and stays so; every I/O ends |
//!
//! Invariant: once the thread that froze the queue has had a run after [`freeze`](Control::freeze), no run admits
//! anything until the last [`thaw`](Control::thaw); likewise for pumps. Invariant: staged bios are visited in the
//! queue of the latest version.
//!
//! # Why the orderings are enough
//!
//! `frozen` and `quiesced` are read inside a run and a pump's turn. Runs exclude each other, and each begins with an
//! acquire of the release of the run before. The thread that freezes the queue takes every run once, and every later
//! runner sees the word. Earlier runs do not matter. The thread that thaws kicks afterwards, and the pass that is then
//! due sees the word (`run_state`, R1). So relaxed accesses suffice on both sides, except for a submitter that admits
//! outside of a run ([`is_open`](Control::is_open)): a thaw releases the writes made under the freeze, and the
//! submitter acquires them.
//!
//! `version`: a submitter stages, marks its bit in the set of the queue that it knows, and then loads the version,
//! with a full fence in between. The thread that rebuilds publishes the new version, and then, behind a full fence,
//! marks every submitter in the set of the new queue and has that set visited. If the submitter's fence comes first
//! in the order of fences, that visit sees its staged bios. If not, it sees the new version, and marks itself in the
//! new set.
//!
//! `POISONED` is set by a read-modify-write and preserved by another one, so that no rebuild clears it. It is published
//! as a version is, for the same reasons.

use super::{AtomicU32, Ordering, fence};
use crossbeam_utils::CachePadded;

/// In `version`: a policy or a device of the queue panicked. Versions use the lower bits.
const POISONED: u32 = 1 << 31;

struct Words {
    frozen: AtomicU32,
    quiesced: AtomicU32,
    version: AtomicU32,
}

/// One for each queue; it outlasts every rebuild. Rarely written, so that the line stays in every core's cache.
pub(crate) struct Control(CachePadded<Words>);

impl Control {
    pub(crate) fn new() -> Self {
        let zero = || AtomicU32::new(0);
        Self(CachePadded::new(Words { frozen: zero(), quiesced: zero(), version: zero() }))
    }

    pub(crate) fn freeze(&self) {
        let before = self.0.frozen.fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX, "a queue is frozen more often than can be counted");
    }

    /// Returns whether that was the last hold.
    pub(crate) fn thaw(&self) -> bool {
        let before = self.0.frozen.fetch_sub(1, Ordering::Release);
        assert!(before > 0, "a queue is thawed that is not frozen");
        before == 1
    }

    /// Returns whether the queue is frozen. For runners, in their run.
    #[inline]
    pub(crate) fn is_frozen(&self) -> bool {
        self.0.frozen.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn quiesce(&self) {
        let before = self.0.quiesced.fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX, "a queue is quiesced more often than can be counted");
    }

    /// Returns whether that was the last hold.
    pub(crate) fn unquiesce(&self) -> bool {
        let before = self.0.quiesced.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a queue is unquiesced that is not quiesced");
        before == 1
    }

    /// Returns whether the queue is quiesced. For pumps, in their turn.
    #[inline]
    pub(crate) fn is_quiesced(&self) -> bool {
        self.0.quiesced.load(Ordering::Relaxed) > 0
    }

    /// The version of the current queue.
    #[inline]
    pub(crate) fn version(&self) -> u32 {
        self.0.version.load(Ordering::Acquire)
    }

    /// Returns whether the queue of this version is the current one, and not frozen. For a submitter that admits
    /// outside of a run, under a mutex that the thread that freezes the queue takes once as well. Acquires: a caller
    /// that sees the thaw also sees a rebuild that came before it.
    pub(crate) fn is_open(&self, version: u32) -> bool {
        self.0.frozen.load(Ordering::Acquire) == 0 && self.version() == version
    }

    /// The version after `version`.
    pub(crate) fn next_version(version: u32) -> u32 {
        version.wrapping_add(1) & !POISONED
    }

    /// Makes the queue of this version the current one. A full fence: bios staged by a submitter that does not see
    /// the version are seen after this call. A poisoned queue stays poisoned.
    pub(crate) fn publish(&self, version: u32) {
        assert!(version & POISONED == 0, "a version has 31 bits");
        let next = |old| Some(version | old & POISONED);
        let before = self.0.version.fetch_update(Ordering::Release, Ordering::Relaxed, next);
        before.expect("there is always a next version");
        fence(Ordering::SeqCst);
    }

    /// Makes every submitter find the queue poisoned at its next check. A full fence: if a submitter goes to sleep
    /// without seeing it, the caller's later steps wake it.
    pub(crate) fn poison(&self) {
        self.0.version.fetch_or(POISONED, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Returns whether a policy or a device of the queue has panicked.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.version() & POISONED != 0
    }
}

#[cfg(all(test, loom))]
mod model {
    //! Staged bios are visited in the latest queue, and a held queue stays held until it is released.

    use super::*;
    use crate::sync::{Arc, AtomicBool, Gate, Pending, UnsafeCell, completion_ring};
    use loom::thread;

    /// The version that submitters know, and the one that is published.
    const OLD: u32 = 0;
    const NEW: u32 = 1;

    /// A queue that is replaced: the old and the new queue each have a set of submitters with staged bios.
    struct World {
        control: Control,
        staged: AtomicBool,
        old: Pending,
        new: Pending,
    }

    /// A submitter stages a bio while the queue is replaced, and marks it in the new queue if it sees that one. At the
    /// end the new set is visited once more.
    fn what_is_staged_is_visited(stage: fn(&World), replace: fn(&World) -> bool) {
        loom::model(move || {
            let (old, new) = (Pending::new(1), Pending::new(1));
            let (control, staged) = (Control::new(), AtomicBool::new(false));
            let world = Arc::new(World { control, staged, old, new });
            let submitter = {
                let world = Arc::clone(&world);
                thread::spawn(move || stage(&world))
            };
            let visited = replace(&world);
            submitter.join().expect("the submitter does not panic");
            let mut again = false;
            world.new.take(|_| again = true);
            assert!(visited || again, "a bio is staged, and no runner visits it in the new queue");
        });
    }

    fn stage(world: &World) {
        world.staged.store(true, Ordering::Relaxed);
        world.old.set(0);
        if world.control.version() != OLD {
            world.new.set(0);
        }
    }

    /// Publishes, and has every submitter visited.
    fn replace(world: &World) -> bool {
        world.control.publish(NEW);
        world.new.set(0);
        let mut seen = false;
        world.new.take(|_| seen = world.staged.load(Ordering::Relaxed));
        seen
    }

    #[test]
    fn loom_what_is_staged_is_visited() {
        what_is_staged_is_visited(stage, replace);
    }

    /// Has only the fence of `publish` between the version and the visit.
    #[test]
    fn loom_what_is_staged_is_visited_at_once() {
        what_is_staged_is_visited(stage, |world| {
            world.control.publish(NEW);
            world.staged.load(Ordering::Relaxed)
        });
    }

    #[test]
    #[should_panic(expected = "no runner visits it")]
    fn loom_planted_version_looked_at_before_the_mark() {
        let stage = |world: &World| {
            world.staged.store(true, Ordering::Relaxed);
            let moved = world.control.version() != OLD;
            world.old.set(0);
            if moved {
                world.new.set(0);
            }
        };
        what_is_staged_is_visited(stage, replace);
    }

    #[test]
    #[should_panic(expected = "no runner visits it")]
    fn loom_planted_publish_without_a_fence() {
        what_is_staged_is_visited(stage, |world| {
            world.control.0.version.store(NEW, Ordering::Release);
            world.staged.load(Ordering::Relaxed)
        });
    }

    #[test]
    #[should_panic(expected = "no runner visits it")]
    fn loom_planted_publish_behind_the_visit() {
        what_is_staged_is_visited(stage, |world| {
            fence(Ordering::SeqCst);
            let seen = world.staged.load(Ordering::Relaxed);
            world.control.publish(NEW);
            seen
        });
    }

    /// A receiver goes to sleep, unless it sees another version, while the queue is replaced and its sleepers are
    /// searched.
    fn no_submitter_sleeps_in_the_old_queue(publish: fn(&Control)) {
        loom::model(move || {
            let (sender, mut receiver) = completion_ring(1);
            let control = Arc::new(Control::new());
            let changer = {
                let control = Arc::clone(&control);
                thread::spawn(move || {
                    publish(&control);
                    sender.take_parked()
                })
            };
            let parked = receiver.prepare_park();
            fence(Ordering::SeqCst);
            let sleeps = parked && control.version() == OLD;
            let woken = changer.join().expect("the changer does not panic");
            assert!(!sleeps || woken, "a submitter sleeps through a change");
        });
    }

    #[test]
    fn loom_no_submitter_sleeps_in_the_old_queue() {
        no_submitter_sleeps_in_the_old_queue(|control| control.publish(NEW));
    }

    #[test]
    #[should_panic(expected = "sleeps through a change")]
    fn loom_planted_a_changer_without_a_fence() {
        no_submitter_sleeps_in_the_old_queue(|control| {
            control.0.version.store(NEW, Ordering::Release)
        });
    }

    /// A thread that sees the version sees the writes before it was published.
    fn a_version_carries_its_queue(publish: fn(&Control)) {
        loom::model(move || {
            let shared = Arc::new((Control::new(), UnsafeCell::new(0)));
            let changer = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    // SAFETY: no other thread touches the cell before the version is seen; loom checks it.
                    shared.1.with_mut(|cell| unsafe { *cell = NEW });
                    publish(&shared.0);
                })
            };
            // A loop, because loom does not run a load and an exchange of one thread between this load and the code
            // below.
            while shared.0.version() == OLD {
                thread::yield_now();
            }
            // SAFETY: the changer is done with the cell; loom checks it.
            assert_eq!(shared.1.with(|cell| unsafe { *cell }), NEW);
            changer.join().expect("the changer does not panic");
        });
    }

    #[test]
    fn loom_a_version_carries_its_queue() {
        a_version_carries_its_queue(|control| control.publish(NEW));
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_publish_without_release() {
        a_version_carries_its_queue(|control| control.0.version.store(NEW, Ordering::Relaxed));
    }

    /// A write is made under a freeze. A submitter that then admits outside of a run, because the queue is open, must
    /// see it.
    fn who_finds_it_open_sees_what_was_done(thaw: fn(&Control)) {
        loom::model(move || {
            let shared = Arc::new((Control::new(), UnsafeCell::new(0)));
            shared.0.freeze();
            let changer = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    // SAFETY: no other thread touches the cell while the queue is frozen; loom checks it.
                    shared.1.with_mut(|cell| unsafe { *cell = 1 });
                    thaw(&shared.0);
                })
            };
            if shared.0.is_open(OLD) {
                // SAFETY: the changer is done with the cell; loom checks it.
                assert_eq!(shared.1.with(|cell| unsafe { *cell }), 1);
            }
            changer.join().expect("the changer does not panic");
            assert!(shared.0.is_open(OLD) && !shared.0.is_open(NEW));
        });
    }

    #[test]
    fn loom_who_finds_it_open_sees_what_was_done() {
        who_finds_it_open_sees_what_was_done(|control| assert!(control.thaw()));
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_thaw_without_release() {
        who_finds_it_open_sees_what_was_done(|control| {
            control.0.frozen.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// A model treats frozen and quiesced alike.
    #[derive(Clone, Copy)]
    struct Hold {
        take: fn(&Control),
        let_go: fn(&Control) -> bool,
        is_held: fn(&Control) -> bool,
    }

    const HOLDS: [Hold; 2] = [
        Hold { take: Control::freeze, let_go: Control::thaw, is_held: Control::is_frozen },
        Hold { take: Control::quiesce, let_go: Control::unquiesce, is_held: Control::is_quiesced },
    ];

    /// Passes, each of which admits one more unless the queue is held.
    struct Passes {
        control: Control,
        admitted: Gate<u32>,
    }

    /// One pass, or several if they are owed. Returns true if the caller began it.
    fn pass(passes: &Passes, is_held: fn(&Control) -> bool) -> bool {
        let mut run = passes.admitted.run_or_owe();
        let begun = run.is_some();
        while let Some(mut guard) = run {
            if !is_held(&passes.control) {
                *guard += 1;
            }
            run = guard.finish();
        }
        begun
    }

    /// A pass takes place while a hold is taken. Once the holder has had a run, no more is admitted.
    fn nothing_is_let_in_while_held(hold: Hold, settle: fn(&Passes) -> u32) {
        loom::model(move || {
            let passes = Arc::new(Passes { control: Control::new(), admitted: Gate::of_run(0) });
            let runner = {
                let passes = Arc::clone(&passes);
                thread::spawn(move || pass(&passes, hold.is_held))
            };
            (hold.take)(&passes.control);
            let settled = settle(&passes);
            runner.join().expect("the runner does not panic");
            let run = passes.admitted.try_run().expect("no thread runs any more");
            assert_eq!(*run, settled, "something was let in that is held");
        });
    }

    /// Takes the run, and returns how many were admitted by then.
    fn settle(passes: &Passes) -> u32 {
        loop {
            if let Some(run) = passes.admitted.try_run() {
                let admitted = *run;
                assert!(run.finish().is_none_or(|owed| owed.finish().is_none()));
                return admitted;
            }
            thread::yield_now();
        }
    }

    #[test]
    fn loom_nothing_is_let_in_while_held() {
        for hold in HOLDS {
            nothing_is_let_in_while_held(hold, settle);
        }
    }

    /// Relies on the hold alone, without a run: a pass that has already checked continues.
    #[test]
    #[should_panic(expected = "let in that is held")]
    fn loom_planted_a_holder_that_has_no_run() {
        let [frozen, _] = HOLDS;
        nothing_is_let_in_while_held(frozen, |_| 0);
    }

    /// A pass takes place while two holds are released. The thread that releases the last one kicks.
    fn what_waited_is_let_in(hold: Hold, let_go: fn(&Passes, &Hold)) {
        loom::model(move || {
            let passes = Arc::new(Passes { control: Control::new(), admitted: Gate::of_run(0) });
            (hold.take)(&passes.control);
            (hold.take)(&passes.control);
            let is_held = hold.is_held;
            let runner = {
                let passes = Arc::clone(&passes);
                thread::spawn(move || pass(&passes, is_held))
            };
            let other = {
                let (passes, Hold { let_go: one, .. }) = (Arc::clone(&passes), hold);
                thread::spawn(move || {
                    if one(&passes.control) {
                        pass(&passes, is_held);
                    }
                })
            };
            let_go(&passes, &hold);
            runner.join().expect("the runner does not panic");
            other.join().expect("the other holder does not panic");
            let run = passes.admitted.try_run().expect("no thread runs any more");
            assert!(*run > 0, "what waited was not let in");
        });
    }

    #[test]
    fn loom_what_waited_is_let_in() {
        for hold in HOLDS {
            what_waited_is_let_in(hold, |passes, hold| {
                if (hold.let_go)(&passes.control) {
                    pass(passes, hold.is_held);
                }
            });
        }
    }

    #[test]
    #[should_panic(expected = "was not let in")]
    fn loom_planted_a_kick_ahead_of_the_thaw() {
        let [frozen, _] = HOLDS;
        what_waited_is_let_in(frozen, |passes, hold| {
            pass(passes, hold.is_held);
            (hold.let_go)(&passes.control);
        });
    }

    /// A queue fails while it is replaced: afterwards it has the new version, and has failed.
    fn a_failure_outlives_a_change(publish: fn(&Control)) {
        loom::model(move || {
            let control = Arc::new(Control::new());
            let changer = {
                let control = Arc::clone(&control);
                thread::spawn(move || publish(&control))
            };
            control.poison();
            changer.join().expect("the changer does not panic");
            assert_eq!(control.version(), NEW | POISONED, "a change or a failure is undone");
            assert!(control.is_poisoned());
        });
    }

    #[test]
    fn loom_a_failure_outlives_a_change() {
        a_failure_outlives_a_change(|control| control.publish(NEW));
    }

    #[test]
    #[should_panic(expected = "is undone")]
    fn loom_planted_publish_that_stores() {
        a_failure_outlives_a_change(|control| {
            let old = control.0.version.load(Ordering::Relaxed);
            control.0.version.store(NEW | old & POISONED, Ordering::Release);
        });
    }

    #[test]
    fn loom_no_submitter_sleeps_in_a_failed_queue() {
        no_submitter_sleeps_in_the_old_queue(Control::poison);
    }

    #[test]
    #[should_panic(expected = "sleeps through a change")]
    fn loom_planted_a_failure_without_a_fence() {
        no_submitter_sleeps_in_the_old_queue(|control| {
            control.0.version.fetch_or(POISONED, Ordering::Release);
        });
    }

    /// Writes before the queue failed are seen by a thread that finds it failed.
    #[test]
    fn loom_a_failure_carries_what_led_to_it() {
        a_version_carries_its_queue(Control::poison);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_a_failure_without_release() {
        a_version_carries_its_queue(|control| {
            control.0.version.fetch_or(POISONED, Ordering::Relaxed);
        });
    }
}
