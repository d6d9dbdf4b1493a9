//! Runs that fail: I/Os that fail, I/Os that never complete, and threads that cannot be started. Each run ends in time,
//! with one line that describes the failure and exit code 1.

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
