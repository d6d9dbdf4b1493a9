//! The account alone, beside a device that ends I/Os at given times.

use super::*;
use crate::Goal;
use alloc::vec::Vec;

const CAPACITY: Capacity = Capacity { iops: 1_000, bps: 1 << 40, safe_percent: 90 };
/// The cost of an I/O.
const COST: Nanos = Nanos(SECOND / 1_000);

fn member(group: u16, parent: u16, iops: u64) -> Member {
    let reserve = Rate { iops, ..Rate::default() };
    Member {
        group: GroupIndex(group),
        parent: GroupIndex(parent),
        weight: 100,
        goal: Goal::default(),
        reserve,
    }
}

fn at(ns: u64) -> Instant {
    Instant::from_nanos(ns)
}

fn account(members: &[Member]) -> Floors {
    let mut floors = Floors::new(CAPACITY);
    floors.set(members, CAPACITY);
    floors.look(Instant::ZERO, CAPACITY, |_| {});
    floors
}

/// A group that always has four I/Os outstanding, seen at `place`.
struct Load {
    group: u16,
    iops: u64,
    place: FloorPlace,
}

/// Runs the loads from second `from` to second `to`.
fn run(floors: &mut Floors, (from, to): (u64, u64), loads: &[Load]) {
    for step in from * 1_000..to * 1_000 {
        let now = step * (SECOND / 1_000);
        for load in loads {
            // The I/O with this number ends in this millisecond.
            if (step + 1) * load.iops / 1_000 > step * load.iops / 1_000 {
                let arrived = now.saturating_sub(4 * SECOND / load.iops);
                floors.completed(GroupIndex(load.group), at(arrived), at(now), COST);
            }
        }
        if floors.due() <= at(now) {
            floors.look(at(now), CAPACITY, |show| {
                let arrived = |load: &Load| at(now.saturating_sub(4 * SECOND / load.iops));
                loads.iter().for_each(|it| show(GroupIndex(it.group), arrived(it), it.place));
            });
        }
    }
    floors.look(at(to * SECOND), CAPACITY, |_| {});
}

fn taken(floors: &mut Floors) -> Vec<FloorReport> {
    let mut all = Vec::new();
    floors.take(&mut |report| all.push(report));
    all
}

#[test]
fn a_floor_is_missed_by_what_was_completed_and_the_cause_is_the_place_of_its_ios() {
    for (place, cause) in [
        (FloorPlace::Slot, FloorCause::Slots),
        (FloorPlace::Goal, FloorCause::Goal),
        (FloorPlace::Policy, FloorCause::Device),
        (FloorPlace::Device, FloorCause::Device),
    ] {
        let mut floors = account(&[member(1, 0, 200)]);
        let other = Load { group: 2, iops: 500, place: FloorPlace::Device };
        run(&mut floors, (0, 10), &[Load { group: 1, iops: 50, place }, other]);
        let [report] = taken(&mut floors)[..] else { panic!("one floor") };
        assert_eq!((report.seconds, report.missed, report.state), (10, 10, FloorState::Missed));
        assert_eq!((report.cause(), report.least / 1_000), (Some(cause), 250));
        assert_eq!(report.short, Nanos(7_500_000_000));
        assert_eq!(taken(&mut floors)[0].seconds, 0, "it was taken");
    }
}

#[test]
fn a_floor_that_is_kept_but_for_one_percent_is_no_miss_and_an_idle_group_has_none() {
    let mut floors = account(&[member(1, 0, 200)]);
    run(&mut floors, (0, 5), &[Load { group: 1, iops: 197, place: FloorPlace::Policy }]);
    let kept = taken(&mut floors)[0];
    assert_eq!((kept.seconds, kept.missed, kept.state), (5, 0, FloorState::Kept));
    assert_eq!((kept.cause(), kept.least), (None, MILLION));
    // I/Os of 1 ms, one at a time, at 10 a second: for most of the time there was nothing to do.
    for n in 50..100_u64 {
        let now = n * 100_000_000;
        floors.completed(GroupIndex(1), at(now - 1_000_000), at(now), COST);
        floors.look(at(now), CAPACITY, |_| {});
    }
    let idle = taken(&mut floors)[0];
    assert_eq!((idle.seconds, idle.missed), (0, 0), "{idle:?}");
}

