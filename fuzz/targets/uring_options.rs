//! The options of a file device (`uring`); no file is opened.

#![no_main]

use blkmq_uring::Options;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match Options::parse(text) {
        Ok((path, options)) => {
            assert!(!path.as_os_str().is_empty());
            assert!(options.hw_queues.is_none_or(|count| count > 0));
            assert!(options.hw_queue_depth > 0);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
