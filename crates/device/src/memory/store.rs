//! The store of a memory device, [`MemoryStore`], the handle to it, and the effect of a request on it, at its arrival
//! and at its end.
//!
//! Two layers: the durable contents, and above them the dirty sectors that a crash may lose. Payloads can be accessed
//! only while a request is being submitted, so the bytes are copied then. When the request ends, its data becomes
//! durable or must be covered by the next flush. The hardware queue decides when a request ends.
//!
//! The dirty sectors are those of the volatile cache as well as of writes in flight: a read sees the newest bytes of a
//! sector from either. Each has the number of the completion since which a flush must cover it.

use super::{BadBlocks, MemoryParams};
use blkmq_core::{
    Extent as Stretch, IoError, IoFlags, IoResult, Op, PairError, Payload, Rng, SECTOR_SIZE,
};
use blkmq_engine::{BioRef, BioTable, Inflight, WriteCache};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// No flush must cover the sector: only writes that have not completed dirtied it.
const NOT_OWED: u64 = u64::MAX;

/// The maximum number of pages kept for reuse.
const SPARES: usize = 256;

/// Dirty sectors of one page.
#[derive(Debug)]
struct Dirty {
    /// `None` if all dirty sectors are zero.
    data: Option<Box<Page>>,
    /// The dirty sectors; not empty once the page has been marked.
    mask: u8,
    /// For each sector, the number of the completion since which a flush must cover it.
    owed: [u64; 8],
}

impl Dirty {
    fn new() -> Self {
        Self { data: None, mask: 0, owed: [NOT_OWED; 8] }
    }

    /// The sectors among `mask` that flushes have had to cover since before `number`.
    fn owed_before(&self, number: u64, mask: u8) -> u8 {
        sectors_of(self.mask & mask)
            .filter(|sector| self.owed[*sector] < number)
            .fold(0, |found, sector| found | 1 << sector)
    }
}

/// Dirty pages by number.
#[derive(Debug, Default)]
struct Cache {
    pages: BTreeMap<u64, Dirty>,
    /// Pages for reuse, at most [`SPARES`]: a steady number of writes in flight needs no allocation.
    spares: Vec<Box<Page>>,
    /// The page at which eviction continues.
    cursor: u64,
}

