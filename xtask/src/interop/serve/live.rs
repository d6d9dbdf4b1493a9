//! A server under load whose surroundings change: schedulers, weights, limits and depths are changed while clients
//! verify their data and while a device is stuck, clients are killed, and a client that reconnects continues when its
//! server is killed and started again. fio's NBD engine verifies every scheduler, number of connections and block size.

use crate::Result;
use crate::interop::Outcome;
use crate::measurement::{Figures, Fio, pause, run_fio};
use crate::serve::Server;
use crate::shell::{BLKMQCTL, Cmd, timed};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Changes, a call of `blkmqctl` each.
const CHANGES: usize = 200;
/// Seconds that clients run; the changes take less.
const SECONDS: u32 = 10;
/// The longest latency that a change may cause, in milliseconds. A longer one is printed with a remark, since the
/// machine may be the reason.
const STALL: u64 = 100;
/// A latency, in milliseconds, that cannot be explained by a busy machine.
const HANG: u64 = 2000;

const EXPORTS: [&str; 4] = ["a", "b", "c", "d"];

/// See above.
pub(in crate::interop) fn changed() -> Result<Outcome> {
    let exports: String = (0..)
        .zip(EXPORTS)
        .map(|(at, name)| format!(" --export={name},offset={}m,size=64m", at * 64))
        .collect();
    let server = Server::blkmq("serve-live", "memory,size=256", "mq-deadline", &exports)?;
    let io = "--rw=randrw --bs=4k --iodepth=8 --size=16m";
    let verify = "--verify=crc32c --verify_state_save=0 --verify_fatal=1";
    let options = format!("{io} {verify} --time_based --runtime={SECONDS}");
    let clients: Result<Vec<Fio>> = EXPORTS
        .iter()
        .map(|name| Fio::start(&server.uri(name), &server.path(&format!("fio-{name}")), &options))
        .collect();
    let clients = clients?;
    server.connected(4)?;
    for n in 0..CHANGES {
        server.ctl(&change(n))?;
    }
    if server.connections()? != 4 {
        return Err(format!("{CHANGES} changes took longer than {SECONDS} s").into());
    }
    let figures: Result<Vec<Figures>> = clients.into_iter().map(Fio::wait).collect();
    let figures = figures?;
    let longest = figures.iter().map(|it| it.longest / 1_000_000).max().unwrap_or(0);
    let ios: u64 = figures.iter().map(|it| it.ios).sum();
    let remark = if longest > STALL { ", more than is wanted" } else { "" };
    println!("{CHANGES} changes under {ios} I/Os: the longest took {longest} ms{remark}");
    if longest > HANG { Err("an I/O hung".into()) } else { Ok(Outcome::Passed) }
}

/// The change number `n`. Half of them switch the scheduler.
fn change(n: usize) -> String {
    let (round, export) = (n / 8, EXPORTS[n / 8 % 4]);
    match n % 8 {
        0 => "switch bfq".to_owned(),
        1 => format!("export {export} --weight={}", 1 + round * 37 % 1000),
        2 => "switch none".to_owned(),
        3 => format!("export {export} --max=wiops={}", 5000 + round * 100),
        4 => "switch kyber".to_owned(),
        5 => format!("set queue/nr_requests {}", 16 + round),
        6 => "switch mq-deadline".to_owned(),
        _ => format!("export {export} --max=wiops=max"),
    }
}

/// nbdkit stops behind one device. The control interface answers immediately while the operator starts and abandons a
/// switch of that device, the server is not ready, and no trace of the switch is left once nbdkit continues.
pub(in crate::interop) fn stuck() -> Result<Outcome> {
    let back = Server::start("serve-stuck-back", "nbdkit -f -U SOCKET memory 64M")?;
    let device = format!("nbd+unix:///?socket={}", back.path("socket").display());
    let exports = "--device=memory,size=64 --export=a,device=1 --export=good,device=2 --http=unix:SOCKET.http";
    let server = Server::blkmq("serve-stuck", &device, "mq-deadline", exports)?;
    let signal = |signal: &str| Cmd::new(&format!("kill -{signal} {}", back.pid())).run();
    let read = |export: &str| {
        Cmd::new(&format!("qemu-io -f raw {}", server.uri(export))).arg("-c").arg("read 0 4k")
    };
    read("a").output()?;
    signal("STOP")?;
    let mut reader = read("a").start(File::create(server.path("reader"))?)?;
    server.connected(1)?;
    // The handshake, and then the read.
    pause(0.5)?;
    let outcome = while_stuck(&server);
    signal("CONT")?;
    if !reader.wait()?.success() {
        return Err("the read of the device that was stuck failed".into());
    }
    outcome?;
    let list = server.ctl("list")?;
    if list["list"]["devices"][0]["scheduler"] != "mq-deadline" {
        return Err(format!("a switch was carried out that was given up: {list}").into());
    }
    if ready(&server)? != 200 {
        return Err("the server is not ready although its device has gone on".into());
    }
    Ok(Outcome::Passed)
}

