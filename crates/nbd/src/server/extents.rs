//! The extents of one context, collected for an answer to BLOCK_STATUS.

use crate::extent::{Extent, ExtentCount};
use crate::limits::Limits;
use crate::request::Span;

/// The extents of a context from the beginning of a request's range, bounded in number.
///
/// Neighbours in one state become one extent, and none reaches beyond the range. An answer may end before the range
/// does; the client asks again behind it.
#[derive(Clone, Debug)]
pub struct Extents {
    list: Vec<Extent>,
    most: usize,
    left: u64,
}

/// Whether more extents are of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Room {
    /// The next extent will be taken.
    More,
    /// The range is covered, or there are as many extents as the bound permits.
    Full,
}

impl Extents {
    /// None yet, for a request about `span`.
    #[must_use]
    pub fn new(span: Span, count: ExtentCount, limits: &Limits) -> Self {
        let most = match count {
            ExtentCount::One => 1,
            ExtentCount::Many => limits.extents.max(1) as usize,
        };
        Self { list: Vec::new(), most, left: span.length }
    }

    /// Adds bytes of one state behind those before. An extent of no length adds nothing. Flags of more than 32 bits need
    /// extended headers.
    pub fn push(&mut self, extent: Extent) -> Room {
        let length = extent.length.min(self.left);
        let is_full = self.list.len() == self.most;
        match self.list.last_mut() {
            _ if length == 0 => {}
            Some(last) if last.flags == extent.flags => last.length += length,
            _ if is_full => return Room::Full,
            _ => self.list.push(Extent { length, ..extent }),
        }
        self.left -= length;
        if self.left == 0 { Room::Full } else { Room::More }
    }

    /// The extents so far.
    #[must_use]
    pub fn as_slice(&self) -> &[Extent] {
        &self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Span = Span { offset: 4096, length: 100 };

    fn extent(length: u64, flags: u64) -> Extent {
        Extent { length, flags }
    }

    fn extents(count: ExtentCount, most: u32) -> Extents {
        Extents::new(SPAN, count, &Limits { extents: most, ..Limits::default() })
    }

    #[test]
    fn neighbours_in_one_state_are_one_extent() {
        let mut all = extents(ExtentCount::Many, 9);
        for (length, flags) in [(10, 0), (0, 1), (10, 0), (30, 3), (20, 3)] {
            assert_eq!(all.push(extent(length, flags)), Room::More);
        }
        assert_eq!(all.push(extent(1000, 0)), Room::Full, "the range ends");
        assert_eq!(all.as_slice(), [extent(20, 0), extent(50, 3), extent(30, 0)]);
        assert_eq!(all.push(extent(1, 0)), Room::Full);
        assert_eq!(all.as_slice().len(), 3);
    }

    #[test]
    fn the_bound_is_reached_by_the_first_extent_that_is_too_many() {
        let mut all = extents(ExtentCount::Many, 2);
        assert_eq!(all.push(extent(1, 0)), Room::More);
        assert_eq!(all.push(extent(1, 1)), Room::More, "it may become longer");
        assert_eq!(all.push(extent(1, 1)), Room::More);
        assert_eq!(all.push(extent(1, 0)), Room::Full);
        assert_eq!(all.as_slice(), [extent(1, 0), extent(2, 1)]);
    }

    #[test]
    fn one_extent_is_one_that_ends_within_the_range() {
        let mut one = extents(ExtentCount::One, 9);
        assert_eq!(one.push(extent(60, 0)), Room::More);
        assert_eq!(one.push(extent(60, 0)), Room::Full);
        assert_eq!(one.as_slice(), [extent(100, 0)]);
    }
}
