//! Ceph images as devices, on a cluster of this host: blkmq reads back its writes, and Ceph's and QEMU's own clients
//! find the same bytes; also while daemons of the cluster are killed, and when images are deleted.

use super::{Folder, Outcome};
use crate::Result;
use crate::measurement::pause;
use crate::rbd::{Cluster, missing};
use crate::serve::Server;
use crate::shell::{BLKMQ, Cmd, is_installed};
use serde_json::Value;
use std::fs::{self, File};
use std::process::Child;

/// Every scheduler there is.
const SCHEDULERS: &str = "none,mq-deadline,kyber,bfq,mclock";
/// Mixed reads and writes of several sizes, with every block checked.
const VERIFIED: &str =
    "--rw=randrw --bssplit=4k/60:16k/30:128k/10 --size=16m --iodepth=32 --verify=crc32c";
/// Seconds without a daemon in the check.
const GAP: u32 = 4;
/// Seconds of load before a daemon is killed.
const BEFORE: u32 = 2;
/// I/Os in a second, of 4 KiB.
const RATE: u32 = 400;
/// Seconds that a run may take to end after the last event.
const LIMIT: u32 = 120;

fn bench(device: &str, options: &str) -> Cmd {
    Cmd::new(&format!("{BLKMQ} bench --name=rbd {options}")).arg(format!("--device={device}"))
}

/// Every block has the last written data, under each scheduler, with one hardware queue and with four; and other
/// clients of the cluster read the data that was written through an export.
pub(super) fn verified() -> Result<Outcome> {
    if let Some(program) = missing() {
        return Ok(Outcome::Skipped(format!("{program} is not installed")));
    }
    without_librbd()?;
    let cluster = Cluster::start("verified")?;
    cluster.create("rbd/t", 64)?;
    let device = cluster.device("rbd/t");
    bench(&device, &format!("{VERIFIED} --scheduler={SCHEDULERS}")).output()?;
    let queues = format!("{device},hw_queues=4,cache=writeback");
    bench(
        &queues,
        &format!("{VERIFIED} --scheduler=none,mq-deadline --numjobs=2 --offset_increment=16m"),
    )
    .output()?;
    exported(&cluster)
}

/// A machine without librbd gets an error that names the package, and everything else works there.
fn without_librbd() -> Result<()> {
    let folder = Folder::new("rbd-library")?;
    // Not a library: the loader opens the first file of this name.
    File::create(folder.path().join("librbd.so.1"))?;
    let alone = |cmd: Cmd| cmd.env("LD_LIBRARY_PATH", folder.path().display().to_string());
    alone(bench("memory,size=16", "--rw=randwrite --size=4m")).output()?;
    let refusal = match alone(bench("rbd:rbd/t", "--runtime=1")).output() {
        Ok(_) => return Err("an image was opened without librbd".into()),
        Err(error) => error.to_string(),
    };
    if refusal.contains("package librbd1") {
        Ok(())
    } else {
        Err(format!("without librbd: {refusal}").into())
    }
}

/// A file copied to our export of an image is what `rbd export` and QEMU's own client read.
fn exported(cluster: &Cluster) -> Result<Outcome> {
    for program in ["nbdcopy", "qemu-img"] {
        if !is_installed(program) {
            return Ok(Outcome::Skipped(format!("{program} is not installed")));
        }
    }
    let server = Server::blkmq("rbd", &cluster.device("rbd/t"), "mq-deadline", "--export=")?;
    let (written, read) = (cluster.path("written"), cluster.path("read"));
    Cmd::new(&format!("dd if=/dev/urandom of={} bs=1M count=64", written.display()))
        .quiet_code()?;
    Cmd::new(&format!("nbdcopy {} {}", written.display(), server.uri(""))).output()?;
    // The second MiB is zeroes, the third is discarded, and a stretch of the fourth has a pattern.
    let qemu =
        |command: &str| Cmd::new("qemu-io -f raw").arg("-c").arg(command).arg(server.uri(""));
    for command in ["write -z 1M 1M", "discard 2M 1M", "write -P 90 3M 128k", "flush"] {
        qemu(command).output()?;
    }
    let image = format!("rbd:rbd/t:conf={}", cluster.path("ceph.conf").display());
    let compared = Cmd::new(&format!("qemu-img compare -f raw -F raw {} {image}", server.uri("")));
    let by_qemu = match compared.output() {
        Err(error) if lacks_rbd(&error.to_string()) => false,
        compared => compared.map(|_| true)?,
    };
    cluster.cmd(&format!("rbd export --no-progress rbd/t {}", read.display())).output()?;
    let (mut written, read) = (fs::read(written)?, fs::read(read)?);
    written[1 << 20..3 << 20].fill(0);
    written[3 << 20..(3 << 20) + (128 << 10)].fill(90);
    if written != read {
        let at = written.iter().zip(&read).position(|(a, b)| a != b);
        return Err(format!("rbd export has other bytes, first at {at:?}").into());
    }
    println!("rbd export reads what was written through the export");
    Ok(if by_qemu {
        Outcome::Passed
    } else {
        Outcome::Skipped("qemu-block-extra is not installed; rbd export was compared".into())
    })
}

