//! `mirror`: the same bytes on each leg, as RAID 1 does.
//!
//! `records.rs` has the state of the mirror as stored on its legs, and writes it; [`assemble`] opens a mirror from it.
//! [`Mirror`] sends requests to the legs and takes failed legs out. [`Copies`] brings legs up to date: sectors are
//! copied from a leg in step to other legs, a portion at a time. A leg that is behind is copied to from the first
//! sector to the last. A range that a leg in step could not read is copied to it from another, so that its device
//! writes the range anew. [`Ranges`] of sectors have one party at a time that changes them.
//!
//! # Why no stale byte is read
//!
//! 1. *A change begins after the records of all legs in step say that the legs may differ.* If the mirror is opened
//!    after a power cut, one of the legs is copied to the others.
//! 2. *A change or flush is answered after the records say which legs have missed it.* This holds for every later one
//!    as well.
//! 3. *Copies, and changes that overlap, are made one after another*, in the same order on each leg.
//! 4. *A leg that is behind says so before it gets a byte*, and is in step once all of it was copied and flushed.

#![forbid(unsafe_code)]

mod assemble;
mod records;
#[cfg(test)]
mod tests;

use crate::{Findings, Layer, OwnIo, Piece, Plan, Request};
pub use assemble::MirrorError;
pub(crate) use assemble::{Assembly, Given, assemble};
use blkmq_buf::AlignedBuf;
use blkmq_core::{Instant, IoError, IoFlags, IoResult, Op, SECTOR_SIZE};
pub(crate) use records::MAX_LEGS;
use records::{Cookie, Member, Records, Round, flush_io};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The role of a leg in its mirror.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// The leg has the contents.
    InStep,
    /// The leg gets every change, and has yet to be copied to.
    Behind,
    /// The leg gets nothing.
    Out,
}

#[derive(Debug)]
struct Leg {
    member: Member,
    role: Role,
    /// Reads in flight.
    reads: u32,
    /// The sector behind the last read.
    end: u64,
}

/// A request that changes the contents, or a flush.
#[derive(Clone, Copy, Debug)]
struct Change {
    request: Request,
    /// The legs that the change was sent to, and the legs on which it is done; a bit each, by position in the stack.
    sent: u8,
    done: u8,
    pending: u32,
    error: Option<IoError>,
    /// Every error so far says that nothing was written.
    is_refused: bool,
}

/// A set of legs: a bit each, by position in the stack.
type Mask = u8;

pub(crate) struct Mirror {
    legs: Vec<Leg>,
    records: Records,
    copies: Copies,
    ranges: Ranges,
    /// Changes and flushes, by the number of the request.
    changes: Vec<Option<Change>>,
    /// Reads, by the number of the request: the legs that were asked.
    asked: Vec<Mask>,
    /// Changes and flushes that wait for the records.
    done: Vec<(usize, IoResult)>,
    /// The number of changes that were not answered.
    unanswered: u32,
    /// The leg of the last read.
    last: usize,
    is_closing: bool,
    findings: Findings,
    _only: Only,
}

/// A mark held by the only queue of a mirror.
#[derive(Debug)]
pub(crate) struct Only(Arc<AtomicBool>);

impl Only {
    /// # Errors
    /// If another queue holds it.
    pub(crate) fn new(taken: &Arc<AtomicBool>) -> Result<Self, MirrorError> {
        // Acquires the writes of the last queue, which its drop released.
        if taken.swap(true, Ordering::Acquire) {
            return Err(MirrorError::Busy);
        }
        Ok(Self(Arc::clone(taken)))
    }
}