impl Cache {
    /// Number of pages in the cache.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.pages.len()
    }

    /// Number of dirty bytes.
    fn dirty_bytes(&self) -> u64 {
        let sectors: u32 = self.pages.values().map(|dirty| dirty.mask.count_ones()).sum();
        u64::from(sectors) * u64::from(SECTOR_SIZE)
    }

    /// The numbers of the dirty pages within `range`.
    fn numbers(&self, range: Range<u64>) -> Vec<u64> {
        self.pages.range(range).map(|(n, _)| *n).collect()
    }

    /// The dirty sectors of page `n`.
    fn mask(&self, n: u64) -> u8 {
        self.pages.get(&n).map_or(0, |dirty| dirty.mask)
    }

    /// The bytes of page `n`, of which only the dirty sectors count.
    fn page(&self, n: u64) -> &Page {
        self.pages.get(&n).and_then(|dirty| dirty.data.as_deref()).unwrap_or(&ZEROES)
    }

    fn entry(&mut self, n: u64) -> &mut Dirty {
        self.pages.entry(n).or_insert_with(Dirty::new)
    }

    /// Removes page `n`.
    fn remove(&mut self, n: u64) {
        let left = self.pages.remove(&n).and_then(|dirty| dirty.data);
        if let Some(page) = left.filter(|_| self.spares.len() < SPARES) {
            self.spares.push(page);
        }
    }

    /// The number of the first dirty page within `range`.
    fn first(&self, range: Range<u64>) -> Option<u64> {
        self.pages.range(range).next().map(|(n, _)| *n)
    }

    /// The bytes of `part`, to be written. The caller must call [`mark`](Self::mark) next.
    fn slot(&mut self, part: &Part) -> &mut [u8] {
        let dirty = self.pages.entry(part.page).or_insert_with(Dirty::new);
        let data = dirty.data.get_or_insert_with(|| match self.spares.pop() {
            // Dirty sectors without data are zero; bytes of other sectors do not matter.
            Some(mut page) if dirty.mask != 0 => {
                *page = ZEROES;
                page
            }
            Some(page) => page,
            None => Box::new(ZEROES),
        });
        &mut data[part.start..][..part.len]
    }

    /// Marks the sectors of page `n` in `mask` as dirty.
    fn mark(&mut self, n: u64, mask: u8) {
        self.entry(n).mask |= mask;
        self.forget(n, 0);
    }

    /// Makes sectors of page `n` dirty and zero.
    fn zero(&mut self, n: u64, mask: u8) {
        let dirty = self.entry(n);
        dirty.mask |= mask;
        if mask == WHOLE {
            dirty.data = None;
        } else if let Some(data) = &mut dirty.data {
            sectors_of(mask).for_each(|sector| data[bytes_of(sector)].fill(0));
        }
    }

    /// Notes that a write of `extent` has completed as number `number`: the next flush must cover its dirty sectors.
    fn owe(&mut self, extent: Extent, number: u64) {
        for (n, dirty) in self.pages.range_mut(extent.pages()) {
            for sector in sectors_of(dirty.mask & extent.mask(*n)) {
                dirty.owed[sector] = dirty.owed[sector].min(number);
            }
        }
    }

    /// Removes sectors of page `n` that have become durable otherwise, or are lost.
    fn forget(&mut self, n: u64, mask: u8) {
        let Some(dirty) = self.pages.get_mut(&n) else { return };
        dirty.mask &= !mask;
        sectors_of(mask).for_each(|sector| dirty.owed[sector] = NOT_OWED);
        if dirty.mask == 0 {
            self.remove(n);
        }
    }

    /// Writes the dirty sectors of page `n` that are in `mask` to `image`.
    fn write_back(&mut self, n: u64, mask: u8, image: &mut Image) {
        let mask = mask & self.mask(n);
        match self.pages.get(&n).map(|dirty| &dirty.data) {
            Some(Some(data)) if mask == WHOLE => *image.page_mut(n) = **data,
            Some(Some(data)) if mask != 0 => {
                let page = image.page_mut(n);
                for sector in sectors_of(mask) {
                    page[bytes_of(sector)].copy_from_slice(&data[bytes_of(sector)]);
                }
            }
            Some(None) => image.zero(n, mask),
            _ => {}
        }
        self.forget(n, mask);
    }

    /// Writes back every sector that flushes have had to cover since before `number`. O(pages).
    fn write_back_owed(&mut self, number: u64, image: &mut Image) {
        let owed = self.pages.iter().map(|(n, dirty)| (*n, dirty.owed_before(number, WHOLE)));
        for (n, mask) in owed.filter(|(_, mask)| *mask != 0).collect::<Vec<_>>() {
            self.write_back(n, mask, image);
        }
    }

    /// Writes back pages in ascending order, cyclically from the last position, until at most `most` are left.
    fn evict(&mut self, most: usize, image: &mut Image) {
        while self.pages.len() > most {
            let next = self.pages.range(self.cursor..).next().or_else(|| self.pages.iter().next());
            let n = *next.expect("there are more than `most`").0;
            self.cursor = n + 1;
            self.write_back(n, WHOLE, image);
        }
    }
}

/// The contents of a memory device, shared by its hardware queues and by code that reads the contents or simulates a
/// crash; clones refer to the same store.
///
/// A mutex protects the whole store, and is held while bytes are copied.
#[derive(Clone, Debug)]
pub struct MemoryStore(Arc<Mutex<Store>>);

impl MemoryStore {
    pub(super) fn new(params: &MemoryParams) -> Self {
        Self(Arc::new(Mutex::new(Store::new(params))))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Store> {
        self.0.lock().expect("no panic happens under this lock")
    }

    /// Copies the newest bytes from byte `offset` on to `out`, as seen by a read that arrives now: includes writes in
    /// flight, ignores bad blocks. Zeroes beyond the end.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) {
        let store = self.lock();
        let mut image = [0; PAGE];
        let (mut offset, mut left) = (offset, out);
        while !left.is_empty() {
            let start = (offset % PAGE as u64) as usize;
            let (now, later) = left.split_at_mut(left.len().min(PAGE - start));
            store.newest(offset / PAGE as u64, &mut image);
            now.copy_from_slice(&image[start..][..now.len()]);
            offset += now.len() as u64;
            left = later;
        }
    }

