//! `kyber` against `spec/kyber.md`: section 8, "How to test this", line by line. Of line 2, that no wake-up is lost
//! between threads, the policy's part is here, and the engine's in its own tests. Also the bound that `doc/kyber.md`
//! promises, under loads drawn to strain it, many owners, and new requests at the head. Also plugs that leave in one
//! step, and the state that they leave behind. The comparison with the twin shows that they leave in the order of
//! single requests.
//!
//! This file has one instance, or several that share tokens ([`Fleet`]), and closed loops of readers and writers at a
//! device whose latency depends on its load, in virtual time ([`Load`]). `governor.rs` has the governor alone and
//! against its twin, and the promises of `adaptive` in `doc/kyber.md`.

mod governor;

use blkmq_core::{HwQueue, Instant, IoFlags, IoMeta, Nanos, Op, Owner, RequestId, Rng};
use blkmq_sched::testkit::{Checked, Driver, FakeDevice, LocalEnv};
use blkmq_sched::{
    Admission, At, Cx, Done, Factory, Fresh, Options, Pick, Requests, Scheduler, Shape, Used,
    registry,
};
use std::collections::{BTreeMap, BTreeSet};

/// Scheduler tags of an instance.
pub const NR_REQUESTS: u32 = 1024;

/// An operation of each domain, in the order of their numbers.
pub const OPS: [Op; 4] = [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes];
/// The initial tokens of each domain.
pub const TOKENS: [u32; 4] = [256, 128, 64, 16];

pub fn factory() -> &'static Factory {
    registry::find("kyber").expect("it is registered")
}

pub fn driver(options: &str) -> Driver {
    Driver::of(factory(), NR_REQUESTS, options)
}

pub const fn us(n: u64) -> Nanos {
    Nanos::from_micros(n)
}

pub const fn ms(n: u64) -> Nanos {
    Nanos::from_millis(n)
}

/// Inserts a request of an owner.
pub fn owned(d: &mut Driver, owner: u32, op: Op, at: At) -> RequestId {
    let meta = IoMeta { owner: Owner(owner), ..IoMeta::new(op, 0, 8) };
    d.insert_meta(meta, at).expect("a slot is free")
}

/// A counter that the governor reports.
pub fn governed(env: &LocalEnv, name: &str) -> u64 {
    let found = env.inspect().into_iter().find(|(n, _)| *n == name);
    found.unwrap_or_else(|| panic!("nothing called '{name}' is shown")).1
}

/// Several instances, each for a hardware queue, with one environment.
pub struct Fleet {
    instances: Vec<Checked>,
    requests: Requests,
    pub env: LocalEnv,
    pub now: Instant,
    /// The instance of each live request, and the time at which it was picked.
    home: BTreeMap<RequestId, (usize, Instant)>,
}

impl Fleet {
    pub fn new(instances: usize, options: &str) -> Self {
        let options = Options::parse(factory().attributes, options).expect("valid options");
        let slots = NR_REQUESTS * instances as u32;
        let shape = Shape { slots, nr_requests: NR_REQUESTS, ..Driver::shape(slots) };
        let build = |_| Checked::checking((factory().build)(&shape, &options));
        Self {
            instances: (0..instances).map(build).collect(),
            requests: Requests::new(slots),
            env: LocalEnv::of(factory(), &shape, &options),
            now: Instant::ZERO,
            home: BTreeMap::new(),
        }
    }

