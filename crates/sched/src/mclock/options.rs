//! Attributes: the capacity of the device, by the names of `io.cost.model`, and the parameters of the policy.

use crate::{Attribute, Options, Shape, Unit};

/// The most bytes and I/Os a second, far above any device.
const MOST_BPS: i64 = 1 << 40;
const MOST_IOPS: i64 = 1 << 30;
/// The greatest bound, in nanoseconds: a minute.
const MOST_BOUND: i64 = 60_000_000_000;

/// The attributes, the capacity first.
pub(super) static ATTRIBUTES: [Attribute; 15] = [
    Attribute::new(
        "rbps",
        Unit::Count,
        0,
        (0, MOST_BPS),
        "bytes that the device reads a second; 0: a guess",
    ),
    Attribute::new(
        "rseqiops",
        Unit::Count,
        0,
        (0, MOST_IOPS),
        "sequential reads of 4 KiB a second; 0: a guess",
    ),
    Attribute::new(
        "rrandiops",
        Unit::Count,
        0,
        (0, MOST_IOPS),
        "random reads of 4 KiB a second; 0: a guess",
    ),
    Attribute::new(
        "wbps",
        Unit::Count,
        0,
        (0, MOST_BPS),
        "bytes that the device writes a second; 0: as reads",
    ),
    Attribute::new(
        "wseqiops",
        Unit::Count,
        0,
        (0, MOST_IOPS),
        "sequential writes a second; 0: as reads",
    ),
    Attribute::new(
        "wrandiops",
        Unit::Count,
        0,
        (0, MOST_IOPS),
        "random writes a second; 0: as reads",
    ),
    Attribute::new(
        "safe_percent",
        Unit::Count,
        90,
        (1, 100),
        "part of the capacity that may be promised to groups",
    ),
    Attribute::new(
        "pace_percent",
        Unit::Count,
        0,
        (0, 1_000),
        "part of the capacity at which requests without a floor leave; 0: as fast as the device takes them",
    ),
    Attribute::new(
        "inflight_usec",
        Unit::Micros,
        0,
        (0, 10_000_000),
        "device time in flight beyond which only floors and groups without any are served; 0: no bound",
    ),
    Attribute::new(
        "fifo_batch",
        Unit::Count,
        0,
        (0, 1_000),
        "requests of one group in a row, in order of sector; 0: 16 if the device rotates, else 1",
    ),
    Attribute::new(
        "merge_kib",
        Unit::Kib,
        128,
        (0, 1 << 20),
        "length up to which I/Os merge while groups compete; 0: as long as the device takes them",
    ),
    Attribute::new(
        "learn",
        Unit::Flag,
        1,
        (0, 1),
        "find a bound for what is in the device, where neither it nor the capacity is given; 0: the bound that was found stays",
    ),
    Attribute::new(
        "bound_nsec",
        Unit::Count,
        0,
        (0, MOST_BOUND),
        "the bound that the search begins with, as blkmq/learned has shown it; 0: none",
    ),
    Attribute::new(
        "saturated_ppm",
        Unit::Count,
        0,
        (0, MOST_IOPS),
        "the rate of the saturated device that the search begins with, as blkmq/learned has shown it; 0: not known",
    ),
    Attribute::new(
        "front_merges",
        Unit::Flag,
        1,
        (0, 1),
        "look for requests that begin where an I/O ends",
    ),
];

/// Current values, as they were set.
pub(super) struct Tunables {
    values: [i64; ATTRIBUTES.len()],
    rotational: bool,
    hot: Hot,
}

/// Derived values that are read for each request.
#[derive(Clone, Copy, Default)]
struct Hot {
    inflight: Option<u64>,
    batch: u32,
    longest: u32,
    untold: bool,
    learns: bool,
}

/// The number of attributes of the capacity, which are the first ones.
const CAPACITY: usize = 6;

/// The automatic values of `io.cost.model` in Linux, in the order of [`ATTRIBUTES`].
const ROTATING: [i64; 6] = [174_019_176, 41_708, 370, 178_075_866, 42_705, 378];
const SOLID: [i64; 6] = [488_636_629, 8_932, 8_518, 427_891_549, 28_755, 21_940];

impl Tunables {
    pub(super) fn new(shape: &Shape, options: &Options) -> Self {
        let values = core::array::from_fn(|at| options.get(ATTRIBUTES[at].name));
        let mut tunables = Self { values, rotational: shape.rotational, hot: Hot::default() };
        tunables.hot = tunables.find_hot();
        tunables
    }

