//! Announcements by a thread that changes a queue, to all other threads: admit nothing, issue nothing, switch to
//! another queue.
//!
//! | word | 0 | n > 0 |
//! |---|---|---|
//! | `frozen` | runners admit staged bios | n holds: runners admit nothing; staging fills up |
//! | `quiesced` | pumps offer requests to their devices | n holds: pumps offer none |
//!
//! | `version` | |
//! |---|---|
//! | equal to that of the queue that a submitter knows | that queue is current |
//! | another | the queue was rebuilt: the submitter switches to the new one, and marks its staged bios in it |
//! | with `POISONED` | a policy or a device panicked: equal to none, and stays so; every I/O ends |
//!
//! Invariant: once the thread that froze the queue has had a run after [`freeze`](Control::freeze), no run admits
//! anything until the last [`thaw`](Control::thaw); likewise for pumps. Invariant: staged bios are visited in the
//! queue of the latest version.
//!
//! # Why the orderings are enough
//!
//! `frozen` and `quiesced` are read inside a run and a pump's turn. Runs exclude each other, and each begins with an
//! acquire of the release of the run before. The thread that freezes the queue takes every run once, and every later
//! runner sees the word. Earlier runs do not matter. The thread that thaws kicks afterwards, and the pass that is then
//! due sees the word (`run_state`, R1). So relaxed accesses suffice on both sides, except for a submitter that admits
//! outside of a run ([`is_open`](Control::is_open)): a thaw releases the writes made under the freeze, and the
//! submitter acquires them.
//!
//! `version`: a submitter stages, marks its bit in the set of the queue that it knows, and then loads the version,
//! with a full fence in between. The thread that rebuilds publishes the new version, and then, behind a full fence,
//! marks every submitter in the set of the new queue and has that set visited. If the submitter's fence comes first
//! in the order of fences, that visit sees its staged bios. If not, it sees the new version, and marks itself in the
//! new set.
//!
//! `POISONED` is set by a read-modify-write and preserved by another one, so that no rebuild clears it. It is published
//! as a version is, for the same reasons.

use super::{AtomicU32, Ordering, fence};
use crossbeam_utils::CachePadded;

/// In `version`: a policy or a device of the queue panicked. Versions use the lower bits.
const POISONED: u32 = 1 << 31;

struct Words {
    frozen: AtomicU32,
    quiesced: AtomicU32,
    version: AtomicU32,
}

/// One for each queue; it outlasts every rebuild. Rarely written, so that the line stays in every core's cache.
pub(crate) struct Control(CachePadded<Words>);

impl Control {
    pub(crate) fn new() -> Self {
        let zero = || AtomicU32::new(0);
        Self(CachePadded::new(Words { frozen: zero(), quiesced: zero(), version: zero() }))
    }

    pub(crate) fn freeze(&self) {
        let before = self.0.frozen.fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX, "a queue is frozen more often than can be counted");
    }

    /// Returns whether that was the last hold.
    pub(crate) fn thaw(&self) -> bool {
        let before = self.0.frozen.fetch_sub(1, Ordering::Release);
        assert!(before > 0, "a queue is thawed that is not frozen");
        before == 1
    }

    /// Returns whether the queue is frozen. For runners, in their run.
    #[inline]
    pub(crate) fn is_frozen(&self) -> bool {
        self.0.frozen.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn quiesce(&self) {
        let before = self.0.quiesced.fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX, "a queue is quiesced more often than can be counted");
    }

    /// Returns whether that was the last hold.
    pub(crate) fn unquiesce(&self) -> bool {
        let before = self.0.quiesced.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a queue is unquiesced that is not quiesced");
        before == 1
    }

    /// Returns whether the queue is quiesced. For pumps, in their turn.
    #[inline]
    pub(crate) fn is_quiesced(&self) -> bool {
        self.0.quiesced.load(Ordering::Relaxed) > 0
    }

    /// The version of the current queue.
    #[inline]
    pub(crate) fn version(&self) -> u32 {
        self.0.version.load(Ordering::Acquire)
    }

    /// Returns whether the queue of this version is the current one, and not frozen. For a submitter that admits
    /// outside of a run, under a mutex that the thread that freezes the queue takes once as well. Acquires: a caller
    /// that sees the thaw also sees a rebuild that came before it.
    #[cfg(feature = "compare")]
    pub(crate) fn is_open(&self, version: u32) -> bool {
        self.0.frozen.load(Ordering::Acquire) == 0 && self.version() == version
    }

    /// The version after `version`.
    pub(crate) fn next_version(version: u32) -> u32 {
        version.wrapping_add(1) & !POISONED
    }

    /// Makes the queue of this version the current one. A full fence: bios staged by a submitter that does not see
    /// the version are seen after this call. A poisoned queue stays poisoned.
    pub(crate) fn publish(&self, version: u32) {
        assert!(version & POISONED == 0, "a version has 31 bits");
        let next = |old| Some(version | old & POISONED);
        let before = self.0.version.fetch_update(Ordering::Release, Ordering::Relaxed, next);
        before.expect("there is always a next version");
        fence(Ordering::SeqCst);
    }

    /// Makes every submitter find the queue poisoned at its next check. A full fence: if a submitter goes to sleep
    /// without seeing it, the caller's later steps wake it.
    pub(crate) fn poison(&self) {
        self.0.version.fetch_or(POISONED, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Returns whether a policy or a device of the queue has panicked.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.version() & POISONED != 0
    }
}

#[cfg(all(test, loom))]
mod model;
