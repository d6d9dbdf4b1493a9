//! A mirror loses no answered write, and returns one value for every other, whatever happens to its legs and its power.
//! Planted bugs are found. Beside that: the legs that reads go to, and the records that form a mirror.

mod world;

use super::planted::{Planted, plant};
use crate::StackError;
use crate::layer::{Findings, Layer, Piece, Plan, Request};
use crate::mirror::assemble::{Assembly, Given, decide};
use crate::mirror::records::{Found, Member, Places, Record};
use crate::mirror::{Mirror, MirrorError, Only};
use blkmq_core::{IoError, IoFlags, Op, Rng};
use std::sync::Arc;
use world::{SECTORS, World};

/// Random I/Os, during which a leg may die or fail, or the power is cut. Returns false after a cut.
fn session(world: &mut World) -> Result<bool, String> {
    let ends_by_cut = world.rng.chance(1, 2);
    let kills = world.rng.chance(1, 3);
    if world.rng.chance(1, 4) {
        world.may_fail = true;
        let errors = 1 + world.rng.below(100);
        world.legs.iter().for_each(|leg| leg.set(|faults| faults.errors = errors));
    }
    let rounds = 1 + world.rng.below(5);
    let mut until = world.rng.below(rounds * 60);
    for _ in 0..rounds {
        for _ in 0..1 + world.rng.below(12) {
            world.push_any();
        }
        while world.step()? {
            until = until.saturating_sub(1);
            if until > 0 {
                continue;
            }
            if ends_by_cut {
                world.cut_power();
                return Ok(false);
            }
            let leg = world.rng.below(world.legs.len() as u64) as usize;
            let in_step = world.legs.len() as u32 - world.not_in_step.count_ones();
            if kills && in_step > 1 && world.not_in_step >> leg & 1 == 0 {
                world.legs[leg].set(|faults| faults.is_dead = true);
                until = u64::MAX;
            }
        }
        if world.rng.chance(1, 4) {
            world.rest()?;
        }
    }
    if ends_by_cut {
        world.cut_power();
    }
    Ok(!ends_by_cut)
}

/// Opens a mirror of which some legs have died: they return unchanged, are replaced, or stay missing.
fn reopen(world: &mut World, is_last: bool) -> Result<(), String> {
    let (mut missing, mut replace) = (0, false);
    let olds = world.legs.clone();
    world.may_fail = false;
    for leg in 0..world.legs.len() {
        let was_dead = {
            let mut dead = false;
            world.legs[leg].set(|faults| {
                faults.errors = 0;
                dead = std::mem::take(&mut faults.is_dead);
            });
            dead
        };
        match world.rng.below(3) {
            0 if was_dead => (world.legs[leg], replace) = (world.new_leg(), true),
            1 if was_dead && !is_last => missing |= 1 << leg,
            _ => {}
        }
    }
    match world.open(missing, replace) {
        // By its record, the dead leg was the last one in step.
        Err(StackError::Mirror(MirrorError::Behind)) => {
            world.legs = olds;
            world.open(0, replace).map_err(|error| error.to_string())
        }
        // The dead leg was the last one in step: writing its last record failed, but had an effect, and the mirror
        // continued without it.
        Err(StackError::Mirror(MirrorError::Diverged { other, .. })) => {
            world.legs[other] = world.new_leg();
            world.open(missing, true).map_err(|error| error.to_string())
        }
        opened => opened.map_err(|error| error.to_string()),
    }
}

/// The life of a mirror.
fn life(seed: u64) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let mut world = World::new(seed, 2 + rng.below(2) as usize, rng.chance(1, 2));
    world.open(0, false).map_err(|error| error.to_string())?;
    for _ in 0..2 + rng.below(4) {
        if rng.chance(1, 2) {
            world.wait_for_copies()?;
        }
        if session(&mut world)? {
            let was_whole = world.not_in_step == 0 && !world.may_fail && !world.is_any_dead();
            world.close();
            reopen(&mut world, false)?;
            if was_whole && world.not_in_step != 0 {
                return Err(format!("behind after an orderly end: {:?}", world.findings));
            }
        } else {
            reopen(&mut world, false)?;
        }
        if rng.chance(1, 2) {
            world.read_all()?;
        }
    }
    world.cut_power();
    reopen(&mut world, true)?;
    world.read_all()?;
    world.wait_for_copies()?;
    if world.not_in_step != 0 {
        return Err(format!("not all legs are in step: {:?}", world.findings));
    }
    world.read_all()?;
    world.read_all()?;
    world.close();
    let bytes = world.legs[0].bytes();
    match world.legs.iter().position(|leg| leg.bytes() != bytes) {
        Some(leg) => Err(format!("leg {leg} is not as leg 0")),
        None => Ok(()),
    }
}

