//! Callbacks: copies a region of a disk with a fixed number of buffers and without an additional thread.
//!
//! Each buffer is a small state machine: it reads a block, writes that block elsewhere, and takes the next block until
//! none is left. The callback of each I/O submits the next one, on the reactor's thread, so no thread waits, and the
//! buffer travels with the I/O. A mirror or a rebuild can be written the same way.
//!
//! `cargo run --release --example callbacks`

use blkmq::prelude::*;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};

const BLOCK: usize = 64 << 10;
const BLOCKS: u64 = 400;
/// The number of buffers, which is the number of I/Os in flight.
const BUFFERS: usize = 8;

/// The payload of an I/O: one block.
type Block = AlignedBuf;

/// The state that all buffers share.
struct Copy {
    disk: Handle<Block>,
    next: AtomicU64,
    copied: AtomicU64,
}

/// Why a buffer stopped.
type End = Result<(), String>;

/// Copies the region and prints how long the copy took.
pub fn main() -> Result<(), Box<dyn Error>> {
    let disk = blkmq::open("null,submit_queues=1,irqmode=2,completion_nsec=50000")?;
    let service = disk.start("mq-deadline")?;
    let reactor = service.reactor()?;

    let (disk, next, copied) = (reactor.handle(), AtomicU64::new(0), AtomicU64::new(0));
    let copy = Arc::new(Copy { disk, next, copied });
    let (ended, end) = channel();
    for _ in 0..BUFFERS {
        read_next(&copy, AlignedBuf::new(BLOCK), ended.clone());
    }
    drop(ended);
    // Each buffer sends one message, when it stops. The channel closes when the last buffer is gone.
    for end in end {
        end?;
    }

    let (copied, micros) = (copy.copied.load(Ordering::Relaxed), service.clock().now());
    if copied != BLOCKS || reactor.panics() > 0 {
        return Err(format!("{copied} of {BLOCKS} blocks were copied").into());
    }
    let micros = micros.as_nanos() / 1000;
    println!("{copied} blocks of {} KiB in {micros} us, {BUFFERS} at a time", BLOCK >> 10);
    Ok(())
}

/// Reads the next block into `buffer`, if there is one.
fn read_next(copy: &Arc<Copy>, buffer: Block, end: Sender<End>) {
    let block = copy.next.fetch_add(1, Ordering::Relaxed);
    if block >= BLOCKS {
        return tell(&end, Ok(()));
    }
    go_on(copy, Io::read(place(block), buffer).cookie(block), end, write_back);
}

/// Writes a block that was read to the region behind the source.
fn write_back(copy: &Arc<Copy>, read: Completion<Block>, end: Sender<End>) {
    let io = Io::write(place(BLOCKS + read.cookie), read.payload).cookie(read.cookie);
    go_on(copy, io, end, |copy, written, end| {
        copy.copied.fetch_add(1, Ordering::Relaxed);
        read_next(copy, written.payload, end);
    });
}

/// The offset of a block.
fn place(block: u64) -> Bytes {
    Bytes(block * BLOCK as u64)
}

/// Submits `io`; its callback takes the next step, or stops the buffer if the I/O failed.
fn go_on(
    copy: &Arc<Copy>,
    io: Io<Block>,
    end: Sender<End>,
    step: fn(&Arc<Copy>, Completion<Block>, Sender<End>),
) {
    let (next, at_end) = (Arc::clone(copy), end.clone());
    let taken = copy.disk.call(io, move |answer| match answer {
        Ok(done) if done.result.is_ok() => step(&next, done, end),
        Ok(done) => tell(&end, Err(format!("block {}: {:?}", done.cookie, done.result))),
        Err(error) => tell(&end, Err(error.to_string())),
    });
    // The reactor's inbox has more places than there are buffers, so a refusal means that the reactor is gone.
    if let Err(refused) = taken {
        tell(&at_end, Err(refused.to_string()));
    }
}

/// Reports why a buffer stopped. The send fails once the main thread has received an error and returned; that is fine.
fn tell(end: &Sender<End>, what: End) {
    let _ = end.send(what);
}
