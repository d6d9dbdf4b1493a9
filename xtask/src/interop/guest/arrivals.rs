//! The priorities of a guest's processes, as they arrive at a scheduler of the server.

use super::super::Outcome;
use super::super::serve::trace::{begin_log, interrupt};
use super::{DEVICE, Kernel, lack, run};
use crate::Result;
use crate::nbd::Server;
use crate::shell::{BLKMQ, Cmd};

/// (priority as `blkmq replay` names it, the least number of requests that the script's processes send with it, how
/// many more there may be). The last is `None` where other processes send some, too.
const ARRIVE: [(&str, u64, Option<u64>); 6] = [
    ("reads, realtime 2", 20, Some(0)),
    ("reads, best-effort 6", 30, Some(0)),
    ("reads, idle", 40, Some(20)),
    ("reads, best-effort 4", 10, None),
    // Of a direct write. A write through the page cache is the kernel's, and best-effort 4.
    ("others, idle", 50, Some(0)),
    // The journal of ext4.
    ("others, best-effort 3", 1, Some(100)),
];

/// An elevator log of the server has the requests of each process with its class and its level.
pub(in crate::interop) fn check() -> Result<Outcome> {
    if let Some(lack) = lack(Kernel::Cloud)? {
        return Ok(Outcome::Skipped(lack));
    }
    let disk = "--export=disk,vhost-user=SOCKET.disk,queues=2,guest-ioprio=trust";
    let server = Server::blkmq("guest-arrivals", DEVICE, "mq-deadline", disk)?;
    let file = server.path("log-of-calls").display().to_string();
    let log = begin_log(&server, &file)?;
    run(Kernel::Cloud, "arrivals", &server.path("socket.disk"))?;
    interrupt(&server, log)?;
    let replayed = Cmd::new(&format!("{BLKMQ} replay")).arg(file).output()?;
    for (name, least, further) in ARRIVE {
        let rows = replayed.lines().filter(|line| line.trim_start().starts_with(name));
        let counts = rows.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok());
        let count: u64 = counts.sum();
        println!("{name}: {count} requests");
        if count < least || further.is_some_and(|further| count > least + further) {
            return Err(format!("{name}: {count} requests, not {least}:\n{replayed}").into());
        }
    }
    Ok(Outcome::Passed)
}
