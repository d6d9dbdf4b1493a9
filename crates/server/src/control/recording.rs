//! Recordings of a running server, requested by a control client: a trace of a device as blktrace's records, or a log
//! of its scheduler's calls.
//!
//! A recording passes from its source to the socket of its client, on the client's thread, until its [`Session`] ends.
//! The session has no socket or clock: its caller passes the client's state and the time. A recording has a fixed
//! amount of memory, and its client delays no I/O: bytes that the client does not take in time are dropped and counted.
//!
//! After its [`Answer::Recording`] it is sent in frames, each with a length of four bytes in big-endian order, and as
//! many bytes of the recording. An empty frame is the last one, and is followed by a line of JSON, an [`Ended`]. A
//! client that shuts down its writing side requests the end, and gets the remaining bytes.

use super::{Answer, CallError, Request, asked};
use crate::worker::Shared;
use blkmq::{Clock, GroupIndex, Instant, Nanos, PolicyObserver, Trace, TraceError};
use blkmq_trace::elevator_log::{ElevatorLog, Log};
use blkmq_trace::record::Record;
use blkmq_trace::{Order, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
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
    let stream = asked(socket, request).map_err(RecordError::Call)?;
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

/// The maximum number of bytes that wait for a client. At the limit, nothing is taken from the source.
const WAITING: usize = 1 << 20;

/// The source of the bytes of a recording.
trait Source {
    /// Appends bytes available at `now`, up to about `room`. A source without bytes may poll for some.
    fn take(&mut self, now: Instant, room: usize, out: &mut Vec<u8>);

    /// Returns whether the source has reached its capacity.
    fn is_full(&self) -> bool;

    /// Ends the recording, and appends all remaining bytes.
    fn end(&mut self, out: &mut Vec<u8>);

    /// The numbers of events or calls recorded and dropped so far.
    fn counts(&self) -> Counts;

    /// Returns the length of the longest prefix of `bytes`, at most `most`, at which the recording may be cut.
    fn cut(&self, bytes: &[u8], most: usize) -> usize;
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Counts {
    recorded: u64,
    dropped: u64,
}

/// The reason why a recording ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// The duration of the recording was over.
    Time,
    /// The recording reached its maximum length.
    Size,
    /// Its client asked for the end.
    Asked,
    /// Its client disconnected.
    Gone,
    /// The server ends.
    Server,
}

/// The end of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ended {
    /// Why it ended.
    pub why: Why,
    /// Events of a trace, or calls of a log, that were recorded.
    pub recorded: u64,
    /// Events or calls that were dropped for lack of room.
    pub dropped: u64,
}

/// The state of the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Peer {
    /// The client takes bytes.
    Listens,
    /// The client has requested the end.
    Asks,
    /// The client has disconnected.
    Gone,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bounds {
    /// The end of the recording; `None` if its client ends it.
    until: Option<Instant>,
    /// The maximum length in bytes.
    bytes: u64,
}

/// A recording in progress.
struct Session<S> {
    source: S,
    bounds: Bounds,
    /// The number of bytes passed to the client.
    sent: u64,
}

impl<S: Source> Session<S> {
    fn new(source: S, bounds: Bounds) -> Self {
        Self { source, bounds, sent: 0 }
    }

    /// Appends bytes for the client to `out`, some of which the client may not have taken yet. Returns `Some` if the
    /// recording is over, with all of its bytes appended; then it must not be called again.
    fn step(
        &mut self,
        now: Instant,
        peer: Peer,
        server_ends: bool,
        out: &mut Vec<u8>,
    ) -> Option<Ended> {
        let begin = out.len();
        let why = match peer {
            Peer::Gone => Some(Why::Gone),
            Peer::Asks => Some(Why::Asked),
            Peer::Listens if server_ends => Some(Why::Server),
            Peer::Listens if self.bounds.until.is_some_and(|until| now >= until) => Some(Why::Time),
            Peer::Listens if self.source.is_full() => Some(Why::Size),
            Peer::Listens => None,
        };
        match why {
            Some(_) => self.source.end(out),
            None if begin < WAITING => self.source.take(now, WAITING - begin, out),
            None => return None,
        }
        let left = self.bounds.bytes - self.sent;
        let why = if (out.len() - begin) as u64 > left {
            // A larger number exceeds any length in memory.
            let most = usize::try_from(left).unwrap_or(usize::MAX);
            let kept = self.source.cut(&out[begin..], most);
            out.truncate(begin + kept);
            if why.is_none() {
                // The source's remaining data exceeds the maximum length.
                self.source.end(&mut Vec::new());
            }
            Some(why.filter(|why| *why == Why::Gone).unwrap_or(Why::Size))
        } else {
            why
        };
        self.sent += (out.len() - begin) as u64;
        why.map(|why| {
            let Counts { recorded, dropped } = self.source.counts();
            Ended { why, recorded, dropped }
        })
    }
}

