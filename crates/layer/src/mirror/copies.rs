//! [`Copies`]: sectors that are copied from a leg in step to other legs, a portion at a time.
//!
//! A leg that is behind is copied to from the first sector to the last. A range that a leg in step could not read is
//! copied to it from another, so that its device writes the range anew.

#![forbid(unsafe_code)]

use super::planted::{self, Planted};
use super::ranges::Party;
use super::records::{Cookie, Round, flush_io};
use super::{Mask, Mirror, Role, bits};
use crate::layer::{OwnIo, Plan, Request};
use blkmq_buf::AlignedBuf;
use blkmq_core::{IoFlags, IoResult, Op, SECTOR_SIZE};
use std::collections::VecDeque;
use std::ops::Range;

/// The sectors of a portion, 512 KiB. Only one is in flight, which leaves most of each leg's time to requests.
const PORTION: u64 = if cfg!(test) { 64 } else { 1024 };
/// The most repairs that wait. A leg that needs more is taken out.
const MAX_REPAIRS: usize = 256;

const READ: u64 = Cookie::COUNT;
const WRITE: u64 = Cookie::COUNT + 1;
/// The flush of legs that were copied.
const JOIN: u64 = Cookie::COUNT + 2;

#[derive(Debug)]
pub(super) struct Copies {
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
    pub(super) fn new(sectors: u64) -> Self {
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
    pub(super) fn is_repair(&self) -> bool {
        self.active.as_ref().is_some_and(|copy| copy.is_repair)
    }

    pub(super) fn has_repairs(&self) -> bool {
        self.is_repair() || !self.repairs.is_empty()
    }

    /// Returns whether copied legs are being flushed, before they are in step.
    pub(super) fn are_joining(&self) -> bool {
        self.joining.is_some()
    }

    /// Drops the copy that waits for its range.
    pub(super) fn forget(&mut self) {
        self.active = None;
        self.repairs.clear();
    }
}

impl Mirror {
    /// Queues a copy of a request's range to these legs.
    pub(super) fn repair(&mut self, request: Request, to: Mask) {
        let end = request.sector + u64::from(request.sectors);
        let mut at = request.sector;
        while at < end && to != 0 {
            if self.copies.repairs.len() == MAX_REPAIRS {
                for leg in bits(to) {
                    self.put_out(leg, "too many ranges have to be repaired");
                }
                return;
            }
            let next = end.min(at + PORTION);
            self.copies.repairs.push_back((at..next, to));
            at = next;
        }
    }

    /// Lets the next copy wait for its range, if no copy is in flight or waiting.
    pub(super) fn next_copy(&mut self, plan: &mut Plan) {
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
    pub(super) fn begin_copy(&mut self, plan: &mut Plan) {
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

    pub(super) fn copy_answered(&mut self, io: OwnIo, result: IoResult, plan: &mut Plan) {
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
        for leg in bits(failed) {
            self.put_out(leg, why);
        }
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
        if planted::is(Planted::JoinsUnflushed) {
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
        for leg in bits(failed) {
            self.put_out(leg, "a flush failed");
        }
        for leg in bits(self.with(Role::Behind)) {
            self.legs[leg].role = Role::InStep;
            self.records.is_urgent = true;
            let number = self.legs[leg].member.number;
            self.findings.progress(format!("device {number} is in step"));
        }
    }
}
