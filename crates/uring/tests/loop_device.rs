//! A real block device: a file behind the kernel's loop driver.

#![cfg(target_os = "linux")]

use crate::common;

use blkmq_buf::AlignedBuf;
use blkmq_core::{IoError, IoFlags, Op};
use blkmq_engine::{Io, WriteCache};
use blkmq_uring::OpenError;
use common::{BLOCK, SECTORS, TempFile, block, call, io, is_filled, open, service};
use std::process::Command;

const BLOCKS: u64 = 256;

/// A loop device, detached afterwards.
struct Loop(String);

impl Loop {
    fn new(file: &TempFile) -> Self {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file.path()).output();
        let output = output.expect("losetup is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// An attribute of its queue in sysfs.
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
    let file = TempFile::new(test, BLOCKS * BLOCK as u64);
    let disk = Loop::new(&file);
    let Some(opened) = open(test, &disk.0) else { return };
    let device = opened.expect("it opens");
    let limits = device.shape.limits;
    assert_eq!(limits.capacity, BLOCKS * u64::from(SECTORS));
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
    let file = TempFile::new(test, BLOCKS * BLOCK as u64);
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

/// Regression test: a block device that takes no writes was taken for one that does, as the kernel lets it be opened.
#[test]
#[ignore = "needs root and the loop driver; cargo xtask interop runs it"]
fn a_block_device_that_takes_no_writes_is_read_only_and_says_so() {
    let test = "a_block_device_that_takes_no_writes_is_read_only";
    let file = TempFile::new(test, BLOCKS * BLOCK as u64);
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
    // The next file behind this loop device would have it.
    access("--setrw");
}
