//! How threads reach an elevator: the steps that were proposed for Linux one by one. Each exists as in the kernel, as
//! proposed, and as in this project.
//!
//! In the kernel there is a lock for each merge attempt, each inserted plug and each dispatched request, and a wake-up
//! for each kick. `spec/history.md`, sections 1 to 3, describes the proposals. [`Modes::settle`] says which choices can
//! be combined. `dispatch/compare` implements the kernel's way and the proposals, `dispatch/mod.rs` the way of this
//! project.

use crate::shared::hctx::PluggedRequest;
use crate::sync::{AtomicU32, COMPARE, DelayedWork, DispatchGate, InsertLists, LockKind, Ordering};
use crossbeam_utils::CachePadded;
use std::collections::VecDeque;
use std::fmt;

/// How threads enter the elevator. An option, so that all ways run in the same binary.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Access {
    /// The thread that holds the run serves all submitters; the others stage their bios and continue (decision 0002).
    #[default]
    Combining,
    /// A fair queued spin lock, taken for each bio's merge attempt, once per inserted plug, and for dispatching, as
    /// in the kernel.
    Spin,
    /// Like [`Spin`](Self::Spin), but with a lock that parks its waiters: the fair comparison where threads outnumber
    /// cores.
    Mutex,
    /// The spin lock, and a bit that is set by one dispatcher at a time. A thread that finds the bit set leaves; the
    /// thread that set it continues to dispatch for all (`spec/history.md` section 2).
    Serialised,
}

/// How requests leave an elevator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DispatchMode {
    /// One request per hold of the lock, as in the kernel.
    One,
    /// As many requests per hold of the lock as there are tags and budgets, if the elevator serves the whole queue and
    /// the device is not busy (`spec/framework.md` section 15). The requests of one hold stay together.
    Batch,
    /// In the order of the policy, whichever thread dispatches (decision 0003).
    TotalOrder,
}

/// How a plug gets into an elevator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InsertMode {
    /// Under the lock.
    Direct,
    /// Under the lock if it is free. Otherwise the requests are parked in one of several lists, which the next holder
    /// of the lock takes over. Parked requests merge with nothing.
    PercpuLists,
    /// Through staging, without slots, unless the elevator is free.
    Staged,
}

/// When a bio is offered to merging.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MergeMode {
    /// When it is pushed, under the lock.
    Always,
    /// When it is pushed, if the lock is free.
    SkipWhenContended,
    /// When a runner admits it, always (decision 0002).
    AtDrain,
}

/// How kicks are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KickMode {
    /// Each kick wakes a thread. While the elevator waits, each completed request kicks every hardware queue of the
    /// elevator.
    Always,
    /// Like [`Always`](Self::Always), but a flag drops the kicks between one that wakes a thread and the beginning of
    /// its pass. A pass that is postponed in between stays postponed (`spec/framework.md` section 9.1).
    Flag,
    /// A kick that finds a pass due already wakes no thread. The thread that reaps a completion serves the requests
    /// that wait for one.
    Coalesced,
}

/// An enum whose members have names in command lines and attributes.
macro_rules! named {
    ($($mode:ident [$n:literal]: $($word:literal $member:ident),*;)*) => {$(
        impl $mode {
            /// Every choice, with its name in command lines and attributes.
            pub const ALL: [(&'static str, Self); $n] = [$(($word, Self::$member)),*];

            /// The choice with that name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, mode)| *mode)
            }

            /// The name of this choice.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$member => $word),*
                }
            }
        }

        impl fmt::Display for $mode {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    )*};
}

named! {
    Access [4]: "combining" Combining, "spin" Spin, "mutex" Mutex, "serialised" Serialised;
    DispatchMode [3]: "one" One, "batch" Batch, "total-order" TotalOrder;
    InsertMode [3]: "direct" Direct, "percpu-lists" PercpuLists, "staged" Staged;
    MergeMode [3]: "always" Always, "skip-when-contended" SkipWhenContended, "at-drain" AtDrain;
    KickMode [3]: "always" Always, "flag" Flag, "coalesced" Coalesced;
}

