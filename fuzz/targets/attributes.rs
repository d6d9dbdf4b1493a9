//! Writing attributes: each line holds a path and a value. An attribute that was written can be read.

#![no_main]

use blkmq_device::{MachineShape, registry};
use blkmq_engine::attributes::{self, Snapshot};
use blkmq_engine::{Config, Plan, Queue};
use libfuzzer_sys::fuzz_target;

/// Returns the plan of a queue for a device that supports every optional feature, so that each attribute that can be
/// written at all can be written here.
fn plan() -> Plan {
    let text = "memory,size=16,discard=1,write_zeroes=1,cache_size=1,fua=1";
    let host = MachineShape { cpus: 2, nodes: 1 };
    let device = registry::parse(text, &host).or_else(|_| registry::parse("memory", &host));
    let config: Config<()> = device.expect("a virtual device").config();
    Queue::new(config).expect("a possible queue").plan()
}

thread_local! {
    static PLAN: Plan = plan();
}

fuzz_target!(|text: &str| {
    let mut plan = PLAN.with(Clone::clone);
    for line in text.lines() {
        let (path, value) = line.split_once(' ').unwrap_or((line, ""));
        match attributes::write(&plan, path, value) {
            Ok(changed) => {
                let shown = attributes::read(&Snapshot::idle(changed.clone()), path);
                assert!(!shown.expect("it was written").is_empty());
                plan = changed;
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    assert!(!attributes::read_all(&Snapshot::idle(plan)).is_empty());
});
