//! The requests of a plug by sector, for policies that issue a plug in one step (`deadline/select.rs`, `bfq/plug.rs`).
//!
//! It answers like the tree of sectors ([`SectorIndex`](crate::index::SectorIndex)) and the list by age, for a few
//! requests that arrive and leave in one call. The policy decides which request is next.

use crate::policy::PLUG;
use core::hint::select_unpredictable;

/// The bits of a key for the position in the plug. The sector above them is below 2^55 (`Limits::MAX_CAPACITY`).
const NTH_BITS: u32 = PLUG.ilog2();
const NTH_MASK: u64 = (1 << NTH_BITS) - 1;

/// The requests of a plug by sector, and at one sector in order of arrival.
pub(crate) struct Sorted {
    /// The sector, and below it the position in the plug.
    keys: [u64; PLUG],
    len: usize,
    /// A bit by position in `keys`: the request has not been picked.
    left: u32,
    /// The first position ahead of the last pick.
    at: u32,
}

/// The end of sweeps over a plug.
pub(crate) struct Swept {
    /// The sector of the last request.
    pub(crate) last: u64,
    /// The place in the order at which the last sweep began that did not continue from the head; `None` if all requests
    /// lay ahead of the head.
    pub(crate) began: Option<usize>,
}

/// Sorts up to eight keys, of which unused ones are the highest. Returns the number of keys below `head`. It is a
/// sorting network in registers: no jump depends on sectors, which no branch predictor could guess.
#[inline(always)]
fn sort_eight(keys: &mut [u64; PLUG], head: u64) -> u32 {
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h, ..] = *keys;
    macro_rules! exchange {
        ($($low:ident $high:ident),*) => {
            $(($low, $high) = ($low.min($high), $low.max($high));)*
        };
    }
    exchange!(a c, b d, e g, f h);
    exchange!(a e, b f, c g, d h);
    exchange!(a b, c d, e f, g h);
    exchange!(c e, d f);
    exchange!(b e, d g);
    exchange!(b c, d e, f g);
    keys[..8].copy_from_slice(&[a, b, c, d, e, f, g, h]);
    [a, b, c, d, e, f, g, h].into_iter().fold(0, |below, key| below + u32::from(key < head))
}

impl Sorted {
    /// Sorts a plug with these sectors, at most [`PLUG`], and begins at the first at or after `head`. O(1) for up to
    /// eight, O(n log n) for more.
    #[inline(always)]
    pub(crate) fn of(sectors: impl Iterator<Item = u64>, head: u64) -> Self {
        let mut sorted = Self { keys: [u64::MAX; PLUG], len: 0, left: 0, at: 0 };
        for (key, sector) in sorted.keys.iter_mut().zip(sectors) {
            debug_assert!(sector <= u64::MAX >> NTH_BITS, "a sector beyond every device");
            *key = sector << NTH_BITS | sorted.len as u64;
            sorted.len += 1;
        }
        let head = head << NTH_BITS;
        sorted.at = match sorted.len {
            0 | 1 => u32::from(sorted.keys[0] < head),
            2..=8 => sort_eight(&mut sorted.keys, head),
            _ => {
                sorted.keys.sort_unstable();
                sorted.keys.partition_point(|key| *key < head) as u32
            }
        };
        sorted.left = (1 << sorted.len) - 1;
        sorted
    }

    /// The sector of the request at a position.
    #[inline]
    pub(crate) fn sector(&self, at: u32) -> u64 {
        self.keys[at as usize % PLUG] >> NTH_BITS
    }

    /// The position in the plug of the request at a position in the order.
    #[inline]
    fn nth(&self, at: u32) -> u8 {
        (self.keys[at as usize % PLUG] & NTH_MASK) as u8
    }

    /// The position of the request that is the `nth` of the plug.
    pub(crate) fn position_of(&self, nth: u8) -> u32 {
        let found = (0..self.len as u32).find(|at| self.nth(*at) == nth);
        found.expect("it is one of the plug")
    }

