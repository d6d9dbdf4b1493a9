//! Layers pass the tests that every device must pass, on every kind of leg, nested, and with faults inside.

use blkmq_core::Nanos;
use blkmq_device::{Device, MachineShape, contract, registry};
use blkmq_engine::{BlockDevice, DeviceQueues, DeviceShape};
use blkmq_layer::{Kind, Part, Stack, StackError};

fn leg(text: &str) -> Device {
    registry::parse(text, &MachineShape { cpus: 2, nodes: 1 }).expect(text)
}

fn legs(texts: &[&str]) -> Vec<Device> {
    texts.iter().map(|text| leg(text)).collect()
}

fn check(device: &impl BlockDevice<u64>, seeds: std::ops::Range<u64>) -> usize {
    let mut failed = 0;
    for seed in seeds {
        let queues = || -> DeviceQueues<u64> { device.queues().expect("queues of legs") };
        let shape: DeviceShape = device.shape();
        let outcome = contract::conformance(shape, queues(), seed);
        assert_eq!(outcome.ios, 1000);
        failed += outcome.failed;
        contract::abandonment(shape, queues(), seed);
    }
    failed
}

const LEGS: [&[&str]; 5] = [
    &["memory,size=1", "memory,size=1"],
    &[
        "memory,size=1,irqmode=2,completion_nsec=20000,hw_queue_depth=4",
        "memory,size=2",
        "memory,size=3",
    ],
    &["null,size=1,irqmode=2,completion_nsec=10000", "disk,size=2"],
    &["memory,size=1,cache_size=1,irqmode=2", "flash,size=64"],
    &["null,size=1,blocksize=4096", "null,size=1,irqmode=0"],
];

#[test]
fn stripes_conform() {
    for texts in LEGS {
        for chunk in [8, 64, 256] {
            let device = Stack::new(Kind::Stripe { chunk }, legs(texts)).expect("legs that suit");
            assert_eq!(check(&device, 0..3), 0, "{texts:?}");
        }
    }
}

#[test]
fn concatenations_conform() {
    for texts in LEGS {
        let device = Stack::new(Kind::Concat, legs(texts)).expect("legs that suit");
        assert_eq!(check(&device, 0..3), 0, "{texts:?}");
    }
}

/// Created from devices without records.
const MIRROR: Kind = Kind::Mirror { create: true, replace: false, missing: 0 };

#[test]
fn mirrors_conform() {
    // Opening the mirror again needs its records, which models do not keep.
    let cached = ["memory,size=1,cache_size=1,irqmode=2", "memory,size=1,blocksize=4096"];
    for texts in [LEGS[0], LEGS[1], &cached] {
        let device = Stack::new(MIRROR, legs(texts)).expect("legs that suit");
        assert_eq!(check(&device, 0..4), 0, "{texts:?}");
    }
}

#[test]
fn mirrors_conform_when_a_leg_fails_and_when_all_do() {
    let late = "late=0.2,late_nsec=30000,reorder=0.2,requeue=0.1,resource=0.1,dev_resource=0.1";
    // The faults spare the first requests, by which the mirror is opened.
    let faulty = format!("faults,{late},error=0.05,space=20:memory,size=1,irqmode=2");
    let sound = format!("faults,{late}:memory,size=1,irqmode=2");
    for (texts, fails) in [([&sound, &faulty], false), ([&faulty, &faulty], true)] {
        let legs = Vec::from_iter(texts.map(|text| leg(text)));
        let device = Stack::new(MIRROR, legs).expect("legs that suit");
        assert_eq!(check(&device, 0..6) > 0, fails, "{texts:?}");
    }
}

#[test]
fn layers_that_change_bytes_conform() {
    let key = tempfile::NamedTempFile::new().expect("a folder for files");
    std::fs::write(key.path(), Vec::from_iter(0..64)).expect("its file");
    for text in LEGS.into_iter().flatten() {
        let kinds = [512, 4096].map(|block| Kind::Crypt { key: key.path().into(), block });
        for kind in kinds.into_iter().chain([Kind::Checksum]) {
            match Stack::new(kind, vec![leg(text)]) {
                Ok(device) => assert_eq!(check(&device, 0..2), 0, "{text}"),
                Err(StackError::Block { block }) => assert_eq!(block, 4096, "{text}"),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn layers_on_layers_conform() {
    let stripe = |chunk| {
        let two = legs(&["memory,size=1,irqmode=2", "memory,size=1"]);
        Stack::new(Kind::Stripe { chunk }, two).expect("legs that suit")
    };
    let device: Stack<Stack<Device>> =
        Stack::new(Kind::Concat, vec![stripe(8), stripe(24)]).expect("legs that suit");
    assert_eq!(
        BlockDevice::<Part>::shape(&device).limits.capacity,
        (2 << 11) + 2 * (2048 / 24 * 24)
    );
    assert_eq!(check(&device, 0..4), 0);
}

#[test]
fn layers_conform_when_legs_misbehave() {
    let faults =
        "error=0.05,late=0.2,late_nsec=30000,reorder=0.2,requeue=0.1,resource=0.1,dev_resource=0.1";
    let faulty = format!("faults,{faults}:memory,size=1,irqmode=2");
    for kind in [Kind::Stripe { chunk: 16 }, Kind::Concat] {
        let device = Stack::new(kind, legs(&[&faulty, &faulty])).expect("legs that suit");
        assert!(check(&device, 0..6) > 0, "errors reach the submitter");
    }
}

#[test]
fn a_lost_request_of_a_leg_ends_by_the_timeout_of_the_leg() {
    let lossy = "faults,timeout=0.05,timeout_nsec=1000000:memory,size=1,irqmode=2";
    let device = Stack::new(Kind::Stripe { chunk: 16 }, legs(&[lossy, "memory,size=1"]));
    let device = device.expect("legs that suit");
    assert_eq!(BlockDevice::<u64>::shape(&device).timeout, Nanos(u64::MAX));
    assert!(check(&device, 0..4) > 0);
}
