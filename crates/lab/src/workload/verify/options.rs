//! The options of a job that verifies, with their errors, and its findings: the number of bytes compared, the number of
//! wrong blocks, and the first wrong block.
//!
//! fio's `verify_pattern` is a few bytes, repeated, in which the offset of the block may occur. A pattern is a sequence
//! of parts: `0x` with hexadecimal digits, which are bytes in the written order; a decimal number, with as many bytes
//! as it needs, lowest first; text in double quotes; `%o`, the offset of the block in bytes, as 8 bytes, lowest first;
//! and the name of a file in single quotes, which stands for the file's bytes. The caller reads the file.

use blkmq_core::SECTOR_SIZE;
use std::fmt;

/// How a block shows that it holds the data written to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// A header, and in it a CRC-32C of the rest (`crc32c`).
    Crc32c,
    /// A header, and in it an XXH64 of the rest (`xxhash`).
    Xxhash,
    /// A header, and behind it an MD5 of the rest (`md5`).
    Md5,
    /// A header, and behind it a SHA-256 of the rest (`sha256`).
    Sha256,
    /// A header, and no check of the rest (`meta`).
    Meta,
    /// No header: the whole block is `verify_pattern` (`pattern`). An older write cannot be distinguished from the
    /// latest.
    Pattern,
    /// All of the work except filling and comparing (`null`).
    Null,
}

impl Method {
    /// Each method with fio's words for it; the first is the one to print.
    pub const NAMES: [(Self, &'static [&'static str]); 7] = [
        (Self::Crc32c, &["crc32c", "crc32c-intel"]),
        (Self::Xxhash, &["xxhash"]),
        (Self::Md5, &["md5"]),
        (Self::Sha256, &["sha256"]),
        (Self::Meta, &["meta"]),
        (Self::Pattern, &["pattern"]),
        (Self::Null, &["null"]),
    ];

    /// The method called `word`.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        let found = Self::NAMES.iter().find(|(_, words)| words.contains(&word));
        found.map(|(method, _)| *method)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Self::NAMES.iter().find(|(method, _)| method == self);
        f.pad(found.expect("every method has a name").1[0])
    }
}

/// The verification of a job. Fields carry the names of fio's options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verify {
    /// `verify`.
    pub method: Method,
    /// `verify_pattern`: the pattern that fills blocks; `None` is bytes drawn from a seed.
    pub pattern: Option<Pattern>,
    /// `verify_interval`: bytes in a block; `None` is the largest that divides every I/O of the job.
    pub interval: Option<u32>,
    /// `do_verify`: read the written blocks back.
    pub do_verify: bool,
    /// `verify_fatal`: the first mismatch ends the job.
    pub fatal: bool,
    /// `verify_backlog`: the number of writes after which they are read back; 0 reads back at the end.
    pub backlog: u32,
    /// `verify_only`: write nothing; check the blocks that an earlier run of the same job has written.
    pub only: bool,
    /// `verify_state_save`: keep the state of each block for a later run.
    pub state_save: bool,
    /// `verify_state_load`: with `only`, check the blocks against the state saved by an earlier run.
    pub state_load: bool,
}

impl Verify {
    /// `method` with all other options at fio's defaults.
    #[must_use]
    pub fn new(method: Method) -> Self {
        Self {
            method,
            pattern: None,
            interval: None,
            do_verify: true,
            fatal: false,
            backlog: 0,
            only: false,
            state_save: false,
            state_load: false,
        }
    }
}

/// A job that cannot be verified as asked. Messages name fio's options.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VerifyError {
    /// `verify_interval` does not divide every I/O.
    #[error(
        "verify_interval={interval}; accepted are multiples of {SECTOR_SIZE} that divide {unit}, \
         which is what all block sizes have in common"
    )]
    Interval {
        /// Bytes, as given.
        interval: u32,
        /// Bytes that divide every I/O of the job.
        unit: u32,
    },
    /// `verify=pattern` without `verify_pattern`.
    #[error("verify=pattern needs a verify_pattern, such as 0xdeadbeef")]
    NoPattern,
    /// A job that only trims.
    #[error("verify of a job that only trims; accepted: one that reads or writes")]
    OnlyTrims,
    /// `verify_only` of a job that writes nothing.
    #[error(
        "verify_only repeats the writes of a job in thought, and this one has none; a job that \
         reads needs no more than verify"
    )]
    OnlyReads,
    /// `verify_only` of a job that ends by the clock.
    #[error(
        "verify_only of a job that ends by the clock, so that nobody knows what it has written; \
         accepted: without runtime, or with verify_state_load"
    )]
    Timed,
    /// `verify_only` of a job that does not read either.
    #[error("verify_only with do_verify=0; accepted: one of the two")]
    Nothing,
    /// `verify_state_load` of a job that writes.
    #[error(
        "verify_state_load without verify_only; accepted: both, or a job that reads, to check what the same \
         job has written with verify_state_save"
    )]
    StateOfWriter,
}

