//! Readers against recordings of other programs.

mod kernel;
