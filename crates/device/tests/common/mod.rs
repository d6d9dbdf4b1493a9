//! Helpers for the tests of this crate: devices by description, and a log of the calls to a scheduler and to a device,
//! in order.

pub mod application;
pub mod bytes;
pub mod closed_loop;

use blkmq_core::{HwQueue, Instant, Tag};
use blkmq_device::contract::Rig;
use blkmq_device::{Device, MachineShape, registry};
use blkmq_engine::{
    Access, BioTable, Config, DeviceQueue, Enqueued, Expiry, Finished, Inflight, NoMerges,
};
use blkmq_sched::{Bypass, Cx, Factory, Facts, Observed, Observer, Pick, Scheduler, Scope, none};
use std::cell::RefCell;

/// The machine that determines the defaults of devices in all tests.
pub const HOST: MachineShape = MachineShape { cpus: 4, nodes: 2 };

/// The null device with these parameters.
pub fn null(text: &str) -> Device {
    device("null", text)
}

/// A device of the registry with these parameters.
pub fn device(name: &str, text: &str) -> Device {
    described([name, text].join(if text.is_empty() { "" } else { "," }).as_str())
}

/// The device of this description.
pub fn described(text: &str) -> Device {
    registry::parse(text, &HOST).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// A queue around `device` without merging, so that every I/O is a request.
pub fn unmerged(device: &Device, submitters: u16, depth: u32) -> Config<u64> {
    Config { nomerges: NoMerges::None, submitters, depth, ..device.config() }
}

/// A rig on such a queue, with one submitter that has ample credit.
pub fn rig(device: &Device) -> Rig {
    Rig::new(unmerged(device, 1, 4096))
}

/// A call to the scheduler or to the device, with its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The scheduler picked the request at this sector.
    Picked(u64),
    /// The scheduler was asked and picked no request.
    AskedInVain,
    /// The device took the request at this sector.
    Taken(u64),
    /// The device refused the request at this sector.
    Refused(u64),
}

thread_local! {
    static EVENTS: RefCell<Vec<Event>> = const { RefCell::new(Vec::new()) };
}

fn note(event: Event) {
    EVENTS.with_borrow_mut(|events| events.push(event));
}

/// Returns, and clears, the events on this thread since the last call.
pub fn events() -> Vec<Event> {
    EVENTS.take()
}

/// A rig around `device` that records [`events`] of its scheduler, `none`, and of its hardware queues.
pub fn observed(device: &Device, access: Access) -> Rig {
    let tap = |inner| Box::new(Tap(inner)) as Box<dyn DeviceQueue<u64>>;
    let queues = device.queues().into_iter().map(tap).collect();
    let config = Config::new(device.shape, queues).scheduler(&OBSERVED);
    let nr_requests = Some(128);
    Rig::new(Config { access, nomerges: NoMerges::None, depth: 4096, nr_requests, ..config })
}

const OBSERVED: Factory = Factory {
    name: "observed",
    summary: "none, under observation",
    scope: Scope::HwQueue,
    attributes: &[],
    common: None,
    build: |shape, options| Box::new(Observed::new((none::FACTORY.build)(shape, options), Picks)),
};

struct Picks;

impl Observer for Picks {
    fn facts(&self, policy: &dyn Scheduler) -> Facts {
        Facts { bypass: Bypass::Never, ..policy.facts() }
    }

    fn pick(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, hw: HwQueue) -> Pick {
        let pick = policy.pick(cx, hw);
        note(match pick {
            Pick::Issue(id) => Event::Picked(cx.requests.get(id).sector),
            _ => Event::AskedInVain,
        });
        pick
    }
}

struct Tap(Box<dyn DeviceQueue<u64>>);

impl DeviceQueue<u64> for Tap {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<u64>, rq: Inflight) -> Enqueued {
        let sector = rq.sector();
        let answer = self.0.enqueue(now, bios, rq);
        let refused = matches!(answer, Enqueued::Busy(..));
        note(if refused { Event::Refused(sector) } else { Event::Taken(sector) });
        answer
    }

    fn commit(&mut self, now: Instant) {
        self.0.commit(now);
    }

    fn reap(&mut self, now: Instant, bios: &BioTable<u64>, out: &mut Vec<Finished>) {
        self.0.reap(now, bios, out);
    }

    fn timed_out(&mut self, now: Instant, tag: Tag) -> Expiry {
        self.0.timed_out(now, tag)
    }

    fn next_event(&self) -> Option<Instant> {
        self.0.next_event()
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.0.abandon(out);
    }
}
