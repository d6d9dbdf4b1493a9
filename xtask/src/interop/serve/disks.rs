//! Exports as disks: a file system of the kernel on one, and real clients of a device that changes, or that accepts no
//! writes.
//!
//! nbdfuse shows an export as a file, a loop device turns it into a disk, and ext4 is on that. A tree is copied and
//! deleted. The file system stays clean, and the copy equals the original.

use super::MIB;
use crate::Result;
use crate::interop::{Folder, Outcome};
use crate::measurement::pause;
use crate::serve::Server;
use crate::shell::{Cmd, is_installed, parse_json, root};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Child;

/// See above.
pub(in crate::interop) fn ext4() -> Result<Outcome> {
    let needed = ["losetup", "mkfs.ext4", "fsck.ext4"];
    // The tools of ext4 do not accept --version, only -V.
    let is_there =
        |name: &str| is_installed(name) || Cmd::new(&format!("{name} -V")).quiet_code().is_ok();
    if let Some(missing) = needed.into_iter().find(|name| !is_there(name)) {
        return Ok(Outcome::Skipped(format!("{missing} is not installed")));
    }
    if !Path::new("/dev/fuse").exists() {
        return Ok(Outcome::Skipped("there is no /dev/fuse".into()));
    }
    let server =
        Server::blkmq("serve-ext4", "memory,size=256,discard=1", "mq-deadline", "--export=")?;
    let fuse = match Fuse::mount(&server)? {
        Ok(fuse) => fuse,
        Err(why) => return Ok(Outcome::Skipped(format!("nbdfuse cannot mount here: {why}"))),
    };
    let disk = match Loop::of(&fuse.file()) {
        Ok(disk) => disk,
        Err(why) => return Ok(Outcome::Skipped(format!("no loop device can be made: {why}"))),
    };
    Cmd::new(&format!("mkfs.ext4 -q -F {}", disk.0)).output()?;
    let (tree, folder) = (root().join("crates"), server.path("mounted"));
    {
        let mounted = match Mounted::new(&disk.0, &folder) {
            Ok(mounted) => mounted,
            Err(why) => return Ok(Outcome::Skipped(format!("ext4 cannot be mounted: {why}"))),
        };
        for copy in ["one", "two"] {
            copied(&tree, &mounted.0.join(copy))?;
        }
        fs::remove_dir_all(mounted.0.join("one"))?;
    }
    checked(&disk)?;
    // The kernel has dropped its caches: the data comes from the server.
    let mounted = Mounted::new(&disk.0, &folder)?;
    same(&tree, &mounted.0.join("two"))?;
    drop(mounted);
    checked(&disk)?;
    drop((disk, fuse));
    Ok(Outcome::Passed)
}

fn copied(from: &Path, to: &Path) -> Result<()> {
    Cmd::new(&format!("cp -r {} {}", from.display(), to.display())).output().map(drop)
}

fn same(one: &Path, other: &Path) -> Result<()> {
    Cmd::new(&format!("diff -r --no-dereference {} {}", one.display(), other.display()))
        .output()
        .map(drop)
}

/// fsck finds nothing to repair.
fn checked(disk: &Loop) -> Result<()> {
    Cmd::new(&format!("fsck.ext4 -f -n {}", disk.0)).output().map(drop)
}

/// nbdfuse, which is unmounted and ends when this is dropped.
struct Fuse {
    child: Child,
    folder: PathBuf,
}

impl Fuse {
    /// The export as a file, or the reason of nbdfuse why not.
    fn mount(server: &Server) -> Result<std::result::Result<Self, String>> {
        let (folder, log) = (server.path("fuse"), server.path("fuse.log"));
        fs::create_dir_all(&folder)?;
        let line = format!("nbdfuse {} {}", folder.display(), server.uri(""));
        let child = Cmd::new(&line).start(File::create(&log)?)?;
        let mut fuse = Self { child, folder };
        while !fuse.file().exists() {
            if fuse.child.try_wait()?.is_some() {
                return Ok(Err(fs::read_to_string(&log)?.trim().to_owned()));
            }
            pause(0.02)?;
        }
        Ok(Ok(fuse))
    }

