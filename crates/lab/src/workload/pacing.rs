//! The time at which the next I/O may leave: fio's `rate`, `rate_iops` and `thinktime`, as arithmetic on given times.
//!
//! Rates are kept against the start of the run and not against the last I/O, so that rounding and a slow device cost
//! nothing in the long run: late I/Os are caught up. The order of a stream is never changed; a read that has to wait
//! holds back the write behind it, so that a mix keeps its ratio.

use super::{Direction, Job, NextIo, ThinkTime};
use blkmq_core::{Instant, Nanos, SECTOR_SIZE};

/// The answer to "may this I/O leave now?".
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
#[derive(Clone, Debug)]
pub struct Pacer {
    /// Is there any pacing? For most jobs this is false and answers every question.
    paced: bool,
    start: Instant,
    /// The rates, by direction; the unit is I/Os or sectors.
    rates: [[Rate; 2]; 3],
    think: Option<Think>,
}

/// A rate in units per second, and the number of units that have left.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    /// The limit; 0 for none.
    per_second: u64,
    done: u64,
}

#[derive(Clone, Copy, Debug)]
struct Think {
    time: ThinkTime,
    since_pause: u32,
    until: Option<Instant>,
}

impl Rate {
    fn new(per_second: Option<u64>) -> Self {
        Self { per_second: per_second.unwrap_or(0), done: 0 }
    }

    /// The time at which the next unit is due, in nanoseconds after the start.
    fn due(&self) -> Nanos {
        if self.per_second == 0 {
            return Nanos::ZERO;
        }
        let ns = u128::from(self.done) * 1_000_000_000 / u128::from(self.per_second);
        Nanos(u64::try_from(ns).unwrap_or(u64::MAX))
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
        Self { paced: rated || think.is_some(), start, rates, think }
    }

    /// May `io` leave at `now`, with `in_flight` others on their way? `now` never runs backwards. The caller asks
    /// about the same `io` until the answer is [`Pace::Go`], and then calls [`issued`](Self::issued).
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
        let Some(direction) = Direction::of(io.op) else { return Pace::Go };
        let [iops, bytes] = self.rates[direction as usize];
        let due = self.start + iops.due().max(bytes.due());
        if now < due { Pace::WaitUntil(due) } else { Pace::Go }
    }

    fn count(&mut self, io: &NextIo) {
        let Some(direction) = Direction::of(io.op) else { return };
        let [iops, bytes] = &mut self.rates[direction as usize];
        iops.done += 1;
        bytes.done += u64::from(io.sectors) * u64::from(SECTOR_SIZE);
        if let Some(think) = &mut self.think {
            think.since_pause += 1;
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
