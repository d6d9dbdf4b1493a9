//! Exports as block devices of this machine: ublk, with a thread for each.
//!
//! A [`Ublk`](crate::Ublk) presents an export of the server as `/dev/ublkbN`, with the same disk, group, promises and
//! counts as for its NBD clients. The thread owns the queues of the device and a client of the disk. In a turn it takes
//! requests from the kernel, pushes their I/Os as one plug, reaps completions, and passes all answers to the kernel
//! with one call. [`Facts`] has the parameters of the device, and [`Keeper`] a second thread for commands that wait for
//! the first.

use crate::carrier::{
    Carrier, DISK, EVENTS, Finished, INBOX, LOOKS, ROUNDS, SOON, TICK, check_queues,
};
use crate::clients::{Listed, Totals};
use crate::export::{Cache, Export, Seat, Served, Ublk};
use crate::flight::Work;
use crate::threads::{Inbox, Load, Message, Running};
use crate::worker::Shared;
use blkmq::core::Limits;
use blkmq::{ClientError, Instant, IoError, IoResult, Nanos, SECTOR_SIZE, WriteCache};
use blkmq_ublk::control::{Device, Origin, UblkError};
use blkmq_ublk::queues::{Queues, Taken};
use blkmq_ublk::wire::{
    Allowed, Descriptor, FUA, Info, Op, Params, READ_ONLY, ROTATIONAL, VOLATILE_CACHE,
};
use rustix::event::epoll;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

/// The maximum duration of the start of a block device, whose partitions are read.
const STARTS: Duration = Duration::from_secs(30);

/// Starts the thread of `export`, which is in service, and waits until the block device exists.
///
/// # Errors
/// If the device is refused, or does not start in time. Then its thread ends.
pub(crate) fn start(shared: &Arc<Shared>, export: &Export, settings: Ublk) -> Result<(), String> {
    let exports = shared.exports.now();
    let has_number = |other: &&Served| {
        other.info.name != export.name && other.ublk.is_some_and(|it| it.number == settings.number)
    };
    if let Some(other) = exports.all().find(has_number) {
        return Err(format!("it is the block device of the export '{}'", other.info.name));
    }
    // If it were held during the start, the table would keep exports alive that are removed in the meantime.
    drop(exports);
    let (told, started) = channel();
    let running = Running::start(format!("ublk {}", settings.number), |inbox| {
        let of = (&export.name[..], export.disk);
        let backend = Backend::new(of, settings, Arc::clone(shared), inbox)?;
        Ok(move || backend.run(told))
    });
    shared.devices.add(&export.name, running.map_err(|error| error.to_string())?);
    match started.recv_timeout(STARTS) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the device does not start".to_owned()),
    }
}

/// The number of the event of the queues, besides those of the carrier.
const QUEUES: u64 = 2;
/// The number of tags of a queue: with four queues, a quarter of the credit.
const DEPTH: u16 = 64;

/// A device that was added, and the thread's state before it runs.
pub(crate) struct Backend {
    seat: Seat,
    /// The size of the device in bytes.
    bytes: u64,
    device: Device,
    carrier: Carrier<u32>,
}

