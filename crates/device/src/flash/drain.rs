//! Background work: rows of the write buffer go to dies, and garbage is collected.
//!
//! A row goes to the next idle die, so that a slow die delays no other. `reclaim.rs` chooses the garbage to collect.

use super::backend::Backend;
use super::die::{Doing, Freight, Long};
use super::ftl::{Place, Stream};
use super::geometry::UNIT;
use super::reclaim::Step;

impl Backend {
    fn row_units(&self) -> u32 {
        self.params.geometry.row_units()
    }

    /// Returns whether `die` has work besides reads that the host will have to wait for sooner or later.
    pub(super) fn background_waits(&self, die: u32) -> bool {
        let reclaim = &self.reclaim[die as usize];
        if !self.ftl.host_has_room(die) {
            return reclaim.is_active();
        }
        reclaim.is_due() || self.buffer.has_row(self.row_units())
    }

    /// Gives rows that wait in the buffer to idle dies.
    pub(super) fn offer(&mut self) {
        let dies = self.params.geometry.dies();
        for _ in 0..dies {
            if self.idle == 0 || !self.buffer.has_row(self.row_units()) {
                return;
            }
            let die = self.next_die;
            self.next_die = (die + 1) % dies;
            if self.dies[die as usize].is_idle() {
                let marks = self.params.watermarks;
                self.reclaim[die as usize].wake(&mut self.ftl, die, marks);
                self.go_on(die);
            }
        }
    }

    /// Begins the background work of `die`; false if there is none.
    pub(super) fn begin_background(&mut self, die: u32) -> bool {
        let marks = self.params.watermarks;
        let host = self.buffer.has_row(self.row_units()) && self.ftl.host_has_room(die);
        let reclaim = &mut self.reclaim[die as usize];
        if (reclaim.is_due() || !host)
            && let Some(step) = reclaim.next(&mut self.ftl, die, marks)
        {
            self.begin_step(die, step);
            return true;
        }
        if host {
            self.begin_host_row(die);
        }
        host
    }

    fn begin_step(&mut self, die: u32, step: Step) {
        match step {
            Step::Read(units) => {
                self.turn_to(die, Doing::SenseMoved(units));
                self.timers.set(die, self.now + self.params.timing.read);
            }
            Step::Program => self.begin_row(die, Stream::Reclaim),
            Step::Erase(block) => {
                self.turn_to(die, Doing::Busy(Long::Erase(block)));
                self.timers.set(die, self.now + self.params.timing.erase);
            }
        }
    }

    /// Begins a row with the transfer of its data over the channel.
    fn begin_row(&mut self, die: u32, stream: Stream) {
        let first = self.ftl.begin_row(die, stream);
        self.turn_to(die, Doing::Receive(stream, first));
        self.ask(die, self.row_units() * UNIT, Freight::Other);
    }

    fn begin_host_row(&mut self, die: u32) {
        let row = self.row_units();
        let mut used = 0;
        self.dies[die as usize].position = self.buffer.position();
        while used < row
            && let Some(slot) = self.buffer.pull()
        {
            self.rows[(die * row + used) as usize] = slot;
            used += 1;
        }
        self.dies[die as usize].row = used;
        self.begin_row(die, Stream::Host);
        let marks = self.params.watermarks;
        self.reclaim[die as usize].wake(&mut self.ftl, die, marks);
        self.reclaim[die as usize].owe(row);
    }

    /// A row has been programmed: its units are in flash now.
    pub(super) fn programmed(&mut self, die: u32, stream: Stream, first: u32) {
        if stream == Stream::Reclaim {
            return self.reclaim[die as usize].programmed(&mut self.ftl, die, first);
        }
        let (row, used) = (self.row_units(), self.dies[die as usize].row);
        for at in 0..used {
            let slot = self.rows[(die * row + at) as usize];
            self.ftl.commit(self.buffer.logical(slot), Place::Buffer(slot), first + at);
            self.buffer.release(slot);
        }
        self.dies[die as usize].position = u64::MAX;
        self.ftl.finish_row(die, Stream::Host, used);
    }

    /// The power goes while garbage is collected on `die`: the current operation takes effect, and the remaining
    /// units stay where they are.
    pub(super) fn give_up(&mut self, die: u32) {
        let busy = self.dies[die as usize].aside.map(|aside| aside.what);
        match (self.dies[die as usize].doing, busy) {
            (_, Some(Long::Program(stream, first)))
            | (Doing::Receive(stream, first) | Doing::Busy(Long::Program(stream, first)), _) => {
                self.programmed(die, stream, first);
            }
            (_, Some(Long::Erase(block))) | (Doing::Busy(Long::Erase(block)), _) => {
                self.ftl.erase(block);
            }
            _ => {}
        }
        self.reclaim[die as usize].give_up(&mut self.ftl);
    }
}
