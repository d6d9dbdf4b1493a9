//! The command line of `bench` and `sim`: arguments, a line each, and behind a line of `%` a job file.
//!
//! The modules are those of the program, which is no library.

#![no_main]
#![allow(dead_code, unused_imports, reason = "the modules of a program, of which a part is used")]

#[path = "../../crates/cli/src/args/mod.rs"]
mod args;
#[path = "../../crates/cli/src/bench/mod.rs"]
mod bench;
#[path = "../../crates/cli/src/bounded.rs"]
mod bounded;
#[path = "../../crates/cli/src/commands.rs"]
mod commands;
#[path = "../../crates/cli/src/devices.rs"]
mod devices;
#[path = "../../crates/cli/src/doc.rs"]
mod doc;
#[path = "../../crates/cli/src/dry_run.rs"]
mod dry_run;
#[path = "../../crates/cli/src/error.rs"]
mod error;
#[path = "../../crates/cli/src/plan/mod.rs"]
mod plan;
#[path = "../../crates/cli/src/replay.rs"]
mod replay;
#[path = "../../crates/cli/src/report/mod.rs"]
mod report;
#[path = "../../crates/cli/src/repro/mod.rs"]
mod repro;
#[path = "../../crates/cli/src/units.rs"]
mod units;

use libfuzzer_sys::{Corpus, fuzz_target};
use plan::Time;

/// Only an option that stands in one word: others would be files to read, whatever they are called.
fn is_option(word: &&str) -> bool {
    word.len() > 2 && word.starts_with("--")
}

fuzz_target!(|text: &str| -> Corpus {
    let (line, job_file) = text.split_once("\n%\n").unwrap_or((text, ""));
    let mut words: Vec<String> = line.lines().filter(is_option).map(str::to_owned).collect();
    // In memory: a file system on a disk waits for it when a file is written anew, thousands of times.
    let path = std::path::PathBuf::from(format!("/dev/shm/blkmq-fuzz-{}.fio", std::process::id()));
    if !job_file.is_empty() {
        std::fs::write(&path, job_file).expect("memory can be written to");
        words.push("--".into());
        words.push(path.to_string_lossy().into_owned());
    }
    // Describing a file opens it, and makes it as large as it says.
    if text.contains("uring") {
        return Corpus::Reject;
    }
    for time in [Time::Real, Time::Virtual { seed: 1 }] {
        if let Err(error) = args::parse(&words, time) {
            let message = error.to_string();
            assert!(!message.is_empty() && !message.contains('\n'), "{message:?}");
        }
    }
    Corpus::Keep
});
