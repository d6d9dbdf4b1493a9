//! [`Service`]: a running queue. Builds it, starts its threads, and stops both in the right order.

use crate::client::{Observer, StallSettings, Stalls};
use crate::port::available_cpus;
use crate::reactor::Launch;
use crate::waiting::{PumpThreads, ThreadHost, Threads};
use crate::{Blocking, Client, ClientError, Clock, Placement, Reactor, ReactorError, Waiting};
use blkmq_core::{Nanos, Payload};
use blkmq_engine::{
    Another, Config, ConfigError, DEFAULT_SUBMITTERS, PumpMode, Queue, QueueStats, Submitter,
};
use std::fmt;
use std::sync::Arc;

/// A block queue, its clock, and its pump threads if it has any. Clients and [`Reactor`]s keep the queue and its
/// threads alive: dropping the service changes nothing for them.
pub struct Service<P> {
    // Declared before the queue, so that the threads end first.
    pumps: Option<Arc<PumpThreads>>,
    queue: Queue<P>,
    clock: Clock,
    /// As set by the program; `None` if it is chosen for the machine.
    waiting: Option<Waiting>,
    stalls: StallSettings,
    submitters: u16,
    threads: Arc<Threads>,
    /// Makes the lanes of further submitters; `None` if they have no lanes.
    another: Option<Another<P>>,
}

