//! A server on a socket in a separate folder, and its clients: [`Client`] waits for each reply, built on the client
//! side of the codec, and [`Talk`] can send arbitrary bytes.

use blkmq::{Clock, Nanos};
use blkmq_nbd::client::{
    Agreed, Content, Extents, Goal, Handshake, Next, Parsed, Pending, Plan, Replies, Requests,
};
use blkmq_nbd::{Command, CommandFlags, Cookie, ErrorCode, HeaderStyle, Request, Span};
use blkmq_server::control::{GoesOn, Program, Saved};
use blkmq_server::{Address, Bounds, Disk, Export, Listener, Rights, Server, Settings};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub struct Rig {
    pub server: Server,
    pub socket: PathBuf,
    _folder: TempDir,
}

/// Serves 16 MiB of memory under mq-deadline, with two workers.
pub fn serve(exports: &[Export]) -> Rig {
    serve_on("memory,size=16", exports, Bounds::default())
}

pub fn serve_on(device: &str, exports: &[Export], bounds: Bounds) -> Rig {
    Rig::start(device, exports, &Settings { bounds, ..Settings::default() })
}

/// A program that gets no requests.
pub struct NoProgram;

impl Program for NoProgram {
    fn drain(&self) {
        unreachable!("nothing asks for the end")
    }

    fn reload(&self, _: GoesOn<'_>) -> Result<Vec<String>, String> {
        unreachable!("nothing asks for a reload")
    }

    fn add(&self, _: &str, _: GoesOn<'_>) -> Result<String, String> {
        unreachable!("nothing asks for that")
    }

    fn remove(&self, _: &str) -> Result<String, String> {
        unreachable!("nothing asks for that")
    }

    fn diff(&self) -> Result<Vec<String>, String> {
        Err("there is no file".to_owned())
    }

    fn save(&self) -> Result<Option<Saved>, String> {
        Err("there is no file".to_owned())
    }
}

impl Rig {
    /// Starts a server with these settings on a separate socket.
    pub fn start(device: &str, exports: &[Export], settings: &Settings) -> Self {
        Self::start_on(&[device], exports, settings)
    }

    /// Starts a server of several devices.
    pub fn start_on(devices: &[&str], exports: &[Export], settings: &Settings) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("server.sock");
        let disks = devices.iter().map(|device| {
            let device = blkmq::open(device).expect("a device");
            Disk::start("disk", device, "mq-deadline", 2).expect("a disk")
        });
        let disks = disks.collect();
        let listener = Listener::bind(&Address::Unix(socket.clone()), &Rights::default());
        let listeners = vec![listener.expect("the path is free")];
        let server = Server::start(disks, exports, listeners, 2, settings);
        let server = server.expect("a server");
        Self { server, socket, _folder: folder }
    }

    /// A client of the export `name`.
    pub fn client(&self, name: &str) -> Client {
        Client::connect(&self.socket, name)
    }

    /// Waits until no connection is left, and checks that no traces of them remain.
    pub fn check_at_rest(&self) {
        until(|| self.server.connections() == 0);
        for disk in self.server.disks() {
            let queue = disk.service().queue();
            assert_eq!(queue.tags_in_use(blkmq::core::HwQueue(0)), 0);
        }
    }
}

/// Waits until `is_so` returns true.
///
/// # Panics
/// After a minute: a defect must fail the test instead of hanging it.
#[track_caller]
pub fn until(is_so: impl Fn() -> bool) {
    let clock = Clock::start();
    let last = clock.now() + Nanos::from_secs(60);
    while !is_so() {
        assert!(clock.now() < last, "this has not come about");
        std::thread::yield_now();
    }
}

pub struct Client {
    pub socket: UnixStream,
    pub agreed: Agreed,
    pub in_flight: BTreeMap<Cookie, Pending>,
    pub got: Vec<u8>,
    next: u64,
    /// The extents of the last answer that had any.
    extents: Vec<(u64, u64)>,
    /// The number of bytes read as holes.
    pub holes: u64,
}

/// The result of a request: the bytes of a read, or nothing.
pub type Answer = Result<Vec<u8>, ErrorCode>;

impl Client {
    pub fn connect(socket: &Path, export: &str) -> Self {
        Self::connect_with(socket, Plan::new(Goal::Go(export.to_owned())))
    }

    pub fn connect_in(socket: &Path, export: &str, most: HeaderStyle) -> Self {
        Self::connect_with(socket, Plan { most, ..Plan::new(Goal::Go(export.to_owned())) })
    }

