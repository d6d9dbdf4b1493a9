//! Greedy clients (`docs/spec/nbd.md`, section 6), and one that must not notice them.

use crate::rig::serve_on;
use crate::talk::{self, Talk};
use crate::until::until;
use blkmq::{Clock, Instant, Nanos};
use blkmq_nbd::{Command, CommandFlags, ErrorCode};
use blkmq_server::{Bounds, Export};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

const NONE: CommandFlags = CommandFlags::NONE;
const DEVICE: &str = "memory,size=16";

fn is_closed(mut socket: &UnixStream) -> bool {
    let mut bytes = [0; 4096];
    loop {
        match socket.read(&mut bytes) {
            Ok(0) | Err(_) => return true,
            Ok(_) => {}
        }
    }
}

#[test]
fn a_handshake_ends_in_time() {
    let bounds = Bounds { handshake: Nanos::from_millis(50), ..Bounds::default() };
    let rig = serve_on(DEVICE, &[Export::new("disk", 0)], bounds);
    let mut patient = rig.client("disk");
    let silent = UnixStream::connect(&rig.socket).expect("the server listens");
    let mut half = UnixStream::connect(&rig.socket).expect("the server listens");
    half.write_all(&[0, 0, 0, 3, b'I', b'H']).expect("the server reads");
    assert!(is_closed(&silent) && is_closed(&half));
    assert_eq!(patient.read(0, 512), Ok(vec![0; 512]), "another client is served");
}

/// Regression test: a client that queried each export of a long list over a slow network was closed halfway.
#[test]
fn a_handshake_that_goes_through_a_list_has_its_time_for_each_export() {
    let bounds = Bounds { handshake: Nanos::from_millis(400), ..Bounds::default() };
    let rig = serve_on(DEVICE, &[Export::new("disk", 0), Export::new("other", 0)], bounds);
    let mut talk = Talk::begin(&rig.socket);
    talk.option(talk::LIST, &[]);
    while talk.reply() != talk::ACK {}
    let clock = Clock::start();
    let mut asked = Instant::ZERO;
    // As over a network that takes a quarter of the limit for an answer.
    while asked < Instant::ZERO + Nanos::from_millis(1000) {
        let next = asked + Nanos::from_millis(100);
        until(|| clock.now() >= next);
        asked = clock.now();
        talk.option(talk::UNKNOWN, &[]);
        assert_eq!(talk.reply(), talk::UNSUPPORTED, "after {asked:?}");
    }
    assert!(talk.is_closed(), "then it is silent");
}

#[test]
fn half_a_request_ends_in_time() {
    let bounds = Bounds { silence: Nanos::from_millis(50), ..Bounds::default() };
    let rig = serve_on(DEVICE, &[Export::new("disk", 0)], bounds);
    let mut half_header = rig.client("disk");
    half_header.socket.write_all(&[0x25, 0x60]).expect("the server reads");
    let mut half_payload = rig.client("disk");
    half_payload.send(Command::Write, NONE, 0, 4096, &[1; 10]);
    assert!(half_header.is_closed() && half_payload.is_closed());
    rig.check_at_rest();
}

#[test]
fn a_client_that_takes_no_replies_is_not_read_and_holds_nobody_up() {
    let bounds = Bounds { bytes: 4 << 20, ..Bounds::default() };
    let rig = serve_on(DEVICE, &[Export::new("disk", 0)], bounds);
    let mut deaf = rig.client("disk");
    deaf.socket.set_nonblocking(true).expect("a socket");
    let mut sent = 0;
    // 256 MiB of replies are requested; the limits stop the reading of requests long before.
    while sent < 1 << 10 {
        let span = blkmq_nbd::Span { offset: 0, length: 256 << 10 };
        let (_, bytes) = deaf.request(Command::Read, NONE, span);
        match deaf.socket.write(&bytes) {
            Ok(len) if len == bytes.len() => sent += 1,
            _ => break,
        }
    }
    let mut other = rig.client("disk");
    for n in 0..100 {
        assert_eq!(other.write(0, &[n; 4096]), Ok(vec![]));
    }
}

