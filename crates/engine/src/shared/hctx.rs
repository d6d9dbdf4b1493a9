//! The shared state of one hardware queue: its driver tags, and the words by which its pump informs elevators and
//! waiting threads. Requests in transit are here too: [`PluggedRequest`] from a plug to its elevator, and [`Inflight`],
//! the proof that a request has left the elevator and is owed an answer.
//!
//! The pump owns the device side (`dispatch/pump.rs`).
//!
//! A pass over an elevator or a turn of a pump decides and writes words; it kicks no elevator, arms no gate and wakes no
//! thread. It records these [`Duties`], and its caller carries them out (`dispatch/mod.rs`). So one place turns kicks
//! into wake-ups, and no call leaves the engine under a run.

use crate::shared::slots::{Bio, Run};
use crate::shared::stats::PumpCounters;
use crate::sync::{
    Arc, AtomicBool, AtomicU8, AtomicU64, FairShare, Level, Mutex, MutexGuard, Ordering, Pending,
    PoisonError, Restart, TagBatch, TagSet, TagSetShape, Weak,
};
use crate::{BioRef, BioTable};
use blkmq_core::{HwQueue, Instant, IoFlags, IoMeta, IoResult, Op, RequestId, SubmitterId, Tag};
use crossbeam_utils::CachePadded;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

/// The divisor of the busy average: the old value has this weight less one.
const EWMA_WEIGHT: u8 = 8;

/// A busy dispatch adds this, before the division.
const EWMA_FACTOR: u8 = 16;

pub(crate) struct Hctx {
    pub(crate) tags: Tags,
    /// Shared by all lanes of a hardware queue.
    pub(crate) restart: Arc<CachePadded<Restart>>,
    /// The fill level of the outbox.
    level: Level<Inflight>,
    status: CachePadded<PumpStatus>,
    pub(crate) counters: Arc<CachePadded<PumpCounters>>,
}

/// The state of a pump: written by the pump, read by runners and waiting threads.
struct PumpStatus {
    busy: DispatchBusy,
    /// Requests that the device refused wait in the pump, and none may overtake them.
    stuck: AtomicBool,
    /// The device holds requests, and its descriptor signals completions.
    signals: AtomicBool,
    /// The time at which the pump next has work without a kick, in nanoseconds; `u64::MAX` for never.
    next_event: AtomicU64,
}

/// The exponential average of "the device had no room" (`spec/framework.md` 8.2). Readers only compare it with zero.
#[derive(Default)]
struct DispatchBusy(AtomicU8);

impl DispatchBusy {
    #[inline]
    fn note(&self, busy: bool) {
        let old = self.0.load(Ordering::Relaxed);
        if old != 0 || busy {
            let new = (old * (EWMA_WEIGHT - 1) + if busy { EWMA_FACTOR } else { 0 }) / EWMA_WEIGHT;
            self.0.store(new, Ordering::Relaxed);
        }
    }

    fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Hctx {
    pub(crate) fn new(
        tags: Tags,
        level: Level<Inflight>,
        restart: Arc<CachePadded<Restart>>,
        counters: Arc<CachePadded<PumpCounters>>,
    ) -> Self {
        Self {
            tags,
            level,
            restart,
            status: CachePadded::new(PumpStatus {
                busy: DispatchBusy::default(),
                stuck: AtomicBool::new(false),
                signals: AtomicBool::new(false),
                next_event: AtomicU64::new(u64::MAX),
            }),
            counters,
        }
    }

    /// The average of "the device had no room".
    #[inline]
    pub(crate) fn busy(&self) -> u8 {
        self.status.busy.get()
    }

    /// Adds the result of a dispatch to the average. One writer at a time.
    #[inline]
    pub(crate) fn note_busy(&self, busy: bool) {
        self.status.busy.note(busy);
    }

    /// Returns whether requests that the device refused wait in the pump.
    #[inline]
    pub(crate) fn is_stuck(&self) -> bool {
        self.status.stuck.load(Ordering::Acquire)
    }

    pub(crate) fn set_stuck(&self, stuck: bool) {
        if self.is_stuck() != stuck {
            self.status.stuck.store(stuck, Ordering::Release);
        }
    }

    /// Returns whether requests wait in the outbox. A hint: a pump may be about to take them.
    #[inline]
    pub(crate) fn has_sent(&self) -> bool {
        self.level.waits()
    }

    /// Returns whether the device holds requests, so that a check may find completions, although no thread needs to
    /// stay awake for it. A hint: a sleeping thread watches the device's descriptor in any case.
    #[inline]
    pub(crate) fn signals(&self) -> bool {
        self.status.signals.load(Ordering::Relaxed)
    }

    pub(crate) fn set_signals(&self, signals: bool) {
        if self.signals() != signals {
            self.status.signals.store(signals, Ordering::Relaxed);
        }
    }

    /// The time at which the pump next has work without a kick: an event of the device, or a timeout of a request
    /// there. `None` for never.
    #[inline]
    pub(crate) fn next_event(&self) -> Option<Instant> {
        match self.status.next_event.load(Ordering::Acquire) {
            u64::MAX => None,
            ns => Some(Instant::from_nanos(ns)),
        }
    }

    pub(crate) fn set_next_event(&self, at: Option<Instant>) {
        let ns = at.map_or(u64::MAX, Instant::as_nanos);
        if self.status.next_event.load(Ordering::Relaxed) != ns {
            self.status.next_event.store(ns, Ordering::Release);
        }
    }
}

/// Kicks, timers and wake-ups that have yet to be carried out.
#[derive(Default)]
pub(crate) struct Duties {
    /// Whether any of the fields below is set.
    any: bool,
    /// Another pass or turn is needed.
    again: bool,
    /// Another pass or turn is needed no later than this.
    at: Option<Instant>,
    /// Another turn is needed at this time, like the kernel's delayed run.
    later: Option<Instant>,
    /// Elevators for which a resource was released.
    kicks: Vec<u16>,
    /// Parked submitters with completions, to be woken once the run is released.
    wakes: Vec<SubmitterId>,
}

impl Duties {
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any
    }

    /// Requests another pass or turn.
    pub(crate) fn again(&mut self) {
        self.any = true;
        self.again = true;
    }

    /// Requests another pass or turn no later than `at`.
    pub(crate) fn arm(&mut self, at: Instant) {
        self.any = true;
        self.at = Some(self.at.map_or(at, |other| other.min(at)));
    }

    /// Requests another turn at `at`.
    pub(crate) fn run_later(&mut self, at: Instant) {
        self.any = true;
        self.later = Some(at);
    }

    /// Requests a pass over the elevator `shard`.
    pub(crate) fn kick(&mut self, shard: u16) {
        self.any = true;
        self.kicks.push(shard);
    }

    /// Requests that parked submitters be woken. Takes them out of `ids`.
    #[inline]
    pub(crate) fn wake(&mut self, ids: &mut Vec<SubmitterId>) {
        if !ids.is_empty() {
            self.any = true;
            self.wakes.append(ids);
        }
    }

    /// Takes the duties for the same elevator or pump: whether another pass or turn is needed, no later than when, and
    /// at which time.
    pub(crate) fn take_own(&mut self) -> (bool, Option<Instant>, Option<Instant>) {
        self.any = false;
        (std::mem::take(&mut self.again), self.at.take(), self.later.take())
    }

    /// Takes the elevators to be kicked.
    pub(crate) fn take_kicks(&mut self, kick: impl FnMut(u16)) {
        self.kicks.drain(..).for_each(kick);
    }

    /// Takes the submitters to be woken.
    pub(crate) fn take_wakes(&mut self, into: &mut Vec<SubmitterId>) {
        into.append(&mut self.wakes);
    }
}

/// A small set of hardware queues; it rarely holds more than a few.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ready {
    few: [u16; 4],
    len: u8,
    /// More than fit in `few`: all hardware queues of the shard must be checked.
    many: bool,
}

impl Ready {
    /// Adds the hardware queues in `other`.
    #[inline]
    pub(crate) fn merge(&mut self, other: Self) {
        if self.len == 0 {
            *self = Self { many: self.many | other.many, ..other };
            return;
        }
        self.many |= other.many;
        for hw in &other.few[..other.len.into()] {
            self.add(HwQueue(*hw));
        }
    }

