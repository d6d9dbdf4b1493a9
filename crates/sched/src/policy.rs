//! The contract between the engine and a policy, with the environment of a policy: its dimensions, the table of
//! requests, the tokens, counters and values that its instances share, and the receiver of notes about groups.
//!
//! The instances of a policy, one per hardware queue, cannot bound the requests in the device as a whole, or learn from
//! all of them. So the engine keeps the shared state: token pools, counters that the instances add to, and values that
//! they read. A [`Governor`], one for all instances, reviews the counters from time to time and sets tokens and values.
//! The engine shares this state between threads. To a policy these are plain calls, and two runs with the same answers
//! behave the same.
//!
//! The slots of [`Requests`] are the scheduler tags, `nr_requests` per hardware queue. Policies get `&Requests`; the
//! mutators take `&mut self`, which a policy never gets.

use crate::{About, Attribute, Capacity, Event, GroupChange, Note, Options, Tallies};
use alloc::boxed::Box;
use alloc::vec::Vec;
use blkmq_core::{HwQueue, Instant, IoMeta, IoResult, Nanos, Op, Owner, RequestId};
use core::cell::RefCell;
use core::fmt;

/// The context passed to a policy on every call.
#[derive(Clone, Copy)]
pub struct Cx<'a> {
    /// Never earlier than in the previous call.
    pub now: Instant,
    /// The requests, by id. Read-only: only the engine changes them.
    pub requests: &'a Requests,
    /// State shared with other instances, and the receiver of notes.
    pub env: &'a dyn PolicyEnv,
    /// The level of detail of notes about groups.
    pub stats: StatsLevel,
    /// Tallies that sum notes, if there are any.
    sums: Option<&'a RefCell<Tallies>>,
}

impl<'a> Cx<'a> {
    /// A context for the time `now`.
    #[inline]
    pub fn new(now: Instant, requests: &'a Requests, env: &'a impl PolicyEnv) -> Self {
        Self { now, requests, env, stats: env.stats(), sums: env.sums() }
    }

    /// This context with another environment, which sees the policy's questions and notes. It does not see notes
    /// that are summed in tallies.
    #[must_use]
    pub fn through<'b>(&self, env: &'b dyn PolicyEnv) -> Cx<'b>
    where
        'a: 'b,
    {
        Cx { env, ..*self }
    }

    /// Notes an event of a group.
    // Always inline: the event is known at the caller, so the call becomes a few additions. As a call, with the note in
    // memory, it takes 11 % of the samples of a profile of bfq.
    #[inline(always)]
    pub fn note(&self, about: About, what: Event) {
        match self.sums {
            Some(sums) => sums.borrow_mut().add(about, what),
            None => self.note_in_env(&Note { about, what }),
        }
    }

    #[inline(never)]
    fn note_in_env(&self, note: &Note) {
        self.env.note(note);
    }
}

impl fmt::Debug for Cx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cx").field("now", &self.now).finish_non_exhaustive()
    }
}

/// The most requests that [`Scheduler::admit`] is given.
pub const PLUG: usize = 16;

/// New requests that come together to a policy that holds none, for [`Scheduler::admit`].
#[derive(Clone, Copy, Debug)]
pub struct Fresh<'a> {
    /// The requests, in the order of submission: at least one, at most [`PLUG`]. Several are all reads or all writes.
    pub rqs: &'a [RequestId],
    /// The hardware queue that they leave by.
    pub hw: HwQueue,
    /// Scheduler tags in use without those of these requests, if the requests are to be issued together or refused: a
    /// policy that [limits slots](Facts::limits_slots) also decides whether they may have their slots. `None` for a
    /// single request that [`admits`](Scheduler::admits) has allowed, and that may be held.
    pub used: Option<Used>,
}

/// The answer to [`Scheduler::admit`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// All requests are issued, in the order that was written.
    Issued,
    /// The only request, which came without [`Fresh::used`], is held, and a pick has this answer, which is not
    /// [`Pick::Issue`].
    Held(Pick),
    /// Nothing has changed. Each request is to be inserted, and picked in its turn.
    Refused,
}

