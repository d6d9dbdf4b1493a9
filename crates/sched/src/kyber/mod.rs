//! `kyber`: limits how much of each kind of I/O is in the device, so that reads meet their latency target.
//!
//! The behaviour is that of `spec/kyber.md`; `doc/kyber.md` lists the differences. This file is the [`Scheduler`], with
//! an instance for each hardware queue: waiting requests, turns of the domains, and taking tokens. `governor.rs` sets
//! the number of tokens for all instances together. With `adaptive` it uses `bursts.rs`, which also holds back the
//! domains that leave in bursts.
//!
//! The kinds of I/O that are limited separately are here too: their constants, the numbers of their tokens, counters
//! and values, and the findings of a review for the rule that adjusts tokens. Latencies are counted in buckets.
//!
//! A plug that arrives while the instance holds none leaves immediately if there is a token for each of its requests.
//! It leaves in the order of submission, as if its requests were inserted, staged and picked one by one
//! (`spec/kyber.md` section 4). A plug of several domains is inserted, and so is any plug with `adaptive`, under which
//! a domain may have to wait for its time.

mod bursts;
mod governor;

use crate::index::Lists;
use crate::{
    Admission, At, Attribute, Common, Cx, Done, Factory, Facts, Fresh, Options, Pick, PolicyEnv,
    Scheduler, Scope, Shape, Unit, Used,
};
use alloc::boxed::Box;
use alloc::vec;
use blkmq_core::{HwQueue, Instant, IoFlags, IoMeta, Nanos, Op, RequestId};
use bursts::Gate;
use governor::Tokens;

/// The registry line.
pub const FACTORY: Factory = Factory {
    name: "kyber",
    summary: "tokens for each kind of I/O, so that reads meet a latency target",
    scope: Scope::HwQueue,
    attributes: ATTRIBUTES,
    common: Some(Common {
        tokens: &DEPTHS,
        counters: COUNTERS,
        values: VALUES,
        governor: |_, options| Box::new(Tokens::new(options)),
    }),
    build: |shape, options| Box::new(Kyber::new(shape, options)),
};

/// The number of banks of a domain, each with a list.
const BANKS: usize = 2;
/// The governor reviews no later than this long after a completion.
const REVIEW_AFTER: Nanos = Nanos::from_millis(100);
/// The percentage of the scheduler tags that async I/O may hold.
const ASYNC_PERCENT: u64 = 75;

/// The waiting requests of a domain. New requests are filed in one bank, and the other bank is staged. When the staged
/// bank is empty, the banks are exchanged. So staging all waiting requests, as Linux does, takes one step.
#[derive(Clone, Copy, Default)]
struct Lane {
    /// The bank for new requests.
    gathering: usize,
    /// The number of requests waiting in each bank.
    waiting: [u32; BANKS],
    /// Picks, including those after a requeue.
    dispatched: u64,
}

impl Lane {
    fn staged(&self) -> usize {
        self.gathering ^ 1
    }
}

/// The position of a list among all lists of the instance.
#[derive(Clone, Copy)]
struct Place {
    domain: usize,
    bank: usize,
}

impl Place {
    fn list(self) -> usize {
        self.domain * BANKS + self.bank
    }

    fn of_list(list: usize) -> Self {
        Self { domain: list / BANKS, bank: list % BANKS }
    }
}

/// The state of a held request beyond its metadata.
#[derive(Clone, Copy)]
struct Item {
    /// Rises with every insertion; orders two requests by age.
    nth: u64,
    /// It was inserted at the head.
    headed: bool,
}

/// Invariant: a held request is in exactly one list of `lists`, and `lanes` count them.
// An instance has cache lines of its own, since another thread may write that of another hardware queue.
#[repr(align(128))]
struct Kyber {
    lists: Lists,
    lanes: [Lane; DOMAINS],
    items: Box<[Item]>,
    inserted: u64,
    /// The domain whose turn it is.
    current: Domain,
    /// Requests picked in this turn.
    batching: u32,
    tunables: Tunables,
    gate: Gate,
    /// Scheduler tags that async I/O may hold.
    async_depth: u32,
}