impl Backend {
    /// Creates the block device of the export named `export` on a disk.
    ///
    /// # Errors
    /// If the driver is missing or refuses, or the disk was not started for another thread.
    pub(crate) fn new(
        (export, disk): (&str, usize),
        settings: Ublk,
        shared: Arc<Shared>,
        inbox: Arc<Inbox>,
    ) -> io::Result<Self> {
        check_queues(settings.queues)?;
        let most = shared.bounds.connections_per_export;
        let seat = shared.exports.now().get(export).and_then(|export| Seat::take(export, most));
        let full = "the export has no place left";
        let seat = seat.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, full))?;
        let client = shared.disks[disk].service().client().map_err(|error| match error {
            ClientError::NoSubmitterLeft(_) => {
                let text = "the disk has no place for another block device; the bound 'devices' says how many there are";
                io::Error::other(text)
            }
            error => io::Error::other(error),
        });
        let carrier = Carrier::new((export, disk), client?, shared, inbox)?;
        let portion = carrier.portion();
        let wanted = Info {
            queues: settings.queues,
            depth: DEPTH,
            max_bytes: portion as u32,
            device: settings.number,
            ..Info::default()
        };
        let shape = carrier.shared.disks[disk].device().shape();
        let facts = Facts::of(&seat, portion);
        let (params, bytes) = (facts.params(&shape.limits, shape.cache), facts.bytes);
        let device = Device::add(wanted, &params).map_err(io::Error::other)?;
        match device.origin() {
            Origin::New => {}
            Origin::Replaced => {
                tracing::warn!(export, "a device that no process served is replaced");
            }
            Origin::Recovered => {
                tracing::info!(export, "a device that a process has left behind is taken up");
            }
        }
        Ok(Self { seat, bytes, device, carrier })
    }

    /// Serves the device until it is asked to stop, or the export is removed. Notifies `started` when the block device
    /// exists.
    ///
    /// # Errors
    /// If the kernel refuses memory, a ring or waiting.
    pub(crate) fn run(self, started: Sender<Result<(), UblkError>>) -> io::Result<()> {
        let Self { seat, bytes, device, carrier } = self;
        let info = *device.info();
        let device = Arc::new(device);
        // Opened on this thread: the kernel binds tags to the thread that fetches them.
        let file = device.open().map_err(io::Error::other);
        let begun = file.and_then(|file| Queues::fetch(file, &info)).and_then(|queues| {
            carrier.sleeper.watch(&queues, QUEUES)?;
            Ok((Keeper::start(Arc::clone(&device), started)?, queues))
        });
        let (keeper, queues) = begun.inspect_err(|_| {
            // Nothing refers to the device at this point. The first error is reported.
            let _ = device.give_up();
        })?;
        let through = seat.cache == Cache::Writethrough;
        let export = &carrier.name;
        tracing::info!(export, device = info.device, queues = info.queues, "a device is served");
        let path = format!("/dev/ublkb{}", info.device);
        let serving = Serving {
            listed: carrier.shared.clients.list_device(path, export),
            seat,
            bytes,
            keeper,
            queues,
            carrier,
            through,
            waiting: VecDeque::new(),
            ending: None,
            has_given_up: false,
            totals: Totals::default(),
        };
        serving.run()
    }
}

/// The thread's state.
struct Serving {
    /// Its entry in the list of clients.
    listed: Listed,
    seat: Seat,
    /// The size of the device in bytes.
    bytes: u64,
    keeper: Keeper,
    queues: Queues,
    /// Its requests are identified by their tags.
    carrier: Carrier<u32>,
    /// Whether every write must be durable when it is answered.
    through: bool,
    /// Requests that have not begun; at most one for each tag.
    waiting: VecDeque<Taken>,
    /// The time at which the end of the device began.
    ending: Option<Instant>,
    /// Whether the disk did not complete its requests in time: they were answered with errors, and new requests are,
    /// too.
    has_given_up: bool,
    totals: Totals,
}

