//! The words that all threads of a queue share, without the elevators and the pumps themselves.
//!
//! A runner and a pump are given the [`Hub`], so they can read and write words, but cannot start anything: they leave
//! kicks, timers and wake-ups to their caller as [`Duties`], and finished bios to the [`Completions`] of their batch. A
//! change of a queue in use builds a new hub (`reconfiguration/change.rs`); [`Lasting`] stays, with the parts of the
//! submitters ([`Seats`]).

use crate::groups::{Ledger, Meters};
use crate::planted::Planted;
use crate::shared::common::Common;
use crate::shared::duties::Duties;
use crate::shared::follow::Lead;
use crate::shared::hctx::{Hctx, Membership, PluggedRequest};
#[cfg(feature = "compare")]
use crate::shared::modes::ShardModes;
use crate::shared::slots::{Aside, Bio, BioReceiver, BioSender, Credit, Finish};
use crate::shared::stats::{Board, ElevatorCounters, Prospect, SubmitterCounters};
use crate::sync::{
    Alarm, Arc, Attendance, Budget, Control, Mark, Mutex, MutexGuard, Ordering, Pending,
    PoisonError, Producer, Sleepers, fence,
};
use crate::{BioTable, Host, NoMerges, PumpMode, planted};
use blkmq_core::{HwQueue, IoFlags, IoResult, Limits, SubmitterId};
use crossbeam_utils::CachePadded;

/// The current words of a queue, replaced when the queue is changed.
pub(crate) struct Hub<P> {
    /// The version, as in [`Control`](crate::sync::Control).
    pub(crate) version: u32,
    pub(crate) limits: Limits,
    /// The device needs no bare flushes, so `push` answers them immediately.
    pub(crate) needs_no_flush: bool,
    /// Flags that have no meaning for the device.
    pub(crate) meaningless: IoFlags,
    #[cfg(feature = "compare")]
    pub(crate) modes: crate::EffectiveModes,
    /// The most requests that one hold of a lock dispatches.
    #[cfg(feature = "compare")]
    pub(crate) nr_requests: u32,
    pub(crate) nomerges: NoMerges,
    pub(crate) shards: Box<[Shard]>,
    pub(crate) hctxs: Box<[Hctx]>,
    pub(crate) budget: Budget,
    /// The state of latency goals; `None` if no group has one.
    pub(crate) board: Option<Board>,
    /// Shards that wait for a budget.
    pub(crate) budget_wait: Pending,
    /// Shards that wait for tags shared with other queues.
    pub(crate) tag_wait: Pending,
    /// State that the policy's instances share; `None` if they share none.
    pub(crate) common: Option<Arc<Common>>,
    pub(crate) lasting: Arc<Lasting<P>>,
}

impl<P> Hub<P> {
    /// The elevator that serves `hw`.
    pub(crate) fn shard_of(&self, hw: HwQueue) -> usize {
        if self.shards.len() == 1 { 0 } else { hw.0.into() }
    }

    /// Returns whether each submitter has its own lane.
    #[inline]
    pub(crate) fn has_owners(&self) -> bool {
        self.lasting.pump_mode == PumpMode::Owner
    }

    #[inline]
    pub(crate) fn hctx(&self, hw: HwQueue) -> &Hctx {
        &self.hctxs[usize::from(hw.0)]
    }

    /// The number with which the pump thread of `hw` takes locks: above those of all submitters.
    #[cfg(feature = "compare")]
    pub(crate) fn pump_thread(&self, hw: HwQueue) -> usize {
        self.lasting.senders.len() + usize::from(hw.0)
    }

    /// The number with which a thread that changes the queue takes locks: above those of the pump threads.
    pub(crate) fn changer(&self) -> usize {
        self.lasting.senders.len() + self.hctxs.len()
    }

    /// The number with which a [`Run`](crate::Run) holds a lock: the last one.
    #[cfg(feature = "compare")]
    pub(crate) fn keeper(&self) -> usize {
        self.changer() + 1
    }

    /// Takes up to `want` budgets. If there are none, registers `shard` to be kicked, and tries once more.
    pub(crate) fn take_budget(&self, shard: &Shard, want: u32) -> u32 {
        match self.budget.take(want) {
            0 => {
                self.budget_wait.set(shard.index);
                self.budget.take(want)
            }
            got => got,
        }
    }

