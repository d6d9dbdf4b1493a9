//! Clients that may use some exports and not others: each identity, on each export, with each operation.

use crate::rig::Rig;
use crate::talk::{self, Header, Talk};
use crate::tls::{Authority, Identity, folder};
use crate::until::until;
use blkmq_server::{
    Address, Allow, Bounds, Disk, Export, Format, Listener, Rights, Server, Settings, Tls,
};
use rustls::{ClientConnection, StreamOwned};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

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
        talk.option(talk::STARTTLS, &[]);
        assert_eq!(talk.reply(), talk::ACK);
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
fn listed(talk: &mut Any) -> Vec<String> {
    talk.option(talk::LIST, &[]);
    let mut names = Vec::new();
    loop {
        let (code, data) = full_reply(talk);
        if code == talk::ACK {
            return names;
        }
        assert_eq!(code, talk::SERVER);
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
    assert_eq!(listed(&mut talk).contains(&name.to_owned()), may, "LIST {name}");
    // A refusal reveals nothing about the export: it equals the reply for a nonexistent name.
    let unknown = ask(&mut talk, talk::INFO, "no such export");
    assert_eq!(unknown.0, NO_EXPORT);
    for option in [talk::LIST_META_CONTEXT, talk::SET_META_CONTEXT] {
        talk.option(talk::STRUCTURED_REPLY, &[]);
        assert_eq!(talk.reply(), talk::ACK);
        let data = [&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), &[0; 4]].concat();
        talk.option(option, &data);
        let mut code = full_reply(&mut talk).0;
        while code == 4 {
            code = full_reply(&mut talk).0;
        }
        assert_eq!(code, if may { talk::ACK } else { NO_EXPORT }, "option {option} {name}");
    }
    for option in [talk::INFO, talk::GO] {
        // Simple replies, which the requests below expect.
        let mut talk = site.connect(client);
        let reply = ask(&mut talk, option, name);
        assert_eq!(reply.0 == talk::ACK, may, "option {option} {name}");
        assert!(may || reply == unknown, "option {option} {name}: {reply:?}");
        if may && option == talk::GO {
            assert!(writes_and_reads(&mut talk), "GO {name}");
        }
    }
    let mut talk = site.connect(client);
    talk.option(talk::EXPORT_NAME, name.as_bytes());
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
    assert_eq!(listed(&mut local), ["b"]);
    assert_eq!(ask(&mut local, talk::GO, "").0, talk::ACK);
    assert!(writes_and_reads(&mut local));
    assert!(site.server.handle().allow_export("b", allow(&["uid:4294967294"])));
    let mut none = site.connect(&LOCAL);
    assert_eq!(listed(&mut none), [""; 0]);
    assert_eq!(ask(&mut none, talk::GO, "").0, NO_EXPORT);
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
    let _ = other.0.write_all(&talk::OPTION.to_be_bytes());
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
        attack.option(talk::EXPORT_NAME, b"silver");
        assert!(is_closed(&mut attack));
    }
    let begin = |client: &Client, name: &str| {
        let mut talk = site.connect(client);
        talk.option(talk::EXPORT_NAME, name.as_bytes());
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
        talk.option(talk::EXPORT_NAME, name.as_bytes());
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
