//! Groups of owners: a tree with names, weights, limits and floors, and the statistics of groups.
//!
//! The tree is part of a queue's [`Plan`](crate::Plan), so it can be changed while I/O runs. Schedulers that share by
//! weight are notified of it ([`GroupChange`]); the submitters enforce limits, under every scheduler (`throttle.rs`).
//! The tree does not say which owners are in a group: every I/O names its group.

mod limits;
mod meters;
mod times;
mod tree;
mod waits;

pub(crate) use limits::micros;
pub use limits::{Burst, IoMax, IoMaxError, Promise, PromiseError};
pub(crate) use meters::{Meters, Stand};
pub(crate) use times::{Counted, Spent};
pub use times::{IoTimes, KINDS, Latencies};
pub(crate) use tree::DEFAULT_WEIGHT;
pub use tree::{
    Group, GroupError, GroupSpec, GroupTree, MAX_GROUPS, MAX_WEIGHT, weight_of_io_weight,
};
pub(crate) use waits::WaitSums;
pub use waits::{SlowIo, Wait};

use crate::groups::times::Account;
use crate::sync::{Mutex, MutexGuard, PoisonError};
use blkmq_core::{GroupId, GroupIndex, Nanos};
use blkmq_sched::{
    Capacity, Floors, GroupChange, GroupIo, GroupStats, Note, Rate, Reading, StatsLevel, Tallies,
    Tally,
};
use std::fmt;

/// Floors that the scheduler cannot keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FloorsError {
    /// The scheduler.
    pub scheduler: &'static str,
    /// The share of the capacity that the floors take, in hundredths of a percent.
    pub promised: u64,
    /// The capacity; `None` if the scheduler keeps no floors.
    pub capacity: Option<Capacity>,
}

impl fmt::Display for FloorsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scheduler, promised, capacity } = self;
        match capacity {
            None => write!(
                f,
                "{scheduler} keeps no floors, and groups have reserve_iops, reserve_bps or reserve_percent; accepted: \
                 scheduler mclock, or the word overcommit"
            ),
            Some(Capacity { iops, bps, safe_percent }) => write!(
                f,
                "the floors of all groups take {}.{:02} % of the device, of which {safe_percent} % are safe (of \
                 {iops} IOPS and {bps} bytes a second, as {scheduler} is told by rrandiops and rbps); accepted: smaller \
                 floors, the capacity as it is, or the word overcommit",
                promised / 100,
                promised % 100,
            ),
        }
    }
}

impl std::error::Error for FloorsError {}

impl GroupTree {
    /// The sum of the floors directly below `parent`, in millionths of `capacity`. A group counts with its own floor,
    /// or with the floors below it if these are larger.
    fn floors_below(&self, parent: GroupId, capacity: &Capacity) -> u128 {
        let children = self.iter().filter(|group| group.parent == parent);
        let floor = |rate: &Rate| capacity.millionths(rate);
        children
            .map(|group| {
                floor(&group.promise.guarantee.reserve).max(self.floors_below(group.id, capacity))
            })
            .sum()
    }

    /// Checks that `scheduler`, which has this capacity, can keep all floors.
    pub(crate) fn check_floors(
        &self,
        scheduler: &'static str,
        capacity: Option<Capacity>,
    ) -> Result<(), FloorsError> {
        let without_floors = self.iter().all(|group| group.promise.guarantee.reserve.is_none());
        if without_floors || self.iter().any(|group| group.promise.overcommit) {
            return Ok(());
        }
        let promised = capacity.map_or(0, |of| self.floors_below(GroupId::ROOT, &of));
        let safe = capacity.map_or(0, |of| u128::from(of.safe_percent) * 10_000);
        if capacity.is_some() && promised <= safe {
            return Ok(());
        }
        let promised = u64::try_from(promised / 100).unwrap_or(u64::MAX);
        Err(FloorsError { scheduler, promised, capacity })
    }
}

/// The statistics that are kept about groups, and when they are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatsMode {
    /// The level of detail.
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
///
/// A policy notes events of groups while its elevator runs. The notes are summed up beside the elevator. Every few
/// passes the runner moves the sums to the ledger, and counts them after it has released the elevator; if another
/// thread is counting at that moment, the sums stay with the elevator. `inline` counts each note immediately, under the
/// run, as Linux did before its patches on this (`spec/history.md` section 5). It exists for comparison (decision
/// 0008).
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{GroupSpec, Promise};
    use blkmq_sched::Guarantee;

    const CAPACITY: Capacity = Capacity { iops: 1_000, bps: 100_000_000, safe_percent: 90 };

    fn tree(floors: &[(&str, &str, Rate)]) -> GroupTree {
        let wanted = |&(name, parent, reserve): &(&str, &str, Rate)| GroupSpec {
            name: name.into(),
            parent: parent.into(),
            promise: Promise {
                guarantee: Guarantee { reserve, ..Guarantee::default() },
                ..Promise::default()
            },
            ..GroupSpec::default()
        };
        GroupTree::of(floors.iter().map(wanted).collect()).expect("a tree")
    }

    fn iops(iops: u64) -> Rate {
        Rate { iops, ..Rate::default() }
    }

    #[test]
    fn what_is_below_a_group_is_part_of_its_floor() {
        let floors = [("a", "/", iops(500)), ("b", "a", iops(300)), ("c", "/", iops(400))];
        assert_eq!(tree(&floors).check_floors("mclock", Some(CAPACITY)), Ok(()));
        let more = [floors[0], ("b", "a", iops(501)), floors[2]];
        let error = tree(&more).check_floors("mclock", Some(CAPACITY)).expect_err("too much");
        assert_eq!(error.promised, 90_10);
        let text = error.to_string();
        assert!(text.contains("90.10 % of the device, of which 90 % are safe"), "{text}");
        assert!(text.contains("1000 IOPS and 100000000 bytes") && text.contains("overcommit"));
    }

    #[test]
    fn an_explicit_word_allows_what_cannot_be_kept() {
        let rates = Rate { iops: 300, bps: 30_000_000, percent: 31 };
        let mut tree = tree(&[("a", "/", rates)]);
        assert!(tree.check_floors("mclock", Some(CAPACITY)).is_err());
        let none = tree.check_floors("none", None).expect_err("it keeps none").to_string();
        assert!(none.contains("none keeps no floors") && none.contains("mclock"), "{none}");
        let promise = Promise::default().set("reserve_iops=2000 overcommit=1").expect("right");
        tree.set_promise("a", promise).expect("there");
        assert_eq!(tree.check_floors("mclock", Some(CAPACITY)), Ok(()));
        assert_eq!(tree.check_floors("none", None), Ok(()));
    }
}