    fn find_hot(&self) -> Hot {
        let usec = self.value("inflight_usec");
        let untold = usec == 0 && self.values[..CAPACITY].iter().all(|given| *given == 0);
        Hot {
            inflight: (usec > 0).then_some(usec * 1_000),
            batch: match self.value("fifo_batch") {
                0 if self.rotational => 16,
                0 => 1,
                given => given as u32,
            },
            longest: match self.value("merge_kib") {
                0 => u32::MAX,
                kib => (2 * kib) as u32,
            },
            untold,
            learns: untold && self.value("learn") != 0,
        }
    }

    fn position(name: &str) -> Option<usize> {
        ATTRIBUTES.iter().position(|attribute| attribute.name == name)
    }

    pub(super) fn get(&self, name: &str) -> Option<i64> {
        Self::position(name).map(|at| self.values[at])
    }

    /// Sets `name` to `value`, which is in the attribute's range. Returns false if there is no such attribute.
    pub(super) fn set(&mut self, name: &str, value: i64) -> bool {
        let known = Self::position(name).map(|at| self.values[at] = value).is_some();
        self.hot = self.find_hot();
        known
    }

    fn value(&self, name: &str) -> u64 {
        self.get(name).expect("the names are those of the table").unsigned_abs()
    }

    /// Returns bytes, sequential I/Os and random I/Os a second, of reads and then of writes.
    pub(super) fn capacity(&self) -> [[u64; 3]; 2] {
        let guess = if self.rotational { ROTATING } else { SOLID };
        let or = |at: usize, other: i64| if self.values[at] > 0 { self.values[at] } else { other };
        let given = |at: usize| self.values[at];
        // Sequential reads are no slower than random ones that are given.
        let random = or(2, guess[2]);
        let sequential = or(1, if given(2) > 0 { given(2) } else { guess[1] });
        let read = [or(0, guess[0]), sequential, random];
        // Writes are as reads where these are given.
        let like = |at: usize| if given(at) > 0 { given(at) } else { guess[at + 3] };
        let random = or(5, like(2));
        let sequential = or(4, if given(1) > 0 || given(2) > 0 { read[1] } else { guess[4] });
        let write = [or(3, like(0)), sequential, random];
        [read, write].map(|of| of.map(i64::unsigned_abs))
    }

    pub(super) fn safe_percent(&self) -> u32 {
        self.value("safe_percent") as u32
    }

    pub(super) fn pace_percent(&self) -> u32 {
        self.value("pace_percent") as u32
    }

    /// The bound in nanoseconds and the saturated rate in millionths with which the search begins; zero if not given.
    pub(super) fn begins_with(&self) -> [u64; 2] {
        ["bound_nsec", "saturated_ppm"].map(|name| self.value(name))
    }

    /// The most device time in flight, in nanoseconds; `None` if not given.
    #[inline]
    pub(super) fn inflight(&self) -> Option<u64> {
        self.hot.inflight
    }

    /// The most sectors of a merged request while groups compete.
    #[inline]
    pub(super) fn longest(&self) -> u32 {
        self.hot.longest
    }

    /// Returns whether neither the capacity of the device nor a bound is given, so a bound is found.
    #[inline]
    pub(super) fn is_untold(&self) -> bool {
        self.hot.untold
    }

    /// Returns whether the bound is sought.
    #[inline]
    pub(super) fn learns(&self) -> bool {
        self.hot.learns
    }

    #[inline]
    pub(super) fn batch(&self) -> u32 {
        self.hot.batch
    }

    pub(super) fn front_merges(&self) -> bool {
        self.value("front_merges") != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capacity(rotational: bool, text: &str) -> [[u64; 3]; 2] {
        let shape = Shape { slots: 64, nr_requests: 64, hw_depth: 32, hw_queues: 1, rotational };
        Tunables::new(&shape, &Options::parse(&ATTRIBUTES, text).expect("valid options")).capacity()
    }

    #[test]
    fn what_is_not_given_is_as_what_is() {
        assert_eq!(capacity(true, ""), [[174_019_176, 41_708, 370], [178_075_866, 42_705, 378]]);
        assert_eq!(capacity(false, "rbps=7,rrandiops=5"), [[7, 5, 5], [7, 5, 5]]);
        assert_eq!(
            capacity(false, "rrandiops=5,rseqiops=6,wrandiops=2"),
            [[488_636_629, 6, 5], [427_891_549, 6, 2]]
        );
    }
}
