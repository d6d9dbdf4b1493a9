//! The clients of a server: the list of them, the closing of connections by an operator, and rules by which a client
//! may use some exports and not others: each identity, on each export, with each operation.

use crate::rig::{self, Header, Rig, Talk, serve, serve_on, until};
use crate::tls::{Authority, Identity, folder};
use blkmq::Nanos;
use blkmq_nbd::{Command, CommandFlags};
use blkmq_server::control::{Answer, ClientState, Request};
use blkmq_server::{
    Address, Allow, Bounds, Disk, Export, Format, Listener, Rights, Server, Settings, Tls,
};
use rustls::{ClientConnection, StreamOwned};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;

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
        talk.option(rig::EXPORT_NAME, b"gold");
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
    talk.option(rig::EXPORT_NAME, b"gold");
    talk.take(10);
    let clock = server.disks()[0].service().clock();
    let begun = clock.now();
    server.drain().expect("it ends");
    assert!(clock.now() - begun < Nanos::from_secs(5));
    assert!(talk.is_closed());
}

/// The error code of an option for an export that does not exist.
const NO_EXPORT: u32 = (1 << 31) + 6;

/// The timeout that fails the test, instead of hanging it, if the server admits a client that it should refuse.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

/// A connection of any kind.
trait Wire: Read + Write {}
impl<S: Read + Write> Wire for S {}

type Any = Talk<Box<dyn Wire>>;

/// A server on a local socket and on a port of this machine.
struct Site {
    server: Server,
    socket: PathBuf,
    port: SocketAddr,
    authority: Authority,
    _folders: [TempDir; 2],
}

fn allow(rules: &[&str]) -> Option<Allow> {
    let rules = rules.iter().map(|rule| rule.parse().expect("a rule")).collect();
    Some(Allow::new(rules).expect("some rules"))
}

/// An export with `rules`, or for all clients.
fn export(name: &str, rules: &[&str]) -> Export {
    let allow = if rules.is_empty() { None } else { allow(rules) };
    Export { allow, description: format!("of {name}"), ..Export::new(name, 0) }
}

impl Site {
    fn start(exports: &[Export], has_tls: bool, settings: Settings) -> Self {
        let authority = Authority::new();
        let (folder, files) = (tempfile::tempdir().expect("a folder"), folder(&authority, true));
        let tls = has_tls.then(|| Tls::load(files.path()).expect("the files fit"));
        let socket = folder.path().join("server.sock");
        let device = blkmq::open("memory,size=16").expect("a device");
        let disk = Disk::start("disk", device, "none", 2).expect("a disk");
        let at = [Address::Unix(socket.clone()), "tcp:127.0.0.1:0".parse().expect("an address")];
        let bind = |at| Listener::bind(at, &Rights::default()).expect("it is free");
        let listeners = Vec::from_iter(at.iter().map(bind));
        let Address::Tcp(port) = listeners[1].address().clone() else { panic!("a port") };
        let settings = Settings { tls, ..settings };
        let server = Server::start(vec![disk], exports, listeners, 2, &settings);
        let server = server.expect("a server");
        Self { server, socket, port, authority, _folders: [folder, files] }
    }

    /// Connects as `client`, up to the options.
    fn connect(&self, client: &Client) -> Any {
        let wire: Box<dyn Wire> = match client.over {
            Over::File => {
                let socket = UnixStream::connect(&self.socket).expect("it listens");
                socket.set_read_timeout(PATIENCE).expect("a socket");
                Box::new(socket)
            }
            Over::Tcp => {
                let socket = TcpStream::connect(self.port).expect("it listens");
                socket.set_read_timeout(PATIENCE).expect("a socket");
                Box::new(socket)
            }
        };
        let mut talk = Talk(wire);
        talk.take(18);
        talk.send(&3_u32.to_be_bytes());
        let Some(identity) = &client.certificate else { return talk };
        talk.option(rig::STARTTLS, &[]);
        assert_eq!(talk.reply(), rig::ACK);
        let tls: ClientConnection = self.authority.client(Some(identity));
        Talk(Box::new(StreamOwned::new(tls, talk.0)))
    }

