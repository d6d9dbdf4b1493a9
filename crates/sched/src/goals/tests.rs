//! The controller against devices that are a formula: the latency of a tenant as a function of the load of others.

use super::*;
use alloc::vec;
use alloc::vec::Vec;
use blkmq_core::Op;

const VICTIM: GroupIndex = GroupIndex(1);
const FLOOD: GroupIndex = GroupIndex(2);
const HEAVY: GroupIndex = GroupIndex(3);

fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

fn members(goal: Nanos) -> [Member; 3] {
    let member = |group, weight, goal| Member {
        group,
        parent: GroupIndex::ROOT,
        weight,
        goal,
        reserve: Rate::default(),
    };
    let none = Goal::default();
    let goal = Goal { p99_read: goal, ..none };
    [member(VICTIM, 100, goal), member(FLOOD, 100, none), member(HEAVY, 300, none)]
}

fn io(op: Op, group: GroupIndex, sectors: u32, arrived: Instant) -> IoMeta {
    IoMeta { group, arrived, ..IoMeta::new(op, 0, sectors) }
}

/// The I/Os in the list wait, and no others.
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
        let goals = Goals::new(32, &members(goal), None);
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

/// A disk behind a cache: its depth does not matter, the amount written does.
fn cached(_: u32, mib: u64) -> Nanos {
    if mib > 10 { ms(60) } else { ms(6 + mib) }
}

/// A device with a queue: a read waits for the requests in it.
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

