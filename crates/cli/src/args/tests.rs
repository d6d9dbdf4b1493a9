//! Tests the meaning of options through the entry point that the command line uses: the options of jobs and of their
//! verification, then those for engines and files.

use super::options::{self, Meaning};
use super::{Request, definition, parse};
use crate::plan::{Plan, Time, job_file};
use blkmq_core::{Class, IoPrio, Nanos};
use blkmq_lab::workload::verify::{Method, Pattern};
use blkmq_lab::workload::{
    Amount, BlockSize, CmdPrio, Depth, Direction, Distribution, Job, Latencies, PerDirection, Rw,
    Verify,
};

fn read(line: &str, time: Time) -> Result<Plan, String> {
    let args = Vec::from_iter(line.split_whitespace().map(String::from));
    match parse(&args, time) {
        Ok(Request::Plan(plan)) => Ok(*plan),
        Ok(other) => panic!("{line}: {other:?}"),
        Err(e) => Err(e.to_string()),
    }
}

fn plan(line: &str) -> Plan {
    read(line, Time::Real).unwrap_or_else(|e| panic!("{line}: {e}"))
}

fn job(line: &str) -> Job {
    let plan = plan(line);
    assert_eq!(plan.jobs.len(), 1, "{line}");
    plan.jobs[0].clone()
}

fn refusal(line: &str) -> String {
    read(line, Time::Real).expect_err(line)
}

/// A file in the folder for temporary files, removed when dropped.
struct File(std::path::PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("blkmq-{}-{name}", std::process::id()));
        std::fs::write(&path, text).expect("the temporary folder can be written");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("made of ASCII")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Each line of options, and its effect on a job that reads.
#[test]
fn every_workload_option_reaches_its_field() {
    let base = || Job { name: "blkmq".into(), ..Job::default() };
    let fixed = |bs| PerDirection::all(BlockSize::Fixed(bs));
    let table: &[(&str, Job)] = &[
        ("--rw=randrw", Job { rw: Rw::RandRw, ..base() }),
        ("--readwrite randread", Job { rw: Rw::RandRead, ..base() }),
        ("--rwmixwrite=30", Job { rwmixread: 70, ..base() }),
        ("--bs=8k", Job { bs: fixed(8192), ..base() }),
        (
            "--bs=8k,512",
            Job {
                bs: PerDirection::new(
                    BlockSize::Fixed(8192),
                    BlockSize::Fixed(512),
                    BlockSize::Fixed(512),
                ),
                ..base()
            },
        ),
        ("--bs=512kib --kb_base=1024", Job { bs: fixed(512_000), ..base() }),
        ("--bs=8kib --kb_base=1000", Job { bs: fixed(8192), ..base() }),
        (
            "--bsrange=1k-4k --bs=2k",
            Job { bs: PerDirection::all(BlockSize::Range { min: 1024, max: 4096 }), ..base() },
        ),
        (
            "--bssplit=4k/60:8k/40 --bs=1k",
            Job { bs: PerDirection::all(BlockSize::Split(vec![(4096, 60), (8192, 40)])), ..base() },
        ),
        (
            "--bssplit=4k/50:1k/:32k/",
            Job {
                bs: PerDirection::all(BlockSize::Split(vec![(4096, 50), (1024, 25), (32768, 25)])),
                ..base()
            },
        ),
        ("--ba=512", Job { blockalign: PerDirection::all(Some(512)), ..base() }),
        ("--norandommap", Job { norandommap: true, ..base() }),
        (
            "--random_distribution=zipf:1.2",
            Job { random_distribution: Distribution::Zipf(1.2, None), ..base() },
        ),
        (
            "--random_distribution=pareto",
            Job { random_distribution: Distribution::Pareto(0.2, None), ..base() },
        ),
        (
            "--percentage_random=50,25",
            Job { percentage_random: PerDirection::new(50, 25, 25), ..base() },
        ),
        ("--randseed=0x10", Job { randseed: 16, ..base() }),
        ("--size=1g", Job { size: Some(Amount::Bytes(1 << 30)), ..base() }),
        ("--size=20%", Job { size: Some(Amount::Percent(20)), ..base() }),
        ("--io_limit=2m", Job { io_size: Some(Amount::Bytes(2 << 20)), ..base() }),
        (
            "--offset=1m --offset_increment=1g",
            Job {
                offset: Amount::Bytes(1 << 20),
                offset_increment: Amount::Bytes(1 << 30),
                ..base()
            },
        ),
        ("--direct=1", Job { direct: true, ..base() }),
        ("--buffered=0", Job { direct: true, ..base() }),
        ("--sync=dsync --fdatasync=8", Job { sync: true, fdatasync: 8, ..base() }),
        (
            "--numjobs=8 --loops=2 --number_ios=1k",
            Job { numjobs: 8, loops: 2, number_ios: Some(1024), ..base() },
        ),
        (
            "--runtime=30 --time_based",
            Job { runtime: Some(Nanos::from_secs(30)), time_based: true, ..base() },
        ),
        (
            "--ramp_time=500ms --startdelay=2",
            Job { ramp_time: Nanos::from_millis(500), startdelay: Nanos::from_secs(2), ..base() },
        ),
        ("--rate_iops=100,", Job { rate_iops: PerDirection::new(Some(100), None, None), ..base() }),
        ("--rate=,1m,", Job { rate: PerDirection::new(None, Some(1 << 20), None), ..base() }),
        ("--rate=0", base()),
        (
            "--stonewall --new_group=1 --group_reporting",
            Job { stonewall: true, new_group: true, group_reporting: true, ..base() },
        ),
        ("--gtod_reduce=1", Job { latencies: Latencies::NONE, ..base() }),
        (
            "--disable_lat 1 --disable_slat=0",
            Job { latencies: Latencies { lat: false, ..Latencies::ALL }, ..base() },
        ),
        ("--percentile_list=99.9:50", Job { percentile_list: vec![50.0, 99.9], ..base() }),
    ];
    for (line, expected) in table {
        assert_eq!(job(line), *expected, "{line}");
    }
}

