//! The disk device, compared with the published figures of the modelled drives. Each row of the tables on its page
//! (`doc/disk.md`) is measured here, and the page must agree.

use crate::common;

use blkmq_core::{Nanos, Op, Rng};
use blkmq_device::Activity;
use blkmq_device::contract::Rig;
use blkmq_engine::{Config, NoMerges};
use blkmq_sched::{Factory, deadline, none};
use common::{described, device};

/// The number of sectors in 32 GiB.
const GIB_32: u64 = 1 << 26;

/// A queue around a disk without merging, so that every I/O is a request.
fn rig_under(scheduler: &'static Factory, text: &str) -> Rig {
    let device = device("disk", text);
    let config = Config { nomerges: NoMerges::None, depth: 4096, ..device.config() };
    Rig::new(Config { nr_requests: Some(128), ..config }.scheduler(scheduler))
}

fn rig(text: &str) -> Rig {
    rig_under(&none::FACTORY, text)
}

/// Keeps `depth` I/Os in flight until `count` have ended. Returns how long that took.
fn closed_loop(
    rig: &mut Rig,
    depth: usize,
    count: u64,
    mut next: impl FnMut(u64) -> (Op, u64, u32),
) -> Nanos {
    let (begin, done) = (rig.now, rig.ended.len() as u64 + count);
    let mut pushed = 0;
    while (rig.ended.len() as u64) < done {
        while rig.in_flight() < depth && pushed < count {
            let (op, sector, sectors) = next(pushed);
            rig.push(0, op, sector, sectors).expect("there is credit");
            pushed += 1;
        }
        rig.settle();
        if rig.in_flight() > 0 && (rig.in_flight() == depth || pushed == count) {
            rig.now = rig.now.max(rig.next_deadline().expect("something will end"));
            rig.poll();
        }
    }
    rig.now - begin
}

/// Returns the rate of 4 KiB I/Os per second at random offsets below sector `end`.
fn random(mut rig: Rig, op: Op, depth: usize, end: u64) -> f64 {
    let (mut rng, count) = (Rng::new(1), 5000);
    let took = closed_loop(&mut rig, depth, count, |_| (op, rng.below(end / 8) * 8, 8));
    count as f64 * 1e9 / took.0 as f64
}

/// Returns the rate in 10^6 bytes per second of sequential I/Os of 64 KiB from `sector` on, one at a time.
fn stream(mut rig: Rig, op: Op, sector: u64) -> f64 {
    let count = 2000;
    let took = closed_loop(&mut rig, 1, count, |n| (op, sector + n * 128, 128));
    (count * 65_536) as f64 * 1e3 / took.0 as f64
}

/// Checks a row of the page's table: the published figure, the model's figure, and the deviation, at most 10 %.
fn check(what: &str, published: f64, model: f64) {
    let deviation = beside(what, published, model);
    assert!(deviation.abs() <= 10.0, "{what}: {deviation:+.1} %");
}

/// Checks a row of the page's table about a drive other than the modelled one. Returns the deviation in percent.
fn beside(what: &str, published: f64, model: f64) -> f64 {
    let deviation = (model / published - 1.0) * 100.0;
    let row = format!("| {what} | {published:.1} | {model:.1} | {deviation:+.1} % |");
    println!("{row}");
    let page = include_str!("../doc/disk.md");
    assert!(page.contains(&row), "the page should say: {row}");
    deviation
}

/// Returns the average time in ms of a flush after `writes` random writes of 4 KiB.
fn flushed(writes: usize) -> f64 {
    let (mut rig, mut rng) = (rig(""), Rng::new(1));
    let mut flushes = 0;
    const ROUNDS: u64 = 50;
    for _ in 0..ROUNDS {
        closed_loop(&mut rig, 1, writes as u64, |_| (Op::Write, rng.below(976_773_168 / 8) * 8, 8));
        flushes += closed_loop(&mut rig, 1, 1, |_| (Op::Flush, 0, 0)).0;
    }
    flushes as f64 / 1e6 / ROUNDS as f64
}

/// A Seagate BarraCuda of 2016, as measured by ublk-disksim: the page says how well the model of a drive of 2005 fits a
/// later one.
#[test]
fn the_deskstar_is_compared_with_a_later_drive() {
    let sectors = 976_773_168;
    let reads = |depth| random(rig(""), Op::Read, depth, sectors);
    beside("random 4 KiB reads, depth 1, per second", 1000.0 / 17.5, reads(1));
    beside("random 4 KiB reads, depth 32, per second", 94.0, reads(32));
    beside(
        "random 4 KiB writes, cached, per second",
        124.0,
        random(rig(""), Op::Write, 1, sectors),
    );
    beside("sequential read, outermost zone, MB/s", 143.0, stream(rig(""), Op::Read, 0));
    beside("sequential write, outermost zone, MB/s", 132.0, stream(rig(""), Op::Write, 0));
    beside("flush behind 8 scattered writes, ms", 127.0, flushed(8));
    beside("flush behind 64 scattered writes, ms", 630.0, flushed(64));
}

/// Figures of later drives that are parameters of the model: track lengths, seek times, the interface and the cache.
#[test]
fn parameters_bring_the_deskstar_nearer_to_later_drives() {
    let text = "outer_sectors=2750,inner_sectors=1320,link_mbps=550,cache_size=64,\
                seek_average_nsec=13000000,seek_full_nsec=22000000";
    beside("BarraCuda: sequential read, MB/s", 143.0, stream(rig(text), Op::Read, 0));
    let reads = |depth| random(rig(text), Op::Read, depth, 976_773_168);
    beside("BarraCuda: random 4 KiB reads, depth 1", 1000.0 / 17.5, reads(1));
    beside("BarraCuda: random 4 KiB reads, depth 32", 94.0, reads(32));
    beside("Exos X20: sequential read, MB/s", 285.0, stream(rig(""), Op::Read, 0));
    let text = "outer_sectors=5500,inner_sectors=2640,link_mbps=550,cache_size=256,gb=16384";
    beside("Exos X20: with its parameters", 285.0, stream(rig(text), Op::Read, 0));
}

