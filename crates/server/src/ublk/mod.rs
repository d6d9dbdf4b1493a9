//! Exports as block devices of this machine: ublk, with a thread for each.
//!
//! A [`Ublk`](crate::Ublk) presents an export of the server as `/dev/ublkbN`, with the same disk, group, promises and
//! counts as for its NBD clients. The thread owns the queues of the device and a client of the disk. In a turn it takes
//! requests from the kernel, pushes their I/Os as one plug, reaps completions, and passes all answers to the kernel
//! with one call.
//!
//! | file | step |
//! |---|---|
//! | `backend/mod.rs` | the thread: turns, and the end of the device |
//! | `backend/serve.rs` | converts requests to I/Os, completions to answers |
//! | `keeper.rs` | a second thread for commands that wait for the first |
//! | `params.rs` | the limits of the disk as parameters of the kernel |

mod backend;
mod keeper;
mod params;

use crate::export::{Export, Served};
use crate::machine::Ublk;
use crate::threads::{Inbox, Running};
use crate::worker::Shared;
use backend::Backend;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::channel;
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
    let run = || -> io::Result<Running> {
        let inbox = Arc::new(Inbox::new()?);
        let of = (&export.name[..], export.disk);
        let backend = Backend::new(of, settings, Arc::clone(shared), Arc::clone(&inbox))?;
        let name = format!("ublk {}", settings.number);
        let thread = Builder::new().name(name).spawn(move || backend.run(told))?;
        Ok(Running { inbox, thread })
    };
    shared.devices.add(&export.name, run().map_err(|error| error.to_string())?);
    match started.recv_timeout(STARTS) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the device does not start".to_owned()),
    }
}
