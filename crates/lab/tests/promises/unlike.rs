//! Weights of tenants without any setting for the device: with unlike loads, each tenant's rate relative to its rate
//! alone; and on a device that changes, whose figures mclock learns again within ten seconds.

use super::rig::{Case, Change, Tenant};
use super::{
    CLIENT, CLOUD, Curve, DISK, Point, RANDOM_4K, SATA, TLC, WRITE_128K, run, seeds, total,
};
use blkmq_lab::workload::Rw;

/// Tenants beside each other, described by their differences.
struct Mix {
    name: &'static str,
    tenants: fn() -> Vec<Tenant>,
}

fn reads(kib: u32, iodepth: u32) -> Tenant {
    Tenant::new(100, Rw::RandRead, (kib, iodepth))
}

fn loads(loads: [(Rw, (u32, u32)); 2]) -> Vec<Tenant> {
    loads.map(|(rw, load)| Tenant::new(100, rw, load)).to_vec()
}

const MIXES: [Mix; 8] = [
    Mix { name: "depth 1, depth 128", tenants: || vec![reads(4, 1), reads(4, 128)] },
    Mix { name: "4 KiB, 1 MiB", tenants: || vec![reads(4, 32), reads(1_024, 32)] },
    Mix {
        name: "reads, writes",
        tenants: || loads([(Rw::RandRead, (4, 32)), (Rw::RandWrite, (4, 32))]),
    },
    Mix {
        name: "reads, 1 MiB writes",
        tenants: || loads([(Rw::RandRead, (4, 32)), (Rw::Write, (1_024, 16))]),
    },
    Mix {
        name: "random, sequential",
        tenants: || loads([(Rw::RandRead, (16, 32)), (Rw::Read, (128, 16))]),
    },
    Mix {
        name: "reads, discards",
        tenants: || loads([(Rw::RandRead, (4, 32)), (Rw::RandTrim, (1_024, 4))]),
    },
    Mix {
        name: "reads, fsync",
        tenants: || vec![reads(4, 32), Tenant::new(100, Rw::Write, (4, 1)).synced()],
    },
    Mix {
        name: "db, web, backup",
        tenants: || {
            vec![
                Tenant::new(300, Rw::RandRead, (4, 32)),
                Tenant::new(200, Rw::RandRw, (16, 16)),
                Tenant::new(100, Rw::Write, (1_024, 8)),
            ]
        },
    },
];

/// The least part that each tenant has of the smaller of two rates: its rate alone, and its weight's part of that; and
/// the least rate relative to `none`'s, as the sum of the tenants' parts of their rates alone.
const KEPT: f64 = 0.75;
const RATE: f64 = 0.85;

/// A mix that does not have that: the parts and the rate that it has at least.
struct Less {
    device: &'static str,
    mix: &'static str,
    parts: &'static [f64],
    rate: f64,
}

/// One I/O at a time waits for those in the device, I/Os of a MiB cannot be divided, and on one of the NVMe drives
/// reads and writes disturb each other. A [`Curve`] has bounds set by hand instead. A disk seeks between the regions of
/// its tenants.
const LESS: [Less; 13] = [
    Less { device: CLIENT, mix: "depth 1, depth 128", parts: &[0.25, 0.90], rate: 0.95 },
    Less { device: CLIENT, mix: "4 KiB, 1 MiB", parts: &[0.28, 0.50], rate: 0.90 },
    Less { device: CLIENT, mix: "reads, writes", parts: &[0.08, 0.30], rate: 0.45 },
    Less { device: CLIENT, mix: "reads, 1 MiB writes", parts: &[0.05, 0.35], rate: 0.45 },
    Less { device: CLIENT, mix: "db, web, backup", parts: &[0.10, 0.20, 0.12], rate: 0.70 },
    Less { device: TLC, mix: "depth 1, depth 128", parts: &[0.15, 0.90], rate: 0.95 },
    Less { device: TLC, mix: "4 KiB, 1 MiB", parts: &[0.40, 0.30], rate: 0.75 },
    Less { device: TLC, mix: "reads, writes", parts: &[0.28, 0.55], rate: 0.90 },
    Less { device: TLC, mix: "db, web, backup", parts: &[0.25, 0.25, 0.12], rate: 0.90 },
    Less { device: DISK, mix: "depth 1, depth 128", parts: &[0.02, 0.90], rate: 0.95 },
    Less { device: DISK, mix: "reads, 1 MiB writes", parts: &[0.22, 0.45], rate: 0.85 },
    Less { device: DISK, mix: "random, sequential", parts: &[0.24, 0.42], rate: 0.75 },
    Less { device: DISK, mix: "db, web, backup", parts: &[0.28, 0.20, 0.20], rate: 0.70 },
];

/// The seconds of a run, and the first counted one: prices are found by then.
fn times(device: &str) -> (u64, u64) {
    match device {
        DISK => (180, 90),
        CLIENT | TLC => (36, 24),
        _ => (24, 12),
    }
}

/// The seconds of a run under a bound set by hand, and the first counted one: the bound holds from the beginning.
fn bounded_times(device: &str) -> (u64, u64) {
    if device == DISK { (100, 10) } else { (8, 4) }
}

/// I/Os a second of each tenant. A tenant without an I/O has no rate.
fn rates(case: &Case<'_>, [scheduler, options]: [&str; 2], from: u64, seed: u64) -> Vec<f64> {
    let rates = run(case, scheduler, options, seed).rates(from);
    rates.into_iter().map(|rate| rate.max(0.0)).collect()
}

