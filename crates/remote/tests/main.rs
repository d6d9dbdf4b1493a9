//! NBD devices against a scripted server: a server with one export in memory, which follows a plan for each connection.
//! It answers late, wrongly, or not at all.

#![cfg(target_os = "linux")]

mod device;

use blkmq_nbd::server::{self, Closing, Config, Handshake, Next, Parsed, Replies, Requests};
use blkmq_nbd::{
    BASE_ALLOCATION, BlockSizes, Command, CommandFlags, ErrorCode, ExportInfo, Exports, Extent,
    ExtentCount, HOLE, HeaderStyle, Limits, Request, TransmissionFlags, ZERO,
};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

/// The size of the export in bytes.
const SIZE: usize = 1 << 20;

/// The plan for a connection.
#[derive(Clone, Debug)]
struct Plan {
    most: HeaderStyle,
    size: u64,
    flags: TransmissionFlags,
    /// The requests that are answered before the connection is closed; one more is carried out without an answer.
    answers: usize,
    /// The size of the batches of requests that are answered in reverse order.
    reversed: usize,
    /// The error for writes, which is sent before their payload is read.
    writes_fail: Option<ErrorCode>,
    /// Whether reads of zeroes are answered by a hole, if the form of headers allows that.
    holes: bool,
    /// Whether block status reports blocks of zeroes as holes.
    tells_holes: bool,
    /// Whether the last answer is garbage.
    ends_with_garbage: bool,
    /// Whether the connection is closed before the first byte, as by a server that has enough clients.
    is_refused: bool,
    /// Whether the server lacks the export.
    is_unknown: bool,
    /// Whether the connection is closed after the handshake.
    ends_when_agreed: bool,
    /// The request that is treated specially, by its kind and offset.
    poison: Option<(Command, u64, Poison)>,
}

/// The reaction of a server to a poisonous request.
#[derive(Clone, Copy, Debug)]
enum Poison {
    /// Closes the connection.
    Close,
    /// Closes the connection as soon as it has read the header.
    CloseEarly,
    /// Answers with ESHUTDOWN.
    ShutDown,
    /// Never answers, but accepts other requests.
    Ignore,
    /// Answers with a chunk of this type and payload.
    Chunk(u16, &'static [u8]),
    /// Answers with this error before the payload has arrived, and closes the connection.
    ErrorAndClose(ErrorCode),
}

/// The end of a connection, as the server saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// The client sent ABORT during the handshake.
    Abort,
    /// The client sent DISC.
    Disconnect,
    /// The stream ended without a message, or failed.
    Silent,
    /// The server closed the connection.
    Closed,
}

impl Default for Plan {
    fn default() -> Self {
        let flags = TransmissionFlags::SEND_FLUSH
            .with(TransmissionFlags::SEND_FUA)
            .with(TransmissionFlags::SEND_TRIM)
            .with(TransmissionFlags::SEND_WRITE_ZEROES);
        Self {
            most: HeaderStyle::Extended,
            size: SIZE as u64,
            flags,
            answers: usize::MAX,
            reversed: 1,
            writes_fail: None,
            holes: false,
            tells_holes: false,
            ends_with_garbage: false,
            is_refused: false,
            is_unknown: false,
            ends_when_agreed: false,
            poison: None,
        }
    }
}

/// The server. It ends with the process.
struct Fake {
    folder: TempDir,
    data: Arc<Mutex<Vec<u8>>>,
    ends: Receiver<End>,
}

impl Fake {
    /// Serves one connection after the other according to the plans; further connections are refused.
    fn start(plans: Vec<Plan>) -> Self {
        let folder = TempDir::new().expect("a folder");
        let listener = UnixListener::bind(folder.path().join("s")).expect("a socket");
        let data = Arc::new(Mutex::new(vec![0; SIZE]));
        let store = Arc::clone(&data);
        let (sender, ends) = channel();
        std::thread::spawn(move || {
            for (socket, plan) in listener.incoming().zip(plans) {
                let (store, sender) = (Arc::clone(&store), sender.clone());
                // The thread ends with the connection, whichever side closes it.
                std::thread::spawn(move || {
                    let end = serve(socket.expect("a client"), &plan, &store);
                    // A test that does not check the ends has dropped the receiver.
                    let _ = sender.send(end.unwrap_or(End::Silent));
                });
            }
        });
        Self { folder, data, ends }
    }

