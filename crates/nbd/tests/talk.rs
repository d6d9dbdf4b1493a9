//! A client and a server in one thread, with the bytes between them, and the exports of the servers under test; and
//! bytes of the handshake made and read by hand, so that a fault of one half cannot be hidden by the same fault in the
//! other.

use blkmq_nbd::client::{Goal, Plan};
use blkmq_nbd::server::Config;
use blkmq_nbd::{BlockSizes, ExportInfo, Exports, TransmissionFlags, client, server};

/// Both ends of a handshake.
#[derive(Debug)]
pub struct Talk {
    pub client: client::Next,
    pub server: server::Next,
    /// All bytes sent by the client, and all bytes sent by the server.
    pub sent: [Vec<u8>; 2],
}

/// Runs a handshake to its end. TLS is only agreed on, not carried out.
pub fn talk(plan: Plan, config: Config) -> Talk {
    let mut client = client::Handshake::new(plan);
    let mut server = server::Handshake::new(config);
    let (mut to_client, mut to_server) = (Vec::new(), Vec::new());
    let mut sent = [Vec::new(), Vec::new()];
    server.greeting(&mut to_client);
    let mut ends = (None, None);
    // A handshake has at most a few dozen turns.
    for _ in 0..1000 {
        if ends.0.is_none() {
            sent[1].extend_from_slice(&to_client);
            let progress = client.feed(&to_client, &mut to_server);
            to_client.drain(..progress.consumed);
            match progress.next {
                client::Next::NeedMore => {}
                client::Next::StartTls => client.secured(&mut to_server),
                end => ends.0 = Some(end),
            }
        }
        if ends.1.is_none() {
            sent[0].extend_from_slice(&to_server);
            let progress = server.feed(&to_server, &Directory, &mut to_client);
            to_server.drain(..progress.consumed);
            match progress.next {
                server::Next::NeedMore | server::Next::StartTls => {}
                end => ends.1 = Some(end),
            }
        }
        if let (Some(client), Some(server)) = ends {
            return Talk { client, server, sent };
        }
        // A client that gives up closes; the server sees the end of the stream.
        if let Some(end @ client::Next::Close(_)) = ends.0 {
            return Talk { client: end, server: server::Next::NeedMore, sent };
        }
        if let Some(server @ server::Next::Close(_)) = ends.1 {
            return Talk { client: client::Next::NeedMore, server, sent };
        }
    }
    panic!("the handshake has no end");
}

/// The agreement of both sides.
pub fn agreed(plan: Plan, config: Config) -> (client::Agreed, server::Negotiated) {
    match talk(plan, config) {
        Talk { client: client::Next::Go(agreed), server: server::Next::Go(negotiated), .. } => {
            (agreed, negotiated)
        }
        other => panic!("no agreement: {other:?}"),
    }
}

pub fn go(name: &str) -> Plan {
    Plan::new(Goal::Go(name.to_owned()))
}

pub const ACK: u32 = 1;
pub const SERVER: u32 = 2;
pub const INFO: u32 = 3;
pub const META_CONTEXT: u32 = 4;
pub const UNSUP: u32 = 0x8000_0001;
pub const POLICY: u32 = 0x8000_0002;
pub const INVALID: u32 = 0x8000_0003;
pub const TLS_REQD: u32 = 0x8000_0005;
pub const UNKNOWN: u32 = 0x8000_0006;
pub const TOO_BIG: u32 = 0x8000_0009;
pub const EXT_HEADER_REQD: u32 = 0x8000_000a;

/// A reply to an option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    pub option: u32,
    pub code: u32,
    pub data: Vec<u8>,
}

/// An option with any number, and data that may be nonsense.
pub fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let header =
        [b"IHAVEOPT".as_slice(), &number.to_be_bytes(), &(data.len() as u32).to_be_bytes()];
    [header.concat().as_slice(), data].concat()
}

