//! Recordings of a running server, requested by a control client: a trace of a device as blktrace's records, or a log
//! of its scheduler's calls.
//!
//! A recording passes from its source to the socket of its client, on the client's thread, until its [`Session`] ends.
//! It has a fixed amount of memory, and its client delays no I/O: bytes that the client does not take in time are
//! dropped and counted.
//!
//! After its [`Answer::Recording`] it is sent in frames, each with a length of four bytes in big-endian order, and as
//! many bytes of the recording. An empty frame is the last one, and is followed by a line of JSON, an [`Ended`]. A
//! client that shuts down its writing side requests the end, and gets the remaining bytes.

mod session;

pub use session::{Ended, Why};

use super::{Answer, CallError, Request};
use crate::worker::Shared;
use blkmq::{Clock, Nanos, TraceError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use session::{Blktrace, Bounds, Elevator, Peer, Session, Source};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a recording polls for events while its client takes all bytes.
const EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// The maximum wait for a client to take the remaining bytes.
const PATIENCE: Nanos = Nanos::from_secs(10);
/// Like [`PATIENCE`], but when the server ends.
const HURRY: Nanos = Nanos::from_millis(500);
/// The accepted memory of a trace for each elevator, in KiB.
const BUFFER: std::ops::RangeInclusive<u32> = 1..=160 << 10;
/// The accepted memory of a log, in bytes.
const LOG: std::ops::RangeInclusive<u64> = 4096..=256 << 20;

/// A recording requested by a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    /// The number of the device, from 1.
    pub(crate) device: usize,
    /// The duration in seconds; `None` if the client ends it.
    pub(crate) seconds: Option<u32>,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// blktrace's records, at most `bytes`, with a buffer of `kib` KiB for each elevator.
    Trace {
        /// In KiB.
        kib: u32,
        /// `None` for no limit.
        bytes: Option<u64>,
    },
    /// The calls of the scheduler, in `bytes` bytes.
    ElevatorLog {
        /// The maximum length in bytes.
        bytes: u64,
    },
}

/// Checks that the device exists, and that the memory is within bounds. An error is the answer for the client.
pub(crate) fn check(shared: &Shared, wanted: Wanted) -> Result<(), String> {
    let most = shared.disks.len();
    if !(1..=most).contains(&wanted.device) {
        return Err(format!("there is no device {}; accepted: 1 to {most}", wanted.device));
    }
    match wanted.kind {
        Kind::Trace { kib, .. } if !BUFFER.contains(&kib) => {
            let (least, most) = (BUFFER.start(), BUFFER.end());
            Err(format!("a buffer of {kib} KiB; accepted: {least} to {most}"))
        }
        Kind::ElevatorLog { bytes } if !LOG.contains(&bytes) => {
            let (least, most) = (LOG.start(), LOG.end());
            Err(format!("a log of {bytes} bytes; accepted: {least} to {most}"))
        }
        _ => Ok(()),
    }
}

/// The answer that explains why a recording does not begin.
fn refusal(error: TraceError, device: usize, what: &str) -> Answer {
    let text = match error {
        TraceError::Busy => format!("busy: another {what} of device {device} is under way"),
        TraceError::Change(_) if what != "trace" => format!(
            "device {device} did not get a new instance of its scheduler, since its I/Os in flight do not end; see \
             blkmqctl stat: {error}"
        ),
        error => error.to_string(),
    };
    Answer::Refused(text)
}