    #[inline]
    pub(crate) fn add(&mut self, hw: HwQueue) {
        if self.few[..self.len.into()].contains(&hw.0) {
            return;
        }
        match self.few.get_mut(usize::from(self.len)) {
            Some(place) => {
                *place = hw.0;
                self.len += 1;
            }
            None => self.many = true,
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The hardware queues to pump; `all` are those of the shard.
    #[inline]
    pub(crate) fn iter(self, all: std::ops::Range<u16>) -> impl Iterator<Item = HwQueue> {
        let Self { few, len, many } = self;
        let mut left = if many { all } else { 0..u16::from(len) };
        std::iter::from_fn(move || {
            let next = left.next()?;
            let hw = if many { next } else { few[usize::from(next) % few.len()] };
            Some(HwQueue(hw))
        })
    }
}

/// The most queues that can share a set of tags.
pub const MAX_TAG_USERS: u16 = 256;

/// A set of driver tags for several queues, each of which may have its fair share (`spec/framework.md` section 3.1):
/// with five busy queues and 32 tags, seven each. Queues that have used no tag for a while are not counted. All clones
/// share one set.
///
/// Pass it to each queue by [`Config::tags`](crate::Config::tags). All hardware queues of all these queues take their
/// tags from this set, so no two requests at their devices have the same tag.
#[derive(Clone)]
pub struct SharedTags(Arc<Set>);

struct Set {
    tags: Arc<TagSet>,
    seats: Mutex<Vec<Seat>>,
    /// Queues that must be kicked because tags were returned.
    owed: Pending,
}

/// The place of one queue in the set.
enum Seat {
    Free,
    /// Reserved for a queue that is being built.
    Reserved,
    Taken(Weak<dyn Member>),
}

/// A queue as seen by the other queues that share its tags.
pub(crate) trait Member: Send + Sync {
    /// Notifies the queue that tags were returned for which it has registered.
    fn tags_came_back(&self);
}

impl fmt::Debug for SharedTags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedTags").field("depth", &self.depth()).finish_non_exhaustive()
    }
}

impl PartialEq for SharedTags {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl SharedTags {
    /// A set of `depth` tags for up to `queues` queues at a time.
    ///
    /// # Panics
    /// If the depth is 0 or above [`MAX_HW_QUEUE_DEPTH`](crate::MAX_HW_QUEUE_DEPTH), or there are no queues or more
    /// than [`MAX_TAG_USERS`].
    #[must_use]
    pub fn new(depth: u32, queues: u16) -> Self {
        assert!((1..=crate::MAX_HW_QUEUE_DEPTH).contains(&depth), "{depth} is no number of tags");
        assert!((1..=MAX_TAG_USERS).contains(&queues), "{queues} is no number of queues");
        let shape = TagSetShape { users: queues, ..TagSetShape::new(depth, queues) };
        Self(Arc::new(Set {
            tags: Arc::new(TagSet::new(&shape)),
            seats: Mutex::new((0..queues).map(|_| Seat::Free).collect()),
            owed: Pending::new(queues),
        }))
    }

    /// The number of tags.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.0.tags.depth()
    }

    /// The number of tags in use by all queues.
    #[must_use]
    pub fn in_use(&self) -> u32 {
        self.0.tags.in_use()
    }

    /// The number of tags that each counted queue may have at present; `None` while no queue is counted.
    #[must_use]
    pub fn share(&self) -> Option<u32> {
        self.0.tags.fair_share().and_then(FairShare::limit)
    }

    fn seats(&self) -> MutexGuard<'_, Vec<Seat>> {
        self.0.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a place for a queue; `None` if none is free.
    pub(crate) fn reserve(&self) -> Option<Membership> {
        let mut seats = self.seats();
        let user = seats.iter().position(|seat| matches!(seat, Seat::Free))?;
        seats[user] = Seat::Reserved;
        // At most 256.
        Some(Membership { tags: self.clone(), user: user as u16 })
    }

    /// The number of further queues that can join.
    #[must_use]
    pub fn room(&self) -> usize {
        self.seats().iter().filter(|seat| matches!(seat, Seat::Free)).count()
    }

