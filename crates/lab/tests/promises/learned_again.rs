//! A device that changes while tenants compete: mclock learns its figures again within ten seconds.

use super::rig::{Case, Change, Tenant};
use super::{CLOUD, DISK, RANDOM_4K, SATA, WRITE_128K, run, seeds, total};
use blkmq_lab::workload::Rw;

/// A device, its change at the second [`AT`], and the load of each tenant.
struct Turn {
    device: &'static str,
    change: Change<'static>,
    load: (Rw, (u32, u32)),
}

const AT: u64 = 7;
const SLOW: &str = "cloud,burst_iops=357,iops=230,burst_bps=17347113,bps=15000000";
const FAST: &str = "cloud,burst_iops=35660,iops=23000,burst_bps=1734711310,bps=1500000000";
/// Credits for 7 seconds at the rate of the burst, which is ten times the rate that lasts.
const CREDITS: &str = "cloud,preset=ebs-gp2,iops_credits=19000";

const TURNS: [Turn; 12] = [
    Turn { device: CLOUD, change: Change::Becomes(SLOW, AT), load: RANDOM_4K },
    Turn { device: CLOUD, change: Change::Becomes(SLOW, AT), load: WRITE_128K },
    Turn { device: CLOUD, change: Change::Becomes(FAST, AT), load: RANDOM_4K },
    Turn { device: CLOUD, change: Change::Becomes(FAST, AT), load: WRITE_128K },
    Turn { device: CLOUD, change: Change::Stalls(AT), load: RANDOM_4K },
    Turn { device: SATA, change: Change::Stalls(AT), load: RANDOM_4K },
    Turn { device: SATA, change: Change::Stalls(AT), load: WRITE_128K },
    Turn { device: CREDITS, change: Change::Nothing, load: RANDOM_4K },
    Turn { device: SATA, change: Change::Becomes(CLOUD, AT), load: RANDOM_4K },
    Turn { device: SATA, change: Change::Becomes(CLOUD, AT), load: WRITE_128K },
    Turn { device: SATA, change: Change::Becomes(DISK, AT), load: RANDOM_4K },
    Turn { device: DISK, change: Change::Becomes(SATA, AT), load: RANDOM_4K },
];

/// The seconds after a change in which a device is learned again.
const LEARNED: usize = 10;

impl Turn {
    /// The loads of two tenants that need all of their I/Os in the device for its rate: weights have less effect then.
    fn is_too_fast_for_shares(&self) -> bool {
        matches!(self.change, Change::Becomes(FAST, _)) && self.load == RANDOM_4K
    }

    fn is_learned(&self, seed: u64) {
        let Self { device, change, load: (rw, load) } = *self;
        let tenants = [300, 100].map(|weight| Tenant::new(weight, rw, load));
        let case = Case { change, ..Case::new(device, &tenants, AT + 18) };
        let possible = run(&case, "none", "", seed).totals(0);
        let got = run(&case, "mclock", "", seed);
        let (totals, shares) = (got.totals(0), got.windows(0));
        // A stall is one window.
        let stalled = if let Change::Stalls(_) = change { 4 } else { 0 };
        let from = AT as usize + LEARNED - stalled;
        let to = totals.len().min(possible.len()).min(shares.len());
        assert!(to >= from + 6, "{device} {change:?}: {to} seconds");
        // The seconds of a disk have a few hundred I/Os each.
        let spans = if matches!(change, Change::Becomes(DISK, _)) { to - from } else { 1 };
        let mean = |of: &[f64]| total(of) / of.len() as f64;
        let seconds = (from..to).step_by(spans).map(|at| at..(at + spans).min(to));
        let (mut least, mut off) = (f64::MAX, 0.0_f64);
        for span in seconds {
            least = least.min(total(&totals[span.clone()]) / total(&possible[span.clone()]));
            off = off.max((mean(&shares[span]) / 0.75 - 1.0).abs());
        }
        println!(
            "| `{device}` {change:?} | {rw:?}, {} KiB | {seed} | {:.0} % | {:.1} % |",
            load.0,
            100.0 * least,
            100.0 * off
        );
        assert!(least >= 0.9, "{device} {change:?} {rw:?}: {least} of the rate");
        let is_fair = off <= 0.05 || self.is_too_fast_for_shares();
        assert!(is_fair, "{device} {change:?} {rw:?}: a share is {off} off");
    }
}

/// The learned bound is an option of the next run, which begins with it; and it can be frozen.
#[test]
fn what_was_learned_is_told_to_the_next_run() {
    let tenants = [300, 100].map(|weight| Tenant::new(weight, Rw::RandRead, (64, 8)));
    let learned = run(&Case::new(CLOUD, &tenants, 14), "mclock", "", 0).learned;
    assert!(learned.starts_with("bound_nsec=") && learned.contains(",saturated_ppm="), "{learned}");
    let next = |options: &str| run(&Case::new(CLOUD, &tenants, 4), "mclock", options, 0);
    let first = |options: &str| next(options).windows(0)[0];
    let (without, told) = (first(""), first(&learned));
    println!("{learned}: a share of {told:.3} in the first second, {without:.3} without");
    assert!((told / 0.75 - 1.0).abs() <= 0.05 && without < told, "{told}, {without}");
    let frozen = next(&format!("{learned},learn=0"));
    assert_eq!(frozen.learned, learned);
    assert!((frozen.windows(0)[0] / 0.75 - 1.0).abs() <= 0.05);
    let none = run(&Case::new(CLOUD, &tenants, 2), "none", "", 0).learned;
    assert_eq!(none, "none");
}

/// On a cloud disk with ten times the rate, the learned bound kept it at a tenth of its rate forever: a wide window has
/// the same time in the device for more requests, and a bound as wide as that was taken for fast.
#[test]
fn a_cloud_disk_that_changes_is_learned_again() {
    TURNS
        .iter()
        .filter(|turn| turn.device != SATA && turn.device != DISK)
        .for_each(|turn| turn.is_learned(0));
}

#[test]
#[ignore = "long; cargo xtask soak runs it"]
fn a_device_that_changes_is_learned_again() {
    for seed in seeds() {
        TURNS.iter().for_each(|turn| turn.is_learned(seed));
    }
}
