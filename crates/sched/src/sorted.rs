//! The requests of a plug by sector, for policies that issue a plug in one step (`deadline/plug.rs`, `bfq/plug.rs`).
//!
//! It answers what the tree of sectors ([`SectorIndex`](crate::index::SectorIndex)) and the list by age would, for a few
//! requests that come and go in one call. Which request is next is the policy's decision.

use crate::policy::PLUG;

/// The requests of a plug by sector; of several at one sector, the one that came first.
pub(crate) struct Sorted {
    /// The sector, and the position in the plug.
    list: [(u64, u8); PLUG],
    len: usize,
    /// By position in `list`: has the request not been picked?
    left: u32,
    /// The first position that is not behind the last pick.
    at: u32,
}

impl Sorted {
    /// Sorts a plug, of which these are the sectors. O(n^2) comparisons, for at most [`PLUG`] of them.
    ///
    /// Each pair is compared once, and the request with the higher sector, or the later one, moves up by a place: no jump
    /// depends on the sectors, which no branch predictor could guess.
    #[inline]
    pub(crate) fn of(sectors: impl Iterator<Item = u64>) -> Self {
        let mut keys = [0; PLUG];
        let mut places = [0_u8; PLUG];
        let mut len = 0;
        for (key, sector) in keys.iter_mut().zip(sectors) {
            *key = sector;
            len += 1;
        }
        for nth in 1..len {
            let key = keys[nth];
            let mut ahead = 0;
            for (other, place) in keys[..nth].iter().zip(&mut places) {
                let is_ahead = u8::from(*other <= key);
                ahead += is_ahead;
                *place += 1 - is_ahead;
            }
            places[nth] = ahead;
        }
        let mut list = [(0, 0); PLUG];
        for nth in 0..len {
            list[usize::from(places[nth]) % PLUG] = (keys[nth], nth as u8);
        }
        Self { list, len, left: (1 << len) - 1, at: 0 }
    }

    /// The number of requests, picked or not.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The sector of the request at a position.
    #[inline]
    pub(crate) fn sector(&self, at: u32) -> u64 {
        self.list[at as usize].0
    }

    /// The position of the request that is the `nth` of the plug.
    pub(crate) fn position_of(&self, nth: u8) -> u32 {
        let found = self.list[..self.len].iter().position(|(_, other)| *other == nth);
        found.expect("it is one of the plug") as u32
    }

    /// Goes to the first request at or after `sector`.
    pub(crate) fn go_to(&mut self, sector: u64) {
        let before = self.list[..self.len].iter().take_while(|(other, _)| *other < sector);
        self.at = before.count() as u32;
    }

    /// The position of the next request that has not been picked, if one lies ahead.
    #[inline]
    pub(crate) fn ahead(&self) -> Option<u32> {
        let ahead = self.left >> self.at;
        (ahead != 0).then(|| self.at + ahead.trailing_zeros())
    }

    /// The position of the first of all that have not been picked.
    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        (self.left != 0).then(|| self.left.trailing_zeros())
    }

    /// The position of the last one that has not been picked and lies behind the last pick; of several at its sector, of
    /// the one that came first.
    #[inline]
    pub(crate) fn behind(&self) -> Option<u32> {
        let behind = self.left & ((1 << self.at) - 1);
        let mut at = behind.checked_ilog2()?;
        let sector = self.sector(at);
        while let Some(other) = (behind & ((1 << at) - 1)).checked_ilog2()
            && self.sector(other) == sector
        {
            at = other;
        }
        Some(at)
    }

    /// The position of the request that came first.
    pub(crate) fn oldest(&self) -> Option<u32> {
        let left = (0..self.len as u32).filter(|at| self.left & 1 << at != 0);
        left.min_by_key(|at| self.list[*at as usize].1)
    }

    /// Picks the request at a position: its sector, and its position in the plug.
    #[inline]
    pub(crate) fn pick(&mut self, at: u32) -> (u64, u8) {
        self.left &= !(1 << at);
        self.at = at + 1;
        self.list[at as usize]
    }
}
