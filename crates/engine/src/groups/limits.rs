//! [`IoMax`]: the limits of a group, spelled as `io.max` in cgroup v2, with totals and bursts in addition.

use blkmq_core::Nanos;
use std::fmt;

/// Limits per second; `None` is `max`, no limit. The limits of the ancestors apply as well.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IoMax {
    /// Bytes read per second.
    pub rbps: Option<u64>,
    /// Bytes written per second.
    pub wbps: Option<u64>,
    /// Reads per second.
    pub riops: Option<u64>,
    /// Writes, discards, writes of zeroes, and flushes without data, per second.
    pub wiops: Option<u64>,
    /// Bytes per second in both directions together.
    pub bps: Option<u64>,
    /// I/Os per second in both directions together.
    pub iops: Option<u64>,
    /// By how much, and for how long, each limit may be exceeded after a time of less use.
    pub burst: Burst,
}

/// Why a text is not an `io.max`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IoMaxError {
    /// The word that was not understood.
    pub word: String,
}

impl fmt::Display for IoMaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "io.max: '{}' is not possible; accepted: rbps=N, wbps=N, riops=N, wiops=N, bps=N, iops=N, N a number from 1 \
             or 'max'; burst={}; burst_length={}",
            self.word,
            Burst::FACTORS,
            Burst::LENGTHS
        )
    }
}

impl std::error::Error for IoMaxError {}

/// The words of cgroup v2 in its order, and then the other words that limit anything.
impl fmt::Display for IoMax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let none = Self::default().pairs();
        let shown = self.pairs().into_iter().zip(none).enumerate();
        let shown = shown.filter(|(at, (pair, none))| *at < 4 || pair != none);
        let pairs: Vec<String> = shown.map(|(_, (pair, _))| pair).collect();
        f.write_str(&pairs.join(" "))
    }
}

impl IoMax {
    /// The words without values.
    pub const WORDS: [&str; 8] =
        ["rbps", "wbps", "riops", "wiops", "bps", "iops", "burst", "burst_length"];

    /// Every word with its value, in the order of [`WORDS`](Self::WORDS).
    fn pairs(&self) -> [String; 8] {
        let rates = self.rates();
        std::array::from_fn(|at| {
            let value = match rates.get(at) {
                Some(Some(rate)) => rate.to_string(),
                Some(None) => "max".to_owned(),
                None if at == 6 => self.burst.factor().to_string(),
                None => self.burst.seconds().to_string(),
            };
            format!("{}={value}", Self::WORDS[at])
        })
    }

    /// The words whose values differ from those of `old`. With these words [`set`](Self::set) turns `old` into these
    /// limits.
    #[must_use]
    pub fn changes_of(&self, old: &Self) -> String {
        let both = self.pairs().into_iter().zip(old.pairs());
        let changed: Vec<String> =
            both.filter(|(new, old)| new != old).map(|(new, _)| new).collect();
        changed.join(" ")
    }

    /// The rates, in the order of [`WORDS`](Self::WORDS).
    #[must_use]
    pub fn rates(&self) -> [Option<u64>; 6] {
        [self.rbps, self.wbps, self.riops, self.wiops, self.bps, self.iops]
    }

    /// Returns whether there is any limit.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.rates().iter().any(Option::is_some)
    }

    /// These limits with the changes in `text`: pairs like `rbps=1048576 wiops=max burst=2.5`, separated by spaces.
    ///
    /// # Errors
    /// For the first word that is not such a pair.
    pub fn set(mut self, text: &str) -> Result<Self, IoMaxError> {
        for word in text.split_whitespace() {
            let refused = || IoMaxError { word: word.into() };
            let (name, value) = word.split_once('=').ok_or_else(refused)?;
            let rate = match name {
                "burst" | "burst_length" => {
                    self.burst = self.burst.set(name, value).ok_or_else(refused)?;
                    continue;
                }
                "rbps" => &mut self.rbps,
                "wbps" => &mut self.wbps,
                "riops" => &mut self.riops,
                "wiops" => &mut self.wiops,
                "bps" => &mut self.bps,
                "iops" => &mut self.iops,
                _ => return Err(refused()),
            };
            *rate = match value {
                "max" => None,
                number => Some(number.parse().ok().filter(|n| *n > 0).ok_or_else(refused)?),
            };
        }
        Ok(self)
    }
}

/// A group that has used less than its limits for long enough may use a multiple of them for a while, like QEMU's
/// `iops-total-max` and `iops-total-max-length`. The credit is the excess over the limit in that time. It refills at
/// the rate of the limit, and is full at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Burst {
    /// The multiple, in thousandths: 1000, no burst, to 1,000,000.
    pub thousandths: u32,
    /// How long a burst may last, from full credit: 1 ms to an hour. A second by default.
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

    /// Returns whether the limit may be exceeded.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.thousandths > ONE
    }

    /// The time in which the rate of the limit makes up the whole credit.
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

    #[test]
    fn what_is_written_is_read_back() {
        let max = IoMax::default().set("rbps=1048576 wiops=100").expect("right");
        assert_eq!(max.to_string(), "rbps=1048576 wbps=max riops=max wiops=100");
        assert_eq!(IoMax::default().set(&max.to_string()), Ok(max));
        assert_eq!(max.set("rbps=max wiops=max"), Ok(IoMax::default()));
        assert!(max.is_limited() && !IoMax::default().is_limited());
        let both = IoMax::default().set("iops=1000 burst=2.5 burst_length=0.25").expect("right");
        let words = "rbps=max wbps=max riops=max wiops=max iops=1000 burst=2.5 burst_length=0.25";
        assert_eq!(both.to_string(), words);
        assert_eq!(IoMax::default().set(words), Ok(both));
        assert_eq!(
            both.changes_of(&max),
            "rbps=max wiops=max iops=1000 burst=2.5 burst_length=0.25"
        );
        assert_eq!(max.set(&both.changes_of(&max)), Ok(both));
        assert_eq!(max.changes_of(&both), "rbps=1048576 wiops=100 iops=max burst=1 burst_length=1");
        for word in IoMax::WORDS {
            assert_ne!(IoMax::default().set(&format!("{word}=7")), Ok(IoMax::default()), "{word}");
        }
        assert!(!IoMax::default().set("burst=7").expect("right").is_limited(), "of nothing");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for bad in [
            "rbps",
            "rbps=",
            "rbps=0",
            "rbps=-1",
            "rbps=1k",
            "ops=1",
            "rbps=18446744073709551616",
            "burst=0.5",
            "burst=max",
            "burst_length=0",
        ] {
            let error = IoMax::default().set(bad).expect_err(bad).to_string();
            assert!(error.contains(bad) && error.contains("riops=N"), "{error}");
        }
    }
}
