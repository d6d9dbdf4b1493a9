//! `serve-soak`: 64 connections with mixed load that connect, disconnect and are killed, and connections that send
//! nothing, for a long time.
//!
//! After each round no connection and no descriptor of theirs may be left, and the memory of the server must not grow.

use crate::Result;
use crate::fio::{self, Fio, pause};
use crate::nbd::Server;
use crate::shell::timed;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Processes of fio, each with [`JOBS`] connections, distributed over the exports.
const CLIENTS: usize = 16;
const JOBS: usize = 4;
const EXPORTS: usize = 4;
/// The size of each export in MiB.
const SIZE: usize = 32;
/// The fewest rounds.
const FEWEST: usize = 4;
/// The growth of the server's memory, in KiB, from the first half of the rounds to the second, above which there is a
/// leak: as much as the clients can have in flight. The allocator keeps the memory of the busiest moment.
const GROWTH: u64 = 32 << 10;

/// `cargo xtask serve-soak [MINUTES]`
///
/// # Errors
/// If a client reads other data than it wrote or is refused, or leaves something behind in the server.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let minutes: u64 = args.first().map_or(Ok(10), |minutes| minutes.parse())?;
    crate::shell::build()?;
    soak(Duration::from_secs(60 * minutes), 10_000)
}

/// Rounds until `time` has passed, each with `silent` connections that send nothing.
///
/// # Errors
/// As [`main`].
pub(crate) fn soak(time: Duration, silent: usize) -> Result<()> {
    let exports: String = (0..EXPORTS)
        .map(|at| format!(" --export=e{at},offset={}m,size={SIZE}m", at * SIZE))
        .collect();
    let device = format!("memory,size={}", EXPORTS * SIZE);
    let server = Server::blkmq("soak", &device, "bfq", &format!("{exports} --log=error"))?;
    let descriptors = server.descriptors()?;
    // Memory that was never written is not allocated yet.
    for at in 0..EXPORTS {
        let fill = format!("--rw=write --bs=1m --iodepth=4 --size={SIZE}m");
        fio::run(&server.uri(&format!("e{at}")), &server.path("fio"), &fill)?;
    }
    let (mut spent, mut ios, mut memory) = (Duration::ZERO, 0, Vec::new());
    while spent < time || memory.len() < FEWEST {
        let (done, took) = timed(|| round(&server, memory.len(), silent));
        ios += done?;
        spent += took;
        server.connected(0)?;
        server.closed(descriptors)?;
        memory.push(server.memory()?);
    }
    let most = |part: &[u64]| part.iter().max().copied().unwrap_or(0);
    let (first, second) = memory.split_at(memory.len() / 2);
    let (before, after) = (most(first), most(second));
    println!(
        "{} rounds of {} connections and {silent} without a byte: {ios} I/Os, {descriptors} descriptors before and \
         after each; memory up to {before} KiB in the first half and {after} KiB in the second",
        memory.len(),
        CLIENTS * JOBS
    );
    if after > before + GROWTH { Err("the memory of the server grows".into()) } else { Ok(()) }
}

/// Clients that verify, clients that only generate load, and clients that are killed, beside connections that send
/// nothing.
fn round(server: &Server, number: usize, silent: usize) -> Result<u64> {
    let mut clients = Vec::new();
    for at in 0..CLIENTS {
        let uri = server.uri(&format!("e{}", at % EXPORTS));
        let bs = ["4k", "512", "64k", "4k"][(at + number) % 4];
        // A region of the export for each connection.
        let region = SIZE * EXPORTS / CLIENTS / JOBS;
        let place = format!("--offset={}m", at / EXPORTS * JOBS * region);
        let span = format!("--size={region}m --offset_increment={region}m --numjobs={JOBS}");
        let verify = if at % 2 == 0 { "--verify=crc32c --verify_state_save=0" } else { "" };
        let time = "--time_based --runtime=3 --iodepth=8";
        let options = format!("--rw=randrw --bs={bs} {place} {span} {verify} {time}");
        clients.push(Fio::start(&uri, &server.path(&format!("fio-{at}")), &options)?);
    }
    server.connected((CLIENTS * JOBS) as u64)?;
    for _ in 0..silent {
        // Refused connections are accepted and closed, too.
        drop(UnixStream::connect(server.path("socket"))?);
    }
    pause(0.5)?;
    let mut others = Vec::new();
    for (at, client) in clients.into_iter().enumerate() {
        if at % 4 == number % 4 {
            client.kill()?;
        } else {
            others.push(client);
        }
    }
    others.into_iter().map(|client| Ok(client.wait()?.ios)).sum()
}