impl Kyber {
    fn new(shape: &Shape, options: &Options) -> Self {
        let async_depth = u64::from(shape.nr_requests) * ASYNC_PERCENT / 100;
        Self {
            lists: Lists::new(shape.slots, DOMAINS * BANKS),
            lanes: [Lane::default(); DOMAINS],
            items: vec![Item { nth: 0, headed: false }; shape.slots as usize].into_boxed_slice(),
            inserted: 0,
            current: Domain::Read,
            batching: 0,
            tunables: Tunables::new(options),
            gate: Gate::default(),
            // With a limit of zero, async I/O would be refused for ever.
            async_depth: async_depth.max(1) as u32,
        }
    }

    fn is_empty(&self) -> bool {
        self.lanes.iter().all(|lane| lane.waiting == [0; BANKS])
    }

    /// Records that a list has one more member.
    fn note_linked(&mut self, place: Place) {
        self.lanes[place.domain].waiting[place.bank] += 1;
    }

    /// Takes the held request `rq` out of its list.
    fn unlink(&mut self, rq: RequestId) {
        let list = self.lists.list_of(rq).unwrap_or_else(|| panic!("{rq:?} is not held"));
        self.lists.remove(rq);
        let place = Place::of_list(list);
        self.lanes[place.domain].waiting[place.bank] -= 1;
    }

    /// Takes a token for a request of `domain`, if there is one and the domain need not wait for its time.
    #[inline]
    fn take_token(&mut self, cx: &Cx<'_>, domain: Domain) -> bool {
        let adaptive = self.tunables.adaptive != Adaptive::Off;
        let gated = adaptive && domain != Domain::Read && !self.gate.is_open(cx, domain);
        if gated || !cx.env.take(domain as usize) {
            if adaptive && (domain as usize) < MEASURED {
                cx.env.count(refused_counter(domain as usize));
            }
            return false;
        }
        if adaptive {
            self.gate.passed(cx.now, domain);
        }
        true
    }

    /// Takes the next request of `domain`; `None` without a request or a token.
    #[inline]
    fn dispatch(&mut self, cx: &Cx<'_>, domain: Domain) -> Option<RequestId> {
        if self.lanes[domain as usize].waiting == [0; BANKS] {
            return None;
        }
        // The token is taken first: without one, requests stay unstaged, where they can be merged with.
        if !self.take_token(cx, domain) {
            return None;
        }
        let lane = &mut self.lanes[domain as usize];
        if lane.waiting[lane.staged()] == 0 {
            lane.gathering = lane.staged();
        }
        lane.dispatched += 1;
        let place = Place { domain: domain as usize, bank: lane.staged() };
        let rq = self.lists.front(place.list()).expect("requests are counted");
        self.unlink(rq);
        self.batching += 1;
        Some(rq)
    }

    /// Takes the first request of the next domain in turn that has one and a token for it.
    fn take_turns(&mut self, cx: &Cx<'_>) -> Pick {
        self.batching = 0;
        for _ in 0..DOMAINS {
            self.current = self.current.next();
            if let Some(rq) = self.dispatch(cx, self.current) {
                return Pick::Issue(rq);
            }
        }
        self.refused()
    }

    /// The answer when every domain with waiting requests was just refused a token, or has to wait for its time.
    fn refused(&self) -> Pick {
        self.gate.opens().map_or(Pick::WaitToken, Pick::WaitUntil)
    }

