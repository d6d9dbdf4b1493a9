//! Section 19, "How to test this", line by line. Lines 1 to 3, 7, 17 and 18 are in `fairness.rs`. Line
//! 16 is tested as far as the policy is concerned: the sums of notes equal counts by hand.

use super::{
    With, add_group, disk, driver, factory, issue_owner, ms, put, put_all, read, us, write,
};
use blkmq_core::{Class, GroupIndex, IoMeta, Nanos, Owner};
use blkmq_sched::testkit::{Driver, Script, Step};
use blkmq_sched::{At, Event, Flow, GroupStats, Pick, Reading, Shape, StatsLevel};

/// Issues and completes the next request. Returns its owner.
fn serve_owner(d: &mut Driver) -> u32 {
    let rq = d.issue();
    let owner = d.meta(rq).owner.0;
    d.complete(rq);
    owner
}

#[test]
fn s19_04_realtime_starves_best_effort_while_it_is_backlogged() {
    let mut d = driver("low_latency=0");
    let rt = |i: u64| read(1, 8 * i).class(Class::Realtime);
    put(&mut d, read(2, 1_000_000));
    put_all(&mut d, (0..40).map(rt));
    for i in 40..2_000 {
        assert_eq!(serve_owner(&mut d), 1);
        put(&mut d, rt(i));
        d.advance(us(100));
    }
    while d.held().len() > 1 {
        assert_eq!(serve_owner(&mut d), 1);
    }
    d.advance(ms(10));
    assert_eq!(serve_owner(&mut d), 2);
}

#[test]
fn s19_04_idle_gets_one_pick_about_every_200_ms() {
    let mut d = driver("low_latency=0,timeout_sync=20");
    let (mut picks, mut sector) = (Vec::new(), 0);
    for _ in 0..8 {
        put(&mut d, read(1, 0));
        put(&mut d, read(2, 1 << 20).class(Class::Idle));
    }
    for _ in 0..20_000 {
        sector += 8;
        let owner = serve_owner(&mut d);
        let like = if owner == 1 { read(1, sector) } else { read(2, sector).class(Class::Idle) };
        put(&mut d, like);
        if owner == 2 {
            picks.push(d.now());
        }
        d.advance(us(100));
    }
    assert!((8..=11).contains(&picks.len()), "{} picks in 2 s", picks.len());
    let gaps = picks.windows(2).map(|pair| pair[1].since(pair[0]));
    assert!(gaps.clone().all(|gap| gap >= ms(200) && gap <= ms(200 + 20)), "{picks:?}");
}

#[test]
fn s19_05_a_queue_begins_with_two_thirds_and_quadruples_when_it_uses_that_up() {
    let mut d = driver("low_latency=0");
    put_all(&mut d, (0..200).map(|i| read(1, 128 * i).len(128)));
    let mut budgets = Vec::new();
    for _ in 0..200 {
        d.issue();
        if budgets.last() != Some(&d.shown("serving_budget")) {
            budgets.push(d.shown("serving_budget"));
        }
    }
    assert_eq!(budgets, [10_922, 16_384]);
}

/// The device is kept idle for a queue that has used `requests` of 128 sectors and, just before its time is over, gets
/// a small request that may grow. Returns whether that request is served after that time.
fn served_late(requests: u64) -> bool {
    let mut d = disk("low_latency=0");
    put_all(&mut d, (0..requests).map(|i| read(1, 128 * i).len(128).level(0)));
    for _ in 0..requests {
        d.issue();
    }
    put(&mut d, read(2, 1 << 20).level(7));
    d.advance(ms(120));
    d.issued().into_iter().for_each(|rq| d.complete(rq));
    assert_eq!(d.shown("idling"), 1);
    d.advance(ms(4));
    put(&mut d, read(1, 128 * requests).level(0));
    d.advance(ms(2));
    issue_owner(&mut d) == 1
}

#[test]
fn s19_06_time_does_not_count_while_waiting_with_two_thirds_used() {
    assert!(served_late(64), "8192 of 10922 are used");
    assert!(!served_late(40), "5120 are");
}

