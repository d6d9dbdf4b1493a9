//! [`Stream`]: a trace of a running queue as a stream of blktrace's records, in the order of their times.
//!
//! An elevator reports an I/O when it takes it in, which may be long after its arrival. So events wait for earlier
//! ones, for a bounded time and up to a bounded number. An event that comes later still is written out of order with
//! its true time, which readers of traces tolerate since several CPUs write them.
//!
//! The CPU of a record is the number of the elevator. Its process is the group, named by the caller.

use crate::record::{self, Act, Record, category};
use blkmq_core::{GroupIndex, Instant, Nanos, SECTOR_SIZE};
use blkmq_engine::{TraceEvent, TraceWhat};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, BinaryHeap};

/// The time that an event waits for earlier ones.
const HOLD: Nanos = Nanos::from_millis(100);
/// The most events that wait: some 4 MiB.
const MOST: usize = 1 << 16;

/// Converts events to records.
#[derive(Debug)]
pub struct Stream {
    device: u32,
    waiting: BinaryHeap<Reverse<Waiting>>,
    /// The number of events so far.
    pushed: u64,
    /// The number of records so far, by elevator.
    written: Vec<u32>,
    /// The groups whose names have been written.
    named: BTreeSet<GroupIndex>,
}

#[derive(Debug)]
struct Waiting {
    event: TraceEvent,
    /// Events of the same time keep their order.
    number: u64,
}

impl Waiting {
    fn key(&self) -> (Instant, u64) {
        (self.event.at, self.number)
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Waiting {}

/// The waiting events that are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Those that have waited until this time, and those beyond the most that may wait.
    Until(Instant),
    /// All events: the trace has ended.
    End,
}

impl Stream {
    /// Creates a stream for the device with this minor number.
    #[must_use]
    pub fn new(minor: u16) -> Self {
        Self {
            device: record::MAJOR | u32::from(minor),
            waiting: BinaryHeap::new(),
            pushed: 0,
            written: Vec::new(),
            named: BTreeSet::new(),
        }
    }

    /// Adds an event. O(log waiting).
    pub fn push(&mut self, event: TraceEvent) {
        self.waiting.push(Reverse(Waiting { event, number: self.pushed }));
        self.pushed += 1;
    }

    /// Appends the records of events that need not wait. Before the first record of a group comes its name, given by
    /// `name`.
    pub fn write(
        &mut self,
        order: Order,
        mut name: impl FnMut(GroupIndex) -> String,
        out: &mut Vec<u8>,
    ) {
        while let Some(Reverse(first)) = self.waiting.peek() {
            let waits = match order {
                Order::Until(now) => now.since(first.event.at) < HOLD,
                Order::End => false,
            };
            if waits && self.waiting.len() <= MOST {
                break;
            }
            let Some(Reverse(Waiting { event, .. })) = self.waiting.pop() else { break };
            if self.named.insert(event.group) {
                let payload = record::process_name(&name(event.group));
                let action = u64::from(category::NOTIFY) << 16;
                self.put(&event, Record { action, payload: &payload, ..self.plain(&event) }, out);
            }
            self.put(&event, self.about(&event), out);
        }
    }

    /// A record with the time and sector of `event`, without a payload.
    fn plain(&self, event: &TraceEvent) -> Record<'static> {
        Record {
            sequence: 0,
            time: event.at.as_nanos(),
            sector: 0,
            bytes: 0,
            action: 0,
            pid: event.group.0.into(),
            device: self.device,
            cpu: event.elevator.into(),
            error: 0,
            payload: &[],
        }
    }