impl Access {
    /// Returns whether the elevator is behind a lock.
    #[must_use]
    pub fn is_locked(self) -> bool {
        self != Self::Combining
    }

    /// The dispatch modes that are possible with this access, its default first.
    #[must_use]
    pub fn dispatch(self) -> &'static [DispatchMode] {
        match self {
            Self::Combining => &[DispatchMode::TotalOrder],
            Self::Spin | Self::Mutex | Self::Serialised => {
                &[DispatchMode::One, DispatchMode::Batch]
            }
        }
    }

    /// The insert modes that are possible with this access, its default first.
    #[must_use]
    pub fn insert(self) -> &'static [InsertMode] {
        match self {
            Self::Combining => &[InsertMode::Staged],
            Self::Spin | Self::Mutex => &[InsertMode::Direct, InsertMode::PercpuLists],
            Self::Serialised => &[InsertMode::PercpuLists, InsertMode::Direct],
        }
    }

    /// The merge modes that are possible with this access, its default first.
    #[must_use]
    pub fn merge(self) -> &'static [MergeMode] {
        match self {
            Self::Combining => &[MergeMode::AtDrain],
            Self::Spin | Self::Mutex => &[MergeMode::Always, MergeMode::SkipWhenContended],
            Self::Serialised => &[MergeMode::SkipWhenContended, MergeMode::Always],
        }
    }
}

/// The choices besides the [`Access`]. `None` stands for the default of that access, the first in its cell:
///
/// | access | dispatch | insert | merge |
/// |---|---|---|---|
/// | combining | total order | staged | at drain |
/// | spin, mutex | one, batch | direct, per-CPU lists | always, skip when contended |
/// | serialised | one, batch | per-CPU lists, direct | skip when contended, always |
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Modes {
    /// How requests leave an elevator.
    pub dispatch: Option<DispatchMode>,
    /// How a plug gets into an elevator.
    pub insert: Option<InsertMode>,
    /// When a bio is offered to merging.
    pub merge: Option<MergeMode>,
    /// How kicks are kept; `None` means coalesced. Every choice is possible with every access.
    pub kick: Option<KickMode>,
}

/// All choices, with the defaults filled in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EffectiveModes {
    /// How threads enter the elevator.
    pub access: Access,
    /// How requests leave the elevator.
    pub dispatch: DispatchMode,
    /// How a plug gets into the elevator.
    pub insert: InsertMode,
    /// When a bio is offered to merging.
    pub merge: MergeMode,
    /// How kicks are kept.
    pub kick: KickMode,
}

impl EffectiveModes {
    /// Returns whether requests are parked in lists while the lock is taken.
    pub(crate) fn parks(self) -> bool {
        COMPARE && self.insert == InsertMode::PercpuLists
    }

    /// The lock around an elevator or a pump; `None` if it is entered by a run.
    pub(crate) fn lock(self) -> Option<LockKind> {
        match self.access {
            Access::Combining => None,
            Access::Spin | Access::Serialised => Some(LockKind::Spin),
            Access::Mutex => Some(LockKind::Mutex),
        }
    }

    /// The work item to which kicks go; `None` if they go to the word of the run.
    pub(crate) fn work(self) -> Option<fn() -> DelayedWork> {
        match self.kick {
            KickMode::Coalesced => None,
            KickMode::Always => Some(DelayedWork::always),
            KickMode::Flag => Some(DelayedWork::with_flag),
        }
    }
}

/// The names of the modes of `option` that are possible with `access`, for messages.
pub(crate) fn accepted(access: Access, option: &str) -> Vec<&'static str> {
    match option {
        "dispatch" => access.dispatch().iter().map(|mode| mode.name()).collect(),
        "insert" => access.insert().iter().map(|mode| mode.name()).collect(),
        "merge" => access.merge().iter().map(|mode| mode.name()).collect(),
        _ => KickMode::ALL.iter().map(|(name, _)| *name).collect(),
    }
}

/// The most lists of an elevator; submitters share them by their numbers.
const LISTS: u16 = 32;

