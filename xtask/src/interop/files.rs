//! Contents of real storage: what blkmq writes to a file or block device past the page cache it reads back.

use super::Outcome;
use crate::Result;
use crate::shell::{BLKMQ, Cmd, root};
use std::path::{Path, PathBuf};

/// MiB.
const SIZE: u32 = 64;

/// A file under the build folder, gone when this is.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Result<Self> {
        let folder = root().join("target/interop");
        std::fs::create_dir_all(&folder)?;
        Ok(Self(folder.join(name)))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left over is overwritten next time.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A loop device around a file; released when this is dropped.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Cmd::new(&format!("losetup -d {}", self.0)).output();
    }
}

/// Random reads and writes, under each scheduler, each block checked; on a file, which is made here.
pub(super) fn contents() -> Result<Outcome> {
    let file = Scratch::new("contents")?;
    verify(&file.0, &format!(",size={SIZE}"))
}

/// The same on a block device.
pub(super) fn loop_contents() -> Result<Outcome> {
    let file = Scratch::new("loop")?;
    std::fs::File::create(&file.0)?.set_len(u64::from(SIZE) << 20)?;
    let made = Cmd::new(&format!("losetup --find --show {}", file.0.display())).output();
    match made {
        Ok(device) => {
            let device = Loop(device.trim().to_owned());
            verify(Path::new(&device.0), "")
        }
        Err(why) => Ok(Outcome::Skipped(format!("no loop device can be made: {why}"))),
    }
}

fn verify(path: &Path, parameters: &str) -> Result<Outcome> {
    let list = Cmd::new(&format!("{BLKMQ} doc")).output()?;
    let schedulers = list.lines().skip_while(|line| !line.starts_with("Schedulers"));
    let schedulers = schedulers.skip(1).take_while(|line| !line.trim().is_empty());
    let names: Vec<&str> = schedulers.filter_map(|line| line.split_whitespace().next()).collect();
    for scheduler in names {
        let command = format!(
            "{BLKMQ} bench --device uring:{}{parameters} --scheduler {scheduler} --threads 1 --rw=randrw --bs=4k \
             --iodepth=32 --size={SIZE}m --verify=crc32c --output-format=json",
            path.display()
        );
        match Cmd::new(&command).output() {
            Ok(output) => {
                let report = super::parse(&output)?;
                let verify = &report["jobs"][0]["blkmq"]["verify"];
                let errors = verify["errors"].as_u64();
                if errors != Some(0) || verify["verified"].as_u64().unwrap_or(0) == 0 {
                    return Err(format!("{scheduler} on {}: {verify}", path.display()).into());
                }
            }
            // Containers often forbid io_uring.
            Err(why) if why.to_string().contains("io_uring") => {
                return Ok(Outcome::Skipped(why.to_string()));
            }
            Err(why) => return Err(why),
        }
    }
    Ok(Outcome::Passed)
}