/// Records for `client` until the recording is over, or `ends` is set.
///
/// # Errors
/// If the client disconnects, or does not take the remaining bytes in time.
pub(crate) fn run(
    client: &UnixStream,
    shared: &Arc<Shared>,
    wanted: Wanted,
    ends: &AtomicBool,
) -> io::Result<()> {
    let disk = wanted.device - 1;
    let clock = shared.disks[disk].service().clock();
    let until =
        |clock: Clock| wanted.seconds.map(|seconds| clock.now() + Nanos::from_secs(seconds.into()));
    match wanted.kind {
        Kind::Trace { kib, bytes } => match Blktrace::begin(shared, disk, u64::from(kib) << 10) {
            Ok(source) => {
                let bytes = bytes.unwrap_or(u64::MAX);
                let session = Session::new(source, Bounds { until: until(clock), bytes });
                serve(client, session, clock, ends)
            }
            Err(error) => refuse(client, &refusal(error, wanted.device, "trace")),
        },
        Kind::ElevatorLog { bytes } => {
            let room = usize::try_from(bytes).unwrap_or(usize::MAX);
            match Elevator::begin(shared, disk, room) {
                Ok(source) => {
                    // The log itself limits its length.
                    let bounds = Bounds { until: until(clock), bytes: u64::MAX };
                    serve(client, Session::new(source, bounds), clock, ends)
                }
                Err(error) => refuse(client, &refusal(error, wanted.device, "elevator log")),
            }
        }
    }
}

fn refuse(mut client: &UnixStream, answer: &Answer) -> io::Result<()> {
    client.write_all(answer.line().as_bytes())
}

/// The client's end of a recording.
struct Line<'a> {
    client: &'a UnixStream,
    /// Bytes to be sent to the client.
    pending: Vec<u8>,
    /// The number of these bytes that have been sent.
    taken: usize,
    peer: Peer,
}

impl Line<'_> {
    /// Waits briefly until the client takes bytes or sends something; then receives and sends.
    fn turn(&mut self) -> io::Result<()> {
        let out = if self.pending.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        let mut watched = [PollFd::new(self.client, PollFlags::IN | out)];
        match poll(&mut watched, Some(&EVERY)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let found = watched[0].revents();
        if found.intersects(PollFlags::HUP | PollFlags::ERR) {
            self.peer = Peer::Gone;
            return Ok(());
        }
        if found.contains(PollFlags::IN) {
            self.hear();
        }
        self.send();
        Ok(())
    }

    /// Receives from a client, which can only request the end.
    fn hear(&mut self) {
        match self.client.read(&mut [0; 64]) {
            Ok(0) => self.peer = Peer::Asks,
            Ok(_) => {}
            Err(error) if again(&error) => {}
            Err(_) => self.peer = Peer::Gone,
        }
    }

    fn send(&mut self) {
        while self.taken < self.pending.len() {
            match self.client.write(&self.pending[self.taken..]) {
                Ok(count) => self.taken += count,
                Err(error) if again(&error) => break,
                Err(_) => {
                    self.peer = Peer::Gone;
                    return;
                }
            }
        }
        // Moved rarely, so that each byte is moved at most once.
        if self.taken * 2 >= self.pending.len() {
            self.pending.drain(..self.taken);
            self.taken = 0;
        }
    }
}

