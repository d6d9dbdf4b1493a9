//! Weights and floors of tenants without any setting for the device: with unlike loads, each tenant's rate relative to
//! its rate alone; on a device that changes, whose figures mclock learns again within ten seconds; and with promises,
//! loads and devices that are drawn: each second of a floor is kept, or reported as missed, and the part of its floor
//! that a tenant gets in each second.
//!
//! `BLKMQ_PROMISE_DRAWS=FROM..TO` draws other floors than those of the tests.

use super::{
    CLIENT, CLOUD, Case, Change, Curve, DISK, Point, RANDOM_4K, Run, SATA, TLC, Tenant, WRITE_128K,
    run, seeds, total,
};
use blkmq_core::Rng;
use blkmq_lab::workload::Rw;
use blkmq_sched::{FloorCause, FloorState};
use std::ops::Range;

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

/// A device, the random reads of 4 KiB a second that it does, and the seconds of a run.
struct Device(&'static str, u64, u64);

const DEVICES: [Device; 8] = [
    Device(CLOUD, 3_566, 14),
    Device("cloud,preset=ebs-gp3", 3_000, 14),
    Device("cloud,preset=ebs-gp2,iops_credits=15000", 300, 14),
    Device("cloud,preset=gcp-pd", 6_000, 14),
    Device(SATA, 90_000, 6),
    Device(CLIENT, 250_000, 5),
    Device(TLC, 250_000, 5),
    Device(DISK, 120, 40),
];

/// A drawn device with its tenants.
struct Draw {
    device: &'static Device,
    tenants: Vec<Tenant>,
    /// The I/Os a second that each tenant is entitled to.
    due: Vec<f64>,
    text: String,
}

/// How a floor was kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Kept,
    /// Its account has counted the missed seconds, with this cause.
    Said(FloorCause),
    Silent,
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.below(from.len() as u64) as usize]
}

/// The price of a random read by the guess for devices that rotate or do not, in reads of 4 KiB.
fn price(device: &str, kib: u32) -> f64 {
    let free = if device == DISK { 174_019_176.0 / 370.0 } else { 488_636_629.0 / 8_518.0 };
    (f64::from(kib << 10) / free).max(1.0)
}

impl Draw {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let device = &DEVICES[rng.below(DEVICES.len() as u64) as usize];
        let many = 2 + rng.below(3) as usize;
        let (mut tenants, mut due) = (Vec::new(), Vec::new());
        let mut text = format!("{seed}: {}", device.0);
        for at in 0..many {
            let has_floor = at == 0 || rng.below(3) == 0;
            let rw = if has_floor {
                Rw::RandRead
            } else {
                pick(&mut rng, &[Rw::RandRead, Rw::RandWrite, Rw::Write, Rw::Read])
            };
            let kib = pick(&mut rng, &[4, 4, 16, 64, 256, 1_024]);
            let depth = pick(&mut rng, &[1, 2, 4, 8, 16, 32, 64]);
            let weight = pick(&mut rng, &[10, 50, 100, 300, 1_000]);
            let mut tenant = Tenant::new(weight, rw, (kib, depth));
            text += &format!("; {rw:?} {kib}k x{depth} w{weight}");
            let mut ios = 0.0;
            if has_floor {
                // From 1 to 40 % of the device's reads.
                let reads = (device.1 * pick(&mut rng, &[1, 2, 5, 10, 20, 40]) / 100).max(1);
                tenant = tenant.promised(&format!("reserve_iops={reads},overcommit=1"));
                ios = reads as f64 / price(device.0, kib);
                text += &format!(" floor {reads} ({ios:.1} I/Os)");
            }
            tenants.push(tenant);
            due.push(ios);
        }
        Self { device, tenants, due, text }
    }

    fn run(&self, seed: u64) -> Vec<Verdict> {
        let run = run(&Case::new(self.device.0, &self.tenants, self.device.2), "mclock", "", seed);
        let floors = (0..self.tenants.len()).filter(|at| self.due[*at] > 0.0);
        let verdicts: Vec<Verdict> = floors.map(|at| self.verdict(at, &run)).collect();
        let counts = run.floors.iter().flatten().map(|one| {
            let causes = one.causes;
            format!("{} of {} missed, least {}, {causes:?}", one.missed, one.seconds, one.least)
        });
        if verdicts.iter().any(|verdict| *verdict != Verdict::Kept) {
            println!("{}: {verdicts:?} {:?}", self.text, counts.collect::<Vec<_>>());
        }
        verdicts
    }

    /// From the third second on, a second is kept with 95 % of the floor, from the tenth on with 99 %; in both cases
    /// minus two I/Os.
    fn verdict(&self, at: usize, run: &Run) -> Verdict {
        let due = self.due[at];
        let seconds = run.seconds(at, 0);
        let is_kept = |(second, ios): (usize, &f64)| {
            let least = if second < 10 { 0.95 } else { 0.99 };
            ios + 2.0 >= due * least
        };
        let missed = seconds.iter().enumerate().skip(3).filter(|one| !is_kept(*one)).count() as u64;
        if missed == 0 {
            return Verdict::Kept;
        }
        match run.floors[at] {
            // The seconds of the account begin at other times.
            Some(report) if report.missed + 1 >= missed && report.missed > 0 => {
                Verdict::Said(report.cause().expect("some were missed"))
            }
            _ => Verdict::Silent,
        }
    }
}

fn draws(range: Range<u64>) {
    let told = std::env::var("BLKMQ_PROMISE_DRAWS").ok();
    let told = told.map(|text| {
        let (from, to) = text.split_once("..").expect("FROM..TO");
        from.parse().expect("a number")..to.parse().expect("a number")
    });
    let verdicts: Vec<Verdict> =
        told.unwrap_or(range).flat_map(|seed| Draw::new(seed).run(seed)).collect();
    let count = |of: Verdict| verdicts.iter().filter(|verdict| **verdict == of).count();
    let said = FloorCause::ALL.map(|cause| (cause.name(), count(Verdict::Said(cause))));
    println!("{} floors: {} kept, said: {said:?}", verdicts.len(), count(Verdict::Kept));
    assert_eq!(count(Verdict::Silent), 0, "floors that were missed without a word");
}

#[test]
fn floors_of_drawn_devices_and_loads_are_kept_or_said_to_be_missed() {
    draws(0..10);
}

/// The draws were not used while the rules were developed. One seed, as in CI, has 22 of them, and three have 198.
#[test]
#[ignore = "long; cargo xtask soak runs it"]
fn floors_of_two_hundred_draws_are_kept_or_said_to_be_missed() {
    draws(1_000..1_000 + 22 * seeds().end.pow(2));
}

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
