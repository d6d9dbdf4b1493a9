//! The description of a file: typed options for opening it, their parsing from text, the parameters of both devices as
//! help shows them, the errors of descriptions, and the devices as programs offer them by name.

use blkmq_core::{Given, PairError, Parameter, RealDevice, Unit};
use blkmq_engine::MAX_HW_QUEUE_DEPTH;
use std::path::PathBuf;

/// The default number of threads: disks reach most of their rate with so many reads at a time.
pub(crate) const DEFAULT_THREADS: u16 = 16;
/// The most hardware queues. Machines have fewer CPUs, so more would only waste rings.
const MAX_HW_QUEUES: u16 = 1024;
/// The most threads: enough for a busy disk, and fewer than most systems allow a program.
const MAX_THREADS: u16 = 1024;
/// The largest file: 2^63 bytes, the limit of offsets, in whole MiB.
const MAX_BYTES: u64 = ((1 << 43) - 1) << 20;

/// The options for opening a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The number of threads that do requests, 1 to 1024; `None` for io_uring.
    pub threads: Option<u16>,
    /// The number of hardware queues, 1 to 1024; `None` for one, with a ring for each submitter where the
    /// [service](blkmq_engine::Config::own_lanes) has such lanes.
    pub hw_queues: Option<u16>,
    /// Requests in flight per hardware queue, 1 to [`MAX_HW_QUEUE_DEPTH`].
    pub hw_queue_depth: u32,
    /// Bypass the page cache, if the file system can.
    pub direct: bool,
    /// Register the file, and the buffers of the pools given to the device, with the kernel.
    pub fixed: bool,
    /// Poll the device for completions of reads and writes, in place of interrupts.
    pub iopoll: bool,
    /// Create or extend the file to at least this many bytes; `None` to leave it as it is.
    pub size_bytes: Option<u64>,
    /// Open for reading only.
    pub readonly: bool,
    /// Take the bytes of the file as a disk, even if they begin like an image of another format.
    pub raw: bool,
    /// Lock a regular file against a second program that writes to it, with the locks of QEMU. Block devices are
    /// claimed in any case.
    pub locking: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: None,
            hw_queues: None,
            hw_queue_depth: 128,
            direct: true,
            fixed: true,
            iopoll: false,
            size_bytes: None,
            readonly: false,
            raw: false,
            locking: true,
        }
    }
}

impl Options {
    /// Parses `uring:PATH[,KEY=VALUE]...` or `threads:PATH[,KEY=VALUE]...`; `None` if `text` describes another kind of
    /// device.
    #[must_use]
    pub fn described(text: &str) -> Option<Result<(PathBuf, Self), ParamError>> {
        if let Some(rest) = URING.description(text) {
            return Some(Self::parse(rest));
        }
        let rest = THREADS.description(text)?;
        let threads = Self { threads: Some(DEFAULT_THREADS), ..Self::default() };
        Some(pairs(rest).and_then(|pairs| threads.read(&OF_THREADS, &pairs)))
    }

    /// Parses `PATH[,KEY=VALUE]...` with the parameters of [`URING`](crate::URING). A path that contains a comma must
    /// be given to [`UringDevice::open`] directly, or as the pair `path` to [`from_pairs`](Self::from_pairs).
    ///
    /// # Errors
    /// For the first word that is no pair, or has an unknown name or an invalid value.
    ///
    /// [`UringDevice::open`]: crate::UringDevice::open
    pub fn parse(text: &str) -> Result<(PathBuf, Self), ParamError> {
        Self::from_pairs(&pairs(text)?)
    }

    /// Reads pairs of names and values. Of two pairs with one name the later one counts.
    ///
    /// # Errors
    /// For the first pair with an unknown name or an invalid value, or without a pair `path`.
    pub fn from_pairs(pairs: &[(String, String)]) -> Result<(PathBuf, Self), ParamError> {
        Self::default().read(&OF_RINGS, pairs)
    }

