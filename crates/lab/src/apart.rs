//! The required treatment of a failed request that several owners share: the device is to be offered its runs, one
//! after the other, each of leading bios of one owner, with the request's tag.

use crate::ledger::Seen;
use blkmq_core::{IoError, IoResult, Owner, Tag};
use std::collections::{BTreeMap, VecDeque};

/// A bio with its owner.
pub(crate) type Owned = (Owner, Seen);

/// The requests of one hardware queue that are being repeated, each with its remaining bios.
#[derive(Default)]
pub(crate) struct Apart(BTreeMap<Tag, VecDeque<Owned>>);

impl Apart {
    /// Returns whether the request with this tag is being repeated.
    pub(crate) fn has(&self, tag: Tag) -> bool {
        self.0.contains_key(&tag)
    }

    /// Returns whether a request made of `bios` must be repeated after this result, which would otherwise be final.
    pub(crate) fn concerns(bios: &[Owned], result: IoResult) -> bool {
        let partial = result.is_err_and(IoError::may_be_partial);
        partial && bios.iter().any(|(owner, _)| *owner != bios[0].0)
    }

    /// The request with this tag, made of `bios`, is to be repeated.
    pub(crate) fn begin(&mut self, tag: Tag, bios: Vec<Owned>) {
        self.0.insert(tag, bios.into());
    }

    /// Returns whether a request with this tag, which is being repeated and is offered to the device, is the next run.
    pub(crate) fn is_next_run(&self, tag: Tag, bios: &[Owned]) -> bool {
        let Some(rest) = self.0.get(&tag) else { return false };
        let owner = rest.front().map(|(owner, _)| *owner);
        let run = rest.iter().take_while(|(of, _)| Some(*of) == owner);
        run.map(|(_, seen)| seen.bio()).eq(bios.iter().map(|(_, seen)| seen.bio()))
    }

    /// The device has returned a run of `bios` bios.
    pub(crate) fn ran(&mut self, tag: Tag, bios: usize) {
        let Some(rest) = self.0.get_mut(&tag) else { return };
        rest.drain(..bios.min(rest.len()));
        if rest.is_empty() {
            self.0.remove(&tag);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::SubmitterId;

    fn bio(owner: u32, sector: u64) -> Owned {
        let seen = Seen { cookie: sector, by: SubmitterId(0), sector, sectors: 8, payload: 0 };
        (Owner(owner), seen)
    }

    #[test]
    fn runs_come_in_order_and_are_as_long_as_one_owner_goes() {
        let all = vec![bio(1, 0), bio(1, 8), bio(2, 16), bio(1, 24)];
        assert!(Apart::concerns(&all, Err(IoError::IO)));
        assert!(!Apart::concerns(&all, Ok(())) && !Apart::concerns(&all[..2], Err(IoError::IO)));
        assert!(!Apart::concerns(&all, Err(IoError::TIMED_OUT)));
        let (mut apart, tag) = (Apart::default(), Tag(3));
        apart.begin(tag, all.clone());
        assert!(!apart.is_next_run(tag, &all[..1]) && !apart.is_next_run(tag, &all[2..3]));
        for run in [&all[..2], &all[2..3], &all[3..]] {
            assert!(apart.has(tag) && apart.is_next_run(tag, run));
            apart.ran(tag, run.len());
        }
        assert!(!apart.has(tag));
    }
}