    /// Waits for the next end of a connection.
    fn end(&self) -> End {
        self.ends.recv_timeout(Duration::from_secs(20)).expect("a connection ends")
    }

    /// Returns whether every end of a connection has been received by [`end`](Self::end), after a short wait for
    /// another one.
    fn has_no_other_end(&self) -> bool {
        self.ends.recv_timeout(Duration::from_millis(50)).is_err()
    }

    /// The description of the export.
    fn uri(&self, options: &str) -> String {
        format!("nbd+unix:///?socket={}{options}", self.folder.path().join("s").display())
    }
}

struct One(Plan);

impl Exports for One {
    fn find(&self, _: &str) -> Option<ExportInfo> {
        if self.0.is_unknown {
            return None;
        }
        let blocks = BlockSizes::DEFAULT.with_min(512).ok()?.with_max_payload(1 << 20).ok()?;
        let contexts =
            if self.0.tells_holes { vec![BASE_ALLOCATION.to_owned()] } else { Vec::new() };
        let Plan { size, flags, .. } = self.0;
        Some(ExportInfo { size, flags, blocks, contexts, ..ExportInfo::default() })
    }

    fn list(&self, _: &mut dyn FnMut(&str, &str)) {}
}

/// A request and the data that it wrote.
type Arrived = (Request, Vec<u8>);

enum Arrival {
    Request(Arrived),
    Ignored,
    End(End),
}

fn serve(mut socket: UnixStream, plan: &Plan, store: &Mutex<Vec<u8>>) -> std::io::Result<End> {
    if plan.is_refused {
        return Ok(End::Closed);
    }
    let mut handshake = Handshake::new(Config { most: plan.most, ..Config::default() });
    let (mut input, mut output) = (Vec::new(), Vec::new());
    handshake.greeting(&mut output);
    let style = loop {
        socket.write_all(&output)?;
        output.clear();
        more(&mut socket, &mut input)?;
        let progress = handshake.feed(&input, &One(plan.clone()), &mut output);
        input.drain(..progress.consumed);
        match progress.next {
            Next::Go(negotiated) => break negotiated.terms.style,
            Next::NeedMore => {}
            Next::Close(Closing::Aborted) => return Ok(End::Abort),
            Next::StartTls | Next::Close(_) => return Ok(End::Closed),
        }
    };
    socket.write_all(&output)?;
    if plan.ends_when_agreed {
        return Ok(End::Closed);
    }
    let mut left = plan.answers;
    loop {
        let mut batch = Vec::new();
        while batch.len() < plan.reversed {
            match next(&mut socket, &mut input, style, plan)? {
                Arrival::Request(arrived) => batch.push(arrived),
                Arrival::Ignored => {}
                Arrival::End(end) => return Ok(end),
            }
        }
        for (request, written) in batch.into_iter().rev() {
            let answer = carry_out(&request, &written, style, plan, store);
            if left == 0 {
                if plan.ends_with_garbage {
                    socket.write_all(&[0xaa; 64])?;
                    // The client closes the connection. If this side did, a request that the client is sending would
                    // report the end before the client has read the garbage.
                    while more(&mut socket, &mut input).is_ok() {
                        input.clear();
                    }
                }
                return Ok(End::Closed);
            }
            left -= 1;
            socket.write_all(&answer)?;
        }
    }
}

