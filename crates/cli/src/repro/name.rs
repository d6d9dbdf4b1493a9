//! The claims that can be measured, by name.

use super::metric::Metric;
use clap::ValueEnum;
use clap::builder::PossibleValue;

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
    /// Every claim, in the order in which they are shown.
    pub const ALL: [Self; 7] = [
        Self::Contention,
        Self::Batch,
        Self::Order,
        Self::Merge,
        Self::Kick,
        Self::Depth,
        Self::Stats,
    ];

    /// The word for the claim.
    pub fn word(self) -> &'static str {
        match self {
            Self::Contention => "contention",
            Self::Batch => "batch",
            Self::Order => "order",
            Self::Merge => "merge",
            Self::Kick => "kick",
            Self::Depth => "depth",
            Self::Stats => "stats",
        }
    }

    /// The subject of the measurement, in a line.
    fn summary(self) -> &'static str {
        match self {
            Self::Contention => "one lock around a scheduler, with more and more threads",
            Self::Batch => "several requests for each hold of the lock",
            Self::Order => "how many requests reach the device before one picked earlier",
            Self::Merge => "what batches and parked requests do to merging",
            Self::Kick => "needless wake-ups, and the call for now that one of them swallowed",
            Self::Depth => "merging, with a scheduler as deep as its device and a deeper one",
            Self::Stats => "what statistics of groups cost bfq",
        }
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

impl ValueEnum for Name {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.word()).help(self.summary()))
    }
}