#[test]
fn the_deskstar_does_what_is_published_of_it() {
    let sectors = 976_773_168;
    check("sequential read, outermost zone, MB/s", 64.8, stream(rig(""), Op::Read, 0));
    let inner = stream(rig(""), Op::Read, sectors - 300_000);
    check("sequential read, innermost zone, MB/s", 31.0, inner);
    let read = |text: &str, depth, end| random(rig(text), Op::Read, depth, end);
    check("random 4 KiB reads, depth 1, per second", 4096.0 / 55.5, read("", 1, sectors));
    let within = "within the first 32 GiB, ";
    let published = |kib_per_second: f64| kib_per_second / 4.0;
    check(&format!("{within}depth 1"), published(489.0), read("", 1, GIB_32));
    let elevator = rig_under(&deadline::FACTORY, "hw_queue_depth=1");
    let sorted = random(elevator, Op::Read, 48, GIB_32);
    check(&format!("{within}48 in an elevator, drive at depth 1"), published(650.0), sorted);
    check(&format!("{within}depth 32"), published(942.0), read("", 32, GIB_32));
    // No figure is published for this row.
    let anywhere = format!("{:.1} reads per second", read("", 32, sectors));
    let page = Vec::from_iter(include_str!("../doc/disk.md").split_whitespace()).join(" ");
    assert!(page.contains(&anywhere), "the page should say: {anywhere}");
    let written = random(rig("cache_size=0"), Op::Write, 1, sectors);
    let derived = 1000.0 / (9.5 + 60_000.0 / 7200.0 / 2.0);
    check("random 4 KiB writes, no cache, depth 1", derived, written);
}

#[test]
fn the_cheetah_does_what_is_published_of_it() {
    let (sas, sectors) = ("preset=sas15k", 879_097_968);
    check("sequential read, outermost zone, MB/s", 204.0, stream(rig(sas), Op::Read, 0));
    let inner = stream(rig(sas), Op::Read, sectors - 300_000);
    check("sequential read, innermost zone, MB/s", 122.0, inner);
    let derived = |seek: f64| 1000.0 / (seek + 60_000.0 / 15_000.0 / 2.0);
    let read = |depth| random(rig(sas), Op::Read, depth, sectors);
    check("random 4 KiB reads, depth 1, per second", derived(3.4), read(1));
    check("random 4 KiB reads, depth 32, per second", 4850.0 / 12.0, read(32));
    let written = random(rig(sas), Op::Write, 1, sectors);
    check("random 4 KiB writes, no cache, depth 1", derived(3.9), written);
}

/// The factor comes from Axboe's measurement: 942 KiB/s instead of 489 KiB/s.
#[test]
fn reordering_beats_first_come_first_served_as_it_does_in_the_drive() {
    let factor = |text: &str, end| {
        let [reordered, fifo] =
            ["", ",reorder=0"].map(|more| random(rig(&format!("{text}{more}")), Op::Read, 32, end));
        reordered / fifo
    };
    let near = factor("preset=sata7200", GIB_32);
    assert!((1.92 * 0.9..1.92 * 1.1).contains(&near), "{near:.2}");
    let anywhere = factor("preset=sas15k", 879_097_968);
    assert!(
        (2.0..2.4).contains(&anywhere),
        "twice and more, as published of such drives: {anywhere:.2}"
    );
}

#[test]
fn a_write_is_as_fast_as_a_cache_lets_it_be() {
    let [cached, through] = ["", "cache_size=0"].map(|text| stream(rig(text), Op::Write, 0));
    assert!(
        (60.0..72.0).contains(&cached),
        "the medium's rate, once the cache is half full: {cached:.1}"
    );
    // Each write arrives just too late for the sectors after the previous write.
    let revolution = 65_536.0 / 8.33e3;
    assert!((0.8 * revolution..revolution).contains(&through), "{through:.1}");
}

#[test]
fn it_is_a_disk_to_whoever_asks() {
    let device = device("disk", "");
    assert!(
        device.shape.limits.rotational && device.memory().is_none() && device.occupancy.is_none()
    );
    assert_eq!((device.shape.hw_queues, device.default_scheduler()), (1, "mq-deadline"));
}

#[test]
fn what_the_arm_does_is_on_record_also_behind_faults() {
    let device = described("faults,late=0.5:disk,cache_size=0,occupancy=1,log=1");
    let mut rig = Rig::new(device.config());
    rig.submit(Op::Read, 0, 8);
    rig.finish();
    rig.submit(Op::Write, 500_000_000, 8);
    rig.finish();
    let log = device.occupancy.expect("it was asked for");
    let spans = log.spans();
    let seen = spans.iter().map(|span| span.activity).collect::<Vec<_>>();
    let [moved, read] = [Activity::Position, Activity::Read];
    assert_eq!(seen, [moved, read, Activity::Housekeeping, moved, Activity::Write]);
    assert_eq!(spans[0].place, 0);
    assert!(spans[4].place > 40_000, "half of it is on the outer four tenths");
    assert!(spans.is_sorted_by(|a, b| a.end <= b.start));
    assert_eq!(device.log.expect("it was asked for").taken().len(), 2);
}
