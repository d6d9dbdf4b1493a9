//! An option's value while it is parsed. Errors give the accepted values; the caller adds the origin.

use crate::plan::Choice;
use blkmq_core::Nanos;
use blkmq_lab::workload::{Amount, PerDirection};
use blkmq_terminal::UsageError;
use blkmq_terminal::units::{self, KbBase, TimeUnit};
use std::fmt::Display;
use std::ops::RangeInclusive;

/// A value and the meaning of `k` in it.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a> {
    /// The text as written.
    pub text: &'a str,
    /// The job's `kb_base`.
    pub base: KbBase,
}

type Parsed<T> = Result<T, UsageError>;

impl<'a> Value<'a> {
    /// A boolean.
    pub fn flag(self) -> Parsed<bool> {
        match self.text {
            "1" => Ok(true),
            "0" => Ok(false),
            _ => Err(UsageError::new("accepted: 0, 1, or the option without a value")),
        }
    }

    /// A number in a range.
    pub fn count<T>(self, range: RangeInclusive<T>) -> Parsed<T>
    where
        T: Copy + PartialOrd + Display + TryFrom<u64>,
    {
        units::count(self.text, range, self.base)
    }

    /// A time; a number without a unit is in `default`.
    pub fn time(self, default: TimeUnit) -> Parsed<Nanos> {
        units::time(self.text, default)
    }

    /// Bytes, or a share of the device.
    pub fn amount(self) -> Parsed<Amount> {
        match self.text.strip_suffix('%') {
            Some(share) => units::percent(share).map(Amount::Percent),
            None => units::bytes(self.text, self.base).map(Amount::Bytes),
        }
    }

    /// Parses one word of a closed set.
    pub fn choice<T: Choice>(self) -> Parsed<T> {
        T::from_word(self.text)
    }

    /// A text that is not empty.
    pub fn non_empty(self, what: &str) -> Parsed<&'a str> {
        if self.text.is_empty() {
            Err(UsageError::new(format!("no value; accepted: {what}")))
        } else {
            Ok(self.text)
        }
    }

    /// Parses fio's `r,w,t`: a value also applies to the directions after it, an empty position leaves its direction
    /// unchanged (`,8k` sets writes and trims), and a trailing comma leaves the rest unchanged (`8k,` sets reads).
    pub fn directions<T: Clone>(
        self,
        read: impl Fn(Self) -> Parsed<T>,
    ) -> Parsed<PerDirection<Option<T>>> {
        let parts = Vec::from_iter(self.text.split(',').map(str::trim));
        if parts.len() > 3 || parts.iter().all(|part| part.is_empty()) {
            let accepted = "accepted: up to three values, for reads, writes and trims: r,w,t";
            return Err(UsageError::new(accepted));
        }
        let mut values: [Option<T>; 3] = [None, None, None];
        for (at, part) in parts.iter().enumerate() {
            if !part.is_empty() {
                values[at] = Some(read(Self { text: part, ..self })?);
            }
        }
        let last = parts.len() - 1;
        for at in parts.len()..3 {
            values[at] = values[last].clone();
        }
        let [reads, writes, trims] = values;
        Ok(PerDirection::new(reads, writes, trims))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directions(text: &str) -> Parsed<[Option<u32>; 3]> {
        let value = Value { text, base: KbBase::Binary };
        let values = value.directions(|value| value.count(0..=99u32))?;
        Ok(blkmq_lab::workload::Direction::ALL.map(|direction| values[direction]))
    }

    #[test]
    fn three_directions_are_filled_as_in_fio() {
        for (text, expected) in [
            ("8", [Some(8), Some(8), Some(8)]),
            ("8,9", [Some(8), Some(9), Some(9)]),
            ("8,9,7", [Some(8), Some(9), Some(7)]),
            ("8,", [Some(8), None, None]),
            (",9", [None, Some(9), Some(9)]),
            (",9,", [None, Some(9), None]),
            ("8,,7", [Some(8), None, Some(7)]),
        ] {
            assert_eq!(directions(text), Ok(expected), "{text}");
        }
        for text in ["", ",", ",,", "1,2,3,4", "x"] {
            assert!(directions(text).is_err(), "{text}");
        }
    }

    #[test]
    fn amounts_are_bytes_or_shares() {
        let amount = |text| Value { text, base: KbBase::Binary }.amount();
        assert_eq!(amount("20%"), Ok(Amount::Percent(20)));
        assert_eq!(amount("2k"), Ok(Amount::Bytes(2048)));
        assert!(amount("101%").is_err() && amount("%").is_err());
    }
}
