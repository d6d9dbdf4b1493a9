//! [`Finding`]: an event at a device, for its operator.

use alloc::format;
use alloc::string::String;
use core::fmt;

/// An event at a device, in a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    /// A device below has failed, or returned bytes other than those written.
    Fault(String),
    /// A mirror has begun to copy, has copied a part, or is complete again.
    Progress(String),
}

impl Finding {
    /// Puts the number of the device below a layer at the beginning of the sentence.
    #[must_use]
    pub fn of_leg(self, number: usize) -> Self {
        let named = |text| format!("device {number}: {text}");
        match self {
            Self::Fault(text) => Self::Fault(named(text)),
            Self::Progress(text) => Self::Progress(named(text)),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Fault(text) | Self::Progress(text)) = self;
        f.write_str(text)
    }
}
