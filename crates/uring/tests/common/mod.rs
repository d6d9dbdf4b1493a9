//! Helpers of these tests.

mod blocks;
mod files;

pub use blocks::*;
pub use files::*;