    /// The stored and unstored parts of `range`, a range of bytes: at least one and at most `most`, which may not cover
    /// the whole range. A page is stored if any of its bytes was written since it was last discarded or zeroed
    /// completely, including writes in flight. O(stored pages in the range).
    #[must_use]
    pub fn extents(&self, range: Range<u64>, most: usize) -> Vec<Stretch> {
        let store = self.lock();
        let page = PAGE as u64;
        let pages = range.start / page..range.end.div_ceil(page);
        let mut stored: Vec<u64> = store.durable.numbers(pages.clone()).collect();
        stored.extend(store.cache.numbers(pages));
        stored.sort_unstable();
        stored.dedup();
        let mut extents = Vec::new();
        let mut at = range.start;
        for page in stored.into_iter().map(|n| n * page..(n + 1) * page) {
            let (start, end) = (page.start.max(at), page.end.min(range.end));
            if start > at {
                Stretch::append(&mut extents, Stretch { end: start, is_hole: true });
            }
            Stretch::append(&mut extents, Stretch { end, is_hole: false });
            at = end;
            if extents.len() > most {
                break;
            }
        }
        if at < range.end && extents.len() <= most {
            Stretch::append(&mut extents, Stretch { end: range.end, is_hole: true });
        }
        extents.truncate(most);
        extents
    }

    /// A copy of the contents that a crash now would certainly preserve. O(stored bytes).
    #[must_use]
    pub fn durable_image(&self) -> Image {
        self.lock().durable.clone()
    }

    /// The number of bytes that a crash may lose: in the cache or in flight.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        self.lock().cache.dirty_bytes()
    }

    /// The memory in bytes that the durable contents occupy.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.lock().durable.bytes()
    }

    /// Simulates a power failure. Each logical block that is not durable has either been written back by chance or is
    /// lost, never in part; `seed` decides, together with the device's own seed. Every request in flight ends with EIO
    /// at its time, as if the device had never received it, whether or not its data survived. Returns the number of
    /// logical blocks lost.
    pub fn crash(&self, seed: u64) -> u64 {
        self.lock().crash(seed)
    }

    /// Like [`crash`](Self::crash), but the machine fails together with the device: every request that reaches the
    /// present hardware queues from now on ends with EIO and does nothing. Hardware queues made later belong to the
    /// restarted machine. So I/Os that wait in a scheduler are not performed after the failure.
    pub fn cut_power(&self, seed: u64) -> u64 {
        let mut store = self.lock();
        let lost = store.crash(seed);
        store.powered = store.epoch;
        lost
    }

    /// Changes the bad blocks of a running device: `+START-END` or `-START-END`, in sectors, END included.
    ///
    /// # Errors
    /// If `change` does not have that form.
    pub fn badblocks(&self, change: &str) -> Result<(), PairError> {
        if self.lock().bad.change(change) {
            return Ok(());
        }
        let accepted = BadBlocks::FORM.into();
        Err(PairError::Value { name: "badblocks", value: change.into(), accepted })
    }

    /// The current bad blocks.
    #[must_use]
    pub fn bad(&self) -> BadBlocks {
        self.lock().bad.clone()
    }

    /// Simulates an orderly power cycle, for new hardware queues: all contents are durable afterwards.
    pub(super) fn power_on(&self) {
        let mut store = self.lock();
        let Store { cache, durable, .. } = &mut *store;
        cache.evict(0, durable);
        store.epoch += 1;
    }
}

/// The layer that a write changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Landing {
    /// The durable contents.
    Durable,
    /// The dirty sectors, which a crash may lose.
    Volatile,
}

#[derive(Debug)]
pub(super) struct Store {
    durable: Image,
    cache: Cache,
    /// The maximum pages in the cache; `None` without a cache, so that only writes in flight are dirty.
    room: Option<usize>,
    write_cache: WriteCache,
    pub(super) bad: BadBlocks,
    pub(super) once: bool,
    partial_io: bool,
    /// Sectors in a logical block.
    pub(super) block: u32,
    /// The number of completed writes, by which a flush knows the earlier ones.
    number: u64,
    /// Counts the power cycles.
    pub(super) epoch: u64,
    /// Hardware queues of earlier epochs belong to a machine that has lost power.
    pub(super) powered: u64,
    seed: u64,
}

impl Store {
    pub(super) fn new(params: &MemoryParams) -> Self {
        let pages = (params.cache_size << 20) / PAGE as u64;
        Self {
            durable: Image::default(),
            cache: Cache::default(),
            room: (pages > 0).then_some(pages as usize),
            write_cache: params.shape().cache,
            bad: params.badblocks.clone(),
            once: params.badblocks_once,
            partial_io: params.badblocks_partial_io,
            block: params.blocksize / SECTOR_SIZE,
            number: 0,
            epoch: 0,
            powered: 0,
            seed: params.seed,
        }
    }

