//! Naive twins: a second implementation of each policy of the registry, written from its page with vectors and scans
//! only, to be compared decision by decision. The twins of `none`, a list, and of `mq-deadline` are here.
//!
//! The twin of `mq-deadline` is written from its page and `spec/mq-deadline.md` sections 2 to 5. One vector holds the
//! requests inserted at the head, the other one the remaining requests in FIFO order. A class is a number from 0
//! (real-time) to 2 (idle), and a direction is true for writes.

pub mod bfq;
mod kyber;
mod mclock;

use blkmq_core::{Class, HwQueue, Instant, IoMeta, Nanos, RequestId};
use blkmq_sched::{At, Common, Cx, Done, Facts, Grown, Options, Pick, Scheduler, Shape};
use std::collections::BTreeMap;

/// Creates a twin.
pub type Build = fn(&Shape, &Options) -> Box<dyn Scheduler>;

/// Every twin, under the name of its policy, with the state that its instances share.
pub const TWINS: &[(&str, Build, Option<Common>)] = &[
    ("none", build_none, None),
    ("mq-deadline", build_deadline, None),
    ("kyber", kyber::build, Some(kyber::COMMON)),
    ("bfq", bfq::build, None),
    ("mclock", mclock::build, None),
];

/// The twin of the policy called `name`, with the state that its instances share.
#[must_use]
pub fn twin(name: &str) -> Option<(Build, Option<Common>)> {
    TWINS.iter().find(|(n, ..)| *n == name).map(|(_, build, common)| (*build, *common))
}

fn build_none(_: &Shape, _: &Options) -> Box<dyn Scheduler> {
    Box::new(First(Vec::new()))
}

struct First(Vec<RequestId>);

impl Scheduler for First {
    fn insert(&mut self, _: &Cx<'_>, rq: RequestId, at: At) {
        let place = if at == At::Head { 0 } else { self.0.len() };
        self.0.insert(place, rq);
    }

    fn pick(&mut self, _: &Cx<'_>, _: HwQueue) -> Pick {
        if self.0.is_empty() { Pick::Empty } else { Pick::Issue(self.0.remove(0)) }
    }

    fn completed(&mut self, _: &Cx<'_>, _: &Done) {}

    fn withdraw(&mut self, _: &Cx<'_>, rq: RequestId) {
        self.0.retain(|other| *other != rq);
    }

    fn absorbed(&mut self, _: &Cx<'_>, _: RequestId, gone: RequestId) {
        self.0.retain(|rq| *rq != gone);
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("queued", self.0.len() as u64);
    }
}

const DEADLINE_NAMES: [&str; 9] = [
    "read_expire",
    "write_expire",
    "writes_starved",
    "fifo_batch",
    "front_merges",
    "prio_aging_expire",
    "async_depth",
    "linux_quirks",
    "head_per_class",
];

/// Names of the counters per class.
const DEADLINE_SHOWN: [[&str; 7]; 3] = [
    [
        "rt_queued",
        "rt_reads",
        "rt_writes",
        "rt_inserted",
        "rt_merged",
        "rt_dispatched",
        "rt_completed",
    ],
    [
        "be_queued",
        "be_reads",
        "be_writes",
        "be_inserted",
        "be_merged",
        "be_dispatched",
        "be_completed",
    ],
    [
        "idle_queued",
        "idle_reads",
        "idle_writes",
        "idle_inserted",
        "idle_merged",
        "idle_dispatched",
        "idle_completed",
    ],
];

fn build_deadline(shape: &Shape, options: &Options) -> Box<dyn Scheduler> {
    let mut values: BTreeMap<_, _> = DEADLINE_NAMES.iter().map(|n| (*n, options.get(n))).collect();
    let depth = options.given("async_depth").unwrap_or(i64::from(shape.nr_requests));
    values.insert("async_depth", depth.min(shape.nr_requests.into()));
    Box::new(Deadline {
        values,
        nr_requests: shape.nr_requests,
        heads: Vec::new(),
        rest: Vec::new(),
        issued: Vec::new(),
        latest_pos: [[0; 2]; 3],
        last_write: true,
        batching: 0,
        starved: 0,
        filings: 0,
        counts: [[0; 4]; 3],
    })
}

#[derive(Clone, Copy)]
struct Entry {
    rq: RequestId,
    class: usize,
    write: bool,
    sector: u64,
    /// Rises with every filing; orders requests at the same sector.
    filing: u64,
    inserted: Instant,
    deadline: Instant,
}

struct Deadline {
    values: BTreeMap<&'static str, i64>,
    nr_requests: u32,
    heads: Vec<Entry>,
    rest: Vec<Entry>,
    issued: Vec<Entry>,
    latest_pos: [[u64; 2]; 3],
    last_write: bool,
    batching: i64,
    starved: i64,
    filings: u64,
    /// Per class: inserted, merged, dispatched, completed.
    counts: [[u64; 4]; 3],
}

impl Deadline {
    fn value(&self, name: &str) -> i64 {
        self.values[name]
    }

