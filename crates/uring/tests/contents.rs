//! The data read is the data written, however it was merged, vectored, registered or shared between rings.

#![cfg(target_os = "linux")]

use crate::common;

use blkmq_buf::{AlignedBuf, BufferPool};
use blkmq_core::{IoFlags, Op, Payload, Rng};
use blkmq_engine::Io;
use blkmq_runtime::{Client, Service};
use common::{BLOCK, SECTORS, TempFile, block, call, fill, io, is_filled, service};
use std::thread;

const THREADS: u64 = 3;
/// Blocks that each thread writes.
const BLOCKS: u64 = 192;

/// A block from the pool, or a new one if none is left.
fn buffer(pool: &BufferPool) -> AlignedBuf {
    pool.take().unwrap_or_else(|| AlignedBuf::new(BLOCK))
}

/// Does `op` on every block of `mine` in plugs of 16, and checks the data of reads.
fn pass(client: &mut Client<AlignedBuf>, pool: &BufferPool, op: Op, mine: &[u64]) {
    let mut left = mine.iter();
    let mut done = 0;
    while done < mine.len() as u32 {
        let now = client.clock().now();
        let room = (client.depth() - client.in_flight()).min(16) as usize;
        for n in left.by_ref().take(room) {
            let mut buf = buffer(pool);
            fill(&mut buf, if op == Op::Write { *n } else { u64::MAX });
            client.push_at(now, io(op, *n, buf)).expect("there is credit");
        }
        done += client.wait(1, u32::MAX, |mut io| {
            assert_eq!(io.result, Ok(()));
            assert!(is_filled(io.payload.as_mut_slice(), io.cookie), "block {}", io.cookie);
        });
    }
}

/// Adjacent blocks belong to different threads, so that merging combines I/O of several threads.
fn round_trip(test: &str, options: &str, registers: bool) {
    let file = TempFile::new(test, THREADS * BLOCKS * BLOCK as u64);
    let Some(mut device) = file.open(test, options) else { return };
    // Too few for all I/Os in flight, so that some requests have both kinds of memory.
    let pool = BufferPool::new(48, BLOCK);
    if registers {
        device.register(&pool);
    }
    let service = service(&device, THREADS as u16);
    thread::scope(|scope| {
        for who in 0..THREADS {
            let (service, pool): (&Service<_>, _) = (&service, &pool);
            scope.spawn(move || {
                let mut client = service.client().expect("enough submitters");
                let in_order = Vec::from_iter((0..BLOCKS).map(|n| n * THREADS + who));
                pass(&mut client, pool, Op::Write, &in_order);
                let mut rng = Rng::new(who);
                let any = Vec::from_iter((0..BLOCKS).map(|_| in_order[rng.below(BLOCKS) as usize]));
                pass(&mut client, pool, Op::Read, &any);
                pass(&mut client, pool, Op::Read, &in_order);
            });
        }
    });
    let stats = service.stats();
    assert_eq!(stats.submitted, stats.completed);
    drop(service);
    assert_eq!(pool.free(), 48, "every buffer came back");
    let bytes = file.bytes();
    let whole = bytes.chunks_exact(BLOCK).zip(0..).all(|(bytes, n)| is_filled(bytes, n));
    assert!(whole && bytes.len() as u64 == THREADS * BLOCKS * BLOCK as u64);
}

#[test]
pub fn contents_survive_merging() {
    round_trip("contents_survive_merging", "", true);
}

#[test]
pub fn contents_survive_several_rings() {
    round_trip("contents_survive_several_rings", ",hw_queues=3,hw_queue_depth=8", true);
}

#[test]
pub fn contents_survive_without_registration() {
    round_trip("contents_survive_without_registration", ",fixed=0", true);
}

#[test]
pub fn contents_survive_the_page_cache() {
    round_trip("contents_survive_the_page_cache", ",direct=0", false);
}

/// Writes eight adjacent blocks with one flush of the plug, then reads them likewise, with buffers of `pool`.
fn merged(test: &str, pool: Option<&BufferPool>, order: [usize; 8]) {
    let file = TempFile::new(test, 8 * BLOCK as u64);
    let Some(mut device) = file.open(test, "") else { return };
    if let Some(pool) = pool {
        device.register(pool);
    }
    let service = service(&device, 1);
    let mut client = service.client().expect("one submitter");
    for op in [Op::Write, Op::Read] {
        let mut bufs: [_; 8] = std::array::from_fn(|_| Some(pool.map_or_else(|| block(0), buffer)));
        let now = client.clock().now();
        for n in 0..8 {
            let mut buf = bufs[order[n as usize]].take().expect("each once");
            fill(&mut buf, if op == Op::Write { n } else { 99 });
            client.push_at(now, io(op, n, buf)).expect("there is credit");
        }
        client.wait(8, 8, |mut io| {
            assert_eq!(io.result, Ok(()));
            assert!(is_filled(io.payload.as_mut_slice(), io.cookie), "{op:?} {}", io.cookie);
        });
    }
    let stats = service.stats();
    assert_eq!((stats.merges.plug, stats.completed_requests), (14, 2), "one call each");
}

