//! The operations of dies and channels, step by step: sense and send, receive and program, suspend and resume; and the
//! background work: rows of the write buffer go to dies, and garbage is collected.
//!
//! A row goes to the next idle die, so that a slow die delays no other. `die.rs` chooses the next operation of a die,
//! `reclaim.rs` the garbage to collect.

use super::backend::Backend;
use super::die::{Aside, Choice, Doing, Freight, Long};
use super::ftl::{Place, Stream};
use super::geometry::UNIT;
use super::reclaim::Step;
use crate::{Activity, Span};
use blkmq_core::{Instant, Nanos};

impl Backend {
    /// Switches a die to another operation.
    pub(super) fn turn_to(&mut self, die: u32, doing: Doing) {
        let now = self.now;
        let die = &mut self.dies[die as usize];
        self.idle += u32::from(doing == Doing::Nothing);
        self.idle -= u32::from(die.doing == Doing::Nothing);
        (die.doing, die.since) = (doing, now);
    }

    /// Notes that a page read has been queued for `die`.
    pub(super) fn read_waits(&mut self, die: u32) {
        match self.dies[die as usize].doing {
            Doing::Nothing => self.go_on(die),
            Doing::Busy(what) => self.interrupt(die, what),
            _ => {}
        }
    }

    /// Suspends the long operation for waiting reads, if that is allowed and saves time.
    fn interrupt(&mut self, die: u32, what: Long) {
        let left = self.timers.get(die) - self.now;
        let may =
            self.params.suspend && self.dies[die as usize].may_suspend(self.params.reads_first);
        if !may || left <= self.params.timing.suspend {
            return;
        }
        self.note(die, activity(what));
        self.ftl.stats.suspensions += 1;
        self.dies[die as usize].aside = Some(Aside { what, left });
        let choice = self.dies[die as usize].choose(true, true, self.params.reads_first);
        debug_assert!(choice == Choice::Read, "it was interrupted for reads");
        self.sense(die, self.params.timing.suspend);
    }

    /// Begins the next operation of a die whose register is free.
    pub(super) fn go_on(&mut self, die: u32) {
        let reads = self.reads.waits(die);
        // Garbage collection that no write waits for runs only while no read waits.
        let leisure = !reads && self.reclaim[die as usize].is_active();
        let background = leisure || self.background_waits(die);
        match self.dies[die as usize].choose(reads, background, self.params.reads_first) {
            Choice::Read => self.sense(die, Nanos::ZERO),
            Choice::Resume => self.resume(die),
            Choice::Background if self.begin_background(die) => {}
            Choice::Background if reads => self.sense(die, Nanos::ZERO),
            Choice::Background | Choice::Nothing => self.turn_to(die, Doing::Nothing),
        }
    }

    /// Reads the cells for the first waiting page read, which takes `more` longer than usual.
    fn sense(&mut self, die: u32, more: Nanos) {
        let number = self.reads.begin(die);
        self.turn_to(die, Doing::Sense(number));
        let read = self.params.timing.read;
        let retries = self.retries();
        self.ftl.stats.retries += u64::from(retries);
        let span = Nanos(read.0 * u64::from(1 + retries) + more.0);
        self.timers.set(die, self.now + span);
    }

    /// Draws the number of times that the next page must be read again.
    fn retries(&mut self) -> u32 {
        let (ppm, steps) = (self.params.retry_ppm, self.params.retry_steps);
        if ppm > 0 && self.rng.chance(ppm.into(), 1_000_000) {
            return 1 + self.rng.below(steps.into()) as u32;
        }
        0
    }

    fn resume(&mut self, die: u32) {
        let aside = self.dies[die as usize].aside.take();
        let Aside { what, left } = aside.expect("there was something to go on with");
        self.turn_to(die, Doing::Busy(what));
        self.timers.set(die, self.now + left);
    }

    /// Handles the end of a read of cells, a program or an erase.
    pub(super) fn die_timer(&mut self, die: u32) {
        let doing = self.dies[die as usize].doing;
        match doing {
            Doing::Sense(number) => {
                self.note(die, Activity::Read);
                self.turn_to(die, Doing::Send(number));
                let units = self.reads.get(number).units;
                self.ask(die, units * UNIT, Freight::HostRead);
            }
            Doing::SenseMoved(units) => {
                self.note(die, Activity::Housekeeping);
                self.turn_to(die, Doing::SendMoved);
                self.ask(die, units * UNIT, Freight::Other);
            }
            Doing::Busy(what) => {
                self.note(die, activity(what));
                self.dies[die as usize].ended();
                match what {
                    Long::Program(stream, first) => self.programmed(die, stream, first),
                    Long::Erase(block) => self.ftl.erase(block),
                }
                self.go_on(die);
                if matches!(what, Long::Program(Stream::Host, _)) {
                    self.admit();
                    self.drained();
                }
            }
            Doing::Nothing | Doing::Send(_) | Doing::SendMoved | Doing::Receive(..) => {
                unreachable!("the timer of a die runs while its cells are at work")
            }
        }
    }

