//! The input: decompressed if its first bytes say so, and read as lines or records through a buffer of fixed size; the
//! numbers of a row, which are unsigned, with a fraction if the unit allows it, and exact.
//!
//! Errors of a trace have its line or byte offset; [`Fault`] is that of a row or a record; and [`Next`] is the outcome
//! of a step of a reader.

use crate::record::{MOST_LENGTH, MOST_NAMES, Row};
use blkmq_trace::record::TraceError;
use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;
use std::io::{self, Read};

/// The size of the buffer, larger than the longest line.
const BUFFER: usize = 256 << 10;
/// The longest line that is read.
const MOST_LINE: usize = 64 << 10;

/// A decompressed stream with a buffer.
pub(crate) struct Input {
    source: Box<dyn Read>,
    buffer: Vec<u8>,
    /// The start of the bytes that are valid and not consumed.
    from: usize,
    to: usize,
    ended: bool,
    /// The number of bytes consumed.
    pub offset: u64,
    /// The number of lines consumed.
    pub line: u64,
}

/// A line, or the reason why it cannot be read.
type Line<'a> = Result<&'a [u8], Fault>;

impl Input {
    pub(crate) fn new(source: Box<dyn Read>) -> Result<Self, Error> {
        let source = decompressed(source).map_err(|error| Error::Read { offset: 0, error })?;
        let (from, to, ended) = (0, 0, false);
        Ok(Self { source, buffer: vec![0; BUFFER], from, to, ended, offset: 0, line: 0 })
    }

    /// Returns up to `most` of the next bytes without consuming them; fewer only at the end.
    pub(crate) fn peek(&mut self, most: usize) -> Result<&[u8], Error> {
        assert!(most <= BUFFER, "a buffer of {BUFFER} bytes");
        while self.to - self.from < most && !self.ended {
            self.fill()?;
        }
        Ok(&self.buffer[self.from..self.to.min(self.from + most)])
    }

    /// Consumes bytes returned by [`peek`](Self::peek).
    pub(crate) fn skip(&mut self, bytes: usize) {
        assert!(bytes <= self.to - self.from, "only bytes that were seen are taken");
        self.from += bytes;
        self.offset += bytes as u64;
    }

    /// The next line without its terminator, or `None` at the end. A line that is too long is consumed completely.
    pub(crate) fn next_line(&mut self) -> Result<Option<Line<'_>>, Error> {
        let mut seen = 0;
        loop {
            let rest = &self.buffer[self.from..self.to];
            if let Some(end) = memchr::memchr(b'\n', &rest[seen..]) {
                let from = self.from;
                self.skip(seen + end + 1);
                self.line += 1;
                let line = &self.buffer[from..from + seen + end];
                return Ok(Some(checked(line.strip_suffix(b"\r").unwrap_or(line))));
            }
            seen = rest.len();
            if self.ended {
                let from = self.from;
                self.skip(seen);
                self.line += u64::from(seen > 0);
                let line = &self.buffer[from..from + seen];
                return Ok((seen > 0).then(|| checked(line.strip_suffix(b"\r").unwrap_or(line))));
            }
            if seen > MOST_LINE {
                self.skip_line()?;
                return Ok(Some(Err(Fault::Long { most: MOST_LINE })));
            }
            self.fill()?;
        }
    }

    /// Consumes the rest of a line.
    fn skip_line(&mut self) -> Result<(), Error> {
        loop {
            let rest = &self.buffer[self.from..self.to];
            let end = memchr::memchr(b'\n', rest);
            self.skip(end.map_or(rest.len(), |end| end + 1));
            if end.is_some() || self.ended {
                self.line += 1;
                return Ok(());
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> Result<(), Error> {
        if self.from > 0 {
            self.buffer.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        loop {
            match self.source.read(&mut self.buffer[self.to..]) {
                Ok(got) => {
                    self.to += got;
                    self.ended = got == 0;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let offset = self.offset + (self.to - self.from) as u64;
                    return Err(Error::Read { offset, error });
                }
            }
        }
    }
}

fn checked(line: &[u8]) -> Line<'_> {
    if line.len() > MOST_LINE { Err(Fault::Long { most: MOST_LINE }) } else { Ok(line) }
}

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

fn decompressed(source: Box<dyn Read>) -> io::Result<Box<dyn Read>> {
    let mut whole = Whole { head: Vec::new(), source };
    (&mut whole.source).take(4).read_to_end(&mut whole.head)?;
    Ok(if whole.head.starts_with(&GZIP) {
        Box::new(MultiGzDecoder::new(whole))
    } else if whole.head == ZSTD {
        Box::new(Frames { rest: Some(whole), frame: None })
    } else {
        Box::new(whole)
    })
}

/// A stream, preceded by its first bytes if they were inspected.
struct Whole {
    head: Vec<u8>,
    source: Box<dyn Read>,
}

impl Whole {
    /// Returns whether the stream has another byte.
    fn has_more(&mut self) -> io::Result<bool> {
        if self.head.is_empty() {
            (&mut self.source).take(1).read_to_end(&mut self.head)?;
        }
        Ok(!self.head.is_empty())
    }
}

impl Read for Whole {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.head.is_empty() {
            return self.source.read(out);
        }
        let got = self.head.len().min(out.len());
        out[..got].copy_from_slice(&self.head[..got]);
        self.head.drain(..got);
        Ok(got)
    }
}

/// The concatenated frames of a zstd stream: parallel compressors write several.
struct Frames {
    rest: Option<Whole>,
    frame: Option<Box<StreamingDecoder<Whole, ruzstd::decoding::FrameDecoder>>>,
}

impl Read for Frames {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(frame) = &mut self.frame {
                let got = frame.read(out)?;
                if got > 0 || out.is_empty() {
                    return Ok(got);
                }
                self.rest = self.frame.take().map(|frame| frame.into_inner());
            }
            let Some(mut rest) = self.rest.take() else { return Ok(0) };
            if !rest.has_more()? {
                return Ok(0);
            }
            let frame = StreamingDecoder::new(rest).map_err(io::Error::other)?;
            self.frame = Some(Box::new(frame));
        }
    }
}

