//! The ties of a thread to other threads: ending several threads with the first of them (`exitall` and `exit_what`),
//! starting after other threads (`wait_for`), and sharing the I/Os by weight (`flow`); and the failures with which a
//! thread ends: I/Os that failed, I/Os that were given up, and an I/O that took too long.
//!
//! The threads of one flow have weights. A thread whose share of the I/Os exceeds its share of the weights waits for
//! the others. A thread that ends takes its weight and its I/Os out of the sums. The counts only measure work and
//! protect no memory; a thread that reads an old count issues an I/O more or less.

use super::Direction;
use blkmq_core::{IoError, Nanos};
use std::fmt;
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

/// Failed I/Os. No other figure includes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Failures {
    /// The number of failed I/Os, flushes among them.
    pub count: u64,
    /// The first failed I/O that completed.
    pub first: Option<Failed>,
}

/// An I/O that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failed {
    /// Its direction; `None` for a flush.
    pub direction: Option<Direction>,
    /// Its first byte on the device; `None` if no times are taken (`gtod_reduce`).
    pub offset: Option<u64>,
    /// Its length in bytes.
    pub bytes: u64,
    /// The error.
    pub error: IoError,
}

/// `continue_on_error`: the failed I/Os that do not end a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnError {
    /// None of them.
    #[default]
    End,
    /// Reads.
    Reads,
    /// Everything else: as in fio, trims and flushes count as writes.
    Writes,
    /// All of them.
    All,
}

/// EILSEQ, which fio has for wrong contents.
const WRONG_CONTENTS: IoError = IoError(84);

impl OnError {
    /// Each with fio's words for it, the one that fio documents first. Wrong contents end a job only under
    /// `verify_fatal`, so `verify` has nothing to forgive.
    pub const NAMES: [(Self, &'static str); 8] = [
        (Self::End, "none"),
        (Self::Reads, "read"),
        (Self::Writes, "write"),
        (Self::All, "io"),
        (Self::End, "verify"),
        (Self::All, "all"),
        (Self::End, "0"),
        (Self::All, "1"),
    ];

    /// Returns whether a job continues behind an I/O of `direction` (`None` for a flush) that failed with `error`. As
    /// in fio, only EIO and EILSEQ are forgiven.
    #[must_use]
    pub fn forgives(self, direction: Option<Direction>, error: IoError) -> bool {
        let is_among = match self {
            Self::End => false,
            Self::Reads => direction == Some(Direction::Read),
            Self::Writes => direction != Some(Direction::Read),
            Self::All => true,
        };
        is_among && matches!(error, IoError::IO | WRONG_CONTENTS)
    }
}

/// An I/O that took longer than `max_latency`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Late {
    /// Its direction.
    pub direction: Direction,
    /// From the decision to issue it until its completion.
    pub took: Nanos,
    /// The longest time that it may take.
    pub most: Nanos,
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { direction, took, most } = self;
        write!(f, "a {} took {took}, max_latency is {most}", direction.name())
    }
}

impl Failures {
    pub(super) fn note(&mut self, failed: Failed) {
        self.count += 1;
        self.first.get_or_insert(failed);
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { direction, offset, bytes, error } = *self;
        match direction {
            None => f.write_str("a flush")?,
            Some(direction) => write!(f, "a {} of {bytes} bytes", direction.name())?,
        }
        if let (Some(offset), Some(_)) = (offset, direction) {
            write!(f, " at offset {offset}")?;
        }
        let text = error.to_string();
        // The text of an error without a name is its number.
        if text.ends_with(|c: char| c.is_ascii_digit()) {
            write!(f, ": {text}")
        } else {
            write!(f, ": {text} (errno {})", error.0)
        }
    }
}

/// The I/Os of a thread that did not end when its time was over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unfinished {
    /// I/Os in flight when the stall was noticed.
    pub outstanding: u32,
    /// Of these, cancelled before they reached the device.
    pub cancelled: u32,
    /// Of these, never returned: the thread ended without them.
    pub abandoned: u32,
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { outstanding, cancelled, abandoned } = self;
        write!(f, "{outstanding} I/Os did not end with the runtime: {cancelled} cancelled")?;
        write!(f, ", {abandoned} never came back")
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

    #[test]
    fn the_first_failure_is_kept_and_says_what_where_and_why() {
        let mut failures = Failures::default();
        let write = Failed {
            direction: Some(Direction::Write),
            offset: Some(8192),
            bytes: 4096,
            error: IoError::NO_SPACE,
        };
        failures.note(write);
        failures.note(Failed { error: IoError::IO, ..write });
        let text = failures.first.expect("two were noted").to_string();
        assert_eq!(
            (failures.count, text.as_str()),
            (2, "a write of 4096 bytes at offset 8192: no space (errno 28)")
        );
        let elsewhere = Failed { offset: None, error: IoError(30), ..write };
        assert_eq!(elsewhere.to_string(), "a write of 4096 bytes: errno 30");
        let flush = Failed { direction: None, error: IoError::IO, ..write };
        assert_eq!(flush.to_string(), "a flush: I/O error (errno 5)");
    }

    #[test]
    fn errors_of_the_device_are_forgiven_by_direction() {
        use Direction::{Read, Trim, Write};
        let forgiven = |on: OnError| {
            [Some(Read), Some(Write), Some(Trim), None].map(|of| on.forgives(of, IoError::IO))
        };
        assert_eq!(forgiven(OnError::End), [false; 4]);
        assert_eq!(forgiven(OnError::Reads), [true, false, false, false]);
        assert_eq!(forgiven(OnError::Writes), [false, true, true, true]);
        assert_eq!(forgiven(OnError::All), [true; 4]);
        assert!(!OnError::All.forgives(Some(Read), IoError::NO_SPACE), "it would fail for ever");
    }
}
