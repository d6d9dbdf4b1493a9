//! Which records form a mirror, and which do not.

use crate::mirror::MirrorError;
use crate::mirror::assemble::{Assembly, Given, Member, decide};
use crate::mirror::record::{Found, Places, Record};

pub(super) const SECTORS: u64 = 2032;

/// The record of leg `leg` of two.
pub(super) fn record(leg: u8, in_step: u8, is_clean: bool, counter: u64) -> Record {
    let legs = [11, 22, 0, 0, 0, 0, 0, 0];
    Record { id: 7, legs, count: 2, leg, in_step, is_clean, counter, sectors: SECTORS }
}

/// Decides about legs with these numbers and records. Ids of legs are drawn from 100 on.
fn decided(given: Given, found: &[(usize, Found)]) -> Result<Assembly, MirrorError> {
    let places = Places { at: [SECTORS, SECTORS + 8], sectors: 8 };
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
    let long = Record { sectors: SECTORS + 8, ..clean(0) };
    let refused = both(long, Record { leg: 1, ..long });
    assert_eq!(refused, Err(MirrorError::Small { leg: 0, least: SECTORS + 8 }));
}