impl Drop for Only {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

fn bits(mask: Mask) -> impl Iterator<Item = usize> {
    (0..MAX_LEGS).filter(move |leg| mask >> leg & 1 == 1)
}

impl Mirror {
    /// The mirror of an assembly whose records have been written.
    pub(crate) fn new(assembly: Assembly, findings: Findings, only: Only) -> Self {
        let Assembly { members, record, in_step, .. } = assembly;
        let leg = |member: Member| {
            let is_in_step = in_step >> member.number & 1 == 1;
            let role = if is_in_step { Role::InStep } else { Role::Behind };
            Leg { member, role, reads: 0, end: 0 }
        };
        let legs = Vec::from_iter(members.into_iter().map(leg));
        for leg in legs.iter().filter(|leg| leg.role == Role::Behind) {
            findings.progress(format!("device {} is behind, and is copied", leg.member.number));
        }
        Self {
            legs,
            copies: Copies::new(record.sectors),
            records: Records::new(record),
            ranges: Ranges::default(),
            changes: Vec::new(),
            asked: Vec::new(),
            done: Vec::new(),
            unanswered: 0,
            last: 0,
            is_closing: false,
            findings,
            _only: only,
        }
    }

    /// The legs with this role.
    fn with(&self, role: Role) -> Mask {
        let legs = self.legs.iter().enumerate();
        legs.fold(0, |mask, (at, leg)| mask | u8::from(leg.role == role) << at)
    }

    /// The legs in step, by their numbers in the mirror, as records have them.
    fn in_step(&self) -> u8 {
        let legs = self.legs.iter().filter(|leg| leg.role == Role::InStep);
        legs.fold(0, |all, leg| all | 1 << leg.member.number)
    }

    /// Takes legs out of the mirror, but never the last one in step.
    fn put_out(&mut self, legs: Mask, why: &str) {
        for leg in bits(legs) {
            if self.legs[leg].role == Role::Out || self.with(Role::InStep) == 1 << leg {
                continue;
            }
            let number = self.legs[leg].member.number;
            self.legs[leg].role = Role::Out;
            self.records.is_urgent = true;
            self.findings.fault(format!("device {number} is out of the mirror: {why}"));
        }
    }

    /// Takes every step that is possible.
    fn advance(&mut self, plan: &mut Plan) {
        self.next_copy(plan);
        let is_dirty = self.records.are_dirty() || is_planted(Planted::ChangesClean);
        // A copy to a leg that is behind changes nothing that a record vouches for.
        let may_copy = is_dirty || !self.copies.is_repair();
        let may = |party| if party == Party::Copy { may_copy } else { is_dirty };
        while let Some(party) = self.ranges.next(may) {
            match party {
                Party::Change(id) => self.send(id, plan),
                Party::Copy => self.begin_copy(plan),
            }
        }
        self.answer(plan);
        self.write_records(plan);
    }

    /// Answers the finished changes and flushes, if no record calls a leg in step that has missed any.
    fn answer(&mut self, plan: &mut Plan) {
        let is_early = is_planted(Planted::AnswersEarly);
        if !(is_early || self.records.name_only(self.in_step())) {
            return;
        }
        for (id, result) in std::mem::take(&mut self.done) {
            self.release(id, result, plan);
        }
    }

    fn release(&mut self, id: usize, result: IoResult, plan: &mut Plan) {
        let change = self.changes[id].take().expect("a change that was begun");
        self.unanswered -= u32::from(change.request.op != Op::Flush);
        plan.release(id, result);
    }

    /// Fails every change that waits for records, because they cannot be written.
    fn give_up(&mut self, plan: &mut Plan) {
        for party in self.ranges.refuse() {
            match party {
                Party::Change(id) => self.release(id, Err(IoError::IO), plan),
                Party::Copy => self.copies.forget(),
            }
        }
        for (id, result) in std::mem::take(&mut self.done) {
            self.release(id, result.and(Err(IoError::IO)), plan);
        }
        self.put_out(self.with(Role::Behind), "the records cannot be written");
    }

    /// Sends a change or flush to all legs that are not out.
    fn send(&mut self, id: usize, plan: &mut Plan) {
        let sent = self.with(Role::InStep) | self.with(Role::Behind);
        let change = self.changes[id].as_mut().expect("a change that was begun");
        (change.sent, change.pending) = (sent, sent.count_ones());
        for leg in bits(sent) {
            plan.send_for(id, Piece::whole(&change.request, leg));
        }
    }

