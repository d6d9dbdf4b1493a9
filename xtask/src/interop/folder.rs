//! A folder for the files of one check.

use crate::Result;
use crate::shell::target_dir;
use std::fs;
use std::path::{Path, PathBuf};

/// A folder below the target folder, removed when this is dropped.
pub(super) struct Folder(PathBuf);

impl Folder {
    /// # Errors
    /// If the target folder cannot be written to.
    pub(super) fn new(name: &str) -> Result<Self> {
        let folder = target_dir().join("interop").join(name);
        // The files of a folder left by an earlier check would be mixed with ours.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A leftover folder is replaced next time.
        let _ = fs::remove_dir_all(&self.0);
    }
}