    /// Kicks the queues that must be kicked. The caller holds no run and no lock.
    fn call(&self) {
        self.0.owed.take(|user| {
            let member = match &self.seats()[usize::from(user)] {
                Seat::Taken(member) => member.upgrade(),
                Seat::Free | Seat::Reserved => None,
            };
            if let Some(member) = member {
                member.tags_came_back();
            }
        });
    }
}

/// A queue's place in a shared set, which becomes free when this is dropped.
pub(crate) struct Membership {
    pub(crate) tags: SharedTags,
    pub(crate) user: u16,
}

impl Membership {
    /// Connects the place to the queue, which has been built and may be kicked.
    pub(crate) fn take(&self, queue: Weak<dyn Member>) {
        self.tags.seats()[usize::from(self.user)] = Seat::Taken(queue);
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.tags.seats()[usize::from(self.user)] = Seat::Free;
        let Set { tags, owed, .. } = &*self.tags.0;
        tags.deactivate(self.user, &mut |user| owed.set(user));
        self.tags.call();
    }
}

/// The driver tags of a hardware queue: a set of its own, a set for all hardware queues of its queue, or a set for
/// several queues ([`SharedTags`]), as the disks behind one host adapter share its commands.
///
/// An elevator that finds no tag registers, and is kicked when tags are returned. Where several queues share a set, the
/// queue registers with the set, and its elevators register with the queue. A queue that returns tags may have to kick
/// another queue; like every call out of the engine, it does so while it holds no run and no lock.
#[derive(Clone)]
pub(crate) struct Tags {
    set: Arc<TagSet>,
    among: Among,
}

/// The other users of the same set.
#[derive(Clone)]
enum Among {
    /// No other user.
    Undivided,
    /// The other hardware queues of the queue; elevators register by their numbers.
    Hctxs,
    /// Other queues; the number of this queue is `user`.
    Queues { tags: SharedTags, user: u16 },
}

impl Tags {
    /// Tags of one hardware queue, or of all if they share one set.
    pub(crate) fn new(depth: u32, shards: u16, shared: bool) -> Self {
        let set = Arc::new(TagSet::new(&TagSetShape::new(depth, shards)));
        Self { set, among: if shared { Among::Hctxs } else { Among::Undivided } }
    }

    /// Tags of a set that other queues use too.
    pub(crate) fn of(tags: &SharedTags, user: u16) -> Self {
        Self { set: Arc::clone(&tags.0.tags), among: Among::Queues { tags: tags.clone(), user } }
    }

    /// Tags in use by this hardware queue and the others that share its tags. For a set of several queues, the tags
    /// that this queue holds.
    pub(crate) fn in_use(&self) -> u32 {
        match &self.among {
            Among::Undivided | Among::Hctxs => self.set.in_use(),
            Among::Queues { user, .. } => {
                self.set.fair_share().expect("they are divided").held(*user)
            }
        }
    }

    /// Takes a tag. The search starts at `hint`, where the last tag was found.
    #[inline]
    pub(crate) fn get(&self, hint: &mut u32) -> Option<Tag> {
        match &self.among {
            Among::Undivided | Among::Hctxs => self.set.get(hint),
            Among::Queues { .. } => self.get_batch(hint, 1)?.pop(),
        }
    }

    /// Takes up to `want` tags. The search starts at `hint`, where the last tags were found.
    #[inline]
    pub(crate) fn get_batch(&self, hint: &mut u32, want: u32) -> Option<TagBatch> {
        match &self.among {
            Among::Undivided | Among::Hctxs => self.set.get_batch(hint, want),
            Among::Queues { user, .. } => self.set.get_batch_for(*user, hint, want),
        }
    }

    /// Registers the elevator `shard` to be kicked when tags are returned: in the set, or in `waiting` if other queues
    /// use the set too. The caller must try once more afterwards.
    #[cold]
    pub(crate) fn wait(&self, shard: u16, waiting: &Pending, now: Instant) {
        match &self.among {
            Among::Undivided => {}
            Among::Hctxs => self.set.wait(shard),
            Among::Queues { tags, user } => {
                waiting.set(shard);
                self.set.wait(*user);
                // Perhaps only this queue's share is used up, while idle queues leave theirs unused.
                self.set.deactivate_idle(now, &mut |user| tags.0.owed.set(user));
            }
        }
    }

