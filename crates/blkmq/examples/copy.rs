//! Copies a device to the beginning of another, which must be at least as large: files, block devices, or models.
//!
//! Reads and writes overlap: each of [`DEPTH`] buffers goes from a read to a write and back. The thread waits for both
//! devices at once.
//!
//! `cargo run --release --example copy -- uring:from.img uring:to.img,size=1024`

use blkmq::core::Instant;
use blkmq::prelude::*;
use blkmq::{Device, wait_any};
use std::error::Error;

const BLOCK: u64 = 1 << 20;
/// The number of buffers, which is the most I/Os in flight.
const DEPTH: usize = 8;

type Failure = Box<dyn Error + Send + Sync>;

/// Copies the device named by the first argument to the second; without arguments, copies between two memory devices.
pub fn main() -> Result<(), Failure> {
    let arguments = Vec::from_iter(std::env::args().skip(1));
    let [from, to] = match &arguments[..] {
        [from, to] => [from.as_str(), to.as_str()],
        [] => ["memory,size=64", "memory,size=64"],
        _ => return Err("usage: copy FROM TO, devices as after blkmq's --device".into()),
    };
    let (from, to) = (blkmq::open(from)?, blkmq::open(to)?);
    let bytes = copy(&from, &to)?;
    println!("{} MiB", bytes >> 20);
    Ok(())
}

/// Copies all of `from` to the beginning of `to`, and makes the copy durable. Returns the number of bytes copied.
pub fn copy(from: &Device, to: &Device) -> Result<u64, Failure> {
    let end = from.bytes();
    if to.bytes() < end {
        return Err(format!("{end} bytes do not fit into {}", to.bytes()).into());
    }
    let (source, target) = (from.start("none")?, to.start("none")?);
    let (mut reads, mut writes) = (source.client()?, target.client()?);
    let mut free = Vec::from_iter((0..DEPTH).map(|_| AlignedBuf::new(BLOCK as usize)));
    let (mut next, mut copied, mut failed) = (0, 0, Ok(()));
    while copied < end {
        while next < end
            && let Some(mut buffer) = free.pop()
        {
            buffer.set_len(BLOCK.min(end - next) as usize);
            let len = buffer.len() as u64;
            reads.push(Io::read(Bytes(next), buffer).cookie(next))?;
            next += len;
        }
        wait_any(&mut [&mut reads, &mut writes], Instant::MAX)?;
        let mut read = Vec::with_capacity(DEPTH);
        reads.reap(DEPTH as u32, |done| {
            failed = failed.and(done.result);
            read.push(Io::write(Bytes(done.cookie), done.payload));
        });
        failed?;
        for io in read {
            writes.push(io)?;
        }
        writes.reap(DEPTH as u32, |done| {
            failed = failed.and(done.result);
            copied += done.payload.len() as u64;
            free.push(done.payload);
        });
        failed?;
    }
    writes.push(Io::flush())?;
    writes.wait(1, 1, |done| failed = done.result);
    failed?;
    Ok(copied)
}