    /// Passes the newest bytes of `extent` to `put`, in pieces, each with its offset in the extent.
    pub(super) fn read(
        &self,
        extent: Extent,
        mut put: impl FnMut(usize, &[u8]) -> IoResult,
    ) -> IoResult {
        let mut mixed = [0; PAGE];
        extent.parts().try_for_each(|part| {
            let wanted = extent.mask(part.page);
            let page = match self.cache.mask(part.page) & wanted {
                0 => self.durable.page(part.page),
                dirty if dirty == wanted => self.cache.page(part.page),
                _ => {
                    self.newest(part.page, &mut mixed);
                    &mixed
                }
            };
            put(part.at, &page[part.start..][..part.len])
        })
    }

    /// The newest contents of page `n`, as a read sees them.
    fn newest(&self, n: u64, out: &mut [u8; PAGE]) {
        out.copy_from_slice(self.durable.page(n));
        let (dirty, page) = (self.cache.mask(n), self.cache.page(n));
        for sector in sectors_of(dirty) {
            out[bytes_of(sector)].copy_from_slice(&page[bytes_of(sector)]);
        }
    }

    /// Fills `extent` from `get`, in pieces, each with its offset in the extent. Makes room in the cache.
    pub(super) fn write(
        &mut self,
        extent: Extent,
        landing: Landing,
        mut get: impl FnMut(usize, &mut [u8]) -> IoResult,
    ) -> IoResult {
        for part in extent.parts() {
            let mask = extent.mask(part.page);
            match landing {
                Landing::Durable => {
                    let page = self.durable.page_mut(part.page);
                    get(part.at, &mut page[part.start..][..part.len])?;
                    self.cache.forget(part.page, mask);
                }
                Landing::Volatile => {
                    let filled = get(part.at, self.cache.slot(&part));
                    self.cache.mark(part.page, if filled.is_ok() { mask } else { 0 });
                    filled?;
                }
            }
            self.make_room();
        }
        Ok(())
    }

    /// Zeroes `extent`. Skips pages that are neither stored nor dirty, which read as zero already, so that the cost
    /// of a large discard depends on the stored pages and not on its range.
    pub(super) fn zero(&mut self, extent: Extent, landing: Landing) {
        let mut numbers = self.cache.numbers(extent.pages());
        numbers.extend(self.durable.numbers(extent.pages()));
        numbers.sort_unstable();
        numbers.dedup();
        for n in numbers {
            let mask = extent.mask(n);
            match landing {
                Landing::Durable => {
                    self.cache.forget(n, mask);
                    self.durable.zero(n, mask);
                }
                Landing::Volatile => self.cache.zero(n, mask),
            }
            self.make_room();
        }
    }

    fn make_room(&mut self) {
        if let Some(room) = self.room {
            self.cache.evict(room, &mut self.durable);
        }
    }

    /// Completes a write of `extent` to the volatile layer. If `durable`, writes it back.
    pub(super) fn complete(&mut self, extent: Extent, durable: bool) {
        if durable {
            let mut left = extent.pages();
            while let Some(n) = self.cache.first(left.clone()) {
                self.cache.write_back(n, extent.mask(n), &mut self.durable);
                left.start = n + 1;
            }
        } else {
            self.number += 1;
            self.cache.owe(extent, self.number);
        }
    }

    /// Begins a flush: returns the argument for [`end_flush`](Self::end_flush).
    pub(super) fn begin_flush(&self) -> u64 {
        self.number + 1
    }

    /// Ends a flush: makes the writes durable that had completed when it began.
    pub(super) fn end_flush(&mut self, before: u64) {
        self.cache.write_back_owed(before, &mut self.durable);
    }

    /// See [`MemoryStore::crash`].
    fn crash(&mut self, seed: u64) -> u64 {
        let mut rng = Rng::new(self.seed ^ seed.rotate_left(32));
        // Crashes that lose everything or nothing are included, because they find most bugs.
        let survive = rng.below(5);
        let block = ((1_u16 << self.block) - 1) as u8;
        let mut lost = 0;
        for n in self.cache.numbers(0..u64::MAX) {
            for first in (0..PAGE_SECTORS).step_by(self.block as usize) {
                let mask = block << first;
                if self.cache.mask(n) & mask == 0 {
                    continue;
                }
                if rng.chance(survive, 4) {
                    self.cache.write_back(n, mask, &mut self.durable);
                } else {
                    lost += 1;
                }
            }
            self.cache.forget(n, WHOLE);
        }
        self.epoch += 1;
        lost
    }
}

