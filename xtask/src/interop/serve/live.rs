//! Schedulers, weights, limits and depths of a running server are changed while clients verify their data, and while a
//! device is stuck.

use super::super::Outcome;
use crate::Result;
use crate::fio::{Figures, Fio, pause};
use crate::nbd::Server;
use crate::shell::{BLKMQCTL, Cmd, timed};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

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
    let ctl = format!("{BLKMQCTL} --socket={control}");
    for _ in 0..3 {
        let switch = Cmd::new(&format!("{ctl} switch --device=1 kyber")).under("timeout 1");
        if switch.quiet_code()? != Some(124) {
            return Err("a switch of a stuck device did not wait".into());
        }
    }
    let switch = Cmd::new(&format!("{ctl} switch --device=1 kyber"));
    let mut waits = switch.start(File::create(server.path("switch"))?)?;
    let top = format!("{BLKMQCTL} top --once --interval=1 --socket={control}");
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
}
