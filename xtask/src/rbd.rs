//! A Ceph cluster on this host, and measurements of images on it, each a verb.
//!
//! The cluster is a monitor, and an OSD on a file, in their own folder. It needs no privileges, no loop device and no
//! systemd, and ignores the machine's own configuration. The OSD takes most of the processor time: the figures allow
//! comparisons within a run, and say nothing about a cluster of several machines. Checks that pass or fail are in
//! `interop/rbd.rs`.
//!
//! `rbd-costs` compares the rate and the processor time of an I/O to an image, of `blkmq bench` under `none` and of
//! fio's own engine, alternating. Both go through the same librbd, without its cache, and librbd's threads take most of
//! the time. The times are the kernel's, of whole programs, minus those of a run of the same program with a single I/O,
//! so that the cost of opening an image is excluded.
//!
//! `rbd-tenants` has a tenant with one read at a time beside one that floods the same cluster with writes. Each is
//! measured alone, and then both together, with fio's own engine on an image each. Then the flood is under a ceiling at
//! 80 % of its rate alone, librbd's own (`rbd_qos_iops_limit`) and QEMU's throttle. Finally both are behind `blkmqd`,
//! which has one image in two exports, with settings from the command line or from a table. Every round measures all
//! rows, and the first row is the reference for the others. The table has medians over the rounds, and the aims.

use crate::Result;
use crate::measurement::{Figures, Fio, Rounds, median, number, pause};
use crate::serve::Server;
use crate::shell::{BLKMQ, Cmd, build, cpu_of_programs, is_installed, parse_json, timed};
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Child;

/// Fails if a program that every measurement needs is not installed, or fio has no engine for images.
fn check_programs() -> Result<()> {
    let lacks_fio = (!is_installed("fio")).then_some("fio");
    if let Some(program) = missing().or(lacks_fio) {
        return Err(format!("{program} is not installed").into());
    }
    match Cmd::new("fio --enghelp=rbd").quiet_code()? {
        Some(0) => Ok(()),
        _ => Err("this fio has no engine for images (fio --enghelp=rbd)".into()),
    }
}

/// fio's own engine for images, with `options`.
fn engine(cluster: &Cluster, image: &str, options: &str) -> Cmd {
    let engine = "--ioengine=rbd --clientname=admin --pool=rbd";
    cluster.cmd(&format!("fio --name=rbd {engine} --rbdname={image} {options}"))
}

/// Runs a load to its end.
fn alone(cluster: &Cluster, load: Cmd) -> Result<Figures> {
    finish(cluster, Fio::of(load, &cluster.path("alone"))?)
}

/// Runs two loads at the same time.
fn both(cluster: &Cluster, first: Cmd, second: Cmd) -> Result<[Figures; 2]> {
    let first = Fio::of(first, &cluster.path("first"))?;
    let second = Fio::of(second, &cluster.path("second"))?;
    Ok([finish(cluster, first)?, finish(cluster, second)?])
}

/// Waits for the end of a load, or of the OSD, after which a load would wait forever.
fn finish(cluster: &Cluster, mut load: Fio) -> Result<Figures> {
    while !load.is_over()? {
        cluster.check()?;
        pause(0.1)?;
    }
    load.wait()
}

/// Makes an image and writes all of it: reads of blocks that were never written do not reach the OSD's disk.
fn filled(cluster: &Cluster, image: &str, mib: u32) -> Result<()> {
    cluster.create(&format!("rbd/{image}"), mib.into())?;
    let fill = format!("--rw=write --bs=4m --iodepth=4 --size={mib}m");
    alone(cluster, engine(cluster, image, &fill)).map(drop)
}

const COSTS_HELP: &str = "usage: cargo xtask rbd-costs [ROUNDS [SECONDS]]

  ROUNDS    medians are over so many pairs of runs (5)
  SECONDS   each run takes so long (6)";

/// MiB of the image.
const SIZE: u32 = 256;
/// The aims: our part of fio's rate, at least, and of its processor time for an I/O, at most.
const RATE: f64 = 0.95;
const TIME: f64 = 1.1;

/// A program that has run: I/Os in a second, I/Os, and seconds of processor time.
#[derive(Clone, Copy)]
struct Run {
    iops: f64,
    ios: f64,
    cpu: f64,
}

