//! Sizes and times of parameters, with the units of fio: `512k`, `16m`, `10us`.
//!
//! A number without a unit is in the unit of its parameter; [`Given::number`] reads parameters without a unit.

use crate::param::{Given, PairError};
use alloc::format;
use core::fmt;
use core::ops::RangeInclusive;
use core::str::FromStr;

/// The unit of a parameter: the quantity that a number without a unit counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// A number of bytes, at least 1.
    Bytes(u64),
    /// A number of nanoseconds, at least 1.
    Nanos(u64),
}

/// A KiB in bytes.
const KIB: u64 = 1 << 10;

impl Unit {
    /// MiB.
    pub const MIB: Self = Self::Bytes(1 << 20);
    /// GiB.
    pub const GIB: Self = Self::Bytes(1 << 30);
    /// KiB.
    pub const KIB: Self = Self::Bytes(KIB);
    /// Nanoseconds.
    pub const NS: Self = Self::Nanos(1);

    /// The number of these units in `text`, which is a whole number with a unit of fio's. `None` if it is of another
    /// form, does not fit, or is not a whole number of these units.
    fn count(self, text: &str) -> Option<u64> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = text[..digits].parse().ok()?;
        let word = text[digits..].to_ascii_lowercase();
        let (scale, one) = match self {
            Self::Bytes(one) => (bytes_in(&word)?, one),
            Self::Nanos(one) => (nanos_in(&word)?, one),
        };
        let whole = number.checked_mul(scale)?;
        whole.is_multiple_of(one).then(|| whole / one)
    }

    /// Examples of accepted amounts.
    fn examples(self) -> &'static str {
        match self {
            Self::Bytes(one) if one > 1 => "512m, 1g",
            Self::Bytes(_) => "4k, 1m",
            Self::Nanos(_) => "500ns, 10us, 5ms, 1s",
        }
    }
}

/// The plural of the unit.
impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Bytes(1) => f.write_str("bytes"),
            Self::KIB => f.write_str("KiB"),
            Self::MIB => f.write_str("MiB"),
            Self::GIB => f.write_str("GiB"),
            Self::Nanos(1) => f.write_str("ns"),
            Self::Bytes(one) => write!(f, "units of {one} bytes"),
            Self::Nanos(one) => write!(f, "units of {one} ns"),
        }
    }
}

/// As in fio, `k` is 1024 and `ki` is 1000, and a `b` at the end changes nothing.
fn bytes_in(word: &str) -> Option<u64> {
    if word == "b" {
        return Some(1);
    }
    let word = word.strip_suffix('b').unwrap_or(word);
    let (word, base): (_, u64) = match word.strip_suffix('i') {
        Some(word) => (word, 1000),
        None => (word, KIB),
    };
    let power = ["k", "m", "g", "t", "p", "e"].iter().position(|prefix| *prefix == word)?;
    Some(base.pow(power as u32 + 1))
}

fn nanos_in(word: &str) -> Option<u64> {
    Some(match word {
        "ns" | "nsec" => 1,
        "us" | "usec" => 1_000,
        "ms" | "msec" => 1_000_000,
        "s" | "sec" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" | "hour" => 3_600_000_000_000,
        "d" | "day" => 86_400_000_000_000,
        _ => return None,
    })
}

