//! The first step of an I/O: it is checked against the limits of the device, gets a cell, and goes into the plug.
//!
//! An I/O that the device does not take whole is divided into parts, which are tracked and joined again
//! (`spec/framework.md` section 13, Split). [`Limits::parts`] computes where to cut. Each part is a separate bio in its
//! own cell, and the code behind the plug does not know that there are other parts.

use super::Submitter;
use crate::dispatch::compare::locked::Locked;
use crate::shared::NoMerges;
use crate::shared::hctx::PluggedRequest;
use crate::shared::slots::{Bio, Claim};
use crate::submission::{Io, Refusal, Refused};
use blkmq_core::{
    Deadline, GroupId, GroupIndex, HwQueue, Instant, IoFlags, IoMeta, IoPrio, Limits, Nanos, Op,
    Owner, Payload, SECTOR_SIZE,
};
use blkmq_core::{IoError, IoResult, TooScattered, is_list};

/// For each operation, the most sectors that need no further check, wherever they are. Reads and writes of some groups
/// may have at most `longest`.
pub(super) fn plain_sizes(limits: &Limits, longest: u32) -> [u32; 5] {
    let segment = limits.max_segment_size / SECTOR_SIZE;
    let mut plain = [0; 5];
    for op in [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes] {
        let data = matches!(op, Op::Read | Op::Write);
        let one_segment = if data { segment.min(longest) } else { u32::MAX };
        plain[op as usize] = limits.max_whole_sectors(op).min(one_segment);
    }
    plain
}

impl<P: Payload> Submitter<P> {
    /// Takes an I/O into the plug, and merges it with the newest one there if they fit. Flushes the plug first when it
    /// is full. An I/O that the device does not take whole goes in as several bios, each under the same rules, of which
    /// only the last may merge. A bare flush that the device does not need is completed without being plugged.
    ///
    /// # Errors
    /// Returns the I/O, and has taken no part of it, if there is no credit for it, if the device could not take it, if
    /// it is expected to end after its [deadline](Io::deadline), or if the id of its group is stale.
    // Always inlined: a call would take 40 instructions more, because the I/O would travel through memory.
    #[inline(always)]
    pub fn push(&mut self, now: Instant, io: Io<P>) -> Result<(), Refused<P>> {
        if P::WRITE_ONLY && io.op == Op::Read {
            return Err(Refused::new(io, Refusal::WriteOnly));
        }
        // The id of the root is the same in every queue, and the most common one.
        if io.group != GroupId::ROOT && !self.q.hub.lasting.meters.knows(io.group) {
            return Err(Refused::new(apart(io), Refusal::NoGroup));
        }
        if io.deadline.is_some() {
            return self.push_with_deadline(now, apart(io));
        }
        if self.is_plain(io.op, io.flags, io.sector, io.sectors) && !is_data_list(&io) {
            self.push_whole(now, io, Whole::PLAIN)
        } else {
            self.push_large(now, apart(io))
        }
    }

    #[cold]
    #[inline(never)]
    fn push_with_deadline(&mut self, now: Instant, io: Io<P>) -> Result<(), Refused<P>> {
        if let Err(why) = self.check_deadline(now, &io) {
            return Err(Refused::new(io, why));
        }
        if self.is_plain(io.op, io.flags, io.sector, io.sectors) && !is_data_list(&io) {
            self.push_whole(now, io, Whole::PLAIN)
        } else {
            self.push_large(now, io)
        }
    }

