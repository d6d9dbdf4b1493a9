//! [`Carrier`]: performs the requests of one client of a disk, each as one or several I/Os.
//!
//! Each virtual machine and each block device has one on its thread, and defines its requests and answers: `T` is all
//! that it keeps of a request in flight.

use crate::export::{MOST_QUEUES, Served};
use crate::flight::{Buffers, Cookie, Flights, Long, Steps, Work, Zeroes};
use crate::log::Rarely;
use crate::threads::{DiskClient, Inbox, Sleeper, Spin};
use crate::worker::Shared;
use blkmq::core::IoPrio;
use blkmq::{AlignedBuf, Bytes, Client, Clock, Io, IoError, IoResult, Nanos, Refusal, SECTOR_SIZE};
use rustix::event::epoll;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Bytes charged for every request in addition to its data.
const OVERHEAD: usize = 256;

/// The numbers of events of every carrier.
pub(crate) const INBOX: u64 = 0;
pub(crate) const DISK: u64 = 1;
/// The maximum number of events taken from the kernel at a time.
pub(crate) const EVENTS: usize = 16;
/// How often polling may find requests or completions before messages are checked.
pub(crate) const LOOKS: usize = 64;
/// How often queues are polled before messages are: a disk that completes each I/O within its push could be busy for
/// ever.
pub(crate) const ROUNDS: usize = 8;
/// The maximum sleep, and the interval for checking an end, or whether an export has been removed.
pub(crate) const TICK: Nanos = Nanos::from_millis(1000);
pub(crate) const SOON: Nanos = Nanos::from_millis(50);

pub(crate) struct Carrier<T> {
    /// The name of the export.
    pub(crate) name: String,
    pub(crate) shared: Arc<Shared>,
    /// The index of the disk among those of the server.
    pub(crate) disk: usize,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) disk_client: DiskClient,
    pub(crate) sleeper: Sleeper,
    pub(crate) clock: Clock,
    /// Learns whether to poll before sleeping.
    pub(crate) spin: Spin,
    faults: Rarely,
    /// Finished requests. Empty between calls; keeps its capacity.
    pub(crate) finished: Vec<Finished<T>>,
    buffers: Buffers,
    flights: Flights<Flight<T>>,
    /// An I/O that got no credit. No other I/O may begin before it.
    held: Option<(Cookie, Io<AlignedBuf>)>,
    /// Requests with a further step or portion to begin, by their places.
    unfinished: VecDeque<u32>,
    ended: Vec<(Cookie, IoResult, AlignedBuf)>,
    /// Bytes of requests in flight.
    bytes: usize,
    /// The number of the present turn, which wraps around.
    turn: u32,
}

#[derive(Debug)]
struct Flight<T> {
    to: T,
    ioprio: IoPrio,
    work: Work,
    /// The offset on the disk of the last I/O that began, in bytes.
    at: u64,
    /// Bytes charged for the request.
    bytes: usize,
}

/// A request whose I/Os have all completed.
#[derive(Debug)]
pub(crate) struct Finished<T> {
    pub(crate) to: T,
    pub(crate) work: Work,
    pub(crate) result: IoResult,
    /// The data of a read that was one I/O.
    pub(crate) payload: AlignedBuf,
    at: u64,
}

impl<T> Carrier<T> {
    /// Creates the carrier of the export named `name` on `disk`, with a client of the disk.
    ///
    /// # Errors
    /// If the kernel refuses descriptors.
    pub(crate) fn new(
        (name, disk): (&str, usize),
        mut client: Client<AlignedBuf>,
        shared: Arc<Shared>,
        inbox: Arc<Inbox>,
    ) -> io::Result<Self> {
        let clock = Clock::start();
        let sleeper = Sleeper::without_looks(clock)?;
        sleeper.watch(&*inbox, INBOX)?;
        sleeper.watch(client.event_fd()?, DISK)?;
        Ok(Self {
            name: name.to_owned(),
            disk,
            inbox,
            disk_client: DiskClient::new(client),
            sleeper,
            clock,
            spin: Spin::default(),
            faults: Rarely::default(),
            finished: Vec::new(),
            buffers: Buffers::new(shared.bounds.bytes_per_turn),
            shared,
            flights: Flights::default(),
            held: None,
            unfinished: VecDeque::new(),
            ended: Vec::new(),
            bytes: 0,
            turn: 0,
        })
    }