    /// Returns tags. `waiting` has the elevators of this queue that wait for tags shared with other queues.
    #[inline]
    pub(crate) fn put(&self, back: &[Tag], waiting: &Pending, duties: &mut Duties) {
        match &self.among {
            Among::Undivided | Among::Hctxs => self.set.put(back, &mut |shard| duties.kick(shard)),
            Among::Queues { tags, user } => self.set.put(back, &mut |other| {
                if other == *user {
                    waiting.take(|shard| duties.kick(shard));
                } else {
                    tags.0.owed.set(other);
                }
            }),
        }
    }

    /// Returns the tag of a request that was at the device when its queue ended.
    pub(crate) fn put_abandoned(&self, back: Tag) {
        if let Among::Queues { tags, .. } = &self.among {
            self.set.put(&[back], &mut |other| tags.0.owed.set(other));
        }
    }

    /// Kicks other queues, if any must be kicked.
    #[inline]
    pub(crate) fn call_others(&self) {
        if let Among::Queues { tags, .. } = &self.among
            && tags.0.owed.any()
        {
            tags.call();
        }
    }
}

/// The purpose of an issued request, which decides how its completion is handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Way {
    /// An ordinary request: its bios end with it.
    Plain = 0,
    /// The data step of a sequence.
    Data = 1,
    /// A flush, issued on behalf of the first request that it serves.
    Flush = 2,
}

/// A request on its way to, at, or on its way back from a device.
///
/// Not `Clone`, and consumed by every call that ends it, so a request cannot be answered twice. Dropping one is a bug
/// and panics: the client of a request without an answer would wait for ever.
///
/// `Send`, and not `Sync`: a device may hand a request to another thread, but two threads that shared one would share
/// its payloads, which are only `Send`.
///
/// ```compile_fail
/// fn shared<T: Sync>() {}
/// shared::<blkmq_engine::Inflight>();
/// ```
#[must_use]
#[derive(Debug)]
#[repr(C, align(16))]
pub struct Inflight {
    /// `None` only while the token is being dismantled.
    head: Option<Bio>,
    pub(crate) sector: u64,
    pub(crate) issued: Instant,
    pub(crate) sectors: u32,
    pub(crate) id: RequestId,
    pub(crate) tag: Tag,
    pub(crate) bios: u32,
    pub(crate) hw: HwQueue,
    pub(crate) segments: u16,
    /// An index into `OPS` and not an [`Op`]: see below.
    op: u8,
    pub(crate) flags: IoFlags,
    /// An index into `WAYS` in the lower two bits. The bits above hold the pool of its token plus one, or 0 for no
    /// token; the highest bit says that it has a budget.
    way: u8,
    /// The number of retries after an error.
    pub(crate) retries: u8,
    _not_sync: PhantomData<Cell<()>>,
}

// A token is passed by value through the outbox and back: three aligned moves of 16 bytes. If a field had an unused
// value (`Op` has many), the compiler would use it to mark `None` and leave out padding. The token would then be copied
// in overlapping parts, and reading those back stalls on the store buffer.
const _: () = assert!(size_of::<Inflight>() == 48 && size_of::<Option<Inflight>>() == 64);

/// Indexed by discriminant.
const OPS: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];
/// Indexed by discriminant.
const WAYS: [Way; 3] = [Way::Plain, Way::Data, Way::Flush];

/// The part of `Inflight::way` that is an index into `WAYS`.
const WAY_BITS: u32 = 2;
const WAY_MASK: u8 = (1 << WAY_BITS) - 1;
/// The part of `Inflight::way` that says whether it has a budget.
const BUDGET: u8 = 1 << 7;

/// The bios of a request, and the state that must survive when its token is dismantled and made again.
pub(crate) struct Chain {
    pub(crate) head: Bio,
    pub(crate) bios: u32,
    /// The number of retries after an error.
    pub(crate) retries: u8,
}

