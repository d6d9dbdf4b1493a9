//! `serve-crash`: a server is killed by SIGKILL while clients write and flush; after a restart, flushed blocks must be
//! there.
//!
//! The check shows that no answer is given before the kernel has the data. The power stays on, so the kernel's own
//! caches survive; the crash tests of the devices check whether FLUSH reaches the device.

use super::wire::Client;
use crate::Result;
use crate::nbd::Server;
use crate::shell::Cmd;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;

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
pub(crate) fn main(args: &[String]) -> Result<()> {
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
/// As [`main`].
pub(crate) fn crashes(times: u32) -> Result<u64> {
    let folder = std::env::temp_dir().join(format!("blkmq-crash-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let file = folder.join("disk");
    File::create(&file)?.set_len(BLOCKS * BLOCK as u64)?;
    let result = rounds(times, &file);
    fs::remove_dir_all(&folder)?;
    result
}

fn rounds(times: u32, file: &Path) -> Result<u64> {
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
}
