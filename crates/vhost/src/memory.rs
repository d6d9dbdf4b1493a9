//! The memory of a guest: descriptors that the front end has sent, mapped into this process.
//!
//! # Why the memory is safe
//!
//! This file and `guard.rs` are the only ones with `unsafe`. The argument has three parts.
//!
//! - A [`Mapping`] owns its pages. It unmaps them when it is dropped, and every pointer into it is used while an `Arc`
//!   of it is held.
//! - Every access is checked against the length of its [`Span`], which is checked against its mapping.
//! - Another process writes to the same pages at any time. No reference to them is made, so the compiler assumes nothing
//!   of their contents: bytes are copied from and to raw pointers, and indexes are atomics.
//!
//! A file that is too short is refused when it is mapped. Pages behind the end of a file that shrinks later raise SIGBUS,
//! which `guard.rs` answers.
#![allow(unsafe_code)]

use crate::guard::Guard;
use rustix::fs::fstat;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

/// The most regions of a guest, as many as QEMU's back ends have.
pub const MOST_REGIONS: usize = 509;

/// A region of a guest's memory, as the front end describes it. All numbers are bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionInfo {
    /// The first address in the guest.
    pub guest: u64,
    /// The length.
    pub size: u64,
    /// The first address in the front end.
    pub user: u64,
    /// The place of the region in its file.
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
    /// The region is empty or ends behind the last address.
    #[error("a region of {} bytes at {:#x} is impossible", .0.size, .0.guest)]
    Impossible(RegionInfo),
    /// The region overlaps another one.
    #[error("the region at {:#x} overlaps another one", .0.guest)]
    Overlap(RegionInfo),
    /// There are as many regions as there may be.
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
        /// The reason of the kernel.
        error: io::Error,
    },
    /// There is no such region.
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

// SAFETY: the pages belong to the mapping, wherever it is, and every access goes through raw copies and atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above; accesses of several threads race as accesses of the guest do, and make no reference.
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
        // SAFETY: the kernel chooses free addresses, so nothing else is mapped over.
        let start = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, file, 0)? };
        let start = NonNull::<u8>::new(start.cast()).expect("the kernel maps nothing at address 0");
        let Some(guard) = Guard::new(start.as_ptr() as usize, len) else {
            // SAFETY: the pages were mapped here, and nothing points to them.
            let _ = unsafe { munmap(start.as_ptr().cast(), len) };
            return Err(io::Error::other("too many regions of guests are mapped"));
        };
        Ok(Arc::new(Self { start, len, guard }))
    }

    /// Returns whether a page was accessed that its file does not have any more.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.guard.is_broken()
    }

    /// The bytes `at..at + len`; `None` if the mapping ends before.
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
        // SAFETY: the pages are those of `new`, and no span is left that points to them. A failure leaves them mapped.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A range of mapped memory, which stays mapped as long as this exists.
#[derive(Clone, Debug)]
pub struct Span {
    start: NonNull<u8>,
    len: usize,
    _mapping: Arc<Mapping>,
}

// SAFETY: the pointer is into the mapping, which is held and is `Send` and `Sync`.
unsafe impl Send for Span {}

impl Span {
    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the range has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of `len` bytes from `at` on.
    ///
    /// # Panics
    /// If the range ends before.
    fn place(&self, at: usize, len: usize) -> *mut u8 {
        let fits = at.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(fits, "{len} bytes at {at} of a range of {}", self.len);
        // SAFETY: within the range.
        unsafe { self.start.as_ptr().add(at) }
    }

    /// Copies the bytes from `at` on into `bytes`.
    ///
    /// # Panics
    /// If the range ends before.
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        let from = self.place(at, bytes.len());
        // SAFETY: both are valid for so many bytes, and `bytes` is memory of this process alone.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Panics
    /// If the range ends before.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.place(at, bytes.len());
        // SAFETY: as in `read`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Loads the little-endian number at `at`.
    ///
    /// # Panics
    /// If the range ends before, or the address is odd.
    #[must_use]
    pub fn load(&self, at: usize, order: Ordering) -> u16 {
        u16::from_le(self.number(at).load(order))
    }