    /// Inserts `rq` into a policy that holds none, and picks.
    fn alone(&mut self, cx: &Cx<'_>, rq: RequestId) -> Pick {
        debug_assert!(self.is_empty(), "{rq:?} does not come alone");
        let domain = Domain::of(cx.requests.get(rq).op);
        self.gate.begin();
        let goes_on = self.current == domain && self.batching < self.current.batch();
        if self.take_token(cx, domain) {
            if !goes_on {
                self.current = domain;
                self.batching = 0;
            }
            self.inserted += 1;
            self.batching += 1;
            // The request would have been in one bank and then in the other.
            let lane = &mut self.lanes[domain as usize];
            lane.gathering = lane.staged();
            lane.dispatched += 1;
            return Pick::Issue(rq);
        }
        self.insert(cx, rq, At::Tail);
        if goes_on {
            // This domain is asked once more, after all others.
            return self.take_turns(cx);
        }
        self.batching = 0;
        self.refused()
    }

    /// Counts the latencies of a request of a measured domain.
    #[inline]
    fn measure(&self, env: &dyn PolicyEnv, domain: usize, total: u64, done: &Done) {
        let target = env.value(domain);
        let device = done.completed.since(done.issued).0;
        for (kind, latency) in [(Kind::Total, total), (Kind::Device, device)] {
            env.count(bucket_counter(domain, kind, bucket(latency, target)));
        }
        if self.tunables.adaptive != Adaptive::Off {
            let old = done.issued.as_nanos() < env.value(SINCE);
            let fine = fine_counter(domain, fine(device));
            env.count(if old { OLD_COUNTER } else { fine });
        }
    }
}

impl Scheduler for Kyber {
    fn facts(&self) -> Facts {
        Facts { limits_slots: true, takes_plugs: self.takes_plugs(), ..Facts::default() }
    }

    fn insert(&mut self, cx: &Cx<'_>, rq: RequestId, at: At) {
        let meta = cx.requests.get(rq);
        let domain = Domain::of(meta.op) as usize;
        let place = Place { domain, bank: self.lanes[domain].gathering };
        self.inserted += 1;
        self.items[rq.index()] = Item { nth: self.inserted, headed: at == At::Head };
        match at {
            At::Head => self.lists.push_front(place.list(), rq),
            At::Tail => self.lists.push_back(place.list(), rq),
        }
        self.note_linked(place);
    }

    fn pick(&mut self, cx: &Cx<'_>, _: HwQueue) -> Pick {
        if self.is_empty() {
            return Pick::Empty;
        }
        self.gate.begin();
        if self.batching < self.current.batch()
            && let Some(rq) = self.dispatch(cx, self.current)
        {
            return Pick::Issue(rq);
        }
        self.take_turns(cx)
    }

    fn admit(&mut self, cx: &Cx<'_>, fresh: &Fresh<'_>, order: &mut [u8]) -> Admission {
        match (fresh.rqs, fresh.used) {
            ([rq], None) => {
                order[0] = 0;
                Admission::of_one(*rq, self.alone(cx, *rq))
            }
            _ => Admission::of_all(self.issue_plug(cx, fresh, order)),
        }
    }

    fn completed(&mut self, cx: &Cx<'_>, done: &Done) {
        let meta = cx.requests.get(done.rq);
        let domain = Domain::of(meta.op) as usize;
        if domain < MEASURED {
            let total = done.completed.since(meta.arrived).0;
            self.measure(cx.env, domain, total, done);
            cx.env.review_by(cx.now + REVIEW_AFTER);
        }
    }

    fn withdraw(&mut self, _: &Cx<'_>, rq: RequestId) {
        self.unlink(rq);
    }

    fn absorbed(&mut self, _: &Cx<'_>, into: RequestId, gone: RequestId) {
        let lost = self.items[gone.index()];
        if lost.nth < self.items[into.index()].nth {
            // The earlier of the two places in line survives.
            self.unlink(into);
            self.lists.insert_before(into, gone);
            let list = self.lists.list_of(into).expect("it was just inserted");
            self.note_linked(Place::of_list(list));
            self.items[into.index()].nth = lost.nth;
        }
        self.unlink(gone);
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        const NAMES: [[&str; 3]; DOMAINS] = [
            ["read_waiting", "read_staged", "read_dispatched"],
            ["write_waiting", "write_staged", "write_dispatched"],
            ["discard_waiting", "discard_staged", "discard_dispatched"],
            ["other_waiting", "other_staged", "other_dispatched"],
        ];
        for (lane, names) in self.lanes.iter().zip(NAMES) {
            let [waiting, staged] = [lane.gathering, lane.staged()].map(|b| lane.waiting[b]);
            let values = [waiting.into(), staged.into(), lane.dispatched];
            names.into_iter().zip(values).for_each(|(name, value)| out(name, value));
        }
        out("current_domain", self.current as u64);
        out("batching", self.batching.into());
        out("async_depth", self.async_depth.into());
    }

