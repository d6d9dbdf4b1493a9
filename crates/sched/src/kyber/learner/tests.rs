//! The verdict about reads, one condition at a time: scripts reach each verdict, but not each condition at a moment
//! at which it makes a difference.

use super::*;

/// The device is busy with reads and writes, half of the time with each.
const BOTH: [u64; MEASURED] = [100, 100, 0];

/// A review with these buckets for reads: the 90th percentile at the device and the 99th in total.
struct Review {
    busy: [u64; MEASURED],
    refused: bool,
    buckets: [Option<usize>; 2],
    reads: Reads,
    in_bursts: bool,
    tokens: u32,
}

impl Review {
    fn of(device: Option<usize>, total: Option<usize>) -> Self {
        Self {
            busy: BOTH,
            refused: false,
            buckets: [device, total],
            reads: Reads { times: 1, nearly_all: false },
            in_bursts: true,
            tokens: 1,
        }
    }

    fn verdict(&self) -> Verdict {
        let mut learner = Learner::new(Adaptive::Bursts);
        learner.busy = self.busy;
        learner.refused[READ] = self.refused;
        let [device, total] = self.buckets.map(|bucket| [bucket, None, None]);
        let findings = Findings { bad: false, device, total };
        learner.verdict(&findings, self.reads, self.in_bursts, &[9, self.tokens, 1])
    }
}

#[test]
fn reads_that_meet_their_target_are_met_or_content_or_have_a_long_tail() {
    let met = Review::of(Some(BAD - 1), Some(BAD - 1));
    assert_eq!(met.verdict(), Verdict::Met);
    let nearly_all = Reads { times: 1, nearly_all: true };
    assert_eq!(Review { reads: nearly_all, ..met }.verdict(), Verdict::Content);
    let tail = Review::of(Some(BAD - 1), Some(LONG_TAIL));
    assert_eq!(tail.verdict(), Verdict::LongTail);
    let own_fault = Review { refused: true, ..Review::of(Some(BAD - 1), Some(LONG_TAIL)) };
    assert_eq!(own_fault.verdict(), Verdict::Open, "reads waited for tokens");
    assert_eq!(Review::of(Some(BAD - 1), Some(BAD)).verdict(), Verdict::Open, "neither, nor");
    assert_eq!(Review::of(Some(BAD - 1), Some(LONG_TAIL - 1)).verdict(), Verdict::Open);
    assert_eq!(Review::of(Some(BAD - 1), None).verdict(), Verdict::Open);
    assert_eq!(Review::of(None, Some(0)).verdict(), Verdict::Open);
}

#[test]
fn reads_that_miss_their_target_are_missed_where_one_request_is_too_many() {
    let missed = |in_bursts, tokens| {
        Review { in_bursts, tokens, ..Review::of(Some(BAD), Some(LONG_TAIL)) }.verdict()
    };
    assert_eq!([missed(true, 1), missed(true, 2)], [Verdict::Missed; 2]);
    assert_eq!(missed(false, 1), Verdict::Missed);
    assert_eq!(missed(false, 2), Verdict::Open, "there are tokens to take away");
}

#[test]
fn reads_are_far_off_at_four_targets_and_at_as_many_as_there_are_tokens() {
    let at = |times, tokens| {
        let reads = Reads { times, nearly_all: false };
        Review { reads, tokens, ..Review::of(Some(BAD), None) }.verdict()
    };
    assert_eq!([at(3, 1), at(4, 1), at(4, 4)], [Verdict::Missed, Verdict::FarOff, Verdict::FarOff]);
    assert_eq!([at(4, 5), at(5, 5)], [Verdict::Missed, Verdict::FarOff]);
}

#[test]
fn those_who_make_room_are_in_the_way_from_a_quarter_of_the_time_on() {
    let with = |writes, in_bursts| {
        let busy = [100 - writes, writes, 0];
        Review { busy, in_bursts, ..Review::of(Some(BAD), None) }.verdict()
    };
    assert_eq!([with(24, false), with(25, false)], [Verdict::Open, Verdict::Missed]);
    assert_eq!(with(24, true), Verdict::Missed, "bursts have made them so few");
    // Writes with two tokens that use little of the device do not count; discards with one token do.
    let busy = [60, 15, 25];
    let discards = Review { busy, in_bursts: false, tokens: 2, ..Review::of(Some(BAD), None) };
    assert_eq!(discards.verdict(), Verdict::Missed);
}

/// A learner that has one sample of reads, after `since` of the time for which it waits for more.
fn with_a_sample(domain: usize, since: Nanos) -> (Learner, Instant) {
    let mut learner = Learner::new(Adaptive::Learns);
    learner.begin(Instant::ZERO);
    learner.fine[domain][9] = 1;
    (learner, Instant::ZERO + since)
}

#[test]
fn one_sample_is_enough_from_a_second_on() {
    let until = Instant::ZERO + PATIENCE;
    for (since, enough) in [(Nanos(PATIENCE.0 - 1), false), (PATIENCE, true)] {
        let (mut learner, now) = with_a_sample(READ, since);
        learner.measure_reads(now, until, &[0; OLD_COUNTER + 1]);
        assert_eq!(learner.base[READ].is_some(), enough, "of reads, after {since:?}");
        let write = Domain::Write as usize;
        let (mut learner, now) = with_a_sample(write, since);
        let done = learner.measure_others(now, until) == Progress::Done;
        assert_eq!((done, learner.base[write].is_some()), (enough, enough), "{since:?}");
    }
}

#[test]
fn the_pause_doubles_for_a_measurement_within_two_of_them() {
    let pause = |now: Nanos| {
        let mut learner = Learner::new(Adaptive::Learns);
        (learner.phase, learner.doubtful) = (Phase::Open, true);
        learner.pause = Nanos::from_secs(20);
        let findings = Findings { bad: false, device: [None; MEASURED], total: [None; MEASURED] };
        let now = Instant::ZERO + now;
        let lesson = learner.adjust(now, &findings, [1; MEASURED], &mut [1; MEASURED]);
        assert_eq!(lesson, Lesson::Stale);
        learner.pause
    };
    assert_eq!(pause(Nanos(39_999_999_999)), Nanos::from_secs(40));
    assert_eq!(pause(Nanos::from_secs(40)), PAUSE);
}

#[test]
fn a_domain_with_a_quarter_of_the_time_gives_up_tokens() {
    let left = |writes: u64| {
        let mut learner = Learner::new(Adaptive::Learns);
        learner.busy = [100 - writes, writes, 0];
        let device = [Some(BAD), None, None];
        let findings = Findings { bad: true, device, total: [None; MEASURED] };
        let mut tokens = [8; MEASURED];
        learner.cut(&findings, [1_000; MEASURED], [Some(2_000), None, None], &mut tokens);
        tokens[Domain::Write as usize]
    };
    assert_eq!([left(24), left(25)], [8, 4]);
}
