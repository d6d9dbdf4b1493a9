//! The figures of a run and the files that they go to: flushes, the verify phase, names of jobs and files, logs.

use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;

/// Returns standard output of a run that must succeed.
fn blkmq(line: &str) -> String {
    let args = line.split_whitespace();
    let output = Command::new(env!("CARGO_BIN_EXE_blkmq")).args(args).output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{line}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

fn jobs(line: &str) -> Vec<Value> {
    let json: Value =
        serde_json::from_str(&blkmq(&format!("{line} --output-format=json+"))).expect("JSON");
    json["jobs"].as_array().expect("jobs are a list").clone()
}

fn job(line: &str) -> Value {
    jobs(line).remove(0)
}

/// An empty folder for a test's files.
fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("measured").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the folder for temporary files can be written");
    folder
}

fn files(folder: &PathBuf) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut names = Vec::from_iter(
        entries.map(|entry| entry.expect("a file").file_name().into_string().expect("text")),
    );
    names.sort();
    names
}

/// The numbers of each line of a log.
fn lines(path: &std::path::Path) -> Vec<Vec<u64>> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let number = |word: &str| match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => word.parse(),
    };
    text.lines()
        .map(|line| line.split(", ").map(|word| number(word).expect(line)).collect())
        .collect()
}

const DISK: &str = "sim --scheduler=none --device=disk --bs=4k";

#[test]
fn flushes_are_counted_and_timed_as_fio_does() {
    for (options, flushes) in [
        ("--fsync=4 --size=64k", 3),
        ("--fsync=4 --size=60k", 3),
        ("--fsync=4 --size=68k", 4),
        ("--fsync=4 --size=64k --end_fsync=1", 3),
        ("--fdatasync=1 --size=64k", 15),
        ("--end_fsync=1 --size=64k", 0),
    ] {
        let job = job(&format!("{DISK} --rw=write {options}"));
        let sync = &job["sync"];
        assert_eq!(
            (&sync["total_ios"], &sync["lat_ns"]["N"]),
            (&flushes.into(), &flushes.into()),
            "{options}"
        );
        assert_eq!(
            job["blkmq"].get("end_fsync_ns").is_some(),
            options.contains("end_fsync"),
            "{options}"
        );
        if flushes > 0 {
            let bins = sync["lat_ns"]["bins"].as_object().expect("bins");
            assert_eq!(bins.values().filter_map(Value::as_u64).sum::<u64>(), flushes);
            let [least, median] =
                [&sync["lat_ns"]["min"], &sync["lat_ns"]["percentile"]["50.000000"]];
            assert!(least.as_u64() > Some(10_000) && median.as_u64() >= least.as_u64(), "{sync}");
        }
    }
}

/// Regression test: a device without a cache has nothing to flush, so that fewer requests reach it than bios were
/// submitted. The report took that for a bug of its own.
#[test]
fn a_flush_that_needs_no_request_is_accounted_for() {
    for (device, surplus) in [("null", -3), ("disk", 0)] {
        let text = blkmq(&format!(
            "sim --scheduler=none --device={device} --rw=write --size=64k --fsync=4"
        ));
        assert!(text.contains("sync: 3 flushes") && !text.contains("bug in blkmq"), "{text}");
        let job =
            job(&format!("sim --scheduler=none --device={device} --rw=write --size=64k --fsync=4"));
        assert_eq!(job["blkmq"]["flush_surplus"], surplus);
    }
}

/// The time of the flush at the end is part of the job's.
#[test]
fn a_flush_at_the_end_is_waited_for() {
    let line = format!("{DISK} --rw=write --size=1m --iodepth=8");
    let (without, with) = (job(&line), job(&format!("{line} --end_fsync=1")));
    let elapsed = |job: &Value| job["blkmq"]["elapsed_ns"].as_u64().expect("a time");
    let flush = with["blkmq"]["end_fsync_ns"].as_u64().expect("a time");
    assert!(flush > 100_000, "{flush}");
    let longer = elapsed(&with) - elapsed(&without);
    assert!(longer.abs_diff(flush) < 1_000, "{longer} and {flush}");
}

