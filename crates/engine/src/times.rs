//! Reading where the time of a queue's requests went, and what it has at this moment.

use crate::Queue;
use crate::dispatch::engine::Engine;
use crate::elevator::runner::Runner;
use crate::groups::{IoTimes, KINDS, SlowIo, Wait};
use crate::outstanding::TRIES;
use crate::shared::shard::Shard;
use crate::sync::yield_now;
use blkmq_core::{GroupId, Op, SubmitterId};
use blkmq_sched::FloorReport;

/// The counts of a queue, all of one moment if no elevator was busy all the time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QueueTimes {
    /// By group: reads, writes, discards and bare flushes. Groups without any are left out, and numbers of groups below
    /// are not in those of a group. A removed group leaves its numbers to the one above it.
    pub groups: Vec<(GroupId, [IoTimes; KINDS])>,
    /// How the floors of groups were kept, under a scheduler that keeps floors: judged second by second, by what each group
    /// completed while it had I/Os outstanding. A removed group leaves its counts to the one above it.
    pub floors: Vec<(GroupId, FloorReport)>,
    /// Flushes of the device that ended; one of them may serve many requests.
    pub flushes: u64,
    /// Nanoseconds that these were at the device, summed.
    pub flush_time: u64,
    /// Nanoseconds in which at least one request was in flight. Where there is an elevator for each hardware queue, this
    /// is the time of the busiest.
    pub busy: u64,
    /// Reads that have been picked and have not ended, at present.
    pub reads_in_flight: u64,
    /// All other requests of which that is true.
    pub others_in_flight: u64,
    /// I/Os that wait in the scheduler, or by group for a slot, at present.
    pub waiting: u64,
    /// Elevators that were busy whenever they were tried: what they have counted lately, and what they hold, is missing.
    pub busy_elevators: u32,
}

impl QueueTimes {
    /// The numbers of a group alone.
    #[must_use]
    pub fn group(&self, group: GroupId) -> [IoTimes; KINDS] {
        let found = self.groups.iter().find(|(id, _)| *id == group);
        found.map(|(_, times)| times.clone()).unwrap_or_default()
    }

    /// How the floor of a group was kept; `None` if it never had one.
    #[must_use]
    pub fn floor(&self, group: GroupId) -> Option<&FloorReport> {
        self.floors.iter().find(|(id, _)| *id == group).map(|(_, report)| report)
    }

    /// Nanoseconds of its floor that a group lacked: half of it for a second is half a second.
    #[must_use]
    pub fn shortfall(&self, group: GroupId) -> u64 {
        self.floor(group).map_or(0, |report| report.short.0)
    }

    /// The sum over all groups.
    #[must_use]
    pub fn all(&self) -> [IoTimes; KINDS] {
        let mut sum: [IoTimes; KINDS] = Default::default();
        for (_, times) in &self.groups {
            sum.iter_mut().zip(times).for_each(|(sum, times)| sum.add(times));
        }
        sum
    }
}

