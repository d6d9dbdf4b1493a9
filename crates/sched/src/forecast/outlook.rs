//! [`Outlook`]: a forecast as of one moment.

use blkmq_core::{Instant, Nanos, Op};

/// Sizes: up to 4, 16, 64, 256 and 1024 KiB, and more.
const SIZES: usize = 6;
/// The classes of requests: reads and others, by size.
pub const CLASSES: usize = 2 * SIZES;

/// The class of an I/O.
pub(super) fn class(op: Op, sectors: u32) -> usize {
    let pages = sectors.div_ceil(8).max(1);
    let size = (pages.next_power_of_two().ilog2().div_ceil(2) as usize).min(SIZES - 1);
    size + if op.is_write() { SIZES } else { 0 }
}

/// The part of the held work that is served before an I/O, in 1/256.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share(u16);

impl Share {
    /// All of it, as in a line; also the assumption before anything is learnt.
    pub const ALL: Self = Self(256);
    /// Nothing of it.
    pub const NONE: Self = Self(0);
    /// I/Os that come later may be served before it, too.
    const MOST: u64 = 16 * 256;

    /// `behind` of `ahead`; all of it if `ahead` is zero.
    pub(super) fn of(behind: u64, ahead: u64) -> Self {
        match (behind * 256).checked_div(ahead) {
            None => Self::ALL,
            Some(share) => Self(share.min(Self::MOST) as u16),
        }
    }

    /// The number of 256th parts.
    #[must_use]
    pub const fn parts(self) -> u16 {
        self.0
    }

    /// A share of so many 256th parts.
    #[must_use]
    pub const fn of_parts(parts: u16) -> Self {
        Self(parts)
    }
}

/// The work ahead of an I/O that arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outlook {
    /// The device time of the requests that the scheduler holds.
    pub held: Nanos,
    /// The requests at the device.
    pub at_device: u32,
    /// When the device will have done all of them, as far as is known.
    pub clear: Instant,
    /// The device time of all of them.
    pub device: Nanos,
    /// The device time of one more request, by class.
    pub costs: [Nanos; CLASSES],
}

impl Outlook {
    /// How long an I/O takes that arrives at `now`, with `share` of the held work served before it. Zero while nothing is
    /// known.
    ///
    /// `at_device` requests are at the device now, which may be fewer than when the forecast was made. A device that is
    /// late is expected to need as long again as it is late: it may be stuck.
    #[must_use]
    pub fn expects(
        &self,
        (now, at_device): (Instant, u32),
        share: Share,
        op: Op,
        sectors: u32,
    ) -> Nanos {
        let device = if at_device < self.at_device {
            // The rest, at its mean cost: when the others ended is not known here.
            u128::from(self.device.0) * u128::from(at_device) / u128::from(self.at_device)
        } else if self.at_device == 0 {
            0
        } else {
            self.clear.since(now).0.max(now.since(self.clear).0).into()
        };
        let device = u64::try_from(device).unwrap_or(u64::MAX);
        let held = u128::from(self.held.0) * u128::from(share.0) / 256;
        let held = u64::try_from(held).unwrap_or(u64::MAX);
        Nanos(held.saturating_add(device).saturating_add(self.own(op, sectors).0))
    }

    /// The device time of an I/O.
    #[must_use]
    pub fn own(&self, op: Op, sectors: u32) -> Nanos {
        self.costs[class(op, sectors)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_by_direction_and_size() {
        let kib = |kib: u32| class(Op::Read, 2 * kib);
        let sizes = [1, 4, 5, 16, 17, 64, 65, 256, 257, 1024, 1025, 1 << 20];
        assert_eq!(sizes.map(kib), [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
        assert_eq!((class(Op::Flush, 0), class(Op::Discard, 8)), (6, 6));
    }
}
