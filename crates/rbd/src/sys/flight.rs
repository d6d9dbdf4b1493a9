//! [`Flight`]: the requests that librbd holds, in places.
//!
//! The ticket of a place travels through librbd. It includes an offset that identifies the hardware queue.
//!
//! *Invariant: while librbd has the ticket of a place, the place is not free, its token stays in it, and its list of
//! pieces does not change.* Threads of librbd read the list, and read and write payloads.

use super::image::{Image, Reply};
use super::{Api, Completion, Handle};
use blkmq_buf::IoBuf;
use blkmq_core::{IoError, IoResult, Op, SECTOR_SIZE, Tag};
use blkmq_engine::{BioTable, Finished, Inflight, Verdict};
use libc::{c_int, iovec};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;

/// A place for one request.
#[derive(Default)]
struct Place {
    rq: Option<Inflight>,
    /// The memory of a read or write. Keeps its capacity, so that a steady load allocates nothing here.
    pieces: Vec<iovec>,
    /// The bytes that a read must return: a shorter read would leave old bytes in the payload.
    expected: i64,
}

/// The requests of one hardware queue that librbd holds.
pub(crate) struct Flight {
    image: Arc<Image>,
    /// The places. Librbd has the addresses of the lists' entries, which do not move with the places.
    places: Vec<Place>,
    free: Vec<u32>,
    depth: u32,
    /// The ticket of the first place.
    first: usize,
}

// SAFETY: the pointers lead to payloads of the I/Os that the tokens stand for, which are `Send`. They are passed to
// librbd and never dereferenced here.
unsafe impl Send for Flight {}

/// Converts an error of librbd, a negative errno.
fn error(answer: i64) -> IoError {
    // Errnos of Linux fit; any other number is a malfunction of librbd.
    u16::try_from(-answer).map_or(IoError::IO, IoError)
}

impl Place {
    /// Collects the payloads of a read or write.
    ///
    /// # Errors
    /// If the length of a payload differs from that of its I/O.
    fn gather<P: IoBuf>(&mut self, bios: &BioTable<P>, rq: &Inflight) -> IoResult {
        self.pieces.clear();
        for bio in rq.bios(bios) {
            let mut bytes = 0;
            for range in bio.payload.ranges().filter(|range| !range.is_empty()) {
                bytes += range.len() as u64;
                self.pieces.push(iovec { iov_base: range.cast(), iov_len: range.len() });
            }
            if bytes != u64::from(bio.sectors) * u64::from(SECTOR_SIZE) {
                return Err(IoError::INVALID);
            }
        }
        Ok(())
    }

    /// Passes the operation to librbd.
    ///
    /// # Safety
    /// The image is open, and the completion is not used elsewhere. The place keeps the invariant until the reply.
    unsafe fn issue(&self, api: &Api, handle: Handle, rq: &Inflight, c: Completion) -> c_int {
        let bytes = |sectors: u64| sectors * u64::from(SECTOR_SIZE);
        let (offset, len) = (bytes(rq.sector()), bytes(rq.sectors().into()));
        let (list, count) = (self.pieces.as_ptr(), self.pieces.len() as c_int);
        // SAFETY: by the contract above. The pieces are those of the request and have their stated lengths.
        unsafe {
            match (rq.op(), &self.pieces[..]) {
                (Op::Read, [one]) => {
                    (api.rbd_aio_read)(handle, offset, one.iov_len, one.iov_base.cast(), c)
                }
                (Op::Read, _) => (api.rbd_aio_readv)(handle, list, count, offset, c),
                (Op::Write, [one]) => {
                    (api.rbd_aio_write)(handle, offset, one.iov_len, one.iov_base.cast(), c)
                }
                (Op::Write, _) => (api.rbd_aio_writev)(handle, list, count, offset, c),
                (Op::Flush, _) => (api.rbd_aio_flush)(handle, c),
                (Op::Discard, _) => (api.rbd_aio_discard)(handle, offset, len, c),
                (Op::WriteZeroes, _) => {
                    (api.rbd_aio_write_zeroes)(handle, offset, len as usize, c, 0, 0)
                }
            }
        }
    }
}

