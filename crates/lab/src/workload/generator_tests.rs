//! Streams are reproducible, cover all blocks where promised, and keep the requested ratios; and so do their bytes and
//! priorities.

use super::*;
use crate::workload::verify::{Method, Pattern, Verify};
use crate::workload::{Amount, BlockSize, CmdPrio, Distribution, PerDirection, ThinkTime, Zones};
use blkmq_core::{Class, Nanos};
use std::collections::{BTreeMap, BTreeSet};

const MIB: u64 = 1 << 20;

fn random(rw: Rw) -> Job {
    Job { rw, size: Some(Amount::Bytes(4 * MIB)), ..Job::default() }
}

fn stream(job: &Job, thread: u32) -> Generator {
    Generator::new(job, thread, 64 * MIB).expect("the job fits")
}

#[test]
fn a_stream_depends_on_seed_job_and_thread_only() {
    let job = Job { norandommap: true, ..random(Rw::RandRw) };
    let first = |job: &Job, thread| Vec::from_iter(stream(job, thread).take(50));
    assert_eq!(first(&job, 1), first(&job, 1));
    assert_ne!(first(&job, 1), first(&job, 2));
    assert_ne!(first(&job, 1), first(&Job { index: 1, ..job.clone() }, 1));
    assert_ne!(first(&job, 1), first(&Job { randseed: 1, ..job.clone() }, 1));
    let irrelevant = Job {
        name: "other".into(),
        thinktime: Some(ThinkTime { pause: Nanos(1), blocks: 1 }),
        ..job.clone()
    };
    assert_eq!(first(&job, 1), first(&irrelevant, 1));
}

#[test]
fn a_random_pass_visits_each_block_exactly_once_and_so_does_the_next() {
    let job = Job { loops: 2, ..random(Rw::RandRead) };
    let sectors = Vec::from_iter(stream(&job, 0).map(|io| io.sector));
    assert_eq!(sectors.len(), 2048);
    let (first, second) = sectors.split_at(1024);
    let all = BTreeSet::from_iter((0..1024).map(|block| block * 8));
    assert_eq!(BTreeSet::from_iter(first.iter().copied()), all);
    assert_eq!(BTreeSet::from_iter(second.iter().copied()), all);
    assert_ne!(first, second);
}

/// The lengths of the map's blocks, and the number of times that each block was touched.
fn touched(ios: &[NextIo], sectors: usize) -> Vec<u32> {
    let mut count = vec![0; sectors];
    for io in ios {
        count[io.sector as usize..][..io.sectors as usize].iter_mut().for_each(|n| *n += 1);
    }
    count
}

/// With several lengths the map had no effect: `randread` of 16 MiB in `4k/50:64k/50` issued 475 I/Os, and a third of
/// the blocks was never read. fio 3.33 issues 876, and reads each block once.
#[test]
fn a_random_pass_covers_each_block_once_whatever_the_sizes() {
    let split = PerDirection::all(BlockSize::Split(vec![(4096, 50), (65536, 50)]));
    let range = |min, max| PerDirection::all(BlockSize::Range { min, max });
    let mixed =
        PerDirection::new(BlockSize::Fixed(8192), BlockSize::Fixed(12288), BlockSize::Fixed(512));
    for (rw, bs, least, most) in [
        (Rw::RandRead, split, 690, 940),
        (Rw::RandWrite, range(4096, 65536), 650, 760),
        (Rw::RandRw, range(4096, 30720), 0, 1700),
        (Rw::RandRead, range(512, 1 << 20), 40, 90),
        (Rw::RandRw, mixed, 0, 4096),
    ] {
        let job = Job { rw, bs, loops: 2, size: Some(Amount::Bytes(16 * MIB)), ..Job::default() };
        let ios = Vec::from_iter(stream(&job, 0));
        assert!(touched(&ios, 32768).iter().all(|count| *count == 2), "{rw} {:?}", job.bs);
        let ios = Vec::from_iter(stream(&Job { loops: 1, ..job }, 0));
        assert!(touched(&ios, 32768).iter().all(|count| *count == 1), "{rw}");
        assert!((least..=most).contains(&ios.len()), "{rw}: {} I/Os", ios.len());
        assert!(ios.iter().any(|io| io.sectors > 8), "{rw}");
    }
}

#[test]
fn a_map_with_too_many_blocks_is_refused() {
    let job = Job {
        bs: PerDirection::all(BlockSize::Range { min: 512, max: 4096 }),
        ..random(Rw::RandRead)
    };
    let job = Job { size: Some(Amount::Bytes(1 << 44)), ..job };
    let error = Generator::new(&job, 0, 1 << 45).expect_err("four terabits").to_string();
    assert!(error.contains("17179869184") && error.contains("norandommap"), "{error}");
    assert!(Generator::new(&Job { norandommap: true, ..job }, 0, 1 << 45).is_ok());
}

