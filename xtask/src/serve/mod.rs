//! Measurements of `blkmqd`, each a verb: here compared with other servers, in the other files shares, floors,
//! ceilings, hostile clients, endurance, and crashes. Other checks also start their servers here.
//!
//! `serve-peers` measures the throughput, the latency and the processor time of `blkmqd` and of other NBD servers. Each
//! serves its memory or a file on tmpfs over a unix socket to the same fio. Every round measures all servers under each
//! workload; the table has medians over the rounds. A server that is not installed is skipped, with a message. The last
//! row is the example of `blkmq-nbd`, which only copies: the upper limit for fio on the same processors. Below each
//! table are the ratios of the first row to the others.
//!
//! `nbd` compares the cost of a read in that example, `nbd_server`, and in nbdkit's memory plug-in. Both serve 1 GiB of
//! memory that was written once, to the same fio, alternating. The CPU times of the servers, from the kernel's
//! accounting, are compared: rates depend more on the client.
//!
//! The clients are fio's NBD engine and, for crashes and attacks, a client of a few lines. Checks that pass or fail
//! within seconds are in `interop`; some of them are short runs of these.

pub(crate) mod attacks;
pub(crate) mod shares;

use crate::Result;
use crate::measurement::{Figures, median, run_fio};
use crate::shell::{
    BLKMQCTL, BLKMQD, Cmd, NBD_SERVER, RAM_DISK, TESTED_NBD_SERVER, is_installed, parse_json,
};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;

pub(crate) const HELP: &str =
    "usage: cargo xtask serve-peers [--milliseconds N] [--size MIB] [--load WORDS] [ROUNDS]

  --milliseconds N   each workload runs for so long (1000)
  --size MIB         the size of each disk (1024)
  --load WORDS       only loads that begin so: randread or randwrite, the depth and the connections, as in randread,32,4
  ROUNDS             the table has medians over so many (5)";

/// A server to compare.
struct Peer {
    name: &'static str,
    /// The program that must be installed; `None` for those of the workspace.
    requires: Option<&'static str>,
    /// The command; `SOCKET`, `SIZE` (MiB) and `FILE` stand for those of the run.
    line: &'static str,
}

const PEERS: &[Peer] = &[
    Peer {
        name: "blkmqd, none",
        requires: None,
        line: "BLKMQD --listen=unix:SOCKET --device=memory,size=SIZE --scheduler=none --export= --log=warn",
    },
    Peer {
        name: "blkmqd, mq-deadline",
        requires: None,
        line: "BLKMQD --listen=unix:SOCKET --device=memory,size=SIZE --scheduler=mq-deadline --export= --log=warn",
    },
    Peer {
        name: "nbdkit memory",
        requires: Some("nbdkit"),
        line: "nbdkit -f -U SOCKET memory SIZEM",
    },
    Peer {
        name: "nbdkit file, tmpfs",
        requires: Some("nbdkit"),
        line: "nbdkit -f -U SOCKET file FILE",
    },
    Peer {
        name: "qemu-nbd, tmpfs",
        requires: Some("qemu-nbd"),
        line: "qemu-nbd -f raw -t -e 16 -k SOCKET FILE",
    },
    Peer {
        name: "qemu-storage-daemon, tmpfs",
        requires: Some("qemu-storage-daemon"),
        line: "qemu-storage-daemon --blockdev driver=file,filename=FILE,node-name=disk \
               --nbd-server addr.type=unix,addr.path=SOCKET,max-connections=0 \
               --export type=nbd,id=nbd,node-name=disk,name=,writable=on",
    },
    Peer {
        name: "blkmqd, file, tmpfs",
        requires: None,
        line: "BLKMQD --listen=unix:SOCKET --device=uring:FILE,direct=0 --scheduler=none --export= --log=warn",
    },
    Peer { name: "ram_disk, which only copies", requires: None, line: "RAM_DISK SOCKET SIZE" },
];

/// A load for fio: direction, depth, connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Load {
    rw: &'static str,
    depth: u32,
    jobs: u32,
}

