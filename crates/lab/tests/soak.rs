//! Seeds in virtual time: every parameter of a run is drawn from its seed, and every oracle checks the run. The soak
//! can fail: each planted bug is found, and its shrunk failure is small and repeatable.

use blkmq_core::Instant;
use blkmq_engine::{Access, CancelStats, DispatchMode, KickMode, LockStats, WriteCache};
use blkmq_lab::soak::{Cause, Outcome, Replay, Shrunk, Tally, run, shrink, soak};
use blkmq_lab::{Bug, FlushFates, Permille, Scenario, Violation};
use std::collections::BTreeSet;

/// `cargo xtask soak` runs more of them.
const SEEDS: u64 = 2000;

#[test]
fn soak_seeds() {
    let (mut tally, mut failures) = (Tally::default(), Vec::new());
    for seed in 1..=SEEDS {
        match soak(seed, None) {
            Ok(outcome) => tally.count(&outcome),
            Err(failure) => failures.push(failure),
        }
    }
    let shown: Vec<String> =
        failures.iter().take(20).map(|failure| format!("\n{failure}")).collect();
    assert!(failures.is_empty(), "{} of {SEEDS} seeds fail:{}", failures.len(), shown.concat());
    println!("{tally}");
    for name in Tally::names() {
        assert!(tally.reached(name) > Some(SEEDS / 200), "{name} is hardly reached: {tally}");
    }
}