    fn file(&self) -> PathBuf {
        self.folder.join("nbd")
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        // Without a mount there is nothing to undo.
        let _ = Cmd::new(&format!("umount {}", self.folder.display())).quiet_code();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A loop device, released when this is dropped.
struct Loop(String);

impl Loop {
    fn of(file: &Path) -> Result<Self> {
        let made = Cmd::new(&format!("losetup --find --show {}", file.display())).output()?;
        Ok(Self(made.trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Cmd::new(&format!("losetup -d {}", self.0)).quiet_code();
    }
}

/// A mounted file system, unmounted when this is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(disk: &str, folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        Cmd::new(&format!("mount -t ext4 {disk} {}", folder.display())).output()?;
        Ok(Self(folder.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Cmd::new(&format!("umount {}", self.0.display())).quiet_code();
    }
}

/// nbdinfo and qemu-nbd ask for each export of a list, of which there are 200.
pub(crate) fn lists() -> Result<Outcome> {
    const EXPORTS: usize = 200;
    let exports: String = (0..EXPORTS).map(|n| format!(" --export=e{n},size=4096")).collect();
    let server = Server::blkmq("serve-lists", "memory,size=64", "none", exports.trim())?;
    let list = Cmd::new(&format!("nbdinfo --list --json {}", server.uri(""))).output()?;
    let found = parse_json(&list)?["exports"].as_array().map(Vec::len);
    if found != Some(EXPORTS) {
        return Err(format!("nbdinfo lists {found:?} exports").into());
    }
    if is_installed("qemu-nbd") {
        let socket = server.path("socket").display().to_string();
        let list = Cmd::new("qemu-nbd --list -k").arg(socket).output()?;
        if !list.contains(&format!("exports available: {EXPORTS}")) {
            return Err(format!("qemu-nbd lists {list}").into());
        }
    }
    Ok(Outcome::Passed)
}

/// A copy of a file that is cut short beneath the server fails, with nbdcopy and with qemu-img.
pub(crate) fn cut() -> Result<Outcome> {
    let image = Image::new("serve-cut", 16)?;
    let server = image.serve("serve-cut", "")?;
    fill(&image.0, 16)?;
    fs::OpenOptions::new().write(true).open(&image.0)?.set_len(MIB)?;
    let copy = server.path("copy").display().to_string();
    let uri = server.uri("");
    let clients = [
        ("nbdcopy", format!("nbdcopy {uri} {copy}")),
        ("qemu-img", format!("qemu-img convert -f raw -O raw {uri} {copy}")),
    ];
    for (client, line) in clients.iter().filter(|(client, _)| is_installed(client)) {
        if Cmd::new(line).quiet_code()? == Some(0) {
            return Err(format!("{client} has copied a file that is gone").into());
        }
    }
    let log = fs::read_to_string(server.path("log"))?;
    if !log.contains("operation=\"read\"") {
        return Err(format!("no failed read is in the log: {log}").into());
    }
    Ok(Outcome::Passed)
}

/// nbdcopy of an empty image leaves a file without data as it is, and makes a file with data sparse.
pub(crate) fn thin() -> Result<Outcome> {
    for has_data in [false, true] {
        let image = Image::new("serve-thin", 256)?;
        let server = image.serve("serve-thin", "")?;
        if has_data {
            fill(&image.0, 256)?;
        }
        let empty = server.path("empty");
        File::create(&empty)?.set_len(256 * MIB)?;
        Cmd::new(&format!("nbdcopy {} {}", empty.display(), server.uri(""))).run()?;
        let stored = fs::metadata(&image.0)?.blocks() * 512;
        if stored > MIB {
            return Err(format!("{stored} bytes are stored of an empty image").into());
        }
    }
    Ok(Outcome::Passed)
}

/// Clients learn that a device is read-only, for whatever reason: an option, the server behind a gateway, and a loop
/// device, if run as root.
pub(crate) fn read_only() -> Result<Outcome> {
    let image = Image::new("serve-read-only", 16)?;
    is_read_only(&image.serve("serve-option", ",readonly=1")?)?;
    if is_installed("nbdkit") {
        let peer = Server::start("serve-peer", "nbdkit -r -f -U SOCKET memory 16M")?;
        is_read_only(&Server::blkmq("serve-gateway", &peer.uri(""), "none", "--export=")?)?;
    }
    if is_installed("nbd-server") {
        let folder = Folder::new("nbd-server")?;
        let config = folder.path().join("nbd-server.conf");
        let socket = Server::folder("serve-peer").join("socket");
        let export = format!("[disk]\nexportname = {}\nreadonly = true\n", image.0.display());
        fs::write(&config, format!("[generic]\nunixsock = {}\n{export}", socket.display()))?;
        let line = format!("nbd-server -d -C {}", config.display());
        let peer = Server::start_unasked("serve-peer", &line)?;
        is_read_only(&Server::blkmq("serve-gateway", &peer.uri("disk"), "none", "--export=")?)?;
    } else {
        println!("nbd-server: SKIPPED, it is not installed");
    }
    let (is_attached, disk) =
        Cmd::new(&format!("losetup --read-only --find --show {}", image.0.display())).attempt()?;
    if !is_attached {
        println!("skipped: no loop device here");
        return Ok(Outcome::Passed);
    }
    let device = format!("uring:{}", disk.trim());
    let told =
        Server::blkmq("serve-loop", &device, "none", "--export=").and_then(|it| is_read_only(&it));
    Cmd::new(&format!("losetup --detach {}", disk.trim())).run()?;
    told.map(|()| Outcome::Passed)
}

fn is_read_only(server: &Server) -> Result<()> {
    let report = Cmd::new(&format!("nbdinfo --json {}", server.uri(""))).output()?;
    let report = &parse_json(&report)?["exports"][0];
    let can = ["can_trim", "can_zero", "can_fast_zero"].map(|key| report[key] == true);
    if report["is_read_only"] != true || can.contains(&true) {
        return Err(format!("not announced as read-only: {report}").into());
    }
    Ok(())
}

/// A file of this many MiB without data, which is removed when this is dropped.
struct Image(PathBuf);

impl Image {
    fn new(name: &str, mib: u64) -> Result<Self> {
        let file = std::env::temp_dir().join(format!("blkmq-{name}-{}.img", std::process::id()));
        File::create(&file)?.set_len(mib * MIB)?;
        Ok(Self(file))
    }

    fn serve(&self, name: &str, options: &str) -> Result<Server> {
        let device = format!("uring:{}{options}", self.0.display());
        Server::blkmq(name, &device, "mq-deadline", "--export=")
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // A leftover file does no harm.
        let _ = fs::remove_file(&self.0);
    }
}

/// Writes data to the file, bypassing the server.
fn fill(file: &Path, mib: u64) -> Result<()> {
    let to = format!("of={}", file.display());
    let line = format!("dd if=/dev/urandom bs=1M count={mib} conv=notrunc,fsync status=none");
    Cmd::new(&line).arg(to).run()
}
