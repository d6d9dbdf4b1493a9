//! The pace that is found for floors: as much of the device's rate as leaves its queue to those who have floors.
//!
//! A device that is limited by tokens makes each request wait that comes while it has all that it takes, however little it
//! holds. Where the bound can do no more for a floor, requests leave at a pace a little below the rate of the device. It
//! grows for as long as floors have room.

/// The part of the rate that is cut at first, and at most, as a shift.
const CUTS: [u32; 2] = [6, 2];
/// The part by which the pace grows: near the last one that was too fast, and elsewhere, as shifts.
const GROWTH: [u32; 2] = [11, 5];

/// The pace, in millionths of a second of device time a second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// Zero for none.
    ppm: u64,
    /// The last one at which a floor was short.
    fast: u64,
    /// Cuts in a row.
    cuts: u32,
}

impl Pace {
    pub(super) fn ppm(self) -> u64 {
        self.ppm
    }

    /// A floor was short at the device's `rate`.
    pub(super) fn cut(&mut self, rate: u64) {
        let from = if self.ppm == 0 { rate } else { rate.min(self.ppm) };
        let shift = CUTS[0].saturating_sub(self.cuts).max(CUTS[1]);
        (self.fast, self.ppm) = (from, (from - (from >> shift)).max(1));
        self.cuts += 1;
    }

    /// Floors are kept: it ends the cuts.
    pub(super) fn keep(&mut self) {
        self.cuts = 0;
    }

    /// Floors have room. A pace beyond the `saturated` rate holds nothing back.
    pub(super) fn grow(&mut self, saturated: u64) {
        self.cuts = 0;
        if self.ppm == 0 {
            return;
        }
        let near = self.fast - self.fast / 32..self.fast + self.fast / 128;
        let is_near = near.contains(&self.ppm);
        self.ppm += (self.ppm >> GROWTH[usize::from(!is_near)]).max(1);
        if self.ppm > saturated + saturated / 4 {
            *self = Self::default();
        }
    }
}