    /// Connects with `base:allocation` negotiated.
    pub fn connect_for_status(socket: &Path, export: &str, most: HeaderStyle) -> Self {
        let contexts = vec![blkmq_nbd::BASE_ALLOCATION.to_owned()];
        Self::connect_with(
            socket,
            Plan { most, contexts, ..Plan::new(Goal::Go(export.to_owned())) },
        )
    }

    /// The extents of a range: their lengths and flags.
    pub fn status(
        &mut self,
        at: u64,
        len: u64,
        flags: CommandFlags,
    ) -> Result<Vec<(u64, u64)>, ErrorCode> {
        let cookie = self.send(Command::BlockStatus, flags, at, len, &[]);
        let (answered, answer) = self.answer();
        assert_eq!(answered, cookie);
        answer.map(|_| std::mem::take(&mut self.extents))
    }

    fn connect_with(socket: &Path, plan: Plan) -> Self {
        let mut socket = UnixStream::connect(socket).expect("the server listens");
        let mut handshake = Handshake::new(plan);
        let mut got = Vec::new();
        loop {
            let mut out = Vec::new();
            let progress = handshake.feed(&got, &mut out);
            got.drain(..progress.consumed);
            socket.write_all(&out).expect("the server reads");
            match progress.next {
                Next::NeedMore => read_more(&mut socket, &mut got),
                Next::Go(agreed) => {
                    let (in_flight, extents) = (BTreeMap::new(), Vec::new());
                    return Self { socket, agreed, in_flight, got, next: 1, extents, holes: 0 };
                }
                other => panic!("no export: {other:?}"),
            }
        }
    }

    /// The bytes of a request, which counts as in flight from now on.
    pub fn request(
        &mut self,
        command: Command,
        flags: CommandFlags,
        span: Span,
    ) -> (Cookie, Vec<u8>) {
        let cookie = Cookie(self.next);
        self.next += 1;
        let request = Request { command: Ok(command), flags, cookie, span };
        if let Some(pending) = Pending::of(&request) {
            self.in_flight.insert(cookie, pending);
        }
        let header = Requests::new(self.agreed.style).header(&request).expect("it has a form");
        (cookie, header.to_vec())
    }

    pub fn send(
        &mut self,
        command: Command,
        flags: CommandFlags,
        at: u64,
        len: u64,
        data: &[u8],
    ) -> Cookie {
        let (cookie, mut bytes) = self.request(command, flags, Span { offset: at, length: len });
        bytes.extend_from_slice(data);
        self.socket.write_all(&bytes).expect("the server reads");
        cookie
    }

    /// The next reply.
    pub fn answer(&mut self) -> (Cookie, Answer) {
        let (mut data, mut error) = (BTreeMap::new(), None);
        loop {
            let replies = Replies::new(self.agreed.style, &blkmq_nbd::Limits::default());
            match replies.next(&self.got, &mut self.in_flight) {
                Parsed::NeedMore => read_more(&mut self.socket, &mut self.got),
                Parsed::Broken(why) => panic!("the server broke the protocol: {why:?}"),
                Parsed::Reply(reply) => {
                    let (cookie, is_last) = (reply.cookie, reply.is_last);
                    let (header, payload) = (reply.header_len, reply.payload_len as usize);
                    match reply.content {
                        Content::Error { error: why, .. } => error = Some(why),
                        Content::Data(span) => {
                            while self.got.len() < header + payload {
                                read_more(&mut self.socket, &mut self.got);
                            }
                            let bytes = self.got[header..header + payload].to_vec();
                            data.insert(span.offset, bytes);
                        }
                        Content::Hole(span) => {
                            self.holes += span.length;
                            data.insert(span.offset, vec![0; span.length as usize]);
                        }
                        Content::Extents { .. } => {
                            while self.got.len() < header + payload {
                                read_more(&mut self.socket, &mut self.got);
                            }
                            let bytes = &self.got[header..header + payload];
                            let pending = &self.in_flight[&cookie];
                            let extents = Extents::read(bytes, self.agreed.style, pending);
                            let extents = extents.expect("the server keeps to the protocol");
                            self.extents = extents.map(|it| (it.length, it.flags)).collect();
                        }
                        Content::None => {}
                    }
                    self.got.drain(..header + payload);
                    if is_last {
                        self.in_flight.remove(&cookie);
                        let all = data.into_values().flatten().collect();
                        return (cookie, error.map_or(Ok(all), Err));
                    }
                }
            }
        }
    }

