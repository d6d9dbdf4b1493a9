//! Why a node of the tree was served: the charge depends on that.

/// Why a node was served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    /// The floor of this node was due; below it, weights decided.
    Floor(u32),
    /// It was its turn by weight.
    Turn,
    /// Outside its turn: more of a batch, or a request at the head.
    Extra,
}

/// How a node was served, as far as its siblings are concerned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Served {
    InTurn,
    Ahead,
    Extra,
}