#[test]
fn nothing_is_lost_and_no_stale_byte_is_read() {
    for seed in 0..100 {
        if let Err(why) = life(seed) {
            panic!("seed {seed}: {why}");
        }
    }
}

#[test]
fn planted_bugs_are_found() {
    let lives: &dyn Fn(u64) -> Result<(), String> = &life;
    let ways = [
        (Planted::AnswersEarly, &death as _),
        (Planted::ChangesClean, lives),
        (Planted::HoldsNoRange, lives),
        (Planted::ReadsBehind, lives),
        (Planted::JoinsUnflushed, lives),
        (Planted::CleansUnflushed, lives),
        (Planted::BeginsSilently, lives),
        (Planted::TrustsAll, lives),
    ];
    for (bug, way) in ways {
        plant(Some(bug));
        let found = (0..100).find_map(|seed| way(seed).err());
        plant(None);
        assert!(found.is_some(), "{bug:?}");
    }
}

/// The power is cut as soon as a write is answered that a leg has missed, and that leg returns.
fn death(seed: u64) -> Result<(), String> {
    let mut world = World::new(seed, 2, false);
    world.open(0, false).map_err(|error| error.to_string())?;
    world.wait_for_copies()?;
    load(&mut world, 2)?;
    world.legs[0].set(|faults| faults.is_dead = true);
    (0..8).for_each(|_| world.push_any());
    let before = world.written;
    while world.step()? && world.written == before {}
    world.cut_power();
    world.legs[0].set(|faults| faults.is_dead = false);
    world.open(0, false).map_err(|error| error.to_string())?;
    world.read_all()
}

#[test]
fn a_write_that_a_dead_leg_has_missed_is_not_lost() {
    for seed in 0..20 {
        assert_eq!(death(seed), Ok(()), "seed {seed}");
    }
}

/// I/O under which legs die.
fn load(world: &mut World, rounds: u32) -> Result<(), String> {
    for _ in 0..rounds {
        (0..8).for_each(|_| world.push_any());
        world.finish()?;
    }
    Ok(())
}

#[test]
fn a_leg_that_is_killed_and_replaced_under_load_costs_nothing() -> Result<(), String> {
    let mut world = World::new(1, 2, true);
    world.open(0, false).map_err(|error| error.to_string())?;
    load(&mut world, 20)?;
    world.wait_for_copies()?;
    world.legs[0].set(|faults| faults.is_dead = true);
    load(&mut world, 20)?;
    assert_eq!(world.not_in_step, 0b01);
    world.cut_power();
    world.legs[0] = world.new_leg();
    let refused = world.open(0, false);
    assert_eq!(refused, Err(StackError::Mirror(MirrorError::NoRecord { leg: 0 })));
    world.open(0, true).map_err(|error| error.to_string())?;
    assert_eq!(world.not_in_step, 0b01);
    world.read_all()?;
    while world.not_in_step != 0 {
        load(&mut world, 1)?;
    }
    world.legs[1].set(|faults| faults.is_dead = true);
    load(&mut world, 20)?;
    assert_eq!(world.not_in_step, 0b10);
    world.read_all()?;
    world.push(Op::Flush, false, 0, 0);
    world.finish()?;
    world.close();
    assert_eq!(SECTORS, 2032);
    Ok(())
}

#[test]
fn a_sector_that_a_leg_cannot_read_is_written_anew() -> Result<(), String> {
    let mut world = World::new(3, 2, true);
    world.open(0, false).map_err(|error| error.to_string())?;
    world.wait_for_copies()?;
    load(&mut world, 20)?;
    for leg in 0..2 {
        // Failed devices heal here.
        let store = world.legs[leg].device.memory().expect("it stores").clone();
        store.badblocks("+800-815").expect("a range");
        world.findings.clear();
        for _ in 0..4 {
            world.push(Op::Read, false, 800, 16);
            world.finish()?;
        }
        let failed = format!("device {leg}: a read of 16 sectors at sector 800 failed: I/O error");
        assert_eq!(world.findings, [failed]);
    }
    world.read_all()?;
    assert_eq!(world.not_in_step, 0, "{:?}", world.findings);
    world.close();
    assert!(world.legs[0].bytes() == world.legs[1].bytes());
    Ok(())
}

