//! The figures for operators match those of the clients: all counts of HTTP, control and `blkmqctl top` agree with each
//! other and with fio's, the rates of `blkmqctl top` are those of a rate-limited fio, the histograms of
//! `blkmqctl biolatency` are fio's own for the same run, and other tools read the metrics.
//!
//! Each I/O takes the client as long as the server, plus the time of the socket. The client's time is fio's `lat`: its
//! `clat` begins when the request has been sent, and the server may have it by then.

use super::page::get;
use crate::Result;
use crate::interop::Outcome;
use crate::measurement::{Fio, pause, run_fio};
use crate::serve::Server;
use crate::shell::{BLKMQCTL, Cmd, is_installed, parse_json};
use serde_json::Value;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Stdio};

/// I/Os a second of the rate-limited client: reads, and as many writes.
const RATE: f64 = 400.0;
/// The tolerance of a rate: an interval begins and ends between two I/Os, and fio has its own clock.
const TOLERANCE: f64 = 0.1;

/// A device whose name needs no escapes.
const DEVICE: &str = "memory,size=64";
/// Neighbours in batches, so that many merge in a plug.
const LOAD: &str =
    "--rw=rw --bs=8k --iodepth=16 --iodepth_batch_submit=8 --size=32m --time_based --runtime=1";

/// Reads and writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Counts {
    requests: [u64; 2],
    merged: [u64; 2],
    bytes: [u64; 2],
}

impl Counts {
    /// Both directions of three figures each.
    fn of(figure: impl Fn(usize) -> Result<[u64; 3]>) -> Result<Self> {
        let both = [figure(0)?, figure(1)?];
        let each = |of: usize| both.map(|figures| figures[of]);
        Ok(Self { requests: each(0), merged: each(1), bytes: each(2) })
    }