    fn call<R>(&mut self, nth: usize, call: impl FnOnce(&mut Checked, &Cx<'_>) -> R) -> R {
        let Self { instances, requests, env, now, .. } = self;
        call(&mut instances[nth], &Cx::new(*now, requests, env))
    }

    pub fn held(&self, nth: usize) -> usize {
        self.instances[nth].observer().held().len()
    }

    /// Requests in the device, by domain, over all instances.
    pub fn in_device(&self) -> [u32; 4] {
        let issued = || self.instances.iter().flat_map(|policy| policy.observer().issued());
        OPS.map(|op| issued().filter(|rq| self.requests.get(**rq).op == op).count() as u32)
    }

    pub fn has_issued(&self, nth: usize) -> bool {
        !self.instances[nth].observer().issued().is_empty()
    }

    /// One of the requests that an instance has in the device.
    pub fn some_issued(&self, nth: usize, which: u64) -> RequestId {
        let issued = self.instances[nth].observer().issued();
        let which = (which % issued.len() as u64) as usize;
        *issued.iter().nth(which).expect("there are that many")
    }

    pub fn insert(&mut self, nth: usize, op: Op) -> Option<RequestId> {
        let meta = IoMeta { arrived: self.now, ..IoMeta::new(op, 0, 8) };
        let rq = self.requests.alloc(meta)?;
        self.home.insert(rq, (nth, self.now));
        self.call(nth, |instance, cx| instance.insert(cx, rq, At::Tail));
        Some(rq)
    }

    pub fn pick(&mut self, nth: usize) -> Pick {
        self.env.review(self.now);
        let pick = self.call(nth, |instance, cx| instance.pick(cx, HwQueue(nth as u16)));
        let issued = if let Pick::Issue(rq) = pick { Some(rq) } else { None };
        self.env.settle(issued);
        if let Some(rq) = issued {
            self.home.insert(rq, (nth, self.now));
        }
        pick
    }

    pub fn complete(&mut self, rq: RequestId) {
        let (nth, issued) = self.home.remove(&rq).expect("it is live");
        let done = Done { rq, result: Ok(()), issued, completed: self.now };
        self.env.give_back(rq);
        self.call(nth, |instance, cx| instance.completed(cx, &done));
        self.requests.free(rq);
    }

    pub fn requeue(&mut self, rq: RequestId) {
        let (nth, _) = self.home[&rq];
        self.env.give_back(rq);
        self.call(nth, |instance, cx| instance.insert(cx, rq, At::Head));
    }
}

/// A device and its load.
#[derive(Clone, Copy)]
pub struct Scene {
    /// The number of requests that it works on at a time.
    pub ways: usize,
    /// Service time of a read and of a write, plus or minus a quarter.
    pub service: [Nanos; 2],
    /// Reads and writes that wait or are in the device, at any time.
    pub loops: [usize; 2],
}

/// The completions of one operation in a span of time.
#[derive(Default)]
pub struct Seen {
    device: Vec<u64>,
    total: Vec<u64>,
}

impl Seen {
    pub fn count(&self) -> u64 {
        self.device.len() as u64
    }

    /// The device latency at or below which `percent` of the samples lie.
    pub fn device(&self, percent: usize) -> Nanos {
        Self::percentile(&self.device, percent)
    }

    pub fn total(&self, percent: usize) -> Nanos {
        Self::percentile(&self.total, percent)
    }

    fn percentile(latencies: &[u64], percent: usize) -> Nanos {
        let mut sorted = latencies.to_vec();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        Nanos(sorted.get(rank - 1).copied().expect("there were some"))
    }
}

pub struct Load {
    pub scene: Scene,
    pub driver: Driver,
    device: FakeDevice,
    rng: Rng,
    finished: BTreeSet<(Instant, RequestId)>,
    outstanding: [usize; 2],
}

impl Load {
    pub fn new(scene: Scene, options: &str) -> Self {
        Self {
            scene,
            driver: driver(options),
            device: FakeDevice::new(scene.ways),
            rng: Rng::new(1),
            finished: BTreeSet::new(),
            outstanding: [0; 2],
        }
    }

    /// Runs the load for `span`. Returns the completions, by operation.
    pub fn run(&mut self, span: Nanos) -> [Seen; 2] {
        let end = self.driver.now() + span;
        let mut seen = [Seen::default(), Seen::default()];
        loop {
            self.submit();
            let asks_again = self.dispatch();
            let finishes = self.finished.first().map(|(when, _)| *when);
            let next = [finishes, asks_again].into_iter().flatten().min();
            let next = next.expect("loops never run dry");
            if next > end {
                let rest = end - self.driver.now();
                self.driver.advance(rest);
                return seen;
            }
            let wait = next - self.driver.now();
            self.driver.advance(wait);
            self.reap(&mut seen);
        }
    }

    fn submit(&mut self) {
        for (op, kind) in [(Op::Read, 0), (Op::Write, 1)] {
            while self.outstanding[kind] < self.scene.loops[kind] {
                self.outstanding[kind] += 1;
                let rq = self.driver.insert_meta(IoMeta::new(op, 0, 8), At::Tail);
                rq.expect("loops are smaller than the table");
            }
        }
    }

    /// Hands the picked requests to the device. Returns the latest time to ask the policy again, if it gives one.
    fn dispatch(&mut self) -> Option<Instant> {
        loop {
            let rq = match self.driver.pick() {
                Pick::Issue(rq) => rq,
                Pick::WaitUntil(at) => return Some(at),
                _ => return None,
            };
            let service = self.scene.service[self.driver.meta(rq).op as usize].0;
            let service = Nanos(service * (75 + self.rng.below(51)) / 100);
            let now = self.driver.now();
            self.finished.insert((self.device.accept(now, service), rq));
        }
    }