/// The maximum number of notes taken from the queue at a time.
const NOTES_AT_A_TIME: usize = 1024;
/// The size of a note in the memory of a trace, in bytes.
const NOTE: u64 = 40;

struct Blktrace {
    shared: Arc<Shared>,
    /// The index of its disk.
    disk: usize,
    trace: Trace,
    stream: Stream,
    recorded: u64,
    /// Whether the last poll found no note.
    is_idle: bool,
}

impl Blktrace {
    /// Begins a trace of the device at `disk`, with `buffer` bytes for each elevator.
    fn begin(shared: &Arc<Shared>, disk: usize, buffer: u64) -> Result<Self, TraceError> {
        let notes = u32::try_from(buffer / NOTE).unwrap_or(u32::MAX);
        let trace = shared.disks[disk].service().begin_trace(notes)?;
        let minor = u16::try_from(disk).unwrap_or(u16::MAX);
        let (shared, stream) = (Arc::clone(shared), Stream::new(minor));
        Ok(Self { shared, disk, trace, stream, recorded: 0, is_idle: false })
    }

    /// Takes up to [`NOTES_AT_A_TIME`] notes. Returns whether there may be more.
    fn read(&mut self) -> bool {
        let before = self.recorded;
        let Self { trace, stream, recorded, .. } = self;
        let more = trace.read(NOTES_AT_A_TIME, |event| {
            *recorded += 1;
            stream.push(event);
        });
        self.is_idle = self.recorded == before;
        more
    }

    fn write(&mut self, order: Order, out: &mut Vec<u8>) {
        let Self { shared, disk, stream, .. } = self;
        stream.write(order, |group| name(shared, *disk, group), out);
    }
}

/// The name of the export that has `group`.
fn name(shared: &Shared, disk: usize, group: GroupIndex) -> String {
    let exports = shared.exports.now();
    let mut all = exports.all().filter(|export| export.disk == disk);
    let of = all.find(|export| export.group.id().index() == group);
    of.map_or_else(|| format!("group {}", group.0), |export| export.info.name.clone())
}

impl Source for Blktrace {
    fn take(&mut self, now: Instant, room: usize, out: &mut Vec<u8>) {
        if self.is_idle {
            self.shared.disks[self.disk].service().queue().settle_trace();
        }
        let begin = out.len();
        loop {
            let more = self.read();
            self.write(Order::Until(now), out);
            if !more || out.len() - begin >= room {
                break;
            }
        }
    }

    fn is_full(&self) -> bool {
        false
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        // This fails only for a failed queue, which has no more events.
        let _ = self.shared.disks[self.disk].service().end_trace(&self.trace);
        while self.read() {}
        self.write(Order::End, out);
    }

    fn counts(&self) -> Counts {
        Counts { recorded: self.recorded, dropped: self.trace.lost() }
    }

    fn cut(&self, bytes: &[u8], most: usize) -> usize {
        let mut at = 0;
        while let Ok(Some((_, length))) = Record::decode(&bytes[at..], 0)
            && at + length <= most
        {
            at += length;
        }
        at
    }
}

/// How long to wait for I/Os in flight, so that the device can get a new instance of its scheduler.
const SWITCH_PATIENCE: Nanos = Nanos::from_secs(5);

/// A log of the calls of a device's scheduler. All bytes are produced at its end, because only then is the length of
/// each part known.
struct Elevator {
    shared: Arc<Shared>,
    /// The index of its disk.
    disk: usize,
    log: ElevatorLog,
    counts: Counts,
}

impl Elevator {
    /// Begins a log of `bytes` bytes.
    fn begin(shared: &Arc<Shared>, disk: usize, bytes: usize) -> Result<Self, TraceError> {
        let log = ElevatorLog::new(bytes);
        let observer: Arc<dyn PolicyObserver> = Arc::new(log.clone());
        shared.disks[disk].service().observe_policies(&observer, SWITCH_PATIENCE)?;
        Ok(Self { shared: Arc::clone(shared), disk, log, counts: Counts::default() })
    }
}

impl Source for Elevator {
    fn take(&mut self, _: Instant, _: usize, _: &mut Vec<u8>) {}

