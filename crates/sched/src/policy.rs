//! The contract between the engine and a policy, and nothing else.

use crate::{
    About, Attribute, Capacity, Common, Event, GroupChange, Note, Options, PolicyEnv, Requests,
    Shape, StatsLevel, Tallies,
};
use alloc::boxed::Box;
use blkmq_core::{HwQueue, Instant, IoMeta, IoResult, Nanos, Owner, RequestId};
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
    // Always inline: the event is known where it is noted, and the call then becomes a few additions. As a call, with
    // the note in memory, it took 11 % of the samples of a profile of bfq.
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
    /// Scheduler tags in use before these requests had theirs, where the requests are issued together or refused: a policy
    /// that [limits slots](Facts::limits_slots) also decides whether they may have their slots. `None` for a single
    /// request that [`admits`](Scheduler::admits) has allowed, and that may be held.
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
    /// Nothing has happened. Each request is to be inserted, and picked in its turn.
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
    /// At its start, which used to be `old_sector`. The metadata already has the new one.
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
    /// Issue this request; the policy no longer holds it.
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
    /// How many there are (`nr_requests`).
    pub of: u32,
    /// All tags in use.
    pub all: u32,
    /// Tags in use by anything but sync reads.
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
    /// A policy has this method where it needs fewer steps for all of that together; the decisions and the state
    /// afterwards are the same. It may refuse any requests, which are then inserted and picked one after the other. It
    /// has to refuse several together if it would not give all of them slots and tokens now. Tokens for several come
    /// from [`take_all`](PolicyEnv::take_all). Several are given only to a policy that [takes
    /// plugs](Facts::takes_plugs).
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
    /// is no longer held and its slot is freed after the call; its metadata is still readable here.
    fn withdraw(&mut self, cx: &Cx<'_>, rq: RequestId);

    /// A held request was fused into another held one, whose metadata already covers both. `gone` is no longer held
    /// and its slot is freed after the call; its metadata is still readable here. The better of the two places in
    /// line survives (for example the earlier deadline).
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

    /// Returns whether `io`, which has not merged, may have a slot of its own. A slot that any I/O may have is free, and
    /// [`async_depth`](Facts::async_depth) allows it. Refused I/Os wait outside, together with all later I/O of the same
    /// submitter, and are offered again when a slot becomes free; so an owner without a slot must not be refused for
    /// ever. Called only for a policy that [limits slots](Facts::limits_slots).
    fn admits(&self, _cx: &Cx<'_>, _io: &IoMeta, _used: Used) -> bool {
        true
    }

    /// The device time that the policy has charged for `rq`, which has just completed; `None` if it charges none. The floors
    /// of groups are judged by it, in the device time of [`capacity`](Facts::capacity).
    fn charged(&self, _rq: RequestId) -> Option<Nanos> {
        None
    }

    /// The tree of groups has changed. Policies that do not share by group may ignore it.
    fn regroup(&mut self, _cx: &Cx<'_>, _change: GroupChange) {}

    /// No I/O of this owner will arrive for a long time, if ever: the policy may forget its state. This is a hint,
    /// which may also come too early, and which a policy must not need: the engine does not give it, because to the
    /// engine an owner is a number that any submitter may name at any time. Programs that drive a policy by
    /// themselves may know more.
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

    /// Gives up the policy that this one was put around to observe it; the engine continues with that one, and drops
    /// this. `None` for every policy that decides itself.
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

/// One line of the registry. All code that offers policies by name iterates over these.
pub struct Factory {
    /// As in sysfs: `none`, `mq-deadline`.
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
