//! The memory of a guest: file descriptors sent by the front end, mapped into this process. A front end that truncates
//! such a file ends only its own connection, not this process.
//!
//! # Why the memory is safe
//!
//! This file is the only one with `unsafe`. The argument has three parts.
//!
//! - A [`Mapping`] owns its pages. It unmaps them on drop, and pointers into it are used only while an `Arc` of it is
//!   held.
//! - Every access is checked against the length of its [`Span`], which is checked against its mapping.
//! - Another process may write to the same pages at any time. No reference to them is made, so the compiler assumes
//!   nothing about their contents: bytes are copied through raw pointers, and indexes are atomics.
//!
//! # Missing pages
//!
//! A file that is too short is refused when it is mapped. If a file shrinks later, the kernel answers accesses beyond
//! its end with SIGBUS. The handler checks whether the address is in a mapping of a guest. If so, it maps an empty page
//! there and marks the mapping as [broken](Mapping::is_broken): the access reads zeroes, and a write is lost. Any other
//! SIGBUS ends the process, as it would without the handler.
//!
//! | word | states | written by |
//! |---|---|---|
//! | `start` of a slot | 0 free, 1 taken, else the first address of a mapping | the owner of the mapping |
//! | `len` of a slot | bytes of the mapping | the owner, before `start` |
//! | `is_broken` of a slot | whether a page was missing | the handler sets it, the owner clears it |
//!
//! An owner takes a slot by a compare-and-exchange of 0 for 1, so that no two owners have it. `start` is stored with
//! release after `len`, and the handler loads it with acquire. The handler runs in the thread whose access failed,
//! which holds the mapping: its slot does not change while the handler runs. A slot that changes never contains an
//! address of this mapping.
#![allow(unsafe_code)]

use rustix::fs::fstat;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Once};

/// The maximum number of regions of a guest, as in QEMU's back ends.
pub const MOST_REGIONS: usize = 509;

/// A region of guest memory, as described by the front end. All numbers are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionInfo {
    /// The first guest address.
    pub guest: u64,
    /// The length.
    pub size: u64,
    /// The first address in the front end's address space.
    pub user: u64,
    /// The offset of the region in its file.
    pub offset: u64,
}

impl RegionInfo {
    fn has_same_place(&self, other: &Self) -> bool {
        (self.guest, self.size, self.user) == (other.guest, other.size, other.user)
    }
}

/// The reason why a region cannot be mapped or removed.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The region is empty, or ends beyond the last address.
    #[error("a region of {} bytes at {:#x} is impossible", .0.size, .0.guest)]
    Impossible(RegionInfo),
    /// The region overlaps another one.
    #[error("the region at {:#x} overlaps another one", .0.guest)]
    Overlap(RegionInfo),
    /// The guest has the maximum number of regions.
    #[error("a region too many; accepted: up to {MOST_REGIONS}")]
    TooMany,
    /// The file ends before the region.
    #[error("the region at {:#x} ends behind its file of {file} bytes", .region.guest)]
    Short {
        /// The region.
        region: RegionInfo,
        /// The length of the file.
        file: u64,
    },
    /// The kernel refuses to map the file.
    #[error("the region at {:#x} cannot be mapped: {error}", .region.guest)]
    Map {
        /// The region.
        region: RegionInfo,
        /// The error of the kernel.
        error: io::Error,
    },
    /// No region has these addresses and this size.
    #[error("there is no region of {} bytes at {:#x} to remove", .0.size, .0.guest)]
    Missing(RegionInfo),
}

/// Pages of a file, mapped for reading and writing.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    guard: Guard,
}