#[test]
fn depths_follow_each_other_as_in_fio() {
    let depth = |line: &str| job(line).depth;
    let deep = Depth { iodepth: 32, low: 32, ..Depth::default() };
    assert_eq!(depth("--iodepth=32"), deep);
    assert_eq!(
        depth("--iodepth_batch=8 --iodepth_batch_complete=4 --iodepth=32"),
        Depth { batch_submit: 8, batch_complete_min: 4, batch_complete_max: 4, ..deep }
    );
    assert_eq!(
        depth(
            "--iodepth=32 --iodepth_batch_submit=0 --iodepth_low=3 --iodepth_batch_complete_min=0 --iodepth_batch_complete_max=9"
        ),
        Depth { low: 3, batch_submit: 32, batch_complete_min: 0, batch_complete_max: 9, ..deep }
    );
    let cut = plan("--iodepth=4 --iodepth_batch_submit=8");
    assert_eq!(cut.jobs[0].depth.batch_submit, 4);
    assert_eq!(cut.notes, ["job 'blkmq': iodepth_batch_submit=8 is cut to iodepth=4"]);
}

#[test]
fn a_level_alone_is_best_effort() {
    let prio = |line: &str| {
        let prio = job(line).prio;
        (prio.class(), prio.level())
    };
    assert_eq!(prio("--rw=read"), (Class::None, 0));
    assert_eq!(prio("--prio=3"), (Class::BestEffort, 3));
    assert_eq!(prio("--prioclass=1 --prio=2"), (Class::Realtime, 2));
    assert_eq!(prio("--prioclass=3"), (Class::Idle, 0));
}

#[test]
fn thinktime_counts_microseconds() {
    let think = job("--thinktime=50 --thinktime_blocks=4").thinktime.expect("asked for");
    assert_eq!((think.pause, think.blocks), (Nanos::from_micros(50), 4));
    assert_eq!(job("--thinktime=0").thinktime, None);
}

#[test]
fn names_begin_jobs_and_globals_come_before() {
    let plan = plan("--bs=8k --name=a --rw=write --name=b --bs=1k --name=global --bs=2k --name=c");
    let seen = plan
        .jobs
        .iter()
        .map(|job| (job.name.as_str(), job.index, job.rw, job.bs[Direction::Read].min()));
    let expected = [("a", 0, Rw::Write, 8192), ("b", 1, Rw::Read, 1024), ("c", 2, Rw::Read, 2048)];
    assert_eq!(Vec::from_iter(seen), expected);
}

#[test]
fn files_are_serialized_and_keep_their_globals() {
    let first = File::new("first.fio", "[global]\nbs=8k\n[a]\n[b]\nrw=write\n");
    let second = File::new("second.fio", "[c]\niodepth=4\n[d]\n");
    let line = format!("--numjobs=2 {} {}", first.path(), second.path());
    let jobs = plan(&line).jobs;
    let seen = jobs
        .iter()
        .map(|job| (job.name.as_str(), job.stonewall, job.bs[Direction::Read].min(), job.numjobs));
    let expected =
        [("a", false, 8192, 2), ("b", false, 8192, 2), ("c", true, 4096, 2), ("d", false, 4096, 2)];
    assert_eq!(Vec::from_iter(seen), expected);
    let only = plan(&format!("{line} --section=b --section=d"));
    let seen = only.jobs.iter().map(|job| (job.name.as_str(), job.stonewall));
    assert_eq!(Vec::from_iter(seen), [("b", false), ("d", true)]);
    let message = refusal(&format!("{line} --section=x"));
    assert_eq!(message, "--section=x: no such section; accepted: a, b, c, d");
}

