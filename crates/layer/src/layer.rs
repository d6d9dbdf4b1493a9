//! [`Layer`]: the interface of a layer, which is about sectors only; and [`Codec`], that of one that changes bytes.

use blkmq_core::{IoFlags, IoResult, Op};
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

/// The pieces that a layer sends.
#[derive(Debug, Default)]
pub struct Plan {
    pub(crate) pieces: Vec<Piece>,
}

impl Plan {
    /// Sends a piece. Pieces to one leg reach it in this order, and neighbours become one request there.
    pub fn send(&mut self, piece: Piece) {
        self.pieces.push(piece);
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
