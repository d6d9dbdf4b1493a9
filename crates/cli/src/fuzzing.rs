//! The parsers of the command line, for `cargo xtask fuzz`. Each function panics if a property of its parser is
//! violated.

use crate::args;
use crate::plan::Time;
use blkmq_terminal::units::{self, KbBase, TimeUnit};

/// The words of `bench` and `sim`: no parser panics, and each error message is one line.
///
/// # Panics
/// If an error message is empty or has more than one line.
pub fn command_line(words: &[String]) {
    for time in [Time::Real, Time::Virtual { seed: 1 }] {
        if let Err(error) = args::parse(words, time) {
            let message = error.to_string();
            // A line for each fault.
            assert!(
                !message.is_empty() && message.lines().all(|line| !line.is_empty()),
                "{message:?}"
            );
        }
    }
}

/// fio's units: amounts, times, counts, percentages and decimals. A number without a unit is itself.
///
/// # Panics
/// If a number is parsed to another value.
pub fn units(text: &str) {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_right_and_what_is_wrong_passes() {
        for words in [&["--bs=4k"][..], &["--bs=floppy"], &["--no\nsuch"], &[]] {
            command_line(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        }
        ["4k", "+5", "", "99999999999999999999", "1.5s"].iter().for_each(|text| units(text));
    }
}