    /// Reads pairs of the names in `table` over these options.
    fn read(
        self,
        table: &'static [Parameter],
        pairs: &[(String, String)],
    ) -> Result<(PathBuf, Self), ParamError> {
        let mut options = self;
        let mut path = PathBuf::new();
        for (name, value) in pairs {
            let given = Given::find(table, name, value)?;
            match given.name {
                "path" => path = PathBuf::from(given.value),
                "threads" => options.threads = Some(given.number(1..=MAX_THREADS)?),
                "hw_queues" => options.hw_queues = Some(given.number(1..=MAX_HW_QUEUES)?),
                "hw_queue_depth" => {
                    options.hw_queue_depth = given.number(1..=MAX_HW_QUEUE_DEPTH)?;
                }
                "direct" => options.direct = given.flag()?,
                "fixed" => options.fixed = given.flag()?,
                "iopoll" => options.iopoll = given.flag()?,
                "size" | "create_size" => {
                    options.size_bytes = Some(given.bytes(Unit::MIB, MAX_BYTES)?);
                }
                "readonly" => options.readonly = given.flag()?,
                "format" if given.value == "raw" => options.raw = true,
                "format" => return Err(given.refuse("raw").into()),
                "locking" => options.locking = given.flag()?,
                name => unreachable!("{name} is in the table and not read"),
            }
        }
        if path.as_os_str().is_empty() {
            return Err(ParamError::NoPath);
        }
        Ok((path, options))
    }
}

/// The pairs of `PATH[,KEY=VALUE]...`.
fn pairs(text: &str) -> Result<Vec<(String, String)>, ParamError> {
    let (path, rest) = text.split_once(',').unwrap_or((text, ""));
    let mut pairs = vec![("path".to_owned(), path.trim().to_owned())];
    for word in rest.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let Some((key, value)) = word.split_once('=') else {
            return Err(ParamError::Syntax { word: word.to_owned() });
        };
        pairs.push((key.trim().to_owned(), value.trim().to_owned()));
    }
    Ok(pairs)
}

const fn parameter(name: &'static str, default: &'static str, help: &'static str) -> Parameter {
    Parameter { name, default, help }
}

const PATH: Parameter =
    parameter("path", "", "file or block device; in PATH[,KEY=VALUE]... the first word");
const DEPTH: Parameter =
    parameter("hw_queue_depth", "128", "requests in flight per hardware queue, 1 to 10240");
const DIRECT: Parameter =
    parameter("direct", "1", "1: past the page cache (O_DIRECT); 0: through it");
const SIZE: Parameter = parameter(
    "size",
    "",
    "create or extend the file to at least so many MiB (or 16m, 1g) of random bytes",
);
const CREATE_SIZE: Parameter = parameter("create_size", "", "another name of size");
const READONLY: Parameter =
    parameter("readonly", "0", "open for reading; everything else is answered with EROFS");
const FORMAT: Parameter = parameter(
    "format",
    "",
    "raw: the file is a disk though it begins like an image of another format, which is refused otherwise",
);
const LOCKING: Parameter =
    parameter("locking", "1", "keep other programs from writing to a file meanwhile, as QEMU does");

/// All parameters of `uring`.
static OF_RINGS: [Parameter; 11] = [
    PATH,
    parameter(
        "hw_queues",
        "",
        "hardware queues, each with a ring of its own, 1 to 1024; by default one, with a ring for each client",
    ),
    DEPTH,
    DIRECT,
    parameter("fixed", "1", "register the file, and the buffers of pools, with the kernel"),
    parameter(
        "iopoll",
        "0",
        "look for completions at a disk with queues for that, and take a CPU for it while there is I/O",
    ),
    SIZE,
    CREATE_SIZE,
    READONLY,
    FORMAT,
    LOCKING,
];

/// All parameters of `threads`.
static OF_THREADS: [Parameter; 10] = [
    PATH,
    parameter("threads", "16", "requests that are done at a time, each by a thread, 1 to 1024"),
    parameter(
        "hw_queues",
        "",
        "hardware queues, which share the threads, 1 to 1024; by default one",
    ),
    DEPTH,
    DIRECT,
    SIZE,
    CREATE_SIZE,
    READONLY,
    FORMAT,
    LOCKING,
];

/// The reason why a description was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParamError {
    /// There is no such parameter, or it has no such value.
    #[error("{0}")]
    Pair(PairError),
    /// Not of the form `PATH[,KEY=VALUE]...`.
    #[error("'{word}' is no KEY=VALUE; accepted: PATH[,KEY=VALUE]...")]
    Syntax {
        /// The word that is not a pair.
        word: String,
    },
    /// No path was given.
    #[error("no path; name a file or block device: PATH[,KEY=VALUE]...")]
    NoPath,
}

impl From<PairError> for ParamError {
    fn from(e: PairError) -> Self {
        Self::Pair(e)
    }
}

/// The page of [`URING`].
pub const URING_PAGE: &str = include_str!("../doc/uring.md");

/// The page of [`THREADS`].
pub const THREADS_PAGE: &str = include_str!("../doc/threads.md");

