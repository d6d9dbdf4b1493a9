//! `mq-deadline`: sector order in batches, deadlines between batches, three priority classes.
//!
//! The behaviour is that of `spec/mq-deadline.md`; `doc/mq-deadline.md` lists the differences. This file is the
//! [`Scheduler`], which follows a request from insertion to completion and selects the next one, and the state of its
//! priority classes and directions. It also has the attributes: names, ranges and defaults of sysfs (section 1), and
//! two more switches that restore Linux's behaviour where ours differs.
//!
//! Candidates for the next request (section 4), in this order: requests at the head; a request of a lower class that
//! has waited too long; the highest class with anything queued, where the batch continues or a new one begins.
//!
//! A plug that arrives while no request is held leaves in the order in which its requests would be picked after their
//! insertion, without being inserted. The order is found by sorting the plug. The lists and the tree of sectors give
//! the same order for any number of requests and any time between insertion and pick, but cost several times as much
//! for a few requests in one pass.

use crate::index::{Found, Lists, SectorIndex};
use crate::index::{Sorted, Swept};
use crate::{
    Admission, At, Attribute, Cx, Done, Factory, Facts, Fresh, Grown, Options, Pick, Scheduler,
    Scope, Shape, Unit,
};
use alloc::boxed::Box;
use alloc::vec;
use blkmq_core::{Class, HwQueue, Instant, IoMeta, Nanos, RequestId};

/// The registry line.
pub const FACTORY: Factory = Factory {
    name: "mq-deadline",
    summary: "sector order in batches, deadlines between them, priority classes",
    scope: Scope::Queue,
    attributes: ATTRIBUTES,
    common: None,
    build: |shape, options| Box::new(Deadline::new(shape, options)),
};

/// The dispatch list of the whole queue. Lanes have the numbers below.
const HEAD: usize = Lane::COUNT;
/// With `head_per_class`: the first of the per-class dispatch lists; the number of the class is added to it.
const HEAD_OF: usize = HEAD + 1;
const LISTS: usize = HEAD_OF + Rank::ALL.len();

/// The state of a slot's request beyond its metadata, from insertion to completion.
#[derive(Clone, Copy)]
struct Item {
    rq: RequestId,
    lane: Lane,
    /// Returned by `pick`, and neither completed nor requeued since.
    issued: bool,
    inserted: Instant,
    deadline: Instant,
}

/// Invariant: a held request is in exactly one list of `lists`; if that list is a lane, it is in the same lane of
/// `order` too. `held` and `queued` of each class count the requests.
// An instance has cache lines of its own, since another thread may write that of another hardware queue.
#[repr(align(128))]
struct Deadline {
    tunables: Tunables,
    /// A FIFO per lane, and dispatch lists.
    lists: Lists,
    /// A sector order per lane.
    order: SectorIndex,
    items: Box<[Item]>,
    classes: [PerClass; 3],
    /// Sum of `held` over the classes.
    held: u32,
    /// The direction of the batch.
    last_dir: Dir,
    /// Requests issued in the batch.
    batching: i64,
    /// Batches of reads chosen since writes began to wait.
    starved: i64,
}

impl Deadline {
    fn new(shape: &Shape, options: &Options) -> Self {
        let nothing = Item {
            rq: RequestId::new(0, 0),
            lane: Lane { rank: Rank::BestEffort, dir: Dir::Read },
            issued: false,
            inserted: Instant::ZERO,
            deadline: Instant::ZERO,
        };
        Self {
            tunables: Tunables::new(shape, options),
            lists: Lists::new(shape.slots, LISTS),
            order: SectorIndex::new(shape.slots, Lane::COUNT),
            items: vec![nothing; shape.slots as usize].into_boxed_slice(),
            classes: [PerClass::default(); 3],
            held: 0,
            last_dir: Dir::Write,
            batching: 0,
            starved: 0,
        }
    }

    fn class(&mut self, rank: Rank) -> &mut PerClass {
        &mut self.classes[rank as usize]
    }

    /// The list that takes a request inserted at the head.
    fn head_list(&self, rank: Rank) -> usize {
        if self.tunables.head_per_class { HEAD_OF + rank as usize } else { HEAD }
    }