impl Admission {
    /// The admission of `rq`, which was inserted into a policy that held none, by the pick after that.
    ///
    /// # Panics
    /// If another request was picked.
    #[inline]
    #[must_use]
    pub fn of_one(rq: RequestId, pick: Pick) -> Self {
        match pick {
            Pick::Issue(picked) => {
                assert!(picked == rq, "a policy that held none picked {picked:?} and not {rq:?}");
                Self::Issued
            }
            wait => Self::Held(wait),
        }
    }

    /// The admission of requests that are all issued, or else refused.
    #[inline]
    #[must_use]
    pub fn of_all(are_issued: bool) -> Self {
        if are_issued { Self::Issued } else { Self::Refused }
    }
}

/// The position at which a request is inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// Ahead of all requests of all classes: for requeues and flush sequences. Such a request is not mergeable.
    Head,
    /// At the position that the policy chooses.
    Tail,
}

/// The edge at which a held request grew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grown {
    /// At its end; its start is unchanged.
    Back,
    /// At its start, which was `old_sector`. The metadata already has the new one.
    Front {
        /// The sector under which the policy may still have filed it.
        old_sector: u64,
    },
    /// A discard took in a range that need not be adjacent; start and end may be unchanged.
    Discard,
}

/// The answer to "what next for this hardware queue?". Each negative answer also says when to ask again, so that a
/// policy cannot express "has work, but need not be asked again".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pick {
    /// Issue this request. The policy ceases to hold it.
    Issue(RequestId),
    /// Nothing is held. Ask after the next insert.
    Empty,
    /// Requests are held back on purpose (idling, pacing). Ask at that time, or after the next insert or completion.
    WaitUntil(Instant),
    /// Requests are held back until a request in flight completes.
    WaitCompletion,
    /// Requests are held back until a token is returned that [`take`](PolicyEnv::take) has refused in this call.
    WaitToken,
}

/// A request that has finished at the device. Its metadata is readable in [`Cx::requests`] during the call
/// and gone afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// The request.
    pub rq: RequestId,
    /// Its result.
    pub result: IoResult,
    /// The time at which it left the elevator for the device.
    pub issued: Instant,
    /// The time at which its completion was found at the device.
    pub completed: Instant,
}

/// Scheduler tags of one hardware queue that are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Used {
    /// The number of tags (`nr_requests`).
    pub of: u32,
    /// All tags in use.
    pub all: u32,
    /// Tags in use by all I/O except sync reads.
    pub limited: u32,
    /// Tags in use by I/O without [`SYNC`](blkmq_core::IoFlags::SYNC).
    pub unsynced: u32,
}

/// Whether requests may pass a policy by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bypass {
    /// Each request is inserted and picked.
    Never,
    /// While the policy holds none, requests may go to the device without being inserted and picked. The policy is
    /// notified of neither these requests nor any completion.
    Untold,
    /// Like [`Untold`](Self::Untold), but the policy is notified of each request ([`Scheduler::passed`]), and of each
    /// completion.
    Told,
}

/// Properties of a policy, with the attributes that it has at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "properties that do not depend on each other")]
pub struct Facts {
    /// The engine looks for I/Os that end where a held request starts. It always looks for back merges. Default: true.
    pub front_merges: bool,
    /// The most slots (scheduler tags) of a hardware queue that I/O other than sync reads may hold, so that it cannot
    /// starve the rest (`async_depth`). `None`: any number.
    pub async_depth: Option<u32>,
    /// The policy decides about each slot ([`Scheduler::admits`]).
    pub limits_slots: bool,
    /// The policy shares by group. I/O that waits for a slot is then chosen by group, too: a free slot goes to the
    /// group that has the fewest for its weight.
    pub shares_by_group: bool,
    /// The policy notes events of groups ([`Cx::note`]). Otherwise the engine counts the events of
    /// [`StatsLevel::Basic`].
    pub notes_groups: bool,
    /// The policy bounds the requests in the device. Without a bound, requests wait in a device with a deep queue,
    /// where no floor helps them.
    pub bounds_device: bool,
    /// The policy has its own way for several [`Fresh`] requests. Otherwise [`Scheduler::admit`] is given single ones.
    pub takes_plugs: bool,
    /// The capacity by which the policy keeps floors of groups; `None` if it keeps none.
    pub capacity: Option<Capacity>,
    /// Whether requests may pass the policy by while it holds none. For a policy that issues requests in the order of
    /// their insertion, and does nothing else. Such a request counts as issued, and may be inserted with [`At::Head`].
    pub bypass: Bypass,
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            front_merges: true,
            async_depth: None,
            limits_slots: false,
            shares_by_group: false,
            notes_groups: false,
            bounds_device: false,
            takes_plugs: false,
            capacity: None,
            bypass: Bypass::Never,
        }
    }
}

