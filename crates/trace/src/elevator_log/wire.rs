//! The format of elevator logs, and their encoding; `read.rs` decodes them. No I/O.
//!
//! ```text
//! log      = "blkmqelv" version:number command:text { 1 instance } 0
//! instance = policy:text slots nr_requests hw_depth hw_queues rotational:number count:number { name:text value:signed }
//!            missed:number length:number { call }
//! call     = kind:byte passed:number ...
//! text     = length:number bytes
//! ```
//!
//! Numbers are of variable length, seven bits to a byte, the lowest first; signed numbers have their sign in the lowest
//! bit. `passed` is the time in nanoseconds since the call before. An instance is one policy from its creation to its
//! end. A queue has several if it has several elevators, or if its scheduler was changed.

use crate::watched::Heard;
use blkmq_core::{HwQueue, Instant, IoFlags, IoMeta, Op, Owner, RequestId};
use blkmq_sched::{At, Done, GroupChange, Grown, Pick, Rate, Shape, Used};
use std::fmt;

mod read;

const MAGIC: &[u8; 8] = b"blkmqelv";
/// The only version so far.
pub(super) const VERSION: u64 = 1;
/// An upper bound of the slots of a queue: a reader allocates as many as the log claims.
const MOST_SLOTS: u64 = 1 << 20;

/// A call of a policy, with its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry<'a> {
    /// The policy took a request in.
    Insert {
        /// The request.
        rq: RequestId,
        /// The place of the insertion.
        at: At,
        /// Its metadata.
        meta: IoMeta,
    },
    /// The policy was asked for the next request.
    Pick {
        /// The hardware queue to pick for.
        hw: HwQueue,
        /// The answer.
        answer: Pick,
    },
    /// An issued request has finished.
    Completed {
        /// The completion.
        done: Done,
    },
    /// A held request was withdrawn.
    Withdraw {
        /// The request.
        rq: RequestId,
    },
    /// A held request was fused into another.
    Absorbed {
        /// The request that remains.
        into: RequestId,
        /// The request that is gone.
        gone: RequestId,
        /// The present metadata of the request that remains.
        meta: IoMeta,
    },
    /// A held request has grown.
    Grown {
        /// The request.
        rq: RequestId,
        /// The side.
        edge: Grown,
        /// Its present metadata.
        meta: IoMeta,
    },
    /// The policy was asked whether an I/O may join a held request.
    MayMerge {
        /// The request.
        into: RequestId,
        /// The I/O.
        io: IoMeta,
        /// The answer.
        answer: bool,
    },
    /// The policy was asked whether front merges should be looked for.
    FrontMerges {
        /// The answer.
        answer: bool,
    },
    /// The policy was asked for the number of slots that I/O other than sync reads may hold.
    AsyncDepth {
        /// The answer; `None` for any number.
        answer: Option<u32>,
    },
    /// The policy was asked whether an I/O may have a slot.
    Admits {
        /// The I/O.
        io: IoMeta,
        /// Slots in use.
        used: Used,
        /// The answer.
        answer: bool,
    },
    /// The tree of groups has changed.
    Regroup(GroupChange),
    /// An owner has gone.
    Left(Owner),
    /// The policy learns this from its environment in the next call.
    Heard(Heard),
    /// An attribute was set.
    Set {
        /// Its name.
        name: &'a str,
        /// The value.
        value: i64,
        /// Whether the policy has an attribute of that name.
        answer: bool,
    },
}

/// An entry and its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call<'a> {
    /// The time of the call. Never earlier than that of the call before.
    pub now: Instant,
    /// The call and its answer.
    pub entry: Entry<'a>,
}

/// One policy from its making to its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Instance<'a> {
    /// Its name in the registry.
    pub policy: &'a str,
    /// The shape that it was built for.
    pub shape: Shape,
    /// Options that were given.
    pub options: Vec<(&'a str, i64)>,
    /// Calls that came when the log was full; the log holds the first ones.
    pub missed: u64,
    calls: &'a [u8],
    /// The offset of the calls in the log.
    offset: usize,
}

/// A decoded log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Log<'a> {
    /// The command that it comes from.
    pub command: &'a str,
    /// Every policy of the log.
    pub instances: Vec<Instance<'a>>,
}

/// Why bytes are no elevator log. Offsets are in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogError {
    /// The log does not begin with the magic number.
    Magic,
    /// The log is of another version.
    Version(u64),
    /// The log ends too early.
    Truncated {
        /// The place of the end.
        offset: usize,
    },
    /// A value is impossible.
    Invalid {
        /// The place of the value.
        offset: usize,
        /// The description of the value.
        what: &'static str,
    },
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic => f.write_str("no elevator log; one begins with 'blkmqelv'"),
            Self::Version(version) => {
                write!(f, "an elevator log of version {version}; accepted is {VERSION}")
            }
            Self::Truncated { offset } => {
                write!(f, "the log ends at byte {offset}, within an entry")
            }
            Self::Invalid { offset, what } => write!(f, "at byte {offset} of the log: {what}"),
        }
    }
}

