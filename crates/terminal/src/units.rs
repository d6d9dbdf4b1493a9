//! fio's units: amounts of data, times, counts and percentages; and with them the [`limits`] of a group.
//!
//! With fio's default `kb_base` of 1024, `k`, `kb` and `ki` are 1024 and `kib` is 1000, the reverse of the standards;
//! with `kb_base=1000` the two are swapped. Every error names the accepted input.

use crate::UsageError;
use blkmq_core::Nanos;
use std::fmt::Display;
use std::num::IntErrorKind;
use std::ops::RangeInclusive;

/// The meaning of `k`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KbBase {
    /// fio's default: `k` is 1024, `kib` is 1000.
    Binary,
    /// The standards: `k` is 1000, `kib` is 1024.
    Decimal,
}

/// A unit of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeUnit {
    /// `us`.
    Micros,
    /// `s`.
    Seconds,
}

const PREFIXES: [char; 6] = ['k', 'm', 'g', 't', 'p', 'e'];

fn refuse(text: &str, accepted: &str) -> UsageError {
    if text.is_empty() {
        UsageError::new(format!("no value; accepted: {accepted}"))
    } else {
        UsageError::new(format!("'{text}' is not valid; accepted: {accepted}"))
    }
}

/// Splits `4k` into 4 and `k` (in lower case). A number that overflows becomes the largest one, which is beyond the
/// range of every option.
fn split(text: &str) -> Option<(u128, String)> {
    let number = |digits: &str, radix| match u128::from_str_radix(digits, radix) {
        Err(e) if *e.kind() == IntErrorKind::PosOverflow => Some(u128::MAX),
        number => number.ok(),
    };
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    if let Some(hex) = hex.filter(|hex| !hex.starts_with('+')) {
        // A trailing `b` would be a digit, so a hexadecimal number has no unit.
        return Some((number(hex, 16)?, String::new()));
    }
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    Some((number(&text[..digits], 10)?, text[digits..].to_ascii_lowercase()))
}

/// Parses an amount of data. Returns bytes.
///
/// # Errors
/// If the text is not a number with a unit of data, or exceeds 2^64 - 1 bytes.
pub fn bytes(text: &str, base: KbBase) -> Result<u64, UsageError> {
    const ACCEPTED: &str = "bytes, such as 4096, 4k, 1m, 2g, 1t, 1p";
    // Programs that compute a size may write `4096.0`.
    let is_whole = |(digits, fraction): &(&str, &str)| {
        !digits.is_empty()
            && digits.bytes().all(|c| c.is_ascii_digit())
            && fraction.bytes().all(|c| c == b'0')
    };
    let plain = text.split_once('.').filter(is_whole).map_or(text, |(digits, _)| digits);
    let (number, unit) = split(plain).ok_or_else(|| refuse(text, ACCEPTED))?;
    // As observed with fio: an `i` alone has no meaning.
    let (unit, swapped) = match unit.strip_suffix("ib") {
        Some(unit) if !unit.is_empty() => (unit, true),
        _ => (unit.strip_suffix('b').unwrap_or(&unit), false),
    };
    let unit = unit.strip_suffix('i').filter(|unit| !unit.is_empty()).unwrap_or(unit);
    let factor: u128 = if swapped == (base == KbBase::Decimal) { 1024 } else { 1000 };
    let power = match unit.chars().next() {
        None => 0,
        Some(c) if unit.len() == 1 => {
            let at = PREFIXES.iter().position(|prefix| *prefix == c);
            at.ok_or_else(|| refuse(text, ACCEPTED))? as u32 + 1
        }
        Some(_) => return Err(refuse(text, ACCEPTED)),
    };
    let overflow = || UsageError::new(format!("'{text}' is too large; accepted: up to 15e"));
    let scaled = number.saturating_mul(factor.pow(power));
    u64::try_from(scaled).map_err(|_| overflow())
}