impl Serving {
    fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        let mut served = Ok(());
        while served.is_ok() && !self.is_done() {
            for _ in 0..LOOKS {
                if !self.look() {
                    break;
                }
                self.serve();
            }
            let most = self.sleep_for();
            served = self.carrier.sleep(most, &mut events);
            self.take_turn(&mut events);
        }
        self.end(served)
    }

    /// Polls briefly for requests and completions, if that pays. Returns whether there is one.
    fn look(&mut self) -> bool {
        let mut spin = std::mem::take(&mut self.carrier.spin);
        let found = spin.poll(self.carrier.clock, || {
            let is_due = self.queues.has_request() || self.carrier.has_ended() && self.reap();
            is_due.then(|| ((), Load::of(self.carrier.len())))
        });
        self.carrier.spin = spin;
        found.is_some()
    }

    /// The maximum sleep before the next turn; zero while a request has a step to begin.
    fn sleep_for(&mut self) -> Nanos {
        if self.carrier.is_due() || self.may_begin() && !self.waiting.is_empty() {
            return Nanos::ZERO;
        }
        if self.ending.is_some() { SOON } else { TICK }
    }

    fn take_turn(&mut self, events: &mut Vec<epoll::Event>) {
        self.carrier.next_turn();
        for event in events.drain(..) {
            match event.data.u64() {
                INBOX => self.read_inbox(),
                DISK => self.carrier.disk_client.is_called = true,
                _ => {}
            }
        }
        if self.seat.is_withdrawn() {
            self.begin_end();
        }
        let bytes = self.seat.bytes();
        if bytes != self.bytes {
            self.bytes = bytes;
            self.keeper.resize(bytes / u64::from(SECTOR_SIZE));
        }
        self.serve();
        let in_flight = (self.carrier.len() + self.waiting.len()) as u64;
        // A block device can only end with its export.
        let _ = self.listed.look(self.totals, in_flight);
        if let Some(error) = self.queues.take_fault() {
            let export = &self.carrier.name;
            tracing::error!(export, "a device ends, since a command was refused: {error}");
            self.begin_end();
        }
    }

    fn read_inbox(&mut self) {
        for message in self.carrier.inbox.take() {
            match message {
                // Only workers get connections.
                Message::Connection(..) => {}
                Message::Drain | Message::HandOver | Message::Stop => self.begin_end(),
            }
        }
    }

    /// Makes the kernel stop the device, which must be served until then.
    fn begin_end(&mut self) {
        self.ending = self.ending.or(Some(self.carrier.clock.now()));
        self.keeper.stop();
    }

    /// Returns whether the device has ended, or will not end.
    fn is_done(&mut self) -> bool {
        let drain = self.carrier.shared.bounds.drain;
        let is_late = self.ending.is_some_and(|at| self.carrier.clock.now() >= at + drain);
        if self.queues.is_over() {
            return is_late || self.has_given_up || self.carrier.len() == 0;
        }
        if is_late && !self.has_given_up {
            self.give_up();
            return false;
        }
        is_late
    }

    /// Fails all requests, and waits again for the end. Without the answers the kernel completes neither the stop of
    /// the device nor its start, whatever happens to this process.
    fn give_up(&mut self) {
        let (export, requests) = (&self.carrier.name, self.carrier.len() + self.waiting.len());
        tracing::warn!(export, requests, "a device takes too long to stop: its requests fail");
        self.has_given_up = true;
        self.ending = Some(self.carrier.clock.now());
        self.waiting.clear();
        let mut finished = std::mem::take(&mut self.carrier.finished);
        self.carrier.give_up(&mut finished);
        self.queues.fail(-i32::from(IoError::IO.0));
        self.publish();
    }

    /// Deletes the device, which takes at most as long as a drain.
    fn end(mut self, served: io::Result<()>) -> io::Result<()> {
        self.keeper.stop();
        let Self { carrier, keeper, queues, totals, .. } = self;
        let export = &carrier.name;
        // The kernel counts descriptors of the device, and waits for the last one.
        let forgotten = carrier.sleeper.forget(&queues);
        drop(queues);
        if !keeper.delete(carrier.shared.bounds.drain) {
            tracing::warn!(
                export,
                "a device is still referred to and stays until this process ends"
            );
        }
        let Totals { requests, read, written } = totals;
        tracing::info!(export, requests, read, written, "a device ends");
        served.and(forgotten)
    }
}

impl Serving {
    /// Takes requests from the kernel, performs them as far as the disk permits, and answers.
    fn serve(&mut self) {
        for _ in 0..ROUNDS {
            self.carrier.go_on(&self.seat);
            // Takes all requests: the kernel signals until its ring is empty.
            let queues = &mut self.queues;
            self.waiting.extend(std::iter::from_fn(|| queues.take()));
            let has_begun = self.begin_waiting();
            let has_reaped = self.carrier.has_ended() && self.reap();
            self.publish();
            if !has_begun && !has_reaped {
                return;
            }
        }
    }

