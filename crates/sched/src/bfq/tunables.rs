//! Attributes: names, ranges and defaults of sysfs (`spec/bfq.md` section 16), and switches for parts of the policy.

use crate::{Attribute, Options, Unit};
use blkmq_core::Nanos;

const INT_MAX: i64 = i32::MAX as i64;

/// The attributes in the order of `iosched/`, then ours.
pub(super) const ATTRIBUTES: &[Attribute] = &[
    Attribute::new(
        "fifo_expire_sync",
        Unit::Millis,
        125,
        (1, INT_MAX),
        "age at which a sync request goes before the sector order of its queue",
    ),
    Attribute::new(
        "fifo_expire_async",
        Unit::Millis,
        250,
        (1, INT_MAX),
        "the same for requests that nobody waits for",
    ),
    Attribute::new(
        "back_seek_max",
        Unit::Kib,
        16_384,
        (0, INT_MAX),
        "how far a queue may go back to a request instead of on to the next one",
    ),
    Attribute::new(
        "back_seek_penalty",
        Unit::Count,
        2,
        (1, INT_MAX),
        "how many times as long as it is the way back counts",
    ),
    Attribute::new(
        "slice_idle",
        Unit::Millis,
        8,
        (0, INT_MAX),
        "how long the device waits for the next request of a queue; 0: never",
    ),
    Attribute::new(
        "slice_idle_us",
        Unit::Micros,
        8_000,
        (0, INT_MAX),
        "slice_idle in microseconds",
    ),
    Attribute::new(
        "max_budget",
        Unit::Sectors,
        0,
        (0, INT_MAX),
        "the longest budget; 0: what the device does in timeout_sync",
    ),
    Attribute::new("timeout_sync", Unit::Millis, 125, (1, INT_MAX), "the longest slot of a queue"),
    Attribute::new(
        "strict_guarantees",
        Unit::Flag,
        0,
        (0, 1),
        "wait for every sync queue, and have one request in the device",
    ),
    Attribute::new(
        "low_latency",
        Unit::Flag,
        1,
        (0, 1),
        "prefer what looks interactive or soft real-time",
    ),
    Attribute::new(
        "queue_merge",
        Unit::Count,
        1,
        (0, 2),
        "1: join queues that work side by side, and threads that begin together; 2: tenants, too; 0: none",
    ),
    Attribute::new(
        "injection",
        Unit::Flag,
        1,
        (0, 1),
        "while the device waits for a queue, let others in as far as they do not slow it down",
    ),
];

/// The queues that are merged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Joining {
    /// No queues.
    Off,
    /// Queues with neighbouring requests; and those that are created together, of threads of an application.
    Early,
    /// Like [`Early`](Self::Early), and queues of tenants that are created together.
    Stable,
}

/// Current values.
#[derive(Clone, Debug)]
pub struct Tunables {
    /// The age at which a request goes before the sector order of its queue: async, then sync.
    pub fifo_expire: [Nanos; 2],
    /// The longest jump backwards, in sectors.
    pub back_seek_max: u64,
    /// The factor by which a distance backwards counts; at least 1.
    pub back_seek_penalty: u64,
    /// The longest time for which the device is kept idle for a queue.
    pub slice_idle: Nanos,
    /// The longest budget in sectors; 0 for the one by the rate of the device.
    pub max_budget: u64,
    /// The longest slot of a queue of sync requests.
    pub timeout: Nanos,
    /// One request at a time, with idling after each.
    pub strict: bool,
    /// Whether starting and interactive applications are preferred.
    pub low_latency: bool,
    /// The queues that are merged.
    pub joining: Joining,
    /// Whether other queues may use a device that is kept idle for the queue in service.
    pub injection: bool,
}

impl Tunables {
    /// The defaults, and the options that are given.
    #[must_use]
    pub fn new(options: &Options) -> Self {
        let mut tunables = Self {
            fifo_expire: [Nanos::ZERO; 2],
            back_seek_max: 0,
            back_seek_penalty: 1,
            slice_idle: Nanos::ZERO,
            max_budget: 0,
            timeout: Nanos::ZERO,
            strict: false,
            low_latency: false,
            joining: Joining::Off,
            injection: false,
        };
        options.apply(|name, value| tunables.set(name, value));
        tunables
    }

