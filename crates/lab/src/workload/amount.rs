//! An amount of data: in bytes, or as a share of the device (of `size`, for `io_size`).

use std::fmt;

/// An amount of data: in bytes, or as a share of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    /// A number of bytes.
    Bytes(u64),
    /// A percentage of the device, or of `size` for `io_size`; 0 to 100.
    Percent(u8),
}

impl Amount {
    /// Zero bytes.
    pub const ZERO: Self = Self::Bytes(0);

    /// The amount in bytes. A share is one of `whole` bytes, and is rounded down to a multiple of `granule` bytes.
    #[must_use]
    pub fn bytes(self, whole: u64, granule: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => {
                let exact = share(whole, percent);
                exact - exact % granule.max(1)
            }
        }
    }

    /// The amount as an offset in bytes: as in fio, a share is rounded up.
    #[must_use]
    pub fn place(self, whole: u64, granule: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => {
                let exact = share(whole, percent);
                exact.checked_next_multiple_of(granule.max(1)).unwrap_or(exact)
            }
        }
    }
}

fn share(whole: u64, percent: u8) -> u64 {
    let exact = u128::from(whole) * u128::from(percent) / 100;
    u64::try_from(exact).unwrap_or(u64::MAX)
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}
