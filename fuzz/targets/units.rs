//! fio's units: amounts, times, counts, shares and decimals. No parser panics, and a number without a unit is itself.

#![no_main]
#![allow(dead_code, reason = "the modules of a program, of which a part is used")]

#[path = "."]
mod bench {
    #[path = "../../crates/cli/src/bench/start.rs"]
    pub mod start;
}
#[path = "../../crates/cli/src/error.rs"]
mod error;
#[path = "../../crates/cli/src/units.rs"]
mod units;

use libfuzzer_sys::fuzz_target;
use units::{KbBase, TimeUnit};

fuzz_target!(|text: &str| {
    for base in [KbBase::Binary, KbBase::Decimal] {
        let bytes = units::bytes(text, base);
        if let Ok(number) = text.parse::<u64>()
            && !text.starts_with('+')
        {
            assert_eq!(bytes, Ok(number));
        }
        let count = units::count(text, 0..=u64::MAX, base);
        assert_eq!(count.is_ok(), bytes.is_ok());
        if let Ok(small) = units::count(text, 1..=1000u16, base) {
            assert!((1..=1000).contains(&small));
        }
    }
    for unit in [TimeUnit::Micros, TimeUnit::Seconds] {
        let _ = units::time(text, unit);
    }
    let _ = units::decimal(text, "a number");
});