    /// Moves the requests at the head to the lists that `head_per_class` asks for. The order within a class is kept. In
    /// the common list, higher classes come first.
    fn rearrange_heads(&mut self) {
        if self.tunables.head_per_class {
            while let Some(rq) = self.lists.pop_front(HEAD) {
                let rank = self.items[rq.index()].lane.rank;
                self.lists.push_back(HEAD_OF + rank as usize, rq);
            }
        } else {
            for rank in Rank::ALL {
                while let Some(rq) = self.lists.pop_front(HEAD_OF + rank as usize) {
                    self.lists.push_back(HEAD, rq);
                }
            }
        }
    }

    /// Files `rq` again if its start has changed.
    fn refile(&mut self, cx: &Cx<'_>, rq: RequestId) {
        let sector = cx.requests.get(rq).sector;
        if let Some((lane, filed)) = self.order.filed(rq)
            && filed != sector
        {
            self.order.remove(rq);
            self.order.insert(lane, sector, rq);
        }
    }

    /// Unlinks the held request `rq` from all lists and updates the counts of waiting requests.
    fn unlink(&mut self, rq: RequestId) -> Lane {
        if self.order.filed(rq).is_some() {
            self.order.remove(rq);
        }
        self.lists.remove(rq);
        let lane = self.items[rq.index()].lane;
        self.held -= 1;
        self.class(lane.rank).held -= 1;
        lane
    }
}

impl Scheduler for Deadline {
    fn facts(&self) -> Facts {
        Facts {
            front_merges: self.tunables.front_merges,
            async_depth: Some(self.tunables.async_depth),
            takes_plugs: true,
            ..Facts::default()
        }
    }

    fn insert(&mut self, cx: &Cx<'_>, rq: RequestId, at: At) {
        let meta = cx.requests.get(rq);
        let lane = Lane::of(meta);
        let item = &mut self.items[rq.index()];
        let requeued = core::mem::take(&mut item.issued);
        assert!(!requeued || item.rq == rq, "{rq:?} took the slot of {:?}, still issued", item.rq);
        // For a request at the head, the deadline has no effect.
        let deadline = cx.now + self.tunables.expire[lane.dir as usize];
        *item = Item { rq, lane, issued: false, inserted: cx.now, deadline };
        match at {
            At::Head => self.lists.push_front(self.head_list(lane.rank), rq),
            At::Tail => {
                self.lists.push_back(lane.index(), rq);
                self.order.insert(lane.index(), meta.sector, rq);
            }
        }
        self.held += 1;
        let class = self.class(lane.rank);
        class.held += 1;
        // A requeued request never left the count.
        class.queued += u32::from(!requeued);
        class.inserted += u64::from(!requeued);
    }

    fn pick(&mut self, cx: &Cx<'_>, _: HwQueue) -> Pick {
        self.next(cx)
    }

    fn admit(&mut self, cx: &Cx<'_>, fresh: &Fresh<'_>, order: &mut [u8]) -> Admission {
        let [rq] = *fresh.rqs else {
            return Admission::of_all(self.issue_plug(cx, fresh.rqs, order));
        };
        let meta = cx.requests.get(rq);
        let lane = Lane::of(meta);
        if self.others_queue(lane.rank) {
            return Admission::Refused;
        }
        self.issue_alone(cx, rq, lane, meta.sector);
        order[0] = 0;
        Admission::Issued
    }

    fn completed(&mut self, _: &Cx<'_>, done: &Done) {
        let item = &mut self.items[done.rq.index()];
        assert!(item.issued && item.rq == done.rq, "{:?} completed without being issued", done.rq);
        item.issued = false;
        let rank = item.lane.rank;
        let class = self.class(rank);
        class.completed += 1;
        class.queued -= 1;
    }

    fn withdraw(&mut self, _: &Cx<'_>, rq: RequestId) {
        let lane = self.unlink(rq);
        self.class(lane.rank).queued -= 1;
    }

