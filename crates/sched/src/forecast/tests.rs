use super::*;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use blkmq_core::{GroupIndex, Instant, IoMeta, Nanos, Op, RequestId};

const MICRO: u64 = 1_000;

fn id(n: u32) -> RequestId {
    RequestId::new(n, 0)
}

fn at(micros: u64) -> Instant {
    Instant::from_nanos(micros * MICRO)
}

fn io(group: u16, op: Op, arrived: Instant) -> IoMeta {
    IoMeta { group: GroupIndex(group), arrived, ..IoMeta::new(op, 0, 8) }
}

fn expects(forecast: &Forecast, now: Instant, group: u16, op: Op) -> u64 {
    let share = forecast.share(GroupIndex(group), op.is_write());
    let outlook = forecast.outlook(0);
    outlook.expects((now, outlook.at_device), share, op, 8).0 / MICRO
}

/// Requests one after the other on an idle device, each of which takes `takes` microseconds.
fn teach(forecast: &mut Forecast, from: &mut u64, op: Op, takes: u64) {
    for _ in 0..32 {
        let io = io(0, op, at(*from));
        forecast.inserted(at(*from), id(0), &io);
        forecast.issued(at(*from), id(0), &io);
        *from += takes;
        forecast.completed(at(*from), id(0), &io);
    }
}

#[test]
fn nothing_is_expected_before_anything_is_known() {
    let forecast = Forecast::new(8, 1);
    assert_eq!(expects(&forecast, at(5), 0, Op::Read), 0);
}

#[test]
fn an_idle_device_needs_the_time_of_the_io_alone() {
    let mut forecast = Forecast::new(8, 1);
    let mut now = 0;
    teach(&mut forecast, &mut now, Op::Read, 100);
    teach(&mut forecast, &mut now, Op::Write, 900);
    assert_eq!(expects(&forecast, at(now), 0, Op::Read), 100);
    assert_eq!(expects(&forecast, at(now), 0, Op::Write), 900);
    let large = forecast.outlook(0).expects((at(now), 0), Share::ALL, Op::Read, 2048);
    assert_eq!(large, Nanos(100 * MICRO), "of the nearest size that is known");
}

/// A device that serves one request after the other in `serial` microseconds each, of which it takes `depth`.
struct Line {
    forecast: Forecast,
    depth: usize,
    serial: u64,
    held: VecDeque<(u32, IoMeta)>,
    device: VecDeque<(u32, IoMeta)>,
    now: u64,
    ends: u64,
    free: Vec<u32>,
}

impl Line {
    fn new(depth: usize, serial: u64) -> Self {
        let free = (0..64).collect();
        let forecast = Forecast::new(64, 4);
        let (held, device) = (VecDeque::new(), VecDeque::new());
        Self { forecast, depth, serial, held, device, now: 0, ends: u64::MAX, free }
    }

    /// Inserts a request, with `first` ahead of all that are held.
    fn comes(&mut self, group: u16, first: bool) -> u32 {
        let io = io(group, Op::Read, at(self.now));
        let slot = self.free.pop().expect("a slot");
        self.forecast.inserted(at(self.now), id(slot), &io);
        if first {
            self.held.push_front((slot, io));
        } else {
            self.held.push_back((slot, io));
        }
        self.issue();
        slot
    }

    fn issue(&mut self) {
        while self.device.len() < self.depth
            && let Some((slot, io)) = self.held.pop_front()
        {
            self.forecast.issued(at(self.now), id(slot), &io);
            if self.device.is_empty() {
                self.ends = self.now + self.serial;
            }
            self.device.push_back((slot, io));
        }
    }

    /// The next request ends.
    fn ends(&mut self) -> (u32, u64) {
        self.now = self.ends;
        let (slot, io) = self.device.pop_front().expect("a request");
        let expected = self.forecast.completed(at(self.now), id(slot), &io).expect("it was seen");
        self.free.push(slot);
        self.ends = self.now + self.serial;
        self.issue();
        (slot, expected.0 / MICRO)
    }
}

#[test]
fn in_a_line_an_io_takes_what_all_before_it_take() {
    for depth in [1, 4, 16] {
        let mut line = Line::new(depth, 50);
        for _ in 0..32 {
            line.comes(0, false);
        }
        for _ in 0..200 {
            line.ends();
            line.comes(0, false);
        }
        let expected = expects(&line.forecast, at(line.now), 0, Op::Read);
        assert!((33 * 50 - 50..=33 * 50 + 50).contains(&expected), "depth {depth}: {expected}");
    }
}

#[test]
fn a_group_that_the_policy_prefers_learns_that_it_does_not_wait_for_the_others() {
    let mut line = Line::new(1, 50);
    for _ in 0..40 {
        line.comes(1, false);
    }
    for _ in 0..40 {
        line.comes(2, true);
        for _ in 0..2 {
            line.ends();
        }
        line.comes(1, false);
    }
    let (of_line, preferred) = (
        expects(&line.forecast, at(line.now), 1, Op::Read),
        expects(&line.forecast, at(line.now), 2, Op::Read),
    );
    assert!((100..=110).contains(&preferred), "{preferred}");
    assert!(of_line > 40 * 50, "{of_line}");
}