    fn may_merge(&self, _: &Cx<'_>, into: RequestId, _: &IoMeta) -> bool {
        // A staged request is about to leave; a request at the head must not wait for others.
        let place = self.lists.list_of(into).map(Place::of_list);
        place.is_some_and(|place| place.bank == self.lanes[place.domain].gathering)
            && !self.items[into.index()].headed
    }

    fn admits(&self, _: &Cx<'_>, io: &IoMeta, used: Used) -> bool {
        io.flags.contains(IoFlags::SYNC) || used.unsynced < self.async_depth
    }

    fn attribute(&self, name: &str) -> Option<i64> {
        self.tunables.get(name)
    }

    fn set_attribute(&mut self, name: &str, value: i64) -> bool {
        self.tunables.set(name, value)
    }
}

impl Kyber {
    /// Issues all requests of `plug`, and writes their order. Returns false, without effect, if they differ in
    /// operation, if there are not enough tokens for all, or if too much async I/O has a scheduler tag.
    fn issue_plug(&mut self, cx: &Cx<'_>, plug: &Fresh<'_>, order: &mut [u8]) -> bool {
        debug_assert!(self.is_empty(), "the plug does not come alone");
        let Some(first) = plug.rqs.first() else { return false };
        let first = cx.requests.get(*first);
        let mut unsynced = 0;
        for rq in plug.rqs {
            let meta = cx.requests.get(*rq);
            if meta.op != first.op {
                return false;
            }
            unsynced += u32::from(!meta.flags.contains(IoFlags::SYNC));
        }
        let (domain, n) = (Domain::of(first.op), plug.rqs.len() as u32);
        let is_below = |used: Used| used.unsynced + unsynced <= self.async_depth;
        let admitted = unsynced == 0 || plug.used.is_none_or(is_below);
        if !admitted || !self.takes_plugs() || !cx.env.take_all(domain as usize, n) {
            return false;
        }
        for (nth, place) in order.iter_mut().enumerate() {
            *place = nth as u8;
        }
        self.inserted += u64::from(n);
        // The requests would all have been in one bank, and then in the other.
        let lane = &mut self.lanes[domain as usize];
        lane.gathering = lane.staged();
        lane.dispatched += u64::from(n);
        self.count_turns(domain, n);
        true
    }

    /// Returns whether whole plugs leave immediately, if there are tokens.
    fn takes_plugs(&self) -> bool {
        self.tunables.adaptive == Adaptive::Off
    }

    /// Counts `n` picks of `domain` while no other domain has requests. The domain continues its turn, and begins
    /// another one after each batch.
    fn count_turns(&mut self, domain: Domain, n: u32) {
        let batch = domain.batch();
        let gone = if self.current == domain { self.batching } else { batch };
        self.current = domain;
        self.batching = (gone + n - 1) % batch + 1;
    }
}

/// The attributes in the order of `iosched/`, then ours.
pub(super) const ATTRIBUTES: &[Attribute] = &[
    Attribute {
        name: "read_lat_nsec",
        unit: Unit::Nanos,
        default: 2_000_000,
        min: 0,
        max: i64::MAX,
        help: "what reads are to take at most",
    },
    Attribute {
        name: "write_lat_nsec",
        unit: Unit::Nanos,
        default: 10_000_000,
        min: 0,
        max: i64::MAX,
        help: "what writes are to take at most",
    },
    Attribute {
        name: "linux_quirks",
        unit: Unit::Flag,
        default: 0,
        min: 0,
        max: 1,
        help: "both latencies of a domain share one timeout, as in Linux",
    },
    Attribute {
        name: "adaptive",
        unit: Unit::Count,
        default: 0,
        min: 0,
        max: 2,
        help: "1: learn targets and depths from the device; those that are set say how domains compare. 2: as well, and writes leave in bursts where one at a time is too many for reads",
    },
];

