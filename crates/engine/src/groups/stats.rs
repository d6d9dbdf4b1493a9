//! Statistics of groups: how much is counted, when, and where the numbers are.
//!
//! A policy notes down what happens to groups while its elevator is run (D14). The notes are summed up with the elevator,
//! and every few passes whoever has run it takes them along and counts them when he has let go of it, if nobody else is
//! counting at that moment; if somebody is, they stay. `inline` counts each note at once, under the run, as Linux
//! did before its series on this (`spec/history.md` section 5). It exists to be compared with.

use crate::sync::{Mutex, MutexGuard, PoisonError};
use blkmq_core::GroupId;
use blkmq_sched::{GroupChange, GroupIo, GroupStats, Note, Reading, StatsLevel, Tallies, Tally};

/// How much is counted about groups, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// How much.
    pub level: StatsLevel,
    /// Each event at once, while the elevator is run, instead of afterwards.
    pub inline: bool,
}

/// The numbers of a queue's groups.
pub(crate) struct Ledger(Mutex<Book>);

/// The numbers, and what is to be counted in.
pub(crate) struct Book {
    stats: GroupStats,
    incoming: Vec<Tally>,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Book { stats: GroupStats::new(), incoming: Vec::new() }))
    }

    /// Waits for whoever is counting.
    fn book(&self) -> MutexGuard<'_, Book> {
        // Whatever a panic has left half counted is a number that is a little off.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `notes` if nobody is counting; to be counted with [`Book::count`].
    pub(crate) fn try_take(&self, notes: &mut Tallies) -> Option<MutexGuard<'_, Book>> {
        let mut book = self.0.try_lock().ok()?;
        book.take(notes);
        Some(book)
    }

    /// Takes `notes` and counts them, waiting for whoever is counting.
    pub(crate) fn count(&self, notes: &mut Tallies) {
        let mut book = self.book();
        book.take(notes);
        book.count();
    }

    /// Counts one note at once.
    pub(crate) fn count_one(&self, note: &Note) {
        self.book().stats.apply(note);
    }

    /// The tree of groups has changed.
    pub(crate) fn regroup(&self, changes: impl IntoIterator<Item = GroupChange>) {
        let mut book = self.book();
        book.count();
        changes.into_iter().for_each(|change| book.stats.regroup(change));
    }

    /// What a group and all below it have done.
    pub(crate) fn io(&self, group: GroupId) -> Option<GroupIo> {
        let mut book = self.book();
        book.count();
        book.stats.io(group)
    }

    /// A statistic of a group, as far as it is counted.
    pub(crate) fn read(&self, group: GroupId, name: &str) -> Option<Reading> {
        let mut book = self.book();
        book.count();
        book.stats.read(group, name)
    }
}

impl Book {
    /// Has `notes` counted later.
    pub(crate) fn take(&mut self, notes: &mut Tallies) {
        notes.drain(|tally| self.incoming.push(tally));
    }

    /// Counts in what has come in.
    pub(crate) fn count(&mut self) {
        let Self { stats, incoming } = self;
        incoming.drain(..).for_each(|tally| stats.apply_tally(&tally));
    }
}
