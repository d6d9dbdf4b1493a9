//! The legs that reads go to.

use super::assembling::{SECTORS, both, record};
use crate::findings::Findings;
use crate::layer::{Layer, Plan, Request};
use crate::mirror::{Mirror, Only};
use blkmq_core::{IoError, IoFlags, Op};
use std::sync::Arc;

fn mirror() -> Mirror {
    let assembly = both(record(0, 0b11, true, 5), record(1, 0b11, true, 5)).expect("a mirror");
    let only = Only::new(&Arc::default()).expect("there is no other");
    Mirror::new(assembly, Findings::default(), only)
}

fn request(sector: u64) -> Request {
    Request { op: Op::Read, flags: IoFlags::NONE, sector, sectors: 8 }
}

/// Begins the read with this number at this sector. Returns the leg.
fn begin(mirror: &mut Mirror, id: usize, sector: u64) -> usize {
    let mut plan = Plan { id, ..Plan::default() };
    mirror.begin(&request(sector), &mut plan);
    let [piece] = plan.pieces[..] else { panic!("one piece") };
    assert_eq!((piece.sector, piece.sectors, piece.from), (sector, 8, 0));
    piece.leg
}

#[test]
fn reads_at_a_time_are_spread_and_one_after_another_stay() {
    let mut mirror = mirror();
    let mut by_leg = [0; 2];
    for id in 0..16 {
        by_leg[begin(&mut mirror, id, SECTORS / 16 / 8 * 8 * id as u64)] += 1;
    }
    assert_eq!(by_leg, [8, 8]);
    let mut mirror = self::mirror();
    let first = begin(&mut mirror, 0, 0);
    for at in 1..9 {
        let piece = crate::Piece::whole(&request(8 * (at - 1)), first);
        let mut plan = Plan::default();
        let answered = mirror.answered(&request(8 * (at - 1)), &piece, Ok(()), &mut plan);
        assert_eq!(answered, Ok(()));
        assert_eq!(begin(&mut mirror, 0, 8 * at), first, "sector {}", 8 * at);
    }
}

#[test]
fn a_read_fails_when_no_leg_can_do_it() {
    let mut mirror = mirror();
    let first = begin(&mut mirror, 0, 64);
    let mut plan = Plan::default();
    let piece = crate::Piece::whole(&request(64), first);
    assert_eq!(mirror.answered(&request(64), &piece, Err(IoError::IO), &mut plan), Ok(()));
    let [piece] = plan.pieces[..] else { panic!("the other is asked") };
    assert_eq!(piece.leg, 1 - first);
    plan = Plan::default();
    let result = mirror.answered(&request(64), &piece, Err(IoError::TIMED_OUT), &mut plan);
    assert_eq!((result, plan.pieces.len()), (Err(IoError::TIMED_OUT), 0));
}
