//! Groups that exist as long as their guards.

use crate::common;

use blkmq_core::{GroupId, Nanos};
use blkmq_engine::{EditError, GroupError, IoMax};
use blkmq_runtime::GroupOptions;
use common::{PUMPS, null, read};

#[test]
fn a_group_is_there_as_long_as_its_guard() {
    for pump in PUMPS {
        let service = null::<u64>("null", |config| config.pump = pump);
        let groups = || service.queue().snapshot().plan.groups;
        let options = GroupOptions { weight: 300, ..GroupOptions::default() };
        let tenant = service.add_group("tenant", &options).expect("the name is free");
        let found = groups().get(tenant.id()).cloned().expect("it is there");
        assert_eq!(
            (found.name.as_str(), found.weight, found.parent),
            ("tenant", 300, GroupId::ROOT)
        );
        let below = GroupOptions { parent: "tenant", ..GroupOptions::default() };
        let disk = service.add_group("disk", &below).expect("the name is free");
        assert_eq!(groups().parent(disk.id()), tenant.id());
        disk.set_weight(7).expect("a weight");
        assert_eq!(groups().get(disk.id()).expect("it is there").weight, 7);
        let refused = disk.set_weight(1001).expect_err("no weight");
        assert!(matches!(refused, EditError::Edit(GroupError::Weight(1001))), "{refused}");
        let refused = service.add_group("disk", &options).expect_err("the name is taken");
        assert!(matches!(refused, EditError::Edit(GroupError::Exists(_))), "{refused}");
        drop(disk);
        drop(tenant);
        assert!(groups().is_empty(), "{pump:?}");
    }
}

#[test]
fn a_group_with_others_below_it_stays() {
    let service = null::<u64>("null", |_| {});
    let above = service.add_group("above", &GroupOptions::default()).expect("the name is free");
    let options = GroupOptions { parent: "above", ..GroupOptions::default() };
    let below = service.add_group("below", &options).expect("the name is free");
    drop(above);
    assert!(service.queue().snapshot().plan.groups.find("above").is_ok());
    drop(below);
}

#[test]
fn a_guard_removes_no_other_group_of_its_name() {
    let service = null::<u64>("null", |_| {});
    let guard = service.add_group("a", &GroupOptions::default()).expect("the name is free");
    service
        .edit(|plan| {
            plan.groups.remove("a")?;
            plan.groups.add("a", "/").map(drop)
        })
        .expect("nothing stands against it");
    drop(guard);
    assert!(service.queue().snapshot().plan.groups.find("a").is_ok());
}

/// With I/O in flight, from the thread that waits for it.
#[test]
fn limits_hold_from_the_first_io_and_end_with_the_guard() {
    let service = null::<u64>("null,irqmode=2,completion_nsec=10000", |_| {});
    let mut client = service.client().expect("one place");
    let max = IoMax { riops: Some(1000), ..IoMax::default() };
    let options = GroupOptions { max, ..GroupOptions::default() };
    let slow = service.add_group("slow", &options).expect("the name is free");
    let begun = client.clock().now();
    for n in 0..30 {
        client.push(read(n).group(slow.id())).expect("there is credit");
    }
    client.flush();
    assert_eq!(client.wait(30, 30, |io| assert_eq!(io.result, Ok(()))), 30);
    // The first few I/Os are within the slack of the limit, 10 ms.
    assert!(client.clock().now() - begun >= Nanos::from_millis(15));
    for n in 0..30 {
        client.push(read(n).group(slow.id())).expect("there is credit");
    }
    client.flush();
    drop(slow);
    assert_eq!(client.wait(30, 30, |io| assert_eq!(io.result, Ok(()))), 30);
}
