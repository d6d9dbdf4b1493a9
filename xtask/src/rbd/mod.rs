//! A Ceph cluster on this host, and measurements of images on it, each a verb: here the cost of an I/O, in `tenants.rs`
//! tenants beside each other.
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

pub(crate) mod tenants;

use crate::Result;
use crate::fio::{Figures, Fio, median, pause};
use crate::measurement::Rounds;
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
}
