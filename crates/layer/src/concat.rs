//! `concat`: the legs one behind the other.

#![forbid(unsafe_code)]

use crate::layer::{Layer, Piece, Plan, Request};
use blkmq_core::Op;

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

    fn cut(op: Op, sector: u64, sectors: u32) -> Vec<(usize, u64, u32, u32)> {
        let mut plan = Plan::default();
        let request = Request { op, flags: IoFlags::NONE, sector, sectors };
        Concat::new([8, 16, 8].into_iter()).begin(&request, &mut plan);
        plan.pieces.iter().map(|it| (it.leg, it.sector, it.sectors, it.from)).collect()
    }

    #[test]
    fn a_request_is_cut_at_the_ends_of_legs() {
        assert_eq!(cut(Op::Read, 0, 8), [(0, 0, 8, 0)]);
        assert_eq!(cut(Op::Read, 8, 8), [(1, 0, 8, 0)]);
        assert_eq!(cut(Op::Write, 4, 28), [(0, 4, 4, 0), (1, 0, 16, 4), (2, 0, 8, 20)]);
        assert_eq!(cut(Op::Discard, 31, 1), [(2, 7, 1, 0)]);
        assert_eq!(cut(Op::Flush, 0, 0), [(0, 0, 0, 0), (1, 0, 0, 0), (2, 0, 0, 0)]);
    }
}
