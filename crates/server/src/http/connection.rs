//! A connection: a request, its answer, and the end.
//!
//! ```text
//! Hearing -> Waiting (a change) -> Telling -> Leaving
//! ```
//!
//! Httparse parses the fields of a request. In addition, repeated fields where one counts, bodies without a length, and
//! anything that two programs in series could parse differently are refused. Every answer forbids what no answer needs:
//! caching, framing by other sites, a guess at the content type, and loading anything from elsewhere. The limits are
//! not configurable: no request that is answered here needs more.

use crate::stream::Stream;
use blkmq::{Instant, Nanos};
use rustix::event::PollFlags;
use rustix::net::{Shutdown, shutdown};
use serde::Serialize;
use std::borrow::Cow;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

/// The maximum number of bytes read at a time.
const CHUNK: usize = 4 << 10;
/// Concurrent connections. A further one replaces the oldest that has not sent its request.
pub(super) const CONNECTIONS: usize = 32;
/// Bytes of a request's head.
const HEAD: usize = 8 << 10;
/// Header fields.
const FIELDS: usize = 48;
/// Bytes of a body.
const BODY: usize = 4 << 10;
/// The maximum time for a request to arrive, from the first byte of the connection.
const REQUEST: Nanos = Nanos::from_millis(5_000);
/// The maximum time for a client to take its answer.
const ANSWER: Nanos = Nanos::from_millis(10_000);
/// How long bytes after a request are discarded, so that its answer is not lost.
const FAREWELL: Nanos = Nanos::from_millis(500);
pub(super) const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    /// The number of the connection, which is never reused.
    pub(super) number: u64,
    state: State,
    /// The time at which it is closed at the latest; `None` while a change is in progress.
    pub(super) deadline: Option<Instant>,
    is_open: Arc<()>,
}

#[derive(Debug)]
enum State {
    /// Bytes of its request so far.
    Hearing(Vec<u8>),
    /// A change for it is in progress.
    Waiting,
    /// Its answer, and the number of bytes sent.
    Telling(Vec<u8>, usize),
    /// The answer has been sent. Further bytes are discarded: closing the socket with unread bytes would reset the
    /// connection, and the client could lose the answer.
    Leaving,
}

/// The outcome of an event.
#[derive(Debug)]
pub(super) enum Step {
    /// The connection continues.
    Stay,
    /// The request must be answered.
    Asked(Request),
    /// The connection has ended.
    Over,
}

impl Connection {
    /// # Errors
    /// If the socket has failed.
    pub(super) fn new(stream: Stream, number: u64, now: Instant) -> io::Result<Self> {
        stream.prepare()?;
        let deadline = Some(now + REQUEST);
        Ok(Self {
            stream,
            number,
            state: State::Hearing(Vec::new()),
            deadline,
            is_open: Arc::default(),
        })
    }

    /// The name of the client for the log.
    pub(super) fn client(&self) -> String {
        self.stream.identity().to_string()
    }

    /// A weak reference, which cannot be upgraded once the connection has ended.
    pub(super) fn watch(&self) -> Weak<()> {
        Arc::downgrade(&self.is_open)
    }

    /// Returns whether the request has not arrived completely.
    pub(super) fn is_hearing(&self) -> bool {
        matches!(self.state, State::Hearing(_))
    }

    /// The events to wait for.
    pub(super) fn interest(&self) -> PollFlags {
        match self.state {
            State::Hearing(_) | State::Leaving => PollFlags::IN,
            State::Waiting => PollFlags::RDHUP,
            State::Telling(..) => PollFlags::OUT,
        }
    }

    /// Handles an event of the socket.
    pub(super) fn step(&mut self, now: Instant) -> Step {
        match &self.state {
            State::Hearing(_) => self.hear(now),
            // A waiting client sends nothing: it has disconnected, or there is an error.
            State::Waiting => Step::Over,
            State::Telling(..) => self.tell(now),
            State::Leaving => self.leave(),
        }
    }

