//! Handles accesses to missing pages: a front end that truncates a file of guest memory ends only its own connection,
//! not this process.
//!
//! The kernel answers such an access with SIGBUS. The handler checks whether the address is in a mapping of a guest. If
//! so, it maps an empty page there and marks the mapping as [broken](Guard::is_broken): the access reads zeroes, and a
//! write is lost. Any other SIGBUS ends the process, as it would without the handler.
//!
//! # State
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

use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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
pub(crate) struct Guard(usize);

impl Guard {
    /// Guards `len` bytes at `start`, which must stay mapped while this exists. Returns `None` if all slots are taken.
    pub(crate) fn new(start: usize, len: usize) -> Option<Self> {
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
    pub(crate) fn is_broken(&self) -> bool {
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
    use crate::memory::{Memory, RegionInfo};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

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
