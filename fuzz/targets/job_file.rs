//! Job files of fio's form, given to `bench` and `sim`.

#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|text: &str| -> Corpus {
    // Parsing the description of a real device opens it: a file, which is extended to the given size, or a connection.
    // Parsing an inclusion reads a file.
    if ["uring", "nbd", "rbd", "include"].iter().any(|name| text.contains(name)) {
        return Corpus::Reject;
    }
    // The job file is in memory: it is rewritten thousands of times, and each time a file system on a disk would wait
    // for the disk.
    let path = std::path::PathBuf::from(format!("/dev/shm/blkmq-fuzz-{}.fio", std::process::id()));
    std::fs::write(&path, text).expect("memory can be written to");
    blkmq_cli::fuzzing::command_line(&["--".into(), path.to_string_lossy().into_owned()]);
    Corpus::Keep
});
