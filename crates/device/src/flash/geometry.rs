//! The division of the flash into channels, dies, planes, blocks and pages, and the arithmetic of addresses.
//!
//! The planes of a die work in step: a *row* is the pages with one number in all planes of a die, a *block* here the
//! erase blocks with one number in all of them. A row is programmed in one step, and a block erased in one step.
//! Addresses count *units* of 4 KiB, in the order row, block, die. Durations are in `timing.rs`.

use blkmq_core::SECTOR_SIZE;

/// Size of a unit, which one entry of the mapping table maps, in bytes.
pub const UNIT: u32 = 4096;
/// Size of a unit in sectors.
pub(super) const UNIT_SECTORS: u32 = UNIT / SECTOR_SIZE;

/// The numbers of channels, dies, planes, blocks and pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Channels between controller and dies.
    pub channels: u32,
    /// Dies that share one channel.
    pub dies_per_channel: u32,
    /// Planes of a die.
    pub planes: u32,
    /// Bytes in a page of one plane, a multiple of [`UNIT`].
    pub page_size: u32,
    /// Pages of a block, in each of its planes.
    pub pages_per_block: u32,
    /// Blocks of a die, each over all of its planes.
    pub blocks_per_die: u32,
}

impl Geometry {
    /// Dies in all.
    #[must_use]
    pub const fn dies(&self) -> u32 {
        self.channels * self.dies_per_channel
    }

    /// Units in a row.
    #[must_use]
    pub const fn row_units(&self) -> u32 {
        self.planes * (self.page_size / UNIT)
    }

    /// Units in a block.
    #[must_use]
    pub const fn block_units(&self) -> u32 {
        self.row_units() * self.pages_per_block
    }

    /// Units of all dies.
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.blocks() as u64 * self.block_units() as u64
    }

    /// Blocks of all dies.
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        self.dies() * self.blocks_per_die
    }

    /// The channel of a die. Dies are numbered across the channels, so that neighbours do not share one.
    #[must_use]
    pub const fn channel_of(&self, die: u32) -> u32 {
        die % self.channels
    }

    /// The block of a unit, counted over all dies.
    #[must_use]
    pub const fn block_of(&self, unit: u32) -> u32 {
        unit / self.block_units()
    }

    /// The row of a unit, counted over all dies.
    #[must_use]
    pub const fn row_of(&self, unit: u32) -> u32 {
        unit / self.row_units()
    }

    /// The die of a row.
    #[must_use]
    pub const fn die_of_row(&self, row: u32) -> u32 {
        row / (self.pages_per_block * self.blocks_per_die)
    }

    /// The first unit of row `page` of `block`.
    #[must_use]
    pub const fn first_unit(&self, block: u32, page: u32) -> u32 {
        (block * self.pages_per_block + page) * self.row_units()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_count_rows_blocks_and_dies_in_this_order() {
        let geometry = Geometry {
            channels: 2,
            dies_per_channel: 3,
            planes: 2,
            page_size: 16384,
            pages_per_block: 5,
            blocks_per_die: 7,
        };
        assert_eq!((geometry.row_units(), geometry.block_units()), (8, 40));
        assert_eq!((geometry.dies(), geometry.blocks(), geometry.units()), (6, 42, 1680));
        let unit = geometry.first_unit(8, 3) + 7;
        assert_eq!(unit, 8 * 40 + 3 * 8 + 7);
        assert_eq!((geometry.block_of(unit), geometry.row_of(unit)), (8, 43));
        assert_eq!(geometry.die_of_row(43), 1, "block 8 is the second one of die 1");
        assert_eq!([0, 1, 2].map(|die| geometry.channel_of(die)), [0, 1, 0]);
    }
}