    /// Writes the order in which sweeps pick all requests: up from the head to the last one, then from the oldest of
    /// the remaining ones up to the last of them, and so on. O(n). No jump depends on sectors.
    #[inline(always)]
    pub(crate) fn sweep(&self, order: &mut [u8]) -> Swept {
        let len = self.len as u32;
        // By position: the position of the oldest request up to it.
        let mut oldest = [0; PLUG];
        let mut at = 0;
        for (here, place) in (0..len).zip(&mut oldest) {
            at = select_unpredictable(self.nth(here) < self.nth(at), here, at);
            *place = at;
        }
        let mut swept = Swept { last: 0, began: None };
        let (mut start, mut end) = (self.at, len);
        at = start;
        for (nth, place) in order[..self.len].iter_mut().enumerate() {
            let is_over = at == end;
            end = select_unpredictable(is_over, start, end);
            let oldest = oldest[start.wrapping_sub(1) as usize % PLUG];
            start = select_unpredictable(is_over, oldest, start);
            at = select_unpredictable(is_over, start, at);
            swept.began = select_unpredictable(is_over, Some(nth), swept.began);
            *place = self.nth(at);
            at += 1;
        }
        swept.last = self.sector(at.wrapping_sub(1));
        swept
    }

    /// The position of the next request ahead that has not been picked.
    #[inline]
    pub(crate) fn ahead(&self) -> Option<u32> {
        let ahead = self.left >> self.at;
        (ahead != 0).then(|| self.at + ahead.trailing_zeros())
    }

    /// The position of the first request that has not been picked.
    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        (self.left != 0).then(|| self.left.trailing_zeros())
    }

    /// The position of the last unpicked request behind the last pick; of several at its sector, the first to arrive.
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

    /// Picks the request at a position. Returns its sector, and its position in the plug.
    #[inline]
    pub(crate) fn pick(&mut self, at: u32) -> (u64, u8) {
        self.left &= !(1 << at);
        self.at = at + 1;
        (self.sector(at), self.nth(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn order(sectors: &[u64]) -> Vec<u8> {
        let sorted = Sorted::of(sectors.iter().copied(), 0);
        (0..sectors.len() as u32).map(|at| sorted.nth(at)).collect()
    }

    /// A network that sorts all sequences of zeroes and ones sorts all sequences.
    #[test]
    fn plugs_of_every_size_are_sorted_and_keep_the_order_of_those_at_one_sector() {
        for len in 1..=PLUG {
            for bits in 0..1_u32 << len.min(12) {
                let sectors: Vec<u64> = (0..len).map(|nth| u64::from(bits >> nth & 1)).collect();
                let mut expected: Vec<u8> = (0..len as u8).collect();
                expected.sort_by_key(|nth| sectors[usize::from(*nth)]);
                assert_eq!(order(&sectors), expected, "{sectors:?}");
            }
        }
    }

    #[test]
    fn the_last_sector_of_the_largest_device_is_sorted_too() {
        let last = (u64::MAX >> 9) - 1;
        assert_eq!(order(&[last, 0, last - 1]), [1, 2, 0]);
        assert_eq!(Sorted::of([last, 7].into_iter(), 0).sector(1), last);
    }

    /// The sweeps one request at a time, as a reference for [`Sorted`].
    fn swept(sectors: &[u64], head: u64) -> (Vec<u8>, u64, Option<usize>) {
        let mut left: Vec<u8> = (0..sectors.len() as u8).collect();
        let at = |nth: &u8| (sectors[usize::from(*nth)], *nth);
        let (mut order, mut from, mut began) = (Vec::new(), (head, 0), None);
        while !left.is_empty() {
            let ahead = left.iter().copied().filter(|nth| at(nth) >= from).min_by_key(at);
            if ahead.is_none() {
                began = Some(order.len());
            }
            let next = ahead.unwrap_or(left[0]);
            left.retain(|nth| *nth != next);
            order.push(next);
            from = at(&next);
        }
        (order, from.0, began)
    }

    #[test]
    fn sweeps_go_up_and_then_begin_at_the_oldest() {
        let mut rng = blkmq_core::Rng::new(7);
        for round in 0..20_000 {
            let len = 1 + rng.below(PLUG as u64) as usize;
            // Few sectors, so that several requests begin at one.
            let most = 1 + rng.below(40);
            let sectors: Vec<u64> = (0..len).map(|_| rng.below(most)).collect();
            let head = rng.below(most + 2);
            let mut order = [0; PLUG];
            let sweep = Sorted::of(sectors.iter().copied(), head).sweep(&mut order);
            let (expected, last, began) = swept(&sectors, head);
            assert_eq!(order[..len], expected, "round {round}: {sectors:?} from {head}");
            assert_eq!((sweep.last, sweep.began), (last, began), "round {round}");
        }
    }
}
