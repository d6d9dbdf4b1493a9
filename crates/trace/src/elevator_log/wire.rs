//! The format of elevator logs, and their encoding and decoding. No I/O. For any bytes, reading ends in calls or in an
//! error that states the offset.
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

use crate::watched::{Entry, Heard};
use blkmq_core::{
    Deadline, GroupIndex, HwQueue, Instant, IoError, IoFlags, IoMeta, IoPrio, IoResult, Op, Owner,
    RequestId,
};
use blkmq_sched::index::LAST_SECTOR;
use blkmq_sched::{At, Done, GroupChange, Grown, Guarantee, Pick, Rate, Shape, StatsLevel, Used};
use std::fmt;

const MAGIC: &[u8; 8] = b"blkmqelv";
/// The only version so far.
pub(super) const VERSION: u64 = 1;
/// An upper bound of the slots of a queue: a reader allocates as many as the log claims.
const MOST_SLOTS: u64 = 1 << 20;

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
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LogError {
    /// The log does not begin with the magic number.
    #[error("no elevator log; one begins with 'blkmqelv'")]
    Magic,
    /// The log is of another version.
    #[error("an elevator log of version {0}; accepted is {VERSION}")]
    Version(u64),
    /// The log ends too early.
    #[error("the log ends at byte {offset}, within an entry")]
    Truncated {
        /// The place of the end.
        offset: usize,
    },
    /// A value is impossible.
    #[error("at byte {offset} of the log: {what}")]
    Invalid {
        /// The place of the value.
        offset: usize,
        /// The description of the value.
        what: &'static str,
    },
}

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

/// The rest of the input.
struct Input<'a> {
    all: &'a [u8],
    at: usize,
    /// The offset of `all` in the log.
    offset: usize,
}

impl<'a> Input<'a> {
    fn here(&self) -> usize {
        self.offset + self.at
    }

