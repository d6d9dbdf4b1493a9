//! [`Keeper`]: a thread for the commands of a device that wait for its serving thread.
//!
//! START_DEV waits for the partitions to be read, STOP_DEV for requests, DEL_DEV for the last reference. None of these
//! may delay the serving thread, or delay the end of the server for ever.

use blkmq::Nanos;
use blkmq_ublk::control::{Device, UblkError};
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

/// The serving thread's handle.
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