#[test]
fn a_longer_block_that_does_not_fit_becomes_the_smallest() {
    let bs = PerDirection::all(BlockSize::Split(vec![(4096, 1), (61440, 99)]));
    let job = Job { rw: Rw::Read, bs, size: Some(Amount::Bytes(100 * 1024)), ..Job::default() };
    let lengths = Vec::from_iter(stream(&job, 0).map(|io| io.sectors / 2));
    // As fio 3.33.
    assert_eq!(lengths, [60, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]);
}

#[test]
fn runs_begin_at_random_places_and_count_over_both_directions() {
    let job = Job { run: 8, ..random(Rw::RandRead) };
    let ios = Vec::from_iter(stream(&job, 0));
    assert_eq!(ios.len(), 1024, "as fio: the size, whatever is touched twice");
    let jumps = ios.windows(2).filter(|pair| pair[1].sector != pair[0].sector + 8).count();
    assert!((120..=130).contains(&jumps), "{jumps} jumps between 128 runs");
    let runs =
        ios.chunks(8).filter(|run| run.windows(2).all(|two| two[1].sector == two[0].sector + 8));
    assert!(runs.count() > 120, "but for the end of the region");
    let mixed = Vec::from_iter(stream(&Job { run: 4, ..random(Rw::RandRw) }, 0));
    // In a mix, the first I/O of every four is random; the other three continue the sequence of their direction.
    let mut cursors = [0, 0];
    for (at, io) in mixed.iter().enumerate() {
        let cursor = &mut cursors[usize::from(io.op == Op::Write)];
        assert!(at % 4 == 0 || io.sector == *cursor || *cursor == 8192, "{at}: {io:?}");
        *cursor = io.sector + 8;
    }
}

/// Counts and offsets of fio 3.33 for a MiB in blocks of 4 KiB.
#[test]
fn holes_are_left_out_between_sequential_ios() {
    let places = |job: &Job, end| {
        let ios = Generator::new(job, 0, end).expect("the job fits");
        Vec::from_iter(ios.map(|io| io.sector / 2))
    };
    let kib = |job: &Job| places(job, MIB);
    let hole = |rw, kib: i64| Job {
        rw,
        hole: kib * 1024,
        size: Some(Amount::Bytes(MIB)),
        ..Job::default()
    };
    for (kilobytes, count, distinct, first) in [
        (4, 256, 128, [0, 8, 16]),
        (8, 86, 86, [0, 12, 24]),
        (3, 146, 146, [0, 7, 14]),
        (2, 171, 171, [0, 6, 12]),
        (-8, 256, 255, [0, 1016, 1012]),
        (-12, 256, 128, [0, 1012, 1004]),
        (-6, 256, 256, [0, 1018, 1016]),
    ] {
        let seen = kib(&hole(Rw::Read, kilobytes));
        assert_eq!((seen.len(), &seen[..3]), (count, &first[..]), "{kilobytes}");
        assert_eq!(BTreeSet::from_iter(&seen).len(), distinct, "{kilobytes}");
    }
    let twice = Job { loops: 2, ..hole(Rw::Write, 8) };
    assert_eq!(kib(&twice).len(), 172);
    let longer = Job { io_size: Some(Amount::Bytes(2 * MIB)), ..hole(Rw::Write, 8) };
    assert_eq!(kib(&longer).len(), 512, "more than the size goes on at the start");
    // Without reaching the end of a longer file, the pass ends at the size.
    assert_eq!(places(&hole(Rw::Read, 4), 2 * MIB).len(), 128);
    assert_eq!(places(&hole(Rw::Read, -8), 2 * MIB), kib(&hole(Rw::Read, -8)));
    let behind = Job { offset: Amount::Bytes(256 * 1024), ..hole(Rw::Read, 4) };
    assert_eq!(places(&behind, 2 * MIB)[..3], [256, 264, 272]);
    assert_eq!(places(&behind, 1280 * 1024).len(), 128);
    let back = Job { hole: -8 * 1024, ..behind };
    assert_eq!(places(&back, 1280 * 1024)[..3], [1016, 1012, 1008]);
    let endless = Job { time_based: true, runtime: Some(Nanos(1)), ..hole(Rw::Write, 8) };
    assert_eq!(stream(&endless, 0).take(1_000).count(), 1_000);
    assert!((140..=172).contains(&kib(&hole(Rw::ReadWrite, 8)).len()));
}

