//! The engine and the file of a job, as its options name them; [`target`](super::target) makes a device of them.

use super::engine::Engine;
use crate::error::UsageError;
use blkmq_lab::workload::{Amount, Job};

/// The options about files of one job.
#[derive(Clone, Debug)]
pub struct FileDraft {
    /// The name of the job, for messages and names of files.
    pub job: String,
    /// `ioengine`.
    pub engine: Option<Engine>,
    /// `filename`.
    pub filename: Option<String>,
    /// `directory`.
    pub directory: Option<String>,
    /// `filesize`, in bytes.
    pub filesize: Option<u64>,
    /// `allow_file_create`.
    pub may_create: bool,
    /// `direct` or `buffered`, if one of them was given.
    pub direct: Option<bool>,
}

impl Default for FileDraft {
    fn default() -> Self {
        Self {
            job: String::new(),
            engine: None,
            filename: None,
            directory: None,
            filesize: None,
            may_create: true,
            direct: None,
        }
    }
}

impl FileDraft {
    /// The file that the `threads` threads of the job use; `None` if the options name none, or the engine is `null`.
    ///
    /// # Errors
    /// If they name several.
    pub fn path(&self, threads: u32) -> Result<Option<String>, UsageError> {
        if self.engine.is_some_and(|engine| !engine.is_storage) {
            return Ok(None);
        }
        let folder = match &self.directory {
            None => None,
            Some(folder) => Some(single(folder, "directory")?),
        };
        let path = match (&self.filename, folder) {
            (None, None) => return Ok(None),
            (Some(name), None) => single(name, "filename")?,
            (Some(name), Some(folder)) => format!("{folder}/{}", single(name, "filename")?),
            (None, Some(_)) if threads > 1 => {
                let text = format!(
                    "directory without filename: each of the {threads} threads would have a file of its own, and a run \
                     has one queue around one device; accepted: filename, which all threads share, or --device"
                );
                return Err(self.at(text));
            }
            (None, Some(folder)) => format!("{folder}/{}.0.0", self.job),
        };
        if path.contains(',') {
            return Err(self.at(format!("filename={path}: accepted: a path without a comma")));
        }
        Ok(Some(path))
    }

    /// Cuts the region of `job` to the file, of which shares are then taken; as in fio, `filesize` bounds `size`.
    pub fn bound(&self, job: &mut Job) {
        let Some(filesize) = self.filesize else { return };
        let block = job.rw.directions().iter().map(|way| job.bs[*way].min()).min().unwrap_or(1);
        let bytes = |amount: Amount| amount.bytes(filesize, block.into());
        job.offset = Amount::Bytes(bytes(job.offset));
        job.offset_increment = Amount::Bytes(bytes(job.offset_increment));
        let room = filesize.saturating_sub(bytes(job.offset));
        job.size = Some(Amount::Bytes(job.size.map_or(room, bytes).min(room)));
    }

    /// A refusal with the name of the job in front.
    pub fn at(&self, text: String) -> UsageError {
        UsageError::new(text).at(format!("job '{}'", self.job))
    }
}

/// The only path in fio's list of paths, which colons separate unless a backslash stands before them.
fn single(list: &str, option: &str) -> Result<String, UsageError> {
    let mut path = String::new();
    let mut rest = list.chars();
    while let Some(c) = rest.next() {
        match (c, rest.clone().next()) {
            ('\\', Some(':')) => path.extend(rest.next()),
            (':', _) => {
                let text = format!(
                    "{option}={list} names several: not built; accepted: one, with '\\:' for a colon in its name"
                );
                return Err(UsageError::new(text));
            }
            (c, _) => path.push(c),
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft() -> FileDraft {
        FileDraft { job: "a".into(), ..FileDraft::default() }
    }

    fn named(filename: Option<&str>, directory: Option<&str>) -> FileDraft {
        let text = |text: Option<&str>| text.map(str::to_owned);
        FileDraft { filename: text(filename), directory: text(directory), ..draft() }
    }

    #[test]
    fn names_are_made_as_in_fio() {
        let path = |name, folder| named(name, folder).path(1).expect("one file");
        assert_eq!(path(None, None), None);
        assert_eq!(path(Some("/dev/sdb"), None).as_deref(), Some("/dev/sdb"));
        assert_eq!(path(Some("x"), Some("/tmp")).as_deref(), Some("/tmp/x"));
        assert_eq!(path(None, Some("/tmp")).as_deref(), Some("/tmp/a.0.0"));
        assert_eq!(path(Some(r"pci-0\:1f"), None).as_deref(), Some("pci-0:1f"));
    }

    #[test]
    fn several_files_are_refused_and_null_has_none() {
        let refusal =
            |draft: FileDraft, threads| draft.path(threads).expect_err("several").to_string();
        assert!(
            refusal(named(Some("a:b"), None), 1)
                .starts_with("filename=a:b names several: not built")
        );
        assert!(
            refusal(named(None, Some("/t")), 2)
                .starts_with("job 'a': directory without filename: each of the 2")
        );
        assert!(refusal(named(Some("a,b"), None), 1).contains("a path without a comma"));
        let engine = Engine::named("null").ok();
        assert_eq!(FileDraft { engine, ..named(Some("a:b"), None) }.path(1), Ok(None));
    }

    #[test]
    fn the_size_of_a_file_bounds_the_region_in_it() {
        let sized = |size, offset| {
            let mut job = Job { size, offset, ..Job::default() };
            FileDraft { filesize: Some(65_536), ..draft() }.bound(&mut job);
            job.size
        };
        let bytes = |n| Some(Amount::Bytes(n));
        assert_eq!(sized(None, Amount::ZERO), bytes(65_536));
        assert_eq!(sized(bytes(1 << 20), Amount::ZERO), bytes(65_536));
        assert_eq!(sized(bytes(32_768), Amount::ZERO), bytes(32_768));
        assert_eq!(sized(None, Amount::Bytes(16_384)), bytes(49_152));
        assert_eq!(sized(Some(Amount::Percent(50)), Amount::Percent(25)), bytes(32_768));
    }
}