/// The device through io_uring, for programs that offer devices by name.
pub const URING: RealDevice = RealDevice {
    name: "uring",
    target: "PATH",
    summary: "a file or block device through io_uring, past the page cache",
    parameters: &OF_RINGS,
};

/// The device by threads, without io_uring.
pub const THREADS: RealDevice = RealDevice {
    name: "threads",
    target: "PATH",
    summary: "a file or block device by threads that read and write, where io_uring is forbidden",
    parameters: &OF_THREADS,
};

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        Options::parse(text).expect_err("refused").to_string()
    }

    #[test]
    fn every_parameter_is_read() {
        let text = "/dev/sda, hw_queues=4,hw_queue_depth=32,direct=0,fixed=off,iopoll=on,size=7,readonly=y,format=raw,locking=off";
        let (path, options) = Options::parse(text).expect("valid");
        let expected = Options {
            threads: None,
            hw_queues: Some(4),
            hw_queue_depth: 32,
            direct: false,
            fixed: false,
            iopoll: true,
            size_bytes: Some(7 << 20),
            readonly: true,
            raw: true,
            locking: false,
        };
        assert_eq!((path, options), (PathBuf::from("/dev/sda"), expected));
        let (_, options) = Options::parse("a,create_size=3").expect("valid");
        assert_eq!(options.size_bytes, Some(3 << 20));
        for (text, bytes) in [("16m", 16 << 20), ("1g", 1 << 30), ("10240b", 10_240)] {
            let (_, options) = Options::parse(&format!("a,size={text}")).expect("valid");
            assert_eq!(options.size_bytes, Some(bytes), "{text}");
        }
    }

    #[test]
    fn threads_have_the_parameters_of_a_ring_but_registration() {
        let (path, options) =
            Options::described("threads:/a,threads=3,direct=0").expect("threads").expect("valid");
        let expected = Options { threads: Some(3), direct: false, ..Options::default() };
        assert_eq!((path, options), (PathBuf::from("/a"), expected));
        let words =
            OF_THREADS.iter().filter(|p| !p.default.is_empty()).map(|p| (p.name, p.default));
        let words = Vec::from_iter(words.map(|(name, value)| format!("{name}={value}")));
        let described = |text: &str| Options::described(text).expect("threads");
        let (_, options) = described(&format!("threads:x,{}", words.join(","))).expect("valid");
        assert_eq!(options, described("threads:x").expect("valid").1);
        let refused = |text| described(text).expect_err("refused").to_string();
        assert_eq!(
            refused("threads:a,fixed=1"),
            "no parameter 'fixed'; accepted: path, threads, hw_queues, hw_queue_depth, direct, size, create_size, \
             readonly, format, locking"
        );
        for text in ["threads:a,threads=0", "threads:a,threads=1025"] {
            assert!(refused(text).ends_with("a whole number from 1 to 1024"), "{}", refused(text));
        }
        assert!(refusal("a,threads=2").starts_with("no parameter 'threads'"));
        assert!(Options::described("uring:a").is_some() && Options::described("rbd:a").is_none());
    }

    #[test]
    fn defaults_are_those_of_the_table() {
        let given = OF_RINGS.iter().filter(|p| !p.default.is_empty());
        let words = Vec::from_iter(given.map(|p| format!("{}={}", p.name, p.default)));
        let (_, options) = Options::parse(&format!("x,{}", words.join(","))).expect("valid");
        assert_eq!(options, Options::default());
    }

    #[test]
    fn refusals_list_what_is_accepted() {
        assert_eq!(
            refusal("a,depth=1"),
            "no parameter 'depth'; accepted: path, hw_queues, hw_queue_depth, direct, fixed, iopoll, \
             size, create_size, readonly, format, locking"
        );
        assert_eq!(
            refusal("a,hw_queue_depth=0"),
            "hw_queue_depth=0 is not possible; accepted: a whole number from 1 to 10240"
        );
        assert_eq!(
            refusal("a,direct=2"),
            "direct=2 is not possible; accepted: 0, 1, n, y, off, on"
        );
        assert_eq!(refusal("a,direct"), "'direct' is no KEY=VALUE; accepted: PATH[,KEY=VALUE]...");
        assert!(refusal("").starts_with("no path"));
        assert_eq!(
            refusal("a,size=ten"),
            "size=ten is not possible; accepted: a whole number of MiB from 1 to 8796093022207, or with a unit: \
             512m, 1g"
        );
    }

    #[test]
    fn the_pages_name_every_parameter() {
        assert_eq!(
            (URING.undocumented(URING_PAGE), THREADS.undocumented(THREADS_PAGE)),
            (None, None)
        );
    }
}