#[test]
fn holes_that_cannot_be_are_refused() {
    let error = |job: Job| job.validate().expect_err("impossible").to_string();
    assert!(error(Job { hole: 1, ..random(Rw::Read) }).contains("multiples of 512"));
    assert!(error(Job { hole: 512, ..random(Rw::RandRead) }).contains("between sequential"));
}

#[test]
fn zones_get_their_shares_of_ios() {
    let zones = Zones::Percent(vec![(60, 10), (30, 20), (10, 30)]);
    let job = Job { random_distribution: Distribution::Zoned(zones), ..random(Rw::RandRead) };
    let job = Job { io_size: Some(Amount::Bytes(200 * MIB)), ..job };
    let sectors = Vec::from_iter(stream(&job, 0).map(|io| io.sector));
    let share = |range: std::ops::Range<u64>| {
        sectors.iter().filter(|sector| range.contains(sector)).count() * 1000 / sectors.len()
    };
    // 1024 blocks: zones end at blocks 102, 307 and 614.
    let shares = [share(0..816), share(816..2456), share(2456..4912), share(4912..8192)];
    for (seen, expected) in shares.into_iter().zip([600usize, 300, 100, 0]) {
        assert!(seen.abs_diff(expected) < 12, "{shares:?}");
    }
    let zones = Zones::Bytes(vec![(60, MIB), (40, 4 * MIB)]);
    let job = Job { random_distribution: Distribution::Zoned(zones), ..job };
    let error = Generator::new(&job, 0, 64 * MIB).expect_err("5 of 4 MiB").to_string();
    assert!(error.contains("zones end at 5242880"), "{error}");
}

#[test]
fn priorities_do_not_change_the_places() {
    let high = IoPrio::new(Class::Realtime, 0).expect("a level");
    let plain = random(Rw::RandRead);
    let job = Job { cmdprio: PerDirection::all(CmdPrio::Percentage(30, high)), ..plain.clone() };
    let sectors = |job: &Job| Vec::from_iter(stream(job, 0).map(|io| io.sector));
    assert_eq!(sectors(&plain), sectors(&job));
    let count = stream(&job, 0).filter(|io| io.prio == high).count();
    assert!(count.abs_diff(307) < 50, "{count} of 1024");
    let other = stream(&job, 1).map(|io| io.prio);
    assert!(!stream(&job, 0).map(|io| io.prio).eq(other), "threads draw of their own");
}

#[test]
fn reads_and_writes_of_a_mix_share_the_turns() {
    let ios = Vec::from_iter(stream(&random(Rw::RandRw), 0));
    assert_eq!(ios.len(), 1024);
    assert_eq!(BTreeSet::from_iter(ios.iter().map(|io| io.sector)).len(), 1024);
}

#[test]
fn without_a_map_blocks_repeat() {
    let job = Job { norandommap: true, ..random(Rw::RandRead) };
    let seen = BTreeSet::from_iter(stream(&job, 0).map(|io| io.sector)).len();
    // As many draws as there are blocks hit 1 - 1/e of the blocks.
    assert!((600..700).contains(&seen), "{seen}");
}

#[test]
fn a_mix_keeps_its_ratio() {
    let job = Job { rwmixread: 30, norandommap: true, time_based: true, ..random(Rw::RandRw) };
    let job = Job { runtime: Some(Nanos::from_secs(1)), ..job };
    let reads = stream(&job, 0).take(100_000).filter(|io| io.op == Op::Read).count();
    assert!(reads.abs_diff(30_000) < 600, "{reads}");
    for (percent, op) in [(100, Op::Read), (0, Op::Write)] {
        let job = Job { rwmixread: percent, ..job.clone() };
        assert!(stream(&job, 0).take(1_000).all(|io| io.op == op));
    }
}

#[test]
fn sequential_streams_are_contiguous_per_direction_and_wrap() {
    let job = Job {
        rw: Rw::ReadWrite,
        offset: Amount::Bytes(MIB),
        size: Some(Amount::Bytes(64 * 1024)),
        io_size: Some(Amount::Bytes(1024 * 1024)),
        ..Job::default()
    };
    let (mut next, mut done) = ([2048; 2], 0);
    for io in stream(&job, 0) {
        let at = &mut next[usize::from(io.op == Op::Write)];
        assert_eq!(io.sector, *at);
        *at = io.sector + 8;
        done += u64::from(io.sectors);
        if done.is_multiple_of(128) {
            // As in fio, both restart with a pass.
            next = [2048; 2];
        }
    }
    assert_eq!(done, 2048);
}

