//! [`Findings`]: the faults that a layer has found, for its operator.

#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError};

/// Findings that are kept until they are taken; of more, only the number is.
const KEPT: usize = 64;

/// Sentences about faults. Clones are the same list.
#[derive(Clone, Default, Debug)]
pub(crate) struct Findings(Arc<Mutex<Found>>);

#[derive(Default, Debug)]
struct Found {
    first: Vec<String>,
    more: u64,
}

impl Findings {
    pub(crate) fn add(&self, finding: String) {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if found.first.len() < KEPT {
            found.first.push(finding);
        } else {
            found.more += 1;
        }
    }

    /// The findings since the last call, the oldest first.
    pub(crate) fn take(&self) -> Vec<String> {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Found { mut first, more } = std::mem::take(&mut *found);
        if more > 0 {
            first.push(format!("and {more} further findings"));
        }
        first
    }
}