/// Behaviour beyond Linux's rules, by the value of `adaptive`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Adaptive {
    /// None.
    Off = 0,
    /// Targets and depths are learned from the device.
    Learns = 1,
    /// Like [`Learns`](Self::Learns), and if that is not enough, writes wait for bursts.
    Bursts = 2,
}

impl Adaptive {
    fn of(value: i64) -> Self {
        match value {
            ..=0 => Self::Off,
            1 => Self::Learns,
            _ => Self::Bursts,
        }
    }
}

/// Current values. Each instance and the governor have a copy.
#[derive(Clone, Copy)]
pub(super) struct Tunables {
    /// Targets in nanoseconds, as configured. Instances use the targets that the governor publishes.
    pub(super) targets: [u64; MEASURED],
    pub(super) linux_quirks: bool,
    pub(super) adaptive: Adaptive,
}

impl Tunables {
    pub(super) fn new(options: &Options) -> Self {
        let targets = [DISCARD_TARGET.0; MEASURED];
        let mut tunables = Self { targets, linux_quirks: false, adaptive: Adaptive::Off };
        options.apply(|name, value| tunables.set(name, value));
        tunables
    }

    pub(super) fn get(&self, name: &str) -> Option<i64> {
        Some(match name {
            "read_lat_nsec" => self.targets[Domain::Read as usize] as i64,
            "write_lat_nsec" => self.targets[Domain::Write as usize] as i64,
            "linux_quirks" => self.linux_quirks.into(),
            "adaptive" => self.adaptive as i64,
            _ => return None,
        })
    }

    /// Sets `name` to `value`, which is in the attribute's range. Returns false if there is no such attribute.
    pub(super) fn set(&mut self, name: &str, value: i64) -> bool {
        match name {
            "read_lat_nsec" => self.targets[Domain::Read as usize] = value.max(0) as u64,
            "write_lat_nsec" => self.targets[Domain::Write as usize] = value.max(0) as u64,
            "linux_quirks" => self.linux_quirks = value != 0,
            "adaptive" => self.adaptive = Adaptive::of(value),
            _ => return false,
        }
        true
    }
}

/// A kind of I/O; its number is that of its token pool (`spec/kyber.md` section 2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Domain {
    Read = 0,
    /// Sync and async alike.
    Write = 1,
    Discard = 2,
    /// All other operations. Neither measured nor resized.
    Other = 3,
}

/// The number of domains.
const DOMAINS: usize = Domain::ALL.len();
/// The number of domains with measured latencies.
const MEASURED: usize = Domain::MEASURED.len();

/// Initial tokens of each domain; without `adaptive` also the maximum.
const DEPTHS: [u32; DOMAINS] = [256, 128, 64, 16];

/// The target of discards, which cannot be set.
const DISCARD_TARGET: Nanos = Nanos::from_secs(5);

impl Domain {
    /// All domains, in the order in which they take turns.
    const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Discard, Self::Other];
    /// The domains with a latency target.
    const MEASURED: [Self; 3] = [Self::Read, Self::Write, Self::Discard];

    const fn of(op: Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Write => Self::Write,
            Op::Discard => Self::Discard,
            Op::Flush | Op::WriteZeroes => Self::Other,
        }
    }

    /// The domain that has the next turn.
    const fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % DOMAINS]
    }

    /// Returns whether this domain makes room for reads.
    const fn makes_room(self) -> bool {
        matches!(self, Self::Write | Self::Discard)
    }

    /// The number of requests in a turn.
    const fn batch(self) -> u32 {
        match self {
            Self::Read => 16,
            Self::Write => 8,
            Self::Discard | Self::Other => 1,
        }
    }
}

