//! The queue under test, with witnesses around its policy and its device.

use crate::contents::Contents;
use crate::oracle::Oracle;
use crate::planted::{self, Bug};
use crate::timeline::Wakes;
use crate::witness::witnessed;
use crate::{FlushFates, Stamp, Violation, witness};
use blkmq_core::{HwQueue, Nanos};
use blkmq_device::contract::Checked;
use blkmq_engine::{Config, ConfigError, DeviceShape, FlushStats, PumpMode, Queue, QueueStats};

/// A queue with its witnesses. A [`World`](crate::World) drives it.
pub struct Subject {
    pub(crate) queue: Queue<Stamp>,
    pub(crate) wakes: Wakes,
    pub(crate) oracle: Oracle,
    pub(crate) shape: DeviceShape,
    pub(crate) pump: PumpMode,
}

impl Subject {
    /// Builds the queue that `config` describes; its host is replaced. A CPU may come up to `slack` late to a
    /// hardware queue.
    ///
    /// # Errors
    /// If the configuration is impossible.
    ///
    /// # Panics
    /// If its scheduler is neither in the registry nor one of the laboratory's own.
    pub fn new(config: Config<Stamp>, slack: Nanos, bug: Option<Bug>) -> Result<Self, ConfigError> {
        let (shape, pump) = (config.device, config.pump);
        let plan = config.plan();
        let oracle = Oracle::new((shape, plan.budget()), &config.groups, plan.shards(), slack);
        let wakes = Wakes::default();
        let (checked, _) = Checked::wrap(&shape, planted::inside(bug, config.queues));
        let watched = witnessed(checked, &shape, config.retries, &oracle);
        let queues = planted::in_device(bug, watched);
        let plan = witness::Plan { factory: config.scheduler, oracle: oracle.clone(), bug };
        let config = Config {
            queues,
            scheduler: witness::factory(config.scheduler),
            host: planted::in_host(bug, wakes.clone()),
            ..config
        };
        let queue = witness::build_with(plan, || Queue::new(config))?;
        Ok(Self { queue, wakes, oracle, shape, pump })
    }

    /// The device stores; `contents` is the knowledge about it in its life number `life`.
    pub(crate) fn keep(&self, contents: Contents, life: u32) {
        self.oracle.with(|oracle| oracle.keep(contents, life));
    }

    /// The payloads of reads and writes have ranges of so many sectors; 0 if they have one.
    pub(crate) fn scatter(&self, range: u32) {
        self.oracle.with(|oracle| oracle.scatter(range));
    }

    /// The present knowledge about the contents of the device.
    pub(crate) fn take_contents(&self) -> Option<Contents> {
        self.oracle.with(|oracle| oracle.contents().take())
    }

    /// Its counters.
    #[must_use]
    pub fn stats(&self) -> QueueStats {
        self.queue.stats()
    }

    /// The outcomes of the flushes that its device was given.
    #[must_use]
    pub fn flushes(&self) -> FlushFates {
        self.oracle.with(|oracle| oracle.flushes())
    }

    /// The hash of all events: equal for two runs exactly if they were alike.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.oracle.with(|oracle| oracle.hash())
    }

    /// Checks the conditions that hold between any two calls.
    pub(crate) fn check(&self) -> Result<(), Violation> {
        self.oracle.with(|oracle| {
            for hw in (0..self.shape.hw_queues).map(HwQueue) {
                let used = self.queue.tags_in_use(hw);
                oracle.check_use("driver tags", used, self.shape.hw_queue_depth);
            }
            oracle.check_tokens(&self.queue.tokens());
            if let Some(budget) = oracle.budget() {
                oracle.check_use("budgets", self.queue.budgets_in_use(), budget);
            }
            oracle.check()
        })
    }

    /// The queue.
    #[must_use]
    pub fn queue(&self) -> &Queue<Stamp> {
        &self.queue
    }

    /// Checks the conditions that hold when every I/O has ended: nothing is in use, and the counters agree with each
    /// other and with the observations of the witnesses.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check_at_rest(&self) -> Result<(), Violation> {
        self.check()?;
        let stats = self.queue.stats();
        let (ios, bios, busy, flushes) = self
            .oracle
            .with(|oracle| (oracle.submitted(), oracle.bios(), oracle.busy(), oracle.flushes()));
        let (cancelled, seen) = (stats.cancelled, self.oracle.with(|oracle| oracle.cancelled()));
        let env = cancelled.plugged + cancelled.staged;
        let tags: u32 =
            (0..self.shape.hw_queues).map(|hw| self.queue.tags_in_use(HwQueue(hw))).sum();
        let merges = stats.merges;
        let submitted = stats.submitted;
        let alone = submitted - merges.total() - cancelled.total();
        let expected = alone.checked_add_signed(stats.flushes.surplus());
        let FlushStats { dataless, needless, .. } = stats.flushes;
        let joined = merges.plug + merges.back + merges.front + merges.discard;
        let requests = stats.completed_requests;
        for (rule, holds) in [
            ("no driver tag in use", tags == 0),
            ("no budget in use", self.queue.budgets_in_use() == 0),
            ("no token out", self.queue.tokens().iter().all(|(out, _)| *out == 0)),
            (
                "bios witnessed, or given up before == submitted - dataless - needless flushes",
                bios == submitted - dataless - needless,
            ),
            ("submitted - splits == I/Os", submitted - stats.splits == ios),
            ("completed == submitted", stats.completed == submitted),
            (
                "inserted == submitted - joined - cancelled outside - needless flushes",
                stats.inserted == submitted - joined - env - needless,
            ),
            (
                "completed_requests == submitted - merges - cancelled + flushes.surplus",
                Some(requests) == expected,
            ),
            ("dispatched == completed + requeues", stats.dispatched == requests + stats.requeues),
            (
                "issued == dispatched + tail_requeues + runs",
                stats.issued == stats.dispatched + stats.tail_requeues + stats.runs,
            ),
            ("retries are requeues", stats.retries <= stats.requeues),
            ("cancelled as many as witnessed", cancelled.total() == seen),
            ("busy as often as witnessed", stats.busy == busy),
            ("as many flushes as witnessed", stats.flushes.issued == flushes.ended()),
            ("no batch without a request", stats.batches <= stats.dispatched),
        ] {
            if !holds {
                return Err(Violation::Counters { rule, stats: Box::new(stats) });
            }
        }
        Ok(())
    }
}