    /// Stores a little-endian number at `at`.
    ///
    /// # Panics
    /// As [`load`](Self::load).
    pub fn store(&self, at: usize, value: u16, order: Ordering) {
        self.number(at).store(value.to_le(), order);
    }

    fn number(&self, at: usize) -> &AtomicU16 {
        let place = self.place(at, 2).cast::<u16>();
        assert!(place.is_aligned(), "a number at an odd address");
        // SAFETY: valid, aligned, and mapped as long as `self` lives; both sides access it atomically.
        unsafe { AtomicU16::from_ptr(place) }
    }

    /// Returns whether the first byte is at a multiple of `align` bytes.
    #[must_use]
    pub fn is_aligned_to(&self, align: usize) -> bool {
        (self.start.as_ptr() as usize).is_multiple_of(align)
    }
}

/// A mapped region.
#[derive(Clone, Debug)]
struct Region {
    info: RegionInfo,
    mapping: Arc<Mapping>,
}

/// The memory of a guest, by regions.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// By their first addresses in the guest.
    regions: Vec<Region>,
}

impl Memory {
    /// Maps another region.
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
        // From the beginning of the file, since huge pages accept no other offset than multiples of their size.
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

    /// Removes a region, by its addresses and its size. Spans of it stay mapped until they are dropped.
    ///
    /// # Errors
    /// If there is none like this.
    pub fn remove(&mut self, info: RegionInfo) -> Result<(), MemoryError> {
        let at = self.regions.iter().position(|it| it.info.has_same_place(&info));
        let at = at.ok_or(MemoryError::Missing(info))?;
        self.regions.remove(at);
        Ok(())
    }

    /// Returns whether a page was accessed that its file does not have any more: the guest is no guest any longer.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.regions.iter().any(|region| region.mapping.is_broken())
    }

    /// The number of regions.
    #[must_use]
    pub fn regions(&self) -> usize {
        self.regions.len()
    }

    /// The `len` bytes at the guest's address `addr`; `None` unless one region has all of them.
    #[must_use]
    pub fn span(&self, addr: u64, len: usize) -> Option<Span> {
        let (region, at) = self.region(addr)?;
        region.span(at, len)
    }

    /// The `len` bytes at the front end's address `addr`; `None` unless one region has all of them.
    #[must_use]
    pub fn user_span(&self, addr: u64, len: usize) -> Option<Span> {
        let has = |it: &&Region| addr.checked_sub(it.info.user).is_some_and(|at| at < it.info.size);
        let region = self.regions.iter().find(has)?;
        region.span(addr - region.info.user, len)
    }

    /// The region with the guest's address `addr`, and the place of that address in it.
    fn region(&self, addr: u64) -> Option<(&Region, u64)> {
        let behind = self.regions.partition_point(|it| it.info.guest <= addr);
        let region = self.regions.get(behind.checked_sub(1)?)?;
        let at = addr - region.info.guest;
        (at < region.info.size).then_some((region, at))
    }

    /// Copies the bytes at the guest's address `addr` into `bytes`. Returns false, and copies nothing, unless one region
    /// has all of them.
    #[must_use]
    pub fn read(&self, addr: u64, bytes: &mut [u8]) -> bool {
        let Some(from) = self.place(addr, bytes.len()) else { return false };
        // SAFETY: `place` has checked the source; `bytes` is memory of this process alone.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
        true
    }

    /// Copies `bytes` to the guest's address `addr`. Returns false, and copies nothing, unless one region has room for all
    /// of them.
    #[must_use]
    pub fn write(&self, addr: u64, bytes: &[u8]) -> bool {
        let Some(to) = self.place(addr, bytes.len()) else { return false };
        // SAFETY: as in `read`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
        true
    }

    /// The address in this process of `len` bytes at the guest's address `addr`, valid while `self` is borrowed.
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
}