    fn absorbed(&mut self, cx: &Cx<'_>, into: RequestId, gone: RequestId) {
        let (kept, lost) = (self.items[into.index()], self.items[gone.index()]);
        if lost.deadline < kept.deadline && self.lists.list_of(into) == self.lists.list_of(gone) {
            self.lists.remove(into);
            self.lists.insert_before(into, gone);
            self.items[into.index()].deadline = lost.deadline;
        }
        self.items[into.index()].inserted = kept.inserted.min(lost.inserted);
        let lane = self.unlink(gone);
        let class = self.class(lane.rank);
        class.merged += 1;
        class.queued -= 1;
        self.refile(cx, into);
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        const NAMES: [[&str; 7]; 3] = [
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
        for (rank, names) in Rank::ALL.into_iter().zip(NAMES) {
            let class = &self.classes[rank as usize];
            let waiting = |dir| self.lists.len(Lane { rank, dir }.index()) as u64;
            let values = [
                class.queued.into(),
                waiting(Dir::Read),
                waiting(Dir::Write),
                class.inserted,
                class.merged,
                class.dispatched,
                class.completed,
            ];
            names.into_iter().zip(values).for_each(|(name, value)| out(name, value));
        }
        out("dispatch", (HEAD..LISTS).map(|list| self.lists.len(list) as u64).sum());
        out("batching", self.batching as u64);
        out("starved", self.starved as u64);
        out("last_dir_write", u64::from(self.last_dir == Dir::Write));
    }

    fn may_merge(&self, _: &Cx<'_>, into: RequestId, _: &IoMeta) -> bool {
        // A request at the head is in no sector order, and other I/O may depend on its position.
        self.order.filed(into).is_some()
    }

    fn grown(&mut self, cx: &Cx<'_>, rq: RequestId, edge: Grown) {
        match edge {
            Grown::Back => {}
            Grown::Front { .. } | Grown::Discard => self.refile(cx, rq),
        }
    }

    fn attribute(&self, name: &str) -> Option<i64> {
        self.tunables.get(name)
    }

    fn set_attribute(&mut self, name: &str, value: i64) -> bool {
        let known = self.tunables.set(name, value);
        self.rearrange_heads();
        known
    }
}

/// A priority class, in order of precedence (`spec/mq-deadline.md` section 2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rank {
    Realtime = 0,
    /// Best-effort requests, and those without a class.
    BestEffort = 1,
    Idle = 2,
}

impl Rank {
    /// Highest first.
    const ALL: [Self; 3] = [Self::Realtime, Self::BestEffort, Self::Idle];
    /// The classes that have a higher one above them, highest first.
    const LOWER: [Self; 2] = [Self::BestEffort, Self::Idle];
}

/// A direction. Every operation that changes the device is a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dir {
    Read = 0,
    Write = 1,
}

/// A class and a direction. Each pair has a sector order and a FIFO of its own, with one number in both indices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Lane {
    rank: Rank,
    dir: Dir,
}

impl Lane {
    const COUNT: usize = 6;

    fn of(meta: &IoMeta) -> Self {
        let rank = match meta.ioprio.class() {
            Class::Realtime => Rank::Realtime,
            Class::None | Class::BestEffort => Rank::BestEffort,
            Class::Idle => Rank::Idle,
        };
        Self { rank, dir: if meta.op.is_write() { Dir::Write } else { Dir::Read } }
    }

    #[inline]
    const fn index(self) -> usize {
        self.rank as usize * 2 + self.dir as usize
    }
}

/// The state of one class.
#[derive(Clone, Copy, Default)]
struct PerClass {
    /// Requests inserted and not yet completed, merged away or withdrawn; requests in the device count. While it is
    /// not zero, lower classes wait.
    queued: u32,
    /// Requests inserted and not yet picked.
    held: u32,
    /// The start sector of the last dispatched request of each direction; the sector order continues there.
    latest_pos: [u64; 2],
    /// Insertions, without requeues.
    inserted: u64,
    /// Requests that were fused into others.
    merged: u64,
    /// Picks, including those after a requeue.
    dispatched: u64,
    /// Completions at the device.
    completed: u64,
}

const INT_MAX: i64 = i32::MAX as i64;
const INT_MIN: i64 = i32::MIN as i64;