    /// The number of clients refused for this reason.
    fn refused(&self, reason: &str) -> u64 {
        let text = self.server.handle().metrics(Format::Prometheus).expect("it counts");
        let of = format!("blkmq_refused_clients_total{{reason=\"{reason}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&of));
        line.expect("it is there").parse().expect("a number")
    }
}

/// The socket of a client.
#[derive(Clone, Copy)]
enum Over {
    /// The socket in the file system, which reveals the user.
    File,
    /// A TCP port of this machine, which reveals the address.
    Tcp,
}

struct Client {
    over: Over,
    certificate: Option<Identity>,
}

/// Identified by its user.
const LOCAL: Client = Client { over: Over::File, certificate: None };
/// Identified by its address.
const REMOTE: Client = Client { over: Over::Tcp, certificate: None };

/// Identified by its certificate, over the socket in the file system.
fn certified(site: &Site, name: &str) -> Client {
    Client { over: Over::File, certificate: Some(site.authority.sign(name)) }
}

/// Returns whether the server closes the connection, rather than just staying silent.
fn is_closed(talk: &mut Any) -> bool {
    let mut bytes = [0; 4096];
    loop {
        match talk.0.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// The names in the reply to LIST, in order.
fn names_listed(talk: &mut Any) -> Vec<String> {
    talk.option(rig::LIST, &[]);
    let mut names = Vec::new();
    loop {
        let (code, data) = full_reply(talk);
        if code == rig::ACK {
            return names;
        }
        assert_eq!(code, rig::SERVER);
        let length = u32::from_be_bytes(data[..4].try_into().expect("four")) as usize;
        names.push(String::from_utf8(data[4..4 + length].to_vec()).expect("a name"));
    }
}

/// The type and the data of the next reply to an option.
fn full_reply(talk: &mut Any) -> (u32, Vec<u8>) {
    let header = talk.take(20);
    let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("four"));
    (number(12), talk.take(number(16) as usize))
}

/// Encodes the data of INFO and GO.
fn asking(name: &str) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), &[0, 0]].concat()
}

/// The last reply to INFO or GO.
fn ask(talk: &mut Any, option: u32, name: &str) -> (u32, Vec<u8>) {
    talk.option(option, &asking(name));
    loop {
        let (code, data) = full_reply(talk);
        if code != 3 {
            return (code, data);
        }
    }
}

fn writes_and_reads(talk: &mut Any) -> bool {
    talk.request(&Header { command: 1, cookie: 1, offset: 0, length: 512 });
    talk.send(&[7; 512]);
    let wrote = talk.simple() == (0, 1);
    talk.request(&Header { command: 0, cookie: 2, offset: 0, length: 512 });
    wrote && talk.simple() == (0, 2) && talk.take(512) == [7; 512]
}

/// Checks all operations of `client` on the export `name`.
fn check(site: &Site, client: &Client, name: &str, may: bool) {
    let mut talk = site.connect(client);
    assert_eq!(names_listed(&mut talk).contains(&name.to_owned()), may, "LIST {name}");
    // A refusal reveals nothing about the export: it equals the reply for a nonexistent name.
    let unknown = ask(&mut talk, rig::INFO, "no such export");
    assert_eq!(unknown.0, NO_EXPORT);
    for option in [rig::LIST_META_CONTEXT, rig::SET_META_CONTEXT] {
        talk.option(rig::STRUCTURED_REPLY, &[]);
        assert_eq!(talk.reply(), rig::ACK);
        let data = [&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), &[0; 4]].concat();
        talk.option(option, &data);
        let mut code = full_reply(&mut talk).0;
        while code == 4 {
            code = full_reply(&mut talk).0;
        }
        assert_eq!(code, if may { rig::ACK } else { NO_EXPORT }, "option {option} {name}");
    }
    for option in [rig::INFO, rig::GO] {
        // Simple replies, which the requests below expect.
        let mut talk = site.connect(client);
        let reply = ask(&mut talk, option, name);
        assert_eq!(reply.0 == rig::ACK, may, "option {option} {name}");
        assert!(may || reply == unknown, "option {option} {name}: {reply:?}");
        if may && option == rig::GO {
            assert!(writes_and_reads(&mut talk), "GO {name}");
        }
    }
    let mut talk = site.connect(client);
    talk.option(rig::EXPORT_NAME, name.as_bytes());
    if may {
        talk.take(10);
        assert!(writes_and_reads(&mut talk), "EXPORT_NAME {name}");
    } else {
        assert!(is_closed(&mut talk), "EXPORT_NAME {name}");
    }
}