#[test]
pub fn merged_memory_in_many_pieces_is_one_vectored_call() {
    merged("merged_memory_in_many_pieces", None, [0, 2, 1, 4, 3, 6, 5, 7]);
}

#[test]
pub fn merged_memory_of_a_pool_is_one_call_in_one_piece_or_in_many() {
    let pool = BufferPool::new(8, BLOCK);
    merged("merged_memory_of_a_pool_in_one_piece", Some(&pool), [0, 1, 2, 3, 4, 5, 6, 7]);
    merged("merged_memory_of_a_pool_in_many_pieces", Some(&pool), [7, 0, 6, 1, 5, 2, 4, 3]);
    assert_eq!(pool.free(), 8);
}

#[test]
pub fn a_divided_buffer_is_written_in_parts_and_is_whole_again() {
    let test = "a_divided_buffer_is_written_in_parts";
    let file = TempFile::new(test, 4 * BLOCK as u64);
    let Some(device) = file.open(test, "") else { return };
    let service = service(&device, 1);
    let mut client = service.client().expect("one submitter");
    let mut whole = AlignedBuf::new(2 * BLOCK);
    whole.as_mut_slice()[..BLOCK].fill(1);
    whole.as_mut_slice()[BLOCK..].fill(2);
    let rest = whole.split_off(BLOCK).expect("it can be divided");
    let (result, mut head) = call(&mut client, io(Op::Write, 3, whole));
    let (other, rest) = call(&mut client, io(Op::Write, 0, rest));
    assert_eq!((result, other), (Ok(()), Ok(())));
    head.join(rest);
    let bytes = file.bytes();
    assert_eq!(
        (&bytes[3 * BLOCK..], &bytes[..BLOCK]),
        (&head.as_mut_slice()[..BLOCK], &[2; BLOCK][..])
    );
}

#[test]
pub fn flushes_and_fua_are_done() {
    let test = "flushes_and_fua_are_done";
    let file = TempFile::new(test, 4 * BLOCK as u64);
    let Some(device) = file.open(test, "") else { return };
    let service = service(&device, 1);
    let mut client = service.client().expect("one submitter");
    for flags in [IoFlags::FUA, IoFlags::PREFLUSH, IoFlags::PREFLUSH | IoFlags::FUA] {
        let (result, _) = call(&mut client, Io { flags, ..io(Op::Write, 1, block(7)) });
        assert_eq!(result, Ok(()), "{flags:?}");
        let flush = Io::new(Op::Flush, 0, 0, 0, AlignedBuf::empty());
        assert_eq!(call(&mut client, flush).0, Ok(()));
    }
    let zeroes = io(Op::WriteZeroes, 2, AlignedBuf::empty());
    let zeroes = Io { flags: IoFlags::FUA, ..zeroes };
    assert_eq!(call(&mut client, zeroes).0, Ok(()));
    assert!(is_filled(&file.bytes()[BLOCK..][..BLOCK], 7));
}

#[test]
pub fn discards_and_zeroes_read_as_zeroes_and_leave_their_neighbours() {
    let test = "discards_and_zeroes";
    let file = TempFile::new(test, 64 * BLOCK as u64);
    let Some(device) = file.open(test, "") else { return };
    let service = service(&device, 1);
    let mut client = service.client().expect("one submitter");
    for n in 0..64 {
        assert_eq!(call(&mut client, io(Op::Write, n, block(n + 1))).0, Ok(()));
    }
    let (zeroed, mut discarded) = (40..48, 0..0);
    let zeroes = Io::new(Op::WriteZeroes, 40 * 8, 8 * SECTORS, 0, AlignedBuf::empty());
    assert_eq!(call(&mut client, zeroes).0, Ok(()));
    if device.shape.limits.max_discard_sectors > 0 {
        discarded = 8..24;
        let discard = Io::new(Op::Discard, 8 * 8, 16 * SECTORS, 0, AlignedBuf::empty());
        assert_eq!(call(&mut client, discard).0, Ok(()));
    } else {
        eprintln!("{test}: this file system makes no holes, discards were not looked at");
    }
    for n in 0..64 {
        let (result, mut buf) = call(&mut client, io(Op::Read, n, block(99)));
        let emptied = zeroed.contains(&n) || discarded.contains(&n);
        let expected = if emptied { 0 } else { n + 1 };
        assert!(result.is_ok() && is_filled(buf.as_mut_slice(), expected), "block {n}");
    }
    assert_eq!(file.bytes().len(), 64 * BLOCK, "the size stays");
}