    fn span(&self, name: &str) -> Nanos {
        Nanos::from_millis(self.value(name) as u64)
    }

    fn on(&self, name: &str) -> bool {
        self.value(name) == 1
    }

    fn entry(&mut self, cx: &Cx<'_>, rq: RequestId) -> Entry {
        let meta = cx.requests.get(rq);
        let class = match meta.ioprio.class() {
            Class::Realtime => 0,
            Class::None | Class::BestEffort => 1,
            Class::Idle => 2,
        };
        let write = meta.op.is_write();
        let expire = self.span(if write { "write_expire" } else { "read_expire" });
        let deadline = cx.now + expire;
        self.filings += 1;
        let (sector, filing) = (meta.sector, self.filings);
        Entry { rq, class, write, sector, filing, inserted: cx.now, deadline }
    }

    fn queued(&self, class: usize) -> usize {
        let everyone = self.heads.iter().chain(&self.rest).chain(&self.issued);
        everyone.filter(|e| e.class == class).count()
    }

    fn holds(&self, class: usize) -> bool {
        self.heads.iter().chain(&self.rest).any(|e| e.class == class)
    }

    fn fifo_head(&self, class: usize, write: bool) -> Option<Entry> {
        self.rest.iter().find(|e| e.class == class && e.write == write).copied()
    }

    fn dispatch_head(&self, class: usize) -> Option<Entry> {
        self.heads.iter().find(|e| e.class == class).copied()
    }

    fn next_in_order(&self, class: usize, write: bool) -> Option<Entry> {
        let from = self.latest_pos[class][usize::from(write)];
        let lane = self.rest.iter().filter(|e| e.class == class && e.write == write);
        lane.filter(|e| e.sector >= from).min_by_key(|e| (e.sector, e.filing)).copied()
    }

    fn dispatch(&mut self, entry: Entry) -> RequestId {
        self.heads.retain(|e| e.rq != entry.rq);
        self.rest.retain(|e| e.rq != entry.rq);
        self.latest_pos[entry.class][usize::from(entry.write)] = entry.sector;
        self.counts[entry.class][2] += 1;
        self.issued.push(entry);
        entry.rq
    }

    /// Selects by section 4.1. The request must have waited for at least `age`.
    fn select(&mut self, now: Instant, class: usize, age: Nanos) -> Option<RequestId> {
        if self.on("head_per_class")
            && let Some(head) = self.dispatch_head(class)
        {
            return (head.inserted + age <= now).then(|| self.dispatch(head));
        }
        let mut chosen = self.next_in_order(class, self.last_write);
        if chosen.is_none() || self.batching >= self.value("fifo_batch") {
            let reads = self.fifo_head(class, false).is_some();
            let writes = self.fifo_head(class, true).is_some();
            let mut write = !reads;
            if reads && writes {
                write = self.starved >= self.value("writes_starved");
                self.starved += 1;
            }
            let head = self.fifo_head(class, write)?;
            if write {
                self.starved = 0;
            }
            let next = self.next_in_order(class, write);
            chosen = if head.deadline <= now { Some(head) } else { next.or(Some(head)) };
            self.last_write = write;
            self.batching = 0;
        }
        let chosen = chosen.filter(|e| e.inserted + age <= now)?;
        self.batching += 1;
        Some(self.dispatch(chosen))
    }

    /// The entry of a class that was inserted first; of several, one at the head, then a read.
    fn oldest(&self, class: usize) -> Option<Entry> {
        let heads = if self.on("head_per_class") { self.dispatch_head(class) } else { None };
        let mut all: Vec<Entry> = heads.into_iter().collect();
        all.extend(self.fifo_head(class, false));
        all.extend(self.fifo_head(class, true));
        all.sort_by_key(|e| e.inserted);
        all.first().copied()
    }

    fn aged(&mut self, now: Instant) -> Option<RequestId> {
        let age = self.span("prio_aging_expire");
        if self.on("linux_quirks") {
            let active = (0..3).filter(|c| self.queued(*c) > 0).count();
            return if active < 2 {
                None
            } else {
                self.select(now, 1, age).or_else(|| self.select(now, 2, age))
            };
        }
        let waiting = [1, 2].into_iter().filter(|c| (0..*c).any(|above| self.queued(above) > 0));
        let aged = waiting.filter_map(|c| self.oldest(c)).find(|e| e.inserted + age <= now);
        aged.map(|e| self.dispatch(e))
    }

