//! For each limit of `docs/spec/nbd.md`, section 6: a client that exceeds it, beside a client that must not notice.
//!
//! Afterwards nothing of the hostile client may remain.

use crate::rig::{self, Client, Header, Rig, Talk, serve_on, until};
use blkmq::{Clock, Instant, Nanos};
use blkmq_nbd::{Command, CommandFlags, ErrorCode, HeaderStyle, Span};
use blkmq_server::{Bounds, Export};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const NONE: CommandFlags = CommandFlags::NONE;
const DEVICE: &str = "memory,size=16,discard=1";
const MIB: u64 = 1 << 20;

/// A server, and a well-behaved client.
struct Scene {
    rig: Rig,
    good: Client,
    turns: u8,
}

impl Scene {
    fn new(bounds: Bounds) -> Self {
        Self::on(DEVICE, bounds)
    }

    /// With data in the first 8 MiB: reads of holes would be answered without their payload.
    fn with_data(bounds: Bounds) -> Self {
        let mut scene = Self::new(bounds);
        for n in 0..8 {
            assert_eq!(scene.good.write(n * MIB, &[1; 1 << 20]), Ok(vec![]));
        }
        scene
    }

    fn on(device: &str, bounds: Bounds) -> Self {
        let rig = serve_on(device, &[Export::new("disk", 0)], bounds);
        let good = rig.client("disk");
        Self { rig, good, turns: 0 }
    }

    fn talk(&self) -> Talk {
        Talk::transmission(&self.rig.socket, "disk")
    }

    /// Checks that the other client can do I/O.
    fn goes_on(&mut self) {
        self.turns = self.turns.wrapping_add(1);
        let data = [self.turns; 4096];
        assert_eq!(self.good.write(15 * MIB, &data), Ok(vec![]), "a write beside");
        assert_eq!(self.good.read(15 * MIB, 4096), Ok(data.to_vec()), "a read beside");
    }

    /// Waits until only the other client is left, and then disconnects it as well.
    fn ends(mut self) {
        until(|| self.rig.server.connections() <= 1);
        self.goes_on();
        drop(self.good);
        self.rig.check_at_rest();
        for disk in self.rig.server.disks() {
            assert_eq!(disk.service().queue().budgets_in_use(), 0);
        }
    }
}

#[test]
fn connections_without_a_byte_take_no_place_from_others() {
    let mut scene = Scene::new(Bounds::default());
    // More than the server accepts; the newest stay open.
    let mut silent = VecDeque::new();
    for n in 0..2000 {
        silent.push_back(UnixStream::connect(&scene.rig.socket).expect("the server listens"));
        if silent.len() > 300 {
            silent.pop_front();
        }
        if n % 100 == 0 {
            scene.goes_on();
        }
    }
    assert!(scene.rig.server.connections() <= Bounds::default().connections);
    drop(silent);
    scene.ends();
}

#[test]
fn a_new_client_is_served_beside_as_many_half_handshakes_as_there_may_be() {
    let mut scene = Scene::new(Bounds::default());
    let mut half: VecDeque<Talk> =
        (0..Bounds::default().handshakes * 2 + 2).map(|_| Talk::begin(&scene.rig.socket)).collect();
    let mut oldest = half.pop_front().expect("there are some");
    assert!(oldest.is_closed());
    scene.goes_on();
    assert_eq!(scene.rig.client("disk").read(0, 512), Ok(vec![0; 512]));
    let mut newest = half.pop_back().expect("there are some");
    newest.option(rig::UNKNOWN, &[]);
    assert_eq!(newest.reply(), rig::UNSUPPORTED, "a new handshake goes on");
    drop((half, newest));
    scene.ends();
}

