//! The devices as programs offer them by name.

use crate::tables::{OF_RINGS, OF_THREADS};
use blkmq_core::RealDevice;

/// For programs that offer devices by name.
pub const URING: RealDevice = RealDevice {
    name: "uring",
    target: "PATH",
    summary: "a file or block device through io_uring, past the page cache",
    doc: include_str!("../doc/uring.md"),
    parameters: OF_RINGS,
};

/// Like [`URING`], but without io_uring.
pub const THREADS: RealDevice = RealDevice {
    name: "threads",
    target: "PATH",
    summary: "a file or block device by threads that read and write, where io_uring is forbidden",
    doc: include_str!("../doc/threads.md"),
    parameters: OF_THREADS,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_name_every_parameter() {
        assert_eq!((URING.undocumented(), THREADS.undocumented()), (None, None));
    }
}
