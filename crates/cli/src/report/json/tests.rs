use super::super::job::{self, Latency, SyncResult, Verified};
use super::super::model::{Disk, Report};
use super::super::sample;
use super::*;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;

/// fio's keys, one path per line, written by hand from the output of fio 3.33.
const KEYS: &str = include_str!("../testdata/fio-keys.txt");

/// The paths of all keys, without descending into objects with data as keys or added by blkmq.
fn paths(value: &Value) -> BTreeSet<String> {
    fn walk(value: &Value, path: &str, found: &mut BTreeSet<String>) {
        match value {
            Value::Array(items) => {
                items.iter().for_each(|item| walk(item, &format!("{path}[]"), found));
            }
            Value::Object(map) => {
                for (key, value) in map.iter().filter(|(key, _)| *key != "blkmq") {
                    let path = format!("{path}/{key}");
                    found.insert(path.clone());
                    if !["job options", "global options", "bins"].contains(&key.as_str()) {
                        walk(value, &path, found);
                    }
                }
            }
            _ => {}
        }
    }
    let mut found = BTreeSet::new();
    walk(value, "", &mut found);
    found
}

fn parsed(report: &Report, detail: Detail) -> Value {
    serde_json::from_str(&render(report, detail)).expect("the report is JSON")
}

/// The described paths; `*` stands for read, write and trim, and a line `path: a b c` for several keys.
fn described() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for line in KEYS.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let (parent, keys) = line.split_once(": ").expect("a line is `path: key, key`");
        for key in keys.split(", ") {
            let path = format!("{}/{key}", parent.trim_end_matches('/'));
            for direction in ["read", "write", "trim"] {
                all.insert(path.replace('*', direction));
            }
        }
    }
    all
}

#[test]
fn the_keys_are_fios() {
    let ours = paths(&parsed(&sample::single(), Detail::Plain));
    let expected = described();
    assert!(expected.len() > 150, "the description was read");
    let missing: Vec<_> = expected.difference(&ours).collect();
    let extra: Vec<_> = ours.difference(&expected).collect();
    assert!(missing.is_empty() && extra.is_empty(), "missing: {missing:?}, extra: {extra:?}");
}

#[test]
fn s_fio_json() {
    let fio = |format: &str| {
        let options = ["--name=t", "--ioengine=null", "--rw=randread", "--bs=4k", "--size=4m"];
        Command::new("fio").args(options).arg(format!("--output-format={format}")).output()
    };
    for (format, detail) in [("json", Detail::Plain), ("json+", Detail::Bins)] {
        let Ok(output) = fio(format) else {
            println!("SKIP s_fio_json: fio is not installed");
            return;
        };
        let theirs: Value = serde_json::from_slice(&output.stdout).expect("fio prints JSON");
        let version = theirs["fio version"].as_str().expect("fio tells its version").to_owned();
        if !version.starts_with("fio-3.33") {
            println!("SKIP s_fio_json: the schema is that of fio-3.33, installed is {version}");
            return;
        }
        let mut report = sample::single();
        // fio attaches its options to the job, not to the whole run.
        report.global_options.clear();
        let ours = parsed(&report, detail);
        assert_eq!(paths(&ours), paths(&theirs), "{format}");
        assert_eq!(kinds(&ours["jobs"][0], ""), kinds(&theirs["jobs"][0], ""), "{format}");
    }
}

/// The kind of number or other value at each key, so that a float does not replace an integer.
fn kinds(value: &Value, path: &str) -> Vec<(String, &'static str)> {
    let kind = match value {
        Value::Object(map) => {
            let entered = map
                .iter()
                .filter(|(key, _)| !["blkmq", "job options", "bins"].contains(&key.as_str()));
            return entered.flat_map(|(k, v)| kinds(v, &format!("{path}/{k}"))).collect();
        }
        Value::Number(n) if n.is_f64() => "float",
        Value::Number(_) => "integer",
        Value::String(_) => "text",
        _ => "other",
    };
    vec![(path.to_owned(), kind)]
}