    /// Concludes a change or flush that all legs have answered.
    fn conclude(&mut self, id: usize) {
        let change = self.changes[id].expect("a change that was begun");
        let Change { request, sent, done, error, is_refused, .. } = change;
        let in_step = self.with(Role::InStep) & sent;
        let error = error.map_or(Ok(()), Err);
        let mut out = sent & !done;
        if done & in_step == 0 && error.is_err() {
            // The bytes on the first leg, old or new, are the contents. The other legs must have the same.
            let first = in_step & in_step.wrapping_neg();
            out = if is_refused { 0 } else { in_step & !first };
            let behind = self.with(Role::Behind) & sent;
            if !(is_refused && done == 0) {
                self.repair(request, behind);
            }
            self.done.push((id, error));
        } else {
            self.done.push((id, Ok(())));
        }
        let why = |error: IoError| describe(&request, error);
        self.put_out(out, &error.map_or_else(why, |()| String::new()));
        self.ranges.give_back(Party::Change(id));
    }

    /// The leg for a read, of those in `among`: a leg with the fewest reads in flight. Among several such legs, the one
    /// that has read the preceding sectors, or else the next one in turn.
    fn choose(&self, sector: u64, among: Mask) -> Option<usize> {
        let count = self.legs.len();
        let turn = |leg: usize| (leg + count - self.last - 1) % count;
        let rank = |leg: &usize| {
            let Leg { reads, end, .. } = self.legs[*leg];
            (reads, end != sector, turn(*leg))
        };
        bits(among).min_by_key(rank)
    }

    /// Sends a read to a leg in step that was not asked yet. Returns false if there is none.
    fn read(&mut self, request: &Request, plan: &mut Plan) -> bool {
        let id = plan.id();
        let mut among = self.with(Role::InStep) & !self.asked[id];
        if is_planted(Planted::ReadsBehind) {
            among |= self.with(Role::Behind) & !self.asked[id];
        }
        let Some(leg) = self.choose(request.sector, among) else { return false };
        self.asked[id] |= 1 << leg;
        self.legs[leg].reads += 1;
        self.legs[leg].end = request.sector + u64::from(request.sectors);
        self.last = leg;
        plan.send(Piece::whole(request, leg));
        true
    }

    fn read_answered(
        &mut self,
        request: &Request,
        leg: usize,
        result: IoResult,
        plan: &mut Plan,
    ) -> IoResult {
        self.legs[leg].reads -= 1;
        let failed = self.asked[plan.id()] & !(1 << leg);
        let Err(error) = result else {
            if failed != 0 {
                // Legs that could not read the range get it from this one.
                self.repair(*request, failed);
                self.advance(plan);
            }
            return Ok(());
        };
        let number = self.legs[leg].member.number;
        self.findings.fault(format!("device {number}: {}", describe(request, error)));
        if self.read(request, plan) { Ok(()) } else { Err(error) }
    }
}

fn describe(request: &Request, error: IoError) -> String {
    let Request { op, sector, sectors, .. } = request;
    let name = match op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Flush => return format!("a flush failed: {error}"),
        Op::Discard => "discard",
        Op::WriteZeroes => "write of zeroes",
    };
    format!("a {name} of {sectors} sectors at sector {sector} failed: {error}")
}

impl Layer for Mirror {
    fn begin(&mut self, request: &Request, plan: &mut Plan) {
        let id = plan.id();
        if self.changes.len() <= id {
            self.changes.resize(id + 1, None);
            self.asked.resize(id + 1, 0);
        }
        if request.op == Op::Read {
            self.asked[id] = 0;
            let is_sent = self.read(request, plan);
            assert!(is_sent, "a leg is in step");
            return;
        }
        plan.hold();
        let change = Change {
            request: *request,
            sent: 0,
            done: 0,
            pending: 0,
            error: None,
            is_refused: true,
        };
        self.changes[id] = Some(change);
        if request.op == Op::Flush {
            self.send(id, plan);
        } else {
            self.unanswered += 1;
            self.records.disturb();
            let end = request.sector + u64::from(request.sectors);
            self.ranges.wait(request.sector..end, Party::Change(id));
            self.advance(plan);
        }
    }