/// An I/O scheduling policy: a plain state machine.
///
/// It is called by one thread at a time and receives the time. It owns no clock, thread, lock or random source, and
/// never blocks. The same calls in the same order get the same answers; the laboratory replays recorded calls and
/// relies on this.
///
/// # Contract
///
/// A request is *held* from [`insert`](Self::insert) until [`pick`](Self::pick) returns it,
/// [`withdraw`](Self::withdraw) takes it back, or [`absorbed`](Self::absorbed) reports that it was fused into
/// another; exactly one of these happens, once. It is *issued* from `pick` until [`completed`](Self::completed). An
/// issued request may be inserted again, always with [`At::Head`], without a `completed` in between: that is a
/// requeue, and the policy undoes its charges for it (tokens, service).
///
/// `pick` does not say [`Pick::Empty`] while anything is held. Every held request is picked within a bound
/// that the policy's page states, as long as `pick` is called and issued requests complete. Each call does
/// at most O(log held) work and allocates nothing. Ids are reused: after `completed`, `withdraw` or
/// `absorbed` the slot's next request has another generation.
pub trait Scheduler: Send {
    /// The properties of the policy. The engine asks after creation, after each change of an attribute, and after
    /// [`release`](Self::release).
    fn facts(&self) -> Facts {
        Facts::default()
    }

