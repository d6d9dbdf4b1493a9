//! Models with every parameter drawn from a seed: combinations that no author chose.

use crate::shuttle_tests::world::{Says, Script};
use crate::shuttle_tests::{Client, Leaves, Model, times};
use crate::{Access, KickMode, Modes, PumpMode, WriteCache};
use blkmq_core::{IoFlags, Nanos, Rng};
use blkmq_sched::{Scope, registry};

/// Models per test; `BLKMQ_SHUTTLE_TIMES` multiplies the number.
const MODELS: u64 = 100;
/// Longer than any service.
const TIMEOUT: Nanos = Nanos::from_millis(1);
/// Schedules of each model.
const SCHEDULES: usize = 40;

const ONE: Client = Client::new(3, 1, 1);
const SMALL: Client = Client::new(4, 2, 1);
const LARGE: Client = Client::new(6, 6, 3);
const NEIGHBOURS: Client = Client { stride: 8, ..LARGE };
const MEDDLER: Client = Client { leaves: Leaves::AfterAPoll, ..SMALL };
const QUITTER: Client = Client { cancels: 2, ..LARGE };
const SAFE: Client = Client { flags: IoFlags::FUA, ..LARGE };
const SAFER: Client = Client { flags: IoFlags::FUA.union(IoFlags::PREFLUSH), ..SMALL };

const CROWDS: &[&[Client]] = &[
    &[SMALL, SMALL],
    &[LARGE, ONE],
    &[MEDDLER, ONE],
    &[NEIGHBOURS, NEIGHBOURS],
    &[SMALL, SMALL, SMALL],
    &[LARGE, ONE, ONE],
    &[MEDDLER, ONE, ONE],
    &[NEIGHBOURS, LARGE, ONE],
    &[ONE, ONE, ONE, ONE],
    &[QUITTER, QUITTER],
    &[QUITTER, SAFE],
    &[SAFE, SAFER],
    &[SAFE, SAFER, SMALL],
];

const CACHES: &[WriteCache] = &[
    WriteCache::Through,
    WriteCache::Back { fua: false },
    WriteCache::Back { fua: false },
    WriteCache::Back { fua: true },
];

fn device(rng: &mut Rng) -> Script {
    let mut every =
        |sometimes: u64| if rng.chance(1, 3) { 2 + rng.below(sometimes) as u32 } else { 0 };
    let (resource, dev_resource, requeue) = (every(5), every(5), every(5));
    let (requeue_tail, lose) = (every(5), every(5));
    let inline = [0, 1, 2, 3][rng.below(4) as usize];
    let says = if rng.chance(1, 4) { Says::Nothing } else { Says::When };
    // No thread sleeps while a device is polled, so a lost request would never time out.
    let lose = if says == Says::Nothing { 0 } else { lose };
    let service = Nanos(rng.below(3) * 5_000);
    let room = 1 + rng.below(3) as usize;
    Script { room, resource, dev_resource, requeue, requeue_tail, lose, inline, service, says }
}

/// Draws modes that are possible with `access`.
fn modes(rng: &mut Rng, access: Access) -> Modes {
    fn some<M: Copy>(rng: &mut Rng, all: &[M]) -> Option<M> {
        rng.chance(1, 2).then(|| all[rng.below(all.len() as u64) as usize])
    }
    Modes {
        dispatch: some(rng, access.dispatch()),
        insert: some(rng, access.insert()),
        merge: some(rng, access.merge()),
        kick: some(rng, &KickMode::ALL).map(|(_, kick)| kick),
    }
}

fn model(seed: u64, access: Access) -> Model {
    let rng = &mut Rng::new(seed);
    let hw_queues = 1 + rng.below(2) as u16;
    let device = device(rng);
    let threaded = rng.chance(1, 3);
    let model = Model {
        access,
        modes: modes(&mut Rng::new(!seed), access),
        scheduler: registry::ALL[rng.below(registry::ALL.len() as u64) as usize],
        scope: Some(if rng.chance(1, 2) { Scope::Queue } else { Scope::HwQueue }),
        pump: if threaded { PumpMode::Thread } else { PumpMode::Inline },
        hw_queues,
        hw_queue_depth: 1 + rng.below(4) as u32,
        shared_tags: rng.chance(1, 3),
        budget: rng.chance(1, 3).then(|| 1 + rng.below(3) as u32),
        nr_requests: rng.chance(1, 2).then_some(4),
        device,
        timeout: TIMEOUT,
        retries: rng.below(3) as u8,
        drift: rng.chance(1, 4),
        cache: CACHES[rng.below(CACHES.len() as u64) as usize],
        ..Model::new(seed, CROWDS[rng.below(CROWDS.len() as u64) as usize])
    };
    Model { most_time: most_time(&model), ..model }
}

/// The time of one request after the other, plus each refusal, loss and reading of a running clock.
fn most_time(model: &Model) -> Nanos {
    let all = |client: &Client| {
        let flushes = if client.flags == IoFlags::NONE { 0 } else { 2 };
        client.ios * (1 + flushes)
    };
    let ios: u64 = model.clients.iter().map(all).sum();
    // At worst every second attempt is refused.
    let Script { resource, dev_resource, requeue, requeue_tail, lose, service, .. } = model.device;
    let faults = [resource, dev_resource, requeue, requeue_tail, lose];
    let faults = faults.iter().filter(|every| **every > 0).count() as u64;
    let attempts = ios * (1 + 2 * faults);
    let waits = resource > 0 || requeue_tail > 0;
    let timers = if waits { attempts * Nanos::from_millis(3).0 } else { 0 };
    // A timer may be reset once.
    let timers = timers + if lose > 0 { attempts * 2 * TIMEOUT.0 } else { 0 };
    let retries = if dev_resource > 0 { attempts * 10_000 } else { 0 };
    // A kick that is postponed by the delay of a refusal waits for that delay as well.
    let timers = if model.modes.kick.is_some() { 2 * timers } else { timers };
    let drift = if model.drift { 1_000_000 } else { 0 };
    Nanos(ios * service.0 + timers + retries + drift)
}

fn check(first: u64, access: Access) {
    for seed in first..first + MODELS * times() as u64 {
        let model = model(seed, access);
        println!("{model:?}");
        model.explore_in(SCHEDULES, |model| model.schedule(None));
    }
}

#[test]
fn shuttle_drawn_combining() {
    check(1_000_000, Access::Combining);
}

#[test]
fn shuttle_drawn_combining_too() {
    check(2_000_000, Access::Combining);
}

#[test]
fn shuttle_drawn_spin() {
    check(3_000_000, Access::Spin);
}

#[test]
fn shuttle_drawn_mutex() {
    check(4_000_000, Access::Mutex);
}

#[test]
fn shuttle_drawn_serialised() {
    check(5_000_000, Access::Serialised);
}