    fn answered(
        &mut self,
        request: &Request,
        piece: &Piece,
        result: IoResult,
        plan: &mut Plan,
    ) -> IoResult {
        if request.op == Op::Read {
            return self.read_answered(request, piece.leg, result, plan);
        }
        let id = plan.id();
        let change = self.changes[id].as_mut().expect("a change that was begun");
        change.pending -= 1;
        match result {
            Ok(()) => change.done |= 1 << piece.leg,
            Err(error) => {
                change.is_refused &= [IoError::NOT_SUPPORTED, IoError::INVALID].contains(&error);
                change.error.get_or_insert(error);
            }
        }
        if change.pending == 0 {
            self.conclude(id);
            self.advance(plan);
        }
        // The change ends with the result of its release.
        Ok(())
    }

    fn has_own_ios(&self) -> bool {
        true
    }

    fn own_answered(&mut self, io: OwnIo, result: IoResult, plan: &mut Plan) {
        match Cookie::of(io.cookie) {
            Some(cookie) => self.record_answered(cookie, io.leg, result, plan),
            None => self.copy_answered(io, result, plan),
        }
        self.advance(plan);
    }

    fn passed(&mut self, now: Instant, plan: &mut Plan) {
        self.rest(now, plan);
        self.advance(plan);
    }

    fn close(&mut self, plan: &mut Plan) {
        self.is_closing = true;
        self.advance(plan);
    }
}

/// The sectors of a portion, 512 KiB. Only one is in flight, which leaves most of each leg's time to requests.
const PORTION: u64 = if cfg!(test) { 64 } else { 1024 };
/// The most repairs that wait. A leg that needs more is taken out.
const MAX_REPAIRS: usize = 256;

const READ: u64 = Cookie::COUNT;
const WRITE: u64 = Cookie::COUNT + 1;
/// The flush of legs that were copied.
const JOIN: u64 = Cookie::COUNT + 2;

#[derive(Debug)]
struct Copies {
    /// The capacity of the mirror.
    sectors: u64,
    /// Legs that are behind have all sectors below this one.
    cursor: u64,
    /// The number of quarters reported as copied.
    quarters: u64,
    repairs: VecDeque<(Range<u64>, Mask)>,
    active: Option<Copy>,
    /// The flushes of legs that were copied.
    joining: Option<Round>,
}

/// The copy that is in flight, or waits for its range.
#[derive(Debug)]
struct Copy {
    range: Range<u64>,
    to: Mask,
    is_repair: bool,
    /// Legs that could not read the range, or must not be asked.
    asked: Mask,
    writes: Round,
}

impl Copies {
    fn new(sectors: u64) -> Self {
        Self {
            sectors,
            cursor: 0,
            quarters: 0,
            repairs: VecDeque::new(),
            active: None,
            joining: None,
        }
    }

    /// Returns whether the current copy is a repair of a leg in step.
    fn is_repair(&self) -> bool {
        self.active.as_ref().is_some_and(|copy| copy.is_repair)
    }

    fn has_repairs(&self) -> bool {
        self.is_repair() || !self.repairs.is_empty()
    }

    /// Returns whether copied legs are being flushed, before they are in step.
    fn are_joining(&self) -> bool {
        self.joining.is_some()
    }

    /// Drops the copy that waits for its range.
    fn forget(&mut self) {
        self.active = None;
        self.repairs.clear();
    }
}

impl Mirror {
    /// Queues a copy of a request's range to these legs.
    fn repair(&mut self, request: Request, to: Mask) {
        let end = request.sector + u64::from(request.sectors);
        let mut at = request.sector;
        while at < end && to != 0 {
            if self.copies.repairs.len() == MAX_REPAIRS {
                return self.put_out(to, "too many ranges have to be repaired");
            }
            let next = end.min(at + PORTION);
            self.copies.repairs.push_back((at..next, to));
            at = next;
        }
    }

