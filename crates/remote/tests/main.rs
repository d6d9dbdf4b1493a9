//! NBD devices against a scripted server.

#![cfg(target_os = "linux")]

mod contents;
mod ends;
mod fake;
mod holes;
mod losses;
mod poison;
mod refusals;
