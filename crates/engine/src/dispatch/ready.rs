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
        let few = (!self.many).then(|| self.few.into_iter().take(self.len.into()));
        let many = self.many.then_some(all);
        few.into_iter().flatten().chain(many.into_iter().flatten()).map(HwQueue)
    }
}
