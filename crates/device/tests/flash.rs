//! The flash device's presets against what was published about the drives: each point within 15 %, and the tables of
//! its page as they come out here.

#[path = "common/closed_loop.rs"]
mod closed_loop;
mod common;

use blkmq_device::registry;
use closed_loop::{Job, Measured};
use common::device;

/// What may lie between model and publication, in thousandths.
const TOLERANCE: i64 = 150;
/// I/Os of a steady state: several times what is free in the beginning.
const LONG: u64 = 300_000;

/// A line of a table.
struct Point {
    what: &'static str,
    /// `None`: nothing was found.
    published: Option<u64>,
    unit: &'static str,
    job: Job,
    /// On a device that has been overwritten for long, and not on one that was just filled.
    steady: bool,
    figure: fn(&Measured) -> u64,
}

impl Point {
    fn new(what: &'static str, published: u64, job: Job) -> Self {
        let figure = |measured: &Measured| measured.iops;
        Self { what, published: Some(published), unit: "IOPS", job, steady: false, figure }
    }

    fn unpublished(what: &'static str, job: Job) -> Self {
        Self { published: None, steady: true, ..Self::new(what, 0, job) }
    }

    fn mbps(what: &'static str, published: u64, job: Job) -> Self {
        Self { unit: "MB/s", figure: |measured| measured.mbps, ..Self::new(what, published, job) }
    }

    fn latency(what: &'static str, published: u64, job: Job) -> Self {
        let figure = |measured: &Measured| (measured.read_ns.max(measured.write_ns) + 500) / 1000;
        Self { unit: "us", figure, ..Self::new(what, published, job) }
    }

    fn steady(self) -> Self {
        Self { steady: true, ..self }
    }
}

fn reads(depth: u32) -> Job {
    Job::random(100, depth, 20_000)
}

fn writes(depth: u32) -> Job {
    Job::random(0, depth, 20_000)
}

/// By how much the figures of the page may differ from what comes out here, in thousandths: other layers may come to
/// hand requests to the device in a slightly different order.
const PAGE_TOLERANCE: i64 = 20;

fn permille(model: u64, reference: u64) -> i64 {
    (model as i64 - reference as i64) * 1000 / reference as i64
}

/// The last two columns of a line.
fn compared(published: Option<u64>, model: u64, unit: &str) -> String {
    let Some(published) = published else { return format!("{model} {unit} | - |") };
    let permille = permille(model, published);
    let sign = if permille < 0 { '-' } else { '+' };
    let (whole, tenth) = (permille.abs() / 10, permille.abs() % 10);
    format!("{model} {unit} | {sign}{whole}.{tenth} % |")
}

/// The part of the page that is about a preset.
fn section(preset: &str) -> &'static str {
    let page = registry::find("flash").expect("it is registered").doc;
    let (_, behind) =
        page.split_once(&format!("\n`{preset}`: ")).expect("each preset has its part");
    behind.split("\n`").next().expect("there is something")
}

/// Runs each point and compares. The page has a line for each, with about the same figure, and its own arithmetic is
/// right. All points of a kind run on one device, one after the other.
fn check(preset: &str, points: &[Point]) {
    let section = section(preset);
    let made = |preconditioned: u32| {
        let text = format!("preset={preset},submit_queues=1,preconditioned={preconditioned}");
        device("flash", &text)
    };
    // Their tables are made when they are run for the first time.
    let (filled, overwritten) = (made(1), made(2));
    for point in points {
        let Point { what, published, unit, .. } = *point;
        let device = if point.steady { &overwritten } else { &filled };
        let model = (point.figure)(&point.job.run(device));
        let given = published.map_or("-".into(), |published| format!("{published} {unit}"));
        let begin = format!("| {what} | {given} | ");
        println!("{begin}{}", compared(published, model, unit));
        if let Some(published) = published {
            let far = permille(model, published).abs() > TOLERANCE;
            assert!(!far, "{preset}: {what}: {model} instead of {published} {unit}");
        }
        let line = section.lines().find_map(|line| line.strip_prefix(&begin));
        let line = line.unwrap_or_else(|| panic!("not on the page of {preset}: {begin}"));
        let printed = line.split(' ').next().and_then(|figure| figure.parse().ok());
        let printed: u64 = printed.expect("a figure");
        assert_eq!(line, compared(published, printed, unit), "{preset}: {what}");
        let near = permille(printed, model).abs() <= PAGE_TOLERANCE;
        assert!(near, "{preset}: {what}: {printed} on the page, and {model} now");
    }
    let lines = section.lines().filter(|line| line.starts_with("| ") && line.contains(" depth "));
    let others = points.iter().filter(|point| point.what.contains(" depth ")).count();
    assert_eq!(lines.count(), others, "the page of {preset} has lines that nobody checks");
}

