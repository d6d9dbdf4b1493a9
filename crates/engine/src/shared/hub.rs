//! The words that all threads of a queue share, without the elevators and the pumps themselves.
//!
//! A runner and a pump are given the [`Hub`], so they can read and write words, but cannot start anything: they leave
//! kicks, timers and wake-ups to their caller as [`Duties`], and finished bios to the [`Completions`] of their batch. A
//! change of a queue in use builds a new hub (`reconfiguration.rs`); [`Lasting`] stays, with the parts of the
//! submitters ([`Seats`]).
//!
//! # The leader
//!
//! An elevator stays on one core while that core continues to run it (decision 0004). A run touches some fifty cache
//! lines (slots, indices, the policy's tables, outbox, returns). If threads take turns at running the elevator, each
//! turn begins by fetching those lines from another core, which costs more than the run itself. So a submitter that has
//! seen another submitter run the elevator leaves its work staged even when the elevator is free at that moment: the
//! leader will soon return with its own work, and then admits the staged work ([`Follow`]).
//!
//! The decision is a guess, and a wrong guess is cheap: a submitter that sees no pass between two checks runs the
//! elevator itself. Progress does not depend on it; the run state says which pass is due.

use crate::groups::{Ledger, Meters};
use crate::planted::Planted;
use crate::shared::common::Common;
use crate::shared::hctx::{Duties, Hctx, Membership, PluggedRequest};
use crate::shared::modes::{EffectiveModes, ShardModes};
use crate::shared::slots::{Aside, Bio, BioReceiver, BioSender, Credit, Finish};
use crate::shared::stats::{Board, ElevatorCounters, Prospect, SubmitterCounters};
use crate::sync::{
    Alarm, Arc, AtomicU64, Attendance, Control, Mark, Mutex, MutexGuard, Ordering, Pending,
    PoisonError, Producer, Sleepers, TokenPool,
};
use crate::{BioTable, NoMerges, PumpMode, planted};
use blkmq_core::{HwQueue, Instant, IoFlags, IoResult, Limits, Nanos, SubmitterId};
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
    pub(crate) modes: EffectiveModes,
    /// The most requests that one hold of a lock dispatches.
    pub(crate) nr_requests: u32,
    pub(crate) nomerges: NoMerges,
    pub(crate) shards: Box<[Shard]>,
    pub(crate) hctxs: Box<[Hctx]>,
    /// How many requests may be outside the elevators; `None` for any number.
    pub(crate) budget: Option<Arc<TokenPool>>,
    /// The state of latency goals; `None` if no group has one.
    pub(crate) board: Option<Board>,
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
        matches!(self.lasting.pump_mode, PumpMode::Owner)
    }

    #[inline]
    pub(crate) fn hctx(&self, hw: HwQueue) -> &Hctx {
        &self.hctxs[usize::from(hw.0)]
    }

    /// The number with which the pump thread of `hw` takes locks: above those of all submitters.
    pub(crate) fn pump_thread(&self, hw: HwQueue) -> usize {
        self.lasting.senders.len() + usize::from(hw.0)
    }

    /// The number with which a thread that changes the queue takes locks: above those of the pump threads.
    pub(crate) fn changer(&self) -> usize {
        self.lasting.senders.len() + self.hctxs.len()
    }

    /// The number with which a [`Run`](crate::Run) holds a lock: the last one.
    pub(crate) fn keeper(&self) -> usize {
        self.changer() + 1
    }

    /// Takes up to `want` budgets. If there are none, registers `shard` to be kicked, and tries once more.
    pub(crate) fn take_budget(&self, shard: &Shard, want: u32) -> u32 {
        self.budget.as_ref().map_or(want, |budget| budget.take_or_wait(want, shard.index))
    }

    /// Returns budgets, and notes that the elevators that wait for one must be kicked.
    #[inline(never)]
    pub(crate) fn put_budget(&self, budgets: u32, duties: &mut Duties) {
        let Some(budget) = &self.budget else { return };
        budget.put(budgets, |shard| {
            if !planted::is(Planted::ForgetsBudgetWaiters) {
                duties.kick(shard);
            }
        });
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

/// Wake-ups: thread parking in the runtime, an event heap in the laboratory.
///
/// The engine calls these methods after it has released elevators and pumps, so a system call here delays no other
/// thread. One cause may lead to two calls. A host must not call back into the queue.
pub trait Host: Send + Sync {
    /// Completions have arrived for a parked submitter, or a pass is due that the submitter should run.
    fn wake_submitter(&self, submitter: SubmitterId);

    /// The pump of `hw` has work. Only called for queues with [`PumpMode::Thread`](crate::PumpMode).
    fn wake_pump(&self, hw: HwQueue);

    /// Nanoseconds since any fixed time. The queue uses it to measure how long threads wait for a lock: a thread that
    /// finds a lock taken calls it, once in several such waits; never with `Access::Combining`. With the default, 0,
    /// nothing is measured.
    fn ticks(&self) -> u64 {
        0
    }
}

/// A host that wakes no thread, for single-threaded drivers that poll.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHost;

impl Host for NoHost {
    fn wake_submitter(&self, _: SubmitterId) {}
    fn wake_pump(&self, _: HwQueue) {}
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

/// The number of submissions that a follower leaves to the leader, and of polls that it skips, before it checks the
/// leader's words again, because a check takes cache lines that the leader is about to write. They take about 4 us if a
/// client spins between polls.
const PATIENCE: u32 = 8;
/// The most polls between two checks of the leader's words, reached by doubling while each check finds the leader
/// active. If fifteen followers check every 4 us, they take these lines from the leader four times per microsecond.
const MOST_POLLS: u32 = if cfg!(shuttle) { 2 * PATIENCE } else { 8 * PATIENCE };
/// The longest time for which a follower relies on a leader that makes no pass, however rarely the follower polls. A
/// leader that has lost its CPU makes no pass for longer than any pass takes.
const LONGEST: Nanos = Nanos::from_micros(50);
const ID_BITS: u32 = 16;

/// The leader, and how many passes submitters have made: `passes << 16 | submitter`. Only the runner writes it. A pump
/// thread does not, because it runs when its device signals and not when a submitter submits.
#[derive(Default)]
pub(crate) struct Lead(AtomicU64);

impl Lead {
    /// Called by the runner, `id`, at the beginning of a pass.
    #[inline]
    pub(crate) fn note_pass(&self, id: SubmitterId) {
        let (_, passes) = self.get();
        let word = passes.wrapping_add(1) << ID_BITS | u64::from(id.0);
        self.0.store(word, Ordering::Relaxed);
    }

    #[inline]
    fn get(&self) -> (SubmitterId, u64) {
        let word = self.0.load(Ordering::Relaxed);
        (SubmitterId(word as u16), word >> ID_BITS)
    }
}

/// One submitter's view of the leader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Follow {
    id: SubmitterId,
    seen: u64,
    /// The number of further submissions that are left to the leader.
    plugs: u32,
    /// Polls to skip before the next check of the leader's words.
    polls: u32,
    /// Polls to skip after that check, if it finds the leader active.
    next_polls: u32,
    /// The end of reliance on the leader.
    until: Instant,
    /// Polls skipped since the last check of the devices. Devices do not wait for a leader.
    skipped: u32,
}

/// The words that an otherwise idle submitter should check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// No words: the leader is active.
    Nothing,
    /// The words of devices, which the leader rarely writes.
    Devices,
    /// The words of all work that may be due.
    All,
}

