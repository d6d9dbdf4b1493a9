//! The options of a job that works in one zone at a time: `zonemode=strided` and its companions.

use blkmq_lab::workload::Strided;
use blkmq_terminal::UsageError;

/// `zonemode` and its companions.
#[derive(Clone, Copy, Debug, Default)]
pub struct ZoneDraft {
    /// `zonemode=strided`.
    pub strided: bool,
    /// `zonesize`, in bytes; 0 for none.
    pub size: u64,
    /// `zonerange`, in bytes; 0 is `zonesize`.
    pub range: u64,
    /// `zoneskip`, in bytes.
    pub skip: u64,
}

impl ZoneDraft {
    /// The zones, if the job has any. As in fio, `zonesize` and `zonemode` require each other.
    ///
    /// # Errors
    /// If they contradict each other.
    pub fn finish(self) -> Result<Option<Strided>, UsageError> {
        let Self { strided, size, range, skip } = self;
        let refuse = |text: &str| Err(UsageError::new(text));
        match (strided, size) {
            (true, 0) => refuse("zonemode=strided without zonesize; accepted: both"),
            (true, size) => {
                let range = if range == 0 { size } else { range };
                Ok(Some(Strided { size, range, skip }))
            }
            (false, 0) if range == 0 && skip == 0 => Ok(None),
            (false, _) => {
                refuse("zonesize, zonerange, zoneskip; accepted with them: zonemode=strided")
            }
        }
    }
}
