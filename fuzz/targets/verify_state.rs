//! States of verifications (`verify_state_load`): bytes are refused, or say which blocks are read back, each within the
//! region and once. With an odd first byte the rest gets the checksum that a state ends with.

#![no_main]

use blkmq_lab::workload::verify::Method;
use blkmq_lab::workload::{Amount, Job, Rw, Verifier, Verify};
use libfuzzer_sys::fuzz_target;

const DEVICE: u64 = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    let mut state = rest.to_vec();
    if first % 2 == 1 {
        state.extend(crc32c::crc32c(rest).to_le_bytes());
    }
    let verify = Verify { only: true, state_load: true, ..Verify::new(Method::Crc32c) };
    let size = Some(Amount::Bytes(64 << 10));
    let job = Job { rw: Rw::Write, verify: Some(verify), size, ..Job::default() };
    let verifier = Verifier::new(&job, 0, DEVICE).expect("a possible job");
    let mut verifier = verifier.expect("it verifies");
    if let Err(error) = verifier.restore(&state) {
        return assert!(!error.to_string().is_empty());
    }
    let mut next = 0;
    while let Some(io) = verifier.next_check() {
        assert!(io.sector >= next && io.sectors > 0);
        next = io.sector + u64::from(io.sectors);
    }
    assert!(next <= (64 << 10) / 512);
});
