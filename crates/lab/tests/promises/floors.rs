//! Floors without any setting for the device: the part of its floor that a tenant gets in each second.

use super::rig::{Case, Change, Tenant};
use super::{CLOUD, run, total};
use blkmq_lab::workload::Rw;
use blkmq_sched::FloorState;

/// The I/Os of each second of a tenant with a floor, and those of a flood of 128 reads of a MiB.
fn beside_a_flood(device: &str, change: Change<'_>, floor: Tenant, seconds: u64) -> [Vec<f64>; 2] {
    let tenants = [Tenant::new(100, Rw::RandRead, (1_024, 128)), floor];
    let case = Case { change, ..Case::new(device, &tenants, seconds) };
    let run = run(&case, "mclock", "", 0);
    assert_ne!(run.floors[1].expect("it has a floor").state, FloorState::Infeasible);
    [run.seconds(1, 0), run.seconds(0, 0)]
}

fn are_kept(seconds: &[f64], floor: f64, text: &str) {
    for (second, ios) in seconds.iter().enumerate().skip(3) {
        let least = if second < 10 { 0.95 } else { 0.99 };
        assert!(*ios >= floor * least, "{text}: {ios} in second {second}");
    }
}

/// One read at a time beside a flood on a cloud disk: it had 105 of 200, since two large I/Os in the device are 12 ms,
/// and a bound leaves no fewer.
#[test]
fn a_floor_beside_large_ios_on_a_cloud_disk() {
    for (kib, others) in [(4, 162.0), (32, 146.0)] {
        let floor = Tenant::new(100, Rw::RandRead, (kib, 1)).promised("reserve_iops=200");
        let [had, flood] = beside_a_flood(CLOUD, Change::Nothing, floor, 25);
        let mean = total(&flood[3..]) / (flood.len() - 3) as f64;
        println!(
            "| {kib} KiB | {:.0} | {mean:.0} |",
            had[3..].iter().fold(f64::MAX, |a, b| a.min(*b))
        );
        are_kept(&had, 200.0, "one read at a time");
        assert!(mean >= others, "{kib} KiB: {mean} beside it");
        // A tenant that asks for 200 a second gets them.
        let [had, flood] = beside_a_flood(CLOUD, Change::Nothing, floor.rate(200), 25);
        let (had, mean) = (
            total(&had[3..]) / (had.len() - 3) as f64,
            total(&flood[3..]) / (flood.len() - 3) as f64,
        );
        assert!(had >= 199.0 && mean >= others, "{kib} KiB: {had} beside {mean}");
    }
}

/// The credits of the disk end after ten seconds: from then on its rate is a tenth. The tenant had 57 of 200.
#[test]
fn a_floor_on_a_disk_whose_credits_end() {
    let device = "cloud,preset=ebs-gp2,iops_credits=30000";
    let floor = Tenant::new(100, Rw::RandRead, (4, 16)).promised("reserve_iops=200");
    let tenants = [Tenant::new(1_000, Rw::RandRead, (4, 64)), floor];
    let run = run(&Case::new(device, &tenants, 30), "mclock", "", 0);
    let floor = run.floors[1].expect("it has a floor");
    assert!(floor.seconds >= 29 && floor.missed == 0, "{floor:?}");
    are_kept(&run.seconds(1, 0), 196.0, "credits that end");
}
