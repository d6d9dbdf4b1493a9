//! [`Coded`]: the layer around a codec.

#![forbid(unsafe_code)]

use crate::layer::{Codec, Layer, Piece, Plan, Request};
use blkmq_core::SECTOR_SIZE;

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