fn more(socket: &mut UnixStream, input: &mut Vec<u8>) -> std::io::Result<()> {
    let mut buffer = [0; 4096];
    let read = socket.read(&mut buffer)?;
    input.extend_from_slice(&buffer[..read]);
    if read == 0 { Err(std::io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

/// The next request, or the end of the connection.
fn next(
    socket: &mut UnixStream,
    input: &mut Vec<u8>,
    style: HeaderStyle,
    plan: &Plan,
) -> std::io::Result<Arrival> {
    let requests = Requests::new(style, &Limits::default());
    let (request, header_len, payload_len) = loop {
        match requests.next(input) {
            Parsed::Request { request, header_len, payload_len } => {
                break (request, header_len, payload_len as usize);
            }
            Parsed::NeedMore => more(socket, input)?,
            Parsed::Malformed(malformed) => panic!("the client sent {malformed}"),
        }
    };
    if request.command == Ok(Command::Disconnect) {
        return Ok(Arrival::End(End::Disconnect));
    }
    let poison = plan.poison.filter(|(command, offset, _)| {
        request.command == Ok(*command) && request.span.offset == *offset
    });
    let to = request.reply_to();
    match poison.map(|(_, _, poison)| poison) {
        Some(Poison::CloseEarly) => return Ok(Arrival::End(End::Closed)),
        Some(Poison::ErrorAndClose(error)) => {
            socket.write_all(&Replies::new(style).error(to, error))?;
            return Ok(Arrival::End(End::Closed));
        }
        _ => {}
    }
    if let (Ok(Command::Write), Some(error)) = (request.command, plan.writes_fail) {
        socket.write_all(&Replies::new(style).error(to, error))?;
    }
    while input.len() < header_len + payload_len {
        more(socket, input)?;
    }
    let written = input[header_len..header_len + payload_len].to_vec();
    input.drain(..header_len + payload_len);
    match poison.map(|(_, _, poison)| poison) {
        None => return Ok(Arrival::Request((request, written))),
        Some(Poison::Close | Poison::CloseEarly | Poison::ErrorAndClose(_)) => {
            return Ok(Arrival::End(End::Closed));
        }
        Some(Poison::Ignore) => {}
        Some(Poison::ShutDown) => {
            socket.write_all(&Replies::new(style).error(to, ErrorCode::Shutdown))?;
        }
        Some(Poison::Chunk(kind, payload)) => {
            socket.write_all(&chunk(&request, style, kind, payload))?;
        }
    }
    Ok(Arrival::Ignored)
}

/// Encodes the last chunk of a reply, of any type.
fn chunk(request: &Request, style: HeaderStyle, kind: u16, payload: &[u8]) -> Vec<u8> {
    let is_extended = style == HeaderStyle::Extended;
    let magic: u32 = if is_extended { 0x6e8a_278c } else { 0x668e_33ef };
    let mut bytes = magic.to_be_bytes().to_vec();
    bytes.extend(1u16.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(request.cookie.0.to_be_bytes());
    if is_extended {
        bytes.extend(request.span.offset.to_be_bytes());
        bytes.extend((payload.len() as u64).to_be_bytes());
    } else {
        bytes.extend((payload.len() as u32).to_be_bytes());
    }
    bytes.extend(payload);
    bytes
}

fn carry_out(
    request: &Request,
    written: &[u8],
    style: HeaderStyle,
    plan: &Plan,
    store: &Mutex<Vec<u8>>,
) -> Vec<u8> {
    let replies = Replies::new(style);
    let mut data = store.lock().expect("no test panics with it");
    let (from, len) = (request.span.offset as usize, request.span.length as usize);
    let to = request.reply_to();
    match request.command {
        Ok(Command::Write) if plan.writes_fail.is_some() => return Vec::new(),
        Ok(Command::Write) => data[from..from + len].copy_from_slice(written),
        Ok(Command::Trim | Command::WriteZeroes) => data[from..from + len].fill(0),
        Ok(Command::Read) => {
            let bytes = &data[from..from + len];
            if plan.holes
                && bytes.iter().all(|byte| *byte == 0)
                && let Some(pieces) = replies.pieces(to, len as u32)
            {
                return hole(pieces, len as u32);
            }
            return [&replies.read(to, len as u32)[..], bytes].concat();
        }
        Ok(Command::BlockStatus) if plan.tells_holes => {
            let mut answer = Vec::new();
            replies.block_status(to, &[(1, &extents(request, &data))], &mut answer);
            return answer;
        }
        _ => {}
    }
    replies.done(to).to_vec()
}

/// The extents of zero and other blocks in the range of the request.
fn extents(request: &Request, data: &[u8]) -> server::Extents {
    let is_one = request.flags.contains(CommandFlags::REQ_ONE);
    let count = if is_one { ExtentCount::One } else { ExtentCount::Many };
    let mut extents = server::Extents::new(request.span, count, &Limits::default());
    let (from, len) = (request.span.offset as usize, request.span.length as usize);
    for block in data[from..from + len].chunks(4096) {
        let flags = if block.iter().all(|byte| *byte == 0) { HOLE | ZERO } else { 0 };
        if extents.push(Extent { length: block.len() as u64, flags }) == server::Room::Full {
            break;
        }
    }
    extents
}

fn hole(mut pieces: server::Pieces, len: u32) -> Vec<u8> {
    pieces.hole(len).to_vec()
}