/// I/Os in a second, and microseconds of processor time for each.
#[derive(Clone, Copy)]
struct Cost {
    iops: f64,
    us: f64,
}

/// A program that puts a load on the image.
type Program = fn(&Cluster, &str) -> Result<(f64, u64)>;

/// `cargo xtask rbd-costs`, see [`COSTS_HELP`].
///
/// # Errors
/// If a program does not run. Figures are printed, and no figure is an error.
pub(crate) fn costs(args: &[String]) -> Result<()> {
    let Some(Rounds { rounds, seconds }) = Rounds { rounds: 5, seconds: 6 }.or(args, COSTS_HELP)?
    else {
        return Ok(());
    };
    check_programs()?;
    build()?;
    let cluster = Cluster::start("costs")?;
    filled(&cluster, "t", SIZE)?;
    println!(
        "4 KiB at iodepth 32, {seconds} s each, medians of {rounds} pairs in turns; an I/O's processor time is that of \
         the client's program\n\n\
         | load | fio, rbd: IOPS, us | blkmq bench: IOPS, us | IOPS, ratio | time, ratio |\n| --- | --- | --- | --- | --- |"
    );
    for load in ["randread", "randwrite"] {
        let options = format!("--rw={load} --bs=4k --iodepth=32 --size={SIZE}m");
        println!("{}", row(load, &pairs(&cluster, &options, rounds, seconds)?));
    }
    Ok(())
}

/// Costs of each round, as (fio's, ours). The side that runs first alternates.
fn pairs(cluster: &Cluster, options: &str, rounds: u32, seconds: u32) -> Result<Vec<[Cost; 2]>> {
    let programs: [Program; 2] = [fio, blkmq];
    let once = format!("{options} --io_size=4k");
    let load = format!("{options} --norandommap --time_based --runtime={seconds}");
    let mut starts = [0.0; 2];
    for (program, start) in programs.iter().zip(&mut starts) {
        let runs = (0..3).map(|_| run(cluster, *program, &once)).collect::<Result<Vec<_>>>()?;
        *start = median(runs.iter().map(|run| run.cpu).collect()).unwrap_or(0.0);
    }
    let mut pairs = Vec::new();
    for round in 0..rounds as usize {
        let mut pair = [Cost { iops: 0.0, us: 0.0 }; 2];
        for n in [round % 2, 1 - round % 2] {
            let run = run(cluster, programs[n], &load)?;
            pair[n] = Cost { iops: run.iops, us: (run.cpu - starts[n]) * 1e6 / run.ios };
        }
        pairs.push(pair);
    }
    Ok(pairs)
}

/// Runs a program, and measures the processor time of the programs that ended during the run, which excludes the
/// cluster.
fn run(cluster: &Cluster, program: Program, options: &str) -> Result<Run> {
    let before = cpu_of_programs();
    let (iops, ios) = program(cluster, options)?;
    Ok(Run { iops, ios: ios as f64, cpu: cpu_of_programs() - before })
}

fn fio(cluster: &Cluster, options: &str) -> Result<(f64, u64)> {
    let figures = alone(cluster, engine(cluster, "t", options))?;
    Ok((figures.iops, figures.ios))
}

fn blkmq(cluster: &Cluster, options: &str) -> Result<(f64, u64)> {
    let line = format!("{BLKMQ} bench --name=rbd --scheduler=none --output-format=json {options}");
    let device = format!("--device={}", cluster.device("rbd/t"));
    let report = parse_json(&Cmd::new(&line).arg(device).output()?)?;
    let job = &report["jobs"][0];
    let of = |key: &str| ["read", "write"].map(|way| job[way][key].as_f64().unwrap_or(0.0));
    Ok((of("iops").iter().sum(), of("total_ios").iter().sum::<f64>() as u64))
}

/// A line of the table. A ratio is the median of those of the pairs.
fn row(load: &str, pairs: &[[Cost; 2]]) -> String {
    let of = |value: &dyn Fn(&[Cost; 2]) -> f64| {
        median(pairs.iter().map(value).collect()).unwrap_or(0.0)
    };
    let (rate, time) =
        (of(&|pair| pair[1].iops / pair[0].iops), of(&|pair| pair[1].us / pair[0].us));
    let verdict = |holds: bool| if holds { "" } else { " (missed)" };
    format!(
        "| {load} | {:.0}, {:.1} | {:.0}, {:.1} | {rate:.2}{} | {time:.2}{} |",
        of(&|pair| pair[0].iops),
        of(&|pair| pair[0].us),
        of(&|pair| pair[1].iops),
        of(&|pair| pair[1].us),
        verdict(rate >= RATE),
        verdict(time <= TIME),
    )
}

