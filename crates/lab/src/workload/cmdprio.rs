//! fio's `cmdprio_percentage` and `cmdprio_bssplit`: a part of the I/Os has a priority of its own.
//!
//! The choice of I/Os is in `prios.rs`.

use blkmq_core::IoPrio;

/// The I/Os of a direction whose priority differs from that of the job.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum CmdPrio {
    /// None.
    #[default]
    None,
    /// A share of all, in percent.
    Percentage(u8, IoPrio),
    /// Shares of the I/Os of a length in bytes, in percent. The shares of one length sum to 100 or less.
    Split(Vec<(u32, u8, IoPrio)>),
}

impl CmdPrio {
    /// The largest sum of the shares of one length, in percent.
    pub(super) fn most(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::Percentage(share, _) => u32::from(*share),
            Self::Split(parts) => {
                let same = |len: u32| parts.iter().filter(move |part| part.0 == len);
                let sum = |len: u32| same(len).map(|part| u32::from(part.1)).sum();
                parts.iter().map(|part| sum(part.0)).max().unwrap_or(0)
            }
        }
    }

    pub(super) fn prios(&self) -> Vec<IoPrio> {
        match self {
            Self::None => Vec::new(),
            Self::Percentage(_, prio) => vec![*prio],
            Self::Split(parts) => parts.iter().map(|part| part.2).collect(),
        }
    }
}