/// The longest pattern in bytes, as in fio.
const MAX: usize = 512;
/// The forms of the bytes of a pattern.
const FORMS: &str = "0xdeadbeef, 123, \"text\", 'file' and %o (the block's offset), in a row";
/// Bytes of an offset.
const WIDTH: usize = 8;

/// The bytes that fill a block, repeated from its beginning.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern {
    /// The bytes, at least one, with zeroes where offsets belong.
    bytes: Vec<u8>,
    /// The positions of offsets in `bytes`.
    offsets: Vec<usize>,
}

/// A text that is no pattern.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PatternError {
    /// The text is empty.
    #[error("no pattern; accepted: up to {MAX} bytes as {FORMS}")]
    Empty,
    /// The rest of the text is not understood.
    #[error("not understood from '{0}' on; accepted: up to {MAX} bytes as {FORMS}")]
    Part(String),
    /// More bytes than 512.
    #[error("{0} bytes; accepted: up to {MAX} bytes as {FORMS}")]
    TooLong(usize),
    /// A file that cannot be read, and the reason.
    #[error("file '{0}': {1}; accepted: up to {MAX} bytes as {FORMS}")]
    File(String, String),
}

impl Pattern {
    /// The longest pattern in bytes.
    pub const MAX: usize = MAX;

    /// Reads a pattern without files.
    ///
    /// # Errors
    /// If a part of it has no known form, or it is empty or too long.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        Self::parse_with(text, |_| Err("no files are read here".into()))
    }

    /// Reads a pattern; `read` returns the bytes of a file, or the reason why it cannot be read.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), and if `read` fails.
    pub fn parse_with(
        text: &str,
        mut read: impl FnMut(&str) -> Result<Vec<u8>, String>,
    ) -> Result<Self, PatternError> {
        let mut pattern = Self { bytes: Vec::new(), offsets: Vec::new() };
        let mut rest = text.trim();
        while !rest.is_empty() {
            let refuse = || PatternError::Part(rest.to_owned());
            if let Some(quoted) = rest.strip_prefix('\'') {
                let end = quoted.find('\'').filter(|end| *end > 0).ok_or_else(refuse)?;
                let name = &quoted[..end];
                let failed = |why| PatternError::File(name.to_owned(), why);
                pattern.bytes.extend(read(name).map_err(failed)?);
                rest = &quoted[end + 1..];
                continue;
            }
            let used = pattern.part(rest).ok_or_else(refuse)?;
            rest = &rest[used..];
        }
        match pattern.bytes.len() {
            0 => Err(PatternError::Empty),
            n if n > MAX => Err(PatternError::TooLong(n)),
            _ => Ok(pattern),
        }
    }

    /// Returns whether offsets of blocks occur in it.
    #[must_use]
    pub fn has_offsets(&self) -> bool {
        !self.offsets.is_empty()
    }

    /// Adds the part that `text` begins with. Returns its length.
    fn part(&mut self, text: &str) -> Option<usize> {
        if text.starts_with("%o") {
            self.offsets.push(self.bytes.len());
            self.bytes.extend([0; WIDTH]);
            return Some(2);
        }
        if let Some(quoted) = text.strip_prefix('"') {
            let end = quoted.find('"')?;
            self.bytes.extend(quoted[..end].bytes());
            return Some(end + 2);
        }
        if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            let digits = hex.bytes().take_while(u8::is_ascii_hexdigit).count();
            // An odd first digit is a byte on its own.
            let (odd, even) = hex[..digits].split_at(digits % 2);
            let pairs = (0..even.len()).step_by(2).map(|at| &even[at..at + 2]);
            for byte in Some(odd).filter(|odd| !odd.is_empty()).into_iter().chain(pairs) {
                self.bytes.push(u8::from_str_radix(byte, 16).ok()?);
            }
            return (digits > 0).then_some(digits + 2);
        }
        let sign = usize::from(text.starts_with('-'));
        let end = sign + text[sign..].bytes().take_while(u8::is_ascii_digit).count();
        let number: i64 = text[..end].parse().ok()?;
        let fits = |bytes: u32| match number {
            0.. => number >> (8 * bytes) == 0,
            _ => number >> (8 * bytes - 1) == -1,
        };
        let width = (1..8).find(|bytes| fits(*bytes)).unwrap_or(8);
        self.bytes.extend(&number.to_le_bytes()[..width as usize]);
        Some(end)
    }

    /// Fills `out`, the block at `offset` bytes or a part at its beginning.
    pub(in crate::workload) fn fill(&self, offset: u64, out: &mut [u8]) {
        let first = self.bytes.len().min(out.len());
        for (at, byte) in out[..first].iter_mut().enumerate() {
            *byte = self.byte(offset, at);
        }
        // `done` is a number of whole patterns, so it can be doubled.
        let mut done = first;
        while done < out.len() {
            let more = done.min(out.len() - done);
            out.copy_within(..more, done);
            done += more;
        }
    }

    /// The first position where `bytes` differ from the output of [`fill`](Self::fill), and the expected byte.
    pub(super) fn differs(&self, offset: u64, bytes: &[u8]) -> Option<(usize, u8)> {
        let period = self.bytes.len().min(bytes.len());
        let wrong = |at: &usize| bytes[*at] != self.byte(offset, *at);
        let repeats = || bytes[period..] == bytes[..bytes.len() - period];
        if !(0..period).any(|at| wrong(&at)) && repeats() {
            return None;
        }
        (0..bytes.len()).find(wrong).map(|at| (at, self.byte(offset, at)))
    }

    fn byte(&self, offset: u64, at: usize) -> u8 {
        let at = at % self.bytes.len();
        let within = self.offsets.iter().find(|start| (**start..**start + WIDTH).contains(&at));
        within.map_or(self.bytes[at], |start| offset.to_le_bytes()[at - start])
    }
}

