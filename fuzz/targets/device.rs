//! Descriptions of devices, including nested ones, and lists of descriptions.

#![no_main]

use blkmq_device::{MachineShape, descriptions, registry};
use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|text: &str| -> Corpus {
    let host = MachineShape { cpus: 4, nodes: 2 };
    let parts = descriptions(text);
    assert!(!parts.is_empty());
    for part in parts {
        match registry::parse(part, &host) {
            // An accepted description has valid limits, so that a queue can be built for the device.
            Ok(device) => assert_eq!(device.shape.limits.validate(), Ok(())),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    Corpus::Keep
});
