//! The plugs that leave in one step. The comparison with the twin shows that their requests leave as they would one by one.

use super::common::SLOTS;
use blkmq_core::{Class, HwQueue, Instant, IoMeta, IoPrio, Op, RequestId};
use blkmq_sched::testkit::{Checked, Driver};
use blkmq_sched::{
    Admission, At, Cx, Fresh, NoEnv, Options, PLUG, Pick, Requests, Scheduler, Used, registry,
};

/// An instance and its requests.
struct Alone {
    policy: Checked,
    requests: Requests,
}

impl Alone {
    fn new(options: &str) -> Self {
        let factory = registry::find("mq-deadline").expect("it is registered");
        let options = Options::parse(factory.attributes, options).expect("valid options");
        let policy = Checked::checking((factory.build)(&Driver::shape(SLOTS), &options));
        Self { policy, requests: Requests::new(SLOTS) }
    }

    /// The order in which `metas` leave in one step, if they do.
    fn leave(&mut self, metas: &[IoMeta]) -> Option<Vec<u8>> {
        let ids: Vec<RequestId> =
            metas.iter().map(|meta| self.requests.alloc(*meta).expect("a slot is free")).collect();
        let used = Used { of: SLOTS, all: 0, limited: 0, unsynced: 0 };
        let used = (ids.len() > 1).then_some(used);
        let fresh = Fresh { rqs: &ids, hw: HwQueue(0), used };
        let mut order = [u8::MAX; PLUG];
        let cx = Cx::new(Instant::ZERO, &self.requests, &NoEnv);
        let admission = self.policy.admit(&cx, &fresh, &mut order);
        (admission == Admission::Issued).then(|| order[..ids.len()].to_vec())
    }

    /// Inserts a request, and issues it.
    fn issue(&mut self, meta: IoMeta) {
        let rq = self.requests.alloc(meta).expect("a slot is free");
        let cx = Cx::new(Instant::ZERO, &self.requests, &NoEnv);
        self.policy.insert(&cx, rq, At::Tail);
        assert_eq!(self.policy.pick(&cx, HwQueue(0)), Pick::Issue(rq));
    }
}

fn reads(sectors: &[u64]) -> Vec<IoMeta> {
    sectors.iter().map(|sector| IoMeta::new(Op::Read, *sector, 8)).collect()
}

#[test]
fn a_plug_of_one_class_and_direction_leaves_at_once_by_sector() {
    assert_eq!(Alone::new("").leave(&reads(&[800, 80, 400])), Some(vec![1, 2, 0]));
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

fn reads_of(class: Class) -> Vec<IoMeta> {
    let ioprio = IoPrio::new(class, 4).expect("4 is a level");
    reads(&[80, 160]).into_iter().map(|meta| IoMeta { ioprio, ..meta }).collect()
}

#[test]
fn a_plug_stays_while_one_or_both_of_the_other_classes_have_a_request_in_the_device() {
    let classes = [Class::Realtime, Class::BestEffort, Class::Idle];
    for (nth, class) in classes.into_iter().enumerate() {
        let others = [classes[(nth + 1) % 3], classes[(nth + 2) % 3]];
        for busy in [&others[..1], &others[1..], &others[..]] {
            // No request waits for those of higher classes.
            let mut alone = Alone::new("prio_aging_expire=0");
            for other in busy {
                alone.issue(reads_of(*other)[0]);
            }
            assert_eq!(alone.leave(&reads_of(class)), None, "{class:?} beside {busy:?}");
        }
        let mut alone = Alone::new("");
        alone.issue(reads_of(class)[0]);
        assert!(alone.leave(&reads_of(class)).is_some(), "of {class:?} as well");
    }
}

#[test]
fn the_engine_is_told_of_the_way_for_plugs() {
    assert!(Alone::new("").policy.facts().takes_plugs);
}
