//! Fault points: a fault occurs by the four numbers of the kernel's fault injection, or with a plain probability.
//!
//! The caller decides how the operation fails. The four numbers are written `interval:probability:space:times`, with
//! colons because commas separate a device's parameters.

use blkmq_core::{HwQueue, Rng};

/// The form of a fault, for messages.
pub const FORM: &str = "interval:probability:space:times as in 1:100:0:-1 (interval at least 1, \
                        probability 0 to 100 percent, times -1 for ever)";

/// The random stream for the faults of hardware queue `hw` of a device with `seed`. Each queue has its own, so that a
/// run repeats whatever the order in which threads pump the queues.
#[must_use]
pub fn stream(seed: u64, hw: HwQueue) -> Rng {
    Rng::new(seed.wrapping_add(u64::from(hw.0) << 48))
}

/// A probability, in millionths.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Chance(u32);

impl Chance {
    /// 0.
    pub const NEVER: Self = Self(0);
    /// 1.
    pub const ALWAYS: Self = Self(Self::ONE);
    /// Millionths in 1.
    const ONE: u32 = 1_000_000;
    /// The form of a probability, for messages.
    pub const FORM: &str =
        "a probability from 0 to 1 as in 0.01, with at most 6 digits behind the point";

    /// Returns `percent` hundredths.
    ///
    /// # Panics
    /// If `percent` exceeds 100.
    #[must_use]
    pub const fn percent(percent: u8) -> Self {
        assert!(percent <= 100, "nothing is more likely than certain");
        Self(percent as u32 * (Self::ONE / 100))
    }

    /// Parses a decimal fraction. Returns `None` if the text has another form than [`FORM`](Self::FORM).
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || fraction.len() > 6 {
            return None;
        }
        let whole: u32 = whole.parse().ok().filter(|whole| *whole <= 1)?;
        let fraction: u32 = format!("{fraction:0<6}").parse().ok()?;
        let chance = whole * Self::ONE + fraction;
        (chance <= Self::ONE).then_some(Self(chance))
    }

    /// Draws whether the event happens. Consumes `rng` only if the probability is neither 0 nor 1.
    pub fn draw(self, rng: &mut Rng) -> bool {
        match self {
            Self::NEVER => false,
            Self::ALWAYS => true,
            Self(millionths) => rng.chance(millionths.into(), Self::ONE.into()),
        }
    }
}

/// The conditions of failures at a fault point. A *call* is one arrival at the point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// After the first `space` calls, only every `interval`-th call may fail; at least 1.
    pub interval: u32,
    /// The probability that such a call fails.
    pub probability: Chance,
    /// The number of calls before the first that may fail.
    pub space: u32,
    /// The maximum number of failures; `None` for no limit.
    pub times: Option<u32>,
}

impl Fault {
    /// Parses `interval:probability:space:times`. Returns `None` if the text has another form than [`FORM`].
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split(':');
        let mut next = || fields.next().map(str::trim);
        let interval = next()?.parse().ok().filter(|n| *n >= 1)?;
        let probability = next()?.parse().ok().filter(|n| *n <= 100).map(Chance::percent)?;
        let space = next()?.parse().ok()?;
        let times = match next()? {
            "-1" => None,
            number => Some(number.parse().ok()?),
        };
        next().is_none().then_some(Self { interval, probability, space, times })
    }
}

/// A fault point with its state.
#[derive(Clone, Debug)]
pub struct FaultPoint {
    fault: Fault,
    /// The number of further calls that cannot fail.
    space: u32,
    /// The remaining failures; `None` for no limit.
    times: Option<u32>,
    /// Calls since the last candidate.
    calls: u32,
}

impl FaultPoint {
    /// A point that has not been reached yet.
    #[must_use]
    pub fn new(fault: Fault) -> Self {
        Self { space: fault.space, times: fault.times, calls: 0, fault }
    }

    /// Counts a call, and returns whether it fails. Consumes `rng` only if the probability is neither 0 nor 1.
    pub fn should_fail(&mut self, rng: &mut Rng) -> bool {
        if self.times == Some(0) {
            return false;
        }
        if self.space > 0 {
            self.space -= 1;
            return false;
        }
        self.calls += 1;
        if self.calls < self.fault.interval {
            return false;
        }
        self.calls = 0;
        let fails = self.fault.probability.draw(rng);
        if fails && let Some(left) = &mut self.times {
            *left -= 1;
        }
        fails
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(text: &str, calls: usize) -> Vec<usize> {
        let mut point = FaultPoint::new(Fault::parse(text).expect("well formed"));
        let mut rng = Rng::new(1);
        (0..calls).filter(|_| point.should_fail(&mut rng)).collect()
    }

    #[test]
    fn interval_space_and_times_choose_the_calls() {
        assert_eq!(failures("1:100:0:-1", 4), [0, 1, 2, 3]);
        assert_eq!(failures("3:100:0:-1", 9), [2, 5, 8]);
        assert_eq!(failures("1:100:2:2", 9), [2, 3]);
        assert_eq!(failures("2:100:1:1", 9), [2]);
        assert_eq!(failures("1:0:0:-1", 9), []);
        assert_eq!(failures("1:100:0:0", 9), []);
    }

    #[test]
    fn a_probability_is_met_on_average_and_repeats() {
        let one = failures("1:25:0:-1", 10_000);
        assert!((2300..2700).contains(&one.len()), "{} of 10000 at 25 percent", one.len());
        assert_eq!(one, failures("1:25:0:-1", 10_000));
    }

    #[test]
    fn chances_are_read_as_decimal_fractions() {
        let parse = |text| Chance::parse(text).map(|chance| chance.0);
        for (text, millionths) in
            [("0", 0), ("1", 1_000_000), ("0.01", 10_000), ("1.0", 1_000_000), ("0.000001", 1)]
        {
            assert_eq!(parse(text), Some(millionths), "{text}");
        }
        for bad in ["", "2", "1.000001", "-0.1", "+1", ".5", "0.", "0.0000001", "1e-3", "5%"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert_eq!(Chance::percent(100), Chance::ALWAYS);
    }

    #[test]
    fn what_is_no_fault_is_refused() {
        for bad in
            ["", "1", "1:100:0", "0:100:0:1", "1:101:0:1", "1:1:-1:1", "1:1:0:-2", "1:1:0:1:1"]
        {
            assert_eq!(Fault::parse(bad), None, "{bad}");
        }
    }
}
