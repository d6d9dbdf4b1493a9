//! Which I/Os may become one request: kinds, attributes and limits (`spec/framework.md` section 13), as pure functions
//! of metadata; and [`MergeIndex`], which finds candidates. `elevator/merging.rs` merges.
//!
//! The index finds a held request by the sector at which it starts or ends. It is two hash tables over slots, chained
//! by index: no allocation after creation, O(1) for each operation. The key is stored beside the links, so a miss reads
//! only one bucket head.
//!
//! Most requests leave in the pass in which they arrive. So the newest requests are kept in a short list, and move to
//! the tables only when the list is full. Two filters of 64 bits show that no request in the list touches a sector,
//! which suffices for nearly every random I/O.

use blkmq_core::{IoFlags, IoMeta, Limits, Op, RequestId};
use blkmq_sched::PLUG;

/// The number of sectors compared at a time.
const LANES: usize = 4;

/// The place at which an I/O joins a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Back,
    Front,
    /// Discards gather ranges; their positions do not matter.
    Discard,
}

/// Whether an I/O that matches by position merges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fit {
    Merge(Kind),
    /// Not adjacent, or not alike.
    No,
    /// Adjacent and alike, but the request is full: too many segments. It cannot grow.
    Full,
}

/// Returns whether an I/O like `meta` may take part in merging at all.
#[inline]
pub(crate) fn mergeable(meta: &IoMeta) -> bool {
    let barred = IoFlags::NOMERGE | IoFlags::PREFLUSH | IoFlags::FUA;
    matches!(meta.op, Op::Read | Op::Write | Op::Discard) && !meta.flags.intersects(barred)
}

/// Returns whether `a` and `b` are equal in every attribute of which a merged request has only one value. The owner of
/// a merged request is that of its first part; whether other owners may join is decided by the policies that care.
fn alike(a: &IoMeta, b: &IoMeta) -> bool {
    a.op == b.op && a.group == b.group && a.ioprio == b.ioprio && a.write_hint == b.write_hint
}

/// Returns whether the position of `io` allows it to join `rq`. Cheap, and false for nearly every random I/O.
#[inline]
pub(crate) fn could_join(rq: &IoMeta, io: &IoMeta) -> bool {
    rq.end() == io.sector || io.end() == rq.sector || rq.op == Op::Discard
}

/// Returns whether no two of at most [`PLUG`] reads or writes could merge, judged by position.
#[inline]
pub(crate) fn are_apart<'a>(ios: impl ExactSizeIterator<Item = &'a IoMeta> + Clone) -> bool {
    const HALF: usize = PLUG / LANES / 2;
    let edges_meet = if ios.len() <= HALF * LANES {
        edges_meet::<HALF>(ios.clone())
    } else {
        edges_meet::<{ 2 * HALF }>(ios.clone())
    };
    !edges_meet || !any_could_join(ios)
}

/// Returns whether the lower halves of an end and of a start are equal, among up to `FOURS` times four I/Os. Random
/// I/Os seldom have equal ones.
#[inline(always)]
fn edges_meet<'a, const FOURS: usize>(mut ios: impl ExactSizeIterator<Item = &'a IoMeta>) -> bool {
    let len = ios.len();
    let mut starts = [[0; LANES]; FOURS];
    let mut ends = starts;
    // Four are stored together: a wide load of values stored one by one would wait for the store buffer.
    for (starts, ends) in starts.iter_mut().zip(&mut ends) {
        let mut edges = || ios.next().map_or((0, 0), |io| (io.sector as u32, io.end() as u32));
        let [a, b, c, d] = [edges(), edges(), edges(), edges()];
        *starts = [a.0, b.0, c.0, d.0];
        *ends = [a.1, b.1, c.1, d.1];
    }
    let mut meet = [false; LANES];
    for end in &ends.as_flattened()[..len] {
        for four in &starts {
            for (meet, start) in meet.iter_mut().zip(four) {
                *meet |= start == end;
            }
        }
    }
    meet != [false; LANES]
}

