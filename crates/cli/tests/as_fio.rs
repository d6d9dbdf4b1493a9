//! Figures and effects that must match fio: each was tried on fio 3.33, and differed here.

use crate::workload::{ios, job, jobs};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn blkmq(line: &str) -> Output {
    let args = line.split_whitespace();
    Command::new(env!("CARGO_BIN_EXE_blkmq")).args(args).output().expect("it starts")
}

/// The output of a command that succeeds.
fn text(line: &str) -> String {
    let output = blkmq(line);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

fn refusal(line: &str) -> String {
    let output = blkmq(line);
    assert_eq!(output.status.code(), Some(2), "{line}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

const STEADY: &str = "--device=null,irqmode=2,completion_nsec=100000 --name=x --rw=randread --size=10g --time_based \
    --runtime=2 --numjobs=4";

/// Regression test: the means of a group were those of one of its threads: 9994.8 for 39979.2 I/Os per second.
#[test]
fn rates_of_a_group_are_those_of_all_its_threads() {
    let group = job(&format!("{STEADY} --group_reporting"));
    let read = &group["read"];
    for (mean, rate) in
        [("iops_mean", "iops"), ("bw_mean", "bw"), ("bw_min", "bw"), ("iops_max", "iops")]
    {
        let share = number(&read[mean]) / number(&read[rate]);
        assert!((0.9..1.1).contains(&share), "{mean}: {share}");
    }
    assert!(number(&read["bw_agg"]) > 99.0, "{}", read["bw_agg"]);
    let single = jobs(STEADY);
    assert_eq!(single.len(), 4);
    for one in single {
        assert!((20.0..30.0).contains(&number(&one["read"]["bw_agg"])), "a fourth");
    }
}

/// fio's `job_runtime` is the sum over the threads, of which `usr_cpu` is a share.
#[test]
fn the_runtime_of_a_group_is_the_sum_of_its_threads() {
    let group = job(&format!("{STEADY} --group_reporting"));
    assert_eq!((&group["job_runtime"], &group["read"]["runtime"]), (&8000.into(), &2000.into()));
    let used: f64 =
        jobs(STEADY).iter().map(|one| number(&one["usr_cpu"]) * number(&one["job_runtime"])).sum();
    let together = number(&group["usr_cpu"]) * number(&group["job_runtime"]);
    assert!((used / together - 1.0).abs() < 0.05, "{used} and {together}");
}

/// Regression test: the list was parsed and shown by `--dry-run`, but had no effect in any format.
#[test]
fn percentiles_are_those_of_the_list() {
    let line = "sim --scheduler=none --device=null --rw=randrw --size=16m --name=x --fsync=64 --percentile_list=25:50:99.999";
    let shown = |format: &str| text(&format!("{line} --output-format={format}"));
    for format in ["json", "json+"] {
        let report: Value = serde_json::from_str(&shown(format)).expect("JSON");
        for latency in ["read", "write"].map(|it| &report["jobs"][0][it]["clat_ns"]) {
            let keys =
                Vec::from_iter(latency["percentile"].as_object().expect("percentiles").keys());
            assert_eq!(keys, ["25.000000", "50.000000", "99.999000"], "{format}");
        }
        let sync = report["jobs"][0]["sync"]["lat_ns"]["percentile"].as_object();
        assert_eq!(sync.expect("percentiles").len(), 3, "{format}");
    }
    let terse = shown("terse");
    let fields = Vec::from_iter(terse.split(';'));
    assert!(fields[17].starts_with("25.000000%=") && fields[19].starts_with("99.999000%="));
    assert_eq!(fields[20], "0%=0");
    let normal = shown("normal");
    assert!(normal.contains("25.00th=[") && normal.contains("99.999th=["), "{normal}");
    assert!(!normal.contains("95.00th"), "{normal}");
    assert!(
        shown("csv").lines().next().is_some_and(|names| names.contains("read_clat_p99_999_ns"))
    );
}

/// Regression test: `size=64Mi` meant 64000000 bytes without a warning, and `bs=4Ki` was refused.
#[test]
fn units_are_fios() {
    let bytes = |options: &str| {
        job(&format!("--device=null --rw=read --name=a {options}"))["read"]["io_bytes"].clone()
    };
    for (options, expected) in [
        ("--size=64Mi --bs=4Ki", 64 << 20),
        ("--size=1Gi --bs=1Mi", 1 << 30),
        ("--kb_base=1000 --size=64Mi --bs=64ki", 64_000_000),
        ("--size=512KiB --bs=512KiB", 512_000),
    ] {
        assert_eq!(bytes(options), expected, "{options}");
    }
}

/// Regression test: everything beyond `size` was overwritten.
#[test]
fn a_device_is_filled_up_to_size() {
    for option in ["--fill_device=1", "--fill_fs=1"] {
        let line = format!("--device=memory,size=64 --rw=write --bs=4k --name=x {option}");
        assert_eq!(ios(&job(&format!("{line} --size=1M"))), [0, 256], "{option}");
        let more = job(&format!("{} --size=1g", line.replace("size=64", "size=2")));
        assert_eq!(ios(&more), [0, 512], "{option}: as much as there is");
    }
}

/// Regression test: the file was laid out, so that a `size` beyond the file system was refused, which is usual with
/// `fill_device`.
#[cfg(target_os = "linux")]
#[test]
fn a_file_to_be_filled_takes_the_room_of_what_is_written() {
    use std::os::unix::fs::MetadataExt;
    let path = folder("filled").join("file");
    let file = format!("--filename={} --name=x --rw=write --bs=64k", path.display());
    // The second run extends the file.
    for size in ["1t", "2t"] {
        let line = format!("{file} --size={size} --fill_device=1 --io_size=1m");
        let Some(report) = on_file("a file to be filled", &line) else { return };
        assert_eq!(ios(&report["jobs"][0]), [0, 16], "{line}");
        let blocks = std::fs::metadata(&path).expect("it is there").blocks();
        assert!(blocks * 512 < 2 << 20, "{line}: {blocks} blocks");
    }
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("as-fio-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Regression test: a file was extended or created, and the command succeeded.
#[cfg(target_os = "linux")]
#[test]
fn readonly_changes_and_makes_no_file() {
    let folder = folder("readonly");
    let here = folder.join("here");
    std::fs::write(&here, vec![7; 1 << 20]).expect("a file");
    let (here_name, folder_name) = (here.display(), folder.display());
    let line = "bench --scheduler=none --rw=randread --name=x --readonly";
    for files in [
        format!("--filename={here_name} --size=8m"),
        format!("--filename={folder_name}/missing --size=1m"),
        format!("--directory={folder_name} --size=1m --nrfiles=3"),
        format!("--filename={here_name} --filesize=2m"),
        format!("--device=uring:{here_name},size=8"),
        format!("--device=uring:{folder_name}/missing,size=1"),
        format!("--device=faults,error=0.1:uring:{here_name},size=8"),
    ] {
        // The order of options makes no difference.
        for line in [
            format!("{line} {files}"),
            format!("{} {files} --readonly", line.trim_end_matches(" --readonly")),
        ] {
            let error = refusal(&line);
            assert!(error.contains("readonly") || error.contains("missing"), "{line}: {error}");
        }
    }
    assert_eq!(std::fs::read(&here).expect("it is there"), vec![7; 1 << 20]);
    assert_eq!(std::fs::read_dir(&folder).expect("it is there").count(), 1, "no other file");
}

/// The report of a run on a file; `None` if io_uring is unavailable.
#[cfg(target_os = "linux")]
fn on_file(test: &str, line: &str) -> Option<Value> {
    let output = blkmq(&format!("bench --scheduler=none --output-format=json --direct=0 {line}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("io_uring is not available here") || errors.contains("io_uring lacks") {
        println!("skipped {test}: {errors}");
        return None;
    }
    assert!(output.status.success(), "{line}: {errors}");
    Some(serde_json::from_slice(&output.stdout).expect("JSON"))
}

/// Regression test: every write carried zeroes, which compressing storage does not store. The options against that were
/// accepted and ignored.
#[cfg(target_os = "linux")]
#[test]
fn what_is_written_does_not_compress_unless_it_is_asked_for() {
    let folder = folder("contents");
    let file = folder.join("f");
    let written = |options: &str| {
        std::fs::write(&file, vec![0; 256 << 10]).expect("a file");
        let line = format!(
            "--filename={} --size=256k --bs=16k --iodepth=4 --name=x {options}",
            file.display()
        );
        on_file("what_is_written_does_not_compress", &line)?;
        Some(std::fs::read(&file).expect("it is there"))
    };
    let zeroes = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == 0).count() * 100 / bytes.len();
    let distinct = |bytes: &[u8]| BTreeSet::from_iter(bytes.chunks(512)).len();
    let Some(plain) = written("--rw=write") else { return };
    assert_eq!((zeroes(&plain), distinct(&plain)), (0, 512));
    let random = written("--rw=randwrite --refill_buffers").expect("as before");
    assert_eq!((zeroes(&random), distinct(&random)), (0, 512));
    assert_eq!(zeroes(&written("--rw=write --zero_buffers").expect("as before")), 100);
    let half = written("--rw=write --buffer_compress_percentage=50").expect("as before");
    assert!((49..=51).contains(&zeroes(&half)) && distinct(&half) == 512);
    assert!(half.chunks(512).all(|chunk| zeroes(&chunk[256..]) == 100));
    let most = "--buffer_compress_percentage=75 --buffer_compress_chunk=4k";
    let most = written(&format!("--rw=write {most}")).expect("as before");
    assert!(most.chunks(4096).all(|chunk| zeroes(&chunk[1024..]) == 100));
    let same = written("--rw=write --scramble_buffers=0 --iodepth=1").expect("as before");
    assert_eq!(distinct(&same), 32, "one buffer of 16 KiB over and over");
    let marked = written("--rw=write --buffer_pattern=0xabcd").expect("as before");
    assert!(marked.chunks(2).all(|pair| pair == [0xab, 0xcd]));
    let twice = "--rw=write --bs=512 --iodepth=1 --dedupe_percentage=50";
    let twice = distinct(&written(twice).expect("as before"));
    assert!((200..312).contains(&twice), "{twice} of 512 blocks");
    let set = "--dedupe_mode=working_set --dedupe_working_set_percentage=10";
    let set = format!("--rw=write --bs=512 --dedupe_percentage=100 {set}");
    assert!((40..=51).contains(&distinct(&written(&set).expect("as before"))));
    // Two threads, with a set each or one for both.
    let both = format!("{set} --size=128k --numjobs=2 --offset_increment=128k");
    let of_each = distinct(&written(&both).expect("as before"));
    let of_all = distinct(&written(&format!("{both} --dedupe_global=1")).expect("as before"));
    assert!(of_each > of_all * 3 / 2, "{of_each} and {of_all}");
    assert!(refusal("sim --name=a --rw=write --dedupe_mode=some").contains("repeat, working_set"));
    assert!(
        refusal("sim --name=a --rw=write --buffer_pattern=%o")
            .contains("belongs to verify_pattern")
    );
}

/// 15 I/Os, so that the last 40 KiB were never touched.
#[test]
fn the_last_part_of_a_sequential_job_is_done() {
    for (options, expected) in [
        ("--rw=read --size=1000k --bs=64k", [16, 0]),
        ("--rw=write --size=10000k --bs=1m --loops=2", [0, 20]),
        ("--rw=read --size=9120 --bs=4k", [3, 0]),
        ("--rw=randread --size=1000k --bs=64k", [15, 0]),
        ("--rw=randread --size=1000k --bs=64k --norandommap", [16, 0]),
        ("--rw=read:64k --size=1000k --bs=64k", [8, 0]),
        ("--rw=write --size=1000k --bs=64k --verify=crc32c", [16, 16]),
        ("--rw=read --size=1000k --io_size=2m --bs=64k", [32, 0]),
    ] {
        assert_eq!(
            ios(&job(&format!("--device=memory,size=64 --name=a {options}"))),
            expected,
            "{options}"
        );
    }
    // Of a mix, the sum.
    let [reads, writes] =
        ios(&job("--device=memory,size=64 --name=a --rw=rw --size=1000k --bs=64k"));
    assert_eq!(reads + writes, 16);
    let whole = job("--device=memory,size=1 --name=a --rw=read --offset=24k --size=1000k --bs=64k");
    assert_eq!(ios(&whole), [15, 0], "the device ends before the last block");
}

/// Regression test: options of the global section were missing, and those of jobs appeared as parsed: `bs` 4096 for 4k,
/// `runtime` 2s for 2, and fdatasync as fsync.
#[test]
fn options_stand_as_they_were_written() {
    let folder = folder("options");
    let file = folder.join("jobs.fio");
    let text_of_file = "[global]\nioengine=libaio\nbs=4k\nsize=1m\ndirectory=/tmp\nruntime=2ms\ntime_based\nname=all\n\n\
        [a]\nreadwrite=randwrite\nnumjobs=2\nfdatasync=16\ngroup_reporting\n\n[b]\nname=c\nbs=8k\nrw=read\nscheduler=none\n";
    std::fs::write(&file, text_of_file).expect("a file");
    let report = |line: &str| -> Value {
        serde_json::from_str(&text(&format!(
            "sim --scheduler=none --device=null,irqmode=2 --output-format=json {line}"
        )))
        .expect("JSON")
    };
    let of_file = report(&file.display().to_string());
    let globals = json!({"ioengine": "libaio", "bs": "4k", "size": "1m", "directory": "/tmp", "runtime": "2ms", "name": "all"});
    assert_eq!(of_file["global options"], globals);
    let options = |report: &Value, at: usize| report["jobs"][at]["job options"].clone();
    assert_eq!(options(&of_file, 0), json!({"rw": "randwrite", "numjobs": "2", "fdatasync": "16"}));
    assert_eq!(options(&of_file, 1), json!({"name": "c", "bs": "8k", "rw": "read"}));
    let of_line = report(
        "--bs=4k --size=1m --name=a --readwrite=read --filename=x --name=b --rw=write --bs=8k --bs=16k",
    );
    assert_eq!(of_line["global options"], json!({"bs": "4k", "size": "1m"}));
    assert_eq!(options(&of_line, 0), json!({"name": "a", "rw": "read", "filename": "x"}));
    assert_eq!(options(&of_line, 1), json!({"name": "b", "rw": "write", "bs": "16k"}));
}

/// Regression test: the first unknown option hid the others: a file with five of them took five attempts.
#[test]
fn all_faults_of_a_job_file_are_named_together() {
    let folder = folder("faults");
    let file = folder.join("jobs.fio");
    std::fs::write(&file, "[global]\nbs=4q\nsteadystate=iops:1%\n[a]\nrw=raed\nrw_sequencer=random\n[b]\nnonsense=1\nrw=read\n").expect("a file");
    let error = refusal(&format!("sim {} --iodepth=x", file.display()));
    for part in [
        "--iodepth=x",
        "jobs.fio:2: bs=4q",
        "jobs.fio:3: steadystate",
        "jobs.fio:5: rw=raed",
        "jobs.fio:6: rw_sequencer",
        "jobs.fio:8: nonsense",
    ] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
    assert_eq!(error.lines().count(), 6, "a line each: {error}");
}

/// Regression test: sizes like those of the disk check for etcd (`bs=2300`) were refused, although fio runs them.
/// Direct I/O of such sizes fails in fio with EINVAL.
#[test]
fn odd_block_sizes_are_rounded_up_to_whole_sectors_with_a_note() {
    let line = "sim --scheduler=none --device=null --name=wal --rw=write --size=1m";
    for (options, ios, note) in [
        ("--bs=2300", 410, Some("bs=2300 is rounded up to 2560")),
        ("--bs=1000", 1024, Some("bs=1000 is rounded up to 1024")),
        ("--bs=4KiB", 256, Some("bs=4000 is rounded up to 4096")),
        ("--bs=8000,4000", 256, Some("bs=4000 is rounded up to 4096")),
        ("--bssplit=8000/100", 128, Some("bssplit=8000/100 is rounded up to 8192/100")),
        ("--bsrange=4000-4000", 256, Some("bsrange=4000-4000 is rounded up to 4096-4096")),
        ("--bs=2300 --bs=4k", 256, None),
        ("--bs=2300,4k", 256, None),
        ("--bs=1000 --ioengine=null --direct=1", 1024, Some("bs=1000 is rounded up to 1024")),
        ("--bs=1000 --verify=crc32c --device=memory", 1024, Some("bs=1000 is rounded up")),
    ] {
        let line = match options.contains("--device") {
            true => line.replace("--device=null", ""),
            false => line.to_owned(),
        };
        let report = text(&format!("{line} {options} --output-format=json"));
        let report: Value = serde_json::from_str(&report).expect("JSON");
        assert_eq!(report["jobs"][0]["write"]["total_ios"], ios, "{options}");
        let notes = report["blkmq"]["notes"].to_string();
        assert_eq!(notes.contains("is rounded up to"), note.is_some(), "{options}: {notes}");
        assert!(notes.contains(note.unwrap_or_default()), "{options}: {notes}");
    }
    let shown = text(&format!("{line} --bs=4KiB"));
    let shown = Vec::from_iter(shown.split_whitespace()).join(" ");
    assert!(
        shown.contains("Note: job 'wal': bs=4000 is rounded up to 4096, since I/O is in whole"),
        "{shown}"
    );
    assert!(shown.contains("kib is 1000 bytes, as in fio, and k is 1024"), "{shown}");
    assert!(!text(&format!("{line} --bs=8000")).contains("kib is"));
    assert!(
        refusal(&format!("{line} --bs=2300 --direct=1"))
            .contains("which direct=1 needs, as in fio")
    );
    let places =
        job("--device=null --name=a --rw=randread --bs=4k --ba=1000 --size=1m --number_ios=9");
    assert_eq!(ios(&places), [9, 0]);
}

/// Programs look for `fio-`, for a disk, and for a rate without a space.
#[cfg(target_os = "linux")]
#[test]
fn programs_that_read_fios_output_find_what_they_look_for() {
    let folder = folder("readers");
    let file = folder.join("f");
    std::fs::write(&file, vec![1; 1 << 20]).expect("a file");
    let line = format!("--filename={} --size=1m --rw=read --bs=64k --name=x", file.display());
    let Some(report) = on_file("programs_that_read_fios_output", &line) else { return };
    assert!(report["fio version"].as_str().is_some_and(|version| version.starts_with("fio-3.33")));
    // A file system without a disk, such as tmpfs, has none, as with fio.
    if let Some(disk) = report["disk_util"].get(0) {
        assert!(disk["name"].is_string() && number(&disk["util"]) <= 100.0, "{disk}");
        let silent =
            on_file("without disk_util", &format!("{line} --disk_util=0")).expect("as before");
        assert_eq!(silent.get("disk_util"), None);
    }
    let terse = text(&format!("bench --scheduler=none --direct=0 --output-format=terse {line}"));
    assert!(terse.split(';').nth(1).is_some_and(|version| version.starts_with("fio-")), "{terse}");
    let normal = text(&format!("bench --scheduler=none --direct=0 {line}"));
    let rate = normal.split("BW=").nth(1).and_then(|rest| rest.split_whitespace().next());
    assert!(rate.is_some_and(|rate| rate.ends_with("iB/s")), "{normal}");
}

/// Lines that people type: each was refused, and fio runs it.
#[test]
fn spellings_that_fio_takes_are_taken() {
    let line = "--device=null --name=a --size=1m --bs=4k";
    for options in [
        "--rw=read --ioengine=aio",
        "--rw=read --time_based=3600 --runtime=1ms",
        "--rw=read --percentile_list=50,99",
        "--rw=read --nice=-10 --unit_base=8",
        "--rw=write --fsync_on_close=1",
    ] {
        assert!(ios(&job(&format!("{line} {options}"))) != [0, 0], "{options}");
    }
    assert_eq!(jobs(&format!("{line} --rw=read --numjob=3")).len(), 3);
    // The last size has the rest.
    let split = job("--device=null --name=a --rw=read --size=64m --bssplit=4k/90:8k/8");
    let mean = number(&split["read"]["io_bytes"]) / number(&split["read"]["total_ios"]);
    assert!((4400.0..4600.0).contains(&mean), "{mean}");
    let closed =
        job(&format!("{line} --device=memory,size=1,cache_size=1 --rw=write --fsync_on_close=1"));
    assert!(closed["blkmq"]["end_fsync_ns"].is_u64(), "{}", closed["blkmq"]);
}

#[test]
fn percentiles_are_of_the_latencies_that_are_asked_for() {
    let line = "sim --scheduler=none --device=null,irqmode=2 --name=a --rw=read --size=4m --bs=4k";
    for (options, expected) in [
        ("", [false, true, false]),
        ("--lat_percentiles=1", [false, true, true]),
        ("--slat_percentiles=1", [true, true, false]),
        ("--clat_percentiles=0", [false; 3]),
        ("--clat_percentiles=0 --lat_percentiles=1", [false, false, true]),
    ] {
        let report: Value =
            serde_json::from_str(&text(&format!("{line} {options} --output-format=json")))
                .expect("JSON");
        let read = &report["jobs"][0]["read"];
        let shown =
            ["slat_ns", "clat_ns", "lat_ns"].map(|key| read[key].get("percentile").is_some());
        assert_eq!(shown, expected, "{options}");
        let normal = text(&format!("{line} {options}"));
        let lines = ["    slat percentiles:", "    clat percentiles:", "    lat percentiles:"];
        assert_eq!(lines.map(|line| normal.contains(line)), expected, "{options}: {normal}");
        let terse = text(&format!("{line} {options} --output-format=terse"));
        let is_empty = terse.split(';').nth(17) == Some("0%=0");
        assert_eq!(is_empty, expected == [false; 3], "{options}");
    }
}

/// Regression test: the log of a job was called `NAME.1` whenever another thread ran in the same run.
#[test]
fn a_log_of_ios_has_its_name_unless_threads_share_it() {
    let folder = folder("iolog");
    let name = |name: &str| folder.join(name).display().to_string();
    let line = format!(
        "sim --scheduler=none --device=null --rw=read --size=64k --name=a --write_iolog={} --name=b --numjobs=2 --write_iolog={}",
        name("alone"),
        name("shared")
    );
    text(&line);
    let ios =
        |path: &str| std::fs::read_to_string(name(path)).map(|text| text.matches(" read ").count());
    assert_eq!(ios("alone").ok(), Some(16));
    let shared = ["shared", "shared.2", "shared.3"].map(|path| ios(path).ok());
    assert_eq!(shared, [None, Some(16), Some(16)]);
}

/// Regression test: job files that trim with fio's null engine were refused, and option names in reports were those of
/// the manual.
#[test]
fn the_null_engine_trims_and_options_are_called_as_in_fios_reports() {
    let options = "--iodepth_batch_submit=1 --blockalign=4k --mem_align=16";
    let report: Value = serde_json::from_str(&text(&format!(
        "sim --scheduler=none --output-format=json --ioengine=null --name=x --rw=randtrim --size=64k {options}"
    )))
    .expect("JSON");
    assert_eq!(report["jobs"][0]["trim"]["total_ios"], 16);
    for key in ["iodepth_batch", "ba", "iomem_align"] {
        assert!(report["jobs"][0]["job options"][key].is_string(), "{key}: {report}");
    }
}

/// Regression test: this was refused. fio 3.33 has the same keys and fields; its rate of `both` is 0 in text, and ours
/// is the sum.
#[test]
fn kinds_of_transfer_are_reported_as_one() {
    let line = "--device=null,irqmode=2,completion_nsec=100000 --name=x --rw=randrw --size=1m";
    let plain = job(line);
    let both = job(&format!("{line} --unified_rw_reporting=both"));
    let mixed = job(&format!("{line} --unified_rw_reporting=mixed"));
    let kinds = |job: &Value| {
        let named = ["read", "write", "trim", "sync", "mixed"].into_iter();
        Vec::from_iter(named.filter(|name| job.get(name).is_some()))
    };
    assert_eq!(kinds(&plain), ["read", "write", "trim", "sync"]);
    assert_eq!(kinds(&both), ["read", "write", "trim", "sync", "mixed"]);
    assert_eq!(kinds(&mixed), ["mixed"]);
    for sum in ["total_ios", "io_bytes"] {
        let all = number(&plain["read"][sum]) + number(&plain["write"][sum]);
        for one in [&both, &mixed] {
            assert_eq!(number(&one["mixed"][sum]), all, "{sum}");
        }
    }
    for of in [&both["mixed"], &mixed["mixed"]] {
        assert_eq!((&of["total_ios"], &of["clat_ns"]["N"]), (&256.into(), &256.into()));
        assert!(of["clat_ns"]["percentile"]["99.000000"].is_u64(), "{of}");
        let share = number(&of["iops"]) / number(&of["total_ios"]) * number(&of["runtime"]) / 1e3;
        assert!((0.9..1.1).contains(&share), "the rate is that of all: {share}");
    }

    let sim = |more: &str| text(&format!("sim --scheduler=none {line} {more}"));
    let fields = |more: &str| sim(&format!("--minimal {more}")).split(';').count();
    // 41 fields for each kind.
    assert_eq!(fields("--unified_rw_reporting=1") + 41, fields(""));
    assert_eq!(fields("--unified_rw_reporting=2"), fields("") + 41);
    let shown = sim("--unified_rw_reporting=mixed");
    assert!(shown.contains("mixed: IOPS=") && shown.contains("MIXED: bw="), "{shown}");
    assert!(!shown.contains("READ: bw=") && !shown.contains("  read: "), "{shown}");
    let printed = text(&format!("bench --dry-run {line} --unified_rw_reporting=2"));
    assert!(printed.contains("unified_rw_reporting=both"), "{printed}");
}

/// As in fio 3.33, programs that show an unfinished run get a document for each status.
#[test]
fn the_status_of_a_run_is_its_report_so_far() {
    let second = "--rw=randread --size=10g --time_based --runtime=1";
    let line = format!(
        "sim --device=null,irqmode=2,completion_nsec=1000000 --name=a {second} --name=b {second} --stonewall \
         --status-interval=500ms"
    );
    let documents = |output: &str| -> Vec<Value> {
        let all = serde_json::Deserializer::from_str(output).into_iter();
        all.collect::<Result<_, _>>().expect("one document after another")
    };
    let of_one = documents(&text(&format!("{line} --scheduler=none --output-format=json")));
    let reads = |document: &Value| {
        let jobs = document["jobs"].as_array().expect("jobs").iter();
        Vec::from_iter(jobs.map(|job| {
            [&job["read"]["total_ios"], &job["read"]["runtime"]]
                .map(|it| it.as_u64().expect("a number"))
        }))
    };
    let rough = |document: &Value| {
        let rounded = reads(document).into_iter().map(|[ios, ms]| [(ios + 5) / 10 * 10, ms]);
        Vec::from_iter(rounded)
    };
    let [all, half] = [[1_000, 1_000], [500, 500]];
    assert_eq!(
        Vec::from_iter(of_one.iter().map(rough)),
        [vec![half, [0, 0]], vec![all, [0, 0]], vec![all, half], vec![all, all], vec![all, all]]
    );
    let (end, before) = of_one.split_last().expect("documents");
    assert!(
        end["blkmq"].get("partial").is_none() && end["jobs"][1]["blkmq"].get("partial").is_none()
    );
    let keys = |document: &Value| {
        Vec::from_iter(document["jobs"][1].as_object().expect("a job").keys().cloned())
    };
    for status in before {
        assert_eq!(status["blkmq"]["partial"], json!({"runs": 0, "planned": 1, "signal": null}));
        assert_eq!(status["jobs"][1]["blkmq"]["partial"], json!(true));
        assert_eq!(keys(status), keys(end));
    }

    // Earlier runs come first and complete, and every format appears.
    let of_two = text(&format!("{line} --scheduler=none,bfq --output-format=terse,normal"));
    let names = of_two
        .lines()
        .filter(|it| it.starts_with("3;"))
        .map(|it| it.split(';').nth(2).expect("a name"));
    let [first, both] = [["a.none", "b.none"].as_slice(), &["a.none", "b.none", "a.bfq", "b.bfq"]];
    assert_eq!(
        Vec::from_iter(names),
        [first, first, first, first, both, both, both, both, both].concat()
    );
    assert_eq!(of_two.matches("\nPartial: 1 of 2 runs so far.\n").count(), 4);

    // A file contains them in sequence as well.
    let file = folder("status").join("results.json");
    text(&format!("{line} --scheduler=none --output-format=json --output={}", file.display()));
    let written = documents(&std::fs::read_to_string(&file).expect("results"));
    assert_eq!(
        written.iter().map(reads).collect::<Vec<_>>(),
        Vec::from_iter(of_one.iter().map(reads))
    );

    let job_file = folder("status-file").join("jobs.fio");
    std::fs::write(&job_file, "[a]\nrw=read\nsize=1m\nstatus_interval=1\n").expect("a file");
    assert!(refusal(&format!("sim {}", job_file.display())).contains("on the command line only"));
    assert!(
        refusal(&format!("{line} --output-format=html"))
            .contains("normal, json, json+, csv, terse")
    );
    assert!(refusal("sim --name=a --rw=read --status-interval=999us").contains("1ms or more"));
}

/// The threads of a real run answer while they do I/O, think, and wait for their start.
#[test]
fn real_threads_tell_their_status() {
    let line = "bench --scheduler=none --device=null --size=1g --rw=read --time_based --runtime=400ms \
        --name=busy --iodepth=8 --name=thinks --thinktime=10s --name=late --startdelay=300ms --rate_iops=100 \
        --status-interval=20ms --output-format=json";
    let output = text(line);
    let all = serde_json::Deserializer::from_str(&output).into_iter::<Value>();
    let reads =
        |document: Value| [0, 1, 2].map(|job| number(&document["jobs"][job]["read"]["total_ios"]));
    let seen = Vec::from_iter(all.map(|document| reads(document.expect("JSON"))));
    assert!(seen.len() > 2, "{seen:?}");
    assert!(seen.windows(2).all(|pair| (0..3).all(|job| pair[0][job] <= pair[1][job])), "{seen:?}");
    assert!(seen[0][0] > 0.0 && seen[0][2] == 0.0, "{seen:?}");
}

/// Regression test: `description` was accepted but not reported: in fio it is `desc` of its job, and the last field of
/// its line.
#[test]
fn a_description_is_in_json_and_ends_a_line() {
    let line = "--device=null --size=64k --description=all --name=a --rw=read --continue_on_error=all \
        --name=b --rw=read --description=its;own";
    let all = jobs(line);
    assert_eq!(Vec::from_iter(all.iter().map(|job| &job["desc"])), ["all", "its;own"]);
    assert!(job("--device=null --size=64k --name=a --rw=read").get("desc").is_none());
    let terse = text(&format!("sim --scheduler=none --output-format=terse {line}"));
    let ends = Vec::from_iter(terse.lines().map(|line| line.rsplit("%;").next().expect("an end")));
    // It follows the errors that the job survived.
    assert_eq!(ends, ["0;0;all", "its,own"]);
}

/// With a synchronous engine, fio counts the total latency as completion latency.
#[test]
fn a_synchronous_engine_has_no_latency_of_submission() {
    let line = "--device=null,irqmode=2,completion_nsec=100000 --rw=randread --size=400k --name=a";
    for (engine, submissions) in [("psync", 0), ("pvsync2", 0), ("libaio", 100), ("io_uring", 100)]
    {
        let read = &job(&format!("{line} --ioengine={engine}"))["read"];
        let counts = ["slat_ns", "clat_ns", "lat_ns"].map(|key| &read[key]["N"]);
        assert_eq!(counts, [&json!(submissions), &json!(100), &json!(100)], "{engine}");
        let [clat, lat] = ["clat_ns", "lat_ns"].map(|key| number(&read[key]["mean"]));
        assert!(submissions > 0 || clat == lat, "{engine}: {clat} of {lat}");
    }
}

/// Regression test: a job could not override an option that applies to all jobs.
#[test]
fn a_job_may_do_without_the_flush_of_all_jobs() {
    let line = "--device=memory,size=8 --size=64k --rw=write";
    for (all, own, is_flushed) in [
        ("--fsync_on_close=1", "--fsync_on_close=0", false),
        ("--end_fsync=1", "--end_fsync=0", false),
        ("--end_fsync=1", "--fsync_on_close=0", true),
        ("--fsync_on_close=1", "", true),
        // A job that may write is flushed, whatever it has drawn.
        ("--end_fsync=1 --rw=rw --rwmixread=100", "", true),
        ("--end_fsync=1 --rw=randread", "", false),
        ("--end_fsync=1 --fsync=1", "", true),
        // The last seek follows the flush of the last write, which is sufficient.
        ("--end_fsync=1 --fsync=1 --rw=write:8k", "", false),
    ] {
        let job = job(&format!("{line} {all} --name=a {own}"));
        assert_eq!(job["blkmq"]["end_fsync_ns"].is_u64(), is_flushed, "{all} {own}: {job}");
    }
}

/// fio's shares for the same jobs.
#[test]
fn depths_are_shares_of_ios_by_the_depth_that_they_found() {
    let line = "--device=null,irqmode=2,completion_nsec=100000 --rw=randread --size=1m --name=a --iodepth=8";
    let keys = ["1", "2", "4", "8", "16", "32", ">=64"];
    for (options, expected) in [
        ("", [0.390_625, 0.781_25, 1.562_5, 97.265_625, 0.0, 0.0, 0.0]),
        (
            "--iodepth_batch=4 --iodepth_batch_complete=4",
            [0.0, 0.0, 1.5625, 98.4375, 0.0, 0.0, 0.0],
        ),
    ] {
        let job = job(&format!("{line} {options}"));
        assert_eq!(keys.map(|key| number(&job["iodepth_level"][key])), expected, "{options}");
        assert_eq!(number(&job["iodepth_submit"]["4"]), 100.0, "{options}");
    }
}

/// fio numbers threads across all jobs, and reports a group only if its jobs request it.
#[test]
fn threads_and_groups_are_numbered_through_all_jobs() {
    let folder = folder("numbers");
    let at = folder.display();
    let logs =
        format!("--write_lat_log={at}/l --name=a --numjobs=2 --name=b --write_lat_log={at}/m");
    text(&format!("sim --scheduler=none --device=null --size=64k --rw=read {logs}"));
    let found = std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("a file"));
    let found = BTreeSet::from_iter(found.map(|it| it.file_name().into_string().expect("text")));
    let of = |(prefix, number)| {
        ["slat", "clat", "lat"].map(|kind| format!("{prefix}_{kind}.{number}.log"))
    };
    assert_eq!(found, BTreeSet::from_iter([("l", 1), ("l", 2), ("m", 3)].into_iter().flat_map(of)));

    let groups = "--name=a --rw=read --numjobs=2 --name=b --rw=write --new_group --group_reporting --numjobs=2";
    let rows = jobs(&format!("--device=null --bs=512 --size=3584 {groups}"));
    let row = |job: &Value| {
        let [read, write] = ios(job);
        let kib = ["read", "write"].map(|key| job[key]["io_kbytes"].clone());
        json!([job["jobname"], job["groupid"], read, write, kib])
    };
    // An incomplete KiB does not count.
    let alone = json!(["a", 0, 7, 0, [3, 0]]);
    let expected = [alone.clone(), alone, json!(["b", 1, 0, 14, [0, 7]])];
    assert_eq!(Vec::from_iter(rows.iter().map(row)), expected);
}
