//! The placement of many volumes on one device.

use crate::record::Record;

/// How volumes share a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Layout {
    /// Volumes follow each other; each is as long as its last I/O reaches.
    #[default]
    Concat,
    /// Each volume begins at a hash of its number, and wraps around at the end of the device.
    Hash,
}

impl Layout {
    /// The layouts and their names.
    pub const NAMES: [(Self, &'static str); 2] = [(Self::Concat, "concat"), (Self::Hash, "hash")];
}

/// The trace does not fit on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutError {
    /// The volumes are longer than the device.
    #[error(
        "its volumes have {needed} bytes and the device {device}; accepted: a larger device, --layout=hash, or \
         --scale-space below 1"
    )]
    Room {
        /// The sum of the lengths of the volumes, in bytes.
        needed: u64,
        /// The size of the device, in bytes.
        device: u64,
    },
}

/// The placement of the volumes of a trace.
#[derive(Clone, Debug)]
pub struct Placed {
    layout: Layout,
    starts: Vec<u64>,
    device: u64,
}

/// The alignment of volumes, in bytes.
const ALIGN: u64 = 1 << 20;

impl Placed {
    /// Places volumes that end at `ends` bytes on a device of `device` bytes.
    ///
    /// # Errors
    /// If the layout is [`Layout::Concat`] and the volumes are longer than the device.
    pub fn new(layout: Layout, ends: &[u64], device: u64) -> Result<Self, LayoutError> {
        let mut starts = Vec::with_capacity(ends.len());
        let mut at: u64 = 0;
        for (number, end) in ends.iter().enumerate() {
            match layout {
                Layout::Concat => {
                    starts.push(at);
                    at = at.saturating_add(end.next_multiple_of(if ends.len() > 1 {
                        ALIGN
                    } else {
                        1
                    }));
                }
                Layout::Hash => {
                    let hash = (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                    starts.push(
                        ((u128::from(hash) * u128::from(device / ALIGN)) >> 64) as u64 * ALIGN,
                    );
                }
            }
        }
        if layout == Layout::Concat && at > device {
            return Err(LayoutError::Room { needed: at, device });
        }
        Ok(Self { layout, starts, device })
    }

    /// The first byte of `record` on the device. An I/O that would cross the end begins earlier.
    #[must_use]
    pub fn place(&self, record: &Record) -> u64 {
        let start = self.starts.get(record.volume as usize).copied().unwrap_or(0);
        let place = start.saturating_add(record.offset);
        match self.layout {
            Layout::Concat => place,
            Layout::Hash => {
                let place = place % self.device.max(1);
                place.min(self.device.saturating_sub(record.length))
            }
        }
    }
}