/// The flood has half of the weight in use, so half of 200 MiB a second is its share.
#[test]
fn others_keep_a_tenth_of_their_share_or_what_the_goal_says() {
    let tight = |_, mib| if mib > 0 { ms(60) } else { ms(6) };
    let least = |takes_at_most| {
        let mut plant = Plant::new(ms(20), tight);
        let mut members = members(ms(20));
        members[0].goal.takes_at_most = takes_at_most;
        plant.goals.set(&members, None);
        plant.run(5);
        // From the second second on, since the first one has no rate to compare with.
        (
            plant.written[10..].chunks(10).map(|second| second.iter().sum::<u64>()).min(),
            plant.report().state,
        )
    };
    let (kept, state) = least(90);
    assert!((9..=12).contains(&kept.expect("a second")), "{kept:?} of 10 MiB");
    assert_eq!(state, GoalState::Infeasible);
    let (kept, _) = least(100);
    assert!(kept.expect("a second") <= 5, "{kept:?}: a request in 250 ms, or 1/64");
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
    let mut goals = Goals::new(32, &members(ms(300)), None);
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
    let mut goals = Goals::new(1, &list, None);
    let mut now = Instant::ZERO;
    let mut miss = |goals: &mut Goals| {
        for group in [FLOOD, HEAVY] {
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
    let reserve = Rate::default();
    let member = |group, parent, goal| Member { group, parent, weight: 100, goal, reserve };
    let tree = [
        member(GroupIndex(1), GroupIndex::ROOT, goal),
        member(GroupIndex(2), GroupIndex(1), Goal::default()),
    ];
    let mut goals = Goals::new(8, &tree, None);
    goals.completed(&io(Op::Read, GroupIndex(2), 8, Instant::ZERO), Instant::ZERO + ms(2));
    goals.look(Instant::ZERO + ms(500), &Waiting(Vec::new(), 0));
    let report = goals.reports().next().expect("one");
    assert_eq!((report.group, report.state, report.missed), (GroupIndex(1), GoalState::Missed, 1));
    // Counts stay as long as the goal does.
    goals.set(&tree, None);
    assert_eq!(goals.reports().next().expect("one").missed, 1);
    goals.set(&[member(GroupIndex(1), GroupIndex::ROOT, Goal::default())], None);
    assert_eq!(goals.reports().count(), 0);
}

/// One call at a request's end has the effect of one at its beginning and one at its end.
#[test]
fn a_request_that_is_told_at_its_end_counts_like_any_other() {
    let came = Instant::ZERO + ms(1);
    let all = [
        io(Op::Read, VICTIM, 8, came),
        io(Op::Write, VICTIM, 8, came),
        io(Op::Write, FLOOD, 2048, came),
    ];
    let [mut told, mut passed] = [0, 1].map(|_| Goals::new(1, &members(ms(1)), None));
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

/// A window of reads of which the `n`th takes `latency(n)`, reported by samples. Returns the number of samples.
fn sampled(goals: &mut Goals, from: Instant, reads: u32, latency: impl Fn(u32) -> Nanos) -> u32 {
    let (mut left, mut told) = (goals.sampling.next(), 0);
    for n in 0..reads {
        left -= 1;
        if left == 0 {
            let came = from + Nanos(u64::from(n) * ms(100).0 / u64::from(reads));
            left = goals.sampled(&io(Op::Read, VICTIM, 8, came), came + latency(n));
            told += 1;
        }
    }
    goals.look(from + ms(100), &Waiting(Vec::new(), 0));
    told
}

#[test]
fn at_high_rates_samples_tell_what_all_requests_would() {
    let mut goals = Goals::new(32, &members(ms(2)), None);
    let report = |goals: &Goals| goals.reports().next().expect("a goal");
    let window = |nth: u64| Instant::from_nanos(1_000_000_000 + nth * ms(100).0);
    let good = |n: u32| if n % 200 == 7 { ms(3) } else { ms(1) };
    assert_eq!(sampled(&mut goals, window(0), 50_000, good), 50_000, "the rate is not known yet");
    for nth in 1..20 {
        let told = sampled(&mut goals, window(nth), 50_000, good);
        assert!((2_500..4_000).contains(&told), "{told}");
        assert_eq!((report(&goals).state, goals.taken()), (GoalState::Met, Taken::default()));
    }
    assert!((1_000..1_500).contains(&(report(&goals).p99.0 / 1_000)), "{:?}", report(&goals));
    let bad = |n: u32| if n % 33 == 7 { ms(3) } else { ms(1) };
    sampled(&mut goals, window(20), 50_000, bad);
    assert_eq!(report(&goals).state, GoalState::Missed);
    assert_eq!(sampled(&mut goals, window(21), 5_000, bad), 5_000, "all, where it is missed");
}

#[test]
fn reads_that_are_few_are_all_counted_from_the_next_look_on() {
    let mut goals = Goals::new(32, &members(ms(2)), None);
    let window = |nth: u64| Instant::from_nanos(1_000_000_000 + nth * ms(100).0);
    // The group has no I/O, and another one has much.
    for nth in 0..3 {
        let mut left = goals.sampling.next();
        for n in 0..50_000 {
            left -= 1;
            if left == 0 {
                let at = window(nth) + Nanos(n * 2_000);
                left = goals.sampled(&io(Op::Write, FLOOD, 8, at), at + ms(1));
            }
        }
        goals.look(window(nth + 1), &Waiting(Vec::new(), 0));
    }
    assert!(sampled(&mut goals, window(3), 80, |_| ms(1)) < 20);
    assert_eq!(sampled(&mut goals, window(4), 80, |_| ms(1)), 80);
}

/// One late flush of a group with this goal, and one late write: the goals that are missed by them.
fn missed_by(goal: Goal) -> [Vec<GoalKind>; 2] {
    [Op::Flush, Op::Write].map(|op| {
        let mut goals = Goals::new(8, &[members(ms(1))[0], members(ms(1))[1]], None);
        let victim = Member { goal, ..members(ms(1))[0] };
        goals.set(&[victim], None);
        goals.completed(&io(op, VICTIM, 0, Instant::ZERO), Instant::ZERO + ms(2));
        goals.look(Instant::ZERO + ms(500), &Waiting(Vec::new(), 0));
        goals.reports().filter(|it| it.missed > 0).map(|it| it.kind).collect()
    })
}

/// A goal must not be met by a database that waits for its commits, so flushes count.
#[test]
fn a_flush_counts_as_a_write_unless_it_has_a_goal_of_its_own() {
    let (write, sync) = (GoalKind::Write, GoalKind::Sync);
    let goal = Goal { p99_write: ms(1), ..Goal::default() };
    assert_eq!(missed_by(goal), [vec![write], vec![write]]);
    assert_eq!(missed_by(Goal { p99_sync: ms(1), ..goal }), [vec![sync], vec![write]]);
    assert_eq!(missed_by(Goal { p99_sync: ms(9), ..goal }), [vec![], vec![write]]);
    let alone = Goal { p99_sync: ms(1), ..Goal::default() };
    assert_eq!(missed_by(alone), [vec![sync], vec![]]);
}

/// Long requests of others are shortened before anything else is taken, and those of groups with a goal or a floor not.
#[test]
fn requests_are_shortened_first() {
    let mut list = members(ms(10)).to_vec();
    list[2].reserve = Rate { percent: 10, ..Rate::default() };
    let capacity = Capacity { iops: 1_000, bps: 1_000_000, safe_percent: 90 };
    let mut goals = Goals::new(32, &list, Some(capacity));
    let mut now = Instant::ZERO;
    let mut miss = |goals: &mut Goals| {
        goals.completed(&io(Op::Write, FLOOD, 8_192, now), now + ms(90));
        for _ in 0..2 {
            goals.completed(&io(Op::Read, VICTIM, 8, now), now + ms(90));
        }
        now += ms(300);
        goals.look(now, &Waiting(Vec::new(), 16));
        goals.taken()
    };
    let short = |sectors| Taken { sectors: Some(sectors), ..Taken::default() };
    assert_eq!(miss(&mut goals), short(1_024));
    assert_eq!(miss(&mut goals), short(256));
    assert_eq!(miss(&mut goals), Taken { device_depth: Some(4), ..short(256) });
    let shortened = [VICTIM, FLOOD, HEAVY].map(|group| goals.shortens(group));
    assert_eq!(shortened, [false, true, false]);
}

/// While a group with a floor has I/Os, the number of requests in the device is not bounded.
#[test]
fn a_floor_takes_off_the_bound_on_what_the_device_holds() {
    let mut list = members(ms(10)).to_vec();
    list[2].reserve = Rate { percent: 10, ..Rate::default() };
    let capacity = Capacity { iops: 1_000, bps: 1_000_000, safe_percent: 90 };
    let mut goals = Goals::new(32, &list, Some(capacity));
    let late = |goals: &mut Goals, now: Instant| {
        for _ in 0..2 {
            goals.completed(&io(Op::Read, VICTIM, 8, now), now + ms(90));
        }
        goals.look(now + ms(300), &Waiting(Vec::new(), 16));
        goals.taken()
    };
    assert_eq!(late(&mut goals, Instant::ZERO).device_depth, Some(4));
    let now = Instant::ZERO + ms(310);
    assert!(goals.due() > now);
    goals.inserted(now, &io(Op::Read, HEAVY, 8, now));
    assert_eq!(goals.due(), now, "it looks now");
    let taken = late(&mut goals, now);
    assert_eq!((taken.device_depth, taken.rates), (None, [None, None, taken.rates[2]]));
}