// SAFETY: the mapping owns its pages, whatever thread it is in, and every access uses raw copies or atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above; accesses of several threads race like accesses of the guest, and make no reference.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `file`.
    ///
    /// # Errors
    /// If the file is shorter, or the kernel refuses.
    pub fn new(file: impl AsFd, len: u64) -> io::Result<Arc<Self>> {
        let size = u64::try_from(fstat(&file)?.st_size).unwrap_or(0);
        let len = usize::try_from(len).ok().filter(|len| *len > 0 && size >= *len as u64);
        let Some(len) = len else {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is too short"));
        };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses free addresses, so that no mapping is replaced.
        let start = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, file, 0)? };
        let start = NonNull::<u8>::new(start.cast()).expect("the kernel maps nothing at address 0");
        let Some(guard) = Guard::new(start.as_ptr() as usize, len) else {
            // SAFETY: the pages were mapped here, and nothing points to them.
            let _ = unsafe { munmap(start.as_ptr().cast(), len) };
            return Err(io::Error::other("too many regions of guests are mapped"));
        };
        Ok(Arc::new(Self { start, len, guard }))
    }

    /// Returns whether a page beyond the end of its file was accessed.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.guard.is_broken()
    }

    /// The bytes `at..at + len`, or `None` if the mapping is shorter.
    #[must_use]
    pub fn span(self: &Arc<Self>, at: usize, len: usize) -> Option<Span> {
        let end = at.checked_add(len)?;
        // SAFETY: `at` is within the mapping.
        let start = (end <= self.len).then(|| unsafe { self.start.add(at) })?;
        Some(Span { start, len, _mapping: Arc::clone(self) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the pages were mapped by `new`, and no span refers to them. A failure leaves them mapped.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A range of mapped memory, which stays mapped while this exists.
#[derive(Clone, Debug)]
pub struct Span {
    start: NonNull<u8>,
    len: usize,
    _mapping: Arc<Mapping>,
}

// SAFETY: the pointer refers to the mapping, which is held and is `Send` and `Sync`.
unsafe impl Send for Span {}

impl Span {
    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the range is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the `len` bytes from `at` on.
    ///
    /// # Panics
    /// If the range is shorter.
    fn place(&self, at: usize, len: usize) -> *mut u8 {
        let fits = at.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(fits, "{len} bytes at {at} of a range of {}", self.len);
        // SAFETY: within the range.
        unsafe { self.start.as_ptr().add(at) }
    }

    /// Copies the bytes from `at` on to `bytes`.
    ///
    /// # Panics
    /// If the range is shorter.
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        let from = self.place(at, bytes.len());
        // SAFETY: both are valid for this length, and `bytes` is private memory of this process.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Panics
    /// If the range is shorter.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.place(at, bytes.len());
        // SAFETY: as in `read`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Loads the little-endian number at `at`.
    ///
    /// # Panics
    /// If the range is shorter, or the address is odd.
    #[must_use]
    pub fn load(&self, at: usize, order: Ordering) -> u16 {
        u16::from_le(self.number(at).load(order))
    }

    /// Stores a little-endian number at `at`.
    ///
    /// # Panics
    /// See [`load`](Self::load).
    pub fn store(&self, at: usize, value: u16, order: Ordering) {
        self.number(at).store(value.to_le(), order);
    }

    fn number(&self, at: usize) -> &AtomicU16 {
        let place = self.place(at, 2).cast::<u16>();
        assert!(place.is_aligned(), "a number at an odd address");
        // SAFETY: valid, aligned, and mapped while `self` lives; both sides access it atomically.
        unsafe { AtomicU16::from_ptr(place) }
    }

    /// Returns whether the address of the first byte is a multiple of `align`.
    #[must_use]
    pub fn is_aligned_to(&self, align: usize) -> bool {
        (self.start.as_ptr() as usize).is_multiple_of(align)
    }
}

#[derive(Clone, Debug)]
struct Region {
    info: RegionInfo,
    mapping: Arc<Mapping>,
}

/// The memory of a guest, in regions.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Sorted by guest address.
    regions: Vec<Region>,
}

impl Memory {
    /// Maps a region.
    ///
    /// # Errors
    /// If the region is impossible or overlaps another one, or its file cannot be mapped.
    pub fn add(&mut self, info: RegionInfo, file: &OwnedFd) -> Result<(), MemoryError> {
        let RegionInfo { guest, size, user, offset } = info;
        let ends = [guest.checked_add(size), user.checked_add(size), offset.checked_add(size)];
        let [Some(end), Some(_), Some(len)] = ends else {
            return Err(MemoryError::Impossible(info));
        };
        if size == 0 {
            return Err(MemoryError::Impossible(info));
        }
        if self.regions.len() == MOST_REGIONS {
            return Err(MemoryError::TooMany);
        }
        let overlaps = |it: &Region| it.info.guest < end && guest < it.info.guest + it.info.size;
        if self.regions.iter().any(overlaps) {
            return Err(MemoryError::Overlap(info));
        }
        // Mapped from the beginning of the file: huge pages only accept offsets that are multiples of their size.
        let mapping = Mapping::new(file, len).map_err(|error| match fstat(file) {
            Ok(stat) if error.kind() == io::ErrorKind::UnexpectedEof => {
                MemoryError::Short { region: info, file: stat.st_size.unsigned_abs() }
            }
            _ => MemoryError::Map { region: info, error },
        })?;
        let at = self.regions.partition_point(|it| it.info.guest < guest);
        self.regions.insert(at, Region { info, mapping });
        Ok(())
    }

    /// Removes a region, identified by its addresses and its size. Its spans stay mapped until they are dropped.
    ///
    /// # Errors
    /// If there is no such region.
    pub fn remove(&mut self, info: RegionInfo) -> Result<(), MemoryError> {
        let at = self.regions.iter().position(|it| it.info.has_same_place(&info));
        let at = at.ok_or(MemoryError::Missing(info))?;
        self.regions.remove(at);
        Ok(())
    }

    /// Returns whether a page beyond the end of its file was accessed, after which the guest cannot be served.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.regions.iter().any(|region| region.mapping.is_broken())
    }

    /// The number of regions.
    #[must_use]
    pub fn regions(&self) -> usize {
        self.regions.len()
    }

    /// The `len` bytes at guest address `addr`, or `None` unless one region contains all of them.
    #[must_use]
    pub fn span(&self, addr: u64, len: usize) -> Option<Span> {
        let (region, at) = self.region(addr)?;
        region.span(at, len)
    }

    /// The `len` bytes at the front end's address `addr`, or `None` unless one region contains all of them.
    #[must_use]
    pub fn user_span(&self, addr: u64, len: usize) -> Option<Span> {
        let has = |it: &&Region| addr.checked_sub(it.info.user).is_some_and(|at| at < it.info.size);
        let region = self.regions.iter().find(has)?;
        region.span(addr - region.info.user, len)
    }

    /// The region that contains guest address `addr`, and the offset in it.
    fn region(&self, addr: u64) -> Option<(&Region, u64)> {
        let behind = self.regions.partition_point(|it| it.info.guest <= addr);
        let region = self.regions.get(behind.checked_sub(1)?)?;
        let at = addr - region.info.guest;
        (at < region.info.size).then_some((region, at))
    }

    /// Copies the bytes at guest address `addr` to `bytes`. Returns false, without copying, unless one region contains
    /// all of them.
    #[must_use]
    pub fn read(&self, addr: u64, bytes: &mut [u8]) -> bool {
        let Some(from) = self.place(addr, bytes.len()) else { return false };
        // SAFETY: `place` has checked the source; `bytes` is private memory of this process.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
        true
    }

    /// Copies `bytes` to guest address `addr`. Returns false, without copying, unless one region contains the whole
    /// range.
    #[must_use]
    pub fn write(&self, addr: u64, bytes: &[u8]) -> bool {
        let Some(to) = self.place(addr, bytes.len()) else { return false };
        // SAFETY: as in `read`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
        true
    }

    /// The address in this process of the `len` bytes at guest address `addr`, valid while `self` is borrowed.
    fn place(&self, addr: u64, len: usize) -> Option<*mut u8> {
        let (region, at) = self.region(addr)?;
        let end = at.checked_add(len as u64)?;
        // SAFETY: the mapping has `offset + size` bytes.
        let start = || unsafe { region.mapping.start.add((region.info.offset + at) as usize) };
        (end <= region.info.size).then(|| start().as_ptr())
    }
}

impl Region {
    fn span(&self, at: u64, len: usize) -> Option<Span> {
        let end = at.checked_add(len as u64)?;
        let at = usize::try_from(self.info.offset + at).ok()?;
        if end <= self.info.size { self.mapping.span(at, len) } else { None }
    }
}

/// The maximum number of guarded mappings: two guests with the maximum number of regions.
const SLOTS: usize = 1024;
/// A slot that is taken but has no address yet.
const TAKEN: usize = 1;

struct Slot {
    start: AtomicUsize,
    len: AtomicUsize,
    is_broken: AtomicBool,
}

static SLOT: [Slot; SLOTS] = [const {
    Slot { start: AtomicUsize::new(0), len: AtomicUsize::new(0), is_broken: AtomicBool::new(false) }
}; SLOTS];
static HANDLER: Once = Once::new();
/// The page size in bytes, stored here because the handler must not query it.
static PAGE: AtomicUsize = AtomicUsize::new(4096);

/// The slot of a mapping, freed on drop.
#[derive(Debug)]
struct Guard(usize);

impl Guard {
    /// Guards `len` bytes at `start`, which must stay mapped while this exists. Returns `None` if all slots are taken.
    fn new(start: usize, len: usize) -> Option<Self> {
        HANDLER.call_once(install);
        let free = |slot: &Slot| {
            let taken = slot.start.compare_exchange(0, TAKEN, Ordering::Relaxed, Ordering::Relaxed);
            taken.is_ok()
        };
        let at = SLOT.iter().position(free)?;
        let slot = &SLOT[at];
        slot.is_broken.store(false, Ordering::Relaxed);
        slot.len.store(len, Ordering::Relaxed);
        slot.start.store(start, Ordering::Release);
        Some(Self(at))
    }

    /// Returns whether a thread has accessed a missing page.
    fn is_broken(&self) -> bool {
        SLOT[self.0].is_broken.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        SLOT[self.0].start.store(0, Ordering::Release);
    }
}

/// Installs the handler for the process.
fn install() {
    PAGE.store(rustix::param::page_size(), Ordering::Relaxed);
    // SAFETY: an all-zero action is valid, and its fields are set before it is used.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both pointers are valid or null; the handler uses only system calls and atomics, as it must.
    let _ = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) };
}

