//! Durations: NAND operations, transfers, the controller and the host link.
//!
//! Only figures and the arithmetic between rates and times; queueing is elsewhere.

use blkmq_core::{Instant, Nanos};

/// Times and rates of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// Cells to page register: tR.
    pub read: Nanos,
    /// Page registers to cells, all planes of a die together: tPROG.
    pub program: Nanos,
    /// Erasing a block: tERASE.
    pub erase: Nanos,
    /// Suspending and resuming a program or an erase, together.
    pub suspend: Nanos,
    /// The time of a flush behind the programming of the buffer. If it is not zero, a flush is served alone.
    pub flush: Nanos,
    /// Bandwidth of a channel.
    pub channel: Rate,
    /// Bandwidth of the host link, in each direction.
    pub link: Rate,
    /// Bandwidth into the write buffer.
    pub buffer: Rate,
    /// How long a read occupies the controller.
    pub read_command: Nanos,
    /// How long any other command occupies the controller.
    pub write_command: Nanos,
    /// Further latency of a read, which occupies no resource.
    pub read_latency: Nanos,
    /// Like `read_latency`, but for any other command.
    pub write_latency: Nanos,
}

/// A rate in MB (10^6 bytes) a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate(u32);

impl Rate {
    /// `mbps` million bytes a second; with 0, every transfer takes no time.
    #[must_use]
    pub const fn new(mbps: u32) -> Self {
        Self(mbps)
    }

    /// How long `bytes` take, rounded up.
    #[must_use]
    pub const fn time(self, bytes: u64) -> Nanos {
        if self.0 == 0 { Nanos::ZERO } else { Nanos((bytes * 1000).div_ceil(self.0 as u64)) }
    }
}

/// A resource that serves one arrival at a time, in order.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Server(Instant);

impl Server {
    /// Serves an arrival at `at` for `span`; returns when the service ends.
    pub(super) fn serve(&mut self, at: Instant, span: Nanos) -> Instant {
        self.0 = self.0.max(at) + span;
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
