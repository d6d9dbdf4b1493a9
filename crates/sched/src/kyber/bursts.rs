//! How often those leave who make room for reads, where one request at a time is too many (`adaptive=2`).
//!
//! A drive that programs or seeks for one write makes each read wait that meets it. If there are to be few such reads,
//! there must be time without writes; and as the drive may then have several at once, they leave in bursts. This is
//! the length of the period from one burst to the next. `gate.rs` keeps to it.

use super::latency::{fine_upper, total};
use super::learner::tail;
use blkmq_core::Nanos;

/// The shortest period and the longest, in times of what a read takes alone. One reader that waits for each of its
/// reads has so many of them in a period.
const SHORTEST: u64 = 16;
const LONGEST: u64 = 4096;
/// No period is longer than this.
const LIMIT: Nanos = Nanos::from_millis(250);
/// After so many reviews in a row that have nothing to complain of, a little more is let through.
const CONTENT: u32 = 8;
/// So many complaints about the tail are about what was before the last change: a drive takes its time to finish what it
/// has been given.
const SETTLING: u32 = 3;
/// After so many in a row that the longest period has not helped, it is not going to.
const IN_VAIN: u32 = 8;

/// One read of so many may be late when more is let through. Half as many as are when it is too much, so that it does not
/// go to and fro between the two.
const ONE_OF: u64 = 200;

/// How long reads take at the device, beside their target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reads {
    /// The slowest of nine of ten, in targets.
    pub(super) times: u64,
    /// Nearly all of them meet it.
    pub(super) nearly_all: bool,
}

impl Reads {
    /// Of latencies in fine buckets.
    pub(super) fn of(window: &[u64], target: u64) -> Self {
        let late = window.iter().enumerate().filter(|(bucket, _)| fine_upper(*bucket) > target);
        let late = late.fold(0u64, |sum, (_, count)| sum.saturating_add(*count));
        Self {
            times: tail(window).unwrap_or(0) / target.max(1),
            nearly_all: late.saturating_mul(ONE_OF) <= total(window),
        }
    }
}

/// What a review says about reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// They take so long that fewer tokens are not going to be enough.
    FarOff,
    /// They miss their target, and who is in the way has one token, or bursts.
    Missed,
    /// Nine of ten meet it, but not by far all of them, and what they wait for is the device.
    LongTail,
    /// They meet it, if not nearly all.
    Met,
    /// Nearly all of them meet it.
    Content,
    /// Nothing in particular.
    Open,
}

/// What becomes of the size of bursts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Size {
    /// It stays.
    Same,
    /// Twice as large: nobody knows yet how large is too large.
    Double,
    /// A quarter more.
    More,
    /// An eighth less: they cannot be rarer.
    Less,
}

impl Size {
    /// How large bursts of `depth` are to be. They grow only if some were `refused`.
    pub(super) fn of(self, depth: u32, refused: bool) -> u32 {
        match self {
            Self::Double if refused => depth.saturating_mul(2),
            Self::More if refused => depth.saturating_add((depth / 4).max(1)),
            Self::Less => (depth * 7 / 8).max(1),
            Self::Same | Self::Double | Self::More => depth,
        }
    }
}

/// The period and how it was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Bursts {
    /// In nanoseconds. 0: there are none.
    period: u64,
    /// Reviews in a row that were content.
    content: u32,
    /// Complaints in a row about the tail at the longest period.
    in_vain: u32,
    /// Complaints about the tail that are let pass.
    settling: u32,
    /// More has been let through since there was last a complaint.
    eased: bool,
    /// That was too much once.
    found: bool,
}

impl Bursts {
    /// From one burst to the next, in nanoseconds; 0 if I/O leaves at any time.
    pub(super) fn period(&self) -> u64 {
        self.period
    }

    /// A review, with what a read takes alone.
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
            // It has been tried for long enough: the tail has another reason.
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

#[cfg(test)]
mod tests {
    use super::super::latency::{FINE, fine};
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
