//! Runs `blkmq bench --verify` as a user would: real threads on the memory device, and the messages about blocks that
//! do not contain the data written to them.

use serde_json::Value;
use std::process::{Command, Output};

/// Runs a bench on a memory device, unless the line names another one.
fn bench(line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_blkmq"));
    command.args(["bench", "--output-format=json"]).args(line.split_whitespace());
    if !line.contains("--device") {
        command.arg("--device=memory,size=64,discard=1");
    }
    command.output().expect("the binary starts")
}

fn jobs(output: &Output) -> Vec<Value> {
    let report: Value = serde_json::from_slice(&output.stdout).expect("the report is JSON");
    report["jobs"].as_array().expect("jobs are a list").clone()
}

/// The jobs, if a report was printed.
fn jobs_or_none(output: &Output) -> Vec<Value> {
    if output.stdout.is_empty() { Vec::new() } else { jobs(output) }
}

/// The jobs of a bench that must succeed.
fn right(line: &str) -> Vec<Value> {
    let output = bench(line);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{line}: {errors}");
    let jobs = jobs(&output);
    for job in &jobs {
        assert_eq!(
            (&job["error"], &job["blkmq"]["verify"]["errors"]),
            (&0.into(), &0.into()),
            "{line}"
        );
    }
    jobs
}

/// The jobs of a bench that found wrong contents, and its one line on standard error.
fn wrong(line: &str) -> (Vec<Value>, String) {
    let output = bench(line);
    let message = String::from_utf8(output.stderr.clone()).expect("messages are text");
    assert_eq!(output.status.code(), Some(1), "{line}: {message}");
    let message = message.strip_suffix('\n').expect("a whole line").to_owned();
    assert!(!message.contains('\n'), "{message}");
    (jobs(&output), message)
}

fn verified(job: &Value) -> u64 {
    job["blkmq"]["verify"]["verified"].as_u64().expect("a count")
}

/// Sequential writers in plugs of eight, so that requests merge, with pumps of either kind.
#[test]
fn merged_writes_of_several_threads_are_right_under_every_scheduler() {
    for pump in ["inline", "threads"] {
        let jobs = right(&format!(
            "--rw=write --bs=4k --size=2m --numjobs=4 --offset_increment=2m --iodepth=32 \
             --iodepth_batch_submit=8 --verify=crc32c --group_reporting --pump={pump} \
             --access=combining,mutex"
        ));
        assert!(jobs.len() >= 4, "two schedulers at least, in two ways");
        for job in jobs {
            assert_eq!(verified(&job), 8 << 20);
            let reads = &job["read"]["total_ios"];
            assert_eq!((reads, &job["blkmq"]["verify"]["reads"]), (&2048.into(), &2048.into()));
            let merges = job["blkmq"]["merges"].as_object().expect("an object").values();
            let merged: u64 = merges.filter_map(Value::as_u64).sum();
            assert!(merged > 0, "{}", job["blkmq"]);
        }
    }
}

/// Blocks are drawn independently, so that writes, reads and trims of one block coincide in flight.
#[test]
fn overlapping_io_raises_no_false_alarm() {
    for line in [
        "--rw=randrw --bssplit=4k/50:12k/50 --norandommap --loops=4 --verify=crc32c",
        "--rw=randwrite --bs=8k --blockalign=512 --norandommap --loops=4 --verify=xxhash --gtod_reduce=1",
        "--rw=randtrimwrite --bs=4k --norandommap --loops=4 --verify=crc32c --verify_backlog=64",
        "--rw=randrw --bs=4k --random_distribution=zipf:1.2 --loops=8 --verify=crc32c --verify_backlog=1",
        "--rw=randwrite --bs=16k --verify=pattern --verify_pattern=0xfeed%o --verify_interval=512 --fsync=8",
    ] {
        let common =
            "--size=1m --numjobs=2 --offset_increment=1m --iodepth=16 --iodepth_batch_submit=4";
        for job in right(&format!("{line} {common}")) {
            assert!(verified(&job) >= 64 << 10, "{line}: {}", verified(&job));
        }
    }
}

/// I/Os that the device takes in parts, some of them merged, are reassembled; fewer I/Os are in flight than bios.
#[test]
fn blocks_longer_than_the_device_takes_are_right() {
    for line in [
        "--rw=write --bs=64k --verify=crc32c",
        "--rw=randrw --bssplit=4k/50:52k/50 --norandommap --loops=4 --verify=crc32c --verify_backlog=8",
        "--rw=randtrimwrite --bs=64k --norandommap --loops=4 --verify=xxhash --fsync=4",
    ] {
        let jobs = right(&format!(
            "--device=memory,size=8,discard=1,cache_size=1,max_sectors=24,submit_queues=2 {line} \
             --size=2m --numjobs=2 --offset_increment=2m --iodepth=8 --iodepth_batch_submit=4"
        ));
        for job in jobs {
            assert!(verified(&job) >= 64 << 10, "{line}: {}", verified(&job));
            assert!(job["blkmq"]["splits"].as_u64() > Some(0), "{}", job["blkmq"]);
        }
    }
}