/// The rates against which those of a mix are compared.
struct Scale {
    /// I/Os a second of each tenant alone, and the sum of their parts of that under `none`.
    alone: Vec<f64>,
    none: f64,
}

impl Scale {
    fn new(device: &str, tenants: &[Tenant], seed: u64) -> Self {
        let (seconds, _) = times(device);
        let short = seconds / 3;
        let of = |tenants: &[Tenant], seconds: u64| {
            rates(&Case::new(device, tenants, seconds), ["none", ""], seconds / 2, seed)
        };
        let alone = tenants.iter().map(|tenant| total(&of(&[*tenant], short))).collect();
        let scale = Self { alone, none: 1.0 };
        let none = scale.of(&of(tenants, seconds / 2)).1;
        Self { none, ..scale }
    }

    /// Each tenant's rate relative to its rate alone, and their sum relative to the sum under `none`.
    fn of(&self, rates: &[f64]) -> (Vec<f64>, f64) {
        let parts: Vec<f64> =
            rates.iter().zip(&self.alone).map(|(rate, alone)| rate / alone).collect();
        let rate = total(&parts) / self.none;
        (parts, rate)
    }
}

impl Mix {
    /// The models of a disk take no discards.
    fn is_possible(&self, device: &str) -> bool {
        ![CLOUD, DISK].contains(&device) || self.name != "reads, discards"
    }

    /// Prints the row of the mix; a failure is a text.
    fn measure(&self, device: &str, seed: u64) -> Option<String> {
        let Self { name, tenants } = self;
        let tenants = tenants();
        let scale = Scale::new(device, &tenants, seed);
        let of = |device: &str, options: &str, (seconds, from): (u64, u64)| {
            scale.of(&rates(&Case::new(device, &tenants, seconds), ["mclock", options], from, seed))
        };
        let (parts, rate) = of(device, "", times(device));
        let weights: u32 = tenants.iter().map(|tenant| tenant.weight).sum();
        let weight = |tenant: &Tenant| f64::from(tenant.weight) / f64::from(weights);
        let due: Vec<f64> = tenants.iter().map(|tenant| KEPT * weight(tenant)).collect();
        let less = LESS.iter().find(|less| less.device == device && less.mix == *name);
        let (least, least_rate) = less.map_or((&due[..], RATE), |less| (less.parts, less.rate));
        let has = |least: &[f64], least_rate: f64| {
            parts.iter().zip(least).all(|(part, least)| part >= least) && rate >= least_rate
        };
        let point = |(parts, rate): (Vec<f64>, f64)| {
            let shown: Vec<String> = parts.iter().map(|part| format!("{part:.2}")).collect();
            let shown = format!("{} | {:.0} %", shown.join(", "), 100.0 * rate);
            let even = |(part, of): (&f64, &Tenant)| part / weight(of) / tenants.len() as f64;
            let share = parts.iter().zip(&tenants).map(even).fold(f64::MAX, f64::min);
            Point { shown, share, rate }
        };
        let holds = if has(&due, RATE) { "yes" } else { "no" };
        let is_short = !has(least, least_rate);
        let default = point((parts.clone(), rate));
        let row = format!("| `{device}` | {name} | {}", default.shown);
        println!("{row} | {holds} | {seed} |");
        let curve = Curve::find(device, name).filter(|_| seed == 0);
        let beaten = curve.and_then(|curve| {
            let measured = |on: &str, options: &str| point(of(on, options, bounded_times(device)));
            curve.compare(&default, measured)
        });
        is_short.then_some(row).or(beaten)
    }
}

fn hold(is_meant: impl Fn(&Mix) -> bool, device: &str, seed: u64) {
    let mixes = MIXES.iter().filter(|mix| is_meant(mix) && mix.is_possible(device));
    let short: Vec<String> = mixes.filter_map(|mix| mix.measure(device, seed)).collect();
    assert!(short.is_empty(), "{short:#?}");
}

/// With guessed prices, 4 KiB beside 1 MiB has 0.09 of its rate alone, and reads beside writes 0.26.
#[test]
fn unlike_loads_have_their_shares_on_a_sata_drive() {
    let names = ["4 KiB, 1 MiB", "reads, writes", "random, sequential"];
    hold(|mix| names.contains(&mix.name), SATA, 0);
}

#[test]
fn unlike_loads_have_their_shares_on_a_cloud_disk() {
    let names = ["reads, writes", "random, sequential", "db, web, backup"];
    hold(|mix| names.contains(&mix.name), CLOUD, 0);
}

#[test]
#[ignore = "long; cargo xtask soak runs it"]
fn unlike_loads_have_their_shares_on_sata_drives_and_disks() {
    for seed in seeds() {
        [SATA, CLOUD, DISK].into_iter().for_each(|device| hold(|_| true, device, seed));
    }
}

#[test]
#[ignore = "long; cargo xtask soak runs it"]
fn unlike_loads_have_their_shares_on_nvme_client() {
    // The NVMe models take minutes, so that one seed has to do.
    hold(|_| true, CLIENT, 0);
}

#[test]
#[ignore = "long; cargo xtask soak runs it"]
fn unlike_loads_have_their_shares_on_nvme_tlc() {
    hold(|_| true, TLC, 0);
}

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
