//! The figures for operators match those of the clients, and the pictures of a server show them.
//!
//! All counts of HTTP, control and `blkmqctl top` agree with each other and with fio's, the rates of `blkmqctl top` are
//! those of a rate-limited fio, the histograms of `blkmqctl biolatency` are fio's own for the same run, and other tools
//! read the metrics. Each I/O takes the client as long as the server, plus the time of the socket. The client's time is
//! fio's `lat`: its `clat` begins when the request has been sent, and the server may have it by then.
//!
//! The live page, in a browser, shows the server's counts while fio works, its switches take effect, and it contacts no
//! other host. The alert rules pass promtool's tests and fire in Prometheus itself, every metric that they and the
//! dashboard name is in a scrape, and every expression of the dashboard is valid. No Debian package has Grafana.

use crate::Result;
use crate::interop::Outcome;
use crate::interop::browser::{Browser, Scheme};
use crate::measurement::{Fio, pause, run_fio};
use crate::serve::Server;
use crate::shell::{BLKMQCTL, Cmd, is_installed, parse_json, root};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
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
        format!("{BLKMQCTL} top --control={} --json --count=1 --interval=4", socket.display());
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

/// Every request of fio is counted once: in `blkmqctl stat` in all its forms, in the histograms and in the metrics. The
/// times are between those of the device and those of the client.
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
        let cmd = Cmd::new(&format!("{BLKMQCTL} {words} --control={}", socket.display()));
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

/// Seconds that the clients work; the check takes less.
const SECONDS: u32 = 60;
/// The tolerance for two measurements of the same load at different times.
const PAGE_TOLERANCE: f64 = 0.35;

/// A server with a page, under load from three exports, and a browser.
struct Scene {
    server: Server,
    clients: Vec<Fio>,
    browser: Browser,
    /// The address with the key.
    address: String,
}

const EXPORTS: [(&str, u32, &str); 3] = [
    ("gold", 300, "--rw=randread --bs=4k --iodepth=16"),
    ("silver", 200, "--rw=randrw --bs=16k --iodepth=8"),
    ("backup", 100, "--rw=read --bs=128k --iodepth=16"),
];

impl Scene {
    fn new(name: &str) -> Result<Self> {
        let exports: String = (0..)
            .zip(EXPORTS)
            .map(|(at, (name, weight, _))| {
                format!(" --export={name},offset={}m,size=64m,weight={weight}", at * 64)
            })
            .collect();
        let scheduler = "bfq:low_latency=0,max_budget=2048";
        let more = format!("--http=tcp:127.0.0.1:0{exports}");
        let server = Server::blkmq(name, "flash,size=192", scheduler, &more)?;
        let clients: Result<Vec<Fio>> = EXPORTS
            .iter()
            .map(|(name, _, load)| {
                let options = format!("{load} --size=64m --time_based --runtime={SECONDS}");
                Fio::start(&server.uri(name), &server.path(&format!("fio-{name}")), &options)
            })
            .collect();
        let clients = clients?;
        server.connected(EXPORTS.len() as u64)?;
        let log = fs::read_to_string(server.path("log"))?;
        let address = log.lines().find_map(|line| line.strip_prefix("page: "));
        let address = address.ok_or("the server says nothing of a page")?.to_owned();
        let browser = Browser::start(name)?;
        Ok(Self { server, clients, browser, address })
    }

    /// The address without the key.
    fn home(&self) -> &str {
        self.address.split('#').next().unwrap_or("")
    }

    fn open(&mut self) -> Result<()> {
        let address = self.address.clone();
        self.browser.open(&address)?;
        self.browser.until("document.querySelectorAll('.export').length === 3").map(drop)
    }

    /// The scheduler of the device, by `blkmqctl`.
    fn scheduler(&self) -> Result<Value> {
        Ok(self.server.ctl("list")?["list"]["devices"][0]["scheduler"].clone())
    }

