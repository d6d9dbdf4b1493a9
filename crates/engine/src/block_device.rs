//! [`BlockDevice`]: the interface of every device before a queue is built around it.

use crate::{Config, DeviceQueue, DeviceShape};
use std::io;

/// The hardware queues of a device, in order.
pub type DeviceQueues<P> = Vec<Box<dyn DeviceQueue<P>>>;

/// A device, described and ready to be given to a queue, for payloads of type `P`.
///
/// A device of your own implements [`shape`](Self::shape) and [`queues`](Self::queues); the hardware queues do the
/// I/O ([`DeviceQueue`]).
pub trait BlockDevice<P> {
    /// The properties that the engine must know.
    fn shape(&self) -> DeviceShape;

    /// Its hardware queues, `shape().hw_queues` of them, for one more queue around it.
    ///
    /// # Errors
    /// If the system refuses resources for them, such as rings and memory.
    fn queues(&self) -> io::Result<DeviceQueues<P>>;

    /// Deviations from the description of the device: one sentence each, for the user.
    fn notes(&self) -> &[String] {
        &[]
    }

    /// The name of the scheduler that Linux gives such a device: `mq-deadline` for one hardware queue or shared
    /// tags, `none` for several hardware queues (`spec/framework.md` section 11).
    fn default_scheduler(&self) -> &'static str {
        self.shape().default_scheduler()
    }

    /// The configuration of a queue around it, everything but the device at its default.
    ///
    /// # Errors
    /// As [`queues`](Self::queues).
    fn config(&self) -> io::Result<Config<P>> {
        let config = Config::new(self.shape(), self.queues()?);
        Ok(config.default_scheduler(self.default_scheduler()))
    }
}
