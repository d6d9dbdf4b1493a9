//! Contents of real storage: blkmq reads back the data that it writes to a file or block device past the page cache.

use super::Outcome;
use crate::Result;
use crate::shell::{BLKMQ, Cmd, parse_json, passed_tests, target_dir};
use std::path::{Path, PathBuf};

/// MiB.
const SIZE: u32 = 64;

/// A file under the build folder, removed when this is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Result<Self> {
        let folder = target_dir().join("interop");
        std::fs::create_dir_all(&folder)?;
        Ok(Self(folder.join(name)))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A leftover file is overwritten next time.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A loop device around a file; released when this is dropped.
struct Loop {
    device: String,
    _file: Scratch,
}

impl Loop {
    /// A new loop device, or the reason why none can be created: it needs root and the driver.
    fn new(name: &str) -> Result<std::result::Result<Self, String>> {
        let file = Scratch::new(name)?;
        std::fs::File::create(&file.0)?.set_len(u64::from(SIZE) << 20)?;
        let made = Cmd::new(&format!("losetup --find --show {}", file.0.display())).output();
        Ok(match made {
            Ok(device) => Ok(Self { device: device.trim().to_owned(), _file: file }),
            Err(why) => Err(format!("no loop device can be made: {why}")),
        })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Cmd::new(&format!("losetup -d {}", self.device)).output();
    }
}

/// Random reads and writes under each scheduler, with each block checked, on a file that is created here.
pub(super) fn contents() -> Result<Outcome> {
    let file = Scratch::new("contents")?;
    verify(&file.0, &format!(",size={SIZE}"))
}

/// Like [`contents`], but on a block device.
pub(super) fn loop_contents() -> Result<Outcome> {
    match Loop::new("loop")? {
        Ok(made) => verify(Path::new(&made.device), ""),
        Err(why) => Ok(Outcome::Skipped(why)),
    }
}

/// The tests that `cargo test` leaves out because they make a loop device.
pub(super) fn loop_tests() -> Result<Outcome> {
    // Only to find out whether the tests can run.
    if let Err(why) = Loop::new("probe")? {
        return Ok(Outcome::Skipped(why));
    }
    let tests =
        Cmd::new("cargo test -p blkmq-uring --test all -- contents:: --ignored --show-output");
    println!("$ {tests}");
    let output = tests.output()?;
    print!("{output}");
    ran(&output)
}

/// The outcome of the tests that printed this: without io_uring, they print so and return.
fn ran(output: &str) -> Result<Outcome> {
    if let Some(skipped) = output.lines().find(|line| line.starts_with("skipped ")) {
        return Ok(Outcome::Skipped(skipped.to_owned()));
    }
    match output.lines().find_map(passed_tests) {
        None | Some(0) => Err("no test ran".into()),
        Some(_) => Ok(Outcome::Passed),
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
                let report = parse_json(&output)?;
                let verify = &report["jobs"][0]["blkmq"]["verify"];
                let errors = verify["errors"].as_u64();
                if errors != Some(0) || verify["verified"].as_u64().unwrap_or(0) == 0 {
                    return Err(format!("{scheduler} on {}: {verify}", path.display()).into());
                }
            }
            Err(why) if is_forbidden(&why.to_string()) => {
                return Ok(Outcome::Skipped(why.to_string()));
            }
            Err(why) => return Err(why),
        }
    }
    Ok(Outcome::Passed)
}

/// Returns whether `error` means that io_uring is forbidden here, as in many containers, or too old.
fn is_forbidden(error: &str) -> bool {
    error.contains("io_uring is not available here")
        || error.contains("the kernel's io_uring lacks")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_io_uring_is_a_skip() {
        let told = "target/dist/blkmq bench: exit status: 1: error: io_uring is not available here (EPERM)";
        assert!(is_forbidden(told));
        assert!(is_forbidden(
            "error: the kernel's io_uring lacks fsync; Linux 5.6 and later have them"
        ));
        assert!(!is_forbidden(
            "blkmq bench --device uring:/tmp/a: exit status: 1: 3 blocks differ"
        ));
    }

    #[test]
    fn tests_that_skipped_did_not_pass() {
        let passed = "running 2 tests\ntest result: ok. 2 passed; 0 failed";
        assert!(matches!(ran(passed), Ok(Outcome::Passed)));
        let skipped = format!("skipped a_test: io_uring is not available here\n{passed}");
        assert!(matches!(ran(&skipped), Ok(Outcome::Skipped(_))));
        assert!(ran("test result: ok. 0 passed; 0 failed").is_err());
        assert!(ran("").is_err());
    }
}
