//! `blkmqd` as a service, and the forms of a release.
//!
//! Of the service, its socket and its messages are checked, exchanged with a small stand-in for systemd, its units, and
//! its manual pages and completions. The units are checked by systemd's own tools, which need no running systemd, the
//! pages and completions by the programs that read them.
//!
//! A release is reproducible, and usable on a machine without this repository. The Debian package is installed in a
//! clean root, checked, served as in its unit, upgraded while a client reads back its writes, removed and purged. No
//! systemd runs there. A stand-in holds the socket, and the scripts of the package call a `systemctl` that records its
//! arguments.

use super::{Folder, Outcome};
use crate::Result;
use crate::dist::Release;
use crate::measurement::pause;
use crate::shell::{BLKMQ, BLKMQCTL, BLKMQD, Cmd, is_installed, parse_json, root, target_dir};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin};

/// The longest wait for a message, on a busy machine, in tenths of a second.
const PATIENCE: u32 = 300;
/// Restarts under load.
const RESTARTS: u32 = 5;

/// The name of the socket for the server's messages.
const NOTIFY: &str = "notify";

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
    fn new_in(folder: &Path, place: &Path, server: &str) -> Result<Self> {
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
const MOST_EXPOSURE: f64 = 2.0;

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
    println!("exposure {exposure}, bound {MOST_EXPOSURE}");
    if exposure >= MOST_EXPOSURE {
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

/// Programs without which some form cannot be made here.
const TOOLS: [&str; 5] = ["dpkg-deb", "dpkg-shlibdeps", "tar", "xz", "strip"];
/// Files that an archive must have, among others.
const FILES: [&str; 5] = [
    "usr/bin/blkmq",
    "usr/share/man/man1/blkmqctl-list.1.gz",
    "usr/share/zsh/vendor-completions/_blkmqd",
    "usr/share/doc/blkmq/libraries.txt",
    "etc/blkmq/serve.toml",
];

/// The missing part of this machine, for checks of releases.
fn lack() -> Option<String> {
    let missing = TOOLS.iter().find(|tool| !is_installed(tool));
    missing.map(|tool| format!("{tool} is not installed"))
}

/// Each form has the same bytes when it is made again, the archive is complete, lintian finds no error in the package,
/// and the image serves.
pub(super) fn forms() -> Result<Outcome> {
    if let Some(lack) = lack() {
        return Ok(Outcome::Skipped(lack));
    }
    let folder = Folder::new("release")?;
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    let files = made(&first)?;
    for (file, again) in files.iter().zip(made(&second)?) {
        if fs::read(file)? != fs::read(&again)? {
            return Err(format!("{} and {} differ", file.display(), again.display()).into());
        }
    }
    let [archive, package, image] = &files;
    unpacks(archive, folder.path())?;
    if is_installed("lintian") {
        Cmd::new("lintian --fail-on error").arg(package.to_string_lossy()).run()?;
    } else {
        println!("lintian: SKIPPED, it is not installed");
    }
    contained(image, folder.path())
}

/// The archive, the package and the image.
fn made(folder: &Path) -> Result<[PathBuf; 3]> {
    let release = Release::new(folder)?;
    Ok([release.archive()?, release.debian(1)?, release.image()?])
}

/// The archive has its files, and its program runs.
fn unpacks(archive: &Path, folder: &Path) -> Result<()> {
    let place = folder.join("unpacked");
    fs::create_dir(&place)?;
    let tar = Cmd::new("tar --extract --strip-components=1").arg("--file");
    tar.arg(archive.to_string_lossy()).output_in(&place)?;
    for file in FILES {
        if fs::metadata(place.join(file))?.len() == 0 {
            return Err(format!("{file} is empty").into());
        }
    }
    let program = place.join("usr/bin/blkmqctl").display().to_string();
    Cmd::new(&program).arg("--version").output().map(drop)
}

/// Starts a container's program with its root and user, in its own network. Its health is checked as by an engine, and
/// a client connects to an address that is not that of the container itself.
const SERVE: &str = "set -e; ip link set lo up; ip address add 192.0.2.1/32 dev lo
inside=\"env -i $ENVIRONMENT $(command -v chroot) --userspec=$OWNER $TREE\"
$inside $SERVER >&2 & server=$!
n=0; until $inside $HEALTH > /dev/null 2>&1; do n=$((n + 1)); [ $n -lt 600 ]; kill -0 $server; sleep 0.1; done
nbdinfo --size nbd://192.0.2.1/
kill -TERM $server; wait $server";

/// The image unpacks, serves and answers for its health.
fn contained(image: &Path, folder: &Path) -> Result<Outcome> {
    let (place, tree) = (folder.join("image"), folder.join("tree"));
    fs::create_dir(&place)?;
    fs::create_dir(&tree)?;
    let tar = Cmd::new("tar --extract --file").arg(image.to_string_lossy());
    tar.output_in(&place)?;
    let manifest: Value = serde_json::from_slice(&fs::read(place.join("manifest.json"))?)?;
    let config = place.join(manifest[0]["Config"].as_str().ok_or("no config")?);
    let config = &parse_json(&fs::read_to_string(config)?)?["config"];
    let words = |value: &Value| -> String {
        let words = value.as_array().map_or(&[][..], Vec::as_slice);
        words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
    };
    let owns = Cmd::new("unshare --mount --net true").quiet_code().ok().flatten() == Some(0);
    if !owns || Cmd::new("id -u").output()?.trim() != "0" {
        return Ok(Outcome::Skipped("no right to a root and a network of its own".into()));
    }
    let tar = Cmd::new("tar --extract --numeric-owner --same-owner --file");
    tar.arg(place.join("layer.tar").to_string_lossy()).output_in(&tree)?;
    let health = words(&config["Healthcheck"]["Test"]);
    let size = Cmd::new("unshare --mount --net sh -c")
        .arg(SERVE)
        .env("TREE", tree.to_string_lossy())
        .env("OWNER", config["User"].as_str().ok_or("no user")?)
        .env("ENVIRONMENT", words(&config["Env"]))
        .env("SERVER", format!("{} {}", words(&config["Entrypoint"]), words(&config["Cmd"])))
        .env("HEALTH", health.strip_prefix("CMD ").ok_or("its health is a command")?)
        .output()?;
    let expected = (1_u64 << 30).to_string();
    if size.trim() == expected { Ok(Outcome::Passed) } else { Err(format!("size {size}").into()) }
}

/// Upgrades in the check.
const UPGRADES: u32 = 3;
/// Writes of 4 KiB for each upgrade, to as many blocks.
const WRITES: u32 = 15_000;
/// Writes in a second: an upgrade takes about two of them.
const UPGRADE_RATE: u32 = 4_000;
/// Paths of files that are not the package's own: those of dpkg, of the running system, and the disks.
const OTHERS: [&str; 7] =
    ["dev", "proc", "run", "var/lib/dpkg", "var/log", "var/lib/blkmq", NOTIFY];

/// A clean root, and a package of two revisions.
struct Site {
    folder: Folder,
    root: PathBuf,
    packages: [PathBuf; 2],
}

pub(super) fn installed() -> Result<Outcome> {
    upgraded(UPGRADES)
}

/// `cargo xtask upgrades [TIMES]`: ten by default.
///
/// # Errors
/// If an acknowledged write is lost, an I/O fails, or a file is left over.
pub(crate) fn upgrades(args: &[String]) -> Result<()> {
    let times = match args {
        [] => 10,
        [times] => times.parse().map_err(|_| format!("'{times}' is no number of upgrades"))?,
        _ => return Err("usage: cargo xtask upgrades [TIMES]".into()),
    };
    crate::shell::build_programs()?;
    match upgraded(times)? {
        Outcome::Passed => Ok(()),
        Outcome::Skipped(why) => Err(why.into()),
    }
}

fn upgraded(times: u32) -> Result<Outcome> {
    if let Some(lack) = lack() {
        return Ok(Outcome::Skipped(lack));
    }
    if !is_installed("mmdebstrap") || Cmd::new("id -u").output()?.trim() != "0" {
        return Ok(Outcome::Skipped("mmdebstrap or the right to a clean root is missing".into()));
    }
    let site = match Site::new()? {
        Ok(site) => site,
        Err(lack) => return Ok(Outcome::Skipped(lack)),
    };
    let before = site.files()?;
    site.install(0)?;
    site.inside("/usr/bin/blkmq --version")?;
    site.inside("/usr/bin/blkmqd --check /etc/blkmq/serve.toml")?;
    if site.called()? != "daemon-reload\n" {
        return Err(format!("a new package calls systemctl {}", site.called()?).into());
    }
    let mut server = Supervisor::new_in(site.folder.path(), &site.root, &site.unit()?)?;
    server.tell("start")?;
    server.until("READY=1")?;
    let load = site.folder.path().join("load");
    let mut client = client(&server, times, File::create(&load)?)?;
    let done = site.upgrade(&mut server, &mut client, times);
    if done.is_err() {
        let _ = client.kill();
    }
    let status = client.wait()?;
    done?;
    let said = fs::read_to_string(&load)?;
    if !status.success() {
        return Err(format!("the client: {status}: {said}").into());
    }
    let written = parse_json(&said)?["jobs"][0]["write"]["total_ios"].as_u64();
    if written != Some(u64::from(times * WRITES)) {
        return Err(format!("{written:?} writes").into());
    }
    println!("{times} upgrades; all {} writes are what was read back", times * WRITES);
    server.tell("stop")?;
    server.until("exit 0")?;
    drop(server);
    site.removed(&before)?;
    Ok(Outcome::Passed)
}

/// Starts a client that writes each block once, reads all of them back, and reconnects when necessary.
fn client(server: &Supervisor, times: u32, log: File) -> Result<Child> {
    let uri = format!("nbd+unix:///?socket={}", server.socket().display());
    let size = u64::from(times * WRITES) * 4;
    let load =
        format!("--rw=randwrite --bs=4k --iodepth=16 --size={size}k --rate_iops={UPGRADE_RATE}");
    let line = format!("{BLKMQ} bench --name=upgrade --scheduler=mq-deadline {load}");
    let verified = format!("{line} --verify=crc32c --output-format=json --device={uri}");
    Cmd::new(&verified).start(log)
}

impl Site {
    /// A site, or the lack of this machine.
    fn new() -> Result<std::result::Result<Self, String>> {
        let folder = Folder::new("installed")?;
        let root = folder.path().join("root");
        let release = fs::read_to_string("/etc/os-release")?;
        let suite = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
        // The programs need a libc at least as new as that of the machine that built them.
        let Some(suite) = suite else { return Ok(Err("no release of Debian".into())) };
        let base = Cmd::new("mmdebstrap --quiet --variant=essential").arg(suite);
        if let Err(error) = base.arg(root.to_string_lossy()).output() {
            return Ok(Err(format!("no clean root: {error}")));
        }
        let systemctl = root.join("usr/bin/systemctl");
        fs::write(&systemctl, "#!/bin/sh\necho \"$@\" >> /run/systemctl\n")?;
        Cmd::new("chmod 0755").arg(systemctl.to_string_lossy()).output()?;
        // The folders of a running systemd, and those that it creates for the unit.
        for place in ["run/systemd/system", "run/blkmq", "var/lib/blkmq"] {
            fs::create_dir_all(root.join(place))?;
        }
        let release = Release::new(&folder.path().join("packages"))?;
        let mut packages = [release.debian(1)?, release.debian(2)?];
        for package in &mut packages {
            let name = package.file_name().ok_or("a package has a name")?.to_owned();
            fs::copy(&*package, root.join("run").join(&name))?;
            *package = Path::new("/run").join(name);
        }
        Ok(Ok(Self { folder, root, packages }))
    }

    /// Runs a command in the clean root.
    fn inside(&self, line: &str) -> Result<String> {
        Cmd::new(line).under(&format!("chroot {}", self.root.display())).output()
    }

    fn install(&self, revision: usize) -> Result<()> {
        self.inside(&format!("dpkg --install {}", self.packages[revision].display())).map(drop)
    }

    /// The arguments of each call of systemctl so far, one call a line.
    fn called(&self) -> Result<String> {
        Ok(fs::read_to_string(self.root.join("run/systemctl"))?)
    }

    /// The command of the installed unit, in the clean root, after its check command has found no fault.
    fn unit(&self) -> Result<String> {
        let unit = self.root.join("usr/lib/systemd/system/blkmqd.service");
        let unit = fs::read_to_string(unit)?;
        let line = |key| unit.lines().find_map(|line| line.strip_prefix(key)).ok_or("no command");
        self.inside(line("ExecStartPre=")?)?;
        Ok(format!("chroot {} {}", self.root.display(), line("ExecStart=")?))
    }

    /// Installs the other revision `times` times, and performs what its script asks of systemd.
    fn upgrade(&self, server: &mut Supervisor, client: &mut Child, times: u32) -> Result<()> {
        for done in 0..times {
            pause(1.0)?;
            let before = self.called()?;
            self.install(usize::from(done % 2 == 0))?;
            let called = self.called()?;
            if !called[before.len()..].contains("try-restart blkmqd.service") {
                return Err(format!("the script of an upgrade calls systemctl {called}").into());
            }
            if client.try_wait()?.is_some() {
                return Err(format!("the client has ended after {done} upgrades").into());
            }
            server.tell("stop")?;
            server.until("exit 0")?;
            server.tell("start")?;
            server.until("READY=1")?;
        }
        Ok(())
    }

    /// All files but [`OTHERS`].
    fn files(&self) -> Result<BTreeSet<String>> {
        let prune = OTHERS.map(|name| format!("-path ./{name}")).join(" -o ");
        let find = Cmd::new(&format!("find . ( {prune} ) -prune -o -print"));
        Ok(find.output_in(&self.root)?.lines().map(str::to_owned).collect())
    }

    /// A removal keeps the configuration, and a purge keeps nothing.
    fn removed(&self, before: &BTreeSet<String>) -> Result<()> {
        let left = || Ok::<_, Box<dyn std::error::Error>>(&self.files()? - before);
        self.inside("dpkg --remove blkmq")?;
        if !self.called()?.contains("disable --now blkmqd.socket blkmqd.service\n") {
            return Err("a removal leaves the units enabled".into());
        }
        let configuration = ["./etc/blkmq", "./etc/blkmq/serve.toml"].map(str::to_owned);
        if left()? != BTreeSet::from(configuration) {
            return Err(format!("left after a removal: {:?}", left()?).into());
        }
        self.inside("dpkg --purge blkmq")?;
        let (now, disk) = (self.files()?, self.root.join("var/lib/blkmq/disk.img"));
        if now != *before || !disk.exists() {
            return Err(format!("a purge left {:?}", &now - before).into());
        }
        Ok(())
    }
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