impl Load {
    fn name(&self) -> String {
        let Self { rw, depth, jobs } = self;
        format!("{rw},{depth},{jobs}")
    }
}

/// The options of the command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Plan {
    milliseconds: u32,
    /// MiB.
    size: u32,
    rounds: u32,
}

#[derive(Clone, Copy)]
struct Run {
    figures: Figures,
    /// Nanoseconds of the server's processor time for an I/O.
    cost: u64,
}

/// `cargo xtask serve-peers`, see [`HELP`].
///
/// # Errors
/// If an option is not understood, or a server or fio does not run.
pub(crate) fn peers(args: &[String]) -> Result<()> {
    if args.iter().any(|arg| arg == "--help") {
        println!("{HELP}");
        return Ok(());
    }
    let (loads, rest) = chosen(args)?;
    let plan = Plan::parse(&rest)?;
    crate::shell::build()?;
    measure(plan, &loads)
}

/// (requested loads, other arguments).
fn chosen(args: &[String]) -> Result<(Vec<Load>, Vec<String>)> {
    let mut rest = args.to_vec();
    let Some(at) = rest.iter().position(|arg| arg == "--load") else { return Ok((loads(), rest)) };
    let words = rest.drain(at..rest.len().min(at + 2)).nth(1).unwrap_or_default();
    let mut loads = loads();
    loads.retain(|load| load.name().starts_with(&words));
    if words.is_empty() || loads.is_empty() {
        return Err(format!("no load begins with '{words}'\n{HELP}").into());
    }
    Ok((loads, rest))
}

/// The smallest run that starts every server, so that the command does not rot.
///
/// # Errors
/// As [`peers`].
pub(crate) fn peers_at_test_size() -> Result<()> {
    let plan = Plan { milliseconds: 200, size: 16, rounds: 1 };
    measure(plan, &[Load { rw: "randwrite", depth: 32, jobs: 2 }])
}

/// Every combination, the lightest first.
fn loads() -> Vec<Load> {
    let mut all = Vec::new();
    for rw in ["randread", "randwrite"] {
        for (depth, jobs) in [(1, 1), (1, 4), (8, 4), (32, 1), (32, 4)] {
            all.push(Load { rw, depth, jobs });
        }
    }
    all
}

fn measure(plan: Plan, loads: &[Load]) -> Result<()> {
    let missing = |peer: &&Peer| peer.requires.is_some_and(|program| !is_installed(program));
    let (skipped, present): (Vec<&Peer>, Vec<&Peer>) = PEERS.iter().partition(missing);
    let mut servers = Vec::new();
    for (number, peer) in (0..).zip(&present) {
        servers.push(Running::start(peer, number, plan.size)?);
    }
    let mut runs: Vec<Vec<Vec<Run>>> = vec![vec![Vec::new(); servers.len()]; loads.len()];
    for _ in 0..plan.rounds {
        for (load, runs) in loads.iter().zip(&mut runs) {
            for (server, runs) in servers.iter().zip(runs) {
                runs.push(server.run(*load, plan)?);
            }
        }
    }
    for (load, runs) in loads.iter().zip(&runs) {
        print!("{}", table(*load, plan, &present, runs));
    }
    println!("\n{} servers, {} skipped", present.len(), skipped.len());
    for peer in skipped {
        println!("{}: SKIPPED, {} is not installed", peer.name, peer.requires.unwrap_or_default());
    }
    Ok(())
}

/// A server with its file.
struct Running {
    server: Server,
    file: PathBuf,
}

impl Running {
    /// Starts it, and writes its whole disk once.
    fn start(peer: &Peer, number: u32, size: u32) -> Result<Self> {
        let file = PathBuf::from(format!("/dev/shm/blkmq-peers-{}-{number}", std::process::id()));
        let line = peer.line.replace("FILE", &file.display().to_string());
        if line != peer.line {
            File::create(&file)?.set_len(u64::from(size) << 20)?;
        }
        let line = line.replace("SIZE", &size.to_string()).replace("BLKMQD", BLKMQD);
        let line = line.replace("RAM_DISK", RAM_DISK);
        let started = Server::start(&format!("peers-{number}"), &line);
        let running = match started {
            Ok(server) => Self { server, file },
            Err(error) => {
                let _ = fs::remove_file(&file);
                return Err(error);
            }
        };
        let fill = format!("--rw=write --bs=1m --iodepth=4 --size={size}m");
        run_fio(&running.server.uri(""), &running.server.path("fio"), &fill)?;
        Ok(running)
    }

