//! A client that waits for each reply, built on the client side of the codec.

use blkmq_nbd::client::{
    Agreed, Content, Extents, Goal, Handshake, Next, Parsed, Pending, Plan, Replies, Requests,
};
use blkmq_nbd::{Command, CommandFlags, Cookie, ErrorCode, HeaderStyle, Request, Span};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

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
