//! fio's units: amounts, times, counts, shares and decimals. No parser panics, and a number without a unit is itself.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| blkmq_cli::fuzzing::units(text));