    /// The weight of an export, by `blkmqctl`.
    fn weight(&self, at: usize) -> Result<Value> {
        Ok(self.server.ctl("list")?["list"]["exports"][at]["weight"].clone())
    }
}

/// See above.
pub(in crate::interop) fn page() -> Result<Outcome> {
    let mut scene = Scene::new("page")?;
    scene.browser.size(1280, 900)?;
    scene.open()?;
    agrees(&mut scene)?;
    switches(&mut scene)?;
    by_keyboard(&mut scene)?;
    fits(&mut scene)?;
    locked(&mut scene)?;
    let home = scene.home().to_owned();
    scene.browser.assert_quiet(&home)?;
    // They are still at work: the whole check was under load.
    for client in &mut scene.clients {
        if client.is_over()? {
            return Err("a client was over before the check was".into());
        }
    }
    Ok(Outcome::Passed)
}

/// The page shows the rates that `blkmqctl stat` counts in nearly the same seconds: on a busy machine, the intervals of
/// the two may differ, so there are three tries.
fn agrees(scene: &mut Scene) -> Result<()> {
    agrees_now(scene).or_else(|_| agrees_now(scene)).or_else(|_| agrees_now(scene))
}

fn agrees_now(scene: &mut Scene) -> Result<()> {
    let before = scene.server.ctl("stat --count=1 --interval=3")?;
    let shown = scene.browser.eval(
        "[...document.querySelectorAll('.export')].map((card) => [card.dataset.key, \
         card.history.points.slice(-3).reduce((a, b) => a + b.iops, 0) / Math.min(3, card.history.points.length)])",
    )?;
    for (name, ..) in EXPORTS {
        let counted =
            before["rows"].as_array().and_then(|rows| rows.iter().find(|row| row["name"] == name));
        let counted: f64 = counted
            .and_then(|row| row["ios"].as_array())
            .map_or(0.0, |ios| ios.iter().filter_map(Value::as_f64).sum());
        let page = shown.as_array().and_then(|all| all.iter().find(|one| one[0] == name));
        let page = page.and_then(|one| one[1].as_f64()).unwrap_or(0.0);
        println!("{name}: {counted:.0} I/Os a second by ctl, {page:.0} on the page");
        if counted <= 0.0 || (page / counted - 1.0).abs() > PAGE_TOLERANCE {
            return Err(format!("{name}: the page has {page} I/Os a second, ctl {counted}").into());
        }
    }
    Ok(())
}

/// Clicks change the scheduler and a weight, the page confirms it, and `blkmqctl` shows them.
fn switches(scene: &mut Scene) -> Result<()> {
    scene.browser.eval("document.querySelector('form.scheduler select').value = 'kyber'")?;
    scene.browser.click("form.scheduler button")?;
    scene
        .browser
        .until("/kyber: in force after/.test(document.querySelector('#answer').textContent)")?;
    if scene.scheduler()? != "kyber" {
        return Err(format!("the page says kyber, ctl {}", scene.scheduler()?).into());
    }
    scene.browser.eval("document.querySelector('form.weight input').value = 77")?;
    scene.browser.click("form.weight button")?;
    scene
        .browser
        .until("/weight 77: in force after/.test(document.querySelector('#answer').textContent)")?;
    if scene.weight(0)? != 77 {
        return Err(format!("the page says weight 77, ctl {}", scene.weight(0)?).into());
    }
    // Another program changes it: the page follows.
    scene.server.ctl("switch bfq")?;
    scene.browser.until("document.querySelector('form.scheduler select').value === 'bfq'").map(drop)
}

