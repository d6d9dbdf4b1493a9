//! A server under a small stand-in for systemd: the socket that it gets, and the messages that it sends.

use super::super::Outcome;
use super::super::folder::Folder;
use crate::Result;
use crate::fio::pause;
use crate::shell::{BLKMQD, Cmd, is_installed, root};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin};

/// The longest wait for a message, on a busy machine, in tenths of a second.
const PATIENCE: u32 = 300;
/// Restarts under load.
const RESTARTS: u32 = 5;

/// The name of the socket for the server's messages.
pub(super) const NOTIFY: &str = "notify";

/// The stand-in, the server below it, and the lines of both.
pub(super) struct Supervisor {
    child: Child,
    input: Option<ChildStdin>,
    /// (file with the messages, number of messages already read).
    said: PathBuf,
    seen: usize,
    socket: PathBuf,
}

impl Supervisor {
    /// Not started yet; `server` is the server's command line.
    pub(super) fn new(folder: &Path, server: &str) -> Result<Self> {
        Self::new_in(folder, folder, server)
    }

    /// As [`new`](Self::new), for a server whose root may be `place`.
    pub(super) fn new_in(folder: &Path, place: &Path, server: &str) -> Result<Self> {
        let [socket, said] = ["data", "said"].map(|name| folder.join(name));
        let script = root().join("xtask/src/interop/service/supervisor.py");
        let [script, data, out] = [&script, &socket, &said].map(|path| path.display().to_string());
        // A name in the working directory is valid under another root, too.
        let python = format!("env --chdir={} python3", place.display());
        let line = format!("{python} {script} {data} {NOTIFY} {out} {server}");
        println!("$ {line}");
        let mut child = Cmd::new(&line).piped(File::create(folder.join("log"))?)?;
        let input = child.stdin.take();
        Ok(Self { child, input, said, seen: 0, socket })
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(super) fn tell(&mut self, word: &str) -> Result<()> {
        let input = self.input.as_mut().ok_or("it has ended")?;
        Ok(writeln!(input, "{word}")?)
    }

    /// Waits for a line that begins with `begin`, and returns the lines up to it.
    pub(super) fn until(&mut self, begin: &str) -> Result<Vec<String>> {
        for _ in 0..PATIENCE {
            // The file does not exist before the first message.
            let said = fs::read_to_string(&self.said).unwrap_or_default();
            let new: Vec<String> = said.lines().skip(self.seen).map(str::to_owned).collect();
            if let Some(at) = new.iter().position(|line| line.starts_with(begin)) {
                self.seen += at + 1;
                return Ok(new[..=at].to_vec());
            }
            pause(0.1)?;
        }
        let said = fs::read_to_string(&self.said).unwrap_or_default();
        Err(format!("no {begin} in {said}").into())
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // It ends when its input is closed, and kills the server.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// Every message comes at its time: ready once it listens, a reload with its two messages, signs of life, and the end.
pub(in crate::interop) fn tells() -> Result<Outcome> {
    let folder = Folder::new("supervised")?;
    let config = folder.path().join("serve.toml");
    fs::write(&config, "[[device]]\nname = \"a\"\ndevice = \"memory,size=64\"\n")?;
    let server = format!("{BLKMQD} --log-format=journald {}", config.display());
    let mut supervisor = Supervisor::new(folder.path(), &server)?;
    supervisor.tell("start")?;
    let first = supervisor.until("STATUS=")?;
    if first[0] != "READY=1" || !first[1].contains("1 exports of 1 devices") {
        return Err(format!("{first:?}").into());
    }
    let uri = format!("nbd+unix:///disk?socket={}", supervisor.socket.display());
    let size = Cmd::new("nbdinfo --size").arg(&uri).output()?;
    if size.trim() != "67108864" {
        return Err(format!("a size of {size}").into());
    }
    supervisor.tell("reload")?;
    supervisor.until("RELOADING=1")?;
    supervisor.until("MONOTONIC_USEC=")?;
    supervisor.until("READY=1")?;
    supervisor.until("WATCHDOG=1")?;
    supervisor.tell("stop")?;
    supervisor.until("STOPPING=1")?;
    let end = supervisor.until("exit ")?;
    if end.last().is_none_or(|line| line != "exit 0") {
        return Err(format!("{end:?}").into());
    }
    drop(supervisor);
    journal(&fs::read_to_string(folder.path().join("log"))?)
}

/// The log has a line for the beginning and one for the end of the connection, each with its priority in front.
fn journal(log: &str) -> Result<Outcome> {
    for (what, fields) in [
        ("a connection begins", ["peer=", "export=", "tls=false"]),
        ("a connection ends", ["requests=", "read=", "written="]),
    ] {
        let line = log.lines().find(|line| line.contains(what));
        let line = line.ok_or_else(|| format!("no line '{what}' in {log}"))?;
        if !line.starts_with("<6>") || fields.iter().any(|field| !line.contains(field)) {
            return Err(format!("line of the log: {line}").into());
        }
    }
    Ok(Outcome::Passed)
}

/// The server on a file is restarted five times, by a drain and a start on the same socket, while a QEMU client reads
/// back each block that it writes. No command fails, all data is there, and nbdcopy works on the same socket.
pub(in crate::interop) fn restarts() -> Result<Outcome> {
    let folder = Folder::new("restarts")?;
    let [disk, stop, log] = ["disk", "stop", "client"].map(|it| folder.path().join(it));
    File::create(&disk)?.set_len(64 << 20)?;
    let server = format!("{BLKMQD} --device=uring:{} --export= --control=", disk.display());
    let mut supervisor = Supervisor::new(folder.path(), &server)?;
    supervisor.tell("start")?;
    supervisor.until("READY=1")?;
    let script = super::super::serve::load(&supervisor.socket, &stop);
    let mut client = Cmd::new("sh -c").arg(script).start(File::create(&log)?)?;
    for _ in 0..RESTARTS {
        super::super::serve::goes_on(&log)?;
        supervisor.tell("stop")?;
        supervisor.until("exit 0")?;
        pause(0.2)?;
        supervisor.tell("start")?;
        supervisor.until("READY=1")?;
    }
    super::super::serve::goes_on(&log)?;
    File::create(&stop)?;
    client.wait()?;
    let blocks = super::super::serve::all_succeeded(&fs::read_to_string(&log)?)?;
    println!("{RESTARTS} restarts; {blocks} blocks were written and read back");
    if is_installed("nbdcopy") {
        let copy = folder.path().join("copy");
        let uri = format!("nbd+unix:///?socket={}", supervisor.socket.display());
        Cmd::new(&format!("nbdcopy {uri} {}", copy.display())).run()?;
        if fs::read(&copy)? != fs::read(&disk)? {
            return Err("nbdcopy has other bytes than the file of the disk".into());
        }
    }
    Ok(Outcome::Passed)
}