extern "C" fn handle(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes valid signal information to a handler with SA_SIGINFO.
    let address = unsafe { (*info).si_addr() } as usize;
    for slot in &SLOT {
        let start = slot.start.load(Ordering::Acquire);
        if start <= TAKEN || address.wrapping_sub(start) >= slot.len.load(Ordering::Relaxed) {
            continue;
        }
        let page = PAGE.load(Ordering::Relaxed);
        let at = (address & !(page - 1)) as *mut libc::c_void;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the page is in the mapping of the slot, whose bytes are accessed only by raw copies and atomics;
        // another process could have replaced those bytes as well.
        let mapped = unsafe { libc::mmap(at, page, access, flags, -1, 0) };
        if mapped != libc::MAP_FAILED {
            slot.is_broken.store(true, Ordering::Relaxed);
            return;
        }
    }
    // SAFETY: the default action ends the process when the access is repeated.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn file(len: u64) -> OwnedFd {
        let file = memfd_create(c"guest", MemfdFlags::CLOEXEC).expect("a file in memory");
        ftruncate(&file, len).expect("it can grow");
        file
    }

    const LOW: RegionInfo = RegionInfo { guest: 0, size: 0x4000, user: 0x7000_0000, offset: 0 };
    const HIGH: RegionInfo =
        RegionInfo { guest: 0x10_0000, size: 0x2000, user: 0x7100_0000, offset: 0x1000 };

    fn memory() -> Memory {
        let mut memory = Memory::default();
        memory.add(HIGH, &file(0x3000)).expect("a region");
        memory.add(LOW, &file(0x4000)).expect("a region");
        memory
    }

    #[test]
    fn an_address_of_either_side_finds_the_same_byte() {
        let memory = memory();
        assert!(memory.write(0x10_0010, b"hello"));
        let mut bytes = [0; 5];
        memory.user_span(0x7100_0010, 5).expect("mapped").read(0, &mut bytes);
        assert_eq!(&bytes, b"hello");
        assert!(memory.read(0x10_0010, &mut bytes));
        assert_eq!(&bytes, b"hello");
    }

    #[test]
    fn a_range_is_in_one_region_or_nowhere() {
        let memory = memory();
        assert!(memory.span(0x3fff, 1).is_some());
        assert!(memory.span(0x3fff, 2).is_none());
        assert!(memory.span(0x4000, 1).is_none());
        assert!(memory.span(0xf_ffff, 1).is_none());
        assert!(memory.span(0x10_1fff, 1).is_some());
        assert!(memory.span(u64::MAX, 2).is_none());
        assert!(memory.user_span(0x7000_4000, 1).is_none());
        assert!(!memory.write(0x3ffe, b"abc") && !memory.read(0x3ffe, &mut [0; 3]));
    }

    #[test]
    fn impossible_regions_are_refused() {
        let mut memory = memory();
        let mut refused = |info, len| memory.add(info, &file(len)).expect_err("it is impossible");
        let is_impossible = |error| matches!(error, MemoryError::Impossible(_));
        assert!(is_impossible(refused(RegionInfo { size: 0, ..LOW }, 0x1000)));
        assert!(is_impossible(refused(RegionInfo { guest: u64::MAX, ..LOW }, 0x4000)));
        assert!(is_impossible(refused(RegionInfo { offset: u64::MAX, ..LOW }, 0x4000)));
        let overlap = refused(RegionInfo { guest: 0x3fff, ..LOW }, 0x4000);
        assert!(matches!(overlap, MemoryError::Overlap(_)));
        let short = refused(RegionInfo { guest: 0x20_0000, ..LOW }, 0x3fff);
        assert!(matches!(short, MemoryError::Short { file: 0x3fff, .. }), "{short}");
    }

    #[test]
    fn a_removed_region_is_found_no_more_and_stays_mapped_for_its_spans() {
        let mut memory = memory();
        let span = memory.span(0x10_0000, 4).expect("mapped");
        assert!(memory.remove(RegionInfo { size: 1, ..HIGH }).is_err());
        memory.remove(HIGH).expect("it is there");
        assert!(memory.span(0x10_0000, 1).is_none());
        span.write(0, b"data");
        let mut bytes = [0; 4];
        span.read(0, &mut bytes);
        assert_eq!(&bytes, b"data");
    }

    #[test]
    fn memory_that_is_gone_reads_as_zeroes_and_is_broken() {
        let file = memfd_create(c"guest", MemfdFlags::CLOEXEC).expect("a file in memory");
        ftruncate(&file, 0x10_000).expect("it can grow");
        let mut memory = Memory::default();
        let region = RegionInfo { guest: 0, size: 0x10_000, user: 0, offset: 0 };
        memory.add(region, &file).expect("a region");
        assert!(memory.write(0x8000, &[7; 4]) && !memory.is_broken());
        ftruncate(&file, 0x4000).expect("it can shrink");
        assert!(!memory.is_broken(), "no page was accessed");
        let mut bytes = [1; 4];
        assert!(memory.read(0x8000, &mut bytes));
        assert_eq!(bytes, [0; 4]);
        assert!(memory.is_broken());
        assert!(memory.write(0x3000, &[9; 4]), "the rest is there");
    }
}
