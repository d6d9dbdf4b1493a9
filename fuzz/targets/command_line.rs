//! The command line of `bench` and `sim`: one argument in each line, and a job file behind a line of `%`.
//!
//! The modules are included by path, because the program is not a library.

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

/// Returns true for an option with its value in one word. Any other word would be taken for the name of a file to read.
fn is_option(word: &&str) -> bool {
    word.len() > 2 && word.starts_with("--")
}

fuzz_target!(|text: &str| -> Corpus {
    let (line, job_file) = text.split_once("\n%\n").unwrap_or((text, ""));
    let mut words: Vec<String> = line.lines().filter(is_option).map(str::to_owned).collect();
    // The job file is in memory: it is rewritten thousands of times, and each time a file system on a disk would wait
    // for the disk.
    let path = std::path::PathBuf::from(format!("/dev/shm/blkmq-fuzz-{}.fio", std::process::id()));
    if !job_file.is_empty() {
        std::fs::write(&path, job_file).expect("memory can be written to");
        words.push("--".into());
        words.push(path.to_string_lossy().into_owned());
    }
    // Parsing the description of a file device opens the file and extends it to the given size.
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