#[test]
fn requests_that_a_device_serves_at_once_do_not_wait_for_each_other() {
    let mut forecast = Forecast::new(8, 1);
    // Eight requests at a time, each of which takes 100 us.
    for round in 0..50 {
        let began = at(round * 100);
        let one = io(0, Op::Read, began);
        for slot in 0..8 {
            forecast.inserted(began, id(slot), &one);
            forecast.issued(began, id(slot), &one);
        }
        for slot in 0..8 {
            forecast.completed(at(round * 100 + 100), id(slot), &one);
        }
    }
    let began = at(5_000);
    for slot in 0..7 {
        forecast.inserted(began, id(slot), &io(0, Op::Read, began));
        forecast.issued(began, id(slot), &io(0, Op::Read, began));
    }
    let expected = expects(&forecast, began, 0, Op::Read);
    assert!((90..=110).contains(&expected), "{expected}");
}

#[test]
fn a_device_that_is_late_is_expected_to_be_as_late_again() {
    let mut forecast = Forecast::new(8, 1);
    let mut now = 0;
    teach(&mut forecast, &mut now, Op::Read, 100);
    let stuck = io(0, Op::Read, at(now));
    forecast.inserted(at(now), id(0), &stuck);
    forecast.issued(at(now), id(0), &stuck);
    assert_eq!(expects(&forecast, at(now + 60), 0, Op::Read), 40 + 100);
    assert_eq!(expects(&forecast, at(now + 5_100), 0, Op::Read), 5_000 + 100);
    forecast.completed(at(now + 5_100), id(0), &stuck);
    let after = expects(&forecast, at(now + 5_100), 0, Op::Read);
    assert!((100..600).contains(&after), "one long I/O is no rule: {after}");
}

#[test]
fn requests_that_go_another_way_are_not_counted_twice() {
    let mut forecast = Forecast::new(8, 1);
    let mut now = 0;
    teach(&mut forecast, &mut now, Op::Read, 100);
    let one = io(0, Op::Read, at(now));
    let fresh = forecast.outlook(0);
    for slot in 0..4 {
        forecast.inserted(at(now), id(slot), &one);
    }
    assert_eq!(forecast.outlook(0).held, Nanos(400 * MICRO));
    assert_eq!(forecast.outlook(2).held, Nanos(600 * MICRO), "those that wait outside, too");
    forecast.gone(at(now), id(0));
    forecast.issued(at(now), id(1), &one);
    forecast.requeued(at(now), id(1));
    assert_eq!(forecast.outlook(0).held, Nanos(300 * MICRO));
    forecast.issued(at(now), id(1), &one);
    forecast.gone(at(now), id(1));
    forecast.gone(at(now), id(1));
    forecast.gone(at(now), id(2));
    // A slot whose last request was not seen to end.
    forecast.inserted(at(now), id(3), &one);
    forecast.gone(at(now), id(3));
    assert_eq!((forecast.outlook(0).held, forecast.outlook(0).at_device), (Nanos::ZERO, 0));
    // Issued before the forecast began.
    forecast.issued(at(now), id(5), &one);
    forecast.completed(at(now + 100), id(5), &one);
    assert_eq!(forecast.completed(at(now + 100), id(5), &one), None);
    assert_eq!((forecast.outlook(0).held, forecast.outlook(0).at_device), (Nanos::ZERO, 0));
    assert_eq!(forecast.outlook(0).costs, fresh.costs);
}

#[test]
fn a_slot_has_the_size_that_the_page_says() {
    assert_eq!(size_of::<Slot>(), 72);
}

#[test]
fn classes_are_by_direction_and_size() {
    let kib = |kib: u32| class(Op::Read, 2 * kib);
    let sizes = [1, 4, 5, 16, 17, 64, 65, 256, 257, 1024, 1025, 1 << 20];
    assert_eq!(sizes.map(kib), [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
    assert_eq!((class(Op::Flush, 0), class(Op::Discard, 8)), (6, 6));
}

#[test]
fn a_share_is_that_of_most_of_the_latest_requests() {
    let mut learnt = Learnt::default();
    assert_eq!(learnt.share(), Share::ALL, "nothing is known");
    learnt.learn(500, 0);
    assert_eq!(learnt.share(), Share::ALL, "with nothing held, nothing is learnt");
    // A tenant does not wait in its turn, and otherwise waits for four times the held work.
    for n in 0..SEEN {
        learnt.learn(if n % 3 == 0 { 4_000 } else { 0 }, 1_000);
    }
    assert_eq!(learnt.share(), Share::NONE, "a mean would be 4/3");
    (0..SEEN / 2).for_each(|_| learnt.learn(4_000, 1_000));
    assert_eq!(learnt.share().parts(), 4 * 256, "most of the latest");
}

#[test]
fn waits_of_any_length_are_learnt() {
    let mut learnt = Learnt::default();
    learnt.learn(u64::MAX, 1);
    assert_eq!(learnt.share().parts(), 16 * 256, "the most that a share is");
    learnt.learn(0, u64::MAX);
    learnt.learn(0, 1);
    assert_eq!(learnt.share(), Share::NONE);
}