    fn about(&self, event: &TraceEvent) -> Record<'static> {
        let TraceEvent { what, op, flags, sector, sectors, .. } = *event;
        let act = match what {
            TraceWhat::Queued => Act::Queue,
            TraceWhat::Got => Act::GetRequest,
            TraceWhat::BackMerged => Act::BackMerge,
            TraceWhat::FrontMerged => Act::FrontMerge,
            TraceWhat::Inserted => Act::Insert,
            TraceWhat::Issued => Act::Issue,
            TraceWhat::Completed(_) => Act::Complete,
            TraceWhat::Requeued => Act::Requeue,
        };
        let error = match what {
            TraceWhat::Completed(Err(error)) => error.0,
            _ => 0,
        };
        let bytes = sectors.saturating_mul(SECTOR_SIZE);
        let action = record::action(act, op, flags).into();
        Record { sector, bytes, action, error, ..self.plain(event) }
    }

    /// Appends `record` with the next sequence number of its CPU.
    fn put(&mut self, event: &TraceEvent, record: Record<'_>, out: &mut Vec<u8>) {
        let cpu = usize::from(event.elevator);
        if self.written.len() <= cpu {
            self.written.resize(cpu + 1, 0);
        }
        self.written[cpu] = self.written[cpu].wrapping_add(1);
        Record { sequence: self.written[cpu], ..record }.encode(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::records;
    use blkmq_core::{IoError, IoFlags, Op};

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    fn event(us: u64, elevator: u16, what: TraceWhat) -> TraceEvent {
        let (group, flags) = (GroupIndex(7), IoFlags::SYNC);
        TraceEvent {
            at: at(us),
            what,
            elevator,
            group,
            op: Op::Read,
            flags,
            sector: us,
            sectors: 8,
        }
    }

    fn told(bytes: &[u8]) -> Vec<(u64, u32, u32, Option<Act>)> {
        let all = records(bytes).map(|it| it.expect("written here"));
        all.map(|it| (it.time / 1000, it.cpu, it.sequence, it.act())).collect()
    }

    #[test]
    fn events_of_several_elevators_go_out_in_the_order_of_their_times() {
        let mut stream = Stream::new(2);
        for (us, elevator, what) in [
            (10, 0, TraceWhat::Issued),
            (30, 0, TraceWhat::Completed(Err(IoError::IO))),
            (5, 1, TraceWhat::Queued),
            (10, 1, TraceWhat::Got),
        ] {
            stream.push(event(us, elevator, what));
        }
        let mut out = Vec::new();
        let name = |group: GroupIndex| format!("group {}", group.0);
        stream.write(Order::Until(at(100_009)), name, &mut out);
        assert_eq!(told(&out), [(5, 1, 1, None), (5, 1, 2, Some(Act::Queue))]);
        stream.write(Order::Until(at(100_010)), name, &mut out);
        stream.write(Order::End, name, &mut out);
        let rest = [
            (10, 0, 1, Some(Act::Issue)),
            (10, 1, 3, Some(Act::GetRequest)),
            (30, 0, 2, Some(Act::Complete)),
        ];
        assert_eq!(told(&out)[2..], rest);
        let all: Vec<_> = records(&out).map(|it| it.expect("written here")).collect();
        assert_eq!(&all[0].payload[..7], b"group 7");
        assert!(all.iter().all(|it| it.pid == 7 && it.device == record::MAJOR | 2));
        assert_eq!((all[4].error, all[4].bytes, all[4].sector), (IoError::IO.0, 4096, 30));
    }

    #[test]
    fn no_more_events_wait_than_there_is_room_for() {
        let mut stream = Stream::new(0);
        let (mut out, count) = (Vec::new(), MOST as u64 + 100);
        (0..count).for_each(|n| stream.push(event(n, 0, TraceWhat::Queued)));
        stream.write(Order::Until(at(0)), |_| String::new(), &mut out);
        // A name, and the oldest 100 records; the others have not waited long enough.
        assert_eq!(records(&out).count(), 101);
        assert_eq!(stream.waiting.len(), MOST);
        let last = told(&out).pop().expect("there are some");
        assert_eq!(last, (99, 0, 101, Some(Act::Queue)));
    }

    #[test]
    fn an_event_that_comes_too_late_keeps_its_time() {
        let mut stream = Stream::new(0);
        let mut out = Vec::new();
        stream.push(event(500, 0, TraceWhat::Issued));
        stream.write(Order::End, |_| String::new(), &mut out);
        stream.push(event(2, 0, TraceWhat::Queued));
        stream.write(Order::End, |_| String::new(), &mut out);
        assert_eq!(told(&out)[1..], [(500, 0, 2, Some(Act::Issue)), (2, 0, 3, Some(Act::Queue))]);
    }
}
