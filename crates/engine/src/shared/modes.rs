//! How threads reach an elevator: the steps that were proposed for Linux one by one. Each exists as in the kernel, as
//! proposed, and as in this project.
//!
//! In the kernel there is a lock for each merge attempt, each inserted plug and each dispatched request, and a wake-up
//! for each kick. `spec/history.md`, sections 1 to 3, describes the proposals. [`Modes::settle`] says which choices can
//! be combined. `dispatch/compare` implements the kernel's way and the proposals, `dispatch/drive.rs` the way of this
//! project.

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

/// The choices besides the [`Access`]. `None` stands for the default of that access.
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
        self.insert == InsertMode::PercpuLists
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
}
