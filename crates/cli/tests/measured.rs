//! The figures of a run and the files that they go to: flushes, the verify phase, names of jobs and files, logs. Two
//! runs of `blkmq sim` print the same bytes in every format, and do the same work as `blkmq bench`.

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

const JOB: &str = "--rw=randread --numjobs=8 --iodepth=4 --runtime=200us --time_based";

#[test]
fn the_same_seed_gives_the_same_bytes_in_every_format_and_another_one_others() {
    for device in ["null", "null,irqmode=2,hw_queue_depth=2", "memory,size=64"] {
        for format in ["json", "json+", "csv", "html", "normal"] {
            let run = |seed: u32| {
                blkmq(&format!(
                    "sim --device {device} {JOB} --seed {seed} --output-format {format}"
                ))
            };
            let first = run(7);
            assert!(first == run(7), "{device} as {format}: two runs differ");
            // Every format but CSV contains the seed.
            assert!(first != run(8), "{device} as {format}: another seed is the same run");
        }
    }
}

#[test]
fn nothing_of_this_machine_or_moment_is_printed() {
    let json: Value =
        serde_json::from_str(&blkmq(&format!("sim {JOB} --seed 3 --output-format json")))
            .expect("JSON");
    assert_eq!((&json["timestamp_ms"], &json["blkmq"]["seed"]), (&0.into(), &3.into()));
    assert_eq!(json["blkmq"]["cpu_model"], "virtual CPUs");
    assert_eq!((&json["blkmq"]["kernel"], &json["blkmq"]["memory_bytes"]), (&"".into(), &0.into()));
    let device = json["jobs"][0]["blkmq"]["device"].as_str();
    assert_eq!(device, Some("null"));
}

#[test]
fn a_job_without_an_end_is_given_one() {
    let line = "sim --device disk --rw=randread --numjobs=8 --output-format json --seed";
    let (first, again) = (blkmq(&format!("{line} 7")), blkmq(&format!("{line} 7")));
    assert!(first == again && first != blkmq(&format!("{line} 8")));
    let json: Value = serde_json::from_str(&first).expect("JSON");
    assert!(json["blkmq"]["notes"].to_string().contains("10 s of virtual time"), "{json}");
}

/// Two jobs of 400 and 100 reads, in groups below another one.
const GROUPS: &str = "--device null,irqmode=2,completion_nsec=100000,submit_queues=1,hw_queue_depth=1 \
    --group top:weight=500 --group a:parent=top,weight=300 --group b:parent=top --bs=4k --iodepth=8 \
    --name=a --cgroup=a --rw=read --number_ios=400 --name=b --cgroup=b --rw=read --number_ios=100 --offset=64m";

fn queues(line: &str) -> Vec<Value> {
    let json: Value =
        serde_json::from_str(&blkmq(&format!("sim {line} --output-format json"))).expect("JSON");
    json["blkmq"]["queues"].as_array().cloned().unwrap_or_default()
}

#[test]
fn what_is_counted_about_groups_is_exact_and_nothing_is_said_of_what_is_not() {
    let line = format!("{GROUPS} --scheduler bfq,mq-deadline --nomerges 2");
    let all = queues(&format!("{line} --group_stats full"));
    assert_eq!(all.len(), 2);
    let groups = all[0]["groups"].as_array().expect("a list");
    let names = ["/", "top", "a", "b"];
    assert!(groups.iter().map(|group| &group["name"]).eq(names.iter()), "{groups:?}");
    let total = |at: usize, name: &str| groups[at]["stats"][name]["Total"].as_u64();
    for (at, own, below) in [(0, 0, 500), (1, 0, 500), (2, 400, 400), (3, 100, 100)] {
        assert_eq!(groups[at]["ios"], own);
        assert_eq!(total(at, "io_serviced"), Some(own));
        assert_eq!(total(at, "io_serviced_recursive"), Some(below));
        assert_eq!(total(at, "io_service_bytes_recursive"), Some(below << 12));
        assert_eq!(groups[at]["stats"]["sectors_recursive"], below * 8);
        // One request at a time, 100 us each; but for the scheduler, the very last one ends with its last pass.
        let served = total(at, "io_service_time_recursive").expect("it is counted");
        let in_full = served / 100_000;
        assert!(served % 100_000 == 0 && (in_full == below || in_full + 1 == below), "{served}");
        let stats = groups[at]["stats"].as_object().expect("an object");
        assert_eq!(stats.len(), 21, "{stats:?}");
    }
    assert_eq!((&groups[2]["share"], &groups[2]["due"]), (&json!(0.8), &json!(0.75)));
    // A scheduler that does not share by group has no turns; the I/O of its groups is counted.
    let groups = all[1]["groups"].as_array().expect("a list");
    assert_eq!(groups[2]["ios"], 400);
    let stats = groups[2]["stats"].as_object().expect("an object");
    assert_eq!((stats.len(), &stats["io_serviced"]["Read"]), (12, &json!(400)));

    let basic = queues(&format!("{line} --group_stats basic"));
    let stats = basic[0]["groups"][2]["stats"].as_object().expect("an object");
    assert_eq!((stats.len(), &stats["io_serviced"]["Read"]), (12, &json!(400)));
    let off = queues(&line);
    assert_eq!((off[0]["groups"][2].get("stats"), &off[0]["group_stats"]), (None, &json!("off")));
    assert!(queues("--rw=read --number_ios=10 --scheduler bfq").is_empty());
}

