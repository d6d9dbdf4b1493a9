//! A mirror of files in real time: a replaced leg is copied to while the client only waits, and a queue that has ended
//! in order leaves nothing to copy.

use blkmq::prelude::*;
use blkmq::runtime::Sleep;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::path::Path;

const BYTES: u64 = 4 << 20;

/// Writes `count` blocks of 64 KiB, each filled with its number and `salt`.
fn write(client: &mut Client<AlignedBuf>, count: u64, salt: u8) {
    for at in 0..count {
        let bytes = AlignedBuf::copy_of(&[at as u8 ^ salt; 64 << 10]);
        client.push(Io::write(Bytes(at << 16), bytes).cookie(at)).expect("there is credit");
        client.wait(1, 1, |done| assert_eq!(done.result, Ok(())));
    }
}

/// Sleeps on the descriptor of an idle client until a finding of the device ends with `last`.
fn idle_until(device: &blkmq::Device, client: &mut Client<AlignedBuf>, last: &str) -> Vec<String> {
    let mut findings = Vec::new();
    // Spurious readiness of the descriptor would exhaust the rounds.
    for _ in 0..1000 {
        let sleep = client.prepare_wait();
        let fd = client.event_fd().expect("a descriptor is left");
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let left = Timespec { tv_sec: if sleep == Sleep::No { 0 } else { 10 }, tv_nsec: 0 };
        let ready = poll(&mut fds, Some(&left)).expect("it can poll");
        client.end_wait();
        findings.extend(device.take_findings().iter().map(ToString::to_string));
        if findings.iter().any(|finding| finding.ends_with(last)) {
            return findings;
        }
        assert!(ready > 0 || sleep == Sleep::No, "nothing happens: {findings:?}");
    }
    panic!("it wakes too often: {findings:?}");
}

fn contents(path: &Path) -> Vec<u8> {
    let mut bytes = std::fs::read(path).expect("the file is there");
    // The records differ between legs.
    bytes.truncate((BYTES - 8192) as usize);
    bytes
}

#[test]
fn a_leg_that_is_replaced_is_copied_while_nothing_else_is_done() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let leg = |name: &str| format!("[threads:{},size=4]", path(name).display());
    let open = |text: String| blkmq::open(&text).expect(&text);
    let begin = |device: &blkmq::Device| {
        let service = device.start::<AlignedBuf>("none").expect("it can run");
        let client = service.client().expect("one is free");
        (service, client)
    };
    {
        let device = open(format!("mirror,create=1:{}{}", leg("a"), leg("b")));
        assert_eq!(device.bytes(), BYTES - 8192);
        let (_service, mut client) = begin(&device);
        write(&mut client, 60, 0x55);
        let busy = device.start::<AlignedBuf>("none").expect_err("one at a time").to_string();
        assert!(busy.contains("a queue of the mirror exists already"), "{busy}");
    }
    // Opens the mirror without the first leg, which is then replaced.
    {
        let device = open(format!("mirror:[missing]{}", leg("b")));
        assert!(device.notes().iter().any(|note| note.starts_with("device 0 is missing")));
        let (_service, mut client) = begin(&device);
        write(&mut client, 10, 0xAA);
    }
    std::fs::remove_file(path("a")).expect("it is there");
    let error = blkmq::open(&format!("mirror:{}{}", leg("a"), leg("b"))).expect_err("no record");
    assert!(error.to_string().starts_with("device 0 has no record"), "{error}");
    {
        let device = open(format!("mirror,replace=1:{}{}", leg("a"), leg("b")));
        let (_service, mut client) = begin(&device);
        let findings = idle_until(&device, &mut client, "device 0 is in step");
        assert_eq!(findings.first().map(String::as_str), Some("device 0 is behind, and is copied"));
    }
    assert!(contents(&path("a")) == contents(&path("b")), "they are the same");
    assert_eq!(contents(&path("a"))[..64 << 10], vec![0xAA; 64 << 10]);
    let device = open(format!("mirror:{}{}", leg("a"), leg("b")));
    let (service, mut client) = begin(&device);
    write(&mut client, 1, 0);
    drop((client, service));
    assert_eq!(device.take_findings(), [], "it had ended in order");
    drop(device);
    let error = blkmq::open(&format!("mirror:{}{}", leg("b"), leg("a"))).expect_err("swapped");
    assert!(error.to_string().contains("is number 1 of the mirror"), "{error}");
}