/// The attributes in the order of `iosched/`, then ours.
pub(super) const ATTRIBUTES: &[Attribute] = &[
    Attribute::new(
        "read_expire",
        Unit::Millis,
        500,
        (0, INT_MAX),
        "a read's deadline after its insertion",
    ),
    Attribute::new(
        "write_expire",
        Unit::Millis,
        5_000,
        (0, INT_MAX),
        "a write's deadline after its insertion",
    ),
    Attribute::new(
        "writes_starved",
        Unit::Count,
        2,
        (INT_MIN, INT_MAX),
        "batches of reads while writes wait before one of writes; below 1, writes go first",
    ),
    Attribute::new("fifo_batch", Unit::Count, 16, (0, INT_MAX), "requests in a batch; 0 acts as 1"),
    Attribute::new(
        "front_merges",
        Unit::Flag,
        1,
        (0, 1),
        "look for requests that begin where an I/O ends",
    ),
    Attribute::new(
        "prio_aging_expire",
        Unit::Millis,
        10_000,
        (0, INT_MAX),
        "age at which a request may overtake higher classes",
    ),
    Attribute::new(
        "async_depth",
        Unit::Count,
        INT_MAX,
        (1, INT_MAX),
        "scheduler tags for all but sync reads; never more than nr_requests, which is the default",
    ),
    Attribute::new(
        "linux_quirks",
        Unit::Flag,
        0,
        (0, 1),
        "aging probes as Linux's do, side effects included",
    ),
    Attribute::new(
        "head_per_class",
        Unit::Flag,
        0,
        (0, 1),
        "requeued requests wait for their class's turn, as before Linux had one dispatch list",
    ),
];

/// Current values.
pub(super) struct Tunables {
    /// Time from insertion to deadline, by direction.
    pub(super) expire: [Nanos; 2],
    pub(super) writes_starved: i64,
    pub(super) fifo_batch: i64,
    pub(super) front_merges: bool,
    pub(super) prio_aging_expire: Nanos,
    /// From 1 to `nr_requests`.
    pub(super) async_depth: u32,
    pub(super) linux_quirks: bool,
    head_per_class: bool,
    nr_requests: u32,
}

impl Tunables {
    pub(super) fn new(shape: &Shape, options: &Options) -> Self {
        let mut tunables = Self {
            expire: [Nanos::ZERO; 2],
            writes_starved: 0,
            fifo_batch: 0,
            front_merges: false,
            prio_aging_expire: Nanos::ZERO,
            async_depth: 0,
            linux_quirks: false,
            head_per_class: false,
            nr_requests: shape.nr_requests,
        };
        options.apply(|name, value| tunables.set(name, value));
        tunables
    }

    pub(super) fn get(&self, name: &str) -> Option<i64> {
        let millis = |span: Nanos| (span.0 / Nanos::from_millis(1).0) as i64;
        Some(match name {
            "read_expire" => millis(self.expire[Dir::Read as usize]),
            "write_expire" => millis(self.expire[Dir::Write as usize]),
            "writes_starved" => self.writes_starved,
            "fifo_batch" => self.fifo_batch,
            "front_merges" => self.front_merges.into(),
            "prio_aging_expire" => millis(self.prio_aging_expire),
            "async_depth" => self.async_depth.into(),
            "linux_quirks" => self.linux_quirks.into(),
            "head_per_class" => self.head_per_class.into(),
            _ => return None,
        })
    }

    /// Sets `name` to `value`, which is in the attribute's range. Waiting requests keep their deadlines. Returns false
    /// if there is no such attribute.
    pub(super) fn set(&mut self, name: &str, value: i64) -> bool {
        let millis = Nanos::from_millis(value.max(0) as u64);
        match name {
            "read_expire" => self.expire[Dir::Read as usize] = millis,
            "write_expire" => self.expire[Dir::Write as usize] = millis,
            "writes_starved" => self.writes_starved = value,
            "fifo_batch" => self.fifo_batch = value,
            "front_merges" => self.front_merges = value != 0,
            "prio_aging_expire" => self.prio_aging_expire = millis,
            "async_depth" => {
                self.async_depth = value.clamp(1, self.nr_requests.max(1).into()) as u32;
            }
            "linux_quirks" => self.linux_quirks = value != 0,
            "head_per_class" => self.head_per_class = value != 0,
            _ => return false,
        }
        true
    }
}

/// A request chosen from a lane but still held, with its place in the sector order if known.
struct Choice {
    rq: RequestId,
    lane: Lane,
    found: Option<Found>,
}

