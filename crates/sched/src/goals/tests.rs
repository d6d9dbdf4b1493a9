//! The controller against devices that are a formula: the latency of a tenant, by what the others do.

use super::*;
use alloc::vec::Vec;
use blkmq_core::Op;

const VICTIM: GroupId = GroupId(1);
const FLOOD: GroupId = GroupId(2);
const HEAVY: GroupId = GroupId(3);

fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

fn members(goal: Nanos) -> [Member; 3] {
    let member = |group, weight, goal| Member { group, parent: GroupId::ROOT, weight, goal };
    let none = Goal::default();
    let goal = Goal { p99_read: goal, ..none };
    [member(VICTIM, 100, goal), member(FLOOD, 100, none), member(HEAVY, 300, none)]
}

fn io(op: Op, group: GroupId, sectors: u32, arrived: Instant) -> IoMeta {
    IoMeta { group, arrived, ..IoMeta::new(op, 0, sectors) }
}

/// Nothing waits but what is in the list.
struct Waiting(Vec<IoMeta>, u32);

impl Sight for Waiting {
    fn waiting(&self, show: &mut dyn FnMut(&IoMeta)) {
        self.0.iter().for_each(show);
    }
    fn at_device(&self) -> u32 {
        self.1
    }
}

/// A victim that reads in turn and a flood that writes as fast as it may. `latency` is that of a read, by the device's
/// depth and the MiB that others wrote in the last 100 ms.
struct Plant {
    goals: Goals,
    now: Instant,
    latency: fn(u32, u64) -> Nanos,
    /// MiB a second that the device takes.
    most: u64,
    written: Vec<u64>,
}

impl Plant {
    fn new(goal: Nanos, latency: fn(u32, u64) -> Nanos) -> Self {
        let goals = Goals::new(32, &members(goal));
        Self { goals, now: Instant::ZERO, latency, most: 200, written: Vec::new() }
    }

    /// A hundred milliseconds.
    fn step(&mut self) {
        let end = self.now + ms(100);
        let depth = self.goals.taken().device_depth.unwrap_or(32);
        let mut mib = 0;
        for at in (0..self.most / 10).map(|n| self.now + Nanos(n * 1_000_000_000 / self.most)) {
            if self.goals.admits(FLOOD, at) {
                self.goals.inserted(at, &io(Op::Write, FLOOD, 2048, at));
                mib += 1;
            }
        }
        self.written.push(mib);
        let latency = (self.latency)(depth, mib);
        let mut came = self.now;
        while came + latency <= end {
            self.goals.completed(&io(Op::Read, VICTIM, 8, came), came + latency);
            came += latency;
        }
        self.now = end;
        let waits = Waiting(alloc::vec![io(Op::Read, VICTIM, 8, came)], depth);
        if self.goals.due() <= end {
            self.goals.look(end, &waits);
        }
    }

    fn run(&mut self, seconds: u64) -> GoalReport {
        (0..seconds * 10).for_each(|_| self.step());
        self.report()
    }

    fn report(&self) -> GoalReport {
        self.goals.reports().next().expect("a goal")
    }

    /// MiB a second written in the last ten seconds.
    fn rate(&self) -> u64 {
        self.written[self.written.len() - 100..].iter().sum::<u64>() / 10
    }
}

/// A disk behind a cache: its depth does not matter, what is written does.
fn cached(_: u32, mib: u64) -> Nanos {
    if mib > 10 { ms(60) } else { ms(6 + mib) }
}

/// A device with a queue: a read waits for what is in it.
fn queued(depth: u32, _: u64) -> Nanos {
    ms((1 + depth).into())
}

#[test]
fn behind_a_cache_the_rate_is_taken_and_what_remains_is_given_back() {
    let mut plant = Plant::new(ms(20), cached);
    plant.run(60);
    let before = plant.report();
    let after = plant.run(60);
    let (windows, missed) = (after.windows - before.windows, after.missed - before.missed);
    assert!(missed * 20 <= windows, "{missed} of {windows}");
    assert!((60..=105).contains(&plant.rate()), "{} of 100 MiB a second", plant.rate());
    assert_eq!(
        plant.goals.taken().device_depth,
        None,
        "it did not help: {:?}",
        plant.goals.taken()
    );
}

#[test]
fn a_depth_that_helps_is_enough() {
    let mut plant = Plant::new(ms(10), queued);
    let report = plant.run(120);
    assert!(report.missed * 20 <= report.windows, "{report:?}");
    let taken = plant.goals.taken();
    assert_eq!(taken.rates, [None; 3]);
    assert!((2..=9).contains(&taken.device_depth.expect("bounded")), "{taken:?}");
    assert!(plant.rate() >= 190, "{}", plant.rate());
}