    #[inline(always)]
    fn push_whole(&mut self, now: Instant, io: Io<P>, whole: Whole) -> Result<(), Refused<P>> {
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        let hw = parts.hw;
        let Io { sector, sectors, owner, cookie, .. } = io;
        let claim = Claim { sector, sectors, owner, cookie };
        let bio = match self.q.hub.lasting.table.claim(&mut parts.credit, claim, io.payload) {
            Ok(bio) => bio,
            Err(payload) => {
                let why = Refusal::NoCredit { depth: self.depth };
                return Err(Refused::new(apart(Io { payload, ..io }), why));
            }
        };
        let meta = IoMeta {
            sector: io.sector,
            sectors: io.sectors,
            owner: io.owner.or_submitter(parts.id),
            group: io.group.index(),
            arrived: now,
            segments: whole.segments,
            hw,
            ioprio: io.ioprio,
            op: io.op,
            flags: io.flags.without(self.q.hub.meaningless) | whole.flags,
            write_hint: io.write_hint,
            deadline: io.deadline,
        };
        self.enqueue(now, meta, bio);
        Ok(())
    }

    /// Pushes flushes and large I/Os, which have several segments or are not taken whole; refuses invalid ones. Only
    /// the current settings may refuse an I/O, answer a flush, or remove a flag, so the submitter checks first whether
    /// it knows them.
    #[cold]
    #[inline(never)]
    fn push_large(&mut self, now: Instant, io: Io<P>) -> Result<(), Refused<P>> {
        if io.op == Op::Flush || io.flags.intersects(self.q.hub.meaningless) {
            self.catch_up();
        }
        if self.is_poisoned() {
            return Err(Refused::new(io, Refusal::Poisoned));
        }
        if io.op == Op::Flush {
            return if self.q.hub.needs_no_flush {
                self.answer_flush(io)
            } else {
                self.push_whole(now, io, Whole::PLAIN)
            };
        }
        if let Err(why) = self.check(io.op, io.sector, io.sectors) {
            if self.is_current() {
                return Err(Refused::new(io, why));
            }
            self.take_up();
            return self.push_large(now, io);
        }
        // All parts are cut by one set of limits, even if the plug is flushed between two of them and the queue gets
        // other limits in the meantime.
        let limits = self.q.hub.limits;
        let in_list = is_data_list(&io);
        if in_list && !limits.takes_ranges(io.payload.ranges()) {
            let (start, len) = (limits.range_alignment, limits.logical_block_size);
            return Err(Refused::new(io, Refusal::RangeMisaligned { start, len }));
        }
        let Err(io) = self.push_short(now, &limits, io) else { return Ok(()) };
        if is_whole(&limits, &io) {
            let segments = segments(&limits, &io.payload, (io.op, io.sectors));
            // The merge rules do not know where the last range ends.
            let bars_merging = in_list && limits.virt_boundary_mask != 0;
            let flags = if bars_merging { IoFlags::NOMERGE } else { IoFlags::NONE };
            return self.push_whole(now, io, Whole { segments, flags });
        }
        let header = Header::of(&io);
        let credit = (self.depth, self.depth - self.in_flight());
        let count = self.splits.divide(&limits, io, credit)?;
        self.push_parts(now, &limits, (&header, count));
        Ok(())
    }

    /// Pushes an I/O of a group whose requests are shortened, in parts of that length. They take at most three quarters
    /// of the credit, so that some is left for further I/Os. Returns the I/O if it is short enough, or cannot be
    /// divided in this way.
    fn push_short(&mut self, now: Instant, limits: &Limits, io: Io<P>) -> Result<(), Io<P>> {
        // Each part of such a write would have its own flush.
        let is_data = matches!(io.op, Op::Read | Op::Write)
            && !io.flags.intersects(IoFlags::PREFLUSH | IoFlags::FUA);
        if !is_data || io.sectors <= self.longest || !self.shortens(io.group.index()) {
            return Err(io);
        }
        let block = limits.physical_block_size.max(limits.logical_block_size) / SECTOR_SIZE;
        let max_sectors = limits.max_sectors.min(self.longest.max(block));
        let limits = Limits { max_sectors, ..*limits };
        let spare = (self.depth - self.depth / 4).saturating_sub(self.splits.extra());
        let left = (self.depth - self.in_flight()).min(1 + spare);
        let header = Header::of(&io);
        let count =
            self.splits.divide(&limits, io, (self.depth, left)).map_err(Refused::into_io)?;
        self.push_parts(now, &limits, (&header, count));
        Ok(())
    }