#[test]
fn a_time_based_stream_does_not_end() {
    let job = Job { time_based: true, runtime: Some(Nanos::from_secs(1)), ..Job::default() };
    let io_size = Some(Amount::Bytes(12288));
    let job = Job { size: Some(Amount::Bytes(8192)), io_size, ..job };
    let sectors = Vec::from_iter(stream(&job, 0).take(6).map(|io| io.sector));
    assert_eq!(sectors, [0, 8, 0, 8, 0, 8], "the amount ends no pass, as with fio");
}

/// The blocks of 16 KiB of a job on a device of 64 KiB.
fn blocks(job: &Job) -> Vec<u64> {
    let bs = PerDirection::all(BlockSize::Fixed(16 * 1024));
    let job = Job { bs, size: Some(Amount::Bytes(64 * 1024)), ..job.clone() };
    let ios = Generator::new(&job, 0, 64 * 1024).expect("the job fits");
    ios.map(|io| io.sector / 32).collect()
}

/// fio 3.33 issues these I/Os. A second pass that started anew read the first part of the region again, from a cache.
#[test]
fn loops_go_on_where_io_size_or_number_ios_ended_a_pass() {
    let amount = |kib: u64, loops| Job {
        rw: Rw::Read,
        io_size: Some(Amount::Bytes(kib * 1024)),
        loops,
        ..Job::default()
    };
    assert_eq!(blocks(&amount(32, 3)), [0, 1, 2, 3, 0, 1]);
    assert_eq!(blocks(&amount(20, 3)), [0, 1, 2, 3], "60 KiB");
    assert_eq!(blocks(&amount(100, 1)).len(), 7);
    assert_eq!(blocks(&amount(100, 2)).len(), 8, "two passes are more than 100 KiB");
    assert_eq!(blocks(&amount(200, 2)).len(), 12, "the rest of 200 KiB is no block");
    assert_eq!(blocks(&amount(208, 2)).len(), 16, "an added pass is a whole one");
    let holes = Job { hole: 16 * 1024, ..amount(48, 2) };
    assert_eq!(blocks(&holes), [0, 2, 0, 2, 0, 2]);
    let random = blocks(&Job { rw: Rw::RandRead, ..amount(32, 4) });
    let half = |half: &[u64]| half.iter().copied().collect::<BTreeSet<_>>();
    assert_eq!((half(&random[..4]).len(), half(&random[4..]).len()), (4, 4), "{random:?}");

    let ios = |count, loops| Job { rw: Rw::Read, number_ios: Some(count), loops, ..Job::default() };
    assert_eq!(blocks(&ios(2, 3)), [0, 1, 2, 3, 0, 1]);
    assert_eq!(blocks(&ios(6, 2)), [0, 1, 2, 3, 0, 1, 2, 3]);
}

#[test]
fn passes_end_where_io_size_and_number_ios_say() {
    let count = |job: Job| stream(&job, 0).count();
    assert_eq!(count(Job { io_size: Some(Amount::Bytes(10 * 1024)), ..random(Rw::Read) }), 3);
    assert_eq!(count(Job { number_ios: Some(7), loops: 2, ..random(Rw::Read) }), 14);
    assert_eq!(count(Job { number_ios: Some(0), ..random(Rw::Read) }), 0);
}

