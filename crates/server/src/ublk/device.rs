//! A device of the kernel: its parameters ([`Facts`]), and its commands ([`Keeper`]).

use crate::export::{Cache, Served};
use blkmq::core::Limits;
use blkmq::{Nanos, SECTOR_SIZE, WriteCache};
use blkmq_ublk::control::{Device, UblkError};
use blkmq_ublk::wire::{FUA, Params, READ_ONLY, ROTATIONAL, VOLATILE_CACHE};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

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
pub(super) struct Keeper {
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
    pub(super) fn start(
        device: Arc<Device>,
        started: Sender<Result<(), UblkError>>,
    ) -> io::Result<Self> {
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
    pub(super) fn resize(&self, sectors: u64) {
        // If the thread has ended, the device has ended.
        let _ = self.commands.send(Command::Resize(sectors));
    }

    /// Stops the device; further calls have no effect.
    pub(super) fn stop(&mut self) {
        if !self.has_stopped {
            self.has_stopped = true;
            // `delete` waits for its end.
            let _ = self.commands.send(Command::Stop);
        }
    }

    /// Deletes the device. Returns false if it still exists after `bound`.
    pub(super) fn delete(self, bound: Nanos) -> bool {
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
pub(super) struct Facts {
    pub(super) start: u64,
    pub(super) bytes: u64,
    is_read_only: bool,
    discards: bool,
    cache: Cache,
    /// The maximum length of a read or write in bytes.
    portion: usize,
}

impl Facts {
    pub(super) fn of(export: &Served, portion: usize) -> Self {
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
    pub(super) fn params(&self, limits: &Limits, cache: WriteCache) -> Params {
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
