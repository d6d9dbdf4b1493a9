//! The time at which the next I/O may leave: fio's `rate`, `rate_iops`, `rate_process` and `thinktime`, as arithmetic
//! on given times, and `flow`, which depends on other threads.
//!
//! Rates are kept against the start of the run and not against the last I/O, so that rounding and a slow device cost
//! nothing in the long run: late I/Os are caught up. Directions do not wait for each other: in a mix, a direction whose
//! time has not come yields to the other one ([`Pacer::steer`]), as in fio, so that rates override `rwmixread`.

use super::next_io::{Play, Playing};
use super::{Direction, FlowShare, Job, NextIo, ThinkTime};
use blkmq_core::{Histogram, Instant, Nanos, Rng, SECTOR_SIZE};

/// Whether an I/O may leave now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// Yes.
    Go,
    /// Ask again at this time.
    WaitUntil(Instant),
    /// Ask again when nothing is in flight: a pause is due, and it begins with the last completion.
    Drain,
}

/// Paces one thread of a job.
#[derive(Debug)]
pub struct Pacer {
    /// Whether there is any pacing. For most jobs this is false, and nothing else is checked.
    paced: bool,
    start: Instant,
    /// The rates, by direction; the unit is I/Os or sectors.
    rates: [[Rate; 2]; 3],
    think: Option<Think>,
    /// Draws the times between I/Os, if they are those of a Poisson process.
    poisson: Option<Rng>,
    /// Holds the thread back while it is ahead of others.
    flow: Option<FlowShare>,
    /// The times of a recording, which replace all of the above.
    playing: Option<Playing>,
}

/// A rate in units per second, and the number of units that have left.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    /// The limit; 0 for none.
    per_second: u64,
    done: u64,
    /// The time of the next unit in nanoseconds after the start, if times are drawn.
    drawn: f64,
}

#[derive(Clone, Copy, Debug)]
struct Think {
    time: ThinkTime,
    since_pause: u32,
    until: Option<Instant>,
}

impl Rate {
    fn new(per_second: Option<u64>) -> Self {
        Self { per_second: per_second.unwrap_or(0), done: 0, drawn: 0.0 }
    }

    /// The time at which the next unit is due, in nanoseconds after the start.
    fn due(&self) -> Nanos {
        if self.per_second == 0 {
            return Nanos::ZERO;
        }
        if self.drawn > 0.0 {
            return Nanos(self.drawn as u64);
        }
        let ns = u128::from(self.done) * 1_000_000_000 / u128::from(self.per_second);
        Nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Counts `units` that have left. With `uniform`, a random number below 1, the time to the next unit is drawn: it
    /// is exponential, with the mean that the rate gives.
    fn count(&mut self, units: u64, uniform: Option<f64>) {
        self.done += units;
        if let Some(uniform) = uniform
            && self.per_second > 0
        {
            self.drawn -= (1.0 - uniform).ln() * units as f64 * 1e9 / self.per_second as f64;
        }
    }
}

impl Pacer {
    /// Paces a thread of `job` that starts to issue at `start`.
    #[must_use]
    pub fn new(job: &Job, start: Instant) -> Self {
        let rates = Direction::ALL.map(|d| [Rate::new(job.rate_iops[d]), Rate::new(job.rate[d])]);
        let think = job.thinktime.filter(|time| time.pause > Nanos::ZERO);
        let think = think.map(|time| Think { time, since_pause: 0, until: None });
        let rated = rates.as_flattened().iter().any(|rate| rate.per_second > 0);
        let timed = job.tape.as_ref().filter(|tape| tape.is_timed());
        let playing = timed.map(|tape| Playing::new(tape, start));
        let paced = rated || think.is_some() || playing.is_some();
        Self { paced, start, rates, think, poisson: None, flow: None, playing }
    }

    /// Draws times between I/Os from `seed`, if the job wants those of a Poisson process.
    #[must_use]
    pub fn seeded(mut self, job: &Job, seed: u64) -> Self {
        self.poisson = job.poisson.then(|| Rng::new(job.randseed ^ seed));
        self
    }