/// The most digits of a number that always fits.
const MOST_DIGITS: usize = 19;

/// Parses a whole number.
#[inline]
pub(crate) fn whole(field: &'static str, text: &[u8]) -> Result<u64, Fault> {
    digits(text).map_or_else(|| slowly(field, text), Ok)
}

/// Like [`whole`], one digit at a time, with a separate fault for a number that is too large.
#[cold]
fn slowly(field: &'static str, text: &[u8]) -> Result<u64, Fault> {
    let mut value: u64 = 0;
    if text.is_empty() {
        return Err(bad(field, text));
    }
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return Err(bad(field, text));
        }
        let next = value.checked_mul(10).and_then(|value| value.checked_add(digit.into()));
        value = next.ok_or_else(|| range(field, text))?;
    }
    Ok(value)
}

/// Parses `text` if it has only digits, and few enough to fit. Takes eight at a time: most of a row is digits.
#[inline]
fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > MOST_DIGITS {
        return None;
    }
    let (first, eights) = text.as_rchunks::<8>();
    let mut value: u64 = 0;
    for byte in first {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + u64::from(digit);
    }
    for eight in eights {
        value = value * 100_000_000 + eight_digits(u64::from_le_bytes(*eight))?;
    }
    Some(value)
}

/// Parses eight digits, the first one in the lowest byte.
fn eight_digits(text: u64) -> Option<u64> {
    const ZEROES: u64 = 0x3030_3030_3030_3030;
    // The high nibble of a digit is 3, and stays so after adding 6 only if the low nibble is at most 9.
    let has_threes = |bytes: u64| bytes & 0xF0F0_F0F0_F0F0_F0F0 == ZEROES;
    if !has_threes(text) || !has_threes(text.wrapping_add(0x0606_0606_0606_0606)) {
        return None;
    }
    let ones = text - ZEROES;
    let pairs = (ones * 10 + (ones >> 8)) & 0x00FF_00FF_00FF_00FF;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_FFFF_0000_FFFF;
    Some((fours * 10_000 + (fours >> 32)) & 0xFFFF_FFFF)
}

/// Parses a number, which may have a fraction, and multiplies it by `unit`. The fraction of the product is truncated.
#[inline]
pub(crate) fn scaled(field: &'static str, text: &[u8], unit: u64) -> Result<u64, Fault> {
    let times = digits(text).and_then(|value| value.checked_mul(unit));
    times.map_or_else(|| with_fraction(field, text, unit), Ok)
}

fn with_fraction(field: &'static str, text: &[u8], unit: u64) -> Result<u64, Fault> {
    let Some(dot) = text.iter().position(|byte| *byte == b'.') else {
        let times = whole(field, text)?.checked_mul(unit);
        return times.ok_or_else(|| range(field, text));
    };
    let (before, after) = (&text[..dot], &text[dot + 1..]);
    if before.is_empty() && after.is_empty() {
        return Err(bad(field, text));
    }
    let before = if before.is_empty() { 0 } else { whole(field, before)? };
    // 18 digits are finer than any unit.
    let (kept, cut) = after.split_at(after.len().min(18));
    if !cut.iter().all(u8::is_ascii_digit) {
        return Err(bad(field, text));
    }
    let fraction = if kept.is_empty() { 0 } else { whole(field, kept)? };
    let tens = 10u128.pow(kept.len() as u32);
    let fraction = u128::from(fraction) * u128::from(unit) / tens;
    let sum = before.checked_mul(unit).and_then(|it| it.checked_add(fraction as u64));
    sum.ok_or_else(|| range(field, text))
}

