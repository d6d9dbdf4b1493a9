//! Runs `blkmq sim` and checks the I/Os issued by a job: counts, bytes, rates, depths and priorities, as in fio 3.33
//! with the same options.

use serde_json::Value;
use std::process::Command;

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