/// Bytes of the OSD's file, which has holes where nothing was written. An OSD whose file is full of data and of its own
/// tables ends, and clients then wait for it.
const BLOCK: u64 = 12 << 30;
/// The most tries, five a second, until a daemon must be up.
const TRIES: u32 = 300;

/// A cluster; its daemons are killed, and its folder is removed, when this is dropped.
pub(crate) struct Cluster {
    folder: PathBuf,
    mon: Option<Child>,
    osd: Option<Child>,
}

/// A program that a cluster needs and that is missing; `None` if there is none.
pub(crate) fn missing() -> Option<&'static str> {
    ["ceph-mon", "ceph-osd", "ceph", "rbd"].into_iter().find(|program| !is_installed(program))
}

/// The configuration: one OSD is enough, and all files are in the folder. Clients have no cache: that of librbd would
/// answer before the cluster does.
fn conf(folder: &Path, fsid: &str, [v2, v1]: [u16; 2]) -> String {
    let d = folder.display();
    format!(
        "[global]\nfsid = {fsid}\nmon host = [v2:127.0.0.1:{v2}/0,v1:127.0.0.1:{v1}/0]\n\
         auth cluster required = none\nauth service required = none\nauth client required = none\n\
         public addr = 127.0.0.1\ncluster addr = 127.0.0.1\n\
         osd pool default size = 1\nosd pool default min size = 1\nosd pool default pg num = 8\n\
         osd pool default pg autoscale mode = off\nosd crush chooseleaf type = 0\n\
         mon allow pool size one = true\nmon allow pool delete = true\nmon data avail crit = 1\n\
         run dir = {d}\nadmin socket = {d}/$name.asok\npid file = {d}/$name.pid\n\
         log file = {d}/$name.log\nkeyring = {d}/keyring\n\
         [mon]\nmon data = {d}/mon\n\
         [osd]\nosd data = {d}/osd$id\nosd objectstore = bluestore\n\
         bluestore block size = {BLOCK}\nbluestore block create = true\n\
         osd memory target = 939524096\n\
         [client]\nadmin socket =\nlog file =\nrbd cache = false\n"
    )
}

fn uuid() -> Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned())
}

/// Two ports that are free at this moment.
fn ports() -> Result<[u16; 2]> {
    let sockets = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
    Ok([sockets[0].local_addr()?.port(), sockets[1].local_addr()?.port()])
}

impl Cluster {
    /// Starts it, with the pool `rbd`.
    ///
    /// # Errors
    /// If a daemon or a tool does not work; all of it is then removed.
    pub(crate) fn start(name: &str) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("blkmq-ceph-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("osd0"))?;
        // From here on, dropping it removes all of it.
        let mut cluster = Self { folder, mon: None, osd: None };
        let (made, time) = timed(|| cluster.bring_up());
        made?;
        println!("a cluster is up after {time:.1?}");
        Ok(cluster)
    }

    fn bring_up(&mut self) -> Result<()> {
        let (fsid, [v2, v1]) = (uuid()?, ports()?);
        fs::write(self.path("ceph.conf"), conf(&self.folder, &fsid, [v2, v1]))?;
        let keyring = self.path("keyring").display().to_string();
        for (name, caps) in [
            ("mon.", "--cap mon allow_*"),
            ("client.admin", "--cap mon allow_* --cap osd allow_*"),
            ("osd.0", "--cap mon allow_profile_osd --cap osd allow_*"),
        ] {
            let create = if name == "mon." { "--create-keyring" } else { "" };
            let mut cmd =
                self.cmd(&format!("ceph-authtool {create} {keyring} --gen-key -n {name}"));
            // A capability is one word with blanks.
            for word in caps.split(' ') {
                cmd = cmd.arg(word.replace('_', " "));
            }
            cmd.output()?;
        }
        let map = self.path("monmap").display().to_string();
        let addresses = format!("[v2:127.0.0.1:{v2},v1:127.0.0.1:{v1}]");
        let create = format!("monmaptool --create --addv a {addresses} --fsid {fsid} {map}");
        self.cmd(&create).output()?;
        let mkfs = format!("ceph-mon --mkfs -i a --monmap {map} --keyring {keyring}");
        self.cmd(&mkfs).output()?;
        self.start_mon()?;
        let osd = uuid()?;
        self.cmd(&format!("ceph osd new {osd}")).output()?;
        self.cmd(&format!("ceph-osd -i 0 --mkfs --osd-uuid {osd}")).quiet_code()?;
        self.start_osd()?;
        self.cmd("ceph osd pool create rbd 8").output()?;
        self.cmd("rbd pool init rbd").output()?;
        Ok(())
    }

