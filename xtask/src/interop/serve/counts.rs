//! The server's counts compared with those of its clients, and its metrics read by other tools.

use super::super::Outcome;
use crate::Result;
use crate::fio;
use crate::nbd::Server;
use crate::shell::{Cmd, is_installed};
use serde_json::Value;
use std::fs::File;
use std::process::Stdio;

const DEVICE: &str = "null,irqmode=2,completion_nsec=200000,gb=1";
/// The load of each export, with its exact number of I/Os.
const LOADS: [(&str, &str, u64); 2] = [
    ("gold", "--rw=randread --bs=4k --iodepth=8 --number_ios=20000", 20_000),
    ("rest", "--rw=randwrite --bs=8k --iodepth=4 --number_ios=10000", 10_000),
];
/// The latency of the device in nanoseconds: no request can be faster.
const SERVICE: u64 = 200_000;

fn serve(name: &str) -> Result<Server> {
    let more = "--stats=always --http=tcp:127.0.0.1:0 --export=gold,weight=300 --export=rest";
    Server::blkmq(name, DEVICE, "mq-deadline", more)
}

fn number(value: &Value) -> Result<u64> {
    value.as_u64().ok_or_else(|| format!("no number: {value}").into())
}

/// The metrics, as a client that accepts `accept` gets them.
fn scrape(server: &Server, accept: &str) -> Result<String> {
    let log = std::fs::read_to_string(server.path("log"))?;
    let page = log.lines().find_map(|line| line.strip_prefix("page: "));
    let home = page.ok_or("the server says nothing of a page")?.split('#').next().unwrap_or("");
    Cmd::new("curl -sSf -H").arg(format!("Accept: {accept}")).arg(format!("{home}metrics")).output()
}

/// The value of a series.
pub(super) fn value(text: &str, series: &str) -> Result<f64> {
    let of = |line: &str| line.strip_prefix(series)?.trim().parse().ok();
    text.lines().find_map(of).ok_or_else(|| format!("no {series}").into())
}

/// Every request of fio is counted once: in `blkmqctl stat` in all its forms, in the histograms and in the metrics. The times
/// are between those of the device and those of the client.
pub(in crate::interop) fn counted() -> Result<Outcome> {
    let server = serve("serve-counts")?;
    let mut longest = 0;
    for (export, load, ios) in LOADS {
        let options = format!("{load} --size=128m --norandommap");
        let figures = fio::run(&server.uri(export), &server.path(export), &options)?;
        if figures.ios != ios {
            return Err(format!("fio did {} I/Os for {ios}", figures.ios).into());
        }
        longest = longest.max(figures.longest);
    }
    let fields = &server.ctl("stat --sys")?[0];
    let text = scrape(&server, "text/plain")?;
    let mut all_ios = 0;
    for (at, (export, _, ios)) in LOADS.iter().enumerate() {
        let (requests, merged) = (number(&fields[4 * at])?, number(&fields[4 * at + 1])?);
        all_ios += requests + merged;
        let op = ["read", "write"][at];
        let of =
            |family: &str| value(&text, &format!("{family}{{export=\"{export}\",op=\"{op}\"}}"));
        let (metric, bytes) = (of("blkmq_export_requests_total")?, of("blkmq_export_bytes_total")?);
        let sectors = number(&fields[4 * at + 2])?;
        let want = *ios * [4096, 8192][at];
        if metric as u64 != requests || bytes as u64 != want || sectors * 512 != want {
            return Err(
                format!("{export}: {metric} requests, {bytes} bytes, {sectors} sectors").into()
            );
        }
        for stage in ["queue", "device", "total"] {
            let labels = format!("{{export=\"{export}\",op=\"{op}\",stage=\"{stage}\"");
            let family = "blkmq_request_duration_seconds";
            let all = value(&text, &format!("{family}_bucket{labels},le=\"+Inf\"}}"))?;
            let count = value(&text, &format!("{family}_count{labels}}}"))?;
            if all as u64 != requests || count as u64 != requests {
                return Err(format!("{export}: {all} in the histogram of {stage}").into());
            }
        }
        let mean = number(&fields[4 * at + 3])? as f64 * 1e6 / requests as f64;
        if mean < SERVICE as f64 || mean > longest as f64 {
            return Err(format!("{export}: {mean} ns each; the longest of fio is {longest}").into());
        }
        println!(
            "{export}: {requests} requests and {merged} merged of {ios} I/Os, {mean:.0} ns each"
        );
    }
    // Neighbours that merge are one request, in the elevator or in a plug before it.
    let done: u64 = LOADS.iter().map(|(_, _, ios)| ios).sum();
    if all_ios != done {
        return Err(format!("{all_ios} I/Os, merged ones too, of {done}").into());
    }
    Ok(Outcome::Passed)
}

/// promtool reports no problem with the metrics, and the parser of the Python client reads them, while fio runs.
pub(in crate::interop) fn metrics() -> Result<Outcome> {
    let server = serve("serve-metrics")?;
    let (export, load, _) = LOADS[0];
    fio::run(&server.uri(export), &server.path(export), &format!("{load} --size=64m"))?;
    let file = server.path("metrics");
    std::fs::write(&file, scrape(&server, "text/plain")?)?;
    let mut check = std::process::Command::new("promtool");
    let check = check.args(["check", "metrics"]).stdin(Stdio::from(File::open(&file)?));
    let out = check.output()?;
    let said = [out.stdout, out.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if !out.status.success() || said.iter().any(|text| !text.is_empty()) {
        return Err(format!("promtool: {}", said.concat()).into());
    }
    let open = scrape(&server, "application/openmetrics-text")?;
    if !open.ends_with("# EOF\n") {
        return Err("OpenMetrics without an end".into());
    }
    std::fs::write(&file, open)?;
    let code = "import sys; from prometheus_client.openmetrics.parser import text_string_to_metric_families as of; \
                print(len(list(of(open(sys.argv[1]).read()))))";
    let python = is_installed("/usr/bin/python3")
        && Cmd::new("/usr/bin/python3 -c").arg("import prometheus_client").quiet_code()? == Some(0);
    if !python {
        return Ok(Outcome::Skipped(
            "promtool is silent; python3-prometheus-client is not installed".into(),
        ));
    }
    let read =
        Cmd::new("/usr/bin/python3 -c").arg(code).arg(file.display().to_string()).output()?;
    let families: u64 = read.trim().parse()?;
    if families < 40 { Err(format!("{families} families").into()) } else { Ok(Outcome::Passed) }
}
