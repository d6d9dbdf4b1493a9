//! Files for a report, opened before the first run, so that an hour of measuring does not end in "no such directory".
//!
//! An existing file keeps its contents until the report overwrites it; a file created for a report that is never
//! written is removed. If writing fails, no partial report is left: the file is removed if it was created here, and
//! truncated otherwise.

use super::model::Report;
use super::{Format, render};
use blkmq_terminal::output::quietly;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A place for a report, ready to be written to.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    format: Format,
    file: File,
    /// Whether this process created the file.
    is_created: bool,
    /// Whether a report has been written to the file.
    is_written: bool,
    /// The length in bytes of reports that are kept before the next one.
    kept: u64,
}

/// A file that could not be opened or written.
#[derive(Debug)]
pub struct OutputError {
    path: PathBuf,
    cause: io::Error,
    /// The fate of the file.
    left: Left,
}

/// The fate of a file that a report could not be written to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Left {
    /// The file is unchanged, or cannot contain a partial report.
    Alone,
    /// The file was removed.
    Removed,
    /// The file was truncated.
    Emptied,
    /// The file may contain a partial report.
    Part,
}

impl fmt::Display for OutputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write the report to '{}': {}", self.path.display(), self.cause)?;
        f.write_str(match self.left {
            Left::Alone => "",
            Left::Removed => "; the file is removed",
            Left::Emptied => "; the file is empty now",
            Left::Part => "; the file may hold a part of it",
        })
    }
}

impl std::error::Error for OutputError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

/// Opens `path` for a report in the format implied by its name (`.json`, `.csv`, `.html`, otherwise text). Writes
/// nothing, and does not change an existing file.
///
/// # Errors
/// If the file cannot be opened for writing.
pub fn open(path: &Path) -> Result<Output, OutputError> {
    open_as(path, Format::of_path(path).unwrap_or(Format::Normal))
}

/// Opens `path` for a report in the given format.
///
/// # Errors
/// If the file cannot be opened for writing.
pub fn open_as(path: &Path, format: Format) -> Result<Output, OutputError> {
    let failed = |cause| OutputError { path: path.to_owned(), cause, left: Left::Alone };
    let mut options = OpenOptions::new();
    options.write(true);
    let (file, is_created) = match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            (options.open(path).map_err(failed)?, false)
        }
        created => (created.map_err(failed)?, true),
    };
    Ok(Output { path: path.to_owned(), format, file, is_created, is_written: false, kept: 0 })
}

impl Output {
    /// Replaces the contents of the file by the report, except for reports that were [added](Self::add). May be called
    /// after each run, so that finished runs are saved.
    ///
    /// # Errors
    /// If the file cannot be written. It is then removed or truncated, and the output is unusable.
    pub fn write(&mut self, report: &Report) -> Result<(), OutputError> {
        let text = render(report, self.format);
        self.write_text(&text)
    }

    /// Writes a report that is kept: later ones follow it.
    ///
    /// # Errors
    /// See [`write`](Self::write).
    pub fn add(&mut self, report: &Report) -> Result<(), OutputError> {
        let mut text = render(report, self.format);
        if self.format == Format::Normal {
            text.push('\n');
        }
        self.write_text(&text)?;
        self.kept += text.len() as u64;
        Ok(())
    }

    /// Like [`write`](Self::write), for a rendered report.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_text(&mut self, text: &str) -> Result<(), OutputError> {
        self.is_written = true;
        quietly(self.replace(text.as_bytes())).map_err(|cause| {
            let left = self.clear();
            OutputError { path: self.path.clone(), cause, left }
        })
    }

    /// Removes or empties the file after a failure.
    fn clear(&self) -> Left {
        if !self.file.metadata().is_ok_and(|it| it.is_file()) {
            return Left::Alone;
        }
        // Truncated first: the name may be gone, or belong to another file.
        let emptied = self.file.set_len(0).is_ok();
        if self.is_created && fs::remove_file(&self.path).is_ok() {
            Left::Removed
        } else if emptied {
            Left::Emptied
        } else {
            Left::Part
        }
    }

    fn replace(&mut self, text: &[u8]) -> io::Result<()> {
        use std::io::{Seek, SeekFrom};
        // A pipe or a terminal can be neither rewound nor truncated; there a report follows the previous one.
        if self.file.metadata()?.is_file() {
            self.file.set_len(self.kept)?;
            self.file.seek(SeekFrom::Start(self.kept))?;
        }
        self.file.write_all(text)?;
        self.file.flush()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.is_created && !self.is_written {
            // A leftover empty file is harmless, so an error is ignored.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("blkmq-output-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_typo_is_found_before_the_run() {
        let error = open(Path::new("/nonexistent/report.json")).unwrap_err();
        let text = error.to_string();
        let start = "cannot write the report to '/nonexistent/report.json': ";
        assert!(text.starts_with(start) && text.len() > start.len(), "{text}");
    }

    #[test]
    fn an_existing_file_is_kept_until_it_is_replaced() {
        let path = path("kept.csv");
        let old = "x".repeat(100_000);
        fs::write(&path, &old).unwrap();
        let mut output = open(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), old);
        for report in [sample::comparison(), sample::single()] {
            output.write(&report).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), render(&report, Format::Csv));
        }
        drop(output);
        assert!(path.exists());
        drop(open(&path).unwrap());
        assert!(path.exists(), "a file that was there before is not ours to remove");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_that_was_never_written_goes_again() {
        let path = path("unused.html");
        let output = open(&path).unwrap();
        assert!(path.exists());
        drop(output);
        assert!(!path.exists());
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let full = Path::new("/dev/full");
        if !full.exists() {
            println!("SKIP a_full_disk_is_an_error: no /dev/full");
            return;
        }
        let mut output = open_as(full, Format::Json).unwrap();
        let error = output.write(&sample::single()).unwrap_err().to_string();
        assert!(error.starts_with("cannot write the report to '/dev/full': "), "{error}");
        assert!(!error.contains("; the file"), "a device is left alone: {error}");
        assert!(full.exists());
    }

    #[test]
    fn half_a_report_does_not_stay() {
        let path = path("half.json");
        // A file that cannot be written to: it fails as a full disk does.
        let unwritable = |is_created| {
            fs::write(&path, "half").unwrap();
            let file = File::open(&path).unwrap();
            Output {
                path: path.clone(),
                format: Format::Json,
                file,
                is_created,
                is_written: true,
                kept: 0,
            }
        };
        let error = unwritable(true).write(&sample::single()).unwrap_err().to_string();
        assert!(error.ends_with("; the file is removed") && !path.exists(), "{error}");
        let error = unwritable(false).write(&sample::single()).unwrap_err().to_string();
        assert!(error.ends_with("; the file may hold a part of it"), "{error}");
        fs::remove_file(&path).unwrap();
    }
}
