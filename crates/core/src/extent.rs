//! [`Extent`]: a stretch of a device that is stored, or is not.

/// A stretch of a device, from the end of the one before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The byte behind its last one.
    pub end: u64,
    /// It takes no room, and reads as zeroes.
    pub is_hole: bool,
}

impl Extent {
    /// Adds a stretch to a list of neighbours: to the last one if it is of the same kind.
    pub fn append(list: &mut alloc::vec::Vec<Self>, next: Self) {
        match list.last_mut() {
            Some(last) if last.is_hole == next.is_hole => last.end = next.end,
            _ => list.push(next),
        }
    }
}