#[cold]
fn any_could_join<'a>(ios: impl Iterator<Item = &'a IoMeta> + Clone) -> bool {
    let others = ios.clone();
    ios.enumerate().any(|(at, io)| others.clone().take(at).any(|other| could_join(other, io)))
}

fn kind(limits: &Limits, rq: &IoMeta, io: &IoMeta) -> Option<Kind> {
    if rq.op == Op::Discard && limits.max_discard_segments > 1 {
        Some(Kind::Discard)
    } else if rq.end() == io.sector {
        Some(Kind::Back)
    } else if io.end() == rq.sector {
        Some(Kind::Front)
    } else {
        None
    }
}

/// Returns whether `io` fits into the mergeable request `rq`. `io` may itself be a request; then this is a merge of two
/// requests.
pub(crate) fn fit(limits: &Limits, rq: &IoMeta, io: &IoMeta) -> Fit {
    if !alike(rq, io) {
        return Fit::No;
    }
    let Some(kind) = kind(limits, rq, io) else { return Fit::No };
    let discard = rq.op == Op::Discard;
    let start = if kind == Kind::Front { io.sector } else { rq.sector };
    // A gathered discard is bounded by its total length alone.
    let most = match kind {
        Kind::Discard => limits.max_discard_sectors,
        Kind::Back | Kind::Front => limits.max_sectors_at(start, rq.op),
    };
    if u64::from(rq.sectors) + u64::from(io.sectors) > u64::from(most) {
        return Fit::No;
    }
    let most_segments = if discard { limits.max_discard_segments } else { limits.max_segments };
    // A contiguous discard is one range, however many bios it has.
    let counts = !discard || kind == Kind::Discard;
    if counts && u32::from(rq.segments) + u32::from(io.segments) > u32::from(most_segments) {
        return Fit::Full;
    }
    let first_bytes = match kind {
        Kind::Back => u64::from(rq.sectors) * 512,
        Kind::Front => u64::from(io.sectors) * 512,
        Kind::Discard => 0,
    };
    // Buffers start on a boundary, so only the joint, where the first part ends, has to be checked.
    if first_bytes & limits.virt_boundary_mask != 0 {
        return Fit::No;
    }
    Fit::Merge(kind)
}

/// The metadata of `rq` after `io` joined it at `kind`.
pub(crate) fn joined(rq: &IoMeta, io: &IoMeta, kind: Kind) -> IoMeta {
    let contiguous_discard = rq.op == Op::Discard && kind != Kind::Discard;
    IoMeta {
        sector: if kind == Kind::Front { io.sector } else { rq.sector },
        sectors: rq.sectors + io.sectors,
        segments: if contiguous_discard { rq.segments } else { rq.segments + io.segments },
        arrived: rq.arrived.min(io.arrived),
        ..*rq
    }
}

const NIL: u32 = u32::MAX;
/// Fibonacci hashing spreads neighbouring sectors over distant buckets.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Clone, Copy)]
struct Entry {
    sector: u64,
    id: Option<RequestId>,
    next: u32,
    prev: u32,
}

/// A table of request ids by sector.
struct SectorHash {
    buckets: Box<[u32]>,
    entries: Box<[Entry]>,
    shift: u32,
}

impl SectorHash {
    fn new(slots: u32) -> Self {
        let buckets = (slots as usize * 2).next_power_of_two().clamp(64, 1 << 16);
        let empty = Entry { sector: 0, id: None, next: NIL, prev: NIL };
        Self {
            buckets: vec![NIL; buckets].into_boxed_slice(),
            entries: vec![empty; slots as usize].into_boxed_slice(),
            shift: 64 - buckets.trailing_zeros(),
        }
    }

    #[inline]
    fn bucket(&self, sector: u64) -> usize {
        (sector.wrapping_mul(GOLDEN) >> self.shift) as usize
    }

    #[inline]
    fn insert(&mut self, sector: u64, id: RequestId) {
        let bucket = self.bucket(sector);
        let index = id.index();
        let next = std::mem::replace(&mut self.buckets[bucket], index as u32);
        debug_assert!(self.entries[index].id.is_none(), "{id:?} is indexed already");
        self.entries[index] = Entry { sector, id: Some(id), next, prev: NIL };
        if next != NIL {
            self.entries[next as usize].prev = index as u32;
        }
    }