#[cfg(test)]
impl Store {
    pub(super) fn cached_pages(&self) -> usize {
        self.cache.len()
    }

    pub(super) fn durable_for_test(&self) -> &Image {
        &self.durable
    }
}

/// The work to do at the end of a request.
#[must_use]
#[derive(Debug)]
pub(super) struct Owed {
    /// The result of the request, unless power fails before it ends.
    result: IoResult,
    /// The epoch of the store in which the request arrived.
    epoch: u64,
    then: Then,
}

#[derive(Debug)]
enum Then {
    Nothing,
    /// Write back the writes that had completed when the flush arrived.
    Flush {
        before: u64,
    },
    /// Complete the write of these extents.
    Complete {
        extents: Extents,
        durable: bool,
    },
}

/// The extents that a request has written. Only a discard with several ranges has more than one.
#[derive(Debug)]
enum Extents {
    One(Extent),
    Many(Vec<Extent>),
}

/// The extent to which a request is performed: bad blocks may stop it.
#[derive(Clone, Copy)]
struct Reach {
    /// The number of bios performed completely.
    bios: usize,
    /// The sectors of the next bio that are performed.
    sectors: u32,
    result: IoResult,
}

fn extent<P>(bio: &BioRef<'_, P>) -> Extent {
    Extent { sector: bio.sector, sectors: bio.sectors }
}

/// Handles the arrival of a request. With `at_once` it also ends within the call, so that no other request can
/// intervene.
pub(super) fn begin<P: Payload>(
    store: &mut Store,
    bios: &BioTable<P>,
    rq: &Inflight,
    at_once: bool,
) -> Owed {
    if rq.op() == Op::Flush {
        return Owed::new(store, Ok(()), Then::Flush { before: store.begin_flush() });
    }
    if !lengths_agree(bios, rq) {
        return Owed::new(store, Err(IoError::INVALID), Then::Nothing);
    }
    let reach = reach(store, bios, rq);
    let durable = match store.write_cache {
        WriteCache::Through => true,
        WriteCache::Back { fua } => fua && rq.flags().contains(IoFlags::FUA),
    };
    let landing = if durable && at_once { Landing::Durable } else { Landing::Volatile };
    let moved = transfer(store, bios, rq, reach, landing);
    let then = if rq.op() == Op::Read || landing == Landing::Durable {
        Then::Nothing
    } else {
        Then::Complete { extents: extents(bios, rq, reach), durable }
    };
    Owed::new(store, moved.and(reach.result), then)
}

/// Handles the end of a request: does the remaining work, and returns the result.
pub(super) fn end(store: &mut Store, owed: Owed) -> IoResult {
    if owed.epoch != store.epoch {
        return Err(IoError::IO);
    }
    match owed.then {
        Then::Nothing => {}
        Then::Flush { before } => store.end_flush(before),
        Then::Complete { extents: Extents::One(extent), durable } => {
            store.complete(extent, durable);
        }
        Then::Complete { extents: Extents::Many(extents), durable } => {
            extents.into_iter().for_each(|extent| store.complete(extent, durable));
        }
    }
    owed.result
}

impl Owed {
    fn new(store: &Store, result: IoResult, then: Then) -> Self {
        Self { result, epoch: store.epoch, then }
    }

    /// The work of a request that fails without effect.
    pub(super) fn failed(store: &Store) -> Self {
        Self::new(store, Err(IoError::IO), Then::Nothing)
    }
}

/// Returns whether the payload of every read or write that carries data has the length of its bio. Discards and writes
/// of zeroes use no payload.
fn lengths_agree<P: Payload>(bios: &BioTable<P>, rq: &Inflight) -> bool {
    let fits = |bio: BioRef<'_, P>| {
        let len = u64::from(bio.sectors) * u64::from(SECTOR_SIZE);
        bio.payload.data_len().is_none_or(|given| given as u64 == len)
    };
    !matches!(rq.op(), Op::Read | Op::Write) || rq.bios(bios).all(fits)
}