    fn invalid(&self, what: &'static str) -> LogError {
        LogError::Invalid { offset: self.here(), what }
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], LogError> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.all.len());
        let end = end.ok_or(LogError::Truncated { offset: self.offset + self.all.len() })?;
        let bytes = &self.all[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, LogError> {
        Ok(self.bytes(1)?[0])
    }

    fn number(&mut self) -> Result<u64, LogError> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(self.invalid("a number of more than 64 bits"))
    }

    fn signed(&mut self) -> Result<i64, LogError> {
        let number = self.number()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn up_to<T: TryFrom<u64>>(&mut self, most: u64, what: &'static str) -> Result<T, LogError> {
        let number = self.number()?;
        let small = Some(number).filter(|number| *number <= most);
        small.and_then(|number| number.try_into().ok()).ok_or_else(|| self.invalid(what))
    }

    fn text(&mut self) -> Result<&'a str, LogError> {
        let length = self.up_to(u64::from(u32::MAX), "a text of more than 4 GiB")?;
        let bytes = self.bytes(length)?;
        std::str::from_utf8(bytes).map_err(|_| self.invalid("a text that is none"))
    }

    fn id(&mut self, shape: &Shape) -> Result<RequestId, LogError> {
        const WHAT: &str = "a request beyond the slots of its elevator";
        let index = self.up_to(u64::from(shape.slots), WHAT)?;
        // An elevator without slots has no requests.
        if index == shape.slots {
            return Err(self.invalid(WHAT));
        }
        Ok(RequestId::new(index, self.byte()?))
    }

    fn time(&mut self, now: Instant) -> Result<Instant, LogError> {
        let earlier = self.signed()?;
        Ok(Instant::from_nanos(now.as_nanos().wrapping_sub(earlier as u64)))
    }

    fn meta(&mut self, now: Instant) -> Result<IoMeta, LogError> {
        let op = OPS.get(usize::from(self.byte()?)).copied();
        let op = op.ok_or_else(|| self.invalid("an operation that does not exist"))?;
        let bits = self.byte()?;
        if bits >> FLAGS.len() != 0 {
            return Err(self.invalid("a flag that does not exist"));
        }
        let flags = FLAGS.iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1);
        let flags = flags.fold(IoFlags::NONE, |all, (_, flag)| all.union(*flag));
        let sector = self.number()?;
        let sectors = self.up_to(u32::MAX.into(), "an I/O of more than 2 TiB")?;
        // The end of the I/O is stored, too: the next I/O may begin there.
        if sector.checked_add(u64::from(sectors)).is_none_or(|end| end > LAST_SECTOR) {
            return Err(self.invalid("an I/O beyond the last sector that there can be"));
        }
        Ok(IoMeta {
            sector,
            sectors,
            owner: Owner(self.up_to(u32::MAX.into(), "an owner of more than 32 bits")?),
            group: self.group()?,
            // The arrival may be slightly later than `now`: clocks of CPUs differ.
            arrived: self.time(now)?,
            segments: self.up_to(u16::MAX.into(), "more than 65535 segments")?,
            hw: HwQueue(self.up_to(u16::MAX.into(), "a hardware queue beyond 65535")?),
            ioprio: IoPrio::from_bits(self.up_to(u16::MAX.into(), "a priority of over 16 bits")?),
            op,
            flags,
            write_hint: self.byte()?,
            deadline: Deadline::NONE,
        })
    }

    fn result(&mut self) -> Result<IoResult, LogError> {
        match self.up_to(u16::MAX.into(), "an errno of more than 16 bits")? {
            0 => Ok(Ok(())),
            errno => Ok(Err(IoError(errno))),
        }
    }

    fn small(&mut self, what: &'static str) -> Result<u32, LogError> {
        self.up_to(u32::MAX.into(), what)
    }

    fn group(&mut self) -> Result<GroupIndex, LogError> {
        Ok(GroupIndex(self.up_to(u16::MAX.into(), "a group of more than 16 bits")?))
    }

    fn used(&mut self) -> Result<Used, LogError> {
        const WHAT: &str = "more slots than can be";
        let (of, all) = (self.small(WHAT)?, self.small(WHAT)?);
        Ok(Used { of, all, limited: self.small(WHAT)?, unsynced: self.small(WHAT)? })
    }

    fn change(&mut self, kind: u8) -> Result<GroupChange, LogError> {
        const WHAT: &str = "a weight of more than 32 bits";
        let group = self.group()?;
        Ok(match kind {
            22 => GroupChange::Added { group, parent: self.group()?, weight: self.small(WHAT)? },
            23 => GroupChange::Weight { group, weight: self.small(WHAT)? },
            33 => {
                let guarantee = Guarantee { reserve: self.rate()?, limit: self.rate()? };
                GroupChange::Guarantee { group, guarantee }
            }
            _ => GroupChange::Removed { group },
        })
    }

    fn rate(&mut self) -> Result<Rate, LogError> {
        let (iops, bps) = (self.number()?, self.number()?);
        Ok(Rate { iops, bps, percent: self.small("a percentage of more than 32 bits")? })
    }

    fn heard(&mut self, kind: u8) -> Result<Heard, LogError> {
        Ok(match kind {
            26 | 27 => Heard::Token { pool: self.small("a pool beyond all")?, there: kind == 27 },
            29 => Heard::Value { index: self.small("a value beyond all")?, value: self.number()? },
            31 | 32 => Heard::Draining(kind == 32),
            _ => Heard::Level(match self.up_to::<u8>(2, "a level that does not exist")? {
                0 => StatsLevel::Off,
                1 => StatsLevel::Basic,
                _ => StatsLevel::Full,
            }),
        })
    }

    fn call(&mut self, shape: &Shape, before: Instant) -> Result<Call<'a>, LogError> {
        let kind = self.byte()?;
        let passed = self.number()?;
        let now = before.as_nanos().checked_add(passed);
        let now = Instant::from_nanos(now.ok_or_else(|| self.invalid("a time beyond all others"))?);
        let entry = match kind {
            1 | 2 => {
                let at = if kind == 1 { At::Tail } else { At::Head };
                Entry::Insert { rq: self.id(shape)?, at, meta: self.meta(now)? }
            }
            3..=6 | 28 => {
                let hw = HwQueue(self.up_to(u16::MAX.into(), "a hardware queue beyond 65535")?);
                let answer = match kind {
                    3 => Pick::Issue(self.id(shape)?),
                    4 => Pick::Empty,
                    5 => Pick::WaitCompletion,
                    28 => Pick::WaitToken,
                    _ => Pick::WaitUntil(self.time(now)?),
                };
                Entry::Pick { hw, answer }
            }
            7 => {
                let (rq, result) = (self.id(shape)?, self.result()?);
                let (issued, completed) = (self.time(now)?, self.time(now)?);
                Entry::Completed { done: Done { rq, result, issued, completed } }
            }
            8 => Entry::Withdraw { rq: self.id(shape)? },
            9 => Entry::Absorbed {
                into: self.id(shape)?,
                gone: self.id(shape)?,
                meta: self.meta(now)?,
            },
            10..=12 => {
                let (rq, meta) = (self.id(shape)?, self.meta(now)?);
                let edge = match kind {
                    10 => Grown::Back,
                    11 => Grown::Front { old_sector: self.number()? },
                    _ => Grown::Discard,
                };
                Entry::Grown { rq, edge, meta }
            }
            13 | 14 => {
                let (into, io) = (self.id(shape)?, self.meta(now)?);
                Entry::MayMerge { into, io, answer: kind == 14 }
            }
            15 | 16 => Entry::FrontMerges { answer: kind == 16 },
            17 => {
                let depth: u64 = self.up_to(1 << 32, "a depth of more than 32 bits")?;
                Entry::AsyncDepth { answer: depth.checked_sub(1).map(|depth| depth as u32) }
            }
            18 | 19 => {
                let (name, value) = (self.text()?, self.signed()?);
                Entry::Set { name, value, answer: kind == 19 }
            }
            20 | 21 => {
                Entry::Admits { io: self.meta(now)?, used: self.used()?, answer: kind == 21 }
            }
            22..=24 | 33 => Entry::Regroup(self.change(kind)?),
            25 => Entry::Left(Owner(self.small("an owner of more than 32 bits")?)),
            26 | 27 | 29..=32 => Entry::Heard(self.heard(kind)?),
            _ => return Err(self.invalid("an entry of an unknown kind")),
        };
        Ok(Call { now, entry })
    }
}