fn bad(field: &'static str, text: &[u8]) -> Fault {
    let digits = text.strip_prefix(b"-").filter(|rest| !rest.is_empty());
    let is_number = |rest: &[u8]| rest.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
    let text = shown(text);
    match digits {
        Some(rest) if is_number(rest) => Fault::Negative { field, text },
        _ => Fault::Number { field, text },
    }
}

fn range(field: &'static str, text: &[u8]) -> Fault {
    Fault::Range { field, text: shown(text) }
}

/// Parses a date such as `2024-05-01 12:34:56.789`, or with `T` in the middle. Returns nanoseconds since 1970; a time
/// zone is not read.
pub(crate) fn date(field: &'static str, text: &[u8]) -> Result<u64, Fault> {
    let bad = || Fault::Number { field, text: shown(text) };
    let part = |from: usize, to: usize| whole(field, text.get(from..to).ok_or_else(bad)?);
    let shape = text.len() >= 19 && matches!(text[10], b' ' | b'T');
    if !shape || text[4] != b'-' || text[7] != b'-' || text[13] != b':' || text[16] != b':' {
        return Err(bad());
    }
    let (year, month, day) = (part(0, 4)?, part(5, 7)?, part(8, 10)?);
    let (hour, minute) = (part(11, 13)?, part(14, 16)?);
    let seconds = scaled(field, &text[17..], 1_000_000_000)?;
    let fits =
        (1970..=2500).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !fits || hour > 23 || minute > 59 || seconds > 60_999_999_999 {
        return Err(bad());
    }
    // Days of the civil calendar, with years that begin in March.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = y * 365 + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    let whole = ((days * 24 + hour) * 60 + minute) * 60;
    whole.checked_mul(1_000_000_000).and_then(|it| it.checked_add(seconds)).ok_or_else(bad)
}

/// Reading has ended before the end of the trace.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bytes could not be read or decompressed.
    #[error("byte {offset}: {error}")]
    Read {
        /// The number of decompressed bytes read so far.
        offset: u64,
        /// The reason.
        error: io::Error,
    },
    /// A row is not an I/O, and no more rows may be skipped.
    #[error("line {line}: {fault}{}", after_skips(*.allowed))]
    Row {
        /// The line, counted from 1.
        line: u64,
        /// The reason.
        fault: Fault,
        /// The number of rows that may be skipped.
        allowed: u64,
    },
    /// A binary record is invalid, and no more may be skipped.
    #[error("byte {offset}: {fault}{}", after_skips(*.allowed))]
    Place {
        /// The offset of the record in bytes.
        offset: u64,
        /// The reason.
        fault: Fault,
        /// The number of records that may be skipped.
        allowed: u64,
    },
    /// The bytes are not blktrace records.
    #[error("{0}")]
    Blktrace(#[from] TraceError),
    /// The header or the description does not fit.
    #[error("{0}")]
    Description(#[from] DescriptionError),
    /// The format could not be detected from the content.
    #[error(
        "the format is not known; accepted: --format=NAME, or --format='time=us,1 offset=bytes,2 size=bytes,3 op=word,4'; it \
         begins with {begins:?}"
    )]
    Unknown {
        /// The first bytes of the trace.
        begins: String,
    },
    /// The format is known but contains no usable I/Os.
    #[error("{0}")]
    Refused(&'static str),
}

fn after_skips(skipped: u64) -> String {
    match skipped {
        0 => String::new(),
        _ => format!(", after {skipped} that were skipped"),
    }
}

/// A description that cannot be understood, or does not fit a header.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct DescriptionError(pub(crate) String);