#[test]
fn jobs_survive_being_printed_and_read_again() {
    let lines = [
        "--name=a --rw=randrw --rwmixread=70 --bs=4k,8k --direct --iodepth=32 --iodepth_batch=8",
        "--name=a --bsrange=1k-4k,8k-16k --ba=512 --norandommap --size=50% --offset=1m",
        "--name=a --bssplit=4k/60:8k/40,16k --rw=randwrite --random_distribution=zipf:1.2 --fsync=8",
        "--name=a --rate_iops=10,20 --rate=1m, --thinktime=5ms --thinktime_blocks=3 --prio=3",
        "--name=a --rw=randread:8 --random_distribution=normal:25:0.25 --rate_iops=9 --rate_process=poisson",
        "--name=a --rw=write:-8k --io_size=50% --name=b --rw=randread --bsrange=512:1m \
         --random_distribution=zoned:60/10:40/20 --name=c --rw=randread --random_distribution=zoned_abs:100/1m",
        "--name=a --rw=rw --cmdprio_percentage=30,20 --cmdprio_class=2 --cmdprio=3,4 --name=b --bssplit=4k/50:8k/50 \
         --cmdprio_bssplit=4k/30:8k/50/3/1,8k/10",
        "--name=a --latency_target=500 --latency_window=50ms --latency_percentile=99.5 --latency_run --exitall \
         --name=b --rw=write --fill_device",
        "--name=a --flow=3 --flow_id=2 --flow_sleep=5 --rate_min=1k,2k --rate_iops_min=,9 --rate_cycle=250 --exitall \
         --exit_what=all --name=b --wait_for=a --zonemode=strided --zonesize=64k --zonerange=128k --zoneskip=4k",
        "--name=a --prioclass=3 --runtime=90 --time_based --ramp_time=1500us --gtod_reduce=1",
        "--name=a --stonewall --name=b --iodepth=8 --iodepth_low=2 --iodepth_batch_complete_min=0 \
         --iodepth_batch_complete_max=4 --percentile_list=50:99.99 --number_ios=9 --loops=2 --sync=1 \
         --percentage_random=10,20,30 --randseed=7 --io_size=1g --offset_increment=2m --startdelay=1",
        "--device=memory --name=a --rw=write --verify=crc32c-intel",
        "--device=memory --name=a --rw=write --verify=crc32c --verify_backlog=9 --verify_fatal \
         --name=b --stonewall --rw=write --verify=xxhash --verify_only --name=c --stonewall \
         --rw=randwrite --verify=pattern --verify_pattern=0xff%o\"a;#b\"-12 --verify_interval=512 \
         --do_verify=0",
    ];
    for (at, line) in lines.iter().enumerate() {
        let jobs = plan(line).jobs;
        let file = File::new(&format!("printed{at}.fio"), &job_file(&jobs));
        assert_eq!(plan(&format!("--device=memory {}", file.path())).jobs, jobs, "{line}");
    }
}

#[test]
fn a_part_of_the_ios_gets_another_priority() {
    let prio = |class, level| IoPrio::new(class, level).expect("a level");
    let special =
        |line: &str, direction| job(&format!("--rw=randrw {line}")).cmdprio[direction].clone();
    let (read, write) = (Direction::Read, Direction::Write);
    let highest = CmdPrio::Percentage(30, prio(Class::Realtime, 0));
    assert_eq!(special("--cmdprio_percentage=30", write), highest);
    assert_eq!(special("--cmdprio_percentage=30,0", write), CmdPrio::None);
    assert_eq!(special("--cmdprio_percentage=30", Direction::Trim), CmdPrio::None);
    let low = CmdPrio::Percentage(5, prio(Class::BestEffort, 4));
    assert_eq!(special("--cmdprio=4 --cmdprio_class=2 --cmdprio_percentage=5", read), low);
    let split = vec![(4096, 30, prio(Class::Idle, 2)), (8192, 50, prio(Class::BestEffort, 1))];
    let line = "--cmdprio_bssplit=4k/30:8k/50/2/1 --cmdprio_class=3 --cmdprio=2";
    assert_eq!(special(line, read), CmdPrio::Split(split));
    for (line, expected) in [
        ("--cmdprio_percentage=30 --cmdprio_bssplit=4k/30", "one of the two"),
        ("--cmdprio_bssplit=4k/60:4k/50", "110 percent"),
        ("--cmdprio_bssplit=4k/60/1", "SIZE/PERCENT/CLASS/LEVEL"),
        ("--cmdprio_class=0", "1 to 3"),
    ] {
        let message = refusal(&format!("--rw=randrw {line}"));
        assert!(message.contains(expected), "{line}: {message}");
    }
    let notes = plan("--name=a --cmdprio=3").notes;
    assert!(notes[0].contains("no effect without cmdprio_percentage"), "{notes:?}");
}