/// fio 3.33 does as many.
#[test]
fn a_job_that_trims_and_writes_has_whole_passes() {
    let kib = |kib: u64| Some(Amount::Bytes(kib * 1024));
    for rw in [Rw::TrimWrite, Rw::RandTrimWrite] {
        let trims = |io_size: Option<Amount>, loops| {
            let job = Job { size: kib(256), io_size, loops, ..random(rw) };
            stream(&job, 0).filter(|io| io.op == Op::Discard).count()
        };
        let rows = [(100, 1, 25), (100, 3, 75), (300, 2, 128), (512, 1, 64), (516, 1, 128)];
        for (io_size, loops, count) in rows {
            assert_eq!(
                trims(kib(io_size), loops),
                count,
                "{rw:?} io_size={io_size}k loops={loops}"
            );
        }
        assert_eq!((trims(kib(1200), 3), trims(kib(1024), 5), trims(None, 2)), (192, 320, 128));
        let counted = |number_ios, io_size, loops| {
            let job = Job { size: kib(256), number_ios: Some(number_ios), io_size, ..random(rw) };
            stream(&Job { loops, ..job }, 0).filter(|io| io.op == Op::Discard).count()
        };
        for (ios, loops, count) in [(20, 1, 20), (20, 2, 80), (7, 5, 175), (100, 2, 128)] {
            assert_eq!(counted(ios, None, loops), count, "number_ios={ios} loops={loops}");
        }
        assert_eq!(counted(100, kib(1024), 1), 128);
        // After the last of a limited number of I/Os, no pass is added for an `io_size`.
        for (ios, io_size, loops, count) in [(1, 64, 1, 1), (1, 64, 2, 4), (40, 512, 1, 40)] {
            assert_eq!(counted(ios, kib(io_size), loops), count, "{ios} of {io_size}k");
        }
    }
    let runtime = Some(Nanos::from_secs(1));
    let timed = Job { time_based: true, runtime, number_ios: Some(20), ..random(Rw::TrimWrite) };
    assert_eq!(stream(&timed, 0).take(1_000).filter(|io| io.op == Op::Discard).count(), 20);
    // A pass that `io_size` ends continues in the next one.
    let job = Job { size: kib(512), io_size: kib(300), loops: 3, ..random(Rw::TrimWrite) };
    let trims = Vec::from_iter(stream(&job, 0).filter(|io| io.op == Op::Discard));
    assert_eq!((trims.len(), trims[75].sector, trims[128].sector), (225, 75 * 8, 0));
    let job = || Job { size: kib(128), io_size: kib(3072), ..random(Rw::RandTrimWrite) };
    let zipf = Distribution::Zipf(1.2, None);
    for (job, count) in [
        (job(), 384),
        (Job { norandommap: true, ..job() }, 768),
        (Job { percentage_random: PerDirection::all(0), ..job() }, 768),
        (Job { random_distribution: zipf, ..job() }, 768),
    ] {
        assert_eq!(stream(&job, 0).filter(|io| io.op == Op::Discard).count(), count);
    }
}

/// fio 3.33 does as many.
#[test]
fn a_job_that_reads_in_order_to_check_has_one_pass_and_one_that_writes_has_all() {
    let size = Some(Amount::Bytes(256 * 1024));
    let checks = |rw, do_verify| {
        let verify = Some(Verify { do_verify, ..Verify::new(Method::Crc32c) });
        Job { size, verify, ..random(rw) }
    };
    let count = |job: Job| stream(&job, 0).count();
    let most = Some(Amount::Bytes(3 * MIB));
    let part = Some(Amount::Bytes(100 * 1024));
    for rw in [Rw::Read, Rw::RandRead, Rw::Write, Rw::RandWrite] {
        let writes = matches!(rw, Rw::Write | Rw::RandWrite);
        let job = || checks(rw, !writes);
        let of = |read, written| if writes { written } else { read };
        assert_eq!(count(Job { io_size: most, ..job() }), of(64, 768));
        assert_eq!(count(Job { loops: 2, ..job() }), of(64, 128));
        assert_eq!(count(Job { number_ios: Some(10), loops: 3, ..job() }), 30);
        assert_eq!(count(Job { number_ios: Some(100), loops: 2, ..job() }), of(64, 128));
        assert_eq!(count(Job { io_size: part, ..job() }), 25);
        assert_eq!(count(Job { io_size: part, loops: 3, ..job() }), of(64, 75));
        assert_eq!(count(Job { io_size: most, loops: 2, ..job() }), of(64, 768));
    }
}

#[test]
fn threads_keep_to_their_own_part() {
    let job = Job {
        offset: Amount::Bytes(MIB),
        offset_increment: Amount::Bytes(8 * MIB),
        ..random(Rw::RandWrite)
    };
    for thread in 0..4 {
        let start = (1 + 8 * u64::from(thread)) * 2048;
        let range = start..start + 4 * 2048;
        assert!(stream(&job, thread).all(|io| range.contains(&io.sector)));
    }
}

#[test]
fn no_io_leaves_the_region_whatever_the_sizes() {
    let mixed = PerDirection::new(
        BlockSize::Range { min: 1024, max: 64 * 1024 },
        BlockSize::Split(vec![(512, 50), (128 * 1024, 50)]),
        BlockSize::Fixed(4096),
    );
    let job = Job { bs: mixed, io_size: Some(Amount::Bytes(64 * MIB)), ..random(Rw::RandRw) };
    let aligned = Job { blockalign: PerDirection::all(Some(512)), ..job.clone() };
    let sequential = Job { rw: Rw::ReadWrite, ..job.clone() };
    for job in [job, aligned, sequential] {
        for io in stream(&job, 0) {
            assert!(io.sectors > 0 && io.sector + u64::from(io.sectors) <= 8192, "{io:?}");
        }
    }
}

