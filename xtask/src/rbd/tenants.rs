//! `rbd-tenants`: a tenant with one read at a time beside one that floods the same cluster with writes.
//!
//! Each is measured alone, and then both together, with fio's own engine on an image each. Then the flood is under a
//! ceiling at 80 % of its rate alone, librbd's own (`rbd_qos_iops_limit`) and QEMU's throttle. Finally both are behind
//! `blkmqd`, which has one image in two exports, with settings from the command line or from a table. Every round
//! measures all rows, and the first row is the reference for the others. The table has medians over the rounds, and the
//! aims.

use super::{Cluster, alone, both, check_programs, engine, filled};
use crate::Result;
use crate::fio::{Figures, median};
use crate::measurement::number;
use crate::nbd::Server;
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

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    /// As `--scheduler` takes it.
    pub(crate) scheduler: String,
    /// `--device-depth`; 0 is no limit.
    pub(crate) depth: u32,
    /// Settings of the reader's export and of the flood's.
    pub(crate) exports: [String; 2],
}

/// The rates of the cluster, in I/Os a second, for which settings have placeholders.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    /// `READ`: random reads of 4 KiB, 32 at a time.
    pub(crate) reads: f64,
    /// `WRITE`: the flood's writes, alone.
    pub(crate) writes: f64,
    /// `FLOOR`: six tenths of the reader's rate alone.
    pub(crate) floor: f64,
    /// `GOAL`: three times the reader's p99 alone, in microseconds.
    pub(crate) goal: f64,
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
    pub(crate) fn parse(text: &str) -> Result<Self> {
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
    pub(crate) fn with(&self, rates: Rates) -> Self {
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
    pub(crate) fn name(&self) -> String {
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
    pub(crate) fn serve(&self, cluster: &Cluster, image: &str, mib: u32) -> Result<Server> {
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
pub(crate) type Pair = [Figures; 2];

/// A row of the table, and its figures in each round.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) pairs: Vec<Pair>,
}

/// The table. The first row has the figures of each load alone, with which the others are compared, round by round.
pub(crate) fn table(rows: &[Row]) -> String {
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
