//! The limits of a group: each line is a write to `io.max`; the resulting limits are printed and read back.

#![no_main]

use blkmq_engine::IoMax;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let mut max = IoMax::default();
    for line in text.lines() {
        match max.set(line) {
            Ok(set) => max = set,
            Err(error) => assert!(line.contains(&error.word)),
        }
    }
    assert_eq!(IoMax::default().set(&max.to_string()), Ok(max));
});
