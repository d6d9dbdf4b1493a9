//! Readers of block traces that other programs have written. The crate opens no files: a [`Reader`] takes any
//! [`Read`](std::io::Read) and yields one [`Record`] for each I/O.
//!
//! CSV and its relatives are read by a [description of columns](Description), and each public format is a row of a
//! [table](PRESETS) with such a description. blktrace's records, blkparse's text, fio's iologs and vscsi's records have
//! their own readers. Input may be compressed with gzip or zstd.
//!
//! Memory is bounded whatever the length of a trace: a buffer, the names of tenants and volumes up to [`MOST_NAMES`],
//! and sketches of fixed size in a [`Summary`]. For any bytes, reading ends in records or in an error with its line or
//! byte.
//!
//! Not here: the replay, which is a workload of the laboratory.

#![forbid(unsafe_code)]

mod columns;
mod format;
mod input;
mod reader;
mod record;
mod summary;
#[cfg(test)]
mod tests;

pub use columns::Description;
pub use format::{Format, PRESETS, Preset};
pub use input::{DescriptionError, Error, Fault};
pub use reader::{Options, Reader, Skipped};
pub use record::{
    Event, Form, Layout, LayoutError, MOST_LENGTH, MOST_NAMES, Names, Placed, Record, Stamps,
    Writer,
};
pub use summary::{Summary, Tenant};
