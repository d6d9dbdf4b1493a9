//! Images that go away under load: their pool is deleted, or their client is evicted and they are.

use super::{VERIFIED, bench, ended};
use crate::Result;
use crate::ceph::Cluster;
use crate::fio::pause;
use crate::nbd::Server;
use serde_json::Value;
use std::fs::{self, File};

/// Tries, five in a second, in which the cluster forgets a client that is on its blocklist.
const TRIES: u32 = 150;

/// The pool of an image under load is deleted: that run ends with typed errors, and a run on another image is not
/// affected.
pub(super) fn pool(cluster: &Cluster) -> Result<()> {
    cluster.cmd("ceph osd pool create doomed 8").output()?;
    cluster.cmd("rbd pool init doomed").output()?;
    cluster.create("doomed/d", 64)?;
    let load =
        "--rw=randwrite --bs=4k --iodepth=16 --scheduler=none --runtime=60 --time_based --size=32m";
    let log = cluster.path("doomed");
    let mut doomed = bench(&cluster.device("doomed/d"), load).start(File::create(&log)?)?;
    let sound = format!("{VERIFIED} --scheduler=none");
    let mut sound =
        bench(&cluster.device("rbd/t"), &sound).start(File::create(cluster.path("sound"))?)?;
    pause(2.0)?;
    let delete = "ceph osd pool rm doomed doomed --yes-i-really-really-mean-it";
    cluster.cmd(delete).output()?;
    let (code, other) = (ended(&mut doomed)?, ended(&mut sound)?);
    let said = fs::read_to_string(&log)?;
    // ENOENT, or EPERM if the OSD learns of it first: a user has no rights in a pool that does not exist.
    let is_typed = said
        .lines()
        .any(|line| ["errno 1", "errno 2"].iter().any(|end| line.trim_end().ends_with(end)));
    if code != Some(1) || !is_typed {
        return Err(format!("a run on a deleted image ended with {code:?}: {said}").into());
    }
    if other != Some(0) {
        return Err(format!("the loss of an image ended a run on another with {other:?}").into());
    }
    let refusal =
        bench(&cluster.device("doomed/d"), load).output().expect_err("deleted").to_string();
    if refusal.contains("the cluster has no pool 'doomed'") {
        println!("a deleted pool gave errors of its own, and another image went on");
        Ok(())
    } else {
        Err(refusal.into())
    }
}

/// An image of a server is deleted under load, after its client was put on the cluster's blocklist: the requests to it
/// end with errors, those to another image of the same server do not, and the server ends when it is asked to.
pub(super) fn image(cluster: &Cluster) -> Result<()> {
    cluster.create("rbd/d", 64)?;
    let [doomed, sound] = ["rbd/d", "rbd/t"].map(|image| cluster.device(image));
    let more = format!("--device={sound} --export=doomed,device=1 --export=sound,device=2");
    let server = Server::blkmq("rbd-deleted", &doomed, "mq-deadline", &more)?;
    let delete = cluster.cmd("rbd rm --no-progress rbd/d");
    if delete.output().is_ok() {
        return Err("an image in use was deleted".into());
    }
    let load =
        "--rw=randwrite --bs=4k --iodepth=16 --scheduler=none --runtime=60 --time_based --size=32m";
    let log = cluster.path("doomed");
    let start = |export: &str, options: &str, log| bench(&server.uri(export), options).start(log);
    let mut doomed = start("doomed", load, File::create(&log)?)?;
    let sound = format!("{VERIFIED} --scheduler=none");
    let mut sound = start("sound", &sound, File::create(cluster.path("sound"))?)?;
    pause(1.0)?;
    evict(cluster, "rbd/d")?;
    let (code, other) = (ended(&mut doomed)?, ended(&mut sound)?);
    let said = fs::read_to_string(&log)?;
    if code != Some(1) || !said.contains("errno 5") {
        return Err(format!("a run on a lost image ended with {code:?}: {said}").into());
    }
    if other != Some(0) {
        return Err(format!("the loss of an image ended a run on another with {other:?}").into());
    }
    gone(|| delete.output().map(drop))?;
    let (code, said) = server.drain()?;
    if code != Some(0) {
        return Err(format!("the server ended with {code:?}: {said}").into());
    }
    let refusal = bench(&cluster.device("rbd/d"), load).output().expect_err("deleted").to_string();
    if refusal.contains("there is no image 'rbd/d'") {
        println!(
            "a deleted image gave errors of its own, and another one of the same server went on"
        );
        Ok(())
    } else {
        Err(refusal.into())
    }
}

/// Puts the clients that watch an image on the blocklist.
fn evict(cluster: &Cluster, image: &str) -> Result<()> {
    let status = cluster.cmd(&format!("rbd status --format=json {image}")).output()?;
    let status: Value = serde_json::from_str(&status)?;
    let watchers = status["watchers"].as_array().map_or(&[][..], Vec::as_slice);
    let addresses = Vec::from_iter(watchers.iter().filter_map(|it| it["address"].as_str()));
    if addresses.is_empty() {
        return Err(format!("{image} has no watchers: {status}").into());
    }
    for address in addresses {
        cluster.cmd(&format!("ceph osd blocklist add {address}")).output()?;
    }
    Ok(())
}

/// Tries until the cluster has forgotten its client.
fn gone(delete: impl Fn() -> Result<()>) -> Result<()> {
    for _ in 1..TRIES {
        if delete().is_ok() {
            return Ok(());
        }
        pause(0.2)?;
    }
    delete()
}