#[test]
fn blockalign_places_blocks_between_blocks() {
    let job = Job { blockalign: PerDirection::all(Some(512)), ..random(Rw::RandRead) };
    let odd = stream(&job, 0).filter(|io| io.sector % 8 != 0).count();
    assert!(odd > 512, "{odd} of 1024 lie off the 4 KiB grid");
}

/// As fio 3.33: a grid of whole blocks leaves the map as it is.
#[test]
fn blockalign_of_a_block_keeps_the_map() {
    let aligned = |grid| Job { blockalign: PerDirection::all(Some(grid)), ..random(Rw::RandRead) };
    let distinct = |job: &Job| BTreeSet::from_iter(stream(job, 0).map(|io| io.sector)).len();
    assert_eq!(distinct(&aligned(4096)), 1024);
    assert!(distinct(&aligned(8192)) < 512);
}

/// As in fio 3.33 with `percentage_random=0`: the last block reaches over the size, and after the end of the file
/// follows a random offset.
#[test]
fn a_run_reaches_over_the_size_and_goes_on_anywhere() {
    let size = Some(Amount::Bytes(10 * 1024));
    let job = Job { size, percentage_random: PerDirection::all(0), ..random(Rw::RandRead) };
    let places = |end: u64| {
        let ios = Generator::new(&job, 0, end).expect("it fits");
        Vec::from_iter(ios.map(|io| io.sector))
    };
    assert_eq!(places(MIB), [0, 8, 16]);
    let [0, 8, last] = places(10 * 1024)[..] else { panic!("three blocks of 10 KiB") };
    assert!(last <= 8);
}

#[test]
fn percentage_random_mixes_jumps_and_runs() {
    let job = Job { percentage_random: PerDirection::all(25), ..random(Rw::RandRead) };
    let job = Job { norandommap: true, io_size: Some(Amount::Bytes(400 * MIB)), ..job };
    let mut last = None;
    let mut jumps = 0u32;
    for io in stream(&job, 0) {
        let wraps = last == Some(8192) && io.sector == 0;
        jumps += u32::from(last != Some(io.sector) && !wraps);
        last = Some(io.sector + u64::from(io.sectors));
    }
    assert!(jumps.abs_diff(25_600) < 1_000, "{jumps} jumps in 102400");
}

#[test]
fn places_are_the_same_one_by_one_and_drawn_together() {
    let uniform = Job { norandommap: true, loops: 2, ..random(Rw::RandRead) };
    let skewed = Distribution::Zipf(1.2, None);
    let jobs = [
        Job { number_ios: Some(100), ..uniform.clone() },
        Job { io_size: Some(Amount::Bytes(MIB + 512)), ..uniform.clone() },
        Job { random_distribution: skewed, ..uniform.clone() },
        random(Rw::RandWrite),
    ];
    for job in jobs {
        let template = stream(&job, 0).template().expect("the I/Os are alike");
        let one_by_one = Vec::from_iter(stream(&job, 0));
        for at_once in [1, 3, 8] {
            let mut together = Vec::new();
            let mut generator = stream(&job, 0);
            let mut sectors = [0; 8];
            loop {
                let drawn = generator.draw_places(&mut sectors[..at_once]);
                let ios = sectors[..drawn].iter().map(|at| NextIo { sector: *at, ..template });
                together.extend(ios);
                if drawn < at_once {
                    break;
                }
            }
            assert_eq!(together, one_by_one, "{at_once} at once");
            assert_eq!(generator.draw_places(&mut sectors), 0, "it has ended");
        }
    }
    let varied = [
        Job { rw: Rw::RandRw, ..uniform.clone() },
        Job { fsync: 4, rw: Rw::RandWrite, ..uniform.clone() },
        Job { run: 8, ..uniform },
        random(Rw::Read),
    ];
    varied.iter().for_each(|job| assert_eq!(stream(job, 0).template(), None));
}

#[test]
fn trimwrite_discards_each_block_and_then_writes_it() {
    for rw in [Rw::TrimWrite, Rw::RandTrimWrite] {
        let ios = Vec::from_iter(stream(&random(rw), 0));
        assert_eq!(ios.len(), 2048);
        let five = Job { number_ios: Some(5), ..random(rw) };
        assert_eq!(stream(&five, 0).count(), 10);
        for pair in ios.chunks(2) {
            assert_eq!((pair[0].op, pair[1].op), (Op::Discard, Op::Write));
            assert_eq!((pair[0].sector, pair[0].sectors), (pair[1].sector, pair[1].sectors));
        }
    }
}