    fn reap(&mut self, seen: &mut [Seen; 2]) {
        let now = self.driver.now();
        while let Some((when, rq)) = self.finished.first().copied()
            && when <= now
        {
            self.finished.pop_first();
            let meta = *self.driver.meta(rq);
            let issued = self.driver.picked_at(rq).expect("it was picked");
            self.driver.complete(rq);
            let kind = meta.op as usize;
            self.outstanding[kind] -= 1;
            seen[kind].device.push((now - issued).0);
            seen[kind].total.push((now - meta.arrived).0);
        }
    }
}

/// Letters of the next `n` requests, each of which completes immediately and is followed by another of its domain.
fn turns(d: &mut Driver, n: usize) -> String {
    let next = |d: &mut Driver| {
        let rq = d.issue();
        let op = d.meta(rq).op;
        d.complete(rq);
        d.insert(op, 0);
        let domain = OPS.iter().position(|o| *o == op).expect("one of the four");
        ["R", "W", "D", "O"][domain]
    };
    (0..n).map(|_| next(d)).collect()
}

/// Inserts `n` requests.
fn fill(d: &mut Driver, op: Op, n: usize) {
    for i in 0..n {
        d.insert(op, 8 * i as u64);
    }
}

/// Issues requests as long as there are tokens.
fn issue_all(d: &mut Driver) -> Vec<RequestId> {
    let mut issued = Vec::new();
    while let Pick::Issue(rq) = d.pick() {
        issued.push(rq);
    }
    issued
}

#[test]
fn s8_01_all_hardware_queues_together_have_no_more_in_the_device_than_there_are_tokens() {
    for instances in [1, 2, 5] {
        let mut rng = Rng::new(instances as u64);
        let mut fleet = Fleet::new(instances, "");
        let mut most = [0; 4];
        for _ in 0..60_000 {
            let nth = rng.below(instances as u64) as usize;
            match rng.below(5) {
                0 | 1 if fleet.held(nth) < 900 => {
                    // Operations are drawn in proportion to the tokens.
                    let op = match rng.below(29) {
                        0..16 => Op::Read,
                        16..24 => Op::Write,
                        24..28 => Op::Discard,
                        _ => Op::WriteZeroes,
                    };
                    fleet.insert(nth, op);
                }
                4 if fleet.has_issued(nth) && rng.chance(1, 2) => {
                    let rq = fleet.some_issued(nth, rng.next_u64());
                    fleet.complete(rq);
                }
                _ => drop(fleet.pick(nth)),
            }
            let tokens = fleet.env.tokens();
            for (domain, there) in fleet.in_device().into_iter().enumerate() {
                assert!(there <= tokens[domain]);
                most[domain] = most[domain].max(there);
            }
        }
        assert_eq!(most, TOKENS, "a bound that is not reached proves little");
    }
}

#[test]
fn s8_02_a_token_that_one_hardware_queue_gives_back_is_there_for_another() {
    let mut fleet = Fleet::new(2, "");
    fleet.env.set_tokens(0, 1);
    let [a, b] = [0, 1].map(|nth| fleet.insert(nth, Op::Read).expect("a slot is free"));
    assert_eq!(fleet.pick(0), Pick::Issue(a));
    // A refused instance without requests in the device gives this answer each time.
    assert_eq!(fleet.pick(1), Pick::WaitToken);
    assert_eq!(fleet.pick(1), Pick::WaitToken);
    fleet.complete(a);
    assert_eq!(fleet.pick(0), Pick::Empty);
    assert_eq!(fleet.pick(1), Pick::Issue(b));
    assert_eq!(fleet.env.out()[0], 1);
}

#[test]
fn s8_03_sixteen_reads_eight_writes_a_discard_and_another() {
    let mut d = driver("");
    for op in OPS {
        fill(&mut d, op, 20);
    }
    let round = "RRRRRRRRRRRRRRRRWWWWWWWWDO";
    assert_eq!(turns(&mut d, 3 * round.len()), round.repeat(3));
}

#[test]
fn s8_03_a_turn_ends_early_where_nothing_waits_and_a_lone_domain_has_turn_after_turn() {
    let mut d = driver("");
    fill(&mut d, Op::Read, 3);
    fill(&mut d, Op::WriteZeroes, 2);
    let order: Vec<Op> = issue_all(&mut d).into_iter().map(|rq| d.meta(rq).op).collect();
    assert_eq!(order, [Op::Read, Op::Read, Op::Read, Op::WriteZeroes, Op::WriteZeroes]);
    assert_eq!((d.shown("current_domain"), d.shown("batching")), (3, 1));
    // READ has the turn after OTHER.
    let [write, read] = [Op::Write, Op::Read].map(|op| d.insert(op, 0));
    assert_eq!([d.issue(), d.issue()], [read, write]);
}

#[test]
fn s8_04_a_domain_without_tokens_is_passed_over_and_goes_on_merging() {
    let mut d = driver("");
    d.env().set_tokens(0, 0);
    let reads = [0, 8].map(|sector| d.insert(Op::Read, sector));
    let write = d.insert(Op::Write, 0);
    assert_eq!(d.issue(), write);
    assert_eq!(d.pick(), Pick::WaitToken);
    assert_eq!((d.shown("read_waiting"), d.shown("read_staged")), (2, 0));
    let io = IoMeta::new(Op::Read, 16, 8);
    assert!(reads.iter().all(|rq| d.may_merge(*rq, &io)));
    d.grow_back(reads[1], 8);
    // With a token all requests are staged, and merging ends.
    d.env().set_tokens(0, 1);
    assert_eq!(d.issue(), reads[0]);
    assert_eq!((d.shown("read_waiting"), d.shown("read_staged")), (0, 1));
    assert!(!d.may_merge(reads[1], &io));
    assert_eq!(d.pick(), Pick::WaitToken);
    let late = d.insert(Op::Read, 24);
    assert!(d.may_merge(late, &io));
}

#[test]
fn s8_05_all_that_waits_is_staged_together_and_first_come_first_served() {
    let mut d = driver("");
    let insert = |d: &mut Driver, owner| owned(d, owner, Op::Read, At::Tail);
    let [c1, a1, b1, c2, a2] = [63, 0, 5, 63, 64].map(|owner| insert(&mut d, owner));
    assert_eq!(d.issue(), c1);
    // A request that arrives here waits until all these have left, whichever owner it is from.
    let late = insert(&mut d, 0);
    assert_eq!([d.issue(), d.issue(), d.issue(), d.issue()], [a1, b1, c2, a2]);
    assert_eq!(d.issue(), late);
    // Other domains are not staged with it.
    let write = d.insert(Op::Write, 0);
    let read = insert(&mut d, 0);
    assert_eq!(d.issue(), read);
    assert!(d.may_merge(write, d.meta(write)));
}

/// The bucket of a device latency at the default target of reads, according to the counters.
fn bucket_of(latency: Nanos) -> (usize, usize) {
    let mut d = driver("");
    let rq = d.insert(Op::Read, 0);
    d.issue();
    d.advance(latency);
    d.complete(rq);
    let counters = d.env().counters();
    let found: Vec<usize> = (0..counters.len()).filter(|i| counters[*i] > 0).collect();
    // Total latency is the same here, and its eight counters come first.
    assert_eq!(found.len(), 2);
    (found[0], found[1] - 8)
}

#[test]
fn s8_06_buckets_are_quarters_of_the_target() {
    let target = ms(2).0;
    let latencies =
        [0, 1, target / 4, target / 4 + 1, target, target + 1, target * 7 / 4, target * 7 / 4 + 1];
    let found = latencies.map(|latency| bucket_of(Nanos(latency)));
    assert_eq!(found, [0, 0, 0, 1, 3, 4, 6, 7].map(|bucket| (bucket, bucket)));
}

/// Serves `n` requests of an operation at the same time, each of which takes `latency` at the device.
pub fn serve(d: &mut Driver, op: Op, n: usize, latency: Nanos) {
    fill(d, op, n);
    let issued = issue_all(d);
    assert_eq!(issued.len(), n, "there are tokens for all");
    d.advance(latency);
    issued.into_iter().for_each(|rq| d.complete(rq));
}

/// Serves enough requests for a percentile.
pub fn serve_enough(d: &mut Driver, op: Op, latency: Nanos) {
    let domain = OPS.iter().position(|o| *o == op).expect("one of the four");
    let mut left = 500;
    while left > 0 {
        // A review that is due happens here.
        assert_eq!(d.pick(), Pick::Empty);
        let n = left.min(d.env().tokens()[domain] as usize);
        serve(d, op, n, latency);
        left -= n;
    }
}

/// Runs the review that is due.
pub fn review(d: &mut Driver) {
    d.advance(ms(100));
    assert_eq!(d.pick(), Pick::Empty);
    assert_eq!(d.env().due(), None);
}

#[test]
fn s8_07_congestion_takes_tokens_from_those_with_latency_to_spare() {
    let mut d = driver("");
    // A quarter of 2 ms and a little: bucket 1. Twice 10 ms: bucket 7.
    serve_enough(&mut d, Op::Read, us(501));
    serve_enough(&mut d, Op::Write, ms(20));
    assert_eq!(d.env().tokens(), TOKENS);
    review(&mut d);
    assert_eq!(d.env().tokens(), [128, 128, 64, 16]);
    // Another review without reads, whose remembered percentile is used up.
    serve_enough(&mut d, Op::Write, ms(20));
    review(&mut d);
    assert_eq!(d.env().tokens(), [128, 128, 64, 16]);
}

#[test]
fn s8_07_a_remembered_percentile_counts_once() {
    let mut d = driver("");
    serve_enough(&mut d, Op::Read, us(501));
    review(&mut d);
    assert_eq!(governed(d.env(), "read_p99"), 1);
    assert_eq!(d.env().tokens(), TOKENS);
    for expected in [128, 128] {
        serve_enough(&mut d, Op::Write, ms(20));
        review(&mut d);
        assert_eq!(d.env().tokens()[0], expected);
        assert_eq!(governed(d.env(), "read_p99"), 8);
    }
}

#[test]
fn s8_08_while_all_is_well_nothing_changes() {
    let mut d = driver("");
    for _ in 0..20 {
        serve_enough(&mut d, Op::Read, us(1_900));
        serve_enough(&mut d, Op::Write, us(9_900));
        serve_enough(&mut d, Op::Discard, ms(4_900));
        review(&mut d);
        assert_eq!(d.env().tokens(), TOKENS);
    }
}

#[test]
fn s8_09_a_percentile_needs_five_hundred_samples_or_a_second() {
    let remembered = |d: &Driver| governed(d.env(), "read_p99");
    for (samples, expected) in [(499, 8), (500, 3)] {
        let mut d = driver("");
        serve(&mut d, Op::Read, 250, ms(2));
        serve(&mut d, Op::Read, samples - 251, ms(2));
        review(&mut d);
        assert_eq!(remembered(&d), 8, "499 at most, and no second is over");
        d.advance(ms(300));
        serve(&mut d, Op::Read, 1, ms(2));
        review(&mut d);
        assert_eq!(remembered(&d), expected, "{samples} after half a second");
    }
    // The second begins with the review that first looked. The next review is just before its end, or at its end.
    for (wait, expected) in [(ms(898).0 - 1, 8), (ms(898).0, 3)] {
        let mut d = driver("");
        serve(&mut d, Op::Read, 9, ms(2));
        review(&mut d);
        d.advance(Nanos(wait));
        serve(&mut d, Op::Read, 1, ms(2));
        review(&mut d);
        assert_eq!(remembered(&d), expected, "10 samples at {:?}", d.now());
        let left = governed(d.env(), "read_total_samples");
        assert_eq!(left, if expected == 8 { 10 } else { 0 });
    }
}

#[test]
fn s8_10_the_head_is_that_of_what_is_not_staged() {
    let mut d = driver("");
    let insert = |d: &mut Driver, owner, at| owned(d, owner, Op::Read, at);
    let [a, b] = [1, 0].map(|owner| insert(&mut d, owner, At::Tail));
    assert_eq!(d.issue(), a);
    // `b` is staged, and no request gets ahead of it.
    let tail = insert(&mut d, 1, At::Tail);
    let head = insert(&mut d, 1, At::Head);
    let other = insert(&mut d, 0, At::Tail);
    assert_eq!([d.issue(), d.issue(), d.issue(), d.issue()], [b, head, tail, other]);
}

#[test]
fn s8_10_what_was_put_at_the_head_does_not_merge() {
    let mut d = driver("");
    let rq = d.insert(Op::Read, 0);
    assert!(d.may_merge(rq, d.meta(rq)));
    d.issue();
    d.requeue(rq);
    assert!(!d.may_merge(rq, d.meta(rq)));
}

#[test]
fn s8_11_a_requeue_gives_its_token_back_and_takes_another() {
    let mut d = driver("");
    d.env().set_tokens(0, 1);
    let [a, b] = [0, 8].map(|sector| d.insert(Op::Read, sector));
    assert_eq!(d.issue(), a);
    assert_eq!(d.pick(), Pick::WaitToken);
    d.requeue(a);
    assert_eq!(d.env().out()[0], 0);
    // `b` is staged already.
    assert_eq!(d.issue(), b);
    assert_eq!(d.pick(), Pick::WaitToken);
    d.complete(b);
    assert_eq!(d.issue(), a);
    assert_eq!(d.env().out()[0], 1);
}

#[test]
fn s8_11_no_token_is_lost_in_a_million_operations() {
    let mut fleet = Fleet::new(3, "");
    let mut rng = Rng::new(11);
    for step in 0..1_000_000 {
        let nth = rng.below(3) as usize;
        match rng.below(8) {
            0..=2 if fleet.held(nth) < 60 => {
                let op = OPS[rng.below(4) as usize];
                fleet.insert(nth, op);
            }
            3 | 4 if fleet.has_issued(nth) => {
                let rq = fleet.some_issued(nth, rng.next_u64());
                if rng.chance(1, 4) { fleet.requeue(rq) } else { fleet.complete(rq) }
            }
            5 => fleet.now += Nanos(rng.below(200_000)),
            _ => drop(fleet.pick(nth)),
        }
        if step % 1_000 == 0 {
            assert_eq!(fleet.env.out(), fleet.in_device());
        }
    }
    for nth in [0, 1, 2].repeat(200) {
        while fleet.has_issued(nth) {
            let rq = fleet.some_issued(nth, 0);
            fleet.complete(rq);
        }
        let _ = fleet.pick(nth);
    }
    assert_eq!([0, 1, 2].map(|nth| fleet.held(nth)), [0; 3]);
    assert_eq!((fleet.env.out(), fleet.in_device()), (vec![0; 4], [0; 4]));
}

#[test]
fn s8_12_async_io_has_three_quarters_of_the_scheduler_tags() {
    let d = Driver::of(factory(), 256, "");
    assert_eq!(d.shown("async_depth"), 192);
    let used = |unsynced| Used { of: 256, all: unsynced, limited: unsynced, unsynced };
    let of = |op, flags| IoMeta { flags, ..IoMeta::new(op, 0, 8) };
    for op in OPS {
        let (sync, unsynced) = (of(op, IoFlags::SYNC), of(op, IoFlags::NONE));
        assert!(
            d.admits_with(&unsynced, used(191)) && !d.admits_with(&unsynced, used(192)),
            "{op:?}"
        );
        assert!(d.admits_with(&sync, used(255)), "{op:?}");
    }
    // Sync writes do not count.
    let synced = Used { of: 256, all: 200, limited: 200, unsynced: 0 };
    assert!(d.admits_with(&of(Op::Write, IoFlags::NONE), synced));
    // The limit that does not exempt sync writes is not used.
    assert_eq!(d.facts().async_depth, None);
    let depth = |nr| Driver::of(factory(), nr, "").shown("async_depth");
    assert_eq!([1, 2, 4, 255, NR_REQUESTS].map(depth), [1, 1, 3, 191, 768]);
}

#[test]
fn s4_a_fused_request_has_the_earlier_place_in_line() {
    let mut d = driver("");
    let [a, b, c] = [0, 800, 8].map(|sector| d.insert(Op::Read, sector));
    d.absorb(c, a);
    assert_eq!([d.issue(), d.issue()], [c, b]);
    let [a, b, c] = [0, 800, 8].map(|sector| d.insert(Op::Read, sector));
    d.absorb(a, c);
    assert_eq!([d.issue(), d.issue()], [a, b]);
}

#[test]
fn s4_a_request_fused_with_a_staged_one_takes_its_place_there() {
    let mut d = driver("");
    let [first, staged] = [800, 0].map(|sector| d.insert(Op::Read, sector));
    assert_eq!(d.issue(), first);
    let [late, later] = [8, 900].map(|sector| d.insert(Op::Read, sector));
    d.absorb(late, staged);
    assert_eq!((d.shown("read_waiting"), d.shown("read_staged")), (1, 1));
    assert!(!d.may_merge(late, d.meta(late)));
    assert_eq!([d.issue(), d.issue()], [late, later]);
}

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

/// Picks a request and checks its bound. Returns its domain, and its wait in percent of the bound.
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
            // Requests arrive in bursts, so that domains run empty and turns end early.
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

    /// Returns whether a plug of `metas` leaves in one step, while this many async requests have tags.
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

/// Turns have 16 reads and 8 writes, whether they arrive one by one or in plugs.
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