/// The lists and promises that all threads share.
///
/// Insertion as proposed in 2024: a thread that finds the lock taken parks its requests in a list, and the next holder
/// of the lock takes them over (`spec/history.md` section 2).
///
/// As in that proposal, a parked request has its slot, and no bio merges with it, because merging does not search the
/// lists. A bio needs its own slot if its neighbour is parked, or if its merge attempt was skipped. If no slot is left
/// the bio waits for one, and its merge attempt is not repeated. When a request is taken over, or gets a slot, it is
/// tried against the held requests like every inserted request; by then its neighbour may have been issued. So the
/// device receives more and smaller requests (decision 0002).
///
/// *Slots.* They are assigned under the lock, so without it they can only be promised: as many as were free when the
/// lock was last released, less those promised since ([`Promises`]). A parked request that is taken over precedes
/// everything else, which keeps its promise, except for the few slots that the holder of the lock takes in the
/// meantime. A request that then lacks its slot waits ahead of everything else, in [`Parked::line`].
pub(crate) struct Parking {
    pub(crate) lists: InsertLists<PluggedRequest>,
    pub(crate) promises: Box<[CachePadded<Promises>]>,
}

/// Slots of one hardware queue that may be promised: a hint, exact except for slots that the holder of the lock takes.
///
/// | word | `promise(n)` | `give_back(n)` | `renew(free)`, under the lock |
/// |---|---|---|---|
/// | 0 | none | n | the free slots, less those promised and not taken over |
/// | m | the smaller of n and m; the rest stays | m + n | likewise |
pub(crate) struct Promises(AtomicU32);

/// The state that belongs to the holder of the lock.
pub(crate) struct Parked {
    /// Requests that were taken over but lack the promised slot. They precede everything else.
    pub(crate) line: VecDeque<PluggedRequest>,
    pub(crate) lanes: Box<[Lane]>,
}

#[derive(Clone, Copy)]
pub(crate) struct Lane {
    /// The word after the last renewal.
    pub(crate) published: u32,
    /// Slots promised at that time and not taken over since. Wraps below zero if more were taken over.
    pub(crate) promised: u32,
}

impl Promises {
    pub(crate) fn promise(&self, want: u32) -> u32 {
        let take = |left: u32| Some(left - want.min(left));
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        want.min(before.expect("there is always a next word"))
    }

    /// Returns promises that were not used.
    pub(crate) fn give_back(&self, slots: u32) {
        self.0.fetch_add(slots, Ordering::Relaxed);
    }

    pub(crate) fn renew(&self, free: u32, lane: &mut Lane) {
        // Promises are also returned, so more may be left than were published.
        let promised = |left: u32| lane.promised.wrapping_add(lane.published.wrapping_sub(left));
        let next = |left: u32| free.saturating_sub(promised(left));
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(next(n)));
        let left = before.expect("there is always a next word");
        *lane = Lane { published: next(left), promised: promised(left) };
    }
}

impl Parking {
    /// Lists for `slots` slots of each of `lanes` hardware queues.
    pub(crate) fn new(submitters: u16, lanes: u16, slots: u32) -> Self {
        let promises = |_| CachePadded::new(Promises(AtomicU32::new(slots)));
        Self {
            lists: InsertLists::new(submitters.min(LISTS)),
            promises: (0..lanes).map(promises).collect(),
        }
    }
}

impl Parked {
    /// As [`Parking::new`]; always empty in the modes that do not park.
    pub(crate) fn new(modes: EffectiveModes, lanes: u16, slots: u32) -> Self {
        let lanes = if modes.parks() { lanes } else { 0 };
        let lane = Lane { published: slots, promised: 0 };
        Self { line: VecDeque::new(), lanes: vec![lane; lanes.into()].into_boxed_slice() }
    }

    pub(crate) fn line(&self) -> &VecDeque<PluggedRequest> {
        &self.line
    }

    /// Leaves the bios in the line with the orphans.
    pub(crate) fn clear(&mut self) {
        self.line.drain(..).for_each(|proto| proto.bio.orphan());
    }

    /// Takes the oldest bio for which `is` is true out of the line.
    pub(crate) fn remove(
        &mut self,
        is: impl FnMut(&PluggedRequest) -> bool,
    ) -> Option<PluggedRequest> {
        let at = self.line.iter().position(is)?;
        self.line.remove(at)
    }
}