#[test]
fn options_end_with_the_65th() {
    let mut scene = Scene::new(Bounds::default());
    let mut hostile = Talk::begin(&scene.rig.socket);
    for _ in 0..64 {
        hostile.option(rig::UNKNOWN, &[]);
        assert_eq!(hostile.reply(), rig::UNSUPPORTED);
    }
    hostile.option(rig::UNKNOWN, &[]);
    assert!(hostile.is_closed());
    scene.goes_on();
    scene.ends();
}

/// Regression test: nbdinfo and qemu-nbd query each export of a list, and were closed at the 65th option.
#[test]
fn a_client_may_ask_for_every_export_of_a_list() {
    let names = Vec::from_iter((0..40).map(|n| format!("e{n}")));
    let exports = Vec::from_iter(names.iter().map(|name| Export::new(name, 0)));
    let rig = serve_on("memory,size=16", &exports, Bounds::default());
    let mut talk = Talk::begin(&rig.socket);
    talk.option(rig::STRUCTURED_REPLY, &[]);
    assert_eq!(talk.reply(), rig::ACK);
    talk.option(rig::LIST, &[]);
    assert_eq!(Vec::from_iter((0..40).map(|_| talk.reply())), [rig::SERVER; 40]);
    assert_eq!(talk.reply(), rig::ACK);
    let answer = |talk: &mut Talk| while talk.reply() != rig::ACK {};
    for name in &names {
        let named = [&(name.len() as u32).to_be_bytes()[..], name.as_bytes()].concat();
        talk.option(rig::INFO, &[&named[..], &[0, 0]].concat());
        answer(&mut talk);
        for option in [rig::SET_META_CONTEXT, rig::LIST_META_CONTEXT] {
            talk.option(option, &[&named[..], &[0, 0, 0, 0]].concat());
            answer(&mut talk);
        }
    }
    // The rest of the limit is used up as before.
    while !is_closed_by_an_option(&mut talk) {}
    drop(talk);
    rig.check_at_rest();
}

fn is_closed_by_an_option(talk: &mut Talk) -> bool {
    let mut option = rig::OPTION.to_be_bytes().to_vec();
    option.extend([rig::UNKNOWN.to_be_bytes(), [0; 4]].concat());
    if talk.0.write_all(&option).is_err() {
        return true;
    }
    let mut header = [0; 20];
    let Ok(()) = talk.0.read_exact(&mut header) else { return true };
    let length = u32::from_be_bytes([header[16], header[17], header[18], header[19]]);
    talk.take(length as usize);
    false
}

#[test]
fn long_data_of_an_option_is_dropped_and_longer_data_closes() {
    let mut scene = Scene::new(Bounds::default());
    let mut hostile = Talk::begin(&scene.rig.socket);
    for len in [(64 << 10) + 1, 1 << 20] {
        hostile.option(rig::GO, &vec![0; len]);
        assert_eq!(hostile.reply(), rig::TOO_BIG, "{len} bytes");
    }
    hostile.option(rig::LIST, &[]);
    assert_eq!(hostile.reply(), rig::SERVER, "the next option is understood");
    assert_eq!(hostile.reply(), rig::ACK);
    scene.goes_on();
    hostile.option_header(rig::GO, (1 << 20) + 1);
    assert!(hostile.is_closed());
    scene.ends();
}

#[test]
fn a_fourth_list_is_refused() {
    let mut scene = Scene::new(Bounds::default());
    let mut hostile = Talk::begin(&scene.rig.socket);
    for _ in 0..3 {
        hostile.option(rig::LIST, &[]);
        assert_eq!([hostile.reply(), hostile.reply()], [rig::SERVER, rig::ACK]);
    }
    hostile.option(rig::LIST, &[]);
    assert_eq!(hostile.reply(), rig::POLICY);
    scene.goes_on();
    drop(hostile);
    scene.ends();
}