/// Applies bad blocks to a request; heals the first of them if it fails only once.
fn reach<P>(store: &mut Store, bios: &BioTable<P>, rq: &Inflight) -> Reach {
    let bad = |bio: BioRef<'_, P>| store.bad.first_in(bio.sector, bio.sectors);
    let mut found = rq.bios(bios).enumerate();
    let Some((at, start, bad)) = found.find_map(|(at, bio)| Some((at, bio.sector, bad(bio)?)))
    else {
        return Reach { bios: rq.bio_count() as usize, sectors: 0, result: Ok(()) };
    };
    if store.once {
        store.bad.heal(bad);
    }
    let result = Err(IoError::IO);
    if !store.partial_io {
        return Reach { bios: 0, sectors: 0, result };
    }
    let whole_blocks = bad - bad % u64::from(store.block);
    Reach { bios: at, sectors: (whole_blocks - start) as u32, result }
}

/// The bios that are performed, each with the extent to which it is.
fn reached<'a, P>(
    bios: &'a BioTable<P>,
    rq: &'a Inflight,
    reach: Reach,
) -> impl Iterator<Item = (BioRef<'a, P>, Extent)> + 'a {
    let cut = move |(at, bio): (usize, BioRef<'a, P>)| {
        let whole = extent(&bio);
        let sectors = if at < reach.bios { whole.sectors } else { reach.sectors };
        (bio, Extent { sectors, ..whole })
    };
    let most = reach.bios + usize::from(reach.sectors > 0);
    rq.bios(bios).enumerate().take(most).map(cut)
}

fn transfer<P: Payload>(
    store: &mut Store,
    bios: &BioTable<P>,
    rq: &Inflight,
    reach: Reach,
    landing: Landing,
) -> IoResult {
    reached(bios, rq, reach).try_for_each(|(bio, extent)| {
        let payload = bio.payload;
        match rq.op() {
            Op::Read | Op::Write if payload.data_len().is_none() => Ok(()),
            Op::Read => store.read(extent, |at, bytes| payload.read_from(at, bytes)),
            Op::Write => store.write(extent, landing, |at, bytes| payload.write_to(at, bytes)),
            Op::Discard | Op::WriteZeroes => {
                store.zero(extent, landing);
                Ok(())
            }
            Op::Flush => unreachable!("a flush moves nothing and is answered before"),
        }
    })
}

fn extents<P>(bios: &BioTable<P>, rq: &Inflight, reach: Reach) -> Extents {
    if rq.op() == Op::Discard && rq.bio_count() > 1 {
        return Extents::Many(reached(bios, rq, reach).map(|(_, extent)| extent).collect());
    }
    let sectors = reached(bios, rq, reach).map(|(_, extent)| extent.sectors).sum();
    Extents::One(Extent { sector: rq.sector(), sectors })
}

/// Sparse contents of a device: pages that are not stored read as zero.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Image {
    /// Chunks with at least one stored page, by number.
    chunks: BTreeMap<u64, Chunk>,
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("pages", &self.len()).finish()
    }
}

impl Image {
    /// Copies the bytes from `offset` on to `out`, with zeroes beyond the end of the device.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) {
        let (mut offset, mut left) = (offset, out);
        while !left.is_empty() {
            let start = (offset % PAGE as u64) as usize;
            let (now, later) = left.split_at_mut(left.len().min(PAGE - start));
            now.copy_from_slice(&self.page(offset / PAGE as u64)[start..][..now.len()]);
            offset += now.len() as u64;
            left = later;
        }
    }

    /// The bytes of the stored pages. Memory is allocated in chunks of 64 pages, and freed when none of them is stored.
    /// O(chunks).
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.len() * PAGE as u64
    }

    /// Number of stored pages.
    fn len(&self) -> u64 {
        self.chunks.values().map(Chunk::len).sum()
    }

    /// The contents of page `n`; zeroes if it is not stored.
    pub(super) fn page(&self, n: u64) -> &Page {
        let (chunk, at) = place(n);
        self.chunks.get(&chunk).map_or(&ZEROES, |chunk| chunk.page(at))
    }

    /// Returns page `n`, adding it if it is not stored.
    pub(super) fn page_mut(&mut self, n: u64) -> &mut Page {
        let (chunk, at) = place(n);
        self.chunks.entry(chunk).or_insert_with(Chunk::new).page_mut(at)
    }

    /// Zeroes the sectors of page `n` that are in `mask`.
    pub(super) fn zero(&mut self, n: u64, mask: u8) {
        let (number, at) = place(n);
        let Some(chunk) = self.chunks.get_mut(&number) else { return };
        if mask != WHOLE {
            return chunk.zero(at, mask);
        }
        chunk.remove(at);
        if chunk.is_empty() {
            self.chunks.remove(&number);
        }
    }

    /// The numbers of the stored pages within `range`.
    pub(super) fn numbers(&self, range: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        let chunks = range.start / PAGES..range.end.div_ceil(PAGES);
        let pages = |(n, chunk): (&u64, &Chunk)| {
            let first = n * PAGES;
            chunk.stored().map(move |at| first + at as u64)
        };
        self.chunks.range(chunks).flat_map(pages).filter(move |n| range.contains(n))
    }
}