/// A request that returns to its elevator whole, because it has not ended: the device wants it back later, it is to be
/// retried after an error, or it is a step of a flush sequence.
#[derive(Debug)]
pub(crate) struct Handback {
    pub(crate) rq: Inflight,
    pub(crate) verdict: Verdict,
    /// The time at which the pump took it back.
    pub(crate) at: Instant,
}

impl Inflight {
    #[inline]
    pub(crate) fn new(
        chain: Chain,
        id: RequestId,
        tag: Tag,
        hw: HwQueue,
        now: Instant,
        meta: &IoMeta,
        pool: Option<u8>,
    ) -> Self {
        debug_assert!(pool.is_none_or(|pool| pool < 31), "five bits for a pool");
        Self {
            head: Some(chain.head),
            sector: meta.sector,
            issued: now,
            sectors: meta.sectors,
            id,
            tag,
            bios: chain.bios,
            hw,
            segments: meta.segments,
            op: meta.op as u8,
            flags: meta.flags,
            way: Way::Plain as u8 | pool.map_or(0, |pool| pool + 1) << WAY_BITS,
            retries: chain.retries,
            _not_sync: PhantomData,
        }
    }

    /// The data step of a flush sequence.
    pub(crate) fn into_data_step(mut self) -> Self {
        self.set_way(Way::Data);
        self
    }

    /// A flush of the device on behalf of this request: with its slot and tag, but without its data.
    pub(crate) fn into_flush(mut self) -> Self {
        self.set_way(Way::Flush);
        self.op = Op::Flush as u8;
        self.flags = IoFlags::NONE;
        (self.sector, self.sectors, self.segments, self.bios) = (0, 0, 0, 0);
        self
    }

    fn set_way(&mut self, way: Way) {
        self.way = self.way & !WAY_MASK | way as u8;
    }

    /// The request's number, as policies know it.
    #[must_use]
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The purpose of the request.
    pub(crate) fn way(&self) -> Way {
        WAYS[usize::from(self.way & WAY_MASK)]
    }

    /// Adds a budget, if `has`.
    #[inline]
    pub(crate) fn with_budget(mut self, has: bool) -> Self {
        self.way |= if has { BUDGET } else { 0 };
        self
    }

    /// Returns whether the request has a token or a budget, to be returned with it.
    #[inline]
    pub(crate) fn has_more_than_a_tag(&self) -> bool {
        self.way > WAY_MASK
    }

    /// The pool of the request's token; `None` without a token.
    #[inline]
    pub(crate) fn pool(&self) -> Option<u8> {
        ((self.way & !BUDGET) >> WAY_BITS).checked_sub(1)
    }

    /// Returns whether the request has a budget.
    #[inline]
    pub(crate) fn has_budget(&self) -> bool {
        self.way & BUDGET != 0
    }

    /// Returns whether the request returns to its elevator when it is done, instead of its bios to their submitters.
    #[inline]
    pub(crate) fn is_step(&self) -> bool {
        self.way & WAY_MASK != Way::Plain as u8
    }

    /// First sector.
    #[must_use]
    pub fn sector(&self) -> u64 {
        self.sector
    }

    /// Length in sectors. For a discard of several ranges, their sum.
    #[must_use]
    pub fn sectors(&self) -> u32 {
        self.sectors
    }

    /// The operation.
    #[must_use]
    pub fn op(&self) -> Op {
        OPS[usize::from(self.op)]
    }

    /// The flags. Never [`IoFlags::PREFLUSH`]; [`IoFlags::FUA`] only if the device supports it.
    #[must_use]
    pub fn flags(&self) -> IoFlags {
        self.flags
    }

    /// The driver tag, below the device's `hw_queue_depth`.
    #[must_use]
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// The hardware queue to which the request was issued.
    #[must_use]
    pub fn hw(&self) -> HwQueue {
        self.hw
    }

    /// Scatter-gather segments, or ranges for a discard.
    #[must_use]
    pub fn segments(&self) -> u16 {
        self.segments
    }

    /// The number of bios merged into the request: 0 for a flush, which may serve several requests, and at least 1
    /// otherwise.
    #[must_use]
    pub fn bio_count(&self) -> u32 {
        self.bios
    }

