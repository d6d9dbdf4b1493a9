//! Contents of real storage: blkmq reads back the data that it writes to a file or block device, bypassing the page
//! cache, and to exports of real NBD servers, through filters that delay, limit and fail, over TLS, and while the
//! server is killed.

use super::serve::certificates;
use super::{Folder, Outcome};
use crate::Result;
use crate::measurement::pause;
use crate::serve::Server;
use crate::shell::{BLKMQ, BLKMQD, Cmd, is_installed, parse_json, passed_tests, target_dir};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// MiB.
const SIZE: u32 = 64;

/// A file under the build folder, removed when this is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Result<Self> {
        let folder = target_dir().join("interop");
        fs::create_dir_all(&folder)?;
        Ok(Self(folder.join(name)))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A leftover file is overwritten next time.
        let _ = fs::remove_file(&self.0);
    }
}

/// A loop device around a file; released when this is dropped.
struct Loop {
    device: String,
    _file: Scratch,
}

impl Loop {
    /// A new loop device, or the reason why none can be created: it needs root and the driver.
    fn new(name: &str) -> Result<std::result::Result<Self, String>> {
        let file = Scratch::new(name)?;
        File::create(&file.0)?.set_len(u64::from(SIZE) << 20)?;
        let made = Cmd::new(&format!("losetup --find --show {}", file.0.display())).output();
        Ok(match made {
            Ok(device) => Ok(Self { device: device.trim().to_owned(), _file: file }),
            Err(why) => Err(format!("no loop device can be made: {why}")),
        })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Cmd::new(&format!("losetup -d {}", self.device)).output();
    }
}

/// Random reads and writes under each scheduler, with each block checked, on a file that is created here.
pub(super) fn contents() -> Result<Outcome> {
    let file = Scratch::new("contents")?;
    verify(&file.0, &format!(",size={SIZE}"))
}

/// Like [`contents`], but on a block device.
pub(super) fn loop_contents() -> Result<Outcome> {
    match Loop::new("loop")? {
        Ok(made) => verify(Path::new(&made.device), ""),
        Err(why) => Ok(Outcome::Skipped(why)),
    }
}

/// The tests that `cargo test` leaves out because they make a loop device.
pub(super) fn loop_tests() -> Result<Outcome> {
    // Only to find out whether the tests can run.
    if let Err(why) = Loop::new("probe")? {
        return Ok(Outcome::Skipped(why));
    }
    let tests =
        Cmd::new("cargo test -p blkmq-uring --test all -- contents:: --ignored --show-output");
    println!("$ {tests}");
    let output = tests.output()?;
    print!("{output}");
    ran(&output)
}

/// The outcome of the tests that printed this: without io_uring, they print so and return.
fn ran(output: &str) -> Result<Outcome> {
    if let Some(skipped) = output.lines().find(|line| line.starts_with("skipped ")) {
        return Ok(Outcome::Skipped(skipped.to_owned()));
    }
    match output.lines().find_map(passed_tests) {
        None | Some(0) => Err("no test ran".into()),
        Some(_) => Ok(Outcome::Passed),
    }
}

fn verify(path: &Path, parameters: &str) -> Result<Outcome> {
    let list = Cmd::new(&format!("{BLKMQ} doc")).output()?;
    let schedulers = list.lines().skip_while(|line| !line.starts_with("Schedulers"));
    let schedulers = schedulers.skip(1).take_while(|line| !line.trim().is_empty());
    let names: Vec<&str> = schedulers.filter_map(|line| line.split_whitespace().next()).collect();
    for scheduler in names {
        let command = format!(
            "{BLKMQ} bench --device uring:{}{parameters} --scheduler {scheduler} --threads 1 --rw=randrw --bs=4k \
             --iodepth=32 --size={SIZE}m --verify=crc32c --output-format=json",
            path.display()
        );
        match Cmd::new(&command).output() {
            Ok(output) => {
                let report = parse_json(&output)?;
                let verify = &report["jobs"][0]["blkmq"]["verify"];
                let errors = verify["errors"].as_u64();
                if errors != Some(0) || verify["verified"].as_u64().unwrap_or(0) == 0 {
                    return Err(format!("{scheduler} on {}: {verify}", path.display()).into());
                }
            }
            Err(why) if is_forbidden(&why.to_string()) => {
                return Ok(Outcome::Skipped(why.to_string()));
            }
            Err(why) => return Err(why),
        }
    }
    Ok(Outcome::Passed)
}