    /// Returns whether another request may begin.
    fn may_begin(&self) -> bool {
        self.carrier.has_room(self.carrier.shared.bounds.bytes)
    }

    /// Begins waiting requests, within limits. Returns whether there was one.
    fn begin_waiting(&mut self) -> bool {
        let mut has_begun = false;
        while self.may_begin()
            && let Some(Taken { tag, request }) = self.waiting.pop_front()
        {
            has_begun = true;
            self.begin(tag, request);
        }
        has_begun
    }

    /// Begins a request, or answers it.
    fn begin(&mut self, tag: u32, request: Descriptor) {
        if self.has_given_up {
            return self.answer(tag, Err(IoError::IO), 0);
        }
        let Self { seat, carrier, queues, .. } = self;
        let export = &**seat;
        let allowed = Allowed {
            bytes: export.bytes(),
            most: carrier.portion() as u32,
            discards: export.discard > 0,
            is_read_only: export.is_read_only(),
        };
        let Some(range) = request.range(&allowed) else {
            return self.answer(tag, Err(IoError::IO), 0);
        };
        let of = (tag, export.ioprio);
        // For a read or write, whose length is at most a portion.
        let (at, len) = (range.start, (range.end - range.start) as u32);
        let fua = request.fua || self.through;
        match request.op {
            Op::Flush => carrier.flush(of, export),
            Op::Read => carrier.read(of, export, (at, len)),
            Op::Write => {
                let fill = |_: &u32, data: &mut [u8], _| {
                    queues.data(tag, data.len()).map(|from| data.copy_from_slice(from)).is_some()
                };
                if carrier.write(of, export, (at, len, fua), fill).is_err() {
                    self.answer(tag, Err(IoError::IO), 0);
                }
            }
            Op::Discard => carrier.discard(of, export, range),
            Op::WriteZeroes { no_hole } => carrier.zero(of, export, (range, no_hole, fua)),
            Op::Other(_) => self.answer(tag, Err(IoError::NOT_SUPPORTED), 0),
        }
    }

    /// Flushes the plug and reaps completions. Returns whether there were any.
    fn reap(&mut self) -> bool {
        let mut finished = std::mem::take(&mut self.carrier.finished);
        let has_some = self.carrier.reap(&mut finished);
        if self.has_given_up {
            // They have been answered.
            finished.clear();
        }
        finished.drain(..).for_each(|done| self.finish(done));
        self.carrier.finished = finished;
        has_some
    }

    /// Handles the completion of all I/Os of a request.
    fn finish(&mut self, mut done: Finished<u32>) {
        self.carrier.tell_of(&done);
        let mut len = 0;
        if done.result.is_ok() {
            match done.work {
                Work::Read(_) => match self.queues.data(done.to, done.payload.len()) {
                    Some(data) => {
                        data.copy_from_slice(done.payload.as_mut_slice());
                        len = done.payload.len();
                        self.totals.read += len as u64;
                    }
                    None => done.result = Err(IoError::IO),
                },
                Work::Write(written) => {
                    len = written as usize;
                    self.totals.written += u64::from(written);
                }
                // No request is longer than a portion.
                Work::Plain | Work::Steps(_) | Work::Long(_) => {}
            }
        }
        self.totals.requests += 1;
        self.answer(done.to, done.result, len);
    }

    /// Answers a request, with the bytes of a read or write. [`publish`](Self::publish) passes the answers to the
    /// kernel.
    fn answer(&mut self, tag: u32, result: IoResult, len: usize) {
        let result = match result {
            Ok(()) => len as i32,
            Err(error) => -i32::from(error.0),
        };
        self.queues.answer(tag, result);
    }

