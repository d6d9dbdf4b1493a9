//! The place of each logical unit (in flash, in the write buffer, or nowhere), and the logical unit written last to
//! each unit of flash.
//!
//! Two flat tables of 32 bits an entry, so that a device of N GiB costs a little more than 2 N MiB. `blocks.rs`
//! counts the valid units of each block.

/// No unit.
const NONE: u32 = u32::MAX;

/// Where a logical unit is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// The unit was never written, or has been discarded since.
    Nowhere,
    /// In this unit of flash.
    Flash(u32),
    /// In this slot of the write buffer.
    Buffer(u32),
}

#[derive(Clone, Debug)]
pub(super) struct Mapping {
    /// By logical unit: a unit of flash; above those numbers, a slot of the buffer; or `NONE`.
    places: Vec<u32>,
    /// By unit of flash: the logical unit that was written there last, or `NONE`.
    owners: Vec<u32>,
}

impl Mapping {
    /// A table of `logical` units that are nowhere, and of `flash` units that hold nothing.
    pub(super) fn new(logical: u32, flash: u32) -> Self {
        Self { places: vec![NONE; logical as usize], owners: vec![NONE; flash as usize] }
    }

    /// The number of logical units.
    pub(super) fn logical(&self) -> u32 {
        self.places.len() as u32
    }

    pub(super) fn find(&self, logical: u32) -> Place {
        let place = self.places[logical as usize];
        let flash = self.owners.len() as u32;
        match place {
            NONE => Place::Nowhere,
            unit if unit < flash => Place::Flash(unit),
            slot => Place::Buffer(slot - flash),
        }
    }

    /// Sets the place of `logical` to `place`; returns its place before.
    pub(super) fn set(&mut self, logical: u32, place: Place) -> Place {
        let before = self.find(logical);
        self.places[logical as usize] = match place {
            Place::Nowhere => NONE,
            Place::Flash(unit) => {
                self.owners[unit as usize] = logical;
                unit
            }
            Place::Buffer(slot) => self.owners.len() as u32 + slot,
        };
        before
    }

    /// The logical unit with its newest contents in `unit` of flash, if there is one.
    pub(super) fn owner(&self, unit: u32) -> Option<u32> {
        let logical = self.owners[unit as usize];
        (logical != NONE && self.places[logical as usize] == unit).then_some(logical)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_of_flash_is_owned_until_its_contents_move() {
        let mut mapping = Mapping::new(4, 10);
        assert_eq!(mapping.set(3, Place::Flash(7)), Place::Nowhere);
        assert_eq!((mapping.find(3), mapping.owner(7)), (Place::Flash(7), Some(3)));
        assert_eq!(mapping.set(3, Place::Buffer(5)), Place::Flash(7));
        assert_eq!((mapping.find(3), mapping.owner(7)), (Place::Buffer(5), None));
        assert_eq!(mapping.set(3, Place::Flash(8)), Place::Buffer(5));
        assert_eq!(mapping.set(2, Place::Flash(7)), Place::Nowhere);
        assert_eq!((mapping.owner(7), mapping.owner(8)), (Some(2), Some(3)));
        assert_eq!(mapping.set(2, Place::Nowhere), Place::Flash(7));
        assert_eq!((mapping.find(2), mapping.owner(7)), (Place::Nowhere, None));
    }
}