    /// The value of an attribute, in its unit; `None` if there is no such attribute.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<i64> {
        let millis = |span: Nanos| (span.0 / 1_000_000) as i64;
        Some(match name {
            "fifo_expire_sync" => millis(self.fifo_expire[1]),
            "fifo_expire_async" => millis(self.fifo_expire[0]),
            "back_seek_max" => (self.back_seek_max / 2) as i64,
            "back_seek_penalty" => self.back_seek_penalty as i64,
            "slice_idle" => millis(self.slice_idle),
            "slice_idle_us" => (self.slice_idle.0 / 1_000) as i64,
            "max_budget" => self.max_budget as i64,
            "timeout_sync" => millis(self.timeout),
            "strict_guarantees" => self.strict.into(),
            "low_latency" => self.low_latency.into(),
            "queue_merge" => self.joining as i64,
            "injection" => self.injection.into(),
            _ => return None,
        })
    }

    /// Sets `name` to `value`, which is in the attribute's range. Returns false if there is no such attribute.
    pub fn set(&mut self, name: &str, value: i64) -> bool {
        let count = value.max(0) as u64;
        match name {
            "fifo_expire_sync" => self.fifo_expire[1] = Nanos::from_millis(count),
            "fifo_expire_async" => self.fifo_expire[0] = Nanos::from_millis(count),
            "back_seek_max" => self.back_seek_max = count * 2,
            "back_seek_penalty" => self.back_seek_penalty = count.max(1),
            "slice_idle" => self.slice_idle = Nanos::from_millis(count),
            "slice_idle_us" => self.slice_idle = Nanos::from_micros(count),
            "max_budget" => self.max_budget = count,
            "timeout_sync" => self.timeout = Nanos::from_millis(count.max(1)),
            "strict_guarantees" => {
                if value != 0 && !self.strict {
                    // Without idling there are no guarantees.
                    self.slice_idle = self.slice_idle.max(Nanos::from_millis(8));
                }
                self.strict = value != 0;
            }
            "low_latency" => self.low_latency = value != 0,
            "queue_merge" => {
                self.joining = match value {
                    ..=0 => Joining::Off,
                    1 => Joining::Early,
                    _ => Joining::Stable,
                }
            }
            "injection" => self.injection = value != 0,
            _ => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tunables(text: &str) -> Tunables {
        Tunables::new(&Options::parse(ATTRIBUTES, text).expect("valid options"))
    }

    #[test]
    fn what_is_set_is_what_is_shown() {
        for attribute in ATTRIBUTES {
            let mut tunables = tunables("");
            assert_eq!(tunables.get(attribute.name), Some(attribute.default), "{}", attribute.name);
            for value in [attribute.min, attribute.max, 1.max(attribute.min)] {
                assert!(tunables.set(attribute.name, value));
                assert_eq!(tunables.get(attribute.name), Some(value), "{}", attribute.name);
            }
        }
        assert_eq!(tunables("").get("no_such"), None);
        assert!(!tunables("").set("no_such", 1));
    }

    #[test]
    fn slice_idle_has_two_names() {
        assert_eq!(tunables("slice_idle=3").get("slice_idle_us"), Some(3_000));
        assert_eq!(tunables("slice_idle_us=500").get("slice_idle"), Some(0));
    }

    #[test]
    fn strict_guarantees_lift_slice_idle() {
        assert_eq!(tunables("slice_idle=0,strict_guarantees=1").get("slice_idle"), Some(8));
        assert_eq!(tunables("slice_idle=20,strict_guarantees=1").get("slice_idle"), Some(20));
        let mut tunables = tunables("slice_idle=0,strict_guarantees=0");
        assert_eq!(tunables.get("slice_idle"), Some(0), "only when they are turned on");
        tunables.set("strict_guarantees", 1);
        tunables.set("slice_idle", 0);
        tunables.set("strict_guarantees", 1);
        assert_eq!(tunables.get("slice_idle"), Some(0), "they were on");
    }
}
