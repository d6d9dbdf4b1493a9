//! Callbacks: copying a region of a disk with a fixed number of buffers and no thread of one's own.
//!
//! Each buffer is a little machine: read here, write there, then the next block, until there is none. What
//! comes next is decided in the callback of what came before, on the reactor's thread, so nobody waits, and
//! the buffer travels with the I/O. That is how a mirror or a rebuild is written.
//!
//! `cargo run --release --example callbacks`

use blkmq::prelude::*;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};

const BLOCK: usize = 64 << 10;
const BLOCKS: u64 = 400;
/// Buffers, and so I/Os in flight.
const BUFFERS: usize = 8;

/// What belongs to an I/O.
type Block = AlignedBuf;

/// What all buffers share.
struct Copy {
    disk: Handle<Block>,
    next: AtomicU64,
    copied: AtomicU64,
}

/// Why a buffer stopped.
type End = Result<(), String>;

/// Copies and prints how it went.
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
    // Each buffer says one thing, at its end. When the last one is gone the channel closes.
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

/// Writes what was read behind the region that it came from.
fn write_back(copy: &Arc<Copy>, read: Completion<Block>, end: Sender<End>) {
    let io = Io::write(place(BLOCKS + read.cookie), read.payload).cookie(read.cookie);
    go_on(copy, io, end, |copy, written, end| {
        copy.copied.fetch_add(1, Ordering::Relaxed);
        read_next(copy, written.payload, end);
    });
}

/// Where a block is.
fn place(block: u64) -> Bytes {
    Bytes(block * BLOCK as u64)
}

/// Submits `io`, and when it is done takes the next step, or ends.
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
    // There are fewer buffers than places, so this means that the reactor is gone.
    if let Err(refused) = taken {
        tell(&at_end, Err(refused.to_string()));
    }
}

/// Nobody listens any more once an error was heard.
fn tell(end: &Sender<End>, what: End) {
    let _ = end.send(what);
}
