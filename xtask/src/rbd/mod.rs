//! Measurements of images on a Ceph cluster of this host, each a verb: here the cost of an I/O, in `tenants.rs` tenants beside
//! each other.
//!
//! `rbd-costs` compares the rate and the processor time of an I/O to an image, of `blkmq bench` under `none` and of fio's own
//! engine, alternating. Both go through the same librbd, without its cache, and librbd's threads take most of the time. The
//! times are the kernel's, of whole programs, minus those of a run of the same program with a single I/O, so that the cost of
//! opening an image is excluded.
//!
//! Checks that pass or fail are in `interop/rbd.rs`. The cluster has one OSD on a file, which takes most of the
//! processor time: the figures allow comparisons within a run, and say nothing about a cluster of several machines.

pub(crate) mod tenants;

use crate::Result;
use crate::ceph::{Cluster, missing};
use crate::fio::{Figures, Fio, median, pause};
use crate::measurement::Rounds;
use crate::shell::{BLKMQ, Cmd, build, cpu_of_programs, is_installed, parse_json};

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
}