    /// Returns budgets, and notes that the elevators that wait for one must be kicked.
    #[inline(never)]
    pub(crate) fn put_budget(&self, budgets: u32, duties: &mut Duties) {
        self.budget.put(budgets);
        fence(Ordering::SeqCst);
        if self.budget_wait.any() && !planted::is(Planted::ForgetsBudgetWaiters) {
            self.budget_wait.take(|shard| duties.kick(shard));
        }
    }

    /// Returns tokens of a pool, and notes that the elevators that wait for one must be kicked.
    pub(crate) fn put_tokens(&self, pool: usize, tokens: u32, duties: &mut Duties) {
        let common = self.common.as_ref().expect("a request has a token of its queue's policy");
        common.put(pool, tokens, |shard| {
            if !planted::is(Planted::ForgetsTokenWaiters) {
                duties.kick(shard);
            }
        });
    }
}

/// Counters after those of the pump threads: for a thread that changes the queue, and for a thread that keeps a run.
pub(crate) const OTHER_TALLIES: u16 = 2;

pub(crate) struct Lasting<P> {
    pub(crate) table: BioTable<P>,
    pub(crate) senders: Box<[BioSender]>,
    /// By submitter.
    pub(crate) attendance: Box<[CachePadded<Attendance>]>,
    pub(crate) host: Box<dyn Host>,
    pub(crate) tallies: Box<[Arc<CachePadded<SubmitterCounters>>]>,
    /// Counters of pump threads, by hardware queue, followed by those of a thread that changes the queue and of a
    /// [`Run`](crate::Run).
    pub(crate) pump_tallies: Box<[CachePadded<SubmitterCounters>]>,
    pub(crate) control: Control,
    /// The limits of groups.
    pub(crate) meters: Meters,
    /// The statistics of groups.
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) pump_mode: PumpMode,
    /// The private state of submitters that are not registered.
    pub(crate) seats: Seats,
    /// Held by a thread that ends the remaining I/Os of a poisoned queue (`dispatch/visit.rs`).
    pub(crate) salvage: Mutex<()>,
    /// The queue's place among the queues with which it shares its tags; `None` if it shares none.
    pub(crate) membership: Option<Membership>,
}

/// The words of one elevator.
pub(crate) struct Shard {
    /// Submitters that staged bios since their rings were last drained, and the leader: the submitter that has run the
    /// elevator lately.
    pub(crate) pending: Pending<Lead>,
    /// Submitters with an ask to cancel an I/O. Separate from `pending`, so that a pass without an ask has only read a
    /// line that is not written.
    pub(crate) asked: Pending,
    /// Lanes with finished or requeued requests that no pass has taken back. Not used for a single lane, which every
    /// pass checks.
    pub(crate) returned: Pending,
    /// The number of submitters that sleep.
    pub(crate) sleepers: Sleepers,
    /// The words of the comparison modes.
    #[cfg(feature = "compare")]
    pub(crate) modes: ShardModes,
    pub(crate) submitters: Box<[SubmitterId]>,
    pub(crate) index: u16,
    pub(crate) first_hw: u16,
    /// The number of lanes: one for each hardware queue, or for each submitter.
    pub(crate) lanes: u16,
    pub(crate) counters: Arc<CachePadded<ElevatorCounters>>,
    /// The forecast for new I/Os; `None` if there is none.
    pub(crate) prospect: Option<Arc<Prospect>>,
}

impl Shard {
    /// The leader: the submitter that has run the elevator lately.
    #[inline]
    pub(crate) fn lead(&self) -> &Lead {
        self.pending.beside()
    }

    /// The lanes that this elevator serves: those of its hardware queues, by number, or those of its submitters.
    pub(crate) fn hws(&self) -> std::ops::Range<u16> {
        self.first_hw..self.first_hw + self.lanes
    }
}

