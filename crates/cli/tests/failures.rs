//! Runs that fail: I/Os that fail, I/Os that never complete, and threads that cannot be started. Each run ends in time,
//! with one line that describes the failure and exit code 1. With `--verify`, real threads on the memory device find
//! blocks that do not contain the data written to them.

use serde_json::Value;
use std::process::{Command, Output};

fn blkmq(line: &str) -> Output {
    let args = line.split_whitespace();
    Command::new(env!("CARGO_BIN_EXE_blkmq")).args(args).output().expect("the binary starts")
}

/// The last line on standard error of a failing run, and its standard output.
fn troubled(line: &str) -> (String, String) {
    let output = blkmq(line);
    let errors = String::from_utf8(output.stderr).expect("messages are text");
    assert_eq!(output.status.code(), Some(1), "{line}: {errors}");
    let last = errors.lines().last().expect("a line").to_owned();
    assert!(last.starts_with("blkmq: "), "{line}: {errors}");
    (last, String::from_utf8(output.stdout).expect("text"))
}

const WRITES: &str = "--scheduler=none --rw=write --bs=4k --size=8m";

#[test]
fn failed_ios_are_named_and_end_the_command_with_1() {
    for (command, faults, expected) in [
        ("bench", "write_error=0.01", "I/O error (errno 5)"),
        ("sim", "write_error=0.01", "I/O error (errno 5)"),
        (
            "bench",
            "write_error=1,errno=28",
            "a write of 4096 bytes at offset 0: no space (errno 28)",
        ),
        ("sim", "write_error=1,errno=30", "a write of 4096 bytes at offset 0: errno 30"),
        ("bench", "write_error=1,errno=110,space=3", "at offset 12288: timed out (errno 110)"),
        ("bench", "flush_error=1", "a flush: I/O error (errno 5)"),
    ] {
        // Only a device with a volatile cache gets flushes.
        let fsync = if faults.starts_with("flush") { ",cache_size=1 --fsync=4" } else { "" };
        let memory = if command == "bench" {
            "memory,size=64"
        } else {
            "memory,size=64,completion_nsec=100"
        };
        let run = format!("{command} --device=faults,{faults}:{memory}{fsync} {WRITES}");
        let (line, text) = troubled(&run);
        assert!(line.contains("I/O failed with none, 1 thread: "), "{run}: {line}");
        assert!(line.contains("job 'blkmq', thread 0, a") && line.ends_with(expected), "{line}");
        assert!(text.contains("I/O failed with"), "the report says it as well: {text}");
    }
}

#[test]
fn failed_ios_are_not_counted_as_done() {
    let run = format!(
        "bench --output-format=json --device=faults,write_error=1,space=100:memory,size=64 {WRITES}"
    );
    let (_, json) = troubled(&run);
    let report: Value = serde_json::from_str(&json).expect("JSON");
    let job = &report["jobs"][0];
    assert_eq!(job["error"], 5);
    let write = &job["write"];
    assert_eq!((&write["total_ios"], &write["io_bytes"]), (&100.into(), &(100 * 4096).into()));
    assert_eq!(write["clat_ns"]["N"], 100);

    let nothing = run.replace(",space=100", "");
    let report: Value = serde_json::from_str(&troubled(&nothing).1).expect("JSON");
    let write = &report["jobs"][0]["write"];
    assert_eq!((&write["total_ios"], &write["iops"]), (&0.into(), &0.0.into()));
}

/// The failures of a device that is being tried on purpose are counted, and the rest of the I/O is done.
#[test]
fn a_job_continues_behind_failed_ios_where_it_is_told_to() {
    for command in ["bench", "sim"] {
        let memory = if command == "bench" { "size=64" } else { "size=64,completion_nsec=100" };
        let run = |on: &str| {
            format!(
                "{command} --output-format=json --device=faults,write_error=0.1,seed=3:memory,{memory} {WRITES} \
                 --continue_on_error={on}"
            )
        };
        for on in ["write", "io", "all", "1"] {
            let output = blkmq(&run(on));
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let job = &report["jobs"][0];
            let (done, failed) = (&job["write"]["total_ios"], &job["total_err"]);
            let (done, failed) =
                (done.as_u64().expect("a count"), failed.as_u64().expect("a count"));
            assert_eq!(done + failed, 2048, "{job}");
            assert!((100..400).contains(&failed), "one in ten: {failed}");
            assert_eq!((&job["error"], &job["first_error"]), (&0.into(), &5.into()));
            let notes = report["blkmq"]["notes"].as_array().expect("notes");
            let says = format!("{failed} I/Os; the first: job");
            assert!(notes.iter().any(|note| note.as_str().is_some_and(|it| it.contains(&says))));
        }
        for on in ["none", "read", "verify"] {
            assert!(troubled(&run(on)).0.ends_with("I/O error (errno 5)"), "{on}");
        }
        // It would fail for ever.
        let full = run("all").replace("write_error=0.1", "write_error=0.1,errno=28");
        assert!(troubled(&full).0.ends_with("no space (errno 28)"));
        let text = blkmq(&run("write").replace("--output-format=json", ""));
        let text = String::from_utf8_lossy(&text.stdout).into_owned();
        assert!(
            text.contains("\n  errors   : total=") && text.contains(", first_error=5\n"),
            "{text}"
        );
    }
}

