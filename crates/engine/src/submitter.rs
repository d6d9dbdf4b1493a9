//! A submitter: one thread's way into a queue and back. It corresponds to the kernel's software queue (ctx).
//!
//! It owns its bio cells (its credit), its plug and its ends of two rings; pushing and reaping touch nothing that
//! other threads write. Contention begins, if at all, at [`flush`](Submitter::flush).

use crate::before::By;
use crate::cancel::Ask;
use crate::drive::Caller;
use crate::elevator::PluggedRequest;
use crate::follow::Follow;
use crate::io::{Completion, Io, Refusal, Refused};
use crate::planted::{self, Planted};
use crate::plug::{PLUG_REQUESTS, Plug};
use crate::queue::Root;
use crate::runner::Own;
use crate::shared::{Shard, Shared};
use crate::slots::{Bio, BioReceiver, Claim, Credit, Popped};
use crate::split::Splits;
use crate::stats::SubmitterCounters;
use crate::submitter::distress::Health;
use crate::submitter::reaped::Reaped;
use crate::sync::{Arc, Producer};
use crate::throttle::Throttle;
use crate::{Access, NoMerges};
use blkmq_core::{
    HwQueue, Instant, IoError, IoMeta, Limits, Op, Payload, SECTOR_SIZE, SubmitterId,
};
use crossbeam_utils::CachePadded;
use std::fmt;

mod departure;
mod distress;
mod interrupted;
mod limited;
mod park;
mod reaped;
mod throttled;

/// The private state of a submitter. The queue keeps it (`seats.rs`) while the submitter's number is not in use.
pub(crate) struct Parts {
    pub(crate) id: SubmitterId,
    pub(crate) hw: HwQueue,
    pub(crate) staging: Producer<PluggedRequest>,
    pub(crate) asks: Producer<Ask>,
    pub(crate) receiver: BioReceiver,
    pub(crate) credit: Credit,
}

/// One thread's handle to a queue.
///
/// # Contract
///
/// I/Os are taken in the order of [`push`](Self::push) and may complete in any order. An I/O that exceeds a limit of
/// the device is divided, and completes when all its parts have (`spec/framework.md` section 13): it costs a credit
/// for each part, and its payload must allow it ([`Payload::split_off`]). A pushed I/O is sent at the next
/// [`flush`](Self::flush) at the latest. With [`PumpMode::Inline`](crate::PumpMode::Inline) I/Os make progress while
/// any submitter of the queue submits, polls, or is parked as [`prepare_park`](Self::prepare_park) allows: a thread
/// that leaves for a long computation with I/Os in flight should flush first and expect to find them unfinished when
/// it comes back.
///
/// Dropping a submitter cancels the I/Os that it has not flushed. With I/Os in flight, its number and its cells come
/// back into use when those are done; no memory is freed that a device may still write to.
pub struct Submitter<P> {
    root: Arc<Root<P>>,
    /// The queue as this submitter last knew it.
    q: Arc<Shared<P>>,
    /// `None` only while the submitter is being dropped.
    parts: Option<Parts>,
    plug: Plug,
    throttle: Throttle,
    shard: usize,
    depth: u32,
    follow: Follow,
    /// By operation: the most sectors that are taken whole, as one segment. 0 for a flush, which has no sectors and
    /// takes the rare path.
    plain: [u32; 5],
    splits: Splits<P>,
    /// Counted among its shard's sleepers.
    is_counted: bool,
    health: Health,
    tally: Arc<CachePadded<SubmitterCounters>>,
}

/// The most sectors of each operation that need no further check, wherever they are.
fn plain_sizes(limits: &Limits) -> [u32; 5] {
    let segment = limits.max_segment_size / SECTOR_SIZE;
    let mut plain = [0; 5];
    for op in [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes] {
        let one_segment = if matches!(op, Op::Read | Op::Write) { segment } else { u32::MAX };
        plain[op as usize] = limits.max_whole_sectors(op).min(one_segment);
    }
    plain
}

impl<P> fmt::Debug for Submitter<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submitter").field("depth", &self.depth).finish_non_exhaustive()
    }
}

