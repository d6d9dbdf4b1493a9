//! Several files as one device: data arrives in the file and at the place that it is for.

#![cfg(target_os = "linux")]

use crate::common::{BLOCK, TempFile, call, fill, io, is_filled, service};
use blkmq_buf::AlignedBuf;
use blkmq_core::{Bytes, Extent, IoError, Op};
use blkmq_engine::{BlockDevice, Io};
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
    let together = |all: &[&UringDevice]| BlockDevice::<AlignedBuf>::together(all);
    let (device, places) = together(&[&first, &second]).expect("both are files with rings");
    assert_eq!((places, device.shape.hw_queue_depth), (vec![0, 1 << 21], 4 + 128));
    assert_eq!(device.shape.limits.capacity, (1 << 21) + BLOCKS * BLOCK as u64 / 512);
    for options in [",hw_queues=1", ",fixed=0"] {
        let other = open(1, options).expect("as before");
        assert!(together(&[&first, &other]).is_none(), "{options}");
    }
    let threads = UringDevice::described(&format!("threads:{}", files[1].path().display()));
    assert!(together(&[&first, &threads.expect("a file").expect("as before")]).is_none());
}