/// The fault of a row.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// A column is missing.
    #[error("no {field}: the row has too few columns")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// Not a number.
    #[error("{field}: {text:?} is no number")]
    Number {
        /// The field.
        field: &'static str,
        /// The text, truncated.
        text: String,
    },
    /// A negative number.
    #[error("{field}: {text} is negative")]
    Negative {
        /// The field.
        field: &'static str,
        /// The text, truncated.
        text: String,
    },
    /// A number beyond its range.
    #[error("{field}: {text} is out of range in its unit")]
    Range {
        /// The field.
        field: &'static str,
        /// The text, truncated.
        text: String,
    },
    /// An unknown operation.
    #[error("op: {text:?} is not known in this format; accepted: {accepted}")]
    Op {
        /// The text, truncated.
        text: String,
        /// The accepted words.
        accepted: &'static str,
    },
    /// An unknown class.
    #[error("class: {text:?}; accepted: rt, be, idle, none, 0 to 3, and Thesios' three words")]
    Class {
        /// The text, truncated.
        text: String,
    },
    /// A length that no I/O can have, in bytes.
    #[error("size: {length} bytes; accepted: 1 to {MOST_LENGTH}")]
    Length {
        /// The length.
        length: u64,
    },
    /// The I/O ends beyond any device.
    #[error("offset: {offset} bytes and the size are beyond 2^63")]
    Place {
        /// The offset in bytes.
        offset: u64,
    },
    /// The arrival is further than 2^63 ns from the first.
    #[error("time: {nanos} ns is 2^63 ns or more from the first row's")]
    Time {
        /// The stamp in nanoseconds.
        nanos: u64,
    },
    /// The line is too long.
    #[error("longer than {most} bytes")]
    Long {
        /// The maximum length in bytes.
        most: usize,
    },
    /// The trace ends within a record.
    #[error("the trace ends within the record")]
    Truncated,
    /// Too many tenants.
    #[error("more than {MOST_NAMES} {what}; accepted: fewer, by another --group-by")]
    Names {
        /// The kind of name: tenants or volumes.
        what: &'static str,
    },
    /// A line that does not belong to the format.
    #[error("{text:?} is no line of {format}")]
    Shape {
        /// The format.
        format: &'static str,
        /// The text, truncated.
        text: String,
    },
}

/// Returns `bytes` as text for a message, truncated to a readable length.
pub(crate) fn shown(bytes: &[u8]) -> String {
    const MOST: usize = 60;
    String::from_utf8_lossy(&bytes[..bytes.len().min(MOST)]).into_owned()
}

/// The outcome of a step of a reader.
pub(crate) enum Next {
    Io(Row),
    Other,
    Bad(Fault),
    End,
}

impl From<Result<Option<Row>, Fault>> for Next {
    fn from(row: Result<Option<Row>, Fault>) -> Self {
        match row {
            Ok(Some(row)) => Self::Io(row),
            Ok(None) => Self::Other,
            Err(fault) => Self::Bad(fault),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_exact_and_what_is_finer_is_cut() {
        let ns = |text: &str| scaled("time", text.as_bytes(), 1_000_000_000);
        assert_eq!(ns("1538323200.123456789"), Ok(1_538_323_200_123_456_789));
        assert_eq!(ns("0.0000000019"), Ok(1));
        assert_eq!(ns(".5"), Ok(500_000_000));
        assert_eq!(ns("7."), Ok(7_000_000_000));
        assert!(matches!(ns("-1.5"), Err(Fault::Negative { .. })));
        assert!(matches!(ns("18446744074"), Err(Fault::Range { .. })));
        for text in ["", ".", "1e3", "-", "1.2.3", "0x1", "1.0000000000000000000x"] {
            assert!(matches!(ns(text), Err(Fault::Number { .. })), "{text}");
        }
    }

    #[test]
    fn eight_digits_are_as_one_at_a_time() {
        for value in [0, 7, 12_345_678, 99_999_999, 123_456_789_012_345_678, u64::MAX] {
            assert_eq!(whole("size", value.to_string().as_bytes()), Ok(value));
            assert_eq!(whole("size", format!("{value:019}").as_bytes()), Ok(value));
        }
        assert!(matches!(whole("size", b"18446744073709551616"), Err(Fault::Range { .. })));
        // Tries every byte that is not a digit at each of the eight positions.
        for place in 0..8 {
            for byte in (0..=u8::MAX).filter(|byte| !byte.is_ascii_digit()) {
                let mut text = *b"12345678";
                text[place] = byte;
                assert!(whole("size", &text).is_err(), "{text:?}");
            }
        }
    }

    #[test]
    fn dates_count_from_1970() {
        assert_eq!(date("time", b"1970-01-01 00:00:00"), Ok(0));
        assert_eq!(date("time", b"2024-02-29T12:00:00.5"), Ok(1_709_208_000_500_000_000));
        for text in
            ["2024-13-01 00:00:00", "2024-01-01", "2024-01-01 24:00:00", "abcd-ef-gh ij:kl:mn"]
        {
            assert!(date("time", text.as_bytes()).is_err(), "{text}");
        }
    }
}
