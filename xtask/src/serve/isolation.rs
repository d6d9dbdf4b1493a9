//! `serve-isolation`: shares and latencies of real clients in real time, on a file and on models, with default
//! settings.
//!
//! Two clients of exports with the weights 300 and 100 load a device as much as they can; their shares of the bytes are
//! compared with those of the weights. Then a client with one read at a time is measured alone, beside two clients that
//! write as much as they can, and again with a latency goal. No figure of a device is configured. The server, the
//! network protocol and the clients are real, so that the figures include their processor time.

use crate::Result;
use crate::fio::{Figures, Fio, pause};
use crate::nbd::Server;
use crate::shell::{Cmd, target_dir};

const HELP: &str = "usage: cargo xtask serve-isolation [SECONDS]

  SECONDS   each of the 20 measurements runs for so long (20)";

/// A device, and the loads of clients on it.
struct Device {
    name: &'static str,
    /// Empty: a file in the target directory.
    line: &'static str,
    /// The load of each client for shares.
    load: &'static str,
    /// Megabytes of each client's export.
    size: u32,
    /// The latency goal of the client with one read at a time; empty: not measured.
    goal: &'static str,
}

const DEVICES: [Device; 5] = [
    Device {
        name: "disk",
        line: "disk",
        load: "--rw=randread --bs=4k --iodepth=32",
        size: 65536,
        goal: "30ms",
    },
    Device {
        name: "SATA at 150 MB/s",
        line: "flash,preset=sata,link_mbps=150",
        load: "--rw=randread --bs=128k --iodepth=32",
        size: 256,
        goal: "2ms",
    },
    Device {
        name: "SATA",
        line: "flash,preset=sata",
        load: "--rw=randread --bs=64k --iodepth=32",
        size: 256,
        goal: "",
    },
    Device {
        name: "cloud",
        line: "cloud",
        load: "--rw=randread --bs=4k --iodepth=32",
        size: 256,
        goal: "6ms",
    },
    Device {
        name: "file",
        line: "",
        load: "--rw=randread --bs=64k --iodepth=32",
        size: 256,
        goal: "",
    },
];

const WEIGHTS: [u32; 2] = [300, 100];
/// The ratios of the heavier client's bytes to the lighter one's that count as three.
const THREE: std::ops::RangeInclusive<f64> = 2.9..=3.1;
/// Seconds before the measurement, in which the scheduler learns the device.
const RAMP: f64 = 3.0;
const WRITER: &str = "--rw=randwrite --bs=64k --iodepth=32";
const READER: &str = "--rw=randread --bs=4k --iodepth=1";

/// `cargo xtask serve-isolation`, see [`HELP`].
///
/// # Errors
/// If a server or a client fails. Figures are printed, and no figure is an error.
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
    let mut text = "| device, load | weight 300, MiB/s | weight 100 | ratio | |\n| --- | --- | --- | --- | --- |\n".to_owned();
    for device in &DEVICES {
        text.push_str(&device.row(device.rates(seconds)?));
    }
    text.push_str("\n| device | reader beside two writers | p50, ms | p99, ms | written, MiB/s |\n| --- | --- | --- | --- | --- |\n");
    for device in DEVICES.iter().filter(|it| !it.goal.is_empty()) {
        text.push_str(&device.latencies(seconds)?);
    }
    println!("\n{text}");
    Ok(())
}

/// The shares on one device over three seconds: too short for figures, but long enough to see whether weights have an
/// effect.
///
/// # Errors
/// As [`main`], and if the heavier client, with three times the weight, has less than twice the bytes of the other. A
/// busy machine takes processor time from the clients, which distorts the shares; equal shares always fail.
pub(crate) fn test_size() -> Result<()> {
    let rates = DEVICES[1].rates(3)?;
    let text = DEVICES[1].row(rates);
    println!("{text}");
    if rates[0] >= 2.0 * rates[1] { Ok(()) } else { Err(text.into()) }
}