    fn hear(&mut self, now: Instant) -> Step {
        let State::Hearing(heard) = &mut self.state else { return Step::Stay };
        let mut chunk = [0; CHUNK];
        match self.stream.read(&mut [IoSliceMut::new(&mut chunk)]) {
            Ok(0) => return Step::Over,
            Ok(read) => heard.extend_from_slice(&chunk[..read]),
            Err(error) if is_passing(&error) => return Step::Stay,
            Err(_) => return Step::Over,
        }
        match parse(heard) {
            Ok(None) => Step::Stay,
            Ok(Some(request)) => {
                (self.state, self.deadline) = (State::Waiting, None);
                Step::Asked(request)
            }
            Err(refusal) => self.answer(refusal, Method::Get, now),
        }
    }

    /// Begins to send an answer.
    pub(super) fn answer(&mut self, reply: Reply, method: Method, now: Instant) -> Step {
        self.state = State::Telling(reply.bytes(method != Method::Head), 0);
        self.deadline = Some(now + ANSWER);
        self.tell(now)
    }

    /// Handles the end of the connection's time. A client that has begun a request gets the reason.
    pub(super) fn expire(&mut self, now: Instant) -> Step {
        match &self.state {
            State::Hearing(heard) if !heard.is_empty() => {
                let why = Reply::text(408, "the request took too long");
                self.answer(why, Method::Get, now)
            }
            _ => Step::Over,
        }
    }

    fn tell(&mut self, now: Instant) -> Step {
        let State::Telling(bytes, sent) = &mut self.state else { return Step::Stay };
        while *sent < bytes.len() {
            match self.stream.write(&[IoSlice::new(&bytes[*sent..])]) {
                Ok(0) => return Step::Over,
                Ok(written) => *sent += written,
                Err(error) if is_passing(&error) => return Step::Stay,
                Err(_) => return Step::Over,
            }
        }
        if shutdown(&self.stream, Shutdown::Write).is_err() {
            return Step::Over;
        }
        (self.state, self.deadline) = (State::Leaving, Some(now + FAREWELL));
        self.leave()
    }

    fn leave(&mut self) -> Step {
        let mut chunk = [0; CHUNK];
        match self.stream.read(&mut [IoSliceMut::new(&mut chunk)]) {
            Ok(0) => Step::Over,
            Ok(_) => Step::Stay,
            Err(error) if is_passing(&error) => Step::Stay,
            Err(_) => Step::Over,
        }
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// A request, with the relevant fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    /// The path, up to a `?`.
    pub(super) path: String,
    /// The name by which the client addresses the server, with a port unless it is 80.
    pub(super) host: String,
    /// The site whose page makes the request, if a browser says so.
    pub(super) origin: Option<String>,
    /// `Sec-Fetch-Site`: the relation of that site to this one.
    pub(super) fetch_site: Option<String>,
    pub(super) content_type: String,
    /// The types that the client prefers.
    pub(super) accept: String,
    /// The key, if present.
    pub(super) key: Option<String>,
    pub(super) body: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Method {
    Get,
    /// Like GET, but without the body of the answer.
    Head,
    Post,
}

/// Parses the request in `bytes`. Returns `None` if it is incomplete.
///
/// # Errors
/// The answer for an invalid or oversized request.
fn parse(bytes: &[u8]) -> Result<Option<Request>, Reply> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut head = httparse::Request::new(&mut fields);
    let length = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) if length <= HEAD => length,
        Ok(httparse::Status::Partial) if bytes.len() < HEAD => return Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => {
            return Err(Reply::text(431, "the head of the request is too long"));
        }
        Err(error) => return Err(Reply::text(400, error)),
    };
    let method = match head.method {
        Some("GET") => Method::Get,
        Some("HEAD") => Method::Head,
        Some("POST") => Method::Post,
        _ => return Err(Reply::text(405, "accepted: GET, HEAD, POST")),
    };
    let target = head.path.unwrap_or_default();
    if !target.starts_with('/') {
        return Err(Reply::text(400, "the target of a request begins with /"));
    }
    let fields = Fields(head.headers);
    let body = match body_length(&fields, method)? {
        more if bytes.len() < length + more => return Ok(None),
        all => bytes[length..length + all].to_vec(),
    };
    let host = fields.one("host")?.ok_or_else(|| Reply::text(400, "a request names its host"))?;
    let text = |name| fields.one(name).map(|text| text.map(str::to_owned));
    let key = fields.one("authorization")?.and_then(|it| it.strip_prefix("Bearer "));
    Ok(Some(Request {
        method,
        path: target.split('?').next().unwrap_or_default().to_owned(),
        host: host.to_ascii_lowercase(),
        origin: text("origin")?,
        fetch_site: text("sec-fetch-site")?,
        content_type: text("content-type")?.unwrap_or_default(),
        accept: fields.all("accept"),
        key: key.map(|key| key.trim().to_owned()),
        body,
    }))
}

