//! Devices that are layers: each cuts or translates a request into requests to other devices, its legs.
//!
//! A [`Layer`] decides where the pieces of a request go and what their answers mean; it sees no bytes and no token. A
//! [`Stack`] puts a layer in front of its legs, which are devices of any kind, layers included. [`Kind`] lists the
//! layers; their pages are in `doc`.
//!
//! Each leg has a queue of the engine in front of it, with the scheduler `none`, one submitter, and the limits of that
//! leg. The same code as for any other I/O divides a piece, merges it, and adds the flushes that the leg needs. Files
//! in a stripe or a concatenation become one device instead ([`BlockDevice::join`](blkmq_engine::BlockDevice::join)).
//!
//! # Writing a layer
//!
//! A layer that moves sectors takes one file: [`Layer::begin`] sends a piece ([`Plan::send`]) for each part of the
//! request. A layer that tolerates errors also implements [`Layer::answered`]. A layer that changes bytes is a
//! [`Codec`] in [`Coded`]. A stack of such a layer is a [`BlockDevice`] whose `queues` is [`queue`].
//!
//! ```
//! use blkmq_core::{IoFlags, Op};
//! use blkmq_layer::{Layer, Piece, Plan, Request};
//!
//! /// A device that begins at sector 2048 of its only leg.
//! struct Offset;
//!
//! impl Layer for Offset {
//!     fn begin(&mut self, request: &Request, plan: &mut Plan) {
//!         plan.send(Piece { sector: request.sector + 2048, ..Piece::whole(request, 0) });
//!     }
//! }
//! ```
//!
//! [`BlockDevice`]: blkmq_engine::BlockDevice

#![deny(unsafe_code)]

mod codecs;
mod kind;
mod lent;
mod mirror;
mod queue;
mod stack;
mod stripe;

use blkmq_buf::AlignedBuf;
use blkmq_core::{Finding, Instant, IoFlags, IoResult, Op, SECTOR_SIZE};
use blkmq_engine::Inflight;
pub use codecs::KeyError;
pub use kind::{Kind, KindError};
pub use lent::Part;
pub use mirror::MirrorError;
pub use queue::queue;
pub use stack::{Stack, StackError};
use std::sync::{Arc, Mutex, PoisonError};

/// A request to a layer, or a copy of its description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The operation.
    pub op: Op,
    /// The flags that concern a device.
    pub flags: IoFlags,
    /// The first sector; 0 for a flush.
    pub sector: u64,
    /// The length in sectors; 0 for a flush.
    pub sectors: u32,
}

impl Request {
    pub(crate) fn of(rq: &Inflight) -> Self {
        Self { op: rq.op(), flags: rq.flags(), sector: rq.sector(), sectors: rq.sectors() }
    }

    /// Returns whether the request moves bytes between memory and the device.
    #[must_use]
    pub fn moves_data(&self) -> bool {
        matches!(self.op, Op::Read | Op::Write)
    }
}

/// A request to a leg: a piece of a request to the layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The number of the leg, from 0 on.
    pub leg: usize,
    /// The operation. A read or write moves the bytes of a request with the same operation.
    pub op: Op,
    /// The flags.
    pub flags: IoFlags,
    /// The first sector on the leg.
    pub sector: u64,
    /// The length in sectors.
    pub sectors: u32,
    /// For a read or write: the first sector of the piece within the request, from 0 on. For other operations: the rank
    /// of the piece's error, of which the lowest counts.
    pub from: u32,
}

impl Piece {
    /// A piece that sends the whole request to the leg of this number.
    #[must_use]
    pub fn whole(request: &Request, leg: usize) -> Self {
        let Request { op, flags, sector, sectors } = *request;
        Self { leg, op, flags, sector, sectors, from: 0 }
    }
}

/// An I/O to a leg that belongs to no request, with memory of the layer.
#[derive(Debug)]
pub struct OwnIo {
    /// The number of the leg, from 0 on.
    pub leg: usize,
    /// The operation: a read, a write or a flush.
    pub op: Op,
    /// The flags.
    pub flags: IoFlags,
    /// The first sector on the leg.
    pub sector: u64,
    /// Whole sectors; none for a flush.
    pub bytes: AlignedBuf,
    /// A value for the layer, returned with the result.
    pub cookie: u64,
}

/// The I/Os that a layer sends, and its decisions about requests that it holds.
#[derive(Debug, Default)]
pub struct Plan {
    /// The number of the request for which the layer is called.
    pub(crate) id: usize,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) is_held: bool,
    pub(crate) steps: Vec<Step>,
}

/// An entry of a plan that may concern a request other than that of the call.
#[derive(Debug)]
pub(crate) enum Step {
    Send(usize, Piece),
    Release(usize, IoResult),
    Own(OwnIo),
}

impl Plan {
    /// Sends a piece. Pieces reach a leg in the order in which they were sent, and adjacent ones become one request
    /// there.
    pub fn send(&mut self, piece: Piece) {
        self.pieces.push(piece);
    }

    /// The number of the request for which the layer is called, below the depth of the layer. It is not reused before
    /// the request is done.
    #[must_use]
    pub fn id(&self) -> usize {
        self.id
    }

