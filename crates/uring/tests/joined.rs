//! Several files as one device: data arrives in the file and at the place that it is for.

#![cfg(target_os = "linux")]

use crate::common::{BLOCK, SECTORS, TempFile, block, call, fill, io, is_filled, service, start};
use blkmq_buf::AlignedBuf;
use blkmq_core::{Bytes, Extent, IoError, IoFlags, Op, Rng};
use blkmq_engine::{BlockDevice, Io, Join};
use blkmq_uring::UringDevice;

const MIB: u64 = 1 << 20;
/// Blocks in a file.
const BLOCKS: u64 = 16;

/// Two files, the second one 1 MiB behind the start of the first.
fn joined(test: &str, options: &str) -> Option<([TempFile; 2], UringDevice)> {
    let file = |n: u32| TempFile::new(&format!("{test}-{n}"), BLOCKS * BLOCK as u64);
    let files = [file(0), file(1)];
    let [first, second] = [files[0].open(test, options)?, files[1].open(test, options)?];
    Some((files, UringDevice::joined(vec![(0, first), (MIB, second)])))
}

fn arrives(test: &str, options: &str) {
    let Some((files, device)) = joined(test, options) else { return };
    assert_eq!(device.shape.limits.capacity, (MIB + BLOCKS * BLOCK as u64) / 512);
    let service = service(&device, 1);
    let mut client = service.client().expect("it is for one");
    let second = MIB / BLOCK as u64;
    for n in (0..BLOCKS).chain(second..second + BLOCKS) {
        let mut buf = AlignedBuf::new(BLOCK);
        fill(&mut buf, n);
        assert_eq!(call(&mut client, io(Op::Write, n, buf)).0, Ok(()));
    }
    let flush = Io::new(Op::Flush, 0, 0, 0, AlignedBuf::new(0));
    assert_eq!(call(&mut client, flush).0, Ok(()), "both files are flushed");
    for n in [1, BLOCKS - 1, second, second + 5] {
        let (result, mut buf) = call(&mut client, io(Op::Read, n, AlignedBuf::new(BLOCK)));
        assert_eq!(result, Ok(()));
        assert!(is_filled(buf.as_mut_slice(), n), "block {n}");
    }
    // Between the files, and across the end of the first.
    for (at, len) in [(BLOCKS, 1), (BLOCKS - 1, 2), (second - 1, 2)] {
        let io = Io::read(Bytes(at * BLOCK as u64), AlignedBuf::new(len * BLOCK));
        assert_eq!(call(&mut client, io).0, Err(IoError::IO), "block {at}");
    }
    drop(client);
    drop(service);
    for (file, first) in files.iter().zip([0, second]) {
        let bytes = file.bytes();
        let whole = bytes.chunks_exact(BLOCK).zip(first..).all(|(bytes, n)| is_filled(bytes, n));
        assert!(whole && bytes.len() == BLOCKS as usize * BLOCK);
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
    std::fs::write(files[1].path(), vec![1; BLOCKS as usize * BLOCK]).expect("a small file");
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
    let file = |n: u32| TempFile::new(&format!("{test}-{n}"), BLOCKS * BLOCK as u64);
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
    let files = [0, 1].map(|n| TempFile::new(&format!("{test}-{n}"), BLOCKS * BLOCK as u64));
    let open = |n: usize, options: &str| files[n].open(test, &format!(",locking=0{options}"));
    let (Some(first), Some(second)) = (open(0, ",hw_queue_depth=4"), open(1, "")) else { return };
    let join = |all: &[&UringDevice]| {
        let all = Vec::from_iter(all.iter().map(|file| (*file, BLOCKS * u64::from(SECTORS))));
        <UringDevice as BlockDevice<AlignedBuf>>::join(&all, Join::Concat)
    };
    let shape = join(&[&first, &second]).expect("both are files with rings").shape();
    assert_eq!((shape.hw_queues, shape.hw_queue_depth), (1, 4 + 128));
    assert_eq!(shape.limits.capacity, 2 * BLOCKS * u64::from(SECTORS));
    for options in [",hw_queues=1", ",fixed=0"] {
        let other = open(1, options).expect("as before");
        assert!(join(&[&first, &other]).is_none(), "{options}");
    }
    let threads = UringDevice::described(&format!("threads:{}", files[1].path().display()));
    assert!(join(&[&first, &threads.expect("a file").expect("as before")]).is_none());
}

/// Three files with as many blocks of a device as `blocks` says, and the file and block of each block of the device.
/// `requests`: those that write all of it.
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

    // One request over all files, where the device has no chunks: its memory is in pieces.
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