    /// Sleeps until an event, and for at most `most`.
    ///
    /// # Errors
    /// If the kernel refuses to wait.
    pub(crate) fn sleep(&mut self, most: Nanos, events: &mut Vec<epoll::Event>) -> io::Result<()> {
        let disks = std::slice::from_mut(&mut self.disk_client);
        self.sleeper.wait((DISK, disks), most, events)
    }

    /// Logs a fault of the export's client, or counts it for the next line.
    pub(crate) fn fault(&mut self, line: impl FnOnce(u64, &str)) {
        self.faults.log(self.clock.now(), |before| line(before, &self.name));
    }

    /// Logs the failure of the device, if there was one.
    pub(crate) fn tell_of(&self, done: &Finished<T>) {
        if let Err(error) = done.result
            && ![IoError::CANCELLED, IoError::NOT_SUPPORTED].contains(&error)
        {
            self.shared.disks[self.disk].failed(&self.name, (done.work.name(), done.at), error);
        }
    }

    /// The maximum length of a read or write that is one I/O, in bytes.
    pub(crate) fn portion(&self) -> usize {
        self.buffers.portion()
    }

    pub(crate) fn len(&self) -> usize {
        self.flights.len()
    }

    /// Returns whether another request may begin, with at most `most` bytes of requests in flight.
    pub(crate) fn has_room(&self, most: usize) -> bool {
        self.bytes < most && self.held.is_none()
    }

    /// Returns whether there is work that does not wait for an event.
    pub(crate) fn is_due(&self) -> bool {
        !self.ended.is_empty() || self.held.is_none() && !self.unfinished.is_empty()
    }

    /// Returns whether an I/O has completed, or may have.
    pub(crate) fn has_ended(&self) -> bool {
        // A refused I/O leaves nothing in flight.
        !self.ended.is_empty() || self.disk_client.has_work()
    }

    /// Begins the next turn of the thread: a step that begins in a turn may end in it.
    pub(crate) fn next_turn(&mut self) {
        self.turn = self.turn.wrapping_add(1);
    }

    pub(crate) fn flush(&mut self, (to, ioprio): (T, IoPrio), export: &Served) {
        self.begin(Flight { to, ioprio, work: Work::Plain, at: 0, bytes: 0 }, Io::flush(), export);
    }

    /// Begins a read of `len` bytes from byte `at` of `export` on.
    pub(crate) fn read(
        &mut self,
        (to, ioprio): (T, IoPrio),
        export: &Served,
        (at, len): (u64, u32),
    ) {
        let at = export.start + at;
        let (bytes, portion) = (len as usize, self.portion());
        let flight = |work| Flight { to, ioprio, work, at, bytes };
        if bytes > portion {
            let long = Work::Long(Long::read(at, len, portion as u32));
            return self.begin_unfinished(flight(long), export);
        }
        let io = Io::read(Bytes(at), self.buffers.cleared(bytes, export.clears));
        self.begin(flight(Work::Read(len)), io, export);
    }

