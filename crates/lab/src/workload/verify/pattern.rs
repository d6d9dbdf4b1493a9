//! fio's `verify_pattern`: a few bytes, repeated, in which the offset of the block may occur.
//!
//! A pattern is a sequence of parts: `0x` with hexadecimal digits, which are bytes in the written order; a decimal
//! number, with as many bytes as it needs, lowest first; text in double quotes; `%o`, the offset of the block in bytes,
//! as 8 bytes, lowest first; and the name of a file in single quotes, which stands for the file's bytes. The caller
//! reads the file.

use std::fmt;

/// The longest pattern in bytes, as in fio.
const MAX: usize = 512;
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
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PatternError {
    /// The text is empty.
    Empty,
    /// The rest of the text is not understood.
    Part(String),
    /// More bytes than 512.
    TooLong(usize),
    /// A file that cannot be read, and the reason.
    File(String, String),
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("no pattern")?,
            Self::Part(rest) => write!(f, "not understood from '{rest}' on")?,
            Self::TooLong(bytes) => write!(f, "{bytes} bytes")?,
            Self::File(name, why) => write!(f, "file '{name}': {why}")?,
        }
        write!(
            f,
            "; accepted: up to {MAX} bytes as 0xdeadbeef, 123, \"text\", 'file' and %o (the block's \
             offset), in a row"
        )
    }
}

impl std::error::Error for PatternError {}

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
