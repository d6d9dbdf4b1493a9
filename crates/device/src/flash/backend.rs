//! The backend: the state shared by all hardware queues of a flash device, its controller, its event loop, the commands
//! of the host, and the operations of dies and channels.
//!
//! Reads are mapped and sent to dies, writes go into the buffer, flushes wait until the buffer is empty, discards unmap
//! units. Dies and channels go step by step: sense and send, receive and program, suspend and resume; in the
//! background, rows of the write buffer go to dies, and garbage is collected. A row goes to the next idle die, so that
//! a slow die delays no other. `die.rs` chooses the next operation of a die, `reclaim.rs` the garbage to collect.
//!
//! The caller passes the time; the backend handles every event that is due, in order, each at its own time, so that a
//! late call gives the same result.
//!
//! The next event is the earliest of a timer for each die and each channel, in a tournament tree of fixed size. Setting
//! a timer is O(log n), finding the first is O(1), without allocation. Of two simultaneous timers the one with the
//! lower number is first, so that a run repeats.

use super::die::{Aside, Channel, Choice, Die, Doing, Freight, Long};
use super::ftl::{FlashStats, Ftl, Place, Stream};
use super::geometry::{Server, Timing, UNIT, UNIT_SECTORS};
use super::host::{Buffer, Command, PageRead, PageReads, Requests};
use super::params::FlashParams;
use super::reclaim::{Reclaim, Step, aged};
use crate::{Activity, OccupancyLog, Span};
use blkmq_core::{HwQueue, Instant, Nanos, Op, Rng, SECTOR_SIZE, Tag};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// The maximum number of page reads that wait or are in progress for each die; a controller is limited, too. The
/// remaining page reads of a request are issued when earlier ones have ended.
const READS_PER_DIE: u32 = 64;

/// The numbers of requests, in order.
type Line = VecDeque<u32>;

pub(super) struct Backend {
    pub(super) params: FlashParams,
    /// Every event before this time has been handled.
    pub(super) now: Instant,
    pub(super) ftl: Ftl,
    pub(super) buffer: Buffer,
    pub(super) dies: Vec<Die>,
    pub(super) reclaim: Vec<Reclaim>,
    pub(super) channels: Vec<Channel>,
    /// The timers of the dies, followed by those of the channels.
    timers: Timers,
    requests: Requests,
    pub(super) reads: PageReads,
    /// The buffer slots that each die is programming, one row for each die.
    pub(super) rows: Vec<u32>,
    /// The number of idle dies.
    idle: u32,
    /// The die at which the search for an idle one continues.
    pub(super) next_die: u32,
    /// Commands that the controller is decoding, each with its end; in order of time.
    decoding: VecDeque<(Instant, u32)>,
    /// Writes whose data is being transferred into the buffer, each with its end; in order of time.
    landing: VecDeque<(Instant, u32)>,
    /// Reads whose page reads have not all been issued, for lack of room.
    unplanned: Line,
    /// Writes that wait for room in the buffer.
    stalled: Line,
    /// Requests that wait until the buffer has been programmed up to a position; in order of position.
    draining: VecDeque<(u64, u32)>,
    /// Whether a flush that is served exclusively is in progress.
    is_flushing: bool,
    /// The position in the buffer at the last flush: a flush without later writes has nothing to do.
    flushed: u64,
    /// Commands that wait for the end of that flush.
    pub(super) held: Line,
    controller: Server,
    /// The host link, to the host and from it. A half-duplex link uses only the first.
    pub(super) link: [Server; 2],
    filling: Server,
    /// By hardware queue: the end and the driver tag of every request that has ended or whose end is known.
    done: Vec<BinaryHeap<Reverse<(Instant, u32)>>>,
    pub(super) rng: Rng,
    pub(super) occupancy: Option<OccupancyLog>,
}

