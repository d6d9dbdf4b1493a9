//! [`Layer`]: the interface of a layer, which is about sectors only; and [`Codec`], that of one that changes bytes.

use blkmq_buf::AlignedBuf;
use blkmq_core::{Instant, IoFlags, IoResult, Op};
use blkmq_engine::Inflight;

/// A request to a layer, or a copy of its description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The operation.
    pub op: Op,
    /// Of the flags, those that concern a device.
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

    /// Returns whether it moves bytes between memory and the device.
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
    /// For a read or write: its first sector in the request, from 0 on. For others: which error counts, if there are several.
    pub from: u32,
}

impl Piece {
    /// The whole request to the leg of this number.
    #[must_use]
    pub fn whole(request: &Request, leg: usize) -> Self {
        let Request { op, flags, sector, sectors } = *request;
        Self { leg, op, flags, sector, sectors, from: 0 }
    }
}

/// An I/O to a leg that belongs to no request, with memory of the layer's own.
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
    /// For the layer, which gets it back.
    pub cookie: u64,
}

/// The I/Os that a layer sends, and the fate of requests that it holds.
#[derive(Debug, Default)]
pub struct Plan {
    /// The number of the request that the call is about.
    pub(crate) id: usize,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) is_held: bool,
    pub(crate) steps: Vec<Step>,
}

/// A part of a plan that is not about the request of the call.
#[derive(Debug)]
pub(crate) enum Step {
    Send(usize, Piece),
    Release(usize, IoResult),
    Own(OwnIo),
}

impl Plan {
    /// Sends a piece. Pieces to one leg reach it in this order, and neighbours become one request there.
    pub fn send(&mut self, piece: Piece) {
        self.pieces.push(piece);
    }

    /// The number of the request that the call is about, below the depth of the layer. No other request has it before this
    /// one is done.
    #[must_use]
    pub fn id(&self) -> usize {
        self.id
    }

    /// Keeps the request of the call from being done before it is [released](Self::release).
    /// Only in [`Layer::begin`].
    pub fn hold(&mut self) {
        self.is_held = true;
    }

    /// Sends a piece of a request that is held.
    pub fn send_for(&mut self, id: usize, piece: Piece) {
        self.steps.push(Step::Send(id, piece));
    }

    /// Holds a request no longer. It ends with this result, unless a piece has an error.
    pub fn release(&mut self, id: usize, result: IoResult) {
        self.steps.push(Step::Release(id, result));
    }

    /// Sends an I/O that belongs to no request. Only of a layer that [has some](Layer::has_own_ios).
    pub fn own(&mut self, io: OwnIo) {
        self.steps.push(Step::Own(io));
    }
}

/// A device in front of others.
///
/// A request is done when all of its pieces are. Its result is the error of the piece with the lowest `from` that has one.
///
/// The pieces of a read must not overlap in memory while they are under way; those of a write may. A piece that reaches beyond its
/// request, moves data against its direction or names no leg is a bug of the layer, for which the device panics.
pub trait Layer: Send {
    /// Cuts a request that has arrived. A request without pieces is done.
    fn begin(&mut self, request: &Request, plan: &mut Plan);

    /// The answer to a piece. Returns the result that counts for the request. May send further pieces, which the request
    /// waits for.
    ///
    /// # Errors
    /// Those that the request ends with, unless a piece before has one.
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

    /// Returns whether the layer has I/Os of its own. Always the same.
    fn has_own_ios(&self) -> bool {
        false
    }

    /// Takes back an [I/O of the layer's own](Plan::own) with its result. A read without an error has filled its bytes.
    fn own_answered(&mut self, io: OwnIo, result: IoResult, plan: &mut Plan) {
        _ = (io, result, plan);
    }

    /// The time, told whenever answers are looked for.
    fn passed(&mut self, now: Instant, plan: &mut Plan) {
        _ = (now, plan);
    }

    /// The queue ends, and has no requests. I/Os of the layer's own are waited for, some seconds at most.
    fn close(&mut self, plan: &mut Plan) {
        _ = plan;
    }

    /// The codec of a layer that changes bytes. Its pieces move the bytes that the leg has: `from` and `sectors` count these.
    fn codec(&mut self) -> Option<&mut dyn Codec> {
        None
    }
}

/// Translates the bytes of a device, block by block, on their way to its only leg and back.
///
/// The bytes of a request are copied into memory of the layer for that, so the payload of a write stays as it is, and a read
/// that fails changes nothing.
pub trait Codec: Send {
    /// The bytes of a block: whole sectors.
    fn block(&self) -> usize;

    /// The bytes that the leg has for a block: whole sectors.
    fn stored(&self) -> usize;

    /// Translates block number `at` for the leg.
    fn encode(&mut self, at: u64, plain: &[u8], stored: &mut [u8]);

    /// Translates block number `at` from the leg.
    ///
    /// # Errors
    /// If the leg's bytes are not those that were written. The request ends with the error.
    fn decode(&mut self, at: u64, stored: &[u8], plain: &mut [u8]) -> IoResult;
}
