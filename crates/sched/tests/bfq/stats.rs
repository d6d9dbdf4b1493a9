//! The notes add up (section 19, line 16, as far as the policy is concerned): counted from the notes, and counted by
//! hand.

use super::common::{With, add_group, driver, factory, ms, put, read, us, write};
use blkmq_core::{GroupIndex, IoMeta, Nanos};
use blkmq_sched::testkit::{Driver, Script, Step};
use blkmq_sched::{Event, Flow, GroupStats, Pick, Reading, Shape, StatsLevel};

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

/// An owner that moves takes its waiting requests along.
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