    /// Lets the next copy wait for its range, if no copy is in flight or waiting.
    fn next_copy(&mut self, plan: &mut Plan) {
        if self.copies.active.is_some() {
            return;
        }
        let behind = self.with(Role::Behind);
        let Copies { sectors, cursor, .. } = self.copies;
        let (range, to, is_repair) = if let Some((range, to)) = self.copies.repairs.pop_front() {
            (range, to, true)
        } else if behind == 0 || self.is_closing {
            return;
        } else if cursor < sectors {
            (cursor..sectors.min(cursor + PORTION), behind, false)
        } else {
            return self.join(behind, plan);
        };
        self.ranges.wait(range.clone(), Party::Copy);
        let writes = Round::default();
        self.copies.active = Some(Copy { range, to, is_repair, asked: to, writes });
    }

    /// Begins the copy: its range is free.
    fn begin_copy(&mut self, plan: &mut Plan) {
        let in_step = self.with(Role::InStep);
        let Some(copy) = &mut self.copies.active else { return };
        let (start, len) = (copy.range.start, copy.range.end - copy.range.start);
        let source = in_step & !copy.asked;
        let Some(leg) = self.choose(start, source) else {
            return self.end_copy(Some("no other device could read some of it"));
        };
        let bytes = AlignedBuf::new((len * u64::from(SECTOR_SIZE)) as usize);
        let (op, flags) = (Op::Read, IoFlags::NONE);
        plan.own(OwnIo { leg, op, flags, sector: start, bytes, cookie: READ });
    }

    fn copy_answered(&mut self, io: OwnIo, result: IoResult, plan: &mut Plan) {
        if io.cookie == JOIN {
            return self.join_answered(io.leg, result);
        }
        let here = self.with(Role::InStep) | self.with(Role::Behind);
        let Some(copy) = &mut self.copies.active else { return };
        if io.cookie == WRITE {
            if copy.writes.answered(io.leg, result) {
                self.end_copy(None);
            }
            return;
        }
        if result.is_err() {
            copy.asked |= 1 << io.leg;
            return self.begin_copy(plan);
        }
        copy.to &= here;
        copy.writes.pending = copy.to.count_ones();
        // A repair overwrites the only copy of its range on the leg.
        let flags = if copy.is_repair { IoFlags::FUA } else { IoFlags::NONE };
        let (to, mut read) = (copy.to, io.bytes);
        for leg in bits(to) {
            let bytes = AlignedBuf::copy_of(read.as_mut_slice());
            let sector = io.sector;
            plan.own(OwnIo { leg, op: Op::Write, flags, sector, bytes, cookie: WRITE });
        }
        if to == 0 {
            self.end_copy(None);
        }
    }

    /// Ends the copy: it was written, or failed because of `fault`.
    fn end_copy(&mut self, fault: Option<&str>) {
        let Some(copy) = self.copies.active.take() else { return };
        self.ranges.give_back(Party::Copy);
        let (failed, why) = match fault {
            Some(why) => (copy.to, why),
            None => (copy.writes.failed, "a copy to it failed"),
        };
        self.put_out(failed, why);
        if copy.is_repair {
            return;
        }
        let copies = &mut self.copies;
        copies.cursor = copy.range.end;
        let quarters = u128::from(copies.cursor) * 4 / u128::from(copies.sectors);
        if quarters as u64 > copies.quarters && quarters < 4 {
            copies.quarters = quarters as u64;
            self.findings.progress(format!("{} % of the mirror are copied", quarters * 25));
        }
    }

    /// Flushes copied legs, which are in step afterwards.
    fn join(&mut self, legs: Mask, plan: &mut Plan) {
        if self.copies.joining.is_some() {
            return;
        }
        if is_planted(Planted::JoinsUnflushed) {
            return self.joined(0);
        }
        for leg in bits(legs) {
            plan.own(flush_io(leg, JOIN));
        }
        self.copies.joining = Some(Round { pending: legs.count_ones(), failed: 0 });
    }