/// Seeds for which the soak was wrong, not the engine. A request that the device requeues to the tail waits up to 3 ms
/// ahead of the elevator, and the device does not count as idle in that time, even if it takes other requests. A policy
/// that waits for a time is not told of another elevator's completions, so that it need not be asked because of one.
/// And a disk tries each bad sector for 7 s, so that the engine asks about the last of fourteen reads every 5 s for
/// more than a minute.
#[test]
fn soak_demands_nothing_that_was_not_promised() {
    for line in [
        "seed=3 cpus=2 ios=13 device=null,dev_resource=3:30:1:12,requeue_tail=1:5:9:15 changes=1 prios=1",
        "seed=8023 cpus=2 ios=4 scheduler=stingy options=pace=100000 device=null,submit_queues=2,max_sectors=36 \
         blocks=22 flags=1",
        "seed=1 ios=14 device=faults,timeout=0.01:disk,badblocks=+1-57 reads=3 blocks=5 flags=1",
    ] {
        let replay: Replay = line.parse().unwrap_or_else(|why| panic!("{line}: {why}"));
        run(&replay).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// A change of a queue under bfq waited as long as bfq idled, for I/O that the frozen queue did not admit: here for
/// half an hour.
#[test]
fn soak_changes_wait_for_no_idling() {
    let line = "seed=1 ios=2 scheduler=bfq options=slice_idle_us=2147483647 changes=1 groups=1 reads=1 batch=2";
    let replay: Replay = line.parse().expect("it is right");
    let outcome = run(&replay).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(outcome.ended_at.as_nanos() < 1_000_000_000, "{outcome:?}");
}

/// A parked insert waited for a slot that a cancelled I/O had given back: nothing was in flight, so no completion made
/// a runner check again. One seed in a million found it.
#[test]
fn soak_slots_of_cancelled_ios_reach_parked_inserts() {
    let line = "seed=418633 cpus=3 ios=4 scheduler=bfq device=memory,irqmode=2,completion_nsec=165 cancels=88 \
                caught=16 absent=1 stalls=1 access=serialised pattern=hot reads=1 write_zeroes=8 prios=1";
    let replay: Replay = line.parse().expect("it is right");
    run(&replay).unwrap_or_else(|failure| panic!("{failure}"));
}

/// A timer expired while a thread was caught in a run. Another thread wanted to sleep, got that past time as its
/// deadline, woke immediately and got it again: thousands of times a millisecond, until the run ended.
#[test]
fn soak_threads_do_not_wake_for_a_timer_of_an_active_run() {
    let line = "seed=900326 cpus=3 ios=2 credit=1 scheduler=bfq options=strict_guarantees=61,low_latency=-1 \
                device=flash,write_cache=1 caught=48 caught_steps=6 caught_gap=818241 absent=55 stalls=1 \
                pattern=interleaved reads=5 flushes=1 write_zeroes=8 owners=3 flags=1 batch=2 cost_poll=19";
    let replay: Replay = line.parse().expect("it is right");
    let outcome = run(&replay).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(outcome.events < 1_000, "{outcome:?}");
}

/// Clocks began at zero in every run, so that overflows after some uptime were never seen: limits on groups ended after
/// 208 days, and after 146 years a pass kept asking its policy forever.
#[test]
fn soak_clocks_begin_where_numbers_become_large_too() {
    let begins: BTreeSet<u64> =
        (1..=60).map(|seed| Scenario::draw(seed).begin.as_nanos()).collect();
    let second = 1_000_000_000;
    assert_eq!(Vec::from_iter(begins), [0, (1 << 54) - second, (1 << 62) - second]);
    // Seeds with passes that did not end.
    for seed in [47, 85, 112, 219] {
        let scenario = Scenario {
            begin: Instant::from_nanos((1 << 62) - second / 1000),
            ..Scenario::draw(seed)
        };
        let replay = Replay { scenario, bug: None };
        assert!(replay.to_string().contains(" begin=4611686018426387904 "), "{replay}");
        run(&replay).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

fn outcome(seed: u64) -> Outcome {
    soak(seed, None).unwrap_or_else(|failure| panic!("{failure}"))
}

#[test]
fn soak_repeats_bit_for_bit() {
    let first: Vec<Outcome> = (1..=40).map(outcome).collect();
    let again: Vec<Outcome> = (1..=40).map(outcome).collect();
    assert_eq!(first, again);
    let mut hashes: Vec<u64> = first.iter().map(|outcome| outcome.hash).collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), first.len(), "runs of different seeds are told apart");
}

/// The seeds would not test splitting if hardly any I/O were split.
#[test]
fn soak_divides_ios() {
    let outcomes: Vec<Outcome> = (1..=300).map(outcome).collect();
    let with = outcomes.iter().filter(|outcome| outcome.stats.splits > 0).count();
    let splits: u64 = outcomes.iter().map(|outcome| outcome.stats.splits).sum();
    assert!(with >= 40 && splits >= 2000, "{splits} cuts in {with} of 300 runs");
}

/// The drawn scenarios must contain the cases that they are to test: with both kinds of a volatile cache and each
/// access to an elevator, flushes that serve several I/Os, that fail, and that the device requeues.
#[test]
fn soak_seeds_draw_flushes_of_every_kind() {
    for (name, access) in Access::ALL {
        for fua in [false, true] {
            let (mut fates, mut asked) = (FlushFates::default(), 0);
            let has_all = |it: &FlushFates| it.succeeded > 1000 && it.failed > 5 && it.requeued > 5;
            let drawn = (1..=20_000).filter(|seed| {
                let scenario = Scenario::draw(*seed);
                let cache = scenario.device().expect("drawn devices exist").shape.cache;
                (scenario.access, cache) == (access, WriteCache::Back { fua })
            });
            for Outcome { flushes, stats, .. } in drawn.map(outcome) {
                fates.succeeded += flushes.succeeded;
                fates.failed += flushes.failed;
                fates.requeued += flushes.requeued;
                asked += stats.flushes.asked;
                if has_all(&fates) {
                    break;
                }
            }
            println!("{name}, fua={}: {asked} asked for, {fates:?}", u8::from(fua));
            assert!(has_all(&fates), "{fates:?}");
            assert!(4 * asked > 5 * fates.ended(), "and many are shared");
        }
    }
}

/// Timeouts, retries and requeues each occur more than once among the seeds.
#[test]
fn soak_seeds_draw_timeouts_retries_and_requeues() {
    let drawn = (1..=1000).map(outcome).map(|outcome| outcome.stats);
    let (mut timeouts, mut retries, mut requeues, mut tail_requeues) = (0, 0, 0, 0);
    for stats in drawn {
        timeouts += stats.timeouts;
        retries += stats.retries;
        requeues += stats.requeues - stats.retries;
        tail_requeues += stats.tail_requeues;
    }
    println!("{timeouts} timeouts, {retries} retries, {requeues} and {tail_requeues} requeues");
    assert!(timeouts > 300 && retries > 50 && requeues > 200 && tail_requeues > 150);
}

/// With each access to an elevator, I/Os are cancelled wherever they wait, on queues that are being changed and on
/// others.
#[test]
fn soak_seeds_give_up_ios_everywhere() {
    for (name, access) in Access::ALL {
        for meddled in [false, true] {
            let mut all = CancelStats::default();
            let drawn = (1..=6_000).filter(|seed| {
                let scenario = Scenario::draw(*seed);
                let cancels = scenario.habits.cancels > Permille(0);
                cancels && scenario.access == access && (scenario.meddling.most > 0) == meddled
            });
            for Outcome { stats, .. } in drawn.map(outcome) {
                all.plugged += stats.cancelled.plugged;
                all.staged += stats.cancelled.staged;
                all.held += stats.cancelled.held;
            }
            println!("{name}, meddled={}: {all:?}", u8::from(meddled));
            assert!(all.plugged > 200 && all.staged > 200 && all.held > 200, "{all:?}");
        }
    }
}

/// The proposals for Linux are exercised: while a CPU is caught in an elevator, under a lock, other CPUs park their
/// inserts, skip merging, and leave dispatching to it; batches are dispatched; and kicks are the kernel's.
#[test]
fn soak_seeds_meet_at_locks() {
    let (mut locks, mut batched, mut kicked) = (LockStats::default(), 0, 0);
    for seed in 1..=4000 {
        let scenario = Scenario::draw(seed);
        let modes = scenario.modes.settle(scenario.access).expect("what is drawn is possible");
        if !modes.access.is_locked() && modes.kick == KickMode::Coalesced {
            continue;
        }
        let stats = outcome(seed).stats;
        locks.parked += stats.locks.parked;
        locks.merges_skipped += stats.locks.merges_skipped;
        locks.left += stats.locks.left;
        let batch = modes.dispatch == DispatchMode::Batch && stats.batches < stats.dispatched;
        batched += u32::from(batch);
        kicked += u32::from(modes.kick == KickMode::Flag);
    }
    println!("{locks:?}, {batched} runs with batches, {kicked} with the flag");
    assert!(locks.parked > 500 && locks.merges_skipped > 1000 && locks.left > 2000, "{locks:?}");
    assert!(batched > 100 && kicked > 100, "{batched} {kicked}");
}

/// The number of seeds within which each bug must be found.
const SEEDS_OF_A_BUG: u64 = 1000;
/// The most runs for shrinking.
const RUNS: u32 = 2000;

fn found(bug: Bug) -> Shrunk {
    let failure = (1..=SEEDS_OF_A_BUG).find_map(|seed| soak(seed, Some(bug)).err());
    let failure =
        failure.unwrap_or_else(|| panic!("{bug:?} is not noticed in {SEEDS_OF_A_BUG} seeds"));
    println!("{bug:?} is noticed by seed {}: {}", failure.replay.scenario.seed, failure.cause);
    shrink(failure, RUNS)
}

#[test]
fn every_planted_bug_is_found_and_shrunk() {
    for bug in Bug::ALL {
        let Shrunk { failure, runs } = found(bug);
        println!("  in {runs} runs: {failure}");
        let Scenario { cpus, ios, .. } = failure.replay.scenario;
        assert!(cpus <= 4 && u32::from(cpus) * ios <= 50, "that is not small: {failure}");
        let line = failure.replay.to_string();
        assert!(line.split(' ').count() <= 16, "that is not simple: {line}");
        let again: Replay = line.parse().unwrap_or_else(|why| panic!("{line}: {why}"));
        let again = run(&again).expect_err("it fails again");
        assert_eq!(again.cause, failure.cause, "{line}");
        let without = Replay { bug: None, ..failure.replay.clone() };
        assert!(run(&without).is_ok(), "it is the bug that is found: {line}");
    }
}

/// If each pick takes a token, the engine would refuse one more pick within it, and the wrong order would never be
/// seen.
#[test]
fn swapped_picks_are_found_where_picks_take_tokens() {
    let line = "ios=200 scheduler=stingy nomerges=2 batch=7 bug=SwappedPicks";
    let replay: Replay = line.parse().expect("it is right");
    let failure = run(&replay).expect_err("a bug is planted");
    let is_order = matches!(failure.cause, Cause::Violation(Violation::OutOfOrder { .. }));
    assert!(is_order, "{failure}");
}

#[test]
fn shrinking_ends_when_it_is_told_to() {
    let failure = soak(1, None)
        .err()
        .or_else(|| (1..).find_map(|seed| soak(seed, Some(Bug::PickedTwice)).err()));
    let failure = failure.expect("some seed finds it");
    let Shrunk { failure: same, runs } = shrink(failure.clone(), 0);
    assert_eq!((runs, same.replay.to_string()), (0, failure.replay.to_string()));
    assert!(shrink(failure, 7).runs <= 7);
}
