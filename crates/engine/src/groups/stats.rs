//! Statistics of groups: how much is counted, when, and where the numbers are.
//!
//! A policy notes down what happens to groups while its elevator is run (D14). The notes lie with the elevator, and
//! whoever has run it takes them along and counts them when he has let go of it, if nobody else is counting at that
//! moment; if somebody is, they stay until the next run. `inline` counts each note at once, under the run, as Linux
//! did before its series on this (`spec/history.md` section 5). It exists to be compared with.

use crate::sync::{Mutex, MutexGuard, PoisonError};
use blkmq_core::GroupId;
use blkmq_sched::{GroupChange, GroupStats, Note, Reading, StatsLevel, Tallies, Tally};
use std::cell::RefCell;

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

/// What was noted down and not counted yet: sums where sums will do, and the rest one by one.
#[derive(Default)]
pub(crate) struct Notes {
    sums: RefCell<Tallies>,
    others: RefCell<Vec<Note>>,
}

impl Notes {
    /// Where policies sum up by themselves.
    #[inline]
    pub(crate) fn sums(&self) -> &RefCell<Tallies> {
        &self.sums
    }

    pub(crate) fn push(&self, note: &Note) {
        if !self.sums.borrow_mut().add(note.about, note.what) {
            self.others.borrow_mut().push(*note);
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.sums.borrow().is_empty() && self.others.borrow().is_empty()
    }
}

/// The numbers, and what is to be counted in.
pub(crate) struct Book {
    stats: GroupStats,
    sums: Vec<Tally>,
    others: Vec<Note>,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Book { stats: GroupStats::new(), sums: Vec::new(), others: Vec::new() }))
    }

    /// Waits for whoever is counting.
    fn book(&self) -> MutexGuard<'_, Book> {
        // Whatever a panic has left half counted is a number that is a little off.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `notes` if nobody is counting; to be counted with [`Book::count`].
    pub(crate) fn try_take(&self, notes: &Notes) -> Option<MutexGuard<'_, Book>> {
        let mut book = self.0.try_lock().ok()?;
        book.take(notes);
        Some(book)
    }

    /// Takes `notes` and counts them, waiting for whoever is counting.
    pub(crate) fn count(&self, notes: &Notes) {
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

    /// A statistic of a group, as far as it is counted.
    pub(crate) fn read(&self, group: GroupId, name: &str) -> Option<Reading> {
        let mut book = self.book();
        book.count();
        book.stats.read(group, name)
    }
}

impl Book {
    /// What is in `notes` comes after all that came in before.
    pub(crate) fn take(&mut self, notes: &Notes) {
        notes.sums.borrow_mut().drain(|tally| self.sums.push(tally));
        let mut others = notes.others.borrow_mut();
        if self.others.is_empty() {
            std::mem::swap(&mut self.others, &mut others);
        } else {
            self.others.append(&mut others);
        }
    }

    /// Counts in what has come in. What is summed up and what has an order do not touch the same numbers.
    pub(crate) fn count(&mut self) {
        let Self { stats, sums, others } = self;
        sums.drain(..).for_each(|tally| stats.apply_tally(&tally));
        others.drain(..).for_each(|note| stats.apply(&note));
    }
}