impl Deadline {
    fn next(&mut self, cx: &Cx<'_>) -> Pick {
        if self.held == 0 {
            return Pick::Empty;
        }
        if let Some(rq) = self.lists.front(HEAD) {
            return Pick::Issue(self.issue(cx, rq));
        }
        if self.classes_compete()
            && let Some(rq) = self.overdue(cx)
        {
            return Pick::Issue(rq);
        }
        for rank in Rank::ALL {
            let class = &self.classes[rank as usize];
            if class.held > 0 {
                let rq = self.select(cx, rank, Nanos::ZERO);
                return Pick::Issue(rq.expect("no request is younger than no time at all"));
            }
            if class.queued > 0 {
                return self.blocked();
            }
        }
        unreachable!("requests are held, but by no class");
    }

    /// Returns whether at least two classes have requests queued. If false, aging has no effect.
    #[inline]
    fn classes_compete(&self) -> bool {
        self.classes.iter().filter(|class| class.queued > 0).count() > 1
    }

    /// Returns whether a class other than `rank` has requests queued, or this one holds some. If false, a request of
    /// `rank` is next as soon as it is inserted.
    #[inline]
    fn others_queue(&self, rank: Rank) -> bool {
        let [realtime, best_effort, idle] = self.classes.each_ref().map(|class| class.queued);
        let others = match rank {
            Rank::Realtime => best_effort | idle,
            Rank::BestEffort => realtime | idle,
            Rank::Idle => realtime | best_effort,
        };
        others != 0 || self.held != 0
    }

    /// Issues a request directly, without queuing it. The request continues the batch if the batch has room and the
    /// request lies ahead of its position; otherwise it begins another batch.
    #[inline]
    fn issue_alone(&mut self, cx: &Cx<'_>, rq: RequestId, lane: Lane, sector: u64) {
        let item = &mut self.items[rq.index()];
        assert!(!item.issued, "{rq:?} took the slot of {:?}, still issued", item.rq);
        let deadline = cx.now + self.tunables.expire[lane.dir as usize];
        *item = Item { rq, lane, issued: true, inserted: cx.now, deadline };
        let goes_on = self.batching < self.tunables.fifo_batch
            && self.last_dir == lane.dir
            && sector >= self.pos(lane);
        if !goes_on {
            if lane.dir == Dir::Write {
                self.starved = 0;
            }
            self.last_dir = lane.dir;
            self.batching = 0;
        }
        self.batching += 1;
        let class = &mut self.classes[lane.rank as usize];
        class.queued += 1;
        class.inserted += 1;
        class.dispatched += 1;
        class.latest_pos[lane.dir as usize] = sector;
    }

    /// The answer while a higher class has requests in the device. The held requests of lower classes wait until a
    /// request of the higher class completes, or one of a lower class is old enough.
    fn blocked(&self) -> Pick {
        if self.tunables.linux_quirks {
            // Linux's check may pass over an old request, so no time can be given.
            return Pick::WaitCompletion;
        }
        let ages = Rank::LOWER.into_iter().filter_map(|rank| self.oldest(rank));
        let since = ages.map(|(inserted, _)| inserted).min();
        since.map_or(Pick::WaitCompletion, |since| {
            Pick::WaitUntil(since + self.tunables.prio_aging_expire)
        })
    }

    /// Issues a request of a lower class that has waited for `prio_aging_expire`, if there is one.
    fn overdue(&mut self, cx: &Cx<'_>) -> Option<RequestId> {
        let age = self.tunables.prio_aging_expire;
        if self.tunables.linux_quirks {
            return Rank::LOWER.into_iter().find_map(|rank| self.select(cx, rank, age));
        }
        let mut above = self.classes[Rank::Realtime as usize].queued;
        for rank in Rank::LOWER {
            // If no higher class has requests, this class is served anyway, in sector order.
            if above > 0
                && let Some((inserted, rq)) = self.oldest(rank)
                && inserted + age <= cx.now
            {
                return Some(self.issue(cx, rq));
            }
            above += self.classes[rank as usize].queued;
        }
        None
    }

    /// The longest-waiting request of a class, and the time of its insertion. Of several requests of the same age,
    /// one at the head comes first, then a read.
    fn oldest(&self, rank: Rank) -> Option<(Instant, RequestId)> {
        let reads = Lane { rank, dir: Dir::Read }.index();
        let writes = Lane { rank, dir: Dir::Write }.index();
        [HEAD_OF + rank as usize, reads, writes]
            .into_iter()
            .filter_map(|list| self.lists.front(list))
            .map(|rq| (self.items[rq.index()].inserted, rq))
            .min_by_key(|(inserted, _)| *inserted)
    }

