//! Descriptions of devices, including nested ones, and lists of descriptions.

#![no_main]

use blkmq_device::{MachineShape, descriptions, registry};
use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|text: &str| -> Corpus {
    let host = MachineShape { cpus: 4, nodes: 2 };
    let parts = descriptions(text);
    assert!(!parts.is_empty());
    for part in parts {
        // Only read: opening an image looks for a cluster.
        if let Some(image) = blkmq_rbd::RBD.description(part) {
            match blkmq_rbd::Options::parse(image) {
                // An image is named as it is read.
                Ok((spec, _)) => {
                    assert_eq!(blkmq_rbd::ImageSpec::parse(&spec.to_string()), Ok(spec));
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
        if let Some(Ok((kind, legs))) = blkmq_layer::Kind::parse(part) {
            assert!((0..legs.len()).any(|leg| kind.has(leg)), "{kind:?} without a device");
        }
        match registry::parse(part, &host) {
            // An accepted description has valid limits, so that a queue can be built for the device.
            Ok(device) => assert_eq!(device.shape.limits.validate(), Ok(())),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    Corpus::Keep
});
