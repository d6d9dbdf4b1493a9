//! [`Trace`]: the events of a queue's requests while I/O runs, for as long as requested.
//!
//! Each elevator records what its runner sees, in its own ring of fixed size; a thread that does no I/O reads it. A
//! note that finds its ring full is dropped and counted, so no I/O waits for a reader. Without a trace there is no
//! ring, and the elevator has only the branch that it also needs for times (`elevator/watch.rs`).
//!
//! Times of issue and completion are the times at which runners see them, as in [`QueueTimes`](crate::QueueTimes). A
//! trace continues when the queue is changed, under the next scheduler. It has no format; the reader chooses one.

use crate::sync::{Arc, Consumer, Counter, Mutex, MutexGuard, PoisonError, Producer, ring};
use blkmq_core::{GroupIndex, Instant, IoFlags, IoMeta, IoResult, Op};
use crossbeam_utils::CachePadded;
use std::fmt;

/// The most notes that the ring of one elevator may have: 40 bytes each, 160 MiB in total.
pub const MAX_TRACE_NOTES: u32 = 1 << 22;

/// The event that a note records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceWhat {
    /// An I/O was submitted. A divided I/O has several such events.
    Queued,
    /// An I/O became a separate request.
    Got,
    /// An I/O joined a request at its end, in a plug or in the scheduler; or a request was merged into another.
    BackMerged,
    /// An I/O joined a request at its start, in the scheduler.
    FrontMerged,
    /// A request was inserted into the scheduler.
    Inserted,
    /// A request was picked for the device. A flush of the device has no sectors.
    Issued,
    /// The device completed a request.
    Completed(IoResult),
    /// A request is to be issued again.
    Requeued,
}

/// An event of an I/O or a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceEvent {
    /// When it happened, by the clock of the queue's callers.
    pub at: Instant,
    /// The kind of event.
    pub what: TraceWhat,
    /// The number of the elevator.
    pub elevator: u16,
    /// The group of the I/O.
    pub group: GroupIndex,
    /// The operation.
    pub op: Op,
    /// Its flags, as the device sees them.
    pub flags: IoFlags,
    /// The first sector.
    pub sector: u64,
    /// The length in sectors.
    pub sectors: u32,
}

/// The kind of a note.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// An I/O arrived and became a request: three events in one note.
    Alone,
    /// An I/O arrived, and other I/Os joined it in its plug.
    First,
    /// An I/O arrived, and joined a request at its end.
    Behind,
    /// An I/O arrived, and joined a request at its start.
    Ahead,
    /// The request of several I/Os was inserted into the scheduler.
    Inserted,
    /// A request was merged into another.
    Fused,
    Issued,
    Completed,
    Requeued,
}

/// An entry of a ring.
#[derive(Clone, Copy)]
struct Note {
    at: Instant,
    /// When the I/O arrived.
    arrived: Instant,
    sector: u64,
    sectors: u32,
    group: GroupIndex,
    /// 0 for success.
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

/// An elevator's end of a trace. Dropping it ends the elevator's part.
pub(crate) struct Tap {
    notes: Producer<Note>,
    lost: Arc<CachePadded<Counter>>,
}

impl Tap {
    /// Writes a note about `io`, with the time and, for a completion, the result. Drops and counts it if there is no
    /// room.
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
    /// Notes dropped at ends that are closed.
    lost: u64,
}

/// The part of a trace that belongs to the plan of its queue.
pub(crate) struct Shared {
    /// The number of notes in the ring of each elevator.
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

/// A trace in progress, for its reader. It continues until [`Queue::end_trace`](crate::Queue::end_trace); if this is
/// dropped before, notes are lost.
#[derive(Debug)]
pub struct Trace {
    shared: Arc<Shared>,
}

impl Trace {
    /// A trace without taps, with room for `notes` notes in each ring.
    pub(crate) fn new(notes: u32) -> Self {
        let ends = Mutex::new(Ends { open: Vec::new(), lost: 0 });
        Self { shared: Arc::new(Shared { room: notes, ends }) }
    }

    /// The part that belongs to the queue.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Takes out up to `most` notes, oldest first within each elevator, and passes their events to `look`; one note has
    /// up to three events. Returns whether there may be more. The times of an elevator's events never decrease, except
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

    /// The number of notes that were dropped because the reader was too slow.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let ends = self.shared.ends();
        ends.lost + ends.open.iter().map(|end| end.lost.get()).sum::<u64>()
    }
}

impl Ends {
    /// Drops ends that are read to the end and whose elevators are gone.
    fn close(&mut self) {
        let lost = &mut self.lost;
        self.open.retain_mut(|end| {
            // In this order: once the tap's count is the only one left, all notes that it wrote are visible.
            let is_over = Arc::strong_count(&end.lost) == 1 && end.notes.is_empty();
            if is_over {
                *lost += end.lost.get();
            }
            !is_over
        });
    }
}
