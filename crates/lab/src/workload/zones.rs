//! fio's `zoned` and `zoned_abs`: shares of the I/Os that go to parts of the region, in their order.

use std::fmt;

/// Contiguous zones from the start of the region on. Each has its share of the I/Os in percent, and its length.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Zones {
    /// `zoned`: lengths in percent of the region.
    Percent(Vec<(u8, u8)>),
    /// `zoned_abs`: lengths in bytes.
    Bytes(Vec<(u8, u64)>),
}

/// Zones that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ZonesError {
    /// Shares of the I/Os that sum to this, not to 100.
    #[error("zones with {0} percent of the I/Os; accepted is 100 percent in all")]
    Shares(u32),
    /// Zones that are this many percent of the region, which is more than 100.
    #[error("zones of {0} percent of the region; accepted is up to 100 in all")]
    Percent(u32),
}

impl Zones {
    /// The most zones, as in fio.
    pub const MAX: usize = 256;

    pub(super) fn validate(&self) -> Result<(), ZonesError> {
        let shares: u32 = match self {
            Self::Percent(zones) => zones.iter().map(|(share, _)| u32::from(*share)).sum(),
            Self::Bytes(zones) => zones.iter().map(|(share, _)| u32::from(*share)).sum(),
        };
        if shares != 100 {
            return Err(ZonesError::Shares(shares));
        }
        match self {
            Self::Percent(zones) => match zones.iter().map(|(_, len)| u32::from(*len)).sum() {
                0..=100 => Ok(()),
                sum => Err(ZonesError::Percent(sum)),
            },
            Self::Bytes(_) => Ok(()),
        }
    }

    /// The last byte of the zones, if their lengths are in bytes.
    pub(super) fn end(&self) -> u64 {
        match self {
            Self::Percent(_) => 0,
            Self::Bytes(zones) => zones.iter().fold(0, |sum, (_, len)| sum.saturating_add(*len)),
        }
    }

    /// The zones of a region of `blocks` blocks of `unit` bytes, each as (upper bound in percent of its draws, first
    /// block, number of blocks). A zone that is shorter than a block has the block in which it begins.
    pub(super) fn blocks(&self, blocks: u64, unit: u64) -> Vec<(u32, u64, u64)> {
        let at = |percent: u32| (u128::from(blocks) * u128::from(percent) / 100) as u64;
        let mut ends = Vec::new();
        match self {
            Self::Percent(zones) => {
                let mut percent = 0;
                for (share, len) in zones {
                    percent += u32::from(*len);
                    ends.push((*share, at(percent)));
                }
            }
            Self::Bytes(zones) => {
                let mut bytes = 0u64;
                for (share, len) in zones {
                    bytes = bytes.saturating_add(*len);
                    ends.push((*share, (bytes / unit).min(blocks)));
                }
            }
        }
        let (mut below, mut first) = (0, 0);
        let zone = |(share, end): (u8, u64)| {
            below += u32::from(share);
            let begin = first.min(blocks - 1);
            first = end;
            (below, begin, end.saturating_sub(begin).max(1))
        };
        ends.into_iter().map(zone).collect()
    }
}

impl fmt::Display for Zones {
    /// In fio's spelling.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(zones) => {
                let zones = zones.iter().map(|(share, len)| format!("{share}/{len}"));
                write!(f, "zoned:{}", Vec::from_iter(zones).join(":"))
            }
            Self::Bytes(zones) => {
                let zones = zones.iter().map(|(share, len)| format!("{share}/{len}"));
                write!(f, "zoned_abs:{}", Vec::from_iter(zones).join(":"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_follow_each_other_and_leave_the_rest_alone() {
        let zones = Zones::Percent(vec![(60, 10), (30, 20), (10, 30)]);
        assert_eq!(zones.blocks(1000, 4096), [(60, 0, 100), (90, 100, 200), (100, 300, 300)]);
        let zones = Zones::Bytes(vec![(60, 1 << 20), (40, 1 << 20)]);
        assert_eq!(zones.blocks(1024, 4096), [(60, 0, 256), (100, 256, 256)]);
        assert_eq!(zones.end(), 2 << 20);
    }

    #[test]
    fn a_zone_without_a_whole_block_has_one() {
        let zones = Zones::Percent(vec![(50, 1), (50, 99)]);
        assert_eq!(zones.blocks(10, 4096), [(50, 0, 1), (100, 0, 10)]);
        assert_eq!(zones.blocks(1, 4096), [(50, 0, 1), (100, 0, 1)]);
    }

    #[test]
    fn shares_and_lengths_are_checked() {
        let error = |zones: Zones| zones.validate().expect_err("impossible").to_string();
        assert!(error(Zones::Percent(vec![(50, 5)])).starts_with("zones with 50 percent"));
        assert!(error(Zones::Percent(vec![(50, 50), (50, 60)])).starts_with("zones of 110"));
        assert_eq!(Zones::Percent(vec![(100, 10)]).validate(), Ok(()));
    }
}
