//! Orders over requests, kept in side tables indexed by slot: no allocation after creation, no pointers.
//!
//! [`Lists`] are first-in-first-out lists over one table of links, so any member is unlinked in O(1). [`Fifo`] is a
//! single list, for a policy with one order. A request is in at most one of the lists at a time. So one table is
//! enough, however many classes, directions or owners a policy keeps apart, and a member is found by its id alone. A
//! queue with lazy deletion would not work: while the oldest request waits for its deadline, every request picked in
//! another order would leave a dead entry.
//!
//! A [`Heap`] is a binary heap of numbered members, each with a key that may change. Room for members is made ahead, so
//! that pushing never allocates.
//!
//! A [`SectorIndex`] orders by sector. `Sorted` answers like it and the list by age, for the few requests of a plug
//! that arrive and leave in one call (`deadline.rs`, `bfq/held.rs`). The policy decides which request is next.

mod sector;

use crate::policy::PLUG;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use blkmq_core::RequestId;
use core::hint::select_unpredictable;
pub use sector::{Found, LAST_SECTOR, SectorIndex};

const NONE: u32 = u32::MAX;

/// The links of one slot. Not linked if `list` is [`NONE`].
#[derive(Clone, Copy)]
struct Links {
    prev: u32,
    next: u32,
    list: u32,
    rq: RequestId,
}

#[derive(Clone, Copy)]
struct Ends {
    head: u32,
    tail: u32,
    len: u32,
}

/// Lists of requests in order of arrival, numbered from zero. All operations are O(1).
pub struct Lists {
    links: Box<[Links]>,
    ends: Box<[Ends]>,
}

impl Lists {
    /// Makes `lists` empty lists for requests with indices below `slots`.
    #[must_use]
    pub fn new(slots: u32, lists: usize) -> Self {
        let unlinked = Links { prev: NONE, next: NONE, list: NONE, rq: RequestId::new(0, 0) };
        let empty = Ends { head: NONE, tail: NONE, len: 0 };
        Self {
            links: vec![unlinked; slots as usize].into_boxed_slice(),
            ends: vec![empty; lists].into_boxed_slice(),
        }
    }

    /// The number of members of `list`.
    #[inline]
    #[must_use]
    pub fn len(&self, list: usize) -> usize {
        self.ends[list].len as usize
    }

    /// Returns whether `list` is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self, list: usize) -> bool {
        self.ends[list].head == NONE
    }

    /// The oldest member of `list`.
    #[inline]
    #[must_use]
    pub fn front(&self, list: usize) -> Option<RequestId> {
        let head = self.ends[list].head;
        if head == NONE { None } else { Some(self.links[head as usize].rq) }
    }

    /// The member behind `rq`, which is in a list.
    #[must_use]
    pub fn behind(&self, rq: RequestId) -> Option<RequestId> {
        debug_assert!(self.list_of(rq).is_some());
        let next = self.links[rq.index()].next;
        (next != NONE).then(|| self.links[next as usize].rq)
    }

    /// The list that `rq` is in.
    #[inline]
    #[must_use]
    pub fn list_of(&self, rq: RequestId) -> Option<usize> {
        let entry = &self.links[rq.index()];
        (entry.list != NONE && entry.rq == rq).then_some(entry.list as usize)
    }

    /// Adds `rq` to `list`, behind all others.
    ///
    /// # Panics
    /// If its slot is in a list already.
    #[inline]
    pub fn push_back(&mut self, list: usize, rq: RequestId) {
        self.link(list, rq, self.ends[list].tail, NONE);
    }

    /// Adds `rq` to `list`, ahead of all others.
    ///
    /// # Panics
    /// If its slot is in a list already.
    #[inline]
    pub fn push_front(&mut self, list: usize, rq: RequestId) {
        self.link(list, rq, NONE, self.ends[list].head);
    }

    /// Adds `rq` directly ahead of the member `before`, to the same list.
    ///
    /// # Panics
    /// If `before` is in no list, or the slot of `rq` is in a list already.
    pub fn insert_before(&mut self, rq: RequestId, before: RequestId) {
        let list = self.list_of(before).unwrap_or_else(|| panic!("{before:?} is in no list"));
        self.link(list, rq, self.links[before.index()].prev, before.index() as u32);
    }

    fn link(&mut self, list: usize, rq: RequestId, prev: u32, next: u32) {
        let index = rq.index() as u32;
        let ends = &mut self.ends[list];
        let entry = &mut self.links[rq.index()];
        assert!(entry.list == NONE, "{rq:?} is in a list already");
        *entry = Links { prev, next, list: list as u32, rq };
        *(if prev == NONE { &mut ends.head } else { &mut self.links[prev as usize].next }) = index;
        *(if next == NONE { &mut ends.tail } else { &mut self.links[next as usize].prev }) = index;
        ends.len += 1;
    }

    /// Removes and returns the oldest member of `list`.
    #[inline]
    pub fn pop_front(&mut self, list: usize) -> Option<RequestId> {
        let rq = self.front(list)?;
        self.remove(rq);
        Some(rq)
    }

    /// Removes `rq` from its list, wherever it is.
    ///
    /// # Panics
    /// If it is in none.
    #[inline]
    pub fn remove(&mut self, rq: RequestId) {
        let entry = &mut self.links[rq.index()];
        assert!(entry.list != NONE && entry.rq == rq, "{rq:?} is in no list");
        let Links { prev, next, list, .. } = *entry;
        entry.list = NONE;
        let ends = &mut self.ends[list as usize];
        *(if prev == NONE { &mut ends.head } else { &mut self.links[prev as usize].next }) = next;
        *(if next == NONE { &mut ends.tail } else { &mut self.links[next as usize].prev }) = prev;
        ends.len -= 1;
    }
}