#[test]
fn ios_that_no_look_finds_are_held_back_by_a_ceiling() {
    let mut floors = account(&[member(1, 0, 200)]);
    for n in 1..=100_u64 {
        let now = n * 100_000_000;
        floors.completed(GroupIndex(1), at(now.saturating_sub(1_600_000_000)), at(now), COST);
        floors.look(at(now), CAPACITY, |_| {});
    }
    let report = taken(&mut floors)[0];
    // The last second is judged when the next I/O has ended.
    assert!(report.seconds >= 9 && report.missed == report.seconds, "{report:?}");
    assert_eq!(report.cause(), Some(FloorCause::Ceiling));
}

#[test]
fn a_floor_on_a_device_that_got_slower_is_infeasible_within_five_seconds_until_it_recovers() {
    let members = [member(1, 0, 400), member(2, 0, 200)];
    let mut floors = account(&members);
    let loads = |first, second| {
        [(1, first), (2, second)].map(|(group, iops)| Load {
            group,
            iops,
            place: FloorPlace::Policy,
        })
    };
    run(&mut floors, (0, 3), &loads(400, 300));
    assert!(taken(&mut floors).iter().all(|one| one.state == FloorState::Kept));
    run(&mut floors, (3, 8), &loads(200, 100));
    for report in taken(&mut floors) {
        assert_eq!((report.state, report.missed), (FloorState::Infeasible, 5));
        assert_eq!((report.cause(), report.best / 1_000), (Some(FloorCause::Infeasible), 500));
    }
    run(&mut floors, (8, 10), &loads(400, 300));
    assert!(taken(&mut floors).iter().all(|one| one.state == FloorState::Kept));
}

#[test]
fn an_io_alone_in_the_device_has_too_few_beside_it() {
    let mut floors = account(&[member(1, 0, 400)]);
    run(&mut floors, (0, 4), &[Load { group: 1, iops: 100, place: FloorPlace::Device }]);
    let report = taken(&mut floors)[0];
    assert_eq!((report.cause(), report.state), (Some(FloorCause::Depth), FloorState::Missed));
}

#[test]
fn a_group_completes_for_the_groups_above_it_and_their_floors_are_not_added_up() {
    let members = [member(1, 0, 400), member(2, 1, 300), member(3, 1, 0)];
    let mut floors = account(&members);
    let load = |group, iops| Load { group, iops, place: FloorPlace::Policy };
    run(&mut floors, (0, 4), &[load(2, 300), load(3, 200)]);
    assert!(taken(&mut floors).iter().all(|one| (one.seconds, one.missed) == (4, 0)));
    // 450 of 400, of which 300 are those of group 2: more than the floors need.
    run(&mut floors, (4, 8), &[load(2, 100), load(3, 350)]);
    let [above, below] = taken(&mut floors)[..] else { panic!("two floors") };
    assert_eq!((above.missed, below.missed), (0, 4));
    assert_eq!(below.cause(), Some(FloorCause::Device));
}

#[test]
fn a_stall_of_hours_is_not_judged_second_by_second() {
    let mut floors = account(&[member(1, 0, 400)]);
    let hours = 100_000 * SECOND;
    floors.look(at(hours), CAPACITY, |show| show(GroupIndex(1), Instant::ZERO, FloorPlace::Device));
    let report = taken(&mut floors)[0];
    assert_eq!((report.missed, report.least), (MOST_JUDGED + 1, 0));
    assert!(floors.due() > at(hours) && floors.due() <= at(hours) + STEP);
}

#[test]
fn the_gap_between_two_ios_follows_their_cost() {
    let mut floors = account(&[member(1, 0, 200)]);
    assert_eq!(Vec::from_iter(floors.gaps()), [(GroupIndex(1), SECOND / 200)]);
    for n in 0..400 {
        floors.completed(GroupIndex(1), at(n), at(n + 1), Nanos(4 * COST.0));
    }
    let gap = Vec::from_iter(floors.gaps())[0].1;
    assert!(gap.abs_diff(SECOND / 50) < SECOND / 5_000, "{gap}");
}