#[test]
fn what_is_compared_multiplies_and_repeats_are_interleaved() {
    let plan =
        plan("--rw=read --scheduler=none,none --access=spin,combining --threads=1,2 --repeat=2");
    assert_eq!((plan.cases(), plan.runs().len()), (8, 16));
    let order = plan.runs().iter().map(|run| (run.case, run.repetition)).collect::<Vec<_>>();
    let expected = (0..2).flat_map(|rep| (0..8).map(move |case| (case, rep)));
    assert_eq!(order, Vec::from_iter(expected));
    let run = &plan.runs()[2];
    assert_eq!((run.access.text.as_str(), run.threads.len()), ("combining", 1));
    assert_eq!(plan.runs()[4].threads.len(), 2);
}

#[test]
fn stonewalls_make_phases_and_groups() {
    let plan = plan(
        "--runtime=2 --name=a --numjobs=2 --name=b --new_group --name=c --stonewall --startdelay=1",
    );
    let threads = plan.threads_of(None);
    let seen = threads.iter().map(|t| (t.job, t.thread, t.group, t.phase));
    assert_eq!(Vec::from_iter(seen), [(0, 0, 0, 0), (0, 1, 0, 0), (1, 0, 1, 0), (2, 0, 2, 1)]);
    assert_eq!(plan.run_time(), Some(Nanos::from_secs(5)));
}

#[test]
fn foreign_options_are_named_once() {
    let plan = plan(
        "--device=null --thread --filename=/dev/x --name=a --invalidate=1 --thread --name=b --fixedbufs --filename=/dev/x",
    );
    assert_eq!(plan.annotations, [("filename", "/dev/x".to_owned())]);
    assert_eq!(plan.notes.len(), 2, "{:?}", plan.notes);
    assert_eq!(plan.notes[0], "filename=/dev/x: annotates the run; I/O goes to device null");
    assert_eq!(plan.notes[1].matches("thread (").count(), 1);
    for name in ["invalidate", "fixedbufs"] {
        assert!(plan.notes[1].contains(name), "{}", plan.notes[1]);
    }
}

#[test]
fn every_option_of_verification_reaches_its_field() {
    let verify = Verify::new;
    let table: &[(&str, Option<Verify>)] = &[
        ("--verify=crc32c", Some(verify(Method::Crc32c))),
        ("--verify=crc32c --verify=0", None),
        (
            "--verify=pattern --verify_pattern=0xff%o --verify_interval=1k --verify_fatal",
            Some(Verify {
                pattern: Pattern::parse("0xff%o").ok(),
                interval: Some(1024),
                fatal: true,
                ..verify(Method::Pattern)
            }),
        ),
        (
            "--verify=xxhash --verify_backlog=1k",
            Some(Verify { backlog: 1024, ..verify(Method::Xxhash) }),
        ),
        (
            "--verify=crc32c --do_verify=0 --verify_only=0",
            Some(Verify { do_verify: false, ..verify(Method::Crc32c) }),
        ),
        ("--verify=null --verify_only", Some(Verify { only: true, ..verify(Method::Null) })),
    ];
    for (line, expected) in table {
        assert_eq!(job(&format!("--device=memory --rw=write {line}")).verify, *expected, "{line}");
    }
}

#[test]
fn options_of_verification_without_effect_are_named() {
    let notes = |line: &str| plan(&format!("--device=memory --name=a {line}")).notes.join("; ");
    for (line, expected) in [
        (
            "--verify_pattern=1 --do_verify=1",
            "job 'a': verify_pattern, do_verify: no effect without",
        ),
        (
            "--verify=crc32c --rw=read --verify_backlog=2",
            "verify_backlog: no effect on a job that only",
        ),
        (
            "--verify=crc32c --rw=write --verify_only --verify_backlog=2",
            "no effect with verify_only",
        ),
        (
            "--verify=crc32c --rw=write --do_verify=0 --verify_backlog=2",
            "no effect with do_verify=0",
        ),
        ("--verify=null --rw=write --verify_fatal", "verify_fatal: no effect with verify=null"),
        ("--verify=null --rw=write --verifysort=0", "verifysort (what was written is read back"),
    ] {
        assert!(notes(line).contains(expected), "{line}: {}", notes(line));
    }
    assert_eq!(notes("--verify=crc32c --rw=write --verify_backlog=2 --verify_fatal"), "");
}