/// A kind of latency.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// From the arrival of the oldest part to completion.
    Total = 0,
    /// From leaving the scheduler to completion.
    Device = 1,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Total, Self::Device];
}

/// The counter of a latency bucket; buckets are relative to the target.
const fn bucket_counter(domain: usize, kind: Kind, bucket: usize) -> usize {
    (domain * Kind::ALL.len() + kind as usize) * BUCKETS + bucket
}

const FINE_FROM: usize = MEASURED * Kind::ALL.len() * BUCKETS;

/// The counter of a fine bucket of device latency; like all counters below, only with `adaptive`.
const fn fine_counter(domain: usize, bucket: usize) -> usize {
    FINE_FROM + domain * FINE + bucket
}

/// The counter of refused tokens.
const fn refused_counter(domain: usize) -> usize {
    FINE_FROM + MEASURED * FINE + domain
}

/// The counter of completions of requests that were issued before the measurement of the device began.
const OLD_COUNTER: usize = FINE_FROM + MEASURED * FINE + MEASURED;

/// The number of counters.
const COUNTERS: usize = OLD_COUNTER + 1;

/// The value that holds the start of the measurement, in nanoseconds: the latencies of requests issued since then show
/// the unloaded device. It is 0 without a measurement, so that no request counts as too old. The values below this
/// index are the targets of the measured domains.
const SINCE: usize = MEASURED;

/// The value that holds the period of the bursts of the domains that make room for reads, in nanoseconds; 0 if they
/// leave whenever there is a token.
const PERIOD: usize = SINCE + 1;

/// The value that holds the time until which only reads leave, in nanoseconds; 0 unless reads are measured.
const ALONE_UNTIL: usize = PERIOD + 1;

/// The number of values.
const VALUES: usize = ALONE_UNTIL + 1;

/// A [`SINCE`] later than the issue of any request.
const NOT_YET: u64 = Instant::MAX.as_nanos();

/// Buckets of a latency relative to its target. The lower half is good.
const BUCKETS: usize = 8;
/// The first bad bucket.
const BAD: usize = BUCKETS / 2;

/// The percentile judged of device latencies.
const DEVICE_PERCENT: u64 = 90;

/// The bucket of a latency (`spec/kyber.md` section 4): quarters of the target, the last one open. Good ones are at
/// most the target.
#[inline]
fn bucket(latency: u64, target: u64) -> usize {
    let width = (target / 4).max(1);
    if latency <= width {
        // The usual case, and it avoids a division.
        return 0;
    }
    ((latency - 1) / width).min(BUCKETS as u64 - 1) as usize
}

/// Fine buckets divide each power of two of latency into four, so that the upper end of a bucket is less than a
/// quarter above its lower end. The first four are 256 ns wide each, and the last one is open, from 60 s on.
const FINE: usize = 108;

/// The unit of fine buckets is 2^8 ns.
const FINE_SHIFT: u32 = 8;

/// The fine bucket of a latency.
#[inline]
fn fine(latency: u64) -> usize {
    let units = (latency >> FINE_SHIFT).min((1 << 28) - 1);
    if units < 4 {
        return units as usize;
    }
    let magnitude = units.ilog2();
    (magnitude as usize - 1) * 4 + (units >> (magnitude - 2) & 3) as usize
}

/// The largest latency of a fine bucket, in nanoseconds.
fn fine_upper(bucket: usize) -> u64 {
    let (group, quarter) = (bucket / 4, bucket as u64 % 4);
    let units = if group == 0 { quarter + 1 } else { (quarter + 5) << (group - 1) };
    (units << FINE_SHIFT) - 1
}

/// The bucket of the sample at or below which `percent` of all samples lie; `None` if there are none. O(buckets).
fn percentile(counts: &[u64], percent: u64) -> Option<usize> {
    let samples = total(counts);
    if samples == 0 {
        return None;
    }
    let mut rank = (u128::from(samples) * u128::from(percent)).div_ceil(100);
    let found = counts.iter().position(|count| {
        let hit = rank <= u128::from(*count);
        rank = rank.saturating_sub((*count).into());
        hit
    });
    Some(found.expect("the rank is at most the number of samples"))
}

