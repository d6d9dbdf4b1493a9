//! [`Options`]: the description of a file, its parameters, and their parsing.

use super::OpenError;
use blkmq_core::{Given, Parameter, RealDevice, Unit};
use blkmq_engine::MAX_HW_QUEUE_DEPTH;
use std::path::PathBuf;

/// The most requests in progress: enough for a busy disk, and below the thread limit of most systems.
const MOST: u16 = 1024;
/// The largest file: 2^63 bytes, the limit of offsets, in whole MiB.
const MAX_BYTES: u64 = ((1 << 43) - 1) << 20;

/// The options for opening a file.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Requests in progress at a time, 1 to 1024.
    pub threads: u16,
    /// Hardware queues, 1 to 1024.
    pub hw_queues: u16,
    /// Requests in flight per hardware queue, 1 to [`MAX_HW_QUEUE_DEPTH`].
    pub hw_queue_depth: u32,
    /// Create or extend the file to at least this many bytes.
    pub size_bytes: Option<u64>,
    /// Open for reading only.
    pub readonly: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { threads: 16, hw_queues: 1, hw_queue_depth: 128, size_bytes: None, readonly: false }
    }
}

impl Options {
    /// Parses `PATH[,KEY=VALUE]...` with the parameters of [`FILE`].
    ///
    /// # Errors
    /// For the first word that is not a pair, or that has an unknown name or an invalid value.
    pub fn parse(text: &str) -> Result<(PathBuf, Self), OpenError> {
        let mut words = text.split(',').map(str::trim);
        let path = words.next().unwrap_or_default();
        if path.is_empty() {
            return Err(OpenError::Syntax(String::new()));
        }
        let mut options = Self::default();
        for word in words.filter(|word| !word.is_empty()) {
            let pair = word.split_once('=').ok_or_else(|| OpenError::Syntax(word.into()))?;
            let given = Given::find(FILE.parameters, pair.0.trim(), pair.1.trim())?;
            match given.name {
                "threads" => options.threads = given.number(1..=MOST)?,
                "hw_queues" => options.hw_queues = given.number(1..=MOST)?,
                "hw_queue_depth" => {
                    options.hw_queue_depth = given.number(1..=MAX_HW_QUEUE_DEPTH)?;
                }
                "size" => options.size_bytes = Some(given.bytes(Unit::MIB, MAX_BYTES)?),
                _ => options.readonly = given.flag()?,
            }
        }
        Ok((path.into(), options))
    }
}

const fn parameter(name: &'static str, default: &'static str, help: &'static str) -> Parameter {
    Parameter { name, default, help }
}

/// The description for programs that offer devices by name. Linux uses the crate `blkmq-uring` instead.
pub const FILE: RealDevice = RealDevice {
    name: "threads",
    target: "PATH",
    summary: "a file by threads that read and write",
    parameters: &[
        parameter("threads", "16", "requests that are done at a time, each by a thread, 1 to 1024"),
        parameter("hw_queues", "1", "hardware queues, which share the threads, 1 to 1024"),
        parameter("hw_queue_depth", "128", "requests in flight per hardware queue, 1 to 10240"),
        parameter("size", "", "create or extend the file to at least so many MiB (or 16m, 1g)"),
        parameter("readonly", "0", "open for reading; everything else is answered with EROFS"),
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_is_read_and_has_its_default() {
        let text = "/a, threads=3,hw_queues=2,hw_queue_depth=8,size=7,readonly=y";
        let (path, options) = Options::parse(text).expect("valid");
        let expected = Options {
            threads: 3,
            hw_queues: 2,
            hw_queue_depth: 8,
            size_bytes: Some(7 << 20),
            readonly: true,
        };
        assert_eq!((path, options), (PathBuf::from("/a"), expected));
        let given = FILE.parameters.iter().filter(|parameter| !parameter.default.is_empty());
        let words = Vec::from_iter(given.map(|p| format!("{}={}", p.name, p.default)));
        let (_, options) = Options::parse(&format!("x,{}", words.join(","))).expect("valid");
        assert_eq!(options, Options::default());
        assert_eq!(FILE.undocumented(include_str!("../../doc/file.md")), None);
    }

    #[test]
    fn refusals_list_what_is_accepted() {
        let refusal = |text| Options::parse(text).expect_err("refused").to_string();
        assert!(refusal("").ends_with("accepted: PATH[,KEY=VALUE]..."));
        assert!(refusal("a,fast").starts_with("'fast' is not understood"));
        assert!(refusal("a,direct=1").contains("accepted: threads, hw_queues, hw_queue_depth"));
        assert!(refusal("a,threads=0").contains("a whole number from 1 to 1024"));
    }
}
