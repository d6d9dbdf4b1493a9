//! The requests of a device, taken from the kernel and answered: the memory that this process shares with the driver,
//! and the rings that carry its commands.
//!
//! # Why the memory is safe
//!
//! This file is the only one with `unsafe`. The argument has three parts.
//!
//! - A `Mapping` owns its pages, and every access to them is checked against its length.
//! - The kernel may write descriptors at any time. So no reference to them is made: each is copied once from a
//!   read-only mapping, and only the copy is read.
//! - The kernel may access a buffer from the command that passes its address until the completion of that command.
//!   `Rings` lends the buffer of a tag as a slice only outside of that time, which it knows by the state of the tag.
//!   Buffers of tags that the kernel has not returned are leaked, and so is the buffer of a control command whose
//!   completion was not seen.
#![allow(unsafe_code)]

use crate::wire::{self, COMMIT_AND_FETCH, Control, Descriptor, FETCH, Info};
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

/// The kernel has ended a tag because the device stops.
const ENODEV: i32 = -19;

/// A request, with the number of its tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// The number of the tag, used to answer the request.
    pub tag: u32,
    /// The request. Its sector and length come from the kernel, and are not checked against the disk.
    pub request: Descriptor,
}

/// The queues of a device, all served by the thread that creates this.
pub struct Queues {
    rings: Rings,
    /// Tags that the kernel has not ended.
    live: usize,
    /// The first command that the kernel refused.
    fault: Option<i32>,
}

impl Queues {
    /// Fetches every tag of the device described by `info`, whose character device is `file`. Afterwards the device can
    /// be started. All further calls must come from the same thread.
    ///
    /// # Errors
    /// If the system refuses memory or a ring.
    pub fn fetch(file: File, info: &Info) -> io::Result<Self> {
        let mut rings = Rings::new(file, info.queues, info.depth, info.max_bytes)?;
        (0..rings.tags()).for_each(|number| rings.push(number, FETCH, -1));
        rings.submit()?;
        let live = rings.tags();
        Ok(Self { rings, live, fault: None })
    }

    /// Returns whether a request may be ready to take.
    pub fn has_request(&mut self) -> bool {
        self.rings.has_completion()
    }

    /// Takes the next request, or returns `None` if no request is ready.
    pub fn take(&mut self) -> Option<Taken> {
        loop {
            let (number, result) = self.rings.next()?;
            if result == 0 {
                let request = self.rings.descriptor(number);
                return Some(Taken { tag: number as u32, request });
            }
            self.live -= 1;
            if result != ENODEV {
                self.fault = self.fault.or(Some(result));
            }
        }
    }

    /// The first `len` bytes of the buffer of a taken request, which holds the data of a write, or receives the data of
    /// a read. Returns `None` if the buffer is smaller.
    ///
    /// # Panics
    /// If the request has been answered.
    pub fn data(&mut self, tag: u32, len: usize) -> Option<&mut [u8]> {
        self.rings.data(tag as usize, len)
    }

    /// Answers a request with the bytes of a read or write, 0 for other operations, or a negative errno.
    /// [`submit`](Self::submit) passes the answer to the kernel.
    ///
    /// # Panics
    /// If the request has been answered.
    pub fn answer(&mut self, tag: u32, result: i32) {
        self.rings.push(tag as usize, COMMIT_AND_FETCH, result);
    }

    /// Answers every request that was taken and is unanswered with `result`, a negative errno.
    pub fn fail(&mut self, result: i32) {
        for number in 0..self.rings.tags() {
            if self.rings.is_taken(number) {
                self.rings.push(number, COMMIT_AND_FETCH, result);
            }
        }
    }

    /// Passes the answers to the kernel.
    ///
    /// # Errors
    /// If the kernel refuses; the call can be repeated.
    pub fn submit(&mut self) -> io::Result<()> {
        self.rings.submit()
    }

    /// Returns whether the kernel has ended every tag, because the device has stopped.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.live == 0
    }

    /// The errno of the first command that the kernel refused for a reason other than the end of the device. The tag is
    /// lost.
    pub fn take_fault(&mut self) -> Option<io::Error> {
        self.fault.take().map(|result| io::Error::from_raw_os_error(-result))
    }
}

impl AsFd for Queues {
    /// Becomes readable when the kernel has a request.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.rings.as_fd()
    }
}

/// Sends a control command, and waits for its completion. Returns its result, which is a negative errno on failure.
///
/// # Errors
/// If there is no ring, or the kernel refuses to wait.
pub(crate) fn control(
    file: &File,
    command: Control,
    device: u32,
    buffer: &mut [u8],
    data: u64,
) -> io::Result<i32> {
    let length = u16::try_from(buffer.len()).map_err(io::Error::other)?;
    let mut ring = IoUring::<squeue::Entry128, cqueue::Entry>::builder().build(1)?;
    let mut copy = ManuallyDrop::new(Box::<[u8]>::from(&*buffer));
    let bytes = wire::control_bytes(device, copy.as_mut_ptr() as u64, length, data);
    let entry = opcode::UringCmd80::new(Fd(file.as_raw_fd()), command.opcode()).cmd(bytes).build();
    // SAFETY: the file is open until the command has completed, and the buffer is leaked unless it has.
    unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
    let completion = loop {
        match ring.submit_and_wait(1) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        if let Some(completion) = ring.completion().next() {
            break completion;
        }
    };
    let copy = ManuallyDrop::into_inner(copy);
    buffer.copy_from_slice(&copy);
    Ok(completion.result())
}