#[test]
fn figures_have_fios_units_and_agree() {
    let report = sample::comparison();
    let json = parsed(&report, Detail::Plain);
    let jobs = json["jobs"].as_array().expect("jobs are a list");
    assert_eq!(jobs.len(), 9);
    for (job, run) in jobs.iter().zip(&report.runs) {
        let read = &job["read"];
        let number = |key: &str| read[key].as_f64().expect("a number");
        assert_eq!(read["bw"].as_u64(), read["bw_bytes"].as_u64().map(|b| b / 1024));
        assert_eq!(read["io_kbytes"].as_u64(), read["io_bytes"].as_u64().map(|b| b / 1024));
        let seconds = number("runtime") / 1000.0;
        let rounding = number("iops") * 0.0005 + 1.0;
        assert!((number("iops") * seconds - number("total_ios")).abs() <= rounding);
        assert!((number("bw_bytes") * seconds - number("io_bytes")).abs() <= rounding * 4096.0);
        assert!((number("bw_mean") * 1024.0 - number("iops_mean") * 4096.0).abs() < 1.0);
        assert_eq!(number("bw_agg"), 100.0);
        let percentiles: Vec<u64> = job::default_percentiles()
            .iter()
            .map(|p| format!("{:.6}", p.percent()))
            .map(|key| read["clat_ns"]["percentile"][key].as_u64().expect("fio's key"))
            .collect();
        assert!(percentiles.is_sorted(), "{percentiles:?}");
        assert_eq!(job["write"]["clat_ns"].get("percentile"), None);
        assert_eq!(job["elapsed"], 11);
        assert_eq!(job["job_runtime"], 10_000 * u64::from(run.threads));
        assert_eq!(job["blkmq"]["scheduler"], run.scheduler.as_str());
    }
}

#[test]
fn distributions_add_up_to_all() {
    let json = parsed(&sample::comparison(), Detail::Plain);
    for job in json["jobs"].as_array().expect("jobs are a list") {
        let sum = |key: &str| -> f64 {
            job[key].as_object().expect("an object").values().filter_map(Value::as_f64).sum()
        };
        let latencies = sum("latency_ns") + sum("latency_us") + sum("latency_ms");
        for total in [sum("iodepth_level"), sum("iodepth_submit"), latencies] {
            assert!((total - 100.0).abs() < 1e-3, "{total}");
        }
    }
}

#[test]
fn the_books_can_be_checked_by_a_reader() {
    let json = parsed(&sample::comparison(), Detail::Plain);
    for job in json["jobs"].as_array().expect("jobs are a list") {
        let queue = &job["blkmq"];
        let n = |key: &str| queue[key].as_u64().expect("a count");
        let merges = queue["merges"].as_object().expect("an object");
        let merged: u64 = merges.values().filter_map(Value::as_u64).sum();
        assert_eq!(n("submitted"), n("completed"));
        assert_eq!(n("submitted") - merged, n("dispatches") - n("requeues"));
        assert_eq!(n("requests_completed"), n("dispatches") - n("requeues"));
    }
}

#[test]
fn verification_is_beside_the_queue_where_there_was_any() {
    let mut report = sample::comparison();
    let found = Verified { bytes: 8192, errors: 2, first: Some("offset 0".into()) };
    report.runs[1].jobs[0].verify = Some(found);
    let json = parsed(&report, Detail::Plain);
    assert_eq!(json["jobs"][0]["blkmq"].get("verify"), None);
    let expected = serde_json::json!({ "verified": 8192, "errors": 2, "reads": 0 });
    assert_eq!(json["jobs"][1]["blkmq"]["verify"], expected);
}

#[test]
fn groups_are_told_once_for_each_queue_that_has_some() {
    let mut report = sample::shared();
    report.runs.push(sample::single().runs.remove(0));
    report.runs[2].shared = sample::governed();
    report.runs.push(sample::single().runs.remove(0));
    let queues = &parsed(&report, Detail::Plain)["blkmq"]["queues"];
    assert_eq!(queues.as_array().map(Vec::len), Some(3), "the last run has nothing to say");
    let groups = queues[0]["groups"].as_array().expect("a list");
    let names = Vec::from_iter(groups.iter().map(|group| group["name"].as_str().expect("text")));
    assert_eq!(names, ["/", "web", "shop", "search", "backup", "idle"]);
    let expected = serde_json::json!({
        "name": "backup", "parent": "/", "weight": 100, "ios": 200, "bytes": 819_200, "share": 0.2, "due": 0.25,
        "stats": {
            "io_serviced_recursive": {
                "Read": 200, "Write": 0, "Sync": 200, "Async": 0, "Discard": 0, "Total": 200
            },
            "io_wait_time_recursive": {
                "Read": 1_400_000_000, "Write": 0, "Sync": 1_400_000_000, "Async": 0, "Discard": 0,
                "Total": 1_400_000_000
            },
            "io_service_time_recursive": {
                "Read": 20_000_000, "Write": 0, "Sync": 20_000_000, "Async": 0, "Discard": 0, "Total": 20_000_000
            },
            "dequeue": 7
        },
        "waited_for": [
            { "group": "shop", "time_ns": 4_000_000_000_u64 },
            { "group": "backup", "time_ns": 1_000_000_000 }
        ]
    });
    let shop = &groups[2]["waited_for"];
    assert_eq!(shop[0], serde_json::json!({ "group": null, "time_ns": 2_000_000_000 }));
    assert_eq!(groups[4], expected);
    assert_eq!((&groups[0]["parent"], &groups[0]["weight"]), (&Value::Null, &Value::Null));
    assert_eq!((&groups[5]["due"], groups[5].get("stats")), (&Value::Null, None));
    assert_eq!(queues[0]["group_stats"], "full");
    let expected = serde_json::json!({
        "run": 2, "tokens": [256, 128], "governor": { "read_target": 2_000_000, "read_p99": 3 }
    });
    assert_eq!(queues[2], expected);
    assert_eq!(parsed(&sample::comparison(), Detail::Plain)["blkmq"].get("queues"), None);
}