#[test]
fn a_write_longer_than_announced_is_dropped_and_a_longer_one_closes() {
    let mut scene = Scene::on("memory,size=64", Bounds::default());
    let mut hostile = scene.rig.client("disk");
    let data = vec![0xee; 33 << 20];
    assert_eq!(hostile.write(0, &data), Err(ErrorCode::Invalid));
    assert_eq!(hostile.read(0, 512), Ok(vec![0; 512]), "nothing of it was written");
    scene.goes_on();
    hostile.send(Command::Write, NONE, 0, 64 * MIB + 512, &[]);
    assert!(hostile.is_closed());
    scene.ends();
}

#[test]
fn offsets_at_the_end_of_all_numbers_are_beyond_the_end() {
    let mut scene = Scene::new(Bounds::default());
    let (invalid, no_space) = (Err(ErrorCode::Invalid), Err(ErrorCode::NoSpace));
    for style in [HeaderStyle::Simple, HeaderStyle::Structured, HeaderStyle::Extended] {
        let mut hostile = Client::connect_in(&scene.rig.socket, "disk", style);
        for offset in [u64::MAX, u64::MAX - 511, 1 << 63] {
            assert_eq!(hostile.read(offset, 512), invalid, "{style:?}, {offset}");
            let zeroes = hostile.call(Command::WriteZeroes, NONE, offset, 512, &[]);
            let is_aligned = offset != u64::MAX;
            assert!(if is_aligned { zeroes == no_space } else { zeroes.is_err() });
            let write = hostile.write(offset, &[1; 512]);
            assert!(if is_aligned { write == no_space } else { write.is_err() });
            assert_eq!(hostile.call(Command::Trim, NONE, offset, 512, &[]), invalid);
            assert_eq!(hostile.call(Command::Cache, NONE, offset, 512, &[]), invalid);
        }
        assert_eq!(hostile.read(0, 512), Ok(vec![0; 512]), "nothing was written round the end");
    }
    scene.goes_on();
    scene.ends();
}

#[test]
fn requests_may_have_equal_cookies() {
    let mut scene = Scene::new(Bounds::default());
    let mut hostile = scene.talk();
    let (read, write) = (0, 1);
    for n in 0..64_u64 {
        hostile.request(&Header { command: write, cookie: 7, offset: n * 512, length: 512 });
        hostile.send(&[n as u8; 512]);
    }
    for _ in 0..64 {
        assert_eq!(hostile.simple(), (0, 7));
    }
    scene.goes_on();
    for n in 0..64_u64 {
        hostile.request(&Header { command: read, cookie: u64::MAX, offset: n * 512, length: 512 });
    }
    let mut found: Vec<u8> = Vec::new();
    for _ in 0..64 {
        assert_eq!(hostile.simple(), (0, u64::MAX));
        let data = hostile.take(512);
        assert!(data.iter().all(|byte| *byte == data[0]));
        found.push(data[0]);
    }
    found.sort_unstable();
    assert!(found.into_iter().eq(0..64), "each is answered once");
    drop(hostile);
    scene.ends();
}

#[test]
fn the_map_of_a_fragmented_disk_has_an_end() {
    let mut scene = Scene::new(Bounds::default());
    let mut client = Client::connect_for_status(&scene.rig.socket, "disk", HeaderStyle::Structured);
    for n in 0..1700 {
        client.write(n * 8192, &[1; 4096]).expect("it fits");
    }
    let (mut at, mut extents) = (0, 0);
    while at < 13 * MIB {
        let found = client.status(at, 16 * MIB - at, NONE).expect("a part of the map");
        assert!((1..=1024).contains(&found.len()), "{} extents", found.len());
        extents += found.len();
        at += found.iter().map(|(length, _)| length).sum::<u64>();
    }
    assert!(extents > 3000, "the rest comes with the next questions: {extents}");
    scene.goes_on();
    drop(client);
    scene.ends();
}

