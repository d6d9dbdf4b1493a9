//! `rbd-tenants`: a tenant with one read at a time beside one that floods the same cluster with writes.
//!
//! Each alone, and together, with fio's own engine on an image each; then with the flood under a ceiling at 80 % of its
//! rate alone, librbd's own (`rbd_qos_iops_limit`) and QEMU's throttle; then both behind `blkmqd`, which has one image
//! in two exports. Every round measures all rows; the first row is the reference for the others.

use super::gateway::{COMPARED, Rates, Settings};
use super::table::{Pair, Row, table};
use super::{alone, both, check_programs, engine, filled};
use crate::Result;
use crate::ceph::Cluster;
use crate::nbd::Server;
use crate::rounds::number;
use crate::shell::{Cmd, build, is_installed};

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
pub(crate) fn main(args: &[String]) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
