//! The ties of a thread to other threads: ending several threads with the first of them (`exitall` and `exit_what`),
//! starting after other threads (`wait_for`), and sharing the I/Os by weight (`flow`).
//!
//! The threads of one flow have weights. A thread whose share of the I/Os exceeds its share of the weights waits for
//! the others. A thread that ends takes its weight and its I/Os out of the sums. The counts only measure work and
//! protect no memory; a thread that reads an old count issues an I/O more or less.

use blkmq_core::Nanos;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The ties of one thread. Most threads have none.
#[derive(Debug, Default)]
pub struct Ties {
    /// Shared with the threads that end when one of them ends.
    pub exit: Option<Exit>,
    /// The threads that have to end before this one starts.
    pub after: Option<Awaited>,
    /// The memberships of the thread in groups of threads that others wait for.
    pub awaited: Vec<Member>,
    /// The thread's share of the I/Os of its flow.
    pub flow: Option<FlowShare>,
}

/// A group of threads that another thread waits for. Clones are the same group.
#[derive(Clone, Debug, Default)]
pub struct Awaited(Arc<AtomicU32>);

impl Awaited {
    /// One more thread.
    #[must_use]
    pub fn member(&self) -> Member {
        self.0.fetch_add(1, Ordering::Relaxed);
        Member(Some(Arc::clone(&self.0)))
    }

    /// Returns whether all threads have ended.
    pub(super) fn are_over(&self) -> bool {
        // The counts of the threads are read after they were joined.
        self.0.load(Ordering::Relaxed) == 0
    }
}

/// The membership of a thread in an [`Awaited`]. Dropping it ends the membership, so that no other thread waits for one
/// that has panicked.
#[derive(Debug)]
pub struct Member(Option<Arc<AtomicU32>>);

impl Member {
    /// The thread has ended.
    pub(super) fn end(&mut self) {
        if let Some(threads) = self.0.take() {
            threads.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.end();
    }
}

/// `exit_what`: the threads that end together with a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ExitWhat {
    /// The threads of its reporting group.
    #[default]
    Group,
    /// The threads that run beside it, up to the next stonewall.
    Stonewall,
    /// All, including those that have not begun.
    All,
}

impl ExitWhat {
    /// Each with fio's word for it.
    pub const NAMES: [(Self, &'static str); 3] =
        [(Self::Group, "group"), (Self::Stonewall, "stonewall"), (Self::All, "all")];
}

/// The flag of a thread's group, and the flags that the thread sets when it ends. Clones share the flags.
#[derive(Clone, Debug, Default)]
pub struct Exit {
    word: Arc<AtomicBool>,
    others: Vec<Arc<AtomicBool>>,
}

impl Exit {
    /// The flag of `self`, for a thread that also ends the threads of `others`.
    #[must_use]
    pub fn with<'a>(&self, others: impl IntoIterator<Item = &'a Self>) -> Self {
        let others = others.into_iter().map(|other| Arc::clone(&other.word)).collect();
        Self { word: Arc::clone(&self.word), others }
    }

    /// A thread has ended.
    pub(super) fn end(&self) {
        for word in std::iter::once(&self.word).chain(&self.others) {
            // Readers of this flag read no other data.
            word.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether one of the threads has ended.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.word.load(Ordering::Relaxed)
    }
}

/// `flow` and its companions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// `flow`: the weight of each thread of the job, at least 1.
    pub weight: u32,
    /// `flow_id`: jobs with the same number share.
    pub id: u32,
    /// `flow_sleep`: the time after which a thread that is ahead checks again.
    pub sleep: Nanos,
}

/// The minimum time after which a thread that is ahead checks again; fio's threads spin.
const LOOK: Nanos = Nanos::from_micros(1);

/// The I/Os and weights of all threads of a flow. Clones are the same flow.
#[derive(Clone, Debug, Default)]
pub struct FlowPool(Arc<Sums>);

#[derive(Debug, Default)]
struct Sums {
    ios: AtomicU64,
    weight: AtomicU64,
}

impl FlowPool {
    /// The share of one more thread.
    #[must_use]
    pub fn join(&self, flow: Flow) -> FlowShare {
        self.0.weight.fetch_add(flow.weight.into(), Ordering::Relaxed);
        let look = flow.sleep.max(LOOK);
        FlowShare { sums: Arc::clone(&self.0), weight: flow.weight.into(), look, ios: 0 }
    }
}

/// One thread's share. Dropping it leaves the flow.
#[derive(Debug)]
pub struct FlowShare {
    sums: Arc<Sums>,
    weight: u64,
    look: Nanos,
    ios: u64,
}

impl FlowShare {
    /// How long to wait if this thread is ahead of the others; `None` if it may continue. There is always a thread that
    /// may continue.
    pub(super) fn hold(&self) -> Option<Nanos> {
        let (ios, weight) = (&self.sums.ios, &self.sums.weight);
        let all = u128::from(ios.load(Ordering::Relaxed));
        let weights = u128::from(weight.load(Ordering::Relaxed));
        (u128::from(self.ios) * weights > u128::from(self.weight) * all).then_some(self.look)
    }

