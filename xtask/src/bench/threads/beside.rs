//! The environment of the runs of `bench --threads`: the file or the loop device, and the busy loops.
//!
//! All of it is removed when [`Beside`] is dropped, and if this program is killed: a [`Guard`] undoes it.

use super::plan::{Place, Plan};
use crate::Result;
use crate::guard::Guard;
use crate::shell::{Cmd, is_installed, target_dir};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Child;

/// Shell loops that use all the CPU time they can get.
const LOOPS: u32 = 2;
const LOOP: &str = "while :; do :; done";
/// A folder of memory.
const TMPFS: &str = "/dev/shm";

/// The environment; dropping it ends the loops and removes the file and the device.
pub(super) struct Beside {
    path: String,
    loops: Vec<Child>,
    /// Only absent while this is dropped.
    guard: Option<Guard>,
}

impl Beside {
    /// Makes the file or the device, and then starts the loops.
    ///
    /// # Errors
    /// If there is no such file, or no loop device can be made.
    pub(super) fn new(plan: &Plan) -> Result<Self> {
        let mut guard = Guard::new()?;
        let path = match &plan.place {
            Place::Given(path) => given(path, plan.size)?,
            Place::File => filled(&target_dir(), plan, &mut guard)?,
            Place::Loop => {
                can_loop()?;
                let file = filled(Path::new(TMPFS), plan, &mut guard)?;
                let line = format!("losetup --direct-io=on --find --show {}", file.display());
                let made = Cmd::new(&line).output();
                let made = made.map_err(|error| format!("no loop device can be made: {error}"))?;
                guard.note("loop", made.trim())?;
                made.trim().into()
            }
        };
        let path = plain(&path)?;
        let mut beside = Self { path, loops: Vec::new(), guard: Some(guard) };
        for _ in 0..if plan.busy { LOOPS } else { 0 } {
            beside.start_loop()?;
        }
        Ok(beside)
    }

    /// The path of the file or the device.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    fn start_loop(&mut self) -> Result<()> {
        let child = Cmd::new("sh -c").arg(LOOP).start(File::create("/dev/null")?)?;
        let id = child.id().to_string();
        self.loops.push(child);
        self.guard.as_mut().map_or(Ok(()), |guard| guard.note("process", &id))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // The guard ends the loops; here they are only waited for, so that none becomes a zombie.
        drop(self.guard.take());
        for child in &mut self.loops {
            let _ = child.wait();
        }
    }
}

/// The file or device given by an option.
fn given(path: &Path, size: u64) -> Result<PathBuf> {
    let about = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    if about.is_file() && about.len() < size << 20 {
        return Err(format!("{} has less than {size} MiB", path.display()).into());
    }
    Ok(path.to_owned())
}

/// A new file of random bytes in its own folder.
fn filled(parent: &Path, plan: &Plan, guard: &mut Guard) -> Result<PathBuf> {
    let folder = parent.join(format!("blkmq-threads-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    guard.note("folder", &folder.display().to_string())?;
    let file = folder.join("file");
    plain(&file)?;
    println!("{} MiB of random bytes: {}", plan.size, file.display());
    plan.fill(&file).output()?;
    Ok(file)
}

/// A path as text that fio, blkmq and the guard's shell all read as one path: fio splits at colons, the parameters of a
/// device are split at commas, and the shell splits at blanks.
fn plain(path: &Path) -> Result<String> {
    let text = path.to_str().filter(|text| !text.contains([',', ':', ' ']));
    let text = text.ok_or_else(|| format!("a comma, colon or blank in {}", path.display()))?;
    Ok(text.to_owned())
}

fn can_loop() -> Result<()> {
    if !is_installed("losetup") {
        return Err("--loop needs losetup, of util-linux".into());
    }
    if Cmd::new("id -u").output()?.trim() != "0" {
        return Err("--loop needs root, for losetup".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(line: &str) -> Plan {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Plan::parse(&args).unwrap()
    }

    #[test]
    fn busy_loops_end_with_their_owner() {
        let beside = Beside::new(&plan("--busy --file /dev/null")).unwrap();
        let ids: Vec<u32> = beside.loops.iter().map(Child::id).collect();
        assert_eq!(ids.len(), 2);
        let is_there = |id: &u32| Path::new("/proc").join(id.to_string()).exists();
        assert!(ids.iter().all(is_there));
        drop(beside);
        assert!(!ids.iter().any(is_there));
    }

    #[test]
    fn a_file_that_does_not_fit_is_refused() {
        let refused = |line: &str| Beside::new(&plan(line)).map(drop).unwrap_err().to_string();
        assert!(refused("--file /no/such/file").contains("/no/such/file"));
        let small = format!("--file {}/Cargo.toml", crate::shell::root().display());
        assert!(refused(&small).ends_with("has less than 1024 MiB"));
        assert!(plain(Path::new("/a,b")).is_err());
        assert!(plain(Path::new("/a:b")).is_err());
        assert_eq!(plain(Path::new("/dev/loop0")).unwrap(), "/dev/loop0");
    }
}