    fn is_full(&self) -> bool {
        self.log.is_full()
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        // This fails only for a failed queue, whose scheduler is not called.
        let _ = self.shared.disks[self.disk].service().unobserve_policies();
        let bytes = self.log.bytes(&format!("blkmqctl elevator-log --device={}", self.disk + 1));
        if let Ok(log) = Log::parse(&bytes) {
            let recorded = log.instances.iter().map(|it| it.calls().count() as u64).sum();
            self.counts = Counts { recorded, dropped: self.log.missed() };
        }
        self.log = ElevatorLog::new(0);
        out.extend_from_slice(&bytes);
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn cut(&self, _: &[u8], most: usize) -> usize {
        most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Produces ten bytes with each call, in records of four.
    #[derive(Default)]
    struct Tens {
        calls: u64,
        full_after: u64,
        ended: u32,
    }

    impl Source for Tens {
        fn take(&mut self, _: Instant, room: usize, out: &mut Vec<u8>) {
            self.calls += 1;
            out.extend_from_slice(&[1; 10][..room.min(10)]);
        }

        fn is_full(&self) -> bool {
            self.calls == self.full_after
        }

        fn end(&mut self, out: &mut Vec<u8>) {
            self.ended += 1;
            out.extend_from_slice(&[2; 3]);
        }

        fn counts(&self) -> Counts {
            Counts { recorded: self.calls, dropped: 5 }
        }

        fn cut(&self, _: &[u8], most: usize) -> usize {
            most / 4 * 4
        }
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn session(bounds: Bounds) -> Session<Tens> {
        Session::new(Tens { full_after: 100, ..Tens::default() }, bounds)
    }

    const ANY: Bounds = Bounds { until: None, bytes: u64::MAX };

    fn end(session: &mut Session<Tens>, now: Instant, peer: Peer, server: bool) -> (Why, Vec<u8>) {
        let mut out = Vec::new();
        let ended = session.step(now, peer, server, &mut out).expect("it is over");
        assert_eq!(session.source.ended, 1, "once");
        assert_eq!((ended.recorded, ended.dropped), (session.source.calls, 5));
        (ended.why, out)
    }

    #[test]
    fn it_ends_when_its_time_is_over_and_not_before() {
        let mut session = session(Bounds { until: Some(at(50)), ..ANY });
        let mut out = Vec::new();
        assert_eq!(session.step(at(0), Peer::Listens, false, &mut out), None);
        assert_eq!(session.step(at(49), Peer::Listens, false, &mut out), None);
        assert_eq!(out.len(), 20);
        assert_eq!(end(&mut session, at(50), Peer::Listens, false), (Why::Time, vec![2; 3]));
    }

    #[test]
    fn it_ends_with_its_client_or_its_server() {
        for (peer, server, why) in [
            (Peer::Asks, false, Why::Asked),
            (Peer::Gone, false, Why::Gone),
            (Peer::Gone, true, Why::Gone),
            (Peer::Listens, true, Why::Server),
        ] {
            let mut session = session(ANY);
            assert_eq!(end(&mut session, at(0), peer, server), (why, vec![2; 3]));
        }
    }

    #[test]
    fn it_has_no_more_bytes_than_it_may_have_and_only_whole_records() {
        let mut session = session(Bounds { bytes: 26, ..ANY });
        let mut out = Vec::new();
        assert_eq!(session.step(at(0), Peer::Listens, false, &mut out), None);
        assert_eq!(session.step(at(1), Peer::Listens, false, &mut out), None);
        assert_eq!(end(&mut session, at(2), Peer::Listens, false), (Why::Size, vec![1; 4]));
        // A full source alone does not end the recording.
        let source = Tens { full_after: 1, ..Tens::default() };
        let mut session = Session::new(source, ANY);
        assert_eq!(session.step(at(0), Peer::Listens, false, &mut out), None);
        assert_eq!(end(&mut session, at(0), Peer::Listens, false), (Why::Size, vec![2; 3]));
    }

    #[test]
    fn a_client_that_takes_nothing_costs_no_more_memory() {
        let mut session = session(Bounds { until: Some(at(9)), ..ANY });
        let mut out = vec![0; WAITING - 4];
        assert_eq!(session.step(at(0), Peer::Listens, false, &mut out), None);
        assert_eq!(out.len(), WAITING);
        assert_eq!(session.step(at(1), Peer::Listens, false, &mut out), None);
        assert_eq!((out.len(), session.source.calls), (WAITING, 1));
        out.clear();
        assert_eq!(session.step(at(2), Peer::Listens, false, &mut out), None);
        assert_eq!((out.len(), session.source.calls), (10, 2), "it goes on");
    }
}
