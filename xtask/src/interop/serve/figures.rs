//! The figures for operators match those of the clients: all counts of HTTP, control and `blkmqctl top` agree with each
//! other and with fio's, and the rates of `blkmqctl top` are those of a rate-limited fio.

use super::super::Outcome;
use super::counts::value;
use super::dashboards::get;
use super::follower::Follower;
use crate::Result;
use crate::fio::{self, Fio};
use crate::nbd::Server;
use crate::shell::{BLKMQCTL, Cmd, parse_json};
use serde_json::Value;

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
    let client = fio::run(&server.uri("gold"), &server.path("fio"), LOAD)?;
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
    fio::pause(1.0)?;
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
