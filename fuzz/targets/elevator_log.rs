//! Logs of the calls to policies: reading, summarising and replaying them.

#![no_main]

use blkmq_lab::elevator_log::{Log, Workload, replay, summary};
use libfuzzer_sys::{Corpus, fuzz_target};

/// The most slots for which a log may build its policies: each replay allocates tables of that size.
const MOST_SLOTS: u32 = 1 << 12;

fuzz_target!(|bytes: &[u8]| -> Corpus {
    let log = match Log::parse(bytes) {
        Ok(log) => log,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return Corpus::Keep;
        }
    };
    let slots: u32 = log.instances.iter().map(|instance| instance.shape.slots).sum();
    if slots > MOST_SLOTS {
        return Corpus::Reject;
    }
    let _ = summary(&log);
    let _ = Workload::of(&log);
    for instance in &log.instances {
        match replay(instance) {
            Ok(replayed) => assert!(replayed.answers <= replayed.calls + 1),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    Corpus::Keep
});
