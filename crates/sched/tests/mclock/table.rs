//! The three tenants of mClock (OSDI 2010), and what floors mean from second to second.

use super::world::{IDLE, Tenant, World};
use blkmq_core::Nanos;

const SECOND: Nanos = Nanos(1_000_000_000);
/// Clocks at which the arithmetic must hold: from zero, after 208 days, and after 146 years.
const CLOCKS: [u64; 3] = [0, 1 << 54, 1 << 62];

/// Remote desktop and transactions have floors of 250 IOPS, transactions twice the weight; a migration of data has a
/// ceiling of 1000.
const TENANTS: [Tenant; 3] =
    [Tenant::new(100).reserve(250), Tenant::new(200).reserve(250), Tenant::new(100).limit(1_000)];

/// Requests a second of each tenant over ten seconds, with these tenants active.
fn rates(capacity: u64, begin: u64, active: [bool; 3]) -> [f64; 3] {
    let mut world = World::new(capacity, begin, &TENANTS);
    (0..3).filter(|at| !active[*at]).for_each(|at| world.set_depth(at, IDLE));
    world.run(SECOND);
    let served = world.run(Nanos(10 * SECOND.0));
    core::array::from_fn(|at| served[at] as f64 / 10.0)
}

fn holds(capacity: u64, active: [bool; 3], expected: [f64; 3]) {
    for begin in CLOCKS {
        let got = rates(capacity, begin, active);
        for (got, expected) in got.into_iter().zip(expected) {
            // A figure of zero may be a hundredth of the capacity: floors give way to weights once in 256 picks.
            let slack = if expected == 0.0 { capacity as f64 / 100.0 } else { expected / 100.0 };
            let off = (got - expected).abs();
            assert!(off <= slack, "{capacity} from {begin}: {got} is not {expected}");
        }
        println!("{capacity} IOPS from {begin}, active {active:?}: {got:?}");
    }
}

const ALL: [bool; 3] = [true; 3];

#[test]
fn floors_hold_and_the_rest_is_shared_by_weight() {
    holds(500, ALL, [250.0, 250.0, 0.0]);
    holds(750, ALL, [250.0, 1_000.0 / 3.0, 500.0 / 3.0]);
    holds(1_200, ALL, [300.0, 600.0, 300.0]);
    holds(1_500, ALL, [375.0, 750.0, 375.0]);
    holds(2_000, ALL, [500.0, 1_000.0, 500.0]);
}

#[test]
fn idle_tenants_lend_their_floors() {
    let without_migration = [true, true, false];
    holds(500, without_migration, [250.0, 250.0, 0.0]);
    holds(750, without_migration, [250.0, 500.0, 0.0]);
    holds(1_200, without_migration, [400.0, 800.0, 0.0]);
    let only_desktop = [true, false, false];
    holds(1_200, only_desktop, [1_200.0, 0.0, 0.0]);
}

#[test]
fn the_ceiling_holds_on_an_idle_device() {
    let without_transactions = [true, false, true];
    holds(1_500, without_transactions, [750.0, 0.0, 750.0]);
    holds(2_500, without_transactions, [1_500.0, 0.0, 1_000.0]);
    holds(2_000, [false, false, true], [0.0, 0.0, 1_000.0]);
}

#[test]
fn a_floor_holds_in_every_second_whatever_was_served_before() {
    let tenants = [Tenant::new(1).reserve(100), Tenant::new(1_000), Tenant::new(1_000)];
    let mut world = World::new(1_000, 0, &tenants);
    for second in 0..30 {
        // For a third of the time the tenant has the device for itself; no past service counts against its floor.
        let others = if second % 3 == 0 { IDLE } else { 8 };
        [1, 2].into_iter().for_each(|at| world.set_depth(at, others));
        let served = world.run(SECOND);
        assert!(served[0] >= 99, "second {second}: {served:?}");
        assert!(second % 3 != 1 || served[0] < 130, "second {second}: lent no longer: {served:?}");
    }
}

#[test]
fn a_lent_floor_is_back_at_once() {
    let mut world = World::new(1_000, 0, &[Tenant::new(1).reserve(500), Tenant::new(1_000)]);
    world.set_depth(0, IDLE);
    assert!(world.run(SECOND)[1] >= 999, "all of it is lent");
    world.set_depth(0, 8);
    // Requests of the other tenant are waiting, and none is ahead of the floor but the one in the device.
    assert!(world.run(Nanos(10_000_000))[0] >= 5);
    world.set_depth(0, IDLE);
    world.run(Nanos(20_000_000));
    assert_eq!(world.run(Nanos(10_000_000)), [0, 10], "lent again");
}

#[test]
fn a_shortfall_is_shared_in_proportion() {
    let tenants =
        [Tenant::new(1).reserve(1_200), Tenant::new(1_000).reserve(400), Tenant::new(1_000)];
    // The depths differ: what waits does not decide.
    let tenants = [tenants[0].depth(2), tenants[1].depth(500), tenants[2]];
    let mut world = World::new(800, 0, &tenants);
    world.run(Nanos(5 * SECOND.0));
    let served = world.run(Nanos(10 * SECOND.0));
    assert!(served[0].abs_diff(6_000) < 60 && served[1].abs_diff(2_000) < 20, "{served:?}");
    assert!(served[2] >= 10, "one pick in 256 goes by weight: {served:?}");
}

#[test]
fn a_tenant_that_returns_neither_hoards_nor_starves() {
    let mut world = World::new(1_000, 0, &[Tenant::new(100), Tenant::new(100)]);
    world.set_depth(0, IDLE);
    world.run(Nanos(10 * SECOND.0));
    world.set_depth(0, 8);
    let served = world.run(Nanos(100_000_000));
    assert!(served[0].abs_diff(50) <= 1, "half of it, from the first request on: {served:?}");
}

#[test]
fn a_groups_floor_is_divided_among_those_below_it() {
    let tenants = [
        // A group without requests of its own, and a rival.
        Tenant::new(100).reserve(600).depth(IDLE),
        Tenant::new(1_000),
        // Of the 600, one has 300 for itself; the rest is divided by weight.
        Tenant::new(100).below(1).reserve(300),
        Tenant::new(100).below(1),
        Tenant::new(200).below(1),
    ];
    let mut world = World::new(1_000, 0, &tenants);
    world.run(SECOND);
    let served = world.run(Nanos(10 * SECOND.0));
    for (at, expected) in [(1, 4_000_u64), (2, 3_000), (3, 1_000), (4, 2_000)] {
        assert!(served[at].abs_diff(expected) <= expected / 50, "{at}: {served:?}");
    }
}

#[test]
fn a_ceiling_above_holds_for_all_below_it() {
    let tenants = [
        Tenant::new(100).limit(300).depth(IDLE),
        Tenant::new(100).below(1),
        Tenant::new(200).below(1),
        Tenant::new(1),
    ];
    let mut world = World::new(1_000, 0, &tenants);
    world.run(SECOND);
    let served = world.run(Nanos(10 * SECOND.0));
    assert!(served[1].abs_diff(1_000) <= 10 && served[2].abs_diff(2_000) <= 20, "{served:?}");
    assert!(served[3] >= 6_960, "the rest is the other's, whatever its weight: {served:?}");
}
