//! The layers that only place sectors: `stripe`, chunks on the legs in turn, as in RAID 0; and `concat`, the legs one
//! behind the other.

#![forbid(unsafe_code)]

use crate::{Layer, Piece, Plan, Request};
use blkmq_core::Op;

pub(crate) struct Stripe {
    /// Sectors in a chunk.
    chunk: u64,
    legs: u64,
}

impl Stripe {
    /// `chunk`: sectors in a chunk.
    ///
    /// # Panics
    /// If either is 0.
    pub(crate) fn new(chunk: u32, legs: usize) -> Self {
        assert!(chunk > 0 && legs > 0, "{chunk} sectors of {legs} legs");
        Self { chunk: chunk.into(), legs: legs as u64 }
    }

    /// How many of the sectors before `at` are on leg `leg`.
    fn before(&self, at: u64, leg: u64) -> u64 {
        let (row, rest) = (at / (self.chunk * self.legs), at % (self.chunk * self.legs));
        row * self.chunk + rest.saturating_sub(leg * self.chunk).min(self.chunk)
    }

    /// Sends a piece for each chunk. Pieces that are adjacent on a leg become one request there.
    fn by_chunk(&self, request: &Request, plan: &mut Plan) {
        let end = request.sector + u64::from(request.sectors);
        let mut at = request.sector;
        while at < end {
            let (chunk, inside) = (at / self.chunk, at % self.chunk);
            let sectors = (self.chunk - inside).min(end - at);
            plan.send(Piece {
                sector: chunk / self.legs * self.chunk + inside,
                sectors: sectors as u32,
                from: (at - request.sector) as u32,
                ..Piece::whole(request, (chunk % self.legs) as usize)
            });
            at += sectors;
        }
    }

    /// Sends one piece to each leg: a range without gaps has no gaps on a leg either.
    fn by_leg(&self, request: &Request, plan: &mut Plan) {
        let end = request.sector + u64::from(request.sectors);
        for leg in 0..self.legs {
            let (first, behind) = (self.before(request.sector, leg), self.before(end, leg));
            if first < behind {
                plan.send(Piece {
                    sector: first,
                    sectors: (behind - first) as u32,
                    ..Piece::whole(request, leg as usize)
                });
            }
        }
    }
}

impl Layer for Stripe {
    fn begin(&mut self, request: &Request, plan: &mut Plan) {
        match request.op {
            Op::Flush => {
                (0..self.legs as usize).for_each(|leg| plan.send(Piece::whole(request, leg)));
            }
            Op::Read | Op::Write => self.by_chunk(request, plan),
            Op::Discard | Op::WriteZeroes => self.by_leg(request, plan),
        }
    }
}

pub(crate) struct Concat {
    /// The sector behind the last one of each leg, in ascending order.
    ends: Box<[u64]>,
}

impl Concat {
    /// Legs of so many sectors.
    pub(crate) fn new(capacities: impl Iterator<Item = u64>) -> Self {
        let ends = capacities.scan(0, |end, sectors| {
            *end += sectors;
            Some(*end)
        });
        Self { ends: ends.collect() }
    }
}

impl Layer for Concat {
    fn begin(&mut self, request: &Request, plan: &mut Plan) {
        if request.op == Op::Flush {
            (0..self.ends.len()).for_each(|leg| plan.send(Piece::whole(request, leg)));
            return;
        }
        let end = request.sector + u64::from(request.sectors);
        let mut at = request.sector;
        let mut leg = self.ends.partition_point(|end| *end <= at);
        while at < end {
            let start = leg.checked_sub(1).map_or(0, |before| self.ends[before]);
            let to = self.ends[leg].min(end);
            plan.send(Piece {
                sector: at - start,
                sectors: (to - at) as u32,
                from: (at - request.sector) as u32,
                ..Piece::whole(request, leg)
            });
            (at, leg) = (to, leg + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::IoFlags;
    use proptest::prelude::*;

    fn cut(stripe: &mut Stripe, op: Op, sector: u64, sectors: u32) -> Vec<Piece> {
        let mut plan = Plan::default();
        stripe.begin(&Request { op, flags: IoFlags::NONE, sector, sectors }, &mut plan);
        plan.pieces
    }

    #[test]
    fn chunks_go_to_the_legs_in_turn() {
        let mut stripe = Stripe::new(8, 3);
        let pieces = cut(&mut stripe, Op::Read, 6, 24);
        let pieces =
            Vec::from_iter(pieces.iter().map(|it| (it.leg, it.sector, it.sectors, it.from)));
        assert_eq!(pieces, [(0, 6, 2, 0), (1, 0, 8, 2), (2, 0, 8, 10), (0, 8, 6, 18)]);
        let flushes = cut(&mut stripe, Op::Flush, 0, 0);
        assert_eq!(Vec::from_iter(flushes.iter().map(|it| it.leg)), [0, 1, 2]);
    }

    proptest! {
        /// Against the definition, sector by sector.
        #[test]
        fn each_sector_is_where_it_belongs(
            chunk in 1_u32..40, legs in 1_usize..6, sector in 0_u64..2000, sectors in 1_u32..600,
        ) {
            let mut stripe = Stripe::new(chunk, legs);
            let (chunk, count) = (u64::from(chunk), legs as u64);
            let mut expected: Vec<_> = (sector..sector + u64::from(sectors))
                .map(|at| ((at / chunk % count) as usize, at / chunk / count * chunk + at % chunk))
                .collect();
            let places = |pieces: &[Piece]| -> Vec<_> {
                let one = |it: &Piece| {
                    let leg = it.leg;
                    (it.sector..it.sector + u64::from(it.sectors)).map(move |at| (leg, at))
                };
                pieces.iter().flat_map(one).collect()
            };
            let data = cut(&mut stripe, Op::Write, sector, sectors);
            prop_assert_eq!(places(&data), expected.clone());
            let mut from = 0;
            for piece in &data {
                prop_assert_eq!(piece.from, from);
                from += piece.sectors;
            }
            let holes = cut(&mut stripe, Op::Discard, sector, sectors);
            prop_assert!(holes.len() <= legs);
            expected.sort_unstable();
            let mut found = places(&holes);
            found.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }

    fn of_concat(op: Op, sector: u64, sectors: u32) -> Vec<(usize, u64, u32, u32)> {
        let mut plan = Plan::default();
        let request = Request { op, flags: IoFlags::NONE, sector, sectors };
        Concat::new([8, 16, 8].into_iter()).begin(&request, &mut plan);
        plan.pieces.iter().map(|it| (it.leg, it.sector, it.sectors, it.from)).collect()
    }

    #[test]
    fn a_request_is_cut_at_the_ends_of_legs() {
        assert_eq!(of_concat(Op::Read, 0, 8), [(0, 0, 8, 0)]);
        assert_eq!(of_concat(Op::Read, 8, 8), [(1, 0, 8, 0)]);
        assert_eq!(of_concat(Op::Write, 4, 28), [(0, 4, 4, 0), (1, 0, 16, 4), (2, 0, 8, 20)]);
        assert_eq!(of_concat(Op::Discard, 31, 1), [(2, 7, 1, 0)]);
        assert_eq!(of_concat(Op::Flush, 0, 0), [(0, 0, 0, 0), (1, 0, 0, 0), (2, 0, 0, 0)]);
    }
}
