//! Jobs that steer each other or are watched, and zones, in virtual time.

use super::workload::{SLOW, ios, job, jobs};
use std::process::Command;

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
