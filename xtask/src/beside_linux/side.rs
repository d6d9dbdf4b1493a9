//! The two sides that are compared.

/// Both sides, in the order of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    Linux,
    Ours,
}

impl Side {
    pub(super) const BOTH: [Self; 2] = [Self::Linux, Self::Ours];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Linux => "Linux",
            Self::Ours => "blkmq",
        }
    }
}