#[test]
fn an_infeasible_goal_is_called_so_within_five_seconds_and_costs_the_others_nothing() {
    for latency in [cached as fn(u32, u64) -> Nanos, |_, _| ms(40), |_, _| ms(900)] {
        let mut plant = Plant::new(ms(5), latency);
        let report = plant.run(5);
        assert_eq!(report.state, GoalState::Infeasible, "{report:?}");
        assert!(report.best > ms(5), "{report:?}");
        assert_eq!(plant.goals.taken(), Taken::default());
        plant.run(15);
        assert_eq!(plant.rate(), 200, "nothing is taken any more");
        // The goal is tried again, and given up again.
        let report = plant.run(60);
        assert_eq!((report.state, plant.goals.taken()), (GoalState::Infeasible, Taken::default()));
        assert!(plant.rate() < 200 || report.windows > 100);
    }
}

#[test]
fn when_the_flood_becomes_harmless_all_is_given_back() {
    let mut plant = Plant::new(ms(20), cached);
    plant.run(20);
    assert_ne!(plant.goals.taken(), Taken::default());
    plant.latency = |_, _| ms(1);
    plant.run(120);
    assert_eq!(plant.goals.taken(), Taken::default());
    assert_eq!(plant.rate(), 200);
}

#[test]
fn a_stuck_device_is_unknown_and_then_missed_and_never_good() {
    let mut goals = Goals::new(32, &members(ms(300)));
    let came = Instant::ZERO + ms(50);
    let state = |goals: &mut Goals, at: u64| {
        let now = Instant::ZERO + ms(at);
        goals.look(now, &Waiting(alloc::vec![io(Op::Read, VICTIM, 8, came)], 32));
        goals.reports().next().expect("a goal").state
    };
    assert_eq!(state(&mut goals, 100), GoalState::Unknown);
    assert_eq!(state(&mut goals, 300), GoalState::Unknown);
    assert_eq!(state(&mut goals, 400), GoalState::Unknown);
    assert_eq!(state(&mut goals, 500), GoalState::Missed);
    assert_eq!(goals.taken().device_depth, Some(8));
}

#[test]
fn lighter_groups_are_taken_from_first_and_those_with_goals_never() {
    let mut list = members(ms(1));
    list[1].weight = 10;
    let mut goals = Goals::new(1, &list);
    let mut now = Instant::ZERO;
    let mut miss = |goals: &mut Goals| {
        for group in [VICTIM, FLOOD, HEAVY] {
            goals.inserted(now, &io(Op::Write, group, 2048, now));
        }
        for _ in 0..2 {
            goals.completed(&io(Op::Read, VICTIM, 8, now), now + ms(50));
        }
        now += ms(100);
        goals.look(now, &Waiting(Vec::new(), 1));
        goals.taken().rates
    };
    let rates = miss(&mut goals);
    assert!(rates[0].is_some() && rates[2].is_none(), "{rates:?}");
    let rates = (0..25).map(|_| miss(&mut goals)).last().expect("twelve");
    assert!(rates[0].is_some() && rates[2].is_some(), "{rates:?}");
    assert!(goals.admits(VICTIM, Instant::ZERO) && !goals.admits(FLOOD, now));
}

#[test]
fn a_goal_holds_for_the_groups_below() {
    let goal = Goal { p99_read: ms(1), ..Goal::default() };
    let member = |group, parent, goal| Member { group, parent, weight: 100, goal };
    let tree =
        [member(GroupId(1), GroupId::ROOT, goal), member(GroupId(2), GroupId(1), Goal::default())];
    let mut goals = Goals::new(8, &tree);
    goals.completed(&io(Op::Read, GroupId(2), 8, Instant::ZERO), Instant::ZERO + ms(2));
    goals.look(Instant::ZERO + ms(500), &Waiting(Vec::new(), 0));
    let report = goals.reports().next().expect("one");
    assert_eq!((report.group, report.state, report.missed), (GroupId(1), GoalState::Missed, 1));
    // Counts stay as long as the goal does.
    goals.set(&tree);
    assert_eq!(goals.reports().next().expect("one").missed, 1);
    goals.set(&[member(GroupId(1), GroupId::ROOT, Goal::default())]);
    assert_eq!(goals.reports().count(), 0);
}

/// One call at a request's end does what one at its beginning and one at its end do.
#[test]
fn a_request_that_is_told_at_its_end_counts_like_any_other() {
    let came = Instant::ZERO + ms(1);
    let all = [
        io(Op::Read, VICTIM, 8, came),
        io(Op::Write, VICTIM, 8, came),
        io(Op::Write, FLOOD, 2048, came),
    ];
    let [mut told, mut passed] = [0, 1].map(|_| Goals::new(1, &members(ms(1))));
    for n in 0..20 {
        let (begin, end) = (came + ms(100 * n), came + ms(100 * n + 50));
        for io in all {
            let io = IoMeta { arrived: begin, ..io };
            told.inserted(begin, &io);
            told.completed(&io, end);
            passed.passed(&io, end);
        }
        for goals in [&mut told, &mut passed] {
            goals.look(end, &Waiting(Vec::new(), 1));
        }
        assert_eq!(told.taken(), passed.taken(), "look {n}");
        assert!(told.reports().eq(passed.reports()), "look {n}");
    }
    assert_ne!(told.taken(), Taken::default());
}
