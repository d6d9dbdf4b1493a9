//! The list of clients, and the closing of connections by an operator.

use crate::rig::{Rig, serve, serve_on};
use crate::talk::{self, Header, Talk};
use crate::until::until;
use blkmq::Nanos;
use blkmq_nbd::{Command, CommandFlags};
use blkmq_server::control::{Answer, ClientState, Request};
use blkmq_server::{Address, Bounds, Disk, Export, Listener, Rights, Server, Settings};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::thread::JoinHandle;
use std::time::Duration;

fn listed(rig: &Rig) -> Vec<ClientState> {
    let Answer::Clients(all) = rig.server.handle().ask(Request::Clients) else { panic!("no list") };
    all
}

fn end(rig: &Rig, number: Option<u64>, export: Option<&str>, identity: Option<&str>) -> Answer {
    let [export, identity] = [export, identity].map(|text| text.map(str::to_owned));
    rig.server.handle().ask(Request::Disconnect { number, export, identity })
}

#[test]
fn clients_are_listed_with_their_figures_while_they_are_connected() {
    let rig = serve(&[Export::new("gold", 0), Export::new("rest", 0)]);
    let (mut gold, mut rest) = (rig.client("gold"), rig.client("rest"));
    for at in 0..10 {
        gold.write(at << 12, &[1; 4096]).expect("it is there");
        rest.read(at << 12, 512).expect("it is there");
    }
    // Figures are updated once a second.
    let figures = |client: &ClientState| {
        let ClientState { requests, read_bytes, written_bytes, in_flight, .. } = *client;
        (client.export.clone(), requests, read_bytes, written_bytes, in_flight)
    };
    let expected = [("gold".to_owned(), 10, 0, 40_960, 0), ("rest".to_owned(), 10, 5120, 0, 0)];
    let same = || Vec::from_iter(listed(&rig).iter().map(figures)) == expected;
    until(same);
    let all = listed(&rig);
    let user = std::fs::metadata("/proc/self").expect("it is this process").uid();
    let user = format!("uid:{user}");
    let process = format!("process {}", std::process::id());
    assert!(all.iter().all(|it| it.identity == user && it.peer == process), "{all:?}");
    assert!(all[0].number < all[1].number);
    drop(gold);
    until(|| listed(&rig).len() == 1);
    let number = all[1].number;
    assert_eq!(listed(&rig)[0].number, number, "it keeps its number");
    // Numbers are not reused.
    let _other = rig.client("gold");
    assert!(listed(&rig).iter().all(|it| it.number >= number));
    assert!(listed(&rig)[1].number > number);
}

#[test]
fn a_disconnected_client_gets_its_answers_and_another_one_stays() {
    let device = "memory,size=16,irqmode=2,completion_nsec=20000000,hw_queue_depth=1";
    let exports = [Export::new("gold", 0), Export::new("rest", 0)];
    let rig = serve_on(device, &exports, Bounds::default());
    let (mut gold, mut rest) = (rig.client("gold"), rig.client("rest"));
    const WRITES: u8 = 100;
    for at in 0..WRITES {
        let place = u64::from(at) << 14;
        gold.send(Command::Write, CommandFlags::NONE, place, 4096, &[at; 4096]);
    }
    let in_flight = |export: &str| {
        let all = listed(&rig);
        all.iter().find(|it| it.export == export).map(|it| (it.number, it.in_flight))
    };
    // The server has read all of them, and its device has completed few.
    until(|| in_flight("gold").is_some_and(|(_, requests)| requests > 10));
    let (number, _) = in_flight("gold").expect("it is listed");
    assert_eq!(end(&rig, Some(number), None, None), Answer::Disconnecting(vec![number]));
    for _ in 0..WRITES {
        gold.answer().1.expect("it is carried out");
    }
    assert!(gold.is_closed());
    until(|| in_flight("gold").is_none());
    for at in 0..WRITES {
        let found = rest.read(u64::from(at) << 14, 4096).expect("it is there");
        assert!(found.iter().all(|byte| *byte == at), "write {at}");
    }
    // The client may connect again.
    rig.client("gold").read(0, 512).expect("it is there");
}

#[test]
fn clients_are_disconnected_by_export_and_by_identity() {
    let rig = serve(&[Export::new("gold", 0), Export::new("rest", 0)]);
    let mut clients = ["gold", "gold", "rest"].map(|name| rig.client(name));
    let Answer::Disconnecting(numbers) = end(&rig, None, Some("gold"), None) else { panic!() };
    assert_eq!(numbers.len(), 2);
    assert!(clients[0].is_closed() && clients[1].is_closed());
    clients[2].read(0, 512).expect("it stays");
    until(|| listed(&rig).len() == 1);
    let identity = listed(&rig)[0].identity.clone();
    let Answer::Disconnecting(numbers) = end(&rig, None, None, Some(&identity)) else { panic!() };
    assert_eq!(numbers.len(), 1);
    assert!(clients[2].is_closed());
    until(|| listed(&rig).is_empty());
    rig.check_at_rest();
    let none = Answer::Disconnecting(Vec::new());
    assert_eq!(end(&rig, None, Some("gold"), None), none, "it has no clients");
    let why =
        "no client has the identity 'cn:lead'; accepted: an identity that blkmqctl clients lists";
    assert_eq!(end(&rig, None, None, Some("cn:lead")), Answer::Refused(why.to_owned()));
    for (number, export, why) in [
        (Some(77), None, "there is no client 77; accepted: a number of blkmqctl clients"),
        (None, Some("silver"), "there is no export 'silver'; accepted: gold, rest"),
        (None, None, "accepted: a number, an export or an identity"),
        (Some(1), Some("gold"), "accepted: a number, an export or an identity"),
    ] {
        assert_eq!(end(&rig, number, export, None), Answer::Refused(why.to_owned()));
    }
}

