//! A submitter: one thread's way into a queue and back, the software queue (ctx) of the kernel.
//!
//! It owns its bio cells (its credit), its plug and its ends of two rings; pushing and reaping touch nothing
//! that others write. Contention begins, if at all, at [`flush`](Submitter::flush).

use crate::cancel::Ask;
use crate::drive::Caller;
use crate::elevator::Proto;
use crate::follow::Follow;
use crate::planted::{self, Planted};
use crate::plug::{PLUG_REQUESTS, Plug};
use crate::queue::Root;
use crate::runner::Own;
use crate::shared::{Shard, Shared};
use crate::slots::{BioReceiver, Credit};
use crate::stats::SubmitterCounters;
use crate::sync::{Arc, Ordering, Producer, fence};
use crate::{Access, NoMerges};
use blkmq_core::{
    HwQueue, Instant, IoError, IoFlags, IoMeta, IoPrio, IoResult, Op, Owner, SubmitterId,
};
use crossbeam_utils::CachePadded;
use std::fmt;

/// An I/O as its submitter describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Io<P> {
    /// What to do.
    pub op: Op,
    /// Where: a multiple of the logical block size, in sectors.
    pub sector: u64,
    /// How much, likewise. 0 only for a flush.
    pub sectors: u32,
    /// How. Reads are made [`IoFlags::SYNC`] unless this is set by hand.
    pub flags: IoFlags,
    /// With which priority.
    pub ioprio: IoPrio,
    /// Who pays.
    pub owner: Owner,
    /// Expected lifetime of what is written; 0 for unknown.
    pub write_hint: u8,
    /// Comes back with the completion.
    pub cookie: u64,
    /// What the device needs to find the bytes; comes back with the completion.
    pub payload: P,
}

impl<P> Io<P> {
    /// An I/O with defaults for everything else: sync if it is a read, no priority, owner 0.
    pub fn new(op: Op, sector: u64, sectors: u32, cookie: u64, payload: P) -> Self {
        Self {
            op,
            sector,
            sectors,
            flags: if op == Op::Read { IoFlags::SYNC } else { IoFlags::NONE },
            ioprio: IoPrio::default(),
            owner: Owner(0),
            write_hint: 0,
            cookie,
            payload,
        }
    }
}

/// A finished I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion<P> {
    /// As in its [`Io`].
    pub cookie: u64,
    /// How it ended.
    pub result: IoResult,
    /// As in its [`Io`].
    pub payload: P,
}

/// Why an I/O was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// As many are in flight as the submitter has credit for. Reap, then try again.
    NoCredit {
        /// The credit.
        depth: u32,
    },
    /// Start or length is no multiple of the logical block size, or the length is zero.
    Misaligned {
        /// The logical block size in bytes.
        block: u32,
    },
    /// Longer than the device takes at once.
    TooLong {
        /// The most, in sectors.
        most: u32,
    },
    /// Beyond the end of the device.
    OutOfRange {
        /// Its size in sectors.
        capacity: u64,
    },
    /// The device does not have this operation.
    Unsupported(Op),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCredit { depth } => {
                write!(f, "all {depth} I/Os of this submitter are in flight; reap first")
            }
            Self::Misaligned { block } => {
                write!(f, "start and length must be multiples of {block} bytes, the length above 0")
            }
            Self::TooLong { most } => {
                write!(f, "longer than the {most} sectors that the device takes at once")
            }
            Self::OutOfRange { capacity } => {
                write!(f, "beyond the end of the device at sector {capacity}")
            }
            Self::Unsupported(op) => write!(f, "the device does not support {op:?}"),
        }
    }
}

/// Without the I/O, for errors that outlive it or cross threads; a buffer often may not.
impl std::error::Error for Refusal {}

/// An I/O that was not taken, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused<P> {
    /// Unchanged.
    pub io: Io<P>,
    /// Why.
    pub why: Refusal,
}

impl<P> fmt::Display for Refused<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

impl<P: fmt::Debug> std::error::Error for Refused<P> {}

/// A submitter's private things, kept by the queue while nobody is registered under its number.
pub(crate) struct Parts {
    pub(crate) id: SubmitterId,
    pub(crate) hw: HwQueue,
    pub(crate) staging: Producer<Proto>,
    pub(crate) asks: Producer<Ask>,
    pub(crate) receiver: BioReceiver,
    pub(crate) credit: Credit,
}