    fn add(&mut self, other: Self) {
        let pairs = [
            (&mut self.requests, other.requests),
            (&mut self.merged, other.merged),
            (&mut self.bytes, other.bytes),
        ];
        for (sums, more) in pairs {
            sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
    }
}

/// See above.
pub(in crate::interop) fn figures() -> Result<Outcome> {
    let more = "--http=tcp:127.0.0.1:0 --export=gold";
    let server = Server::blkmq("figures", DEVICE, "mq-deadline", more)?;
    let top_all = Follower::start(&server, "top --json --interval=1")?;
    let stat_all = Follower::start(&server, "stat --json --interval=1")?;
    let client = run_fio(&server.uri("gold"), &server.path("fio"), LOAD)?;
    let all = absolute(&server)?;
    for (name, counts) in &all {
        println!("{name}: {counts:?}");
    }
    let (_, first) = all[0];
    if let Some((name, _)) = all.iter().find(|(_, counts)| *counts != first) {
        return Err(format!("{name} has other figures than {}", all[0].0).into());
    }
    for (name, sum) in [("top", sum(&top_all, of_top)?), ("stat", sum(&stat_all, of_ctl)?)] {
        if sum != first {
            return Err(format!("{name} has {sum:?} over all intervals").into());
        }
    }
    let (requests, merged): (u64, u64) = (first.requests.iter().sum(), first.merged.iter().sum());
    println!("fio: {} I/Os, {} bytes", client.ios, client.bytes);
    if requests + merged != client.ios || first.bytes.iter().sum::<u64>() != client.bytes {
        return Err(format!("the server has {first:?}").into());
    }
    if merged == 0 {
        return Err("nothing was merged".into());
    }
    top(&server)
}

/// The sum of all intervals until now.
fn sum(follower: &Follower, of: fn(&Value) -> Option<Counts>) -> Result<Counts> {
    let mut sum = Counts::default();
    for line in follower.all()? {
        sum.add(of(&line).ok_or_else(|| format!("no counts in {line}"))?);
    }
    Ok(sum)
}

/// The counts since the start of the server, from each interface that shows them.
fn absolute(server: &Server) -> Result<Vec<(&'static str, Counts)>> {
    let stat: Value = serde_json::from_str(&get(server, "/stat.json")?)?;
    let of = |place: &str| {
        let figures = &stat["stat"][place][0]["figures"];
        Counts::of(|at| {
            Ok([
                number(&figures["ios"][at])?,
                number(&figures["merged"][at])?,
                number(&figures["bytes"][at])?,
            ])
        })
    };
    let mut all =
        vec![("/stat.json, export", of("exports")?), ("/stat.json, device", of("devices")?)];
    let text = get(server, "/metrics")?;
    let export = Counts::of(|at| {
        let labels = format!("{{export=\"gold\",op=\"{}\"}}", ["read", "write"][at]);
        let of = |family: &str| count(&text, &format!("blkmq_export_{family}_total{labels}"));
        Ok([of("requests")?, of("merged")?, of("bytes")?])
    })?;
    let device = Counts::of(|at| {
        let of = |family: &str| {
            count(&text, &format!("blkmq_disk_{family}_total{{device=\"{DEVICE}\"}}"))
        };
        let (many, past) = [("reads", "read"), ("writes", "written")][at];
        Ok([
            of(&format!("{many}_completed"))?,
            of(&format!("{many}_merged"))?,
            of(&format!("{past}_bytes"))?,
        ])
    })?;
    all.extend([("/metrics, export", export), ("/metrics, device", device)]);
    let fields = &server.ctl("stat --diskstats")?[0];
    let kernel = Counts::of(|at| {
        let field = |of: usize| number(&fields[4 * at + of]);
        Ok([field(0)?, field(1)?, field(2)? * 512])
    })?;
    all.push(("stat --diskstats", kernel));
    Ok(all)
}

/// The value of a series of counts.
fn count(text: &str, series: &str) -> Result<u64> {
    Ok(value(text, series)? as u64)
}

fn number(value: &Value) -> Result<u64> {
    value.as_u64().ok_or_else(|| format!("no number: {value}").into())
}

/// The counts of an interval from the rates of `top` for the device.
fn of_top(line: &Value) -> Option<Counts> {
    let (seconds, row) = (line["seconds"].as_f64()?, &line["rows"][0]);
    let count = |key: &str, unit: f64| Some((row[key].as_f64()? * seconds * unit).round() as u64);
    let both = |reads: &str, writes: &str, unit| Some([count(reads, unit)?, count(writes, unit)?]);
    Some(Counts {
        requests: both("r/s", "w/s", 1.0)?,
        merged: both("rrqm/s", "wrqm/s", 1.0)?,
        bytes: both("rkB/s", "wkB/s", 1024.0)?,
    })
}

/// Like [`of_top`], but from the rates of `blkmqctl stat`, which has merges in percent of all I/Os.
fn of_ctl(line: &Value) -> Option<Counts> {
    let seconds = line["seconds"].as_f64()?;
    let row = line["rows"].as_array()?.iter().find(|row| row["kind"] == "device")?;
    let count = |key: &str, at: usize, unit: f64| Some(row[key][at].as_f64()? * seconds * unit);
    let both = |key: &str, unit| {
        Some([0, 1].map(|at| count(key, at, unit).map(|count| count.round() as u64)))
    };
    let merged = |at: usize| {
        let part = row["merged"][at].as_f64()? / 100.0;
        Some((count("ios", at, 1.0)? * part / (1.0 - part)).round() as u64)
    };
    let all = |pair: [Option<u64>; 2]| Some([pair[0]?, pair[1]?]);
    Some(Counts {
        requests: all(both("ios", 1.0)?)?,
        merged: [merged(0)?, merged(1)?],
        bytes: all(both("kib", 1024.0)?)?,
    })
}

/// `blkmqctl top` shows the rate to which a client is limited.
fn top(server: &Server) -> Result<Outcome> {
    let load = format!(
        "--rw=randrw --bs=4k --size=32m --time_based --runtime=20 --rate_iops={RATE},{RATE}"
    );
    let client = Fio::start(&server.uri("gold"), &server.path("held"), &load)?;
    server.connected(1)?;
    // fio catches up with its rate for a moment.
    pause(1.0)?;
    let socket = server.path("socket.control");
    let line =
        format!("{BLKMQCTL} top --socket={} --json --count=1 --interval=4", socket.display());
    let shown = parse_json(&Cmd::new(&line).output()?)?;
    let gold = &shown["rows"][1];
    let number = |key: &str| gold[key].as_f64().unwrap_or(0.0);
    println!(
        "held to {RATE} reads and writes a second: top shows {:.1} and {:.1}",
        number("r/s"),
        number("w/s")
    );
    client.kill()?;
    for (key, expected) in [("r/s", RATE), ("w/s", RATE), ("rkB/s", 4.0 * RATE), ("share%", 100.0)]
    {
        if (number(key) / expected - 1.0).abs() > TOLERANCE {
            return Err(format!("{key} is {}, expected about {expected}", number(key)).into());
        }
    }
    Ok(Outcome::Passed)
}

/// A disk whose reads take milliseconds, compared with which the socket takes little.
const DISK: &str = "disk";
const DISK_LOAD: &str = "--rw=randread --bs=4k --iodepth=4 --time_based --runtime=2 --output-format=json+ --lat_percentiles=1";
/// Both sides count in buckets; the wider ones are 1/32 wide.
const BUCKET: f64 = 1.0 / 32.0;
/// One I/O in this many may have taken longer in the socket than in the server.
const FEW: u64 = 20;

/// See above.
pub(in crate::interop) fn latencies() -> Result<Outcome> {
    let server = Server::blkmq("latencies", DISK, "none", "--export=gold")?;
    let shown = Follower::start(&server, "biolatency -Q -F --json --interval=1")?;
    Fio::start(&server.uri("gold"), &server.path("fio"), DISK_LOAD)?.wait()?;
    let lines = shown.all()?;
    let stat = &server.ctl("stat --diskstats")?[0];
    let report = parse_json(&fs::read_to_string(server.path("fio.json"))?)?;
    let number = |field: usize| stat[field].as_u64().ok_or("no such field");
    let (merged, ticks) = (number(1)?, number(3)?);
    let (ours, client) = (slots(&lines, "Read"), Client::of(&report["jobs"][0]["read"])?);
    let all: u64 = ours.iter().sum();
    if all + merged != client.count() {
        let text = format!("{all} reads in the histogram and {merged} merged");
        return Err(format!("{text}; fio has {}", client.count()).into());
    }
    let (whole, inside) = (client.mean / 1e6, ticks as f64 / all.max(1) as f64);
    println!(
        "{all} reads of {whole:.3} ms each: {inside:.3} in the server, the rest is the socket's"
    );
    client.compare(&ours, merged)?;
    Ok(Outcome::Passed)
}

/// The requests of all intervals, by power of two in microseconds.
fn slots(lines: &[Value], op: &str) -> Vec<u64> {
    let mut sum = Vec::new();
    let histograms = lines.iter().filter_map(Value::as_array).flatten();
    for slots in histograms.filter(|it| it["op"] == op).filter_map(|it| it["slots"].as_array()) {
        sum.resize(sum.len().max(slots.len()), 0);
        sum.iter_mut().zip(slots).for_each(|(sum, slot)| *sum += slot.as_u64().unwrap_or(0));
    }
    sum
}

struct Client {
    /// (nanoseconds, number of I/Os that took them), by fio's buckets.
    bins: Vec<(f64, u64)>,
    mean: f64,
}

impl Client {
    fn of(direction: &Value) -> Result<Self> {
        let times = &direction["lat_ns"];
        let bins = times["bins"].as_object().ok_or("no bins in fio's report")?;
        let bin = |(ns, count): (&String, &Value)| Some((ns.parse().ok()?, count.as_u64()?));
        let bins = bins.iter().map(bin).collect::<Option<_>>().ok_or("bins without numbers")?;
        Ok(Self { bins, mean: times["mean"].as_f64().ok_or("no mean")? })
    }