    /// Pushes the parts of the last divided I/O.
    fn push_parts(&mut self, now: Instant, limits: &Limits, (header, count): (&Header, u32)) {
        let Header { op, flags, owner, group, ioprio, write_hint, deadline, cookie } = *header;
        self.tally.splits.add(u64::from(count - 1));
        while let Some(part) = self.splits.next_part() {
            let (sector, sectors) = (part.sector, part.sectors);
            let q = &*self.q;
            let parts =
                self.parts.as_mut().expect("parts are there until the submitter is dropped");
            let claim = Claim { sector, sectors, owner, cookie };
            let segments = segments(limits, &part.payload, (op, sectors));
            let bio = q.hub.lasting.table.claim(&mut parts.credit, claim, part.payload);
            let mut bio = bio.unwrap_or_else(|_| unreachable!("there is credit for every part"));
            self.splits.placed(part.number, q.hub.lasting.table.mark_part(&mut bio));
            let meta = IoMeta {
                sector,
                sectors,
                owner: owner.or_submitter(parts.id),
                group,
                arrived: now,
                segments,
                hw: parts.hw,
                ioprio,
                op,
                // FUA and PREFLUSH apply to every part. Each part is written separately, so each must be durable before
                // the I/O completes, and each must wait for the flush, which it could otherwise overtake.
                flags: flags.without(q.hub.meaningless) | part.flags,
                write_hint,
                deadline,
            };
            self.enqueue(now, meta, bio);
        }
    }
}

/// The form in which an I/O that is taken whole is plugged.
#[derive(Clone, Copy)]
struct Whole {
    segments: u16,
    /// Flags to be added to those of the I/O.
    flags: IoFlags,
}

impl Whole {
    /// An I/O in one segment.
    const PLAIN: Self = Self { segments: 1, flags: IoFlags::NONE };
}

/// The fields that all parts of an I/O share.
struct Header {
    op: Op,
    flags: IoFlags,
    owner: Owner,
    group: GroupIndex,
    ioprio: IoPrio,
    write_hint: u8,
    deadline: Deadline,
    cookie: u64,
}

impl Header {
    fn of<P>(io: &Io<P>) -> Self {
        let Io { op, flags, owner, group, ioprio, write_hint, deadline, cookie, .. } = *io;
        let group = group.index();
        Self { op, flags, owner, group, ioprio, write_hint, deadline, cookie }
    }
}

impl<P: Send> Submitter<P> {
    /// Returns whether this is an ordinary I/O: valid, in one segment, taken whole, and with all its flags.
    #[inline]
    fn is_plain(&self, op: Op, flags: IoFlags, sector: u64, sectors: u32) -> bool {
        let limits = &self.q.hub.limits;
        let mask = u64::from(limits.logical_block_size / SECTOR_SIZE - 1);
        let most = limits.within_chunk(op, sector, self.plain[op as usize]);
        (sector | u64::from(sectors)) & mask == 0
            && !flags.intersects(self.q.hub.meaningless)
            // Neither zero nor too many.
            && sectors.wrapping_sub(1) < most
            && sector.checked_add(sectors.into()).is_some_and(|end| end <= limits.capacity)
    }

    /// Checks that the I/O is valid, whole or divided.
    fn check(&self, op: Op, sector: u64, sectors: u32) -> Result<(), Refusal> {
        let limits = &self.q.hub.limits;
        let mask = u64::from(limits.logical_block_size / SECTOR_SIZE - 1);
        if sectors == 0 || (sector | u64::from(sectors)) & mask != 0 {
            return Err(Refusal::Misaligned { block: limits.logical_block_size });
        }
        if limits.max_sectors_of(op) == 0 {
            return Err(Refusal::Unsupported(op));
        }
        if sector.checked_add(sectors.into()).is_none_or(|end| end > limits.capacity) {
            return Err(Refusal::OutOfRange { capacity: limits.capacity });
        }
        Ok(())
    }

