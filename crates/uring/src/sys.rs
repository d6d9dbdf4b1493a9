//! System calls that have no safe wrapper elsewhere, or one for 32 bits only.

use io_uring::types::Timespec;
use nix::errno::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The alignment of direct I/O in the file and in memory, in bytes, as statx reports it since Linux 6.1: zero if there
/// is no direct I/O, `None` if unknown.
pub(crate) fn direct_alignment(file: &File) -> Option<(u32, u32)> {
    let mut stat = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let (fd, wanted) = (file.as_raw_fd(), libc::STATX_DIOALIGN);
    // SAFETY: the path is a string, and the kernel writes to `stat` during the call only.
    let asked =
        unsafe { libc::statx(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, wanted, stat.as_mut_ptr()) };
    // SAFETY: its fields are integers, for which zero is a value.
    let stat = unsafe { stat.assume_init() };
    let is_known = asked == 0 && stat.stx_mask & wanted != 0;
    is_known.then_some((stat.stx_dio_offset_align, stat.stx_dio_mem_align))
}

/// The logical block size of a block device, in bytes; `None` if the device does not report it.
pub(crate) fn block_size(device: &File) -> Option<u32> {
    let mut bytes = 0_i32;
    // SAFETY: the kernel writes an int, during the call only.
    let asked = unsafe { libc::ioctl(device.as_raw_fd(), libc::BLKSSZGET, &raw mut bytes) };
    if asked == 0 { u32::try_from(bytes).ok() } else { None }
}

/// Calls fallocate(2) with these flags for `len` bytes at `at`.
pub(crate) fn allocate(file: &File, mode: i32, at: u64, len: u64) -> nix::Result<()> {
    let wide = |n| i64::try_from(n).map_err(|_| Errno::EINVAL);
    let (at, len) = (wide(at)?, wide(len)?);
    // SAFETY: no memory is passed.
    Errno::result(unsafe { libc::fallocate64(file.as_raw_fd(), mode, at, len) }).map(drop)
}

/// The last argument of io_uring_enter(2) with `IORING_ENTER_EXT_ARG`.
#[repr(C)]
struct WaitArgument {
    sigmask: u64,
    sigmask_size: u32,
    min_wait_usec: u32,
    timespec: u64,
}

/// Submits `entries` of a ring and waits for `least` completions, for `limit` at most. Returns the number submitted.
///
/// # Safety
/// The memory of the entries stays valid until their completions have been taken.
pub(crate) unsafe fn enter(
    ring: i32,
    entries: u32,
    least: u32,
    limit: Option<&Timespec>,
) -> io::Result<u32> {
    const GETEVENTS: u32 = 1;
    const EXT_ARG: u32 = 1 << 3;
    let timespec = limit.map_or(0, |limit| std::ptr::from_ref(limit) as u64);
    let argument = WaitArgument { sigmask: 0, sigmask_size: 0, min_wait_usec: 0, timespec };
    let (flags, size) = (GETEVENTS | EXT_ARG, size_of::<WaitArgument>());
    // SAFETY: the caller promises it for the entries. The argument and the time are read during the call only.
    let entered = unsafe {
        libc::syscall(
            libc::SYS_io_uring_enter,
            ring,
            entries,
            least,
            flags,
            &raw const argument,
            size,
        )
    };
    u32::try_from(entered).map_err(|_| io::Error::last_os_error())
}