    fn run(&self, load: Load, plan: Plan) -> Result<Run> {
        let Load { rw, depth, jobs } = load;
        let io = format!("--rw={rw} --bs=4k --iodepth={depth} --numjobs={jobs}");
        let time = format!("--size={}m --norandommap --time_based", plan.size);
        let options = format!("{io} {time} --runtime={}ms", plan.milliseconds);
        let before = self.server.ticks()?;
        let figures = run_fio(&self.server.uri(""), &self.server.path("fio"), &options)?;
        let time = (self.server.ticks()? - before) * TICK * 1000;
        Ok(Run { figures, cost: time / figures.ios.max(1) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Servers of their own memory have no file.
        let _ = fs::remove_file(&self.file);
    }
}

/// Medians of a server over the rounds.
struct Medians {
    iops: f64,
    /// Microseconds.
    p50: f64,
    p99: f64,
    cost: f64,
}

impl Medians {
    fn of(runs: &[Run]) -> Self {
        let of = |f: fn(&Run) -> f64| median(runs.iter().map(f).collect()).unwrap_or(0.0);
        let us = |f: fn(&Run) -> f64| of(f) / 1000.0;
        Self {
            iops: of(|run| run.figures.iops),
            p50: us(|run| run.figures.p50 as f64),
            p99: us(|run| run.figures.p99 as f64),
            cost: us(|run| run.cost as f64),
        }
    }
}

/// The first server's ratio to the best foreign one in each measure, and the rates of the workspace's other servers
/// relative to it.
fn ratios(peers: &[&Peer], medians: &[Medians]) -> String {
    let Some(ours) = medians.first() else { return String::new() };
    let all = || peers.iter().zip(medians).skip(1);
    let foreign: Vec<&Medians> =
        all().filter(|(peer, _)| peer.requires.is_some()).map(|(_, it)| it).collect();
    let mut text = String::new();
    if !foreign.is_empty() {
        let least =
            |f: fn(&Medians) -> f64| foreign.iter().map(|it| f(it)).fold(f64::MAX, f64::min);
        text.push_str(&format!(
            "\n{} beside the best of the others: {:.2} of its IOPS, {:.2} of its p50, {:.2} of its CPU time an I/O\n",
            peers[0].name,
            -ours.iops / least(|it| -it.iops),
            ours.p50 / least(|it| it.p50),
            ours.cost / least(|it| it.cost),
        ));
    }
    for (peer, it) in all().filter(|(peer, _)| peer.requires.is_none()) {
        text.push_str(&format!("{}: {:.3} of its IOPS\n", peer.name, it.iops / ours.iops));
    }
    text
}

/// The table of a workload, with its ratios.
fn table(load: Load, plan: Plan, peers: &[&Peer], runs: &[Vec<Run>]) -> String {
    let Load { rw, depth, jobs } = load;
    let Plan { milliseconds, size, rounds } = plan;
    let mut text = format!(
        "\n4 KiB {rw}, depth {depth}, {jobs} connections; {size} MiB, {milliseconds} ms each, median of {rounds}\n\n\
         | server | IOPS | p50, us | p99, us | server CPU, us an I/O |\n| --- | --- | --- | --- | --- |\n"
    );
    let medians: Vec<Medians> = runs.iter().map(|runs| Medians::of(runs)).collect();
    for (peer, Medians { iops, p50, p99, cost }) in peers.iter().zip(&medians) {
        let name = peer.name;
        text.push_str(&format!("| {name} | {iops:.0} | {p50:.0} | {p99:.0} | {cost:.1} |\n"));
    }
    text + &ratios(peers, &medians)
}

impl Plan {
    fn parse(args: &[String]) -> Result<Self> {
        let mut plan = Self { milliseconds: 1000, size: 1024, rounds: 5 };
        let mut args = args.iter().map(String::as_str);
        while let Some(arg) = args.next() {
            let mut value = || args.next().unwrap_or_default();
            let (target, value) = match arg {
                "--milliseconds" => (&mut plan.milliseconds, value()),
                "--size" => (&mut plan.size, value()),
                rounds => (&mut plan.rounds, rounds),
            };
            *target =
                value.parse().map_err(|_| format!("'{arg} {value}' is not understood\n{HELP}"))?;
        }
        let Self { milliseconds, size, rounds } = plan;
        if milliseconds == 0 || size < 16 || rounds == 0 {
            return Err(format!("from 1 millisecond, 16 MiB and 1 round on\n{HELP}").into());
        }
        Ok(plan)
    }
}

/// Returns whether a socket listens, without connecting to it.
///
/// # Errors
/// If the kernel does not provide a list of sockets.
pub(crate) fn listens(socket: &Path) -> Result<bool> {
    let path = socket.display().to_string();
    // Columns: address, references, protocol, flags (those of a listening socket), ...
    let listens = |line: &str| line.ends_with(&path) && line.contains(" 00010000 ");
    Ok(fs::read_to_string("/proc/net/unix")?.lines().any(listens))
}

/// An NBD server on a socket in its own folder; dropping it stops the server and removes the folder.
pub(crate) struct Server {
    child: Child,
    folder: PathBuf,
}

impl Server {
    /// The example on this device, under its default scheduler, as `cargo test --workspace` has built it.
    ///
    /// # Errors
    /// If it does not build or start.
    pub(crate) fn example(name: &str, device: &str) -> Result<Self> {
        Cmd::new("cargo build --profile test --workspace --example nbd_server").run()?;
        Self::start(name, &format!("{TESTED_NBD_SERVER} {device} SOCKET"))
    }

    /// `blkmqd`, already built, with one device.
    ///
    /// # Errors
    /// If it does not start.
    pub(crate) fn blkmq(name: &str, device: &str, scheduler: &str, more: &str) -> Result<Self> {
        let device = format!("--device={device} --scheduler={scheduler}");
        let line = format!("{BLKMQD} --listen=unix:SOCKET {device} {more}");
        let mut server = Self::start(name, &line)?;
        // The control socket appears after the main socket.
        while !server.path("socket.control").exists() {
            server.check(&line)?;
            Cmd::new("sleep 0.02").output()?;
        }
        Ok(server)
    }

    /// The server that `line` starts, with the path of the socket in place of `SOCKET`.
    ///
    /// # Errors
    /// If it does not start; the error has its own message.
    pub(crate) fn start(name: &str, line: &str) -> Result<Self> {
        Self::start_until(name, line, |socket| Ok(UnixStream::connect(socket).is_ok()))
    }

    /// As [`start`](Self::start), for a server that ends with its first client, so no test connection is made. The
    /// kernel's list of sockets shows when it listens.
    ///
    /// # Errors
    /// If it does not start; the error has its own message.
    pub(crate) fn start_unasked(name: &str, line: &str) -> Result<Self> {
        Self::start_until(name, line, listens)
    }

    fn start_until(
        name: &str,
        line: &str,
        is_ready: impl Fn(&Path) -> Result<bool>,
    ) -> Result<Self> {
        let folder = Self::folder(name);
        fs::create_dir_all(&folder)?;
        let socket = folder.join("socket");
        let cmd = Cmd::new(&line.replace("SOCKET", &socket.display().to_string()));
        println!("$ {cmd}");
        let child = cmd.start(File::create(folder.join("log"))?)?;
        let mut server = Self { child, folder };
        while !is_ready(&socket)? {
            server.check(line)?;
            Cmd::new("sleep 0.02").output()?;
        }
        Ok(server)
    }

    /// The folder of a server of this name.
    pub(crate) fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("blkmq-nbd-{name}-{}", std::process::id()))
    }