    #[inline]
    fn remove(&mut self, id: RequestId) {
        let entry = self.entries[id.index()];
        debug_assert!(entry.id == Some(id), "{id:?} is not indexed");
        if entry.prev == NIL {
            let bucket = self.bucket(entry.sector);
            self.buckets[bucket] = entry.next;
        } else {
            self.entries[entry.prev as usize].next = entry.next;
        }
        if entry.next != NIL {
            self.entries[entry.next as usize].prev = entry.prev;
        }
        self.entries[id.index()].id = None;
    }

    /// The requests indexed under `sector`, the newest first.
    #[inline]
    fn find(&self, sector: u64) -> impl Iterator<Item = RequestId> + '_ {
        let mut at = self.buckets[self.bucket(sector)];
        std::iter::from_fn(move || {
            while at != NIL {
                let entry = &self.entries[at as usize];
                at = entry.next;
                if entry.sector == sector {
                    return entry.id;
                }
            }
            None
        })
    }
}

/// The capacity of the list of the newest requests.
const FRESH: usize = 8;
/// The place of a request that is not in the list.
const NOWHERE: u8 = FRESH as u8;

/// A request in the list of the newest.
#[derive(Clone, Copy)]
struct Edges {
    start: u64,
    end: u64,
    id: RequestId,
}

/// The newest requests, in order of arrival. The place of a request that leaves stays used until the list is cleared,
/// which happens when it is empty or full.
struct Fresh {
    list: [Edges; FRESH],
    /// Places used since the list was cleared.
    used: u8,
    /// A bit for each place whose request is still in the list.
    there: u8,
    /// A bit for each start, and for each end, by its hash. Bits of requests that have left stay until the list is
    /// cleared.
    starts: u64,
    ends: u64,
}

/// The bit of a sector in a filter.
#[inline]
fn bit(sector: u64) -> u64 {
    1 << (sector.wrapping_mul(GOLDEN) >> 58)
}

impl Fresh {
    fn new() -> Self {
        let none = Edges { start: 0, end: 0, id: RequestId::new(0, 0) };
        Self { list: [none; FRESH], used: 0, there: 0, starts: 0, ends: 0 }
    }

    #[inline]
    fn begin_anew(&mut self) {
        (self.used, self.there, self.starts, self.ends) = (0, 0, 0, 0);
    }

    /// The requests for which `is` returns true, the newest first.
    fn find(&self, is: impl Fn(&Edges) -> bool) -> impl Iterator<Item = RequestId> {
        let mut left = self.there;
        std::iter::from_fn(move || {
            while left != 0 {
                let at = left.ilog2() as usize;
                left &= !(1 << at);
                if is(&self.list[at]) {
                    return Some(self.list[at].id);
                }
            }
            None
        })
    }
}

/// The held, mergeable requests by both edges.
pub(crate) struct MergeIndex {
    fresh: Fresh,
    /// By slot: the place in `fresh`, or [`NOWHERE`].
    places: Box<[u8]>,
    /// Requests in the tables.
    tabled: u32,
    starts: SectorHash,
    ends: SectorHash,
}

impl MergeIndex {
    pub(crate) fn new(slots: u32) -> Self {
        Self {
            fresh: Fresh::new(),
            places: vec![NOWHERE; slots as usize].into_boxed_slice(),
            tabled: 0,
            starts: SectorHash::new(slots),
            ends: SectorHash::new(slots),
        }
    }

    #[inline]
    pub(crate) fn insert(&mut self, id: RequestId, start: u64, end: u64) {
        if usize::from(self.fresh.used) == FRESH {
            self.table_all();
        }
        let fresh = &mut self.fresh;
        let at = fresh.used;
        fresh.list[usize::from(at) % FRESH] = Edges { start, end, id };
        fresh.used += 1;
        fresh.there |= 1 << at;
        fresh.starts |= bit(start);
        fresh.ends |= bit(end);
        let place = &mut self.places[id.index()];
        debug_assert!(*place == NOWHERE, "{id:?} is indexed already");
        *place = at;
    }

