//! The additional state of `adaptive`: changes of tokens.

use super::bursts::Bursts;
use blkmq_core::Instant;

/// The additional state of `adaptive`.
#[derive(Default)]
pub(super) struct Adaptive {
    pub(super) base: [Option<u64>; 3],
    pub(super) busy: [u64; 3],
    pub(super) refused: [bool; 3],
    pub(super) missed: [u32; 3],
    /// Domains judged good since tokens last changed.
    pub(super) vouched: [bool; 3],
    pub(super) doubtful: bool,
    /// The seconds after a measurement in which no other one begins.
    pub(super) pause: u64,
    /// The time of the review at which the measurement began, or last saw an old request.
    pub(super) measuring: Option<Instant>,
    /// Reads are being measured, and no other domain.
    pub(super) reads_first: bool,
    /// There were reads at the last review.
    pub(super) reads: bool,
    pub(super) bursts: Option<Bursts>,
    /// The time at which the last measurement ended.
    pub(super) measured: Option<Instant>,
}

impl Adaptive {
    pub(super) fn cut(
        &self,
        domain: usize,
        targets: [u64; 3],
        p90: [Option<u64>; 3],
        device: &[Option<usize>; 3],
        total: Option<usize>,
        tokens: &mut u32,
    ) {
        if self.busy[domain] < self.busy.iter().sum::<u64>() / 4 {
            return;
        }
        let depth = u64::from(*tokens);
        let missed = (0..3).filter(|d| device[*d].is_some_and(|b| b >= 4));
        let shares = missed
            .filter_map(|d| Some(u128::from(depth) * u128::from(targets[d]) / u128::from(p90[d]?)));
        let most = depth * 7 / 8;
        let share = shares.min().map_or(most, |share| most.min(share.min(1 << 32) as u64));
        let share = share.max(depth / 4);
        let spare = total.filter(|p| *p < 4).map(|p| depth * (p as u64 + 1) / 4);
        *tokens = share.min(spare.unwrap_or(share)).max(1) as u32;
    }

    pub(super) fn grow(&mut self, domain: usize, total: Option<usize>, tokens: &mut u32) {
        let Some(p) = total else { return };
        if p >= 4 && self.refused[domain] {
            *tokens = (*tokens + (*tokens / 4).max(1)).min(1024);
            self.vouched = [false; 3];
        }
        self.refused[domain] = false;
    }
}