/// The user and the group of this process.
fn own() -> (u32, u32) {
    let process = std::fs::metadata("/proc/self").expect("Linux has it");
    (process.uid(), process.gid())
}

/// Five identities and five exports, with LIST, INFO, GO, EXPORT_NAME and both context options on each; an admitted
/// client writes and reads. An identity is a certificate and a user, or a certificate and an address.
#[test]
fn each_identity_has_its_exports_and_no_others() {
    let (user, group) = own();
    let mine = format!("uid:{user}");
    let exports = [
        export("gold", &["cn:gold.example"]),
        export("silver", &["uid:4294967294", "san:silver.example"]),
        export("mine", &["net:10.0.0.0/8", &mine]),
        export("near", &["net:127.0.0.0/8"]),
        export("closed", &["cn:gold", "san:example", &format!("gid:{}", group + 1), "net:::/0"]),
    ];
    let site = Site::start(&exports, true, Settings::default());
    let of = |over, name| Client { over, ..certified(&site, name) };
    let mut refused = 0;
    for (client, may) in [
        (of(Over::File, "gold.example"), [true, false, true, false, false]),
        (of(Over::File, "silver.example"), [false, true, true, false, false]),
        (of(Over::File, "other.example"), [false, false, true, false, false]),
        (of(Over::Tcp, "gold.example"), [true, false, false, true, false]),
        (of(Over::Tcp, "other.example"), [false, false, false, true, false]),
    ] {
        for (export, may) in exports.iter().zip(may) {
            check(&site, &client, &export.name, may);
            // LIST does not refuse; it omits the export.
            refused += if may { 0 } else { 5 };
        }
    }
    assert_eq!(site.refused("export-allow"), refused);
    assert_eq!(site.refused("unknown-export"), 5 * 5);
}

#[test]
fn users_and_addresses_open_exports() {
    let (user, group) = own();
    let of = |kind: &str, number: u32| format!("{kind}:{number}");
    let exports = [
        export("mine", &[&of("uid", user)]),
        export("theirs", &[&of("uid", user + 1)]),
        export("ours", &[&of("uid", user + 1), &of("gid", group)]),
        export("of others", &[&of("gid", group + 1)]),
        export("near", &["net:127.0.0.0/8"]),
        export("far", &["net:10.0.0.0/8", "net:::/0"]),
        export("open", &[]),
    ];
    let site = Site::start(&exports, false, Settings::default());
    for (client, may) in [
        (LOCAL, [true, false, true, false, false, false, true]),
        (REMOTE, [false, false, false, false, true, false, true]),
    ] {
        for (export, may) in exports.iter().zip(may) {
            check(&site, &client, &export.name, may);
        }
    }
}

/// For a client that may use only one export, the empty name stands for that one, as if the others did not exist.
#[test]
fn the_empty_name_is_the_only_export_of_the_client() {
    let own = format!("uid:{}", own().0);
    let site = Site::start(
        &[export("a", &["net:127.0.0.1"]), export("b", &[&own]), export("c", &["uid:4294967294"])],
        false,
        Settings::default(),
    );
    let mut local = site.connect(&LOCAL);
    assert_eq!(names_listed(&mut local), ["b"]);
    assert_eq!(ask(&mut local, rig::GO, "").0, rig::ACK);
    assert!(writes_and_reads(&mut local));
    assert!(site.server.handle().allow_export("b", allow(&["uid:4294967294"])));
    let mut none = site.connect(&LOCAL);
    assert_eq!(names_listed(&mut none), [""; 0]);
    assert_eq!(ask(&mut none, rig::GO, "").0, NO_EXPORT);
}

