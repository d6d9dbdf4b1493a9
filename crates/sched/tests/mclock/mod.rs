//! `mclock` by its arithmetic: the table of the paper, floors under every load, ceilings, groups that nest, the bound and
//! the prices that are found.

mod bound;
mod prices;
mod table;
mod world;

use blkmq_core::{GroupIndex, IoMeta, Op};
use blkmq_sched::testkit::Driver;
use blkmq_sched::{At, Capacity, GroupChange, Guarantee, Options, Rate, registry};

#[test]
fn the_engine_is_told_that_groups_share_and_of_what() {
    let factory = registry::find("mclock").expect("it is registered");
    let options = "rbps=1000,rseqiops=20,rrandiops=30,safe_percent=70";
    let options = Options::parse(factory.attributes, options).expect("they are options");
    let policy = (factory.build)(&Driver::shape(4), &options);
    assert!(policy.facts().shares_by_group);
    let capacity = Capacity { iops: 30, bps: 1_000, safe_percent: 70 };
    assert_eq!(policy.facts().capacity, Some(capacity));
}

/// A group that is removed may be named again; its name leads to its parent, which stays.
#[test]
fn a_group_that_is_gone_is_not_removed_again() {
    let factory = registry::find("mclock").expect("it is registered");
    let mut d = Driver::of(factory, 4, "");
    let [above, below] = [1, 2].map(GroupIndex);
    for (group, parent) in [(above, GroupIndex::ROOT), (below, above)] {
        d.regroup(GroupChange::Added { group, parent, weight: 100 });
    }
    let reserve = Rate { percent: 10, ..Rate::default() };
    let guarantee = Guarantee { reserve, limit: Rate::default() };
    d.regroup(GroupChange::Guarantee { group: above, guarantee });
    for group in [below, below, GroupIndex::ROOT] {
        d.regroup(GroupChange::Removed { group });
    }
    let io = IoMeta { group: below, ..IoMeta::new(Op::Read, 0, 8) };
    d.insert_meta(io, At::Tail).expect("a slot is free");
    assert_eq!(d.shown("floors"), 1, "it belongs to the group above");
    d.issue();
}