/// Returns whether `error` means that io_uring is forbidden here, as in many containers, or too old.
fn is_forbidden(error: &str) -> bool {
    error.contains("io_uring is not available here")
        || error.contains("the kernel's io_uring lacks")
}

/// Kills of each server in the check.
const KILLS: u32 = 34;
/// Seconds that a run may take in addition to the kills.
const LIMIT: u32 = 60;
const SCHEDULERS: &str = "none,mq-deadline,kyber,bfq";

/// A file in `folder` of this many MiB, without data.
fn disk(folder: &Folder, mib: u64) -> Result<String> {
    let disk = folder.path().join("disk");
    File::create(&disk)?.set_len(mib << 20)?;
    Ok(disk.display().to_string())
}

/// The command line of a run on `device`.
fn bench(device: &str, options: &str) -> Cmd {
    Cmd::new(&format!("{BLKMQ} bench --name=remote {options}")).arg(format!("--device={device}"))
}

/// Mixed reads and writes of several sizes, with every block checked.
const VERIFIED: &str =
    "--rw=randrw --bssplit=4k/60:16k/30:128k/10 --size=32m --iodepth=32 --verify=crc32c";

/// Every block has the last written data, under each scheduler, at qemu-nbd, nbdkit and `blkmqd`, over one connection,
/// and over four if the server supports several.
pub(super) fn verified() -> Result<Outcome> {
    let folder = Folder::new("remote")?;
    let disk = disk(&folder, 64)?;
    let started = |line: &str| Server::start("remote", line);
    for (program, line, options) in [
        ("qemu-nbd", format!("qemu-nbd -t -e 8 -f raw -k SOCKET {disk}"), ",hw_queues=4"),
        ("nbdkit", format!("nbdkit -f -U SOCKET file {disk}"), ",hw_queues=4"),
        ("nbdkit", "nbdkit -f -U SOCKET memory 64M".to_owned(), ""),
    ] {
        if !is_installed(program) {
            return Ok(Outcome::Skipped(format!("{program} is not installed")));
        }
        let server = started(&line)?;
        let device = format!("{}{options}", server.uri(""));
        bench(&device, &format!("{VERIFIED} --scheduler={SCHEDULERS}")).output()?;
    }
    let server = Server::blkmq("remote", "memory,size=64,discard=1", "mq-deadline", "--export=")?;
    let device = format!("{},hw_queues=4", server.uri(""));
    bench(&device, &format!("{VERIFIED} --scheduler={SCHEDULERS}")).output()?;
    Ok(Outcome::Passed)
}