#[test]
fn a_client_of_a_stuck_device_is_disconnected_all_the_same() {
    let bounds = Bounds { drain: Nanos::from_millis(500), ..Bounds::default() };
    let device = "null,size=16,irqmode=2,completion_nsec=6000000000";
    let rig = serve_on(device, &[Export::new("gold", 0)], bounds);
    let mut client = rig.client("gold");
    let clock = rig.server.disks()[0].service().clock();
    client.send(Command::Read, CommandFlags::NONE, 0, 512, &[]);
    until(|| listed(&rig).iter().any(|it| it.in_flight == 1));
    let begun = clock.now();
    assert!(matches!(end(&rig, None, Some("gold"), None), Answer::Disconnecting(_)));
    assert!(client.is_closed());
    assert!(clock.now() - begun < Nanos::from_millis(4000), "it did not wait for the device");
}

/// A client over TCP that keeps sending, and takes its replies slowly.
struct Busy {
    reader: JoinHandle<u64>,
}

impl Busy {
    const LENGTH: u32 = 64 << 10;

    fn begin(port: SocketAddr) -> Self {
        let mut talk = Talk(TcpStream::connect(port).expect("it listens"));
        talk.take(18);
        talk.send(&3_u32.to_be_bytes());
        talk.option(talk::EXPORT_NAME, b"gold");
        talk.take(10);
        let mut writer = talk.0.try_clone().expect("a descriptor");
        std::thread::spawn(move || {
            for cookie in 0.. {
                let offset = cookie % 100 * 2 * u64::from(Self::LENGTH);
                let header = Header { command: 0, cookie, offset, length: Self::LENGTH };
                if writer.write_all(&header.bytes()).is_err() {
                    return;
                }
            }
        });
        let mut stream = talk.0;
        let reader = std::thread::spawn(move || {
            let mut reply = vec![0; 16 + Self::LENGTH as usize];
            let mut replies = 0;
            while stream.read_exact(&mut reply).is_ok() {
                replies += 1;
                std::thread::park_timeout(Duration::from_millis(2));
            }
            replies
        });
        Self { reader }
    }

    /// The number of replies received up to the closing of the connection by the server.
    fn replies(self) -> u64 {
        self.reader.join().expect("it reads")
    }
}

/// A server of one export on a port.
fn serve_on_a_port() -> (Server, SocketAddr) {
    let device = blkmq::open("memory,size=16").expect("a device");
    let disk = Disk::start("disk", device, "none", 2).expect("a disk");
    let local = "tcp:127.0.0.1:0".parse().expect("an address");
    let listener = Listener::bind(&local, &Rights::default()).expect("a port");
    let &Address::Tcp(port) = listener.address() else { panic!("it is a port") };
    let exports = [Export::new("gold", 0)];
    let server = Server::start(vec![disk], &exports, vec![listener], 1, &Settings::default());
    (server.expect("a server"), port)
}

/// Regression test: the socket was closed with unread requests, which resets a TCP connection, and replies in transit
/// were lost.
#[test]
fn a_client_over_tcp_that_keeps_sending_loses_no_reply_when_it_is_disconnected() {
    let (server, port) = serve_on_a_port();
    let client = Busy::begin(port);
    let completed = || server.disks()[0].service().queue().stats().completed;
    until(|| completed() > 200);
    let (number, export, identity) = (None, Some("gold".to_owned()), None);
    let answer = server.handle().ask(Request::Disconnect { number, export, identity });
    assert!(matches!(answer, Answer::Disconnecting(_)));
    assert_eq!(client.replies(), completed());
    until(|| server.connections() == 0);
}

#[test]
fn a_client_over_tcp_that_keeps_sending_loses_no_reply_in_a_drain() {
    let (server, port) = serve_on_a_port();
    let client = Busy::begin(port);
    let queue = server.disks()[0].service().queue().clone();
    until(|| queue.stats().completed > 200);
    server.hand_over().expect("it ends");
    assert_eq!(client.replies(), queue.stats().completed);
}

#[test]
fn a_client_over_tcp_that_hears_nothing_delays_a_drain_by_seconds_only() {
    let (server, port) = serve_on_a_port();
    let _idle = TcpStream::connect(port).expect("it listens");
    let mut talk = Talk(TcpStream::connect(port).expect("it listens"));
    talk.take(18);
    talk.send(&3_u32.to_be_bytes());
    talk.option(talk::EXPORT_NAME, b"gold");
    talk.take(10);
    let clock = server.disks()[0].service().clock();
    let begun = clock.now();
    server.drain().expect("it ends");
    assert!(clock.now() - begun < Nanos::from_secs(5));
    assert!(talk.is_closed());
}