    /// The number of retries after an error, without requeues by the device.
    #[must_use]
    pub fn retries(&self) -> u8 {
        self.retries
    }

    /// The bios in ascending order of sectors, with their payloads.
    pub fn bios<'a, P>(
        &'a self,
        table: &'a BioTable<P>,
    ) -> impl Iterator<Item = BioRef<'a, P>> + 'a {
        let all = table.iter(self.head.as_ref().expect("an inflight request has its bios"));
        // A flush is issued on behalf of a request, but without that request's bios.
        all.take(self.bios as usize)
    }

    /// The leading bios that have one owner.
    pub(crate) fn first_run<P>(&self, table: &BioTable<P>) -> Run {
        table.first_run(self.head.as_ref().expect("an inflight request has its bios"))
    }

    /// Cuts the request down to its first run, which begins at `sector`. Returns the bios behind it.
    pub(crate) fn cut<P>(
        mut self,
        table: &BioTable<P>,
        sector: u64,
        run: Run,
        segments: u16,
    ) -> (Self, Option<(Bio, u32)>) {
        let head = self.head.take().expect("an inflight request has its bios");
        let (front, rest) = table.split_at(head, run.bios);
        let behind = self.bios - run.bios;
        self.head = Some(front);
        (self.sector, self.sectors, self.segments, self.bios) =
            (sector, run.sectors, segments, run.bios);
        (self, rest.map(|rest| (rest, behind)))
    }

    /// Replaces the bios; returns the old ones.
    pub(crate) fn with_head(mut self, (head, bios): (Bio, u32)) -> (Self, Bio) {
        self.bios = bios;
        let old = self.head.replace(head);
        (self, old.expect("an inflight request has its bios"))
    }

    /// Takes the bios out; the rest may be dropped.
    #[inline]
    pub(crate) fn into_head(mut self) -> Bio {
        self.head.take().expect("an inflight request has its bios")
    }

    /// Like [`into_head`](Self::into_head), but with the state that belongs to the bios.
    pub(crate) fn into_chain(self) -> Chain {
        let (bios, retries) = (self.bios, self.retries);
        Chain { head: self.into_head(), bios, retries }
    }
}

impl Drop for Inflight {
    #[inline]
    fn drop(&mut self) {
        if let Some(head) = self.head.take() {
            self.dropped(head);
        }
    }
}

impl Inflight {
    #[cold]
    fn dropped(&self, head: Bio) {
        // For a flush too: the request for which it was issued has no other token.
        head.orphan();
        // During unwinding, a second panic would abort and hide the first.
        assert!(
            std::thread::panicking(),
            "request {:?} (tag {}) was dropped instead of being answered",
            self.id,
            self.tag.0
        );
    }
}

/// The outcome of a request at the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Finished, with success or an error.
    Done(IoResult),
    /// The device wants the request back later: the request loses its driver tag and goes to the head of the scheduler.
    Requeue,
    /// The device wants the same request back later: the request keeps its tag, bypasses the scheduler, and waits
    /// behind the requests that already wait in the hardware queue. It is offered again at the next turn of the pump,
    /// for example after a completion, and after 3 ms at the latest.
    RequeueTail,
}

/// The content of a plug or a staging ring: a request without a slot, of one bio or several that merged in a plug. It
/// has its own cache line, because staging moves it from one core to another.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct PluggedRequest {
    pub(crate) meta: IoMeta,
    pub(crate) bio: Bio,
    pub(crate) bios: u32,
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn s16_05_ewma_rises_and_decays_as_specified() {
        let busy = DispatchBusy::default();
        let mut up = vec![busy.get()];
        for _ in 0..9 {
            busy.note(true);
            up.push(busy.get());
        }
        assert_eq!(up, [0, 2, 3, 4, 5, 6, 7, 8, 9, 9]);
        let mut down = Vec::new();
        for _ in 0..8 {
            busy.note(false);
            down.push(busy.get());
        }
        assert_eq!(down, [7, 6, 5, 4, 3, 2, 1, 0]);
        busy.note(false);
        assert_eq!(busy.get(), 0);
    }
}
