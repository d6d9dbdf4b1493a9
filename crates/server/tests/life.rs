//! Connections and servers that start and end.

use crate::rig::{Client, serve, serve_on, until};
use blkmq::core::HwQueue;
use blkmq::{Clock, Instant, Nanos};
use blkmq_nbd::{Command, CommandFlags, ErrorCode};
use blkmq_server::control::{Answer, Request};
use blkmq_server::{
    Address, Bounds, Disk, Export, ExportError, Listener, Region, Rights, Server, Settings, Ublk,
    VhostUser,
};
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

const NONE: CommandFlags = CommandFlags::NONE;

#[test]
fn clients_that_vanish_leave_nothing() {
    let rig = serve_on("flash", &[Export::new("disk", 0)], Bounds::default());
    for n in 0..40 {
        let mut client = rig.client("disk");
        for at in 0..32 {
            client.send(Command::Read, NONE, at * 65536, 65536, &[]);
        }
        if n % 2 == 0 {
            // In the middle of a payload.
            client.send(Command::Write, NONE, 0, 65536, &[1; 1000]);
        }
    }
    rig.check_at_rest();
    assert_eq!(rig.client("disk").read(0, 512).map(|data| data.len()), Ok(512));
}

/// Regression test: a killed client was counted as gone while its I/Os were in flight, so that others took its place.
#[test]
fn a_killed_client_is_counted_until_its_last_io_is_over() {
    let device = "null,size=16,irqmode=2,completion_nsec=300000000";
    let rig = serve_on(device, &[Export::new("disk", 0)], Bounds::default());
    let mut client = rig.client("disk");
    // The first reply is not taken, so the connection ends with a reset.
    client.send(Command::Flush, NONE, 0, 0, &[]);
    client.send(Command::BlockStatus, NONE, 0, 512, &[]);
    client.send(Command::Read, NONE, 0, 512, &[]);
    let in_flight = || rig.server.disks()[0].service().queue().tags_in_use(HwQueue(0)) > 0;
    until(in_flight);
    drop(client);
    let handle = rig.server.handle();
    let listed = || match handle.ask(Request::List) {
        Answer::List { exports, .. } => exports[0].connections,
        other => panic!("no list: {other:?}"),
    };
    let mut seen = 1;
    while rig.server.connections() > 0 {
        seen = listed();
        // Both counts decrease together, the export's slightly earlier.
        assert!(seen == 1 || !in_flight(), "gone, with an I/O in flight");
        std::thread::yield_now();
    }
    assert!(seen <= 1 && listed() == 0);
}

/// Regression test: a server replaced by another one refused requests with ESHUTDOWN, which reconnecting clients pass
/// on as an error.
#[test]
fn a_server_that_is_followed_answers_what_is_in_flight_and_refuses_nothing() {
    let device = "null,size=16,irqmode=2,completion_nsec=200000000";
    let rig = serve_on(device, &[Export::new("disk", 0)], Bounds::default());
    let mut client = rig.client("disk");
    for at in 0..4 {
        client.send(Command::Read, NONE, at << 20, 512, &[]);
    }
    until(|| rig.server.disks()[0].service().queue().tags_in_use(HwQueue(0)) == 4);
    let mut late = rig.client("disk");
    let crate::rig::Rig { server, .. } = rig;
    let handing = std::thread::spawn(move || server.hand_over());
    // Half a request stays incomplete.
    let _ = (&late.socket).write_all(&[0x25, 0x60]);
    assert!(late.is_closed(), "it has nothing in flight");
    for _ in 0..4 {
        assert!(client.answer().1.is_ok(), "none is refused");
    }
    assert!(client.is_closed());
    handing.join().expect("a thread").expect("no thread failed");
}

#[test]
fn the_end_of_a_stream_is_as_good_as_a_goodbye() {
    let rig = serve(&[Export::new("disk", 0)]);
    let mut client = rig.client("disk");
    client.write(0, &[1; 512]).expect("it fits");
    client.socket.shutdown(std::net::Shutdown::Write).expect("a socket");
    assert!(client.is_closed());
    let mut client = rig.client("disk");
    let first = client.send(Command::Read, NONE, 0, 512, &[]);
    client.send(Command::Disconnect, NONE, 0, 0, &[]);
    assert_eq!(client.answer(), (first, Ok(vec![1; 512])), "what is in flight is answered");
    assert!(client.is_closed());
    rig.check_at_rest();
}

