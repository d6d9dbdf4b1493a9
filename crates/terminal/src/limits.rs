//! Limits and promises of a group as the command line and configuration files spell them: the words of [`IoMax`] and
//! [`Promise`], with units.

use crate::UsageError;
use crate::units::{self, KbBase, TimeUnit};
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
        (_, size) => units::bytes(size, KbBase::Binary)?.to_string(),
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
        units::time(value, TimeUnit::Micros)?.0.div_ceil(1_000)
    } else {
        units::bytes(value, KbBase::Binary)?
    };
    promise.set(&format!("{word}={number}")).map_err(|e| UsageError::new(e.to_string()))
}

fn refused(text: &str, accepted: &str) -> UsageError {
    UsageError::new(format!("'{text}' is not valid; accepted: {accepted}"))
}

/// Converts a time to seconds with three decimal places, the form that [`IoMax`] reads.
fn seconds(text: &str) -> Result<String, UsageError> {
    let Nanos(ns) = units::time(text, TimeUnit::Seconds)?;
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
