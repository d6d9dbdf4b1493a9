//! Plugs that leave in one step: which ones do, and what they leave behind. That they leave as they would one by one is
//! shown by the comparison with the twin.

use super::common::{driver, factory};
use blkmq_core::{HwQueue, Instant, IoFlags, IoMeta, Op, Owner, RequestId};
use blkmq_sched::testkit::{Checked, Driver, LocalEnv};
use blkmq_sched::{Admission, Cx, Fresh, Options, Pick, Requests, Scheduler, Used};

/// An instance with 16 tags, of which async I/O may hold 12, and its requests.
struct Alone {
    policy: Checked,
    requests: Requests,
    env: LocalEnv,
}

impl Alone {
    fn new(options: &str) -> Self {
        let options = Options::parse(factory().attributes, options).expect("valid options");
        let shape = Driver::shape(16);
        Self {
            policy: Checked::checking((factory().build)(&shape, &options)),
            requests: Requests::new(16),
            env: LocalEnv::of(factory(), &shape, &options),
        }
    }

    /// Does a plug of `metas` leave in one step, while this many async requests have tags?
    fn leaves(&mut self, metas: &[IoMeta], unsynced: u32) -> bool {
        let ids: Vec<RequestId> =
            metas.iter().map(|meta| self.requests.alloc(*meta).expect("a slot is free")).collect();
        let used = Used { of: 16, all: unsynced, limited: unsynced, unsynced };
        let fresh = Fresh { rqs: &ids, hw: HwQueue(0), used: Some(used) };
        let mut order = [u8::MAX; 16];
        let cx = Cx::new(Instant::ZERO, &self.requests, &self.env);
        let left = self.policy.admit(&cx, &fresh, &mut order) == Admission::Issued;
        if left {
            let identity: Vec<u8> = (0..ids.len() as u8).collect();
            assert_eq!(order[..ids.len()], identity, "in the order of submission");
            self.env.settle_all(&ids);
        } else {
            for id in &ids {
                self.requests.free(*id);
            }
        }
        left
    }
}

fn writes(n: u64) -> Vec<IoMeta> {
    (0..n).map(|at| IoMeta::new(Op::Write, 64 * at, 8)).collect()
}

#[test]
fn each_request_of_a_plug_has_a_token_and_none_is_taken_for_a_plug_that_stays() {
    let mut alone = Alone::new("");
    assert!(alone.leaves(&writes(5), 0));
    assert_eq!(alone.env.out()[1], 5);
    alone.env.set_tokens(1, 9);
    assert!(!alone.leaves(&writes(5), 0), "four tokens are left");
    assert_eq!(alone.env.out()[1], 5);
    assert!(alone.leaves(&writes(4), 0));
    assert_eq!(alone.env.out()[1], 9);
}

/// Another submitter may have staged a single request.
#[test]
fn a_plug_of_one_stays_without_a_token_and_is_not_held() {
    let mut alone = Alone::new("");
    alone.env.set_tokens(1, 0);
    assert!(!alone.leaves(&writes(1), 0));
    assert!(alone.policy.observer().held().is_empty());
    alone.policy.inspect(&mut |name, value| assert!(!name.ends_with("_waiting") || value == 0));
    alone.env.set_tokens(1, 1);
    assert!(alone.leaves(&writes(1), 0));
}

#[test]
fn a_plug_stays_that_has_two_kinds_or_no_time() {
    let mut mixed = writes(3);
    mixed[2].op = Op::Read;
    assert!(!Alone::new("").leaves(&mixed, 0));
    let mut owners = writes(3);
    owners[1].owner = Owner(1);
    assert!(Alone::new("").leaves(&owners, 0), "owners do not matter");
    let adaptive = Alone::new("adaptive=1");
    assert!(!adaptive.policy.facts().takes_plugs);
    assert!(Alone::new("").policy.facts().takes_plugs);
}

#[test]
fn async_requests_of_a_plug_have_three_quarters_of_the_tags_and_no_more() {
    let mut alone = Alone::new("");
    assert!(!alone.leaves(&writes(5), 8));
    assert!(alone.leaves(&writes(4), 8));
    let sync: Vec<IoMeta> =
        writes(8).into_iter().map(|meta| IoMeta { flags: IoFlags::SYNC, ..meta }).collect();
    assert!(alone.leaves(&sync, 12), "no submitter waits behind async I/O");
}

/// Turns have 16 reads and 8 writes, whether these come one by one or in plugs.
#[test]
fn turns_go_on_through_plugs() {
    let mut d = driver("");
    let shown = |d: &Driver| (d.shown("current_domain"), d.shown("batching"));
    let picked = |picks: Vec<Pick>| picks.iter().all(|pick| matches!(pick, Pick::Issue(_)));
    assert!(picked(d.admit(&writes(5))));
    assert_eq!(shown(&d), (1, 5));
    assert!(picked(d.admit(&writes(3))));
    assert_eq!(shown(&d), (1, 8), "a full turn");
    assert!(picked(d.admit(&writes(10))));
    assert_eq!(shown(&d), (1, 2), "a turn of eight, and two of another");
    assert_eq!(d.shown("write_dispatched"), 18);
}
