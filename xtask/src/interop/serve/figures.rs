//! The figures that operators see are those of the clients: counts of HTTP and of control against fio's own, and the
//! rates of `blkmq top` against a fio that is held to a rate.

use super::super::{Outcome, parse};
use super::dashboards::get;
use crate::Result;
use crate::nbd::Server;
use crate::serve::fio::{self, Fio};
use crate::shell::{BLKMQ, Cmd};
use serde_json::Value;

/// I/Os a second of the client that is held to a rate: reads, and as many writes.
const RATE: f64 = 400.0;
/// The part by which a rate may differ: an interval begins and ends between two I/Os, and fio's clock is its own.
const TOLERANCE: f64 = 0.1;

/// One in so many I/Os may be merged inside of a plug.
const FEW: u64 = 100;

/// See above.
pub(in crate::interop) fn figures() -> Result<Outcome> {
    let more = "--http=tcp:127.0.0.1:0 --export=gold";
    let server = Server::blkmq("figures", "memory,size=64", "mq-deadline", more)?;
    let before = counts(&server)?;
    let load = "--rw=randrw --bs=8k --iodepth=16 --size=32m --norandommap --time_based --runtime=2";
    let client = fio::run(&server.uri("gold"), &server.path("fio"), load)?;
    let after = counts(&server)?;
    let counted = (after.0 - before.0, after.1 - before.1);
    println!(
        "fio: {} I/Os, {} bytes; /stat.json: {} and {}",
        client.ios, client.bytes, counted.0, counted.1
    );
    // Merges inside of a plug are not among those of an export, so that a few I/Os are missing.
    let missing = client.ios.saturating_sub(counted.0);
    if counted.1 != client.bytes || counted.0 > client.ios || missing * FEW > client.ios {
        return Err(format!("fio has {client:?}, /stat.json {counted:?}").into());
    }
    top(&server)
}

/// I/Os, merged ones too, and bytes of the only export.
fn counts(server: &Server) -> Result<(u64, u64)> {
    let stat: Value = serde_json::from_str(&get(server, "/stat.json")?)?;
    let figures = &stat["stat"]["exports"][0]["figures"];
    let sum = |key: &str| {
        let all = figures[key].as_array().ok_or_else(|| format!("no {key} in {stat}"))?;
        Ok::<u64, String>(all.iter().filter_map(Value::as_u64).sum())
    };
    Ok((sum("ios")? + sum("merged")?, sum("bytes")?))
}

/// `blkmq top` shows the rate that a client is held to.
fn top(server: &Server) -> Result<Outcome> {
    let load = format!(
        "--rw=randrw --bs=4k --size=32m --time_based --runtime=20 --rate_iops={RATE},{RATE}"
    );
    let client = Fio::start(&server.uri("gold"), &server.path("held"), &load)?;
    server.connected(1)?;
    // fio catches up with its rate for a moment.
    fio::pause(1.0)?;
    let socket = server.path("socket.control");
    let line = format!("{BLKMQ} top --socket={} --json --count=1 --interval=4", socket.display());
    let shown = parse(&Cmd::new(&line).output()?)?;
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
