//! The data read is the data written, however it was merged, vectored, registered or shared between rings. Also with
//! several files as one device, where it arrives in the right file at the right place. Also on a block device: a file
//! behind the kernel's loop driver.

#![cfg(target_os = "linux")]

use crate::{BLOCK, SECTORS, TempFile, block, call, fill, io, is_filled, open, service, start};
use blkmq_buf::{AlignedBuf, BufferPool};
use blkmq_core::{Bytes, Extent, IoError, IoFlags, Op, Payload, Rng};
use blkmq_engine::{BlockDevice, Io, Join, WriteCache};
use blkmq_runtime::{Client, Service};
use blkmq_uring::{OpenError, UringDevice};
use std::process::Command;
use std::thread;

const THREADS: u64 = 3;
/// Blocks that each thread writes.
const BLOCKS: u64 = 192;

/// A block from the pool, or a new one if the pool is empty.
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
    // The pool is too small for all I/Os in flight, so some requests have both kinds of memory.
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

/// Writes eight adjacent blocks with one flush of the plug, and then reads them alike, with buffers of `pool`.
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

const MIB: u64 = 1 << 20;
/// Blocks in a file.
const JOINED_BLOCKS: u64 = 16;

/// Two files, the second one 1 MiB behind the start of the first.
fn joined(test: &str, options: &str) -> Option<([TempFile; 2], UringDevice)> {
    let file = |n: u32| TempFile::new(&format!("{test}-{n}"), JOINED_BLOCKS * BLOCK as u64);
    let files = [file(0), file(1)];
    let [first, second] = [files[0].open(test, options)?, files[1].open(test, options)?];
    Some((files, UringDevice::joined(vec![(0, first), (MIB, second)])))
}

fn arrives(test: &str, options: &str) {
    let Some((files, device)) = joined(test, options) else { return };
    assert_eq!(device.shape.limits.capacity, (MIB + JOINED_BLOCKS * BLOCK as u64) / 512);
    let service = service(&device, 1);
    let mut client = service.client().expect("it is for one");
    let second = MIB / BLOCK as u64;
    for n in (0..JOINED_BLOCKS).chain(second..second + JOINED_BLOCKS) {
        let mut buf = AlignedBuf::new(BLOCK);
        fill(&mut buf, n);
        assert_eq!(call(&mut client, io(Op::Write, n, buf)).0, Ok(()));
    }
    let flush = Io::new(Op::Flush, 0, 0, 0, AlignedBuf::new(0));
    assert_eq!(call(&mut client, flush).0, Ok(()), "both files are flushed");
    for n in [1, JOINED_BLOCKS - 1, second, second + 5] {
        let (result, mut buf) = call(&mut client, io(Op::Read, n, AlignedBuf::new(BLOCK)));
        assert_eq!(result, Ok(()));
        assert!(is_filled(buf.as_mut_slice(), n), "block {n}");
    }
    // These I/Os are between the files, or cross the end of the first or the start of the second.
    for (at, len) in [(JOINED_BLOCKS, 1), (JOINED_BLOCKS - 1, 2), (second - 1, 2)] {
        let io = Io::read(Bytes(at * BLOCK as u64), AlignedBuf::new(len * BLOCK));
        assert_eq!(call(&mut client, io).0, Err(IoError::IO), "block {at}");
    }
    drop(client);
    drop(service);
    for (file, first) in files.iter().zip([0, second]) {
        let bytes = file.bytes();
        let whole = bytes.chunks_exact(BLOCK).zip(first..).all(|(bytes, n)| is_filled(bytes, n));
        assert!(whole && bytes.len() == JOINED_BLOCKS as usize * BLOCK);
    }
}

#[test]
pub fn data_arrives_in_its_file() {
    arrives("data_arrives_in_its_file", "");
}

#[test]
pub fn data_arrives_in_files_that_are_not_registered() {
    arrives("data_arrives_in_files_that_are_not_registered", ",fixed=0");
}

#[test]
pub fn what_lies_between_files_is_a_hole() {
    let test = "what_lies_between_files_is_a_hole";
    let Some((files, device)) = joined(test, "") else { return };
    std::fs::write(files[1].path(), vec![1; JOINED_BLOCKS as usize * BLOCK]).expect("a small file");
    let capacity = device.shape.limits.capacity * 512;
    let extents = device.extents(0..capacity, 9).expect("it can be asked");
    let last = extents.last().copied();
    assert_eq!(last, Some(Extent { end: capacity, is_hole: false }));
    assert!(extents.contains(&Extent { end: MIB, is_hole: true }), "{extents:?}");
    let one = device.extents(MIB + 4096..MIB + 8192, 1).expect("likewise");
    assert_eq!(one, [Extent { end: MIB + 8192, is_hole: false }]);
}

