//! The histograms of `blkmqctl biolatency` compared with fio's own for the same run.
//!
//! Each I/O takes the client as long as the server, plus the time of the socket. The client's time is fio's `lat`: its
//! `clat` begins when the request has been sent, and the server may have it by then.

use super::super::Outcome;
use super::follower::Follower;
use crate::Result;
use crate::fio::Fio;
use crate::nbd::Server;
use crate::shell::parse_json;
use serde_json::Value;
use std::fs;

/// A disk whose reads take milliseconds, compared with which the socket takes little.
const DEVICE: &str = "disk";
const LOAD: &str = "--rw=randread --bs=4k --iodepth=4 --time_based --runtime=2 --output-format=json+ --lat_percentiles=1";
/// Both sides count in buckets; the wider ones are 1/32 wide.
const BUCKET: f64 = 1.0 / 32.0;
/// One I/O in this many may have taken longer in the socket than in the server.
const FEW: u64 = 20;

/// See above.
pub(in crate::interop) fn latencies() -> Result<Outcome> {
    let server = Server::blkmq("latencies", DEVICE, "none", "--export=gold")?;
    let shown = Follower::start(&server, "biolatency -Q -F --json --interval=1")?;
    Fio::start(&server.uri("gold"), &server.path("fio"), LOAD)?.wait()?;
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
