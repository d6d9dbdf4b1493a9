//! The contract between the engine and a policy, and nothing else.

use crate::{
    About, Attribute, Common, Event, GroupChange, Note, Options, Outside, Requests, StatsLevel,
    Tallies,
};
use alloc::boxed::Box;
use blkmq_core::{HwQueue, Instant, IoMeta, IoResult, Owner, RequestId};
use core::cell::RefCell;
use core::fmt;

/// What a policy is told on every call.
#[derive(Clone, Copy)]
pub struct Cx<'a> {
    /// Never earlier than on the call before.
    pub now: Instant,
    /// The requests, by id. Read-only: only the engine changes them.
    pub requests: &'a Requests,
    /// What is shared with other instances, and who counts.
    pub outside: &'a dyn Outside,
    /// How much there is to note down about groups.
    pub stats: StatsLevel,
    /// Where notes are summed up, if they are.
    sums: Option<&'a RefCell<Tallies>>,
}

impl<'a> Cx<'a> {
    /// What a policy is told now.
    #[inline]
    pub fn new(now: Instant, requests: &'a Requests, outside: &'a impl Outside) -> Self {
        Self { now, requests, outside, stats: outside.stats(), sums: outside.sums() }
    }

    /// The same, with somebody in between who hears what the policy asks and notes down. Not of what is summed up.
    #[must_use]
    pub fn through<'b>(&self, outside: &'b dyn Outside) -> Cx<'b>
    where
        'a: 'b,
    {
        Cx { outside, ..*self }
    }

    /// Notes down what happened to a group.
    // Always inline: what happened is known where it is noted down, and then this is a few additions. As a call, with
    // the note in memory, it took 11 % of the samples of a profile of bfq.
    #[inline(always)]
    pub fn note(&self, about: About, what: Event) {
        match self.sums {
            Some(sums) => sums.borrow_mut().add(about, what),
            None => self.note_outside(&Note { about, what }),
        }
    }

    #[inline(never)]
    fn note_outside(&self, note: &Note) {
        self.outside.note(note);
    }
}

impl fmt::Debug for Cx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cx").field("now", &self.now).finish_non_exhaustive()
    }
}

/// Where an inserted request goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// Ahead of everything, of every class: requeues and flush sequences. Such a request is not mergeable.
    Head,
    /// Where the policy wants it.
    Tail,
}

/// At which edge a held request grew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grown {
    /// At its end; its start is unchanged.
    Back,
    /// At its start, which used to be `old_sector`. The metadata already says the new one.
    Front {
        /// The sector under which the policy may still have filed it.
        old_sector: u64,
    },
    /// A discard took in a range that need not be adjacent; start and end may be unchanged.
    Discard,
}

/// The answer to "what next for this hardware queue?". Each way of saying no also says when to ask again,
/// so that "has work but nobody will come back for it" cannot be expressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pick {
    /// Issue this one; the policy no longer holds it.
    Issue(RequestId),
    /// Nothing held. Ask after the next insert.
    Empty,
    /// Held back on purpose (idling, pacing). Ask then, or after the next insert or completion.
    WaitUntil(Instant),
    /// Held back until something in flight completes.
    WaitCompletion,
    /// Held back until a token comes back that [`take`](Outside::take) has refused in this call.
    WaitToken,
}

/// A request that has finished at the device. Its metadata is readable in [`Cx::requests`] during the call
/// and gone afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// Which.
    pub rq: RequestId,
    /// How it ended.
    pub result: IoResult,
    /// When it left the elevator for the device.
    pub issued: Instant,
    /// When the device was found to have finished it.
    pub completed: Instant,
}

/// Caps on how many scheduler tags (slots) some I/O may hold, so that it cannot starve the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DepthLimits {
    /// For everything except sync reads, per hardware queue (`async_depth`). `None`: no cap.
    pub async_depth: Option<u32>,
}

/// Scheduler tags of one hardware queue that are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Used {
    /// How many there are (`nr_requests`).
    pub of: u32,
    /// All that are in use.
    pub all: u32,
    /// Those in use by anything but sync reads.
    pub limited: u32,
    /// Those in use by I/O without [`SYNC`](blkmq_core::IoFlags::SYNC).
    pub unsynced: u32,
}

