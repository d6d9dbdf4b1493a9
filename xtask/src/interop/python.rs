//! Programs in Python that no Debian package has, in an environment of their own below the target folder.
//!
//! Their versions are pinned in `python.txt`, so that a check means the same tomorrow.

use crate::Result;
use crate::shell::{Cmd, target_dir};
use std::fs;
use std::path::PathBuf;

const PINNED: &str = include_str!("python.txt");

/// The folder with the programs of the environment, which is made if it is missing; or why it cannot be made here.
///
/// # Errors
/// If the target folder cannot be written to.
pub(super) fn programs() -> Result<std::result::Result<PathBuf, String>> {
    let folder = target_dir().join("tools/interop-python");
    let (programs, installed) = (folder.join("bin"), folder.join("pinned.txt"));
    if fs::read_to_string(&installed).is_ok_and(|text| text == PINNED) {
        return Ok(Ok(programs));
    }
    // One that was interrupted, or has other versions.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let list = folder.join("wanted.txt");
    fs::write(&list, PINNED)?;
    let made = Cmd::new("python3 -m venv").arg(folder.to_string_lossy()).output();
    let install = "-m pip install --quiet --disable-pip-version-check --requirement";
    let pip = install
        .split(' ')
        .fold(Cmd::new("").arg(programs.join("python3").to_string_lossy()), Cmd::arg);
    match made.and_then(|_| pip.arg(list.to_string_lossy()).output()) {
        Ok(_) => {
            fs::write(installed, PINNED)?;
            Ok(Ok(programs))
        }
        Err(lack) => {
            let text = lack.to_string();
            let last = text.trim_end().lines().next_back().unwrap_or_default();
            Ok(Err(format!("the programs of python.txt cannot be installed: {last}")))
        }
    }
}
