//! `serve-isolation`: shares and latencies of real clients on the models of a disk and of a flash drive, in real time.
//!
//! Three clients of exports with the weights 100, 200 and 400 load a device as much as they can, under bfq; their shares
//! of the bytes are compared with those of the weights. Then a client with one read at a time is measured alone and beside
//! two clients that write as much as they can, under several schedulers. The device is a model, so that its speed is the
//! same everywhere; the server, the wire and the clients are real, so that their processor time is part of the figures.

use crate::Result;
use crate::fio::{Figures, Fio, pause};
use crate::nbd::Server;

const HELP: &str = "usage: cargo xtask serve-isolation [SECONDS]

  SECONDS   each of the 14 measurements runs for so long (20)";

/// A model, and a load that three clients can put on it.
struct Device {
    name: &'static str,
    line: &'static str,
    /// The load of each client for shares.
    load: &'static str,
    /// Megabytes of each client's export.
    size: u32,
    /// The scheduler that `docs/serve.md` recommends for clients that share by weight: bfq, without the raising of
    /// clients that seem interactive, as new ones do for some seconds.
    sharing: &'static str,
    /// The scheduler that `docs/serve.md` recommends for a client with one read at a time beside others that flood it.
    recommended: &'static str,
}

const DEVICES: [Device; 2] = [
    Device {
        name: "disk",
        line: "disk",
        load: "--rw=randread --bs=4k --iodepth=32",
        size: 65536,
        sharing: "bfq:low_latency=0",
        recommended: "bfq:strict_guarantees=1,low_latency=0,max_budget=64,timeout_sync=25",
    },
    Device {
        name: "flash, SATA at 150 MB/s",
        line: "flash,preset=sata,link_mbps=150",
        load: "--rw=randread --bs=128k --iodepth=32",
        size: 256,
        sharing: "bfq:low_latency=0,max_budget=2048",
        recommended: "bfq",
    },
];

const WEIGHTS: [u32; 3] = [100, 200, 400];
/// Seconds before the measurement, in which bfq learns the rate of the device.
const RAMP: f64 = 2.0;
/// Schedulers beside the recommended one with which the client with one read at a time is measured.
const SCHEDULERS: [&str; 4] = ["none", "mq-deadline", "kyber:adaptive=2", "bfq:low_latency=0"];
const WRITER: &str = "--rw=randwrite --bs=64k --iodepth=32";
const READER: &str = "--rw=randread --bs=4k --iodepth=1";

/// `cargo xtask serve-isolation`, see [`HELP`].
///
/// # Errors
/// If a server or a client fails. Figures are printed, and none of them is an error.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let seconds = match args {
        [] => 20,
        [seconds] if seconds != "--help" => seconds.parse()?,
        _ => {
            println!("{HELP}");
            return Ok(());
        }
    };
    crate::shell::build()?;
    for device in &DEVICES {
        println!("\n{}{}", shares(device, seconds)?.0, latencies(device, seconds)?);
    }
    Ok(())
}

/// The shares of one device over three seconds: too short for figures, and long enough to tell weights from none.
///
/// # Errors
/// As [`main`], and if the heaviest client, with four times the weight of the lightest, has less than twice its bytes.
/// A busy machine takes processor time from one client or another, which bends the shares; equal ones pass never.
pub(crate) fn test_size() -> Result<()> {
    let (text, rates) = shares(&DEVICES[1], 3)?;
    println!("{text}");
    if rates[2] >= 2.0 * rates[0] { Ok(()) } else { Err(text.into()) }
}

/// A server of `device` with three exports beside each other.
fn serve(device: &Device, scheduler: &str) -> Result<Server> {
    let exports: String = (0_u32..)
        .zip(WEIGHTS)
        .map(|(at, weight)| {
            let (name, size) = (name(at as usize), device.size);
            format!(" --export={name},offset={}m,size={size}m,weight={weight}", at * size)
        })
        .collect();
    Server::blkmq("isolation", device.line, scheduler, &exports)
}