    /// Puts a bio into the plug. Always inlined: it is most of a push, and the calls from rare paths must not turn it
    /// into a function call there.
    #[inline(always)]
    fn enqueue(&mut self, now: Instant, meta: IoMeta, bio: Bio) {
        self.tally.submitted.add(1);
        if self.q.hub.lasting.meters.any() || !self.throttle.is_empty() {
            self.enqueue_metered(now, PluggedRequest { meta, bio, bios: 1 });
        } else {
            self.plug(now, meta, bio);
        }
    }

    #[inline(always)]
    pub(super) fn plug(&mut self, now: Instant, meta: IoMeta, bio: Bio) {
        let proto = PluggedRequest { meta, bio, bios: 1 };
        if let Some(kind) = self.plug.fits(&self.q.hub.limits, self.q.hub.nomerges, &proto.meta)
            && !self.would_be_long(&proto.meta)
        {
            self.plug.merge(&self.q.hub.lasting.table, kind, proto);
            self.tally.plug_merges.add(1);
            return;
        }
        if self.q.is_locked() {
            return self.push_locked(now, proto);
        }
        self.make_room(now);
        self.plug.append(proto);
    }

    /// Returns whether merging `io` into the newest request of the plug would make it longer than the requests of its
    /// group may be.
    #[inline]
    fn would_be_long(&self, io: &IoMeta) -> bool {
        let newest = self.plug.newest().map_or(0, |newest| newest.meta.sectors);
        newest.saturating_add(io.sectors) > self.longest
            && matches!(io.op, Op::Read | Op::Write)
            && self.shortens(io.group)
    }

    fn shortens(&self, group: GroupIndex) -> bool {
        self.q.hub.board.as_ref().is_some_and(|board| board.shortens(group))
    }

    /// Completes a bare flush for a device that needs none.
    #[cold]
    fn answer_flush(&mut self, io: Io<P>) -> Result<(), Refused<P>> {
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        let claim = Claim { sector: 0, sectors: 0, owner: io.owner, cookie: io.cookie };
        match self.q.hub.lasting.table.claim(&mut parts.credit, claim, io.payload) {
            Ok(bio) => {
                self.tally.submitted.add(1);
                self.tally.needless_flushes.add(1);
                let id = parts.id;
                if self.q.hub.lasting.senders[usize::from(id.0)].send_one(bio, Ok(())) {
                    self.q.wake(&[id]);
                }
                Ok(())
            }
            Err(payload) => {
                let why = Refusal::NoCredit { depth: self.depth };
                Err(Refused::new(Io { payload, ..io }, why))
            }
        }
    }

    #[inline]
    pub(super) fn make_room(&mut self, now: Instant) {
        if self.plug.must_flush(!matches!(self.q.hub.nomerges, NoMerges::None)) {
            self.flush(now);
        }
    }
}

/// Moves the I/O to another place. A function that takes an I/O for a rare case needs it in memory; with the copy, the
/// common case keeps it in registers.
#[inline(always)]
fn apart<P>(io: Io<P>) -> Io<P> {
    io.map(|payload| payload)
}

/// The number of segments of a bio that the device takes whole.
fn segments<P: Payload>(limits: &Limits, payload: &P, (op, sectors): (Op, u32)) -> u16 {
    let segments = limits.segments_of(op, sectors, payload);
    u16::try_from(segments).expect("no more than the limit, which fits")
}

/// Returns whether the device takes the I/O as one request.
fn is_whole<P: Payload>(limits: &Limits, io: &Io<P>) -> bool {
    let Io { op, sector, sectors, .. } = *io;
    if is_data_list(io) {
        let first = limits.parts_of_list(op, sector, sectors, io.payload.ranges()).next();
        return first == Some(Ok((sector, sectors)));
    }
    limits.first_part(op, sector, sectors) == sectors
}