    /// An error with the server's own message if it has ended.
    fn check(&mut self, line: &str) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                let log = fs::read_to_string(self.path("log"))?;
                Err(format!("{line}: {status}: {}", log.trim()).into())
            }
        }
    }

    /// A path in its folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The URI of its export with this name.
    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.path("socket").display())
    }

    /// Its process number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The answer of `blkmqctl` about the server, which must be `blkmqd`.
    ///
    /// # Errors
    /// If it refuses.
    pub(crate) fn ctl(&self, words: &str) -> Result<Value> {
        let socket = self.path("socket.control");
        let line = format!("{BLKMQCTL} --control={} --json {words}", socket.display());
        Ok(serde_json::from_str(&Cmd::new(&line).output()?)?)
    }

    /// Sends SIGTERM to `blkmqd`. Returns its exit code, and its log.
    ///
    /// # Errors
    /// If it refuses, or does not end within half a minute.
    pub(crate) fn drain(mut self) -> Result<(Option<i32>, String)> {
        self.ctl("drain")?;
        let code = self.ended()?;
        Ok((code, fs::read_to_string(self.path("log"))?))
    }

    /// Ends a server by SIGTERM, so that it closes its devices; dropping kills it.
    ///
    /// # Errors
    /// If it does not end within half a minute.
    pub(crate) fn stop(mut self) -> Result<()> {
        Cmd::new(&format!("kill {}", self.pid())).output()?;
        self.ended().map(drop)
    }

    /// Its exit code, once it has ended.
    fn ended(&mut self) -> Result<Option<i32>> {
        for _ in 0..300 {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.code());
            }
            Cmd::new("sleep 0.1").output()?;
        }
        Err("the server does not end".into())
    }

    /// CPU time of all its threads so far, in ticks of the kernel's accounting: 10 ms each on Linux.
    ///
    /// # Errors
    /// If it has ended.
    pub(crate) fn ticks(&self) -> Result<u64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        Ok(ticks(&stat).ok_or("no times in the kernel's accounts")?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server may have ended already, and a leftover folder does no harm.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// User and system time in the line of `/proc/PID/stat`: the 14th and 15th fields. The second field is a name in
/// parentheses, which may contain any character.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut times = rest.split_whitespace().skip(11).map(str::parse::<u64>);
    Some(times.next()?.ok()? + times.next()?.ok()?)
}