fn again(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Transfers a recording to its client until it ends, and then the remaining bytes.
fn serve<S: Source>(
    client: &UnixStream,
    mut session: Session<S>,
    clock: Clock,
    ends: &AtomicBool,
) -> io::Result<()> {
    client.set_nonblocking(true)?;
    let pending = Answer::Recording.line().into_bytes();
    let mut line = Line { client, pending, taken: 0, peer: Peer::Listens };
    let ended = loop {
        // A recording whose client cannot be polled ends as if the client had disconnected.
        if line.turn().is_err() {
            line.peer = Peer::Gone;
        }
        let server_ends = ends.load(Ordering::Relaxed);
        let (peer, now) = (line.peer, clock.now());
        let step = |out: &mut Vec<u8>| session.step(now, peer, server_ends, out);
        if let Some(ended) = frame(&mut line.pending, step) {
            break ended;
        }
    };
    // Frees the session's resources before a slow client has taken the remaining bytes.
    drop(session);
    end(&mut line.pending, &ended);
    tracing::debug!(?ended, "recording");
    let patience = if ended.why == Why::Server { HURRY } else { PATIENCE };
    let begun = clock.now();
    while line.peer != Peer::Gone && !line.pending.is_empty() {
        if clock.now() - begun > patience {
            return Err(ErrorKind::TimedOut.into());
        }
        line.turn()?;
    }
    if line.peer == Peer::Gone { Err(ErrorKind::BrokenPipe.into()) } else { Ok(()) }
}

/// How often a client that waits for bytes checks whether it should request the end.
const LOOKS: Duration = Duration::from_millis(50);
/// The maximum number of bytes passed on at a time.
const AT_A_TIME: usize = 64 << 10;

/// Appends a frame with the bytes that `fill` appends, or nothing if there are none.
fn frame<R>(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    let begin = out.len();
    out.extend_from_slice(&[0; 4]);
    let result = fill(out);
    match u32::try_from(out.len() - begin - 4).expect("a recording is bounded") {
        0 => out.truncate(begin),
        length => out[begin..begin + 4].copy_from_slice(&length.to_be_bytes()),
    }
    result
}

/// Appends the end of a recording.
fn end(out: &mut Vec<u8>, ended: &Ended) {
    out.extend_from_slice(&[0; 4]);
    serde_json::to_writer(&mut *out, ended).expect("it has a form in JSON, and memory takes it");
    out.push(b'\n');
}

/// The reason why a client has no recording, or only a part.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The server did not answer.
    #[error("{0}")]
    Call(CallError),
    /// The server refused; the text names the accepted values.
    #[error("{0}")]
    Refused(String),
    /// The callback that takes the bytes has failed.
    #[error("{0}")]
    Taker(io::Error),
    /// The server disconnected before the end.
    #[error("the server went away before the end: {0}")]
    Cut(io::Error),
}

/// A stream whose reader periodically checks whether it should request the end.
struct Asking<'a> {
    stream: UnixStream,
    ends: &'a dyn Fn() -> bool,
    has_asked: bool,
}

impl Read for Asking<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.has_asked && (self.ends)() {
                self.has_asked = true;
                self.stream.shutdown(Shutdown::Write)?;
            }
            match self.stream.read(bytes) {
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                result => return result,
            }
        }
    }
}

/// Requests a recording, [`Request::Trace`] or [`Request::ElevatorLog`], from the server with its control socket at
/// `socket`, and passes its bytes to `take` as they arrive. Requests the end once `ends` returns true. Returns how the
/// recording ended.
///
/// # Errors
/// If the server does not answer, refuses or disconnects, or if `take` fails, which ends the recording.
pub fn record(
    socket: &Path,
    request: &Request,
    ends: &dyn Fn() -> bool,
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<Ended, RecordError> {
    let call = |error| RecordError::Call(CallError::Socket(error));
    let answer = |error| RecordError::Call(CallError::Answer(error));
    let mut stream = UnixStream::connect(socket).map_err(call)?;
    let mut line = serde_json::to_string(request).expect("requests have a form in JSON");
    line.push('\n');
    stream.write_all(line.as_bytes()).map_err(call)?;
    stream.set_read_timeout(Some(LOOKS)).map_err(call)?;
    let mut from = BufReader::new(Asking { stream, ends, has_asked: false });
    let mut line = String::new();
    from.read_line(&mut line).map_err(call)?;
    match serde_json::from_str::<Answer>(&line).map_err(answer)? {
        Answer::Recording => {}
        Answer::Refused(why) => return Err(RecordError::Refused(why)),
        other => {
            return Err(RecordError::Refused(format!(
                "the server is of another version: {other:?}"
            )));
        }
    }
    let mut bytes = vec![0; AT_A_TIME];
    loop {
        let mut length = [0; 4];
        from.read_exact(&mut length).map_err(RecordError::Cut)?;
        let mut left = u32::from_be_bytes(length) as usize;
        if left == 0 {
            break;
        }
        while left > 0 {
            let some = left.min(AT_A_TIME);
            from.read_exact(&mut bytes[..some]).map_err(RecordError::Cut)?;
            take(&bytes[..some]).map_err(RecordError::Taker)?;
            left -= some;
        }
    }
    line.clear();
    from.read_line(&mut line).map_err(RecordError::Cut)?;
    serde_json::from_str(&line).map_err(answer)
}
