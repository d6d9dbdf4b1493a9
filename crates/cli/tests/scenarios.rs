//! What pages claim about schedulers on modelled devices: the committed scenarios are run, and the rows that they make
//! must stand on the page.

use serde_json::Value;
use std::process::Command;

fn sim(scenario: &str, device: &str, schedulers: &str) -> Vec<Value> {
    let path = format!("{}/scenarios/{scenario}.fio", env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(env!("CARGO_BIN_EXE_blkmq"))
        .args(["sim", &path, "--device", device, "--scheduler", schedulers, "--seed", "1"])
        .args(["--output-format", "json"])
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    json["jobs"].as_array().expect("jobs").clone()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// In milliseconds.
fn p99(direction: &Value) -> f64 {
    number(&direction["clat_ns"]["percentile"]["99.000000"]) / 1e6
}

fn megabytes(direction: &Value) -> f64 {
    number(&direction["bw_bytes"]) / 1e6
}

#[test]
fn the_page_of_mq_deadline_shows_what_it_does_for_a_disk() {
    let schedulers = "none,mq-deadline";
    let flood = sim("write-flood", "disk", schedulers);
    let streams = sim("streams", "disk", schedulers);
    let merges = |job: &Value| {
        let merges = job["blkmq"]["merges"].as_object().expect("merges");
        let merged: f64 = merges.values().map(number).sum();
        100.0 * merged / number(&job["blkmq"]["submitted"])
    };
    let rows =
        schedulers.split(',').zip(flood.chunks(2)).zip(&streams).map(|((name, flood), stream)| {
            format!(
                "| `{name}` | {:.0} | {:.1} | {:.1} | {:.1} | {:.0} |",
                p99(&flood[0]["read"]),
                number(&flood[0]["read"]["iops"]),
                megabytes(&flood[1]["write"]),
                megabytes(&stream["read"]),
                merges(stream),
            )
        });
    let rows = Vec::from_iter(rows).join("\n");
    let page = blkmq_sched::deadline::FACTORY.doc;
    assert!(page.contains(&rows), "the page of mq-deadline is to contain\n\n{rows}\n");
}