/// Regression test: a client that took no replies made the worker copy 64 MiB of them, and later seven.
#[test]
fn replies_that_are_not_taken_stop_further_requests() {
    let bounds = Bounds { replies: 1 << 20, ..Bounds::default() };
    let rig = serve_on(DEVICE, &[Export::new("deaf", 0), Export::new("other", 0)], bounds);
    let service = rig.server.disks()[0].service();
    service.set_attribute("blkmq/group_stats", "basic").expect("it counts");
    // This client is on the first worker; the second worker has one other client, and the first gets one more.
    let (mut deaf, _second, mut other) =
        (rig.client("deaf"), rig.client("other"), rig.client("other"));
    assert_eq!(deaf.write(0, &vec![1; 1 << 20]), Ok(vec![]));
    for _ in 0..64 {
        deaf.send(Command::Read, NONE, 0, 1 << 20, &[]);
    }
    // Each takes at least one turn of the worker.
    for n in 0..200 {
        assert_eq!(other.write(8 << 20, &[n; 512]), Ok(vec![]));
    }
    let all = service.queue().group_io(blkmq::GroupId::ROOT).expect("it counts");
    let read = all.bytes.read >> 20;
    // The socket accepts less than the first reply.
    assert_eq!(read, 1, "MiB were read");
    for _ in 0..64 {
        assert_eq!(deaf.answer().1.map(|data| data.len()), Ok(1 << 20), "it goes on");
    }
}

#[test]
fn connections_beyond_the_rate_of_their_peer_are_closed() {
    let bounds = Bounds { connections_per_second: 2, ..Bounds::default() };
    let rig = serve_on(DEVICE, &[Export::new("disk", 0)], bounds);
    // A third one would be accepted after half a second, so on a very slow machine some of them may be.
    let refused = (0..50)
        .map(|_| UnixStream::connect(&rig.socket).expect("it is accepted"))
        .filter(|socket| matches!((&*socket).read(&mut [0; 18]), Ok(0) | Err(_)))
        .count();
    assert!((1..=48).contains(&refused), "{refused} of 50");
}

#[test]
fn requests_beyond_the_bound_wait_and_are_served() {
    let bounds = Bounds { requests: 2, bytes_per_worker: 1 << 20, ..Bounds::default() };
    let rig = serve_on("flash", &[Export::new("disk", 0)], bounds);
    let mut clients: Vec<_> = (0..4).map(|_| rig.client("disk")).collect();
    for client in &mut clients {
        for n in 0..50 {
            client.send(Command::Read, NONE, n * (1 << 20), 300 << 10, &[]);
        }
    }
    for client in &mut clients {
        for _ in 0..50 {
            assert_eq!(client.answer().1.map(|data| data.len()), Ok(300 << 10));
        }
    }
}

#[test]
fn requests_that_wait_for_their_turn_need_no_event() {
    // A turn ends at the request that reaches the connection's limit, at an earlier one, or at none.
    for (requests, bytes_per_turn) in [(2, 8 << 10), (128, 4 << 10), (1, 64 << 10)] {
        let bounds = Bounds { requests, bytes_per_turn, ..Bounds::default() };
        let rig = serve_on(DEVICE, &[Export::new("disk", 0)], bounds);
        let mut client = rig.client("disk");
        for n in 0..20 {
            client.send(Command::Write, NONE, n * 4096, 4096, &[n as u8; 4096]);
            client.send(Command::Read, NONE, 1 << 20, 4096, &[]);
        }
        for _ in 0..40 {
            assert!(client.answer().1.is_ok());
        }
    }
}

#[test]
fn a_connection_too_many_is_closed() {
    let bounds = Bounds { connections: 3, ..Bounds::default() };
    let rig = serve_on(DEVICE, &[Export::new("disk", 0)], bounds);
    let mut clients: Vec<_> = (0..3).map(|_| rig.client("disk")).collect();
    assert!(is_closed(&UnixStream::connect(&rig.socket).expect("it is accepted")));
    assert_eq!(clients[0].read(0, 512), Ok(vec![0; 512]));
    drop(clients);
    rig.check_at_rest();
    assert_eq!(rig.client("disk").read(0, 512), Ok(vec![0; 512]), "places come back");
}

#[test]
fn a_write_beyond_all_bounds_closes_its_connection_only() {
    let rig = serve_on(DEVICE, &[Export::new("disk", 0)], Bounds::default());
    let (mut hostile, mut other) = (rig.client("disk"), rig.client("disk"));
    hostile.send(Command::Write, NONE, 0, 4 << 30, &[]);
    assert!(hostile.is_closed());
    let mut hostile = rig.client("disk");
    assert_eq!(hostile.read(u64::MAX, 512), Err(ErrorCode::Invalid));
    hostile.socket.write_all(&[0xff; 4096]).expect("the server reads");
    assert!(hostile.is_closed());
    assert_eq!(other.read(0, 512), Ok(vec![0; 512]));
}

#[test]
fn handshakes_under_way_are_bounded() {
    let bounds = Bounds { handshakes: 4, ..Bounds::default() };
    let rig = serve_on(DEVICE, &[Export::new("disk", 0)], bounds);
    let silent: Vec<_> =
        (0..30).map(|_| UnixStream::connect(&rig.socket).expect("the server listens")).collect();
    assert!(is_closed(&silent[0]), "the oldest is closed");
    assert_eq!(rig.client("disk").read(0, 512), Ok(vec![0; 512]));
}