impl<'a> Log<'a> {
    /// Decodes a log. Its calls are decoded later, by [`Instance::calls`].
    ///
    /// # Errors
    /// If the bytes are no log, or are cut off.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, LogError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(LogError::Magic)?;
        let mut input = Input { all: rest, at: 0, offset: MAGIC.len() };
        let version = input.number()?;
        if version != VERSION {
            return Err(LogError::Version(version));
        }
        let command = input.text()?;
        let mut instances = Vec::new();
        loop {
            match input.number()? {
                0 => return Ok(Self { command, instances }),
                1 => instances.push(instance(&mut input)?),
                _ => return Err(input.invalid("neither an elevator nor the end")),
            }
        }
    }
}

fn instance<'a>(input: &mut Input<'a>) -> Result<Instance<'a>, LogError> {
    let policy = input.text()?;
    let shape = Shape {
        slots: input.up_to(MOST_SLOTS, "more than 2^20 slots")?,
        nr_requests: input.up_to(MOST_SLOTS, "more than 2^20 scheduler tags")?,
        hw_depth: input.up_to(MOST_SLOTS, "more than 2^20 driver tags")?,
        hw_queues: input.up_to(u16::MAX.into(), "more than 65535 hardware queues")?,
        rotational: input.up_to::<u8>(1, "neither rotational nor not")? == 1,
    };
    let count = input.number()?;
    let mut options = Vec::new();
    for _ in 0..count {
        options.push((input.text()?, input.signed()?));
    }
    let missed = input.number()?;
    let length = input.up_to(u64::MAX >> 1, "calls of more bytes than can be")?;
    let offset = input.here();
    let calls = input.bytes(length)?;
    Ok(Instance { policy, shape, options, missed, calls, offset })
}

impl<'a> Instance<'a> {
    /// Decodes the calls of the policy with its answers, in order; an error ends the sequence.
    pub fn calls(&self) -> impl Iterator<Item = Result<Call<'a>, LogError>> + use<'a> {
        let (shape, all, offset) = (self.shape, self.calls, self.offset);
        let mut input = Input { all, at: 0, offset };
        let mut before = Instant::ZERO;
        let mut over = false;
        std::iter::from_fn(move || {
            if over || input.at == input.all.len() {
                return None;
            }
            let call = input.call(&shape, before);
            match &call {
                Ok(call) => before = call.now,
                Err(_) => over = true,
            }
            Some(call)
        })
    }
}