/// Returns whether QEMU reports that its client of images is missing. The message differs between versions.
fn lacks_rbd(error: &str) -> bool {
    error.contains("Unknown protocol 'rbd'") || error.contains("Unable to load module rbd")
}

/// The daemons of [`kills`], for a short while.
pub(super) fn killed() -> Result<Outcome> {
    if let Some(program) = missing() {
        return Ok(Outcome::Skipped(format!("{program} is not installed")));
    }
    kill_all(GAP).map(|()| Outcome::Passed)
}

/// `cargo xtask rbd-kills [SECONDS]`: a daemon is down for this long, 20 s by default.
///
/// # Errors
/// If an I/O fails, or a block does not have the last written data.
pub(crate) fn kills(args: &[String]) -> Result<()> {
    let seconds = match args {
        [] => 20,
        [seconds] => seconds.parse().map_err(|_| format!("'{seconds}' is no number of seconds"))?,
        _ => return Err("usage: cargo xtask rbd-kills [SECONDS]".into()),
    };
    if let Some(program) = missing() {
        return Err(format!("{program} is not installed").into());
    }
    crate::shell::build()?;
    kill_all(seconds)
}

/// The OSD and the monitor are killed under verified load and restarted: nothing is lost, and no I/O fails. I/O to an
/// image that is deleted, or whose pool is, ends with errors, without affecting other images.
fn kill_all(gap: u32) -> Result<()> {
    let mut cluster = Cluster::start("killed")?;
    cluster.create("rbd/t", 256)?;
    // A load that still runs when the monitor is back: a stalled load catches up with its time.
    let io_size = RATE * 4 * (2 * (BEFORE + gap) + 8);
    let options = format!(
        "--rw=randwrite --bs=4k --size=128m --iodepth=16 --rate_iops={RATE} --io_size={io_size}k --verify=crc32c \
         --scheduler=mq-deadline"
    );
    let log = cluster.path("bench");
    let mut run = bench(&cluster.device("rbd/t"), &options).start(File::create(&log)?)?;
    let (before, away) = (f64::from(BEFORE), f64::from(gap));
    pause(before)?;
    cluster.kill_osd();
    pause(away)?;
    goes_on(&mut run, "the OSD was away")?;
    cluster.start_osd()?;
    pause(before)?;
    cluster.kill_mon();
    pause(away)?;
    goes_on(&mut run, "the monitor was away")?;
    cluster.start_mon()?;
    let code = ended(&mut run)?;
    let said = fs::read_to_string(&log)?;
    if code != Some(0) {
        return Err(format!("the run ended with {code:?}: {said}").into());
    }
    println!(
        "{gap} s without the OSD and without the monitor; every block is what was written last"
    );
    pool(&cluster)?;
    image(&cluster)
}

/// An error if the run has ended.
fn goes_on(run: &mut Child, when: &str) -> Result<()> {
    match run.try_wait()? {
        None => Ok(()),
        Some(status) => Err(format!("the run ended while {when}: {status}").into()),
    }
}

/// Waits for the end; after [`LIMIT`] kills the run.
fn ended(run: &mut Child) -> Result<Option<i32>> {
    for _ in 0..LIMIT * 5 {
        if let Some(status) = run.try_wait()? {
            return Ok(status.code());
        }
        pause(0.2)?;
    }
    run.kill()?;
    run.wait()?;
    Err(format!("the run did not end within {LIMIT} s").into())
}

/// Tries, five in a second, in which the cluster forgets a client that is on its blocklist.
const TRIES: u32 = 150;

/// The pool of an image under load is deleted: that run ends with typed errors, and a run on another image is not
/// affected.
fn pool(cluster: &Cluster) -> Result<()> {
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
fn image(cluster: &Cluster) -> Result<()> {
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