#[test]
fn the_socket_of_a_client_with_too_many_requests_is_not_read() {
    let bounds = Bounds { requests: 2, ..Bounds::default() };
    // Each I/O takes 200 ms.
    let slow = "null,size=16,irqmode=2,completion_nsec=200000000";
    let rig = serve_on(slow, &[Export::new("disk", 0)], bounds);
    let mut hostile = Talk::transmission(&rig.socket, "disk");
    hostile.0.set_nonblocking(true).expect("a socket");
    let one = Header { command: 0, cookie: 1, offset: 0, length: 512 }.bytes();
    let many = one.repeat(1024);
    // Without the limit, all of the 64 MiB would be accepted immediately. The kernel buffers some MiB.
    let sent = (0..2400).take_while(|_| matches!(hostile.0.write(&many), Ok(len) if len > 0));
    let sent = sent.count();
    assert!(sent < 1200, "{sent} times 1024 requests were taken");
    assert!(rig.server.disks()[0].service().queue().tags_in_use(blkmq::core::HwQueue(0)) <= 2);
    drop(hostile);
    rig.check_at_rest();
}

/// Regression test: a request that arrived with others, and waited for their bytes, was forgotten when the last of
/// their replies were sent with one write: no event came for it.
#[test]
fn requests_beyond_the_bytes_of_a_connection_wait_and_are_served() {
    let mut scene = Scene::with_data(Bounds { bytes: 64 << 10, ..Bounds::default() });
    let mut hostile = scene.rig.client("disk");
    let mut bytes = Vec::new();
    for n in 0..3 {
        let span = Span { offset: n << 16, length: 64 << 10 };
        bytes.extend(hostile.request(Command::Read, NONE, span).1);
    }
    hostile.socket.write_all(&bytes).expect("the server reads");
    hostile.socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
    for _ in 0..3 {
        assert_eq!(hostile.answer().1.map(|data| data.len()), Ok(64 << 10));
    }
    scene.goes_on();
    drop(hostile);
    scene.ends();
}

/// Returns a client that requests `len` bytes in reads of 256 KiB and takes none of them.
fn deaf(scene: &Scene, len: u64) -> Client {
    let mut deaf = scene.rig.client("disk");
    for n in 0..len >> 18 {
        let span = Span { offset: (n << 18) % (8 * MIB), length: 1 << 18 };
        let (_, bytes) = deaf.request(Command::Read, NONE, span);
        deaf.socket.write_all(&bytes).expect("the kernel keeps it, if not the server");
    }
    deaf
}

#[test]
fn a_client_that_takes_no_replies_is_closed_in_time() {
    let bounds = Bounds { silence: Nanos::from_millis(50), bytes: 4 << 20, ..Bounds::default() };
    let mut scene = Scene::with_data(bounds);
    let _deaf = deaf(&scene, 64 * MIB);
    scene.goes_on();
    // Its socket is still open.
    scene.ends();
}