/// Requests are refused, requeued, and answered late and out of order, none of which is damage.
#[test]
fn faults_that_damage_nothing_are_not_taken_for_damage() {
    let device = "faults,resource=0.001,dev_resource=0.01,requeue=0.05,late=0.02,reorder=0.1,\
                  seed=7:memory,size=4,submit_queues=2";
    for line in [
        "--rw=randrw --norandommap --verify=crc32c --verify_backlog=32",
        "--rw=randwrite --norandommap --verify=xxhash --pump=threads",
    ] {
        let jobs = right(&format!(
            "--device={device} {line} --size=512k --numjobs=2 --offset_increment=512k --loops=4 \
             --iodepth=16 --iodepth_batch_submit=8"
        ));
        assert!(jobs.iter().any(|job| job["blkmq"]["requeues"].as_u64() > Some(0)));
    }
}

#[test]
fn a_timed_job_is_read_back_when_its_time_is_over() {
    let jobs = right(
        "--rw=randwrite --size=1m --runtime=20ms --ramp_time=5ms --time_based --iodepth=4 --verify=crc32c",
    );
    assert!(jobs.iter().all(|job| verified(job) > 0));
}

/// With several schedulers, the scheduler's name follows that of the job.
fn is_check(job: &Value) -> bool {
    job["job options"]["name"] == "check"
}

#[test]
fn a_later_job_checks_what_an_earlier_one_wrote() {
    let line = "--bs=8k --size=1m --verify=crc32c --name=fill --rw=randwrite --do_verify=0 \
                --name=check --stonewall --rw=randread --iodepth=8";
    for job in right(line) {
        let bytes = if is_check(&job) { 1 << 20 } else { 0 };
        assert_eq!(verified(&job), bytes);
    }
    // Sequential streams do not depend on the job's place in the plan.
    let line = "--size=1m --verify=crc32c --rw=write --name=fill --do_verify=0 \
                --name=check --stonewall --verify_only";
    for job in right(line) {
        let only = is_check(&job);
        assert_eq!(verified(&job), if only { 1 << 20 } else { 0 });
        assert_eq!(job["write"]["total_ios"], if only { 0 } else { 256 });
    }
}

/// Zeroes of another origin are in the third and fourth block.
const DAMAGE: &str = "--bs=4k --scheduler=none --name=fill --rw=write --size=64k --verify=crc32c \
                      --name=damage --stonewall --rw=write --zero_buffers --offset=8k --size=8k \
                      --name=check --stonewall --rw=read --size=64k --verify=crc32c";

#[test]
fn damage_is_found_where_it_is_and_counted() {
    let (jobs, message) = wrong(DAMAGE);
    assert_eq!(
        message,
        "blkmq: verification failed with none, 3 threads: 2 wrong blocks; the first: job 'check', thread 0, \
         offset 8192 (block 2 of 4096 bytes): no header, expected 0x31567162, found 0x00000000"
    );
    let (fill, check) = (&jobs[0], &jobs[2]);
    assert_eq!((&fill["error"], verified(fill)), (&0.into(), 64 << 10));
    assert_eq!((&check["error"], &check["blkmq"]["verify"]["errors"]), (&84.into(), &2.into()));
    assert_eq!((verified(check), &check["read"]["total_ios"]), (64 << 10, &16.into()));
    assert_eq!(jobs[1]["blkmq"].get("verify"), None);
}

#[test]
fn the_first_wrong_block_is_fatal_if_it_is_to_be() {
    let (jobs, message) = wrong(&format!("{DAMAGE} --verify_fatal"));
    assert!(message.contains("1 wrong block; the first: job 'check'"), "{message}");
    assert_eq!(jobs[2]["read"]["total_ios"], 3);
}

#[test]
fn contents_of_another_seed_are_wrong() {
    let (_, message) = wrong(
        "--size=64k --verify=xxhash --scheduler=none --name=fill --rw=write --name=check --stonewall \
         --rw=read --randseed=1",
    );
    assert!(
        message.contains("16 wrong blocks") && message.contains("seed, expected 0x"),
        "{message}"
    );
    let (_, message) = wrong(
        "--size=64k --verify=xxhash --scheduler=none --name=fill --rw=write --do_verify=0 --name=check --stonewall \
         --rw=read --verify_interval=512",
    );
    assert!(message.contains("verify_interval, expected 512, found 4096"), "{message}");
}

/// As in fio.
#[test]
fn blocks_of_a_verify_interval_divide_every_io() {
    let line = "--rw=write --size=240k --scheduler=none --verify=crc32c --verify_interval=4k";
    for sizes in ["--bs=6k", "--bsrange=2k-12k", "--bs=4k,6k"] {
        let output = bench(&format!("{line} {sizes}"));
        assert_eq!(verified(&jobs(&output)[0]), 240 << 10, "{sizes}");
        let report = String::from_utf8_lossy(&output.stdout);
        assert!(report.contains("verify_interval=4096: blocks of 2048 bytes"), "{report}");
    }
}

