//! Bursts of the domains that make room for reads, where one request at a time is too many (`adaptive=2`): the period
//! between bursts, and the gate that keeps to it.
//!
//! A drive that programs or seeks for one write delays each read that arrives in that time. To keep such reads rare,
//! there must be time without writes. The drive may then have several writes at a time, so writes leave in bursts.
//!
//! The gate of an instance decides when domains other than READ may leave, whether or not there is a token: in one
//! burst in each period, and not while reads are measured. Periods follow from the clock alone, so all instances begin
//! them together without communication.

use super::{ALONE_UNTIL, Domain, PERIOD, fine_upper, tail, total};
use crate::Cx;
use blkmq_core::{Instant, Nanos};

/// The shortest and the longest period, in multiples of the time that a read takes alone. A reader that waits for
/// each of its reads issues about this many in a period.
const SHORTEST: u64 = 16;
const LONGEST: u64 = 4096;
/// The upper limit of the period.
const LIMIT: Nanos = Nanos::from_millis(250);
/// After this many content reviews in a row, more is admitted.
const CONTENT: u32 = 8;
/// This many complaints about the tail are ignored after a change, since a drive first finishes the work that it has.
const SETTLING: u32 = 3;
/// After this many complaints in a row at the longest period, the period is not the cause.
const IN_VAIN: u32 = 8;

/// More is admitted if at most one read in this many is late. This is half of what counts as too many, so that the
/// period does not oscillate.
const ONE_OF: u64 = 200;

/// Latencies of reads at the device, relative to their target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reads {
    /// The 90th percentile, in whole multiples of the target.
    pub(super) times: u64,
    /// Nearly all reads meet the target.
    pub(super) nearly_all: bool,
}

impl Reads {
    /// Computed from latencies in fine buckets.
    pub(super) fn of(window: &[u64], target: u64) -> Self {
        let late = window.iter().enumerate().filter(|(bucket, _)| fine_upper(*bucket) > target);
        let late = late.fold(0u64, |sum, (_, count)| sum.saturating_add(*count));
        Self {
            times: tail(window).unwrap_or(0) / target.max(1),
            nearly_all: late.saturating_mul(ONE_OF) <= total(window),
        }
    }
}

/// The verdict of a review about reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Reads take so long that fewer tokens alone will not be enough.
    FarOff,
    /// Reads miss their target, and the domain in their way is down to one token, or leaves in bursts already.
    Missed,
    /// Nine of ten reads meet the target, but far from all, and they wait for the device, not for tokens.
    LongTail,
    /// Reads meet the target, though not nearly all of them.
    Met,
    /// Nearly all reads meet the target.
    Content,
    /// No conclusion.
    Open,
}

/// A change of the size of bursts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Size {
    /// No change.
    Same,
    /// Double: the size that is too large is not known yet.
    Double,
    /// A quarter more.
    More,
    /// An eighth less: bursts cannot be rarer.
    Less,
}

impl Size {
    /// The new size of bursts of `depth` requests. They grow only if some requests were `refused`.
    pub(super) fn of(self, depth: u32, refused: bool) -> u32 {
        match self {
            Self::Double if refused => depth.saturating_mul(2),
            Self::More if refused => depth.saturating_add((depth / 4).max(1)),
            Self::Less => (depth * 7 / 8).max(1),
            Self::Same | Self::Double | Self::More => depth,
        }
    }
}

/// The period, and the state of the search for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Bursts {
    /// The period in nanoseconds; 0 for no bursts.
    period: u64,
    /// Content reviews in a row.
    content: u32,
    /// Complaints in a row about the tail at the longest period.
    in_vain: u32,
    /// Complaints about the tail that are still ignored.
    settling: u32,
    /// More has been admitted since the last complaint.
    eased: bool,
    /// A size that is too large has been found.
    found: bool,
}

impl Bursts {
    /// The period from one burst to the next, in nanoseconds; 0 if I/O leaves at any time.
    pub(super) fn period(&self) -> u64 {
        self.period
    }

    /// Applies the verdict of a review. `alone` is the time that a read takes alone.
    pub(super) fn judge(&mut self, verdict: Verdict, alone: u64) -> Size {
        let shortest = alone.saturating_mul(SHORTEST).min(LIMIT.0);
        let longest = alone.saturating_mul(LONGEST).min(LIMIT.0);
        match verdict {
            Verdict::Open => Size::Same,
            Verdict::Met => {
                (self.in_vain, self.settling, self.content) = (0, 0, 0);
                Size::Same
            }
            Verdict::Content => {
                (self.in_vain, self.settling) = (0, 0);
                self.ease(shortest)
            }
            // The longest period has been tried for long enough: the tail has another cause.
            Verdict::LongTail if self.in_vain >= IN_VAIN => self.ease(shortest),
            Verdict::LongTail if self.settling > 0 => {
                self.settling -= 1;
                self.content = 0;
                Size::Same
            }
            Verdict::LongTail => {
                self.settling = SETTLING;
                let at_longest = self.period >= longest;
                self.in_vain += u32::from(at_longest);
                self.stretch(2, shortest, longest);
                if at_longest { Size::Less } else { Size::Same }
            }
            Verdict::Missed | Verdict::FarOff => {
                let times = if verdict == Verdict::FarOff { 4 } else { 2 };
                self.stretch(times, shortest, longest);
                Size::Same
            }
        }
    }

