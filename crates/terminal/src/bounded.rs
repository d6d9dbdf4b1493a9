//! Reads files named on a command line, up to a maximum length. It ignores the length that the file system reports:
//! pipes report none, and `/dev/zero` reports 0.

use crate::UsageError;
use std::fs::File;
use std::io::Read;

/// Reads the file at `path`, which holds a `kind` of at most `most` bytes.
///
/// # Errors
/// If the file cannot be read or is longer. At most `most` bytes are held in memory.
pub fn read(path: &str, kind: &str, most: u64) -> Result<Vec<u8>, UsageError> {
    let refuse = |what: String| UsageError::new(what).at(path);
    let file = File::open(path).map_err(|e| refuse(e.to_string()))?;
    if file.metadata().is_ok_and(|it| it.is_dir()) {
        return Err(refuse(format!("a directory, not {kind}")));
    }
    up_to(file, path, kind, most)
}

/// Reads standard input, which holds a `kind` of at most `most` bytes.
///
/// # Errors
/// See [`read`].
pub fn standard_input(kind: &str, most: u64) -> Result<Vec<u8>, UsageError> {
    up_to(std::io::stdin().lock(), "standard input", kind, most)
}

fn up_to(from: impl Read, name: &str, kind: &str, most: u64) -> Result<Vec<u8>, UsageError> {
    let refuse = |what: String| UsageError::new(what).at(name);
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes).map_err(|e| refuse(e.to_string()))?;
    if bytes.len() as u64 > most {
        let most = most >> 20;
        return Err(refuse(format!("too long for {kind}; accepted: up to {most} MiB")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn a_file_without_end_is_refused() {
        let error = read("/dev/zero", "a job file", 1 << 20).expect_err("it has no end");
        let expected = "/dev/zero: too long for a job file; accepted: up to 1 MiB";
        assert_eq!(error.to_string(), expected);
        assert!(read("/dev/null", "a job file", 1 << 20).expect("it can be read").is_empty());
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let error = read("/no/such/file", "a job file", 1).expect_err("it is not there");
        assert!(error.to_string().starts_with("/no/such/file: "), "{error}");
    }
}