/// An I/O scheduling policy: a plain state machine.
///
/// It is called by one thread at a time and is told the time. It owns no clock, thread, lock or random
/// source, and never blocks. The same calls in the same order get the same answers; the laboratory replays
/// recorded calls and relies on it.
///
/// # Contract
///
/// A request is *held* from [`insert`](Self::insert) until [`pick`](Self::pick) returns it,
/// [`withdraw`](Self::withdraw) takes it back, or [`absorbed`](Self::absorbed) says that it was fused into
/// another; exactly one of these happens, once. It is *issued* from `pick` until [`completed`](Self::completed). An issued request may be
/// inserted again, always with [`At::Head`], without a `completed` in between: that is a requeue, and the
/// policy takes back what it had given to it (tokens, service).
///
/// `pick` does not say [`Pick::Empty`] while anything is held. Every held request is picked within a bound
/// that the policy's page states, as long as `pick` is called and issued requests complete. Each call does
/// at most O(log held) work and allocates nothing. Ids are reused: after `completed`, `withdraw` or
/// `absorbed` the slot's next request has another generation.
pub trait Scheduler: Send {
    /// Take `rq` in.
    fn insert(&mut self, cx: &Cx<'_>, rq: RequestId, at: At);

    /// Choose for `hw`, which has a tag free. Called again and again to fill a batch. A policy with
    /// [`Scope::Queue`] may answer with a request whose submitter maps to another hardware queue.
    fn pick(&mut self, cx: &Cx<'_>, hw: HwQueue) -> Pick;

    /// An issued request has finished.
    fn completed(&mut self, cx: &Cx<'_>, done: &Done);

    /// The held request `rq` is taken back, whatever the policy thinks of it: its submitter has given it up,
    /// or the device is dead. It is no longer held and its slot is freed after the call; its metadata is
    /// still readable here.
    fn withdraw(&mut self, cx: &Cx<'_>, rq: RequestId);

    /// A held request was fused into another held one, whose metadata already covers both. `gone` is no
    /// longer held and its slot is freed after the call; its metadata is still readable here. The better of
    /// the two places in line survives (the earlier deadline, say).
    fn absorbed(&mut self, cx: &Cx<'_>, into: RequestId, gone: RequestId);

    /// Name every counter and queue length, in a fixed order.
    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64));

    /// May `io` join the held request `into`? Operation, group, priority, geometry and limits have been
    /// checked and fit; owners may differ, and the request stays its first one's.
    fn may_merge(&self, _cx: &Cx<'_>, _into: RequestId, _io: &IoMeta) -> bool {
        true
    }

    /// Should an I/O that ends where a held request starts be looked for? Back merges always are.
    fn front_merges(&self) -> bool {
        true
    }

    /// A held request has grown; its metadata already says so.
    fn grown(&mut self, _cx: &Cx<'_>, _rq: RequestId, _edge: Grown) {}

    /// Caps on slot use. Asked after creation and after every change of an option.
    fn depth_limits(&self) -> DepthLimits {
        DepthLimits::default()
    }

    /// Does the policy want to be asked about each slot ([`admits`](Self::admits))? Asked once, after creation.
    fn limits_slots(&self) -> bool {
        false
    }

    /// May `io`, which has merged with nothing, have a slot of its own? A slot that any I/O may have is free, and
    /// [`depth_limits`](Self::depth_limits) agree. Refused I/Os wait outside, with everything behind them of the
    /// same submitter, and are asked about again when a slot has become free; so an owner that has no slot must
    /// not be refused for ever. Asked only if [`limits_slots`](Self::limits_slots) says so.
    fn admits(&self, _cx: &Cx<'_>, _io: &IoMeta, _used: Used) -> bool {
        true
    }

    /// Does the policy share by group? Then what waits for a slot is chosen by group, too: a free one goes to the group
    /// that has the fewest for its weight. Asked whenever the tree changes.
    fn shares_by_group(&self) -> bool {
        false
    }

    /// Does the policy note down what happens to groups ([`Cx::note`])? If not, the engine counts what
    /// [`StatsLevel::Basic`] names. Asked once, after creation.
    fn notes_groups(&self) -> bool {
        false
    }

    /// The tree of groups has changed. Policies that do not share by group need not care.
    fn regroup(&mut self, _cx: &Cx<'_>, _change: GroupChange) {}

    /// No I/O of this owner will come for a long time, if ever: what is remembered about it may be forgotten. A
    /// hint, which may also come too early.
    fn left(&mut self, _cx: &Cx<'_>, _owner: Owner) {}

    /// The present value of an attribute of the policy's [`Factory`]; `None` if it has no such attribute.
    fn attribute(&self, _name: &str) -> Option<i64> {
        None
    }

    /// Change an attribute. The engine has clamped `value` to the attribute's range. Returns false if there
    /// is no such attribute.
    fn set_attribute(&mut self, _name: &str, _value: i64) -> bool {
        false
    }
}

/// How many instances of a policy a queue has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// One for the whole queue: one order for everything (mq-deadline, bfq).
    Queue,
    /// One per hardware queue; they never meet (none, kyber).
    HwQueue,
}

/// What a policy is built for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Request indices are below this. Side tables of this size never grow.
    pub slots: u32,
    /// Scheduler tags per hardware queue (`nr_requests`).
    pub nr_requests: u32,
    /// Driver tags per hardware queue (`hw_queue_depth`).
    pub hw_depth: u32,
    /// Hardware queues that this instance will be asked for.
    pub hw_queues: u16,
    /// The device announces itself as rotational.
    pub rotational: bool,
}

/// One line of the registry. Everything that offers policies by name iterates over these.
pub struct Factory {
    /// As in sysfs: `none`, `mq-deadline`.
    pub name: &'static str,
    /// One line for a list.
    pub summary: &'static str,
    /// The scope that the policy has unless the user chooses.
    pub scope: Scope,
    /// The page that `blkmq doc NAME` prints.
    pub doc: &'static str,
    /// What can be set, with defaults and ranges.
    pub attributes: &'static [Attribute],
    /// What its instances share, if they do.
    pub common: Option<Common>,
    /// Makes an instance. `options` has been checked against `attributes`.
    pub build: fn(&Shape, &Options) -> Box<dyn Scheduler>,
}

impl fmt::Debug for Factory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Factory").field("name", &self.name).finish_non_exhaustive()
    }
}
