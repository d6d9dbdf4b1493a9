//! For each limit of `docs/spec/nbd.md`, section 6: a client that exceeds it, beside a client that must not notice.
//!
//! Time limits are tested in `bounds.rs`. Afterwards nothing of the hostile client may remain.

use crate::client::Client;
use crate::rig::{Rig, serve_on};
use crate::talk::{self, Header, Talk};
use crate::until::until;
use blkmq::Nanos;
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
    newest.option(talk::UNKNOWN, &[]);
    assert_eq!(newest.reply(), talk::UNSUPPORTED, "a new handshake goes on");
    drop((half, newest));
    scene.ends();
}

#[test]
fn options_end_with_the_65th() {
    let mut scene = Scene::new(Bounds::default());
    let mut hostile = Talk::begin(&scene.rig.socket);
    for _ in 0..64 {
        hostile.option(talk::UNKNOWN, &[]);
        assert_eq!(hostile.reply(), talk::UNSUPPORTED);
    }
    hostile.option(talk::UNKNOWN, &[]);
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
    talk.option(talk::STRUCTURED_REPLY, &[]);
    assert_eq!(talk.reply(), talk::ACK);
    talk.option(talk::LIST, &[]);
    assert_eq!(Vec::from_iter((0..40).map(|_| talk.reply())), [talk::SERVER; 40]);
    assert_eq!(talk.reply(), talk::ACK);
    let answer = |talk: &mut Talk| while talk.reply() != talk::ACK {};
    for name in &names {
        let named = [&(name.len() as u32).to_be_bytes()[..], name.as_bytes()].concat();
        talk.option(talk::INFO, &[&named[..], &[0, 0]].concat());
        answer(&mut talk);
        for option in [talk::SET_META_CONTEXT, talk::LIST_META_CONTEXT] {
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
    let mut option = talk::OPTION.to_be_bytes().to_vec();
    option.extend([talk::UNKNOWN.to_be_bytes(), [0; 4]].concat());
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
        hostile.option(talk::GO, &vec![0; len]);
        assert_eq!(hostile.reply(), talk::TOO_BIG, "{len} bytes");
    }
    hostile.option(talk::LIST, &[]);
    assert_eq!(hostile.reply(), talk::SERVER, "the next option is understood");
    assert_eq!(hostile.reply(), talk::ACK);
    scene.goes_on();
    hostile.option_header(talk::GO, (1 << 20) + 1);
    assert!(hostile.is_closed());
    scene.ends();
}

#[test]
fn a_fourth_list_is_refused() {
    let mut scene = Scene::new(Bounds::default());
    let mut hostile = Talk::begin(&scene.rig.socket);
    for _ in 0..3 {
        hostile.option(talk::LIST, &[]);
        assert_eq!([hostile.reply(), hostile.reply()], [talk::SERVER, talk::ACK]);
    }
    hostile.option(talk::LIST, &[]);
    assert_eq!(hostile.reply(), talk::POLICY);
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