/// The number of the chunk that contains page `n`, and the index of the page in it.
fn place(n: u64) -> (u64, usize) {
    (n / PAGES, (n % PAGES) as usize)
}

/// Pages in a chunk.
const PAGES: u64 = u64::BITS as u64;

/// The contents of [`PAGES`] pages.
struct Chunk {
    /// The stored pages, a bit each.
    stored: u64,
    /// The bytes of all pages; zero in those that are not stored.
    bytes: Box<[u8]>,
}

impl Chunk {
    /// A chunk without a stored page.
    pub(super) fn new() -> Self {
        // Allocated as zeroes by the kernel, without using memory yet: do not fill it here.
        Self { stored: 0, bytes: vec![0; PAGES as usize * PAGE].into_boxed_slice() }
    }

    /// Returns whether the chunk has no stored page.
    pub(super) fn is_empty(&self) -> bool {
        self.stored == 0
    }

    /// Number of stored pages.
    pub(super) fn len(&self) -> u64 {
        self.stored.count_ones().into()
    }

    /// The contents of page `at`; zeroes if it is not stored.
    pub(super) fn page(&self, at: usize) -> &Page {
        &self.bytes.as_chunks().0[at]
    }

    /// Returns page `at`, which becomes a stored page.
    pub(super) fn page_mut(&mut self, at: usize) -> &mut Page {
        self.stored |= 1 << at;
        &mut self.bytes.as_chunks_mut().0[at]
    }

    /// Zeroes page `at`, which is then not stored.
    pub(super) fn remove(&mut self, at: usize) {
        if self.stored & 1 << at != 0 {
            self.page_mut(at).fill(0);
            self.stored &= !(1 << at);
        }
    }

    /// Zeroes the sectors of page `at` that are in `mask`, if the page is stored.
    pub(super) fn zero(&mut self, at: usize, mask: u8) {
        if self.stored & 1 << at != 0 {
            let page = self.page_mut(at);
            sectors_of(mask).for_each(|sector| page[bytes_of(sector)].fill(0));
        }
    }

    /// The stored pages, in order.
    pub(super) fn stored(&self) -> impl Iterator<Item = usize> + use<> {
        let mut left = self.stored;
        std::iter::from_fn(move || {
            let at = left.trailing_zeros();
            (at < u64::BITS).then(|| {
                left &= left - 1;
                at as usize
            })
        })
    }
}

impl Clone for Chunk {
    /// Copies only stored pages, so that the others take no memory in the copy either.
    fn clone(&self) -> Self {
        let mut copy = Self::new();
        self.stored().for_each(|at| *copy.page_mut(at) = *self.page(at));
        copy
    }
}

impl PartialEq for Chunk {
    fn eq(&self, other: &Self) -> bool {
        self.stored == other.stored && self.stored().all(|at| self.page(at) == other.page(at))
    }
}

impl Eq for Chunk {}

/// Bytes in a page, as in Linux. A logical block never crosses a page boundary.
pub const PAGE: usize = 4096;
/// Sectors in a page.
pub(super) const PAGE_SECTORS: u64 = PAGE as u64 / SECTOR_SIZE as u64;
/// Every sector of a page, as a mask.
pub(super) const WHOLE: u8 = u8::MAX;
const _: () = assert!(PAGE_SECTORS == u8::BITS as u64, "a bit per sector");

pub(super) type Page = [u8; PAGE];

/// The contents of a page that is not stored.
pub(super) static ZEROES: Page = [0; PAGE];

/// A range of sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    pub(super) sector: u64,
    pub(super) sectors: u32,
}

