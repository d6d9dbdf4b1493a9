//! [`Counting`]: when requests are counted.

/// When a server counts requests, and where their time goes (the attribute `queue/iostats` of its devices).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Counting {
    /// From the first time that the counts are asked for.
    #[default]
    Asked,
    /// From the start.
    Always,
    /// Not at all; questions for the counts are refused.
    Never,
}