    /// Section 4.1: issues and returns the next request of the class `rank`, if it has waited for at least `age`.
    fn select(&mut self, cx: &Cx<'_>, rank: Rank, age: Nanos) -> Option<RequestId> {
        let old_enough = |this: &Self, rq: RequestId| {
            age == Nanos::ZERO || this.items[rq.index()].inserted + age <= cx.now
        };
        if let Some(rq) = self.lists.front(HEAD_OF + rank as usize) {
            return old_enough(self, rq).then(|| self.issue(cx, rq));
        }
        let choice = if age == Nanos::ZERO {
            if let Some(rq) = self.go_on(rank) {
                return Some(rq);
            }
            self.begin_batch(cx.now, rank)?
        } else {
            let choice = self.choose(cx.now, rank)?;
            if !old_enough(self, choice.rq) {
                return None;
            }
            choice
        };
        self.batching += 1;
        match choice.found {
            Some(found) => {
                self.order.take(found);
                Some(self.issue_at(choice.lane, found.sector, choice.rq))
            }
            None => Some(self.issue(cx, choice.rq)),
        }
    }

    /// Issues and returns the next request of the batch, if the batch continues. Like the first step of
    /// [`choose`](Self::choose), with the lookup and the removal from the order in one operation.
    #[inline]
    fn go_on(&mut self, rank: Rank) -> Option<RequestId> {
        if self.batching >= self.tunables.fifo_batch {
            return None;
        }
        let lane = Lane { rank, dir: self.last_dir };
        let (sector, rq) = self.order.take_at_or_after(lane.index(), self.pos(lane))?;
        self.batching += 1;
        Some(self.issue_at(lane, sector, rq))
    }

    /// The next request of the batch, or the first one of a new batch. Begins the new batch even if the caller then
    /// declines; callers that must not disturb the batch do not call this.
    fn choose(&mut self, now: Instant, rank: Rank) -> Option<Choice> {
        if self.batching < self.tunables.fifo_batch {
            let lane = Lane { rank, dir: self.last_dir };
            if let Some(found) = self.ahead(lane) {
                return Some(Choice { rq: found.rq, lane, found: Some(found) });
            }
        }
        self.begin_batch(now, rank)
    }

    fn begin_batch(&mut self, now: Instant, rank: Rank) -> Option<Choice> {
        let lane = Lane { rank, dir: self.direction(rank)? };
        self.last_dir = lane.dir;
        self.batching = 0;
        let oldest = self.lists.front(lane.index())?;
        let found = self.ahead(lane);
        match found {
            Some(found) if self.items[oldest.index()].deadline > now => {
                Some(Choice { rq: found.rq, lane, found: Some(found) })
            }
            // The oldest request is overdue, or no request lies ahead: the batch begins at the oldest.
            _ => Some(Choice { rq: oldest, lane, found: None }),
        }
    }

    /// The direction of a new batch: reads, unless writes have been passed over often enough.
    fn direction(&mut self, rank: Rank) -> Option<Dir> {
        let waits = |dir| !self.lists.is_empty(Lane { rank, dir }.index());
        let (reads, writes) = (waits(Dir::Read), waits(Dir::Write));
        let starving = reads && writes && {
            let before = self.starved;
            self.starved += 1;
            before >= self.tunables.writes_starved
        };
        if reads && !starving {
            return Some(Dir::Read);
        }
        if !writes {
            return None;
        }
        self.starved = 0;
        Some(Dir::Write)
    }

    /// The first request of `lane` that begins at or after the start of the last one dispatched there.
    #[inline]
    fn ahead(&self, lane: Lane) -> Option<Found> {
        self.order.at_or_after(lane.index(), self.pos(lane))
    }

    /// The sector at which the order of `lane` continues.
    #[inline]
    fn pos(&self, lane: Lane) -> u64 {
        self.classes[lane.rank as usize].latest_pos[lane.dir as usize]
    }

    /// Issues a request from any list.
    fn issue(&mut self, cx: &Cx<'_>, rq: RequestId) -> RequestId {
        if self.order.filed(rq).is_some() {
            self.order.remove(rq);
        }
        let lane = self.items[rq.index()].lane;
        self.issue_at(lane, cx.requests.get(rq).sector, rq)
    }