impl<P: Send> Submitter<P> {
    /// The time that `io` is expected to take if it is pushed at `now`, from its arrival to its end: the work at the
    /// device, the work that the scheduler holds and serves before it, this submitter's plug, and the I/O itself. Zero
    /// while nothing is known; `None` without a forecast ([`Plan::forecast`](crate::Plan::forecast)). O(tags).
    #[must_use]
    pub fn expects(&self, now: Instant, io: &Io<P>) -> Option<Nanos> {
        let prospect = self.shard().prospect.as_ref()?;
        let hub = &self.q.hub;
        // Lanes of owners share their tags.
        let apart = if hub.has_owners() { 1 } else { usize::MAX };
        let hws = self.shard().hws().take(apart);
        let tags = hws.map(|hw| hub.hctx(HwQueue(hw)).tags.in_use()).sum();
        let (expected, own) = prospect.expects((now, tags), io.group.index(), io.op, io.sectors);
        Some(Nanos(expected.0.saturating_add(own.0.saturating_mul(self.plug.len() as u64))))
    }

    /// Checks that `io` is expected to meet its deadline, if it must.
    fn check_deadline(&mut self, now: Instant, io: &Io<P>) -> Result<(), Refusal> {
        self.catch_up();
        let Some(expected) = self.expects(now, io) else { return Err(Refusal::NoForecast) };
        if io.deadline.rejects() && expected > io.deadline.within() {
            self.tally.refused_late.add(1);
            return Err(Refusal::Late { expected });
        }
        Ok(())
    }

    /// Plugs or holds back a bio while a group has limits, or while an I/O still waits because of one.
    #[cold]
    fn enqueue_metered(&mut self, now: Instant, proto: PluggedRequest) {
        let meters = &self.q.hub.lasting.meters;
        let io = &proto.meta;
        let waits = self.throttle.waits(io.group, io.op) || meters.limit(io);
        let free = if waits { self.throttle.hold(now, meters, proto) } else { Some(proto) };
        match free {
            Some(PluggedRequest { meta, bio, .. }) => self.plug(now, meta, bio),
            None => self.tally.throttled.add(1),
        }
    }

    /// Plugs the I/Os that the current limits of their groups allow.
    #[cold]
    pub(super) fn let_go(&mut self, now: Instant) {
        self.throttle.revise(now, &self.q.hub.lasting.meters);
        while let Some(PluggedRequest { meta, bio, .. }) =
            self.throttle.next_due(now, &self.q.hub.lasting.meters)
        {
            self.plug(now, meta, bio);
        }
    }
}

impl<P: Send> Submitter<P> {
    /// As in the kernel, the lock is taken for the merge attempt of each bio.
    fn push_locked(&mut self, now: Instant, proto: PluggedRequest) {
        let who = self.id();
        if let Err(proto) = Locked(&self.q).locked_merge(self.shard(), who, now, proto) {
            self.make_room(now);
            self.plug.append(proto);
        }
    }
}

/// The I/O and part to which a cell belongs.
#[derive(Clone, Copy, Default)]
struct Place {
    split: u32,
    part: u32,
}

/// A divided I/O that has not been joined again.
struct Open<P> {
    /// In ascending order; `None` for a part that is in flight.
    payloads: Vec<Option<P>>,
    in_flight: u32,
    /// The error of the lowest failed part, with the number of the part.
    error: Option<(u32, IoError)>,
}

/// An I/O in parts that are being pushed.
struct Plan<P> {
    /// The first sector of each part, and its length in sectors.
    parts: Vec<(u64, u32)>,
    /// The payloads of the parts not yet pushed, the last part first.
    payloads: Vec<P>,
    split: u32,
    /// The last part may merge with the I/O that follows it.
    end_merges: bool,
}

