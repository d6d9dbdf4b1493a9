//! The findings of a review, for the rule that adjusts tokens.

use super::domain::MEASURED;

/// The findings of a review.
pub(super) struct Findings {
    /// A domain is too slow at the device.
    pub(super) bad: bool,
    /// The bucket of the 90th percentile of device latency, for domains with enough samples.
    pub(super) device: [Option<usize>; MEASURED],
    /// The bucket of the 99th percentile of total latency; from an earlier review if `bad`.
    pub(super) total: [Option<usize>; MEASURED],
}
