//! Staged bios are visited in the latest queue, and a held queue stays held until it is released.

use super::*;
use crate::sync::{Arc, AtomicBool, Pending, RunCell, UnsafeCell, completion_ring};
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
        assert!(visited || again, "something is staged, and nobody visits it in the new queue");
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
#[should_panic(expected = "nobody visits it")]
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
#[should_panic(expected = "nobody visits it")]
fn loom_planted_publish_without_a_fence() {
    what_is_staged_is_visited(stage, |world| {
        world.control.0.version.store(NEW, Ordering::Release);
        world.staged.load(Ordering::Relaxed)
    });
}

#[test]
#[should_panic(expected = "nobody visits it")]
fn loom_planted_publish_behind_the_visit() {
    what_is_staged_is_visited(stage, |world| {
        fence(Ordering::SeqCst);
        let seen = world.staged.load(Ordering::Relaxed);
        world.control.publish(NEW);
        seen
    });
}

/// A receiver goes to sleep, unless it sees another version, while the queue is replaced and its sleepers are searched.
fn nobody_sleeps_in_the_old_queue(publish: fn(&Control)) {
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
fn loom_nobody_sleeps_in_the_old_queue() {
    nobody_sleeps_in_the_old_queue(|control| control.publish(NEW));
}

#[test]
#[should_panic(expected = "sleeps through a change")]
fn loom_planted_a_changer_without_a_fence() {
    nobody_sleeps_in_the_old_queue(|control| control.0.version.store(NEW, Ordering::Release));
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
        // A loop, because loom does not run a load and an exchange of one thread between this load and the code below.
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

/// A write is made under a freeze. A submitter that then admits outside of a run, because the queue is open, must see
/// it.
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
    admitted: RunCell<u32>,
}

/// One pass, or several if they are owed. Returns true if the caller began it.
fn pass(passes: &Passes, is_held: fn(&Control) -> bool) -> bool {
    let mut run = passes.admitted.enter_or_owe();
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
        let passes = Arc::new(Passes { control: Control::new(), admitted: RunCell::new(0) });
        let runner = {
            let passes = Arc::clone(&passes);
            thread::spawn(move || pass(&passes, hold.is_held))
        };
        (hold.take)(&passes.control);
        let settled = settle(&passes);
        runner.join().expect("the runner does not panic");
        let run = passes.admitted.try_enter().expect("nobody runs any more");
        assert_eq!(*run, settled, "something was let in that is held");
    });
}

/// Takes the run, and returns how many were admitted by then.
fn settle(passes: &Passes) -> u32 {
    loop {
        if let Some(run) = passes.admitted.try_enter() {
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
        let passes = Arc::new(Passes { control: Control::new(), admitted: RunCell::new(0) });
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
        let run = passes.admitted.try_enter().expect("nobody runs any more");
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
fn loom_nobody_sleeps_in_a_failed_queue() {
    nobody_sleeps_in_the_old_queue(Control::poison);
}

#[test]
#[should_panic(expected = "sleeps through a change")]
fn loom_planted_a_failure_without_a_fence() {
    nobody_sleeps_in_the_old_queue(|control| {
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