/// Regression test: a client that sent DISC and closed its socket lost the rest of its long requests, because an
/// earlier reply could not be delivered.
#[test]
fn requests_before_a_goodbye_are_carried_out_though_the_client_is_gone() {
    const LONG: u64 = 8 << 20;
    let rig = serve_on("memory,size=64", &[Export::new("disk", 0)], Bounds::default());
    let mut client = rig.client("disk");
    for n in 0..6 {
        client.send(Command::Write, NONE, n * LONG, LONG, &vec![n as u8 + 1; LONG as usize]);
    }
    client.send(Command::WriteZeroes, NONE, LONG, 3 * LONG, &[]);
    client.send(Command::Read, NONE, 0, LONG, &[]);
    client.send(Command::Disconnect, NONE, 0, 0, &[]);
    drop(client);
    rig.check_at_rest();
    let mut client = rig.client("disk");
    for n in 0..6 {
        let expected = if (1..4).contains(&n) { 0 } else { n as u8 + 1 };
        for at in [n * LONG, (n + 1) * LONG - 512] {
            assert_eq!(client.read(at, 512), Ok(vec![expected; 512]), "write {n}");
        }
    }
}

#[test]
fn a_drained_server_refuses_new_requests_and_answers_old_ones() {
    let rig = serve_on("disk", &[Export::new("disk", 0)], Bounds::default());
    let (mut busy, mut idle) = (rig.client("disk"), rig.client("disk"));
    let old: Vec<_> =
        (0..16).map(|n| busy.send(Command::Read, NONE, n * (64 << 20), 4096, &[])).collect();
    // When the first one is answered, all of them have been read.
    let first = busy.answer();
    assert!(old.contains(&first.0) && first.1.is_ok());
    let socket = rig.socket.clone();
    let server = rig.server;
    let drained = std::thread::spawn(move || server.drain());
    until(|| !socket.exists());
    for _ in 1..16 {
        let (cookie, answer) = busy.answer();
        assert!(old.contains(&cookie) && answer.is_ok());
    }
    // Its worker may notice the drain slightly later.
    let late = loop {
        let request = idle_read(&mut idle);
        let answer = idle.socket.write_all(&request).is_ok().then(|| answered(&mut idle)).flatten();
        if !matches!(answer, Some(Ok(_))) {
            break answer;
        }
    };
    assert!(matches!(late, None | Some(Err(ErrorCode::Shutdown))), "{late:?}");
    assert!(drained.join().expect("no panic").is_ok());
    assert!(UnixStream::connect(&socket).is_err());
}

/// Regression test: a worker was told to drain only when the previous one had finished, so that one slow client delayed
/// the drain of all other workers.
#[test]
fn all_workers_drain_at_once() {
    let rig = serve(&[Export::new("disk", 0)]);
    // One client of each worker that takes nothing of 8 MiB, and one without requests in flight.
    let mut slow = [rig.client("disk"), rig.client("disk")];
    slow[0].write(0, &[1; 8 << 20]).expect("it fits");
    for client in &mut slow {
        client.send(Command::Read, NONE, 0, 8 << 20, &[]);
    }
    let mut idle = [rig.client("disk"), rig.client("disk")];
    for client in &mut idle {
        assert_eq!(client.read(8 << 20, 512), Ok(vec![0; 512]));
        client.socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    }
    let server = rig.server;
    let drained = std::thread::spawn(move || server.drain());
    for client in &mut idle {
        assert_eq!(client.socket.read(&mut [0]).expect("no timeout"), 0, "it is closed");
    }
    for client in &mut slow {
        assert_eq!(client.answer().1.map(|data| data.len()), Ok(8 << 20));
    }
    assert!(drained.join().expect("no panic").is_ok());
}