    fn stretch(&mut self, times: u64, shortest: u64, longest: u64) {
        self.found = self.period > 0 && (self.found || self.eased);
        (self.content, self.eased) = (0, false);
        self.period = self.period.saturating_mul(times).clamp(shortest, longest);
    }

    fn ease(&mut self, shortest: u64) -> Size {
        self.content += 1;
        self.eased = true;
        let is_time = self.content.is_multiple_of(CONTENT);
        if is_time {
            self.period -= self.period / 8;
            if self.period < shortest {
                self.period = 0;
            }
        }
        match (self.found, is_time) {
            (false, _) => Size::Double,
            (true, true) => Size::More,
            (true, false) => Size::Same,
        }
    }
}

/// The gate of one instance.
#[derive(Default)]
pub(super) struct Gate {
    /// The number of the last period seen.
    nth: u64,
    /// The time at which the burst of that period left; `None` if it is still to come.
    burst: Option<Instant>,
    /// The earliest time at which it opens for a domain that it was closed for.
    opens: Option<Instant>,
}

impl Gate {
    /// Begins a pick.
    pub(super) fn begin(&mut self) {
        self.opens = None;
    }

    /// The time to ask again, if the gate was closed for any domain since the pick began.
    pub(super) fn opens(&self) -> Option<Instant> {
        self.opens
    }

    /// Returns whether I/O of `domain`, which is not reads, may leave in this pick.
    pub(super) fn is_open(&mut self, cx: &Cx<'_>, domain: Domain) -> bool {
        debug_assert!(domain != Domain::Read, "reads are whom others wait for");
        if cx.env.is_draining() {
            return true;
        }
        let now = cx.now.as_nanos();
        let alone_until = cx.env.value(ALONE_UNTIL);
        if now < alone_until {
            self.wait_until(alone_until);
            return false;
        }
        let period = cx.env.value(PERIOD);
        if period == 0 || !domain.makes_room() {
            return true;
        }
        let nth = now / period;
        if nth != self.nth {
            (self.nth, self.burst) = (nth, None);
        }
        // An instance without a burst in this period may try at every pick, and its burst is the first pick that gets a
        // token. Otherwise the other instances might take all tokens.
        if self.burst.is_none_or(|at| at == cx.now) {
            return true;
        }
        self.wait_until((nth + 1).saturating_mul(period));
        false
    }

    /// Notes that I/O of `domain` leaves.
    #[inline]
    pub(super) fn passed(&mut self, now: Instant, domain: Domain) {
        if domain.makes_room() {
            self.burst = Some(now);
        }
    }

