//! One ring: creating it, probing its features, and registering files and buffers with it; and [`Place`]: the place
//! where the owner of a ring sleeps, and the means by which other threads wake it.
//!
//! Any thread may use it, one at a time, and one thread may submit while another one reaps. This decides the flags of
//! its set-up: `SINGLE_ISSUER` and `DEFER_TASKRUN` tie a ring to one thread. With `COOP_TASKRUN` a completion waits
//! until the thread that *submitted* enters the kernel for another reason, while the thread that watches the ring waits
//! for the completion. So completions interrupt, which is the default.
//!
//! # The place of the owner
//!
//! The owner sleeps in `io_uring_enter` on its ring, the call by which it also submits. So a completion wakes the
//! thread that waits for it, and no other. A *call* of another thread is a write to an eventfd that the ring polls. It
//! becomes a completion, which the pump takes like any other.
//!
//! The kernel handles a poll of a ring in the thread that added it. So the poll belongs to the thread that sleeps in
//! the ring, and is added again when another thread sleeps there. A thread that sleeps on the ring's
//! [descriptor](Berth::fd) is woken by the completion, whichever thread handles it, so the poll of any living thread is
//! enough. A task that moves between the threads of an executor does not move the poll.
//!
//! ## No lost call
//!
//! The eventfd is never read, so a new poll finds it readable after the first write: a call may be seen twice, but is
//! always seen. A poll that has ended (with its thread, or for lack of room) leaves a completion, which ends every kind
//! of sleep. The turn that finds this completion adds the poll again. A sleeper in the ring whose thread has not added
//! the poll does not sleep, and its next turn adds it. The same holds for a sleeper on the descriptor before the first
//! poll.
//!
//! A call reaches a sleeper on the descriptor when the thread of the poll next runs: the kernel interrupts a running
//! thread, and wakes a sleeping one for as long as handling the poll takes.
//!
//! A turn of another thread takes completions from the ring, and a call may be among them. The sleeper may be about to
//! enter the kernel, and relies on the call: the caller has taken the sleeper's mark, so no other thread will call. So
//! a turn that takes a call for another thread makes the call again.
//!
//! ## One system call for a submission and a sleep
//!
//! While the owner waits, its own turns leave entries in the submission queue, and its sleep submits them. A turn of
//! any thread that finds such entries submits them, so they stay there only while the owner is awake and waits. The end
//! of the wait submits them, too.
//!
//! All words are hints between turns and sleeps. They are written under the pump's run or by the owner, and a stale
//! value costs one more turn. The words `waits` and `left` are used by the owner's thread alone, which writes them.