/// Regression test: a client that took no replies delayed a drain for a minute, and a device that does not answer
/// delayed it for ever, so that supervisors killed the server.
#[test]
fn a_drain_ends_beside_a_client_that_takes_nothing_and_a_device_that_is_stuck() {
    let bounds = Bounds { drain: Nanos::from_millis(200), ..Bounds::default() };
    let clock = Clock::start();
    let deaf = serve_on("memory,size=16", &[Export::new("disk", 0)], bounds);
    let mut client = deaf.client("disk");
    client.write(0, &[1; 8 << 20]).expect("it fits");
    client.send(Command::Read, NONE, 0, 8 << 20, &[]);
    deaf.server.drain().expect("no thread failed");
    let hour = "null,size=16,irqmode=2,completion_nsec=3600000000000";
    let stuck = serve_on(hour, &[Export::new("disk", 0)], bounds);
    let mut asks = stuck.client("disk");
    asks.send(Command::Read, NONE, 0, 512, &[]);
    until(|| stuck.server.disks()[0].service().queue().tags_in_use(HwQueue(0)) > 0);
    stuck.server.drain().expect("no thread failed");
    assert!(asks.is_closed());
    assert!(clock.now().since(Instant::ZERO) < Nanos::from_secs(30), "far below a silence");
    drop(client);
}

fn idle_read(client: &mut Client) -> Vec<u8> {
    client.request(Command::Read, NONE, blkmq_nbd::Span { offset: 0, length: 512 }).1
}

/// The answer, unless the connection is closed.
fn answered(client: &mut Client) -> Option<Result<Vec<u8>, ErrorCode>> {
    let mut bytes = [0; 256];
    match client.socket.read(&mut bytes) {
        Ok(len) if len > 0 => {
            client.got.extend_from_slice(&bytes[..len]);
            Some(client.answer().1)
        }
        _ => None,
    }
}

#[test]
fn a_server_comes_back_on_the_socket_of_one_that_was_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("server.sock");
    // A socket without a listener, like that of a killed server.
    drop(UnixListener::bind(&socket).expect("a socket"));
    let start = || {
        let listener = Listener::bind(&Address::Unix(socket.clone()), &Rights::default())?;
        let device = blkmq::open("memory,size=1").expect("a device");
        let disk = Disk::start("disk", device, "none", 1).expect("a disk");
        let exports = [Export::new("", 0)];
        let server = Server::start(vec![disk], &exports, vec![listener], 1, &Settings::default());
        Ok::<_, io::Error>(server.expect("a server"))
    };
    let server = start().expect("the file is replaced");
    let error = start().expect_err("a server that answers is left alone");
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert_eq!(Client::connect(&socket, "").read(0, 512), Ok(vec![0; 512]));
    server.drain().expect("no thread failed");
    assert!(!socket.exists());
}

#[test]
fn a_socket_that_was_handed_over_outlives_the_server_and_its_clients_wait() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("server.sock");
    let handed_over = UnixListener::bind(&socket).expect("a socket");
    let start = || {
        let listener = Listener::try_from(handed_over.try_clone().expect("a descriptor"));
        let listeners = vec![listener.expect("it has a path")];
        let device = blkmq::open("memory,size=1").expect("a device");
        let disk = Disk::start("disk", device, "none", 1).expect("a disk");
        let exports = [Export::new("", 0)];
        let server = Server::start(vec![disk], &exports, listeners, 1, &Settings::default());
        server.expect("a server")
    };
    let first = start();
    assert_eq!(first.listening(), [Address::Unix(socket.clone())]);
    assert_eq!(Client::connect(&socket, "").read(0, 512), Ok(vec![0; 512]));
    first.drain().expect("no thread failed");
    // No server runs now, yet the client is not refused.
    let path = socket.clone();
    let client = std::thread::spawn(move || Client::connect(&path, "").read(512, 512));
    let second = start();
    assert_eq!(client.join().expect("a client"), Ok(vec![0; 512]));
    second.drain().expect("no thread failed");
    assert!(socket.exists(), "it is not the server's");
    let (unnamed, _other) = UnixStream::pair().expect("a pair");
    let unnamed = UnixListener::from(std::os::fd::OwnedFd::from(unnamed));
    assert!(Listener::try_from(unnamed).is_err(), "no address leads to it");
}