/// The divided I/Os of one submitter. Allocates for the first one, and when more are open at a time than ever before.
pub(crate) struct Splits<P> {
    plan: Plan<P>,
    open: Vec<Open<P>>,
    free: Vec<u32>,
    /// By position of the cell among those of the submitter.
    places: Vec<Place>,
    /// Cells in flight beyond one for each open split.
    extra: u32,
}

/// One part, to be pushed.
struct Part<P> {
    /// The number of the part, from 0 on.
    pub(crate) number: u32,
    pub(crate) sector: u64,
    pub(crate) sectors: u32,
    /// [`IoFlags::NOMERGE`] or none; to be added to the flags of the I/O.
    pub(crate) flags: IoFlags,
    pub(crate) payload: P,
}

fn bytes(sectors: u64) -> usize {
    usize::try_from(sectors * u64::from(SECTOR_SIZE)).unwrap_or(usize::MAX)
}

/// Returns whether the I/O moves data that is in several ranges of memory.
#[inline(always)]
fn is_data_list<P: Payload>(io: &Io<P>) -> bool {
    is_list(&io.payload) && matches!(io.op, Op::Read | Op::Write)
}

/// Adds a part of a list to `parts`. Returns the reason if that is impossible.
fn keep(
    part: Result<(u64, u32), TooScattered>,
    limits: &Limits,
    parts: &mut Vec<(u64, u32)>,
) -> Option<Refusal> {
    match part {
        Ok(part) => {
            parts.push(part);
            None
        }
        Err(TooScattered) => {
            let boundary = limits.virt_boundary_mask.saturating_add(1);
            Some(Refusal::Scattered { segments: limits.max_segments, boundary })
        }
    }
}

/// Splits off the payloads of all parts but the first, from the end, so that the rest is not moved repeatedly. Returns
/// false, with nothing changed, if the payload does not allow it.
fn split_payload<P: Payload>(io: &mut Io<P>, parts: &[(u64, u32)], payloads: &mut Vec<P>) -> bool {
    for (sector, _) in parts[1..].iter().rev() {
        let Some(rest) = io.payload.split_off(bytes(sector - io.sector)) else {
            while let Some(rest) = payloads.pop() {
                io.payload.join(rest);
            }
            return false;
        };
        payloads.push(rest);
    }
    true
}

impl<P> Splits<P> {
    pub(crate) fn new() -> Self {
        Self {
            plan: Plan { parts: Vec::new(), payloads: Vec::new(), split: 0, end_merges: false },
            open: Vec::new(),
            free: Vec::new(),
            places: Vec::new(),
            extra: 0,
        }
    }

    /// Cells in flight beyond one for each open split: the number of bios that will not become separate completions.
    #[inline]
    pub(crate) fn extra(&self) -> u32 {
        self.extra
    }

    /// Returns whether the part in the cell at `place` is the last missing one of its I/O.
    pub(crate) fn completes(&self, place: u32) -> bool {
        self.open[self.places[place as usize].split as usize].in_flight == 1
    }
}

