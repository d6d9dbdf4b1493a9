//! The text of a device, nested ones among them, and lists of such texts.

#![no_main]

use blkmq_device::{MachineShape, descriptions, registry};
use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|text: &str| -> Corpus {
    let host = MachineShape { cpus: 4, nodes: 2 };
    let parts = descriptions(text);
    assert!(!parts.is_empty());
    for part in parts {
        match registry::parse(part, &host) {
            // What is taken has been checked, so that a queue can be built around it.
            Ok(device) => assert_eq!(device.shape.limits.validate(), Ok(())),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    Corpus::Keep
});
