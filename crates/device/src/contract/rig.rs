//! [`Rig`]: a queue, its submitters and a virtual clock, driven by one thread.
//!
//! Time stands still until nothing is due, then jumps to the next deadline. The rig immediately detects a queue that
//! makes no progress, whether the queue waits for an event that never comes or spins at one instant.

use blkmq_core::{HwQueue, Instant, IoFlags, IoResult, Nanos, Op};
use blkmq_engine::{Completion, Config, Io, Queue, Refusal, Submitter};
use std::collections::BTreeSet;

/// The number of rounds at one instant without a completion after which the queue counts as spinning. A round ends when
/// the engine hands over, which it does after a few hundred requests.
const PATIENCE: u32 = 1000;

/// The end of an I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// As returned by [`Rig::push`].
    pub cookie: u64,
    /// The result of the I/O.
    pub result: IoResult,
    /// When the I/O was reaped.
    pub at: Instant,
}

/// A queue in virtual time. The payload of an I/O is its cookie, which is checked at completion.
pub struct Rig {
    /// The queue, for its counters.
    pub queue: Queue<u64>,
    /// The virtual time.
    pub now: Instant,
    /// The I/Os that have ended, in order.
    pub ended: Vec<Ended>,
    submitters: Vec<Submitter<u64>>,
    outstanding: BTreeSet<u64>,
    pushed: u64,
}

impl Rig {
    /// Builds a queue with all the submitters that `config` allows for.
    ///
    /// # Panics
    /// If the engine refuses the configuration.
    #[must_use]
    pub fn new(config: Config<u64>) -> Self {
        let submitters = config.submitters;
        let queue = Queue::new(config).expect("the configuration describes a queue");
        let submitter = |_| queue.submitter().expect("the queue was built for as many");
        Self {
            submitters: (0..submitters).map(submitter).collect(),
            queue,
            now: Instant::ZERO,
            ended: Vec::new(),
            outstanding: BTreeSet::new(),
            pushed: 0,
        }
    }

    /// The number of submitters.
    #[must_use]
    pub fn submitters(&self) -> usize {
        self.submitters.len()
    }