/// Servers that end with their first client, or serve one client at a time, work like others: the connection that opens
/// the device also carries the I/O. The first run of each must find the bytes of the second.
pub(super) fn single_client() -> Result<Outcome> {
    let folder = Folder::new("remote-single")?;
    let disk = disk(&folder, 16)?;
    let config = folder.path().join("nbd-server.conf");
    let mut skipped = Vec::new();
    for (program, line, export) in [
        ("qemu-nbd", format!("qemu-nbd -f raw -k SOCKET {disk}"), ""),
        ("nbdkit", format!("nbdkit -f -U SOCKET --filter=exitlast file {disk}"), ""),
        ("nbdkit", format!("nbdkit -f -U SOCKET --filter=limit file {disk} limit=1"), ""),
        ("nbd-server", format!("nbd-server -d -C {}", config.display()), "disk"),
    ] {
        if !is_installed(program) {
            println!("{program}: SKIPPED, it is not installed");
            skipped.push(program);
            continue;
        }
        for rw in ["write --verify=crc32c --do_verify=0", "read --verify=crc32c"] {
            if program == "nbd-server" {
                // It reads the path of its socket from a file.
                let socket = Server::folder("single").join("socket");
                let (socket, generic) = (socket.display(), "[generic]\nunixsock = ");
                let export = format!("[disk]\nexportname = {disk}\nmaxconnections = 1\n");
                fs::write(&config, format!("{generic}{socket}\n{export}"))?;
            }
            let server = Server::start_unasked("single", &line)?;
            let options = format!("--scheduler=none --bs=64k --size=16m --iodepth=8 --rw={rw}");
            bench(&server.uri(export), &options).output()?;
        }
    }
    match skipped.as_slice() {
        [_, _, _, _] => Ok(Outcome::Skipped("no such server is installed".into())),
        _ => Ok(Outcome::Passed),
    }
}

/// A server that delays, or limits its rate, gives the same contents; a server that fails gives its own error, and exit
/// code 1.
pub(super) fn filters() -> Result<Outcome> {
    let memory = |filter: &str, parameters: &str| {
        Server::start(
            "filters",
            &format!("nbdkit -f -U SOCKET --filter={filter} memory 64M {parameters}"),
        )
    };
    for (filter, parameters) in [
        ("delay", "rdelay=1ms wdelay=2ms"),
        ("rate", "rate=400M"),
        ("limit", "limit=1"),
        ("nozero", ""),
        ("fua", "fuamode=emulate"),
    ] {
        let server = memory(filter, parameters)?;
        bench(&server.uri(""), &format!("{VERIFIED} --scheduler=mq-deadline")).output()?;
    }
    let server = memory("error", "error=ENOSPC error-pwrite-rate=5%")?;
    let options = "--rw=randwrite --bs=4k --size=8m --iodepth=8 --scheduler=none";
    let cmd = bench(&server.uri(""), options);
    match cmd.quiet_code()? {
        Some(1) => Ok(Outcome::Passed),
        code => Err(format!("{cmd}: exit code {code:?} where writes fail").into()),
    }
}

/// A run over TLS, with certificates for both sides; without them, the refusal names what is required.
pub(super) fn tls() -> Result<Outcome> {
    // openssl does not accept --version.
    if Cmd::new("openssl version").quiet_code().is_err() {
        return Ok(Outcome::Skipped("openssl is not installed".into()));
    }
    let folder = Folder::new("remote-tls")?;
    certificates(folder.path())?;
    let side = |name: &str| folder.path().join(name).display().to_string();
    let more = format!("--export= --tls-certificates={}", side("server"));
    let server = Server::blkmq("remote-tls", "memory,size=64,discard=1", "none", &more)?;
    let plain = server.uri("");
    let uri = format!(
        "{}&tls-certificates={}&tls-hostname=localhost",
        plain.replace("nbd+", "nbds+"),
        side("client")
    );
    // The laboratory has no TLS: a second server is the client of the first one.
    for scheduler in ["none", "bfq"] {
        let gateway = Server::blkmq("remote-tls-gateway", &uri, scheduler, "--export=")?;
        bench(&gateway.uri(""), &format!("{VERIFIED} --scheduler=none")).output()?;
    }
    if bench(&uri, VERIFIED).quiet_code()? != Some(2) {
        return Err("a program without TLS opened a device inside TLS".into());
    }
    if bench(&plain, VERIFIED).quiet_code()? != Some(2) {
        return Err("a device without TLS was opened".into());
    }
    Ok(Outcome::Passed)
}

/// The servers of [`kills`], a short while.
pub(super) fn killed() -> Result<Outcome> {
    kill_all(KILLS).map(|()| Outcome::Passed)
}

