//! The governor's rules without a device: 500 samples of chosen latencies per domain, and their effect on the tokens.
//! `section8.rs` has the rules that the list names.

use super::common::{TOKENS, governed, ms, us};
use super::section8::{review, serve, serve_enough};
use blkmq_core::{Nanos, Op};
use blkmq_sched::testkit::Driver;

fn driver(options: &str) -> Driver {
    super::common::driver(options)
}

/// A latency in the middle of a bucket of reads.
fn in_bucket(bucket: u64) -> Nanos {
    us(500 * bucket + 250)
}

#[test]
fn during_congestion_each_percentile_has_its_factor() {
    // From 64 tokens, in quarters: 1, 2, 3, 4, 5, 6, 7, 8.
    for bucket in 0..8 {
        let mut d = driver("");
        d.env().set_tokens(0, 64);
        serve_enough(&mut d, Op::Read, in_bucket(bucket));
        serve_enough(&mut d, Op::Write, ms(20));
        review(&mut d);
        assert_eq!(d.env().tokens()[0], 16 * (bucket as u32 + 1), "p99 in bucket {bucket}");
    }
}

#[test]
fn without_congestion_only_those_who_are_late_get_more() {
    for bucket in 0..8 {
        let mut d = driver("");
        d.env().set_tokens(0, 64);
        // Half of the requests wait in the scheduler as long as the others are in the device.
        let rounds = 500 / 64 + 1;
        for _ in 0..rounds {
            (0..64).for_each(|i| {
                d.insert(Op::Read, 8 * i);
            });
            d.advance(in_bucket(bucket));
            let issued: Vec<_> = (0..64).map(|_| d.issue()).collect();
            issued.into_iter().for_each(|rq| d.complete(rq));
        }
        review(&mut d);
        let expected = if bucket < 4 { 64 } else { 16 * (bucket as u32 + 1) };
        assert_eq!(d.env().tokens()[0], expected, "p99 in bucket {bucket}");
    }
}

#[test]
fn depth_stays_between_one_and_what_it_was_at_first() {
    let mut d = driver("");
    for expected in [64, 16, 4, 1, 1] {
        serve_enough(&mut d, Op::Read, us(100));
        serve_enough(&mut d, Op::Write, ms(20));
        review(&mut d);
        assert_eq!(d.env().tokens(), [expected, 128, 64, 16]);
    }
    // Latency in the device itself brings the tokens back, by doubling.
    for expected in [2, 4, 8, 16, 32, 64, 128, 256, 256] {
        serve_enough(&mut d, Op::Read, ms(4));
        review(&mut d);
        assert_eq!(d.env().tokens()[0], expected);
    }
}

#[test]
fn congestion_is_a_tenth_of_the_requests_above_the_target() {
    for (late, congested) in [(49, false), (50, false), (51, true)] {
        let mut d = driver("");
        serve_enough(&mut d, Op::Read, us(100));
        (0..4).for_each(|_| serve(&mut d, Op::Write, 100, ms(1)));
        serve(&mut d, Op::Write, 100 - late, ms(1));
        serve(&mut d, Op::Write, late, ms(11));
        review(&mut d);
        assert_eq!(d.env().tokens()[0] < 256, congested, "{late} of 500 late");
    }
}

#[test]
fn discards_have_a_target_of_five_seconds_and_others_none() {
    let mut d = driver("");
    serve_enough(&mut d, Op::Read, us(100));
    serve(&mut d, Op::Discard, 1, ms(5_001));
    serve(&mut d, Op::WriteZeroes, 16, ms(60_000));
    review(&mut d);
    assert_eq!(d.env().tokens(), TOKENS, "one sample is none, for a second");
    d.advance(ms(1_000));
    serve(&mut d, Op::Discard, 1, ms(5_001));
    serve_enough(&mut d, Op::Read, us(100));
    review(&mut d);
    assert_eq!(d.env().tokens(), [64, 128, 64, 16]);
}

#[test]
fn others_bring_no_review() {
    let mut d = driver("");
    serve(&mut d, Op::WriteZeroes, 16, ms(1));
    assert_eq!(d.env().due(), None);
    serve(&mut d, Op::Discard, 1, ms(1));
    let due = d.env().due().expect("a discard is measured");
    assert_eq!(due - d.now(), ms(100));
    // A later completion does not postpone the review.
    d.advance(ms(50));
    serve(&mut d, Op::Read, 1, ms(1));
    assert_eq!(d.env().due(), Some(due));
}

/// Requests that trickle in: the numbers of the reviews, ten a second, at which there was a percentile of total
/// latency.
fn reviews_with_a_percentile(options: &str, reviews: usize) -> Vec<usize> {
    let mut d = driver(options);
    let mut found = Vec::new();
    for nth in 0..reviews {
        let before = governed(d.env(), "read_total_samples");
        serve(&mut d, Op::Read, 10, us(100));
        review(&mut d);
        if governed(d.env(), "read_total_samples") < before + 10 {
            found.push(nth);
        }
    }
    found
}

#[test]
fn with_linux_quirks_a_trickle_is_judged_every_five_hundred_samples_and_otherwise_every_second() {
    // Reviews are 100.1 ms apart; the second begins with the first one.
    assert_eq!(reviews_with_a_percentile("", 60), [10, 21, 32, 43, 54]);
    assert_eq!(reviews_with_a_percentile("linux_quirks=1", 120), [49, 99]);
}

#[test]
fn targets_take_effect_with_the_next_sample() {
    let mut d = driver("read_lat_nsec=1000000");
    assert_eq!(d.env().values()[..3], [1_000_000, 10_000_000, 5_000_000_000]);
    d.set("write_lat_nsec", 4_000);
    d.set("read_lat_nsec", 0);
    assert_eq!(d.env().values()[..3], [0, 4_000, 5_000_000_000]);
    // One nanosecond a bucket, so every request is late.
    d.env().set_tokens(0, 64);
    serve_enough(&mut d, Op::Read, Nanos(9));
    review(&mut d);
    assert_eq!(d.env().tokens()[0], 128);
}

#[test]
fn a_target_out_of_reach_throttles_the_others_for_nothing() {
    // The weakness that `adaptive` addresses: reads cannot do better than 8 ms, whatever writes do.
    let mut d = driver("");
    for _ in 0..5 {
        serve_enough(&mut d, Op::Read, ms(8));
        serve_enough(&mut d, Op::Write, ms(1));
        review(&mut d);
    }
    assert_eq!(d.env().tokens()[..2], [256, 1]);
}
