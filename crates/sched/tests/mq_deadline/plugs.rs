//! Plugs that leave in one step: which ones do. That they leave as they would one by one is shown by the comparison with
//! the twin.

use super::common::SLOTS;
use blkmq_core::{Class, HwQueue, Instant, IoMeta, IoPrio, Op, RequestId};
use blkmq_sched::testkit::{Checked, Driver};
use blkmq_sched::{Cx, NoEnv, Options, PLUG, Requests, Scheduler, Used, WholePlug, registry};

/// An instance and its requests.
struct Alone {
    policy: Checked,
    requests: Requests,
}

impl Alone {
    fn new(options: &str) -> Self {
        let factory = registry::find("mq-deadline").expect("it is registered");
        let options = Options::parse(factory.attributes, options).expect("valid options");
        let policy = Checked::new((factory.build)(&Driver::shape(SLOTS), &options));
        Self { policy, requests: Requests::new(SLOTS) }
    }

    /// The order in which `metas` leave in one step, if they do.
    fn leave(&mut self, metas: &[IoMeta]) -> Option<Vec<u8>> {
        let ids: Vec<RequestId> =
            metas.iter().map(|meta| self.requests.alloc(*meta).expect("a slot is free")).collect();
        let used = Used { of: SLOTS, all: 0, limited: 0, unsynced: 0 };
        let plug = WholePlug { rqs: &ids, hw: HwQueue(0), used };
        let mut order = [u8::MAX; PLUG];
        let cx = Cx::new(Instant::ZERO, &self.requests, &NoEnv);
        let left = self.policy.insert_and_pick_all(&cx, &plug, &mut order);
        left.then(|| order[..ids.len()].to_vec())
    }
}

fn reads(sectors: &[u64]) -> Vec<IoMeta> {
    sectors.iter().map(|sector| IoMeta::new(Op::Read, *sector, 8)).collect()
}

#[test]
fn a_plug_of_one_class_and_direction_leaves_at_once_by_sector() {
    assert_eq!(Alone::new("").leave(&reads(&[800, 80, 400])), Some(vec![1, 2, 0]));
    assert_eq!(Alone::new("").leave(&reads(&[80])), Some(vec![0]));
}

#[test]
fn a_plug_of_two_classes_stays() {
    let mut mixed = reads(&[80, 160, 240]);
    mixed[2].ioprio = IoPrio::new(Class::Idle, 4).expect("4 is a level");
    assert_eq!(Alone::new("").leave(&mixed), None);
    mixed.swap(0, 2);
    assert_eq!(Alone::new("").leave(&mixed), None);
}

#[test]
fn a_plug_whose_deadline_comes_at_once_stays() {
    assert_eq!(Alone::new("read_expire=0").leave(&reads(&[80, 160])), None);
}

#[test]
fn a_plug_stays_while_another_class_has_requests() {
    let mut alone = Alone::new("");
    let mut realtime = reads(&[80]);
    realtime[0].ioprio = IoPrio::new(Class::Realtime, 4).expect("4 is a level");
    assert!(alone.leave(&realtime).is_some());
    assert_eq!(alone.leave(&reads(&[80, 160])), None, "one of them is in the device");
}