impl<P: Send + 'static> Queue<P> {
    /// Where the time of the requests went that were completed while [`StatsMode::times`](crate::StatsMode::times) was
    /// on, under every scheduler. The numbers never decrease; they stay when the queue is changed. O(groups + slots).
    #[must_use]
    pub fn times(&self) -> QueueTimes {
        let mut now = self.gather();
        let q = self.root.current();
        let book = q.hub.lasting.ledger.book();
        (now.flushes, now.flush_time) = book.account.flushes();
        now.busy = book.account.busy();
        let id = |index| q.hub.lasting.meters.id(index);
        now.groups = book.account.all().into_iter().map(|(at, times)| (id(at), times)).collect();
        now.floors = book.account.floors().map(|report| (id(report.group), report)).collect();
        now
    }

    /// Moves the counts of elevators to the ledger. The result has what they hold.
    fn gather(&self) -> QueueTimes {
        // Held because elevators are entered here under the number of the thread that changes the queue.
        let _state = self.root.change_state();
        let q = self.root.current();
        let mut now = QueueTimes::default();
        for shard in &q.hub.shards {
            if !q.read_times(shard, &mut now) {
                now.busy_elevators += 1;
            }
        }
        now
    }

    /// Which group waited behind which, and for how long, while [`StatsMode::times`](crate::StatsMode::times) was on,
    /// under every scheduler: the evidence of a tenant that is slowed down, and of the cause.
    ///
    /// A group waits while an I/O of it has come to the queue and is not at the device: it waits for a slot, or in the
    /// scheduler. Time in a submitter is not counted: that is where ceilings hold I/Os back. However many of its I/Os wait,
    /// a second is a second; where there is an elevator for each hardware queue, each counts its own. The time is divided
    /// between the groups with requests at the device, in proportion to their requests there, and the waiting group may be
    /// one of them. [`Wait::behind`] is `None` while no request is there, so that the scheduler idles or keeps to a limit.
    ///
    /// The sum for a waiting group is exact if stretches from one pass of a runner to the next are at least a millisecond
    /// long, as on a disk. Shorter ones are sampled, each as likely as it is long: about one in four times as many as
    /// there are requests with slots, and a hundred in a second of waiting at least. Of I/Os that wait for a slot outside of
    /// the elevator, under a scheduler that does not share by group, the first of each submitter is seen.
    ///
    /// Pairs are in the order of their groups, without those that have no time. No number ever decreases, but a removed
    /// group leaves its own to the one above it. O(pairs + slots).
    #[must_use]
    pub fn waits(&self) -> Vec<Wait> {
        self.gather();
        self.root.current().hub.lasting.ledger.book().account.waits()
    }

    /// Takes the slow requests that [`times`](Self::times) has found by now, oldest first, and the number of those for
    /// which there was no room: 64 are kept.
    #[must_use]
    pub fn take_slow(&self) -> (Vec<SlowIo>, u64) {
        self.root.current().hub.lasting.ledger.book().account.take_slow()
    }
}

impl<P: Send> Engine<P> {
    /// Moves the counts of an elevator to the ledger, and adds what it holds to `now`. False if it is busy.
    fn read_times(&self, shard: &Shard, now: &mut QueueTimes) -> bool {
        let read = |runner: &mut Runner| {
            runner.elevator.count_times();
            for (_, meta, waits) in runner.elevator.live() {
                let count = match (waits, meta.op) {
                    (true, _) => &mut now.waiting,
                    (false, Op::Read) => &mut now.reads_in_flight,
                    (false, _) => &mut now.others_in_flight,
                };
                *count += 1;
            }
            now.waiting += runner.elevator.in_lobby() as u64;
        };
        self.visit(shard, read).is_some()
    }

    /// Has `look` look at an elevator that knows of all completions. `None` if it is busy whenever it is tried.
    pub(crate) fn visit<T>(&self, shard: &Shard, look: impl FnOnce(&mut Runner) -> T) -> Option<T> {
        let enter = |_| {
            let entered = self.enter_elevator(shard);
            if entered.is_none() {
                yield_now();
            }
            entered
        };
        let mut runner = (0..TRIES).find_map(enter)?;
        let wakes = self.learn(shard, &mut runner);
        let seen = look(&mut runner);
        #[cfg(feature = "compare")]
        runner.publish(shard);
        drop(runner);
        self.wake(&wakes);
        Some(seen)
    }

    /// Tells the policy of the last completions, of which it has not been told if the elevator waited for none. Returns
    /// the submitters to wake once the elevator is left.
    fn learn(&self, shard: &Shard, runner: &mut Runner) -> Vec<SubmitterId> {
        if runner.take_returns(&self.hub, shard) {
            let _ = self.gate(shard).kick();
        }
        let mut wakes = Vec::new();
        self.carry_out(self.gate(shard), &mut runner.duties, &mut wakes);
        wakes
    }

    /// The same for every elevator that is at rest; the others learn of completions in their passes.
    pub(crate) fn learn_all(&self) {
        for shard in &self.hub.shards {
            let Some(mut runner) = self.enter_elevator(shard) else { continue };
            let wakes = self.learn(shard, &mut runner);
            #[cfg(feature = "compare")]
            runner.publish(shard);
            drop(runner);
            self.wake(&wakes);
        }
    }
}