/// A user without a pointer reaches every switch, sees where the focus is, and changes a weight.
fn by_keyboard(scene: &mut Scene) -> Result<()> {
    scene.open()?;
    let mut stops = Vec::new();
    for _ in 0..40 {
        scene.browser.key("Tab")?;
        let stop = scene.browser.eval(
            "(() => { const it = document.activeElement; const style = getComputedStyle(it); \
             return { name: `${it.tagName} ${it.dataset.f || it.id || it.textContent}`, \
             ring: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2, \
             weight: it.dataset.f === 'weight' }; })()",
        )?;
        if stop["name"].as_str().is_some_and(|name| name.starts_with("BODY")) {
            break;
        }
        if stop["ring"] != true {
            return Err(format!("the focus cannot be seen on {}", stop["name"]).into());
        }
        stops.push(stop["name"].as_str().unwrap_or("").to_owned());
        if stop["weight"] == true {
            break;
        }
    }
    for wanted in ["SELECT interval", "BUTTON pause", "SELECT scheduler", "INPUT weight"] {
        if !stops.iter().any(|stop| stop == wanted) {
            return Err(format!("no way to {wanted} by Tab: {stops:?}").into());
        }
    }
    // The focus is in the field of the first weight: its text is replaced, and sent.
    scene.browser.eval("document.activeElement.select()")?;
    for key in ["1", "2", "3", "Enter"] {
        scene.browser.key(key)?;
    }
    scene.browser.until(
        "/weight 123: in force after/.test(document.querySelector('#answer').textContent)",
    )?;
    if scene.weight(0)? == 123 {
        Ok(())
    } else {
        Err("a weight that was typed is not in force".into())
    }
}

/// From a telephone to a wide screen, in both schemes: nothing is wider than the window, and text has enough contrast.
fn fits(scene: &mut Scene) -> Result<()> {
    for scheme in [Scheme::Light, Scheme::Dark] {
        scene.browser.prefer(scheme)?;
        for width in [400, 768, 1280, 1920] {
            scene.browser.size(width, 900)?;
            let found = scene.browser.eval(CONTRAST)?;
            if found["wide"] != json!(0) {
                return Err(
                    format!("{width} pixels: the page is wider by {}", found["wide"]).into()
                );
            }
            if found["poor"] != json!([]) {
                return Err(format!("{scheme:?}: poor contrast: {}", found["poor"]).into());
            }
        }
    }
    Ok(())
}

