//! The forms of a release: reproducible, and usable on a machine without this repository. The Debian package is
//! installed in a clean root, checked, served as in its unit, upgraded while a client reads back its writes, removed
//! and purged.
//!
//! No systemd runs there. A stand-in holds the socket, and the scripts of the package call a `systemctl` that records
//! its arguments.

use super::service::{NOTIFY, Supervisor};
use super::{Folder, Outcome};
use crate::Result;
use crate::dist::Release;
use crate::measurement::pause;
use crate::shell::{BLKMQ, Cmd, is_installed, parse_json};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Child;

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
pub(crate) fn lack() -> Option<String> {
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
