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