impl Backend {
    /// Creates a device with the preconditioning in its parameters. O(size of the device).
    pub(super) fn new(params: &FlashParams, occupancy: Option<OccupancyLog>) -> Self {
        let geometry = params.geometry;
        let (dies, row) = (geometry.dies(), geometry.row_units());
        let units = params.limits().capacity / u64::from(UNIT_SECTORS);
        let units = u32::try_from(units).expect("checked when parameters were read");
        let ftl = Ftl::new(geometry, units);
        let (hws, depth) = (params.submit_queues, params.hw_queue_depth);
        let all = usize::from(hws) * depth as usize;
        let parts = Parts::new(params);
        Self {
            params: *params,
            now: Instant::ZERO,
            ftl: aged(ftl, params.preconditioned, params.watermarks, params.seed),
            buffer: Buffer::new(params.buffer_units()),
            dies: parts.dies,
            reclaim: (0..dies).map(|_| Reclaim::new(row)).collect(),
            channels: parts.channels,
            timers: parts.timers,
            requests: parts.requests,
            reads: parts.reads,
            rows: vec![0; (dies * row) as usize],
            idle: dies,
            next_die: 0,
            decoding: VecDeque::with_capacity(all),
            landing: VecDeque::with_capacity(all),
            unplanned: Line::with_capacity(all),
            stalled: Line::with_capacity(all),
            draining: VecDeque::with_capacity(all),
            is_flushing: false,
            flushed: 0,
            held: Line::with_capacity(all),
            controller: Server::default(),
            link: [Server::default(); 2],
            filling: Server::default(),
            done: (0..hws).map(|_| BinaryHeap::with_capacity(depth as usize)).collect(),
            rng: Rng::new(params.seed),
            occupancy,
        }
    }

    /// Takes a command from the host.
    pub(super) fn submit(&mut self, now: Instant, command: &Command) {
        self.advance(now);
        let timing = &self.params.timing;
        let bytes = u64::from(command.sectors) * u64::from(SECTOR_SIZE);
        let span = match command.op {
            Op::Read => timing.read_command,
            Op::Write | Op::Flush => timing.write_command,
            Op::Discard | Op::WriteZeroes => {
                Nanos(timing.write_command.0 + timing.discard.time(bytes).0)
            }
        };
        let decoded = self.controller.serve(self.now, span);
        let which = self.requests.add(command);
        self.decoding.push_back((decoded, which));
    }

    /// Begins no command before `at`, whether it waits for the end of a flush or arrives later.
    fn hold_until(&mut self, at: Instant) {
        self.controller.serve(at, Nanos::ZERO);
        self.decoding.iter_mut().for_each(|(decoded, _)| *decoded = (*decoded).max(at));
        while let Some(which) = self.held.pop_back() {
            self.decoding.push_front((at, which));
        }
    }

    /// Handles every event that is due at `now`. Each hardware queue passes its own clock, so `now` may be slightly
    /// earlier than in the previous call.
    pub(super) fn advance(&mut self, now: Instant) {
        loop {
            let (at, which) = self.timers.first();
            let decoded = first(&self.decoding);
            let landed = first(&self.landing);
            let next = at.min(decoded).min(landed);
            if next > now || next == Instant::MAX {
                break;
            }
            self.now = self.now.max(next);
            if at == next {
                self.timers.set(which, Instant::MAX);
                self.timer(which);
            } else if decoded == next {
                let (_, which) = self.decoding.pop_front().expect("it has a first one");
                self.decoded(which);
            } else {
                let (_, which) = self.landing.pop_front().expect("it has a first one");
                self.landed(which);
            }
        }
        self.now = self.now.max(now);
    }

    fn timer(&mut self, which: u32) {
        match which.checked_sub(self.params.geometry.dies()) {
            None => self.die_timer(which),
            Some(channel) => self.channel_timer(channel),
        }
    }

    /// Ends a request at `at`, which must not be in the past.
    pub(super) fn finish(&mut self, which: u32, at: Instant) {
        let request = self.requests.end(which);
        self.done[usize::from(request.hw.0)].push(Reverse((at, request.tag.0)));
    }

