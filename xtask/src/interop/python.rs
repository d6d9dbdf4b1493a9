//! Python programs that no Debian package has, in their own environment below the target folder.
//!
//! Their versions are pinned in `python.txt`, so that a check means the same tomorrow.

use crate::Result;
use crate::python::environment;
use std::path::PathBuf;

/// The folder with the programs of the environment, which is created if it is missing; or the reason why it cannot be
/// created here.
///
/// # Errors
/// If the target folder cannot be written to.
pub(super) fn programs() -> Result<std::result::Result<PathBuf, String>> {
    environment("tools/interop-python", include_str!("python.txt"))
}