use crate::OpenError;
use blkmq_buf::BufferPool;
use blkmq_core::Nanos;
use blkmq_engine::Berth;
use io_uring::types::{CancelBuilder, Fd, Timespec};
use io_uring::{Builder, IoUring, Probe, cqueue, opcode, squeue};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

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
    fn forget_poll(&mut self, number: u64, end: u64) {
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

    /// Returns whether the kernel has the features that a [`Place`] needs: waiting with a time
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

/// The number of the completion of a poll's removal. Those of requests are smaller, and those of polls larger.
const ENDED: u64 = 1 << 32;

/// The state that pump, sleepers and callers share.
struct Shared {
    /// A descriptor of the ring.
    ring: OwnedFd,
    event: EventFd,
    /// The thread that sleeps here, and needs the poll to be its own; [`NONE`] before the first sleep.
    sleeper: AtomicUsize,
    /// The thread that added the poll; [`NONE`] before the first sleep.
    polls: AtomicUsize,
    /// The thread that waits here, asleep or awake; [`NONE`] while the owner does not wait.
    waits: AtomicUsize,
    /// The number of entries that turns of the owner have left in the submission queue, for its sleep to submit.
    left: AtomicU32,
}

const NONE: usize = 0;

/// Added to the number of a sleeper on the descriptor, for which any living thread may poll.
const ON_DESCRIPTOR: usize = 1;

/// An even number for the calling thread that no other living thread has.
fn this_thread() -> usize {
    thread_local!(static PLACE: u64 = const { 0 });
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

/// The pump's side of a place.
pub(crate) struct Place {
    shared: Arc<Shared>,
    /// The number of the poll, which no earlier one had.
    poll: u64,
    /// This turn has taken a call.
    called: bool,
}

/// The side of the sleeper and of callers.
struct Bed(Arc<Shared>);

impl Place {
    /// A place for the owner of `ring`.
    pub(crate) fn new(ring: &Ring) -> io::Result<Self> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let ring = ring.fd().try_clone_to_owned()?;
        let [sleeper, polls, waits] = [(); 3].map(|()| AtomicUsize::new(NONE));
        let left = AtomicU32::new(0);
        let shared = Shared { ring, event, sleeper, polls, waits, left };
        Ok(Self { shared: Arc::new(shared), poll: ENDED, called: false })
    }

    pub(crate) fn berth(&self) -> Box<dyn Berth> {
        Box::new(Bed(Arc::clone(&self.shared)))
    }

    /// Adds the poll if the calling thread sleeps here and needs it, or passes a call on to another sleeper. Called in
    /// a turn after the last [`notice`](Self::notice). Returns whether there is something to submit.
    #[inline]
    pub(crate) fn attend(&mut self, ring: &mut Ring) -> bool {
        let Shared { sleeper, polls, .. } = &*self.shared;
        let (sleeper, polls) = (sleeper.load(Ordering::Relaxed), polls.load(Ordering::Relaxed));
        let is_own = sleeper & !ON_DESCRIPTOR == this_thread();
        if std::mem::take(&mut self.called) && !is_own {
            self.shared.call();
        }
        let is_due = if sleeper & ON_DESCRIPTOR == 0 { polls != sleeper } else { polls == NONE };
        let wanted = is_own && is_due;
        if wanted {
            self.poll(ring);
        }
        wanted
    }

    /// Leaves entries in the submission queue for the sleep of the calling thread, if it waits here. Returns false if
    /// they are to be submitted immediately.
    #[inline]
    pub(crate) fn leave(&self, entries: u32) -> bool {
        let waits = self.shared.waits.load(Ordering::Relaxed) == this_thread();
        if waits {
            self.shared.left.store(entries, Ordering::Relaxed);
        }
        waits
    }

    /// Returns whether an earlier turn has left entries that no sleep has submitted.
    #[inline]
    pub(crate) fn has_left(&self) -> bool {
        self.shared.left.load(Ordering::Relaxed) > 0
    }

    /// Notes that all entries have been submitted.
    #[inline]
    pub(crate) fn take_left(&self) {
        if self.has_left() {
            self.shared.left.store(0, Ordering::Relaxed);
        }
    }

    #[cold]
    fn poll(&mut self, ring: &mut Ring) {
        if self.poll > ENDED {
            // If the poll has ended, this has no effect.
            ring.forget_poll(self.poll, ENDED);
        }
        self.poll += 1;
        ring.poll(self.shared.event.as_fd().as_raw_fd(), self.poll);
        self.shared.polls.store(this_thread(), Ordering::Relaxed);
    }

    /// Takes a completion of a poll. Returns whether there is something to submit; `None` for a request's completion.
    #[inline]
    pub(crate) fn notice(&mut self, completion: &cqueue::Entry, ring: &mut Ring) -> Option<bool> {
        let number = completion.user_data();
        if number < ENDED {
            return None;
        }
        self.called |= number > ENDED;
        let ended = number == self.poll && !cqueue::more(completion.flags());
        if ended {
            self.poll(ring);
        }
        Some(ended)
    }
}

impl Shared {
    fn call(&self) {
        // This fails only at a count of 2^64 - 2, which no program reaches.
        let _ = self.event.write(1);
    }
}

impl Bed {
    /// Returns whether the poll is the calling thread's. If not, its next turn adds it.
    fn owns_poll(&self) -> bool {
        let me = this_thread();
        self.0.sleeper.store(me, Ordering::Relaxed);
        self.0.polls.load(Ordering::Relaxed) == me
    }

    /// Submits the entries that turns of this thread have left, and waits for `least` completions, for `left` at most.
    fn enter(&self, least: u32, left: Option<Nanos>) {
        let limit = left.map(|Nanos(ns)| Timespec::from(Duration::from_nanos(ns)));
        let entries = self.0.left.load(Ordering::Relaxed);
        let ring = self.0.ring.as_raw_fd();
        // SAFETY: the entries are of requests in places, which keep the memory as for any submission, or point to none.
        let entered = unsafe { enter(ring, entries, least, limit.as_ref()) };
        // Otherwise the kernel lacks memory, or another thread has submitted the entries, and the next turn looks. The
        // kernel reports a timeout or a signal only if it has submitted nothing.
        if entries > 0 && entered.is_ok_and(|taken| taken == entries) {
            self.0.left.store(0, Ordering::Relaxed);
        }
    }
}

impl Berth for Bed {
    fn attend(&self) -> bool {
        self.0.sleeper.store(this_thread() | ON_DESCRIPTOR, Ordering::Relaxed);
        self.0.polls.load(Ordering::Relaxed) != NONE
    }

    fn begin(&self) {
        self.0.waits.store(this_thread(), Ordering::Relaxed);
    }

    fn end(&self) {
        self.0.waits.store(NONE, Ordering::Relaxed);
        if self.0.left.load(Ordering::Relaxed) > 0 {
            self.enter(0, None);
        }
    }

    fn sleep(&self, left: Option<Nanos>) {
        if self.owns_poll() {
            self.enter(1, left);
        }
    }

    fn call(&self) {
        self.0.call();
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.ring.as_fd()
    }
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
unsafe fn enter(ring: i32, entries: u32, least: u32, limit: Option<&Timespec>) -> io::Result<u32> {
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
