//! [`IoMax`]: the limits of a group, spelled as cgroup v2 spells `io.max`, with totals and bursts beside them.

use super::burst::Burst;
use std::fmt;

/// Limits per second; `None` is `max`, no limit. The limits of the groups above hold as well.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IoMax {
    /// Bytes read.
    pub rbps: Option<u64>,
    /// Bytes written.
    pub wbps: Option<u64>,
    /// Reads.
    pub riops: Option<u64>,
    /// Writes, discards, writes of zeroes, and flushes without data.
    pub wiops: Option<u64>,
    /// Bytes, both directions together.
    pub bps: Option<u64>,
    /// I/Os, both directions together.
    pub iops: Option<u64>,
    /// By how much, and for how long, each of these may be exceeded after a time of less use.
    pub burst: Burst,
}

/// Why a text is no `io.max`.
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

/// The words of cgroup v2 in its order, and the others if they limit anything.
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
    /// The words, without values.
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

    /// The words whose values differ from those of `old`: what [`set`](Self::set) makes these limits of `old` with.
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

    /// Is there any limit?
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.rates().iter().any(Option::is_some)
    }

    /// These limits with the changes in `text`: pairs like `rbps=1048576 wiops=max burst=2.5`, separated by spaces.
    ///
    /// # Errors
    /// For the first word that is no such pair.
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

#[cfg(test)]
mod tests {
    use super::*;

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
