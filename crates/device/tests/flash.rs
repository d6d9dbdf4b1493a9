//! The presets of the flash device, compared with the published figures of the drives. Each point is within 15 %,
//! unless it is marked as out of reach, and the tables on the device's page agree with the measurements made here.

use crate::common::{self, closed_loop};

use blkmq_core::{Instant, Nanos, Op, Rng};
use blkmq_device::registry;
use closed_loop::{Job, Measured, run_beside};
use common::device;

/// The largest deviation of the model from the published figure, in thousandths.
const TOLERANCE: i64 = 150;
/// The number of I/Os of a steady-state job: several times the free space at the beginning.
const LONG: u64 = 300_000;

/// A row of a table.
struct Point {
    what: &'static str,
    /// The published figure; `None` if there is none.
    published: Option<u64>,
    unit: &'static str,
    job: Job,
    /// A concurrent job.
    beside: Option<Job>,
    /// Whether the device has been overwritten for a long time, instead of just filled.
    steady: bool,
    /// Whether the page says that the model cannot reach the figure.
    far: bool,
    figure: fn(&Measured) -> u64,
}

impl Point {
    fn new(what: &'static str, published: u64, job: Job) -> Self {
        let figure = |measured: &Measured| measured.iops;
        let (published, unit) = (Some(published), "IOPS");
        Self { what, published, unit, job, beside: None, steady: false, far: false, figure }
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

    fn beside(self, other: Job) -> Self {
        Self { beside: Some(other), ..self }
    }

    fn p99(self) -> Self {
        Self { unit: "us", figure: |measured| (measured.read_p99_ns + 500) / 1000, ..self }
    }

    fn far(self) -> Self {
        Self { far: true, ..self }
    }

    /// The measured job and its concurrent job.
    fn jobs(&self) -> Vec<Job> {
        [Some(self.job), self.beside].into_iter().flatten().collect()
    }

    /// Returns whether both points are measured in the same run.
    fn same_run(&self, other: &Self) -> bool {
        (self.job, self.beside, self.steady) == (other.job, other.beside, other.steady)
    }
}

fn reads(depth: u32) -> Job {
    Job::random(100, depth, 20_000)
}

fn writes(depth: u32) -> Job {
    Job::random(0, depth, 20_000)
}

/// The maximum deviation of the page's figures from the measurements made here, in thousandths: a change in other
/// layers may slightly change the order of requests at the device.
const PAGE_TOLERANCE: i64 = 20;

fn permille(model: u64, reference: u64) -> i64 {
    (model as i64 - reference as i64) * 1000 / reference as i64
}

/// The last two columns of a row.
fn compared(published: Option<u64>, model: u64, unit: &str) -> String {
    let Some(published) = published else { return format!("{model} {unit} | - |") };
    let permille = permille(model, published);
    let sign = if permille < 0 { '-' } else { '+' };
    let (whole, tenth) = (permille.abs() / 10, permille.abs() % 10);
    format!("{model} {unit} | {sign}{whole}.{tenth} % |")
}

/// The section of the page about a preset.
fn section(preset: &str) -> &'static str {
    let page = registry::page("flash").expect("it is registered");
    let (_, behind) =
        page.split_once(&format!("\n`{preset}`: ")).expect("each preset has its part");
    behind.split("\n`").next().expect("there is something")
}

