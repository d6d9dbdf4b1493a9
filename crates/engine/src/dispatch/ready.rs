//! The hardware queues to which a pass gave work.

use blkmq_core::HwQueue;

/// A small set of hardware queues; it seldom holds more than a few.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ready {
    few: [u16; 4],
    len: u8,
    /// More than fit in `few`: all hardware queues of the shard must be looked at.
    many: bool,
}

impl Ready {
    /// Adds the hardware queues in `other`.
    #[inline]
    pub(crate) fn merge(&mut self, other: Self) {
        if self.len == 0 {
            *self = Self { many: self.many | other.many, ..other };
            return;
        }
        self.many |= other.many;
        for hw in &other.few[..other.len.into()] {
            self.add(HwQueue(*hw));
        }
    }

    #[inline]
    pub(crate) fn add(&mut self, hw: HwQueue) {
        if self.few[..self.len.into()].contains(&hw.0) {
            return;
        }
        match self.few.get_mut(usize::from(self.len)) {
            Some(place) => {
                *place = hw.0;
                self.len += 1;
            }
            None => self.many = true,
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The hardware queues to pump; `all` are those of the shard.
    #[inline]
    pub(crate) fn iter(self, all: std::ops::Range<u16>) -> impl Iterator<Item = HwQueue> {
        let Self { few, len, many } = self;
        let mut left = if many { all } else { 0..u16::from(len) };
        std::iter::from_fn(move || {
            let next = left.next()?;
            let hw = if many { next } else { few[usize::from(next) % few.len()] };
            Some(HwQueue(hw))
        })
    }
}
