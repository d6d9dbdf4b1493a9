//! `serve-peers`: the throughput, the latency and the processor time of `blkmq serve` and of other NBD servers.
//!
//! Each serves its memory or a file on tmpfs over a unix socket to the same fio. In every round all servers have each
//! workload in turn; the table has medians over the rounds. A server that is not installed is skipped by name. The last
//! row is the example of `blkmq-nbd`, which only copies: what fio on the same processors can take.

use super::fio::{self, Figures, median};
use crate::Result;
use crate::nbd::{Server, TICK};
use crate::shell::{BLKMQ, RAM_DISK, is_installed};
use std::fs::{self, File};
use std::path::PathBuf;

pub(crate) const HELP: &str =
    "usage: cargo xtask serve-peers [--milliseconds N] [--size MIB] [ROUNDS]

  --milliseconds N   each workload runs for so long (1000)
  --size MIB         the size of each disk (1024)
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
        name: "blkmq serve, none",
        requires: None,
        line: "BLKMQ serve --listen=unix:SOCKET --device=memory,size=SIZE --scheduler=none --export= --log=warn",
    },
    Peer {
        name: "blkmq serve, mq-deadline",
        requires: None,
        line: "BLKMQ serve --listen=unix:SOCKET --device=memory,size=SIZE --scheduler=mq-deadline --export= --log=warn",
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
    Peer { name: "ram_disk, which only copies", requires: None, line: "RAM_DISK SOCKET SIZE" },
];

/// A load for fio: direction, depth, connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Load {
    rw: &'static str,
    depth: u32,
    jobs: u32,
}

/// The options of the command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Plan {
    milliseconds: u32,
    /// MiB.
    size: u32,
    rounds: u32,
}

/// One run.
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
pub(crate) fn main(args: &[String]) -> Result<()> {
    if args.iter().any(|arg| arg == "--help") {
        println!("{HELP}");
        return Ok(());
    }
    let plan = Plan::parse(args)?;
    crate::shell::build()?;
    measure(plan, &loads())
}

/// The smallest run that starts every server, so that the command does not rot.
///
/// # Errors
/// As [`main`].
pub(crate) fn test_size() -> Result<()> {
    let plan = Plan { milliseconds: 200, size: 16, rounds: 1 };
    measure(plan, &[Load { rw: "randwrite", depth: 32, jobs: 2 }])
}

/// Every combination, the lightest first.
fn loads() -> Vec<Load> {
    let mut all = Vec::new();
    for rw in ["randread", "randwrite"] {
        for (depth, jobs) in [(1, 1), (1, 4), (32, 1), (32, 4)] {
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
        let line = line.replace("SIZE", &size.to_string()).replace("BLKMQ", BLKMQ);
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
        fio::run(&running.server.uri(""), &running.server.path("fio"), &fill)?;
        Ok(running)
    }

    fn run(&self, load: Load, plan: Plan) -> Result<Run> {
        let Load { rw, depth, jobs } = load;
        let io = format!("--rw={rw} --bs=4k --iodepth={depth} --numjobs={jobs}");
        let time = format!("--size={}m --norandommap --time_based", plan.size);
        let options = format!("{io} {time} --runtime={}ms", plan.milliseconds);
        let before = self.server.ticks()?;
        let figures = fio::run(&self.server.uri(""), &self.server.path("fio"), &options)?;
        let time = (self.server.ticks()? - before) * TICK * 1000;
        Ok(Run { figures, cost: time / figures.ios.max(1) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Those that serve their own memory have none.
        let _ = fs::remove_file(&self.file);
    }
}

/// The table of a workload.
fn table(load: Load, plan: Plan, peers: &[&Peer], runs: &[Vec<Run>]) -> String {
    let Load { rw, depth, jobs } = load;
    let Plan { milliseconds, size, rounds } = plan;
    let mut text = format!(
        "\n4 KiB {rw}, depth {depth}, {jobs} connections; {size} MiB, {milliseconds} ms each, median of {rounds}\n\n\
         | server | IOPS | p50, us | p99, us | server CPU, us an I/O |\n| --- | --- | --- | --- | --- |\n"
    );
    for (peer, runs) in peers.iter().zip(runs) {
        let of = |f: fn(&Run) -> f64| median(runs.iter().map(f).collect()).unwrap_or(0.0);
        let us = |f: fn(&Run) -> f64| of(f) / 1000.0;
        text.push_str(&format!(
            "| {} | {:.0} | {:.0} | {:.0} | {:.1} |\n",
            peer.name,
            of(|run| run.figures.iops),
            us(|run| run.figures.p50 as f64),
            us(|run| run.figures.p99 as f64),
            us(|run| run.cost as f64),
        ));
    }
    text
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
    fn the_table_has_medians() {
        let run = |iops, cost| Run { figures: Figures { iops, ..Figures::default() }, cost };
        let runs = [vec![run(10.0, 3000), run(30.0, 1000), run(20.0, 2000)]];
        let load = Load { rw: "randread", depth: 1, jobs: 4 };
        let plan = Plan { milliseconds: 1, size: 16, rounds: 3 };
        let text = table(load, plan, &[&PEERS[0]], &runs);
        assert!(text.ends_with("| blkmq serve, none | 20 | 0 | 0 | 2.0 |\n"), "{text}");
    }
}
