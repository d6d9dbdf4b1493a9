//! [`Records`]: the records of the legs while a mirror is in use.
//!
//! They are written to all legs that are not out, one state at a time. A state is in force once each leg in step has
//! it.

#![forbid(unsafe_code)]

use super::assemble::record_io;
use super::planted::{self, Planted};
use super::ranges::Party;
use super::record::Record;
use super::{Mask, Mirror, Role, bits};
use crate::layer::{OwnIo, Plan};
use blkmq_buf::AlignedBuf;
use blkmq_core::{Instant, IoFlags, IoResult, Nanos, Op};

/// After this long without changes, records say that the legs have the same bytes.
const QUIET: Nanos = Nanos::from_secs(1);

/// The cookies of the I/Os of records. Other I/Os of the mirror have cookies from [`Cookie::COUNT`] on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cookie {
    Record,
    /// The flush before a record that says that the legs have the same bytes.
    Flush,
}

impl Cookie {
    pub(super) const COUNT: u64 = 2;

    pub(super) fn of(cookie: u64) -> Option<Self> {
        [Self::Record, Self::Flush].get(usize::try_from(cookie).ok()?).copied()
    }
}

/// I/Os to several legs, until all are answered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    pub(super) pending: u32,
    pub(super) failed: Mask,
}

impl Round {
    /// Notes an answer. Returns whether it is the last one.
    pub(super) fn answered(&mut self, leg: usize, result: IoResult) -> bool {
        self.pending -= 1;
        self.failed |= u8::from(result.is_err()) << leg;
        self.pending == 0
    }
}

/// A flush of a leg.
pub(super) fn flush_io(leg: usize, cookie: u64) -> OwnIo {
    let (op, flags, bytes) = (Op::Flush, IoFlags::NONE, AlignedBuf::empty());
    OwnIo { leg, op, flags, sector: 0, bytes, cookie }
}

#[derive(Debug)]
pub(super) struct Records {
    /// The last state that was written. While the next one is being written, and after its write has failed, a leg may
    /// have either.
    record: Record,
    /// The state that is being written, and the answers of the legs so far.
    writing: Option<(Record, Round)>,
    flushing: Option<Round>,
    /// The legs have the same bytes: they were flushed, and no change has begun since.
    are_flushed: bool,
    /// A change has begun since the last flush.
    is_disturbed: bool,
    /// The flush before the end was sent.
    is_over: bool,
    /// When the quiet time ends.
    quiet: Option<Instant>,
    /// A leg has been taken out or has joined.
    pub(super) is_urgent: bool,
}

impl Records {
    pub(super) fn new(record: Record) -> Self {
        Self {
            record,
            writing: None,
            flushing: None,
            are_flushed: false,
            is_disturbed: false,
            is_over: false,
            quiet: None,
            is_urgent: false,
        }
    }

    /// Returns whether the records of all legs in step say that the legs may differ.
    pub(super) fn are_dirty(&self) -> bool {
        !self.record.is_clean && self.writing.is_none_or(|(record, _)| !record.is_clean)
    }

    /// Returns whether no record names a leg in step outside of `in_step`.
    pub(super) fn name_only(&self, in_step: u8) -> bool {
        let written = self.writing.map_or(0, |(record, _)| record.in_step);
        (self.record.in_step | written) & !in_step == 0
    }

    /// Notes that a change has begun.
    pub(super) fn disturb(&mut self) {
        (self.is_disturbed, self.are_flushed, self.quiet) = (true, false, None);
    }
}

