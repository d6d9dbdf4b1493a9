//! [`Trace`]: the events of a queue's requests while I/O runs, for as long as it is asked for.
//!
//! Each elevator writes down what its runner sees, in a ring of fixed size of its own; a thread that does no I/O reads.
//! A note that finds its ring full is dropped and counted: no I/O waits for a reader. While no trace is taken there is
//! no ring, and the elevator has the branch that it also has for times (`elevator/watch.rs`).
//!
//! A trace knows what runners know: times of issue and completion are those of [`QueueTimes`](crate::QueueTimes). It
//! stays when the queue is changed, under the scheduler that comes next. It has no format; the reader has.

use crate::Queue;
use crate::reconfiguration::change::{Change, ChangeError};
use crate::reconfiguration::watchers::{PolicyObserver, Watchers};
use crate::sync::{Arc, ArcDyn, Consumer, Counter, Mutex, MutexGuard, PoisonError, Producer, ring};
use blkmq_core::{GroupId, Instant, IoFlags, IoMeta, IoResult, Op};
use crossbeam_utils::CachePadded;
use std::fmt;

/// The most notes that the ring of one elevator may have: 40 bytes each, 160 MiB in all.
pub const MAX_TRACE_NOTES: u32 = 1 << 22;

/// What has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceWhat {
    /// An I/O was submitted. A divided I/O is several of them.
    Queued,
    /// An I/O has a request of its own.
    Got,
    /// An I/O has joined a request at its end, in a plug or in the scheduler; or a request was fused into another.
    BackMerged,
    /// An I/O has joined a request at its start, in the scheduler.
    FrontMerged,
    /// A request went into the scheduler.
    Inserted,
    /// A request was picked for the device. A flush of the device is one without sectors.
    Issued,
    /// The device has ended a request.
    Completed(IoResult),
    /// A request is to be issued again.
    Requeued,
}

/// An event of an I/O or a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceEvent {
    /// When it happened, by the clock of the queue's callers.
    pub at: Instant,
    /// What it was.
    pub what: TraceWhat,
    /// The number of the elevator.
    pub elevator: u16,
    /// The group of the I/O.
    pub group: GroupId,
    /// The operation.
    pub op: Op,
    /// Its flags, as the device sees them.
    pub flags: IoFlags,
    /// The first sector.
    pub sector: u64,
    /// The length in sectors.
    pub sectors: u32,
}

/// What a note is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// An I/O came, and is a request: three events in one note.
    Alone,
    /// An I/O came, and other I/Os joined it in its plug.
    First,
    /// An I/O came, and joined a request at its end.
    Behind,
    /// An I/O came, and joined a request at its start.
    Ahead,
    /// The request of several I/Os went into the scheduler.
    Inserted,
    /// A request was fused into another.
    Fused,
    Issued,
    Completed,
    Requeued,
}

/// An entry of a ring.
#[derive(Clone, Copy)]
struct Note {
    at: Instant,
    /// When the I/O came.
    arrived: Instant,
    sector: u64,
    sectors: u32,
    group: GroupId,
    /// 0 if there is none.
    errno: u16,
    op: Op,
    flags: IoFlags,
    kind: Kind,
}

const _: () = assert!(size_of::<Note>() == 40, "the size is in the text of MAX_TRACE_NOTES");

impl Note {
    /// Passes the events of the note to `look`, in their order.
    fn events(&self, elevator: u16, mut look: impl FnMut(TraceEvent)) {
        let Self { at, arrived, sector, sectors, group, errno, op, flags, kind } = *self;
        let mut event = |at, what| {
            look(TraceEvent { at, what, elevator, group, op, flags, sector, sectors });
        };
        if matches!(kind, Kind::Alone | Kind::First | Kind::Behind | Kind::Ahead) {
            event(arrived, TraceWhat::Queued);
        }
        match kind {
            Kind::Alone => {
                event(at, TraceWhat::Got);
                event(at, TraceWhat::Inserted);
            }
            Kind::First => event(at, TraceWhat::Got),
            Kind::Behind | Kind::Fused => event(at, TraceWhat::BackMerged),
            Kind::Ahead => event(at, TraceWhat::FrontMerged),
            Kind::Inserted => event(at, TraceWhat::Inserted),
            Kind::Issued => event(at, TraceWhat::Issued),
            Kind::Completed => {
                let error = (errno != 0).then_some(blkmq_core::IoError(errno));
                event(at, TraceWhat::Completed(error.map_or(Ok(()), Err)));
            }
            Kind::Requeued => event(at, TraceWhat::Requeued),
        }
    }
}

/// An elevator's end of a trace. Dropping it ends its part.
pub(crate) struct Tap {
    notes: Producer<Note>,
    lost: Arc<CachePadded<Counter>>,
}

impl Tap {
    /// Writes a note about `io`, with the time and, at an end, the result; drops and counts it if there is no room.
    pub(crate) fn note(&mut self, at: Instant, kind: Kind, io: &IoMeta, result: IoResult) {
        let IoMeta { arrived, sector, sectors, group, op, flags, .. } = *io;
        let errno = result.err().map_or(0, |error| error.0);
        let note = Note { at, arrived, sector, sectors, group, errno, op, flags, kind };
        if self.notes.push(note).is_err() {
            self.lost.add(1);
        }
    }
}

/// The reader's end of one ring.
struct End {
    elevator: u16,
    notes: Consumer<Note>,
    lost: Arc<CachePadded<Counter>>,
}

struct Ends {
    open: Vec<End>,
    /// Notes that were dropped at ends that are no longer open.
    lost: u64,
}

/// The part of a trace that belongs to the plan of its queue.
pub(crate) struct Shared {
    /// Notes in the ring of each elevator.
    room: u32,
    ends: Mutex<Ends>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("room", &self.room).finish_non_exhaustive()
    }
}