impl<P: Send> Alarm for Lasting<P> {
    fn raise(&self) {
        self.control.poison();
        for id in 0..self.senders.len() as u16 {
            self.host.wake_submitter(SubmitterId(id));
        }
        if self.pump_mode == PumpMode::Thread {
            let hw_queues = self.pump_tallies.len() as u16 - OTHER_TALLIES;
            (0..hw_queues).for_each(|hw| self.host.wake_pump(HwQueue(hw)));
        }
    }
}

/// The parts of all submitters that are not registered.
///
/// A submitter that is dropped with I/Os in flight leaves its parts here. Its completions still arrive in its ring;
/// the parts become idle when their credit is complete, at the latest when the next submitter is registered.
pub(crate) struct Seats(Mutex<Lists>);

struct Lists {
    idle: Vec<Parts>,
    /// Parts with I/Os in flight that no submitter waits for.
    departed: Vec<Parts>,
}

impl Seats {
    /// The last of `idle` is used first.
    pub(crate) fn new(idle: Vec<Parts>) -> Self {
        Self(Mutex::new(Lists { idle, departed: Vec::new() }))
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        // Payloads are dropped elsewhere, so no user code runs while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a submitter's parts back.
    pub(crate) fn put(&self, parts: Parts) {
        let mut lists = self.lists();
        let list = if parts.is_whole() { &mut lists.idle } else { &mut lists.departed };
        list.push(parts);
    }

    /// Parts for a new submitter: idle ones, or those of a dropped submitter whose I/Os are done. O(dropped submitters,
    /// and their new completions).
    pub(crate) fn take<P>(&self, table: &BioTable<P>) -> Option<Parts> {
        let idle = self.lists().idle.pop();
        idle.or_else(|| {
            self.settle(table);
            self.lists().idle.pop()
        })
    }

    /// Returns whether there are parts with I/Os in flight that no submitter waits for. O(dropped submitters, and their
    /// new completions).
    pub(crate) fn has_departed<P>(&self, table: &BioTable<P>) -> bool {
        self.settle(table);
        !self.lists().departed.is_empty()
    }

    /// Takes the completions of dropped submitters. Parts whose I/Os are all done become idle.
    fn settle<P>(&self, table: &BioTable<P>) {
        let mut payloads = Vec::new();
        let mut lists = self.lists();
        let Lists { idle, departed } = &mut *lists;
        idle.extend(departed.extract_if(.., |parts| {
            payloads.extend(std::iter::from_fn(|| parts.pop(table)));
            parts.is_whole()
        }));
        drop(lists);
        drop(payloads);
    }

    /// Takes all parts, at the end of the queue.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Parts> {
        let Lists { idle, departed } = &mut *self.lists();
        std::mem::take(idle).into_iter().chain(std::mem::take(departed))
    }
}

/// A submitter's ends of its rings, and its credit.
pub(crate) struct Parts {
    pub(crate) id: SubmitterId,
    /// The hardware queue to which the submitter maps.
    pub(crate) hw: HwQueue,
    /// The lane that it pumps first: its own, or that of the hardware queue.
    pub(crate) lane: HwQueue,
    /// The lane leads to the device.
    pub(crate) has_lane: bool,
    pub(crate) staging: Producer<PluggedRequest>,
    pub(crate) asks: Producer<Ask>,
    pub(crate) receiver: BioReceiver,
    pub(crate) credit: Credit,
}

impl Parts {
    /// Returns whether all of the credit has returned.
    pub(crate) fn is_whole(&self) -> bool {
        self.credit.left() == self.credit.depth()
    }

    /// Takes the payload of an I/O that is done.
    pub(crate) fn pop<P>(&mut self, table: &BioTable<P>) -> Option<P> {
        self.receiver.finished(table, &mut self.credit).next().map(|popped| popped.payload)
    }
}

/// "Cancel my I/O with this cookie" (`elevator/runner.rs`).
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) cookie: u64,
    /// Only an I/O that was pushed before this mark in its submitter's staging ring is cancelled.
    pub(crate) before: Mark,
}

/// Places for batches put aside. In models fewer than submitters, so that they run out.
const PLACES: usize = if cfg!(any(shuttle, test)) { 2 } else { 16 };

