//! A file system of the kernel on an export: nbdfuse shows the export as a file, a loop device turns it into a disk,
//! and ext4 is on that. A tree is copied and deleted; the file system stays clean, and the copy equals the original.

use super::super::Outcome;
use crate::Result;
use crate::fio::pause;
use crate::nbd::Server;
use crate::shell::{Cmd, is_installed, root};
use std::fs::{self, File};
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