    /// A command line under the configuration of the cluster.
    pub(crate) fn cmd(&self, line: &str) -> Cmd {
        Cmd::new(line).env("CEPH_CONF", self.path("ceph.conf").display().to_string())
    }

    /// A path in its folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The description of an image as a blkmq device.
    pub(crate) fn device(&self, image: &str) -> String {
        format!("rbd:{image},conf={}", self.path("ceph.conf").display())
    }

    /// Makes an image.
    ///
    /// # Errors
    /// If the cluster refuses.
    pub(crate) fn create(&self, image: &str, mib: u64) -> Result<()> {
        self.cmd(&format!("rbd create --size {mib} {image}")).output().map(drop)
    }

    fn daemon(&self, line: &str) -> Result<Child> {
        let log = File::options().create(true).append(true).open(self.path("daemons"))?;
        self.cmd(line).start(log)
    }

    /// Starts the monitor.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn start_mon(&mut self) -> Result<()> {
        self.mon = Some(self.daemon("ceph-mon -f -i a")?);
        Ok(())
    }

    /// Starts the OSD, and waits until the monitor reports it as up.
    ///
    /// # Errors
    /// If it does not come up.
    pub(crate) fn start_osd(&mut self) -> Result<()> {
        self.osd = Some(self.daemon("ceph-osd -f -i 0")?);
        for _ in 0..TRIES {
            if self.cmd("ceph osd stat").output()?.contains("1 up") {
                return Ok(());
            }
            pause(0.2)?;
        }
        let log = fs::read_to_string(self.path("daemons")).unwrap_or_default();
        Err(format!("the OSD does not come up: {log}").into())
    }

    /// Fails if the OSD has ended without a kill: loads that wait for it never end.
    ///
    /// # Errors
    /// If it has.
    pub(crate) fn check(&self) -> Result<()> {
        let Some(osd) = &self.osd else { return Ok(()) };
        let status = fs::read_to_string(format!("/proc/{}/status", osd.id())).unwrap_or_default();
        if has_ended(&status) { Err("the OSD has ended by itself".into()) } else { Ok(()) }
    }

    /// `kill -9` of the monitor.
    pub(crate) fn kill_mon(&mut self) {
        end(self.mon.take());
    }

    pub(crate) fn kill_osd(&mut self) {
        end(self.osd.take());
    }
}

/// Returns whether the state of a child, as in `/proc/PID/status`, means that it has ended.
fn has_ended(status: &str) -> bool {
    status.is_empty() || status.lines().any(|line| line.starts_with("State:") && line.contains('Z'))
}

