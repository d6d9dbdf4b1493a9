//! Merging and splitting of queues, injection, and wakers, rule by rule. The comparison with the twin meets the rules
//! only by chance.

use super::{
    Client, Path, With, World, disk, driver, factory, issue_owner, ms, put, put_all, read, us,
    write,
};
use blkmq_core::{Instant, IoMeta, Nanos, Owner, RequestId};
use blkmq_sched::testkit::Driver;
use blkmq_sched::{Options, Pick};

/// Owner 1 is in service and has read sector 0, owner 9 waits far away.
fn two_busy(options: &str) -> Driver {
    let mut d = disk(options);
    put(&mut d, read(1, 0));
    put(&mut d, read(1, 8));
    assert_eq!(issue_owner(&mut d), 1);
    put(&mut d, read(9, 1 << 28));
    assert_eq!(d.shown("queues"), 2);
    d
}

#[test]
fn a_process_that_reads_where_the_one_in_service_does_shares_its_queue() {
    let mut d = two_busy("low_latency=0");
    put(&mut d, read(2, 16));
    assert_eq!((d.shown("queues"), d.shown("serving_shared")), (2, 1));
    // One queue, one order: neither owner waits for the other's turn.
    assert_eq!([d.issue_sector(), d.issue_sector()], [8, 16]);
    for (why, io) in [
        ("too far", read(3, 1 << 20)),
        ("async", write(3, 24)),
        ("another class", read(3, 24).class(blkmq_core::Class::Realtime)),
    ] {
        let mut d = two_busy("low_latency=0");
        put(&mut d, io);
        assert_eq!(d.shown("queues"), 3, "{why}");
    }
    let mut d = two_busy("low_latency=0,queue_merge=0");
    put(&mut d, read(2, 16));
    assert_eq!(d.shown("queues"), 3, "switched off");
    for (away, queues) in [(8_192, 2), (8_200, 3)] {
        let mut d = two_busy("low_latency=0");
        put(&mut d, read(2, 8 + away));
        assert_eq!(d.shown("queues"), queues, "{away} sectors away");
    }
}

#[test]
fn a_process_that_reads_where_another_one_is_about_to_shares_its_queue() {
    let mut d = two_busy("low_latency=0");
    put(&mut d, read(2, (1 << 28) + 8));
    assert_eq!((d.shown("queues"), d.shown("serving_shared")), (2, 0));
    let mut d = two_busy("low_latency=0");
    put(&mut d, read(9, 1 << 27));
    d.advance(ms(101));
    put(&mut d, read(2, (1 << 27) + 8));
    assert_eq!(d.shown("queues"), 2, "it has not been served, so it is not too late");
}

/// With such idling, the first reads of 64 readers of a disk wait for up to half a second, behind some 35 pauses.
#[test]
fn the_device_is_not_kept_idle_for_a_queue_whose_process_sends_elsewhere() {
    let mut d = two_busy("low_latency=0");
    while let Pick::Issue(_) = d.pick() {}
    d.issued().into_iter().for_each(|rq| d.complete(rq));
    assert!(matches!(d.pick(), Pick::WaitUntil(_)), "owner 1 may read on");
    put(&mut d, read(1, (1 << 28) + 8));
    assert_eq!([d.issue_sector(), d.issue_sector()], [1 << 28, (1 << 28) + 8]);
    assert_eq!(d.shown("queues"), 1, "the queue that it has left is gone");
}

#[test]
fn it_is_too_late_for_whoever_has_been_served_for_a_tenth_of_a_second() {
    let mut d = two_busy("low_latency=0");
    d.advance(ms(101));
    put(&mut d, read(2, 16));
    assert_eq!(d.shown("queues"), 3);
}

#[test]
fn nothing_is_merged_where_nothing_rotates() {
    let mut d = driver("low_latency=0");
    put(&mut d, read(1, 0));
    put(&mut d, read(1, 8));
    d.issue();
    put_all(&mut d, [read(9, 1 << 28), read(2, 16)]);
    assert_eq!(d.shown("queues"), 3);
}