impl Flight {
    /// Creates a flight without places: up to `depth` places are made on demand. Their tickets begin at `first`.
    pub(crate) fn new(image: Arc<Image>, depth: u32, first: usize) -> Self {
        Self { image, places: Vec::new(), free: Vec::new(), depth, first }
    }

    /// Returns whether there is a free place, making one if that is allowed.
    pub(crate) fn has_room(&mut self) -> bool {
        if self.free.is_empty() && self.places.len() < self.depth as usize {
            self.free.push(self.places.len() as u32);
            self.places.push(Place::default());
            // Reserved so that freeing a place does not allocate.
            self.free.reserve(self.places.len());
        }
        !self.free.is_empty()
    }

    /// Passes a request to librbd.
    ///
    /// # Errors
    /// Returns the request if the length of a payload differs from that of its I/O, or librbd refuses.
    ///
    /// # Panics
    /// If there is [no room](Self::has_room).
    pub(crate) fn issue<P: IoBuf>(
        &mut self,
        bios: &BioTable<P>,
        rq: Inflight,
    ) -> Result<(), (Inflight, IoError)> {
        let at = *self.free.last().expect("there is room");
        let place = &mut self.places[at as usize];
        place.pieces.clear();
        place.expected = 0;
        if matches!(rq.op(), Op::Read | Op::Write)
            && let Err(error) = place.gather(bios, &rq)
        {
            return Err((rq, error));
        }
        if rq.op() == Op::Read {
            place.expected = i64::from(rq.sectors()) * i64::from(SECTOR_SIZE);
        }
        let ticket = self.first + at as usize;
        let (api, handle, mut completion) = (self.image.api(), self.image.handle(), null_mut());
        // SAFETY: a ticket is a number that librbd returns, and not an address.
        let made = unsafe {
            (api.rbd_aio_create_completion)(without_provenance_mut(ticket), None, &mut completion)
        };
        if made < 0 {
            return Err((rq, error(made.into())));
        }
        // SAFETY: the image is shared, so it is open. The place is filled below, before this call of the engine ends,
        // and keeps the invariant until the reply, or for ever: only `answer` frees it, and `drop` leaks all. If librbd
        // answers immediately, a later call takes the reply.
        let issued = unsafe { place.issue(api, handle, &rq, completion) };
        if issued < 0 {
            // SAFETY: librbd has not taken the completion, and it is released once.
            unsafe { (api.rbd_aio_release)(completion) };
            return Err((rq, error(issued.into())));
        }
        place.rq = Some(rq);
        self.free.pop();
        Ok(())
    }

    /// Takes back the request of a reply.
    pub(crate) fn answer(&mut self, reply: Reply) -> Finished {
        let at = reply.ticket - self.first;
        let place = &mut self.places[at];
        let rq = place.rq.take().expect("a place whose number librbd had has a request");
        self.free.push(at as u32);
        let result = match reply.result {
            answer if answer < 0 => Err(error(answer)),
            // A short read would leave old contents in the payload.
            bytes if bytes < place.expected => Err(IoError::IO),
            _ => Ok(()),
        };
        Finished { rq, verdict: Verdict::Done(result) }
    }

    /// The number of requests that librbd holds.
    pub(crate) fn count(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Returns whether librbd holds a request with this tag.
    pub(crate) fn has(&self, tag: Tag) -> bool {
        self.places.iter().any(|place| place.rq.as_ref().is_some_and(|rq| rq.tag() == tag))
    }
}

impl Drop for Flight {
    /// Librbd may still write to the payloads of unanswered requests, and read their lists. These and the image are
    /// leaked then.
    fn drop(&mut self) {
        if self.count() > 0 {
            std::mem::forget(std::mem::take(&mut self.places));
            std::mem::forget(Arc::clone(&self.image));
        }
    }
}
