//! NBD devices against a server that does what a test wants.

#![cfg(target_os = "linux")]

mod contents;
mod ends;
mod fake;
mod holes;
mod losses;
mod poison;
mod refusals;