    /// Begins a write of `len` bytes to `export` at byte `at`, durable on completion if `fua`. `fill` copies its data,
    /// beginning at the offset that it is given, before the source can be changed again.
    ///
    /// # Errors
    /// If `fill` returns false; returns the request.
    pub(crate) fn write(
        &mut self,
        (to, ioprio): (T, IoPrio),
        export: &Served,
        (at, len, fua): (u64, u32, bool),
        mut fill: impl FnMut(&T, &mut [u8], usize) -> bool,
    ) -> Result<(), T> {
        let at = export.start + at;
        let (bytes, portion) = (len as usize, self.portion());
        let mut payloads = Vec::new();
        for begin in (0..bytes).step_by(portion) {
            let mut buffer = self.buffers.take(portion.min(bytes - begin));
            if !fill(&to, buffer.as_mut_slice(), begin) {
                return Err(to);
            }
            if bytes <= portion {
                let io = Io::write(Bytes(at), buffer);
                let io = if fua { io.fua() } else { io };
                let flight = Flight { to, ioprio, work: Work::Write(len), at, bytes };
                self.begin(flight, io, export);
                return Ok(());
            }
            payloads.push(buffer);
        }
        let work = Work::Long(Long::write(at, payloads, fua));
        self.begin_unfinished(Flight { to, ioprio, work, at, bytes }, export);
        Ok(())
    }

    /// Begins a discard of these bytes of `export`, which must support discards.
    pub(crate) fn discard(
        &mut self,
        (to, ioprio): (T, IoPrio),
        export: &Served,
        range: Range<u64>,
    ) {
        let range = export.start + range.start..export.start + range.end;
        let at = range.start;
        let work = Work::Steps(Steps::trim(range, export.discard, false));
        self.begin_unfinished(Flight { to, ioprio, work, at, bytes: 0 }, export);
    }

    /// Begins to zero these bytes of `export`, without a hole if `no_hole`.
    pub(crate) fn zero(
        &mut self,
        (to, ioprio): (T, IoPrio),
        export: &Served,
        (range, no_hole, fua): (Range<u64>, bool, bool),
    ) {
        let range = export.start + range.start..export.start + range.end;
        let (at, portion) = (range.start, self.portion());
        let can = export.zeroes > 0 && (export.zeroing.keeps_room || !no_hole);
        let steps = if can {
            let zeroes = Zeroes { no_hole, otherwise: Some(portion) };
            Steps::zero(range, export.zeroes, fua, zeroes)
        } else {
            Steps::fill(range, portion, fua)
        };
        let work = Work::Steps(steps);
        self.begin_unfinished(Flight { to, ioprio, work, at, bytes: 0 }, export);
    }

    fn insert(&mut self, mut flight: Flight<T>) -> u32 {
        flight.bytes += OVERHEAD;
        self.bytes += flight.bytes;
        self.flights.insert(flight)
    }

    /// Begins a request of one I/O.
    fn begin(&mut self, flight: Flight<T>, io: Io<AlignedBuf>, export: &Served) {
        let place = self.insert(flight);
        self.push(Cookie { place, portion: 0 }, io, export);
    }

    /// Begins a request of several I/Os.
    fn begin_unfinished(&mut self, flight: Flight<T>, export: &Served) {
        let place = self.insert(flight);
        self.unfinished.push_back(place);
        self.go_on(export);
    }

    /// Pushes I/Os that have waited for credit, and begins steps and portions of unfinished requests, oldest first.
    pub(crate) fn go_on(&mut self, export: &Served) {
        if let Some((cookie, io)) = self.held.take() {
            self.push(cookie, io, export);
        }
        while self.held.is_none() {
            let Some(place) = self.unfinished.pop_front() else { return };
            let Self { flights, buffers, turn, .. } = self;
            let flight = flights.get_mut(place);
            let take = |len| buffers.cleared(len, export.clears);
            let (portion, io, has_more) = match &mut flight.work {
                Work::Long(long) => {
                    let (portion, io) = long.begin(take);
                    (portion, io, long.has_more())
                }
                // The next step begins when this one has completed.
                Work::Steps(steps) => (0, steps.begin(*turn, take), false),
                Work::Read(_) | Work::Write(_) | Work::Plain => continue,
            };
            flight.at = io.sector * u64::from(SECTOR_SIZE);
            if has_more {
                self.unfinished.push_back(place);
            }
            self.push(Cookie { place, portion }, io, export);
        }
    }