    fn join_answered(&mut self, leg: usize, result: IoResult) {
        let Some(round) = &mut self.copies.joining else { return };
        if round.answered(leg, result) {
            let failed = round.failed;
            self.joined(failed);
        }
    }

    /// Puts copied legs in step: they have been flushed.
    fn joined(&mut self, failed: Mask) {
        self.copies.joining = None;
        self.put_out(failed, "a flush failed");
        for leg in bits(self.with(Role::Behind)) {
            self.legs[leg].role = Role::InStep;
            self.records.is_urgent = true;
            let number = self.legs[leg].member.number;
            self.findings.progress(format!("device {number} is in step"));
        }
    }
}

/// A holder of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Party {
    /// The request of this number.
    Change(usize),
    /// The current copy.
    Copy,
}

/// Taken ranges, and ranges that wait until they are free. Of two that overlap, the earlier one goes first.
#[derive(Debug, Default)]
struct Ranges {
    taken: Vec<(Range<u64>, Party)>,
    waiting: VecDeque<(Range<u64>, Party)>,
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end && !is_planted(Planted::HoldsNoRange)
}

impl Ranges {
    /// Queues `party` for `range`, which is not empty.
    fn wait(&mut self, range: Range<u64>, party: Party) {
        self.waiting.push_back((range, party));
    }

    /// Returns whether any of these parties is waiting.
    fn waits(&self, which: impl Fn(Party) -> bool) -> bool {
        self.waiting.iter().any(|(_, party)| which(*party))
    }

    /// The next waiting party that `may` go and whose range is free; it takes its range. O(ranges) in the usual case,
    /// where no range waits for another.
    fn next(&mut self, may: impl Fn(Party) -> bool) -> Option<Party> {
        let is_free = |at: usize| {
            let (range, party) = &self.waiting[at];
            let before = self.waiting.range(..at).chain(&self.taken);
            may(*party) && before.into_iter().all(|(other, _)| !overlap(range, other))
        };
        let at = (0..self.waiting.len()).find(|at| is_free(*at))?;
        let next = self.waiting.remove(at)?;
        let party = next.1;
        self.taken.push(next);
        Some(party)
    }

    /// Returns the range of `party`.
    fn give_back(&mut self, party: Party) {
        self.taken.retain(|(_, other)| *other != party);
    }

    /// Removes the waiting parties.
    fn refuse(&mut self) -> impl Iterator<Item = Party> + use<> {
        std::mem::take(&mut self.waiting).into_iter().map(|(_, party)| party)
    }
}

/// A bug that tests plant, to prove that the tests find it: a step that is left out or done wrongly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Planted {
    /// A change is answered before the records say which legs have missed it.
    AnswersEarly,
    /// A change begins before the records say that the legs may differ.
    ChangesClean,
    /// Changes that overlap, or that meet a copy, do not wait for each other.
    HoldsNoRange,
    /// Reads come from legs that are behind, too.
    ReadsBehind,
    /// A copied leg is in step before it is flushed.
    JoinsUnflushed,
    /// Records say that the legs have the same bytes before the legs are flushed.
    CleansUnflushed,
    /// A leg that is behind gets bytes before it says so.
    BeginsSilently,
    /// All legs that were in step stay so, even if they may differ.
    TrustsAll,
}

/// Returns whether this bug is planted; the constant `false` in every build but that of the tests.
#[cfg(not(test))]
#[inline(always)]
const fn is_planted(_: Planted) -> bool {
    false
}

#[cfg(test)]
use planting::{is_planted, plant};

#[cfg(test)]
mod planting {
    use super::Planted;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
    }

    pub(super) fn is_planted(bug: Planted) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// Plants `bug` and no other, for the calling thread.
    pub(super) fn plant(bug: Option<Planted>) {
        PLANTED.set(bug);
    }
}