/// Regression test: each byte that such a client sent counted as activity, so that it could keep its replies in memory
/// for ever.
#[test]
fn a_client_that_takes_no_replies_and_sends_on_is_closed_in_time() {
    let bounds = Bounds { silence: Nanos::from_millis(50), ..Bounds::default() };
    let mut scene = Scene::with_data(bounds);
    let mut deaf = deaf(&scene, 16 * MIB);
    deaf.socket.set_nonblocking(true).expect("a socket");
    let (_, bytes) = deaf.request(Command::Flush, NONE, Span::default());
    let mut sent = 0;
    let end = loop {
        assert!(sent < 3_000_000, "it is still served");
        match deaf.socket.write(&bytes[sent % bytes.len()..][..1]) {
            Ok(_) => sent += 1,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => break error.kind(),
        }
    };
    assert!(matches!(end, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{end:?}");
    scene.goes_on();
    scene.ends();
}

/// Regression test: replies that wait for their clients were not counted as in flight for a worker, so that every
/// connection could fill its own limit.
#[test]
fn replies_that_are_not_taken_count_for_all_connections() {
    let bounds = Bounds { bytes: 16 << 20, bytes_per_worker: 16 << 20, ..Bounds::default() };
    let mut scene = Scene::with_data(bounds);
    let before = served(&scene);
    let all: Vec<Client> = (0..32).map(|_| deaf(&scene, 32 * MIB)).collect();
    // Small requests make progress; each takes its turn after one of each deaf client.
    for _ in 0..50 {
        scene.goes_on();
    }
    let reads = served(&scene) - before;
    // The kernel buffers up to 4 MiB for each connection, and 2 MiB may always wait; without the limit it would be 20
    // MiB each.
    let most = 32 * (4 + 2) + 2 * (16 + 16);
    assert!(reads / 4 < most, "{} MiB were read for clients that take nothing", reads / 4);
    drop(all);
    scene.ends();
}

/// Returns the number of I/Os of the disk so far.
fn served(scene: &Scene) -> u64 {
    scene.rig.server.disks()[0].service().queue().stats().completed
}

const MEMORY: &str = "memory,size=16";

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
    let rig = serve_on(MEMORY, &[Export::new("disk", 0)], bounds);
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
    let rig = serve_on(MEMORY, &[Export::new("disk", 0), Export::new("other", 0)], bounds);
    let mut talk = Talk::begin(&rig.socket);
    talk.option(rig::LIST, &[]);
    while talk.reply() != rig::ACK {}
    let clock = Clock::start();
    let mut asked = Instant::ZERO;
    // As over a network that takes a quarter of the limit for an answer.
    while asked < Instant::ZERO + Nanos::from_millis(1000) {
        let next = asked + Nanos::from_millis(100);
        until(|| clock.now() >= next);
        asked = clock.now();
        talk.option(rig::UNKNOWN, &[]);
        assert_eq!(talk.reply(), rig::UNSUPPORTED, "after {asked:?}");
    }
    assert!(talk.is_closed(), "then it is silent");
}

#[test]
fn half_a_request_ends_in_time() {
    let bounds = Bounds { silence: Nanos::from_millis(50), ..Bounds::default() };
    let rig = serve_on(MEMORY, &[Export::new("disk", 0)], bounds);
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
    let rig = serve_on(MEMORY, &[Export::new("disk", 0)], bounds);
    let mut deaf = rig.client("disk");
    deaf.socket.set_nonblocking(true).expect("a socket");
    let mut sent = 0;
    // 256 MiB of replies are requested; the limits stop the reading of requests long before.
    while sent < 1 << 10 {
        let span = Span { offset: 0, length: 256 << 10 };
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
    let rig = serve_on(MEMORY, &[Export::new("deaf", 0), Export::new("other", 0)], bounds);
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
    let rig = serve_on(MEMORY, &[Export::new("disk", 0)], bounds);
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
        let rig = serve_on(MEMORY, &[Export::new("disk", 0)], bounds);
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
    let rig = serve_on(MEMORY, &[Export::new("disk", 0)], bounds);
    let mut clients: Vec<_> = (0..3).map(|_| rig.client("disk")).collect();
    assert!(is_closed(&UnixStream::connect(&rig.socket).expect("it is accepted")));
    assert_eq!(clients[0].read(0, 512), Ok(vec![0; 512]));
    drop(clients);
    rig.check_at_rest();
    assert_eq!(rig.client("disk").read(0, 512), Ok(vec![0; 512]), "places come back");
}

#[test]
fn a_write_beyond_all_bounds_closes_its_connection_only() {
    let rig = serve_on(MEMORY, &[Export::new("disk", 0)], Bounds::default());
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
    let rig = serve_on(MEMORY, &[Export::new("disk", 0)], bounds);
    let silent: Vec<_> =
        (0..30).map(|_| UnixStream::connect(&rig.socket).expect("the server listens")).collect();
    assert!(is_closed(&silent[0]), "the oldest is closed");
    assert_eq!(rig.client("disk").read(0, 512), Ok(vec![0; 512]));
}
