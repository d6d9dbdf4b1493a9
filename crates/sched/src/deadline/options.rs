//! Attributes: names, ranges and defaults of sysfs (`spec/mq-deadline.md` section 1), and two switches of our own
//! that restore Linux's behaviour where ours differs.

use super::Dir;
use crate::{Attribute, Options, Shape, Unit};
use blkmq_core::Nanos;

const INT_MAX: i64 = i32::MAX as i64;
const INT_MIN: i64 = i32::MIN as i64;

/// In the order of `iosched/`, ours last.
pub(super) const ATTRIBUTES: &[Attribute] = &[
    Attribute::new(
        "read_expire",
        Unit::Millis,
        500,
        (0, INT_MAX),
        "a read's deadline after its insertion",
    ),
    Attribute::new(
        "write_expire",
        Unit::Millis,
        5_000,
        (0, INT_MAX),
        "a write's deadline after its insertion",
    ),
    Attribute::new(
        "writes_starved",
        Unit::Count,
        2,
        (INT_MIN, INT_MAX),
        "batches of reads while writes wait before one of writes; below 1, writes go first",
    ),
    Attribute::new("fifo_batch", Unit::Count, 16, (0, INT_MAX), "requests in a batch; 0 acts as 1"),
    Attribute::new(
        "front_merges",
        Unit::Flag,
        1,
        (0, 1),
        "look for requests that begin where an I/O ends",
    ),
    Attribute::new(
        "prio_aging_expire",
        Unit::Millis,
        10_000,
        (0, INT_MAX),
        "age at which a request may overtake higher classes",
    ),
    Attribute::new(
        "async_depth",
        Unit::Count,
        INT_MAX,
        (1, INT_MAX),
        "scheduler tags for all but sync reads; never more than nr_requests, which is the default",
    ),
    Attribute::new(
        "linux_quirks",
        Unit::Flag,
        0,
        (0, 1),
        "aging probes as Linux's do, side effects included",
    ),
    Attribute::new(
        "head_per_class",
        Unit::Flag,
        0,
        (0, 1),
        "requeued requests wait for their class's turn, as before Linux had one dispatch list",
    ),
];

/// Current values.
pub(super) struct Tunables {
    /// Time from insertion to deadline, by direction.
    pub(super) expire: [Nanos; 2],
    pub(super) writes_starved: i64,
    pub(super) fifo_batch: i64,
    pub(super) front_merges: bool,
    pub(super) prio_aging_expire: Nanos,
    /// From 1 to `nr_requests`.
    pub(super) async_depth: u32,
    pub(super) linux_quirks: bool,
    pub(super) head_per_class: bool,
    nr_requests: u32,
}

impl Tunables {
    pub(super) fn new(shape: &Shape, options: &Options) -> Self {
        let mut tunables = Self {
            expire: [Nanos::ZERO; 2],
            writes_starved: 0,
            fifo_batch: 0,
            front_merges: false,
            prio_aging_expire: Nanos::ZERO,
            async_depth: 0,
            linux_quirks: false,
            head_per_class: false,
            nr_requests: shape.nr_requests,
        };
        options.apply(|name, value| tunables.set(name, value));
        tunables
    }

    pub(super) fn get(&self, name: &str) -> Option<i64> {
        let millis = |span: Nanos| (span.0 / Nanos::from_millis(1).0) as i64;
        Some(match name {
            "read_expire" => millis(self.expire[Dir::Read as usize]),
            "write_expire" => millis(self.expire[Dir::Write as usize]),
            "writes_starved" => self.writes_starved,
            "fifo_batch" => self.fifo_batch,
            "front_merges" => self.front_merges.into(),
            "prio_aging_expire" => millis(self.prio_aging_expire),
            "async_depth" => self.async_depth.into(),
            "linux_quirks" => self.linux_quirks.into(),
            "head_per_class" => self.head_per_class.into(),
            _ => return None,
        })
    }

    /// Sets `name` to `value`, which is within the attribute's range. Waiting requests keep their deadlines. Returns
    /// false if there is no such attribute.
    pub(super) fn set(&mut self, name: &str, value: i64) -> bool {
        let millis = Nanos::from_millis(value.max(0) as u64);
        match name {
            "read_expire" => self.expire[Dir::Read as usize] = millis,
            "write_expire" => self.expire[Dir::Write as usize] = millis,
            "writes_starved" => self.writes_starved = value,
            "fifo_batch" => self.fifo_batch = value,
            "front_merges" => self.front_merges = value != 0,
            "prio_aging_expire" => self.prio_aging_expire = millis,
            "async_depth" => {
                self.async_depth = value.clamp(1, self.nr_requests.max(1).into()) as u32;
            }
            "linux_quirks" => self.linux_quirks = value != 0,
            "head_per_class" => self.head_per_class = value != 0,
            _ => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tunables(text: &str) -> Tunables {
        let shape =
            Shape { slots: 64, nr_requests: 64, hw_depth: 32, hw_queues: 1, rotational: false };
        Tunables::new(&shape, &Options::parse(ATTRIBUTES, text).expect("valid options"))
    }

    #[test]
    fn what_is_set_is_what_is_shown() {
        for (index, attribute) in ATTRIBUTES.iter().enumerate() {
            let mut tunables = tunables("");
            let value = attribute.max.min(i64::from(attribute.name != "fifo_batch") + index as i64);
            let value = value.max(attribute.min);
            assert!(tunables.set(attribute.name, value));
            assert_eq!(tunables.get(attribute.name), Some(value), "{}", attribute.name);
        }
        assert_eq!(tunables("").get("no_such"), None);
        assert!(!tunables("").set("no_such", 1));
    }

    #[test]
    fn async_depth_is_nr_requests_unless_less_is_asked_for() {
        assert_eq!(tunables("").get("async_depth"), Some(64));
        assert_eq!(tunables("async_depth=8").get("async_depth"), Some(8));
        assert_eq!(tunables("async_depth=65").get("async_depth"), Some(64));
        assert_eq!(tunables("async_depth=0").get("async_depth"), Some(1));
    }
}