    /// Takes out one request of `hw` that has ended by `now`.
    pub(super) fn reap(&mut self, now: Instant, hw: HwQueue) -> Option<Tag> {
        let done = &mut self.done[usize::from(hw.0)];
        let Reverse((at, _)) = done.peek()?;
        if *at > now {
            return None;
        }
        done.pop().map(|Reverse((_, tag))| Tag(tag))
    }

    /// The time at which the next request of `hw`, which has at least one, ends, or an earlier time at which the device
    /// knows more. A request whose end is unknown needs one of the pending events first, and then the minimum latency
    /// of a request.
    pub(super) fn next_event(&self, hw: HwQueue) -> Instant {
        let done = self.done[usize::from(hw.0)].peek().map(|Reverse((at, _))| *at);
        let (at, _) = self.timers.first();
        let next = at.min(first(&self.decoding)).min(first(&self.landing));
        let timing = &self.params.timing;
        let undecided = next + timing.read_latency.min(timing.write_latency);
        done.map_or(undecided, |done| done.min(undecided))
    }

    /// Performs an orderly power cycle: programs the contents of the buffer, abandons garbage collection, and drops the
    /// host's requests. Time restarts at zero.
    pub(super) fn restart(&mut self) {
        [&mut self.decoding, &mut self.landing].into_iter().for_each(VecDeque::clear);
        let lines = [&mut self.unplanned, &mut self.stalled, &mut self.held];
        lines.into_iter().for_each(VecDeque::clear);
        self.draining.clear();
        self.is_flushing = false;
        let position = self.buffer.drain();
        self.offer();
        while self.durable() < position {
            let (at, _) = self.timers.first();
            assert!(
                at < Instant::MAX,
                "the flash is larger than what is mapped, so that a row finds room"
            );
            self.advance(at);
        }
        (0..self.params.geometry.dies()).for_each(|die| self.give_up(die));
        let fresh = Parts::new(&self.params);
        (self.dies, self.channels, self.timers) = (fresh.dies, fresh.channels, fresh.timers);
        (self.requests, self.reads) = (fresh.requests, fresh.reads);
        self.idle = self.params.geometry.dies();
        self.now = Instant::ZERO;
        (self.controller, self.filling) = (Server::default(), Server::default());
        self.link = [Server::default(); 2];
        self.done.iter_mut().for_each(BinaryHeap::clear);
        self.rng = Rng::new(self.params.seed);
    }

    /// The counters of units written and moved so far.
    pub(super) fn stats(&self) -> FlashStats {
        self.ftl.stats
    }

    /// How long `bytes` take over the host link.
    fn link_time(&self, bytes: u64) -> Nanos {
        self.params.timing.link.time(bytes)
    }
}

/// The parts that a power cycle resets.
struct Parts {
    dies: Vec<Die>,
    channels: Vec<Channel>,
    timers: Timers,
    requests: Requests,
    reads: PageReads,
}

impl Parts {
    fn new(params: &FlashParams) -> Self {
        let (dies, channels) = (params.geometry.dies(), params.geometry.channels);
        Self {
            dies: (0..dies).map(|_| Die::new()).collect(),
            channels: (0..channels).map(|_| Channel::new(dies)).collect(),
            timers: Timers::new(dies + channels),
            requests: Requests::new(params.submit_queues, params.hw_queue_depth),
            reads: PageReads::new(dies * READS_PER_DIE, dies),
        }
    }
}

/// Returns the time at which the first entry of a line is due.
fn first(line: &VecDeque<(Instant, u32)>) -> Instant {
    line.front().map_or(Instant::MAX, |(at, _)| *at)
}

const _: () = assert!(UNIT.is_multiple_of(SECTOR_SIZE));

/// Timers, numbered from zero; each is set or not.
#[derive(Debug)]
struct Timers {
    /// The times by number; [`Instant::MAX`] if not set. One entry for each leaf.
    at: Vec<Instant>,
    /// The winner below each inner node; the root is 1, and the children of node n are 2n and 2n + 1.
    winners: Vec<u32>,
}