    pub fn call(
        &mut self,
        command: Command,
        flags: CommandFlags,
        at: u64,
        len: u64,
        data: &[u8],
    ) -> Answer {
        let cookie = self.send(command, flags, at, len, data);
        let (answered, answer) = self.answer();
        assert_eq!(answered, cookie);
        answer
    }

    pub fn write(&mut self, at: u64, data: &[u8]) -> Answer {
        self.call(Command::Write, CommandFlags::NONE, at, data.len() as u64, data)
    }

    pub fn read(&mut self, at: u64, len: u64) -> Answer {
        self.call(Command::Read, CommandFlags::NONE, at, len, &[])
    }

    /// Waits until the server closes the connection. Returns whether it does so with nothing more to read.
    pub fn is_closed(&mut self) -> bool {
        let mut bytes = [0; 64];
        !matches!(self.socket.read(&mut bytes), Ok(len) if len > 0)
    }
}

fn read_more(socket: &mut UnixStream, got: &mut Vec<u8>) {
    let mut bytes = [0; 64 << 10];
    let len = socket.read(&mut bytes).expect("the server answers");
    assert!(len > 0, "the server has closed the connection");
    got.extend_from_slice(&bytes[..len]);
}

/// The magic of an option.
pub const OPTION: u64 = 0x4948_4156_454F_5054;
/// The magic of a compact request.
const REQUEST: u32 = 0x2560_9513;

pub const EXPORT_NAME: u32 = 1;
pub const ABORT: u32 = 2;
pub const LIST: u32 = 3;
pub const STARTTLS: u32 = 5;
pub const INFO: u32 = 6;
pub const GO: u32 = 7;
pub const STRUCTURED_REPLY: u32 = 8;
pub const LIST_META_CONTEXT: u32 = 9;
pub const SET_META_CONTEXT: u32 = 10;
/// An option that does not exist.
pub const UNKNOWN: u32 = 99;

/// Types of replies to options; errors are 2^31 plus a number.
pub const ACK: u32 = 1;
pub const SERVER: u32 = 2;
pub const UNSUPPORTED: u32 = (1 << 31) + 1;
pub const POLICY: u32 = (1 << 31) + 2;
pub const TOO_BIG: u32 = (1 << 31) + 9;

pub struct Talk<S = UnixStream>(pub S);

/// The header of a request.
pub struct Header {
    pub command: u16,
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
}

impl Talk {
    /// Connects, up to the flags of both sides.
    pub fn begin(socket: &Path) -> Self {
        let mut talk = Self(UnixStream::connect(socket).expect("the server listens"));
        talk.take(18);
        talk.send(&3_u32.to_be_bytes());
        talk
    }

    /// Connects to `export` with simple replies.
    pub fn transmission(socket: &Path, export: &str) -> Self {
        let mut talk = Self::begin(socket);
        talk.option(EXPORT_NAME, export.as_bytes());
        talk.take(10);
        talk
    }
}

impl<S: Read + Write> Talk<S> {
    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("the server reads");
    }

    pub fn option(&mut self, option: u32, data: &[u8]) {
        self.option_header(option, data.len() as u32);
        self.send(data);
    }

    /// Sends an option whose data does not follow.
    pub fn option_header(&mut self, option: u32, length: u32) {
        self.send(&OPTION.to_be_bytes());
        self.send(&option.to_be_bytes());
        self.send(&length.to_be_bytes());
    }

    /// The type of the next reply to an option.
    pub fn reply(&mut self) -> u32 {
        let header = self.take(20);
        self.take(number(&header[16..20]) as usize);
        number(&header[12..16]) as u32
    }

    pub fn request(&mut self, header: &Header) {
        self.send(&header.bytes());
    }

    /// The error and the cookie of the next simple reply.
    pub fn simple(&mut self) -> (u32, u64) {
        let header = self.take(16);
        (number(&header[4..8]) as u32, number(&header[8..]))
    }

    /// The next bytes.
    ///
    /// # Panics
    /// If the server closes the connection.
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).expect("the server answers");
        bytes
    }

    /// Waits for the end of the connection. Returns whether the server closed it.
    pub fn is_closed(&mut self) -> bool {
        let mut bytes = [0; 4096];
        loop {
            match self.0.read(&mut bytes) {
                Ok(0) | Err(_) => return true,
                Ok(_) => {}
            }
        }
    }
}

impl Header {
    pub fn bytes(&self) -> Vec<u8> {
        let Self { command, cookie, offset, length } = self;
        let mut bytes = REQUEST.to_be_bytes().to_vec();
        bytes.extend(0_u16.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
