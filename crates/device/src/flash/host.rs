//! The commands of the host: reads are mapped and sent to dies, writes go into the buffer, flushes wait until the
//! buffer is empty, discards unmap units.

use super::backend::Backend;
use super::ftl::Place;
use super::geometry::{Timing, UNIT};
use super::requests::PageRead;
use blkmq_core::{Nanos, Op};

impl Backend {
    /// Handles a command that the controller has decoded.
    pub(super) fn decoded(&mut self, which: u32) {
        if self.is_flushing {
            self.held.push_back(which);
            return;
        }
        match self.requests.get(which).op {
            Op::Read => {
                self.unplanned.push_back(which);
                self.plan();
            }
            Op::Write => self.receive(which),
            Op::Flush => {
                let position = self.buffer.drain();
                self.draining.push_back((position, which));
                let is_due = position > std::mem::replace(&mut self.flushed, position);
                self.is_flushing = is_due && self.params.timing.flush > Nanos::ZERO;
                self.offer();
                self.drained();
            }
            Op::Discard | Op::WriteZeroes => {
                self.forget(which);
                let ends = self.now + self.params.timing.write_latency;
                self.finish(which, ends);
                self.drained();
            }
        }
    }

    /// Issues the page reads of waiting reads in order, as far as there is room.
    pub(super) fn plan(&mut self) {
        while let Some(which) = self.unplanned.front().copied() {
            if !self.look_up(which) {
                return;
            }
            self.unplanned.pop_front();
            self.read_is_over(which);
        }
    }

    /// Sends a read to the dies row by row; units that are not in flash are transferred over the link immediately.
    /// Returns false if there is no room for all page reads.
    fn look_up(&mut self, which: u32) -> bool {
        let mut request = *self.requests.get(which);
        let mut elsewhere = 0;
        while request.next < request.end {
            let Place::Flash(unit) = self.ftl.find(request.next) else {
                elsewhere += 1;
                request.next += 1;
                continue;
            };
            let row = self.params.geometry.row_of(unit);
            let mut units = 1;
            while request.next + units < request.end && self.is_in_row(request.next + units, row) {
                units += 1;
            }
            let die = self.params.geometry.die_of_row(row);
            if !self.reads.push(die, PageRead { request: which, units }) {
                break;
            }
            request.next += units;
            request.reading += 1;
            // The die only uses the number of the request.
            self.read_waits(die);
        }
        *self.requests.get(which) = request;
        if elsewhere > 0 {
            self.pass(which, elsewhere);
        }
        request.next == request.end
    }

    fn is_in_row(&self, logical: u32, row: u32) -> bool {
        match self.ftl.find(logical) {
            Place::Flash(unit) => self.params.geometry.row_of(unit) == row,
            Place::Buffer(_) | Place::Nowhere => false,
        }
    }

    /// Transfers this many units of a read over the link to the host.
    pub(super) fn pass(&mut self, which: u32, units: u32) {
        let bytes = (u64::from(units) * u64::from(UNIT)).min(self.requests.get(which).bytes);
        let span = self.link_time(bytes);
        let passed = self.link[0].serve(self.now, span);
        let request = self.requests.get(which);
        request.passed = request.passed.max(passed);
    }

    /// Ends a read if all of its data has been transferred.
    pub(super) fn read_is_over(&mut self, which: u32) {
        let request = self.requests.get(which);
        if request.reading == 0 && request.next == request.end {
            let ends = request.passed.max(self.now) + self.params.timing.read_latency;
            self.finish(which, ends);
        }
    }

    /// Transfers the data of a write over the link, and into the buffer at the buffer's bandwidth.
    fn receive(&mut self, which: u32) {
        let bytes = self.requests.get(which).bytes;
        let direction = usize::from(self.params.link_duplex);
        let span = self.link_time(bytes);
        let here = self.link[direction].serve(self.now, span);
        let landed = self.filling.serve(here, self.params.timing.buffer.time(bytes));
        self.landing.push_back((landed, which));
    }

    /// Handles the arrival of the data of a write.
    pub(super) fn landed(&mut self, which: u32) {
        self.stalled.push_back(which);
        self.admit();
    }

    /// Admits writes to the buffer in order, as far as there is room, and offers full rows to dies.
    pub(super) fn admit(&mut self) {
        while let Some(which) = self.stalled.front().copied() {
            let done = self.store(which);
            self.offer();
            if !done {
                return;
            }
            self.stalled.pop_front();
            self.written(which);
        }
    }

    /// Puts the remaining units of a write into the buffer. Returns false if there is no room for all of them.
    fn store(&mut self, which: u32) -> bool {
        let mut request = *self.requests.get(which);
        while request.next < request.end {
            if !self.put(request.next) {
                break;
            }
            request.next += 1;
        }
        *self.requests.get(which) = request;
        request.next == request.end
    }

    /// Puts one unit into the buffer, replacing older contents if they are still queued. Returns false if the buffer is
    /// full.
    fn put(&mut self, logical: u32) -> bool {
        let waits = match self.ftl.find(logical) {
            Place::Buffer(slot) => self.buffer.is_queued(slot),
            Place::Flash(_) | Place::Nowhere => false,
        };
        if waits {
            self.ftl.stats.absorbed_units += 1;
        } else {
            let Some(slot) = self.buffer.push(logical) else { return false };
            self.ftl.supersede(logical, Place::Buffer(slot));
        }
        self.ftl.stats.host_units += 1;
        true
    }

    /// Completes a write that is entirely in the buffer, unless it must be durable.
    fn written(&mut self, which: u32) {
        if self.requests.get(which).fua {
            let position = self.buffer.drain();
            self.draining.push_back((position, which));
            self.offer();
            self.drained();
            return;
        }
        let ends = self.now + self.params.timing.write_latency;
        self.finish(which, ends);
    }

    /// Unmaps all units that a request covers completely.
    fn forget(&mut self, which: u32) {
        let request = *self.requests.get(which);
        for logical in request.next..request.end {
            if let Place::Buffer(slot) = self.ftl.supersede(logical, Place::Nowhere) {
                self.buffer.kill(slot);
            }
        }
    }

    /// The position up to which the buffer has been programmed. O(dies).
    pub(super) fn durable(&self) -> u64 {
        let rows = self.dies.iter().map(|die| die.position);
        rows.fold(self.buffer.position(), u64::min)
    }

    /// Ends the requests that wait for a position up to which the buffer has been programmed.
    pub(super) fn drained(&mut self) {
        if self.draining.is_empty() {
            return;
        }
        let durable = self.durable();
        while let Some((position, which)) = self.draining.front().copied() {
            if position > durable {
                return;
            }
            self.draining.pop_front();
            let Timing { write_latency, flush, .. } = self.params.timing;
            let mut ends = self.now + write_latency;
            if self.is_flushing && self.requests.get(which).op == Op::Flush {
                self.is_flushing = false;
                ends += flush;
                self.hold_until(ends);
            }
            self.finish(which, ends);
        }
    }
}