#[test]
fn a_raised_process_takes_its_raising_along() {
    let mut d = disk("");
    put(&mut d, read(1, 0).level(3));
    put(&mut d, read(1, 8).level(3));
    assert_eq!(issue_owner(&mut d), 1);
    put(&mut d, read(9, 1 << 28).level(3));
    // The queue is new and of the default weight: it is raised when it becomes busy, before it reads near the others.
    let own = put(&mut d, read(2, 1 << 20));
    assert_eq!(d.shown("raised_busy"), 1);
    put(&mut d, read(2, 16));
    assert_eq!((d.shown("queues"), d.shown("raised_busy")), (3, 1));
    assert!(d.held().contains(&own), "what it had stays where it was");
    d.drain();
}

fn until_the_shared_slot_ends(d: &mut Driver) {
    assert_eq!(d.shown("serving_shared"), 1);
    while d.shown("serving_shared") == 1 {
        match d.pick() {
            Pick::Issue(rq) => d.complete(rq),
            Pick::WaitUntil(at) => d.advance(at.since(d.now())),
            Pick::WaitCompletion => d.complete(d.issued()[0]),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_shared_queue_that_is_read_in_order_outlasts_its_slot() {
    let mut d = two_busy("low_latency=0");
    for i in 2..12 {
        put(&mut d, read(1 + i as u32 % 2, 8 * i));
    }
    until_the_shared_slot_ends(&mut d);
    // The position is far from all others, so a queue of its own would not be merged immediately.
    put(&mut d, read(2, 1 << 20));
    assert_eq!(d.shown("queues"), 2, "both still send to the one queue");
    d.drain();
}

#[test]
fn a_shared_queue_that_turns_seeky_is_split_and_each_gets_its_own_back() {
    let mut d = two_busy("low_latency=0");
    put(&mut d, read(2, 16));
    assert_eq!(d.shown("queues"), 2);
    for i in 1..30 {
        put(&mut d, read(1 + i as u32 % 2, 100_000 * i));
    }
    until_the_shared_slot_ends(&mut d);
    put(&mut d, read(2, 0));
    assert_eq!(d.shown("queues"), 3);
    put(&mut d, read(1, 0));
    assert_eq!(d.shown("queues"), 3, "the one who is left keeps the queue");
    d.drain();
}

#[test]
fn queues_that_begin_together_are_one_for_good_if_that_is_asked_for() {
    let begin = |options: &str, apart: Nanos| begin_together(options, apart, Owner);
    assert_eq!(begin("queue_merge=2", ms(50)), 1);
    assert_eq!(begin("queue_merge=2", ms(200)), 3);
    assert_eq!(begin("queue_merge=1", ms(50)), 3, "owners that are named are tenants");
}

/// With a queue for each thread, a reader beside four sequential writers of one program has five times the reads that
/// it has on Linux, which merges their queues, and the program has half of its throughput.
#[test]
fn threads_that_begin_together_are_one_for_good() {
    let begin = |options: &str, apart: Nanos| begin_together(options, apart, Owner::thread);
    assert_eq!(begin("", ms(50)), 1, "by default");
    assert_eq!(begin("", ms(200)), 3);
    assert_eq!(begin("queue_merge=0", ms(50)), 3);
}

#[test]
fn a_tenant_that_begins_beside_threads_keeps_its_queue() {
    let begin = |options: &str| {
        let owner = |n| if n == 2 { Owner(n) } else { Owner::thread(n) };
        begin_together(options, ms(50), owner)
    };
    // The third owner is a thread, and begins beside a tenant.
    assert_eq!((begin(""), begin("queue_merge=2")), (3, 1));
}

/// The number of queues after three owners have begun to read, `apart` from each other in time.
fn begin_together(options: &str, apart: Nanos, owner: impl Fn(u32) -> Owner) -> u64 {
    let mut d = driver(options);
    for n in 1..=3 {
        put(&mut d, IoMeta { owner: owner(n), ..read(n, u64::from(n) << 20) });
        d.advance(apart);
    }
    d.shown("queues")
}

#[test]
fn on_a_disk_they_become_one_after_600_ms_unless_waiting_for_each_pays() {
    let begin = |raise: bool, wait: u64| {
        let mut d = disk("queue_merge=2");
        for owner in 1..=2 {
            let rq = put(&mut d, read(owner, u64::from(owner) << 20).level(3));
            assert_eq!(d.issue(), rq);
            d.complete(rq);
            d.advance(ms(50));
        }
        d.advance(ms(wait));
        if raise {
            // Another queue is raised, so idling is not for throughput.
            put(&mut d, read(9, 1 << 28));
        }
        let before = d.shown("queues");
        put(&mut d, read(2, 2 << 20).level(3));
        before - d.shown("queues")
    };
    assert_eq!((begin(true, 700), begin(false, 700)), (1, 0));
    // The second queue is created after 50 ms, and 100 ms have passed.
    assert_eq!((begin(true, 550), begin(true, 551)), (0, 1));
}

/// An owner that leaves with a request in the device, and returns later, must not be merged permanently with a queue
/// beside which its former queue began: the queue that it was to share is forgotten with its other state.
#[test]
fn an_owner_that_leaves_and_comes_back_begins_beside_no_queue_of_the_past() {
    let begin = |leaves: bool| {
        let mut d = disk("queue_merge=2,low_latency=0");
        let first = put(&mut d, read(1, 0).level(3));
        assert_eq!(d.issue(), first);
        d.complete(first);
        d.advance(ms(50));
        let second = put(&mut d, read(2, 1 << 30).level(3));
        assert_eq!(d.issue(), second);
        if leaves {
            d.owner_gone(Owner(2));
        }
        d.advance(ms(350));
        put(&mut d, read(2, 1 << 31).level(3));
        d.advance(ms(700));
        d.complete(second);
        // Idling does not pay while a queue is raised, and the two are merged.
        d.set("low_latency", 1);
        put(&mut d, read(9, 1 << 40));
        assert_eq!(d.shown("raised_busy"), 1);
        let before = d.shown("queues");
        put(&mut d, read(2, 1 << 32).level(3));
        d.drain();
        before - d.shown("queues")
    };
    assert_eq!(begin(false), 1, "it stayed, and began beside owner 1");
    assert_eq!(begin(true), 0);
}

/// The device is kept idle for owner 1, of more weight, while `of_others` wait. Returns the owner of the pick.
fn while_waiting(options: &str, of_others: &[IoMeta]) -> Option<Owner> {
    let mut d = driver(options);
    let first = put(&mut d, read(1, 0).level(0));
    d.issue();
    put_all(&mut d, of_others.iter().copied());
    d.advance(us(100));
    d.complete(first);
    assert_eq!(d.shown("idling"), 1);
    match d.pick() {
        Pick::Issue(rq) => Some(d.meta(rq).owner),
        Pick::WaitUntil(_) => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_async_io_of_the_process_that_is_waited_for_is_let_in() {
    let waiting = [read(2, 1 << 24).level(7), write(1, 1 << 20).level(0)];
    assert_eq!(while_waiting("low_latency=0", &waiting), Some(Owner(1)));
    assert_eq!(while_waiting("low_latency=0,injection=0", &waiting), None);
}

#[test]
fn others_are_let_in_once_it_is_known_how_long_the_first_request_takes() {
    let other = read(2, 1 << 20).level(7);
    // The first request of owner 1 was alone in the device, which gave the baseline.
    let mut d = driver("low_latency=0");
    let mut injected = Vec::new();
    for i in 0..6 {
        let rq = put(&mut d, read(1, 8 * i).level(0));
        put(&mut d, other);
        while let Pick::Issue(rq) = d.pick() {
            injected.push(d.meta(rq).owner.0);
        }
        assert!(d.issued().contains(&rq));
        d.advance(us(100));
        d.issued().into_iter().for_each(|rq| d.complete(rq));
        while let Pick::Issue(rq) = d.pick() {
            injected.push(d.meta(rq).owner.0);
            d.complete(rq);
        }
        d.advance(ms(2));
    }
    assert!(injected.iter().filter(|owner| **owner == 2).count() >= 3, "{injected:?}");
    assert_eq!(while_waiting("low_latency=0,injection=0", &[other]), None);
}

#[test]
fn injection_gives_back_idle_time_and_costs_the_one_who_is_waited_for_little() {
    let run = |options: &str| {
        let one = Client::new(read(1, 0).level(0), 1, Path::Sequential).thinking(us(200));
        let many = Client::new(read(2, 1 << 32).level(7), 32, Path::Sequential);
        let mut world = World::new(driver(options), vec![one, many], |_, _| us(100));
        (world.width, world.parallel) = (4, true);
        world.run(ms(5_000));
        (world.clients[0].ios, world.clients[1].ios, world.idle)
    };
    let (one, many, idle) = run("low_latency=0,injection=0");
    let (one_too, many_too, idle_too) = run("low_latency=0");
    assert!(one_too * 10 >= one * 7, "{one} and {one_too}");
    assert!(many_too * 4 > many * 5, "{many} and {many_too}");
    assert!(idle_too < idle, "{idle:?} and {idle_too:?}");
}

/// The device is kept idle for owner 1, whose requests take a millisecond each, alone.
fn knows_a_millisecond() -> Driver {
    let mut d = driver("low_latency=0");
    for n in 0..3 {
        let rq = put(&mut d, read(1, 8 * n).level(0));
        assert_eq!(d.issue(), rq);
        d.advance(ms(1));
        d.complete(rq);
        d.advance(ms(6));
    }
    d
}

/// Inserts an I/O with little weight. Returns it if it is injected.
fn let_in(d: &mut Driver, io: IoMeta) -> Option<RequestId> {
    put(d, io.level(7));
    match d.pick() {
        Pick::Issue(rq) => Some(rq),
        _ => None,
    }
}

/// Lets a request of owner 1 take `span` behind an injected one.
fn behind_an_injected_request(d: &mut Driver, span: Nanos) {
    let other = let_in(d, read(2, 1 << 20)).expect("it is not known what that costs");
    let rq = put(d, read(1, 24).level(0));
    assert_eq!(d.issue(), rq);
    d.advance(span);
    [other, rq].into_iter().for_each(|rq| d.complete(rq));
    assert_eq!(d.shown("idling"), 1);
}

/// A request that is injected before a request of the queue in service arrives, and is still in the device then, delays
/// it and counts as injected. Otherwise the long time would pass for that of a request alone, further injection would
/// not seem to lengthen it, and beside a writer of megabytes a reader of ten times its weight would have a tenth of its
/// share.
#[test]
fn what_was_let_in_before_a_request_came_is_part_of_what_letting_in_costs() {
    let mut d = knows_a_millisecond();
    // Behind an injected request it takes ten milliseconds.
    behind_an_injected_request(&mut d, ms(10));
    assert_eq!(let_in(&mut d, read(2, 2 << 20)), None, "it is known now");
}

/// The slot of a queue may end while its measured request is in the device: if groups compete, the injected request
/// completes, and its process, of the heavier group, preempts with the next one. The measurement continues. Without it
/// the limit would stay, and two groups of sequential readers would have a sixth of a disk between them.
#[test]
fn what_letting_in_costs_is_learned_beyond_the_end_of_a_slot() {
    let mut d = knows_a_millisecond();
    let other = let_in(&mut d, read(2, 1 << 20)).expect("it is not known what that costs");
    let measured = put(&mut d, read(1, 24).level(0));
    assert_eq!(d.issue(), measured);
    let next = put(&mut d, read(1, 32).level(0));
    d.advance(ms(200));
    assert_eq!(d.issue(), next, "in another slot");
    [other, measured, next].into_iter().for_each(|rq| d.complete(rq));
    assert_eq!(d.shown("idling"), 1);
    assert_eq!(let_in(&mut d, read(2, 2 << 20)), None, "it is known now");
}

/// A reader whose requests take half a millisecond, or 5 ms more behind an injected one, continues 200 us after each
/// completion. Returns the number of `rounds` in which another queue was injected. That queue's own turns do not count.
fn let_in_beside_a_quick_reader(d: &mut Driver, rounds: u64) -> usize {
    let mut count = 0;
    for n in 0..rounds {
        if d.held().is_empty() {
            put(d, read(2, (1 << 30) + (n << 16)).level(7));
        }
        let other = match d.pick() {
            Pick::Issue(other) if d.shown("idling") == 1 => Some(other),
            _ => None,
        };
        count += usize::from(other.is_some());
        d.advance(us(200));
        put(d, read(1, 8 * (n + 100)).level(0));
        d.advance(if other.is_some() { us(5_000) } else { Nanos::ZERO });
        other.into_iter().for_each(|other| d.complete(other));
        while issue_owner(d) != 1 {}
        d.advance(us(500));
        d.issued().into_iter().for_each(|rq| d.complete(rq));
    }
    count
}

/// Three stalls of the machine make a process look as if it thought for long. The device is kept idle for it, as it has
/// the larger claim. If an arrival that ends idling were no sample of its think time, others would be injected at each
/// of its requests, for ever, and a disk that two groups of readers share would do half of its I/Os.
#[test]
fn a_stall_of_the_machine_does_not_mark_a_reader_for_ever() {
    let mut d = driver("low_latency=0");
    for n in 0..4 {
        let rq = put(&mut d, read(1, 8 * n).level(0));
        assert_eq!(d.issue(), rq);
        d.advance(us(500));
        d.complete(rq);
        // This is longer than the device is kept idle.
        d.advance(us(9_900));
        let _ = d.pick();
    }
    put(&mut d, read(2, 1 << 20).level(7));
    let rq = put(&mut d, read(1, 32).level(0));
    while let Pick::Issue(other) = d.pick() {
        d.advance(us(500));
        d.complete(other);
        if other == rq {
            break;
        }
    }
    assert_eq!(d.shown("idling"), 1);
    // For a second, until the limit is reset.
    let rounds = 3_000;
    let count = let_in_beside_a_quick_reader(&mut d, rounds);
    assert!(count <= 180, "at {count} of {rounds}");
}

/// On a device without moving parts, a large request is not injected beside another injected one.
#[test]
fn one_large_request_at_a_time_is_let_in() {
    let second = |sectors: u32| {
        let mut d = knows_a_millisecond();
        behind_an_injected_request(&mut d, ms(1));
        // The injection cost nothing, so two are allowed, the first of any size.
        assert!(let_in(&mut d, IoMeta { sectors: 64, ..read(2, 2 << 20) }).is_some());
        let_in(&mut d, IoMeta { sectors, ..read(3, 3 << 20) }).is_some()
    };
    assert_eq!((second(56), second(64)), (true, false));
}

#[test]
fn a_queue_that_is_woken_three_times_has_a_waker_that_is_let_in_first() {
    let run = |rounds: u64, gap: Nanos| {
        let mut d = driver("low_latency=0");
        for i in 0..rounds {
            // A request of owner 2 completes, and soon owner 1 continues.
            let rq = put(&mut d, read(2, (1 << 20) + 8 * i).level(7));
            assert_eq!(d.issue(), rq);
            d.complete(rq);
            d.advance(gap);
            let rq = put(&mut d, read(1, 8 * i).level(0));
            assert_eq!(d.issue(), rq);
            d.complete(rq);
            d.advance(ms(12));
        }
        // This is so long that no queue continues its slot.
        d.advance(ms(30));
        let last = put(&mut d, read(1, 1 << 10).level(0));
        assert_eq!(d.issue(), last);
        put(&mut d, read(3, 1 << 24).level(7));
        put(&mut d, read(2, 1 << 25).level(7));
        d.complete(last);
        assert_eq!(d.shown("idling"), 1);
        issue_owner(&mut d)
    };
    assert_eq!(run(3, ms(1)), 3, "the queue that has been busy for longer");
    assert_eq!(run(8, ms(1)), 2, "its waker");
    assert_eq!(run(8, Nanos(3_999_999)), 2, "its waker");
    assert_eq!(run(8, ms(4)), 3, "too late to be woken by it");
}

/// Owner 1, raised, has completed its first request, and the device is kept idle for it. Owner 2 is raised, 3 is not.
fn idling_for_a_raised_queue() -> Driver {
    let mut d = driver("");
    let first = put(&mut d, read(1, 0));
    assert_eq!(d.issue(), first);
    put(&mut d, read(3, 1 << 24).level(3));
    put(&mut d, read(2, 1 << 25));
    assert_eq!(d.shown("raised_busy"), 2);
    d.advance(us(100));
    d.complete(first);
    assert_eq!((d.shown("idling"), d.shown("serving_raised")), (1, 30));
    d
}

#[test]
fn beside_a_raised_queue_a_raised_one_is_injected_once_slice_idle_is_over() {
    let mut d = idling_for_a_raised_queue();
    assert!(matches!(d.pick(), Pick::WaitUntil(_)), "no limit is known yet");
    d.advance(ms(9));
    assert_eq!(issue_owner(&mut d), 2, "owner 3 has been busy for longer, and is not raised");
    assert_eq!(d.shown("idling"), 1);
}

/// A queue that runs empty because its request was injected must not be soft real-time at its next one, with a hundred
/// times the weight of the raised queue in service: raising would feed on injection.
#[test]
fn a_queue_that_was_let_in_is_no_soft_real_time_one_for_that() {
    let mut d = idling_for_a_raised_queue();
    d.advance(ms(9));
    let injected = d.issue();
    assert_eq!(d.meta(injected).owner, Owner(2));
    d.advance(ms(1));
    d.complete(injected);
    put(&mut d, read(2, (1 << 25) + 8));
    assert_eq!(
        (d.shown("idling"), d.shown("serving_raised")),
        (1, 30),
        "it does not preempt owner 1"
    );
}

/// A raised queue is preferred, but with short slots. A request that arrives before its turn, and is to be served
/// first, must not give it the budget of a queue that is not raised: random reads could last for 3.4 s.
#[test]
fn a_raised_queue_has_a_short_budget_whatever_comes_before_its_turn() {
    let mut d = driver("");
    let first = put(&mut d, read(1, 0));
    assert_eq!(d.issue(), first);
    // The second request of owner 2 is nearer to the head.
    put(&mut d, read(2, 1 << 25));
    put(&mut d, read(2, 1 << 24));
    d.complete(first);
    d.advance(ms(21));
    assert_eq!(issue_owner(&mut d), 2);
    assert_eq!((d.shown("serving_raised"), d.shown("serving_budget")), (30, 1_024));
}

/// Limits are learned anew every second, here at the arrival of the last request of owner 1, a process with a short
/// think time. The device is kept idle for it, and its limit and service time are unknown.
fn idling_at_a_reset() -> Driver {
    let mut d = idling_for_a_raised_queue();
    let round = |d: &mut Driver, n: u64| {
        d.advance(us(200));
        let rq = put(d, read(1, 8 * n));
        assert_eq!(d.issue(), rq);
        d.advance(ms(9));
        d.complete(rq);
    };
    (1..=110).for_each(|n| round(&mut d, n));
    assert!(d.now() > Instant::ZERO + ms(1_009), "the last one arrived after a second");
    assert_eq!((d.shown("idling"), d.shown("serving_raised")), (1, 30));
    d
}

#[test]
fn service_time_is_not_measured_among_others_before_it_is_known_alone() {
    let mut d = idling_at_a_reset();
    put(&mut d, read(2, 1 << 26));
    assert!(matches!(d.pick(), Pick::WaitUntil(_)), "nothing is known");
    d.advance(ms(11));
    let injected = d.issue();
    assert_eq!(d.meta(injected).owner, Owner(2));
    let second = put(&mut d, read(1, 8_000));
    assert_eq!(d.issue(), second);
    d.complete(injected);
    d.advance(ms(1));
    d.complete(second);
    assert_eq!(d.shown("idling"), 1);
    assert!(matches!(d.pick(), Pick::WaitUntil(_)), "the limit is still unknown");
}

#[test]
fn a_queue_that_its_processes_have_left_is_not_joined() {
    let mut d = two_busy("low_latency=0");
    d.owner_gone(Owner(1));
    put(&mut d, read(2, 16));
    assert_eq!(d.shown("queues"), 3);
    d.drain();
}

#[test]
fn a_series_ends_later_than_600_ms_after_its_last_queue() {
    let begin = |gap: Nanos| {
        let mut d = driver("queue_merge=2");
        for (owner, apart) in [(1, gap), (2, ms(50)), (3, ms(0))] {
            put(&mut d, read(owner, u64::from(owner) << 20));
            d.advance(apart);
        }
        d.shown("queues")
    };
    assert_eq!(begin(ms(600)), 3, "the second queue does not begin a series");
    assert_eq!(begin(ms(601)), 2);
}

#[test]
fn nothing_is_injected_where_idling_is_faster() {
    let injected = |mut d: Driver| {
        for n in 0..15 {
            let rq = put(&mut d, read(1, 8 * n).level(0));
            assert_eq!(d.issue(), rq);
            d.advance(ms(1));
            d.complete(rq);
            d.advance(us(100));
        }
        put(&mut d, read(2, 1 << 20).level(7));
        assert_eq!(d.shown("idling"), 1);
        matches!(d.pick(), Pick::Issue(_))
    };
    assert!(injected(driver("low_latency=0")), "its service time is known");
    assert!(!injected(disk("low_latency=0")), "the next request is close and comes soon");
}

#[test]
fn the_engine_is_told_that_groups_share_and_have_statistics_and_of_the_limits() {
    let options = Options::parse(factory().attributes, "").expect("they are options");
    let policy = (factory().build)(&Driver::shape(4), &options);
    let facts = policy.facts();
    assert!(facts.shares_by_group && facts.notes_groups && facts.limits_slots);
}