impl fmt::Display for Pattern {
    /// In hexadecimal digits and `%o`, which every option with a pattern accepts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut at, mut in_hex) = (0, false);
        while at < self.bytes.len() {
            if self.offsets.contains(&at) {
                f.write_str("%o")?;
                (at, in_hex) = (at + WIDTH, false);
                continue;
            }
            if !in_hex {
                f.write_str("0x")?;
            }
            write!(f, "{:02x}", self.bytes[at])?;
            (at, in_hex) = (at + 1, true);
        }
        Ok(())
    }
}

/// The results of a thread's verification so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// Bytes that were compared with the expected data, wrong ones included.
    pub verified: u64,
    /// Wrong blocks.
    pub errors: u64,
    /// The first wrong block.
    pub first: Option<Mismatch>,
}

/// A block that does not hold the data written to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// Its first byte on the device.
    pub offset: u64,
    /// Its number in the thread's region, from 0.
    pub block: u64,
    /// Its length in bytes.
    pub len: u32,
    /// The fault.
    pub fault: Fault,
}

/// The fault of a block. `expected` is the value in a right block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The block does not begin with a header.
    NoHeader {
        /// The first four bytes of a header.
        expected: u32,
        /// The first four bytes of the block.
        found: u32,
    },
    /// The checksum of the header is wrong.
    Header {
        /// The checksum of the bytes read.
        expected: u32,
        /// The stored checksum.
        found: u32,
    },
    /// The block was written with another `verify`; `None` for an unknown one.
    Method {
        /// The method of this job.
        expected: Method,
        /// The stored method.
        found: Option<Method>,
    },
    /// The block was written with another `verify_interval`, in bytes.
    Length {
        /// The interval of this job.
        expected: u32,
        /// The stored length.
        found: u32,
    },
    /// The block belongs to another offset, in bytes.
    Offset {
        /// The offset at which it was read.
        expected: u64,
        /// The stored offset.
        found: u64,
    },
    /// The block is of another write: the number of the write of this block, from 1.
    Generation {
        /// The latest write.
        expected: u32,
        /// The stored number.
        found: u32,
    },
    /// The seed of the data is wrong; it depends on `randseed`.
    Seed {
        /// The seed for this block and generation.
        expected: u64,
        /// The stored seed.
        found: u64,
    },
    /// The checksum of the data is wrong.
    Checksum {
        /// The number of the write of this block.
        generation: u32,
        /// The stored checksum.
        expected: u64,
        /// The checksum of the bytes read.
        found: u64,
    },
    /// A byte of a pattern is wrong.
    Pattern {
        /// Its offset in the block.
        at: u32,
        /// The byte of the pattern.
        expected: u8,
        /// The byte read.
        found: u8,
    },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, block, len, fault } = self;
        write!(f, "offset {offset} (block {block} of {len} bytes): {fault}")
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoHeader { expected, found } => {
                write!(f, "no header, expected {expected:#010x}, found {found:#010x}")
            }
            Self::Header { expected, found } => {
                write!(f, "checksum of the header, expected {expected:#010x}, found {found:#010x}")
            }
            Self::Method { expected, found } => {
                let found = found.map_or_else(|| "nothing known".into(), |m| m.to_string());
                write!(f, "verify, expected {expected}, found {found}")
            }
            Self::Length { expected, found } => {
                write!(f, "verify_interval, expected {expected}, found {found}")
            }
            Self::Offset { expected, found } => {
                write!(f, "a block from elsewhere, expected offset {expected}, found {found}")
            }
            Self::Generation { expected, found } => {
                let age = if found < expected { "an older write" } else { "another write" };
                write!(f, "{age}, expected generation {expected}, found {found}")
            }
            Self::Seed { expected, found } => {
                write!(f, "seed, expected {expected:#018x}, found {found:#018x}")
            }
            Self::Checksum { generation, expected, found } => write!(
                f,
                "checksum of generation {generation}, expected {expected:#x}, found {found:#x}"
            ),
            Self::Pattern { at, expected, found } => {
                write!(f, "byte {at} of the pattern, expected {expected:#04x}, found {found:#04x}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(text: &str, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0xee; len];
        Pattern::parse(text).expect(text).fill(offset, &mut out);
        out
    }

    #[test]
    fn each_kind_of_part_is_its_bytes() {
        for (text, bytes) in [
            ("0xdeadbeef", &[0xde, 0xad, 0xbe, 0xef][..]),
            ("0XABC", &[0x0a, 0xbc]),
            ("0x00ff", &[0, 0xff]),
            ("0", &[0]),
            ("255", &[255]),
            ("256", &[0, 1]),
            ("-12", &[0xf4]),
            ("-129", &[0x7f, 0xff]),
            ("-9223372036854775808", &[0, 0, 0, 0, 0, 0, 0, 0x80]),
            ("\"ab;d\"", b"ab;d"),
            ("0x01\"a\"2", &[1, b'a', 2]),
            ("%o", &[0x34, 0x12, 0, 0, 0, 0, 0, 0]),
            ("0xff%o\"z\"", &[0xff, 0x34, 0x12, 0, 0, 0, 0, 0, 0, b'z']),
        ] {
            assert_eq!(filled(text, 0x1234, bytes.len()), bytes, "{text}");
        }
    }

    #[test]
    fn a_pattern_repeats_and_is_cut() {
        assert_eq!(filled("0x010203", 0, 8), [1, 2, 3, 1, 2, 3, 1, 2]);
        assert_eq!(filled("0x010203", 0, 2), [1, 2]);
        assert_eq!(filled("%o", 7, 10), [7, 0, 0, 0, 0, 0, 0, 0, 7, 0]);
    }

    #[test]
    fn what_is_no_pattern_shows_what_is() {
        for (text, expected) in [
            ("", "no pattern"),
            ("\"\"", "no pattern"),
            ("0x", "from '0x' on"),
            ("0x12zz", "from 'zz' on"),
            ("abcd", "from 'abcd' on"),
            ("'file'", "file 'file': no files are read here"),
            ("'file", "from ''file' on"),
            ("''", "from '''' on"),
            ("\"open", "from '\"open' on"),
            ("%x", "from '%x' on"),
            ("-", "from '-' on"),
            ("99999999999999999999", "from '9"),
        ] {
            let message = Pattern::parse(text).expect_err(text).to_string();
            assert!(message.contains(expected) && message.contains("accepted:"), "{message}");
        }
        let long = format!("0x{}", "00".repeat(513));
        assert_eq!(Pattern::parse(&long), Err(PatternError::TooLong(513)));
        assert!(Pattern::parse(&long[..long.len() - 2]).is_ok());
    }

    #[test]
    fn a_file_is_its_bytes() {
        let read = |name: &str| match name {
            "a b" => Ok(vec![1, 2, 3]),
            "long" => Ok(vec![0; MAX + 1]),
            _ => Err("not there".to_owned()),
        };
        let parse = |text| Pattern::parse_with(text, read);
        assert_eq!(parse("'a b'"), Pattern::parse("0x010203"));
        assert_eq!(parse("\"abcd\"-12'a b'%o"), Pattern::parse("0x61626364f4010203%o"));
        assert_eq!(parse("'long'"), Err(PatternError::TooLong(MAX + 1)));
        assert_eq!(parse("'x'"), Err(PatternError::File("x".into(), "not there".into())));
    }

    #[test]
    fn what_is_printed_means_the_same() {
        for text in ["0xdeadbeef", "%o", "0xff%o\"abcd\"-12", "\"a;b#c\"%o%o77"] {
            let pattern = Pattern::parse(text).expect(text);
            assert_eq!(Pattern::parse(&pattern.to_string()), Ok(pattern), "{text}");
        }
    }

    #[test]
    fn any_other_byte_is_found_where_it_is() {
        for (text, len) in [("0x010203", 100), ("0xff%o", 64), ("\"longer than the block\"", 10)] {
            let pattern = Pattern::parse(text).expect(text);
            let mut block = vec![0; len];
            pattern.fill(4096, &mut block);
            assert_eq!(pattern.differs(4096, &block), None, "{text}");
            for at in 0..len {
                block[at] ^= 0x40;
                assert_eq!(pattern.differs(4096, &block), Some((at, block[at] ^ 0x40)), "{text}");
                block[at] ^= 0x40;
            }
        }
    }
}
