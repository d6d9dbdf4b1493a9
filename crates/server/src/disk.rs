//! [`Disk`]: a device with its queue, which exports share.

use blkmq::prelude::*;
use blkmq::{Device, Factory, Options, StartError};

/// A device under a scheduler.
#[derive(Debug)]
pub struct Disk {
    name: String,
    device: Device,
    service: Service<AlignedBuf>,
}

/// The credit of a worker's client: I/Os, and parts of divided ones, in flight for all its connections.
pub(crate) const CREDIT: u32 = 1024;

impl Disk {
    /// Starts the queue of `device` with the scheduler called `scheduler`, for `workers` threads that serve it.
    ///
    /// # Errors
    /// If there is no such scheduler, or the system refuses rings, memory or threads.
    pub fn start(
        name: &str,
        device: Device,
        scheduler: &str,
        workers: u16,
    ) -> Result<Self, StartError> {
        let factory = blkmq::scheduler(scheduler)
            .ok_or_else(|| StartError::Scheduler(scheduler.to_owned()))?;
        Self::start_with(name, device, factory, &Options::defaults(factory.attributes), workers)
    }

    /// As [`start`](Self::start), with a scheduler and its options.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(
        name: &str,
        device: Device,
        scheduler: &'static Factory,
        options: &Options,
        workers: u16,
    ) -> Result<Self, StartError> {
        let mut config = device.config().map_err(StartError::Queues)?.scheduler(scheduler);
        config.options = options.clone();
        config.submitters = workers;
        config.depth = CREDIT;
        let service = Service::start(config).map_err(StartError::Service)?;
        Ok(Self { name: name.to_owned(), device, service })
    }

    /// Its name in messages and for control.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The running queue.
    #[must_use]
    pub fn service(&self) -> &Service<AlignedBuf> {
        &self.service
    }
}