#[test]
pub fn a_file_that_is_only_read_stands_beside_one_that_is_written() {
    let test = "a_file_that_is_only_read_stands_beside_one_that_is_written";
    let file = |n: u32| TempFile::new(&format!("{test}-{n}"), JOINED_BLOCKS * BLOCK as u64);
    let files = [file(0), file(1)];
    let Some(first) = files[0].open(test, ",readonly=1") else { return };
    let Some(second) = files[1].open(test, "") else { return };
    let service = service(&UringDevice::joined(vec![(0, first), (MIB, second)]), 1);
    let mut client = service.client().expect("it is for one");
    let mut write = |n: u64| call(&mut client, io(Op::Write, n, AlignedBuf::new(BLOCK))).0;
    assert_eq!(write(0), Err(IoError(libc::EROFS as u16)));
    assert_eq!(write(MIB / BLOCK as u64), Ok(()));
}

#[test]
#[should_panic(expected = "a file at sector 8 behind one to 128")]
fn files_do_not_overlap() {
    let test = "files_do_not_overlap";
    let (a, b) = (TempFile::new("overlap-a", 65536), TempFile::new("overlap-b", 65536));
    let (Some(first), Some(second)) = (a.open(test, ""), b.open(test, "")) else {
        panic!("a file at sector 8 behind one to 128");
    };
    let _ = UringDevice::joined(vec![(0, first), (4096, second)]);
}

#[test]
pub fn files_with_rings_for_clients_share_them() {
    let test = "files_with_rings_for_clients_share_them";
    let files = [0, 1].map(|n| TempFile::new(&format!("{test}-{n}"), JOINED_BLOCKS * BLOCK as u64));
    let open = |n: usize, options: &str| files[n].open(test, &format!(",locking=0{options}"));
    let (Some(first), Some(second)) = (open(0, ",hw_queue_depth=4"), open(1, "")) else { return };
    let join = |all: &[&UringDevice]| {
        let all =
            Vec::from_iter(all.iter().map(|file| (*file, JOINED_BLOCKS * u64::from(SECTORS))));
        <UringDevice as BlockDevice<AlignedBuf>>::join(&all, Join::Concat)
    };
    let shape = join(&[&first, &second]).expect("both are files with rings").shape();
    assert_eq!((shape.hw_queues, shape.hw_queue_depth), (1, 4 + 128));
    assert_eq!(shape.limits.capacity, 2 * JOINED_BLOCKS * u64::from(SECTORS));
    for options in [",hw_queues=1", ",fixed=0"] {
        let other = open(1, options).expect("as before");
        assert!(join(&[&first, &other]).is_none(), "{options}");
    }
    let threads = UringDevice::described(&format!("threads:{}", files[1].path().display()));
    assert!(join(&[&first, &threads.expect("a file").expect("as before")]).is_none());
}