    /// Holds the thread to its share of a flow.
    #[must_use]
    pub fn sharing(mut self, flow: Option<FlowShare>) -> Self {
        self.paced |= flow.is_some();
        self.flow = flow;
        self
    }

    /// Returns whether an I/O may have to wait for its time.
    pub(super) fn is_paced(&self) -> bool {
        self.paced
    }

    /// The thread starts to issue at `start`, later than expected.
    pub(super) fn restart(&mut self, start: Instant) {
        self.start = start;
        if let Some(playing) = &mut self.playing {
            playing.restart(start);
        }
    }

    /// The beginning of an I/O that leaves at `now`; for a recording, the time at which it was due.
    #[inline]
    pub(super) fn begun(&self, now: Instant) -> Instant {
        self.playing.as_ref().map_or(now, Playing::due)
    }

    /// How late the I/Os of a recording were issued, in nanoseconds.
    pub(super) fn lateness(&self) -> Option<&Histogram> {
        self.playing.as_ref().map(Playing::lateness)
    }

    /// The thread will issue no more I/Os.
    pub(super) fn leave(&mut self) {
        self.flow = None;
    }

    /// The direction to use at `now` in a mix that has drawn `drawn`: the other one, if the time of `drawn` has not
    /// come and the other one's is earlier.
    #[inline]
    #[must_use]
    pub fn steer(&self, now: Instant, drawn: Direction) -> Direction {
        if self.paced { self.steer_paced(now, drawn) } else { drawn }
    }

    #[inline(never)]
    fn steer_paced(&self, now: Instant, drawn: Direction) -> Direction {
        let other = if drawn == Direction::Read { Direction::Write } else { Direction::Read };
        let due = self.due(drawn);
        if due > now && self.due(other) < due { other } else { drawn }
    }

    /// The time of the next I/O of `direction`.
    fn due(&self, direction: Direction) -> Instant {
        let [iops, bytes] = &self.rates[direction as usize];
        self.start + iops.due().max(bytes.due())
    }

    /// Returns whether `io` may leave at `now`, with `in_flight` others in flight. `now` never runs backwards. The
    /// caller asks about the same `io` until the answer is [`Pace::Go`], and then calls [`issued`](Self::issued).
    #[inline]
    pub fn poll(&mut self, now: Instant, io: &NextIo, in_flight: u32) -> Pace {
        if self.paced { self.poll_paced(now, io, in_flight) } else { Pace::Go }
    }

    /// `io` has left.
    #[inline]
    pub fn issued(&mut self, io: &NextIo) {
        if self.paced {
            self.count(io);
        }
    }

    fn poll_paced(&mut self, now: Instant, io: &NextIo, in_flight: u32) -> Pace {
        if let Some(playing) = &mut self.playing {
            return match playing.poll(now, in_flight) {
                Play::Go => Pace::Go,
                Play::At(due) => Pace::WaitUntil(due),
                Play::Drain => Pace::Drain,
            };
        }
        if let Some(think) = &mut self.think
            && think.since_pause >= think.time.blocks
        {
            if in_flight > 0 {
                return Pace::Drain;
            }
            let until = *think.until.get_or_insert(now + think.time.pause);
            if now < until {
                return Pace::WaitUntil(until);
            }
            (think.since_pause, think.until) = (0, None);
        }
        if let Some(look) = self.flow.as_ref().and_then(FlowShare::hold) {
            return Pace::WaitUntil(now + look);
        }
        let Some(direction) = Direction::of(io.op) else { return Pace::Go };
        let due = self.due(direction);
        if now < due { Pace::WaitUntil(due) } else { Pace::Go }
    }