fn name(at: usize) -> String {
    format!("w{}", WEIGHTS[at])
}

/// The client of export number `at`.
fn client(server: &Server, at: usize, options: &str, seconds: u32) -> Result<Fio> {
    let time = format!("--norandommap --time_based --ramp_time={RAMP} --runtime={seconds}");
    Fio::start(&server.uri(&name(at)), &server.path(&name(at)), &format!("{options} {time}"))
}

/// A table of the shares of the bytes, in percent, beside those of the weights, and the rates. They are the server's own
/// counts, over a time in which all clients are busy: the last I/Os of fio come after its time.
fn shares(device: &Device, seconds: u32) -> Result<(String, Vec<f64>)> {
    let server = serve(device, device.sharing)?;
    let load = format!("{} --size={}m", device.load, device.size);
    let clients: Result<Vec<Fio>> = (0..3).map(|at| client(&server, at, &load, 3600)).collect();
    let clients = clients?;
    server.connected(3)?;
    pause(RAMP)?;
    let rates = server.ctl(&format!("stat --interval={seconds} --count=1"))?;
    for client in clients {
        client.kill()?;
    }
    let rates: Option<Vec<f64>> = (0..3).map(|at| rates["rows"][at]["kib"][0].as_f64()).collect();
    let rates = rates.ok_or("no rates of the exports")?;
    let mut text = format!(
        "{}, {}: three clients, {}\n\n| weight | MiB/s | share | wanted | off by, points |\n\
         | --- | --- | --- | --- | --- |\n",
        device.name, device.sharing, device.load
    );
    let all: f64 = rates.iter().sum();
    for (weight, rate) in WEIGHTS.into_iter().zip(&rates) {
        let wanted = f64::from(weight) / f64::from(WEIGHTS.iter().sum::<u32>());
        let share = rate / all;
        text.push_str(&format!(
            "| {weight} | {:.2} | {:.1} % | {:.1} % | {:+.1} |\n",
            rate / 1024.0,
            share * 100.0,
            wanted * 100.0,
            (share - wanted) * 100.0
        ));
    }
    Ok((text, rates))
}

/// The latency of single reads, alone and beside two writers.
fn latencies(device: &Device, seconds: u32) -> Result<String> {
    let reader = format!("{READER} --size={}m", device.size);
    let writer = format!("{WRITER} --size={}m", device.size);
    let alone = {
        let server = serve(device, "none")?;
        client(&server, 2, &reader, seconds)?.wait()?
    };
    let ms = |ns: u64| ns as f64 / 1e6;
    let mut text = format!(
        "\n{}: {READER} beside two of {WRITER}\n\n| scheduler | p50, ms | p99, ms | p99 to alone | written, MiB/s |\n\
         | --- | --- | --- | --- | --- |\n| alone | {:.2} | {:.2} | 1.0 | - |\n",
        device.name,
        ms(alone.p50),
        ms(alone.p99)
    );
    for scheduler in SCHEDULERS.into_iter().chain([device.recommended]) {
        let server = serve(device, scheduler)?;
        let writers: Result<Vec<Fio>> =
            (0..2).map(|at| client(&server, at, &writer, seconds)).collect();
        let read = client(&server, 2, &reader, seconds)?.wait()?;
        let written: Result<Vec<Figures>> = writers?.into_iter().map(Fio::wait).collect();
        let bytes: u64 = written?.iter().map(|it| it.bytes).sum();
        text.push_str(&format!(
            "| {scheduler} | {:.2} | {:.2} | {:.1} | {:.0} |\n",
            ms(read.p50),
            ms(read.p99),
            read.p99 as f64 / alone.p99.max(1) as f64,
            bytes as f64 / f64::from(seconds) / f64::from(1 << 20)
        ));
    }
    Ok(text)
}