fn in_step() -> Mirror {
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
    let mut mirror = in_step();
    let mut by_leg = [0; 2];
    for id in 0..16 {
        by_leg[begin(&mut mirror, id, LEG_SECTORS / 16 / 8 * 8 * id as u64)] += 1;
    }
    assert_eq!(by_leg, [8, 8]);
    let mut mirror = in_step();
    let first = begin(&mut mirror, 0, 0);
    for at in 1..9 {
        let piece = Piece::whole(&request(8 * (at - 1)), first);
        let mut plan = Plan::default();
        let answered = mirror.answered(&request(8 * (at - 1)), &piece, Ok(()), &mut plan);
        assert_eq!(answered, Ok(()));
        assert_eq!(begin(&mut mirror, 0, 8 * at), first, "sector {}", 8 * at);
    }
}

#[test]
fn a_read_fails_when_no_leg_can_do_it() {
    let mut mirror = in_step();
    let first = begin(&mut mirror, 0, 64);
    let mut plan = Plan::default();
    let piece = Piece::whole(&request(64), first);
    assert_eq!(mirror.answered(&request(64), &piece, Err(IoError::IO), &mut plan), Ok(()));
    let [piece] = plan.pieces[..] else { panic!("the other is asked") };
    assert_eq!(piece.leg, 1 - first);
    plan = Plan::default();
    let result = mirror.answered(&request(64), &piece, Err(IoError::TIMED_OUT), &mut plan);
    assert_eq!((result, plan.pieces.len()), (Err(IoError::TIMED_OUT), 0));
}

const LEG_SECTORS: u64 = 2032;

/// The record of leg `leg` of two.
pub(super) fn record(leg: u8, in_step: u8, is_clean: bool, counter: u64) -> Record {
    let legs = [11, 22, 0, 0, 0, 0, 0, 0];
    Record { id: 7, legs, count: 2, leg, in_step, is_clean, counter, sectors: LEG_SECTORS }
}

/// Decides about legs with these numbers and records. Ids of legs are drawn from 100 on.
fn decided(given: Given, found: &[(usize, Found)]) -> Result<Assembly, MirrorError> {
    let places = Places { at: [LEG_SECTORS, LEG_SECTORS + 8], sectors: 8 };
    let member = |(number, found): &(usize, Found)| Member {
        number: *number,
        places,
        next: 0,
        found: *found,
    };
    let mut next = 99;
    let mut draw = || {
        next += 1;
        next
    };
    decide(given, found.iter().map(member).collect(), 1, &mut draw)
}

/// Decides about two legs with these records, none of them missing.
pub(super) fn both(one: Record, other: Record) -> Result<Assembly, MirrorError> {
    decided(Given::default(), &[(0, Found::Record(one)), (1, Found::Record(other))])
}

/// The legs in step, and whether the records must be written.
fn state(decided: Result<Assembly, MirrorError>) -> Result<(u8, bool), MirrorError> {
    decided.map(|assembly| (assembly.in_step, assembly.has_changed))
}

#[test]
fn the_newest_record_says_which_legs_to_believe() {
    let clean = |leg| record(leg, 0b11, true, 5);
    assert_eq!(state(both(clean(0), clean(1))), Ok((0b11, false)));
    let dirty = |leg| record(leg, 0b11, false, 5);
    assert_eq!(state(both(dirty(0), dirty(1))), Ok((0b01, true)), "they may differ");
    assert_eq!(state(both(clean(0), record(1, 0b11, false, 4))), Ok((0b11, false)));
    assert_eq!(state(both(record(0, 0b11, false, 9), record(1, 0b10, true, 10))), Ok((0b10, true)));
    let assembly = both(dirty(0), dirty(1)).expect("a mirror");
    let Record { in_step, is_clean, counter, .. } = assembly.record;
    assert_eq!(
        (in_step, is_clean, counter),
        (0b01, true, 5),
        "one leg does not differ from itself"
    );
}

