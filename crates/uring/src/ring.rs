//! One ring: creating it, probing its features, and registering files and buffers with it.
//!
//! Any thread may use it, one at a time, and one thread may submit while another one reaps. This decides the flags of
//! its set-up: `SINGLE_ISSUER` and `DEFER_TASKRUN` tie a ring to one thread. With `COOP_TASKRUN` a completion waits
//! until the thread that *submitted* enters the kernel for another reason, while the thread that watches the ring waits
//! for the completion. So completions interrupt, which is the default.

use crate::OpenError;
use blkmq_buf::BufferPool;
use io_uring::types::{CancelBuilder, Fd, Timespec};
use io_uring::{Builder, IoUring, Probe, cqueue, opcode, squeue};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

/// The kernel's limit for one registered buffer, in bytes. A larger pool is registered in pieces of this size.
const PIECE: usize = 1 << 30;

/// The operations used here, all available since Linux 5.6.
const NEEDED: [(u8, &str); 6] = [
    (opcode::Read::CODE, "READ"),
    (opcode::Write::CODE, "WRITE"),
    (opcode::Readv::CODE, "READV"),
    (opcode::Writev::CODE, "WRITEV"),
    (opcode::Fsync::CODE, "FSYNC"),
    (opcode::Fallocate::CODE, "FALLOCATE"),
];

pub(crate) struct Ring {
    ring: IoUring,
    regions: Vec<Region>,
    /// The kernel has vectored I/O on registered buffers (Linux 6.15).
    pub(crate) has_vectored_fixed: bool,
}

/// A registered pool.
struct Region {
    start: usize,
    len: usize,
    /// The number of its first piece.
    first: usize,
    /// Keeps the addresses valid.
    _pool: BufferPool,
}

impl Ring {
    /// A ring for `depth` requests. A request has at most one entry in either queue, so neither can overflow.
    pub(crate) fn new(depth: u32) -> Result<Self, OpenError> {
        Self::of(depth, |_| {})
    }

    /// A ring with polled completions: each [`submit`](Self::submit) looks for them at the device, even with nothing to
    /// submit. It takes reads and writes only.
    pub(crate) fn polled(depth: u32) -> Result<Self, OpenError> {
        Self::of(depth, |builder| {
            builder.setup_iopoll();
        })
    }

    fn of(depth: u32, kind: impl Fn(&mut Builder)) -> Result<Self, OpenError> {
        // Room for a poll and the end of an earlier one.
        let ring = build(depth.next_power_of_two().max(2), kind).map_err(refused)?;
        let mut probe = Probe::new();
        let asked = ring.submitter().register_probe(&mut probe);
        // A kernel without the probe lacks the operations as well.
        let lacks = |code| asked.is_err() || !probe.is_supported(code);
        let missing = NEEDED.iter().filter(|(code, _)| lacks(*code)).map(|(_, name)| *name);
        let operations = Vec::from_iter(missing);
        if !operations.is_empty() {
            return Err(OpenError::Missing { operations });
        }
        let has_vectored_fixed =
            !lacks(opcode::ReadvFixed::CODE) && !lacks(opcode::WritevFixed::CODE);
        Ok(Self { ring, regions: Vec::new(), has_vectored_fixed })
    }

