//! The line of a simulated run: an accepted line is printed and read back unchanged.

#![no_main]

use blkmq_lab::soak::Replay;
use libfuzzer_sys::{Corpus, fuzz_target};

/// Parameters that are not fuzzed: parsing a line builds its queue, and a large queue is slow to build and covers no
/// more code.
const SLOW: [&str; 2] = ["submit_queues", "depth"];

fuzz_target!(|text: &str| -> Corpus {
    if SLOW.iter().any(|word| text.contains(word)) {
        return Corpus::Reject;
    }
    match text.parse::<Replay>() {
        Ok(replay) => {
            let line = replay.to_string();
            let again: Replay = line.parse().expect("it was printed here");
            assert_eq!(again.to_string(), line);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    Corpus::Keep
});