/// Counts of fio 3.33 with the same options.
#[test]
fn reads_that_check_are_reads() {
    for (options, writes, reads) in [
        ("--rw=randwrite --verify=crc32c --size=4m", 1024, 1024),
        ("--rw=randwrite --verify=crc32c --size=1m --verify_backlog=16", 256, 256),
        ("--rw=randwrite --verify=crc32c --size=1m --do_verify=0", 256, 0),
        ("--rw=write --verify=crc32c --size=1m --number_ios=100", 100, 100),
    ] {
        let job =
            job(&format!("sim --device=memory,size=64 --scheduler=mq-deadline --bs=4k {options}"));
        let of = |direction: &str, key: &str| job[direction][key].as_u64().expect("a count");
        assert_eq!(
            (of("write", "total_ios"), of("read", "total_ios")),
            (writes, reads),
            "{options}"
        );
        assert_eq!(of("read", "io_bytes"), reads << 12);
        assert_eq!(job["read"]["clat_ns"]["N"], reads);
        assert_eq!(job["blkmq"]["verify"]["reads"], reads);
        let shares = job["iodepth_level"].as_object().expect("an object").values();
        assert!((shares.filter_map(Value::as_f64).sum::<f64>() - 100.0).abs() < 1e-3);
    }
    let mixed =
        job("sim --device=memory,size=64 --scheduler=none --rw=randrw --verify=crc32c --size=4m");
    let of = |direction: &str| mixed[direction]["total_ios"].as_u64().expect("a count");
    assert_eq!(of("read"), 1024, "its own reads, and one for each write");
    assert!(of("write") > 400);
}

/// The rate of a run is that of its workload: checks at the end do not change it.
#[test]
fn checks_do_not_change_the_rate_of_a_run() {
    let line = "sim --device=memory,size=64 --scheduler=none --rw=write --size=4m --iodepth=4 --verify=crc32c";
    let rate = |line: &str| job(line)["blkmq"]["repetitions_iops"][0].as_f64().expect("a rate");
    let (with, without) = (rate(line), rate(&format!("{line} --do_verify=0")));
    assert!((with / without - 1.0).abs() < 1e-9, "{with} and {without}");
}

#[test]
fn jobs_have_the_names_of_their_cases() {
    let line = "sim --rw=read --size=64k --name=a --device=null";
    let name = |job: &Value| job["jobname"].as_str().expect("text").to_owned();
    let one = job(&format!("{line} --scheduler=bfq"));
    assert_eq!((name(&one), &one["groupid"]), ("a".into(), &0.into()));
    assert_eq!(one["job options"], json!({"name": "a"}), "the others are global");
    let two = jobs(&format!("{line} --scheduler=none,bfq:low_latency=0"));
    assert_eq!(two.iter().map(name).collect::<Vec<_>>(), ["a.none", "a.bfq-low_latency=0"]);
    assert_eq!(two.iter().map(|job| &job["groupid"]).collect::<Vec<_>>(), [0, 1]);
    assert!(two.iter().all(|job| job["job options"]["name"] == "a"));
}

#[test]
fn files_of_a_run_have_the_name_of_its_case() {
    let folder = folder("names");
    let line = format!(
        "sim --rw=read --size=64k --scheduler=none,bfq --repeat=2 --trace={0}/t --elevator_log={0}/e \
         --write_bw_log={0}/w",
        folder.display()
    );
    let jobs = jobs(&line);
    assert_eq!(jobs[1]["jobname"], "blkmq.bfq");
    assert!(jobs[1]["blkmq"]["repetition"].as_u64() < Some(2));
    let mut expected = Vec::new();
    for case in ["bfq.rep0", "bfq.rep1", "none.rep0", "none.rep1"] {
        expected.extend([
            format!("e.{case}"),
            format!("t.{case}.blktrace.0"),
            format!("w.{case}_bw.1.log"),
        ]);
    }
    expected.sort();
    assert_eq!(files(&folder), expected);
}

/// A device that takes 100 us, one at a time: some 40 MB/s.
const TIMER: &str =
    "--device=null,irqmode=2,completion_nsec=100000 --scheduler=none --bs=4k --rw=randread";

