//! I/Os that wait for the ceilings of their groups without credit, for a client that many callers share.
//!
//! The engine holds back an I/O that comes too early for a ceiling, and the I/O keeps its credit in the meantime
//! (`throttle.rs` there). That slows down a caller with few I/Os, as it should. Where callers of several groups share a
//! client, however, one group at its ceiling would use up the credit of all. So only the first I/O of each kind, that
//! is, of each group and direction, waits in the engine. The following ones wait in rows here, and each is pushed when
//! the one before has left. The rows have no bound: a program that shares a client must bound the I/Os that its callers
//! hand in.

use super::Client;
use blkmq_core::{GroupId, Instant, Op, Payload};
use blkmq_engine::{Io, Refusal, Refused};
use std::collections::VecDeque;

/// The reads of a group, or all of its other I/Os. I/Os of one kind wait behind each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Kind {
    group: GroupId,
    reads: bool,
}

impl Kind {
    pub(crate) fn of<P>(io: &Io<P>) -> Self {
        Self { group: io.group, reads: io.op == Op::Read }
    }
}

/// The I/Os of one kind, oldest first.
#[derive(Debug)]
struct Row<P> {
    kind: Kind,
    ios: VecDeque<Io<P>>,
}

/// The rows of a client. Empty rows are kept for reuse.
#[derive(Debug)]
pub(super) struct Kept<P> {
    rows: Vec<Row<P>>,
    /// The number of I/Os in all rows.
    len: u32,
    /// I/Os that the queue refused when their turn came.
    refused: VecDeque<Refused<P>>,
}

impl<P> Kept<P> {
    pub(super) fn new() -> Self {
        Self { rows: Vec::new(), len: 0, refused: VecDeque::new() }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(super) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// The number of I/Os not returned yet.
    #[inline]
    pub(super) fn outstanding(&self) -> u32 {
        self.len + self.refused.len() as u32
    }

    fn has(&self, kind: Kind) -> bool {
        self.rows.iter().any(|row| row.kind == kind && !row.ios.is_empty())
    }

    fn add(&mut self, io: Io<P>) {
        self.len += 1;
        let kind = Kind::of(&io);
        let same = self.rows.iter().position(|row| row.kind == kind);
        let at = same.or_else(|| self.rows.iter().position(|row| row.ios.is_empty()));
        match at.map(|at| &mut self.rows[at]) {
            Some(row) => {
                row.kind = kind;
                row.ios.push_back(io);
            }
            None => self.rows.push(Row { kind, ios: VecDeque::from([io]) }),
        }
    }
}

impl<P: Payload> Client<P> {
    /// As [`push`](Self::push), unless I/Os of the same group and direction already wait for a ceiling: then the I/O
    /// joins the line behind them, and takes no credit until its turn comes. For a client that callers of several
    /// groups share. The line has no bound, so callers should limit their I/Os.
    ///
    /// An I/O in line is [outstanding](Self::outstanding), and [`cancel`](Self::cancel) does not find it. If the queue
    /// refuses it when its turn comes, [`take_refused`](Self::take_refused) returns it. It is lost if the client is
    /// dropped. O(lines).
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn line_up(&mut self, io: Io<P>) -> Result<(), Refused<P>> {
        self.line_up_at(self.clock.now(), io)
    }

    pub(crate) fn line_up_at(&mut self, now: Instant, io: Io<P>) -> Result<(), Refused<P>> {
        if self.submitter.is_throttled(io.group, io.op) || self.kept.has(Kind::of(&io)) {
            self.kept.add(io);
            return Ok(());
        }
        self.submitter.push(now, io)
    }

    /// An I/O that was [in line](Self::line_up), and that the queue refused when its turn came; `None` if there is
    /// none. Callers should ask for such I/Os after each wait.
    pub fn take_refused(&mut self) -> Option<Refused<P>> {
        self.kept.refused.pop_front()
    }

    /// Pushes the I/Os in line whose turn has come.
    #[inline]
    pub(super) fn feed(&mut self, now: Instant) {
        if !self.kept.is_empty() {
            self.feed_rows(now);
        }
    }

    #[cold]
    fn feed_rows(&mut self, now: Instant) {
        let Self { kept: Kept { rows, len, refused }, submitter, .. } = self;
        'rows: for row in rows {
            while let Some(io) = row.ios.front()
                && !submitter.is_throttled(io.group, io.op)
            {
                let io = row.ios.pop_front().expect("it was seen just now");
                match submitter.push(now, io) {
                    Ok(()) => *len -= 1,
                    Err(why) if matches!(why.why, Refusal::NoCredit { .. }) => {
                        // The I/O is pushed first once there is credit.
                        row.ios.push_front(why.into_io());
                        break 'rows;
                    }
                    Err(why) => {
                        *len -= 1;
                        refused.push_back(why);
                    }
                }
            }
        }
        submitter.flush(now);
    }

    /// Returns whether there are I/Os in line.
    pub(crate) fn has_kept(&self) -> bool {
        !self.kept.is_empty()
    }

    /// I/Os in line of this kind. O(lines).
    pub(crate) fn kept_of(&self, kind: Kind) -> usize {
        let row = self.kept.rows.iter().find(|row| row.kind == kind);
        row.map_or(0, |row| row.ios.len())
    }

    /// The lines and their lengths.
    pub(crate) fn kept(&self) -> impl Iterator<Item = (Kind, usize)> + '_ {
        self.kept.rows.iter().map(|row| (row.kind, row.ios.len()))
    }

    /// Removes the I/O in line with this cookie. O(I/Os in line).
    pub(crate) fn take_kept(&mut self, cookie: u64) -> Option<Io<P>> {
        let Kept { rows, len, .. } = &mut self.kept;
        let io = rows.iter_mut().find_map(|row| {
            let at = row.ios.iter().position(|io| io.cookie == cookie)?;
            row.ios.remove(at)
        })?;
        *len -= 1;
        Some(io)
    }

    /// Removes all I/Os in line.
    pub(crate) fn drain_kept(&mut self) -> impl Iterator<Item = Io<P>> + '_ {
        self.kept.len = 0;
        self.kept.rows.iter_mut().flat_map(|row| row.ios.drain(..))
    }
}