#[test]
fn sata_is_a_samsung_870_evo() {
    check(
        "sata",
        &[
            Point::new("random read, depth 1", 13_000, reads(1)),
            Point::new("random read, depth 32", 98_000, reads(32)),
            Point::mbps("sequential read", 560, Job::sequential(100, 32, 10_000)),
            Point::mbps("sequential write", 530, Job::sequential(0, 32, 10_000)),
            Point::new("random write, depth 1", 36_000, writes(1)),
            Point::new("random write, depth 32", 88_000, writes(32)),
            Point::unpublished("70/30, depth 32, steady", Job::random(70, 32, LONG)),
        ],
    );
}

#[test]
fn sata_dc_is_an_intel_d3_s4610() {
    let mixed = |depth, ios| Job::random(50, depth, ios);
    check(
        "sata-dc",
        &[
            Point::new("random read, depth 1", 7_816, reads(1)),
            Point::new("random read, depth 2", 15_111, reads(2)),
            Point::new("random read, depth 4", 29_527, reads(4)),
            Point::new("random read, depth 8", 49_016, reads(8)),
            Point::new("random read, depth 16", 60_765, reads(16)),
            Point::new("random read, depth 32", 63_110, reads(32)),
            Point::new("random read, depth 64", 63_862, reads(64)),
            Point::new("random write, depth 1", 14_636, writes(1)),
            Point::new("random write, depth 32", 58_485, writes(32)),
            Point::new("50/50, depth 16, steady", 47_132, mixed(16, LONG)).steady(),
            Point::new("50/50, depth 32, steady", 49_482, mixed(32, LONG)).steady(),
            Point::unpublished("70/30, depth 32, steady", Job::random(70, 32, LONG)),
            Point::new("50/50, depth 1, steady", 8_990, mixed(1, 100_000)).steady(),
        ],
    );
}

#[test]
fn nvme_tlc_is_an_intel_p4500() {
    check(
        "nvme-tlc",
        &[
            Point::latency("random read, depth 1", 85, reads(1)),
            Point::new("random read, depth 128", 279_500, reads(128)),
            Point::mbps("sequential read", 3_200, Job::sequential(100, 128, 10_000)),
            Point::mbps("sequential write", 600, Job::sequential(0, 128, 10_000)),
            Point::latency("random write, depth 1", 20, writes(1)),
            Point::new("random write, depth 128, steady", 30_500, Job::random(0, 128, LONG))
                .steady(),
            Point::unpublished("70/30, depth 128, steady", Job::random(70, 128, LONG)),
        ],
    );
}

#[test]
fn nvme_mlc_is_an_intel_p3700() {
    check(
        "nvme-mlc",
        &[
            Point::new("random read, depth 1", 12_800, reads(1)),
            Point::new("random read, depth 16", 167_200, reads(16)),
            Point::new("random read, depth 128", 460_000, reads(128)),
            Point::mbps("sequential read", 2_800, Job::sequential(100, 128, 10_000)),
            Point::mbps("sequential write", 2_000, Job::sequential(0, 128, 20_000)),
            Point::latency("random write, depth 1", 20, writes(1)),
            Point::new("random write, depth 128, steady", 175_000, Job::random(0, 128, LONG))
                .steady(),
            Point::new("70/30, depth 128, steady", 265_000, Job::random(70, 128, LONG)).steady(),
        ],
    );
}

#[test]
fn low_latency_is_an_intel_p4800x() {
    check(
        "low-latency",
        &[
            Point::new("random read, depth 1", 108_300, reads(1)),
            Point::new("random read, depth 16", 584_800, reads(16)),
            Point::mbps("sequential read", 2_400, Job::sequential(100, 32, 10_000)),
            Point::mbps("sequential write", 2_000, Job::sequential(0, 32, 20_000)),
            Point::latency("random write, depth 1", 10, writes(1)),
            Point::new("random write, depth 16", 500_000, Job::random(0, 16, 100_000)),
            Point::new("70/30, depth 16", 500_000, Job::random(70, 16, 100_000)),
        ],
    );
}