#[test]
fn fsync_flushes_between_writes_and_not_behind_the_last() {
    let ops = |job: Job| Vec::from_iter(stream(&job, 0).map(|io| io.op));
    let job = Job { fsync: 2, number_ios: Some(5), ..random(Rw::Write) };
    let (w, f) = (Op::Write, Op::Flush);
    assert_eq!(ops(job.clone()), [w, w, f, w, w, f, w]);
    assert_eq!(ops(Job { number_ios: Some(4), ..job.clone() }), [w, w, f, w, w]);
    let twice = Job { number_ios: Some(2), loops: 2, ..job.clone() };
    assert_eq!(ops(twice), [w, w, f, w, w], "a flush between passes");
    let both = Job { fsync: 2, fdatasync: 3, number_ios: Some(7), ..job.clone() };
    assert_eq!(ops(both), [w, w, f, w, f, w, f, w, w, f, w], "fdatasync beside fsync");
    // fio 3.33 with 8 and with 10 KiB: the search for an offset in the rest comes after the flush.
    let passes = |kib: u64| Job {
        size: Some(Amount::Bytes(kib * 1024)),
        number_ios: None,
        loops: 2,
        ends_at_size: true,
        ..job.clone()
    };
    assert_eq!(ops(passes(8)), [w, w, f, w, w]);
    assert_eq!(ops(passes(10)), [w, w, f, f, w, w, f]);
    let trims = Job { rw: Rw::TrimWrite, number_ios: Some(2), fsync: 1, ..job };
    let t = Op::Discard;
    assert_eq!(ops(trims), [t, w, f, t, w]);
}

#[test]
fn who_waits_shows_in_the_flags() {
    let flags = |job: &Job| stream(job, 0).next().expect("an I/O").flags;
    let write = random(Rw::Write);
    assert_eq!(flags(&random(Rw::Read)), IoFlags::SYNC);
    assert_eq!(flags(&write), IoFlags::NONE);
    assert_eq!(flags(&Job { direct: true, ..write.clone() }), IoFlags::SYNC);
    assert_eq!(flags(&Job { sync: true, ..write }), IoFlags::SYNC | IoFlags::FUA);
}

#[test]
fn skewed_places_repeat_and_are_the_same_for_all_threads() {
    let job = Job { random_distribution: Distribution::Zipf(1.2, None), ..random(Rw::RandRead) };
    let hottest = |thread| {
        let mut counts = vec![0u32; 1024];
        stream(&job, thread).for_each(|io| counts[(io.sector / 8) as usize] += 1);
        (0..1024).max_by_key(|&block| counts[block])
    };
    assert_eq!(hottest(0), hottest(1));
}

#[test]
fn impossible_jobs_give_no_stream() {
    let error = |job: Job| Generator::new(&job, 0, MIB).expect_err("impossible");
    assert!(matches!(error(Job { numjobs: 0, ..Job::default() }), GeneratorError::Job(_)));
    assert!(matches!(error(random(Rw::Read)), GeneratorError::Region(_)));
}

fn filler(contents: &Contents) -> Filler {
    of_job(0, contents)
}

/// Of a job that writes 256 blocks.
fn of_job(index: u32, contents: &Contents) -> Filler {
    let (size, contents) = (Some(Amount::Bytes(1 << 20)), contents.clone());
    let job = Job { rw: Rw::Write, index, size, contents, ..Job::default() };
    Filler::new(&job, 0, 1 << 30)
}

/// The first sectors of 1000 writes.
fn writes(filler: &mut Filler) -> Vec<[u8; 512]> {
    let one = |_| {
        let mut bytes = [0; 512];
        filler.next(&mut bytes);
        bytes
    };
    Vec::from_iter((0..1000).map(one))
}

fn zeroes(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == 0).count()
}

/// Regression test: every write carried zeroes, which compressing storage does not store.
#[test]
fn buffers_are_random_and_no_two_writes_are_alike() {
    let mut filler = filler(&Contents::default());
    let mut bytes = [0; 4096];
    filler.begin(&mut bytes);
    assert!(zeroes(&bytes) < 64);
    let first = bytes;
    filler.next(&mut bytes);
    for (before, after) in first.chunks(512).zip(bytes.chunks(512)) {
        assert!(before != after && before[8..] == after[8..]);
    }
}

#[test]
fn refilled_buffers_are_new_in_every_byte() {
    let mut filler = filler(&Contents { refills: true, ..Contents::default() });
    let (mut one, mut other) = ([0; 4096], [0; 4096]);
    filler.next(&mut one);
    filler.next(&mut other);
    assert!(one.iter().zip(&other).filter(|(a, b)| a == b).count() < 64);
}