impl Given<'_> {
    /// A size or a time within `range`, counted in `unit`: a whole number, or a number with a unit of fio's.
    ///
    /// # Errors
    /// If it is neither, not a whole number of `unit`, or out of range.
    pub fn measure<N>(&self, unit: Unit, range: RangeInclusive<N>) -> Result<N, PairError>
    where
        N: Copy + PartialOrd + fmt::Display + FromStr + TryFrom<u64>,
    {
        let plain = self.value.parse().ok();
        let number = plain.or_else(|| unit.count(self.value).and_then(|n| N::try_from(n).ok()));
        number
            .filter(|n| range.contains(n))
            .ok_or_else(|| self.refuse_measure(unit, range.start(), range.end()))
    }

    /// Bytes from 1 to `most`: a whole number of `unit`, or a number with a unit of fio's, which need be no whole
    /// number of `unit`.
    ///
    /// # Errors
    /// If it is neither, or out of range.
    pub fn bytes(&self, unit: Unit, most: u64) -> Result<u64, PairError> {
        let one = match unit {
            Unit::Bytes(one) | Unit::Nanos(one) => one.max(1),
        };
        let plain = self.value.parse::<u64>().ok();
        let bytes = match plain {
            Some(number) => number.checked_mul(one),
            None => Unit::Bytes(1).count(self.value),
        };
        bytes
            .filter(|bytes| (1..=most).contains(bytes))
            .ok_or_else(|| self.refuse_measure(unit, &1, &(most / one)))
    }

    /// The error for a number of any type.
    #[cold]
    fn refuse_measure(
        &self,
        unit: Unit,
        least: &dyn fmt::Display,
        most: &dyn fmt::Display,
    ) -> PairError {
        let examples = unit.examples();
        self.refuse(format!(
            "a whole number of {unit} from {least} to {most}, or with a unit: {examples}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Parameter;
    use alloc::string::ToString;

    const TABLE: &[Parameter] = &[Parameter { name: "size", default: "", help: "" }];

    fn given(value: &str) -> Given<'_> {
        Given::find(TABLE, "size", value).expect("in the table")
    }

    #[test]
    fn a_bare_number_counts_units_and_fios_units_are_converted() {
        for (text, unit, expected) in [
            ("7", Unit::MIB, 7_u64),
            ("16m", Unit::MIB, 16),
            ("16M", Unit::MIB, 16),
            ("16MB", Unit::MIB, 16),
            ("1g", Unit::MIB, 1024),
            ("1024k", Unit::MIB, 1),
            ("2t", Unit::GIB, 2048),
            ("64ki", Unit::Bytes(1000), 64),
            ("4k", Unit::Bytes(1), 4096),
            ("512b", Unit::Bytes(1), 512),
            ("10us", Unit::NS, 10_000),
            ("10", Unit::NS, 10),
            ("7ns", Unit::NS, 7),
            ("5ms", Unit::NS, 5_000_000),
            ("1s", Unit::NS, 1_000_000_000),
        ] {
            assert_eq!(given(text).measure(unit, 0..=u64::MAX), Ok(expected), "{text} of {unit}");
        }
    }

    #[test]
    fn what_is_no_size_or_no_time_is_refused_with_examples() {
        for text in ["", "k", "1x", "1.5g", "-1m", "512k", "99999999999g", "1us", "1 m", "i", "1i"]
        {
            let error = given(text).measure(Unit::MIB, 1..=1_u64 << 43).expect_err(text);
            let expected =
                "accepted: a whole number of MiB from 1 to 8796093022208, or with a unit: 512m, 1g";
            assert!(error.to_string().ends_with(expected), "{error}");
        }
        let error = given("3k").measure(Unit::NS, 0..=9_u64).expect_err("no time").to_string();
        assert!(
            error.ends_with(
                "a whole number of ns from 0 to 9, or with a unit: 500ns, 10us, 5ms, 1s"
            )
        );
        assert!(given("70k").measure(Unit::Bytes(1), 0..=u16::MAX).is_err(), "it does not fit");
    }

    #[test]
    fn bytes_may_be_finer_than_the_unit() {
        assert_eq!(given("3").bytes(Unit::MIB, u64::MAX), Ok(3 << 20));
        assert_eq!(given("10240b").bytes(Unit::MIB, u64::MAX), Ok(10_240));
        assert_eq!(given("512k").bytes(Unit::MIB, 1 << 20), Ok(512 << 10));
        for text in ["0", "2", "0k", "2m", "ten", "99999999999999999999"] {
            let error = given(text).bytes(Unit::MIB, 1 << 20).expect_err(text).to_string();
            assert!(error.contains("a whole number of MiB from 1 to 1, or with a unit"), "{error}");
        }
    }
}