impl Follow {
    pub(crate) fn new(id: SubmitterId, lead: &Lead) -> Self {
        let seen = lead.get().1;
        Self {
            id,
            seen,
            plugs: 0,
            polls: 0,
            next_polls: PATIENCE,
            until: Instant::ZERO,
            skipped: 0,
        }
    }

    /// Returns whether another submitter has run the elevator since this one last checked.
    #[inline]
    fn is_led(&mut self, lead: &Lead) -> bool {
        let (leader, passes) = lead.get();
        let moved = passes != self.seen;
        self.seen = passes;
        moved && leader != self.id
    }

    /// Relies on the leader for a while.
    #[inline]
    fn rely(&mut self, now: Instant) {
        self.plugs = PATIENCE;
        self.polls = self.next_polls;
        self.until = now + LONGEST;
    }

    /// Stops relying on another thread.
    #[inline]
    fn rely_on_none(&mut self) {
        (self.plugs, self.polls, self.next_polls) = (0, 0, PATIENCE);
    }

    /// Returns whether a submitter should leave its work to the leader.
    #[inline]
    pub(crate) fn should_leave(&mut self, lead: &Lead, now: Instant) -> bool {
        if self.is_led(lead) {
            self.rely(now);
            return true;
        }
        if lead.get().0 == self.id {
            self.rely_on_none();
            return false;
        }
        // Several plugs may come between two passes of the leader.
        self.plugs = self.plugs.saturating_sub(1);
        self.plugs > 0 && now < self.until
    }

    /// Returns where an otherwise idle submitter should check for work that is due. After any check, the caller calls
    /// [`should_run`](Self::should_run) or [`was_in_vain`](Self::was_in_vain), unless it ran something.
    #[inline]
    pub(crate) fn look(&mut self, now: Instant) -> Look {
        if self.polls == 0 || now >= self.until {
            self.skipped = 0;
            return Look::All;
        }
        self.polls -= 1;
        self.skipped += 1;
        if self.skipped < PATIENCE {
            return Look::Nothing;
        }
        self.skipped = 0;
        Look::Devices
    }