    /// I/Os pushed and not yet ended.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.outstanding.len()
    }

    /// Pushes an I/O of submitter `who`; `None` if it has no credit left. Cookies count from zero.
    ///
    /// # Panics
    /// If the queue refuses it for another reason.
    pub fn push(&mut self, who: usize, op: Op, sector: u64, sectors: u32) -> Option<u64> {
        self.push_with(who, op, sector, sectors, IoFlags::NONE)
    }

    /// Like [`push`](Self::push), with flags.
    ///
    /// # Panics
    /// If the queue refuses the I/O for another reason than missing credit.
    pub fn push_with(
        &mut self,
        who: usize,
        op: Op,
        sector: u64,
        sectors: u32,
        flags: IoFlags,
    ) -> Option<u64> {
        let cookie = self.pushed;
        let io = Io { flags, ..Io::new(op, sector, sectors, cookie, cookie) };
        match self.submitters[who].push(self.now, io) {
            Ok(()) => {
                self.pushed += 1;
                self.outstanding.insert(cookie);
                Some(cookie)
            }
            Err(refused) if matches!(refused.why, Refusal::NoCredit { .. }) => None,
            Err(refused) => panic!("{op:?} of {sectors} sectors at {sector}: {refused}"),
        }
    }

    /// Pushes one I/O of submitter 0 and flushes its plug.
    ///
    /// # Panics
    /// If the submitter has no credit left.
    pub fn submit(&mut self, op: Op, sector: u64, sectors: u32) -> u64 {
        let cookie = self.push(0, op, sector, sectors).expect("there is credit for it");
        self.flush(0);
        cookie
    }

    /// Flushes the plug of submitter `who`.
    pub fn flush(&mut self, who: usize) {
        self.submitters[who].flush(self.now);
    }

    /// Reaps the I/Os that previous calls have completed, without polling. Returns their number.
    ///
    /// # Panics
    /// If an I/O ends twice, or completes with the payload of another I/O.
    pub fn reap(&mut self) -> u32 {
        let Self { submitters, outstanding, ended, now, .. } = self;
        let mut take = |done: Completion<u64>| {
            assert_eq!(done.payload, done.cookie, "a completion with another's payload");
            assert!(outstanding.remove(&done.cookie), "I/O {} ended twice", done.cookie);
            ended.push(Ended { cookie: done.cookie, result: done.result, at: *now });
        };
        submitters.iter_mut().map(|submitter| submitter.reap(u32::MAX, &mut take)).sum()
    }

    /// Polls every submitter for work that is due, and reaps. Returns the number of I/Os that ended.
    pub fn poll(&mut self) -> u32 {
        for submitter in &mut self.submitters {
            submitter.poll(self.now);
        }
        self.reap()
    }

    /// The next time at which work is due without a call from a submitter, or `None`.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.submitters.iter().filter_map(Submitter::next_deadline).min()
    }

    /// Flushes every plug, as a thread does before it sleeps, and polls until nothing is due at this instant and every
    /// submitter may park.
    ///
    /// # Panics
    /// If work remains due although no I/O ends.
    pub fn settle(&mut self) {
        (0..self.submitters.len()).for_each(|who| self.flush(who));
        let mut patience = PATIENCE;
        loop {
            if self.poll() > 0 {
                patience = PATIENCE;
            }
            if self.may_sleep() {
                return;
            }
            patience -= 1;
            assert!(patience > 0, "at {:?} something is always due and nothing ends", self.now);
        }
    }

    /// Returns whether every submitter may park until the next deadline.
    fn may_sleep(&mut self) -> bool {
        let now = self.now;
        let all = self.submitters.iter_mut().all(|submitter| {
            let may = submitter.prepare_park(now).is_some();
            submitter.unpark();
            may
        });
        all && self.next_deadline().is_none_or(|at| at > now)
    }

    /// Does all work that is due up to `until`, and sets the clock to it.
    pub fn run_until(&mut self, until: Instant) {
        self.settle();
        while let Some(at) = self.next_deadline().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.settle();
        }
        self.now = self.now.max(until);
    }

    /// Like [`run_until`](Self::run_until), for a span from now.
    pub fn run_for(&mut self, span: Nanos) {
        self.run_until(self.now + span);
    }

    /// Runs until every I/O has ended.
    ///
    /// # Panics
    /// If an I/O never ends.
    pub fn finish(&mut self) {
        self.settle();
        while !self.outstanding.is_empty() {
            let next = self.next_deadline();
            let at = next.unwrap_or_else(|| {
                panic!("{} I/Os are in flight and nothing will ever happen", self.in_flight())
            });
            self.now = self.now.max(at);
            self.settle();
        }
    }

    /// The result of the I/O with this cookie.
    ///
    /// # Panics
    /// If the I/O has not ended.
    #[must_use]
    pub fn ended(&self, cookie: u64) -> Ended {
        let found = self.ended.iter().find(|ended| ended.cookie == cookie);
        *found.unwrap_or_else(|| panic!("I/O {cookie} has not ended"))
    }

    /// Checks that the queue is at rest: it holds nothing, and the counters agree.
    ///
    /// # Panics
    /// If the queue is not at rest.
    pub fn check_at_rest(&self, hw_queues: u16) {
        assert_eq!(self.in_flight(), 0, "I/Os in flight");
        for hw in (0..hw_queues).map(HwQueue) {
            assert_eq!(self.queue.tags_in_use(hw), 0, "driver tags of {hw:?} in use");
        }
        assert_eq!(self.queue.budgets_in_use(), 0, "budgets in use");
        let stats = self.queue.stats();
        assert_eq!(stats.submitted - stats.splits, self.pushed, "{stats:?}");
        assert_eq!(stats.submitted, stats.completed, "{stats:?}");
        let requests = stats.submitted - stats.merges.total();
        let requests = requests.checked_add_signed(stats.flushes.surplus());
        assert_eq!(Some(stats.completed_requests), requests, "{stats:?}");
        assert_eq!(stats.dispatched, stats.completed_requests + stats.requeues, "{stats:?}");
        assert_eq!(stats.issued, stats.dispatched + stats.tail_requeues, "{stats:?}");
    }
}