#[test]
fn a_log_has_a_line_for_each_io() {
    for command in ["sim", "bench"] {
        let folder = folder(&format!("each-{command}"));
        let prefix = folder.join("x");
        let line = format!(
            "{command} {TIMER} --size=400k --numjobs=2 --write_bw_log={0} --write_iops_log={0} --write_lat_log={0} \
             --write_hist_log={0} --prioclass=1",
            prefix.display()
        );
        let jobs = jobs(&line);
        let kinds = ["bw", "clat", "clat_hist", "iops", "lat", "slat"];
        let names = kinds.map(|kind| [1, 2].map(|job| format!("x_{kind}.{job}.log")));
        assert_eq!(files(&folder), names.as_flattened());
        let log = |kind: &str| lines(&folder.join(format!("x_{kind}.1.log")));
        let [bw, iops, slat, clat, lat] = ["bw", "iops", "slat", "clat", "lat"].map(log);
        assert_eq!(std::fs::read_to_string(folder.join("x_clat_hist.1.log")).expect("a file"), "");
        assert_eq!([&bw, &iops, &slat, &clat, &lat].map(Vec::len), [100; 5]);
        for at in 0..100 {
            // Time, value, direction, block size, priority.
            assert_eq!(clat[at][2..], [0, 4096, 1]);
            assert_eq!(lat[at][1], slat[at][1] + clat[at][1]);
            assert_eq!(bw[at][1], 4096 * 1_000_000 / clat[at][1]);
            assert_eq!(iops[at][1], 1);
        }
        assert!(clat.iter().map(|line| line[0]).is_sorted());
        let sum: u64 = clat.iter().map(|line| line[1]).sum();
        let mean = jobs[0]["read"]["clat_ns"]["mean"].as_f64().expect("a mean");
        assert!((sum as f64 / 100.0 - mean).abs() < 1.0, "{sum} and {mean}");
    }
}

#[test]
fn a_log_of_windows_has_a_line_for_each_and_direction() {
    let folder = folder("windows");
    let prefix = folder.join("w");
    let line = format!(
        "sim {TIMER} --size=1g --runtime=1 --time_based --write_bw_log={0} --write_iops_log={0} --write_lat_log={0} \
         --write_hist_log={0} --log_avg_msec=100 --log_hist_msec=250 --log_hist_coarseness=4 --log_offset=1 --log_prio=1 \
         --prio=3 --prioclass=2",
        prefix.display()
    )
    .replace("randread", "randrw");
    let job = job(&line);
    let log = |kind: &str| lines(&folder.join(format!("w_{kind}.1.log")));
    let [bw, iops, clat, hist] = ["bw", "iops", "clat", "clat_hist"].map(log);
    let total = job["read"]["total_ios"].as_u64().expect("a count")
        + job["write"]["total_ios"].as_u64().expect("a count");
    for log in [&bw, &iops, &clat] {
        let times = Vec::from_iter(log.iter().map(|line| (line[0], line[2])));
        let expected = Vec::from_iter((1..=10).flat_map(|n| [(n * 100, 0), (n * 100, 1)]));
        assert_eq!(times[..18], expected[..18]);
        assert!(log.iter().all(|line| line[3..] == [0, 0, 0]));
    }
    let counted: u64 = iops.iter().map(|line| line[1]).sum::<u64>() / 10;
    assert!(counted.abs_diff(total) <= 20, "{counted} and {total}");
    assert!(bw.iter().zip(&iops).all(|(bw, iops)| (iops[1] * 4).abs_diff(bw[1]) <= 4));
    assert!(clat.iter().all(|line| (100_000..110_000).contains(&line[1])), "{clat:?}");
    assert!(hist.iter().all(|line| line.len() == 3 + 1856 / 16), "coarseness 4");
    let binned: u64 = hist.iter().flat_map(|line| &line[3..]).sum();
    assert_eq!(binned, total);
}

#[test]
fn a_log_takes_its_options() {
    let folder = folder("options");
    let line = |options: &str| {
        format!("sim {TIMER} --size=16k --numjobs=2 {options}")
            .replace("P/", &format!("{}/", folder.display()))
    };
    job(&line(
        "--write_lat_log=P/o --log_offset=1 --log_prio=1 --prio=3 --prioclass=2 --disable_slat=1",
    ));
    assert_eq!(files(&folder), ["o_clat.1.log", "o_clat.2.log", "o_lat.1.log", "o_lat.2.log"]);
    let mut offsets =
        Vec::from_iter(lines(&folder.join("o_clat.1.log")).iter().map(|l| (l[4], l[5])));
    offsets.sort_unstable();
    assert_eq!(offsets, [(0, 0x4003), (4096, 0x4003), (8192, 0x4003), (12288, 0x4003)]);
    job(&line("--write_iops_log=P/shared --per_job_logs=0"));
    assert_eq!(lines(&folder.join("shared_iops.log")).len(), 8, "both threads");
    job(&line("--write_lat_log=P/m --log_avg_msec=1000 --log_max_value=1"));
    let max = lines(&folder.join("m_clat.1.log"));
    let all = lines(&folder.join("o_clat.1.log"));
    assert_eq!(Some(max[0][1]), all.iter().map(|line| line[1]).max());
}

