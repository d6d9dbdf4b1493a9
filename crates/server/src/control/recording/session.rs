//! [`Session`]: a recording from its beginning to its end, and its sources: a trace of a device as blktrace's records,
//! and a log of the calls of its scheduler. A session has no socket or clock: its caller passes the client's state and
//! the time.

use crate::worker::Shared;
use blkmq::{GroupIndex, Instant, Nanos, PolicyObserver, Trace, TraceError};
use blkmq_trace::elevator_log::{ElevatorLog, Log};
use blkmq_trace::record::Record;
use blkmq_trace::{Order, Stream};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The maximum number of bytes that wait for a client. At the limit, nothing is taken from the source.
const WAITING: usize = 1 << 20;

/// The source of the bytes of a recording.
pub(super) trait Source {
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
pub(super) struct Counts {
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
pub(super) enum Peer {
    /// The client takes bytes.
    Listens,
    /// The client has requested the end.
    Asks,
    /// The client has disconnected.
    Gone,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bounds {
    /// The end of the recording; `None` if its client ends it.
    pub(super) until: Option<Instant>,
    /// The maximum length in bytes.
    pub(super) bytes: u64,
}

/// A recording in progress.
pub(super) struct Session<S> {
    source: S,
    bounds: Bounds,
    /// The number of bytes passed to the client.
    sent: u64,
}

impl<S: Source> Session<S> {
    pub(super) fn new(source: S, bounds: Bounds) -> Self {
        Self { source, bounds, sent: 0 }
    }

    /// Appends bytes for the client to `out`, some of which the client may not have taken yet. Returns `Some` if the
    /// recording is over, with all of its bytes appended; then it must not be called again.
    pub(super) fn step(
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
const AT_A_TIME: usize = 1024;
/// The size of a note in the memory of a trace, in bytes.
const NOTE: u64 = 40;

pub(super) struct Blktrace {
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
    pub(super) fn begin(
        shared: &Arc<Shared>,
        disk: usize,
        buffer: u64,
    ) -> Result<Self, TraceError> {
        let notes = u32::try_from(buffer / NOTE).unwrap_or(u32::MAX);
        let trace = shared.disks[disk].service().begin_trace(notes)?;
        let minor = u16::try_from(disk).unwrap_or(u16::MAX);
        let (shared, stream) = (Arc::clone(shared), Stream::new(minor));
        Ok(Self { shared, disk, trace, stream, recorded: 0, is_idle: false })
    }

    /// Takes up to [`AT_A_TIME`] notes. Returns whether there may be more.
    fn read(&mut self) -> bool {
        let before = self.recorded;
        let Self { trace, stream, recorded, .. } = self;
        let more = trace.read(AT_A_TIME, |event| {
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
const PATIENCE: Nanos = Nanos::from_secs(5);

/// A log of the calls of a device's scheduler. All bytes are produced at its end, because only then is the length of
/// each part known.
pub(super) struct Elevator {
    shared: Arc<Shared>,
    /// The index of its disk.
    disk: usize,
    log: ElevatorLog,
    counts: Counts,
}

impl Elevator {
    /// Begins a log of `bytes` bytes.
    pub(super) fn begin(
        shared: &Arc<Shared>,
        disk: usize,
        bytes: usize,
    ) -> Result<Self, TraceError> {
        let log = ElevatorLog::new(bytes);
        let observer: Arc<dyn PolicyObserver> = Arc::new(log.clone());
        shared.disks[disk].service().observe_policies(&observer, PATIENCE)?;
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