/// A bad block ends the job, which then reads nothing back.
#[test]
fn what_could_not_be_read_back_is_no_success() {
    let (jobs, message) = wrong(
        "--device=memory,size=1,badblocks=+64-71 --scheduler=none --rw=write --size=64k --verify=crc32c",
    );
    assert!(message.contains("error 5 before everything was verified"), "{message}");
    assert_eq!(jobs[0]["blkmq"]["verify"]["errors"], 0);
}

/// Every checksum and digest finds the damage that another job has done.
#[test]
fn every_method_finds_damage_and_nothing_else() {
    for method in ["crc32c", "xxhash", "md5", "sha256"] {
        let line = format!(
            "--rw=randwrite --bs=4k --size=64k --scheduler=none --verify={method} --verify_backlog=4"
        );
        assert_eq!(verified(&right(&line)[0]), 64 << 10, "{method}");
        let (jobs, message) = wrong(&DAMAGE.replace("crc32c", method));
        assert!(message.contains("2 wrong blocks"), "{method}: {message}");
        assert_eq!(jobs[2]["blkmq"]["verify"]["errors"], 2);
    }
}

/// The run ends by the clock, and a later one checks exactly what it has written: the blocks of its last pass and of
/// the previous one.
#[test]
fn a_state_says_what_a_run_has_written() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("state");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    let run = |line: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_blkmq"));
        command.current_dir(&folder).args(["sim", "--output-format=json", "--scheduler=none"]);
        let output = command.args(line.split_whitespace()).output().expect("the binary starts");
        (jobs_or_none(&output), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let write = "--device=memory,size=64 --name=w --rw=randwrite --bs=4k --size=1m --numjobs=2 --offset_increment=1m \
                 --runtime=20us --time_based --verify=sha256";
    let (saved, errors) = run(&format!("{write} --verify_state_save=1 --do_verify=0"));
    assert_eq!((saved.len(), errors.as_str()), (2, ""));
    let state = |thread: u32| folder.join(format!("local-w-{thread}-verify.state"));
    let bytes = std::fs::read(state(1)).expect("a state");
    assert_eq!(bytes.len(), 32 + 256 * 4 + 4);
    // In virtual time a device forgets its data at the end of the command, so that every checked block is wrong.
    let (checked, _) = run(&format!("{write} --verify_only --verify_state_load=1"));
    for (job, thread) in checked.iter().zip(0..) {
        let bytes = std::fs::read(state(thread)).expect("a state");
        let known = bytes[32..32 + 1024].chunks(4).filter(|entry| *entry != [0; 4]).count() as u64;
        assert!(known > 5, "{known}");
        assert_eq!((verified(job), &job["write"]["total_ios"]), (known << 12, &0.into()));
    }
    let refused = |line: &str, why: &str| {
        let (_, errors) = run(line);
        assert!(errors.contains(why), "{errors}");
    };
    refused(&format!("{write} --verify_only --verify_state_load=1 --randseed=5"), "another job");
    refused(&format!("{write} --verify_state_load=1"), "without verify_only");
    std::fs::write(state(0), b"no state").expect("a file");
    refused(&format!("{write} --verify_only --verify_state_load=1"), "no state of a verification");
    std::fs::remove_file(state(0)).expect("a file");
    refused(&format!("{write} --verify_only --verify_state_load=1"), "No such file");
}

#[test]
fn a_pattern_may_be_a_file() {
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("pattern");
    std::fs::write(&file, b"some bytes").expect("a file");
    let pattern = format!("--verify_pattern='{}'", file.display());
    let line = format!(
        "--scheduler=none --bs=4k --size=64k --name=fill --rw=write --verify=pattern {pattern} --do_verify=0 \
         --name=check --stonewall --rw=read --verify=pattern"
    );
    right(&format!("{line} --verify_pattern=\"some\"0x20\"bytes\""));
    let (_, message) = wrong(&format!("{line} --verify_pattern=\"some\"0x21\"bytes\""));
    assert!(message.contains("16 wrong blocks"), "{message}");
    for (name, why) in [("/nonexistent", "No such file"), ("/", "no regular file")] {
        let output =
            bench(&format!("--rw=write --size=64k --verify=pattern --verify_pattern='{name}'"));
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.contains(why) && message.contains("accepted:"), "{message}");
    }
}

#[test]
fn null_does_everything_but_look() {
    let jobs = right("--device=null --verify=null --rw=randwrite --size=64k --scheduler=none");
    let job = &jobs[0];
    assert_eq!(verified(job), 0);
    assert_eq!(job["blkmq"]["completed"], 32, "16 writes, and 16 reads to check them");
}
