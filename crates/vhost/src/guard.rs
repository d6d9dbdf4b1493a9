//! Accesses to pages that are gone: a front end that shrinks a file of its guest's memory ends its own connection, and not
//! this process.
//!
//! The kernel answers such an access with SIGBUS. The handler here looks whether the address is in a mapping of a guest,
//! puts an empty page of this process in its place, and marks the mapping as [broken](Guard::is_broken): the access
//! reads zeroes, and a write is lost. Any other SIGBUS ends the process as it would without the handler.
//!
//! # Words
//!
//! | word | states | written by |
//! |---|---|---|
//! | `start` of a slot | 0 free, 1 taken, else the first address of a mapping | the owner of the mapping |
//! | `len` of a slot | bytes of the mapping | the owner, before `start` |
//! | `is_broken` of a slot | whether a page was missing | the handler sets it, the owner clears it |
//!
//! An owner takes a slot by an exchange of 0 for 1, so that no two have it. `start` is stored with release behind `len`, and
//! the handler loads it with acquire. A handler runs in the thread whose access failed, and that thread holds the mapping:
//! its slot does not change while the handler runs. Another slot that changes has no address of this mapping in any state.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Mappings that can be guarded at a time: those of two guests with as many regions as there may be.
const SLOTS: usize = 1024;
/// A slot that is taken and has no address yet.
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
/// Bytes of a page, which the handler must not ask for.
static PAGE: AtomicUsize = AtomicUsize::new(4096);

/// The slot of a mapping, free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Guard(usize);

impl Guard {
    /// Guards `len` bytes at `start`, which stay mapped as long as this exists; `None` if all slots are taken.
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

    /// Returns whether a page was missing that a thread has accessed.
    pub(crate) fn is_broken(&self) -> bool {
        SLOT[self.0].is_broken.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        SLOT[self.0].start.store(0, Ordering::Release);
    }
}

/// Installs the handler for the whole process.
fn install() {
    PAGE.store(rustix::param::page_size(), Ordering::Relaxed);
    // SAFETY: an empty action is one, and its fields are set before it is used.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both point to an action; the handler calls nothing but system calls and atomics, as it must.
    let _ = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) };
}

extern "C" fn handle(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel hands the information of this signal to a handler with SA_SIGINFO.
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
        // SAFETY: the page is in the mapping of the slot, whose bytes are reached by raw copies and atomics only;
        // another process could have replaced those bytes as well.
        let mapped = unsafe { libc::mmap(at, page, access, flags, -1, 0) };
        if mapped != libc::MAP_FAILED {
            slot.is_broken.store(true, Ordering::Relaxed);
            return;
        }
    }
    // SAFETY: the default action ends the process when the access is made again.
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
