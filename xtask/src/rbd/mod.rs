//! Measurements of images on a Ceph cluster of this host, each a verb: the cost of an I/O, and tenants beside each
//! other.
//!
//! Checks that pass or fail are in `interop/rbd.rs`. The cluster has one OSD on a file, which takes most of the
//! processor time: the figures allow comparisons within a run, and say nothing about a cluster of several machines.

pub(crate) mod costs;
pub(crate) mod gateway;
pub(crate) mod table;
pub(crate) mod tenants;

use crate::Result;
use crate::ceph::{Cluster, missing};
use crate::fio::{Figures, Fio, pause};
use crate::shell::{Cmd, is_installed};

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