impl<P> fmt::Debug for Service<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// Why a service could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The configuration is impossible.
    #[error("{0}")]
    Config(#[source] ConfigError),
    /// The descriptors that threads sleep on could not be created.
    #[error("no descriptors to sleep on (ulimit -n says how many there may be): {0}")]
    Bell(#[source] std::io::Error),
    /// A pump thread could not be started.
    #[error("a pump thread could not be started: {0}")]
    Thread(#[source] std::io::Error),
}

impl<P: Payload> Service<P> {
    /// Builds the queue that `config` describes, with a host that parks threads (`config.host` is replaced), and
    /// starts pump threads if `config.pump` asks for them. The kernel places them.
    ///
    /// # Errors
    /// If the configuration is impossible or a thread cannot be started.
    pub fn start(config: Config<P>) -> Result<Self, ServiceError> {
        Self::start_placed(config, Placement::Anywhere)
    }

    /// As [`start`](Self::start), with pump threads placed by `placement`.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_placed(config: Config<P>, placement: Placement) -> Result<Self, ServiceError> {
        let mut config = config.own_lanes();
        let (submitters, hw_queues) = (config.submitters, config.device.hw_queues);
        // Before the queue takes the device queues: duplicates their descriptors.
        let threads = Threads::new(&config).map_err(ServiceError::Bell)?;
        let clock = Clock::start();
        config.host = Box::new(ThreadHost { threads: Arc::clone(&threads), clock });
        let pump = config.pump;
        let another = config.queues.first().and_then(|queue| queue.another());
        let queue = Queue::new(config).map_err(ServiceError::Config)?;
        let pumps = match pump {
            PumpMode::Inline | PumpMode::Owner => None,
            PumpMode::Thread => Some(
                PumpThreads::start(&queue, hw_queues, clock, &threads, placement)
                    .map(Arc::new)
                    .map_err(ServiceError::Thread)?,
            ),
        };
        Ok(Self {
            pumps,
            queue,
            clock,
            waiting: None,
            stalls: StallSettings::default(),
            submitters,
            threads,
            another,
        })
    }

    /// Sets how clients and reactors created later wait.
    pub fn set_waiting(&mut self, waiting: Waiting) {
        self.waiting = Some(waiting);
    }

    /// Sets the observer of clients and reactors created later. They notify it when they have received no completion
    /// for a while, and when a completion arrives after that.
    pub fn set_observer(&mut self, observer: Observer) {
        self.stalls.observer = Some(observer);
    }

    /// Sets the time after which clients and reactors created later report a stall; [`STALL_AFTER`](crate::STALL_AFTER)
    /// by default. They report it again after twice that time, and so on.
    pub fn set_stall_after(&mut self, after: Nanos) {
        self.stalls.after = after;
    }

    /// A client's means to report its stalls.
    fn stalls(&self) -> Stalls<P> {
        Stalls::new(self.stalls.clone(), self.queue.clone())
    }

    /// The clock of the service.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The queue.
    #[must_use]
    pub fn queue(&self) -> &Queue<P> {
        &self.queue
    }

    /// The counters so far.
    #[must_use]
    pub fn stats(&self) -> QueueStats {
        self.queue.stats()
    }

    /// A new client, for any one thread. There are at most [`Config::submitters`] clients and reactors. A client that
    /// was dropped with I/Os in flight counts until these are done.
    ///
    /// # Errors
    /// If there are that many, or the system has no descriptors or memory for it.
    pub fn client(&self) -> Result<Client<P>, ClientError> {
        let submitter = self.submitter()?;
        let (pumps, stalls) = (self.pumps.clone(), self.stalls());
        Ok(Client::new(submitter, self.clock, self.waiting(0), &self.threads, pumps, stalls))
    }

    /// Returns whether a policy or a device of the queue has panicked. See [`Queue::is_poisoned`].
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.queue.is_poisoned()
    }

    fn submitter(&self) -> Result<Submitter<P>, ClientError> {
        let submitter = self.queue.submitter().or_else(|_| {
            // Without other clients, no thread has checked whether the I/Os of dropped clients are done.
            self.queue.poll(self.clock.now());
            self.queue.submitter()
        });
        let mut submitter = submitter.map_err(ClientError::NoSubmitterLeft)?;
        let prepared = self.threads.prepare(&mut submitter, self.another.as_ref());
        prepared.map_err(ClientError::Descriptor)?;
        Ok(submitter)
    }

    /// How a client waits, with `others` threads besides those of the queue.
    fn waiting(&self, others: u16) -> Waiting {
        let usual = || {
            if self.threads.watch_devices() {
                return Waiting::on_device();
            }
            let (pumps, cpus) = (self.threads.pump_threads(), available_cpus());
            let clients = match self.submitters {
                // The default says nothing about this program: assume no more threads than CPUs.
                DEFAULT_SUBMITTERS => cpus.saturating_sub(others.saturating_add(pumps)).max(1),
                told => told,
            };
            let threads = clients.saturating_add(others).saturating_add(pumps);
            match pumps {
                0 => Waiting::for_threads(threads, cpus),
                _ => Waiting::on_pump_threads(threads, cpus),
            }
        };
        self.waiting.unwrap_or_else(usual)
    }

    /// A blocking client, for any one thread.
    ///
    /// # Errors
    /// As for [`client`](Self::client).
    pub fn blocking(&self) -> Result<Blocking<P>, ClientError> {
        self.client().map(Blocking::new)
    }

    /// A client with its own thread, for callbacks and futures from any number of threads.
    ///
    /// # Errors
    /// As for [`client`](Self::client), and if the thread cannot be started.
    pub fn reactor(&self) -> Result<Reactor<P>, ReactorError> {
        self.launch().and_then(Reactor::start)
    }

    /// Clients that are tasks of a tokio runtime, for callbacks and futures: one for each of its workers as far as the
    /// queue has submitters, at least one. No thread is started. The worker that submits an I/O hands it to the device
    /// and finds its completion, as long as the runtime does not move the tasks. The runtime waits for the device as it
    /// waits for sockets (decision 0029). O(workers).
    ///
    /// If there are more workers than [`DEFAULT_SUBMITTERS`], or further clients, set [`Config::submitters`] to the
    /// sum. Real-time devices with no descriptor to watch, such as `null`, depend on the runtime's timers, which may be
    /// a millisecond late.
    ///
    /// # Errors
    /// If all submitters are taken, or the runtime cannot watch the clients' descriptors.
    ///
    /// # Panics
    /// If the runtime was built without `enable_io` or `enable_time`.
    #[cfg(all(target_os = "linux", feature = "tokio"))]
    pub fn reactor_on(&self, runtime: &tokio::runtime::Handle) -> Result<Reactor<P>, ReactorError> {
        let first = self.launch()?;
        let others = std::iter::from_fn(|| self.launch().ok());
        let workers = runtime.metrics().num_workers();
        Reactor::start_on(runtime, first, others.take(workers.saturating_sub(1)))
    }

    /// The parts of a reactor.
    fn launch(&self) -> Result<Launch<P>, ReactorError> {
        Ok(Launch {
            submitter: self.submitter()?,
            clock: self.clock,
            // The threads that use the reactor need CPUs as well: it can do nothing useful before they run.
            waiting: self.waiting(1),
            threads: Arc::clone(&self.threads),
            pumps: self.pumps.clone(),
            stalls: self.stalls(),
        })
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;
    use blkmq_device::{MachineShape, registry};

    fn service(pump: PumpMode, submitters: u16) -> Service<u64> {
        let machine = MachineShape { cpus: 1, nodes: 1 };
        let config = registry::parse("null,irqmode=0", &machine).unwrap().config();
        let config = Config { submitters, pump, ..config };
        Service::start(config).unwrap()
    }

    #[test]
    fn clients_wait_as_told_or_as_threads_and_cpus_suggest() {
        let cpus = available_cpus();
        let mut service = service(PumpMode::Inline, 3);
        assert_eq!(service.waiting(0), Waiting::for_threads(3, cpus));
        assert_eq!(service.waiting(cpus), Waiting::for_threads(3 + cpus, cpus));
        let told = Waiting { spins: 1, rounds: 2, yields: 3 };
        service.set_waiting(told);
        assert_eq!((service.waiting(0), service.waiting(cpus)), (told, told));
    }

    #[test]
    fn pump_threads_count_where_there_are_any() {
        let cpus = available_cpus();
        let fits = service(PumpMode::Inline, cpus).waiting(0);
        assert_eq!(fits, Waiting::for_threads(cpus, cpus));
        let one_too_many = service(PumpMode::Thread, cpus).waiting(0);
        assert_eq!(one_too_many, Waiting::on_pump_threads(cpus + 1, cpus));
        assert_ne!(one_too_many, fits);
    }
}