    /// Pushes an I/O. Without credit it waits, and so do all later requests.
    fn push(&mut self, cookie: Cookie, io: Io<AlignedBuf>, export: &Served) {
        let ioprio = self.flights.get_mut(cookie.place).ioprio;
        let io = io.cookie(cookie.into()).owner(export.owner(ioprio)).group(export.group.id());
        if let Err(refused) = self.disk_client.client.line_up(io.ioprio(ioprio)) {
            if matches!(refused.why, Refusal::NoCredit { .. }) {
                self.held = Some((cookie, refused.into_io()));
                return;
            }
            let result = Err(refused.why.into());
            self.ended.push((cookie, result, refused.into_io().payload));
        }
    }

    /// Flushes the plug, reaps completions, and appends finished requests to `finished`. Returns whether an I/O has
    /// completed.
    pub(crate) fn reap(&mut self, finished: &mut Vec<Finished<T>>) -> bool {
        let Self { disk_client, ended, .. } = self;
        disk_client.reap(|cookie, result, payload| ended.push((cookie, result, payload)));
        let mut ended = std::mem::take(&mut self.ended);
        let has_some = !ended.is_empty();
        finished.extend(
            ended
                .drain(..)
                .filter_map(|(cookie, result, payload)| self.end(cookie, result, payload)),
        );
        self.ended = ended;
        has_some
    }

    /// Handles a completed I/O, which may be followed by a further step, or finish its request.
    fn end(
        &mut self,
        Cookie { place, portion }: Cookie,
        mut result: IoResult,
        mut payload: AlignedBuf,
    ) -> Option<Finished<T>> {
        let mut goes_on = false;
        match &mut self.flights.get_mut(place).work {
            Work::Steps(steps) => {
                if result == Err(IoError::NOT_SUPPORTED) && steps.falls_back() {
                    result = Ok(());
                }
                goes_on = result.is_ok() && !steps.is_over();
                if goes_on {
                    steps.end(self.turn);
                    self.unfinished.push_back(place);
                }
            }
            Work::Long(long) => {
                long.end(portion, result, std::mem::take(&mut payload));
                goes_on = !long.is_over();
                result = long.result;
                if result.is_err() {
                    self.unfinished.retain(|other| *other != place);
                }
            }
            Work::Read(_) | Work::Write(_) | Work::Plain => {}
        }
        (!goes_on).then(|| self.finish(place, result, payload))
    }

    fn finish(&mut self, place: u32, result: IoResult, payload: AlignedBuf) -> Finished<T> {
        let Flight { to, work, at, bytes, .. } = self.flights.remove(place);
        self.bytes -= bytes;
        Finished { to, work, result, payload, at }
    }

    /// Gives up all I/Os that have not begun, and appends the requests that this finishes to `finished`.
    pub(crate) fn give_up(&mut self, finished: &mut Vec<Finished<T>>) {
        if let Some((cookie, io)) = self.held.take() {
            finished.extend(self.end(cookie, Err(IoError::CANCELLED), io.payload));
        }
        while let Some(place) = self.unfinished.pop_front() {
            let over = match &mut self.flights.get_mut(place).work {
                Work::Long(long) => {
                    long.stop(Err(IoError::CANCELLED));
                    long.is_over()
                }
                _ => true,
            };
            if over {
                let cancelled = Err(IoError::CANCELLED);
                finished.push(self.finish(place, cancelled, AlignedBuf::empty()));
            }
        }
    }
}

/// # Errors
/// If a disk of a machine or a block device cannot have so many queues.
pub(crate) fn check_queues(queues: u16) -> io::Result<()> {
    if (1..=MOST_QUEUES).contains(&queues) {
        return Ok(());
    }
    let text = format!("{queues} queues; accepted: 1 to {MOST_QUEUES}");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}