/// Memory pages of this process.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// Maps the descriptors of a queue.
    fn descriptors(file: &File, queue: u16, depth: u16) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let len = (usize::from(depth) * Descriptor::LEN).next_multiple_of(page);
        let (protection, at) = (ProtFlags::READ, wire::descriptors_at(queue, page));
        // SAFETY: a new mapping overlaps no other.
        let start = unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, file, at) }?;
        Ok(Self { start: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }

    /// Maps zeroed memory, which the system allocates on first use.
    fn memory(len: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping overlaps no other.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE) }?;
        Ok(Self { start: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }

    /// The address of the `len` bytes from offset `at` on.
    fn at(&self, at: usize, len: usize) -> NonNull<u8> {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "{at} and {len} bytes");
        // SAFETY: the sum is inside the mapping.
        unsafe { self.start.add(at) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping owns the pages, and no pointer into them is kept.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// The holder of a tag, and of its buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holder {
    /// This process: no command has been sent for the tag, or its request waits for an answer.
    Us,
    /// The kernel: a command of the tag has not completed.
    Kernel,
    /// The kernel has ended the tag.
    Nobody,
}

/// The ring of a thread, with the descriptors and buffers of its queues. The number of a tag is its index in its queue
/// plus the queue's index times the depth.
struct Rings {
    ring: IoUring,
    /// Must stay open: the ring's commands refer to it.
    file: File,
    depth: u16,
    max_bytes: u32,
    descriptors: Vec<Mapping>,
    buffers: ManuallyDrop<Mapping>,
    holders: Vec<Holder>,
}

impl Rings {
    fn new(file: File, queues: u16, depth: u16, max_bytes: u32) -> io::Result<Self> {
        let tags = usize::from(queues) * usize::from(depth);
        let descriptors = (0..queues).map(|queue| Mapping::descriptors(&file, queue, depth));
        Ok(Self {
            // Each tag has one command at a time, so the ring always has a free entry.
            ring: IoUring::new(u32::from(queues) * u32::from(depth))?,
            descriptors: descriptors.collect::<io::Result<_>>()?,
            file,
            depth,
            max_bytes,
            buffers: ManuallyDrop::new(Mapping::memory(tags * max_bytes as usize)?),
            holders: vec![Holder::Us; tags],
        })
    }

    fn tags(&self) -> usize {
        self.holders.len()
    }

    /// The descriptor that becomes readable when the kernel has a request.
    fn as_fd(&self) -> BorrowedFd<'_> {
        AsFd::as_fd(&self.ring)
    }

    fn has_completion(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    fn buffer(&self, number: usize, len: usize) -> NonNull<u8> {
        self.buffers.at(number * self.max_bytes as usize, len)
    }

    /// The first `len` bytes of the buffer of a tag, or `None` if the buffer is smaller.
    ///
    /// # Panics
    /// If the kernel holds the tag.
    fn data(&mut self, number: usize, len: usize) -> Option<&mut [u8]> {
        assert_eq!(self.holders[number], Holder::Us, "the buffer of tag {number}");
        if len > self.max_bytes as usize {
            return None;
        }
        let start = self.buffer(number, len);
        // SAFETY: the bytes are mapped, were zeroed, belong to this tag alone, and the kernel does not access them.
        Some(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) })
    }

    /// Returns whether this process holds the tag.
    fn is_taken(&self, number: usize) -> bool {
        self.holders[number] == Holder::Us
    }

    /// Copies the descriptor of a tag.
    ///
    /// # Panics
    /// If the kernel holds the tag.
    fn descriptor(&self, number: usize) -> Descriptor {
        assert_eq!(self.holders[number], Holder::Us, "the descriptor of tag {number}");
        let (queue, tag) = self.place(number);
        let mapping = &self.descriptors[usize::from(queue)];
        let start = mapping.at(usize::from(tag) * Descriptor::LEN, Descriptor::LEN);
        let mut bytes = [0; Descriptor::LEN];
        // SAFETY: the bytes are mapped, and every value of them is one of `u8`.
        unsafe { ptr::copy_nonoverlapping(start.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
        Descriptor::from_bytes(&bytes)
    }

    fn place(&self, number: usize) -> (u16, u16) {
        let depth = usize::from(self.depth);
        ((number / depth) as u16, (number % depth) as u16)
    }

    /// Queues a command of a tag, which passes the tag to the kernel.
    ///
    /// # Panics
    /// If the kernel holds the tag already.
    fn push(&mut self, number: usize, command: u32, result: i32) {
        assert_eq!(self.holders[number], Holder::Us, "a command of tag {number}");
        let (queue, tag) = self.place(number);
        let address = self.buffer(number, self.max_bytes as usize).as_ptr() as u64;
        let bytes = wire::io_bytes(queue, tag, result, address);
        let entry = opcode::UringCmd16::new(Fd(self.file.as_raw_fd()), command).cmd(bytes).build();
        let entry = entry.user_data(number as u64);
        // SAFETY: the file and the buffer live as long as the ring, and longer while the kernel holds the tag.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the ring has an entry for each tag");
        self.holders[number] = Holder::Kernel;
    }

    /// Submits the queued commands.
    ///
    /// # Errors
    /// If the kernel refuses; the commands stay queued.
    fn submit(&mut self) -> io::Result<()> {
        while !self.ring.submission().is_empty() {
            match self.ring.submit() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// The next completion: the number of a tag, and a result. If the tag has a request, this process holds it from now
    /// on; otherwise the kernel has ended it.
    fn next(&mut self) -> Option<(usize, i32)> {
        let completion = self.ring.completion().next()?;
        let (number, result) = (completion.user_data() as usize, completion.result());
        self.holders[number] = if result == 0 { Holder::Us } else { Holder::Nobody };
        Some((number, result))
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        if !self.holders.contains(&Holder::Kernel) {
            // SAFETY: the buffers are not used again, and the kernel holds none of them.
            unsafe { ManuallyDrop::drop(&mut self.buffers) };
        }
    }
}
