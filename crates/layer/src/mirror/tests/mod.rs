//! A mirror loses no answered write, and returns one value for every other, whatever happens to its legs and its power.
//! Planted bugs are found.

mod assembling;
mod reads;
mod world;

use super::planted::{Planted, plant};
use crate::StackError;
use crate::mirror::MirrorError;
use blkmq_core::{Op, Rng};
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
