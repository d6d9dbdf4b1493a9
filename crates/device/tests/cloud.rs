//! The device `cloud`, compared with the published limits of the modelled disks.

use crate::common::closed_loop::{Job, Measured};
use crate::common::{described, device};
use blkmq_device::registry;

/// The rates of random reads of 4 KiB and of sequential reads of 1 MiB, at a depth that saturates the disk.
fn rates(text: &str) -> (Measured, Measured) {
    let device = device("cloud", text);
    let small = Job::random(100, 64, 20_000).run(&device);
    let large = Job { bytes: 1 << 20, ..Job::sequential(100, 32, 2_000) }.run(&device);
    (small, large)
}

fn near(got: u64, published: u64) -> bool {
    got.abs_diff(published) * 100 <= published
}

#[test]
fn every_preset_reaches_its_limits() {
    // Without credits, a disk has its sustained rates.
    let rested = "iops_credits=0,bps_credits=0";
    for (text, iops, mbps) in [
        ("preset=azure-p20".to_owned(), 3_566, 173),
        (format!("preset=azure-p20,{rested}"), 2_300, 150),
        ("preset=ebs-gp3".to_owned(), 3_000, 131),
        ("preset=ebs-gp2".to_owned(), 3_000, 134),
        // 300 I/Os of up to 256 KiB.
        (format!("preset=ebs-gp2,{rested}"), 300, 78),
        ("preset=gcp-pd".to_owned(), 6_000, 293),
    ] {
        let (small, large) = rates(&text);
        println!("{text}: {small:?}, {large:?}");
        assert!(near(small.iops, iops), "{text}: {} IOPS", small.iops);
        assert!(near(large.mbps, mbps), "{text}: {} MB/s", large.mbps);
    }
}

#[test]
fn a_burst_of_gp2_lasts_as_long_as_is_published() {
    // 100 GiB: 3000 IOPS for 2000 seconds from full credits; here with a hundredth of the credits, for a hundredth of
    // the time.
    let device = device("cloud", "preset=ebs-gp2,iops_credits=54000");
    // 60,000 I/Os of the burst, of which the first quarter is not measured; the rest runs at 300 IOPS.
    let burst = Job::random(100, 64, 60_000).run(&device);
    assert!(near(burst.iops, 3_000), "{} IOPS", burst.iops);
    let longer = Job::random(100, 64, 63_000).run(&device);
    // 45,000 at 3000 and 3000 at 300, less the unmeasured quarter: 47,250 in 24.75 s.
    assert!(longer.iops.abs_diff(1_909) < 40, "{} IOPS", longer.iops);
}

#[test]
fn a_single_request_takes_a_millisecond_or_two() {
    let device = device("cloud", "");
    for (bytes, least, most) in [(4_096, 1_850_000, 2_050_000), (256 << 10, 3_500_000, 3_850_000)] {
        let job = Job { bytes, ..Job::random(50, 1, 2_000) };
        let got = job.run(&device);
        let mean = u64::midpoint(got.read_ns, got.write_ns);
        assert!((least..=most).contains(&mean), "{bytes} bytes: {mean} ns");
    }
}

/// The page compares a measured tail of latencies with that of the model, and with that of the model with late answers.
#[test]
fn a_tail_of_slow_answers_is_that_of_the_faults_around() {
    let page = registry::page("cloud").expect("it is registered");
    for text in ["cloud", "faults,late=0.02,late_nsec=11000000:cloud"] {
        let got = Job::random(100, 1, 20_000).run(&described(text));
        let ms = |ns: u64| format!("{}.{:02}", ns / 1_000_000, ns / 10_000 % 100);
        let (mean, p99) = (ms(got.read_ns), ms(got.read_p99_ns));
        let percent = got.read_p99_ns as i64 / 75_000 - 100;
        let row = format!("| `{text}` | {mean} | {p99} | {percent:+} % |");
        println!("{row}");
        assert!(page.contains(&row), "the page should say: {row}");
    }
}
