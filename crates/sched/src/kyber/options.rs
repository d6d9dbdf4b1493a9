//! Attributes: the two targets of sysfs (`spec/kyber.md` section 2), and two switches of our own.

use super::domain::{DISCARD_TARGET, Domain, MEASURED};
use crate::{Attribute, Options, Unit};

/// In the order of `iosched/`, ours last.
pub(super) const ATTRIBUTES: &[Attribute] = &[
    Attribute {
        name: "read_lat_nsec",
        unit: Unit::Nanos,
        default: 2_000_000,
        min: 0,
        max: i64::MAX,
        help: "what reads are to take at most",
    },
    Attribute {
        name: "write_lat_nsec",
        unit: Unit::Nanos,
        default: 10_000_000,
        min: 0,
        max: i64::MAX,
        help: "what writes are to take at most",
    },
    Attribute {
        name: "linux_quirks",
        unit: Unit::Flag,
        default: 0,
        min: 0,
        max: 1,
        help: "both latencies of a domain share one timeout, as in Linux",
    },
    Attribute {
        name: "adaptive",
        unit: Unit::Count,
        default: 0,
        min: 0,
        max: 2,
        help: "1: learn targets and depths from the device; those that are set say how domains compare. 2: as well, and writes leave in bursts where one at a time is too many for reads",
    },
];

/// Behaviour beyond Linux's rules, in the order of the numbers that set it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Adaptive {
    /// None.
    Off = 0,
    /// Targets and depths are learned from the device.
    Learns = 1,
    /// Like [`Learns`](Self::Learns), and if that is not enough, writes wait for bursts.
    Bursts = 2,
}

impl Adaptive {
    fn of(value: i64) -> Self {
        match value {
            ..=0 => Self::Off,
            1 => Self::Learns,
            _ => Self::Bursts,
        }
    }
}

/// Current values; each instance and the governor have a copy.
#[derive(Clone, Copy)]
pub(super) struct Tunables {
    /// Targets in nanoseconds, as configured; instances use the targets that the governor publishes.
    pub(super) targets: [u64; MEASURED],
    pub(super) linux_quirks: bool,
    pub(super) adaptive: Adaptive,
}

impl Tunables {
    pub(super) fn new(options: &Options) -> Self {
        let targets = [DISCARD_TARGET.0; MEASURED];
        let mut tunables = Self { targets, linux_quirks: false, adaptive: Adaptive::Off };
        options.apply(|name, value| tunables.set(name, value));
        tunables
    }

    pub(super) fn get(&self, name: &str) -> Option<i64> {
        Some(match name {
            "read_lat_nsec" => self.targets[Domain::Read as usize] as i64,
            "write_lat_nsec" => self.targets[Domain::Write as usize] as i64,
            "linux_quirks" => self.linux_quirks.into(),
            "adaptive" => self.adaptive as i64,
            _ => return None,
        })
    }

    /// Sets `name` to `value`, which is within the attribute's range. Returns false if there is no such attribute.
    pub(super) fn set(&mut self, name: &str, value: i64) -> bool {
        match name {
            "read_lat_nsec" => self.targets[Domain::Read as usize] = value.max(0) as u64,
            "write_lat_nsec" => self.targets[Domain::Write as usize] = value.max(0) as u64,
            "linux_quirks" => self.linux_quirks = value != 0,
            "adaptive" => self.adaptive = Adaptive::of(value),
            _ => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_what_is_shown() {
        let mut tunables = Tunables::new(&Options::defaults(ATTRIBUTES));
        for attribute in ATTRIBUTES {
            assert_eq!(tunables.get(attribute.name), Some(attribute.default));
            for value in [attribute.max, attribute.min] {
                assert!(tunables.set(attribute.name, value));
                assert_eq!(tunables.get(attribute.name), Some(value), "{}", attribute.name);
            }
        }
        assert_eq!(tunables.get("discard_lat_nsec"), None);
        assert!(!tunables.set("discard_lat_nsec", 1));
    }
}