#[test]
fn exports_come_and_go_while_others_are_served() {
    let rig = serve(&[Export::new("old", 0), Export::new("kept", 0)]);
    let handle = rig.server.handle();
    let (mut old, mut kept) = (rig.client("old"), rig.client("kept"));
    assert_eq!(old.write(0, &[7; 512]), Ok(Vec::new()));
    assert!(handle.remove_export("old") && !handle.remove_export("old"));
    assert_eq!(rig.server.exports(), ["kept"]);
    assert_eq!(old.read(0, 512), Err(ErrorCode::Shutdown), "it is told");
    assert_eq!(kept.read(0, 512), Ok(vec![7; 512]));
    // Its group exists as long as the connection.
    let again = || handle.add_export(&Export::new("old", 0));
    assert!(again().is_err());
    drop(old);
    until(|| rig.server.connections() == 1);
    again().expect("nothing is left of the first one");
    handle.add_export(&Export::new("new", 0)).expect("possible");
    assert!(handle.add_export(&Export::new("new", 0)).is_err(), "there is one of this name");
    assert!(handle.add_export(&Export::new("other", 9)).is_err(), "there is no such disk");
    for name in ["old", "new"] {
        assert_eq!(rig.client(name).read(0, 512), Ok(vec![7; 512]), "{name}");
    }
    assert_eq!(rig.server.exports(), ["kept", "old", "new"]);
    drop(kept);
    rig.check_at_rest();
}

/// A disk is started for the number of threads that serve it.
#[test]
fn exports_with_threads_of_their_own_count() {
    let none = Ublk { queues: 0, ..Ublk::new(0) };
    let ublk = Export { ublk: Some(none), ..Export::new("ublk", 0) };
    let vhost_user = Some(VhostUser::new("/nowhere".into()));
    let both = Export { vhost_user, ublk: Some(Ublk::new(1)), ..Export::new("both", 0) };
    let exports = [ublk.clone(), both, Export { disk: 1, ..ublk.clone() }, Export::new("plain", 1)];
    let threads = [0, 1, 2].map(|disk| Server::threads_of(disk, &exports, 2));
    assert_eq!(threads, [5, 3, 2]);
    let rig = serve(&[Export::new("disk", 0)]);
    let added = rig.server.handle().add_export(&ublk);
    assert!(matches!(added, Err(ExportError::Ublk(0, _))), "{added:?}");
    assert_eq!(rig.server.exports(), ["disk"], "one that is refused is not there");
}

/// Regression test: names had to be valid group names, so that exports with names like addresses could not be served.
#[test]
fn names_are_any_text_and_their_groups_are_told_apart() {
    let long = "n".repeat(4096);
    let names = ["nbd://host:10809/disk?key={1}", "a b", "\u{e4}\u{1f600}", &long, "opt/x"];
    let exports = Vec::from_iter(names.iter().map(|name| Export::new(name, 0)));
    let rig = serve(&exports);
    for name in names {
        assert_eq!(rig.client(name).read(0, 512), Ok(vec![0; 512]), "{name}");
    }
    let group = |name: &str| Export::new(name, 0).group().expect("it has one");
    assert_eq!(group("opt/x"), "opt_x");
    assert_ne!(group("a b"), group("a_b"));
    assert_ne!(group(&long), group(&long[1..]));
    for name in ["a\nb", "\0", &"n".repeat(4097)] {
        assert!(Export::new(name, 0).group().is_err());
    }
}

#[test]
fn exports_that_cannot_be_are_refused() {
    let device = || blkmq::open("memory,size=1").expect("a device");
    let disk = || Disk::start("disk", device(), "none", 1).expect("a disk");
    let start = |exports: &[Export]| {
        let error = Server::start(vec![disk()], exports, Vec::new(), 1, &Settings::default());
        error.expect_err("an impossible export").to_string()
    };
    let region =
        |offset, size| Export { region: Some(Region { offset, size }), ..Export::new("a", 0) };
    assert_eq!(start(&[Export::new("a", 7)]), "there is no disk 7");
    assert_eq!(start(&[Export::new("a", 0), Export::new("a", 0)]), "two exports are called 'a'");
    assert!(start(&[region(0, Some(2 << 20))]).contains("not in a disk of 1048576 bytes"));
    assert!(start(&[region(1 << 20, None)]).contains("not in a disk"));
    assert!(start(&[region(512, Some(u64::MAX))]).contains("not in a disk"));
    assert!(start(&[region(0, Some(100))]).contains("multiples of 512 bytes"));
    assert!(start(&[Export { weight: 0, ..Export::new("a", 0) }]).contains("weight"));
}
