//! Shares, floors and ceilings of real clients in real time: the server, the network protocol and the clients are real,
//! so that the figures include their wake-ups, copies and processor time.
//!
//! `serve-isolation`: on a file and on models, with default settings. Two clients of exports with the weights 300 and
//! 100 load a device as much as they can; their shares of the bytes are compared with those of the weights. Then a
//! client with one read at a time is measured alone, beside two clients that write as much as they can, and again with
//! a latency goal. No figure of a device is configured.
//!
//! `serve-floors`: a tenant with a floor beside one that floods the model of a cloud disk. The loads, the scheduler and
//! the limits are those of `crates/lab/tests/floors.rs`, which runs them in virtual time: A keeps 128 I/Os of 1
//! MiB in flight, B has one at a time, 100 reads and 100 writes a second. The limits are the measured figures of a
//! repaired kernel. B is measured alone as well, to show how much of the time is not due to A.
//!
//! `ceilings`: a client under a ceiling of ours, of QEMU's throttle group, and of Linux' blkio controller. All three
//! have the same file, loads and ceilings, and take turns in each round. Ours and QEMU's are in a server, which fio
//! reaches over NBD; Linux' is in front of a loop device, in a group for fio alone. A ceiling is good if the client
//! gets all of it and no more, and its slowest I/Os wait no longer than the rate requires.

use crate::Result;
use crate::measurement::{Figures, Fio, Rounds, median, number, pause};
use crate::serve::Server;
use crate::shell::{Cmd, Guard, build, is_installed, target_dir};
use std::fs;
use std::path::{Path, PathBuf};

const ISOLATION_HELP: &str = "usage: cargo xtask serve-isolation [SECONDS]

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
const ISOLATION_RAMP: f64 = 3.0;
const WRITER: &str = "--rw=randwrite --bs=64k --iodepth=32";
const READER: &str = "--rw=randread --bs=4k --iodepth=1";