impl<P: Payload> Splits<P> {
    /// Divides `io`, which `limits` do not permit whole, for a submitter with a credit of `depth`, of which `left` is
    /// free. Returns the number of parts, which must then be taken by [`next_part`](Self::next_part).
    ///
    /// # Errors
    /// Returns the I/O whole and unchanged, with the reason why it cannot be divided.
    pub(crate) fn divide(
        &mut self,
        limits: &Limits,
        mut io: Io<P>,
        (depth, left): (u32, u32),
    ) -> Result<u32, Refused<P>> {
        let Plan { parts, payloads, .. } = &mut self.plan;
        parts.clear();
        let in_list = is_data_list(&io);
        // One more than the credit is enough to refuse it.
        let enough = depth as usize + 1;
        if in_list {
            let cuts = limits.parts_of_list(io.op, io.sector, io.sectors, io.payload.ranges());
            let why = cuts.take(enough).find_map(|part| keep(part, limits, parts));
            if let Some(why) = why {
                return Err(Refused::new(io, why));
            }
        } else {
            parts.extend(limits.parts(io.op, io.sector, io.sectors).take(enough));
        }
        let most = if in_list {
            parts[0].1
        } else {
            limits.within_chunk(io.op, io.sector, limits.max_whole_sectors(io.op))
        };
        let why = if io.flags.contains(IoFlags::NOWAIT) {
            Some(Refusal::NoWait { most })
        } else if parts.len() > depth as usize {
            parts.pop();
            Some(Refusal::TooLong { most: parts.iter().map(|(_, sectors)| sectors).sum() })
        } else if parts.len() > left as usize {
            Some(Refusal::NoCredit { depth })
        } else if !split_payload(&mut io, parts, payloads) {
            Some(Refusal::TooLong { most })
        } else {
            None
        };
        if let Some(why) = why {
            return Err(Refused::new(io, why));
        }
        let count = parts.len() as u32;
        let (last, _) = parts[parts.len() - 1];
        // The merge rules assume that memory begins at a virtual boundary; the memory of a part begins at its cut.
        let offset = if in_list { u64::MAX } else { bytes(last - io.sector) as u64 };
        self.plan.end_merges = offset & limits.virt_boundary_mask == 0;
        self.plan.payloads.push(io.payload);
        self.plan.split = self.open(count);
        self.places.resize(depth as usize, Place::default());
        self.extra += count - 1;
        Ok(count)
    }

    /// The next part of the last divided I/O, in ascending order.
    fn next_part(&mut self) -> Option<Part<P>> {
        let payload = self.plan.payloads.pop()?;
        let behind = self.plan.payloads.len();
        let number = self.plan.parts.len() - 1 - behind;
        let (sector, sectors) = self.plan.parts[number];
        let merges = behind == 0 && self.plan.end_merges;
        let flags = if merges { IoFlags::NONE } else { IoFlags::NOMERGE };
        Some(Part { number: number as u32, sector, sectors, flags, payload })
    }

    /// Records that this part of the last divided I/O is in the cell at `place`.
    fn placed(&mut self, part: u32, place: u32) {
        self.places[place as usize] = Place { split: self.plan.split, part };
    }

    fn open(&mut self, parts: u32) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.open.push(Open { payloads: Vec::new(), in_flight: 0, error: None });
            self.open.len() as u32 - 1
        });
        let open = &mut self.open[id as usize];
        debug_assert!(open.payloads.is_empty() && open.in_flight == 0, "it was closed");
        open.payloads.resize_with(parts as usize, || None);
        open.in_flight = parts;
        open.error = None;
        id
    }

    /// Takes back a part from the cell at `place`. If it was the last missing one, returns the result of the I/O, and
    /// its payload, whole again.
    pub(crate) fn part_done(
        &mut self,
        place: u32,
        result: IoResult,
        payload: P,
    ) -> Option<(IoResult, P)> {
        let Place { split, part } = self.places[place as usize];
        let open = &mut self.open[split as usize];
        let missing = open.payloads[part as usize].replace(payload);
        assert!(missing.is_none(), "a part comes back once");
        if let Err(error) = result
            && open.error.is_none_or(|(first, _)| part < first)
        {
            open.error = Some((part, error));
        }
        open.in_flight -= 1;
        if open.in_flight > 0 {
            self.extra -= 1;
            return None;
        }
        let mut parts = open.payloads.drain(..).map(|part| part.expect("every part is back"));
        let mut whole = parts.next().expect("there are parts");
        // The payload was divided from its end, so this is the reverse order.
        parts.for_each(|part| whole.join(part));
        self.free.push(split);
        Some((open.error.map_or(Ok(()), |(_, error)| Err(error)), whole))
    }
}
