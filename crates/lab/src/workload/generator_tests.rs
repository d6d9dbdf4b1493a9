//! Streams are reproducible, cover all blocks where promised, and keep the requested ratios.

use super::*;
use crate::workload::Distribution;
use crate::workload::{Amount, BlockSize, PerDirection, ThinkTime};
use blkmq_core::Nanos;
use std::collections::BTreeSet;

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
    // 1 - 1/e of the blocks are hit by as many draws as there are blocks.
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
    let mut next = [2048; 2];
    for io in stream(&job, 0) {
        let at = &mut next[usize::from(io.op == Op::Write)];
        assert_eq!(io.sector, *at);
        *at = if io.sector + 8 == 2048 + 128 { 2048 } else { io.sector + 8 };
    }
    assert_ne!(next, [2048; 2]);
}

#[test]
fn a_time_based_stream_does_not_end() {
    let job = Job { time_based: true, runtime: Some(Nanos::from_secs(1)), ..Job::default() };
    let io_size = Some(Amount::Bytes(12288));
    let job = Job { size: Some(Amount::Bytes(8192)), io_size, ..job };
    let sectors = Vec::from_iter(stream(&job, 0).take(6).map(|io| io.sector));
    assert_eq!(sectors, [0, 8, 0, 0, 8, 0], "three I/Os a pass, then from the start again");
}

#[test]
fn passes_end_where_io_size_and_number_ios_say() {
    let count = |job: Job| stream(&job, 0).count();
    assert_eq!(count(Job { io_size: Some(Amount::Bytes(10 * 1024)), ..random(Rw::Read) }), 3);
    assert_eq!(count(Job { number_ios: Some(7), loops: 2, ..random(Rw::Read) }), 14);
    assert_eq!(count(Job { number_ios: Some(0), ..random(Rw::Read) }), 0);
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
    let job = Job { random_distribution: Distribution::Zipf(1.2), ..random(Rw::RandRead) };
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
