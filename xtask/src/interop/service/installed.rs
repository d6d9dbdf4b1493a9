//! The Debian package in a clean root: installed, checked, served as in its unit, upgraded while a client reads back
//! all that it wrote, removed and purged.
//!
//! No systemd runs there. A stand-in holds the socket, and the scripts of the package call a `systemctl` that records
//! its arguments.

use super::super::Outcome;
use super::super::folder::Folder;
use super::release::lack;
use super::supervised::{NOTIFY, Supervisor};
use crate::Result;
use crate::dist::Release;
use crate::fio::pause;
use crate::shell::{BLKMQ, Cmd, is_installed, parse_json};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Child;

/// Upgrades in the check.
const UPGRADES: u32 = 3;
/// Writes of 4 KiB for each upgrade, to as many blocks.
const WRITES: u32 = 15_000;
/// Writes in a second: an upgrade takes about two of them.
const RATE: u32 = 4_000;
/// Paths of files that are not the package's own: those of dpkg, of the running system, and the disks.
const OTHERS: [&str; 7] =
    ["dev", "proc", "run", "var/lib/dpkg", "var/log", "var/lib/blkmq", NOTIFY];

/// A clean root, and a package of two revisions.
struct Site {
    folder: Folder,
    root: PathBuf,
    packages: [PathBuf; 2],
}

pub(in crate::interop) fn check() -> Result<Outcome> {
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
    let load = format!("--rw=randwrite --bs=4k --iodepth=16 --size={size}k --rate_iops={RATE}");
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
