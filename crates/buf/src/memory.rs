//! [`Memory`]: page-aligned memory, which ranges of it keep alive together.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// The alignment of buffers, in bytes: at least what any disk and file system requires for direct I/O.
pub const PAGE: usize = 4096;

/// Page-aligned memory, zeroed at creation.
pub(crate) struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: `Memory` owns its bytes but never reads or writes them. They are reached only through ranges, each of which
// holds a share, so that they are freed after the last range, on whichever thread that one ends.
unsafe impl Send for Memory {}
// SAFETY: as above; a shared reference gives only the address of the bytes.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates `len` bytes, above 0, rounded up to whole pages.
    pub(crate) fn new(len: usize) -> Self {
        assert!(len > 0, "an allocation has at least one byte");
        // Checked in every build: a length that wraps around would become a layout of no bytes.
        let whole = len.checked_next_multiple_of(PAGE);
        let layout = whole.and_then(|whole| Layout::from_size_align(whole, PAGE).ok());
        let layout = layout.expect("a length that fits the address space");
        // SAFETY: the layout's size is above 0: `len` is, and rounding up has not wrapped around.
        let start = unsafe { alloc_zeroed(layout) };
        match NonNull::new(start) {
            Some(start) => Self { start, layout },
            None => handle_alloc_error(layout),
        }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The length in bytes, a multiple of the page size.
    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }

    /// Just behind the last byte.
    pub(crate) fn end(&self) -> *mut u8 {
        self.start.as_ptr().wrapping_add(self.len())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and every range of it has an `Arc` to it.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