/// A light queue stops for `away` and continues while a heavier one is in service that no other queue may preempt.
/// Returns the owner served next, and its budget.
fn after_a_break(away: Nanos) -> (u32, u64) {
    let mut d = driver("low_latency=0");
    let light = put(&mut d, read(1, 0).level(7));
    assert_eq!(d.issue(), light);
    put_all(&mut d, (0..8).map(|i| read(2, (1 << 20) + 8 * i).level(0)));
    d.advance(ms(1));
    d.complete(light);
    assert_eq!(issue_owner(&mut d), 2);
    d.advance(away);
    put(&mut d, read(1, 8).level(7));
    let owner = issue_owner(&mut d);
    (owner, d.shown("serving_budget"))
}

#[test]
fn s19_08_a_queue_that_is_back_within_24_ms_goes_on_at_once() {
    // The light queue continues with the rest of its budget.
    assert_eq!(after_a_break(ms(24)), (1, 10_922 - 8));
    let (owner, budget) = after_a_break(Nanos(ms(24).0 + 1));
    assert_eq!((owner, budget), (2, 10_922));
    assert_eq!(after_a_break(ms(25)).0, 2);
}

#[test]
fn s19_09_with_strict_guarantees_there_is_never_more_than_one_in_the_device() {
    let mut d = driver("strict_guarantees=1");
    put_all(&mut d, (0..50).map(|i| read(i % 3, 800 * u64::from(i))));
    let mut served = 0;
    while !d.held().is_empty() {
        match d.pick() {
            Pick::Issue(rq) => {
                assert_eq!(d.issued(), [rq]);
                assert_eq!(
                    d.pick(),
                    if d.held().is_empty() { Pick::Empty } else { Pick::WaitCompletion }
                );
                d.complete(rq);
                served += 1;
            }
            Pick::WaitUntil(at) => d.advance(at.since(d.now())),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(served, 50);
}

/// Returns whether the device is kept idle for owner 1 when its only request has completed while owner 2 waits.
fn idles(d: &mut Driver, of_one: IoMeta, of_two: IoMeta) -> bool {
    let first = put(d, of_one);
    assert_eq!(d.issue(), first, "owner 1 has its turn");
    put(d, of_two);
    d.complete(first);
    match d.pick() {
        Pick::WaitUntil(_) => true,
        Pick::Issue(_) => false,
        other => panic!("{other:?}"),
    }
}

/// Gives owner 1 a past of `n` requests, one after the other, `apart` sectors from each other.
fn past(d: &mut Driver, n: u64, apart: u64) {
    for i in 1..=n {
        let rq = put(d, read(1, i * apart));
        assert_eq!(d.issue(), rq);
        d.advance(us(10));
        d.complete(rq);
    }
}

const PLAIN: &str = "low_latency=0,injection=0";

#[test]
fn s19_10_idling_where_nothing_rotates_is_for_guarantees_only() {
    let near = read(1, 8);
    let far = read(2, 1 << 20);
    assert!(!idles(&mut driver(PLAIN), near, far), "all are alike");
    assert!(idles(&mut driver(PLAIN), near.level(0), far.level(7)), "it has the larger claim");
    assert!(!idles(&mut driver(PLAIN), near.level(7), far.level(0)), "it has the least");
    assert!(!idles(&mut driver("slice_idle=0"), near.level(0), far.level(7)), "never");
    let mut d = driver(PLAIN);
    add_group(&mut d, 1, 0, 100);
    add_group(&mut d, 2, 0, 100);
    assert!(idles(&mut d, near.of(1), far.of(2)), "two groups");
    let mut d = driver(PLAIN);
    add_group(&mut d, 1, 0, 100);
    assert!(!idles(&mut d, near.of(1), far.of(1)), "one group");
    let rt = near.class(Class::Realtime);
    assert!(idles(&mut driver(PLAIN), rt, far), "two classes");
    let idle = near.class(Class::Idle);
    assert!(!idles(&mut driver(PLAIN), idle, far.class(Class::Idle)), "never for the idle class");
    assert!(!idles(&mut driver(PLAIN), write(1, 8), far), "nor for async I/O");
}

#[test]
fn s19_10_idling_for_who_is_raised_or_alone() {
    let (near, far) = (read(1, 8), read(2, 1 << 20));
    assert!(
        idles(&mut driver("injection=0"), near, far.level(5)),
        "it is raised, the other is not"
    );
    assert!(!idles(&mut driver("injection=0"), near, far), "both are");
    let mut d = driver(PLAIN);
    let rq = put(&mut d, near);
    d.issue();
    d.complete(rq);
    assert_eq!((d.pick(), d.shown("idling")), (Pick::Empty, 1), "there is nobody else");
}

/// With different claims and a `slice_idle` of 24 days, the device is kept idle for owner 1 while owner 2 waits.
fn idle_for_days() -> Driver {
    let mut d = driver(&format!("{PLAIN},slice_idle=2147483647"));
    assert!(idles(&mut d, read(1, 8).level(0), read(2, 1 << 20).level(7)));
    d
}

#[test]
fn idling_ends_when_nothing_can_come() {
    let mut d = idle_for_days();
    d.env().set_draining(true);
    assert_eq!((d.issue_sector(), d.shown("idling")), (1 << 20, 0));
    let mut d = driver("strict_guarantees=1");
    assert!(idles(&mut d, read(1, 8), read(2, 1 << 20)));
    d.env().set_draining(false);
    assert!(matches!(d.pick(), Pick::WaitUntil(_)), "something may come");
    put(&mut d, read(3, 1 << 21));
    d.env().set_draining(true);
    assert_eq!(d.issue_sector(), 1 << 20);
    assert_eq!(d.pick(), Pick::WaitCompletion, "strict all the same");
    let mut d = idle_for_days();
    d.owner_gone(Owner(1));
    assert_eq!((d.issue_sector(), d.shown("idling")), (1 << 20, 0));
}

/// With twenty groups of depth 4 on 64 tags, each queue in service runs empty, as its tags go to other groups. Idling
/// for it while waiting requests hold all tags would leave a flash device 3 I/Os in a millisecond at first.
#[test]
fn idling_ends_when_no_tag_is_free() {
    let mut d = Driver::of(factory(), 4, PLAIN);
    let first = put(&mut d, read(1, 8).level(0));
    assert_eq!(d.issue(), first);
    put_all(&mut d, (0..3).map(|i| read(2, (1 << 20) + 8 * i).level(7)));
    d.complete(first);
    assert!(matches!(d.pick(), Pick::WaitUntil(_)), "owner 1 may take the fourth");
    put(&mut d, read(3, 1 << 21).level(7));
    assert_eq!((d.issue_sector(), d.shown("idling")), (1 << 20, 0));
}

#[test]
fn idling_that_is_shortened_ends_as_if_it_had_never_been_longer() {
    let mut d = idle_for_days();
    d.advance(ms(5));
    d.set("slice_idle", 8);
    assert_eq!(d.pick(), Pick::WaitUntil(d.now() + ms(3)));
    d.set("slice_idle", 100);
    assert_eq!(d.pick(), Pick::WaitUntil(d.now() + ms(3)), "only the next time");
    d.set("slice_idle", 0);
    assert_eq!(d.serve_sector(), 1 << 20);
}

#[test]
fn s19_10_idling_on_a_disk_is_for_sequential_queues_unless_it_takes_one_request_at_a_time() {
    let far = read(2, 1 << 25);
    let mut d = disk(PLAIN);
    past(&mut d, 40, 8);
    assert!(idles(&mut d, read(1, 41 * 8), far), "sequential");
    let mut d = disk(PLAIN);
    past(&mut d, 40, 8_000);
    assert!(!idles(&mut d, read(1, 41 * 8_000), far), "seeky");
    // 33 completions with at most three requests in the device and more waiting: the device does not queue.
    let mut d = disk(PLAIN);
    for i in 0..40 {
        put_all(&mut d, (0..4).map(|j| read(1, 8_000 * (4 * i + j))));
        while !d.held().is_empty() {
            let rq = d.issue();
            d.complete(rq);
        }
    }
    assert!(idles(&mut d, read(1, 1 << 23), far), "seeky, on a device that does not queue");
}

#[test]
fn s19_11_a_new_queue_of_the_default_weight_is_raised_for_a_while() {
    let mut d = driver("");
    put(&mut d, read(1, 0));
    d.issue();
    assert_eq!(d.shown("serving_raised"), 30);
    assert_eq!(d.shown("serving_weight"), 30 * 40);
    for (level, raised) in [(3, 1), (5, 1), (4, 30)] {
        let mut d = driver("");
        put(&mut d, read(1, 0).level(level));
        d.issue();
        assert_eq!(d.shown("serving_raised"), raised, "level {level}");
    }
    let mut d = driver("low_latency=0");
    put(&mut d, read(1, 0));
    d.issue();
    assert_eq!(d.shown("serving_raised"), 1);
}

/// Serves owner 1, `sectors` every `every`, until its raising ends. Returns the time and the sectors until then.
fn raised_until(sectors: u32, every: Nanos) -> (Nanos, u64) {
    let mut d = driver("");
    let mut served = 0;
    for i in 0..2_000_000 {
        let rq = put(&mut d, read(1, i * u64::from(sectors)).len(sectors));
        assert_eq!(d.issue(), rq);
        served += u64::from(sectors);
        if d.shown("serving_raised") == 1 {
            return (Nanos(d.now().as_nanos()), served);
        }
        d.advance(every);
        d.complete(rq);
    }
    panic!("raised for ever");
}

#[test]
fn s19_11_raising_ends_after_its_time_or_after_its_sectors() {
    let (time, served) = raised_until(8, ms(1));
    assert!(served < 120_000 && time > ms(3_750) && time <= ms(3_752), "{time:?}");
    let (time, served) = raised_until(256, us(400));
    assert!(
        served > 120_000 && served <= 120_000 + 256 && time < ms(1_000),
        "{served} in {time:?}"
    );
}

/// Reads 16 KiB every 40 ms. Returns the raising in each period.
fn paced(d: &mut Driver, step: u64) -> Vec<u64> {
    (1..=200)
        .map(|i| {
            let rq = put(d, read(1, i * step).len(32));
            assert_eq!(d.issue(), rq);
            let raised = d.shown("serving_raised");
            d.advance(ms(1));
            d.complete(rq);
            d.advance(ms(39));
            // A pick ends the idling when its time is over.
            assert_eq!(d.pick(), Pick::Empty);
            raised
        })
        .collect()
}

#[test]
fn s19_12_a_steady_moderate_reader_is_soft_real_time_and_a_seeky_one_is_not() {
    let raised = paced(&mut driver(""), 32);
    assert_eq!(raised[0], 30, "at first it looks interactive");
    assert!(raised[3..].iter().all(|factor| *factor == 3_000), "{raised:?}");
    let raised = paced(&mut driver(""), 32_000);
    assert!(raised[150..].iter().all(|factor| *factor != 3_000), "{raised:?}");
}

/// Creates `n` queues 10 ms apart and serves each of them twice. Returns the number of queues still raised.
fn burst_of(n: u32) -> usize {
    burst_on(&mut driver(""), n)
}

fn burst_on(d: &mut Driver, n: u32) -> usize {
    for owner in 1..=n {
        put(d, read(owner, u64::from(owner) << 20));
        d.advance(ms(10));
    }
    for owner in 1..=n {
        put(d, read(owner, (u64::from(owner) << 20) + 8));
    }
    let mut raised = vec![0; n as usize + 1];
    while !d.held().is_empty() {
        let rq = match d.pick() {
            Pick::Issue(rq) => rq,
            Pick::WaitUntil(at) => {
                d.advance(at.since(d.now()));
                continue;
            }
            other => panic!("{other:?}"),
        };
        let owner = d.meta(rq).owner.0;
        raised[owner as usize] = d.shown("serving_raised");
        d.complete(rq);
    }
    raised.into_iter().filter(|factor| *factor > 1).count()
}

#[test]
fn s19_13_eight_queues_at_once_are_a_burst_and_seven_are_not() {
    assert_eq!(burst_of(7), 7);
    assert_eq!(burst_of(8), 0);
    assert_eq!(burst_of(12), 0, "who comes after is part of it");
}

#[test]
fn s19_13_a_queue_of_a_burst_is_like_others_once_it_was_idle_for_more_than_ten_seconds() {
    let after = |idle: Nanos| {
        let mut d = driver("");
        assert_eq!(burst_on(&mut d, 8), 0);
        // The device is kept idle for the last queue. Its idle time begins after that.
        while d.shown("serving") == 1 {
            d.advance(ms(1));
            assert_eq!(d.pick(), Pick::Empty);
        }
        d.advance(idle);
        put(&mut d, read(8, 0));
        d.issue();
        d.shown("serving_raised")
    };
    assert_eq!(after(ms(10_000)), 1);
    assert_eq!(after(Nanos(10_000_000_001)), 30);
}

/// A queue with a request in the device that was inserted at the head is not idle, however long its order is empty.
#[test]
fn s19_13_a_queue_of_a_burst_stays_in_it_while_it_has_a_request_in_the_device() {
    let in_burst = |head: bool| {
        let mut d = driver("");
        assert_eq!(burst_on(&mut d, 8), 0);
        d.advance(ms(11_000));
        assert_eq!(d.pick(), Pick::Empty);
        d.advance(ms(11_000));
        if head {
            let first = d.insert_meta(read(8, 0), At::Head).expect("a slot is free");
            assert_eq!(d.issue(), first);
        }
        put(&mut d, read(8, 8));
        d.issue();
        d.shown("serving_in_burst")
    };
    assert_eq!((in_burst(true), in_burst(false)), (1, 0));
}

#[test]
fn s19_14_async_writes_cost_three_times_as_much_while_all_are_alike() {
    let charge = |sync_level: u16| {
        let mut d = driver("low_latency=0");
        put(&mut d, write(1, 0).len(100));
        put(&mut d, read(2, 1 << 20).level(sync_level));
        put(&mut d, write(1, 100).len(100));
        d.issue();
        d.shown("serving_service")
    };
    assert_eq!(charge(4), 300);
    assert_eq!(charge(7), 100, "the other one has less");
}

#[test]
fn s19_15_async_io_has_half_of_the_tags_and_less_while_somebody_is_raised() {
    let fill = |options: &str, raise: bool| {
        let mut d = driver(options);
        if raise {
            put(&mut d, read(9, 1 << 20));
        }
        let mut n = 0;
        // The class is the highest, so that no queue's weight limits it.
        while d.admits(&write(1, 8 * n).class(Class::Realtime)) {
            put(&mut d, write(1, 8 * n).class(Class::Realtime));
            n += 1;
        }
        n
    };
    assert_eq!(fill("low_latency=0", false), 128);
    assert_eq!(fill("", true), 48);
}

#[test]
fn s19_15_a_queue_has_no_more_tags_than_its_weight_is_worth_once_others_are_there() {
    let mut d = driver("low_latency=0");
    put(&mut d, read(1, 0).level(0));
    put(&mut d, read(2, 1 << 20).level(4));
    let mut fill = |owner: u32, level: u16| {
        let mut n = 0;
        while d.admits(&read(owner, 8).level(level)) {
            put(&mut d, read(owner, 8 * n).level(level));
            n += 1;
        }
        n + 1
    };
    // 80 of 120 and 40 of 120, of 256 tags.
    assert_eq!((fill(1, 0), fill(2, 4)), (171, 85));
    assert!(d.admits(&read(3, 8).level(7)) || d.held().len() == 256);
}

fn flow(stats: &GroupStats, group: u16, name: &str) -> Flow {
    match stats.read(GroupIndex(group), name) {
        Some(Reading::Flow(flow)) => flow,
        other => panic!("{name}: {other:?}"),
    }
}

fn number(stats: &GroupStats, group: u16, name: &str) -> u64 {
    match stats.read(GroupIndex(group), name) {
        Some(Reading::Number(number)) => number,
        other => panic!("{name}: {other:?}"),
    }
}

/// Applies the notes so far.
fn apply(d: &Driver, stats: &mut GroupStats) -> usize {
    let notes = d.env().take_notes();
    notes.iter().for_each(|note| stats.apply(note));
    notes.len()
}

/// The results of a history, counted by hand.
#[derive(Default)]
struct Hand {
    bytes: u64,
    ios: u64,
    sectors: u64,
    merged: u64,
}

impl Hand {
    /// Applies a step and counts its result.
    fn step(&mut self, d: &mut Driver, step: Step) {
        let (held, issued) = (d.held(), d.issued());
        let sizes: Vec<(blkmq_core::RequestId, u32)> =
            held.iter().chain(&issued).map(|rq| (*rq, d.meta(*rq).sectors)).collect();
        let event = d.apply(step);
        if let blkmq_sched::testkit::Event::Picked(Pick::Issue(rq)) = event {
            self.sectors += u64::from(d.meta(rq).sectors);
        }
        match step {
            Step::Complete(_) => {
                for (rq, sectors) in sizes.iter().filter(|(rq, _)| issued.contains(rq)) {
                    if !d.issued().contains(rq) {
                        self.ios += 1;
                        self.bytes += u64::from(*sectors) * 512;
                    }
                }
            }
            Step::Back(_) | Step::Front(..) | Step::Discard(..) => {
                let allowed = event == blkmq_sched::testkit::Event::MayMerge(true);
                self.merged += u64::from(allowed);
            }
            Step::Absorb(_) => self.merged += (held.len() - d.held().len()) as u64,
            _ => {}
        }
    }
}

#[test]
fn s19_16_sums_equal_what_was_done_while_groups_come_and_go() {
    for seed in 0..120 {
        let mut script = Script::with_tenants(seed, factory().attributes);
        let options = script.options();
        let shape = Shape { rotational: seed % 3 == 0, ..Driver::shape(40) };
        let mut d = Driver::of_shape(factory(), &shape, &options);
        d.env().set_stats(StatsLevel::Full);
        let (mut stats, mut hand) = (GroupStats::new(), Hand::default());
        for _ in 0..800 {
            let step = script.step();
            hand.step(&mut d, step);
            apply(&d, &mut stats);
            if let Step::Regroup(change) = step {
                stats.regroup(change);
            }
            let queued = flow(&stats, 0, "io_queued_recursive");
            assert_eq!(queued.total(), d.held().len() as u64, "seed {seed} {step:?}");
            assert_eq!(queued.sync + queued.unsynced, queued.total());
        }
        assert_eq!(flow(&stats, 0, "io_service_bytes_recursive").total(), hand.bytes);
        assert_eq!(flow(&stats, 0, "io_serviced_recursive").total(), hand.ios);
        assert_eq!(number(&stats, 0, "sectors_recursive"), hand.sectors);
        assert_eq!(flow(&stats, 0, "io_merged_recursive").total(), hand.merged, "seed {seed}");
        assert!(number(&stats, 0, "time_recursive") <= d.now().as_nanos());
    }
}

#[test]
fn s19_16_less_is_noted_down_at_lower_levels() {
    for (level, expected) in [(StatsLevel::Off, 0), (StatsLevel::Basic, 2), (StatsLevel::Full, 5)] {
        let mut d = driver("low_latency=0");
        d.env().set_stats(level);
        let rq = put(&mut d, read(1, 0));
        d.issue();
        d.complete(rq);
        // The slot ends, which only the highest level notes.
        d.advance(ms(9));
        assert_eq!((d.pick(), d.shown("serving")), (Pick::Empty, 0));
        let notes = d.env().take_notes();
        if level < StatsLevel::Full {
            assert_eq!(notes.len(), expected, "{notes:?}");
        } else {
            assert!(notes.len() >= expected, "{notes:?}");
        }
        let basic = |what| matches!(what, Event::Served(_) | Event::Completed { .. });
        assert!(level == StatsLevel::Full || notes.iter().all(|note| basic(note.what)));
    }
}

#[test]
fn s19_16_what_began_before_anybody_counted_does_not_last() {
    let mut d = driver("low_latency=0,injection=0");
    let mut stats = GroupStats::new();
    add_group(&mut d, 1, 0, 100);
    add_group(&mut d, 2, 0, 100);
    stats.regroup(blkmq_sched::GroupChange::Added {
        group: GroupIndex(1),
        parent: GroupIndex::ROOT,
        weight: 100,
    });
    let first = put(&mut d, read(1, 0).of(1));
    assert_eq!(d.issue(), first);
    put(&mut d, read(2, 1 << 20).of(2));
    d.complete(first);
    let Pick::WaitUntil(until) = d.pick() else { panic!("it is worth waiting for") };
    d.advance(ms(1));
    d.env().set_stats(StatsLevel::Full);
    d.advance(until.since(d.now()));
    d.issue();
    apply(&d, &mut stats);
    assert_eq!(number(&stats, 1, "idle_time"), 0);
    assert_eq!(number(&stats, 1, "dequeue"), 1, "what happens now is counted");
}

/// The notes of one request: inserted with statistics at the first level, picked at the second, completed at the third,
/// and of another one inserted at the fourth and picked at the fifth.
fn spans(levels: [StatsLevel; 5]) -> Vec<Event> {
    let mut d = driver("low_latency=0");
    let set = |d: &mut Driver, level| {
        d.advance(ms(100));
        d.env().set_stats(level);
    };
    set(&mut d, levels[0]);
    put(&mut d, read(1, 0));
    set(&mut d, levels[1]);
    let first = d.issue();
    set(&mut d, levels[2]);
    d.complete(first);
    d.pick();
    set(&mut d, levels[3]);
    put(&mut d, read(1, 8));
    set(&mut d, levels[4]);
    d.issue();
    let notes = d.env().take_notes().into_iter().map(|note| note.what);
    notes.filter(|what| matches!(what, Event::Empty(_) | Event::Waited(_))).collect()
}

#[test]
fn s19_16_a_span_that_begins_or_ends_at_a_lower_level_is_not_noted() {
    use StatsLevel::{Basic, Full};
    let [waited, empty] = [Event::Waited(ms(100)), Event::Empty(ms(200))];
    assert_eq!(spans([Full; 5]), [waited, empty, waited]);
    assert_eq!(spans([Basic, Full, Full, Full, Full]), [empty, waited], "the wait's begin");
    assert_eq!(spans([Full, Basic, Full, Full, Full]), [waited], "the wait's end");
    assert_eq!(spans([Full, Full, Full, Basic, Full]), [waited], "the end of being empty");
}

#[test]
fn s19_16_times_are_those_of_the_group() {
    let mut d = driver("low_latency=0,injection=0");
    d.env().set_stats(StatsLevel::Full);
    let mut stats = GroupStats::new();
    add_group(&mut d, 1, 0, 100);
    add_group(&mut d, 2, 0, 100);
    for group in [1, 2] {
        let (group, parent) = (GroupIndex(group), GroupIndex::ROOT);
        stats.regroup(blkmq_sched::GroupChange::Added { group, parent, weight: 100 });
    }
    let first = put(&mut d, read(1, 0).of(1));
    d.advance(ms(1));
    assert_eq!(d.issue(), first);
    put(&mut d, read(2, 1 << 20).of(2));
    put(&mut d, write(2, 1 << 21).of(2));
    d.advance(ms(2));
    d.complete(first);
    // The device is kept idle for group 1 for 8 ms, then it is the turn of group 2.
    let Pick::WaitUntil(until) = d.pick() else { panic!("it is worth waiting for") };
    d.advance(until.since(d.now()));
    let second = d.issue();
    d.advance(ms(3));
    d.complete(second);
    apply(&d, &mut stats);
    assert_eq!(number(&stats, 1, "time"), ms(10).0);
    assert_eq!(number(&stats, 1, "idle_time"), ms(8).0);
    assert_eq!(number(&stats, 1, "group_wait_time"), ms(1).0);
    assert_eq!(number(&stats, 2, "group_wait_time"), ms(10).0);
    assert_eq!(flow(&stats, 1, "io_wait_time").read, ms(1).0);
    assert_eq!(flow(&stats, 1, "io_service_time").read, ms(2).0);
    assert_eq!(flow(&stats, 2, "io_wait_time").total(), ms(10).0);
    assert_eq!(number(&stats, 1, "dequeue"), 1);
    assert_eq!(number(&stats, 2, "avg_queue_size"), 2);
    let now_empty = number(&stats, 1, "empty_time");
    put(&mut d, read(1, 8).of(1));
    apply(&d, &mut stats);
    assert_eq!(number(&stats, 1, "empty_time") - now_empty, ms(13).0);
    assert_eq!(flow(&stats, 0, "io_queued_recursive").total(), d.held().len() as u64);
}

#[test]
fn s19_16_what_is_noted_down_decides_nothing() {
    for seed in 0..60 {
        let run = |level| {
            let mut script = Script::with_tenants(seed, factory().attributes);
            let options = script.options();
            let mut d = Driver::of(factory(), 30, &options);
            d.env().set_stats(level);
            let events: Vec<_> = (0..600).map(|_| d.apply(script.step())).collect();
            (events, d.drain())
        };
        assert_eq!(run(StatsLevel::Off), run(StatsLevel::Full), "seed {seed}");
    }
}

/// The waiting requests of an owner move with it.
#[test]
fn s19_16_what_waits_moves_with_its_owner() {
    let mut d = driver("low_latency=0");
    d.env().set_stats(StatsLevel::Full);
    let mut stats = GroupStats::new();
    add_group(&mut d, 1, 0, 100);
    let (group, parent) = (GroupIndex(1), GroupIndex::ROOT);
    stats.regroup(blkmq_sched::GroupChange::Added { group, parent, weight: 100 });
    let ios: [IoMeta; 3] = [read(1, 0), read(1, 8), read(1, 16).of(1)];
    for io in ios {
        put(&mut d, io);
        d.advance(us(1));
    }
    apply(&d, &mut stats);
    assert_eq!(flow(&stats, 0, "io_queued").read, 0);
    assert_eq!(flow(&stats, 1, "io_queued").read, 3);
    let served = d.issue();
    d.advance(Nanos(7));
    d.complete(served);
    apply(&d, &mut stats);
    assert_eq!(flow(&stats, 1, "io_service_time").read, 7);
}
