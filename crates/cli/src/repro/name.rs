//! The claims that can be measured, by name.

use super::metric::Metric;
use crate::error::UsageError;

/// A claim.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Name {
    /// One lock around a scheduler does not scale.
    Contention,
    /// Several requests for each hold of the lock.
    Batch,
    /// The order in which requests reach the device.
    Order,
    /// The effect of batches and parking on merging.
    Merge,
    /// Unnecessary wake-ups.
    Kick,
    /// Merging needs a scheduler that is deeper than the device.
    Depth,
    /// The cost of statistics about groups.
    Stats,
}

impl Name {
    /// Every claim with the word for it, in the order in which they are shown.
    pub const ALL: [(&'static str, Self); 7] = [
        ("contention", Self::Contention),
        ("batch", Self::Batch),
        ("order", Self::Order),
        ("merge", Self::Merge),
        ("kick", Self::Kick),
        ("depth", Self::Depth),
        ("stats", Self::Stats),
    ];

    /// The word for the claim.
    pub fn word(self) -> &'static str {
        Self::ALL[self as usize].0
    }

    /// The claim that `word` stands for.
    ///
    /// # Errors
    /// If there is none; the message lists them all.
    pub fn from_word(word: &str) -> Result<Self, UsageError> {
        let found = Self::ALL.iter().find(|(known, _)| *known == word);
        found.map(|(_, name)| *name).ok_or_else(|| {
            let words = Self::ALL.map(|(word, _)| word).join(", ");
            UsageError::new(format!("no claim '{word}'; accepted: {words}"))
        })
    }

    /// The metric that the claim is about, which is drawn and compared.
    pub fn metric(self) -> Metric {
        match self {
            Self::Contention | Self::Batch | Self::Kick | Self::Stats => Metric::Iops,
            Self::Order => Metric::Inversions,
            Self::Merge | Self::Depth => Metric::Merged,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lead_to_claims_and_back() {
        for (word, name) in Name::ALL {
            assert_eq!((Name::from_word(word), name.word()), (Ok(name), word));
        }
        let error = Name::from_word("locks").expect_err("none of them").to_string();
        let all = "contention, batch, order, merge, kick, depth, stats";
        assert_eq!(error, format!("no claim 'locks'; accepted: {all}"));
    }
}
