//! [`Disk`]: a device with its queue, shared by exports, and [`Standing`], the last known state of the device.

use crate::locked;
use crate::log::{Failure, Failures};
use blkmq::prelude::*;
use blkmq::remote::Outages;
use blkmq::{
    AUTO, Device, DeviceState, EditError, Factory, Finding, Instant, Nanos, Options, Outstanding,
    Place, Plan, QueueStats, SECTOR_SIZE, StartError,
};
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

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
        *locked(&self.configured) = scheduler;
    }

    pub(crate) fn configured(&self) -> Option<(&'static Factory, Options)> {
        locked(&self.configured).clone()
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
    fn grow(&self, bytes: u64, goes_on: &dyn Fn() -> bool) -> Result<(), EditError<Infallible>> {
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

/// The maximum time for which I/O is held back to change the size.
const PATIENCE: Nanos = Nanos::from_secs(2);
/// The number of polls to skip after an attempt that took longer.
const REST: u32 = 60;

/// The state at the last poll.
///
/// A thread polls the device: a file may be truncated or removed, a block device may lose write access, an image may be
/// resized, a server may lose its connections. Workers use the access mode as a hint for clients.
#[derive(Debug)]
pub(crate) struct Standing {
    state: DeviceState,
    outages: Outages,
    /// The number of polls before the next attempt to extend the queue of a grown device.
    rest: u32,
}

impl Standing {
    pub(crate) fn new(disk: &Disk) -> Self {
        let outages = disk.device().outages().unwrap_or_default();
        // A file that has become shorter since it was opened is reported at the first poll.
        let state = DeviceState { bytes: disk.seen().bytes(), ..disk.look() };
        Self { state, outages, rest: 0 }
    }

    /// Logs the changes since the last poll.
    pub(crate) fn look(&mut self, disk: &Disk) {
        let (name, device) = (disk.name(), disk.device());
        if let Some(outages) = device.outages() {
            for line in connections(&self.outages, &outages) {
                tracing::warn!("{name}: {line}");
            }
            self.outages = outages;
        }
        for finding in device.take_findings() {
            match finding {
                Finding::Fault(_) => tracing::error!("{name}: {finding}"),
                Finding::Progress(_) => tracing::info!("{name}: {finding}"),
            }
        }
        let state = disk.look();
        for line in changes(&self.state, &state, disk.seen().bytes()) {
            tracing::warn!("{name}: {line}");
        }
        self.follow_end(disk, state.bytes);
        self.state = state;
    }

    /// Extends the queue to a device of `bytes` bytes, if that is more than before.
    fn follow_end(&mut self, disk: &Disk, bytes: u64) {
        let block = u64::from(disk.device().shape().limits.logical_block_size);
        if bytes / block * block <= disk.seen().bytes() {
            return;
        }
        if self.rest > 0 {
            self.rest -= 1;
            return;
        }
        let (name, clock) = (disk.name(), disk.service().clock());
        let until = clock.now() + PATIENCE;
        match disk.grow(bytes, &|| clock.now() < until) {
            Ok(()) => {
                let bytes = disk.seen().bytes();
                tracing::info!(bytes, "{name}: exports that end with it have its new size");
            }
            Err(error) => {
                self.rest = REST;
                tracing::warn!("{name}: exports keep their size for another minute: {error}");
            }
        }
    }
}

/// Describes the losses and re-establishments of connections between two polls, and the requests given up.
fn connections(before: &Outages, now: &Outages) -> Vec<String> {
    let mut lines = Vec::new();
    if now.lost > before.lost {
        let why = now.last.as_deref().unwrap_or("no reason");
        let count = now.lost - before.lost;
        lines.push(format!("{count} connections to its server are lost: {why}"));
    }
    if now.restored > before.restored {
        let count = now.restored - before.restored;
        lines.push(format!(
            "{count} connections to its server are made anew, and requests sent again"
        ));
    }
    if now.given_up > before.given_up {
        let last = now.last_given_up.as_deref().unwrap_or("unknown");
        let count = now.given_up - before.given_up;
        lines.push(format!(
            "{count} requests have failed, since their connections were lost again and again; the last one: {last}"
        ));
    }
    lines
}

/// Describes the changes of a device of which `served` bytes are served.
fn changes(before: &DeviceState, now: &DeviceState, served: u64) -> Vec<String> {
    let mut lines = Vec::new();
    if now.bytes != before.bytes {
        lines.push(resized(before.bytes, now.bytes, served));
    }
    if now.is_removed && !before.is_removed {
        lines.push(
            "its file has been removed or replaced; exports keep the old one, which is lost when the server ends"
                .to_owned(),
        );
    }
    match (before.is_read_only, now.is_read_only) {
        (false, true) => {
            lines.push("it takes no writes any more; new connections are read-only".to_owned());
        }
        (true, false) => lines.push(
            "it takes writes by now; exports can be written to once the server is started anew"
                .to_owned(),
        ),
        _ => {}
    }
    if now.has_volatile_cache && !before.has_volatile_cache {
        lines.push(
            "its write cache has been switched on; flushes are sent to it once the server is started anew, and until then \
             a flush makes nothing durable"
                .to_owned(),
        );
    }
    lines
}

/// Describes a change of size of a device of which `served` bytes are served.
fn resized(before: u64, now: u64, served: u64) -> String {
    let what = format!("its store has been resized from {before} to {now} bytes");
    if now < served {
        format!(
            "{what}; I/O beyond that fails, and exports keep their size of {served} bytes in all"
        )
    } else if now == served {
        format!("{what}, the size that exports have")
    } else {
        format!(
            "{what}; new clients of its exports get that, and block devices when the server is started anew"
        )
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

    fn outages(lost: u64, restored: u64) -> Outages {
        let mut outages = Outages::default();
        (outages.lost, outages.restored, outages.last) =
            (lost, restored, Some("closed".to_owned()));
        outages
    }

    #[test]
    fn each_change_is_said_once() {
        let lines = connections(&outages(1, 1), &outages(3, 2));
        assert_eq!(
            lines,
            [
                "2 connections to its server are lost: closed",
                "1 connections to its server are made anew, and requests sent again",
            ]
        );
        assert_eq!(connections(&outages(3, 2), &outages(3, 2)), Vec::<String>::new());
    }

    #[test]
    fn a_request_that_is_given_up_is_named() {
        let mut now = outages(3, 3);
        (now.given_up, now.last_given_up) = (1, Some("write of 512 bytes at 0".to_owned()));
        let lines = connections(&outages(3, 3), &now);
        assert_eq!(lines.len(), 1);
        assert!(lines[0].ends_with("the last one: write of 512 bytes at 0"), "{lines:?}");
    }

    #[test]
    fn a_smaller_store_fails_and_a_larger_one_waits() {
        assert!(resized(100, 50, 100).contains("from 100 to 50 bytes; I/O beyond that fails"));
        assert!(resized(50, 100, 100).ends_with("the size that exports have"));
        assert!(resized(100, 200, 100).contains("new clients of its exports get that"));
    }

    #[test]
    fn what_a_device_loses_is_told_of() {
        let before = DeviceState {
            bytes: 100,
            is_read_only: false,
            is_removed: false,
            has_volatile_cache: false,
        };
        let now = DeviceState {
            is_read_only: true,
            is_removed: true,
            has_volatile_cache: true,
            ..before
        };
        let lines = changes(&before, &now, 100);
        assert!(lines[0].contains("removed or replaced"), "{lines:?}");
        assert!(lines[1].contains("new connections are read-only"), "{lines:?}");
        assert!(lines[2].contains("write cache has been switched on"), "{lines:?}");
        assert_eq!(changes(&now, &now, 100), Vec::<String>::new());
    }
}