/// Log collectors combine them with logs of other programs.
#[test]
fn a_log_has_times_since_the_epoch_if_it_is_told_to() {
    let folder = folder("epoch");
    let before = blkmq_runtime::wall_clock_millis();
    let line = format!(
        "bench --scheduler=none --device=memory,size=64 --rw=read --bs=4k --size=1m \
         --write_lat_log={0}/e --write_bw_log={0}/e --write_hist_log={0}/e --log_hist_msec=1 --log_unix_epoch=1",
        folder.display()
    );
    job(&line);
    let after = blkmq_runtime::wall_clock_millis();
    for kind in ["lat", "bw", "clat_hist"] {
        let all = lines(&folder.join(format!("e_{kind}.1.log")));
        assert!(!all.is_empty(), "{kind}");
        assert!(
            all.iter().all(|line| (before..=after + 1).contains(&line[0])),
            "{kind}: {:?}",
            all[0]
        );
    }
}

/// The results are printed, followed by the error.
#[test]
fn a_full_disk_does_not_cost_the_results() {
    let folder = folder("full");
    if !std::path::Path::new("/dev/full").exists() {
        println!("SKIP a_full_disk_does_not_cost_the_results: no /dev/full");
        return;
    }
    std::os::unix::fs::symlink("/dev/full", folder.join("x_bw.1.log")).expect("a link");
    let line = format!(
        "sim {TIMER} --size=64k --output-format=json --write_bw_log={}/x",
        folder.display()
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_blkmq"));
    let output = command.args(line.split_whitespace()).output().expect("it starts");
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("x_bw.1.log is incomplete: No space left on device"), "{errors}");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["jobs"][0]["read"]["total_ios"], 16);
}

/// A thread that waits for a slow disk uses no more CPU time than one that waits for a fast one.
#[test]
fn waiting_is_no_cpu_time() {
    let cost = |device: &str| {
        let job = job(&format!(
            "sim --device={device} --scheduler=none --rw=randread --bs=4k --number_ios=200"
        ));
        let runtime = job["job_runtime"].as_f64().expect("a time") * 1e6;
        job["usr_cpu"].as_f64().expect("a share") / 100.0 * runtime / 200.0
    };
    let (disk, flash) = (cost("disk"), cost("flash"));
    assert!(disk < 1_000.0 && flash < 1_000.0, "{disk} and {flash} ns per I/O");
}

/// clat begins with the push into the queue: waiting for a device that takes one I/O at a time happens in the
/// scheduler.
#[test]
fn completion_latency_has_the_wait_in_the_scheduler_in_it() {
    for scheduler in ["none", "mq-deadline", "kyber", "bfq"] {
        let line = format!(
            "sim --device=null,irqmode=2,completion_nsec=1000000,hw_queue_depth=1 --scheduler={scheduler} --rw=randread \
             --bs=4k --size=1m --iodepth=8"
        );
        let read = jobs(&line)[0]["read"].take();
        let mean = |kind: &str| read[kind]["mean"].as_f64().expect("a mean") / 1e6;
        // Seven others precede it; the first ones wait for fewer.
        assert!((7.5..8.1).contains(&mean("clat_ns")), "{scheduler}: {read}");
        assert!(mean("slat_ns") < 0.1, "{scheduler}: the push itself waits for nothing: {read}");
    }
}

/// The numbers in a dry run equal those in the names of files that the run would write.
#[test]
fn a_dry_run_counts_as_files_and_json_do() {
    let line = "bench --dry-run --rw=read --size=64k --scheduler=none,bfq --repeat=2";
    let text = blkmq(line);
    let rows = text.lines().filter(|line| line.contains("combining"));
    let rows = rows.map(|row| Vec::from_iter(row.split_whitespace().take(3).map(String::from)));
    let expected = ["1 0 0", "2 1 0", "3 0 1", "4 1 1"]
        .map(|row| Vec::from_iter(row.split(' ').map(String::from)));
    assert_eq!(rows.collect::<Vec<_>>(), expected, "{text}");
}