fn while_stuck(server: &Server) -> Result<()> {
    let control = server.path("socket.control").display().to_string();
    let ctl = format!("{BLKMQCTL} --control={control}");
    for _ in 0..3 {
        let switch = Cmd::new(&format!("{ctl} switch --device=1 kyber")).under("timeout 1");
        if switch.quiet_code()? != Some(124) {
            return Err("a switch of a stuck device did not wait".into());
        }
    }
    let switch = Cmd::new(&format!("{ctl} switch --device=1 kyber"));
    let mut waits = switch.start(File::create(server.path("switch"))?)?;
    let top = format!("{BLKMQCTL} top --once --interval=1 --control={control}");
    for line in [format!("{ctl} list"), format!("{ctl} export good --weight=50"), top] {
        let (code, time) = timed(|| Cmd::new(&line).under("timeout 5").quiet_code());
        // `top` shows an interval of a second.
        if code? != Some(0) || time.as_secs_f64() > 2.5 {
            return Err(format!("{line}: no answer in {time:?}").into());
        }
    }
    let (mut is_ready, mut looks) = (true, 0);
    while is_ready && looks < 200 {
        Cmd::new("sleep 0.1").run()?;
        (is_ready, looks) = (ready(server)? == 200, looks + 1);
    }
    if waits.wait()?.code() != Some(1) {
        return Err("a switch of a stuck device did not end".into());
    }
    if is_ready { Err("a server with a stuck device is ready".into()) } else { Ok(()) }
}

/// The status of `/readyz`.
fn ready(server: &Server) -> Result<u16> {
    let mut stream = UnixStream::connect(server.path("socket.http"))?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.split(' ').nth(1).unwrap_or_default().parse()?)
}

const SCHEDULERS: [&str; 4] = ["none", "mq-deadline", "kyber", "bfq"];
const DEVICE: &str = "memory,size=256,discard=1";

/// 1 to 4 connections read back the data that they wrote, in blocks from 512 bytes to 1 MiB, under each scheduler; then
/// all connections are closed.
pub(in crate::interop) fn verified() -> Result<Outcome> {
    for scheduler in SCHEDULERS {
        let server = Server::blkmq("serve-verify", DEVICE, scheduler, "--export=")?;
        for (jobs, size) in [(1, "512"), (2, "4k"), (3, "64k"), (4, "1m")] {
            let verify = "--verify=crc32c --verify_state_save=0 --verify_fatal=1";
            let io = format!("--rw=randrw --bs={size} --iodepth=16 --numjobs={jobs}");
            // Small blocks take long.
            let region = match size {
                "512" => "1m",
                "4k" => "8m",
                _ => "32m",
            };
            let span = format!("--size={region} --offset_increment=64m");
            run_fio(&server.uri(""), &server.path("fio"), &format!("{io} {span} {verify}"))
                .map_err(|error| format!("{scheduler}, {jobs} jobs: {error}"))?;
        }
        server.connected(0)?;
    }
    Ok(Outcome::Passed)
}

/// fio is killed while 4 connections have requests in flight, on memory and on a slow device; their connections end,
/// and a server that waits for their I/Os uses no processor time for that.
pub(in crate::interop) fn killed() -> Result<Outcome> {
    let memory = SCHEDULERS.map(|scheduler| (DEVICE, scheduler));
    for (device, scheduler) in memory.into_iter().chain([("disk", "bfq")]) {
        let server = Server::blkmq("serve-killed", device, scheduler, "--export=")?;
        let before = server.descriptors()?;
        let io = "--rw=randrw --bs=4k --iodepth=32 --numjobs=4 --size=64m";
        let load = format!("{io} --time_based --runtime=60");
        let client = Fio::start(&server.uri(""), &server.path("fio"), &load)?;
        server.connected(4)?;
        pause(0.2)?;
        client.kill()?;
        server.connected(0)?;
        server.closed(before)?;
    }
    waits_for_nothing()
}

/// Requests of a killed client cost nothing while they wait for a limit. The end of its connection is a persistent
/// event, so a server that polls for it would find it again and again.
fn waits_for_nothing() -> Result<Outcome> {
    let server = Server::blkmq("serve-killed", DEVICE, "none", "--export=slow,riops=10")?;
    let load = "--rw=randread --bs=4k --iodepth=32 --size=64m --time_based --runtime=60";
    let client = Fio::start(&server.uri("slow"), &server.path("fio"), load)?;
    server.connected(1)?;
    let with_client = server.descriptors()?;
    client.kill()?;
    let before = server.ticks()?;
    pause(1.0)?;
    let ticks = server.ticks()? - before;
    if server.descriptors()? < with_client {
        return Err("the requests of a killed client did not wait for their limit".into());
    }
    if ticks > 20 {
        return Err(format!("waiting took {} ms of a second", ticks * 10).into());
    }
    Ok(Outcome::Passed)
}

/// How often the server is killed.
const KILLS: u32 = 5;
/// Seconds that the client may take to continue after a restart.
const LIMIT: u32 = 30;