impl<P: Send> Submitter<P> {
    pub(crate) fn new(root: Arc<Root<P>>, parts: Parts) -> Self {
        let q = root.current();
        let depth = parts.credit.depth();
        let tally = Arc::clone(&q.lasting.tallies[usize::from(parts.id.0)]);
        let shard = q.shard_of(parts.hw);
        let follow = Follow::new(parts.id, q.shards[shard].lead());
        let plain = plain_sizes(&q.limits);
        Self {
            root,
            q,
            parts: Some(parts),
            plug: Plug::new(PLUG_REQUESTS),
            throttle: Throttle::default(),
            shard,
            depth,
            follow,
            plain,
            splits: Splits::new(),
            is_counted: false,
            health: Health::Sound,
            tally,
        }
    }

    fn parts(&mut self) -> &mut Parts {
        self.parts.as_mut().expect("parts are there until the submitter is dropped")
    }

    fn shard(&self) -> &Shard {
        &self.q.shards[self.shard]
    }

    /// The submitter's number.
    #[must_use]
    pub fn id(&self) -> SubmitterId {
        self.parts.as_ref().expect("parts are there until the submitter is dropped").id
    }

    /// The hardware queue to which the submitter maps.
    #[must_use]
    pub fn hw(&self) -> HwQueue {
        self.parts.as_ref().expect("parts are there until the submitter is dropped").hw
    }