/// A list of requests in order of arrival. All operations are O(1).
pub struct Fifo(Lists);

impl Fifo {
    /// An empty list for requests with indices below `slots`.
    #[must_use]
    pub fn new(slots: u32) -> Self {
        Self(Lists::new(slots, 1))
    }

    /// The number of members.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len(0)
    }

    /// Returns whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty(0)
    }

    /// The oldest member.
    #[inline]
    #[must_use]
    pub fn front(&self) -> Option<RequestId> {
        self.0.front(0)
    }

    /// Returns whether `rq` is a member.
    #[must_use]
    pub fn contains(&self, rq: RequestId) -> bool {
        self.0.list_of(rq).is_some()
    }

    /// Adds `rq` behind all others.
    ///
    /// # Panics
    /// If its slot is in the list already.
    #[inline]
    pub fn push_back(&mut self, rq: RequestId) {
        self.0.push_back(0, rq);
    }

    /// Adds `rq` ahead of all others.
    ///
    /// # Panics
    /// If its slot is in the list already.
    #[inline]
    pub fn push_front(&mut self, rq: RequestId) {
        self.0.push_front(0, rq);
    }

    /// Adds `rq` directly ahead of the member `before`.
    ///
    /// # Panics
    /// If `before` is not a member, or the slot of `rq` is in the list already.
    pub fn insert_before(&mut self, rq: RequestId, before: RequestId) {
        self.0.insert_before(rq, before);
    }

    /// Removes and returns the oldest member.
    #[inline]
    pub fn pop_front(&mut self) -> Option<RequestId> {
        self.0.pop_front(0)
    }

    /// Removes `rq`, wherever it is.
    ///
    /// # Panics
    /// If it is not a member.
    #[inline]
    pub fn remove(&mut self, rq: RequestId) {
        self.0.remove(rq);
    }
}

const OUT: u32 = u32::MAX;

/// The member with the least key first, of members numbered from zero. Changes are O(log members), the least is O(1).
#[derive(Debug, Default)]
pub struct Heap<K> {
    entries: Vec<(K, u32)>,
    /// By member: its place in `entries`, or [`OUT`].
    places: Vec<u32>,
}

impl<K: Ord + Copy> Heap<K> {
    /// An empty heap, without room for members.
    #[must_use]
    pub const fn new() -> Self {
        Self { entries: Vec::new(), places: Vec::new() }
    }

    /// Makes room for members with numbers below `members`. Only this call allocates.
    pub fn make_room(&mut self, members: usize) {
        if self.places.len() < members {
            self.places.resize(members, OUT);
            self.entries.reserve(members - self.entries.len());
        }
    }

    /// The number of members in the heap.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether no member is in the heap.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns whether `member` is in the heap.
    #[must_use]
    pub fn contains(&self, member: u32) -> bool {
        self.places.get(member as usize).is_some_and(|place| *place != OUT)
    }

    /// The member with the least key.
    #[must_use]
    pub fn least(&self) -> Option<(K, u32)> {
        self.entries.first().copied()
    }

    /// Puts `member` in, or gives it another key.
    ///
    /// # Panics
    /// If there is no room for it.
    pub fn set(&mut self, member: u32, key: K) {
        let place = self.places[member as usize];
        if place == OUT {
            self.entries.push((key, member));
            self.places[member as usize] = self.entries.len() as u32 - 1;
            self.rise(self.entries.len() - 1);
        } else {
            self.entries[place as usize].0 = key;
            self.settle(place as usize);
        }
    }

    /// Takes out `member`. Returns false if it was not in the heap.
    pub fn remove(&mut self, member: u32) -> bool {
        if !self.contains(member) {
            return false;
        }
        let place = core::mem::replace(&mut self.places[member as usize], OUT) as usize;
        self.entries.swap_remove(place);
        if let Some((_, moved)) = self.entries.get(place) {
            self.places[*moved as usize] = place as u32;
            self.settle(place);
        }
        true
    }

    fn settle(&mut self, place: usize) {
        let place = self.rise(place);
        self.sink(place);
    }