#[test]
fn threads_that_write_where_others_verify_are_refused() {
    let verify = |line: &str| format!("--device=memory --rw=randwrite --verify=crc32c {line}");
    let message = refusal(&verify("--name=a --numjobs=2 --size=1m"));
    assert!(
        message.starts_with("job 'a': thread 0 verifies bytes 0 to 1048576, and thread 1"),
        "{message}"
    );
    assert!(message.contains("offset_increment"), "{message}");
    let message = refusal(&verify("--size=1m --name=a --name=b --offset=1020k --verify=0"));
    assert!(message.contains("thread 0 of job 'b' writes from 1044480 to 2093056"), "{message}");
    refusal(&verify("--size=1m --offset_increment=512k --threads=1,2"));
    refusal(&verify("--size=1m --name=a --name=b --rw=trim --verify=0"));
    for line in [
        "--name=a --numjobs=4 --size=1m --offset_increment=1m",
        "--size=1m --offset_increment=512k --threads=1",
        "--size=1m --name=a --name=b --stonewall",
        "--size=1m --name=a --name=b --rw=read --verify=0",
        "--size=1m --rw=read --numjobs=4",
    ] {
        assert!(!plan(&verify(line)).jobs.is_empty(), "{line}");
    }
}

#[test]
fn schedulers_come_from_either_option() {
    assert_eq!(plan("--ioscheduler=none").schedulers.len(), 1);
    assert_eq!(plan("--name=a --ioscheduler=none --name=b --ioscheduler=none").schedulers.len(), 1);
    let names = |line| Vec::from_iter(plan(line).schedulers.into_iter().map(|it| it.text));
    assert_eq!(names("--scheduler none --scheduler none"), ["none"]);
    assert_eq!(names("--scheduler none,none"), ["none", "none"], "one list may repeat a name");
    let twice = "--scheduler=mq-deadline --scheduler=none,mq-deadline";
    assert_eq!(names(twice), ["mq-deadline", "none"]);
    assert_eq!(plan("--rw=read").schedulers.len(), blkmq_sched::registry::ALL.len());
    assert_eq!(plan("--rw=read --scope=queue").scope, Some(blkmq_sched::Scope::Queue));
}

#[test]
fn without_arguments_everything_is_compared_within_a_minute() {
    let plan = plan("");
    assert!(plan.default_matrix);
    assert_eq!(plan.schedulers.len(), blkmq_sched::registry::ALL.len());
    assert_eq!(plan.threads[..2], [Some(1), Some(2)]);
    let run = plan.run_time().expect("has a runtime");
    assert!(run.0 * plan.runs().len() as u64 <= 30_000_000_000, "{run}");
}

#[test]
fn jobs_that_do_not_fit_the_device_are_refused() {
    let small = "--device=null,size=64 --name=a";
    assert!(
        refusal(&format!("{small} --size=1g")).starts_with("job 'a' on device null,size=64: size=")
    );
    assert!(refusal(&format!("{small} --offset_increment=32m --threads=1,3")).contains("offset"));
    assert_eq!(plan(&format!("{small} --offset_increment=32m --numjobs=2")).jobs.len(), 1);
    assert!(refusal("--readonly --name=a --rw=randwrite").contains("accepted with --readonly"));
}

fn device(line: &str) -> (String, u64) {
    let plan = plan(line);
    assert_eq!(plan.devices.len(), 1, "{line}");
    (plan.devices[0].text.clone(), plan.devices[0].size_bytes)
}

/// Makes a sparse file of this many bytes, which is removed when dropped.
fn sparse(name: &str, bytes: u64) -> File {
    let file = File::new(name, "");
    let opened = std::fs::File::options().write(true).open(file.path());
    opened.and_then(|file| file.set_len(bytes)).expect("a sparse file");
    file
}

/// Regression test: with `filename=FILE` and libaio or io_uring, the null device was measured at 406k IOPS, and only a
/// note mentioned it.
#[test]
fn a_file_that_is_named_is_the_device() {
    let file = sparse("named", 1 << 20);
    let path = file.path();
    for engine in ["", "--ioengine=libaio", "--ioengine=io_uring", "--ioengine=psync"] {
        let line = format!("--filename={path} --rw=randwrite --direct=1 {engine}");
        assert_eq!(device(&line), (format!("uring:{path}"), 1 << 20), "{line}");
        let note = &plan(&line).notes[0];
        assert!(note.ends_with(&format!("I/O goes to device uring:{path}")), "{note}");
    }
    assert_eq!(device(&format!("--filename={path}")).0, format!("uring:{path},readonly=1"));
    // An image of another format may be read as it is, and is not overwritten.
    let image = format!("{path}.qcow2");
    std::fs::write(&image, [&b"QFI\xfb"[..], &[0; 8188]].concat()).expect("the folder is ours");
    let described = device(&format!("--filename={image}")).0;
    std::fs::remove_file(&image).expect("it is there");
    assert_eq!(described, format!("uring:{image},readonly=1,format=raw"));
    assert_eq!(device(&format!("--filename={path} --ioengine=null --rw=write")).0, "null");
    assert_eq!(device(&format!("--filename={path} --device=memory,size=2m")).0, "memory,size=2m");
    assert_eq!(device("--ioengine=libaio --rw=read").0, "null");
    let line = format!("--filename={path} --size=2m --ioengine=libaio");
    let virtual_plan = read(&line, Time::Virtual { seed: 0 }).expect("simulated");
    assert_eq!(virtual_plan.devices[0].text, "null");
    assert!(virtual_plan.notes.contains(&"no file is touched in virtual time".to_owned()));
}