#[test]
fn a_share_of_each_chunk_is_fixed() {
    let compress = |compress, chunk, pattern| {
        let pattern = Some(pattern).filter(|text: &&str| !text.is_empty());
        let pattern = pattern.map(|text| Pattern::parse(text).expect("a pattern"));
        let contents = Contents {
            compress: Some(compress),
            chunk,
            pattern,
            refills: true,
            ..Contents::default()
        };
        let mut bytes = [1; 4096];
        filler(&contents).next(&mut bytes);
        bytes
    };
    let half = compress(50, 512, "");
    assert!(
        half.chunks(512).all(|chunk| zeroes(&chunk[256..]) == 256 && zeroes(&chunk[..256]) < 16)
    );
    let most = compress(75, 4096, "");
    assert_eq!(zeroes(&most[1024..]), 3072);
    let marked = compress(50, 512, "0xab");
    assert!(marked.chunks(512).all(|chunk| chunk[256..].iter().all(|byte| *byte == 0xab)));
}

#[test]
fn a_share_of_writes_repeats_the_last_unique_one() {
    let contents = Contents { dedupe: 30, refills: true, ..Contents::default() };
    let writes = writes(&mut filler(&contents));
    let unique = BTreeSet::from_iter(&writes).len();
    assert!((670..730).contains(&unique), "{unique} of 1000");
    assert_eq!(writes.windows(2).filter(|pair| pair[0] == pair[1]).count(), 1000 - unique);
}

#[test]
fn a_share_of_writes_is_of_a_working_set_which_jobs_may_share() {
    let (dedupe_mode, working_set) = (DedupeMode::WorkingSet, 10);
    let contents =
        Contents { dedupe: 100, dedupe_mode, working_set, refills: true, ..Contents::default() };
    let set = |index, is_global| {
        let contents = Contents { is_global, ..contents.clone() };
        BTreeSet::from_iter(writes(&mut of_job(index, &contents)))
    };
    assert_eq!(set(0, false).len(), 25, "a tenth of 256 blocks");
    assert!(set(0, false).is_disjoint(&set(1, false)));
    assert_eq!(set(0, true), set(1, true));
}

#[test]
fn zeroes_and_patterns_are_so_behind_a_read_as_well() {
    let mut bytes = [7; 1024];
    filler(&Contents { is_zero: true, ..Contents::default() }).next(&mut bytes);
    assert_eq!(zeroes(&bytes), 1024);
    let pattern = Pattern::parse("0xabcd").ok();
    filler(&Contents { pattern, ..Contents::default() }).next(&mut bytes);
    assert!(bytes.chunks(2).all(|pair| pair == [0xab, 0xcd]));
}

fn prio(class: Class, level: u16) -> IoPrio {
    IoPrio::new(class, level).expect("a level")
}

fn count(job: &Job, direction: Direction, sectors: u64) -> Vec<(IoPrio, u32)> {
    let (mut prios, mut seen) = (Prios::new(job, 4), BTreeMap::new());
    for _ in 0..10_000 {
        *seen.entry(prios.next(direction, sectors).to_bits()).or_insert(0u32) += 1;
    }
    seen.into_iter().map(|(bits, count)| (IoPrio::from_bits(bits), count)).collect()
}

#[test]
fn a_percentage_of_a_direction_has_the_priority() {
    let high = prio(Class::Realtime, 0);
    let special = CmdPrio::Percentage(30, high);
    let cmdprio = PerDirection::new(special, CmdPrio::None, CmdPrio::None);
    let job = Job { cmdprio, ..Job::default() };
    let seen = count(&job, Direction::Read, 8);
    assert_eq!((seen[0].0, seen[1].0), (IoPrio::default(), high));
    assert!(seen[1].1.abs_diff(3_000) < 150, "{seen:?}");
    assert_eq!(count(&job, Direction::Write, 8), [(IoPrio::default(), 10_000)]);
}

#[test]
fn a_split_looks_at_the_length() {
    let (rt, be) = (prio(Class::Realtime, 0), prio(Class::BestEffort, 3));
    let split = CmdPrio::Split(vec![(4096, 30, rt), (4096, 20, be), (65536, 100, be)]);
    assert_eq!(split.most(), 100);
    let job = Job { cmdprio: PerDirection::all(split), ..Job::default() };
    assert_eq!(job.prios(Direction::Read), [IoPrio::default(), rt, be]);
    let seen = count(&job, Direction::Write, 8);
    assert!(seen[1].1.abs_diff(3_000) < 150 && seen[2].1.abs_diff(2_000) < 150, "{seen:?}");
    assert_eq!(count(&job, Direction::Write, 128), [(be, 10_000)]);
    assert_eq!(count(&job, Direction::Write, 16), [(IoPrio::default(), 10_000)]);
}