/// Pixels by which the page is too wide, and texts with a contrast below 4.5 to 1 (WCAG AA), large ones below 3 to 1.
pub(super) const CONTRAST: &str = r"
(() => {
  const parts = (text) => text.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (it) => {
    for (let at = it; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const it of document.body.querySelectorAll('*')) {
    const own = [...it.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || it.disabled || ['SCRIPT', 'STYLE', 'OPTION'].includes(it.tagName) || !it.checkVisibility()) continue;
    const style = getComputedStyle(it);
    const [a, b] = [light(parts(style.color)), light(behind(it))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || size >= 18.66 && style.fontWeight >= 700;
    if (ratio < (large ? 3 : 4.5)) poor.push(`${it.tagName} ${it.textContent.trim().slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return { wide: Math.max(0, document.documentElement.scrollWidth - innerWidth), poor };
})()";

/// Without the key the page is read-only.
fn locked(scene: &mut Scene) -> Result<()> {
    scene.browser.eval("sessionStorage.clear()")?;
    let home = scene.home().to_owned();
    scene.browser.open(&home)?;
    scene.browser.until("document.querySelectorAll('.export').length === 3")?;
    let found = scene.browser.eval(
        "[document.querySelectorAll('.steer :is(button, input, select):not(:disabled)').length, \
         document.querySelector('#locked').checkVisibility()]",
    )?;
    if found == json!([0, true]) { Ok(()) } else { Err(format!("without the key: {found}").into()) }
}

/// `cargo xtask screenshots`: the page as a user sees it, for the documentation.
///
/// # Errors
/// If the server or the browser does not run.
pub(crate) fn screenshots() -> Result<()> {
    let mut scene = Scene::new("screenshots")?;
    let folder = root().join("docs/images");
    fs::create_dir_all(&folder)?;
    scene.browser.size(1280, 900)?;
    scene.open()?;
    // Time for charts of some length.
    pause(25.0)?;
    let views = [
        ("page-light.png", Scheme::Light, 1280, 900),
        ("page-dark.png", Scheme::Dark, 1280, 900),
        ("page-narrow.png", Scheme::Light, 400, 1200),
    ];
    for (name, scheme, width, height) in views {
        scene.browser.size(width, height)?;
        scene.browser.prefer(scheme)?;
        pause(1.2)?;
        scene.browser.screenshot(&folder.join(name))?;
        println!("docs/images/{name}");
    }
    Ok(())
}

const RULES: &str = "contrib/prometheus/blkmq.rules.yml";
const DASHBOARD: &str = "contrib/grafana/blkmq.json";

/// See above.
pub(in crate::interop) fn rules() -> Result<Outcome> {
    Cmd::new(&format!("promtool check rules {RULES}")).run()?;
    Cmd::new("promtool test rules contrib/prometheus/blkmq.test.yml").run()?;
    Ok(Outcome::Passed)
}

/// See above. promtool reports no problem with the scrape.
pub(in crate::interop) fn dashboards() -> Result<Outcome> {
    let more = "--http=tcp:127.0.0.1:0 --export=gold";
    let server = Server::blkmq("dashboards", "memory,size=64", "mq-deadline", more)?;
    // The first scrape begins to count.
    get(&server, "/metrics")?;
    run_fio(&server.uri("gold"), &server.path("fio"), "--rw=randrw --size=4m --fsync=64")?;
    let text = get(&server, "/metrics")?;
    let file = server.path("scrape");
    fs::write(&file, &text)?;
    let check = format!("promtool check metrics <'{}'", file.display());
    Cmd::new("sh -c").arg(check).run()?;
    let there: BTreeSet<&str> = names(&text);
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(root().join(DASHBOARD))?)?;
    let mut texts = Vec::new();
    collect(&dashboard, &mut texts);
    let expressions = file.with_extension("yml");
    fs::write(&expressions, as_rules(&dashboard["panels"])?)?;
    Cmd::new(&format!("promtool check rules {}", expressions.display())).run()?;
    let rules = fs::read_to_string(root().join(RULES))?;
    texts.push(&rules);
    let named: BTreeSet<&str> = texts.iter().copied().flat_map(names).collect();
    let missing: Vec<&&str> = named.iter().filter(|name| !there.contains(**name)).collect();
    println!("{} metrics are named, {} scraped", named.len(), there.len());
    if named.len() < 10 || !missing.is_empty() {
        return Err(format!("not in a scrape: {missing:?}").into());
    }
    Ok(Outcome::Passed)
}

/// The expressions of panels as rules of Prometheus, with values for the variables of Grafana.
fn as_rules(panels: &Value) -> Result<String> {
    let mut texts = Vec::new();
    collect(panels, &mut texts);
    let rule = |(at, text): (usize, &&str)| {
        let text = text.replace("$__rate_interval", "5m").replace("$instance", ".*");
        serde_json::json!({ "record": format!("panel:{at}"), "expr": text.replace("$export", ".*") })
    };
    let rules = Vec::from_iter(texts.iter().enumerate().map(rule));
    // JSON is YAML.
    let groups = serde_json::json!({ "groups": [{ "name": "dashboard", "rules": rules }] });
    Ok(serde_json::to_string(&groups)?)
}

/// Prometheus loads the rules, scrapes a server whose requests fail, and fires only the alert about that.
pub(in crate::interop) fn prometheus() -> Result<Outcome> {
    let more = "--http=tcp:127.0.0.1:0 --export=gold";
    let device = "faults,error=0.2:memory,size=64";
    let server = Server::blkmq("prometheus", device, "mq-deadline", more)?;
    let own = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let config = server.path("prometheus.yml");
    let text = serde_json::json!({
        "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
        "rule_files": [root().join(RULES)],
        "scrape_configs": [{ "job_name": "blkmq", "static_configs": [{ "targets": [address(&server)?] }] }],
    });
    fs::write(&config, text.to_string())?;
    let line = format!(
        "prometheus --config.file={} --storage.tsdb.path={} --web.listen-address={own}",
        config.display(),
        server.path("tsdb").display()
    );
    let log = File::create(server.path("prometheus-log"))?;
    let mut prometheus = Cmd::new(&line).under("timeout 60").start(log)?;
    let load =
        "--rw=randread --size=4m --time_based --runtime=60 --rate_iops=50 --continue_on_error=io";
    let client = Fio::start(&server.uri("gold"), &server.path("fio"), load)?;
    let fired = fires(&own);
    drop(client);
    // A clean shutdown takes time, and it has nothing to save.
    prometheus.kill()?;
    prometheus.wait()?;
    fired.map(|()| Outcome::Passed)
}

fn fires(address: &str) -> Result<()> {
    let mut names = Vec::new();
    for _ in 0..80 {
        pause(0.5)?;
        let Ok(answer) = fetch(address, "/api/v1/alerts") else { continue };
        let answer: Value = serde_json::from_str(&answer)?;
        let alerts = answer["data"]["alerts"].as_array().cloned().unwrap_or_default();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        names = firing
            .filter_map(|alert| alert["labels"]["alertname"].as_str())
            .map(str::to_owned)
            .collect();
        if !names.is_empty() {
            break;
        }
    }
    println!("firing: {names:?}");
    if names == ["BlkmqErrors"] { Ok(()) } else { Err(format!("firing: {names:?}").into()) }
}

/// Expressions of the panels and the variables.
fn collect<'a>(value: &'a Value, texts: &mut Vec<&'a str>) {
    match value {
        Value::Object(all) => {
            for (key, value) in all {
                match value {
                    Value::String(text)
                        if matches!(key.as_str(), "expr" | "query" | "definition") =>
                    {
                        texts.push(text);
                    }
                    other => collect(other, texts),
                }
            }
        }
        Value::Array(all) => all.iter().for_each(|value| collect(value, texts)),
        _ => {}
    }
}

/// The words of a text that begin like our metrics.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("blkmq_")).collect()
}

/// The address of the server's HTTP.
fn address(server: &Server) -> Result<String> {
    let log = fs::read_to_string(server.path("log"))?;
    let page = log.lines().find_map(|line| line.strip_prefix("page: http://"));
    Ok(page.and_then(|page| page.split('/').next()).ok_or("no page")?.to_owned())
}

/// The server's answer to an HTTP GET.
///
/// # Errors
/// If there is none, or its status is not 200.
pub(super) fn get(server: &Server, path: &str) -> Result<String> {
    fetch(&address(server)?, path)
}

fn fetch(address: &str, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    let head = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.contains(" 200 ") => Ok(body.to_owned()),
        _ => Err(format!("{path} is answered by {}", answer.lines().next().unwrap_or("")).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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

    #[test]
    fn names_are_found_in_expressions() {
        let found = names("rate(blkmq_a_total{x=~\"y\"}[5m]) / on (blkmq) blkmq_b > 0");
        assert_eq!(Vec::from_iter(found), ["blkmq_a_total", "blkmq_b"]);
    }

    #[test]
    fn expressions_are_those_of_panels_and_variables() {
        let dashboard = json!({ "title": "blkmq_no", "panels": [{ "targets": [{ "expr": "a" }] }],
            "templating": { "list": [{ "query": { "query": "b" }, "definition": "c" }] } });
        let mut texts = Vec::new();
        collect(&dashboard, &mut texts);
        texts.sort_unstable();
        assert_eq!(texts, ["a", "b", "c"]);
    }
}