/// `cargo xtask nbd-kills [TIMES]`: each server is killed this often, 100 times by default.
///
/// # Errors
/// If an I/O fails, or a block does not have the last written data.
pub(crate) fn kills(args: &[String]) -> Result<()> {
    let times = match args {
        [] => 100,
        [times] => times.parse().map_err(|_| format!("'{times}' is no number of kills"))?,
        _ => return Err("usage: cargo xtask nbd-kills [TIMES]".into()),
    };
    crate::shell::build()?;
    kill_all(times)
}

/// nbdkit, qemu-nbd and our own server are repeatedly killed under load, and restarted on the same file: no I/O fails,
/// and every block has the last written data.
fn kill_all(times: u32) -> Result<()> {
    let folder = Folder::new("remote-killed")?;
    for (program, line) in [
        ("nbdkit", "nbdkit -f -U SOCKET file DISK".to_owned()),
        ("qemu-nbd", "qemu-nbd -t -e 8 -f raw -k SOCKET DISK".to_owned()),
        (
            "blkmqd",
            format!("{BLKMQD} --listen=unix:SOCKET --device=uring:DISK --export= --log=error"),
        ),
    ] {
        if program != "blkmqd" && !is_installed(program) {
            println!("{program}: SKIPPED, it is not installed");
            continue;
        }
        // A kill has a fifth of a second of the load's time.
        let mib = u64::from(times).max(16);
        let line = line.replace("DISK", &disk(&folder, mib)?);
        let (mut kills, mut runs) = (0, 0);
        while kills < times {
            let start = || Server::start("remote-killed", &line);
            kills += kill(folder.path(), mib, times - kills, start)?;
            runs += 1;
        }
        println!(
            "{program}: killed {kills} times in {runs} runs; every block is what was written last"
        );
    }
    Ok(())
}

/// A verified load during which the server is killed, at most `most` times; returns how often.
fn kill(folder: &Path, mib: u64, most: u32, start: impl Fn() -> Result<Server>) -> Result<u32> {
    let mut server = start()?;
    let log = folder.join("log");
    let options = format!(
        "--rw=randwrite --bs=4k --size={mib}m --iodepth=16 --rate_iops=1200 --verify=crc32c --scheduler=mq-deadline"
    );
    let mut run = bench(&server.uri(""), &options).start(File::create(&log)?)?;
    let (mut kills, mut waits) = (0, 0);
    let code = loop {
        if let Some(status) = run.try_wait()? {
            break status.code();
        }
        pause(0.15)?;
        if kills < most {
            // Its socket is removed as well.
            drop(server);
            pause(0.02)?;
            server = start()?;
            kills += 1;
        } else {
            waits += 1;
            if waits > LIMIT * 6 {
                run.kill()?;
            }
        }
    };
    match code {
        Some(0) if kills > 0 => Ok(kills),
        code => {
            let said = fs::read_to_string(&log)?;
            Err(format!("after {kills} kills the run ended with {code:?}: {said}").into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_io_uring_is_a_skip() {
        let told = "target/dist/blkmq bench: exit status: 1: error: io_uring is not available here (EPERM)";
        assert!(is_forbidden(told));
        assert!(is_forbidden(
            "error: the kernel's io_uring lacks fsync; Linux 5.6 and later have them"
        ));
        assert!(!is_forbidden(
            "blkmq bench --device uring:/tmp/a: exit status: 1: 3 blocks differ"
        ));
    }

    #[test]
    fn tests_that_skipped_did_not_pass() {
        let passed = "running 2 tests\ntest result: ok. 2 passed; 0 failed";
        assert!(matches!(ran(passed), Ok(Outcome::Passed)));
        let skipped = format!("skipped a_test: io_uring is not available here\n{passed}");
        assert!(matches!(ran(&skipped), Ok(Outcome::Skipped(_))));
        assert!(ran("test result: ok. 0 passed; 0 failed").is_err());
        assert!(ran("").is_err());
    }
}