/// The part of an extent that lies on one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    /// The number of the page.
    pub(super) page: u64,
    /// Its first byte on the page.
    pub(super) start: usize,
    /// Its length in bytes.
    pub(super) len: usize,
    /// Its first byte in the extent.
    pub(super) at: usize,
}

impl Extent {
    /// The parts of the extent, page by page.
    pub(super) fn parts(self) -> impl Iterator<Item = Part> {
        let (mut sector, end) = (self.sector, self.sector + u64::from(self.sectors));
        std::iter::from_fn(move || {
            let page = sector / PAGE_SECTORS;
            let until = ((page + 1) * PAGE_SECTORS).min(end);
            let bytes = |sectors: u64| (sectors * u64::from(SECTOR_SIZE)) as usize;
            let part = Part {
                page,
                start: bytes(sector % PAGE_SECTORS),
                len: bytes(until.checked_sub(sector).filter(|left| *left > 0)?),
                at: bytes(sector - self.sector),
            };
            sector = until;
            Some(part)
        })
    }

    /// The numbers of the pages that the extent touches.
    pub(super) fn pages(self) -> Range<u64> {
        let end = self.sector + u64::from(self.sectors);
        self.sector / PAGE_SECTORS..end.div_ceil(PAGE_SECTORS)
    }

    /// The sectors of page `n` that the extent covers, as a mask.
    pub(super) fn mask(self, n: u64) -> u8 {
        let first = n * PAGE_SECTORS;
        let from = self.sector.saturating_sub(first).min(PAGE_SECTORS);
        let to = (self.sector + u64::from(self.sectors)).saturating_sub(first).min(PAGE_SECTORS);
        (((1_u16 << to) - 1) & !((1_u16 << from) - 1)) as u8
    }
}

/// The sectors in a mask.
pub(super) fn sectors_of(mask: u8) -> impl Iterator<Item = usize> {
    (0..PAGE_SECTORS as usize).filter(move |sector| mask & 1 << sector != 0)
}

/// The byte range of a sector on its page.
pub(super) fn bytes_of(sector: usize) -> Range<usize> {
    let size = SECTOR_SIZE as usize;
    sector * size..(sector + 1) * size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_reads_across_pages_that_are_there_and_not() {
        let mut image = Image::default();
        image.page_mut(1)[0] = 7;
        let mut out = [1; 3];
        image.read_at(4095, &mut out);
        assert_eq!(out, [0, 7, 0]);
        image.zero(1, 0b10);
        assert_eq!(image.page(1)[0], 7);
        image.zero(1, WHOLE);
        assert_eq!(image, Image::default());
    }

    #[test]
    fn a_page_that_is_stored_again_is_zero() {
        let mut chunk = Chunk::new();
        chunk.page_mut(63).fill(7);
        chunk.page_mut(0)[1] = 1;
        assert_eq!(chunk.stored().collect::<Vec<_>>(), [0, 63]);
        chunk.zero(63, 1);
        assert_eq!((chunk.page(63)[511], chunk.page(63)[512]), (0, 7));
        chunk.remove(63);
        chunk.zero(5, 1);
        assert_eq!((chunk.len(), chunk.page(63)[512]), (1, 0));
        assert!(chunk.page_mut(63).iter().all(|b| *b == 0));
        assert!(chunk.len() == 2 && !chunk.is_empty());
    }

    #[test]
    fn a_copy_has_the_stored_pages() {
        let mut chunk = Chunk::new();
        chunk.page_mut(9)[0] = 1;
        let mut copy = chunk.clone();
        assert!(copy == chunk);
        copy.page_mut(10);
        assert!(copy != chunk, "a stored page of zeroes is stored");
    }

    #[test]
    fn extents_fall_into_pages() {
        let extent = Extent { sector: 6, sectors: 12 };
        let parts: Vec<_> = extent.parts().map(|p| (p.page, p.start, p.len, p.at)).collect();
        assert_eq!(parts, [(0, 3072, 1024, 0), (1, 0, 4096, 1024), (2, 0, 1024, 5120)]);
        assert_eq!(extent.pages(), 0..3);
        let masks: Vec<_> = (0..4).map(|n| extent.mask(n)).collect();
        assert_eq!(masks, [0b1100_0000, WHOLE, 0b11, 0]);
        assert_eq!(Extent { sector: 8, sectors: 0 }.parts().count(), 0);
    }
}