/// Three files with `blocks` blocks of a device each, and the file and block of each block of the device. `requests`
/// are those that write all of it.
fn arranged(
    test: &str,
    by: Join,
    blocks: [u64; 3],
    requests: u64,
    place: impl Fn(u64) -> (usize, u64),
) {
    let files = blocks.map(|blocks| TempFile::new(test, (blocks + 1) * BLOCK as u64));
    let opened = files.each_ref().map(|file| file.open(test, ""));
    let [Some(first), Some(second), Some(third)] = &opened else { return };
    if first.has_threads() {
        return;
    }
    let sectors = blocks.map(|blocks| blocks * u64::from(SECTORS));
    let all = [(first, sectors[0]), (second, sectors[1]), (third, sectors[2])];
    let device = <UringDevice as BlockDevice<AlignedBuf>>::join(&all, by).expect("rings");
    let service = start(device.config().expect("rings can be made"), 1);
    let mut client = service.client().expect("it is for one");
    let count = blocks.iter().sum::<u64>();
    let mut words = vec![0; count as usize];

    // If the device has no chunks, this is one request over all files, with memory in pieces.
    let now = client.clock().now();
    for n in 0..count {
        words[n as usize] = n + 1;
        client.push_at(now, io(Op::Write, n, block(n + 1))).expect("there is credit");
    }
    client.wait(count as u32, count as u32, |io| assert_eq!(io.result, Ok(())));
    assert_eq!(service.stats().completed_requests, requests);

    let mut rng = Rng::new(count);
    for round in 0..400 {
        let at = rng.below(count);
        let len = 1 + rng.below(count - at);
        let range = at as usize..(at + len) as usize;
        let op = [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes, Op::Flush];
        let op = op[rng.below(5) as usize];
        let mut buf = match op {
            Op::Read | Op::Write => AlignedBuf::new(len as usize * BLOCK),
            _ => AlignedBuf::new(0),
        };
        let mut sectors = len as u32 * SECTORS;
        match op {
            Op::Write => {
                for (word, bytes) in
                    words[range.clone()].iter_mut().zip(buf.as_mut_slice().chunks_exact_mut(BLOCK))
                {
                    *word = rng.next_u64();
                    bytes
                        .chunks_exact_mut(8)
                        .for_each(|it| it.copy_from_slice(&word.to_le_bytes()));
                }
            }
            Op::Discard | Op::WriteZeroes => words[range.clone()].fill(0),
            Op::Flush => sectors = 0,
            Op::Read => {}
        }
        let at = if op == Op::Flush { 0 } else { at * u64::from(SECTORS) };
        let io = Io::new(op, at, sectors, 0, buf);
        let is_fua = matches!(op, Op::Write | Op::WriteZeroes) && rng.chance(1, 2);
        let flags = if is_fua { IoFlags::FUA } else { IoFlags::NONE };
        let (result, mut buf) = call(&mut client, Io { flags, ..io });
        assert_eq!(result, Ok(()), "round {round}: {op:?} of {range:?}");
        if op == Op::Read {
            let read = buf.as_mut_slice().chunks_exact(BLOCK).zip(&words[range.clone()]);
            let is_whole = read.into_iter().all(|(bytes, word)| is_filled(bytes, *word));
            assert!(is_whole, "round {round}: {range:?}");
        }
    }
    let beyond = Io::read(Bytes(count * BLOCK as u64), AlignedBuf::new(BLOCK));
    let now = client.clock().now();
    assert!(client.push_at(now, beyond).is_err(), "the files are longer than the device");
    drop(client);
    drop(service);
    let bytes = files.each_ref().map(TempFile::bytes);
    for (n, word) in (0..count).zip(&words) {
        let (file, at) = place(n);
        let start = at as usize * BLOCK;
        assert!(is_filled(&bytes[file][start..start + BLOCK], *word), "block {n}");
    }
    for (bytes, blocks) in bytes.iter().zip(blocks) {
        assert!(is_filled(&bytes[blocks as usize * BLOCK..], 0), "its last block is not used");
    }
}

#[test]
fn joined_files_hold_the_sectors_one_behind_the_other() {
    let place = |n| match n {
        0..3 => (0, n),
        3..4 => (1, n - 3),
        _ => (2, n - 4),
    };
    arranged("joined_one_behind_the_other", Join::Concat, [3, 1, 16], 1, place);
}

#[test]
fn striped_files_hold_chunks_in_turn() {
    let place = |n| ((n / 2 % 3) as usize, n / 6 * 2 + n % 2);
    let by = Join::Stripe { chunk: 2 * SECTORS };
    arranged("striped_chunks_in_turn", by, [8, 8, 8], 12, place);
}

const LOOP_BLOCKS: u64 = 256;

/// A loop device, detached afterwards.
struct Loop(String);

