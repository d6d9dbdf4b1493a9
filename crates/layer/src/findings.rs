//! [`Findings`]: the events of a layer, for its operator.

#![forbid(unsafe_code)]

use blkmq_core::Finding;
use std::sync::{Arc, Mutex, PoisonError};

/// The number of findings that are kept until they are taken. Further ones are only counted.
const KEPT: usize = 64;

/// A list of findings, which its clones share.
#[derive(Clone, Default, Debug)]
pub(crate) struct Findings(Arc<Mutex<Found>>);

#[derive(Default, Debug)]
struct Found {
    first: Vec<Finding>,
    more: u64,
}

impl Findings {
    pub(crate) fn fault(&self, text: String) {
        self.add(Finding::Fault(text));
    }

    pub(crate) fn progress(&self, text: String) {
        self.add(Finding::Progress(text));
    }

    fn add(&self, finding: Finding) {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if found.first.len() < KEPT {
            found.first.push(finding);
        } else {
            found.more += 1;
        }
    }

    /// The findings since the last call, the oldest first.
    pub(crate) fn take(&self) -> Vec<Finding> {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Found { mut first, more } = std::mem::take(&mut *found);
        if more > 0 {
            first.push(Finding::Fault(format!("and {more} further findings")));
        }
        first
    }
}