    /// Moves the list into the tables, the oldest first.
    #[cold]
    fn table_all(&mut self) {
        for at in 0..FRESH {
            if self.fresh.there & 1 << at != 0 {
                let Edges { start, end, id } = self.fresh.list[at];
                self.places[id.index()] = NOWHERE;
                self.starts.insert(start, id);
                self.ends.insert(end, id);
                self.tabled += 1;
            }
        }
        self.fresh.begin_anew();
    }

    #[inline]
    pub(crate) fn contains(&self, id: RequestId) -> bool {
        match self.fresh.list.get(usize::from(self.places[id.index()])) {
            Some(edges) => edges.id == id,
            None => self.ends.entries[id.index()].id == Some(id),
        }
    }

    /// Removes `id`. Returns whether it was in the index.
    #[inline]
    pub(crate) fn remove(&mut self, id: RequestId) -> bool {
        let place = &mut self.places[id.index()];
        let Some(edges) = self.fresh.list.get(usize::from(*place)) else {
            return self.tabled != 0 && self.remove_tabled(id);
        };
        if edges.id != id {
            return false;
        }
        self.fresh.there &= !(1 << *place);
        *place = NOWHERE;
        if self.fresh.there == 0 {
            self.fresh.begin_anew();
        }
        true
    }

    #[inline(never)]
    fn remove_tabled(&mut self, id: RequestId) -> bool {
        let there = self.ends.entries[id.index()].id == Some(id);
        if there {
            self.starts.remove(id);
            self.ends.remove(id);
            self.tabled -= 1;
        }
        there
    }

    /// Returns whether a request might start at `end` or end at `start`. If false, no request is adjacent to an I/O
    /// from `start` to `end`.
    #[inline]
    pub(crate) fn may_touch(&self, start: u64, end: u64) -> bool {
        let fresh = self.fresh.ends & bit(start) | self.fresh.starts & bit(end);
        self.tabled != 0 || fresh != 0
    }