impl Timers {
    /// `n` timers, none of them set.
    fn new(n: u32) -> Self {
        let leaves = n.max(2).next_power_of_two() as usize;
        let mut timers = Self { at: vec![Instant::MAX; leaves], winners: vec![0; leaves] };
        for node in (1..leaves).rev() {
            timers.decide(node);
        }
        timers
    }

    /// Sets timer `which` to `at`; [`Instant::MAX`] means never.
    fn set(&mut self, which: u32, at: Instant) {
        self.at[which as usize] = at;
        let mut node = (self.at.len() + which as usize) / 2;
        while node > 0 {
            self.decide(node);
            node /= 2;
        }
    }

    /// Returns the time of timer `which`.
    fn get(&self, which: u32) -> Instant {
        self.at[which as usize]
    }

    /// Returns the first timer to end and its time, which is [`Instant::MAX`] if no timer is set.
    fn first(&self) -> (Instant, u32) {
        let which = self.winners[1];
        (self.at[which as usize], which)
    }

    fn decide(&mut self, node: usize) {
        let (left, right) = (self.below(2 * node), self.below(2 * node + 1));
        let wins = self.at[right as usize] < self.at[left as usize];
        self.winners[node] = if wins { right } else { left };
    }

    /// The winner at `node`, which may be a leaf.
    fn below(&self, node: usize) -> u32 {
        let leaves = self.at.len();
        if node < leaves { self.winners[node] } else { (node - leaves) as u32 }
    }
}

impl Backend {
    /// Handles a command that the controller has decoded.
    fn decoded(&mut self, which: u32) {
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
    fn plan(&mut self) {
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
    fn read_is_over(&mut self, which: u32) {
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
    fn landed(&mut self, which: u32) {
        self.stalled.push_back(which);
        self.admit();
    }

    /// Admits writes to the buffer in order, as far as there is room, and offers full rows to dies.
    fn admit(&mut self) {
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
    fn durable(&self) -> u64 {
        let rows = self.dies.iter().map(|die| die.position);
        rows.fold(self.buffer.position(), u64::min)
    }

    /// Ends the requests that wait for a position up to which the buffer has been programmed.
    fn drained(&mut self) {
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

impl Backend {
    /// Switches a die to another operation.
    fn turn_to(&mut self, die: u32, doing: Doing) {
        let now = self.now;
        let die = &mut self.dies[die as usize];
        self.idle += u32::from(doing == Doing::Nothing);
        self.idle -= u32::from(die.doing == Doing::Nothing);
        (die.doing, die.since) = (doing, now);
    }

    /// Notes that a page read has been queued for `die`.
    fn read_waits(&mut self, die: u32) {
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
    fn go_on(&mut self, die: u32) {
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
    fn die_timer(&mut self, die: u32) {
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
    fn channel_timer(&mut self, channel: u32) {
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
    fn background_waits(&self, die: u32) -> bool {
        let reclaim = &self.reclaim[die as usize];
        if !self.ftl.host_has_room(die) {
            return reclaim.is_active();
        }
        reclaim.is_due() || self.buffer.has_row(self.row_units())
    }

    /// Assigns rows that wait in the buffer to idle dies.
    fn offer(&mut self) {
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
    fn begin_background(&mut self, die: u32) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_the_one_that_a_search_finds() {
        let mut rng = Rng::new(5);
        for n in [1, 2, 3, 8, 37] {
            let mut timers = Timers::new(n);
            assert_eq!(timers.first().0, Instant::MAX);
            let mut all = vec![Instant::MAX; n as usize];
            for _ in 0..1000 {
                let which = rng.below(n.into());
                let never = rng.chance(1, 3);
                let at = if never { Instant::MAX } else { Instant::from_nanos(rng.below(20)) };
                timers.set(which as u32, at);
                all[which as usize] = at;
                let (first, at) = all.iter().enumerate().min_by_key(|(_, at)| **at).unwrap();
                assert_eq!(timers.first().0, *at);
                assert!(*at == Instant::MAX || timers.first().1 == first as u32);
                assert_eq!(timers.get(which as u32), all[which as usize]);
            }
        }
    }
}
