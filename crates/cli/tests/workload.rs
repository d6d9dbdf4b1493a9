//! Runs `blkmq sim` and checks the I/Os issued by a job: counts, bytes, rates, depths and priorities, as in fio 3.33
//! with the same options; jobs that steer each other or are watched, and zones. Runs of `blkmq bench` on files named by
//! `filename` get the I/O, and lay the files out as in fio.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};

/// The jobs in the report of `blkmq sim` with these options on a device that takes 50 us.
pub fn jobs(line: &str) -> Vec<Value> {
    let scheduler = if line.contains("--scheduler") { "" } else { "--scheduler=none" };
    let args = ["sim", "--output-format=json"].into_iter().chain(scheduler.split_whitespace());
    let output = Command::new(env!("CARGO_BIN_EXE_blkmq"))
        .args(args.chain(line.split_whitespace()))
        .output()
        .expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    report["jobs"].as_array().cloned().expect("a list of jobs")
}

/// A device that takes 50 us for each of up to 64 I/Os.
pub const SLOW: &str =
    "--device=null,irqmode=2,completion_nsec=50000,submit_queues=1,hw_queue_depth=64";

pub fn job(line: &str) -> Value {
    jobs(line).remove(0)
}

pub fn ios(job: &Value) -> [u64; 2] {
    ["read", "write"].map(|direction| job[direction]["total_ios"].as_u64().expect("a count"))
}

/// Regression test: the result was "2.59 MiB compared, 0 blocks wrong" for 4 MiB written, because the other blocks were
/// written several times, or never.
#[test]
fn verification_compares_all_blocks_of_several_sizes() {
    let line = "--device=memory,size=64 --name=a --size=4m --verify=crc32c";
    for sizes in ["--bssplit=4k/50:64k/50", "--bsrange=4k-30k", "--bsrange=512:64k"] {
        let job = job(&format!("{line} --rw=randwrite {sizes}"));
        assert_eq!(job["write"]["io_bytes"], 4 << 20, "{sizes}");
        assert_eq!(job["blkmq"]["verify"]["verified"], 4 << 20, "{sizes}");
        assert_eq!(job["blkmq"]["verify"]["errors"], 0, "{sizes}");
    }
}

/// Regression test: reads waited behind writes: `rate_iops=1000,200` gave 195 and 200.
#[test]
fn rates_of_directions_do_not_depend_on_each_other() {
    for (line, expected) in [
        ("--rw=randrw --rate_iops=1000,200", [1000, 200]),
        ("--rw=rw --rate=1m,2m", [256, 512]),
        ("--rw=randrw --rwmixread=80 --rate_iops=1000,200", [1000, 200]),
        ("--rw=randrw --rwmixread=20 --rate_iops=100,2000", [100, 2000]),
    ] {
        let seen = ios(&job(&format!("{SLOW} --name=a {line} --runtime=1 --time_based --size=1g")));
        for (seen, expected) in seen.into_iter().zip(expected) {
            assert!(seen.abs_diff(expected) <= 2, "{line}: {seen} for {expected}");
        }
    }
}

#[test]
fn poisson_arrivals_keep_the_rate_and_pile_up() {
    let line = format!(
        "{SLOW} --name=a --rw=randread --iodepth=64 --rate_iops=2000 --runtime=1 --time_based"
    );
    let (even, random) = (job(&line), job(&format!("{line} --rate_process=poisson")));
    let [reads, _] = ios(&random);
    assert!(reads.abs_diff(2000) < 150, "{reads}");
    let alone = |job: &Value| job["iodepth_level"]["1"].as_f64().expect("a share");
    assert!(alone(&even) > 99.9 && alone(&random) < 97.0, "{} {}", alone(&even), alone(&random));
}

/// Depths were counted one by one while a portion was gathered: 6, 12, 25, 50, 6 percent.
#[test]
fn the_depth_of_a_portion_is_that_of_its_last_io() {
    let line = format!("{SLOW} --name=a --rw=randread --size=4m");
    let level = |options: &str, key: &str| {
        job(&format!("{line} {options}"))["iodepth_level"][key].as_f64().expect("a share")
    };
    let batches = "--iodepth=16 --iodepth_batch=16 --iodepth_batch_complete=16";
    assert!(level(batches, "16") > 99.99);
    let eights = "--iodepth=32 --iodepth_batch=8 --iodepth_batch_complete=8";
    assert!(level(eights, "32") > 97.0 && level(eights, "4") == 0.0);
    assert!(level("--iodepth=8", "8") > 99.0);
}

