//! The figures of the flash: channels, dies, planes, blocks and pages, with the arithmetic of addresses, and the
//! durations of NAND operations, transfers, the controller and the host link.
//!
//! The planes of a die operate together: a *row* consists of the pages with one number in all planes of a die, and a
//! *block* of the erase blocks with one number in all planes. A row is programmed, and a block erased, in one step.
//! Addresses count *units* of 4 KiB, in the order row, block, die. Queueing is modelled elsewhere; this file only
//! converts rates to durations.

use blkmq_core::{Instant, Nanos, SECTOR_SIZE};

/// Size of a unit, which one entry of the mapping table maps, in bytes.
pub const UNIT: u32 = 4096;
/// Size of a unit in sectors.
pub(super) const UNIT_SECTORS: u32 = UNIT / SECTOR_SIZE;

/// The numbers of channels, dies, planes, blocks and pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// The number of channels between the controller and the dies.
    pub channels: u32,
    /// The number of dies on each channel.
    pub dies_per_channel: u32,
    /// Planes of a die.
    pub planes: u32,
    /// The bytes in a page of one plane, a multiple of [`UNIT`].
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

    /// The channel of a die. Consecutive dies are on different channels.
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

/// The times and rates of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// Cells to page register: tR.
    pub read: Nanos,
    /// Page registers to cells, all planes of a die together: tPROG.
    pub program: Nanos,
    /// Erasing a block: tERASE.
    pub erase: Nanos,
    /// The total time to suspend and resume a program or an erase.
    pub suspend: Nanos,
    /// The time that a flush takes after the buffer has been programmed. If it is not zero, a flush is served
    /// exclusively.
    pub flush: Nanos,
    /// Bandwidth of a channel.
    pub channel: Rate,
    /// The bandwidth of the host link in each direction.
    pub link: Rate,
    /// The bandwidth into the write buffer.
    pub buffer: Rate,
    /// The rate at which discards and writes of zeroes unmap data.
    pub discard: Rate,
    /// The time that a read occupies the controller.
    pub read_command: Nanos,
    /// The time that any other command occupies the controller.
    pub write_command: Nanos,
    /// The additional latency of a read, which occupies no resource.
    pub read_latency: Nanos,
    /// Like `read_latency`, but for any other command.
    pub write_latency: Nanos,
}

/// A rate in MB (10^6 bytes) per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate(u32);

impl Rate {
    /// Creates a rate of `mbps` million bytes per second; with 0, transfers take no time.
    #[must_use]
    pub const fn new(mbps: u32) -> Self {
        Self(mbps)
    }

    /// The duration of a transfer of `bytes`, rounded up.
    #[must_use]
    pub const fn time(self, bytes: u64) -> Nanos {
        if self.0 == 0 { Nanos::ZERO } else { Nanos((bytes * 1000).div_ceil(self.0 as u64)) }
    }
}

/// A resource that serves one arrival at a time, in order.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Server(Instant);

impl Server {
    /// Serves an arrival at `at` for `span`. Returns the end of the service.
    pub(super) fn serve(&mut self, at: Instant, span: Nanos) -> Instant {
        self.0 = self.0.max(at) + span;
        self.0
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

    #[test]
    fn a_rate_is_in_decimal_megabytes_and_rounds_up() {
        assert_eq!(Rate::new(1000).time(4096), Nanos(4096));
        assert_eq!(Rate::new(600).time(4096), Nanos(6827));
        assert_eq!(Rate::new(0).time(4096), Nanos(0));
    }

    #[test]
    fn a_server_serves_in_order() {
        let mut server = Server::default();
        let at = Instant::from_nanos;
        assert_eq!(server.serve(at(10), Nanos(5)), at(15));
        assert_eq!(server.serve(at(11), Nanos(5)), at(20));
        assert_eq!(server.serve(at(30), Nanos(5)), at(35));
    }
}
