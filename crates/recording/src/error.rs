//! The errors of a trace, each with its line or byte offset; the faults of a row or a record; and the outcome of a step of
//! a reader.

use crate::record::{MOST_LENGTH, MOST_NAMES, Raw};
use blkmq_trace::record::TraceError;

/// Reading has ended before the end of the trace.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bytes could not be read or decompressed.
    #[error("byte {offset}: {error}")]
    Read {
        /// The number of decompressed bytes read so far.
        offset: u64,
        /// The reason.
        error: std::io::Error,
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

pub(crate) enum Next {
    Io(Raw),
    Other,
    Bad(Fault),
    End,
}
