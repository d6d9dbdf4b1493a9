//! A copy of the workspace, in which the sources may be changed.

use crate::Result;
use crate::shell::{Cmd, root, target_dir};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub(super) struct Copy {
    pub(super) folder: PathBuf,
}

impl Copy {
    /// Brings the copy to the state of the workspace. A file that is the same keeps its time, so that nothing is built
    /// again for its sake.
    ///
    /// # Errors
    /// If git cannot list the files, or one cannot be copied.
    pub(super) fn new() -> Result<Self> {
        let copy = Self { folder: target_dir().join("mutants/tree") };
        let list = Cmd::new("git ls-files --cached --others --exclude-standard").output()?;
        let mut files = BTreeSet::new();
        for file in list.lines() {
            // A deleted file is listed until that is committed.
            let Ok(content) = std::fs::read(root().join(file)) else { continue };
            copy.write(file, &content)?;
            files.insert(copy.folder.join(file));
        }
        remove_others(&copy.folder, &files)?;
        Ok(copy)
    }

    /// Makes `content` that of a file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn write(&self, file: &str, content: &[u8]) -> Result<()> {
        let path = self.folder.join(file);
        if std::fs::read(&path).is_ok_and(|known| known == content) {
            return Ok(());
        }
        std::fs::create_dir_all(path.parent().unwrap_or(&self.folder))?;
        Ok(std::fs::write(path, content)?)
    }

    /// # Errors
    /// If it is not there, or no text.
    pub(super) fn read(&self, file: &str) -> Result<String> {
        let path = self.folder.join(file);
        Ok(std::fs::read_to_string(&path)
            .map_err(|error| format!("{}: {error}", path.display()))?)
    }
}

fn remove_others(folder: &Path, files: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, files)?;
        } else if !files.contains(&path) {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}