    /// Insert `rq`.
    fn insert(&mut self, cx: &Cx<'_>, rq: RequestId, at: At);

    /// Choose a request for `hw`, which has a tag free. Called repeatedly to fill a batch. A policy with
    /// [`Scope::Queue`] may return a request whose submitter maps to another hardware queue.
    fn pick(&mut self, cx: &Cx<'_>, hw: HwQueue) -> Pick;

    /// Inserts new requests at the tail of a policy that holds none, in this order, and picks until none is held. For
    /// each pick, the position of the request in `fresh` is written to `order`, which has as many places.
    ///
    /// A policy has this method if it needs fewer steps for all of that together. The decisions and the state
    /// afterwards are the same. It may refuse any requests, which are then inserted and picked one after the other. It
    /// has to refuse several if it would not give all of them slots and tokens. Tokens for several come from
    /// [`take_all`](PolicyEnv::take_all). Several are given only to a policy that [takes plugs](Facts::takes_plugs).
    #[inline]
    fn admit(&mut self, _cx: &Cx<'_>, _fresh: &Fresh<'_>, _order: &mut [u8]) -> Admission {
        Admission::Refused
    }

    /// `rq` has passed the policy by and is issued on `hw`: as if it had been inserted with [`At::Tail`] and picked.
    /// For a policy with [`Bypass::Told`].
    fn passed(&mut self, _cx: &Cx<'_>, _rq: RequestId, _hw: HwQueue) {}

    /// An issued request has finished.
    fn completed(&mut self, cx: &Cx<'_>, done: &Done);

    /// The held request `rq` is taken back unconditionally: its submitter has given it up, or the device is dead. It
    /// ceases to be held, and its slot is freed after the call. Its metadata is still readable here.
    fn withdraw(&mut self, cx: &Cx<'_>, rq: RequestId);

    /// A held request was fused into another held one, whose metadata already covers both. `gone` ceases to be held,
    /// and its slot is freed after the call. Its metadata is still readable here. The better of the two places in line
    /// survives, for example the earlier deadline.
    fn absorbed(&mut self, cx: &Cx<'_>, into: RequestId, gone: RequestId);

    /// Report every counter and queue length, in a fixed order.
    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64));

    /// Returns whether `io` may join the held request `into`. Operation, group, priority, geometry and limits have been
    /// checked and fit. Owners may differ; the merged request keeps the owner of its first I/O.
    fn may_merge(&self, _cx: &Cx<'_>, _into: RequestId, _io: &IoMeta) -> bool {
        true
    }

    /// A held request has grown; its metadata already shows it.
    fn grown(&mut self, _cx: &Cx<'_>, _rq: RequestId, _edge: Grown) {}

    /// Returns whether `io`, which has not merged, may have a slot of its own. A slot is free, and
    /// [`async_depth`](Facts::async_depth) allows it. Refused I/Os wait outside, together with all later I/O of the
    /// same submitter, and are offered again when a slot becomes free. So an owner without a slot must not be refused
    /// for ever. Called only for a policy that [limits slots](Facts::limits_slots).
    fn admits(&self, _cx: &Cx<'_>, _io: &IoMeta, _used: Used) -> bool {
        true
    }

    /// The device time that the policy charged for `rq`, which has just completed; `None` if it charges none. The
    /// floors of groups are judged by it, in the device time of [`capacity`](Facts::capacity).
    fn charged(&self, _rq: RequestId) -> Option<Nanos> {
        None
    }

    /// The tree of groups has changed. Policies that do not share by group may ignore it.
    fn regroup(&mut self, _cx: &Cx<'_>, _change: GroupChange) {}

    /// No I/O of this owner will arrive for a long time, if ever: the policy may forget its state. This is a hint,
    /// which may be premature, and which a policy must not need. The engine does not give it, because any submitter may
    /// name any owner at any time. Programs that drive a policy without the engine may know more.
    fn owner_gone(&mut self, _cx: &Cx<'_>, _owner: Owner) {}

    /// The current value of an attribute of the policy's [`Factory`]; `None` if it has no such attribute.
    fn attribute(&self, _name: &str) -> Option<i64> {
        None
    }

    /// Change an attribute. The engine has clamped `value` to the attribute's range. Returns false if there
    /// is no such attribute.
    fn set_attribute(&mut self, _name: &str, _value: i64) -> bool {
        false
    }

    /// Releases the policy that this one wraps as an observer. The engine continues with that one, and drops this.
    /// `None` for a policy that is no wrapper, or that stays.
    fn release(&mut self) -> Option<Box<dyn Scheduler>> {
        None
    }
}

/// The number of instances of a policy in a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// One for the whole queue: one order for everything (mq-deadline, bfq).
    Queue,
    /// One per hardware queue; they share no order (none, kyber).
    HwQueue,
}

/// One line of the registry. All code that offers policies by name iterates over the lines.
pub struct Factory {
    /// The name, as in sysfs: `none`, `mq-deadline`.
    pub name: &'static str,
    /// One line for a list.
    pub summary: &'static str,
    /// The scope of the policy unless the user chooses another.
    pub scope: Scope,
    /// The attributes, with defaults and ranges.
    pub attributes: &'static [Attribute],
    /// The state that the instances share, if any.
    pub common: Option<Common>,
    /// Creates an instance. `options` has been checked against `attributes`.
    pub build: fn(&Shape, &Options) -> Box<dyn Scheduler>,
}

impl fmt::Debug for Factory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Factory").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The environment of a policy, passed to every call.
///
/// No method blocks or allocates, and each is O(1).
pub trait PolicyEnv {
    /// Takes a token of a pool, for the request that this [`pick`] is about to issue. The engine returns the token
    /// when the device returns that request, completed or to be tried again; or immediately, if `pick` issues no
    /// request.
    ///
    /// Returns false if there is none. The engine then asks the instance again when a token has been returned. Until
    /// then, the instance may answer [`WaitToken`]. To be called within [`pick`], until it succeeds.
    ///
    /// [`pick`]: crate::Scheduler::pick
    /// [`WaitToken`]: crate::Pick::WaitToken
    ///
    /// # Panics
    /// If the policy's [`Common`] has no such pool.
    fn take(&self, pool: usize) -> bool;

    /// Takes `n` tokens of a pool, one for each request of the plug that [`admit`] is about to issue; the
    /// policy then issues them all. The engine returns them one by one, as with [`take`](Self::take).
    ///
    /// Returns false and takes nothing if there are fewer, or if the environment gives out no tokens by the plug. The
    /// engine does not ask the instance again because of that.
    ///
    /// [`admit`]: crate::Scheduler::admit
    ///
    /// # Panics
    /// If the policy's [`Common`] has no such pool.
    fn take_all(&self, _pool: usize, _n: u32) -> bool {
        false
    }

    /// Adds one to a counter of this instance.
    ///
    /// # Panics
    /// If there is no such counter.
    fn count(&self, counter: usize);

    /// The value `index`, as the governor last published it.
    ///
    /// # Panics
    /// If there is no such value.
    fn value(&self, index: usize) -> u64;

    /// Asks for a review by the governor at `at`, unless one happens earlier anyway. It happens no later than on the
    /// first pass after that time.
    fn review_by(&self, at: Instant);

    /// Passes a note about a group to the statistics (see [`Note`]), without effect if statistics are off. Policies use
    /// [`Cx::note`](crate::Cx::note), which calls this only if there are no [`sums`](Self::sums).
    fn note(&self, note: &Note);

    /// The tallies that sum notes, which are then not passed one by one; `None` without tallies. Changes only with
    /// [`stats`](Self::stats).
    fn sums(&self) -> Option<&RefCell<Tallies>> {
        None
    }

    /// The level of detail of notes, so that a policy need not compute numbers that are not counted.
    fn stats(&self) -> StatsLevel;

    /// Returns whether the queue is frozen: no I/O arrives until all held requests have been picked and have completed.
    /// Idling for an arrival would only delay the thread that changes the queue.
    fn is_draining(&self) -> bool;
}

/// The level of detail of the statistics of groups.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum StatsLevel {
    /// Nothing.
    #[default]
    Off,
    /// I/Os, their bytes and times.
    Basic,
    /// All statistics that `spec/bfq.md` section 17 names.
    Full,
}

/// The part of a policy that its instances share. Like a policy, a plain state machine that receives the time.
pub trait Governor: Send {
    /// Reviews the counters. `grown` is the growth of each since the last review, over all instances. `tokens` is the
    /// size of each pool, and `values` are those that instances read. Both may be changed. Tokens that are taken stay
    /// taken: a pool that shrinks below that number gives none until enough have been returned.
    fn review(&mut self, now: Instant, grown: &[u64], tokens: &mut [u32], values: &mut [u64]);

    /// Change an attribute, as in [`Scheduler::set_attribute`](crate::Scheduler::set_attribute); the instances are
    /// notified as well. Also called once for every attribute, with its value, before the first review.
    fn set_attribute(&mut self, name: &str, value: i64, tokens: &mut [u32], values: &mut [u64]);

    /// Report every number that affects tokens and values, in a fixed order.
    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64));
}

/// The state that the instances of a policy share.
#[derive(Clone, Copy)]
pub struct Common {
    /// The initial number of tokens of each pool.
    pub tokens: &'static [u32],
    /// The number of counters of each instance.
    pub counters: usize,
    /// The number of values that the governor publishes; each is 0 at first.
    pub values: usize,
    /// Creates the governor.
    pub governor: fn(&Shape, &Options) -> Box<dyn Governor>,
}

/// The environment of a policy without shared state, and without statistics.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoEnv;

impl PolicyEnv for NoEnv {
    fn take(&self, pool: usize) -> bool {
        panic!("a policy without pools takes from pool {pool}")
    }

    fn count(&self, counter: usize) {
        panic!("a policy without counters adds to counter {counter}")
    }

    fn value(&self, index: usize) -> u64 {
        panic!("a policy without a governor reads value {index}")
    }

    fn review_by(&self, _: Instant) {}

    fn note(&self, _: &Note) {}

    fn stats(&self) -> StatsLevel {
        StatsLevel::Off
    }

    fn is_draining(&self) -> bool {
        false
    }
}

/// The dimensions that a policy is built for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Request indices are below this. Side tables of this size never grow.
    pub slots: u32,
    /// Scheduler tags per hardware queue (`nr_requests`).
    pub nr_requests: u32,
    /// Driver tags per hardware queue (`hw_queue_depth`).
    pub hw_depth: u32,
    /// The hardware queues that this instance serves.
    pub hw_queues: u16,
    /// The device reports itself as rotational.
    pub rotational: bool,
}

/// Metadata of all live requests. Allocates only at creation.
pub struct Requests {
    slots: Box<[Slot]>,
    free: Vec<u32>,
}

struct Slot {
    meta: IoMeta,
    /// The id of the slot's current or next request.
    id: RequestId,
    live: bool,
}

impl Requests {
    /// A table of `slots` free slots.
    ///
    /// # Panics
    /// If `slots` exceeds [`RequestId::MAX_SLOTS`].
    #[must_use]
    pub fn new(slots: u32) -> Self {
        assert!(slots <= RequestId::MAX_SLOTS, "{slots} slots; a request index has 24 bits");
        let empty = |index| Slot {
            meta: IoMeta::new(Op::Read, 0, 0),
            id: RequestId::new(index, 0),
            live: false,
        };
        Self {
            slots: (0..slots).map(empty).collect(),
            // Slots are popped from the end: low indices first, so that a shallow queue stays in few cache lines.
            free: (0..slots).rev().collect(),
        }
    }

    /// The metadata of `id`. O(1).
    ///
    /// # Panics
    /// If `id` is stale: its request has completed, been merged away or been withdrawn.
    #[inline]
    #[must_use]
    pub fn get(&self, id: RequestId) -> &IoMeta {
        let slot = &self.slots[id.index()];
        assert!(slot.live && slot.id == id, "stale request id {id:?}");
        &slot.meta
    }

    /// For the engine: the metadata of `id`, to be changed before the policy is called.
    ///
    /// # Panics
    /// As [`get`](Self::get).
    #[inline]
    pub fn get_mut(&mut self, id: RequestId) -> &mut IoMeta {
        let slot = &mut self.slots[id.index()];
        assert!(slot.live && slot.id == id, "stale request id {id:?}");
        &mut slot.meta
    }

    /// For the engine: takes a slot; `None` if all are in use. O(1).
    #[inline(always)]
    pub fn alloc(&mut self, meta: IoMeta) -> Option<RequestId> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[index as usize];
        slot.meta = meta;
        slot.live = true;
        Some(slot.id)
    }

    /// For the engine: frees a slot; `id` is stale from then on. Returns the last metadata. O(1).
    ///
    /// # Panics
    /// If `id` is stale already.
    #[inline]
    pub fn free(&mut self, id: RequestId) -> &IoMeta {
        let slot = &mut self.slots[id.index()];
        assert!(slot.live && slot.id == id, "double free of {id:?}");
        slot.live = false;
        slot.id = id.next_generation();
        self.free.push(id.index() as u32);
        &slot.meta
    }

    /// For the engine: the requests that have slots, in no particular order. O(slots).
    pub fn live(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.slots.iter().filter(|slot| slot.live).map(|slot| slot.id)
    }

    /// Slots in use.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Slots in all.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_slot_has_another_name() {
        let mut requests = Requests::new(1);
        let a = requests.alloc(IoMeta::new(Op::Read, 8, 8)).expect("one slot is free");
        assert!(requests.alloc(IoMeta::new(Op::Read, 8, 8)).is_none());
        requests.free(a);
        let b = requests.alloc(IoMeta::new(Op::Write, 16, 8)).expect("it was given back");
        assert_eq!(a.index(), b.index());
        assert_ne!(a, b);
        assert!(requests.live().eq([b]));
        assert_eq!(requests.get(b).sector, 16);
    }

    #[test]
    #[should_panic(expected = "stale request id")]
    fn a_stale_id_is_caught() {
        let mut requests = Requests::new(1);
        let a = requests.alloc(IoMeta::new(Op::Read, 8, 8)).expect("one slot is free");
        requests.free(a);
        let _ = requests.get(a);
    }
}