#[test]
fn runs_and_holes_issue_what_fio_issues() {
    let line = "--name=a --size=1m";
    for (pattern, expected) in [
        ("randread:8", [256, 0]),
        ("read:4k", [256, 0]),
        ("write:8k", [0, 86]),
        ("read:-8k", [256, 0]),
    ] {
        assert_eq!(ios(&job(&format!("{line} --rw={pattern}"))), expected, "{pattern}");
    }
    assert_eq!(ios(&job("--name=a --rw=read --size=1m --io_size=33%")), [85, 0]);
}

#[test]
fn latencies_are_counted_by_priority_where_there_are_several() {
    let line = format!("{SLOW} --name=a --rw=randrw --size=4m");
    let both = job(&format!("{line} --prioclass=2 --prio=7 --cmdprio_percentage=30,0"));
    let prios = both["read"]["prios"].as_array().expect("two priorities");
    let numbers = |prio: &Value| (prio["prioclass"].as_u64(), prio["prio"].as_u64());
    let seen = Vec::from_iter(prios.iter().map(numbers));
    assert_eq!(seen, [(Some(1), Some(0)), (Some(2), Some(7))]);
    let count = |at: usize| prios[at]["clat_ns"]["N"].as_u64().expect("a count");
    assert_eq!(count(0) + count(1), ios(&both)[0]);
    assert!(count(0) * 10 > 2 * ios(&both)[0] && count(0) * 10 < 4 * ios(&both)[0]);
    assert!(prios[0]["clat_ns"]["percentile"]["99.000000"].is_u64());
    assert!(both["write"].get("prios").is_none(), "all writes have the same");
    assert!(job(&format!("{line} --cmdprio_percentage=100"))["read"].get("prios").is_none());
}

/// mq-deadline serves the realtime class first, so the option has reached the scheduler.
#[test]
fn a_scheduler_sees_the_priorities() {
    let line = "--scheduler=mq-deadline --device=null,irqmode=2,completion_nsec=100000,submit_queues=1,hw_queue_depth=1 \
                --name=a --rw=randread --size=8m --iodepth=32 --nr_requests=64 --cmdprio_percentage=20";
    let output = job(line);
    let prios = output["read"]["prios"].as_array().expect("two priorities");
    let mean = |at: usize| prios[at]["clat_ns"]["mean"].as_f64().expect("a mean");
    assert_eq!(prios[1]["prioclass"], 1);
    assert!(mean(1) * 2.0 < mean(0), "realtime {} ns, others {} ns", mean(1), mean(0));
}

/// The device takes 20 us for each I/O in turn: 100 us allow five at a time, plus the turns of the thread.
const SERIAL: &str = "--device=null,irqmode=2,completion_nsec=20000,submit_queues=1,hw_queue_depth=1 --name=a --rw=randread --size=1g";

#[test]
fn the_depth_that_keeps_a_latency_is_found() {
    let line = format!("{SERIAL} --iodepth=64 --latency_window=20ms --latency_percentile=99");
    let found = job(&format!("{line} --latency_target=110 --runtime=10 --time_based"));
    let depth = found["latency_depth"].as_u64().expect("a depth");
    assert!((4..=5).contains(&depth), "{depth}");
    assert!(found["job_runtime"].as_u64().expect("a time") < 1_000, "it ends with the search");
    assert_eq!(
        (&found["latency_target"], &found["latency_window"]),
        (&110_000.into(), &20_000.into())
    );
    assert_eq!(found["latency_percentile"], 99.0);
    let words =
        format!("sim --scheduler=none {line} --latency_target=110 --runtime=10 --time_based");
    let text = Command::new(env!("CARGO_BIN_EXE_blkmq")).args(words.split_whitespace()).output();
    let text = String::from_utf8_lossy(&text.expect("it starts").stdout).into_owned();
    let words = Vec::from_iter(text.split_whitespace()).join(" ");
    let sentence = format!("99 % of its I/Os within 110us at a depth of {depth}");
    assert!(words.contains(&sentence), "{text}");
    let run = job(&format!("{line} --latency_target=110 --latency_run --runtime=2 --time_based"));
    assert_eq!((&run["latency_depth"], &run["job_runtime"]), (&depth.into(), &2_000.into()));
    assert_eq!(job(&format!("{SERIAL} --iodepth=9 --number_ios=9"))["latency_depth"], 9);
}