impl Loop {
    fn new(file: &TempFile) -> Self {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file.path()).output();
        let output = output.expect("losetup is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// The value of an attribute of its queue in sysfs.
    fn attribute(&self, name: &str) -> String {
        let disk = self.0.trim_start_matches("/dev/");
        let text = std::fs::read_to_string(format!("/sys/block/{disk}/queue/{name}"));
        text.expect("a block device has it").trim().to_owned()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
#[ignore = "needs root and the loop driver; cargo xtask interop runs it"]
fn a_block_device_is_what_sysfs_says_and_is_ours_alone() {
    let test = "a_block_device_is_what_sysfs_says";
    let file = TempFile::new(test, LOOP_BLOCKS * BLOCK as u64);
    let disk = Loop::new(&file);
    let Some(opened) = open(test, &disk.0) else { return };
    let device = opened.expect("it opens");
    let limits = device.shape.limits;
    assert_eq!(limits.capacity, LOOP_BLOCKS * u64::from(SECTORS));
    assert_eq!(limits.logical_block_size.to_string(), disk.attribute("logical_block_size"));
    let [kib, segments] = ["max_sectors_kb", "max_segments"]
        .map(|name| disk.attribute(name).parse::<u32>().expect("a number"));
    assert_eq!(limits.max_sectors, (kib * 2).min(segments * 8), "a page is a segment");
    let is_volatile = disk.attribute("write_cache") == "write back";
    assert_eq!(device.shape.cache != WriteCache::Through, is_volatile);
    assert_eq!(device.shape.limits.rotational, disk.attribute("rotational") == "1");
    assert!(device.is_direct());

    let again = open(test, &disk.0).expect("io_uring is there").expect_err("claimed");
    assert!(matches!(again, OpenError::File { what: "open", .. }), "{again}");
    let size = format!("{},size=1", disk.0);
    let size = open(test, &size).expect("io_uring is there").expect_err("a disk does not grow");
    assert!(size.to_string().contains("the size that it has"), "{size}");
}

#[test]
#[ignore = "needs root and the loop driver; cargo xtask interop runs it"]
fn a_block_device_stores_discards_and_flushes() {
    let test = "a_block_device_stores_discards_and_flushes";
    let file = TempFile::new(test, LOOP_BLOCKS * BLOCK as u64);
    let disk = Loop::new(&file);
    let Some(opened) = open(test, &disk.0) else { return };
    let device = opened.expect("it opens");
    assert!(device.shape.limits.max_discard_sectors > 0, "loop over a file that has holes");
    let service = service(&device, 1);
    let mut client = service.client().expect("one submitter");
    for n in 0..32 {
        assert_eq!(call(&mut client, io(Op::Write, n, block(n + 1))).0, Ok(()));
    }
    let fua = Io { flags: IoFlags::FUA | IoFlags::PREFLUSH, ..io(Op::Write, 32, block(33)) };
    assert_eq!(call(&mut client, fua).0, Ok(()));
    let flush = Io::new(Op::Flush, 0, 0, 0, AlignedBuf::empty());
    assert_eq!(call(&mut client, flush).0, Ok(()));
    for (op, first) in [(Op::Discard, 4), (Op::WriteZeroes, 16)] {
        let range = Io::new(op, first * 8, 4 * SECTORS, 0, AlignedBuf::empty());
        assert_eq!(call(&mut client, range).0, Ok(()), "{op:?}");
    }
    for n in 0..33 {
        let (result, mut buf) = call(&mut client, io(Op::Read, n, block(99)));
        let expected = if (4..8).contains(&n) || (16..20).contains(&n) { 0 } else { n + 1 };
        assert!(result.is_ok() && is_filled(buf.as_mut_slice(), expected), "block {n}");
    }
}

/// The kernel opens a block device for writing even if it takes no writes.
#[test]
#[ignore = "needs root and the loop driver; cargo xtask interop runs it"]
fn a_block_device_that_takes_no_writes_is_read_only_and_says_so() {
    let test = "a_block_device_that_takes_no_writes_is_read_only";
    let file = TempFile::new(test, LOOP_BLOCKS * BLOCK as u64);
    let disk = Loop::new(&file);
    let access = |option: &str| {
        let set = Command::new("blockdev").args([option, &disk.0]).status();
        assert!(set.expect("blockdev is installed").success(), "{option}");
    };
    access("--setro");
    let Some(opened) = open(test, &disk.0) else { return };
    let device = opened.expect("it opens");
    assert!(device.state().is_read_only && device.shape.limits.max_discard_sectors == 0);
    assert!(device.notes.iter().any(|note| note.contains("read-only")), "{:?}", device.notes);
    let started = service(&device, 1);
    let mut client = started.client().expect("one submitter");
    assert_eq!(call(&mut client, io(Op::Write, 0, block(1))).0, Err(IoError(30)));
    drop((client, started, device));
    access("--setrw");
    let device = open(test, &disk.0).expect("io_uring is there").expect("it opens");
    assert!(!device.state().is_read_only);
    access("--setro");
    assert!(device.state().is_read_only, "it is noticed later, too");
    let cached = || device.state().has_volatile_cache;
    let cache = format!("/sys/block/{}/queue/write_cache", disk.0.trim_start_matches("/dev/"));
    for (text, is_volatile) in [("write through", false), ("write back", true)] {
        if std::fs::write(&cache, text).is_ok() {
            assert_eq!(cached(), is_volatile, "{text}");
        }
    }
    // Otherwise the next file behind this loop device would be read-only.
    access("--setrw");
}
