//! [`Promise`]: the floor and the ceiling of a group that a scheduler keeps, and its latency goals, as words.

use blkmq_core::Nanos;
use blkmq_sched::{Goal, GoalKind, Guarantee};
use std::fmt;

/// The promise to a group: a floor and a ceiling in device time as counted by the scheduler `mclock`, and latency
/// goals, which work with every scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Promise {
    /// The floor and the ceiling.
    pub guarantee: Guarantee,
    /// The latency goals, which are met as far as possible.
    pub goal: Goal,
    /// Floors may exceed the capacity of the scheduler. Setting this for one group applies to the whole tree, because
    /// all floors fall short then.
    pub overcommit: bool,
}

/// Why a text is not a promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PromiseError {
    /// The word that was not understood.
    pub word: String,
}

impl fmt::Display for PromiseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "promise: '{}' is not possible; accepted: reserve_iops=N, reserve_bps=N, reserve_percent=N, limit_iops=N, \
             limit_bps=N, limit_percent=N, p99_read=TIME, p99_write=TIME, p99_sync=TIME, goal_takes_at_most=0 to 100, N a number, TIME as in 500us, 20ms \
             or 1s (a number is microseconds), 0 for none, overcommit=0, overcommit=1",
            self.word
        )
    }
}

impl std::error::Error for PromiseError {}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, rate) in [("reserve", self.guarantee.reserve), ("limit", self.guarantee.limit)] {
            let (iops, bps, percent) = (rate.iops, rate.bps, rate.percent);
            write!(f, "{name}_iops={iops} {name}_bps={bps} {name}_percent={percent} ")?;
        }
        for kind in GoalKind::ALL {
            write!(f, "{}={} ", kind.word(), micros(self.goal.of(kind)))?;
        }
        write!(f, "{TAKES}={} ", self.goal.takes_at_most)?;
        write!(f, "overcommit={}", u8::from(self.overcommit))
    }
}

/// The word for the most that goals take from other groups, in percent.
const TAKES: &str = "goal_takes_at_most";
/// The unit of goals.
const MICRO: Nanos = Nanos::from_micros(1);
/// The units for writing goals, longest first, in microseconds.
const UNITS: [(&str, u64); 3] = [("ms", 1_000), ("us", 1), ("s", 1_000_000)];

/// A time in whole microseconds, with the largest unit in which it is a whole number: `20ms`, `500us`, `1s`; 0 without
/// a unit.
pub(crate) fn micros(time: Nanos) -> String {
    let micros = time.0 / MICRO.0;
    let (unit, of) = match micros {
        0 => return "0".into(),
        n if n.is_multiple_of(1_000_000) => ("s", 1_000_000),
        n if n.is_multiple_of(1_000) => ("ms", 1_000),
        _ => ("us", 1),
    };
    format!("{}{unit}", micros / of)
}

/// The time in a text like `20ms`; a plain number is microseconds.
fn time(text: &str) -> Option<Nanos> {
    let with_unit = |(unit, of): (&str, u64)| Some((text.strip_suffix(unit)?, of));
    let (number, of) = UNITS.into_iter().find_map(with_unit).unwrap_or((text, 1));
    let micros = number.parse::<u64>().ok()?.checked_mul(of)?;
    Some(Nanos(micros.checked_mul(MICRO.0)?))
}

impl Promise {
    /// The words without values.
    pub const WORDS: [&str; 11] = [
        "reserve_iops",
        "reserve_bps",
        "reserve_percent",
        "limit_iops",
        "limit_bps",
        "limit_percent",
        "p99_read",
        "p99_write",
        "p99_sync",
        TAKES,
        "overcommit",
    ];

    /// Returns whether the value of this word is a time.
    #[must_use]
    pub fn is_time(word: &str) -> bool {
        word.starts_with("p99_")
    }

    /// Returns the promise with the changes in `text`: pairs like `reserve_iops=200 p99_read=20ms`, separated by
    /// spaces. A time has a unit of `us`, `ms` or `s`, or is a number of microseconds. 0 removes a part of the promise,
    /// except for `goal_takes_at_most`, a percentage.
    ///
    /// # Errors
    /// For the first word that is not such a pair.
    pub fn set(mut self, text: &str) -> Result<Self, PromiseError> {
        for word in text.split_whitespace() {
            let refused = || PromiseError { word: word.into() };
            let (name, value) = word.split_once('=').ok_or_else(refused)?;
            if let Some(kind) = GoalKind::ALL.into_iter().find(|kind| kind.word() == name) {
                *self.goal.of_mut(kind) = time(value).ok_or_else(refused)?;
                continue;
            }
            let number: u64 = value.parse().map_err(|_| refused())?;
            if name == "overcommit" {
                self.overcommit = match number {
                    0 => false,
                    1 => true,
                    _ => return Err(refused()),
                };
                continue;
            }
            if name == TAKES {
                let percent = u8::try_from(number).ok().filter(|percent| *percent <= 100);
                self.goal.takes_at_most = percent.ok_or_else(refused)?;
                continue;
            }
            let (which, unit) = name.split_once('_').ok_or_else(refused)?;
            let rate = match which {
                "reserve" => &mut self.guarantee.reserve,
                "limit" => &mut self.guarantee.limit,
                _ => return Err(refused()),
            };
            match unit {
                "iops" => rate.iops = number,
                "bps" => rate.bps = number,
                "percent" => rate.percent = u32::try_from(number).map_err(|_| refused())?,
                _ => return Err(refused()),
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let promise = Promise::default()
            .set("reserve_iops=200 limit_percent=40 p99_read=2ms p99_sync=2500 goal_takes_at_most=97 overcommit=1");
        let promise = promise.expect("right");
        assert_eq!(
            promise.to_string(),
            "reserve_iops=200 reserve_bps=0 reserve_percent=0 limit_iops=0 limit_bps=0 limit_percent=40 p99_read=2ms p99_write=0 p99_sync=2500us goal_takes_at_most=97 overcommit=1"
        );
        assert_eq!(Promise::default().set(&promise.to_string()), Ok(promise));
        let gone =
            promise.set("reserve_iops=0 limit_percent=0 p99_read=0 p99_sync=0s goal_takes_at_most=90 overcommit=0");
        assert_eq!(gone, Ok(Promise::default()));
        for word in Promise::WORDS {
            assert_ne!(Promise::default().set(&format!("{word}=1")), Ok(Promise::default()));
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for bad in [
            "iops=1",
            "reserve_iops",
            "reserve_iops=-1",
            "reserve_weight=1",
            "overcommit=2",
            "goal_takes_at_most=101",
            "p99_sync=2m",
            "p99_read=ms",
            "p99_write=99999999999999999s",
        ] {
            let error = Promise::default().set(bad).expect_err(bad).to_string();
            assert!(error.contains(bad) && error.contains("reserve_iops=N"), "{error}");
        }
    }
}
