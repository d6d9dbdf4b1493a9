//! A Linux kernel as a client: user-mode Linux mounts a virtual disk of `blkmqd`, and an export by its own driver of NBD.
//! The scripts are in `tests/guest`.

use super::Outcome;
use crate::Result;
use crate::nbd::Server;
use crate::shell::{BLKMQD, Cmd, is_installed, root};

/// The device that the guest's file systems are on.
const DEVICE: &str = "memory,size=64,discard=1";
/// One request at a time, a millisecond each: whatever waits, waits in the scheduler.
const SLOW: &str =
    "memory,size=64,irqmode=2,completion_nsec=1000000,submit_queues=1,hw_queue_depth=1";

/// A file system on a virtual disk.
pub(super) fn vhost() -> Result<Outcome> {
    if let Some(lack) = lack()? {
        return Ok(Outcome::Skipped(lack));
    }
    let server = machine("guest-vhost", DEVICE, "mq-deadline", "off")?;
    run("vhost", &server)?;
    Ok(Outcome::Passed)
}

/// A file system on an export of a server in the guest, by the kernel's client.
pub(super) fn nbd() -> Result<Outcome> {
    if let Some(lack) = lack()? {
        return Ok(Outcome::Skipped(lack));
    }
    Cmd::new("tests/guest/run.sh tests/guest/nbd.sh").env("PROGRAMS", BLKMQD).run()?;
    Ok(Outcome::Passed)
}

/// The priorities of the guest's processes, which the scheduler of the server sees if it is told to: then, and only then,
/// a reader of class idle waits for those of class realtime.
pub(super) fn priorities() -> Result<Outcome> {
    if let Some(lack) = lack()? {
        return Ok(Outcome::Skipped(lack));
    }
    for (of_guest, is_seen) in [("off", false), ("clamp", true), ("trust", true)] {
        let server = machine("guest-priorities", SLOW, "mq-deadline", of_guest)?;
        let output = run("priorities", &server)?;
        let time = |class: &str| -> Result<f64> {
            let line = output.lines().find_map(|line| line.strip_prefix(class));
            let number = line.and_then(|rest| rest.trim().strip_suffix(" ms")?.parse().ok());
            number.ok_or_else(|| format!("no time of {class} in {output}").into())
        };
        let (realtime, idle) = (time("class 1:")?, time("class 3:")?);
        println!("guest-ioprio={of_guest}: 100 reads realtime {realtime} ms, idle {idle} ms");
        // An idle reader that is given up has had six seconds at least.
        let differ = idle > 5.0 * realtime;
        if differ != is_seen || !is_seen && idle > 2.0 * realtime {
            let text = format!("guest-ioprio={of_guest}: realtime {realtime} ms, idle {idle} ms");
            return Err(text.into());
        }
    }
    Ok(Outcome::Passed)
}

/// A server with one virtual disk.
fn machine(name: &str, device: &str, scheduler: &str, ioprio: &str) -> Result<Server> {
    let disk = format!("--blk-file={device} --scheduler={scheduler} --guest-ioprio={ioprio}");
    let line = format!("{BLKMQD} vhost-user-blk --socket-path=SOCKET --num-queues=2 {disk}");
    Server::start_unasked(name, &line)
}

/// Runs a script in a guest with the disk of the server. Returns the lines of the guest.
fn run(script: &str, server: &Server) -> Result<String> {
    let socket = server.path("socket");
    let line = format!("tests/guest/run.sh tests/guest/{script}.sh {}", socket.display());
    let (passed, output) = Cmd::new(&line).attempt()?;
    println!("{}", output.trim());
    if passed { Ok(output) } else { Err(format!("{script} failed in the guest").into()) }
}

/// The reason why no guest can run here, if there is one. Fetches the kernel if it is missing.
fn lack() -> Result<Option<String>> {
    if let Some(missing) = ["cpio", "nbd-client", "busybox"].into_iter().find(|it| !has(it)) {
        return Ok(Some(format!("{missing} is not installed")));
    }
    if !root().join("target/guest/uml/usr/bin/linux.uml").exists() {
        let (fetched, said) = Cmd::new("tests/guest/fetch.sh").attempt()?;
        if !fetched {
            return Ok(Some(format!("the kernel cannot be fetched: {}", said.trim())));
        }
    }
    // An empty script: a machine may forbid what a kernel as a process needs.
    let (starts, said) = Cmd::new("tests/guest/run.sh /dev/null").attempt()?;
    let last = said.lines().last().unwrap_or("no output").to_owned();
    Ok((!starts).then(|| format!("user-mode Linux does not start here: {last}")))
}

/// Returns whether a program is there; busybox has no --version.
fn has(program: &str) -> bool {
    is_installed(program)
        || Cmd::new(&format!("which {program}")).quiet_code().is_ok_and(|it| it == Some(0))
}