    /// Registers `files` with the ring, with numbers from 0.
    pub(crate) fn register_files<'a>(
        &self,
        files: impl Iterator<Item = &'a File>,
    ) -> Result<(), OpenError> {
        let files = Vec::from_iter(files.map(AsRawFd::as_raw_fd));
        let registered = self.ring.submitter().register_files(&files);
        registered.map_err(OpenError::ring("register the file with the ring"))
    }

    /// Registers the memory of `pools`, which the kernel maps for the life of the ring.
    pub(crate) fn register_buffers(&mut self, pools: &[BufferPool]) -> Result<(), OpenError> {
        let mut pieces = Vec::new();
        for pool in pools {
            let (start, len) = pool.region();
            let region = Region {
                start: start.as_ptr() as usize,
                len,
                first: pieces.len(),
                _pool: pool.clone(),
            };
            self.regions.push(region);
            pieces.extend((0..len).step_by(PIECE).map(|at| libc::iovec {
                iov_base: start.as_ptr().wrapping_add(at).cast(),
                iov_len: (len - at).min(PIECE),
            }));
        }
        if pieces.is_empty() {
            return Ok(());
        }
        // SAFETY: the memory is the pools', which `regions` keeps for as long as the ring exists. Registering only maps
        // it. Each request decides which bytes are read and written.
        let registered = unsafe { self.ring.submitter().register_buffers(&pieces) };
        registered.map_err(OpenError::ring("register buffers with the ring"))
    }

    /// The registered piece that contains `len` bytes at `start`; `None` if there is none.
    #[inline]
    pub(crate) fn piece_of(&self, start: usize, len: usize) -> Option<u16> {
        self.regions.iter().find_map(|region| {
            let at = start.checked_sub(region.start).filter(|at| at + len <= region.len)?;
            let is_whole = at / PIECE == (at + len.max(1) - 1) / PIECE;
            is_whole.then(|| (region.first + at / PIECE) as u16)
        })
    }

    /// Puts an entry into the submission queue.
    ///
    /// # Safety
    /// The memory that the entry points to stays valid until the entry's completion has been taken.
    ///
    /// # Panics
    /// If the queue has more entries than the ring was made for.
    #[inline]
    pub(crate) unsafe fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: promised by the caller.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.expect("an entry for each request that the ring was made for");
    }

    /// Entries of the submission queue that are not handed over.
    pub(crate) fn waiting(&mut self) -> u32 {
        self.ring.submission().len() as u32
    }

    /// Hands the entries of the submission queue over. One system call.
    pub(crate) fn submit(&self) -> io::Result<()> {
        loop {
            match self.ring.submit() {
                Ok(_) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Adds a multishot poll of `fd`: whenever it becomes readable, there is a completion with `number`. The caller
    /// [submits](Self::submit).
    pub(crate) fn poll(&mut self, fd: RawFd, number: u64) {
        let poll = opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).multi(true);
        self.push_apart(&poll.build().user_data(number));
    }

    /// Removes the poll with `number`. The completion of the removal has the number `end`.
    pub(crate) fn forget_poll(&mut self, number: u64, end: u64) {
        self.push_apart(&opcode::PollRemove::new(number).build().user_data(end));
    }

    /// Puts an entry without memory into the submission queue, behind the entries of requests.
    fn push_apart(&mut self, entry: &squeue::Entry) {
        loop {
            // SAFETY: the entry points to no memory.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            // The queue is full, and the kernel has no memory for its entries.
            if self.submit().is_err() {
                std::thread::yield_now();
            }
        }
    }

    /// Returns whether the kernel has the features that a [`Place`](crate::berth::Place) needs: waiting with a time
    /// limit (Linux 5.11), and multishot polls (5.13).
    pub(crate) fn has_berths(&self) -> bool {
        let params = self.ring.params();
        params.is_feature_ext_arg() && params.is_feature_resource_tagging()
    }

    /// Submits, and sleeps until there is a completion.
    pub(crate) fn submit_and_wait(&self) -> io::Result<()> {
        self.ring.submit_and_wait(1).map(|_| ())
    }

    /// The oldest completion. No system call.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<cqueue::Entry> {
        self.ring.completion().next()
    }

    /// Asks the kernel to cancel all requests that it has not begun. It may have begun all of them, or not support
    /// this. In either case the completions show the result.
    pub(crate) fn cancel(&self) {
        let at_once = Some(Timespec::new());
        let _ = self.ring.submitter().register_sync_cancel(at_once, CancelBuilder::any());
    }

    /// Like [`cancel`](Self::cancel), for the request with this number alone.
    pub(crate) fn cancel_one(&self, number: u32) {
        let one = CancelBuilder::user_data(number.into());
        let _ = self.ring.submitter().register_sync_cancel(Some(Timespec::new()), one);
    }

    /// The descriptor of the ring, readable while there are completions.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A watcher of the ring has a descriptor of its own, which would keep the pages mapped. The kernel destroys a
        // ring with a delay, in which a block device would stay claimed.
        if !self.regions.is_empty() {
            let _ = self.ring.submitter().unregister_buffers();
        }
        // Without effect if no file is registered.
        let _ = self.ring.submitter().unregister_files();
    }
}

/// Builds a ring with the flags among these that the kernel knows.
fn build(entries: u32, kind: impl Fn(&mut Builder)) -> io::Result<IoUring> {
    let mut with = [IoUring::builder(), IoUring::builder(), IoUring::builder()];
    // One bad entry must not leave later entries to the next call, and entries need no index (Linux 6.6).
    with[0].setup_submit_all().setup_no_sqarray();
    // The first flag alone (Linux 5.18).
    with[1].setup_submit_all();
    let mut last = io::Error::from_raw_os_error(libc::EINVAL);
    for builder in &mut with {
        kind(builder);
        // The completion queue is twice as large, for polls, which complete more than once.
        match builder.dontfork().build(entries) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => last = e,
            built => return built,
        }
    }
    Err(last)
}

fn refused(why: io::Error) -> OpenError {
    match why.raw_os_error() {
        Some(libc::ENOSYS | libc::EPERM | libc::EACCES) => {
            let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
            OpenError::NoIoUring { why, disabled: disabled.map(|text| text.trim().to_owned()) }
        }
        _ => OpenError::ring("make a ring")(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::Payload;

    #[test]
    fn memory_of_a_registered_pool_is_found_by_its_address() {
        let Ok(mut ring) = Ring::new(4) else {
            println!("skipped memory_of_a_registered_pool_is_found_by_its_address: no io_uring");
            return;
        };
        let (one, two) = (BufferPool::new(2, 4096), BufferPool::new(1, 512));
        ring.register_buffers(&[one.clone(), two.clone()]).expect("a few pages");
        let place = |pool: &BufferPool| {
            let buf = pool.take().expect("free");
            buf.ranges().next().map_or(0, |range| range.cast::<u8>() as usize)
        };
        let (a, b) = (place(&one), place(&two));
        assert_eq!((ring.piece_of(a, 4096), ring.piece_of(a, 8192)), (Some(0), Some(0)));
        assert_eq!((ring.piece_of(a, 8193), ring.piece_of(a - 1, 1)), (None, None));
        assert_eq!((ring.piece_of(b, 512), ring.piece_of(b + 4096, 1)), (Some(1), None));
    }
}
