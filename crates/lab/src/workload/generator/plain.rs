//! Streams whose I/Os differ only in random offsets: no other decision is needed for an I/O, so several are drawn
//! together.

use super::{ALWAYS, Choice, Generator, NextIo, Stream};
use crate::workload::distribution::Places;

/// A stream of I/Os of one operation, length and priority, each at a random offset.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plain {
    /// Every I/O, at sector 0.
    io: NextIo,
    /// As in [`Stream`].
    unit: u64,
    places: usize,
}

impl Generator {
    /// The stream as a plain one, if it is one.
    pub(super) fn as_plain(&self) -> Option<Plain> {
        let Choice::Only(direction) = self.choice else { return None };
        let Stream { op, flags, sizes, unit, places, random_below, .. } =
            &self.streams[direction as usize];
        let sectors = sizes.fixed()?;
        let scattered = self.random && self.run.0 == 1 && *random_below == ALWAYS;
        if !scattered || self.chains || self.cover.is_some() || self.prios.is_varied() {
            return None;
        }
        let io = NextIo { op: *op, flags: *flags, prio: self.prios.own(), sectors, sector: 0 };
        Some(Plain { io, unit: *unit, places: *places })
    }

    /// An I/O at sector 0 that stands for all of them, if the I/Os of the stream differ only in their offsets, which
    /// [`draw_places`](Self::draw_places) draws.
    pub(in crate::workload) fn template(&self) -> Option<NextIo> {
        self.plain.map(|plain| plain.io)
    }

    /// Draws the first sectors of the next I/Os into `sectors`, and returns their number: fewer than the length of
    /// `sectors` if the stream ends.
    ///
    /// # Panics
    /// If the I/Os differ in more than their offsets ([`template`](Self::template)).
    #[inline(always)]
    pub(in crate::workload) fn draw_places(&mut self, sectors: &mut [u64]) -> usize {
        let plain = self.plain.expect("the I/Os are alike but for their places");
        let [sector] = sectors else { return self.draw_several(plain, sectors) };
        let Some(io) = self.next_plain(plain) else { return 0 };
        *sector = io.sector;
        1
    }

    #[inline(never)]
    fn draw_several(&mut self, plain: Plain, sectors: &mut [u64]) -> usize {
        let mut drawn = 0;
        while drawn < sectors.len() {
            if self.pass.is_over() && !self.begin_pass() {
                break;
            }
            let rest = &mut sectors[drawn..];
            let most = self.pass.count_most(plain.io.sectors, rest.len());
            self.scatter(plain, &mut rest[..most]);
            drawn += most;
        }
        drawn
    }

    #[inline]
    pub(super) fn next_plain(&mut self, plain: Plain) -> Option<NextIo> {
        if self.pass.is_over() && !self.begin_pass() {
            return None;
        }
        let sector = self.start + self.places[plain.places].next(&mut self.rng) * plain.unit;
        self.pass.count(plain.io.sectors);
        Some(NextIo { sector, ..plain.io })
    }

    #[inline]
    fn scatter(&mut self, plain: Plain, sectors: &mut [u64]) {
        let (start, unit) = (self.start, plain.unit);
        let places = &mut self.places[plain.places];
        if let Places::Uniform { blocks } = *places {
            // The copy stays in registers during the loop.
            let mut rng = self.rng.clone();
            sectors.iter_mut().for_each(|sector| *sector = start + rng.below(blocks) * unit);
            self.rng = rng;
        } else {
            sectors.iter_mut().for_each(|it| *it = start + places.next(&mut self.rng) * unit);
        }
    }
}
