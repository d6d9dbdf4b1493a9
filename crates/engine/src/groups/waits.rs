//! The times for which groups waited behind groups, as a sum for each pair with such a wait, and the requests that took
//! long.
//!
//! Independent of an elevator: `elevator/timing.rs` finds out which groups wait, and behind which.

use blkmq_core::{GroupIndex, Instant, Nanos, Op};

/// The time for which I/Os of one group waited behind I/Os of another, or of the same group. Never decreases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wait {
    /// The group that waited.
    pub waiting: GroupIndex,
    /// The group that had requests at the device during the wait; `None` if the device had no requests.
    pub behind: Option<GroupIndex>,
    /// The length of the wait.
    pub time: Nanos,
}

/// The sums of a waiting group.
#[derive(Default)]
struct Row {
    /// Nanoseconds in which the device had no requests.
    alone: u64,
    /// Nanoseconds behind each group, sorted by group.
    behind: Vec<(GroupIndex, u64)>,
}

/// Sums in nanoseconds. A pair takes 16 bytes when it first appears; there are at most 1024 x 1024.
#[derive(Default)]
pub(crate) struct WaitSums {
    /// By waiting group.
    rows: Vec<Row>,
}

impl WaitSums {
    /// Adds nanoseconds that `waiting` has waited behind `behind`. O(log groups).
    pub(crate) fn add(&mut self, waiting: GroupIndex, behind: Option<GroupIndex>, time: u64) {
        let at = usize::from(waiting.0);
        if self.rows.len() <= at {
            self.grow(at + 1);
        }
        let row = &mut self.rows[at];
        let Some(group) = behind else {
            row.alone += time;
            return;
        };
        match row.behind.binary_search_by_key(&group, |(id, _)| *id) {
            Ok(at) => row.behind[at].1 += time,
            Err(at) => row.begin(at, group, time),
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, rows: usize) {
        self.rows.resize_with(rows, Row::default);
    }

    /// All non-zero sums, by waiting group; `None` precedes the groups.
    pub(crate) fn all(&self) -> impl Iterator<Item = Wait> + '_ {
        let rows = (0..).map(GroupIndex).zip(&self.rows);
        let waits = rows.flat_map(|(waiting, row)| {
            let wait = move |(behind, time)| Wait { waiting, behind, time: Nanos(time) };
            row.sums().map(wait)
        });
        waits.filter(|wait| wait.time > Nanos::ZERO)
    }

    /// Passes all non-zero sums to `to`, and resets them. Keeps the memory.
    pub(crate) fn drain(&mut self, to: &mut dyn FnMut(Wait)) {
        self.all().for_each(to);
        for row in &mut self.rows {
            row.alone = 0;
            row.behind.iter_mut().for_each(|(_, time)| *time = 0);
        }
    }

    /// Moves the sums of the group `removed`, waiting or waited for, to `heir`.
    pub(crate) fn inherit(&mut self, removed: GroupIndex, heir: GroupIndex) {
        let mut moved = Vec::new();
        if let Some(row) = self.rows.get_mut(usize::from(removed.0)) {
            let row = std::mem::take(row);
            moved.extend(row.sums().map(|(behind, time)| (heir, behind, time)));
        }
        for (waiting, row) in (0..).map(GroupIndex).zip(&mut self.rows) {
            if let Ok(at) = row.behind.binary_search_by_key(&removed, |(id, _)| *id) {
                moved.push((waiting, Some(removed), row.behind.remove(at).1));
            }
        }
        for (waiting, behind, time) in moved {
            let behind = behind.map(|group| if group == removed { heir } else { group });
            self.add(waiting, behind, time);
        }
    }
}

impl Row {
    fn sums(&self) -> impl Iterator<Item = (Option<GroupIndex>, u64)> {
        let behind = self.behind.iter().map(|(group, time)| (Some(*group), *time));
        [(None, self.alone)].into_iter().chain(behind)
    }

    #[cold]
    #[inline(never)]
    fn begin(&mut self, at: usize, group: GroupIndex, time: u64) {
        self.behind.insert(at, (group, time));
    }
}

/// A request that took longer than [`StatsMode::slow`](super::StatsMode::slow), and where its time went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlowIo {
    /// Its group.
    pub group: GroupIndex,
    /// The operation.
    pub op: Op,
    /// The first sector.
    pub sector: u64,
    /// The length in sectors.
    pub sectors: u32,
    /// The time at which its completion was found.
    pub completed: Instant,
    /// From the arrival until the request had a slot.
    pub slot: Nanos,
    /// In the scheduler, while it could have been picked.
    pub policy: Nanos,
    /// In the scheduler, while there was no driver tag, budget or room at the device.
    pub tag: Nanos,
    /// At the device.
    pub device: Nanos,
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn all(sums: &WaitSums) -> Vec<(u16, Option<u16>, u64)> {
        let one = |wait: Wait| (wait.waiting.0, wait.behind.map(|group| group.0), wait.time.0);
        sums.all().map(one).collect()
    }

    fn sums(of: &[(u16, Option<u16>, u64)]) -> WaitSums {
        let mut sums = WaitSums::default();
        for (waiting, behind, time) in of {
            sums.add(GroupIndex(*waiting), behind.map(GroupIndex), *time);
        }
        sums
    }

    #[test]
    fn each_pair_has_a_sum_of_its_own() {
        let mut sums = sums(&[(2, Some(7), 1), (2, Some(1), 10), (0, None, 100), (2, Some(7), 5)]);
        let expected = [(0, None, 100), (2, Some(1), 10), (2, Some(7), 6)];
        assert_eq!(all(&sums), expected);
        let mut drained = WaitSums::default();
        for _ in 0..2 {
            sums.drain(&mut |wait| drained.add(wait.waiting, wait.behind, wait.time.0));
        }
        assert_eq!((all(&drained), all(&sums)), (expected.to_vec(), vec![]));
    }

    #[test]
    fn a_removed_group_leaves_its_sums_to_its_heir_as_one_that_waits_and_as_one_ahead() {
        let mut sums = sums(&[
            (1, None, 1),
            (1, Some(1), 2),
            (1, Some(2), 4),
            (2, Some(1), 8),
            (2, Some(3), 16),
            (3, Some(1), 32),
            (3, Some(2), 64),
        ]);
        sums.inherit(GroupIndex(2), GroupIndex(1));
        let expected =
            [(1, None, 1), (1, Some(1), 2 + 4 + 8), (1, Some(3), 16), (3, Some(1), 32 + 64)];
        assert_eq!(all(&sums), expected);
    }
}
