//! [`Disk`]: a device with its queue, shared by exports.

use crate::failures::{Failure, Failures};
use blkmq::prelude::*;
use blkmq::{
    AUTO, Device, DeviceState, EditError, Factory, Instant, Nanos, Options, Outstanding, Place,
    Plan, QueueStats, SECTOR_SIZE, StartError,
};
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A device under a scheduler.
#[derive(Debug)]
pub struct Disk {
    name: String,
    device: Device,
    service: Service<AlignedBuf>,
    seen: Arc<Seen>,
    failures: Failures,
    /// The configured scheduler with its options.
    configured: Mutex<Option<(&'static Factory, Options)>>,
}

/// The last known state of a device. Both fields are hints that disks write and clients read: the device itself
/// decides.
#[derive(Debug)]
pub(crate) struct Seen {
    is_read_only: AtomicBool,
    bytes: AtomicU64,
}

impl Seen {
    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only.load(Ordering::Relaxed)
    }

    /// The size in bytes for which the queue accepts I/O.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// The credit of a worker's client: the maximum I/Os and parts of divided I/Os in flight for all its connections.
pub(crate) const CREDIT: u32 = 1024;

impl Disk {
    /// Starts the queue of `device` with the scheduler named `scheduler`, for `workers` threads that serve it. `auto`
    /// ([`AUTO`]) means the device's default until two exports compete, and mclock from then on.
    ///
    /// # Errors
    /// If there is no such scheduler, or the system refuses rings, memory or threads.
    pub fn start(
        name: &str,
        device: Device,
        scheduler: &str,
        workers: u16,
    ) -> Result<Self, StartError> {
        if scheduler == AUTO {
            let config = device.config().map_err(StartError::Queues)?.auto();
            return Self::start_config(name, device, config, workers);
        }
        let factory = blkmq::scheduler(scheduler)?;
        Self::start_with(name, device, factory, &Options::defaults(factory.attributes), workers)
    }

    /// Like [`start`](Self::start), with a scheduler and its options.
    ///
    /// # Errors
    /// See [`start`](Self::start).
    pub fn start_with(
        name: &str,
        device: Device,
        scheduler: &'static Factory,
        options: &Options,
        workers: u16,
    ) -> Result<Self, StartError> {
        let mut config = device.config().map_err(StartError::Queues)?.scheduler(scheduler);
        config.options = options.clone();
        let disk = Self::start_config(name, device, config, workers)?;
        disk.configure(Some((scheduler, options.clone())));
        Ok(disk)
    }

    /// Sets the configured scheduler: control clients that select it get these options instead of its defaults.
    /// Initially it is the scheduler of [`start_with`](Self::start_with).
    pub fn configure(&self, scheduler: Option<(&'static Factory, Options)>) {
        *self.configured.lock().unwrap_or_else(PoisonError::into_inner) = scheduler;
    }

    pub(crate) fn configured(&self) -> Option<(&'static Factory, Options)> {
        self.configured.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn start_config(
        name: &str,
        device: Device,
        mut config: Config<AlignedBuf>,
        workers: u16,
    ) -> Result<Self, StartError> {
        config.submitters = workers;
        config.depth = CREDIT;
        let service = Service::start(config).map_err(StartError::Service)?;
        let is_read_only = AtomicBool::new(device.state().is_read_only);
        let seen = Arc::new(Seen { is_read_only, bytes: AtomicU64::new(device.bytes()) });
        let failures = Failures::default();
        let (name, configured) = (name.to_owned(), Mutex::default());
        Ok(Self { name, device, service, seen, failures, configured })
    }

    /// Queries the present state of the device.
    pub(crate) fn look(&self) -> DeviceState {
        let state = self.device.state();
        self.seen.is_read_only.store(state.is_read_only, Ordering::Relaxed);
        state
    }

    /// The state of the device, which later queries update.
    pub(crate) fn seen(&self) -> &Arc<Seen> {
        &self.seen
    }

    /// Extends the queue to the whole blocks of `bytes` bytes, the new size of the device. The queue is frozen until
    /// all I/O in flight has completed.
    ///
    /// # Errors
    /// If `goes_on` returns false before that, the queue is poisoned, or the size exceeds that of any device.
    pub(crate) fn grow(
        &self,
        bytes: u64,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(), EditError<Infallible>> {
        let block = u64::from(self.device.shape().limits.logical_block_size);
        let bytes = bytes - bytes % block;
        let edit = |plan: &mut Plan| {
            plan.device.limits.capacity = bytes / u64::from(SECTOR_SIZE);
            Ok(())
        };
        self.service.edit_while(edit, goes_on)?;
        self.seen.bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Logs an I/O that failed.
    pub(crate) fn failed(
        &self,
        export: &str,
        (operation, offset): (&'static str, u64),
        error: IoError,
    ) {
        let failure = Failure { device: &self.name, export, operation, offset, error };
        self.failures.log(self.service.clock().now(), &failure);
    }

    /// The unfinished requests at `now`, oldest first. If none is in flight, only counters are read.
    pub(crate) fn outstanding(&self, now: Instant) -> Vec<Outstanding> {
        let queue = self.service.queue();
        let QueueStats { submitted, completed, .. } = queue.stats();
        if submitted == completed { Vec::new() } else { queue.outstanding(now, usize::MAX) }
    }

    /// The number of requests that have been at the device for longer than `age`, and the greatest age.
    pub(crate) fn stuck(&self, age: Nanos) -> Option<(usize, Nanos)> {
        let now = self.service.clock().now();
        let mut all = self.outstanding(now);
        all.retain(|one| one.place != Place::Elevator && now.since(one.since) >= age);
        all.first().map(|oldest| (all.len(), now.since(oldest.since)))
    }

    /// The name for messages and control.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that waits in the scheduler says nothing about the device.
    #[test]
    fn a_device_that_keeps_a_request_is_stuck() {
        let stuck = "null,irqmode=2,completion_nsec=3600000000000,submit_queues=1,hw_queue_depth=1";
        let device = blkmq::open(stuck).expect("a device");
        let disk = Disk::start("disk", device, "mq-deadline", 1).expect("a disk");
        assert_eq!(disk.stuck(Nanos::ZERO), None);
        let mut client = disk.service().client().expect("a client");
        for block in 0..3 {
            client.push(Io::read(Bytes(block << 20), AlignedBuf::new(4096))).expect("credit");
        }
        client.flush();
        let (count, age) = disk.stuck(Nanos(1)).expect("one is at the device");
        assert!(count == 1 && age > Nanos::ZERO, "{count} {age:?}");
        assert_eq!(disk.stuck(Nanos::from_secs(3600)), None);
        let all = disk.outstanding(disk.service().clock().now());
        assert_eq!(all.len(), 2, "mq-deadline has two slots for each tag");
    }
}
