//! [`Counting`]: whether and since when requests are counted.

/// When a server counts requests and the stages of their time (the attribute `queue/iostats` of its devices).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Counting {
    /// From the first request for the counts.
    #[default]
    Asked,
    /// From the start.
    Always,
    /// Never; requests for the counts are refused.
    Never,
}