    /// Passes the answers to the kernel.
    fn publish(&mut self) {
        if let Err(error) = self.queues.submit() {
            // The next turn tries again.
            self.carrier.fault(|before, export| {
                tracing::warn!(before, export, "the kernel takes no answers: {error}");
            });
        }
    }
}

/// The next command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Command {
    /// Resize to this many sectors.
    Resize(u64),
    Stop,
    Delete,
}

/// The serving thread's handle to a second thread, for the commands of a device that wait for the serving thread.
///
/// START_DEV waits for the partitions to be read, STOP_DEV for requests, DEL_DEV for the last reference. None of these
/// may delay the serving thread, or delay the end of the server for ever.
#[derive(Debug)]
struct Keeper {
    commands: Sender<Command>,
    /// Closed when the thread ends.
    over: Receiver<()>,
    has_stopped: bool,
}

impl Keeper {
    /// Starts the device, and notifies `started`. A device that does not start is stopped.
    ///
    /// # Errors
    /// If no thread can be started.
    fn start(device: Arc<Device>, started: Sender<Result<(), UblkError>>) -> io::Result<Self> {
        let (commands, inbox) = channel();
        let (end, over) = channel();
        let run = move || {
            let result = device.start();
            let has_started = result.is_ok();
            // The server may have stopped waiting.
            let _ = started.send(result);
            if !has_started {
                log(&device, device.stop());
            }
            for command in inbox {
                match command {
                    Command::Stop | Command::Resize(_) if !has_started => {}
                    Command::Resize(sectors) => resize(&device, sectors),
                    Command::Stop => log(&device, device.stop()),
                    Command::Delete => {
                        log(&device, device.delete());
                        break;
                    }
                }
            }
            drop(end);
        };
        // Not joined: a command that never ends must not delay the server.
        Builder::new().name("ublk control".to_owned()).spawn(run)?;
        Ok(Self { commands, over, has_stopped: false })
    }

    /// Changes the size of the device, in sectors.
    fn resize(&self, sectors: u64) {
        // If the thread has ended, the device has ended.
        let _ = self.commands.send(Command::Resize(sectors));
    }

    /// Stops the device; further calls have no effect.
    fn stop(&mut self) {
        if !self.has_stopped {
            self.has_stopped = true;
            // `delete` waits for its end.
            let _ = self.commands.send(Command::Stop);
        }
    }

    /// Deletes the device. Returns false if it still exists after `bound`.
    fn delete(self, bound: Nanos) -> bool {
        let _ = self.commands.send(Command::Delete);
        let waited = self.over.recv_timeout(Duration::from_nanos(bound.0));
        waited != Err(std::sync::mpsc::RecvTimeoutError::Timeout)
    }
}

fn resize(device: &Device, sectors: u64) {
    let number = device.info().device;
    match device.resize(sectors) {
        Ok(true) => tracing::info!(device = number, sectors, "a device has another size"),
        Ok(false) => tracing::warn!(
            device = number,
            "a device keeps its size until it is added anew: this kernel has no UPDATE_SIZE"
        ),
        Err(error) => log(device, Err(error)),
    }
}

fn log(device: &Device, result: Result<(), UblkError>) {
    if let Err(error) = result {
        tracing::warn!(device = device.info().device, "a command of ublk is refused: {error}");
    }
}

/// The maximum length in bytes of a discard or of zeroes that is announced. The disk gets it in steps.
const LONGEST_RANGE: u64 = 1 << 30;

/// The facts from which parameters are derived.
struct Facts {
    start: u64,
    bytes: u64,
    is_read_only: bool,
    discards: bool,
    cache: Cache,
    /// The maximum length of a read or write in bytes.
    portion: usize,
}

impl Facts {
    fn of(export: &Served, portion: usize) -> Self {
        Self {
            start: export.start,
            bytes: export.bytes(),
            is_read_only: export.is_read_only(),
            discards: export.discard > 0,
            cache: export.cache,
            portion,
        }
    }

