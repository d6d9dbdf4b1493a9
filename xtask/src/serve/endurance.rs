//! Endurance and crashes of a server.
//!
//! `serve-soak`: 64 connections with mixed load that connect, disconnect and are killed, and connections that send
//! nothing, for a long time. After each round no connection and no descriptor of theirs may be left, and the memory of
//! the server must not grow.
//!
//! `serve-crash`: a server is killed by SIGKILL while clients write and flush; after a restart, flushed blocks must be
//! there. The check shows that no answer is given before the kernel has the data. The power stays on, so the kernel's
//! own caches survive; the crash tests of the devices check whether FLUSH reaches the device.

use super::attacks::Client;
use crate::Result;
use crate::fio::{self, Fio, pause};
use crate::nbd::Server;
use crate::shell::{Cmd, timed};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::Path;
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
pub(crate) fn soak_main(args: &[String]) -> Result<()> {
    let minutes: u64 = args.first().map_or(Ok(10), |minutes| minutes.parse())?;
    crate::shell::build()?;
    soak(Duration::from_secs(60 * minutes), 10_000)
}

/// Rounds until `time` has passed, each with `silent` connections that send nothing.
///
/// # Errors
/// As [`soak_main`].
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
        let (done, took) = timed(|| soak_round(&server, memory.len(), silent));
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
fn soak_round(server: &Server, number: usize, silent: usize) -> Result<u64> {
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

/// Bytes of a write.
const BLOCK: usize = 4096;
const BLOCKS: u64 = 16 << 10;
/// Connections that write.
const WRITERS: usize = 4;
/// Writes of each connection between two flushes.
const BATCH: u64 = 8;

/// `cargo xtask serve-crash [TIMES]`
///
/// # Errors
/// If a flushed block is not there after a restart.
pub(crate) fn crash_main(args: &[String]) -> Result<()> {
    let times: u32 = args.first().map_or(Ok(50), |times| times.parse())?;
    crate::shell::build()?;
    let flushed = crashes(times)?;
    println!("serve-crash: killed {times} times; all {flushed} flushed writes are there");
    Ok(())
}

/// The writes of one round.
#[derive(Default)]
struct Written {
    /// By block: the number of the last write that a flush covers.
    flushed: BTreeMap<u64, u64>,
    /// By block: writes that may have been done partly or not at all.
    open: BTreeMap<u64, Vec<u64>>,
    /// The number of the last write.
    last: u64,
}

/// Kills a server `times` times. Returns how many writes were flushed.
///
/// # Errors
/// As [`crash_main`].
pub(crate) fn crashes(times: u32) -> Result<u64> {
    let folder = std::env::temp_dir().join(format!("blkmq-crash-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let file = folder.join("disk");
    File::create(&file)?.set_len(BLOCKS * BLOCK as u64)?;
    let result = crash_rounds(times, &file);
    fs::remove_dir_all(&folder)?;
    result
}

fn crash_rounds(times: u32, file: &Path) -> Result<u64> {
    let device = format!("uring:{}", file.display());
    let start = || start(&device);
    let mut written = Written::default();
    let mut count = 0;
    for round in 0..times {
        let server = start()?;
        // A different moment in each round.
        let delay = f64::from(20 + round * 37 % 100) / 1000.0;
        let kill = format!("sleep {delay}; kill -9 {}", server.pid());
        let mut killer = Cmd::new("sh -c").arg(kill).start(File::create(server.path("kill"))?)?;
        count += write_until_it_ends(&server.path("socket"), &mut written)?;
        killer.wait()?;
        drop(server);
        let server = start()?;
        let lost = lost(&server.path("socket"), &written)?;
        if !lost.is_empty() {
            return Err(format!("round {round}: flushed blocks are lost: {lost:?}").into());
        }
        settle(&server.path("socket"), &mut written)?;
        drop(server);
    }
    if count == 0 { Err("no write was flushed before the end".into()) } else { Ok(count) }
}

/// Starts the server, which waits until the kernel has released the file of the killed one.
fn start(device: &str) -> Result<Server> {
    Server::blkmq("serve-crash", device, "mq-deadline", "--export= --log=error")
}

/// Writes and flushes over several connections, until the server is killed. Returns how many writes were flushed.
fn write_until_it_ends(socket: &Path, written: &mut Written) -> Result<u64> {
    let clients: std::io::Result<Vec<Client>> =
        (0..WRITERS).map(|_| Client::connect(socket)).collect();
    // On a busy machine the server may be killed during the handshakes. If the server accepts none, `lost` fails.
    let Ok(mut clients) = clients else { return Ok(0) };
    let mut count = 0;
    loop {
        let mut batch = Vec::new();
        for client in &mut clients {
            for _ in 0..BATCH {
                written.last += 1;
                let number = written.last;
                // Blocks in an order without a pattern, each with many numbers over time.
                let block = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 50;
                written.open.entry(block).or_default().push(number);
                batch.push((block, number));
                if client.begin_write(block * BLOCK as u64, &contents(number)).is_err() {
                    return Ok(count);
                }
            }
        }
        // All writes are answered before the first flush is sent, on any connection: it covers all of them.
        let mut all = clients
            .iter_mut()
            .flat_map(|client| (0..BATCH).map(|_| client.end()).collect::<Vec<_>>());
        if !all.all(|answer| answer.is_ok()) {
            return Ok(count);
        }
        drop(all);
        let flusher = (count / BATCH) as usize % WRITERS;
        if clients[flusher].begin_flush().and_then(|()| clients[flusher].end()).is_err() {
            return Ok(count);
        }
        count += batch.len() as u64;
        for (block, number) in batch {
            written.open.remove(&block);
            written.flushed.insert(block, number);
        }
    }
}

/// A block of a write: its number, over and over.
fn contents(number: u64) -> Vec<u8> {
    number.to_be_bytes().repeat(BLOCK / 8)
}

/// The numbers in a block, each once.
fn numbers(block: &[u8]) -> Vec<u64> {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    let mut all: Vec<u64> = block.chunks(8).map(number).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Blocks whose flushed contents are lost, although no later write could have replaced them.
fn lost(socket: &Path, written: &Written) -> Result<Vec<u64>> {
    let mut client = Client::connect(socket)?;
    let mut lost = Vec::new();
    for (block, flushed) in &written.flushed {
        let found = numbers(&client.read(block * BLOCK as u64, BLOCK)?);
        let open = written.open.get(block).map_or(&[][..], Vec::as_slice);
        if !is_intact(&found, *flushed, open) {
            lost.push(*block);
        }
    }
    Ok(lost)
}

/// Returns whether a block may hold the numbers in `found`, if `flushed` was flushed and those in `open` may be there.
fn is_intact(found: &[u64], flushed: u64, open: &[u64]) -> bool {
    found.iter().all(|number| *number == flushed || open.contains(number))
}

/// Writes that were open are overwritten, so that they are not seen in the next round.
fn settle(socket: &Path, written: &mut Written) -> Result<()> {
    let mut client = Client::connect(socket)?;
    let open = std::mem::take(&mut written.open);
    for block in open.into_keys() {
        written.last += 1;
        client.begin_write(block * BLOCK as u64, &contents(written.last))?;
        client.end()?;
        written.flushed.insert(block, written.last);
    }
    client.begin_flush()?;
    Ok(client.end()?)
}

/// The most checks of a value that has to change, 20 ms apart: ten seconds.
const LOOKS: u32 = 500;

impl Server {
    /// Connections that have agreed on an export, if it is `blkmqd`.
    ///
    /// # Errors
    /// If it does not answer.
    pub(crate) fn connections(&self) -> Result<u64> {
        let list = self.ctl("list")?;
        let exports =
            list["list"]["exports"].as_array().ok_or_else(|| format!("no list: {list}"))?;
        Ok(exports.iter().map(|export| export["connections"].as_u64().unwrap_or(u64::MAX)).sum())
    }

    /// Waits until there are `count` connections.
    ///
    /// # Errors
    /// If the number differs after some seconds.
    pub(crate) fn connected(&self, count: u64) -> Result<()> {
        let mut found = 0;
        for _ in 0..LOOKS {
            found = self.connections()?;
            if found == count {
                return Ok(());
            }
            pause(0.02)?;
        }
        Err(format!("{found} connections, expected {count}").into())
    }

    /// Waits until at most `before` descriptors are open: then the requests of disconnected clients are finished, too.
    ///
    /// # Errors
    /// If there are more after some seconds.
    pub(crate) fn closed(&self, before: usize) -> Result<()> {
        let mut found = 0;
        for _ in 0..LOOKS {
            found = self.descriptors()?;
            if found <= before {
                return Ok(());
            }
            pause(0.02)?;
        }
        Err(format!("{found} descriptors, {before} before the clients came").into())
    }

    /// Open descriptors.
    ///
    /// # Errors
    /// If it has ended.
    pub(crate) fn descriptors(&self) -> Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.pid()))?.count())
    }

    /// Memory that is in use, in KiB.
    ///
    /// # Errors
    /// If it has ended.
    pub(super) fn memory(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        resident(&status).ok_or_else(|| "no memory in the kernel's accounts".into())
    }
}

/// The KiB in the line `VmRSS`.
fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_block_is_found_and_a_replaced_one_is_not_lost() {
        assert_eq!(numbers(&contents(0x0102_0304)), [0x0102_0304]);
        let mut torn = contents(3);
        torn[512..].copy_from_slice(&contents(9)[512..]);
        assert!(is_intact(&numbers(&torn), 3, &[8, 9]));
        assert!(is_intact(&numbers(&contents(3)), 3, &[]));
        assert!(!is_intact(&numbers(&torn), 3, &[8]), "number 9 was never in doubt");
        assert!(!is_intact(&numbers(&[0; BLOCK]), 3, &[9]), "zeroes are older than the flush");
    }

    #[test]
    fn memory_is_that_in_use() {
        let status = "Name:\tblkmq\nVmHWM:\t  99 kB\nVmRSS:\t   4321 kB\n";
        assert_eq!(resident(status), Some(4321));
        assert_eq!(resident("Name:\tblkmq\n"), None);
    }
}