impl std::error::Error for LogError {}

pub(super) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_signed(out: &mut Vec<u8>, number: i64) {
    put_number(out, ((number << 1) ^ (number >> 63)) as u64);
}

pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// The beginning of a log, from the command that it comes from. [`put_instance`]s and [`put_end`] follow.
pub(super) fn put_begin(command: &str) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    put_number(&mut out, VERSION);
    put_text(&mut out, command);
    out
}

/// The end of a log.
pub(super) fn put_end(out: &mut Vec<u8>) {
    put_number(out, 0);
}

/// An instance, in the form of `calls`.
pub(super) fn put_instance(
    out: &mut Vec<u8>,
    policy: &str,
    shape: &Shape,
    options: &[(&str, i64)],
    (missed, calls): (u64, &[Vec<u8>]),
) {
    let length = calls.iter().map(Vec::len).sum::<usize>();
    out.reserve(length + 64);
    put_number(out, 1);
    put_text(out, policy);
    let Shape { slots, nr_requests, hw_depth, hw_queues, rotational } = *shape;
    for number in [slots, nr_requests, hw_depth, hw_queues.into(), rotational.into()] {
        put_number(out, number.into());
    }
    put_number(out, options.len() as u64);
    for (name, value) in options {
        put_text(out, name);
        put_signed(out, *value);
    }
    put_number(out, missed);
    put_number(out, length as u64);
    calls.iter().for_each(|chunk| out.extend_from_slice(chunk));
}

/// By their bits.
const FLAGS: [IoFlags; 5] =
    [IoFlags::SYNC, IoFlags::FUA, IoFlags::PREFLUSH, IoFlags::NOMERGE, IoFlags::NOWAIT];
/// By discriminant.
const OPS: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

fn put_id(out: &mut Vec<u8>, id: RequestId) {
    put_number(out, id.index() as u64);
    out.push(id.generation());
}

/// Writes how much earlier than `now` a time is, or later.
fn put_time(out: &mut Vec<u8>, now: Instant, at: Instant) {
    put_signed(out, now.as_nanos().wrapping_sub(at.as_nanos()) as i64);
}

fn put_meta(out: &mut Vec<u8>, now: Instant, meta: &IoMeta) {
    out.push(meta.op as u8);
    let bits = FLAGS.iter().enumerate().filter(|(_, flag)| meta.flags.contains(**flag));
    out.push(bits.map(|(bit, _)| 1 << bit).sum());
    put_number(out, meta.sector);
    put_number(out, meta.sectors.into());
    put_number(out, meta.owner.0.into());
    put_number(out, meta.group.0.into());
    put_time(out, now, meta.arrived);
    put_number(out, meta.segments.into());
    put_number(out, meta.hw.0.into());
    put_number(out, meta.ioprio.to_bits().into());
    out.push(meta.write_hint);
}

fn pick_kind(answer: Pick) -> u8 {
    match answer {
        Pick::Issue(_) => 3,
        Pick::Empty => 4,
        Pick::WaitCompletion => 5,
        Pick::WaitUntil(_) => 6,
        Pick::WaitToken => 28,
    }
}

fn put_answer(out: &mut Vec<u8>, now: Instant, answer: Pick) {
    match answer {
        Pick::Issue(rq) => put_id(out, rq),
        Pick::WaitUntil(at) => put_time(out, now, at),
        Pick::Empty | Pick::WaitCompletion | Pick::WaitToken => {}
    }
}

fn grown_kind(edge: Grown) -> u8 {
    match edge {
        Grown::Back => 10,
        Grown::Front { .. } => 11,
        Grown::Discard => 12,
    }
}

fn put_used(out: &mut Vec<u8>, used: Used) {
    let Used { of, all, limited, unsynced } = used;
    [of, all, limited, unsynced].into_iter().for_each(|n| put_number(out, n.into()));
}

fn put_change(out: &mut Vec<u8>, head: impl Fn(&mut Vec<u8>, u8), change: GroupChange) {
    match change {
        GroupChange::Added { group, parent, weight } => {
            head(out, 22);
            put_number(out, group.0.into());
            put_number(out, parent.0.into());
            put_number(out, weight.into());
        }
        GroupChange::Weight { group, weight } => {
            head(out, 23);
            put_number(out, group.0.into());
            put_number(out, weight.into());
        }
        GroupChange::Guarantee { group, guarantee } => {
            head(out, 33);
            put_number(out, group.0.into());
            for Rate { iops, bps, percent } in [guarantee.reserve, guarantee.limit] {
                [iops, bps, percent.into()].into_iter().for_each(|n| put_number(out, n));
            }
        }
        GroupChange::Removed { group } => {
            head(out, 24);
            put_number(out, group.0.into());
        }
    }
}