#[test]
fn an_io_that_takes_too_long_ends_its_thread() {
    let run = |most: &str| {
        format!(
            "sim --output-format=json --device=null,irqmode=2,completion_nsec=100000 --scheduler=none --rw=randrw \
             --bs=4k --size=8m --max_latency={most}"
        )
    };
    for enough in ["1ms", "200", "0", "1ms,,1us"] {
        let output = blkmq(&run(enough));
        assert!(output.status.success(), "{enough}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let (line, json) = troubled(&run("1ms,50us"));
    assert!(
        line.contains(
            "latency bound exceeded with none, 1 thread: job 'blkmq', thread 0: a write took "
        ),
        "{line}"
    );
    assert!(line.ends_with(" us, max_latency is 50.0 us (errno 110)"), "{line}");
    let report: Value = serde_json::from_str(&json).expect("JSON");
    let job = &report["jobs"][0];
    assert_eq!((&job["error"], &job["write"]["total_ios"]), (&110.into(), &1.into()));
}

/// I/Os that wait for their group's limit, that a device holds for ten minutes, that it loses, and that it never
/// accepts.
const STALLS: [(&str, &str); 4] = [
    (
        "--device=null --group=a:riops=1 --cgroup=a --iodepth=1000 --iodepth_batch_submit=1000",
        "cancelled, 0 never",
    ),
    ("--device=null,irqmode=2,completion_nsec=600000000000", "1 never came back"),
    ("--device=faults,timeout=1,timeout_nsec=600000000000:null", "1 never came back"),
    ("--device=faults,resource=1:null", "1 never came back"),
];

#[test]
fn a_runtime_bounds_what_stalls() {
    for (device, expected) in STALLS {
        for command in ["bench", "sim"] {
            let run = format!(
                "{command} {device} --scheduler=none --rw=randread --size=100m --runtime=200ms --time_based"
            );
            let (line, text) = troubled(&run);
            assert!(!text.contains("this is a bug"), "{run}: {text}");
            assert!(
                line.contains("I/O stalled with none, 1 thread: job 'blkmq', thread 0: "),
                "{line}"
            );
            assert!(line.contains(expected), "{run}: {line}");
        }
    }
}

/// Regression test: threads already started waited at a barrier for ever for the one that could not be started.
#[test]
#[cfg(target_os = "linux")]
fn threads_that_cannot_be_started_are_an_error_and_no_hang() {
    // The limit is too small for the stacks of so many threads. Stacks are large, so that when there is no room for
    // another one, enough memory remains for the threads already started.
    let line =
        "--device=null --scheduler=none --rw=randread --size=100m --number_ios=9 --numjobs=999";
    let limited = format!("ulimit -v 600000 && exec {} bench {line}", env!("CARGO_BIN_EXE_blkmq"));
    let mut shell = Command::new("sh");
    shell.args(["-c", &limited]).env("RUST_MIN_STACK", (64 << 20).to_string());
    let output = shell.output().expect("there is a shell");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains(" of 999 threads could be started: "), "{errors}");
    assert!(errors.ends_with('\n') && errors.lines().count() == 1, "{errors}");
}

/// The line appears during the stall, in virtual time as in real time.
#[test]
fn a_stall_is_told_of_with_what_waits_and_where() {
    let run = "sim --device=null,irqmode=2,completion_nsec=600000000000 --scheduler=none --rw=randread \
               --size=100m --runtime=15 --time_based";
    let errors = String::from_utf8(blkmq(run).stderr).expect("messages are text");
    let mut lines = errors.lines();
    assert_eq!(lines.next(), Some("blkmq: none: submitter 0: 1 outstanding for 10.0 s"));
    let request = lines.next().expect("what waits");
    assert!(request.starts_with("  read of 8 sectors at "), "{request}");
    assert!(request.ends_with(", thread 1: at the device, for 10.0 s"), "{request}");
}

/// An I/O that a program submits after its sleep has not waited during the sleep.
#[test]
fn a_thread_that_begins_late_has_not_stalled() {
    let run = "sim --device=null,irqmode=2,completion_nsec=1000000 --scheduler=none --rw=randread --size=100m \
               --startdelay=20 --iodepth=8 --number_ios=300";
    let errors = String::from_utf8(blkmq(run).stderr).expect("messages are text");
    assert!(errors.is_empty(), "{errors}");
}

#[test]
fn limits_hold_after_more_than_a_year() {
    let run = "sim --scheduler=none --device=null --rw=randread --size=100m --group=a:riops=100 --cgroup=a \
               --number_ios=1000 --startdelay=400d --output-format=json";
    let output = blkmq(run);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let iops = report["jobs"][0]["read"]["iops"].as_f64().expect("a rate");
    assert!((99.0..102.0).contains(&iops), "{iops}");
}

#[test]
fn a_deep_queue_on_a_slow_device_is_no_stall() {
    let output = blkmq(
        "sim --device=disk --scheduler=none --rw=randread --iodepth=256 --runtime=1 --time_based",
    );
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
}

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