fn end(daemon: Option<Child>) {
    if let Some(mut daemon) = daemon {
        // The daemon may have ended already.
        let _ = daemon.kill();
        let _ = daemon.wait();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kill_osd();
        self.kill_mon();
        // A leftover folder does no harm.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

pub(crate) const HELP: &str = "usage: cargo xtask rbd-tenants [--gateway SETTINGS]... [ROUNDS [SECONDS]]

  --gateway SCHEDULER[/DEPTH[/READER[/FLOOD]]]
              in place of the settings that are compared: a scheduler as --scheduler takes it, a device-depth, and the
              settings of the reader's export and of the flood's; READ, WRITE, FLOOR and GOAL stand for the measured rates
              of random reads and of the flood, for six tenths of the reader's rate, and for three times its p99 in
              microseconds
  ROUNDS      medians are over so many rounds (5)
  SECONDS     each run takes so long, and a second before it counts (5)";

/// The part of its rate alone that a ceiling leaves to the flood.
const KEPT: f64 = 0.8;
/// QEMU's error if its image driver, a separate package, is missing.
const NO_DRIVER: &str = "Unknown driver 'rbd'";
/// MiB of each tenant.
const MIB: u32 = 512;
/// Images of the reader and of the flood, and one that both share.
const IMAGES: [(&str, u32); 3] = [("t", MIB), ("u", MIB), ("g", 2 * MIB)];

/// The requested measurement.
#[derive(PartialEq, Eq, Debug)]
struct Plan {
    gateways: Vec<Settings>,
    rounds: u32,
    seconds: u32,
}

impl Plan {
    fn parse(args: &[String]) -> Result<Self> {
        let (mut gateways, mut numbers) = (Vec::new(), Vec::new());
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            if arg == "--gateway" {
                let settings = args.next().ok_or_else(|| format!("no settings\n{HELP}"))?;
                gateways.push(Settings::parse(settings)?);
            } else {
                numbers.push(number(arg).map_err(|error| format!("{error}\n{HELP}"))?);
            }
        }
        if gateways.is_empty() {
            gateways = COMPARED.iter().map(|text| Settings::parse(text)).collect::<Result<_>>()?;
        }
        match numbers[..] {
            [] => Ok(Self { gateways, rounds: 5, seconds: 5 }),
            [rounds] => Ok(Self { gateways, rounds, seconds: 5 }),
            [rounds, seconds] => Ok(Self { gateways, rounds, seconds }),
            _ => Err(HELP.into()),
        }
    }
}

/// The cluster, and the loads of all rows.
struct Bench {
    cluster: Cluster,
    reader: String,
    flood: String,
}

/// `cargo xtask rbd-tenants`, see [`HELP`].
///
/// # Errors
/// If a program does not run. Figures are printed, and no figure is an error.
pub(crate) fn tenants(args: &[String]) -> Result<()> {
    if args.iter().any(|arg| arg == "--help") {
        println!("{HELP}");
        return Ok(());
    }
    let plan = Plan::parse(args)?;
    check_programs()?;
    build()?;
    let bench = Bench::new(plan.seconds)?;
    let reads = bench.reads()?;
    let mut rows: Vec<Row> = Vec::new();
    for _ in 0..plan.rounds {
        for (n, (name, pair)) in bench.round(&plan.gateways, reads)?.into_iter().enumerate() {
            if n == rows.len() {
                rows.push(Row { name, pairs: Vec::new() });
            }
            rows[n].pairs.push(pair);
        }
    }
    let Plan { rounds, seconds, .. } = plan;
    println!(
        "\nreader: random reads of 4 KiB, one at a time; flood: random writes of 16 KiB, 32 at a time; {MIB} MiB each\n\
         medians of {rounds} rounds of {seconds} s; ratios to the same round's row `alone`\n"
    );
    print!("{}", table(&rows));
    if !is_installed("qemu-storage-daemon") {
        println!("QEMU's throttle: SKIPPED, qemu-storage-daemon is not installed");
    }
    Ok(())
}

impl Bench {
    fn new(seconds: u32) -> Result<Self> {
        let cluster = Cluster::start("tenants")?;
        for (image, mib) in IMAGES {
            filled(&cluster, image, mib)?;
        }
        let time =
            format!("--size={MIB}m --norandommap --time_based --ramp_time=1 --runtime={seconds}");
        Ok(Self {
            cluster,
            reader: format!("--rw=randread --bs=4k --iodepth=1 {time}"),
            flood: format!("--rw=randwrite --bs=16k --iodepth=32 {time}"),
        })
    }

    /// The rate of random reads, many at a time, with which mclock is configured.
    fn reads(&self) -> Result<f64> {
        let many = self.reader.replace("--iodepth=1", "--iodepth=32");
        Ok(alone(&self.cluster, engine(&self.cluster, "t", &many))?.iops)
    }

    /// Every row once.
    fn round(&self, gateways: &[Settings], reads: f64) -> Result<Vec<(String, Pair)>> {
        let cluster = &self.cluster;
        let reader = || engine(cluster, "t", &self.reader);
        let flood = || engine(cluster, "u", &self.flood);
        let by_itself = [alone(cluster, reader())?, alone(cluster, flood())?];
        let [read, written] = by_itself.map(|figures| figures.iops);
        let goal = by_itself[0].p99 as f64 * 3.0 / 1000.0;
        let mut rows = vec![("alone".to_owned(), by_itself)];
        rows.push(("beside each other".to_owned(), both(cluster, reader(), flood())?));
        let ceiling = (written * KEPT) as u64;
        self.limit_flood(ceiling)?;
        let limited = both(cluster, reader(), flood());
        self.limit_flood(0)?;
        rows.push(("`rbd_qos_iops_limit` of the flood at 80 %".to_owned(), limited?));
        if is_installed("qemu-storage-daemon") {
            match self.throttled(ceiling) {
                Err(error) if error.to_string().contains(NO_DRIVER) => {
                    println!("QEMU's throttle: SKIPPED, qemu-block-extra is not installed");
                }
                pair => rows.push(("QEMU's throttle of the flood at 80 %".to_owned(), pair?)),
            }
        }
        let rates = Rates { reads, writes: written, floor: read * 0.6, goal };
        for settings in gateways {
            rows.push((settings.name(), self.served(&settings.with(rates))?));
        }
        Ok(rows)
    }

    /// librbd's own ceiling for the flood's image; 0 is none.
    fn limit_flood(&self, iops: u64) -> Result<()> {
        let set = format!("rbd config image set rbd/u rbd_qos_iops_limit {iops}");
        self.cluster.cmd(&set).output().map(drop)
    }

    /// Both at two exports of one image.
    fn served(&self, settings: &Settings) -> Result<Pair> {
        let server = settings.serve(&self.cluster, "rbd/g", MIB)?;
        let fio = |export: &str, load: &str| over_nbd(&server, export, load);
        let figures = both(&self.cluster, fio("reader", &self.reader), fio("flood", &self.flood));
        // The exclusive lock of a client that was killed would keep the next one from writing for half a minute.
        server.stop()?;
        figures
    }

    /// The flood behind QEMU's server, with a throttle.
    fn throttled(&self, ceiling: u64) -> Result<Pair> {
        let conf = self.cluster.path("ceph.conf").display().to_string();
        let line = format!(
            "qemu-storage-daemon --object throttle-group,id=limit,x-iops-total={ceiling} \
             --blockdev driver=rbd,node-name=image,pool=rbd,image=u,conf={conf} \
             --blockdev driver=throttle,node-name=slow,throttle-group=limit,file=image \
             --nbd-server addr.type=unix,addr.path=SOCKET \
             --export type=nbd,id=e,node-name=slow,name=u,writable=on"
        );
        let server = Server::start("throttle", &line)?;
        let reader = engine(&self.cluster, "t", &self.reader);
        let figures = both(&self.cluster, reader, over_nbd(&server, "u", &self.flood));
        server.stop()?;
        figures
    }
}

/// fio at an export.
fn over_nbd(server: &Server, export: &str, load: &str) -> Cmd {
    let uri = server.uri(export);
    Cmd::new(&format!("fio --name={export} --ioengine=nbd --uri={uri} {load}"))
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Settings {
    /// As `--scheduler` takes it.
    scheduler: String,
    /// `--device-depth`; 0 is no limit.
    depth: u32,
    /// Settings of the reader's export and of the flood's.
    exports: [String; 2],
}

/// The rates of the cluster, in I/Os a second, for which settings have placeholders.
#[derive(Clone, Copy, Debug)]
struct Rates {
    /// `READ`: random reads of 4 KiB, 32 at a time.
    reads: f64,
    /// `WRITE`: the flood's writes, alone.
    writes: f64,
    /// `FLOOR`: six tenths of the reader's rate alone.
    floor: f64,
    /// `GOAL`: three times the reader's p99 alone, in microseconds.
    goal: f64,
}

/// The settings that are compared: SCHEDULER/DEPTH/READER/FLOOD.
///
/// mclock is configured with the rates of the cluster, and with the amount of work that may be in flight.
const COMPARED: &[&str] = &[
    "none",
    "none/8",
    "mq-deadline:fifo_batch=1/8",
    "bfq:low_latency=0/8/weight=1000",
    "mclock:rrandiops=READ,wrandiops=WRITE,inflight_usec=4000/0/reserve_iops=FLOOR,overcommit=1",
    "none/0/p99_read=GOAL",
];

impl Settings {
    /// SCHEDULER[/DEPTH[/READER[/FLOOD]]]; the last two are settings of exports.
    ///
    /// # Errors
    /// If the depth is no number, or there are too many parts.
    fn parse(text: &str) -> Result<Self> {
        let mut parts = text.split('/');
        let mut next = || parts.next().unwrap_or_default().to_owned();
        let (scheduler, depth, exports) = (next(), next(), [next(), next()]);
        let depth = if depth.is_empty() { Ok(0) } else { depth.parse() };
        match (depth, parts.next()) {
            (Ok(depth), None) if !scheduler.is_empty() => Ok(Self { scheduler, depth, exports }),
            _ => Err(format!("'{text}' is not SCHEDULER[/DEPTH[/READER[/FLOOD]]]").into()),
        }
    }

    /// Replaces the placeholders by the rates.
    fn with(&self, rates: Rates) -> Self {
        let Rates { reads, writes, floor, goal } = rates;
        let fill = |text: &String| {
            let text = text.replace("READ", &format!("{reads:.0}"));
            let text = text.replace("WRITE", &format!("{writes:.0}"));
            text.replace("FLOOR", &format!("{floor:.0}")).replace("GOAL", &format!("{goal:.0}"))
        };
        Self {
            scheduler: fill(&self.scheduler),
            exports: self.exports.each_ref().map(fill),
            ..*self
        }
    }

    /// The name of its row.
    fn name(&self) -> String {
        let mut name = format!("blkmqd, `{}`", self.scheduler);
        if self.depth > 0 {
            name.push_str(&format!(", `device-depth` {}", self.depth));
        }
        for (export, whose) in self.exports.iter().zip(["reader", "flood"]) {
            if !export.is_empty() {
                name.push_str(&format!(", {whose} `{export}`"));
            }
        }
        name
    }

    /// A server of `image`, half of it for each tenant, as `reader` and `flood`.
    ///
    /// # Errors
    /// If it does not start.
    fn serve(&self, cluster: &Cluster, image: &str, mib: u32) -> Result<Server> {
        let Self { scheduler, depth, exports } = self;
        let more =
            |export: &str| if export.is_empty() { String::new() } else { format!(",{export}") };
        let [reader, flood] = exports.each_ref().map(|export| more(export));
        let line = format!(
            "--device-depth={depth} --log=warn --export=reader,size={mib}m{reader} \
             --export=flood,offset={mib}m,size={mib}m{flood}"
        );
        Server::blkmq("tenants", &cluster.device(image), scheduler, &line)
    }
}

/// The targets: the least rate of the reader, relative to its rate alone; the greatest p99, relative to its p99 alone;
/// and the least rate of the flood, relative to its rate alone.
const READER: f64 = 0.5;
const P99: f64 = 3.0;
const FLOOD: f64 = 0.8;

/// The figures of the reader and of the flood in a run.
type Pair = [Figures; 2];

/// A row of the table, and its figures in each round.
struct Row {
    name: String,
    pairs: Vec<Pair>,
}

/// The table. The first row has the figures of each load alone, with which the others are compared, round by round.
fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| | reader: IOPS, of alone | p50, p99 (ms) | p99 to alone | flood: IOPS, of alone | p50, p99 (ms) | aim |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    let Some(alone) = rows.first() else { return text };
    for row in rows {
        let of = |value: &dyn Fn(&Pair, &Pair) -> f64| {
            let rounds = row.pairs.iter().zip(&alone.pairs);
            median(rounds.map(|(pair, alone)| value(pair, alone)).collect()).unwrap_or(0.0)
        };
        let part = |side: usize| of(&|pair, alone| pair[side].iops / alone[side].iops);
        let ms = |ns: u64| ns as f64 / 1e6;
        let late = of(&|pair, alone| ms(pair[0].p99) / ms(alone[0].p99.max(1)));
        let (reader, flood) = (part(0), part(1));
        let holds = reader >= READER && late <= P99 && flood >= FLOOD;
        text.push_str(&format!(
            "| {} | {:.0}, {:.0} % | {:.2}, {:.1} | {late:.1} | {:.0}, {:.0} % | {:.1}, {:.1} | {} |\n",
            row.name,
            of(&|pair, _| pair[0].iops),
            reader * 100.0,
            of(&|pair, _| ms(pair[0].p50)),
            of(&|pair, _| ms(pair[0].p99)),
            of(&|pair, _| pair[1].iops),
            flood * 100.0,
            of(&|pair, _| ms(pair[1].p50)),
            of(&|pair, _| ms(pair[1].p99)),
            if holds { "holds" } else { "missed" },
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_pairs_and_a_missed_aim_is_marked() {
        let pair =
            |fio: f64, ours: f64| [Cost { iops: fio, us: 100.0 }, Cost { iops: ours, us: 105.0 }];
        let pairs = [pair(1000.0, 900.0), pair(2000.0, 1800.0), pair(500.0, 600.0)];
        assert_eq!(
            row("randread", &pairs),
            "| randread | 1000, 100.0 | 900, 105.0 | 0.90 (missed) | 1.05 |"
        );
    }

    #[test]
    fn a_daemon_that_has_ended_is_told_from_one_that_runs() {
        let own = fs::read_to_string("/proc/self/status").unwrap();
        assert!(!has_ended(&own));
        assert!(has_ended("Name:\tceph-osd\nState:\tZ (zombie)\n"));
        assert!(has_ended(""), "there is no such process");
    }

    #[test]
    fn arguments_are_read_and_refused() {
        let plan =
            |line: &str| Plan::parse(&Vec::from_iter(line.split_whitespace().map(str::to_owned)));
        let short = plan("2 --gateway none/4 3").unwrap();
        assert_eq!((short.rounds, short.seconds, short.gateways.len()), (2, 3, 1));
        let whole = plan("").unwrap();
        assert_eq!((whole.rounds, whole.gateways.len()), (5, COMPARED.len()));
        for line in ["x", "0", "--gateway", "--gateway none/x", "1 2 3"] {
            assert!(plan(line).is_err(), "{line}");
        }
    }

    #[test]
    fn settings_are_read_filled_and_named() {
        let settings =
            Settings::parse("mclock:rrandiops=READ/8/reserve_iops=FLOOR,p99_read=GOAL/weight=10");
        let rates = Rates { reads: 900.4, writes: 1.0, floor: 55.5, goal: 1200.0 };
        let filled = settings.unwrap().with(rates);
        assert_eq!(
            filled.name(),
            "blkmqd, `mclock:rrandiops=900`, `device-depth` 8, reader `reserve_iops=56,p99_read=1200`, flood `weight=10`"
        );
        assert_eq!(Settings::parse("none").unwrap().depth, 0);
        for text in ["", "none/x", "none/1/a/b/c"] {
            assert!(Settings::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_compared_settings_are_some() {
        for text in COMPARED {
            assert!(Settings::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_row_is_compared_with_alone_in_its_round() {
        let figures =
            |iops: f64, p99: u64| Figures { iops, p50: p99 / 2, p99, ..Figures::default() };
        let row = |name: &str, pairs: [(f64, f64, u64); 3]| Row {
            name: name.to_owned(),
            pairs: pairs
                .map(|(reader, flood, p99)| [figures(reader, p99), figures(flood, p99)])
                .into(),
        };
        let rows = [
            row(
                "alone",
                [(100.0, 1000.0, 2_000_000), (200.0, 500.0, 4_000_000), (100.0, 1000.0, 2_000_000)],
            ),
            row(
                "a",
                [(60.0, 900.0, 5_000_000), (110.0, 450.0, 11_000_000), (55.0, 850.0, 5_000_000)],
            ),
            row(
                "b",
                [(60.0, 700.0, 5_000_000), (110.0, 450.0, 11_000_000), (55.0, 700.0, 5_000_000)],
            ),
        ];
        let text = table(&rows);
        let lines: Vec<&str> = text.lines().skip(3).collect();
        assert_eq!(lines[0], "| a | 60, 55 % | 2.50, 5.0 | 2.5 | 850, 90 % | 2.5, 5.0 | holds |");
        assert_eq!(lines[1], "| b | 60, 55 % | 2.50, 5.0 | 2.5 | 700, 70 % | 2.5, 5.0 | missed |");
    }
}