    fn rise(&mut self, mut place: usize) -> usize {
        while place > 0 {
            let above = (place - 1) / 2;
            if self.entries[above] <= self.entries[place] {
                break;
            }
            self.swap(above, place);
            place = above;
        }
        place
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let below = [2 * place + 1, 2 * place + 2];
            let inside = below.into_iter().filter(|at| *at < self.entries.len());
            let Some(least) = inside.min_by_key(|at| self.entries[*at]) else { return };
            if self.entries[place] <= self.entries[least] {
                return;
            }
            self.swap(place, least);
            place = least;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.entries.swap(a, b);
        for at in [a, b] {
            self.places[self.entries[at].1 as usize] = at as u32;
        }
    }
}

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

#[cfg_attr(not(feature = "bfq"), expect(dead_code, reason = "bfq picks one request at a time"))]
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
    use blkmq_core::Rng;

    fn rq(index: u32) -> RequestId {
        RequestId::new(index, 0)
    }

    fn drain(lists: &mut Lists, list: usize) -> Vec<usize> {
        core::iter::from_fn(|| lists.pop_front(list)).map(RequestId::index).collect()
    }

    #[test]
    fn order_survives_removal_anywhere() {
        for gone in 0..4 {
            let mut lists = Lists::new(4, 1);
            (0..4).for_each(|i| lists.push_back(0, rq(i)));
            lists.remove(rq(gone));
            let expected: Vec<usize> = (0..4).filter(|i| *i != gone as usize).collect();
            assert_eq!(drain(&mut lists, 0), expected);
            assert!(lists.is_empty(0));
        }
    }

    #[test]
    fn a_member_can_be_placed_ahead_of_another() {
        let mut lists = Lists::new(4, 2);
        lists.push_back(1, rq(0));
        lists.push_back(1, rq(1));
        lists.insert_before(rq(2), rq(1));
        lists.insert_before(rq(3), rq(0));
        assert_eq!((lists.len(0), lists.len(1)), (0, 4));
        assert_eq!(drain(&mut lists, 1), [3, 0, 2, 1]);
    }

    #[test]
    fn lists_that_share_links_stay_apart() {
        let mut lists = Lists::new(6, 2);
        (0..6).for_each(|i| lists.push_back(i as usize % 2, rq(i)));
        assert_eq!(lists.list_of(rq(3)), Some(1));
        assert_eq!(lists.list_of(RequestId::new(3, 1)), None, "another request of the same slot");
        assert_eq!(lists.behind(rq(3)), Some(rq(5)));
        assert_eq!(lists.behind(rq(5)), None);
        assert_eq!(drain(&mut lists, 0), [0, 2, 4]);
        assert_eq!(lists.list_of(rq(2)), None);
        assert_eq!(drain(&mut lists, 1), [1, 3, 5]);
    }

    #[test]
    #[should_panic(expected = "is in no list")]
    fn removing_a_stranger_is_a_bug() {
        Lists::new(1, 1).remove(rq(0));
    }

    #[test]
    #[should_panic(expected = "in a list already")]
    fn a_slot_is_in_one_list_only() {
        let mut lists = Lists::new(1, 2);
        lists.push_back(0, rq(0));
        lists.push_back(1, rq(0));
    }

    #[test]
    fn first_in_first_out_with_a_way_to_the_front() {
        let rq = |index| RequestId::new(index, 0);
        let mut fifo = Fifo::new(4);
        fifo.push_back(rq(0));
        fifo.push_back(rq(1));
        fifo.push_front(rq(2));
        fifo.insert_before(rq(3), rq(1));
        fifo.remove(rq(0));
        assert!(fifo.contains(rq(3)) && !fifo.contains(rq(0)));
        assert_eq!((fifo.len(), fifo.front()), (3, Some(rq(2))));
        let rest: [_; 4] = core::array::from_fn(|_| fifo.pop_front().map(RequestId::index));
        assert_eq!(rest, [Some(2), Some(3), Some(1), None]);
        assert!(fifo.is_empty());
    }

    #[test]
    fn the_least_comes_first_whatever_changes() {
        let mut rng = Rng::new(7);
        let mut heap = Heap::new();
        heap.make_room(50);
        let mut plain: [Option<u64>; 50] = [None; 50];
        for _ in 0..if cfg!(miri) { 80 } else { 20_000 } {
            let member = rng.below(50) as u32;
            if rng.chance(1, 3) {
                assert_eq!(heap.remove(member), plain[member as usize].take().is_some());
            } else {
                let key = rng.below(40);
                heap.set(member, key);
                plain[member as usize] = Some(key);
            }
            let least = plain.iter().zip(0..).filter_map(|(key, m)| Some(((*key)?, m))).min();
            assert_eq!(heap.least(), least);
            assert_eq!(heap.len(), plain.iter().flatten().count());
            assert_eq!(heap.contains(member), plain[member as usize].is_some());
        }
        assert!(!heap.is_empty() && !heap.contains(50));
    }

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
        let mut rng = Rng::new(7);
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