#[test]
fn a_server_with_rules_closes_other_clients_before_they_learn_anything() {
    let settings = || Settings { allow: allow(&["cn:gold.example"]), ..Settings::default() };
    let site = Site::start(&[export("disk", &[])], true, settings());
    let gold = certified(&site, "gold.example");
    check(&site, &gold, "disk", true);
    let other = certified(&site, "other.example");
    let mut other = site.connect(&other);
    // The server may close the connection before the whole option is sent.
    let _ = other.0.write_all(&rig::OPTION.to_be_bytes());
    assert!(is_closed(&mut other));
    assert_eq!(site.refused("server-allow"), 1);
    // An address that matches no rule does not even get a greeting.
    site.server.handle().allow(allow(&["net:10.0.0.0/8"]));
    assert!(Talk(TcpStream::connect(site.port).expect("it listens")).is_closed());
    assert!(Talk(UnixStream::connect(&site.socket).expect("it listens")).is_closed());
    assert_eq!(site.refused("server-allow"), 3);
    site.server.handle().allow(None);
    check(&site, &gold, "disk", true);
}

/// Attempted attack: a tenant wrote to its neighbour's export, saw its name, and used up all of its connections.
#[test]
fn a_tenant_has_neither_the_data_nor_the_places_of_its_neighbour() {
    let exports = [export("gold", &["cn:gold.example"]), export("silver", &["cn:silver.example"])];
    let bounds = Bounds { connections: 16, connections_per_identity: 4, ..Bounds::default() };
    let site = Site::start(&exports, true, Settings { bounds, ..Settings::default() });
    let gold = certified(&site, "gold.example");
    let silver = certified(&site, "silver.example");
    for _ in 0..20 {
        let mut attack = site.connect(&gold);
        attack.option(rig::EXPORT_NAME, b"silver");
        assert!(is_closed(&mut attack));
    }
    let begin = |client: &Client, name: &str| {
        let mut talk = site.connect(client);
        talk.option(rig::EXPORT_NAME, name.as_bytes());
        talk.take(10);
        talk
    };
    let mut held = Vec::from_iter((0..4).map(|_| begin(&gold, "gold")));
    assert!(is_closed(&mut begin(&gold, "gold")), "one too many of its identity");
    assert!(held.iter_mut().all(writes_and_reads));
    assert!(writes_and_reads(&mut begin(&silver, "silver")), "the neighbour has its places");
    assert_eq!((site.refused("export-allow"), site.refused("too-many")), (20, 1));
    let text = site.server.handle().metrics(Format::Prometheus).expect("it counts");
    assert!(text.contains("blkmq_identity_connections{identity=\"cn:gold.example\"} 4"), "{text}");
    drop(held);
    until(|| site.server.connections() == 0);
    assert!(writes_and_reads(&mut begin(&gold, "gold")), "its places are free");
}

/// Without rules nothing is counted by identity: the limit would apply to all users of a single-user machine.
#[test]
fn without_rules_an_identity_has_all_places() {
    let bounds = Bounds { connections_per_identity: 1, ..Bounds::default() };
    let exports = [Export::new("disk", 0)];
    let rig = Rig::start("memory,size=16", &exports, &Settings { bounds, ..Settings::default() });
    let both = [rig.client("disk"), rig.client("disk")];
    for mut client in both {
        assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
    }
}

/// A reload withdraws access: the connection that used it ends, and others stay.
#[test]
fn a_client_that_loses_its_right_is_closed() {
    let own = format!("uid:{}", own().0);
    let exports = [export("a", &[&own]), export("b", &[&own])];
    let site = Site::start(&exports, false, Settings::default());
    let mut clients = ["a", "b"].map(|name| {
        let mut talk = site.connect(&LOCAL);
        talk.option(rig::EXPORT_NAME, name.as_bytes());
        talk.take(10);
        talk
    });
    assert!(clients.iter_mut().all(writes_and_reads));
    let handle = site.server.handle();
    assert!(handle.allow_export("a", allow(&["uid:4294967294"])));
    assert!(!handle.allow_export("c", None));
    assert!(is_closed(&mut clients[0]));
    assert!(writes_and_reads(&mut clients[1]));
    assert!(handle.allow_export("a", allow(&[&own])));
    check(&site, &LOCAL, "a", true);
}