    /// The requests that start at `sector`, the newest first.
    pub(crate) fn starting_at(&self, sector: u64) -> impl Iterator<Item = RequestId> + '_ {
        let fresh = self.fresh.find(move |edges| edges.start == sector);
        fresh.chain(self.starts.find(sector))
    }

    /// The requests that end at `sector`, the newest first.
    pub(crate) fn ending_at(&self, sector: u64) -> impl Iterator<Item = RequestId> + '_ {
        let fresh = self.fresh.find(move |edges| edges.end == sector);
        fresh.chain(self.ends.find(sector))
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use blkmq_core::{Class, GroupIndex, Instant, IoPrio, Rng};

    fn io(sector: u64, sectors: u32) -> IoMeta {
        IoMeta::new(Op::Write, sector, sectors)
    }

    /// Each limit at the limit and one beyond it.
    #[test]
    fn s16_14_merge_limits_at_limit_and_limit_plus_one() {
        let limits = Limits { max_sectors: 16, max_segments: 2, ..Limits::default() };
        assert_eq!(fit(&limits, &io(0, 8), &io(8, 8)), Fit::Merge(Kind::Back));
        assert_eq!(fit(&limits, &io(0, 8), &io(8, 9)), Fit::No);
        let mut two_segments = io(0, 8);
        two_segments.segments = 2;
        assert_eq!(fit(&limits, &two_segments, &io(8, 8)), Fit::Full);

        let chunked = Limits { chunk_sectors: 12, ..Limits::default() };
        assert_eq!(fit(&chunked, &io(0, 8), &io(8, 4)), Fit::Merge(Kind::Back));
        assert_eq!(fit(&chunked, &io(0, 8), &io(8, 5)), Fit::No);
        assert_eq!(fit(&chunked, &io(12, 4), &io(8, 4)), Fit::No, "a front merge moves the start");

        let virt = Limits { virt_boundary_mask: 4095, ..Limits::default() };
        assert_eq!(fit(&virt, &io(0, 8), &io(8, 1)), Fit::Merge(Kind::Back));
        assert_eq!(fit(&virt, &io(0, 7), &io(7, 1)), Fit::No);
    }

    #[test]
    fn s16_14_discards_gather_ranges_up_to_their_own_limits() {
        let limits =
            Limits { max_discard_sectors: 100, max_discard_segments: 2, ..Limits::default() };
        let discard = |sector, sectors| IoMeta::new(Op::Discard, sector, sectors);
        assert_eq!(fit(&limits, &discard(0, 50), &discard(9000, 50)), Fit::Merge(Kind::Discard));
        assert_eq!(fit(&limits, &discard(0, 50), &discard(9000, 51)), Fit::No);
        let both = joined(&discard(0, 50), &discard(9000, 20), Kind::Discard);
        assert_eq!((both.sector, both.sectors, both.segments), (0, 70, 2));
        assert_eq!(fit(&limits, &both, &discard(70, 8)), Fit::Full);

        let one_range = Limits { max_discard_segments: 1, ..limits };
        assert_eq!(fit(&one_range, &discard(0, 50), &discard(50, 50)), Fit::Merge(Kind::Back));
        assert_eq!(fit(&one_range, &discard(0, 50), &discard(60, 8)), Fit::No);
    }

    /// The joint is where the first part ends; the kind of merge decides which part is first.
    #[test]
    fn s16_14_the_first_part_ends_at_a_virt_boundary() {
        let virt = Limits { virt_boundary_mask: 4095, ..Limits::default() };
        // The request is in front of a back merge, and behind a front merge.
        assert_eq!(fit(&virt, &io(8, 8), &io(16, 3)), Fit::Merge(Kind::Back));
        assert_eq!(fit(&virt, &io(8, 3), &io(11, 8)), Fit::No);
        assert_eq!(fit(&virt, &io(8, 3), &io(0, 8)), Fit::Merge(Kind::Front));
        assert_eq!(fit(&virt, &io(3, 8), &io(0, 3)), Fit::No);
        // If the boundary is smaller than a sector, every length in sectors ends at a boundary.
        let fine = Limits { virt_boundary_mask: 511, ..Limits::default() };
        assert_eq!(fit(&fine, &io(3, 7), &io(0, 3)), Fit::Merge(Kind::Front));
        // A gathered discard has no buffers, and so no joint.
        let gathers = Limits { max_discard_sectors: 99, max_discard_segments: 4, ..virt };
        let discard = |sector| IoMeta::new(Op::Discard, sector, 3);
        assert_eq!(fit(&gathers, &discard(0), &discard(3)), Fit::Merge(Kind::Discard));
    }

    #[test]
    fn segments_are_added_up_but_for_a_discard_that_stays_one_range() {
        let with = |op, sector, segments| IoMeta { segments, ..IoMeta::new(op, sector, 8) };
        let limits = Limits {
            max_segments: 5,
            max_discard_segments: 1,
            max_discard_sectors: 100,
            ..Limits::default()
        };
        let (two, three) = (with(Op::Write, 8, 2), with(Op::Write, 16, 3));
        assert_eq!(fit(&limits, &two, &three), Fit::Merge(Kind::Back), "five are allowed");
        assert_eq!(joined(&two, &three, Kind::Back).segments, 5);
        let front = joined(&three, &two, Kind::Front);
        assert_eq!((front.sector, front.sectors, front.segments), (8, 16, 5));
        // A contiguous discard is one range however many bios it has, and is never full of them.
        let (one, next) = (with(Op::Discard, 8, 1), with(Op::Discard, 16, 1));
        assert_eq!(fit(&limits, &one, &next), Fit::Merge(Kind::Back));
        assert_eq!(fit(&limits, &next, &one), Fit::Merge(Kind::Front));
        let back = joined(&one, &next, Kind::Back);
        assert_eq!((back.sector, back.sectors, back.segments), (8, 16, 1));
        let front = joined(&next, &one, Kind::Front);
        assert_eq!((front.sector, front.sectors, front.segments), (8, 16, 1));
        let gathers = Limits { max_discard_segments: 2, ..limits };
        assert_eq!(fit(&gathers, &one, &next), Fit::Merge(Kind::Discard));
        assert_eq!(joined(&one, &next, Kind::Discard).segments, 2, "two ranges");
    }

    /// Some edges are far apart but have equal lower halves.
    #[test]
    fn a_plug_is_apart_if_no_two_of_its_ios_could_join() {
        let mut rng = Rng::new(1);
        let mut apart = 0;
        for len in (0..=PLUG).cycle().take(4_000) {
            let mut draw = || io(rng.below(40) << 30 | rng.below(40) << 3, 8);
            let ios: Vec<_> = (0..len).map(|_| draw()).collect();
            let joins = |at: usize| ios[..at].iter().any(|other| could_join(other, &ios[at]));
            let expected = !(0..len).any(joins);
            assert_eq!(are_apart(ios.iter()), expected, "{ios:?}");
            apart += u32::from(expected);
        }
        assert!((1_000..3_900).contains(&apart), "{apart} of 4000 are apart");
    }

    #[test]
    fn an_io_may_join_at_either_edge_and_a_discard_anywhere() {
        let rq = io(8, 8);
        assert!(could_join(&rq, &io(16, 8)) && could_join(&rq, &io(0, 8)));
        assert!(!could_join(&rq, &io(17, 8)) && !could_join(&rq, &io(0, 7)));
        assert!(!could_join(&rq, &io(8, 8)));
        let discard = IoMeta::new(Op::Discard, 8, 8);
        assert!(could_join(&discard, &IoMeta::new(Op::Discard, 900, 8)));
        assert!(mergeable(&discard) && mergeable(&IoMeta::new(Op::Read, 8, 8)));
    }

    #[test]
    fn s16_15_unlike_attributes_do_not_merge() {
        let limits = Limits::default();
        let rq = io(0, 8);
        let rt = IoPrio::new(Class::Realtime, 0).expect("0 is a level");
        for other in [
            IoMeta { ioprio: rt, ..io(8, 8) },
            IoMeta { write_hint: 2, ..io(8, 8) },
            IoMeta { group: GroupIndex(1), ..io(8, 8) },
            IoMeta { op: Op::Read, ..io(8, 8) },
        ] {
            assert_eq!(fit(&limits, &rq, &other), Fit::No, "{other:?}");
        }
    }

    #[test]
    fn some_ios_never_merge() {
        for flag in [IoFlags::NOMERGE, IoFlags::FUA, IoFlags::PREFLUSH] {
            assert!(!mergeable(&IoMeta { flags: flag, ..io(0, 8) }));
        }
        assert!(!mergeable(&IoMeta::new(Op::WriteZeroes, 0, 8)));
        assert!(!mergeable(&IoMeta::new(Op::Flush, 0, 0)));
        assert!(mergeable(&io(0, 8)));
    }

    #[test]
    fn a_merged_request_is_as_old_as_its_oldest_part() {
        let old = IoMeta { arrived: Instant::from_nanos(5), ..io(0, 8) };
        let new = IoMeta { arrived: Instant::from_nanos(9), ..io(8, 8) };
        assert_eq!(joined(&new, &old, Kind::Front).arrived, Instant::from_nanos(5));
    }

    #[test]
    fn agrees_with_a_map_over_random_histories() {
        let mut rng = Rng::new(11);
        let mut index = MergeIndex::new(32);
        // Slot, start and end, the oldest first.
        let mut naive: Vec<(u32, u64, u64)> = Vec::new();
        for step in 0..if cfg!(miri) { 40 } else { 20_000 } {
            // Sometimes few, so that the list is cleared, and sometimes many.
            let slot = rng.below(if step / 500 % 2 == 0 { 4 } else { 32 }) as u32;
            let id = RequestId::new(slot, 0);
            if let Some(at) = naive.iter().position(|it| it.0 == slot) {
                assert!(index.contains(id) && index.remove(id), "step {step}");
                naive.remove(at);
            } else {
                assert!(!index.contains(id) && !index.remove(id), "step {step}");
                let (start, end) = (rng.below(16), 16 + rng.below(16));
                index.insert(id, start, end);
                naive.push((slot, start, end));
            }
            let (from, to) = (16 + rng.below(16), rng.below(16));
            let slots = |ids: &mut dyn Iterator<Item = RequestId>| {
                Vec::from_iter(ids.map(|id| id.index() as u32))
            };
            let found = [slots(&mut index.ending_at(from)), slots(&mut index.starting_at(to))];
            let newest_first = |is: &dyn Fn(&(u32, u64, u64)) -> bool| {
                Vec::from_iter(naive.iter().rev().filter(|it| is(it)).map(|it| it.0))
            };
            let expected = [newest_first(&|it| it.2 == from), newest_first(&|it| it.1 == to)];
            assert_eq!(found, expected, "step {step}");
            let touches = expected.iter().any(|found| !found.is_empty());
            assert!(index.may_touch(from, to) || !touches, "step {step}");
        }
    }

    #[test]
    fn a_request_that_is_not_indexed_is_not_removed() {
        let mut index = MergeIndex::new(4);
        let id = RequestId::new(2, 0);
        assert!(!index.contains(id) && !index.remove(id));
        index.insert(id, 8, 16);
        let reused = id.next_generation();
        let check = |index: &mut MergeIndex| {
            assert!(!index.contains(reused) && !index.remove(reused), "its slot is, and it is not");
            assert!(index.contains(id) && index.remove(id) && !index.remove(id));
        };
        check(&mut index);
        index.insert(id, 8, 16);
        index.table_all();
        check(&mut index);
    }

    /// The purpose of the filters.
    #[test]
    fn a_random_io_seldom_touches_one_of_the_newest_and_never_one_that_has_left() {
        let mut rng = Rng::new(12);
        let mut index = MergeIndex::new(32);
        let mut touched_of_1000 = |count| {
            let sector = |rng: &mut Rng| rng.below(1 << 40);
            for slot in 0..count {
                index.insert(RequestId::new(slot, 0), sector(&mut rng), sector(&mut rng));
            }
            let touches = |index: &MergeIndex, rng: &mut Rng| {
                (0..1000).filter(|_| index.may_touch(sector(rng), sector(rng))).count()
            };
            let touched = touches(&index, &mut rng);
            (0..count).for_each(|slot| assert!(index.remove(RequestId::new(slot, 0))));
            assert_eq!(touches(&index, &mut rng), 0, "{count}");
            touched
        };
        assert_eq!(touched_of_1000(0), 0);
        // Each of them sets one bit of 64 in either filter.
        assert!((1..400).contains(&touched_of_1000(FRESH as u32)));
        assert_eq!(touched_of_1000(FRESH as u32 + 1), 1000, "the tables have no filter");
    }

    #[test]
    fn an_io_between_two_requests_touches_them_whatever_their_bits() {
        let mut index = MergeIndex::new(2);
        let end = (101..).find(|end| bit(*end) == bit(100)).expect("one in 64");
        index.insert(RequestId::new(0, 0), 0, 100);
        index.insert(RequestId::new(1, 0), end, 1000);
        assert!(index.may_touch(100, end));
    }

    /// O(1) needs more buckets than requests, and different buckets for neighbouring sectors.
    #[test]
    fn buckets_are_twice_the_slots_and_evenly_filled() {
        let buckets = |slots| SectorHash::new(slots).buckets.len();
        assert_eq!([1, 32, 33, 1000].map(buckets), [64, 64, 128, 2048]);
        assert_eq!(buckets(1 << 20), 1 << 16, "memory has a bound");
        let hash = SectorHash::new(500);
        for stride in [1, 8, 64, 256] {
            let mut filled = vec![0; hash.buckets.len()];
            (0..500).for_each(|n| filled[hash.bucket(n * stride)] += 1);
            let most = filled.iter().max().copied();
            assert!(most <= Some(4), "{most:?} of 500 in one bucket, {stride} sectors apart");
        }
    }
}