/// The length of the body in bytes.
fn body_length(fields: &Fields<'_, '_>, method: Method) -> Result<usize, Reply> {
    if fields.one("transfer-encoding")?.is_some() {
        return Err(Reply::text(501, "a body has a Content-Length"));
    }
    let Some(text) = fields.one("content-length")? else {
        return if method == Method::Post {
            Err(Reply::text(411, "a body has a Content-Length"))
        } else {
            Ok(0)
        };
    };
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(length) if digits && length <= BODY => Ok(length),
        _ if digits => Err(Reply::text(413, format_args!("accepted: {BODY} bytes"))),
        _ => Err(Reply::text(400, "Content-Length is a number")),
    }
}

struct Fields<'a, 'b>(&'a [httparse::Header<'b>]);

impl<'b> Fields<'_, 'b> {
    fn named(&self, name: &str) -> impl Iterator<Item = &'b [u8]> {
        self.0.iter().filter(move |it| it.name.eq_ignore_ascii_case(name)).map(|it| it.value)
    }

    /// The value of a field that may occur once.
    fn one(&self, name: &str) -> Result<Option<&'b str>, Reply> {
        let mut all = self.named(name);
        let (first, second) = (all.next(), all.next());
        if second.is_some() {
            return Err(Reply::text(400, format_args!("{name} is there twice")));
        }
        let text = first.map(std::str::from_utf8).transpose();
        let text = text.map_err(|_| Reply::text(400, format_args!("{name} is no text")))?;
        Ok(text.map(str::trim))
    }

    /// Joins the values of a field that is a list.
    fn all(&self, name: &str) -> String {
        let all = self.named(name).map(String::from_utf8_lossy);
        Vec::from_iter(all).join(",")
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Reply {
    status: u16,
    pub(super) content_type: &'static str,
    /// `Content-Security-Policy`.
    pub(super) policy: Cow<'static, str>,
    pub(super) body: Vec<u8>,
}

impl Reply {
    /// Creates an answer that may load nothing.
    pub(super) fn new(status: u16, content_type: &'static str, body: Vec<u8>) -> Self {
        Self { status, content_type, policy: "default-src 'none'".into(), body }
    }

    /// One line.
    pub(super) fn text(status: u16, line: impl fmt::Display) -> Self {
        Self::new(status, TEXT, format!("{line}\n").into_bytes())
    }

    pub(super) fn json(status: u16, value: &impl Serialize) -> Self {
        let body = serde_json::to_vec(value).expect("answers have a form in JSON");
        Self::new(status, JSON, body)
    }

    /// Encodes the answer; the connection ends after it.
    fn bytes(self, with_body: bool) -> Vec<u8> {
        let mut bytes = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\
             Cache-Control: no-store\r\nContent-Security-Policy: {}\r\nX-Content-Type-Options: nosniff\r\n\
             X-Frame-Options: DENY\r\nReferrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n\
             Cross-Origin-Opener-Policy: same-origin\r\n",
            self.status,
            reason(self.status),
            self.content_type,
            self.body.len(),
            self.policy,
        )
        .into_bytes();
        if self.status == 405 {
            bytes.extend_from_slice(b"Allow: GET, HEAD, POST\r\n");
        }
        if self.status == 401 {
            bytes.extend_from_slice(b"WWW-Authenticate: Bearer\r\n");
        }
        bytes.extend_from_slice(b"\r\n");
        if with_body {
            bytes.extend_from_slice(&self.body);
        }
        bytes
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        411 => "Length Required",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        _ => "Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> u16 {
        parse(text.as_bytes()).expect_err(text).status
    }

    #[test]
    fn a_request_is_read_when_it_is_whole() {
        let text = "POST /api/export?x HTTP/1.1\r\nHost: LOCALHOST:1\r\nOrigin: http://localhost:1\r\n\
                    Content-Type: application/json\r\nAuthorization: Bearer abc\r\nContent-Length: 2\r\n\r\n{}";
        for end in 0..text.len() {
            assert_eq!(parse(&text.as_bytes()[..end]), Ok(None), "{end} bytes");
        }
        let request = parse(text.as_bytes()).expect("correct").expect("whole");
        assert_eq!((request.method, request.path.as_str()), (Method::Post, "/api/export"));
        assert_eq!((request.host.as_str(), request.key.as_deref()), ("localhost:1", Some("abc")));
        assert_eq!((request.body.as_slice(), request.fetch_site), (&b"{}"[..], None));
    }

    #[test]
    fn what_two_programs_could_read_differently_is_refused() {
        let with = |fields: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        assert_eq!(refused(&with("Content-Length: 1\r\nContent-Length: 1\r\n")), 400);
        assert_eq!(refused(&with("Transfer-Encoding: chunked\r\nContent-Length: 1\r\n")), 501);
        assert_eq!(refused(&with("Content-Length: +1\r\n")), 400);
        assert_eq!(refused(&with("Content-Length: 0\r\nHost: b\r\n")), 400);
        assert_eq!(refused(&with("Content-Length : 0\r\n")), 400);
        assert_eq!(refused(&with(" folded\r\n")), 400);
        assert_eq!(refused(&with("")), 411);
        assert_eq!(refused("GET / HTTP/1.1\r\n\r\n"), 400, "no host");
        assert_eq!(refused("GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
        assert_eq!(refused("DELETE / HTTP/1.1\r\nHost: a\r\n\r\n"), 405);
        assert_eq!(refused("\u{16}\u{3}\u{1}"), 400, "TLS");
    }

    #[test]
    fn everything_has_a_bound() {
        let long = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(HEAD));
        assert_eq!(refused(&long), 431);
        assert_eq!(refused(&long[..HEAD]), 431, "no end within the bound");
        let many = "a: b\r\n".repeat(FIELDS + 1);
        assert_eq!(refused(&format!("GET / HTTP/1.1\r\n{many}\r\n")), 431);
        for length in ["4097", "99999999999999999999999"] {
            let text = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
            assert_eq!(refused(&text), 413);
        }
    }

    #[test]
    fn an_answer_has_its_length_and_ends_the_connection() {
        let text = String::from_utf8(Reply::text(200, "ok").bytes(true)).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        for field in ["Content-Length: 3", "Connection: close", "Cache-Control: no-store"] {
            assert!(head.lines().any(|line| line == field), "{head}");
        }
        assert_eq!(body, "ok\n");
        let head = String::from_utf8(Reply::text(200, "ok").bytes(false)).expect("text");
        assert!(head.ends_with("\r\n\r\n") && head.contains("Content-Length: 3"), "{head}");
    }
}
