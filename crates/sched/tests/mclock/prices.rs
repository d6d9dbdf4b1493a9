//! The prices that are found: on a device of some servers, on which writes take as long as several reads.

use super::bound::{Device, SECOND, SLOTS};
use crate::naive;
use blkmq_core::{GroupIndex, Nanos, Op};
use blkmq_sched::testkit::{Driver, LocalEnv};
use blkmq_sched::{GroupChange, Guarantee, Options, Rate, registry};

const READ: (Op, u64) = (Op::Read, 100_000);
/// By the guess it costs 0.39 reads.
const WRITE: (Op, u64) = (Op::Write, 400_000);
const EQUAL: [(u32, u32); 2] = [(100, 32); 2];

fn unlike(options: &str) -> Device {
    Device::new(options, &EQUAL).doing(&[READ, WRITE])
}

/// The first tenant's part of the time of the servers.
fn part(device: &mut Device) -> f64 {
    let (served, _) = device.run(Nanos(4 * SECOND.0));
    let [reads, writes] = [served[0] * READ.1, served[1] * WRITE.1].map(|time| time as f64);
    reads / (reads + writes)
}

#[test]
fn unlike_loads_share_the_time_that_they_take() {
    let mut device = unlike("");
    device.run(Nanos(20 * SECOND.0));
    let part = part(&mut device);
    assert!((0.45..=0.55).contains(&part), "{part}");
    let [read, write] = ["price_rrand", "price_wrand"].map(|name| device.driver.shown(name) as f64);
    let ratio = (write / 21_940.0) / (read / 8_518.0);
    assert!((3.5..=4.5).contains(&ratio), "a write costs {ratio} reads");
}

#[test]
fn like_loads_are_not_tried() {
    let mut device = Device::new("", &[(300, 32), (100, 32)]);
    device.run(Nanos(4 * SECOND.0));
    assert_eq!(device.driver.shown("price_trials"), 0);
}

#[test]
fn nothing_is_tried_where_something_is_told() {
    for options in ["rrandiops=80000", "inflight_usec=1000", "learn=0"] {
        let mut device = unlike(options);
        device.run(Nanos(4 * SECOND.0));
        assert_eq!(device.driver.shown("price_trials"), 0, "{options}");
    }
}

#[test]
fn prices_that_were_found_stay_when_learning_ends() {
    let mut device = unlike("");
    device.run(Nanos(20 * SECOND.0));
    device.driver.set("learn", 0);
    let before = device.driver.shown("price_wrand");
    assert!((0.45..=0.55).contains(&part(&mut device)));
    assert_eq!(device.driver.shown("price_wrand"), before);
}

/// A floor is a promise by the prices of the capacity.
#[test]
fn a_floor_ends_the_prices_that_were_found() {
    let mut device = unlike("");
    device.run(Nanos(4 * SECOND.0));
    assert!(device.driver.shown("price_wrand") > 1_000);
    let reserve = Rate { percent: 10, ..Rate::default() };
    let guarantee = Guarantee { reserve, ..Guarantee::default() };
    device.driver.regroup(GroupChange::Guarantee { group: GroupIndex(1), guarantee });
    assert_eq!(device.driver.shown("price_wrand"), 1_000);
    device.run(Nanos(4 * SECOND.0));
    assert_eq!(device.driver.shown("price_trials"), 0);
}

/// The scripts of the other comparisons are too short for a trial.
#[test]
fn the_twin_finds_the_same_prices() {
    let factory = registry::find("mclock").expect("it is registered");
    let (build, common) = naive::twin("mclock").expect("it has one");
    let shape = Driver::shape(SLOTS);
    let options = Options::parse(factory.attributes, "").expect("no options");
    let env = LocalEnv::sharing(common, factory, &shape, &options);
    let twin = Driver::with_env(build(&shape, &options), SLOTS, env);
    let [mut policy, mut twin] = [Driver::of_shape(factory, &shape, ""), twin]
        .map(|driver| Device::under(driver, &EQUAL).doing(&[READ, WRITE]));
    for _ in 0..60 {
        let span = Nanos(SECOND.0 / 10);
        assert_eq!(policy.run(span), twin.run(span));
        assert_eq!(policy.driver.inspect(), twin.driver.inspect());
    }
    assert!(policy.driver.shown("price_trials") > 5);
}
