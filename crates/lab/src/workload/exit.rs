//! The end of several threads with the first of them: fio's `exitall` and `exit_what`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// `exit_what`: the threads that a thread takes with it when it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ExitWhat {
    /// Those of its reporting group.
    #[default]
    Group,
    /// Those that run beside it, up to the next stonewall.
    Stonewall,
    /// All, those that have not begun included.
    All,
}

impl ExitWhat {
    /// Each with fio's word for it.
    pub const NAMES: [(Self, &'static str); 3] =
        [(Self::Group, "group"), (Self::Stonewall, "stonewall"), (Self::All, "all")];
}

/// The word of a thread's group, and the words that the thread says when it ends. Clones are the same words.
#[derive(Clone, Debug, Default)]
pub struct Exit {
    word: Arc<AtomicBool>,
    others: Vec<Arc<AtomicBool>>,
}

impl Exit {
    /// The word of `self`, for a thread that also ends the threads of `others`.
    #[must_use]
    pub fn with<'a>(&self, others: impl IntoIterator<Item = &'a Self>) -> Self {
        let others = others.into_iter().map(|other| Arc::clone(&other.word)).collect();
        Self { word: Arc::clone(&self.word), others }
    }

    /// A thread has ended.
    pub(super) fn end(&self) {
        for word in std::iter::once(&self.word).chain(&self.others) {
            // Nothing else is read by those who see it.
            word.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether one of the threads has ended.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.word.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_ends_its_group_and_the_others_that_it_names() {
        let groups = [Exit::default(), Exit::default(), Exit::default()];
        let over = || groups.each_ref().map(Exit::is_over);
        groups[0].with([]).end();
        assert_eq!(over(), [true, false, false]);
        groups[1].with(&groups[2..]).end();
        assert_eq!(over(), [true, true, true]);
    }
}