    /// The thread has issued an I/O.
    pub(super) fn count(&mut self) {
        self.ios += 1;
        self.sums.ios.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for FlowShare {
    fn drop(&mut self) {
        self.sums.ios.fetch_sub(self.ios, Ordering::Relaxed);
        self.sums.weight.fetch_sub(self.weight, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_ends_twice_or_is_lost_counts_once() {
        let all = Awaited::default();
        let (mut first, second) = (all.member(), all.member());
        assert!(!all.are_over());
        first.end();
        first.end();
        assert!(!all.are_over());
        drop(second);
        assert!(all.are_over());
    }

    #[test]
    fn a_thread_ends_its_group_and_the_others_that_it_names() {
        let groups = [Exit::default(), Exit::default(), Exit::default()];
        let over = || groups.each_ref().map(Exit::is_over);
        groups[0].with([]).end();
        assert_eq!(over(), [true, false, false]);
        groups[1].with(&groups[2..]).end();
        assert_eq!(over(), [true, true, true]);
    }

    fn flow(weight: u32) -> Flow {
        Flow { weight, id: 0, sleep: Nanos::ZERO }
    }

    /// Threads that always want to issue, in turn; the I/Os that each issues in `turns` turns.
    fn issued(shares: &mut [FlowShare], turns: u32) -> Vec<u64> {
        for _ in 0..turns {
            let before = shares.iter().filter(|share| share.hold().is_none()).count();
            assert!(before > 0, "all of them wait");
            for share in shares.iter_mut() {
                if share.hold().is_none() {
                    share.count();
                }
            }
        }
        shares.iter().map(|share| share.ios).collect()
    }

    #[test]
    fn shares_are_those_of_the_weights() {
        let pool = FlowPool::default();
        let mut shares = Vec::from_iter([1, 2, 5].map(|weight| pool.join(flow(weight))));
        let ios = issued(&mut shares, 10_000);
        for (ios, weight) in ios.iter().zip([1, 2, 5]) {
            assert!((ios / weight).abs_diff(ios.div_ceil(weight)) <= 1);
            assert!((ios / weight).abs_diff(shares[0].ios) <= 2, "{ios} for a weight of {weight}");
        }
    }

    #[test]
    fn a_thread_that_ends_holds_no_other_back() {
        let pool = FlowPool::default();
        let mut shares = Vec::from_iter([1, 1, 2].map(|weight| pool.join(flow(weight))));
        issued(&mut shares, 100);
        shares.truncate(2);
        let before = [shares[0].ios, shares[1].ios];
        let after = issued(&mut shares, 100);
        assert!(after.iter().zip(before).all(|(after, before)| after - before >= 99));
        shares.truncate(1);
        assert_eq!(shares[0].hold(), None, "alone");
    }
}
