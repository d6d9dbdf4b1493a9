//! `nbd`: the cost of a read in the server of the example `nbd_server`, and in nbdkit's memory plug-in.
//!
//! Both serve 1 GiB of memory that was written once, to the same fio, alternating. The CPU times of the servers, from
//! the kernel's accounting, are compared: rates depend more on the client. Other checks also start their servers here.

use crate::Result;
use crate::shell::{
    BLKMQCTL, BLKMQD, Cmd, NBD_SERVER, TESTED_NBD_SERVER, is_installed, parse_json,
};
use serde_json::Value;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;

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
        let child = cmd.start(fs::File::create(folder.join("log"))?)?;
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
        let line = format!("{BLKMQCTL} --socket={} --json {words}", socket.display());
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
pub(crate) const TICK: u64 = 10_000;

/// `cargo xtask nbd [PAIRS]`
///
/// # Errors
/// If a server or fio does not run, or the example takes more than nbdkit.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let pairs: u32 = args.first().map_or(Ok(7), |pairs| pairs.parse())?;
    if let Some(missing) = ["fio", "nbdkit"].iter().find(|program| !is_installed(program)) {
        return Err(format!("{missing} is not installed").into());
    }
    Cmd::new("cargo build --profile dist -p blkmq --example nbd_server").run()?;
    let ours = Server::start("ours", &format!("{NBD_SERVER} memory,size=1024 SOCKET"))?;
    let nbdkit = Server::start("nbdkit", "nbdkit -f -U SOCKET memory 1G")?;
    for server in [&ours, &nbdkit] {
        fio(server, "--rw=write --bs=1m --iodepth=4 --size=1g")?;
    }
    let mut costs = [Vec::new(), Vec::new()];
    for _ in 0..pairs {
        for (server, costs) in [&ours, &nbdkit].into_iter().zip(&mut costs) {
            let before = server.ticks()?;
            let options = "--rw=randread --bs=4k --iodepth=32 --size=1g --norandommap \
                           --time_based --runtime=3 --gtod_reduce=1";
            let reads = fio(server, options)?;
            costs.push((server.ticks()? - before) * TICK * 1000 / reads.max(1));
        }
    }
    let [ours, nbdkit] = costs.map(median);
    println!("server CPU time for each read of 4 KiB, median of {pairs}, in nanoseconds:");
    println!("nbd_server {ours}, nbdkit memory {nbdkit}");
    if ours > nbdkit { Err("the example takes more than nbdkit".into()) } else { Ok(()) }
}

/// Runs fio and counts its I/Os.
fn fio(server: &Server, options: &str) -> Result<u64> {
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

fn median(mut costs: Vec<u64>) -> u64 {
    costs.sort_unstable();
    println!("{costs:?}");
    costs.get(costs.len() / 2).copied().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_behind_a_name_with_anything_in_it() {
        let stat = "12 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 300 44 0 0 20 0 1 0";
        assert_eq!(ticks(stat), Some(344));
        assert_eq!(ticks("12 (a) S 1 2"), None);
    }

    #[test]
    fn the_median_is_one_of_them() {
        assert_eq!(median(vec![9, 1, 5]), 5);
        assert_eq!(median(vec![]), u64::MAX);
    }
}