#[test]
fn a_mirror_is_made_only_of_legs_without_records() {
    let (none, some) = (Found::Nothing, Found::Record(record(1, 0b11, true, 5)));
    let create = Given { create: true, ..Given::default() };
    let made = decided(create, &[(0, none), (1, none)]).expect("a new mirror");
    assert_eq!((made.in_step, made.has_changed, made.record.in_step), (0b01, true, 0b01));
    assert_eq!(made.record.legs[..3], [100, 101, 0]);
    let refused = Err(MirrorError::NoRecords);
    assert_eq!(decided(Given::default(), &[(0, none), (1, none)]), refused);
    let missing = Given { missing: 0b10, ..create };
    assert_eq!(decided(missing, &[(0, none)]), refused);
    assert_eq!(decided(create, &[(0, none), (1, some)]), Err(MirrorError::NoRecord { leg: 0 }));
}

#[test]
fn a_leg_without_a_record_is_taken_if_that_is_meant() {
    let found = [(0, Found::Nothing), (1, Found::Record(record(1, 0b11, true, 5)))];
    assert_eq!(decided(Given::default(), &found), Err(MirrorError::NoRecord { leg: 0 }));
    let replace = Given { replace: true, ..Given::default() };
    let assembly = decided(replace, &found).expect("leg 1 has the contents");
    assert_eq!(
        (assembly.in_step, assembly.has_changed, assembly.record.in_step),
        (0b10, true, 0b10)
    );
    assert_eq!(assembly.record.legs[..2], [100, 22], "the old one is another leg");
    let last = [(0, Found::Nothing), (1, Found::Record(record(1, 0b01, true, 5)))];
    assert_eq!(decided(replace, &last), Err(MirrorError::Behind), "leg 0 had the contents");
}

#[test]
fn a_missing_leg_is_known_to_have_missed_what_is_written() {
    let missing = |missing| Given { missing, ..Given::default() };
    let here = |record| [(1, Found::Record(record))];
    let clean = decided(missing(0b01), &here(record(1, 0b11, true, 5)));
    assert_eq!(state(clean), Ok((0b10, false)), "as long as nothing is written");
    let dirty = decided(missing(0b01), &here(record(1, 0b11, false, 5)));
    assert_eq!(state(dirty), Ok((0b10, true)));
    let behind = decided(missing(0b01), &here(record(1, 0b01, true, 5)));
    assert_eq!(behind, Err(MirrorError::Behind));
    let both = decided(missing(0b101), &here(record(1, 0b11, true, 5)));
    assert_eq!(both, Err(MirrorError::Count { given: 3, accepted: 2 }));
}

#[test]
fn legs_that_were_written_without_each_other_are_refused() {
    let alone = |leg: u8, counter| record(leg, 1 << leg, true, counter);
    for (one, other, diverged) in [(5, 9, (1, 0)), (9, 5, (0, 1))] {
        let refused = MirrorError::Diverged { one: diverged.0, other: diverged.1 };
        assert_eq!(both(alone(0, one), alone(1, other)), Err(refused));
    }
    // Leg 1 was used with a replacement of leg 0, and the original returns.
    let mut with_other = record(1, 0b11, true, 8);
    with_other.legs[0] = 33;
    let refused = both(alone(0, 10), with_other);
    assert_eq!(refused, Err(MirrorError::Diverged { one: 0, other: 1 }));
    with_other.counter = 12;
    assert_eq!(both(alone(0, 10), with_other), Err(MirrorError::Replaced { leg: 0 }));
}

#[test]
fn legs_of_other_mirrors_in_other_places_or_of_later_versions_are_refused() {
    let clean = |leg| record(leg, 0b11, true, 5);
    assert_eq!(both(clean(1), clean(0)), Err(MirrorError::Order { leg: 0, number: 1 }));
    assert_eq!(both(clean(0), clean(0)), Err(MirrorError::Order { leg: 1, number: 0 }));
    let other = Record { id: 8, ..clean(1) };
    assert_eq!(both(clean(0), other), Err(MirrorError::Foreign { leg: 1 }));
    let later = [(0, Found::Record(clean(0))), (1, Found::Later(2))];
    let refused = decided(Given { replace: true, ..Given::default() }, &later);
    assert_eq!(refused, Err(MirrorError::Later { leg: 1, version: 2 }));
    let long = Record { sectors: LEG_SECTORS + 8, ..clean(0) };
    let refused = both(long, Record { leg: 1, ..long });
    assert_eq!(refused, Err(MirrorError::Small { leg: 0, least: LEG_SECTORS + 8 }));
}