#[test]
fn a_file_that_is_too_short_is_laid_out_to_the_size_that_is_asked_for() {
    let missing = std::env::temp_dir().join("blkmq-is-never-made");
    let missing = missing.to_str().expect("made of ASCII");
    let bytes = |line: &str| {
        let (text, size) = device(&format!("--filename={missing} --rw=write --direct=1 {line}"));
        assert_eq!(text, format!("uring:{missing},size={size}b"));
        size
    };
    assert_eq!(bytes("--size=1m"), 1 << 20);
    assert_eq!(bytes("--size=10k --offset=1m"), (1 << 20) + 10_240);
    assert_eq!(bytes("--size=1m --offset_increment=2m --numjobs=3"), 5 << 20);
    assert_eq!(bytes("--size=1m --offset_increment=2m --threads=1,2"), 3 << 20);
    assert_eq!(bytes("--filesize=4m"), 4 << 20);
    assert_eq!(bytes("--filesize=4m --size=50%"), 4 << 20);
    assert_eq!(bytes("--size=1m --name=a --name=b --size=2m --name=c --filesize=3m"), 3 << 20);
    assert!(!std::path::Path::new(missing).exists(), "a plan lays out nothing");
    let short = sparse("short", 4096);
    let path = short.path();
    assert_eq!(
        device(&format!("--filename={path} --size=8k")).0,
        format!("uring:{path},size=8192b")
    );
    assert_eq!(std::fs::metadata(path).expect("it is there").len(), 4096);
    let text = refusal(&format!("--filename={path} --filesize=8k --allow_file_create=0"));
    assert!(text.contains("allow_file_create=0 forbids"), "{text}");
}

#[test]
fn the_page_cache_is_passed_by_unless_it_is_asked_for() {
    let file = sparse("cached", 1 << 20);
    let path = file.path();
    let notes =
        |line: &str| plan(&format!("--filename={path} --rw=randrw {line}")).notes.join("; ");
    assert!(notes("").contains("passes by the page cache: direct is not given"));
    assert!(!notes("--direct=1").contains("page cache"));
    assert!(notes("--direct=0").contains("goes through the page cache, as direct=0 asks for"));
    let text = device(&format!("--filename={path} --rw=randrw --buffered=1")).0;
    assert_eq!(text, format!("uring:{path},direct=0"));
    let mixed = format!("--filename={path} --name=a --direct=1 --name=b --direct=0");
    assert!(refusal(&mixed).starts_with("direct=0 and direct=1 for one file"));
}

#[test]
fn a_synchronous_engine_has_one_io_in_flight() {
    let plan = plan("--ioengine=psync --iodepth=8 --iodepth_batch=4 --name=a --rw=read");
    assert_eq!((plan.jobs[0].depth.iodepth, plan.jobs[0].depth.batch_submit), (1, 1));
    assert!(plan.notes.iter().any(|note| note.contains("ioengine=psync has one I/O in flight")));
}

/// About 47 options were refused at the value that they have anyway.
#[test]
fn an_option_at_fios_default_is_accepted() {
    for option in options::all() {
        let Meaning::Unsupported(_, values) = option.meaning else { continue };
        let name = option.name;
        for value in values {
            for time in [Time::Real, Time::Virtual { seed: 0 }] {
                let line = format!("--name=a --rw=read --size=1m --{name}={value}");
                let plan = read(&line, time).expect(&line);
                assert!(!plan.notes.iter().any(|note| note.contains(name)), "{:?}", plan.notes);
            }
        }
    }
}

#[test]
fn the_version_is_what_programs_look_for_in_fio() {
    for option in ["--version", "-v", "--rw=read --version"] {
        let args = Vec::from_iter(option.split(' ').map(str::to_owned));
        let Ok(Request::Command(text)) = parse(&args, Time::Real) else { panic!("{option}") };
        assert!(text.starts_with("fio-3.33-blkmq-") && text.ends_with('\n'), "{text}");
    }
}

#[test]
fn a_job_file_is_shown_as_a_command_line() {
    let file = sparse("shown.fio", 0);
    let text = "[global]\nname=all\nsize=64k\n[one]\ntime_based=0\n[two]\nname=own\nbs=8k\n";
    std::fs::write(file.path(), text).expect("it can be written");
    let args = [file.path(), "--showcmd"].map(str::to_owned);
    let shown = |args: &[String]| match parse(args, Time::Real) {
        Ok(Request::Command(text)) => text,
        other => panic!("{other:?}"),
    };
    let line = "blkmq bench --size=64k --name=one --time_based=0 --name=own --bs=8k\n";
    assert_eq!(shown(&args), line);
    // The command line and the file mean the same.
    let words = line.trim_end().strip_prefix("blkmq bench ").expect("its beginning");
    assert_eq!(plan(words).jobs, plan(file.path()).jobs);
}