/// `cargo xtask serve-isolation`, see [`ISOLATION_HELP`].
///
/// # Errors
/// If a server or a client fails. Figures are printed, and no figure is an error.
pub(crate) fn isolation(args: &[String]) -> Result<()> {
    let seconds = match args {
        [] => 20,
        [seconds] if seconds != "--help" => seconds.parse()?,
        _ => {
            println!("{ISOLATION_HELP}");
            return Ok(());
        }
    };
    build()?;
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
/// As [`isolation`], and if the heavier client, with three times the weight, has less than twice the bytes of the other. A
/// busy machine takes processor time from the clients, which distorts the shares; equal shares always fail.
pub(crate) fn isolation_at_test_size() -> Result<()> {
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
        let time =
            format!("--norandommap --time_based --ramp_time={ISOLATION_RAMP} --runtime={seconds}");
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
        pause(ISOLATION_RAMP)?;
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

const FLOORS_HELP: &str = "usage: cargo xtask serve-floors [SECONDS]

  SECONDS   each of the six runs takes so long, and two seconds before it counts (20)";

/// Each tenant has a half, so that I/Os of the flood do not merge with waiting I/Os.
const CLOUD_DISK: &str = "cloud,preset=azure-p20";
/// As in the test in virtual time: the capacity as measured, and room for two of A's I/Os in the disk.
const SCHEDULER: &str = "mclock:rrandiops=3566,rbps=173471131,inflight_usec=6500,pace_percent=99";
const EXPORTS: &str = "--export=a,size=256g --export=b,offset=256g,reserve_iops=200 --log=warn";
const FLOOD: &str = "--rw=randrw --bs=1m --iodepth=128";
const TENANT: &str = "--rw=randrw --iodepth=1 --rate_iops=100,100";
/// Seconds before the measurement: A's connection may have all its bytes in flight only after it has transferred as
/// many.
const RAMP: u32 = 2;
/// The least I/Os of B in a second, of the 200 that it asks for.
const FLOOR: f64 = 199.0;

/// A size of B's I/Os, and the limits for it.
struct Case {
    name: &'static str,
    bs: &'static str,
    /// The least that A has in a second.
    flood: f64,
    /// The most that B's p99 may be, in milliseconds.
    p99: f64,
}

const CASES: [Case; 3] = [
    Case { name: "4 KiB", bs: "4k", flood: 162.0, p99: 7.5 },
    Case { name: "32 KiB", bs: "32k", flood: 146.0, p99: 7.5 },
    Case { name: "256 KiB", bs: "256k", flood: 110.0, p99: 9.1 },
];

/// The figures beside one size of B's I/Os.
struct Measured {
    /// B without A.
    alone: Figures,
    /// B beside A.
    tenant: Figures,
    /// A's I/Os in a second beside B.
    flood: f64,
}

/// `cargo xtask serve-floors`, see [`FLOORS_HELP`].
///
/// # Errors
/// If the server or a client fails. Figures are printed, and no figure is an error.
pub(crate) fn floors(args: &[String]) -> Result<()> {
    let seconds = match args {
        [] => 20,
        [seconds] if seconds != "--help" => number(seconds)?,
        _ => {
            println!("{FLOORS_HELP}");
            return Ok(());
        }
    };
    build()?;
    println!("\n{}", measure_floors(&CASES, seconds)?);
    Ok(())
}

/// One size, for a second.
///
/// # Errors
/// As [`floors`], and if A is not served at all.
pub(crate) fn floors_at_test_size() -> Result<()> {
    measure_floors(&CASES[..1], 1).map(|table| println!("{table}"))
}

/// The table over `cases`.
fn measure_floors(cases: &[Case], seconds: u32) -> Result<String> {
    let mut text = format!(
        "{CLOUD_DISK}, {SCHEDULER}; {seconds} s each\n\n\
         | size of b's I/Os | a, IOPS | b, IOPS | p50, p99, longest of b (ms) | wanted: a, b, p99 | alone: b, p99 | |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n"
    );
    for case in cases {
        text.push_str(&case.row(&case.run(seconds)?));
    }
    Ok(text)
}

impl Case {
    /// B alone, then both together.
    fn run(&self, seconds: u32) -> Result<Measured> {
        let server = Server::blkmq("floors", CLOUD_DISK, SCHEDULER, EXPORTS)?;
        let client = |export: &str, load: &str, seconds: u32| {
            let time = format!(
                "--size=256g --norandommap --time_based --ramp_time={RAMP} --runtime={seconds}"
            );
            Fio::start(&server.uri(export), &server.path(export), &format!("{load} {time}"))
        };
        let load = format!("{TENANT} --bs={}", self.bs);
        let alone = client("b", &load, seconds)?.wait()?;
        // A second longer, so that A is counted while B runs all the time. B starts first: a pace above the rate of the
        // disk starves a tenant of large I/Os that starts later (`lab/tests/floors.rs`).
        let tenant = client("b", &load, seconds + 1)?;
        server.connected(1)?;
        let flood = client("a", FLOOD, 3600)?;
        pause(RAMP.into())?;
        // The server's own counts: fio's rate includes the wait for its last I/Os.
        let counted = server.ctl(&format!("stat --interval={seconds} --count=1"))?;
        let tenant = tenant.wait()?;
        flood.kill()?;
        let kib = |at: usize| counted["rows"][0]["kib"][at].as_f64();
        let kib = kib(0).zip(kib(1)).map(|(read, written)| read + written);
        match kib.filter(|kib| *kib > 0.0) {
            Some(kib) => Ok(Measured { alone, tenant, flood: kib / 1024.0 }),
            None => Err(format!("A is not served: {counted}").into()),
        }
    }

    fn row(&self, Measured { alone, tenant, flood }: &Measured) -> String {
        let ms = |ns: u64| ns as f64 / 1e6;
        let holds = *flood >= self.flood && tenant.iops >= FLOOR && ms(tenant.p99) <= self.p99;
        format!(
            "| {} | {flood:.1} | {:.1} | {:.2}, {:.2}, {:.1} | {}, {FLOOR}, {} | {:.1}, {:.2} | {} |\n",
            self.name,
            tenant.iops,
            ms(tenant.p50),
            ms(tenant.p99),
            ms(tenant.longest),
            self.flood,
            self.p99,
            alone.iops,
            ms(alone.p99),
            if holds { "holds" } else { "missed" },
        )
    }
}

const HELP: &str = "usage: cargo xtask ceilings [ROUNDS [SECONDS]]

  ROUNDS    medians are over so many rounds (5)
  SECONDS   each run takes so long, and a second before it counts (5)";

/// MiB of the file.
const MIB: u32 = 512;
/// Linux' groups with rules for devices.
const GROUPS: &str = "/sys/fs/cgroup/blkio";
/// The most that a rate may be off, as a part of the ceiling.
const OFF: f64 = 0.01;

/// A load, and its ceiling.
struct Load {
    name: &'static str,
    options: &'static str,
    /// Bytes of an I/O, if the ceiling counts bytes.
    bytes: Option<u32>,
    ceiling: u64,
    /// The ceiling in our syntax, in QEMU's and in Linux'.
    words: [&'static str; 3],
}

const LOADS: [Load; 4] = [
    Load {
        name: "reads of 4 KiB, 32 at a time",
        options: "--rw=randread --bs=4k --iodepth=32",
        bytes: None,
        ceiling: 2000,
        words: ["riops", "iops-read", "read_iops"],
    },
    Load {
        name: "reads of 4 KiB, one at a time",
        options: "--rw=randread --bs=4k --iodepth=1",
        bytes: None,
        ceiling: 2000,
        words: ["riops", "iops-read", "read_iops"],
    },
    Load {
        name: "writes of 4 KiB, 32 at a time",
        options: "--rw=randwrite --bs=4k --iodepth=32",
        bytes: None,
        ceiling: 1000,
        words: ["wiops", "iops-write", "write_iops"],
    },
    Load {
        name: "writes of 64 KiB, 8 at a time",
        options: "--rw=randwrite --bs=64k --iodepth=8",
        bytes: Some(64 << 10),
        ceiling: 50 << 20,
        words: ["wbps", "bps-write", "write_bps"],
    },
];

/// The limiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Ours,
    Qemu,
    Linux,
}

impl Side {
    const ALL: [Self; 3] = [Self::Ours, Self::Qemu, Self::Linux];

    fn name(self) -> &'static str {
        match self {
            Self::Ours => "blkmqd",
            Self::Qemu => "QEMU's throttle group",
            Self::Linux => "Linux' blkio controller",
        }
    }

    /// The reason why it cannot be measured here, if there is one.
    fn lacks(self) -> Option<String> {
        match self {
            Self::Ours => None,
            Self::Qemu => (!is_installed("qemu-storage-daemon"))
                .then(|| "qemu-storage-daemon is not installed".to_owned()),
            Self::Linux => {
                let rule = Path::new(GROUPS).join("blkio.throttle.read_iops_device");
                let writable = fs::metadata(&rule).is_ok()
                    && Cmd::new("id -u").output().is_ok_and(|id| id.trim() == "0");
                (!writable).then(|| format!("no {}, or not root", rule.display()))
            }
        }
    }
}

/// `cargo xtask ceilings`, see [`HELP`].
///
/// # Errors
/// If a program fails. Figures are printed, and no figure is an error.
pub(crate) fn ceilings(args: &[String]) -> Result<()> {
    let Some(size) = Rounds { rounds: 5, seconds: 5 }.or(args, HELP)? else { return Ok(()) };
    build()?;
    println!("{}", measure(&LOADS, size)?);
    Ok(())
}

/// One load, for a second.
///
/// # Errors
/// As [`ceilings`].
pub(crate) fn ceilings_at_test_size() -> Result<()> {
    measure(&LOADS[..1], Rounds { rounds: 1, seconds: 1 }).map(|table| println!("{table}"))
}

fn measure(loads: &[Load], Rounds { rounds, seconds }: Rounds) -> Result<String> {
    let bench = Bench::new(seconds)?;
    let sides = Side::ALL.into_iter().filter(|side| side.lacks().is_none());
    let sides: Vec<Side> = sides.collect();
    let mut text = String::from(
        "| load, ceiling | by | of the ceiling | p50, p99, longest (ms) | aim |\n| --- | --- | --- | --- | --- |\n",
    );
    for load in loads {
        let mut runs: Vec<(Side, Vec<Figures>)> =
            sides.iter().map(|side| (*side, Vec::new())).collect();
        for _ in 0..rounds {
            for (side, figures) in &mut runs {
                figures.push(bench.run(*side, load)?);
            }
        }
        text.push_str(&rows(load, &runs));
    }
    for side in Side::ALL {
        if let Some(reason) = side.lacks() {
            text.push_str(&format!("\n{}: SKIPPED, {reason}\n", side.name()));
        }
    }
    Ok(text)
}

/// The rows of a load: medians, and for ours the targets.
fn rows(load: &Load, runs: &[(Side, Vec<Figures>)]) -> String {
    let p99 = |figures: &[Figures]| {
        median(figures.iter().map(|run| run.p99).collect()).unwrap_or_default()
    };
    let theirs = runs.iter().filter(|(side, _)| *side != Side::Ours);
    let least = theirs.map(|(_, figures)| p99(figures)).min();
    let mut text = String::new();
    for (side, figures) in runs {
        let of = |value: &dyn Fn(&Figures) -> f64| {
            median(figures.iter().map(value).collect()).unwrap_or_default()
        };
        let ms = |ns: u64| ns as f64 / 1e6;
        let part = of(&|run| load.part(run.iops));
        let aim = match (side, least) {
            (Side::Ours, Some(least)) => {
                if (part - 1.0).abs() <= OFF && p99(figures) <= least {
                    "holds"
                } else {
                    "missed"
                }
            }
            _ => "",
        };
        text.push_str(&format!(
            "| {} | {} | {:.1} % | {:.2}, {:.2}, {:.1} | {aim} |\n",
            load.title(),
            side.name(),
            part * 100.0,
            of(&|run| ms(run.p50)),
            of(&|run| ms(run.p99)),
            of(&|run| ms(run.longest)),
        ));
    }
    text
}

impl Load {
    /// `iops` as a part of the ceiling.
    fn part(&self, iops: f64) -> f64 {
        iops * f64::from(self.bytes.unwrap_or(1)) / self.ceiling as f64
    }

    fn title(&self) -> String {
        match self.bytes {
            None => format!("{}, {} in a second", self.name, self.ceiling),
            Some(_) => format!("{}, {} MiB in a second", self.name, self.ceiling >> 20),
        }
    }
}

/// The file, a loop device on it, and a group for its client.
struct Bench {
    folder: PathBuf,
    time: String,
    /// The loop device, and its number; where Linux limits.
    disk: Option<(String, String)>,
    group: PathBuf,
    _guard: Guard,
}

impl Bench {
    fn new(seconds: u32) -> Result<Self> {
        let name = format!("blkmq-ceilings-{}", std::process::id());
        let folder = std::env::temp_dir().join(&name);
        fs::create_dir_all(&folder)?;
        let mut guard = Guard::new()?;
        guard.note("folder", &folder.display().to_string())?;
        let file = folder.join("file");
        let fill =
            format!("dd if=/dev/urandom of={} bs=1M count={MIB} status=none", file.display());
        Cmd::new(&fill).output()?;
        let group = Path::new(GROUPS).join(&name);
        let disk = match Side::Linux.lacks() {
            Some(_) => None,
            None => {
                let line = format!("losetup --direct-io=on --find --show {}", file.display());
                let disk = Cmd::new(&line).output()?.trim().to_owned();
                guard.note("loop", &disk)?;
                let number = Path::new("/sys/block").join(disk.trim_start_matches("/dev/"));
                let number = fs::read_to_string(number.join("dev"))?.trim().to_owned();
                fs::create_dir(&group)?;
                guard.note("group", &group.display().to_string())?;
                Some((disk, number))
            }
        };
        let time =
            format!("--size={MIB}m --norandommap --time_based --ramp_time=1 --runtime={seconds}");
        Ok(Self { folder, time, disk, group, _guard: guard })
    }

    fn run(&self, side: Side, load: &Load) -> Result<Figures> {
        let [ours, qemus, _] = load.words;
        let file = self.folder.join("file").display().to_string();
        let server = match side {
            Side::Linux => return self.under_linux(load),
            Side::Ours => {
                let export = format!("--export=e,{ours}={} --log=warn", load.ceiling);
                Server::blkmq("ceilings", &format!("uring:{file}"), "none", &export)?
            }
            // A ring that was just killed may hold the lock of the file for a moment, so locking is off.
            Side::Qemu => Server::start(
                "ceilings",
                &format!(
                    "qemu-storage-daemon --object throttle-group,id=limit,x-{qemus}={} \
                     --blockdev driver=file,node-name=file,filename={file},locking=off,cache.direct=on,aio=io_uring \
                     --blockdev driver=throttle,node-name=slow,throttle-group=limit,file=file \
                     --nbd-server addr.type=unix,addr.path=SOCKET \
                     --export type=nbd,id=e,node-name=slow,name=e,writable=on",
                    load.ceiling
                ),
            )?,
        };
        let options = format!("{} {}", load.options, self.time);
        Fio::start(&server.uri("e"), &self.folder.join("client"), &options)?.wait()
    }

    /// fio in its own group, on the loop device.
    fn under_linux(&self, load: &Load) -> Result<Figures> {
        let (disk, number) = self.disk.as_ref().ok_or("no loop device")?;
        let rule = self.group.join(format!("blkio.throttle.{}_device", load.words[2]));
        fs::write(&rule, format!("{number} {}", load.ceiling))?;
        let procs = self.group.join("cgroup.procs").display().to_string();
        let line = format!(
            "fio --name=linux --ioengine=io_uring --direct=1 --filename={disk} {} {}",
            load.options, self.time
        );
        // The arguments that follow are those of the shell's "$@".
        let enter = format!("echo $$ > {procs} && exec \"$@\"");
        let client =
            line.split_whitespace().fold(Cmd::new("sh -c").arg(enter).arg("fio"), Cmd::arg);
        let figures = Fio::of(client, &self.folder.join("client"))?.wait();
        fs::write(&rule, format!("{number} 0"))?;
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_holds_if_both_have_their_rates_and_the_tenant_its_p99() {
        let verdict = |flood: f64, iops: f64, p99: u64| {
            let figures = |iops, p99| Figures { iops, p50: 2_000_000, p99, ..Figures::default() };
            let alone = figures(200.0, 2_400_000);
            CASES[0].row(&Measured { alone, tenant: figures(iops, p99), flood })
        };
        assert_eq!(
            verdict(162.0, 199.0, 7_500_000),
            "| 4 KiB | 162.0 | 199.0 | 2.00, 7.50, 0.0 | 162, 199, 7.5 | 200.0, 2.40 | holds |\n"
        );
        assert!(verdict(161.9, 200.0, 2_000_000).contains("missed"), "A has too few");
        assert!(verdict(170.0, 198.9, 2_000_000).contains("missed"), "B has too few");
        assert!(verdict(170.0, 200.0, 7_500_001).contains("missed"), "B is too late");
    }

    fn figures(iops: f64, p99: u64) -> Figures {
        Figures { iops, p50: p99 / 2, p99, longest: 2 * p99, ..Figures::default() }
    }

    #[test]
    fn ours_holds_within_a_hundredth_and_with_the_least_p99() {
        let verdict = |iops: f64, ours: u64| {
            let runs = [
                (Side::Ours, vec![figures(iops, ours)]),
                (Side::Qemu, vec![figures(1990.0, 5_000_000)]),
                (Side::Linux, vec![figures(1200.0, 90_000_000)]),
            ];
            rows(&LOADS[0], &runs).lines().next().map(str::to_owned).unwrap_or_default()
        };
        assert_eq!(
            verdict(1985.0, 5_000_000),
            "| reads of 4 KiB, 32 at a time, 2000 in a second | blkmqd | 99.2 % | 2.50, 5.00, 10.0 | holds |"
        );
        assert!(verdict(1975.0, 5_000_000).contains("missed"), "too few");
        assert!(verdict(2025.0, 5_000_000).contains("missed"), "too many");
        assert!(verdict(1985.0, 5_000_001).contains("missed"), "too late");
    }

    #[test]
    fn bytes_are_counted_where_the_ceiling_counts_them() {
        assert!((LOADS[3].part(800.0) - 1.0).abs() < 1e-9);
        assert!((LOADS[0].part(1000.0) - 0.5).abs() < 1e-9);
    }
}