    fn count(&self) -> u64 {
        self.bins.iter().map(|(_, count)| count).sum()
    }

    fn below(&self, ns: f64) -> u64 {
        self.bins.iter().filter(|(at, _)| *at < ns).map(|(_, count)| count).sum()
    }

    /// No I/O was faster for the client than in the server, and few were slower by more than a bucket of biolatency.
    fn compare(&self, ours: &[u64], merged: u64) -> Result<()> {
        let mut below = 0;
        for (slot, count) in ours.iter().enumerate() {
            below += count;
            let end = (2000u64 << slot) as f64;
            let early = self.below(end * (1.0 - BUCKET));
            let late = self.below(2.0 * end);
            if early > below + merged || late + self.count() / FEW < below {
                let text = format!("{below} of ours took less than {end} ns");
                return Err(
                    format!("{text}; of fio's {early}, and {late} less than twice that").into()
                );
            }
        }
        Ok(())
    }
}

const TIMED_DEVICE: &str = "null,irqmode=2,completion_nsec=200000,gb=1";
/// The load of each export, with its exact number of I/Os.
const TIMED_LOADS: [(&str, &str, u64); 2] = [
    ("gold", "--rw=randread --bs=4k --iodepth=8 --number_ios=20000", 20_000),
    ("rest", "--rw=randwrite --bs=8k --iodepth=4 --number_ios=10000", 10_000),
];
/// The latency of the device in nanoseconds: no request can be faster.
const SERVICE: u64 = 200_000;

fn serve(name: &str) -> Result<Server> {
    let more = "--stats=always --http=tcp:127.0.0.1:0 --export=gold,weight=300 --export=rest";
    Server::blkmq(name, TIMED_DEVICE, "mq-deadline", more)
}

/// The metrics, as a client that accepts `accept` gets them.
fn scrape(server: &Server, accept: &str) -> Result<String> {
    let log = fs::read_to_string(server.path("log"))?;
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
    for (export, load, ios) in TIMED_LOADS {
        let options = format!("{load} --size=128m --norandommap");
        let figures = run_fio(&server.uri(export), &server.path(export), &options)?;
        if figures.ios != ios {
            return Err(format!("fio did {} I/Os for {ios}", figures.ios).into());
        }
        longest = longest.max(figures.longest);
    }
    let fields = &server.ctl("stat --sys")?[0];
    let text = scrape(&server, "text/plain")?;
    let mut all_ios = 0;
    for (at, (export, _, ios)) in TIMED_LOADS.iter().enumerate() {
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
    let done: u64 = TIMED_LOADS.iter().map(|(_, _, ios)| ios).sum();
    if all_ios != done {
        return Err(format!("{all_ios} I/Os, merged ones too, of {done}").into());
    }
    Ok(Outcome::Passed)
}

/// promtool reports no problem with the metrics, and the parser of the Python client reads them, while fio runs.
pub(in crate::interop) fn metrics() -> Result<Outcome> {
    let server = serve("serve-metrics")?;
    let (export, load, _) = TIMED_LOADS[0];
    run_fio(&server.uri(export), &server.path(export), &format!("{load} --size=64m"))?;
    let file = server.path("metrics");
    fs::write(&file, scrape(&server, "text/plain")?)?;
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
    fs::write(&file, open)?;
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

/// The program, which runs until it is killed; killed when this is dropped.
struct Follower {
    child: Child,
    words: &'static str,
    path: PathBuf,
}

impl Follower {
    /// Starts `blkmqctl` with `words` for `server`, and waits for its first interval: from then on it misses nothing.
    ///
    /// # Errors
    /// If it prints nothing.
    pub(super) fn start(server: &Server, words: &'static str) -> Result<Self> {
        let path = server.path(&words.replace([' ', '='], ""));
        let socket = server.path("socket.control");
        let cmd = Cmd::new(&format!("{BLKMQCTL} {words} --socket={}", socket.display()));
        let follower = Self { child: cmd.start(File::create(&path)?)?, words, path };
        follower.lines(1)?;
        Ok(follower)
    }

    /// At least this many lines, after waiting for them.
    fn lines(&self, least: usize) -> Result<Vec<Value>> {
        for _ in 0..200 {
            let text = fs::read_to_string(&self.path)?;
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            if whole.lines().count() >= least {
                return whole.lines().map(|line| Ok(serde_json::from_str(line)?)).collect();
            }
            pause(0.05)?;
        }
        Err(format!("{} shows nothing for too long", self.words).into())
    }

    /// The lines of all intervals, up to one that begins from now on: the current one may have ended without being
    /// printed.
    pub(super) fn all(&self) -> Result<Vec<Value>> {
        let shown = self.lines(0)?.len();
        self.lines(shown + 2)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // The program does not end until it is killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_faster_for_the_client_or_much_slower_is_found() {
        let client = |bins: &[(f64, u64)]| Client { bins: bins.to_vec(), mean: 0.0 };
        // 100 of ours take 4 to 8 us.
        let ours = [0, 0, 100];
        assert!(client(&[(7900.0, 50), (9000.0, 50)]).compare(&ours, 0).is_ok());
        assert!(client(&[(3800.0, 1), (7000.0, 99)]).compare(&ours, 0).is_err());
        assert!(client(&[(3800.0, 1), (7000.0, 99)]).compare(&ours, 1).is_ok());
        assert!(client(&[(7000.0, 90), (17_000.0, 10)]).compare(&ours, 0).is_err());
    }
}
