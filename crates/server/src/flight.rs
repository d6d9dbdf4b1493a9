//! The requests in flight of a worker.
//!
//! The cookie of an I/O consists of the place of its request and the number of its portion. The client's own cookie is
//! only repeated in the reply: two requests may have the same.

use crate::long::{Long, Steps};
use blkmq_nbd::ReplyTo;

/// A connection of a worker: its place, and the generation of that place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key {
    pub(crate) place: u32,
    pub(crate) generation: u32,
}

/// The cookie of an I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cookie {
    /// The place of the request.
    pub(crate) place: u32,
    /// The number of the portion of a long request.
    pub(crate) portion: u32,
}

impl From<Cookie> for u64 {
    fn from(cookie: Cookie) -> Self {
        Self::from(cookie.portion) << 32 | Self::from(cookie.place)
    }
}

impl From<u64> for Cookie {
    fn from(cookie: u64) -> Self {
        Self { place: cookie as u32, portion: (cookie >> 32) as u32 }
    }
}

#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) connection: Key,
    pub(crate) to: ReplyTo,
    pub(crate) work: Work,
    /// The offset on the disk, in bytes, of the last I/O that began; for a long request, its beginning.
    pub(crate) at: u64,
    /// Bytes charged for the request.
    pub(crate) bytes: usize,
}

#[derive(Debug)]
pub(crate) enum Work {
    /// A read; the reply has this many bytes.
    Read(u32),
    /// A write of this many bytes.
    Write(u32),
    /// A single I/O whose reply has no content.
    Plain,
    /// Consecutive I/Os that cover a range.
    Steps(Steps),
    /// A read or write in portions.
    Long(Long),
}

impl Work {
    /// The name for the log.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Read(_) => "read",
            Self::Write(_) => "write",
            Self::Plain => "flush",
            Self::Steps(steps) => steps.name(),
            Self::Long(long) if long.is_read() => "read",
            Self::Long(_) => "write",
        }
    }
}

/// The places of requests in flight.
#[derive(Debug)]
pub(crate) struct Flights<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Flights<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Flights<T> {
    /// Adds a request, and returns its place.
    pub(crate) fn insert(&mut self, flight: T) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.places[place as usize] = Some(flight);
                place
            }
            None => {
                self.places.push(Some(flight));
                self.places.len() as u32 - 1
            }
        }
    }

    /// The request at `place`.
    ///
    /// # Panics
    /// If there is none: an I/O completes once.
    pub(crate) fn get_mut(&mut self, place: u32) -> &mut T {
        self.places[place as usize].as_mut().expect("the request is in flight")
    }

    /// Takes the request at `place` out.
    ///
    /// # Panics
    /// See [`get_mut`](Self::get_mut).
    pub(crate) fn remove(&mut self, place: u32) -> T {
        let flight = self.places[place as usize].take().expect("the request is in flight");
        self.free.push(place);
        flight
    }

    /// The number of requests in flight.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