/// One thread's handle to a queue.
///
/// # Contract
///
/// I/Os are taken in the order of [`push`](Self::push) and may complete in any. A pushed I/O is on its way
/// after the next [`flush`](Self::flush) at the latest. With
/// [`PumpMode::Inline`](crate::PumpMode::Inline) they make progress while any submitter of the queue submits,
/// polls, or is parked as [`prepare_park`](Self::prepare_park) allows: a thread that leaves for a long
/// computation with I/Os in flight should flush first and expect to find them when it comes back.
///
/// Dropping a submitter with I/Os in flight keeps its number and its cells out of use for good; nothing is
/// freed that a device may still write to.
pub struct Submitter<P> {
    root: Arc<Root<P>>,
    /// The queue as this submitter last knew it.
    q: Arc<Shared<P>>,
    /// `None` only while it is being dropped.
    parts: Option<Parts>,
    plug: Plug,
    shard: usize,
    depth: u32,
    follow: Follow,
    tally: Arc<CachePadded<SubmitterCounters>>,
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
        let follow = Follow::new(parts.id, &q.shards[shard].lead);
        Self {
            root,
            q,
            parts: Some(parts),
            plug: Plug::new(PLUG_REQUESTS),
            shard,
            depth,
            follow,
            tally,
        }
    }

    fn parts(&mut self) -> &mut Parts {
        self.parts.as_mut().expect("parts are there until the submitter is dropped")
    }

    fn shard(&self) -> &Shard {
        &self.q.shards[self.shard]
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> SubmitterId {
        self.parts.as_ref().expect("parts are there until the submitter is dropped").id
    }

    /// The hardware queue that it maps to.
    #[must_use]
    pub fn hw(&self) -> HwQueue {
        self.parts.as_ref().expect("parts are there until the submitter is dropped").hw
    }

    /// I/Os that it may have in flight at once.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// I/Os taken and not yet reaped, plugged ones included.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.depth - self.parts.as_ref().map_or(0, |parts| parts.credit.left())
    }

    fn check(&self, op: Op, sector: u64, sectors: u32) -> Result<(), Refusal> {
        let limits = &self.q.limits;
        if op == Op::Flush {
            return Ok(());
        }
        let mask = u64::from(limits.logical_block_size / blkmq_core::SECTOR_SIZE - 1);
        if sectors == 0 || (sector | u64::from(sectors)) & mask != 0 {
            return Err(Refusal::Misaligned { block: limits.logical_block_size });
        }
        let most = limits.max_sectors_at(sector, op == Op::Discard);
        if most == 0 {
            return Err(Refusal::Unsupported(op));
        }
        if sectors > most {
            return Err(Refusal::TooLong { most });
        }
        if sector.checked_add(sectors.into()).is_none_or(|end| end > limits.capacity) {
            return Err(Refusal::OutOfRange { capacity: limits.capacity });
        }
        Ok(())
    }

    /// Takes an I/O into the plug, merging it with the newest one there if they fit. Flushes the plug first
    /// when it is full. A bare flush that the device has no need of is not plugged but done.
    ///
    /// # Errors
    /// Gives the I/O back if there is no credit for it or the device could not take it.
    #[inline]
    pub fn push(&mut self, now: Instant, io: Io<P>) -> Result<(), Refused<P>> {
        if let Err(why) = self.check(io.op, io.sector, io.sectors) {
            return Err(Refused { io, why });
        }
        if io.op == Op::Flush && self.q.needs_no_flush {
            return self.answer_flush(io);
        }
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        let hw = parts.hw;
        let bio = match self.q.lasting.table.claim(
            &mut parts.credit,
            io.sector,
            io.sectors,
            io.cookie,
            io.payload,
        ) {
            Ok(bio) => bio,
            Err(payload) => {
                let why = Refusal::NoCredit { depth: self.depth };
                return Err(Refused { io: Io { payload, ..io }, why });
            }
        };
        let meta = IoMeta {
            sector: io.sector,
            sectors: io.sectors,
            owner: io.owner,
            arrived: now,
            segments: 1,
            hw,
            ioprio: io.ioprio,
            op: io.op,
            flags: io.flags.without(self.q.meaningless),
            write_hint: io.write_hint,
        };
        self.tally.submitted.add(1);
        if let Some(kind) = self.plug.fits(&self.q.limits, self.q.nomerges, &meta) {
            self.plug.merge(&self.q.lasting.table, kind, Proto { meta, bio, bios: 1 });
            self.tally.plug_merges.add(1);
        } else if self.q.access == Access::Combining {
            self.make_room(now);
            self.plug.append(Proto { meta, bio, bios: 1 });
        } else {
            self.push_locked(now, Proto { meta, bio, bios: 1 });
        }
        Ok(())
    }

    /// A bare flush for a device that has nothing to flush.
    #[cold]
    fn answer_flush(&mut self, io: Io<P>) -> Result<(), Refused<P>> {
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        match self.q.lasting.table.claim(&mut parts.credit, 0, 0, io.cookie, io.payload) {
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
                Err(Refused { io: Io { payload, ..io }, why })
            }
        }
    }

    #[inline]
    fn make_room(&mut self, now: Instant) {
        if self.plug.must_flush(self.q.nomerges != NoMerges::None) {
            self.flush(now);
        }
    }

    /// As in the kernel: the lock is taken for the merge attempt of each bio.
    fn push_locked(&mut self, now: Instant, proto: Proto) {
        let who = self.id();
        if let Err(proto) = self.q.locked_merge(self.shard(), who, now, proto) {
            self.make_room(now);
            self.plug.append(proto);
        }
    }

    /// Sends the plug on its way: straight into the elevator if that is free, else where whoever runs it
    /// will find it. Runs elevator and pumps inline as far as there is something to do.
    pub fn flush(&mut self, now: Instant) {
        if self.plug.is_empty() {
            return;
        }
        self.catch_up();
        let q = &*self.q;
        let shard = &q.shards[self.shard];
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        let own = Own { id: parts.id, plug: &mut self.plug, staging: &mut parts.staging };
        match q.access {
            Access::Combining => {
                let by = Caller { id: Some(parts.id), now, home: parts.hw, tally: &self.tally };
                q.submit(shard, by, own, &mut self.follow);
            }
            Access::Spin | Access::Mutex => q.locked_submit(shard, now, parts.hw, own),
        }
        // After what was staged, if so, was marked, which is a full fence (`sync/control.rs`).
        if !self.is_current() && !planted::is(Planted::ForgetsVersion) {
            self.show_staged(now);
        }
    }

    /// Asks for the I/O with this cookie to be given up. If it still waits, in the plug, in staging or in an
    /// elevator, and as a request of its own, it ends with [`IoError::CANCELLED`] without having been done;
    /// otherwise it goes on and ends as it ends. That is the case when it has been merged with another one,
    /// when its flush sequence has begun, and when it has been issued to a device. Either way it has one
    /// completion, which says what happened to it. If no I/O in flight has the cookie, nothing happens.
    ///
    /// Cookies by which I/Os are to be cancelled should differ. If several that still wait bear this one, it is
    /// the oldest in the plug, and if none is there, the oldest beyond it, going by the times that they were
    /// pushed with.
    ///
    /// O(everything that waits for the same elevator): not for every I/O. Runs elevator and pumps inline, as
    /// [`flush`](Self::flush) does, but leaves the plug alone.
    pub fn cancel(&mut self, now: Instant, cookie: u64) {
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        let (id, home) = (parts.id, parts.hw);
        if let Some(bio) = self.plug.remove(&self.q.lasting.table, cookie) {
            self.tally.cancelled.add(1);
            if self.q.lasting.senders[usize::from(id.0)].send_one(bio, Err(IoError::CANCELLED)) {
                self.q.wake(&[id]);
            }
            return;
        }
        let ask = Ask { cookie, before: parts.staging.mark() };
        // As many asks as there can be I/Os wait already: one of them is for this one, or it is not to be had.
        if self.in_flight() == 0 || self.parts().asks.push(ask).is_err() {
            return;
        }
        self.catch_up();
        let q = &*self.q;
        let shard = &q.shards[self.shard];
        shard.asked.set(id.0);
        match q.access {
            Access::Combining => {
                let by = Caller { id: Some(id), now, home, tally: &self.tally };
                q.kick_and_drive(shard, by);
            }
            Access::Spin | Access::Mutex => {
                let _ = shard.gate.kick();
                q.locked_poll(shard, id.0.into(), now, home);
            }
        }
        // After the mark, which is a full fence (`sync/control.rs`).
        if !self.is_current() {
            self.show_staged(now);
        }
    }

    /// Is the queue that this submitter knows the queue?
    #[inline]
    fn is_current(&self) -> bool {
        self.q.version == self.q.lasting.control.version()
    }

    /// Takes up the queue as it is made up at present.
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
        self.follow = Follow::new(self.id(), &self.q.shards[self.shard].lead);
    }

    /// The queue was rebuilt while this submitter used it: what it staged, or asked for, may not have been seen.
    #[cold]
    fn show_staged(&mut self, now: Instant) {
        self.take_up();
        let id = self.id();
        let shard = self.shard();
        shard.pending.set(id.0);
        shard.asked.set(id.0);
        let _ = shard.gate.kick();
        self.poll(now);
    }

    /// Does what is due by `now`: an owed pass over the elevator, hardware queues with something to finish.
    pub fn poll(&mut self, now: Instant) {
        self.catch_up();
        let (id, hw) = (self.id(), self.hw());
        let q = &*self.q;
        let shard = &q.shards[self.shard];
        let ran = match q.access {
            Access::Combining if !self.follow.should_look() => false,
            Access::Combining => {
                let by = Caller { id: Some(id), now, home: hw, tally: &self.tally };
                q.poll(shard, by, &mut self.follow)
            }
            Access::Spin | Access::Mutex => q.locked_poll(shard, id.0.into(), now, hw),
        };
        if ran && self.in_flight() == 0 {
            // As in `reap`: what this thread ran for others it may leave behind.
            q.hand_on(shard);
        }
    }

    /// Hands up to `most` completions to `take`, oldest first. Returns how many.
    pub fn reap(&mut self, most: u32, mut take: impl FnMut(Completion<P>)) -> u32 {
        let q = &*self.q;
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        let mut reaped = 0;
        while reaped < most
            && let Some((cookie, result, payload)) =
                parts.receiver.pop(&q.lasting.table, &mut parts.credit)
        {
            take(Completion { cookie, result, payload });
            reaped += 1;
        }
        self.tally.completed.add(u64::from(reaped));
        if reaped > 0 && parts.credit.left() == self.depth {
            // Nothing in flight, so this thread may never come back; somebody may sleep who counts on it.
            self.catch_up();
            self.q.hand_on(self.shard());
        }
        reaped
    }

    /// Are there probably `n` completions to reap? Looks at one entry of the ring only, so that a thread that
    /// spins on this does not take a line that is being filled. With `n` of 1 the answer is exact.
    #[must_use]
    pub fn has_completions(&mut self, n: u32) -> bool {
        self.parts().receiver.reaches(n)
    }

    /// May the thread park? If so it must, until [`Host::wake_submitter`](crate::Host::wake_submitter) names
    /// it or [`next_deadline`](Self::next_deadline) passes, and then call [`unpark`](Self::unpark). Not
    /// allowed while there is something to reap or to do, or to flush.
    #[must_use]
    pub fn prepare_park(&mut self, now: Instant) -> bool {
        self.catch_up();
        if !self.plug.is_empty() || !self.parts().receiver.prepare_park() {
            return false;
        }
        // Pairs with `find_parked`: the mark is set, then looked for what is due; there it is the other way
        // round, so one of both sees the other. Likewise whoever rebuilds the queue.
        fence(Ordering::SeqCst);
        let due = !self.is_current() || self.q.is_due(self.shard(), now);
        if due {
            self.parts().receiver.cancel_park();
        }
        !due
    }

    /// After parking, however it ended.
    pub fn unpark(&mut self) {
        self.parts().receiver.cancel_park();
    }

    /// When something will be due without anybody asking again, and should be polled for.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.q.deadline(self.shard())
    }
}

impl<P> Drop for Submitter<P> {
    fn drop(&mut self) {
        if let Some(parts) = self.parts.take()
            && parts.credit.left() == self.depth
        {
            self.root.retire(parts);
        }
    }
}
