//! The errors of a trace, each with its line or byte offset.

use crate::columns::DescriptionError;
use crate::fault::Fault;
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
