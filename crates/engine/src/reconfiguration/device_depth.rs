//! [`DeviceDepth`]: the setting of how many requests a device may hold.
//!
//! A drive that takes many requests chooses among them by itself, whatever a scheduler decided before. A bound keeps
//! them in the elevator, where they are ordered by the policy and can still merge (decision 0020).

use crate::DeviceShape;
use crate::reconfiguration::bounds::MAX_DEVICE_DEPTH;
use std::fmt;
use std::str::FromStr;

/// How many requests a device may hold, over all its hardware queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DeviceDepth {
    /// As many as it takes.
    #[default]
    Device,
    /// At most so many: 1 to [`MAX_DEVICE_DEPTH`]. A bound above what the device takes changes nothing but costs a
    /// shared counter.
    AtMost(u32),
}

impl DeviceDepth {
    /// The most requests that may have left the elevators of a queue for such a device; `None`: any number.
    #[must_use]
    pub fn budget(self, device: &DeviceShape) -> Option<u32> {
        match (self, device.budget) {
            (Self::Device, budget) => budget,
            (Self::AtMost(depth), budget) => Some(budget.map_or(depth, |budget| budget.min(depth))),
        }
    }

    /// Is it a possible number?
    pub(crate) fn is_valid(self) -> bool {
        match self {
            Self::Device => true,
            Self::AtMost(depth) => (1..=MAX_DEVICE_DEPTH).contains(&depth),
        }
    }

    /// The setting that this number stands for; 0 is the device's own.
    #[must_use]
    pub fn of_number(number: u32) -> Self {
        if number == 0 { Self::Device } else { Self::AtMost(number) }
    }

    /// The number that stands for the setting.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Device => 0,
            Self::AtMost(depth) => depth,
        }
    }
}

/// A text is no device depth.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceDepthError(String);

impl fmt::Display for DeviceDepthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text) = self;
        write!(
            f,
            "device_depth: '{text}' is not valid; accepted: 0, for as many as the device takes, or 1 to {MAX_DEVICE_DEPTH}"
        )
    }
}

impl std::error::Error for DeviceDepthError {}

impl fmt::Display for DeviceDepth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)
    }
}

impl FromStr for DeviceDepth {
    type Err = DeviceDepthError;

    fn from_str(text: &str) -> Result<Self, DeviceDepthError> {
        let depth = text.parse().ok().map(Self::of_number).filter(|depth| depth.is_valid());
        depth.ok_or_else(|| DeviceDepthError(text.into()))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::WriteCache;
    use blkmq_core::{Limits, Nanos};

    #[test]
    fn what_is_written_is_read_back() {
        for text in ["0", "1", "32", "10240"] {
            assert_eq!(text.parse::<DeviceDepth>().expect("right").to_string(), text);
        }
        for bad in ["", "-1", "10241", "deep"] {
            let error = bad.parse::<DeviceDepth>().expect_err(bad).to_string();
            assert!(error.contains(&format!("'{bad}'")) && error.contains("1 to 10240"), "{error}");
        }
    }

    #[test]
    fn the_lesser_of_the_two_bounds_counts() {
        let device = |budget| DeviceShape {
            hw_queues: 1,
            hw_queue_depth: 32,
            shared_tags: false,
            budget,
            limits: Limits::default(),
            cache: WriteCache::Through,
            timeout: Nanos::from_secs(1),
        };
        assert_eq!(DeviceDepth::Device.budget(&device(None)), None);
        assert_eq!(DeviceDepth::Device.budget(&device(Some(3))), Some(3));
        assert_eq!(DeviceDepth::AtMost(8).budget(&device(None)), Some(8));
        assert_eq!(DeviceDepth::AtMost(8).budget(&device(Some(3))), Some(3));
        assert_eq!(DeviceDepth::AtMost(2).budget(&device(Some(3))), Some(2));
    }
}