/// Parses a time; a number without a unit is in `default`.
///
/// # Errors
/// If the text is not a number with a unit of time, or exceeds 584 years.
pub fn time(text: &str, default: TimeUnit) -> Result<Nanos, UsageError> {
    let accepted = match default {
        TimeUnit::Micros => "a time, such as 50 (us), 50us, 10ms, 1s, 5m, 1h, 1d",
        TimeUnit::Seconds => "a time, such as 30 (s), 50us, 10ms, 1s, 5m, 1h, 1d",
    };
    let (number, unit) = split(text).ok_or_else(|| refuse(text, accepted))?;
    let ns: u128 = match (unit.as_str(), default) {
        ("us" | "usec", _) | ("", TimeUnit::Micros) => 1_000,
        ("ms" | "msec", _) => 1_000_000,
        ("s" | "sec", _) | ("", TimeUnit::Seconds) => 1_000_000_000,
        ("m" | "min", _) => 60 * 1_000_000_000,
        ("h" | "hour", _) => 3_600 * 1_000_000_000,
        ("d" | "day", _) => 86_400 * 1_000_000_000,
        _ => return Err(refuse(text, accepted)),
    };
    let overflow = || UsageError::new(format!("'{text}' is too long; accepted: up to 200000d"));
    u64::try_from(number.saturating_mul(ns)).map(Nanos).map_err(|_| overflow())
}

/// Parses a whole number in `range`, with fio's prefixes (`1k` is 1024 unless `base` says otherwise).
///
/// # Errors
/// If the text is not a number, or is out of range.
pub fn count<T>(text: &str, range: RangeInclusive<T>, base: KbBase) -> Result<T, UsageError>
where
    T: Copy + PartialOrd + Display + TryFrom<u64>,
{
    let accepted = format!("{} to {}", range.start(), range.end());
    let number = bytes(text, base).map_err(|_| refuse(text, &accepted))?;
    let number = T::try_from(number).ok().filter(|number| range.contains(number));
    number.ok_or_else(|| UsageError::new(format!("out of range; accepted: {accepted}")))
}

/// Parses a percentage from 0 to 100, without a sign.
///
/// # Errors
/// If the text is not a number from 0 to 100.
pub fn percent(text: &str) -> Result<u8, UsageError> {
    count(text, 0..=100, KbBase::Binary)
}

/// Parses a decimal number; the caller checks its range.
///
/// # Errors
/// If the text is not a finite number.
pub fn decimal(text: &str, accepted: &str) -> Result<f64, UsageError> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite());
    number.ok_or_else(|| refuse(text, accepted))
}

pub mod limits {
    //! Limits and promises of a group as the command line and configuration files spell them: the words of [`IoMax`]
    //! and [`Promise`], with units.

    use super::{KbBase, TimeUnit};
    use crate::UsageError;
    use blkmq_core::Nanos;
    use blkmq_engine::{Burst, IoMax, Promise};

    /// Returns `max` with the limit `key` set to `text`: a number with a unit, or `max`; for bursts a factor or a time.
    ///
    /// # Errors
    /// If the value is impossible, or no limit has that name.
    pub fn set(max: IoMax, key: &str, text: &str) -> Result<IoMax, UsageError> {
        let value = match (key, text) {
            ("burst", factor) => factor.to_owned(),
            ("burst_length", time) => seconds(time)?,
            (_, "max") => text.to_owned(),
            (_, size) => super::bytes(size, KbBase::Binary)?.to_string(),
        };
        max.set(&format!("{key}={value}")).map_err(|error| match key {
            "burst" => refused(text, Burst::FACTORS),
            "burst_length" => refused(text, Burst::LENGTHS),
            rate if IoMax::WORDS.contains(&rate) => refused(text, "a number from 1, or max"),
            _ => UsageError::new(error.to_string()),
        })
    }

    /// Returns `promise` with `word` set to `value`, which has a unit.
    ///
    /// # Errors
    /// If the value is not possible.
    pub fn promised(promise: Promise, word: &str, value: &str) -> Result<Promise, UsageError> {
        let number = if Promise::is_time(word) {
            super::time(value, TimeUnit::Micros)?.0.div_ceil(1_000)
        } else {
            super::bytes(value, KbBase::Binary)?
        };
        promise.set(&format!("{word}={number}")).map_err(|e| UsageError::new(e.to_string()))
    }

    fn refused(text: &str, accepted: &str) -> UsageError {
        UsageError::new(format!("'{text}' is not valid; accepted: {accepted}"))
    }

