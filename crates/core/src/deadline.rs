//! [`Deadline`]: the time that an I/O may take, and its fate if a prediction says that it takes longer.

use crate::Nanos;

/// The time from the arrival of an I/O within which it is to end. A queue that predicts the times of its I/Os (attribute
/// `blkmq/forecast`) compares its prediction with it before the I/O takes a slot, and counts afterwards which of both was
/// right.
///
/// A deadline is no order: no scheduler serves an I/O earlier for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Deadline(u32);

impl Deadline {
    /// No deadline.
    pub const NONE: Self = Self(0);
    /// The longest deadline, about 36 minutes.
    pub const MAX: Nanos = Nanos(((1 << 31) - 1) * 1_000);
    /// The I/O is served although it is expected to be late.
    const SERVE: u32 = 1 << 31;

    /// An I/O that is expected to take longer is refused immediately.
    ///
    /// `within` is rounded up to microseconds, at least one, and longer times than [`MAX`](Self::MAX) count as that.
    #[must_use]
    pub const fn reject(within: Nanos) -> Self {
        let micros = within.0.div_ceil(1_000);
        let most = Self::MAX.0 / 1_000;
        Self(if micros == 0 {
            1
        } else if micros < most {
            micros as u32
        } else {
            most as u32
        })
    }

    /// An I/O that is expected to take longer is served all the same: the prediction is only compared with the truth.
    #[must_use]
    pub const fn serve(within: Nanos) -> Self {
        Self(Self::reject(within).0 | Self::SERVE)
    }

    /// Returns whether there is a deadline.
    #[inline]
    #[must_use]
    pub const fn is_some(self) -> bool {
        self.0 != 0
    }

    /// The time from the arrival; zero without a deadline.
    #[must_use]
    pub const fn within(self) -> Nanos {
        Nanos((self.0 & !Self::SERVE) as u64 * 1_000)
    }

    /// Returns whether an I/O that is expected to take longer is refused.
    #[must_use]
    pub const fn rejects(self) -> bool {
        self.is_some() && self.0 & Self::SERVE == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_whole_microseconds_and_knows_what_becomes_of_late_ios() {
        let reject = Deadline::reject(Nanos::from_millis(20));
        let serve = Deadline::serve(Nanos(1));
        assert_eq!((reject.within(), reject.rejects()), (Nanos::from_millis(20), true));
        assert_eq!((serve.within(), serve.rejects()), (Nanos::from_micros(1), false));
        assert!(!Deadline::NONE.is_some() && !Deadline::NONE.rejects());
        assert_eq!(Deadline::reject(Nanos::ZERO).within(), Nanos::from_micros(1));
        assert_eq!(Deadline::serve(Nanos(u64::MAX)).within(), Deadline::MAX);
    }
}