/// A batch of completions for one submitter, and small batches for others.
///
/// Finished bios on their way to their submitters, gathered so that the bios of one submitter are sent together: a send
/// is a read-modify-write, after a store to a line that the submitter reads. Every pump has a batch, and so has every
/// runner, for bios that end without a device. Where the bios of several submitters alternate, small batches are put
/// aside.
pub(crate) struct Completions {
    to: SubmitterId,
    batch: Finish,
    /// Allocated separately, so that the other fields lie together.
    aside: Box<[(SubmitterId, Aside); PLACES]>,
    /// A bit for each place in use.
    taken: u32,
    /// Parked submitters with completions, to be woken when the pump or elevator is released.
    pub(crate) wake: Vec<SubmitterId>,
}

/// The only possible place for a batch of `to`.
#[inline]
fn place(to: SubmitterId) -> usize {
    usize::from(to.0) % PLACES
}

impl Completions {
    pub(crate) fn new<P>(table: &BioTable<P>) -> Self {
        Self {
            to: SubmitterId(0),
            batch: table.finish_batch(),
            aside: Box::new(std::array::from_fn(|_| (SubmitterId(0), table.aside()))),
            taken: 0,
            wake: Vec::new(),
        }
    }

    /// Ends a bio that is not chained to others. Always inlined: nearly every I/O ends here, and the calls from rare
    /// paths must not turn it into a function call there.
    #[inline(always)]
    pub(crate) fn push<P>(&mut self, lasting: &Lasting<P>, bio: Bio, result: IoResult) {
        let to = lasting.table.submitter(&bio);
        if to != self.to || self.batch.is_full() {
            self.turn_to(lasting, to);
        }
        self.batch.push(bio, result);
    }

    /// Makes room for a bio of `to`: sends the current batch, or puts it aside if it is small and for another
    /// submitter.
    #[inline(never)]
    fn turn_to<P>(&mut self, lasting: &Lasting<P>, to: SubmitterId) {
        if self.batch.is_small() {
            self.put_aside(lasting);
        } else {
            self.send(lasting);
        }
        self.to = to;
        let (owner, aside) = &mut self.aside[place(to)];
        if self.taken & 1 << place(to) != 0 && *owner == to {
            self.batch.take_up(aside);
            self.taken &= !(1 << place(to));
        }
    }

    fn put_aside<P>(&mut self, lasting: &Lasting<P>) {
        if self.batch.is_empty() {
            return;
        }
        let at = place(self.to);
        if self.taken & 1 << at != 0 {
            self.send_aside(lasting, at);
        }
        let (owner, aside) = &mut self.aside[at];
        *owner = self.to;
        self.batch.put_aside(aside);
        self.taken |= 1 << at;
    }

    #[inline]
    fn send<P>(&mut self, lasting: &Lasting<P>) {
        if !self.batch.is_empty() && self.batch.send(&lasting.senders[usize::from(self.to.0)]) {
            self.wake.push(self.to);
        }
    }

    fn send_aside<P>(&mut self, lasting: &Lasting<P>, at: usize) {
        let (to, aside) = &mut self.aside[at];
        if aside.send(&lasting.senders[usize::from(to.0)]) {
            self.wake.push(*to);
        }
    }

    /// Sends all batches.
    #[inline(always)]
    pub(crate) fn flush<P>(&mut self, lasting: &Lasting<P>) {
        self.send(lasting);
        if self.taken != 0 {
            self.flush_aside(lasting);
        }
    }

    #[inline(never)]
    fn flush_aside<P>(&mut self, lasting: &Lasting<P>) {
        let mut left = std::mem::take(&mut self.taken);
        while left != 0 {
            self.send_aside(lasting, left.trailing_zeros() as usize);
            left &= left - 1;
        }
    }

    /// Sends the remaining completions at the end of a queue, without waking submitters.
    pub(crate) fn send_rest<P>(&mut self, lasting: &Lasting<P>) {
        self.flush(lasting);
        self.wake.clear();
    }

    /// Ends a bio and the bios chained to it, all with the same result.
    #[inline(never)]
    pub(crate) fn push_chain<P>(&mut self, lasting: &Lasting<P>, head: Bio, result: IoResult) {
        let mut rest = Some(head);
        while let Some(head) = rest {
            let (bio, tail) = lasting.table.split_first(head);
            self.push(lasting, bio, result);
            rest = tail;
        }
    }
}