    /// Notes that nothing was due. If there is a runner, the next check comes after more polls than this one: under
    /// constant load, a runner is found at every check.
    #[inline]
    pub(crate) fn was_in_vain(&mut self, lead: &Lead, is_running: bool, now: Instant) {
        if is_running {
            // Does not read the leader's word, whose cache line is written by threads that stage.
            self.rely(now);
            self.next_polls = (2 * self.next_polls).min(MOST_POLLS);
        } else if self.is_led(lead) {
            self.rely(now);
        } else {
            self.rely_on_none();
        }
    }

    /// Returns whether a submitter that finds a pass due should make it. False if the leader has made one in the
    /// meantime.
    pub(crate) fn should_run(&mut self, lead: &Lead, now: Instant) -> bool {
        let led = self.is_led(lead);
        // The elevator is not always busy, so the next check comes early.
        self.rely_on_none();
        if led {
            self.rely(now);
        }
        !led
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(1_000);

    #[test]
    fn a_follower_leaves_its_work_only_while_the_leader_keeps_at_it() {
        let lead = Lead::default();
        let mut me = Follow::new(SubmitterId(1), &lead);
        assert!(!me.should_leave(&lead, NOW), "no other submitter has run");
        lead.note_pass(SubmitterId(2));
        assert!(me.should_leave(&lead, NOW));
        let left = (0..).take_while(|_| me.should_leave(&lead, NOW)).count();
        assert_eq!(left, PATIENCE as usize - 1, "no other submitter has run since");
        lead.note_pass(SubmitterId(1));
        assert!(!me.should_leave(&lead, NOW), "that was this one itself");
    }

    /// The number of polls until the next check.
    fn polls(me: &mut Follow) -> usize {
        (0..).take_while(|_| me.look(NOW) != Look::All).count()
    }

    #[test]
    fn a_follower_looks_after_devices_every_few_polls() {
        let lead = Lead::default();
        let mut me = Follow::new(SubmitterId(1), &lead);
        let turn = |_: &u32| {
            lead.note_pass(SubmitterId(2));
            assert!(me.should_leave(&lead, NOW));
            me.look(NOW) == Look::Nothing
        };
        assert_eq!((0..100).take_while(turn).count(), PATIENCE as usize - 1);
    }

    #[test]
    fn a_waiting_follower_takes_over_when_its_patience_is_at_an_end() {
        let lead = Lead::default();
        let mut me = Follow::new(SubmitterId(1), &lead);
        lead.note_pass(SubmitterId(2));
        assert!(me.should_leave(&lead, NOW));
        assert_eq!(polls(&mut me), PATIENCE as usize);
        lead.note_pass(SubmitterId(2));
        assert!(!me.should_run(&lead, NOW), "the leader was back meanwhile");
        assert_eq!(polls(&mut me), PATIENCE as usize);
        assert!(me.should_run(&lead, NOW), "and now it was not");
        assert_eq!(polls(&mut me), 0);
    }

    #[test]
    fn looks_become_rarer_while_the_elevator_is_busy() {
        let lead = Lead::default();
        let mut me = Follow::new(SubmitterId(1), &lead);
        let between = |me: &mut Follow| {
            lead.note_pass(SubmitterId(2));
            me.was_in_vain(&lead, true, NOW);
            polls(me) as u32
        };
        assert_eq!([(); 3].map(|()| between(&mut me)), [1, 2, 4].map(|n| n * PATIENCE));
        assert_eq!([(); 4].map(|()| between(&mut me))[1..], [MOST_POLLS; 3]);
        lead.note_pass(SubmitterId(2));
        assert!(!me.should_run(&lead, NOW), "the leader left a pass for the next time");
        assert_eq!(polls(&mut me), PATIENCE as usize);
        me.was_in_vain(&lead, false, NOW);
        assert_eq!(polls(&mut me), 0, "the leader has stopped");
    }

    /// Regression test: a thread that polled every 100 us waited 800 us for a leader without a CPU.
    #[test]
    fn a_follower_that_comes_by_seldom_waits_no_longer_than_one_that_spins() {
        let lead = Lead::default();
        let mut me = Follow::new(SubmitterId(1), &lead);
        lead.note_pass(SubmitterId(2));
        assert!(me.should_leave(&lead, NOW));
        let soon = NOW + Nanos(LONGEST.0 - 1);
        assert!(me.look(soon) == Look::Nothing && me.should_leave(&lead, soon));
        assert_eq!(me.look(NOW + LONGEST), Look::All);
        assert!(!me.should_leave(&lead, NOW + LONGEST));
    }
}