#[test]
fn a_latency_that_no_depth_keeps_is_an_error_as_in_fio() {
    let line = format!(
        "sim --scheduler=none {SERIAL} --latency_target=10 --latency_window=20ms --runtime=1"
    );
    let output = Command::new(env!("CARGO_BIN_EXE_blkmq")).args(line.split_whitespace()).output();
    let output = output.expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("too short even for one I/O") && text.contains("110"), "{text}");
}

#[test]
fn the_first_job_that_ends_ends_its_group() {
    let line = "--size=1g --rw=read --name=a --rate_iops=100 --exitall --name=b --size=4m --rate_iops=2000 \
                --name=late --startdelay=5 --name=alone --new_group --rate_iops=100 --number_ios=300";
    let jobs = jobs(&format!("{SLOW} {line}"));
    let reads = Vec::from_iter(jobs.iter().map(|job| ios(job)[0]));
    // b takes 512 ms, and a at most a millisecond longer.
    assert_eq!(reads, [52, 1024, 0, 300]);
    assert!(jobs.iter().all(|job| job["error"] == 0));
    let ends = jobs.iter().map(|job| job["job_runtime"].as_u64().expect("a time"));
    assert!(ends.zip([513, 512, 1, 2991]).all(|(end, most)| end <= most), "{jobs:?}");
}

#[test]
fn a_full_device_ends_a_job_that_fills_it() {
    let line = "--name=a --rw=write --bs=64k --size=1m";
    let all = job(&format!("--device=null,size=8 {line} --fill_device"));
    assert_eq!(all["write"]["io_bytes"], 1 << 20, "as far as size says");
    // From the 11th write on there is no space.
    let full = format!("--device=faults,write_error=1,errno=28,space=10:null,size=8 {line}");
    let job = job(&format!("{full} --fill_device"));
    assert_eq!((&job["write"]["total_ios"], &job["error"]), (&10.into(), &0.into()));
    let words = format!("sim --scheduler=none {full}");
    let output = Command::new(env!("CARGO_BIN_EXE_blkmq")).args(words.split_whitespace()).output();
    assert_eq!(output.expect("it starts").status.code(), Some(1), "an error without the option");
}

fn reads(line: &str) -> Vec<u64> {
    Vec::from_iter(jobs(&format!("{SLOW} --rw=read {line}")).iter().map(|job| ios(job)[0]))
}

#[test]
fn exit_what_says_which_threads_the_first_one_ends() {
    let line = "--size=1g --name=a --rate_iops=100 --runtime=1 --exitall --name=b --new_group --size=4m \
                --rate_iops=2000 --name=c --stonewall --size=1m";
    let with = |what: &str| reads(&line.replace("--name=c", &format!("{what} --name=c")));
    assert_eq!(with(""), [100, 1024, 256], "the group of b alone");
    assert_eq!(with("--exit_what=stonewall"), [52, 1024, 256]);
    assert_eq!(with("--exit_what=all"), [52, 1024, 0]);
}

/// fio's t0011 and t0014: the shares of jobs follow their weights, and a job that has ended does not count.
#[test]
fn the_jobs_of_a_flow_share_by_weight() {
    let line = "--size=1g --time_based --runtime=300ms --iodepth=4";
    let ios = reads(&format!(
        "{line} --name=a --flow=1 --name=b --flow=8 --name=other --flow=1 --flow_id=7"
    ));
    assert!((ios[1] / ios[0]).abs_diff(8) <= 1 && ios[0] > 100, "{ios:?}");
    assert!(ios[2] >= ios[1], "alone in its flow: {ios:?}");
    let ios = reads(&format!(
        "{line} --name=a --flow=1 --name=b --flow=2 --name=c --flow=3 --runtime=100ms"
    ));
    let ratio = ios[1] as f64 / ios[0] as f64;
    assert!((ratio - 2.0).abs() < 0.02 && ios[2] * 2 < ios[1] * 3, "{ios:?}");
    // A whole 10 ms behind, whenever it is ahead.
    let slow = reads(&format!("{line} --flow_sleep=10000 --name=a --flow=1 --name=b --flow=1"));
    assert!(slow[0].abs_diff(slow[1]) < 10 && slow[0] < ios[0], "{slow:?}");
}