    /// The parameters of the block device, on a disk with these limits.
    fn params(&self, limits: &Limits, cache: WriteCache) -> Params {
        let sector = u64::from(SECTOR_SIZE);
        let logical = limits.logical_block_size;
        let physical = limits.physical_block_size.max(logical);
        // Without a cache, or if each write goes through it, a flush has no effect.
        let is_cached = cache != WriteCache::Through && self.cache == Cache::Writeback;
        let chosen = [
            (self.is_read_only, READ_ONLY),
            (limits.rotational, ROTATIONAL),
            (is_cached, VOLATILE_CACHE | FUA),
        ];
        let range = |is: bool| if is { (LONGEST_RANGE / sector) as u32 } else { 0 };
        // A chunk boundary of the disk does not apply to an export that is not aligned to it.
        let chunk = u64::from(limits.chunk_sectors) * sector;
        let has_chunks = chunk > 0 && self.start.is_multiple_of(chunk);
        Params {
            attributes: chosen.iter().filter(|(is, _)| *is).fold(0, |all, (_, bit)| all | bit),
            logical: logical.ilog2() as u8,
            physical: physical.ilog2() as u8,
            io_opt: self.portion.ilog2() as u8,
            io_min: physical.ilog2() as u8,
            max_sectors: self.portion as u32 / SECTOR_SIZE,
            chunk_sectors: if has_chunks { limits.chunk_sectors } else { 0 },
            sectors: self.bytes / sector,
            discard_granularity: if self.is_read_only {
                0
            } else {
                limits.discard_granularity.max(physical)
            },
            max_discard_sectors: range(self.discards && !self.is_read_only),
            // If the disk lacks the operation, zeroed buffers are written.
            max_zeroes_sectors: range(!self.is_read_only),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            start: 0,
            bytes: 64 << 20,
            is_read_only: false,
            discards: true,
            cache: Cache::Writeback,
            portion: 256 << 10,
        }
    }

    const BACK: WriteCache = WriteCache::Back { fua: false };

    #[test]
    fn blocks_and_sizes_are_those_of_the_disk() {
        let limits = Limits {
            logical_block_size: 4096,
            discard_granularity: 8192,
            chunk_sectors: 256,
            rotational: true,
            ..Limits::default()
        };
        let params = facts().params(&limits, BACK);
        assert_eq!(
            (params.logical, params.physical, params.io_min, params.io_opt),
            (12, 12, 12, 18)
        );
        assert_eq!((params.sectors, params.max_sectors, params.chunk_sectors), (131_072, 512, 256));
        assert_eq!((params.discard_granularity, params.max_discard_sectors), (8192, 2_097_152));
        assert_eq!(params.attributes, ROTATIONAL | VOLATILE_CACHE | FUA);
        let moved = Facts { start: 4096, ..facts() };
        assert_eq!(moved.params(&limits, BACK).chunk_sectors, 0);
    }

    #[test]
    fn a_flush_is_announced_where_it_has_something_to_do() {
        let attributes = |facts: Facts, cache| facts.params(&Limits::default(), cache).attributes;
        assert_eq!(attributes(facts(), BACK), VOLATILE_CACHE | FUA);
        assert_eq!(attributes(facts(), WriteCache::Through), 0);
        assert_eq!(attributes(Facts { cache: Cache::Writethrough, ..facts() }, BACK), 0);
    }

    #[test]
    fn nothing_changes_a_device_that_is_read_only() {
        let facts = Facts { is_read_only: true, ..facts() };
        let params = facts.params(&Limits::default(), WriteCache::Through);
        assert_eq!(params.attributes, READ_ONLY);
        assert_eq!((params.max_discard_sectors, params.max_zeroes_sectors), (0, 0));
        let facts = Facts { is_read_only: false, discards: false, ..facts };
        let params = facts.params(&Limits::default(), WriteCache::Through);
        assert_eq!((params.max_discard_sectors, params.max_zeroes_sectors), (0, 2_097_152));
    }
}