    fn refile(&mut self, cx: &Cx<'_>, rq: RequestId) {
        self.filings += 1;
        for e in self.rest.iter_mut().filter(|e| e.rq == rq) {
            let sector = cx.requests.get(rq).sector;
            if sector != e.sector {
                (e.sector, e.filing) = (sector, self.filings);
            }
        }
    }
}

impl Scheduler for Deadline {
    fn facts(&self) -> Facts {
        let async_depth = Some(self.value("async_depth") as u32);
        Facts { front_merges: self.on("front_merges"), async_depth, ..Facts::default() }
    }

    fn insert(&mut self, cx: &Cx<'_>, rq: RequestId, at: At) {
        let entry = self.entry(cx, rq);
        let before = self.issued.len();
        self.issued.retain(|e| e.rq != rq);
        if self.issued.len() == before {
            self.counts[entry.class][0] += 1;
        }
        match at {
            At::Head => self.heads.insert(0, entry),
            At::Tail => self.rest.push(entry),
        }
    }

    fn pick(&mut self, cx: &Cx<'_>, _: HwQueue) -> Pick {
        if !self.on("head_per_class")
            && let Some(head) = self.heads.first().copied()
        {
            return Pick::Issue(self.dispatch(head));
        }
        if self.heads.is_empty() && self.rest.is_empty() {
            return Pick::Empty;
        }
        if let Some(rq) = self.aged(cx.now) {
            return Pick::Issue(rq);
        }
        let highest = (0..3).find(|c| self.queued(*c) > 0).expect("something is held");
        if self.holds(highest) {
            let rq = self.select(cx.now, highest, Nanos::ZERO);
            return Pick::Issue(rq.expect("it holds something"));
        }
        if self.on("linux_quirks") {
            return Pick::WaitCompletion;
        }
        let oldest = (1..3).filter_map(|c| self.oldest(c)).map(|e| e.inserted).min();
        Pick::WaitUntil(oldest.expect("something is held") + self.span("prio_aging_expire"))
    }

    fn completed(&mut self, _: &Cx<'_>, done: &Done) {
        let at = self.issued.iter().position(|e| e.rq == done.rq).expect("it was issued");
        let entry = self.issued.remove(at);
        self.counts[entry.class][3] += 1;
    }

    fn withdraw(&mut self, _: &Cx<'_>, rq: RequestId) {
        self.heads.retain(|e| e.rq != rq);
        self.rest.retain(|e| e.rq != rq);
    }

    fn absorbed(&mut self, cx: &Cx<'_>, into: RequestId, gone: RequestId) {
        let place = |v: &[Entry], rq| v.iter().position(|e| e.rq == rq).expect("it is held");
        let (kept, lost) = (place(&self.rest, into), place(&self.rest, gone));
        let mut survivor = self.rest[kept];
        let other = self.rest[lost];
        self.counts[other.class][1] += 1;
        survivor.inserted = survivor.inserted.min(other.inserted);
        if other.deadline < survivor.deadline {
            survivor.deadline = other.deadline;
            self.rest[lost] = survivor;
            self.rest.remove(kept);
        } else {
            self.rest[kept] = survivor;
            self.rest.remove(lost);
        }
        self.refile(cx, into);
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        for (class, names) in DEADLINE_SHOWN.iter().enumerate() {
            let waiting = |write| {
                self.rest.iter().filter(|e| e.class == class && e.write == write).count() as u64
            };
            let [inserted, merged, dispatched, completed] = self.counts[class];
            let queued = self.queued(class) as u64;
            let values =
                [queued, waiting(false), waiting(true), inserted, merged, dispatched, completed];
            names.iter().zip(values).for_each(|(name, value)| out(name, value));
        }
        out("dispatch", self.heads.len() as u64);
        out("batching", self.batching as u64);
        out("starved", self.starved as u64);
        out("last_dir_write", u64::from(self.last_write));
    }

    fn may_merge(&self, _: &Cx<'_>, into: RequestId, _: &IoMeta) -> bool {
        self.heads.iter().all(|e| e.rq != into)
    }

    fn grown(&mut self, cx: &Cx<'_>, rq: RequestId, _: Grown) {
        self.refile(cx, rq);
    }

    fn attribute(&self, name: &str) -> Option<i64> {
        self.values.get(name).copied()
    }

    fn set_attribute(&mut self, name: &str, value: i64) -> bool {
        let most = if name == "async_depth" { self.nr_requests.into() } else { i64::MAX };
        let per_class_before = self.on("head_per_class");
        let known = self.values.get_mut(name).map(|v| *v = value.min(most)).is_some();
        if per_class_before && !self.on("head_per_class") {
            self.heads.sort_by_key(|e| e.class);
        }
        known
    }
}