/// QEMU's client writes blocks and reads each back, without a pause, while the server on a file is killed five times.
/// Every command succeeds, and every block has the last written data.
pub(in crate::interop) fn reconnects() -> Result<Outcome> {
    let folder = std::env::temp_dir().join(format!("blkmq-reconnect-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let result = kills(&folder);
    fs::remove_dir_all(&folder)?;
    let written = result?;
    println!("killed {KILLS} times; {written} blocks were written and read back");
    Ok(Outcome::Passed)
}

/// Starts the server, retrying for some seconds as a service manager does: the kernel may still be closing the rings of
/// the killed server, which keep its file open.
fn start(device: &str) -> Result<Server> {
    let start = || Server::blkmq("serve-reconnect", device, "mq-deadline", "--export= --log=error");
    for _ in 0..20 {
        pause(0.2)?;
        match start() {
            Err(error) if error.to_string().contains("has it open") => {}
            started => return started,
        }
    }
    start()
}

fn kills(folder: &Path) -> Result<usize> {
    let (disk, stop, log) = (folder.join("disk"), folder.join("stop"), folder.join("log"));
    File::create(&disk)?.set_len(64 << 20)?;
    let device = format!("uring:{}", disk.display());
    let first = start(&device)?;
    let socket = first.path("socket");
    let mut server = Some(first);
    let mut client = Cmd::new("sh -c").arg(load(&socket, &stop)).start(File::create(&log)?)?;
    let result = (0..KILLS).try_for_each(|_| -> Result<()> {
        goes_on(&log)?;
        // Its socket is removed as well.
        drop(server.take());
        server = Some(start(&device)?);
        Ok(())
    });
    let result = result.and_then(|()| goes_on(&log));
    // The client is stopped whatever the state of the server.
    File::create(&stop)?;
    if result.is_err() {
        client.kill()?;
    }
    client.wait()?;
    drop(server);
    result?;
    all_succeeded(&fs::read_to_string(&log)?)
}

/// The blocks that the client with this log has written.
///
/// # Errors
/// If a command of it failed.
pub(in crate::interop) fn all_succeeded(log: &str) -> Result<usize> {
    match log.lines().find(|line| !is_of_success(line)) {
        Some(line) => Err(format!("the client says: {line}").into()),
        None => Ok(log.matches("wrote ").count()),
    }
}

/// Commands for qemu-io, until `stop` exists: a different pattern for each block, at 200 offsets.
pub(in crate::interop) fn load(socket: &Path, stop: &Path) -> String {
    let image =
        format!("driver=nbd,server.type=unix,server.path={},reconnect-delay=60", socket.display());
    format!(
        "n=0; while [ ! -e {} ]; do n=$(((n + 7) % 251)); at=$((n % 200 * 64))k; \
         echo write -P $n $at 64k; echo read -P $n $at 64k; done | qemu-io --image-opts {image}",
        stop.display()
    )
}

/// Waits until the client has written more blocks than now, and returns their number.
pub(in crate::interop) fn goes_on(log: &Path) -> Result<usize> {
    let written = || Ok::<_, std::io::Error>(fs::read_to_string(log)?.matches("wrote ").count());
    let before = written()?;
    for _ in 0..LIMIT * 10 {
        pause(0.1)?;
        let now = written()?;
        if now > before + 100 {
            return Ok(now);
        }
    }
    let said = fs::read_to_string(log)?;
    let last = said.lines().last().unwrap_or_default();
    Err(format!("the client does not go on; its last words: {last}").into())
}

/// Each command prints two lines: the work done, and its speed. The prompt precedes one of them, or is alone at the
/// end.
fn is_of_success(line: &str) -> bool {
    let line = line.trim_start_matches("qemu-io> ").trim();
    let done = |word| line.starts_with(word) && line.contains("65536/65536 bytes");
    done("wrote ") || done("read ") || line.starts_with("64 KiB, 1 ops") || line.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_lifted_again() {
        let mut limited = std::collections::BTreeSet::new();
        for words in (0..CHANGES).map(change) {
            let mut words = words.split(' ').skip(1);
            match (words.next(), words.next()) {
                (Some(name), Some("--max=wiops=max")) => {
                    limited.remove(name);
                }
                (Some(name), Some(limit)) if limit.starts_with("--max") => {
                    limited.insert(name.to_owned());
                }
                _ => {}
            }
        }
        assert!(limited.is_empty(), "{limited:?}");
    }

    #[test]
    fn a_failure_is_no_line_of_success() {
        for line in [
            "qemu-io> wrote 65536/65536 bytes at offset 0",
            "read 65536/65536 bytes at offset 131072",
            "64 KiB, 1 ops; 00.00 sec (1.2 GiB/sec and 19685.0394 ops/sec)",
            "qemu-io> ",
        ] {
            assert!(is_of_success(line), "{line}");
        }
        for line in [
            "Pattern verification failed at offset 0, 65536 bytes",
            "qemu-io> write failed: Input/output error",
            "read 512/65536 bytes at offset 0",
        ] {
            assert!(!is_of_success(line), "{line}");
        }
    }
}