/// A string preceded by its length.
pub fn counted(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

/// The data of INFO and GO.
pub fn info(name: &str, infos: &[u16]) -> Vec<u8> {
    let mut data = counted(name);
    data.extend((infos.len() as u16).to_be_bytes());
    data.extend(infos.iter().flat_map(|info| info.to_be_bytes()));
    data
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT.
pub fn queries(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = counted(name);
    data.extend((queries.len() as u32).to_be_bytes());
    data.extend(queries.iter().flat_map(|query| counted(query)));
    data
}

/// A reply to an option.
pub fn reply(option: u32, code: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
    for word in [option, code, data.len() as u32] {
        bytes.extend(word.to_be_bytes());
    }
    bytes.extend(data);
    bytes
}

pub fn answers(mut bytes: &[u8]) -> Vec<Answer> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let word =
            |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        assert_eq!(bytes[..8], 0x0003_e889_0455_65a9_u64.to_be_bytes());
        let end = 20 + word(16) as usize;
        all.push(Answer { option: word(8), code: word(12), data: bytes[20..end].to_vec() });
        bytes = &bytes[end..];
    }
    all
}

pub fn codes(bytes: &[u8]) -> Vec<u32> {
    answers(bytes).iter().map(|answer| answer.code).collect()
}

/// A server that has received the flags that all clients send.
pub struct Server(pub server::Handshake);

impl Server {
    pub fn new(config: Config) -> Self {
        let mut handshake = server::Handshake::new(config);
        let progress = handshake.feed(&[0, 0, 0, 3], &Directory, &mut Vec::new());
        assert!(matches!(progress.next, server::Next::NeedMore) && progress.consumed == 4);
        Self(handshake)
    }

    /// Feeds bytes, which the server must consume. Returns its answers and the next step.
    pub fn feed(&mut self, bytes: &[u8]) -> (Vec<u8>, server::Next) {
        let mut out = Vec::new();
        let progress = self.0.feed(bytes, &Directory, &mut out);
        assert_eq!(progress.consumed, bytes.len());
        (out, progress.next)
    }

    /// Sends an option that does not end the handshake. Returns the codes of the replies.
    pub fn ask(&mut self, number: u32, data: &[u8]) -> Vec<u32> {
        codes(&self.ask_whole(number, data))
    }

    pub fn ask_whole(&mut self, number: u32, data: &[u8]) -> Vec<u8> {
        let (out, next) = self.feed(&option(number, data));
        assert!(matches!(next, server::Next::NeedMore), "{next:?}");
        assert!(answers(&out).iter().all(|answer| answer.option == number));
        out
    }

    /// Checks that the connection is usable: it answers LIST.
    pub fn assert_answers(&mut self) {
        assert_eq!(self.ask(3, &[]), [SERVER, SERVER, ACK]);
    }
}

/// Bytes of the export `disk`.
pub const SIZE: u64 = 1 << 30;

/// Two exports: `disk`, which is the default one, and `rom`, which is read-only.
pub struct Directory;

pub fn disk() -> ExportInfo {
    let absent = TransmissionFlags::READ_ONLY | TransmissionFlags::ROTATIONAL;
    ExportInfo {
        name: "disk".to_owned(),
        description: "a disk to write to".to_owned(),
        size: SIZE,
        flags: TransmissionFlags::KNOWN.without(absent),
        blocks: BlockSizes::DEFAULT.with_min(512).expect("a power of two"),
        contexts: vec!["base:allocation".to_owned(), "x-blkmq:tier".to_owned()],
    }
}

pub fn rom() -> ExportInfo {
    ExportInfo {
        name: "rom".to_owned(),
        size: 4096,
        flags: TransmissionFlags::READ_ONLY,
        ..ExportInfo::default()
    }
}

impl Exports for Directory {
    fn find(&self, name: &str) -> Option<ExportInfo> {
        match name {
            "" | "disk" => Some(disk()),
            "rom" => Some(rom()),
            _ => None,
        }
    }

    fn list(&self, each: &mut dyn FnMut(&str, &str)) {
        for export in [disk(), rom()] {
            each(&export.name, &export.description);
        }
    }
}
