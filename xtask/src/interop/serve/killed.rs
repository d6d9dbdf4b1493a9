//! fio's NBD engine: every scheduler, number of connections and block size; and clients that are killed.

use super::super::Outcome;
use crate::Result;
use crate::fio::{self, Fio, pause};
use crate::nbd::Server;

const SCHEDULERS: [&str; 4] = ["none", "mq-deadline", "kyber", "bfq"];
const DEVICE: &str = "memory,size=256,discard=1";

/// 1 to 4 connections read back the data that they wrote, in blocks from 512 bytes to 1 MiB, under each scheduler; then
/// all connections are closed.
pub(in crate::interop) fn verified() -> Result<Outcome> {
    for scheduler in SCHEDULERS {
        let server = Server::blkmq("serve-verify", DEVICE, scheduler, "--export=")?;
        for (jobs, size) in [(1, "512"), (2, "4k"), (3, "64k"), (4, "1m")] {
            let verify = "--verify=crc32c --verify_state_save=0 --verify_fatal=1";
            let io = format!("--rw=randrw --bs={size} --iodepth=16 --numjobs={jobs}");
            // Small blocks take long.
            let region = match size {
                "512" => "1m",
                "4k" => "8m",
                _ => "32m",
            };
            let span = format!("--size={region} --offset_increment=64m");
            fio::run(&server.uri(""), &server.path("fio"), &format!("{io} {span} {verify}"))
                .map_err(|error| format!("{scheduler}, {jobs} jobs: {error}"))?;
        }
        server.connected(0)?;
    }
    Ok(Outcome::Passed)
}

/// fio is killed while 4 connections have requests in flight, on memory and on a slow device; their connections end,
/// and a server that waits for their I/Os uses no processor time for that.
pub(in crate::interop) fn killed() -> Result<Outcome> {
    let memory = SCHEDULERS.map(|scheduler| (DEVICE, scheduler));
    for (device, scheduler) in memory.into_iter().chain([("disk", "bfq")]) {
        let server = Server::blkmq("serve-killed", device, scheduler, "--export=")?;
        let before = server.descriptors()?;
        let io = "--rw=randrw --bs=4k --iodepth=32 --numjobs=4 --size=64m";
        let load = format!("{io} --time_based --runtime=60");
        let client = Fio::start(&server.uri(""), &server.path("fio"), &load)?;
        server.connected(4)?;
        pause(0.2)?;
        client.kill()?;
        server.connected(0)?;
        server.closed(before)?;
    }
    waits_for_nothing()
}

/// Requests of a killed client cost nothing while they wait for a limit. The end of its connection is a persistent
/// event, so a server that polls for it would find it again and again.
fn waits_for_nothing() -> Result<Outcome> {
    let server = Server::blkmq("serve-killed", DEVICE, "none", "--export=slow,riops=10")?;
    let load = "--rw=randread --bs=4k --iodepth=32 --size=64m --time_based --runtime=60";
    let client = Fio::start(&server.uri("slow"), &server.path("fio"), load)?;
    server.connected(1)?;
    let with_client = server.descriptors()?;
    client.kill()?;
    let before = server.ticks()?;
    pause(1.0)?;
    let ticks = server.ticks()? - before;
    if server.descriptors()? < with_client {
        return Err("the requests of a killed client did not wait for their limit".into());
    }
    if ticks > 20 {
        return Err(format!("waiting took {} ms of a second", ticks * 10).into());
    }
    Ok(Outcome::Passed)
}
