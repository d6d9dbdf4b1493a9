//! Statistics of groups: how much is counted, when, and where the numbers are kept.
//!
//! A policy notes events of groups while its elevator runs. The notes are summed up beside the elevator. Every few
//! passes the runner moves the sums to the ledger, and counts them after it has released the elevator; if another
//! thread is counting at that moment, the sums stay with the elevator. `inline` counts each note immediately, under the
//! run, as Linux did before its patches on this (`spec/history.md` section 5). It exists for comparison (decision
//! 0008).

use super::times::{Account, Counted};
use crate::sync::{Mutex, MutexGuard, PoisonError};
use blkmq_core::{GroupIndex, Nanos};
use blkmq_sched::{
    Floors, GroupChange, GroupIo, GroupStats, Note, Reading, StatsLevel, Tallies, Tally,
};

/// How much is counted about groups, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatsMode {
    /// How much.
    pub level: StatsLevel,
    /// Count each event immediately, while the elevator runs, instead of after the run.
    pub inline: bool,
    /// Count where the time of requests goes ([`Queue::times`](crate::Queue::times)).
    pub times: bool,
    /// With `times`: list requests that take longer than this ([`Queue::take_slow`](crate::Queue::take_slow)); zero for
    /// no list.
    pub slow: Nanos,
}

/// The numbers of a queue's groups.
pub(crate) struct Ledger(Mutex<Book>);

/// The numbers, and the sums that have yet to be added to them.
pub(crate) struct Book {
    stats: GroupStats,
    incoming: Vec<Tally>,
    pub(crate) account: Account,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Book {
            stats: GroupStats::new(),
            incoming: Vec::new(),
            account: Account::default(),
        }))
    }

    /// Locks the book, waiting for another thread that counts.
    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        // If a panic has left numbers half counted, they are only a little off.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves `notes` into the book, unless another thread is counting. [`Book::count`] then counts them.
    pub(crate) fn try_take(&self, notes: &mut Tallies) -> Option<MutexGuard<'_, Book>> {
        let mut book = self.0.try_lock().ok()?;
        book.take(notes);
        Some(book)
    }

    /// Counts `notes`, waiting for another thread that counts.
    pub(crate) fn count(&self, notes: &mut Tallies) {
        let mut book = self.book();
        book.take(notes);
        book.count();
    }

    /// Takes over the times counted by elevator number `shard`.
    pub(crate) fn count_times(&self, shard: u16, counted: &mut Counted) {
        self.book().account.take(shard, counted);
    }

    /// Takes over the counts of floors from an elevator.
    pub(crate) fn count_floors(&self, floors: &mut Floors) {
        let account = &mut self.book().account;
        floors.take(&mut |report| account.add_floor(&report));
    }

    /// Counts one note immediately.
    pub(crate) fn count_one(&self, note: &Note) {
        self.book().stats.apply(note);
    }

    /// Applies changes of the tree of groups.
    pub(crate) fn regroup(&self, changes: impl IntoIterator<Item = GroupChange>) {
        let mut book = self.book();
        book.count();
        changes.into_iter().for_each(|change| {
            book.stats.regroup(change);
            book.account.regroup(change);
        });
    }

    /// The I/O of a group and its descendants; `None` if it is not counted.
    pub(crate) fn io(&self, group: GroupIndex) -> Option<GroupIo> {
        let mut book = self.book();
        book.count();
        book.stats.io(group)
    }

    /// A statistic of a group; `None` if it is not counted.
    pub(crate) fn read(&self, group: GroupIndex, name: &str) -> Option<Reading> {
        let mut book = self.book();
        book.count();
        book.stats.read(group, name)
    }
}

impl Book {
    /// Takes over `notes`, to be counted later.
    pub(crate) fn take(&mut self, notes: &mut Tallies) {
        notes.drain(|tally| self.incoming.push(tally));
    }

    /// Adds the sums taken so far to the numbers.
    pub(crate) fn count(&mut self) {
        let Self { stats, incoming, .. } = self;
        incoming.drain(..).for_each(|tally| stats.apply_tally(&tally));
    }
}
