//! A queue on its feet: built, with its threads, stopped in the right order.

use crate::host::{ThreadHost, Threads};
use crate::pump_thread::PumpThreads;
use crate::reactor::Launch;
use crate::{Blocking, Client, Clock, Placement, Reactor, ReactorError, Waiting, available_cpus};
use blkmq_core::Payload;
use blkmq_engine::{Config, ConfigError, NoSubmitterLeft, PumpMode, Queue, QueueStats};
use std::fmt;
use std::sync::Arc;

/// A block queue, its clock, and its pump threads if it has any. Dropping it stops the threads, unless a
/// [`Reactor`] still needs them; clients keep the queue itself alive.
pub struct Service<P> {
    // Before the queue, so that its threads are gone first.
    pumps: Option<Arc<PumpThreads>>,
    queue: Queue<P>,
    clock: Clock,
    waiting: Waiting,
    submitters: u16,
    threads: Arc<Threads>,
}

impl<P> fmt::Debug for Service<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// Why a service could not start.
#[derive(Debug)]
pub enum ServiceError {
    /// The configuration is impossible.
    Config(ConfigError),
    /// What a thread would sleep on and be woken by could not be made.
    Bell(std::io::Error),
    /// A pump thread could not be started.
    Thread(std::io::Error),
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(e) => e.fmt(f),
            Self::Bell(e) => {
                write!(f, "no descriptors to sleep on (ulimit -n says how many there may be): {e}")
            }
            Self::Thread(e) => write!(f, "a pump thread could not be started: {e}"),
        }
    }
}

impl std::error::Error for ServiceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Config(e) => Some(e),
            Self::Bell(e) | Self::Thread(e) => Some(e),
        }
    }
}

impl<P: Payload> Service<P> {
    /// Builds the queue that `config` describes, with a host that parks threads (`config.host` is replaced),
    /// and starts pump threads if `config.pump` asks for them.
    ///
    /// # Errors
    /// If the configuration is impossible or a thread cannot be started.
    pub fn start(mut config: Config<P>, placement: Placement) -> Result<Self, ServiceError> {
        let (submitters, hw_queues) = (config.submitters, config.device.hw_queues);
        // While the device queues are still here: what there is to watch of them.
        let threads = Threads::new(&config).map_err(ServiceError::Bell)?;
        let clock = Clock::start();
        config.host = Box::new(ThreadHost { threads: Arc::clone(&threads), clock });
        let pump = config.pump;
        let queue = Queue::new(config).map_err(ServiceError::Config)?;
        let pumps = match pump {
            PumpMode::Inline => None,
            PumpMode::Thread => Some(
                PumpThreads::start(&queue, hw_queues, clock, &threads, placement)
                    .map(Arc::new)
                    .map_err(ServiceError::Thread)?,
            ),
        };
        let waiting = match pump {
            PumpMode::Inline => Waiting::for_threads(submitters, available_cpus()),
            PumpMode::Thread => {
                Waiting::on_pump_threads(submitters.saturating_add(hw_queues), available_cpus())
            }
        };
        let waiting = if threads.watch_devices() { waiting.on_device() } else { waiting };
        Ok(Self { pumps, queue, clock, waiting, submitters, threads })
    }

    /// Its clock.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The queue.
    #[must_use]
    pub fn queue(&self) -> &Queue<P> {
        &self.queue
    }

    /// Counters so far.
    #[must_use]
    pub fn stats(&self) -> QueueStats {
        self.queue.stats()
    }

    /// A client for the calling thread.
    ///
    /// # Errors
    /// If the queue was built for fewer.
    pub fn client(&self) -> Result<Client<P>, NoSubmitterLeft> {
        let submitter = self.queue.submitter()?;
        Ok(Client::new(submitter, self.clock, self.waiting, &self.threads))
    }

    /// A blocking client for the calling thread.
    ///
    /// # Errors
    /// If the queue was built for fewer.
    pub fn blocking(&self) -> Result<Blocking<P>, NoSubmitterLeft> {
        self.client().map(Blocking::new)
    }
    /// A client with a thread of its own, for callbacks and futures from any number of threads.
    ///
    /// # Errors
    /// If the queue was built for fewer submitters, or the thread cannot be started.
    pub fn reactor(&self) -> Result<Reactor<P>, ReactorError> {
        let submitter = self.queue.submitter().map_err(ReactorError::NoSubmitterLeft)?;
        Reactor::start(Launch {
            submitter,
            clock: self.clock,
            // Those who call it have threads, too, and answers are of no use before they run.
            waiting: Waiting::for_threads(self.submitters.saturating_add(1), available_cpus()),
            threads: Arc::clone(&self.threads),
            pumps: self.pumps.clone(),
        })
    }
}
