//! The command line of `bench` and `sim`: one argument in each line, and a job file behind a line of `%`.

#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};

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
    // Parsing the description of a real device opens it: a file, which is extended to the given size, or a connection.
    if ["uring", "nbd", "rbd"].iter().any(|name| text.contains(name)) {
        return Corpus::Reject;
    }
    blkmq_cli::fuzzing::command_line(&words);
    Corpus::Keep
});