#[test]
fn a_job_waits_for_all_threads_of_another_one() {
    let line = "--size=4m --name=a --numjobs=2 --thinktime=1ms --thinktime_blocks=64 --name=b --wait_for=a --rate_iops=4000 \
                --name=c --wait_for=b --runtime=1 --time_based --name=d --wait_for=a --startdelay=3";
    let jobs = jobs(&format!("{SLOW} --rw=read {line}"));
    let span = |at: usize| jobs[at]["job_runtime"].as_u64().expect("a time");
    let counts = Vec::from_iter(jobs.iter().map(|job| ios(job)[0]));
    assert_eq!(counts[..3], [1024, 1024, 1024]);
    // b keeps its rate from its own beginning, and c has a whole second.
    assert!(span(2).abs_diff(256) <= 1 && span(3) == 1000, "{jobs:?}");
    assert_eq!(counts[4], 1024);
}

/// fio 3.33 ends such a job after 2 s and a cycle, with error 5.
#[test]
fn a_thread_below_its_least_rate_ends_with_an_error() {
    let line = "--rw=read --size=1m --runtime=6 --time_based --thinktime=10ms --name=a";
    let seen = job(&format!("{SLOW} {line} --rate_iops_min=90"));
    assert_eq!((ios(&seen)[0], &seen["error"]), (598, &0.into()));
    for least in ["--rate_iops_min=500", "--ratemin=1m", "--rate_min=1m,1 --rate_cycle=100"] {
        let words = format!("sim --scheduler=none --output-format=json {SLOW} {line} {least}");
        let output =
            Command::new(env!("CARGO_BIN_EXE_blkmq")).args(words.split_whitespace()).output();
        let output = output.expect("it starts");
        assert_eq!(output.status.code(), Some(1), "{least}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("slower than rate_min or rate_iops_min (error 5)"), "{text}");
    }
}

#[test]
fn zones_with_gaps_are_verified() {
    let line = "--device=memory,size=64 --scheduler=none --name=a --rw=randwrite --size=4m --zonemode=strided \
                --zonesize=64k --zoneskip=192k --io_size=1m --verify=meta --verify_pattern=0xaaa";
    let seen = job(line);
    assert_eq!((&seen["write"]["io_bytes"], &seen["error"]), (&(1 << 20).into(), &0.into()));
    assert_eq!(seen["blkmq"]["verify"]["verified"], 1 << 20, "each block of a zone once");
}

/// fio's t0004: each I/O of 512 bytes is a block, and those of 1 MiB are many blocks.
#[test]
fn an_io_shorter_than_the_interval_is_a_block() {
    let line =
        "--device=memory,size=64 --scheduler=none --name=a --rw=write --size=1m --verify=md5";
    assert_eq!(job(&format!("{line} --bs=512 --verify_interval=1m"))["error"], 0);
}

#[cfg(target_os = "linux")]
fn blkmq(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_blkmq")).args(args).output().expect("the binary starts")
}

/// A path for one test, in cargo's folder for integration tests.
#[cfg(target_os = "linux")]
fn path(name: &str) -> (PathBuf, String) {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_file(&path);
    let text = path.to_str().expect("a UTF-8 path").to_owned();
    (path, text)
}

/// The report of a run; `None` if io_uring is unavailable.
#[cfg(target_os = "linux")]
fn on_files(test: &str, line: &str) -> Option<Value> {
    let args = format!("bench --scheduler=mq-deadline --output-format=json {line}");
    let output = blkmq(&Vec::from_iter(args.split_whitespace()));
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("io_uring is not available here") || errors.contains("io_uring lacks") {
        println!("skipped {test}: {errors}");
        return None;
    }
    assert!(output.status.success(), "{line}: {errors}");
    let text = String::from_utf8(output.stdout).expect("text");
    Some(serde_json::from_str(&text).expect("JSON"))
}

/// The run of a file that did not exist was reported at "406k IOPS", on the null device.
#[cfg(target_os = "linux")]
#[test]
fn a_file_is_laid_out_and_its_data_is_what_was_written() {
    let test = "a_file_is_laid_out_and_its_data_is_what_was_written";
    let (path, name) = path("laid-out");
    let jobs = format!(
        "--filename={name} --ioengine=libaio --direct=1 --bs=4k --size=256k --offset=64k --verify=crc32c"
    );
    let Some(written) = on_files(test, &format!("{jobs} --name=w --rw=randwrite --do_verify=0"))
    else {
        return;
    };
    assert_eq!(written["jobs"][0]["write"]["total_ios"], 64);
    let bytes = std::fs::read(&path).expect("it was laid out");
    assert_eq!(bytes.len(), (256 + 64) << 10);
    let heads = bytes[64 << 10..].chunks(4096).map(|block| &block[..2]);
    let mut heads = Vec::from_iter(heads);
    heads.dedup();
    assert_eq!(heads.len(), 1, "every block begins with the header of a verified one");
    // A second command finds the data where the first one has put it.
    let read = on_files(test, &format!("{jobs} --name=w --rw=read")).expect("as before");
    assert_eq!(read["jobs"][0]["error"], 0);
    // A file that is long enough keeps its length.
    on_files(test, &format!("--filename={name} --size=4k --rw=read --direct=1"))
        .expect("as before");
    assert_eq!(std::fs::metadata(&path).expect("it is there").len(), (256 + 64) << 10);
    std::fs::remove_file(&path).expect("it was there");
}

/// Regression test: the message named an option that the user had not given.
#[cfg(target_os = "linux")]
#[test]
fn a_file_that_cannot_be_made_is_named_as_the_user_wrote_it() {
    let (_, name) = path("no-folder");
    let output =
        blkmq(&["bench", &format!("--filename={name}/x"), "--size=1m", "--rw=read", "--name=a"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains(&format!("filename={name}/x: ")), "{error}");
    assert!(!error.contains("--device"), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn each_file_gets_its_share_and_is_verified() {
    let test = "each_file_gets_its_share_and_is_verified";
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().display();
    let jobs = format!(
        "--directory={place} --ioengine=libaio --direct=1 --bs=4k --size=256k --nrfiles=4 --iodepth=8 --verify=crc32c"
    );
    let Some(written) = on_files(test, &format!("{jobs} --name=w --numjobs=2 --rw=randwrite"))
    else {
        return;
    };
    for job in 0..2 {
        assert_eq!(written["jobs"][job]["write"]["total_ios"], 64);
        assert_eq!(written["jobs"][job]["blkmq"]["verify"]["verified"], 256 << 10);
        for file in 0..4 {
            let path = folder.path().join(format!("w.{job}.{file}"));
            let bytes = std::fs::read(path).expect("it was laid out");
            assert_eq!(bytes.len(), 64 << 10);
            assert!(bytes.chunks(4096).all(|block| block[..2] == bytes[..2]), "all are written");
        }
    }
    // A second command has one of the files at another position on its device, and still finds its data.
    let one =
        format!("--filename={place}/w.1.3 --direct=1 --bs=4k --name=w --rw=read --verify=crc32c");
    assert_eq!(on_files(test, &one).expect("as before")["jobs"][0]["error"], 0);
    // Data of one block in place of another is detected, in whichever file it is.
    let path = folder.path().join("w.0.2");
    let mut bytes = std::fs::read(&path).expect("it is there");
    bytes.copy_within(0..4096, 8192);
    std::fs::write(&path, bytes).expect("it can be written");
    let all = format!("bench --scheduler=none --name=w --rw=read {jobs}");
    let output = blkmq(&Vec::from_iter(all.split_whitespace()));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("job 'w'"), "{errors}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_dry_run_lays_out_nothing() {
    let (path, name) = path("dry");
    let line =
        format!("bench --dry-run --filename={name} --size=1m --ioengine=io_uring --direct=1");
    let output = blkmq(&Vec::from_iter(line.split_whitespace()));
    // Long lines are wrapped, commands after a backslash.
    let text = String::from_utf8_lossy(&output.stdout).replace("\\\n", "");
    let text = Vec::from_iter(text.split_whitespace()).join(" ");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains(&format!("uring:{name},size=1048576b")), "{text}");
    assert!(text.contains("is laid out before the first run: 1048576 bytes"), "{text}");
    assert!(!path.exists());
}

#[cfg(target_os = "linux")]
#[test]
fn a_job_file_comes_from_standard_input() {
    use std::io::Write;
    let mut child = Command::new(env!("CARGO_BIN_EXE_blkmq"))
        .args(["bench", "--dry-run", "-"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(b"[piped]\nname=other\nrw=randread\n").expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("[other]\nrw=randread\n"));
}
