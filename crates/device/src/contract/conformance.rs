//! The suite that every device must pass with any parameters, provided that its faults are finite.

use super::{Checked, Rig, Watch};
use blkmq_core::{Instant, Nanos, Op, Rng};
use blkmq_engine::DeviceQueues;
use blkmq_engine::{Config, DeviceShape, NoMerges};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// I/Os of a run.
const IOS: u64 = 1000;
/// Submitters; some share a hardware queue and some have their own.
const SUBMITTERS: u16 = 5;
/// Credit of each submitter.
const CREDIT: u32 = 128;

/// The result of a run, by which a caller can check that the run exercised the wanted cases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// I/Os, each of which ended once.
    pub ios: usize,
    /// I/Os that ended with an error.
    pub failed: usize,
    /// Requests that were merged away.
    pub merged: u64,
    /// Times that the device answered RESOURCE.
    pub resource: u64,
    /// Times that the device answered DEV_RESOURCE.
    pub dev_resource: u64,
    /// Requests that the device returned to be requeued.
    pub requeued: u64,
    /// When the last I/O ended.
    pub ended_at: Instant,
}

/// Drives a device with a thousand I/Os drawn from `seed`, under a [`Checked`]: every I/O ends once, tags and budgets
/// are released, announced times are kept, and, without merging, the device sees each submitter's I/Os in the order in
/// which they were submitted. The seed also decides about merging and, with the feature `compare`, about the access to
/// the elevator.
///
/// # Panics
/// At the first violation.
pub fn conformance(shape: DeviceShape, queues: DeviceQueues<u64>, seed: u64) -> Outcome {
    let mut rng = Rng::new(seed);
    let merging = rng.chance(1, 2);
    let (queues, watch) = Checked::wrap(&shape, queues);
    let config = Config {
        submitters: SUBMITTERS,
        depth: CREDIT,
        nomerges: if merging { NoMerges::All } else { NoMerges::None },
        ..Config::new(shape, queues)
    };
    #[cfg(feature = "compare")]
    let config = {
        let all = blkmq_engine::Access::ALL;
        let (_, access) = all[rng.below(all.len() as u64) as usize];
        Config { access, ..config }
    };
    let mut rig = Rig::new(config);
    drive(&mut rig, &shape, &mut rng, IOS);
    rig.finish();
    rig.check_at_rest(shape.hw_queues);
    let watch = lock(&watch);
    if !merging {
        check_order(&watch);
    }
    let flushes = rig.queue.stats().flushes;
    let seen = watch.taken.len() as u64 + flushes.dataless + flushes.needless;
    assert_eq!(seen, IOS, "the device has seen every I/O that is not just a flush");
    Outcome {
        ios: rig.ended.len(),
        failed: rig.ended.iter().filter(|ended| ended.result.is_err()).count(),
        merged: rig.queue.stats().merges.total(),
        resource: watch.resource,
        dev_resource: watch.dev_resource,
        requeued: watch.requeued,
        ended_at: rig.now,
    }
}

/// Dismantles a queue with requests inside: the device must return all of them. Returns their number.
///
/// # Panics
/// If the device keeps a request, or returns one that it did not hold.
pub fn abandonment(shape: DeviceShape, queues: DeviceQueues<u64>, seed: u64) -> usize {
    let mut rng = Rng::new(seed);
    let (queues, watch) = Checked::wrap(&shape, queues);
    let config = Config { submitters: SUBMITTERS, depth: CREDIT, ..Config::new(shape, queues) };
    let mut rig = Rig::new(config);
    for _ in 0..CREDIT {
        let who = rng.below(SUBMITTERS.into()) as usize;
        push(&mut rig, &shape, &mut rng, who);
        rig.flush(who);
    }
    drop(rig);
    lock(&watch).abandoned
}

fn lock(watch: &Mutex<Watch>) -> MutexGuard<'_, Watch> {
    watch.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Pushes bursts of I/Os with short pauses until `ios` have been pushed.
fn drive(rig: &mut Rig, shape: &DeviceShape, rng: &mut Rng, ios: u64) {
    let mut left = ios;
    while left > 0 {
        let who = rng.below(SUBMITTERS.into()) as usize;
        for _ in 0..rng.below(24).min(left) {
            if !push(rig, shape, rng, who) {
                rig.flush(who);
                wait(rig);
                break;
            }
            left -= 1;
        }
        rig.flush(who);
        match rng.below(4) {
            0 => rig.settle(),
            1 => rig.run_for(Nanos(rng.below(20_000))),
            2 => _ = rig.poll(),
            _ => {}
        }
    }
}

/// Advances time until an I/O ends.
fn wait(rig: &mut Rig) {
    let before = rig.ended.len();
    rig.settle();
    while rig.ended.len() == before {
        let at = rig.next_deadline().expect("with I/Os in flight something will happen");
        rig.now = rig.now.max(at);
        rig.settle();
    }
}

/// Pushes one I/O that the device takes whole or in a few parts. Returns false if there is no credit.
fn push(rig: &mut Rig, shape: &DeviceShape, rng: &mut Rng, who: usize) -> bool {
    let limits = &shape.limits;
    let block = limits.logical_block_size / blkmq_core::SECTOR_SIZE;
    let op = match rng.below(16) {
        0 => return rig.push(who, Op::Flush, 0, 0).is_some(),
        1 if limits.max_discard_sectors >= 8 * block => Op::Discard,
        2 if limits.max_write_zeroes_sectors >= 8 * block => Op::WriteZeroes,
        3..10 => Op::Read,
        _ => Op::Write,
    };
    let sectors = block * (1 + rng.below(8) as u32);
    let blocks = limits.capacity.min(1 << 10) / u64::from(block) - 8;
    rig.push(who, op, rng.below(blocks) * u64::from(block), sectors).is_some()
}

/// Checks that each submitter's I/Os reached its hardware queue in the order of their cookies; flushes may overtake.
fn check_order(watch: &Watch) {
    let mut last = BTreeMap::new();
    for taken in watch.taken.iter().filter(|taken| taken.op != Op::Flush) {
        let before = last.insert((taken.hw, taken.submitter), taken.cookie);
        assert!(
            before.is_none_or(|before| before < taken.cookie),
            "{taken:?} came behind {before:?}"
        );
    }
}