pub(crate) struct ShardModes {
    /// Requests held, for the locked modes' check before they take the lock. Written under the lock.
    pub(crate) held: CachePadded<AtomicU32>,
    /// Admits one dispatcher, where dispatching is serialised.
    pub(crate) serial: Option<CachePadded<DispatchGate>>,
    /// Requests parked while the lock was taken, in the modes that park them.
    pub(crate) parking: Option<Parking>,
}

impl ShardModes {
    /// The words for `slots` slots of each of `lanes` hardware queues.
    pub(crate) fn new(modes: EffectiveModes, submitters: u16, lanes: u16, slots: u32) -> Self {
        let serial = COMPARE && modes.access == Access::Serialised;
        Self {
            held: CachePadded::default(),
            serial: serial.then(|| CachePadded::new(DispatchGate::new())),
            parking: modes.parks().then(|| Parking::new(submitters, lanes, slots)),
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    fn settled(access: Access, modes: Modes) -> String {
        match modes.settle(access) {
            Ok(all) => {
                let EffectiveModes { access, dispatch, insert, merge, kick } = all;
                format!("{access} {dispatch} {insert} {merge} {kick}")
            }
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn each_access_has_modes_that_go_with_it() {
        let own = |access| settled(access, Modes::default());
        assert_eq!(own(Access::Combining), "combining total-order staged at-drain coalesced");
        assert_eq!(own(Access::Spin), "spin one direct always coalesced");
        assert_eq!(own(Access::Mutex), "mutex one direct always coalesced");
        assert_eq!(
            own(Access::Serialised),
            "serialised one percpu-lists skip-when-contended coalesced"
        );
    }

    #[test]
    fn what_was_chosen_counts_or_is_refused_with_what_is_accepted() {
        let batch = Modes { dispatch: Some(DispatchMode::Batch), ..Modes::default() };
        assert_eq!(settled(Access::Spin, batch), "spin batch direct always coalesced");
        assert_eq!(
            settled(Access::Combining, batch),
            "this dispatch does not go with access=combining; accepted: total-order"
        );
        let staged = Modes { insert: Some(InsertMode::Staged), ..Modes::default() };
        assert_eq!(
            settled(Access::Serialised, staged),
            "this insert does not go with access=serialised; accepted: percpu-lists, direct"
        );
        let drain = Modes { merge: Some(MergeMode::AtDrain), ..Modes::default() };
        assert_eq!(
            settled(Access::Mutex, drain),
            "this merge does not go with access=mutex; accepted: always, skip-when-contended"
        );
        for (access, kick) in Access::ALL.iter().zip([KickMode::Always, KickMode::Flag]) {
            let modes = Modes { kick: Some(kick), ..Modes::default() };
            assert!(settled(access.1, modes).ends_with(kick.name()));
        }
    }

    #[test]
    fn names_lead_back() {
        for (name, mode) in MergeMode::ALL {
            assert_eq!((mode.name(), MergeMode::from_name(name)), (name, Some(mode)));
        }
        assert_eq!(Access::from_name("rcu"), None);
    }

    /// Regression test: a promise that was returned after the renewal had counted it, because the queue was frozen in
    /// the meantime, made the subtraction overflow; in a release build nothing showed it.
    #[test]
    fn a_promise_given_back_late_counts_once() {
        let (promises, mut lane) =
            (Promises(AtomicU32::new(8)), Lane { published: 8, promised: 0 });
        assert_eq!((promises.promise(3), promises.promise(9)), (3, 5));
        promises.renew(8, &mut lane);
        assert_eq!((lane.promised, lane.published), (8, 0));
        promises.give_back(5);
        promises.renew(8, &mut lane);
        assert_eq!((lane.promised, lane.published), (3, 5));
        // The three requests are taken over with their slots.
        lane.promised = lane.promised.wrapping_sub(3);
        promises.renew(5, &mut lane);
        assert_eq!((lane.promised, lane.published, promises.promise(9)), (0, 5, 5));
    }
}