impl Mirror {
    /// Begins to write the state, if it differs from the records.
    pub(super) fn write_records(&mut self, plan: &mut Plan) {
        if self.is_closing && !self.records.is_over && !self.is_clean() && self.is_quiet() {
            self.records.is_over = true;
            self.flush_all(plan);
        }
        // A repair may have begun after the flush.
        self.records.are_flushed &= !self.copies.has_repairs();
        let records = &self.records;
        if records.writing.is_some() {
            return;
        }
        let in_step = self.in_step();
        let is_waited_for = !self.done.is_empty() || records.is_urgent;
        let needs_dirt = records.record.is_clean
            && self.ranges.waits(|party| party != Party::Copy || self.copies.is_repair());
        let is_stale = records.record.in_step != in_step && is_waited_for;
        if !(needs_dirt || is_stale || records.are_flushed) {
            return;
        }
        let record = Record {
            in_step,
            is_clean: !needs_dirt && (records.record.is_clean || records.are_flushed),
            counter: records.record.counter + 1,
            ..records.record
        };
        let legs = self.with(Role::InStep) | self.with(Role::Behind);
        for leg in bits(legs) {
            let member = &self.legs[leg].member;
            plan.own(record_io(leg, member, &record, Cookie::Record as u64));
        }
        let round = Round { pending: legs.count_ones(), failed: 0 };
        self.records.writing = Some((record, round));
        (self.records.are_flushed, self.records.is_urgent) = (false, false);
    }

    pub(super) fn record_answered(
        &mut self,
        cookie: Cookie,
        leg: usize,
        result: IoResult,
        plan: &mut Plan,
    ) {
        if cookie == Cookie::Flush {
            let Some(round) = &mut self.records.flushing else { return };
            if round.answered(leg, result) {
                let failed = round.failed;
                self.flushed(failed);
            }
            return;
        }
        if result.is_ok() {
            let member = &mut self.legs[leg].member;
            member.next = 1 - member.next;
        }
        let Some((record, round)) = &mut self.records.writing else { return };
        if round.answered(leg, result) {
            let (record, failed) = (*record, round.failed);
            self.records.writing = None;
            self.written(record, failed, plan);
        }
    }

    /// Notes the flush of the legs in step.
    fn flushed(&mut self, failed: Mask) {
        self.records.flushing = None;
        for leg in bits(failed) {
            self.put_out(leg, "a flush failed");
        }
        self.records.are_flushed = failed == 0 && !self.records.is_disturbed;
    }

    /// Notes that the records of a state were answered by all legs.
    fn written(&mut self, record: Record, failed: Mask, plan: &mut Plan) {
        let in_step = self.with(Role::InStep);
        if failed & in_step == 0 {
            self.records.record = record;
        } else {
            // A leg may have the new state.
            let old = &mut self.records.record;
            old.counter = record.counter;
            old.in_step |= record.in_step;
            old.is_clean |= record.is_clean;
        }
        for leg in bits(failed) {
            self.put_out(leg, "its record cannot be written");
        }
        if in_step != 0 && in_step & !failed == 0 {
            self.findings.fault("the records of the mirror cannot be written".into());
            self.give_up(plan);
            self.records.is_urgent = false;
        }
    }

    /// Returns whether a flush would leave the legs with the same bytes.
    fn is_quiet(&self) -> bool {
        let Records { writing, flushing, are_flushed, .. } = &self.records;
        let is_busy = writing.is_some() || flushing.is_some() || *are_flushed;
        let copies = &self.copies;
        !is_busy && self.unanswered == 0 && !copies.has_repairs() && !copies.are_joining()
    }

    /// Returns whether the records say that the legs have the same bytes.
    fn is_clean(&self) -> bool {
        self.records.record.is_clean
    }

    fn flush_all(&mut self, plan: &mut Plan) {
        self.records.is_disturbed = false;
        if planted::is(Planted::CleansUnflushed) {
            return self.flushed(0);
        }
        let legs = self.with(Role::InStep);
        for leg in bits(legs) {
            plan.own(flush_io(leg, Cookie::Flush as u64));
        }
        self.records.flushing = Some(Round { pending: legs.count_ones(), failed: 0 });
    }

    /// Handles the passage of time.
    pub(super) fn rest(&mut self, now: Instant, plan: &mut Plan) {
        if self.is_clean() || !self.is_quiet() {
            self.records.quiet = None;
        } else if now >= *self.records.quiet.get_or_insert(now + QUIET) {
            self.records.quiet = None;
            self.flush_all(plan);
        }
    }
}