/// Microseconds in a tick.
const TICK: u64 = 10_000;

/// `cargo xtask nbd [PAIRS]`
///
/// # Errors
/// If a server or fio does not run, or the example takes more than nbdkit.
pub(crate) fn nbd(args: &[String]) -> Result<()> {
    let pairs: u32 = args.first().map_or(Ok(7), |pairs| pairs.parse())?;
    if let Some(missing) = ["fio", "nbdkit"].iter().find(|program| !is_installed(program)) {
        return Err(format!("{missing} is not installed").into());
    }
    Cmd::new("cargo build --profile dist -p blkmq --example nbd_server").run()?;
    let ours = Server::start("ours", &format!("{NBD_SERVER} memory,size=1024 SOCKET"))?;
    let nbdkit = Server::start("nbdkit", "nbdkit -f -U SOCKET memory 1G")?;
    for server in [&ours, &nbdkit] {
        ios_of_fio(server, "--rw=write --bs=1m --iodepth=4 --size=1g")?;
    }
    let mut costs = [Vec::new(), Vec::new()];
    for _ in 0..pairs {
        for (server, costs) in [&ours, &nbdkit].into_iter().zip(&mut costs) {
            let before = server.ticks()?;
            let options = "--rw=randread --bs=4k --iodepth=32 --size=1g --norandommap \
                           --time_based --runtime=3 --gtod_reduce=1";
            let reads = ios_of_fio(server, options)?;
            costs.push((server.ticks()? - before) * TICK * 1000 / reads.max(1));
        }
    }
    let [ours, nbdkit] = costs.map(median_cost);
    println!("server CPU time for each read of 4 KiB, median of {pairs}, in nanoseconds:");
    println!("nbd_server {ours}, nbdkit memory {nbdkit}");
    if ours > nbdkit { Err("the example takes more than nbdkit".into()) } else { Ok(()) }
}

