//! Offsets and lengths on a device, in bytes or in sectors, as distinct types, so that they are not confused with each
//! other or with a cookie; and [`Extent`], an allocated or unallocated stretch of a device.

use crate::SECTOR_SIZE;

/// An offset or a length in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Bytes(pub u64);

/// An offset or a length in sectors of 512 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Sectors(pub u64);

/// An offset or a length that can be expressed in sectors: [`Bytes`] and [`Sectors`]. A number without a unit is
/// neither:
///
/// ```compile_fail,E0277
/// use blkmq_core::InSectors;
/// fn read(_: impl InSectors) {}
/// read(4096_u64);
/// ```
pub trait InSectors: Copy {
    /// The number of sectors; `None` for bytes that are not whole sectors.
    fn in_sectors(self) -> Option<u64>;
}

impl InSectors for Sectors {
    #[inline]
    fn in_sectors(self) -> Option<u64> {
        Some(self.0)
    }
}

impl InSectors for Bytes {
    #[inline]
    fn in_sectors(self) -> Option<u64> {
        let sector = u64::from(SECTOR_SIZE);
        self.0.is_multiple_of(sector).then_some(self.0 / sector)
    }
}

/// A stretch of a device, which begins at the end of the one before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The byte behind its last one.
    pub end: u64,
    /// The stretch is unallocated, and reads as zeroes.
    pub is_hole: bool,
}

impl Extent {
    /// Appends a stretch to a list of adjacent ones; extends the last one if it is of the same kind.
    pub fn append(list: &mut alloc::vec::Vec<Self>, next: Self) {
        match list.last_mut() {
            Some(last) if last.is_hole == next.is_hole => last.end = next.end,
            _ => list.push(next),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_whole_sectors_or_none() {
        assert_eq!(Bytes(4096).in_sectors(), Some(8));
        assert_eq!(Bytes(0).in_sectors(), Some(0));
        assert_eq!(Bytes(513).in_sectors(), None);
        assert_eq!(Sectors(513).in_sectors(), Some(513));
    }
}
