//! Modules that the programs of blkmq share: parsing of values and layout of text.
//!
//! [`program::run`] is the frame of a program, [`Page`](page::Page) the form of its help. [`units`], [`limits`],
//! [`scheduler`] and [`table`] read values as users write them, [`paper`] and [`text_table`] lay text out for a
//! terminal. Each program defines its own commands.

#![forbid(unsafe_code)]

pub mod bounded;
pub mod completions;
mod error;
pub mod faults;
pub mod interrupt;
pub mod limits;
pub mod man;
pub mod nearest;
pub mod output;
pub mod page;
pub mod paper;
pub mod program;
pub mod scheduler;
pub mod screen;
pub mod spec;
pub mod table;
pub mod text_table;
pub mod units;

pub use error::UsageError;
pub use output::OutputError;
pub use scheduler::SchedulerChoice;