/// Runs fio and counts its I/Os.
fn ios_of_fio(server: &Server, options: &str) -> Result<u64> {
    let uri = server.uri("");
    let cmd = format!("fio --name=nbd --ioengine=nbd --uri={uri} --output-format=json {options}");
    let report = parse_json(&Cmd::new(&cmd).output()?)?;
    let job = &report["jobs"][0];
    let ios = |direction: &str| job[direction]["total_ios"].as_u64().unwrap_or(0);
    match (ios("read") + ios("write"), &job["error"]) {
        (ios, error) if ios > 0 && error == 0 => Ok(ios),
        (ios, error) => Err(format!("{cmd}: {ios} I/Os, error {error}").into()),
    }
}

fn median_cost(mut costs: Vec<u64>) -> u64 {
    costs.sort_unstable();
    println!("{costs:?}");
    costs.get(costs.len() / 2).copied().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(line: &str) -> Result<Plan> {
        Plan::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_read_and_refused() {
        let expected = Plan { milliseconds: 500, size: 64, rounds: 3 };
        assert_eq!(plan("--milliseconds 500 --size 64 3").unwrap(), expected);
        assert_eq!(plan("").unwrap(), Plan { milliseconds: 1000, size: 1024, rounds: 5 });
        for line in ["--rounds 3", "x", "--size", "0", "--size 1"] {
            assert!(plan(line).is_err(), "{line}");
        }
    }

    #[test]
    fn loads_are_chosen_by_their_beginning() {
        let chosen =
            |line: &str| chosen(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let names = |line| chosen(line).unwrap().0.iter().map(Load::name).collect::<Vec<_>>();
        assert_eq!(names("3 --load randread,32 --size 64"), ["randread,32,1", "randread,32,4"]);
        assert_eq!(chosen("3 --load randwrite --size 64").unwrap().1, ["3", "--size", "64"]);
        assert_eq!(names("").len(), 10);
        assert!(chosen("--load read").is_err() && chosen("--load").is_err());
    }

    #[test]
    fn the_table_has_medians() {
        let run = |iops, cost| Run { figures: Figures { iops, ..Figures::default() }, cost };
        let runs = [vec![run(10.0, 3000), run(30.0, 1000), run(20.0, 2000)]];
        let load = Load { rw: "randread", depth: 1, jobs: 4 };
        let plan = Plan { milliseconds: 1, size: 16, rounds: 3 };
        let text = table(load, plan, &[&PEERS[0]], &runs);
        assert!(text.ends_with("| blkmqd, none | 20 | 0 | 0 | 2.0 |\n"), "{text}");
    }

    #[test]
    fn ratios_are_to_the_best_of_the_others_by_each_measure() {
        let medians = |iops, p50, cost| Medians { iops, p50, p99: 0.0, cost };
        let peers = [&PEERS[0], &PEERS[1], &PEERS[2], &PEERS[4], &PEERS[7]];
        let all = [(300.0, 10.0, 2.0), (297.0, 11.0, 2.0), (200.0, 20.0, 4.0), (100.0, 8.0, 5.0)];
        let all = all.into_iter().chain([(330.0, 9.0, 1.0)]);
        let text = ratios(
            &peers,
            &all.map(|(iops, p50, cost)| medians(iops, p50, cost)).collect::<Vec<_>>(),
        );
        let expected = "\nblkmqd, none beside the best of the others: 1.50 of its IOPS, 1.25 of its p50, 0.50 of its CPU time an I/O\n\
                        blkmqd, mq-deadline: 0.990 of its IOPS\nram_disk, which only copies: 1.100 of its IOPS\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn times_are_behind_a_name_with_anything_in_it() {
        let stat = "12 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 300 44 0 0 20 0 1 0";
        assert_eq!(ticks(stat), Some(344));
        assert_eq!(ticks("12 (a) S 1 2"), None);
    }

    #[test]
    fn the_median_is_one_of_them() {
        assert_eq!(median_cost(vec![9, 1, 5]), 5);
        assert_eq!(median_cost(vec![]), u64::MAX);
    }
}