    /// Issues a request that is not in the sector order.
    #[inline]
    fn issue_at(&mut self, lane: Lane, sector: u64, rq: RequestId) -> RequestId {
        self.lists.remove(rq);
        self.items[rq.index()].issued = true;
        self.held -= 1;
        let class = &mut self.classes[lane.rank as usize];
        class.held -= 1;
        class.dispatched += 1;
        class.latest_pos[lane.dir as usize] = sector;
        rq
    }

    /// Issues all of `rqs`, and writes their order. Returns false, without effect, if they are not of one class and
    /// direction, if another class competes with them, or if their deadline is immediate.
    fn issue_plug(&mut self, cx: &Cx<'_>, rqs: &[RequestId], order: &mut [u8]) -> bool {
        let Some(first) = rqs.first() else { return false };
        let first = cx.requests.get(*first);
        let lane = Lane::of(first);
        let deadline = cx.now + self.tunables.expire[lane.dir as usize];
        if self.others_queue(lane.rank) || deadline <= cx.now {
            return false;
        }
        let mut alike = true;
        let sectors = rqs.iter().map(|rq| {
            let meta = cx.requests.get(*rq);
            let same = meta.op == first.op && meta.ioprio == first.ioprio;
            alike &= same || Lane::of(meta) == lane;
            meta.sector
        });
        let head = self.classes[lane.rank as usize].latest_pos[lane.dir as usize];
        let sorted = Sorted::of(sectors, head);
        if !alike {
            return false;
        }
        for rq in rqs {
            let item = &mut self.items[rq.index()];
            assert!(!item.issued, "{rq:?} took the slot of {:?}, still issued", item.rq);
            *item = Item { rq: *rq, lane, issued: true, inserted: cx.now, deadline };
        }
        let Swept { last, began } = sorted.sweep(order);
        self.count_batches(lane.dir, rqs.len(), began);
        let class = &mut self.classes[lane.rank as usize];
        class.latest_pos[lane.dir as usize] = last;
        class.queued += rqs.len() as u32;
        class.inserted += rqs.len() as u64;
        class.dispatched += rqs.len() as u64;
        true
    }

    /// Counts `n` requests of a direction as picked. A batch ends when it is full, when the direction changes, and when
    /// a new sweep begins, the last one at the place `began`.
    fn count_batches(&mut self, dir: Dir, n: usize, began: Option<usize>) {
        let most = self.tunables.fifo_batch.max(1);
        let goes_on = self.batching < most && self.last_dir == dir;
        let before = if goes_on { self.batching } else { 0 };
        let ends = !goes_on || began.is_some() || before + n as i64 > most;
        let (before, picked) = match began {
            Some(began) => (0, n - began),
            None => (before, n),
        };
        self.batching = (before + picked as i64 - 1) % most + 1;
        if ends {
            self.last_dir = dir;
            if dir == Dir::Write {
                self.starved = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tunables(text: &str) -> Tunables {
        let shape =
            Shape { slots: 64, nr_requests: 64, hw_depth: 32, hw_queues: 1, rotational: false };
        Tunables::new(&shape, &Options::parse(ATTRIBUTES, text).expect("valid options"))
    }

    #[test]
    fn what_is_set_is_what_is_shown() {
        for (index, attribute) in ATTRIBUTES.iter().enumerate() {
            let mut tunables = tunables("");
            let value = attribute.max.min(i64::from(attribute.name != "fifo_batch") + index as i64);
            let value = value.max(attribute.min);
            assert!(tunables.set(attribute.name, value));
            assert_eq!(tunables.get(attribute.name), Some(value), "{}", attribute.name);
        }
        assert_eq!(tunables("").get("no_such"), None);
        assert!(!tunables("").set("no_such", 1));
    }

    #[test]
    fn async_depth_is_nr_requests_unless_less_is_asked_for() {
        assert_eq!(tunables("").get("async_depth"), Some(64));
        assert_eq!(tunables("async_depth=8").get("async_depth"), Some(8));
        assert_eq!(tunables("async_depth=65").get("async_depth"), Some(64));
        assert_eq!(tunables("async_depth=0").get("async_depth"), Some(1));
    }
}
