//! A disk in memory for NBD clients: the shortest server on this crate.
//!
//! `cargo run --release -p blkmq-nbd --example ram_disk -- disk.sock 1024`, and then
//! `nbdinfo 'nbd+unix:///?socket=disk.sock'`.
//!
//! Each connection has a thread, which reads what has arrived, copies bytes from or to memory, and writes all replies
//! together. There is no queue and no scheduler between the wire and the bytes, so this is also the row of `cargo xtask
//! serve-peers` that shows how fast a client can be on the same processors.

use blkmq_nbd::server::{Config, Handshake, Next, Parsed, Replies, Requests};
use blkmq_nbd::{Checked, ErrorCode, ExportInfo, Exports, Limits, Terms, TransmissionFlags};
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::thread;

const PAGE: usize = 4096;
/// Bytes that are read at a time.
const INPUT: usize = 1 << 20;

/// The contents, with a lock for each page, so that connections rarely contend.
#[derive(Clone)]
struct Disk(Arc<[Mutex<[u8; PAGE]>]>);

impl Exports for Disk {
    fn find(&self, _: &str) -> Option<ExportInfo> {
        let flags = TransmissionFlags::SEND_FLUSH.with(TransmissionFlags::CAN_MULTI_CONN);
        Some(ExportInfo { size: self.0.len() as u64 * PAGE as u64, flags, ..ExportInfo::default() })
    }

    fn list(&self, each: &mut dyn FnMut(&str, &str)) {
        each("", "a disk in memory");
    }
}

impl Disk {
    /// Calls `each` with the pieces of `length` bytes from `offset` on, which are within the disk.
    fn pieces(&self, offset: u64, length: usize, mut each: impl FnMut(&mut [u8])) {
        let (mut at, end) = (offset as usize, offset as usize + length);
        while at < end {
            let mut page = self.0[at / PAGE].lock().expect("no thread panics with a page");
            let last = (at % PAGE + end - at).min(PAGE);
            each(&mut page[at % PAGE..last]);
            at += last - at % PAGE;
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [socket, mib] = args.as_slice() else { return Err("usage: ram_disk SOCKET MIB".into()) };
    let pages = mib.parse::<usize>()? * 256;
    let disk = Disk((0..pages).map(|_| Mutex::new([0; PAGE])).collect());
    for stream in UnixListener::bind(socket)?.incoming() {
        let (stream, disk) = (stream?, disk.clone());
        thread::spawn(move || match serve(stream, &disk) {
            Ok(()) => {}
            Err(error) => eprintln!("a connection ended: {error}"),
        });
    }
    Ok(())
}

/// Bytes that have arrived and have not been processed.
struct Input {
    bytes: Vec<u8>,
    filled: usize,
}

impl Input {
    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    /// Waits for bytes and appends them.
    fn wait(&mut self, stream: &mut UnixStream) -> io::Result<()> {
        if self.filled == self.bytes.len() {
            self.bytes.resize(self.filled + INPUT, 0);
        }
        let arrived = stream.read(&mut self.bytes[self.filled..])?;
        self.filled += arrived;
        if arrived == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    /// Removes the first bytes.
    fn remove(&mut self, used: usize) {
        self.bytes.copy_within(used..self.filled, 0);
        self.filled -= used;
    }
}

/// Serves a connection until its end.
fn serve(mut stream: UnixStream, disk: &Disk) -> io::Result<()> {
    let mut input = Input { bytes: Vec::new(), filled: 0 };
    let mut output = Vec::new();
    let mut handshake = Handshake::new(Config::default());
    handshake.greeting(&mut output);
    let terms = loop {
        stream.write_all(&output)?;
        output.clear();
        input.wait(&mut stream)?;
        let progress = handshake.feed(input.as_slice(), disk, &mut output);
        input.remove(progress.consumed);
        match progress.next {
            Next::NeedMore => {}
            Next::Go(negotiated) => break negotiated.terms,
            Next::StartTls | Next::Close(_) => return stream.write_all(&output),
        }
    };
    let requests = Requests::new(terms.style, &Limits::default());
    while let Some(used) = answer(&requests, &terms, input.as_slice(), disk, &mut output) {
        input.remove(used);
        stream.write_all(&output)?;
        output.clear();
        input.wait(&mut stream)?;
    }
    // The replies to the requests before the last one.
    stream.write_all(&output)
}

/// Carries out the requests that have arrived in full. Returns the number of bytes that they take; `None` at the end.
fn answer(
    requests: &Requests,
    terms: &Terms,
    input: &[u8],
    disk: &Disk,
    output: &mut Vec<u8>,
) -> Option<usize> {
    let replies = Replies::new(terms.style);
    let mut used = 0;
    loop {
        let (request, header_len, payload_len) = match requests.next(&input[used..]) {
            Parsed::NeedMore => return Some(used),
            Parsed::Malformed(_) => return None,
            Parsed::Request { request, header_len, payload_len } => {
                (request, header_len, payload_len as usize)
            }
        };
        let Some(payload) = input[used + header_len..].get(..payload_len) else {
            return Some(used);
        };
        used += header_len + payload_len;
        let to = request.reply_to();
        match terms.check(&request) {
            Ok(Checked::Disconnect) => return None,
            Ok(Checked::Read { span, .. }) => {
                let length = span.length as usize;
                output.extend_from_slice(&replies.read(to, span.length as u32));
                disk.pieces(span.offset, length, |bytes| output.extend_from_slice(bytes));
            }
            Ok(Checked::Write { span, .. }) => {
                let mut left = payload;
                disk.pieces(span.offset, payload_len, |bytes| {
                    let (now, later) = left.split_at(bytes.len());
                    bytes.copy_from_slice(now);
                    left = later;
                });
                output.extend_from_slice(&replies.done(to));
            }
            Ok(Checked::Flush) => output.extend_from_slice(&replies.done(to)),
            Ok(_) => output.extend_from_slice(&replies.error(to, ErrorCode::NotSupported)),
            Err(error) => output.extend_from_slice(&replies.error(to, error)),
        }
    }
}