impl Device {
    /// A server with several exports of these names and options, and with this scheduler.
    fn serve(&self, scheduler: &str, exports: &[(&str, String)]) -> Result<Server> {
        let size = self.size;
        let line = match self.line {
            "" => {
                let path = target_dir().join("isolation.img");
                let mib = exports.len() as u32 * size;
                // Holes would be read without accessing the disk.
                let fio = "fio --name=layout --rw=write --bs=1m --end_fsync=1";
                Cmd::new(&format!("{fio} --size={mib}m --filename={}", path.display())).output()?;
                format!("uring:{}", path.display())
            }
            line => line.to_owned(),
        };
        let exports = (0..).zip(exports).map(|(at, (name, options)): (u32, _)| {
            format!(" --export={name},offset={}m,size={size}m{options}", at * size)
        });
        Server::blkmq("isolation", &line, scheduler, &String::from_iter(exports))
    }

    fn client(&self, server: &Server, name: &str, load: &str, seconds: u32) -> Result<Fio> {
        let time = format!("--norandommap --time_based --ramp_time={RAMP} --runtime={seconds}");
        let options = format!("{load} --size={}m {time}", self.size);
        Fio::start(&server.uri(name), &server.path(name), &options)
    }

    /// KiB a second of two clients by weight: the server's own counts, over a time in which both are busy, since the
    /// last I/Os of fio end after its time.
    fn rates(&self, seconds: u32) -> Result<[f64; 2]> {
        let exports = WEIGHTS.map(|weight| (format!("w{weight}"), format!(",weight={weight}")));
        let named = exports.each_ref().map(|(name, options)| (name.as_str(), options.clone()));
        let server = self.serve("auto", &named)?;
        let start = |(name, _): &(String, String)| self.client(&server, name, self.load, 3600);
        let clients: Vec<Fio> = exports.iter().map(start).collect::<Result<_>>()?;
        server.connected(2)?;
        pause(RAMP)?;
        let counted = server.ctl(&format!("stat --interval={seconds} --count=1"))?;
        clients.into_iter().try_for_each(Fio::kill)?;
        let rate = |at: usize| counted["rows"][at]["kib"][0].as_f64();
        rate(0).zip(rate(1)).map(|(a, b)| [a, b]).ok_or_else(|| "no rates of the exports".into())
    }

    fn row(&self, rates: [f64; 2]) -> String {
        let ratio = rates[0] / rates[1];
        let [heavy, light] = rates.map(|kib| kib / 1024.0);
        let verdict = if THREE.contains(&ratio) { "holds" } else { "missed" };
        let (name, load) = (self.name, self.load);
        format!("| {name}, `{load}` | {heavy:.2} | {light:.2} | {ratio:.2} | {verdict} |\n")
    }

    /// The latency of single reads: alone, beside two writers under `none` and under the server's default, and with a
    /// goal.
    fn latencies(&self, seconds: u32) -> Result<String> {
        let goal = format!(",p99_read={}", self.goal);
        let rows = [
            ("alone", "none", "", 0),
            ("`none`", "none", "", 2),
            ("`auto`", "auto", "", 2),
            ("`auto`, a goal", "auto", goal.as_str(), 2),
        ];
        let mut text = String::new();
        for (row, scheduler, options, writers) in rows {
            let exports = [("r", options.to_owned()), ("a", String::new()), ("b", String::new())];
            let server = self.serve(scheduler, &exports)?;
            let start = |name: &&str| self.client(&server, name, WRITER, seconds);
            let writers: Vec<Fio> =
                ["a", "b"][..writers].iter().map(start).collect::<Result<_>>()?;
            let read = self.client(&server, "r", READER, seconds)?.wait()?;
            let written: Vec<Figures> =
                writers.into_iter().map(Fio::wait).collect::<Result<_>>()?;
            let bytes: u64 = written.iter().map(|it| it.bytes).sum();
            let ms = |ns: u64| ns as f64 / 1e6;
            let goal = options.trim_start_matches(",p99_read=");
            text.push_str(&format!(
                "| {} | {row} {goal} | {:.2} | {:.2} | {:.1} |\n",
                self.name,
                ms(read.p50),
                ms(read.p99),
                bytes as f64 / f64::from(seconds) / f64::from(1 << 20)
            ));
        }
        Ok(text)
    }
}