#[test]
fn bins_count_every_completion() {
    let json = parsed(&sample::single(), Detail::Bins);
    let clat = &json["jobs"][0]["read"]["clat_ns"];
    let bins = clat["bins"].as_object().expect("json+ has bins");
    assert_eq!(bins.values().filter_map(Value::as_u64).sum::<u64>(), clat["N"]);
    assert!(bins.keys().all(|key| key.parse::<u64>().is_ok()));
}

/// Flushes have the keys that fio has: a summary, percentiles, and in json+ bins.
#[test]
fn flushes_are_timed_like_other_io() {
    let mut report = sample::single();
    let job = &mut report.runs[0].jobs[0];
    let mut latency = Latency::default();
    [100, 200, 300].iter().for_each(|ns| latency.0.record(*ns));
    job.sync = SyncResult { total_ios: 3, lat: Some(latency) };
    job.end_fsync_ns = Some(77);
    let json = parsed(&report, Detail::Plain);
    let sync = &json["jobs"][0]["sync"];
    let found = ["min", "max", "N"].map(|key| sync["lat_ns"][key].as_u64());
    assert_eq!((sync["total_ios"].as_u64(), found), (Some(3), [Some(100), Some(300), Some(3)]));
    let percentiles = sync["lat_ns"]["percentile"].as_object().expect("an object");
    assert_eq!(percentiles.len(), job::default_percentiles().len());
    assert_eq!(percentiles["50.000000"], 201);
    assert_eq!(sync["lat_ns"].get("bins"), None);
    assert_eq!(json["jobs"][0]["blkmq"]["end_fsync_ns"], 77);
    let json = parsed(&report, Detail::Bins);
    let bins = json["jobs"][0]["sync"]["lat_ns"]["bins"].as_object().expect("json+ has bins");
    assert_eq!(bins.values().filter_map(Value::as_u64).sum::<u64>(), 3);
}

/// A job has the name of its case appended, and each run its own reporting groups.
#[test]
fn jobs_of_several_runs_are_told_apart() {
    let mut report = sample::shared();
    for (run, case) in report.runs.iter_mut().zip(["bfq", "none"]) {
        run.case = case.into();
        run.jobs[1].group = 1;
    }
    let json = parsed(&report, Detail::Plain);
    let jobs = json["jobs"].as_array().expect("jobs are a list");
    let names = Vec::from_iter(jobs.iter().map(|job| (&job["jobname"], &job["groupid"])));
    let expected = [("randread.bfq", 0), ("copy.bfq", 1), ("randread.none", 2), ("copy.none", 3)];
    let expected = expected.map(|(name, group)| (Value::from(name), Value::from(group)));
    assert!(names.iter().copied().eq(expected.iter().map(|(n, g)| (n, g))), "{names:?}");
}

#[test]
fn disks_have_fios_keys_where_they_are_known() {
    let mut report = sample::single();
    assert_eq!(parsed(&report, Detail::Plain).get("disk_util"), None);
    report.disks = vec![Disk { name: "vda".into(), read_ios: 7, util: 12.5, ..Disk::default() }];
    let json = parsed(&report, Detail::Plain);
    let keys = json["disk_util"][0].as_object().expect("a disk").keys();
    let keys = keys.map(String::as_str).collect::<BTreeSet<_>>();
    let expected =
        "name read_ios write_ios read_merges write_merges read_ticks write_ticks in_queue util";
    assert_eq!(keys, expected.split(' ').collect());
}

#[test]
fn any_text_survives() {
    let report = sample::hostile();
    let json = parsed(&report, Detail::Plain);
    assert_eq!(json["jobs"][3]["jobname"], report.runs[3].jobs[0].name.as_str());
    assert_eq!(json["blkmq"]["command"], report.command.as_str());
    assert_eq!(json["global options"].as_object().expect("an object").len(), 1);
}

#[test]
fn the_layout_is_fios() {
    let text = render(&sample::single(), Detail::Plain);
    for line in [
        "{\n  \"fio version\" : \"fio-3.33-blkmq-0.1.0\",\n  \"timestamp\" : 1795259797,\n",
        "\n  \"time\" : \"Sat Nov 21 11:16:37 2026\",\n  \"jobs\" : [\n    {\n      \"jobname\" : \"randread\",\n",
        "\n        \"iops\" : 8000000.000000,\n        \"runtime\" : 10000,\n",
    ] {
        assert!(text.contains(line), "{line:?} is not in {text}");
    }
}