#[test]
fn where_the_time_goes_is_exact_and_shown() {
    // A device that takes one request at a time, 100 us each, and 16 I/Os together: each waits for 15 others.
    let line = "--device null,irqmode=2,completion_nsec=100000,submit_queues=1,hw_queue_depth=1 \
                --scheduler mq-deadline --bs=4k --iodepth=16 --rw=randread --norandommap --size=1g \
                --number_ios=1000 --nomerges=2 --nr_requests=64";
    let all = queues(&format!("{line} --iostats"));
    let reads = &all[0]["times"]["read"];
    let of = |key: &str| reads[key].as_u64().expect("a number");
    assert_eq!((of("requests"), of("merged"), of("device_ns")), (1000, 0, 1000 * 100_000));
    let waited = of("slot_ns") + of("policy_ns") + of("tag_ns");
    // The first ones wait for fewer.
    let expected = (1000 * 15 - (1..=15).sum::<u64>()) * 100_000;
    assert!(waited.abs_diff(expected) < expected / 100, "{waited} for {expected}");
    assert!(all[0]["times"].get("write").is_none(), "{all:?}");
    let text = blkmq(&format!("sim {line} --iostats"));
    let line_of =
        "  read     : slot=0 ns, policy=0 ns, tag=1.49 ms, device=100 us for each of 1000\n";
    assert!(text.contains(line_of), "{text}");
    assert!(queues(line).is_empty(), "nothing is said of what is not counted");
}

#[test]
fn groups_get_what_their_weights_say_and_every_output_shows_it() {
    let line = "sim --scheduler bfq:low_latency=0 --group_stats full --seed 5 --bs=64k --iodepth=16 \
                --device null,irqmode=2,completion_nsec=100000,submit_queues=1,hw_queue_depth=1 \
                --group a:weight=300 --group b --runtime=8 --time_based --rw=randread --norandommap \
                --name=a --cgroup=a --name=b --cgroup=b --output-format";
    let text = blkmq(&format!("{line} normal"));
    let table = text.split("\ngroups:\n").nth(1).expect("a table").lines();
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let rows = Vec::from_iter(table.skip(2).take(3).map(cells));
    assert_eq!(
        [&rows[0][..6], &rows[1][..4]],
        [
            &["/", "-", "100.0", "%", "100.0", "%"].map(str::to_owned)[..],
            &["a", "300", "75.0", "%"].map(str::to_owned)[..]
        ]
    );
    let share: f64 = rows[1][4].parse().expect("a number");
    assert!((73.0..=77.0).contains(&share), "{share} of 75");
    let csv = blkmq(&format!("{line} csv"));
    // Columns are counted from the end, since the device's text contains commas.
    let mut lines = csv.lines().map(|line| line.rsplit(',').collect::<Vec<_>>());
    let heading = lines.next().expect("a heading");
    let at = heading.iter().position(|name| *name == "cgroup").expect("a column");
    let groups = Vec::from_iter(lines.map(|cells| format!("{}={}", cells[at], cells[at - 1])));
    assert_eq!(groups, ["a=300", "b=100"]);
    assert!(blkmq(&format!("{line} html")).contains("Shares of groups"));
}