#[test]
fn several_formats_are_printed_one_after_the_other() {
    use crate::report::{Format, TerseVersion};
    let formats = |line: &str| {
        let plan = plan(line);
        Vec::from_iter([plan.format].into_iter().chain(plan.also))
    };
    assert_eq!(formats("--output-format=json,normal"), [Format::Json, Format::Normal]);
    let terse = Format::Terse;
    assert_eq!(formats("--minimal"), [terse(TerseVersion::V3)]);
    assert_eq!(
        formats("--append-terse --terse-version=3"),
        [Format::Normal, terse(TerseVersion::V3)]
    );
    assert_eq!(formats("--minimal --terse-version=5"), [terse(TerseVersion::V5)]);
    assert_eq!(
        formats("--terse-version=4 --output-format=json,terse"),
        [Format::Json, terse(TerseVersion::V4)]
    );
    assert!(refusal("--minimal --terse-version=2").contains("accepted: 3, 4, 5"));
    assert!(refusal("--output-format=json,xml").contains("accepted: normal, json, json+, csv"));
    assert!(refusal("--output-format=json,csv --output=x").contains("several formats in one file"));
}

#[cfg(target_os = "linux")]
#[test]
fn cpus_are_kept_for_each_job_and_refused_in_virtual_time() {
    let all = plan("--name=a --rw=read --cpumask=0xffffffffffffffff --name=b --rw=read");
    assert_eq!(all.cpus.len(), 2);
    assert!(all.cpus[0].as_ref().is_some_and(|cpus| !cpus.is_split) && all.cpus[1].is_none());
    let split = plan("--rw=read --cpumask=0xffffffffffffffff --cpus_allowed_policy=split");
    assert!(split.cpus[0].as_ref().is_some_and(|cpus| cpus.is_split));
    let of_nodes = plan("--rw=read --numa_cpu_nodes=all --numa_mem_policy=local");
    assert!(of_nodes.cpus[0].is_some());
    assert!(refusal("--rw=read --numa_mem_policy=far").contains("accepted: default, local"));
    let text = read("--rw=read --cpumask=0xff", Time::Virtual { seed: 0 }).expect_err("refused");
    assert_eq!(
        text,
        "cpus_allowed: each virtual thread has a CPU of its own; accepted by blkmq bench"
    );
}

#[test]
fn virtual_time_has_no_date() {
    let line = "--rw=read --write_lat_log=x --log_unix_epoch=1";
    assert!(plan(line).jobs[0].logs.unix_epoch);
    let text = read(line, Time::Virtual { seed: 0 }).expect_err("refused");
    assert_eq!(text, "log_unix_epoch: virtual time has no date; accepted by blkmq bench");
}

/// A scheduler orders by distance: files on one disk share its queue, and follow each other on the device.
#[test]
fn several_files_are_one_device_and_each_job_knows_its_own() {
    let [a, b] = ["several-a", "several-b"].map(|name| sparse(name, 1 << 20));
    let (one, two) = (a.path(), b.path());
    let plan = plan(&format!(
        "--direct=1 --bs=4k --name=x --filename={one}:{two} --rw=read --name=y --filename={two} --rw=write --size=64k"
    ));
    let [device] = plan.devices.as_slice() else { panic!("{:?}", plan.devices) };
    let placed = device.files.iter().map(|file| (file.start, file.text.as_str()));
    let (reads, writes) = (format!("uring:{one},readonly=1"), format!("uring:{two}"));
    assert_eq!(placed.collect::<Vec<_>>(), [(0, reads.as_str()), (2 << 20, writes.as_str())]);
    assert_eq!(device.size_bytes, 3 << 20);
    let regions = |job: usize| {
        let regions = plan.jobs[job].regions(0, device.size_bytes).expect("they fit");
        Vec::from_iter(regions.iter().map(|it| (it.file >> 20, it.start >> 20, it.size >> 10)))
    };
    assert_eq!(regions(0), [(0, 0, 1024), (2, 2, 1024)]);
    assert_eq!(regions(1), [(2, 2, 64)]);
}