    /// The submitter's credit: the most bios that it may have in flight. Each I/O is a bio, or several if it is
    /// divided.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Credit in use: bios taken and not yet reaped, plugged ones included. Each part of a divided I/O counts until
    /// it is reaped, so this can exceed [`outstanding`](Self::outstanding).
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.depth - self.parts.as_ref().map_or(0, |parts| parts.credit.left())
    }

    /// I/Os taken and not yet reaped, plugged ones included: completions still to come.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.in_flight() - self.splits.extra()
    }

    /// Requests in the plug, and I/Os that have merged in plugs of this submitter so far. For programs that show the
    /// effect of each [`push`](Self::push).
    #[must_use]
    pub fn plugged(&self) -> (u32, u64) {
        (self.plug.len() as u32, self.tally.plug_merges.get())
    }

    /// Is this an ordinary I/O: valid, in one segment, and taken whole?
    #[inline]
    fn is_plain(&self, op: Op, sector: u64, sectors: u32) -> bool {
        let limits = &self.q.limits;
        let mask = u64::from(limits.logical_block_size / SECTOR_SIZE - 1);
        let most = limits.within_chunk(sector, self.plain[op as usize]);
        (sector | u64::from(sectors)) & mask == 0
            // Neither zero nor too many.
            && sectors.wrapping_sub(1) < most
            && sector.checked_add(sectors.into()).is_some_and(|end| end <= limits.capacity)
    }

    /// Is the I/O valid, whole or in parts?
    fn check(&self, op: Op, sector: u64, sectors: u32) -> Result<(), Refusal> {
        let limits = &self.q.limits;
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

    /// Puts a bio into the plug. Inlined by force: it is most of a push, and the calls from the rare paths must not
    /// make it a function call there.
    #[inline(always)]
    fn enqueue(&mut self, now: Instant, meta: IoMeta, bio: Bio) {
        self.tally.submitted.add(1);
        if self.q.lasting.meters.any() || !self.throttle.is_empty() {
            self.enqueue_metered(now, PluggedRequest { meta, bio, bios: 1 });
        } else {
            self.plug(now, meta, bio);
        }
    }

    #[inline(always)]
    fn plug(&mut self, now: Instant, meta: IoMeta, bio: Bio) {
        if let Some(kind) = self.plug.fits(&self.q.limits, self.q.nomerges, &meta) {
            self.plug.merge(&self.q.lasting.table, kind, PluggedRequest { meta, bio, bios: 1 });
            self.tally.plug_merges.add(1);
        } else if self.q.modes.access == Access::Combining {
            self.make_room(now);
            self.plug.append(PluggedRequest { meta, bio, bios: 1 });
        } else {
            self.push_locked(now, PluggedRequest { meta, bio, bios: 1 });
        }
    }

    /// A bare flush for a device that needs none.
    #[cold]
    fn answer_flush(&mut self, io: Io<P>) -> Result<(), Refused<P>> {
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        let claim = Claim { sector: 0, sectors: 0, owner: io.owner, cookie: io.cookie };
        match self.q.lasting.table.claim(&mut parts.credit, claim, io.payload) {
            Ok(bio) => {
                self.tally.submitted.add(1);
                self.tally.needless_flushes.add(1);
                let id = parts.id;
                if self.q.lasting.senders[usize::from(id.0)].send_one(bio, Ok(())) {
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
    fn make_room(&mut self, now: Instant) {
        if self.plug.must_flush(self.q.nomerges != NoMerges::None) {
            self.flush(now);
        }
    }

    /// As in the kernel, the lock is taken for the merge attempt of each bio.
    fn push_locked(&mut self, now: Instant, proto: PluggedRequest) {
        let who = self.id();
        if let Err(proto) = self.q.locked_merge(self.shard(), who, now, proto) {
            self.make_room(now);
            self.plug.append(proto);
        }
    }

    /// Sends the plug: straight into the elevator if that is free, else into staging, where the runner finds it. Runs
    /// elevator and pumps inline as far as work is due.
    pub fn flush(&mut self, now: Instant) {
        if self.plug.is_empty() {
            return;
        }
        self.flush_plug(now);
    }

    fn flush_plug(&mut self, now: Instant) {
        self.catch_up();
        if self.is_poisoned() {
            self.end_all(now);
            return;
        }
        let q = &*self.q;
        let shard = &q.shards[self.shard];
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        let own = Own { id: parts.id, plug: &mut self.plug, staging: &mut parts.staging };
        if q.modes.access == Access::Combining {
            let by = Caller { id: Some(parts.id), now, home: parts.hw, tally: &self.tally };
            q.submit(shard, by, own, &mut self.follow);
        } else {
            q.locked_submit(shard, now, parts.hw, own);
        }
        // After the staged bios, if any, were marked, which is a full fence (`sync/control.rs`).
        if !self.is_current() && !planted::is(Planted::ForgetsVersion) {
            self.show_staged(now);
        }
    }

    /// Asks for the I/O with this cookie to be given up. If it still waits, in the plug, in staging or in an
    /// elevator, and is a request of its own, it ends with [`IoError::CANCELLED`] without reaching the device.
    /// Otherwise it continues and ends with its own result. That is the case when it has been merged with another
    /// I/O, when its flush sequence has begun, when it has been issued to a device, and always when it was divided:
    /// its parts are sent one by one, and some would be done. Either way it has one completion, which says how it
    /// ended. If no I/O in flight has the cookie, nothing happens.
    ///
    /// Cookies of I/Os that may be cancelled should differ. If several waiting I/Os have this cookie, the oldest in
    /// the plug is cancelled, and if there is none, the oldest beyond the plug, by the times that they were pushed
    /// with.
    ///
    /// O(everything that waits for the same elevator): not for every I/O. Runs elevator and pumps inline, as
    /// [`flush`](Self::flush) does, but leaves the plug alone.
    pub fn cancel(&mut self, now: Instant, cookie: u64) {
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        let (id, home) = (parts.id, parts.hw);
        let table = &self.q.lasting.table;
        let meters = &self.q.lasting.meters;
        let mut private = self.plug.remove(table, cookie);
        if private.is_none() && !self.throttle.is_empty() {
            private = self.throttle.remove(now, meters, table, cookie);
        }
        if let Some(bio) = private {
            self.tally.cancelled.add(1);
            if self.q.lasting.senders[usize::from(id.0)].send_one(bio, Err(IoError::CANCELLED)) {
                self.q.wake(&[id]);
            }
            return;
        }
        let ask = Ask { cookie, before: parts.staging.mark() };
        // The ring of asks is as large as the credit. If it is full, one of the asks is for this I/O, or the I/O
        // cannot be cancelled.
        if self.in_flight() == 0 || self.parts().asks.push(ask).is_err() {
            return;
        }
        self.catch_up();
        let q = &*self.q;
        let shard = &q.shards[self.shard];
        shard.asked.set(id.0);
        if q.modes.access == Access::Combining {
            let by = Caller { id: Some(id), now, home, tally: &self.tally };
            q.kick_and_drive(shard, by);
        } else {
            let _ = shard.gate.kick();
            q.locked_poll(shard, By { who: id.0.into(), now }, home);
        }
        // After the mark, which is a full fence (`sync/control.rs`).
        if !self.is_current() {
            self.show_staged(now);
        }
    }

    /// Is the queue that this submitter knows the current one?
    #[inline]
    fn is_current(&self) -> bool {
        self.q.version == self.q.lasting.control.version()
    }

    /// Takes up the current queue.
    #[inline]
    fn catch_up(&mut self) {
        if !self.is_current() {
            self.take_up();
        }
    }

    #[cold]
    fn take_up(&mut self) {
        self.q = self.root.current();
        self.shard = self.q.shard_of(self.hw());
        self.follow = Follow::new(self.id(), self.q.shards[self.shard].lead());
        self.plain = plain_sizes(&self.q.limits);
        if self.q.lasting.control.is_poisoned() {
            self.notice_poison();
        }
    }

    /// The queue was rebuilt while this submitter used it: its staged bios and asks may not have been seen.
    #[cold]
    fn show_staged(&mut self, now: Instant) {
        self.take_up();
        if self.is_poisoned() {
            self.end_all(now);
            return;
        }
        let id = self.id();
        let shard = self.shard();
        shard.pending.set(id.0);
        shard.asked.set(id.0);
        let _ = shard.gate.kick();
        self.poll(now);
    }

    /// Does the work that is due by `now`: an owed pass over the elevator, turns of pumps that have requests to
    /// finish.
    pub fn poll(&mut self, now: Instant) {
        if self.throttle.is_due(now) {
            self.let_go(now);
            self.flush(now);
        }
        self.catch_up();
        if self.is_poisoned() {
            self.end_all(now);
            return;
        }
        let (id, hw) = (self.id(), self.hw());
        let q = &*self.q;
        let shard = &q.shards[self.shard];
        let ran = match q.modes.access {
            Access::Combining if !self.follow.should_look() => false,
            Access::Combining => {
                let by = Caller { id: Some(id), now, home: hw, tally: &self.tally };
                q.poll(shard, by, &mut self.follow)
            }
            Access::Spin | Access::Mutex | Access::Serialised => {
                q.locked_poll(shard, By { who: id.0.into(), now }, hw)
            }
        };
        if ran && self.in_flight() == 0 {
            // As in `reap`: this thread may leave behind work that it ran for others.
            q.wake_successor(shard);
        }
    }
}

impl<P: Payload> Submitter<P> {
    /// Takes an I/O into the plug, merging it with the newest one there if they fit. Flushes the plug first when it
    /// is full. An I/O that the device does not take whole goes in as several bios, each under the same rules, of
    /// which only the last may merge. A bare flush that the device does not need is not plugged but completed.
    ///
    /// # Errors
    /// Returns the I/O, and has taken nothing of it, if there is no credit for it or the device could not take it.
    #[inline]
    pub fn push(&mut self, now: Instant, io: Io<P>) -> Result<(), Refused<P>> {
        if P::WRITE_ONLY && io.op == Op::Read {
            return Err(Refused::new(io, Refusal::WriteOnly));
        }
        if self.is_plain(io.op, io.sector, io.sectors) {
            self.push_whole(now, io, 1)
        } else {
            self.push_large(now, io)
        }
    }

    #[inline(always)]
    fn push_whole(&mut self, now: Instant, io: Io<P>, segments: u16) -> Result<(), Refused<P>> {
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        let hw = parts.hw;
        let Io { sector, sectors, owner, cookie, .. } = io;
        let claim = Claim { sector, sectors, owner, cookie };
        let bio = match self.q.lasting.table.claim(&mut parts.credit, claim, io.payload) {
            Ok(bio) => bio,
            Err(payload) => {
                let why = Refusal::NoCredit { depth: self.depth };
                return Err(Refused::new(Io { payload, ..io }, why));
            }
        };
        let meta = IoMeta {
            sector: io.sector,
            sectors: io.sectors,
            owner: io.owner,
            group: io.group,
            arrived: now,
            segments,
            hw,
            ioprio: io.ioprio,
            op: io.op,
            flags: io.flags.without(self.q.meaningless),
            write_hint: io.write_hint,
        };
        self.enqueue(now, meta, bio);
        Ok(())
    }

    /// Pushes flushes and large I/Os, which have several segments or are not taken whole; refuses invalid ones.
    #[cold]
    #[inline(never)]
    fn push_large(&mut self, now: Instant, io: Io<P>) -> Result<(), Refused<P>> {
        if self.is_poisoned() {
            return Err(Refused::new(io, Refusal::Poisoned));
        }
        if io.op == Op::Flush {
            return if self.q.needs_no_flush {
                self.answer_flush(io)
            } else {
                self.push_whole(now, io, 1)
            };
        }
        if let Err(why) = self.check(io.op, io.sector, io.sectors) {
            return Err(Refused::new(io, why));
        }
        // All parts are cut by one set of limits, even if the plug is flushed between two of them and the queue has
        // other limits by then.
        let limits = self.q.limits;
        if limits.first_part(io.op, io.sector, io.sectors) == io.sectors {
            let segments = segments(&limits, io.op, io.sectors);
            return self.push_whole(now, io, segments);
        }
        let Io { op, flags, owner, group, ioprio, write_hint, cookie, .. } = io;
        let credit = (self.depth, self.depth - self.in_flight());
        let count = self.splits.divide(&limits, io, credit)?;
        self.tally.splits.add(u64::from(count - 1));
        while let Some(part) = self.splits.next_part() {
            let (sector, sectors) = (part.sector, part.sectors);
            let q = &*self.q;
            let parts =
                self.parts.as_mut().expect("parts are there until the submitter is dropped");
            let claim = Claim { sector, sectors, owner, cookie };
            let bio = q.lasting.table.claim(&mut parts.credit, claim, part.payload);
            let mut bio = bio.unwrap_or_else(|_| unreachable!("there is credit for every part"));
            self.splits.placed(part.number, q.lasting.table.mark_part(&mut bio));
            let meta = IoMeta {
                sector,
                sectors,
                owner,
                group,
                arrived: now,
                segments: segments(&limits, op, sectors),
                hw: parts.hw,
                ioprio,
                op,
                // FUA and PREFLUSH apply to every part. Each part is written by itself, so each must be durable
                // before the I/O completes, and each must wait for the flush, which it would otherwise overtake.
                flags: flags.without(q.meaningless) | part.flags,
                write_hint,
            };
            self.enqueue(now, meta, bio);
        }
        Ok(())
    }

    /// Hands up to `most` completions to `take`, oldest first. Returns how many. A part of a divided I/O is not a
    /// completion, unless it is the last missing one: then the I/O completes, with the first error in ascending order
    /// of sectors if there was one.
    pub fn reap(&mut self, most: u32, mut take: impl FnMut(Completion<P>)) -> u32 {
        let q = &*self.q;
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        let mut reaped = 0;
        let mut counted = Reaped { bios: 0, tally: &self.tally };
        while reaped < most
            && let Some(popped) = parts.receiver.pop(&q.lasting.table, &mut parts.credit)
        {
            counted.bios += 1;
            let Popped { cookie, mut result, mut payload, cell, part } = popped;
            if part {
                match self.splits.part_done(q.lasting.table.place(cell), result, payload) {
                    Some(whole) => (result, payload) = whole,
                    None => continue,
                }
            }
            take(Completion { cookie, result, payload });
            reaped += 1;
        }
        let bios = counted.bios;
        drop(counted);
        if bios > 0 && parts.credit.left() == self.depth {
            // With no I/O in flight this thread may never come back, and a parked submitter may count on it.
            self.catch_up();
            self.q.wake_successor(self.shard());
        }
        reaped
    }

    /// Are there probably `n` completions to reap? Looks at one entry of the ring only, so that a thread that spins
    /// on this does not take a line that is being filled. With `n` of 1 the answer is exact.
    ///
    /// Takes in finished parts of divided I/Os, if they are the oldest entries and do not complete their I/O.
    #[must_use]
    pub fn has_completions(&mut self, n: u32) -> bool {
        if self.splits.extra() > 0 {
            self.take_parts_in();
        }
        self.parts().receiver.reaches(n)
    }

    /// Takes in parts until the front of the ring is a completion, or the ring is empty.
    #[cold]
    fn take_parts_in(&mut self) {
        let q = &*self.q;
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        while let Some(place) = parts.receiver.peek_part(&q.lasting.table)
            && !self.splits.completes(place)
        {
            let popped = parts.receiver.pop(&q.lasting.table, &mut parts.credit);
            let part = popped.expect("it was seen just now");
            let whole = self.splits.part_done(place, part.result, part.payload);
            assert!(whole.is_none(), "others are missing");
            self.tally.completed.add(1);
        }
    }
}

/// Segments of a bio that the device takes whole.
fn segments(limits: &Limits, op: Op, sectors: u32) -> u16 {
    u16::try_from(limits.segments(op, sectors)).expect("no more than the limit, which fits")
}