#[test]
fn a_tenant_beside_a_flood_waits_behind_the_flood_and_the_flood_behind_itself() {
    // A device that takes one request at a time, 2 ms for each: no time is sampled.
    let line = "--device null,irqmode=2,completion_nsec=2000000,submit_queues=1,hw_queue_depth=1 --nr_requests=64 \
                --group flood --group victim --bs=4k --rw=randread --norandommap --size=1g --runtime=5s --time_based \
                --name=flood --cgroup=flood --iodepth=16 --name=victim --cgroup=victim --iodepth=1";
    for scheduler in ["none", "mq-deadline", "bfq:low_latency=0"] {
        let all = queues(&format!("{line} --iostats --scheduler {scheduler}"));
        let groups = all[0]["groups"].as_array().expect("a list");
        let waited = |group: usize, behind: Value| {
            let all = groups[group]["waited_for"].as_array().expect("a list");
            let found = all.iter().find(|waited| waited["group"] == behind);
            found.map_or(0, |waited| waited["time_ns"].as_u64().expect("a number"))
        };
        assert_eq!([&groups[1]["name"], &groups[2]["name"]], ["flood", "victim"]);
        let victim = ["flood".into(), "victim".into(), Value::Null].map(|of| waited(2, of));
        let flood = ["flood".into(), "victim".into(), Value::Null].map(|of| waited(1, of));
        let at = format!("{scheduler}: {victim:?}, {flood:?}");
        let sums = [victim, flood].map(|of| of.iter().sum::<u64>());
        // The last I/Os end after the five seconds.
        assert!(sums.iter().all(|sum| *sum <= 5_100_000_000), "{at}");
        assert_eq!(victim[1], 0, "its only I/O is no cause: {at}");
        assert!(victim[0] > sums[0] * 99 / 100, "{at}");
        // The flood always has waiting I/Os: behind its own, and under a fair scheduler also for the victim's turns.
        assert!(sums[1] > 4_990_000_000, "{at}");
        let most = if scheduler.starts_with("bfq") { 55 } else { 7 };
        assert!(flood[1] < sums[1] / 100 * most, "{at}");
    }
    let text = blkmq(&format!("sim {line} --iostats --scheduler none"));
    let table = text.split("\nwaited before the device, behind requests of:\n").nth(1);
    let mut rows = table.expect("a table").lines();
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(
        rows.next().map(cells),
        Some(["group", "waited", "flood", "victim"].map(str::to_owned).to_vec())
    );
    let victim = cells(rows.nth(2).expect("a row"));
    assert_eq!([&victim[0], &victim[3], &victim[4]], ["victim", "100.0", "%"]);
    let off = queues(&format!("{line} --scheduler none"));
    assert_eq!(
        off[0]["groups"][2].get("waited_for"),
        None,
        "nothing is said of what is not counted"
    );
    assert!(!blkmq(&format!("sim {line} --scheduler none")).contains("waited before"));
}

#[test]
fn what_kyber_lets_through_is_shown() {
    let found = queues("--scheduler kyber,none --rw=randread --runtime=1ms --time_based");
    assert_eq!(found.len(), 1);
    assert_eq!((&found[0]["run"], &found[0]["tokens"]), (&json!(0), &json!([256, 128, 64, 16])));
    assert_eq!(found[0]["governor"]["read_target"], 2_000_000);
}

/// Jobs, phases, verification and files mean the same in both kinds of time.
#[test]
fn the_work_is_that_of_a_bench() {
    let work = |command: &str| {
        let line = format!(
            "{command} --device=memory,size=16 --scheduler=mq-deadline --bs=4k --size=4m --iodepth=8 \
             --verify=crc32c --output-format=json --name=fill --rw=randwrite --name=check --stonewall \
             --rw=randread --name=paced --rw=write --stonewall --rate_iops=100000 --size=1m"
        );
        let json: Value = serde_json::from_str(&blkmq(&line)).expect("JSON");
        let job = |job: &Value| {
            let figures = [&job["read"]["total_ios"], &job["write"]["total_ios"]];
            (figures.map(|n| n.as_u64().expect("a count")), job["blkmq"]["verify"].to_string())
        };
        json["jobs"].as_array().expect("jobs").iter().map(job).collect::<Vec<_>>()
    };
    let real = work("bench");
    assert_eq!(real.len(), 3);
    assert_eq!(real[0].0, [1024, 1024]);
    assert_eq!(real, work("sim"));
}

/// Regression test: a comparison showed bfq to be identical to none, without an explanation.
#[test]
fn a_run_says_that_bfq_serves_jobs_that_begin_together_as_one() {
    let notes = |scheduler: &str, options: &str| {
        let line = format!(
            "sim --scheduler={scheduler} --device=null --size=64k --output-format=json --name=db --rw=randread \
             --name=scan --rw=read {options}"
        );
        let report: Value = serde_json::from_str(&blkmq(&line)).expect("JSON");
        report["blkmq"]["notes"].to_string().contains("bfq merges the queues of db and scan")
    };
    assert!(notes("none,bfq", "") && notes("bfq", "--startdelay=100ms"));
    for options in ["--startdelay=300ms", "--stonewall", "--wait_for=db", "--rw=write", "--prio=3"]
    {
        assert!(!notes("bfq", options), "{options}");
    }
    assert!(!notes("bfq", "--group=g --cgroup=g"));
    assert!(!notes("none,mq-deadline", "") && !notes("bfq:queue_merge=0", ""));
}

#[test]
fn a_run_says_that_weights_have_no_effect_under_its_scheduler() {
    let line = "sim --device null --rw=randread --number_ios=10 --group a:weight=300 --cgroup=a \
        --scheduler none,bfq";
    let output = blkmq(line);
    let notes = output.matches("does not share by group").count();
    assert_eq!(notes, 1, "{output}");
}
