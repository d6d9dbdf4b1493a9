//! Reads of 4 KiB by the front end of a virtual disk: COUNT in total, in batches of DEPTH, the next batch when the
//! previous one is answered.
//!
//! `cargo run --release -p blkmq-server --example vhost_reads -- SOCKET DEPTH COUNT`. `cargo xtask bench
//! --instructions` counts the instructions of the server for them.

#[path = "../tests/guest.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod guest;

use guest::{Ask, Guest, IN, SIZE};
use std::path::Path;

const BLOCK: u32 = 4096;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [socket, depth, count] = &args[..] else {
        return Err("usage: vhost_reads SOCKET DEPTH COUNT".into());
    };
    let (depth, count): (u16, u64) = (depth.parse()?, count.parse()?);
    if depth == 0 || depth > SIZE {
        return Err(format!("{depth} at a time; accepted: 1 to {SIZE}").into());
    }
    let mut guest = Guest::start(Path::new(socket), 1, 0);
    for turn in 0..count.div_ceil(depth.into()) {
        for place in 0..depth {
            // Far apart, so that none merge.
            let sector = (turn * u64::from(depth) + u64::from(place)) % 1000 * 64;
            guest.offer(0, place, Ask { kind: IN, ioprio: 0, sector, len: BLOCK }, BLOCK);
        }
        guest.kick(0);
        let mut left = usize::from(depth);
        while left > 0 {
            let answers = guest.wait(0);
            if answers.iter().any(|(.., status)| *status != 0) {
                return Err("a read failed".into());
            }
            left -= answers.len();
        }
    }
    Ok(())
}