impl Shared {
    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A tap for `elevator`. Allocates the ring.
    pub(crate) fn tap(&self, elevator: u16) -> Tap {
        let (producer, notes) = ring(self.room);
        let lost = Arc::new(CachePadded::new(Counter::default()));
        self.ends().open.push(End { elevator, notes, lost: Arc::clone(&lost) });
        Tap { notes: producer, lost }
    }
}

/// Why no trace begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceError {
    /// Another trace, or another observer of the policies, is under way.
    Busy,
    /// So many notes cannot be kept.
    Room(u32),
    /// The queue refuses changes now.
    Change(ChangeError),
}

impl From<ChangeError> for TraceError {
    fn from(error: ChangeError) -> Self {
        Self::Change(error)
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("busy: another one of the device is under way"),
            Self::Room(notes) => {
                write!(f, "room for {notes} notes; accepted: 1 to {MAX_TRACE_NOTES}")
            }
            Self::Change(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TraceError {}

/// A trace that is being taken, for its reader. It goes on until [`Queue::end_trace`]; when this is dropped before,
/// notes are lost.
#[derive(Debug)]
pub struct Trace {
    shared: Arc<Shared>,
}

impl Trace {
    /// Takes up to `most` notes out, oldest first within each elevator, and passes their events to `look`; one note has
    /// up to three events. Returns true if there may be more. The times of an elevator's events run forwards, except
    /// those of [`TraceWhat::Queued`], which may be earlier by as long as the I/O has waited for a slot.
    pub fn read(&mut self, most: usize, mut look: impl FnMut(TraceEvent)) -> bool {
        let mut ends = self.shared.ends();
        let mut left = most;
        for End { elevator, notes, .. } in &mut ends.open {
            while left > 0
                && let Some(note) = notes.pop()
            {
                note.events(*elevator, &mut look);
                left -= 1;
            }
        }
        ends.close();
        left == 0
    }

    /// Notes that were dropped because the reader was too slow.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let ends = self.shared.ends();
        ends.lost + ends.open.iter().map(|end| end.lost.get()).sum::<u64>()
    }
}

impl Ends {
    /// Forgets the ends whose elevators have gone and that are read to the end.
    fn close(&mut self) {
        let lost = &mut self.lost;
        self.open.retain_mut(|end| {
            // In this order: what a tap wrote before it was dropped is there when its count is alone.
            let is_over = Arc::strong_count(&end.lost) == 1 && end.notes.is_empty();
            if is_over {
                *lost += end.lost.get();
            }
            !is_over
        });
    }
}

impl<P: Send + 'static> Queue<P> {
    /// Begins a trace, with room for `notes` notes at each elevator, rounded up to a power of two. It takes place in
    /// the steps of the [`Change`], and stops no I/O. There is one trace of a queue at a time.
    ///
    /// # Errors
    /// If there is a trace already, the room is none or more than [`MAX_TRACE_NOTES`], or the queue refuses changes
    /// now.
    pub fn begin_trace(&self, notes: u32) -> Result<(Trace, Change<P>), TraceError> {
        if !(1..=MAX_TRACE_NOTES).contains(&notes) {
            return Err(TraceError::Room(notes));
        }
        let ends = Mutex::new(Ends { open: Vec::new(), lost: 0 });
        let shared = Arc::new(Shared { room: notes, ends });
        let change = self.change_watched(|plan, watchers| match watchers.trace {
            Some(_) => Err(TraceError::Busy),
            None => {
                let trace = Some(Arc::clone(&shared));
                Ok((plan.clone(), Watchers { trace, ..watchers.clone() }))
            }
        })?;
        Ok((Trace { shared }, change))
    }

    /// Has elevators write down the ends of requests that no pass has seen yet: while no I/O comes, there is none. For
    /// readers of traces, between two readings. O(elevators).
    pub fn settle_trace(&self) {
        // Held because elevators are entered here under the number of the thread that changes the queue.
        let _state = self.root.change_state();
        self.root.current().learn_all();
    }

    /// Begins to end `trace`; when the [`Change`] is over, no event is added to it. Those before can still be read.
    ///
    /// # Errors
    /// If the queue refuses changes now.
    pub fn end_trace(&self, trace: &Trace) -> Result<Change<P>, ChangeError> {
        self.settle_trace();
        self.change_watched(|plan, watchers| {
            let mut to = watchers.clone();
            to.trace = to.trace.filter(|mine| !Arc::ptr_eq(mine, &trace.shared));
            Ok((plan.clone(), to))
        })
    }

    /// Puts `observer` around the queue's policies, until [`unobserve_policies`](Self::unobserve_policies). It sees each
    /// policy from its beginning, so the queue gets new ones: it is frozen and drained as for another scheduler, and
    /// what the policies have learnt is lost. There is one observer of a queue at a time.
    ///
    /// # Errors
    /// If there is an observer already, or the queue refuses changes now.
    pub fn observe_policies(
        &self,
        observer: ArcDyn<dyn PolicyObserver>,
    ) -> Result<Change<P>, TraceError> {
        self.change_watched(|plan, watchers| match watchers.observer {
            Some(_) => Err(TraceError::Busy),
            None => {
                let observer = Some(observer);
                Ok((plan.clone(), Watchers { observer, ..watchers.clone() }))
            }
        })
    }

    /// Takes the observer away again, which stops no I/O: the policies stay, with what they have learnt.
    ///
    /// # Errors
    /// If the queue refuses changes now.
    pub fn unobserve_policies(&self) -> Result<Change<P>, ChangeError> {
        self.change_watched(|plan, watchers| {
            Ok((plan.clone(), Watchers { observer: None, ..watchers.clone() }))
        })
    }
}