/// The 90th percentile of the samples, to within a quarter. The unloaded and the loaded device are judged by the same
/// percentile, or a target might be out of reach at any depth.
fn tail(window: &[u64]) -> Option<u64> {
    percentile(window, DEVICE_PERCENT).map(fine_upper)
}

/// The number of samples.
fn total(counts: &[u64]) -> u64 {
    counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
}

/// The findings of a review.
struct Findings {
    /// A domain is too slow at the device.
    bad: bool,
    /// The bucket of the 90th percentile of device latency, for domains with enough samples.
    device: [Option<usize>; MEASURED],
    /// The bucket of the 99th percentile of total latency; from an earlier review if `bad`.
    total: [Option<usize>; MEASURED],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_what_is_shown() {
        let mut tunables = Tunables::new(&Options::defaults(ATTRIBUTES));
        for attribute in ATTRIBUTES {
            assert_eq!(tunables.get(attribute.name), Some(attribute.default));
            for value in [attribute.max, attribute.min] {
                assert!(tunables.set(attribute.name, value));
                assert_eq!(tunables.get(attribute.name), Some(value), "{}", attribute.name);
            }
        }
        assert_eq!(tunables.get("discard_lat_nsec"), None);
        assert!(!tunables.set("discard_lat_nsec", 1));
    }

    #[test]
    fn the_bucket_table() {
        let target = 2_000_000;
        let quarter = target / 4;
        let table = [
            (0, 0),
            (1, 0),
            (quarter, 0),
            (quarter + 1, 1),
            (2 * quarter, 1),
            (2 * quarter + 1, 2),
            (3 * quarter, 2),
            (3 * quarter + 1, 3),
            (target, 3),
            (target + 1, 4),
            (7 * quarter, 6),
            (7 * quarter + 1, 7),
            (u64::MAX, 7),
        ];
        for (latency, expected) in table {
            assert_eq!(bucket(latency, target), expected, "{latency}");
        }
    }

    #[test]
    fn a_target_of_nothing_has_buckets_of_a_nanosecond() {
        for target in 0..8 {
            let buckets = [0, 1, 2, 3, 7, 8, 9].map(|latency| bucket(latency, target));
            assert_eq!(buckets, [0, 0, 1, 2, 6, 7, 7], "{target}");
        }
    }

    #[test]
    fn fine_buckets_follow_each_other_and_are_a_quarter_wide_at_most() {
        assert_eq!([0, 255, 256, 1_023, 1_024].map(fine), [0, 0, 1, 3, 4]);
        for index in 0..FINE - 1 {
            let upper = fine_upper(index);
            assert_eq!((fine(upper), fine(upper + 1)), (index, index + 1));
            if index >= 4 {
                let lower = fine_upper(index - 1) + 1;
                assert!((upper + 1 - lower) * 4 <= lower, "bucket {index}");
            }
        }
        assert_eq!(fine(u64::MAX), FINE - 1);
        assert!(fine_upper(FINE - 1) > 60_000_000_000);
    }

    #[test]
    fn percentiles_round_the_rank_up() {
        let mut counts = [0; BUCKETS];
        assert_eq!(percentile(&counts, 99), None);
        counts[1] = 1;
        assert_eq!(percentile(&counts, 90), Some(1));
        // 90 % of 10 is rank 9, of 11 rank 10.
        counts = [9, 0, 0, 0, 0, 1, 0, 0];
        assert_eq!(percentile(&counts, 90), Some(0));
        counts[5] = 2;
        assert_eq!(percentile(&counts, 90), Some(5));
        assert_eq!(percentile(&counts, 99), Some(5));
        counts = [0, 0, 0, 0, 0, 0, 0, 3];
        assert_eq!(percentile(&counts, 50), Some(7));
    }
}
