//! Bugs that tests plant, to prove that the tests find them. In every other build [`is`] is the constant `false`.

#![forbid(unsafe_code)]

/// A step that is left out or done wrongly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Planted {
    /// A change is answered before the records say which legs have missed it.
    AnswersEarly,
    /// A change begins before the records say that the legs may differ.
    ChangesClean,
    /// Changes that overlap, or that meet a copy, do not wait for each other.
    HoldsNoRange,
    /// Reads come from legs that are behind, too.
    ReadsBehind,
    /// A copied leg is in step before it is flushed.
    JoinsUnflushed,
    /// Records say that the legs have the same bytes before the legs are flushed.
    CleansUnflushed,
    /// A leg that is behind gets bytes before it says so.
    BeginsSilently,
    /// All legs that were in step stay so, even if they may differ.
    TrustsAll,
}

/// Returns whether this bug is planted.
#[cfg(not(test))]
#[inline(always)]
pub(super) const fn is(_: Planted) -> bool {
    false
}

#[cfg(test)]
pub(super) use tests::{is, plant};

#[cfg(test)]
mod tests {
    use super::Planted;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
    }

    pub(in super::super) fn is(bug: Planted) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// Plants `bug` and no other, for the calling thread.
    pub(in super::super) fn plant(bug: Option<Planted>) {
        PLANTED.set(bug);
    }
}
