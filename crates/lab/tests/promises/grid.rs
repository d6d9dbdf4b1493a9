//! Floors without any setting for the device: each second of a floor is kept, or reported as missed, on devices with
//! promises and loads that are drawn; and the part of its floor that a tenant gets in each second.
//!
//! `BLKMQ_PROMISE_DRAWS=FROM..TO` runs other draws than those of the tests.

use super::rig::{Case, Change, Run, Tenant};
use super::{CLIENT, CLOUD, DISK, SATA, TLC, run, seeds, total};
use blkmq_core::Rng;
use blkmq_lab::workload::Rw;
use blkmq_sched::{FloorCause, FloorState};
use std::ops::Range;

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