fn put_heard(out: &mut Vec<u8>, head: impl Fn(&mut Vec<u8>, u8), heard: Heard) {
    match heard {
        Heard::Token { pool, there } => {
            head(out, 26 + u8::from(there));
            put_number(out, pool.into());
        }
        Heard::Value { index, value } => {
            head(out, 29);
            put_number(out, index.into());
            put_number(out, value);
        }
        Heard::Level(level) => {
            head(out, 30);
            put_number(out, level as u64);
        }
        Heard::Draining(draining) => head(out, 31 + u8::from(draining)),
    }
}

impl Call<'_> {
    /// Appends the entry; `before` is the time of the call before.
    pub(super) fn put(&self, before: Instant, out: &mut Vec<u8>) {
        let now = self.now;
        let head = |out: &mut Vec<u8>, kind| {
            out.push(kind);
            put_number(out, (now - before).0);
        };
        match &self.entry {
            Entry::Insert { rq, at, meta } => {
                head(out, if *at == At::Tail { 1 } else { 2 });
                put_id(out, *rq);
                put_meta(out, now, meta);
            }
            Entry::Pick { hw, answer } => {
                head(out, pick_kind(*answer));
                put_number(out, hw.0.into());
                put_answer(out, now, *answer);
            }
            Entry::Completed { done } => {
                head(out, 7);
                put_id(out, done.rq);
                put_number(out, done.result.err().map_or(0, |error| error.0.into()));
                put_time(out, now, done.issued);
                put_time(out, now, done.completed);
            }
            Entry::Withdraw { rq } => {
                head(out, 8);
                put_id(out, *rq);
            }
            Entry::Absorbed { into, gone, meta } => {
                head(out, 9);
                put_id(out, *into);
                put_id(out, *gone);
                put_meta(out, now, meta);
            }
            Entry::Grown { rq, edge, meta } => {
                head(out, grown_kind(*edge));
                put_id(out, *rq);
                put_meta(out, now, meta);
                if let Grown::Front { old_sector } = edge {
                    put_number(out, *old_sector);
                }
            }
            Entry::MayMerge { into, io, answer } => {
                head(out, 13 + u8::from(*answer));
                put_id(out, *into);
                put_meta(out, now, io);
            }
            Entry::FrontMerges { answer } => head(out, 15 + u8::from(*answer)),
            Entry::AsyncDepth { answer } => {
                head(out, 17);
                put_number(out, answer.map_or(0, |depth| u64::from(depth) + 1));
            }
            Entry::Admits { io, used, answer } => {
                head(out, 20 + u8::from(*answer));
                put_meta(out, now, io);
                put_used(out, *used);
            }
            Entry::Regroup(change) => put_change(out, head, *change),
            Entry::Left(owner) => {
                head(out, 25);
                put_number(out, owner.0.into());
            }
            Entry::Heard(heard) => put_heard(out, head, *heard),
            Entry::Set { name, value, answer } => {
                head(out, 18 + u8::from(*answer));
                put_text(out, name);
                put_signed(out, *value);
            }
        }
    }
}

impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>12} ns  ", self.now.as_nanos())?;
        let io = |f: &mut fmt::Formatter<'_>, meta: &IoMeta| {
            write!(f, "{:?} {}+{}", meta.op, meta.sector, meta.sectors)
        };
        match &self.entry {
            Entry::Insert { rq, at, meta } => {
                write!(f, "insert {rq:?} at the {at:?}: ")?;
                io(f, meta)
            }
            Entry::Pick { hw, answer } => write!(f, "pick for queue {} -> {answer:?}", hw.0),
            Entry::Completed { done } => write!(f, "completed {:?}: {:?}", done.rq, done.result),
            Entry::Withdraw { rq } => write!(f, "withdraw {rq:?}"),
            Entry::Absorbed { into, gone, meta } => {
                write!(f, "absorbed {gone:?} into {into:?}: ")?;
                io(f, meta)
            }
            Entry::Grown { rq, edge, meta } => {
                write!(f, "grown {rq:?} ({edge:?}): ")?;
                io(f, meta)
            }
            Entry::MayMerge { into, io: meta, answer } => {
                write!(f, "may ")?;
                io(f, meta)?;
                write!(f, " join {into:?}? -> {answer}")
            }
            Entry::Admits { io: meta, used, answer } => {
                write!(f, "may ")?;
                io(f, meta)?;
                write!(f, " have a slot, with {} of {} in use? -> {answer}", used.all, used.of)
            }
            Entry::Regroup(change) => write!(f, "groups: {change:?}"),
            Entry::Left(owner) => write!(f, "owner {} has gone", owner.0),
            Entry::Heard(heard) => write!(f, "heard {heard:?}"),
            Entry::FrontMerges { answer } => write!(f, "front merges? -> {answer}"),
            Entry::AsyncDepth { answer } => write!(f, "caps? -> {answer:?}"),
            Entry::Set { name, value, answer } => write!(f, "set {name}={value} -> {answer}"),
        }
    }
}
