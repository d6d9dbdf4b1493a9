//! NBD devices against a scripted server.

#![cfg(target_os = "linux")]

mod contents;
mod fake;
mod losses;
