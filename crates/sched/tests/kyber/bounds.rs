//! The bound that `doc/kyber.md` promises, under loads drawn to strain it: many owners, and new requests at the head.

use super::common::{OPS, driver, owned};
use blkmq_core::{RequestId, Rng};
use blkmq_sched::testkit::Driver;
use blkmq_sched::{At, Pick};
use std::collections::BTreeMap;

struct Waiting {
    domain: usize,
    /// Requests that were staged when it arrived.
    ahead: u64,
    /// Requests in its domain when it was staged, if it is.
    together: Option<u64>,
    /// Picks of its domain since it arrived.
    passed: u64,
}

fn shown(d: &Driver, domain: usize, what: &str) -> u64 {
    d.shown(&format!("{}_{what}", ["read", "write", "discard", "other"][domain]))
}

/// Picks a request and checks that its wait was within the bound; returns its domain, and its wait in percent of the
/// bound.
fn pick(d: &mut Driver, waiting: &mut BTreeMap<RequestId, Waiting>) -> Option<(usize, u64)> {
    let before =
        [0, 1, 2, 3].map(|domain| (shown(d, domain, "staged"), shown(d, domain, "waiting")));
    let Pick::Issue(rq) = d.pick() else { return None };
    let domain = OPS.iter().position(|op| *op == d.meta(rq).op).expect("one of the four");
    let (staged, gathered) = before[domain];
    for other in waiting.values_mut().filter(|other| other.domain == domain) {
        other.passed += 1;
        if staged == 0 {
            other.together = other.together.or(Some(gathered));
        }
    }
    let Waiting { ahead, together, passed, .. } = waiting.remove(&rq).expect("it was inserted");
    let bound = ahead + together.expect("what leaves was staged");
    assert!(passed <= bound, "{passed} picks against {bound}");
    Some((domain, 100 * passed / bound))
}

#[test]
fn no_request_waits_longer_than_the_page_says() {
    let mut closest = [0; 4];
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut d = driver("");
        let mut waiting = BTreeMap::new();
        let most = 1 + rng.below(100) as usize;
        for _ in 0..1_000 {
            while waiting.len() < most {
                let domain = rng.below(4) as usize;
                let at = if rng.chance(1, 4) { At::Head } else { At::Tail };
                let ahead = shown(&d, domain, "staged");
                let rq = owned(&mut d, rng.below(70) as u32, OPS[domain], at);
                waiting.insert(rq, Waiting { domain, ahead, together: None, passed: 0 });
            }
            if let Some((domain, percent)) = pick(&mut d, &mut waiting) {
                closest[domain] = closest[domain].max(percent);
            }
            while d.issued().len() > 3 {
                let rq = d.issued()[0];
                d.complete(rq);
            }
        }
    }
    assert_eq!(closest, [100; 4], "a bound that nothing comes near proves little");
}

#[test]
fn a_domain_that_has_tokens_is_picked_from_in_any_26_picks() {
    let mut furthest = 0;
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut d = driver("");
        let mut since = [0; 4];
        for _ in 0..2_000 {
            let domain = rng.below(4) as usize;
            // Bursts, so that domains run dry and turns end early.
            let burst = if d.held().len() < 200 && rng.chance(1, 8) { rng.below(40) } else { 0 };
            for _ in 0..burst {
                d.insert(OPS[domain], 0);
            }
            let waits = [0, 1, 2, 3]
                .map(|domain| shown(&d, domain, "staged") + shown(&d, domain, "waiting") > 0);
            let Pick::Issue(rq) = d.pick() else { continue };
            for domain in 0..4 {
                let picked = OPS[domain] == d.meta(rq).op;
                since[domain] = if picked || !waits[domain] { 0 } else { since[domain] + 1 };
                furthest = furthest.max(since[domain]);
            }
            d.complete(rq);
        }
    }
    assert_eq!(furthest, 25);
}