/// Measures each point and compares it with the published figure. Checks that the page has a row for it, with about the
/// same figure and the right deviation. All points of a kind run on one device, in succession.
fn check(preset: &str, points: &[Point]) {
    let section = section(preset);
    let made = |preconditioned: u32| {
        let text = format!("preset={preset},submit_queues=1,preconditioned={preconditioned}");
        device("flash", &text)
    };
    // A device allocates its tables only when it first runs.
    let (filled, overwritten) = (made(1), made(2));
    let mut last: Option<(&Point, Measured)> = None;
    for point in points {
        let Point { what, published, unit, .. } = *point;
        let device = if point.steady { &overwritten } else { &filled };
        let measured = match last {
            Some((before, measured)) if point.same_run(before) => measured,
            _ => run_beside(&point.jobs(), device)[0],
        };
        last = Some((point, measured));
        let model = (point.figure)(&measured);
        let given = published.map_or("-".into(), |published| format!("{published} {unit}"));
        let begin = format!("| {what} | {given} | ");
        println!("{begin}{}", compared(published, model, unit));
        if let Some(published) = published {
            let far = permille(model, published).abs() > TOLERANCE;
            assert_eq!(far, point.far, "{preset}: {what}: {model} for {published} {unit}");
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

/// The commits per second of a process that repeatedly writes 4 KiB and flushes, and the reads per second of a
/// concurrent process at depth 1 if `reads`. Takes 2 s of virtual time.
fn commits(text: &str, reads: bool) -> (u64, u64) {
    let mut rig = common::rig(&device("flash", &format!("submit_queues=1,{text}")));
    let (mut rng, end) = (Rng::new(1), Instant::from_nanos(2_000_000_000));
    let mut place = || rng.below(1 << 18) * 8;
    let (mut counts, mut under_way) = ([0, 0], [None; 2]);
    let mut is_flush = true;
    while rig.now < end {
        for (of, cookie) in under_way.iter_mut().enumerate() {
            let is_over = cookie.is_none_or(|it| rig.ended.iter().any(|done| done.cookie == it));
            if !is_over || of == 1 && !reads {
                continue;
            }
            if of == 0 {
                is_flush = !is_flush;
            }
            let (op, sector, sectors) = match (of, is_flush) {
                (0, true) => (Op::Flush, 0, 0),
                (0, false) => (Op::Write, place(), 8),
                _ => (Op::Read, place(), 8),
            };
            counts[of] += u64::from(cookie.is_some() && (of == 1 || !is_flush));
            *cookie = Some(rig.push(0, op, sector, sectors).expect("there is credit"));
        }
        rig.ended.clear();
        rig.settle();
        if rig.ended.is_empty() {
            rig.now = rig.now.max(rig.next_deadline().expect("something will end"));
            rig.poll();
        }
    }
    (counts[0] / 2, counts[1] / 2)
}

/// Checks a row of the page about measurements of drives that need not be the modelled ones.
fn beside(what: &str, measured: &str, about: u64, model: u64) {
    row_in("per second", what, measured, about, model);
}

fn row_in(unit: &str, what: &str, measured: &str, about: u64, model: u64) {
    let row = format!("| {what} | {measured} | {}", compared(Some(about), model, unit));
    println!("{row}");
    let page = registry::page("flash").expect("it is registered");
    assert!(page.contains(&row), "the page should say: {row}");
}

#[test]
fn flushes_are_compared_with_measured_drives() {
    let tables = "preset=sata,flush_ns=3200000";
    for (name, text) in [("`sata`", "preset=sata"), ("`sata`, `flush_ns=3200000`", tables)] {
        let commits_alone = commits(text, false).0;
        let (_, reads) = commits(text, true);
        beside(&format!("{name}: commits; 870 EVO"), "248 to 311", 280, commits_alone);
        beside(&format!("{name}: reads beside commits; 850 EVO"), "612", 612, reads);
    }
    beside("`sata-dc`: commits; PM883", "15500", 15_500, commits("preset=sata-dc", false).0);
    beside("`nvme-tlc`: commits; 7300 PRO", "29400", 29_400, commits("preset=nvme-tlc", false).0);
}

/// The time in milliseconds of discards of 4 GB in total, 4 MiB each, with a full queue.
fn discarded(text: &str) -> u64 {
    const EACH: u32 = 8192;
    let mut rig = common::rig(&device("flash", &format!("preset=sata,{text}")));
    for nth in 0..4_000_000_000 / 512 / u64::from(EACH) {
        while rig.in_flight() == 32 {
            rig.now = rig.now.max(rig.next_deadline().expect("something will end"));
            rig.poll();
        }
        rig.push(0, Op::Discard, nth * u64::from(EACH), EACH).expect("there is credit");
        rig.settle();
    }
    rig.finish();
    (rig.now - Instant::ZERO).0 / 1_000_000
}

#[test]
fn discards_and_steady_writes_are_compared_with_other_drives() {
    for (name, text) in
        [("`sata`", "discard_mbps=0"), ("`sata`, `discard_mbps=4000`", "discard_mbps=4000")]
    {
        let what = format!("{name}: discards of 4 GB; RC100, 240 GB");
        row_in("ms", &what, "1000", 1000, discarded(text));
    }
    for (name, text) in [
        ("`sata`, `preconditioned=2`", ""),
        ("`sata`, `preconditioned=2`, `program_ns=2200000`", ",program_ns=2200000"),
    ] {
        let device = device("flash", &format!("preset=sata,preconditioned=2{text}"));
        let iops = Job::random(0, 32, LONG).run(&device).iops;
        beside(&format!("{name}: random writes; 850 EVO, 2 TB"), "10000", 10_000, iops);
    }
}

/// The rate of sequential writes in the last tenth of 16 GiB, in percent of that in the first tenth.
fn kept(text: &str) -> u64 {
    let mut rig =
        common::rig(&device("flash", &format!("preset=nvme-client,submit_queues=1,{text}")));
    let (count, sectors) = (131_072, 256);
    let mut marks = Vec::new();
    for nth in 0..count {
        while rig.in_flight() == 128 {
            rig.now = rig.now.max(rig.next_deadline().expect("something will end"));
            rig.poll();
        }
        if nth % (count / 10) == 0 {
            marks.push(rig.now);
        }
        rig.push(0, Op::Write, nth % 65_536 * sectors, sectors as u32).expect("there is credit");
        rig.settle();
        rig.ended.clear();
    }
    let spans = Vec::from_iter(marks.windows(2).map(|two| (two[1] - two[0]).0));
    spans[0] * 100 / spans[spans.len() - 1]
}

#[test]
fn a_buffer_is_what_the_model_has_of_an_slc_cache() {
    let cache = "buffer_kib=4194304,buffer_mbps=3200";
    let with = format!("`nvme-client`, `{}`", cache.replace(',', "`, `"));
    for (name, text) in [("`nvme-client`", "buffer_mbps=0"), (with.as_str(), cache)] {
        let what = format!("{name}: the rate of long writes, of that at first; 980 PRO");
        row_in("%", &what, "62", 62, kept(text));
    }
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

/// A job of writes that outlasts the concurrent job, with `depth` in flight and at most `per_second` per second.
fn background(depth: u32, per_second: u64) -> Job {
    let every = Nanos(1_000_000_000_u64.checked_div(per_second).unwrap_or(0));
    Job { every, ..Job::random(0, depth, u64::MAX) }
}

#[test]
fn nvme_client_is_a_samsung_980_pro() {
    let read = |what, depth, published| Point::new(what, published, reads(depth)).steady();
    let mix = |what, published, job, other| Point::new(what, published, job).steady().beside(other);
    let (one, many) = (Job::random(100, 1, 30_000), Job::random(100, 256, LONG));
    let (slow, medium, fast) =
        (background(1, 0), background(256, 104_645), background(256, 149_566));
    check(
        "nvme-client",
        &[
            read("random read, depth 1, steady", 1, 14_483),
            read("random read, depth 2, steady", 2, 29_295),
            read("random read, depth 4, steady", 4, 58_102),
            read("random read, depth 8, steady", 8, 113_033),
            read("random read, depth 16, steady", 16, 208_335),
            read("random read, depth 32, steady", 32, 343_263),
            Point::mbps("sequential read", 7_000, Job::sequential(100, 128, 10_000)),
            Point::mbps("sequential write", 1_900, Job::sequential(0, 128, 20_000)),
            Point::new("random write, depth 1", 60_000, writes(1)),
            // Enough writes for garbage collection to reach its steady rate.
            Point::unpublished("random write, depth 256, steady", Job::random(0, 256, 2_000_000)),
            mix("reads of depth 1 beside writes of depth 1", 3_320, one, slow),
            mix("p99 of these reads, depth 1", 1_610, one, slow).p99(),
            mix("reads of depth 1 beside 104645 writes/s", 2_106, one, medium),
            mix("p99 of these reads, 104645 writes/s", 2_830, one, medium).p99(),
            mix("reads of depth 1 beside 149566 writes/s", 1_549, one, fast),
            mix("p99 of these reads, 149566 writes/s", 3_000, one, fast).p99(),
            mix("reads of depth 256 beside writes of depth 1", 274_000, many, slow).far(),
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