/// Regression test: a job with a percentage as its offset was refused if the file had to grow for it, and percentages
/// referred to the longer file.
#[test]
fn a_file_grows_from_job_to_job() {
    let file = sparse("grows", 1 << 20);
    let path = file.path();
    let plan = plan(&format!(
        "--filename={path} --direct=1 --rw=read --name=a --offset=25% --size=1m --name=b --offset=50% --size=64k"
    ));
    let [device] = plan.devices.as_slice() else { panic!("{:?}", plan.devices) };
    assert_eq!(device.size_bytes, 1_280 << 10);
    let regions = plan.jobs.iter().map(|job| job.region(0, device.size_bytes).expect("it fits"));
    let places = Vec::from_iter(regions.map(|it| (it.start >> 10, it.room >> 10)));
    assert_eq!(places, [(256, 1024), (640, 640)]);
}

#[test]
fn files_of_threads_are_laid_out_as_fio_names_them() {
    let folder = std::env::temp_dir();
    let folder = folder.to_str().expect("made of ASCII");
    let line = format!(
        "--directory={folder} --direct=1 --name=blkmq-nowhere --numjobs=2 --nrfiles=2 --rw=write --size=128k"
    );
    let plan = plan(&line);
    let texts = plan.devices[0].files.iter().map(|file| file.text.clone());
    let expected = ["0.0", "0.1", "1.0", "1.1"]
        .map(|n| format!("uring:{folder}/blkmq-nowhere.{n},size=65536b"));
    assert_eq!(texts.collect::<Vec<_>>(), expected);
    assert!(
        plan.notes.contains(
            &"4 files are laid out before the first run: 262144 bytes, written through".to_owned()
        ),
        "{:?}",
        plan.notes
    );
    let many = refusal(&format!("{line} --numjobs=500"));
    assert!(many.starts_with("nrfiles: 1000 files in a run; accepted: up to 900"), "{many}");
}

#[test]
fn on_a_device_several_files_are_stretches_of_it() {
    let stretches = |line: &str| {
        let plan = read(line, Time::Virtual { seed: 0 }).expect(line);
        let files = plan.jobs[0].files.clone().expect("files");
        Vec::from_iter(files.list.iter().map(|file| (file.start >> 20, file.bytes >> 10)))
    };
    let device = "--device=memory,size=64";
    assert_eq!(
        stretches(&format!("{device} --nrfiles=3 --size=3m")),
        [(0, 1024), (2, 1024), (4, 1024)]
    );
    assert_eq!(stretches(&format!("{device} --filename=a:b")), [(0, 32764), (32, 32764)]);
    assert_eq!(stretches("--filename=a:b --size=8m"), [(0, 4096), (5, 4096)]);
    let sized = stretches(&format!("{device} --nrfiles=2 --filesize=256k --size=64k"));
    assert_eq!(sized, [(0, 256), (1, 256)]);
    assert_eq!(plan("--device=memory --filename=a").jobs[0].files, None);
    let large = refusal("--device=memory,size=4 --nrfiles=2 --size=8m");
    assert!(large.contains("does not fit into a device of 4194304 bytes"), "{large}");
}

#[test]
fn what_would_have_a_queue_of_its_own_is_refused() {
    let file = sparse("on-a-disk", 1 << 20);
    let path = file.path();
    let other = refusal(&format!("--filename={path}:/proc/self/status --direct=1 --size=8k"));
    assert!(other.contains("lies on another file system, and would have a queue"), "{other}");
    let null = refusal(&format!("--filename={path} --name=a --name=b --ioengine=null"));
    assert!(null.starts_with("job 'b': has no file, and job 'a' has filename="), "{null}");
}

/// fio's linear feedback shift register visits all blocks, with or without a map.
#[test]
fn lfsr_visits_each_block_once() {
    let map = |line: &str| {
        !plan(&format!("--rw=randread --size=1m --norandommap {line}")).jobs[0].norandommap
    };
    assert!(map("--random_generator=lfsr"));
    assert!(!map("--random_generator=tausworthe64") && !map(""));
    assert!(
        !map("--random_generator=lfsr --bssplit=4k/50:8k/50"),
        "as with fio, blocks of one size only"
    );
    assert!(refusal("--random_generator=x").contains("tausworthe, tausworthe64, lfsr"));
}

#[test]
fn help_names_every_option_and_the_devices_of_its_time() {
    let help = |time| definition(time).render_help().to_string();
    let (bench, sim) = (help(Time::Real), help(Time::Virtual { seed: 0 }));
    assert!(!bench.contains("--seed=<NUMBER>") && sim.contains("--seed=<NUMBER>"));
    assert!(!sim.contains("uring:PATH"));
    assert_eq!(bench.contains("uring:PATH"), cfg!(target_os = "linux"));
    assert!(bench.contains("faults[,KEY=VALUE]...:DEVICE"));
    for (heading, option) in options::under_headings().filter(|(it, _)| *it != options::VIRTUAL) {
        assert!(bench.contains(option.name), "{} is missing", option.name);
        let listed = bench.contains(&format!("      --{}", option.name));
        assert!(listed || heading == options::FOREIGN, "{} is missing", option.name);
    }
}