    /// Queues a die for its channel.
    pub(super) fn ask(&mut self, die: u32, bytes: u32, freight: Freight) {
        self.dies[die as usize].to_move = bytes;
        let channel = self.params.geometry.channel_of(die);
        self.channels[channel as usize].ask(die, freight);
        self.begin_transfer(channel);
    }

    /// Begins the next transfer, or the next part of one.
    fn begin_transfer(&mut self, channel: u32) {
        let Some(die) = self.channels[channel as usize].begin(self.params.reads_first) else {
            return;
        };
        let die = &mut self.dies[die as usize];
        die.since = self.now;
        let whole = matches!(die.doing, Doing::Send(_));
        let bytes =
            if whole { die.to_move } else { die.to_move.min(self.params.geometry.page_size) };
        die.to_move -= bytes;
        let span = self.params.timing.channel.time(bytes.into());
        let timer = self.params.geometry.dies() + channel;
        self.timers.set(timer, self.now + span);
    }

    /// Handles the end of a transfer, or of a part of it.
    pub(super) fn channel_timer(&mut self, channel: u32) {
        let die = self.channels[channel as usize].end();
        let doing = self.dies[die as usize].doing;
        let moved = matches!(doing, Doing::SendMoved | Doing::Receive(Stream::Reclaim, _));
        self.note(die, if moved { Activity::Housekeeping } else { Activity::Transfer });
        if self.dies[die as usize].to_move > 0 {
            self.channels[channel as usize].ask(die, Freight::Other);
            return self.begin_transfer(channel);
        }
        self.begin_transfer(channel);
        match doing {
            Doing::Send(number) => self.page_is_read(die, number),
            Doing::SendMoved => self.go_on(die),
            Doing::Receive(stream, first) => self.program(die, stream, first),
            Doing::Nothing | Doing::Sense(_) | Doing::SenseMoved(_) | Doing::Busy(_) => {
                unreachable!("only who has asked for the channel gets it")
            }
        }
    }

    fn page_is_read(&mut self, die: u32, number: u32) {
        let read = self.reads.end(number);
        self.requests.get(read.request).reading -= 1;
        self.pass(read.request, read.units);
        self.read_is_over(read.request);
        self.go_on(die);
        // There is room for another page read.
        self.plan();
    }

    /// Begins to program a row whose data has arrived.
    fn program(&mut self, die: u32, stream: Stream, first: u32) {
        let what = Long::Program(stream, first);
        self.turn_to(die, Doing::Busy(what));
        self.timers.set(die, self.now + self.params.timing.program);
        if self.reads.waits(die) {
            self.interrupt(die, what);
        }
    }

    /// Records the operation of `die` from its beginning until now.
    fn note(&self, die: u32, activity: Activity) {
        let Some(log) = &self.occupancy else { return };
        let start: Instant = self.dies[die as usize].since;
        log.record(Span { start, end: self.now, place: die, activity });
    }
}

/// Work in the background.
impl Backend {
    fn row_units(&self) -> u32 {
        self.params.geometry.row_units()
    }

    /// Returns whether `die` has work besides reads, for which the host will eventually wait.
    pub(super) fn background_waits(&self, die: u32) -> bool {
        let reclaim = &self.reclaim[die as usize];
        if !self.ftl.host_has_room(die) {
            return reclaim.is_active();
        }
        reclaim.is_due() || self.buffer.has_row(self.row_units())
    }

    /// Assigns rows that wait in the buffer to idle dies.
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

    /// Begins background work of `die`. Returns false if there is none.
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

    /// Handles the end of programming a row: its units are in flash.
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

    /// Handles a power loss during garbage collection on `die`: the current operation takes effect, and the remaining
    /// units stay in place.
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

fn activity(what: Long) -> Activity {
    match what {
        Long::Program(Stream::Host, _) => Activity::Write,
        Long::Program(Stream::Reclaim, _) => Activity::Housekeeping,
        Long::Erase(_) => Activity::Erase,
    }
}
