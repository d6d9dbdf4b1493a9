//! [`Allocation`]: page-aligned memory from the allocator.
//!
//! Allocators fill aligned memory with zeroes themselves, which takes a fault for each page. Long memory is therefore
//! allocated without alignment and aligned here: then it comes from the system, which gives a page when it is first
//! used.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// The alignment of buffers, in bytes: at least the alignment that any disk and file system requires for direct I/O.
pub const PAGE: usize = 4096;

/// Bytes from which on memory is aligned here. Below, the page that this wastes counts for more.
const LONG: usize = 32 * PAGE;
/// An alignment that every allocator gives without extra work.
const ANY: usize = align_of::<usize>();

/// Page-aligned memory, zero at creation.
pub(crate) struct Allocation {
    start: NonNull<u8>,
    /// The first byte from the allocator, at `start` or less than a page before it.
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: `Allocation` owns its bytes but never reads or writes them. They are reached only through ranges, which end before
// it does, on whichever thread that is.
unsafe impl Send for Allocation {}
// SAFETY: as above; a shared reference gives only the address of the bytes.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// Allocates `len` bytes, above 0, rounded up to whole pages.
    pub(crate) fn new(len: usize) -> Self {
        assert!(len > 0, "an allocation has at least one byte");
        // Checked in every build: a length that wraps around would become a layout of no bytes.
        let whole = len.checked_next_multiple_of(PAGE);
        let whole = whole.filter(|whole| *whole <= isize::MAX as usize - PAGE);
        let len = whole.expect("a length that fits the address space");
        let (size, align) = if len < LONG { (len, PAGE) } else { (len + PAGE, ANY) };
        let layout = Layout::from_size_align(size, align).expect("it was checked above");
        // SAFETY: the layout's size is above 0: `len` is, and rounding up has not wrapped around.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        let skip = base.as_ptr().addr().wrapping_neg() % PAGE;
        // SAFETY: `skip` is 0 where the allocation is aligned, and below a page, which is there in addition, elsewhere.
        let start = unsafe { base.add(skip) };
        Self { start, base, layout }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and no range of it is left.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}
