//! `blkmqd` as a service: its socket and its messages, exchanged with a small stand-in for systemd, its units, and its
//! manual pages and completions. The units are checked by systemd's own tools, which need no running systemd, the pages
//! and completions by the programs that read them.

use super::{Folder, Outcome};
use crate::Result;
use crate::measurement::pause;
use crate::shell::{BLKMQ, BLKMQCTL, BLKMQD, Cmd, is_installed, root, target_dir};
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
    fn new(folder: &Path, server: &str) -> Result<Self> {
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
pub(super) fn tells() -> Result<Outcome> {
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
pub(super) fn restarts() -> Result<Outcome> {
    let folder = Folder::new("restarts")?;
    let [disk, stop, log] = ["disk", "stop", "client"].map(|it| folder.path().join(it));
    File::create(&disk)?.set_len(64 << 20)?;
    let server = format!("{BLKMQD} --device=uring:{} --export= --control=", disk.display());
    let mut supervisor = Supervisor::new(folder.path(), &server)?;
    supervisor.tell("start")?;
    supervisor.until("READY=1")?;
    let script = super::serve::load(&supervisor.socket, &stop);
    let mut client = Cmd::new("sh -c").arg(script).start(File::create(&log)?)?;
    for _ in 0..RESTARTS {
        super::serve::goes_on(&log)?;
        supervisor.tell("stop")?;
        supervisor.until("exit 0")?;
        pause(0.2)?;
        supervisor.tell("start")?;
        supervisor.until("READY=1")?;
    }
    super::serve::goes_on(&log)?;
    File::create(&stop)?;
    client.wait()?;
    let blocks = super::serve::all_succeeded(&fs::read_to_string(&log)?)?;
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

/// The exposure score of systemd must be below this; 10 means no protection.
const MOST: f64 = 2.0;

/// systemd finds no fault in the units, and few unnecessary privileges of the service; and the command before the start
/// finds faults that appear only when devices are opened.
pub(super) fn units() -> Result<Outcome> {
    let folder = Folder::new("units")?;
    let program = target_dir().join(BLKMQD.trim_start_matches("target/"));
    let mut paths = Vec::new();
    for name in ["blkmqd.service", "blkmqd.socket"] {
        let text = fs::read_to_string(root().join("contrib/systemd").join(name))?;
        let path = folder.path().join(name);
        // The program need not be installed.
        fs::write(&path, text.replace("/usr/bin/blkmqd", &program.display().to_string()))?;
        paths.push(path.display().to_string());
    }
    // A fault that it tolerates is a line without an error.
    let verify = Cmd::new("systemd-analyze verify --man=no --recursive-errors=no");
    let said = paths.iter().fold(verify, |cmd, path| cmd.arg(path.as_str()));
    said.silent_output_in(folder.path())?;
    let security = Cmd::new("systemd-analyze security --offline=true --no-pager");
    let table = security.arg(paths[0].as_str()).output()?;
    let exposure = exposure(&table).ok_or_else(|| format!("no figure in {table}"))?;
    println!("exposure {exposure}, bound {MOST}");
    if exposure >= MOST {
        return Err(table.into());
    }
    let config = folder.path().join("serve.toml");
    let unit = fs::read_to_string(&paths[0])?;
    let before = unit.lines().find_map(|line| line.strip_prefix("ExecStartPre="));
    let before = before.ok_or("no ExecStartPre")?;
    let before = before.replace("/etc/blkmq/serve.toml", &config.display().to_string());
    let control = folder.path().join("control").display().to_string();
    let device = |device: &str| {
        format!("control = '{control}'\n[[device]]\nname = 'a'\ndevice = '{device}'\n")
    };
    for (device, code) in [
        (device(&format!("uring:{}/new.img,size=1", folder.path().display())), 0),
        (device(&format!("uring:{}/missing.img", folder.path().display())), 2),
        (device("memory,size=8") + "[[export]]\nname = 'far'\noffset = '9m'\n", 2),
    ] {
        fs::write(&config, &device)?;
        let found = Cmd::new(&before).quiet_code_in(folder.path())?;
        if found != Some(code) {
            return Err(format!("{before}: {found:?} with {device}").into());
        }
    }
    Ok(Outcome::Passed)
}

/// The figure of the last line: `Overall exposure level for blkmqd.service: 0.9 SAFE`.
fn exposure(table: &str) -> Option<f64> {
    let (_, behind) = table.rsplit_once("Overall exposure level for ")?;
    behind.split_whitespace().nth(1)?.parse().ok()
}

/// The least number of pages: one for each program and each of their commands.
const PAGES: usize = 25;

/// man renders every page without a warning, and mandoc finds no error in any.
pub(super) fn pages() -> Result<Outcome> {
    let folder = Folder::new("manual")?;
    for program in [BLKMQ, BLKMQCTL] {
        Cmd::new(&format!("{program} man --dir={}", folder.path().display())).output()?;
    }
    let mut count = 0;
    for entry in fs::read_dir(folder.path())? {
        let page = entry?.path().display().to_string();
        let man = Cmd::new("man --warnings -E UTF-8 -l").arg(page.as_str());
        let text = man.env("LC_ALL", "C.UTF-8").env("MANWIDTH", "80");
        let text = text.silent_output_in(folder.path())?;
        if !text.contains("blkmq") {
            return Err(format!("{page} is empty").into());
        }
        Cmd::new("mandoc -T lint -W error").arg(page.as_str()).silent_output_in(folder.path())?;
        count += 1;
    }
    println!("{count} pages");
    if count >= PAGES { Ok(Outcome::Passed) } else { Err("too few pages".into()) }
}

/// Each shell loads the script of each program and completes words with it.
pub(super) fn completions() -> Result<Outcome> {
    for (name, printer, begin, expected) in [
        ("blkmq", BLKMQ, "ben", "bench"),
        ("blkmqctl", BLKMQCTL, "sw", "switch"),
        ("blkmqd", BLKMQCTL, "--log-f", "--log-format"),
    ] {
        let folder = Folder::new("completions")?;
        let of = if printer == BLKMQCTL { name } else { "" };
        for (shell, file) in [("bash", "script"), ("zsh", &*format!("_{name}")), ("fish", "fish")] {
            let script = Cmd::new(&format!("{printer} completions {shell} {of}")).output()?;
            fs::write(folder.path().join(file), script)?;
        }
        let bash = format!(
            "source ./script; complete -p {name}; COMP_WORDS=({name} {begin}); COMP_CWORD=1; \
             _{name} {name} {begin} {name}; echo \"${{COMPREPLY[@]}}\""
        );
        let zsh = format!(
            "fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -d $PWD/dump; \
             [[ $_comps[{name}] = _{name} ]]; autoload +X _{name}; functions _{name}"
        );
        let fish = format!("source ./fish; complete -C '{name} {begin}'");
        says(folder.path(), "bash --norc -ec", &bash, expected)?;
        says(folder.path(), "zsh -fec", &zsh, expected)?;
        says(folder.path(), "fish --no-config -c", &fish, expected)?;
    }
    Ok(Outcome::Passed)
}

/// Checks that the shell prints the expected word, and no error.
fn says(folder: &Path, shell: &str, script: &str, expected: &str) -> Result<()> {
    let said = Cmd::new(shell).arg(script).silent_output_in(folder)?;
    if said.contains(expected) { Ok(()) } else { Err(format!("{shell}: {said}").into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_is_found() {
        let text = "x 9.6\n-> Overall exposure level for blkmqd.service: 0.9 SAFE :)\n";
        assert_eq!(exposure(text), Some(0.9));
        assert_eq!(exposure("nothing"), None);
    }
}
