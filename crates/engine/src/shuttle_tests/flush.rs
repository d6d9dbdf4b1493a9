//! Writes with FUA and PREFLUSH on a device with a volatile cache: a thread carries out every next step, and shared
//! flushes keep the promise of each request that shares them (`durable.rs`).

use super::device::Script;
use super::model::{Client, Model};
use crate::planted::Planted;
use crate::{Access, PumpMode, WriteCache};
use blkmq_core::{IoFlags, Nanos};
use blkmq_sched::{Scope, deadline};

const FUA: Client = Client { flags: IoFlags::FUA, ..Client::new(3, 1, 1) };
const DEEP: Client = Client { flags: IoFlags::FUA, ..Client::new(4, 3, 2) };
const BOTH: Client = Client { flags: IoFlags::FUA.union(IoFlags::PREFLUSH), ..FUA };
const PLAIN: Client = Client::new(3, 2, 1);

/// Every second request is answered within the call, so that data is done while a flush is in flight.
const DEVICE: Script = Script { room: 2, inline: 2, ..Script::LATER };

/// Two threads with one write in flight each. No write waits for the 5 s after which a flush must not be deferred.
const TWO: Model = Model {
    cache: WriteCache::Back { fua: false },
    device: DEVICE,
    hw_queue_depth: 2,
    most_time: Nanos(12 * DEVICE.service.0),
    ..Model::new(71, &[FUA, FUA])
};

#[test]
fn shuttle_two_threads_write_with_fua() {
    TWO.check();
}

#[test]
fn shuttle_two_threads_write_with_fua_and_a_device_of_depth_1() {
    let device = Script { room: 1, inline: 0, ..DEVICE };
    Model { device, hw_queue_depth: 1, seed: 72, ..TWO }.check();
}

#[test]
fn shuttle_fua_and_preflush_and_neither_mq_deadline() {
    let most_time = Nanos(24 * DEVICE.service.0);
    let model = Model { clients: &[DEEP, BOTH, PLAIN], most_time, seed: 73, ..TWO };
    Model { scheduler: &deadline::FACTORY, nr_requests: Some(4), ..model }.check();
}

#[test]
fn shuttle_fua_under_locks() {
    for (seed, access) in [(74, Access::Spin), (75, Access::Mutex), (78, Access::Serialised)] {
        Model { access, seed, schedules: 1000, ..TWO }.check();
    }
}

#[test]
fn shuttle_fua_and_a_pump_thread() {
    Model { pump: PumpMode::Thread, seed: 76, ..TWO }.check();
}

/// Two hardware queues of one elevator: each has separate flushes, and either may receive the other's.
#[test]
fn shuttle_fua_on_two_hardware_queues_and_requeues() {
    let device = Script { requeue: 5, ..DEVICE };
    let most_time = Nanos(2 * TWO.most_time.0);
    let model = Model { device, most_time, hw_queues: 2, seed: 77, ..TWO };
    Model { scope: Some(Scope::Queue), clients: &[FUA, BOTH], ..model }.check();
}

#[test]
#[should_panic(expected = "has had no flush since its data was done")]
fn shuttle_planted_a_flush_that_serves_late_comers() {
    Model { planted: Some(Planted::ServesLateComers), ..TWO }.check();
}

#[test]
#[should_panic(expected = "nobody will ever be woken")]
fn shuttle_planted_a_step_that_is_handed_back_in_silence() {
    Model { planted: Some(Planted::ForgetsHandedBack), ..TWO }.check();
}
