//! The requests of a device, taken from the kernel and answered.

mod kernel;

pub(crate) use kernel::control;

use crate::wire::{COMMIT_AND_FETCH, Descriptor, FETCH, Info};
use kernel::Rings;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

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