    /// Converts a time to seconds with three decimal places, the form that [`IoMax`] reads.
    fn seconds(text: &str) -> Result<String, UsageError> {
        let Nanos(ns) = super::time(text, TimeUnit::Seconds)?;
        let ms = Some(ns / 1_000_000).filter(|ms| ms * 1_000_000 == ns);
        let ms = ms.ok_or_else(|| refused(text, Burst::LENGTHS))?;
        Ok(format!("{}.{:03}", ms / 1000, ms % 1000))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn all(pairs: &[(&str, &str)]) -> Result<IoMax, UsageError> {
            pairs.iter().try_fold(IoMax::default(), |max, (key, text)| set(max, key, text))
        }

        #[test]
        fn limits_have_units() {
            let max =
                all(&[("bps", "1m"), ("iops", "2k"), ("burst", "2.5"), ("burst_length", "250ms")]);
            let words = "rbps=max wbps=max riops=max wiops=max bps=1048576 iops=2048 burst=2.5 burst_length=0.25";
            assert_eq!(max.expect("right").to_string(), words);
            let long = all(&[("burst_length", "1m")]).expect("a minute").burst.length;
            assert_eq!(
                (long, all(&[("riops", "5"), ("riops", "max")])),
                (Nanos::from_secs(60), Ok(IoMax::default()))
            );
        }

        #[test]
        fn impossible_values_name_what_is_accepted() {
            for (key, text, accepted) in [
                ("iops", "0", "'0' is not valid; accepted: a number from 1, or max"),
                ("burst", "0.9", "accepted: 1 to 1000"),
                ("burst", "max", "accepted: 1 to 1000"),
                ("burst_length", "50us", "accepted: 0.001 to 3600 seconds"),
                ("burst_length", "2h", "accepted: 0.001 to 3600 seconds"),
                ("speed", "1", "iops=N"),
            ] {
                let error = all(&[(key, text)]).expect_err(text).to_string();
                assert!(error.contains(accepted), "{key}={text}: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_fio_reads_them() {
        let (binary, decimal) = (KbBase::Binary, KbBase::Decimal);
        // Each of these was tried on fio 3.33.
        for (text, base, expected) in [
            ("40ki", binary, 40_960),
            ("64Mi", binary, 64 << 20),
            ("40kib", binary, 40_000),
            ("40KiB", binary, 40_000),
            ("40kb", binary, 40_960),
            ("40K", binary, 40_960),
            ("40ki", decimal, 40_000),
            ("40kib", decimal, 40_960),
            ("40k", decimal, 40_000),
        ] {
            assert_eq!(bytes(text, base), Ok(expected), "{text}");
        }
        for (text, expected) in [
            ("0", 0),
            ("512", 512),
            ("512b", 512),
            ("0x200", 512),
            ("1m", 1 << 20),
            ("16777216.0", 16 << 20),
            ("4096.", 4096),
            ("3G", 3 << 30),
            ("2tb", 2 << 40),
            ("1p", 1 << 50),
            ("15e", 15 << 60),
        ] {
            assert_eq!(bytes(text, binary), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_amount_is_refused_with_an_example() {
        for text in [
            "",
            "k",
            "4kk",
            "4x",
            "-1",
            "1.5k",
            "1.0k",
            "4096.5",
            ".0",
            "4 k",
            "i",
            "4i",
            "16e",
            "99999999999999999999",
            "0x",
        ] {
            let message = bytes(text, KbBase::Binary).expect_err(text).to_string();
            assert!(message.contains("accepted"), "{message}");
        }
    }

    #[test]
    fn times_have_a_default_unit_of_their_own() {
        assert_eq!(time("30", TimeUnit::Seconds), Ok(Nanos::from_secs(30)));
        assert_eq!(time("30", TimeUnit::Micros), Ok(Nanos::from_micros(30)));
        assert_eq!(time("5ms", TimeUnit::Seconds), Ok(Nanos::from_millis(5)));
        assert_eq!(time("2m", TimeUnit::Micros), Ok(Nanos::from_secs(120)));
        assert_eq!(time("1h", TimeUnit::Seconds), Ok(Nanos::from_secs(3600)));
        assert_eq!(time("1d", TimeUnit::Seconds), Ok(Nanos::from_secs(86_400)));
        for text in ["", "s", "1y", "-1", "300000d"] {
            assert!(time(text, TimeUnit::Seconds).is_err(), "{text}");
        }
    }

    #[test]
    fn counts_name_their_range() {
        assert_eq!(count("1k", 1..=2048u32, KbBase::Binary), Ok(1024));
        for text in ["0", "2049", "many", "", "18446744073709551616"] {
            let message = count(text, 1..=2048u32, KbBase::Binary).expect_err(text).to_string();
            assert!(message.contains("1 to 2048"), "{message}");
        }
        assert_eq!(percent("100"), Ok(100));
        assert!(percent("101").is_err());
    }
}