    fn count(&mut self, io: &NextIo) {
        let Some(direction) = Direction::of(io.op) else { return };
        let uniform = self.poisson.as_mut().map(Rng::unit_f64);
        let [iops, bytes] = &mut self.rates[direction as usize];
        iops.count(1, uniform);
        bytes.count(u64::from(io.sectors) * u64::from(SECTOR_SIZE), uniform);
        if let Some(think) = &mut self.think {
            think.since_pause += 1;
        }
        if let Some(flow) = &mut self.flow {
            flow.count();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::PerDirection;
    use blkmq_core::{IoFlags, IoPrio, Op};

    const SECOND: u64 = 1_000_000_000;

    fn io(op: Op, sectors: u32) -> NextIo {
        NextIo { op, flags: IoFlags::NONE, prio: IoPrio::default(), sectors, sector: 0 }
    }

    /// Issues `io` as fast as allowed on a device that takes no time; returns the number that left in a second.
    fn issued_in_a_second(job: &Job, io: &NextIo) -> u64 {
        let mut now = Instant::from_nanos(77);
        let end = now + Nanos(SECOND);
        let mut pacer = Pacer::new(job, now);
        let mut count = 0;
        while now < end {
            match pacer.poll(now, io, 0) {
                Pace::Go => {
                    pacer.issued(io);
                    count += 1;
                }
                Pace::WaitUntil(then) => {
                    assert!(then > now, "a wait must end in the future");
                    now = then;
                }
                Pace::Drain => panic!("nothing is in flight"),
            }
        }
        count
    }

    #[test]
    fn rates_are_exact_even_where_they_do_not_divide_a_second() {
        for rate in [1, 3, 7_777, 999_983] {
            let job = Job { rate_iops: PerDirection::all(Some(rate)), ..Job::default() };
            assert_eq!(issued_in_a_second(&job, &io(Op::Read, 8)), rate);
        }
        let job = Job { rate: PerDirection::all(Some(10 * 4096)), ..Job::default() };
        assert_eq!(issued_in_a_second(&job, &io(Op::Read, 8)), 10);
    }

    #[test]
    fn only_the_rated_direction_waits() {
        let rate_iops = PerDirection::new(None, Some(1), None);
        let mut pacer = Pacer::new(&Job { rate_iops, ..Job::default() }, Instant::ZERO);
        pacer.issued(&io(Op::Write, 8));
        assert_eq!(pacer.poll(Instant::ZERO, &io(Op::Read, 8), 0), Pace::Go);
        assert_eq!(pacer.poll(Instant::ZERO, &io(Op::Flush, 0), 0), Pace::Go);
        let second = Instant::from_nanos(SECOND);
        assert_eq!(pacer.poll(Instant::ZERO, &io(Op::Write, 8), 0), Pace::WaitUntil(second));
    }

    /// The rates of the directions were coupled: reads waited behind writes, so that `rate_iops=1000,200` gave 200 of
    /// each.
    #[test]
    fn a_mix_keeps_both_rates_and_no_ratio() {
        for (rates, drawn, expected) in [
            ([Some(1000), Some(200)], [1, 1], [1000, 200]),
            ([Some(1000), Some(200)], [4, 1], [1000, 200]),
            ([Some(10), Some(2000)], [1, 4], [10, 2000]),
        ] {
            let rate_iops = PerDirection::new(rates[0], rates[1], None);
            let mut pacer = Pacer::new(&Job { rate_iops, ..Job::default() }, Instant::ZERO);
            let (mut now, mut count, mut turn) = (Instant::ZERO, [0, 0], 0);
            while now < Instant::from_nanos(SECOND) {
                turn += 1;
                let wanted = turn % (drawn[0] + drawn[1]) < drawn[0];
                let wanted = if wanted { Direction::Read } else { Direction::Write };
                let direction = pacer.steer(now, wanted);
                let io = io(direction.op(), 8);
                if let Pace::WaitUntil(at) = pacer.poll(now, &io, 0) {
                    now = at;
                    if now >= Instant::from_nanos(SECOND) {
                        break;
                    }
                }
                pacer.issued(&io);
                count[direction as usize] += 1;
            }
            assert_eq!(count, expected, "{rates:?} drawn as {drawn:?}");
        }
    }

    #[test]
    fn a_direction_without_a_rate_never_waits_for_the_other() {
        let rate_iops = PerDirection::new(Some(1), None, None);
        let mut pacer = Pacer::new(&Job { rate_iops, ..Job::default() }, Instant::ZERO);
        assert_eq!(pacer.steer(Instant::ZERO, Direction::Read), Direction::Read);
        pacer.issued(&io(Op::Read, 8));
        assert_eq!(pacer.steer(Instant::ZERO, Direction::Read), Direction::Write);
        assert_eq!(pacer.steer(Instant::from_nanos(SECOND), Direction::Read), Direction::Read);
        assert_eq!(pacer.steer(Instant::ZERO, Direction::Write), Direction::Write);
    }

    #[test]
    fn poisson_keeps_the_rate_and_its_gaps_are_exponential() {
        let rate_iops = PerDirection::all(Some(10_000));
        let job = Job { rate_iops, poisson: true, ..Job::default() };
        let mut pacer = Pacer::new(&job, Instant::ZERO).seeded(&job, 1);
        let (read, mut now, mut gaps) = (io(Op::Read, 8), Instant::ZERO, Vec::new());
        for _ in 0..50_000 {
            let before = now;
            if let Pace::WaitUntil(at) = pacer.poll(now, &read, 0) {
                now = at;
            }
            gaps.push((now - before).0);
            pacer.issued(&read);
        }
        let seconds = now.as_nanos() as f64 / 1e9;
        assert!((seconds - 5.0).abs() < 0.1, "{seconds}");
        // A share of 1 - 1/e of the gaps is shorter than the mean.
        let short = gaps.iter().filter(|gap| **gap < 100_000).count();
        assert!(short.abs_diff(31_606) < 600, "{short}");
        let other = Pacer::new(&job, Instant::ZERO).seeded(&job, 2);
        let mut others = [other, Pacer::new(&job, Instant::ZERO).seeded(&job, 1)];
        others.iter_mut().for_each(|pacer| pacer.issued(&read));
        assert_ne!(others[0].due(Direction::Read), others[1].due(Direction::Read));
    }

    #[test]
    fn lateness_is_caught_up() {
        let job = Job { rate_iops: PerDirection::all(Some(10)), ..Job::default() };
        let mut pacer = Pacer::new(&job, Instant::ZERO);
        let late = Instant::from_nanos(SECOND / 2);
        for _ in 0..6 {
            assert_eq!(pacer.poll(late, &io(Op::Read, 8), 0), Pace::Go);
            pacer.issued(&io(Op::Read, 8));
        }
        let due = Instant::from_nanos(SECOND * 6 / 10);
        assert_eq!(pacer.poll(late, &io(Op::Read, 8), 0), Pace::WaitUntil(due));
    }

    #[test]
    fn thinking_begins_when_everything_is_done() {
        let thinktime = Some(ThinkTime { pause: Nanos(100), blocks: 2 });
        let mut pacer = Pacer::new(&Job { thinktime, ..Job::default() }, Instant::ZERO);
        let read = io(Op::Read, 8);
        let at = Instant::from_nanos;
        for _ in 0..2 {
            assert_eq!(pacer.poll(at(10), &read, 0), Pace::Go);
            pacer.issued(&read);
        }
        assert_eq!(pacer.poll(at(11), &read, 2), Pace::Drain);
        assert_eq!(pacer.poll(at(20), &read, 0), Pace::WaitUntil(at(120)));
        assert_eq!(pacer.poll(at(119), &read, 0), Pace::WaitUntil(at(120)));
        assert_eq!(pacer.poll(at(120), &read, 0), Pace::Go);
        pacer.issued(&read);
        assert_eq!(pacer.poll(at(120), &read, 1), Pace::Go, "two between pauses");
    }

    #[test]
    fn a_job_without_rates_is_never_held_back() {
        let mut pacer = Pacer::new(&Job::default(), Instant::ZERO);
        for _ in 0..100 {
            assert_eq!(pacer.poll(Instant::ZERO, &io(Op::Read, 8), 9), Pace::Go);
            pacer.issued(&io(Op::Read, 8));
        }
    }
}