    /// Holds the request of the call: it is not done before it is [released](Self::release). Only in [`Layer::begin`].
    pub fn hold(&mut self) {
        self.is_held = true;
    }

    /// Sends a piece of a request that is held.
    pub fn send_for(&mut self, id: usize, piece: Piece) {
        self.steps.push(Step::Send(id, piece));
    }

    /// Releases a request that is held. It ends with this result, unless a piece fails.
    pub fn release(&mut self, id: usize, result: IoResult) {
        self.steps.push(Step::Release(id, result));
    }

    /// Sends an I/O that belongs to no request. Only for a layer that [has such I/Os](Layer::has_own_ios).
    pub fn own(&mut self, io: OwnIo) {
        self.steps.push(Step::Own(io));
    }
}

/// A device in front of its legs, which are other devices.
///
/// A request is done when all of its pieces are. It ends with the error of the failed piece that has the lowest `from`.
///
/// The pieces of a read must not overlap in memory while they are in flight; the pieces of a write may. A piece that
/// exceeds its request, moves data in the wrong direction or names a leg that does not exist is a bug of the layer, for
/// which the device panics.
pub trait Layer: Send {
    /// Cuts a new request into pieces. A request without pieces is done.
    fn begin(&mut self, request: &Request, plan: &mut Plan);

    /// Handles the answer to a piece, and returns the result that counts for the request. May send further pieces,
    /// which the request waits for.
    ///
    /// # Errors
    /// The error of the piece. The request ends with it unless a piece with a lower `from` has failed.
    fn answered(
        &mut self,
        request: &Request,
        piece: &Piece,
        result: IoResult,
        plan: &mut Plan,
    ) -> IoResult {
        _ = (request, piece, plan);
        result
    }

    /// Returns whether the layer sends I/Os that belong to no request. The answer must not change.
    fn has_own_ios(&self) -> bool {
        false
    }

    /// Takes back an [I/O of the layer](Plan::own) with its result. A successful read has filled its bytes.
    fn own_answered(&mut self, io: OwnIo, result: IoResult, plan: &mut Plan) {
        _ = (io, result, plan);
    }

    /// Notifies the layer of the time, whenever the device looks for answers.
    fn passed(&mut self, now: Instant, plan: &mut Plan) {
        _ = (now, plan);
    }

    /// Ends the layer's work: the queue is ending, and has no requests. The queue waits some seconds at most for I/Os
    /// that the layer still sends.
    fn close(&mut self, plan: &mut Plan) {
        _ = plan;
    }

    /// The codec of a layer that changes bytes. The pieces of such a layer move the bytes stored on the leg, which
    /// `from` and `sectors` count.
    fn codec(&mut self) -> Option<&mut dyn Codec> {
        None
    }
}

/// Translates the bytes of a device, block by block, between the device and its only leg.
///
/// The bytes of a request are translated in separate memory. So the payload of a write keeps its contents, and a failed
/// read leaves its payload unchanged.
pub trait Codec: Send {
    /// Bytes in a block: whole sectors.
    fn block(&self) -> usize;

    /// Bytes that a block takes on the leg: whole sectors.
    fn stored(&self) -> usize;

    /// Translates block number `at` for the leg.
    fn encode(&mut self, at: u64, plain: &[u8], stored: &mut [u8]);

    /// Translates block number `at` from the leg.
    ///
    /// # Errors
    /// If the leg's bytes are not the ones written. The request ends with the error.
    fn decode(&mut self, at: u64, stored: &[u8], plain: &mut [u8]) -> IoResult;
}

/// The layer around a codec. The blocks of the device follow one another on the leg.
#[derive(Debug)]
pub struct Coded<C>(pub C);

impl<C: Codec> Layer for Coded<C> {
    fn begin(&mut self, request: &Request, plan: &mut Plan) {
        let sectors = |bytes: usize| bytes as u64 / u64::from(SECTOR_SIZE);
        let (block, stored) = (sectors(self.0.block()), sectors(self.0.stored()));
        plan.send(Piece {
            sector: request.sector / block * stored,
            sectors: (u64::from(request.sectors) / block * stored) as u32,
            ..Piece::whole(request, 0)
        });
    }

    fn codec(&mut self) -> Option<&mut dyn Codec> {
        Some(&mut self.0)
    }
}

/// The number of findings that are kept until they are taken. Further ones are only counted.
const KEPT: usize = 64;

/// A list of findings, which its clones share.
#[derive(Clone, Default, Debug)]
pub(crate) struct Findings(Arc<Mutex<Found>>);

#[derive(Default, Debug)]
struct Found {
    first: Vec<Finding>,
    more: u64,
}

impl Findings {
    pub(crate) fn fault(&self, text: String) {
        self.add(Finding::Fault(text));
    }

    pub(crate) fn progress(&self, text: String) {
        self.add(Finding::Progress(text));
    }

    fn add(&self, finding: Finding) {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if found.first.len() < KEPT {
            found.first.push(finding);
        } else {
            found.more += 1;
        }
    }

    /// The findings since the last call, the oldest first.
    pub(crate) fn take(&self) -> Vec<Finding> {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Found { mut first, more } = std::mem::take(&mut *found);
        if more > 0 {
            first.push(Finding::Fault(format!("and {more} further findings")));
        }
        first
    }
}
