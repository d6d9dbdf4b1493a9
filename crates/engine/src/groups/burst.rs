//! [`Burst`]: by how much, and for how long, a group may exceed its limits.

use blkmq_core::Nanos;

/// A group that has used less than its limits for long enough may use a multiple of them for a while, as QEMU's
/// `iops-total-max` and `iops-total-max-length` have it. The credit is what the multiple takes beyond the limit in that
/// while; it fills at the rate of the limit, and it is full at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Burst {
    /// The multiple, in thousandths: 1000, no burst, to 1,000,000.
    pub thousandths: u32,
    /// How long it may last, from full credit: 1 ms to an hour. A second unless given.
    pub length: Nanos,
}

impl Default for Burst {
    fn default() -> Self {
        Self { thousandths: ONE, length: Nanos::from_secs(1) }
    }
}

/// A factor of 1.
const ONE: u32 = 1000;
/// The largest factor.
const MOST: u32 = 1000 * ONE;
/// The longest burst, in milliseconds.
const LONGEST: u64 = 3_600_000;

impl Burst {
    /// The factors that are accepted, in words.
    pub const FACTORS: &str = "1 to 1000";
    /// The lengths that are accepted, in words.
    pub const LENGTHS: &str = "0.001 to 3600 seconds";

    /// Is anything allowed beyond the limit?
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.thousandths > ONE
    }

    /// The time at the rate of the limit that makes up the whole credit.
    pub(super) fn credit(&self) -> Nanos {
        let beyond = u128::from(self.thousandths.saturating_sub(ONE));
        Nanos((u128::from(self.length.0) * beyond / u128::from(ONE)) as u64)
    }

    /// The multiple.
    pub(super) fn factor(&self) -> f64 {
        f64::from(self.thousandths) / 1e3
    }

    /// The length in seconds.
    pub(super) fn seconds(&self) -> f64 {
        self.length.0 as f64 / 1e9
    }

    /// The rate during a burst, for a limit of `rate`.
    #[must_use]
    pub fn of(&self, rate: u64) -> u64 {
        let most = u128::from(rate) * u128::from(self.thousandths) / u128::from(ONE);
        u64::try_from(most).unwrap_or(u64::MAX)
    }

    /// The burst with another `burst` or `burst_length`; `None` if `value` is not possible.
    pub(super) fn set(mut self, name: &str, value: &str) -> Option<Self> {
        let value = thousandths(value)?;
        if name == "burst" {
            self.thousandths = u32::try_from(value).ok().filter(|n| (ONE..=MOST).contains(n))?;
        } else {
            self.length = Nanos::from_millis(Some(value).filter(|n| (1..=LONGEST).contains(n))?);
        }
        Some(self)
    }
}

/// A decimal number with at most three places, in thousandths.
fn thousandths(text: &str) -> Option<u64> {
    let (whole, places) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(places) || places.len() > 3 {
        return None;
    }
    let scale = 10_u64.pow(3 - places.len() as u32);
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(places.parse::<u64>().ok()? * scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact() {
        assert_eq!(
            ["2", "2.5", "0.001", "10.25"].map(thousandths),
            [2000, 2500, 1, 10_250].map(Some)
        );
        for bad in ["", ".", "1.", ".5", "-1", "1.2345", "1e3", "99999999999999999999"] {
            assert_eq!(thousandths(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_credit_is_what_the_factor_takes_beyond_the_limit() {
        let burst = Burst { thousandths: 2500, length: Nanos::from_secs(4) };
        assert!(burst.is_any());
        assert_eq!((burst.credit(), burst.of(1001)), (Nanos::from_secs(6), 2502));
        let none = Burst::default();
        assert!(!none.is_any());
        assert_eq!((none.credit(), none.of(u64::MAX)), (Nanos::ZERO, u64::MAX));
        let most =
            Burst::default().set("burst", "1000").and_then(|b| b.set("burst_length", "3600"));
        assert_eq!(most.expect("the limits").credit(), Nanos::from_secs(3600 * 999));
        assert_eq!(Burst::default().set("burst", "1000.001"), None);
        assert_eq!(Burst::default().set("burst_length", "3600.001"), None);
    }
}