    fn wait_until(&mut self, nanos: u64) {
        let at = Instant::from_nanos(nanos);
        self.opens = Some(self.opens.map_or(at, |other| other.min(at)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FINE, fine};
    use super::*;
    use alloc::vec::Vec;

    const ALONE: u64 = 50_000;

    fn judged(bursts: &mut Bursts, verdict: Verdict, times: u32) -> u64 {
        (0..times).for_each(|_| _ = bursts.judge(verdict, ALONE));
        bursts.period()
    }

    #[test]
    fn one_late_read_of_two_hundred_is_few_and_nine_of_ten_say_how_far_off() {
        let mut window = [0; FINE];
        assert_eq!(Reads::of(&window, ALONE), Reads { times: 0, nearly_all: true });
        window[fine(ALONE / 2)] = 199;
        window[fine(9 * ALONE)] = 1;
        assert_eq!(Reads::of(&window, ALONE), Reads { times: 0, nearly_all: true });
        window[fine(9 * ALONE)] = 2;
        assert!(!Reads::of(&window, ALONE).nearly_all);
        window[fine(9 * ALONE)] = 30;
        let upper = fine_upper(fine(9 * ALONE));
        assert!(Reads::of(&window, upper).nearly_all && !Reads::of(&window, upper - 1).nearly_all);
        let times = Reads::of(&window, ALONE).times;
        assert!((9..=11).contains(&times), "{times}");
    }

    #[test]
    fn periods_double_until_reads_are_content_and_shrink_slowly_from_there() {
        let mut bursts = Bursts::default();
        assert_eq!(judged(&mut bursts, Verdict::Open, 9), 0);
        assert_eq!(judged(&mut bursts, Verdict::Missed, 1), 16 * ALONE);
        assert_eq!(judged(&mut bursts, Verdict::LongTail, 1), 32 * ALONE);
        assert_eq!(judged(&mut bursts, Verdict::LongTail, SETTLING), 32 * ALONE, "about the past");
        assert_eq!(judged(&mut bursts, Verdict::LongTail, 1), 64 * ALONE);
        assert_eq!(judged(&mut bursts, Verdict::Content, CONTENT - 1), 64 * ALONE);
        assert_eq!(judged(&mut bursts, Verdict::Content, 1), 56 * ALONE);
        judged(&mut bursts, Verdict::Content, CONTENT - 1);
        assert_eq!(judged(&mut bursts, Verdict::Met, 9), 56 * ALONE);
        assert_eq!(judged(&mut bursts, Verdict::Content, CONTENT - 1), 56 * ALONE, "begun anew");
        assert_eq!(judged(&mut bursts, Verdict::Content, 11 * CONTENT), 0, "below the shortest");
    }

    #[test]
    fn the_shortest_period_is_a_period() {
        let eased =
            |period| judged(&mut Bursts { period, ..Bursts::default() }, Verdict::Content, CONTENT);
        assert_eq!(eased(914_285), SHORTEST * ALONE);
        assert_eq!(eased(914_284), 0);
    }

    #[test]
    fn bursts_double_until_they_are_too_large_and_then_grow_now_and_then() {
        let mut bursts = Bursts::default();
        let mut last_of = |verdict, times| {
            let sizes = Vec::from_iter((0..times).map(|_| bursts.judge(verdict, ALONE)));
            let (last, others) = sizes.split_last().expect("some");
            assert!(others.iter().all(|size| *size == others[0]), "{sizes:?}");
            *last
        };
        assert_eq!(last_of(Verdict::Missed, 3), Size::Same);
        assert_eq!(last_of(Verdict::Content, 3), Size::Double);
        assert_eq!(last_of(Verdict::LongTail, 1), Size::Same);
        assert_eq!([(); 2].map(|()| last_of(Verdict::Content, CONTENT)), [Size::More; 2]);
        assert_eq!(last_of(Verdict::Open, 9), Size::Same);
        assert_eq!(last_of(Verdict::LongTail, 1 + SETTLING), Size::Same);
    }

    #[test]
    fn sizes_change_by_parts_and_grow_only_if_more_is_wanted() {
        let of = |size: Size| [1, 8, 17].map(|depth| size.of(depth, true));
        assert_eq!(of(Size::Same), [1, 8, 17]);
        assert_eq!(of(Size::Double), [2, 16, 34]);
        assert_eq!(of(Size::More), [2, 10, 21]);
        assert_eq!(of(Size::Less), [1, 7, 14]);
        let unwanted = [Size::Double, Size::More, Size::Less].map(|size| size.of(8, false));
        assert_eq!(unwanted, [8, 8, 7]);
    }

    #[test]
    fn a_tail_that_the_longest_period_does_not_shorten_is_left_alone() {
        let mut bursts = Bursts::default();
        let each = 1 + SETTLING;
        let longest = judged(&mut bursts, Verdict::LongTail, 9 * each);
        assert_eq!(longest, LONGEST * ALONE);
        for _ in 1..IN_VAIN {
            let sizes = Vec::from_iter((0..each).map(|_| bursts.judge(Verdict::LongTail, ALONE)));
            assert_eq!(sizes[0], Size::Less);
            assert!(sizes[1..].iter().all(|size| *size == Size::Same), "{sizes:?}");
            assert_eq!(bursts.period(), longest);
        }
        assert_eq!(bursts.judge(Verdict::LongTail, ALONE), Size::Less);
        assert_eq!(bursts.judge(Verdict::Met, ALONE), Size::Same);
        assert_eq!(bursts.judge(Verdict::LongTail, ALONE), Size::Less, "it helps after all");
        assert_eq!(judged(&mut bursts, Verdict::LongTail, IN_VAIN * each + 400), 0);
        assert_eq!(judged(&mut bursts, Verdict::FarOff, 1), 16 * ALONE, "that is another matter");
    }

    #[test]
    fn no_period_is_longer_than_a_quarter_of_a_second() {
        let mut bursts = Bursts::default();
        assert_eq!(judged(&mut bursts, Verdict::FarOff, 3), 256 * ALONE, "in no time");
        (0..20).for_each(|_| _ = bursts.judge(Verdict::Missed, 20_000_000));
        assert_eq!(bursts.period(), LIMIT.0);
        (0..20).for_each(|_| _ = bursts.judge(Verdict::Missed, u64::MAX));
        assert_eq!(bursts.period(), LIMIT.0);
    }
}
